//! Threads, listeners, conversations, timers and limits of the gateway.
//!
//! The engine takes connections, reads requests from them, finds the route and hands an
//! [`Exchange`] to the [`Origin`] of that route. It does not know what a CGI script or a FastCGI
//! record is: origins live in `forebay-origin`. Each thread runs its own event loop and shares
//! nothing with its siblings but counters.
#![forbid(unsafe_code)]

mod admin;
mod body;
mod clock;
mod conversation;
mod counters;
mod deadline;
mod exchange;
mod fault;
mod forwarded;
mod listen;
mod log;
mod pool;
mod reply;
mod route;
mod server;
mod socket;
mod thread;

pub use admin::{AppStatus, AppsStatus, WorkerRow};
pub use body::Body;
pub use deadline::Deadlines;
pub use exchange::{Exchange, Origin, Request, Serving};
pub use fault::{Fault, Retry, Side};
pub use listen::ListenError;
pub use log::ErrorLog;
pub use pool::Pool;
pub use reply::{Length, Reply, Rules};
pub use route::{Route, Site, Table};
pub use server::{Server, StartError, Tables};
pub use socket::{Detached, Socket};
pub use thread::{Settings, Thread};
