//! The keeper: the [guardian](forebay_process::Guardian) of one trial's server, with its directory.
//!
//! `forebay compare` runs a keeper (the same program, as `forebay __keeper`) for every trial and
//! holds the other end of its standard input. The keeper
//!
//! - creates the trial's temporary directory and, if permitted, its control group;
//! - ends the server on order, on a signal, and at the end of its standard input, which ends even
//!   if `forebay compare` is killed: first SIGTERM to the server's process group, then, after a
//!   grace period, SIGKILL to all remaining processes, until the kernel reports no descendants;
//! - then removes the directory and the group, and exits.
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

/// Returns a signal's name, or its number if it has none.
pub fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}
