//! Applications whose processes Forebay runs. `forebay-workers` owns the processes. For each
//! request, an origin takes one process and then returns it.
//!
//! `definition` converts the configuration for `forebay-workers`, and `running` creates the origins
//! of a running application. `worker` passes requests to idle workers, and `program` passes them to
//! a program that has its own listener. `scripts` passes them to a worker or a new process,
//! depending on the script's language.

pub mod definition;
mod fault;
pub mod program;
pub mod running;
pub mod scripts;
mod takeover;
mod turns;
pub mod worker;
