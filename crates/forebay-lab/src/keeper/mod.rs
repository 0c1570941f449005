//! The keeper: the [guardian](forebay_process::Guardian) of one trial's server, with a place for it.
//!
//! `forebay compare` runs a keeper (this very program, as `forebay __keeper`) for every trial and
//! holds the other end of its standard input. The keeper
//!
//! - makes the trial's temporary directory and, where permitted, its control group;
//! - ends the server when told, when signalled, and when its standard input ends, which it does
//!   however `forebay compare` may die: SIGTERM to the server's process group, then, after a grace
//!   period, SIGKILL to all that is left, until the kernel says there is no descendant any more;
//! - then removes the directory and the group, and ends.
//!
//! Orders and events (`protocol`) are lines of JSON on its standard input and output. `handle` is
//! the other side, in `forebay compare`.

mod handle;
mod keep;
mod protocol;
mod room;

pub use forebay_process::cpu_set;
pub(crate) use handle::ENDED_WELL;
pub use handle::{Keeper, KeeperError};
pub use keep::keep;
pub use protocol::Launch;
pub use room::OUTPUT_FILE;

/// A signal's usual name, or its number.
pub fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}
