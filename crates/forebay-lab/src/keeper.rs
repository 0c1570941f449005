//! Keeper: a process that starts and ends the server of one trial (one measurement of one server),
//! and removes the server's temporary directory. The keeper contains a
//! [guardian](forebay_process::Guardian), which follows all descendants of the server.
//!
//! `forebay compare` starts a keeper (the same program, as `forebay __keeper`) for every trial, and
//! holds a pipe to the keeper's standard input. The keeper
//!
//! - creates the server's temporary directory and, if permitted, its control group;
//! - ends the server when `forebay compare` orders it, after a signal, and at the end of standard
//!   input. This input ends even if `forebay compare` is killed. The keeper first sends SIGTERM to
//!   the server's process group. After a grace period, it sends SIGKILL to all remaining processes
//!   until the kernel reports no descendants;
//! - then removes the directory and the group, and exits.
//!
//! Orders and events (`protocol`) are lines of JSON on the keeper's standard input and output.
//! `handle` is the part in `forebay compare`.

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
