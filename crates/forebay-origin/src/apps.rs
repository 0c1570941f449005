//! Applications whose processes Forebay runs. `forebay-workers` owns the processes; an origin only
//! borrows one.
//!
//! `definition` converts the configuration for `forebay-workers`, and `running` creates the origins
//! of a running application. `worker` passes requests to idle workers, `program` to a program that
//! listens by itself, and `scripts` to a worker or a new process, by the script's language.

pub mod definition;
mod fault;
pub mod program;
pub mod running;
pub mod scripts;
mod takeover;
pub mod worker;
