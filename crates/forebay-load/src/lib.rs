//! The load generator: what to ask for ([`Spec`]), the run ([`run()`]) and what came of it
//! ([`Outcome`]).
//!
//! A run is a `Pacer` (when the next request is due) times a [`Stop`] (how many there are) times a
//! `Session` of `forebay-client` (the protocol). Each load thread owns its connections, its epoll instance and its
//! histogram, and shares nothing per request with the others:
//!
//! - `run` resolves the address, starts the threads and adds their tallies up;
//! - `worker` is the thread: wait for events, give each to its connection, sweep for timeouts;
//!   `waiting` is how it waits;
//! - `connection` is one connection's states, from connecting to the next request; `mux` the same
//!   for a connection of several requests at once; `dialling` is how both connect, `transport` what
//!   they send and receive by: a socket, or `tls` over one;
//! - `request` makes the bytes that are sent, `inspection` looks at what comes back.
//!
//! [`Turns`] is a run in several parts, between which its connections stay open.
//! [`fetch()`] makes one simple request, for probes. Nothing here starts or watches servers.
#![forbid(unsafe_code)]

mod budget;
mod connection;
mod dialling;
mod error;
mod fetch;
mod inspection;
mod mux;
mod outcome;
mod pacer;
mod request;
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

pub use error::Error;
pub use fetch::{FetchError, Reply, fetch};
pub use forebay_client::Gateway;
pub use outcome::{Bytes, Client, Failures, Handshakes, Outcome, Requests};
pub use run::{Turns, run};
pub use spec::{Arrivals, Check, Control, Rate, Spec, Stop, TlsOptions};
pub use url::{Endpoint, Protocol, Url, UrlError};
