//! The load generator. A [`Spec`] describes a run, [`run()`] executes it and returns an
//! [`Outcome`].
//!
//! Three parts can be combined freely: a `Pacer` (the times of requests), a [`Stop`] (their number
//! or duration) and a `Session` of `forebay-client` (the protocol). Each load thread owns its
//! connections, its epoll instance and its histogram. Threads share nothing per request.
//!
//! - `run` resolves the address, starts the threads and adds up their tallies;
//! - `worker` is the thread: it waits for events, passes each to its connection, and checks
//!   timeouts;
//! - `waiting` polls for events before it sleeps;
//! - `connection` is the state machine of a connection with one request at a time, `mux` of a
//!   connection with several;
//! - `dialling` connects, for both; `transport` sends and receives over a socket, or over `tls`;
//! - `request` encodes the requests, `mix` chooses among them, `inspection` examines the reply.
//!
//! [`Turns`] runs a load in several parts and keeps the connections open between them. [`fetch()`]
//! sends a single request, for probes. Nothing here starts or watches servers.
#![forbid(unsafe_code)]

mod budget;
mod capacity;
mod connection;
mod dialling;
mod error;
mod fetch;
mod goal;
mod inspection;
mod mix;
mod mux;
mod outcome;
mod pacer;
mod request;
mod requests_file;
mod run;
mod search;
mod spec;
mod tally;
mod target;
mod tls;
mod transport;
mod url;
mod waiting;
mod worker;

pub use capacity::{Capacity, Search, Step, find_rate};
pub use error::Error;
pub use fetch::{FetchError, FetchedReply, fetch};
pub use forebay_client::Gateway;
pub use goal::{Goal, Judgement};
pub use outcome::{Bytes, ClientUsage, Failures, Handshakes, Outcome, PartCounts, Requests};
pub use requests_file::parse_requests;
pub use run::{Turns, run};
pub use spec::{Arrivals, Check, Control, Part, Rate, Second, Spec, Stop, TlsOptions};
pub use url::{Endpoint, Protocol, Url, UrlError};
