//! Starts, watches, replaces and ends the processes of applications. Contains the language hosts
//! that the processes run.
//!
//! An [`App`] owns the worker processes of one application. Each worker runs one request at a time.
//! The gateway takes an idle worker ([`App::checkout`]) and sends it a request ([`Lease::send`]).
//! It then reads the output of the script until the script ends ([`Lease::read`]). Each application
//! has a thread, the supervisor, that starts and watches the processes. The supervisor takes no
//! part in requests.
//!
//! This crate does not parse HTTP. A request is a block of CGI variables and a body. A reply is the
//! bytes that the script printed, including the CGI header.
#![deny(unsafe_code)]

mod app;
mod checkout;
mod compiled_host;
mod control;
mod error;
mod executable;
mod file_watch;
mod host;
mod hosted;
mod lease;
mod link;
mod modules;
mod mono;
mod pace;
mod pagi;
mod php;
mod pool;
mod prefetch;
mod process;
mod program;
mod proofs;
mod shared;
mod spec;
mod starts;
mod stderr;
mod supervisor;
mod sys;

mod waiters;
mod worker;

pub use app::{App, PROOF};
pub use compiled_host::CompiledHost;
pub use control::Body;
pub use error::{Exit, Unavailable, WorkerFault};
pub use forebay_process::cgroup::CgroupLimits;
pub use forebay_process::{
    GroupReaper, HelpedChild, HelpedLaunch, Helper, Identity, Launch, LaunchSpec, Launcher,
    OutputLines, Owners, Person, ProcessLimits, Refusal, Right, Seen, Severity, StartError,
    beginning, changeable_by_others, give_back_descriptors, on_all_processors, record_descriptors,
};
pub use hosted::{Asgi, Rack, asgi, rack};
pub use lease::{EndKind, Lease, LeaseEvent, Tunnelled};
pub use mono::{Mono, mono};
pub use pagi::{Pagi, pagi};
pub use php::{Php, php};
pub use process::HelpedProcess;
pub use program::{Life, Listening, Permit, ProcessAddress, Program, ProgramSpec};
pub use proofs::{Finding, Proof, Verdict};
pub use spec::{AppSpec, Kind, PerlMode, PythonMode, Workers};
pub use starts::FirstStart;
pub use worker::{Health, WorkerState, WorkerStatus};

#[cfg(test)]
mod model;
