//! Origins, which answer requests: files, CGI, FastCGI, SCGI, uwsgi, HTTP backends and
//! applications.
//!
//! An origin takes an [`Exchange`](forebay_engine::Exchange) and completes its reply.
//! [`Origins::new`] converts a plan for the engine's threads. `forebay-workers` owns the processes
//! of applications; an origin only borrows a worker.
#![forbid(unsafe_code)]

mod access;
mod ajp;
mod app;
mod app_fault;
mod app_server;
mod build;
mod cgi;
mod check;
mod definition;
mod explain;
mod fastcgi;
mod fields;
mod files;
mod http2;
mod interpreter;
mod mount;
mod nph;
mod output;
mod params;
mod program;
mod proxy;
mod reply_pump;
mod respond;
mod rules;
mod running;
mod script;
mod script_app;
mod script_child;
mod script_reaper;
mod script_reply;
mod separation;
mod start;
mod takeover;
mod tls;
mod upgrade;
mod upstream;
mod warm;

pub use access::{HashQueue, Refusal, Turn, checks_at_once};
pub use build::{BuildError, Origins};
pub use check::{check, check_spool, probe_interpreters};
pub use explain::{Question, QuestionError, explain};
pub use forebay_workers::record_descriptors;
pub use separation::start_helper;
pub use start::{AppStart, try_starts};
pub use tls::SiteTls;
