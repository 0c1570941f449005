//! Turns a plan into a running server.
//!
//! [`Origins::new`] builds the origins of a plan for the server's threads. [`check()`] and
//! [`explain()`] report what a configuration would do. [`try_starts`] starts the plan's
//! applications once.
#![forbid(unsafe_code)]

mod build;
mod check;
mod difference;
mod directories;
pub mod expect;
mod explain;
mod fleet;
mod networks;
mod overrides;
mod separation;
mod start;
mod tls;

pub use build::{BuildError, Origins, Starts, read_access_files};
pub use check::rights::doubts as rights_doubts;
pub use check::{check, check_spool, probe_interpreters, usable};
pub use difference::Difference;
pub use directories::make_directories;
pub use explain::{Answer, Question, QuestionError, explain, find_answer};
pub use fleet::check_store;
pub use forebay_origin::apps::running::proof_row;
pub use overrides::Overrides;
pub use separation::start_helper;
pub use start::{AppStart, try_starts};
pub use tls::{SiteTls, wait_for_records};
