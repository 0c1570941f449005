//! Application processes: spawned, watched, recycled and drained, with the language hosts they run.
//!
//! An [`App`] owns the worker processes of one application. Each runs one request at a time. The
//! gateway takes an idle one ([`App::checkout`]), hands it a request ([`Lease::send`]) and reads
//! what the script prints until it ends ([`Lease::read`]). A thread per application, the
//! supervisor, starts the processes and looks after them; it takes no part in a request.
//!
//! This crate knows nothing of HTTP: a request is a block of CGI variables and a body, a reply is
//! the bytes that the script printed, with its CGI header still in front.
#![deny(unsafe_code)]

mod app;
mod backoff;
mod control;
mod error;
mod lease;
mod link;
mod perl;
mod pool;
mod process;
mod spec;
mod stderr;
mod supervisor;
mod sys;
mod watch;
mod worker;

pub use app::App;
pub use error::{Exit, StartError, Unavailable, WorkerFault};
pub use lease::{Body, EndKind, Event, Lease};
pub use spec::{AppSpec, Kind, PerlMode, Workers};
pub use worker::{WorkerState, WorkerStatus};
