//! The keeper: a small process that starts one trial's server and sees to it that nothing remains.
//!
//! `forebay compare` runs a keeper (this very program, as `forebay __keeper`) for every trial and
//! holds the other end of its standard input. The keeper
//!
//! - has a session of its own, so that Ctrl-C at the terminal does not reach it or the server;
//! - is a child subreaper: a server that forks into the background stays its descendant;
//! - makes the trial's temporary directory and, where permitted, its control group;
//! - ends the server when told, when signalled, and when its standard input ends, which it does
//!   however `forebay compare` may die: SIGTERM to the server's process group, then, after a grace
//!   period, SIGKILL to all that is left, until the kernel says there is no descendant any more;
//! - then removes the directory and the group, and ends.
//!
//! Orders and events ([`protocol`]) are lines of JSON on its standard input and output. `launch`
//! is the last step before the server: it ties the process to the keeper's life and becomes it.
//! `handle` is the other side, in `forebay compare`.

mod handle;
mod keep;
mod launch;
mod protocol;
mod room;

pub use handle::{Keeper, KeeperError};
pub use keep::keep;
pub use launch::{Launcher, cpu_set, launch};
pub use protocol::Launch;
pub use room::OUTPUT_FILE;

/// A signal's usual name, or its number.
pub fn signal_name(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal);
    name.map_or_else(|| format!("signal {signal}"), str::to_owned)
}
