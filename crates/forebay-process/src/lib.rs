//! Processes that Forebay starts: their users, their limits, and their complete end.
//!
//! [`Launch`] is the step between fork and program. [`Guardian`] is the process that ends its
//! children when its parent ends. [`GroupReaper`] costs less, and only kills process groups.
//! [`cgroup`] and [`descendants`] watch the children of processes. This crate knows nothing of
//! applications, requests or experiments.
#![forbid(unsafe_code)]

mod beginning;
pub mod cgroup;
pub mod descendants;
mod group_reaper;
mod guardian;
mod helper;
mod identity;
mod init;
mod launch;
mod launcher;
mod output_lines;
mod processors;
pub mod rights;
mod root;

pub use beginning::beginning;
pub use descendants::Cpu;
pub use group_reaper::{GroupReaper, PolledGroupReaper};
pub use guardian::{Guardian, Wake, guard_program};
pub use helper::{
    Child, HELPER, HelpedChild, HelpedLaunch, HelpedRoom, Helper, Owners, Starting, help,
};
pub use identity::{Identity, StartError};
pub use init::{is_below_init, run_below_init};
pub use launch::{
    Launch, MAY_BE_MEASURED, ProcessLimits, cpu_set, found_descriptors, give_back_descriptors,
    launch, myself, record_descriptors, search_path, started_descriptors,
};
pub use launcher::{LaunchSpec, Launcher};
pub use output_lines::{OutputLines, Severity, append_escaped};
pub use processors::{
    keep_process, keep_to, kept_processor, leave_processor, on_all_processors, processors_for,
    record_processors,
};
pub use rights::{Person, Refusal, Right, Seen, changeable_by_others};
pub use root::{
    Connection, Keeps, ROOT, RootCommand, RootEvent, RootProcess, end_root, seal_root,
    supervise_root,
};
