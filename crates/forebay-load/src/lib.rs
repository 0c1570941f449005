//! Load generator for HTTP and gateway protocols. A [`Spec`] describes a run; [`run()`] executes it
//! and returns an [`Outcome`].
//!
//! Three parts can be combined freely: a `Pacer` (when requests are due), a [`Stop`] (how many
//! requests, or for how long) and a `Session` of `forebay-client` (the protocol). Each load thread
//! owns connections, an epoll instance and a histogram. So threads rarely access shared data.
//!
//! - `run` resolves the address, starts the load threads and adds up their counts;
//! - `worker` is the load thread: it waits for events, passes each to its connection and checks
//!   timeouts;
//! - `clock` returns the time; in tests, a virtual time (`simulation`);
//! - `connection` is the state machine of a connection with one request at a time; `mux` is that of
//!   a connection with several requests at once;
//! - `dialling` opens connections, perhaps to another address (`connect_to`); `transport` sends and
//!   receives over a plain socket, with `tls`, or as datagrams of QUIC (`tls/quic.rs`);
//! - `series` keeps the counts of each second, also for a view of the running load, and `against`
//!   compares two runs by their seconds;
//! - `servers` divides a load among several servers;
//! - `merge` divides a load among machines and adds up its results;
//! - `replay` reads logs; `schedule` chooses the next request, by weight or in the order of a log;
//! - `template` fills placeholders of requests with values, also those of a `value_table`, and
//!   `cookies` keeps the cookies that the server sets;
//! - `scenario` describes steps of virtual users (`virtual_user`), who check replies and follow a
//!   `redirect`;
//! - `ramp` changes the rate or the number of connections in stages, and `counts` has their results;
//! - `request` encodes the requests, `inspection` checks the reply, and `grpc` reads the status of a
//!   gRPC reply;
//! - `backlog` finds a server that is too slow for the rate;
//! - `slow` has the pace of slow peers.
//!
//! [`Turns`] divides a load into several parts (turns) and keeps the connections open between them.
//! [`fetch()`] sends a single request, to check a server. This crate neither starts nor watches
//! servers.
#![forbid(unsafe_code)]

mod against;
mod backlog;
mod capacity;
mod clock;
mod connect_to;
mod connection;
mod cookies;
mod counts;
mod dialling;
mod fetch;
mod goal;
mod grpc;
mod inspection;
mod merge;
mod mux;
mod outcome;
mod pacer;
mod ramp;
mod redirect;
mod replay;
mod request;
mod requests_file;
mod run;
mod scenario;
mod schedule;
mod series;
mod servers;
#[cfg(test)]
mod simulation;
mod slow;
mod spec;
mod tally;
mod template;
mod tls;
mod transport;
mod url;
mod value_table;
mod virtual_user;
mod worker;

pub use against::{MetricRatio, RunComparison, RunDecision, differs};
pub use capacity::{Capacity, Search, Step, StepDisturbance, find_rate};
pub use connect_to::ConnectTo;
pub use counts::{Failures, IterationCounts, StageCounts};
pub use fetch::{FetchError, FetchedReply, fetch};
pub use forebay_client::{Gateway, ReplyEnd};
pub use forebay_stat::Latency;
pub use goal::{Goal, Judgement};
pub use grpc::{GrpcCounts, GrpcStatus};
pub use merge::{Merged, Shard, ShardResult, ShardRun, merge};
pub use outcome::{Bytes, ClientUsage, Handshakes, Outcome, PartCounts, Requests};
pub use ramp::{Ramp, RampStage};
pub use replay::read_replay;
pub use requests_file::parse_requests;
pub use run::Turns;
pub use scenario::{
    Expectation, Extraction, Pattern, ReplyPart, Scenario, ScenarioPlan, ScenarioStep, ThinkTime,
};
pub use schedule::{Replay, ReplayRun};
pub use series::{Control, LiveCounts, ThreadSeconds};
pub use servers::{ServerCounts, run};
pub use slow::{SlowCounts, SlowPeers};
pub use spec::{Arrivals, Check, Error, Lifetime, Part, Rate, Second, Spec, Stop, TlsOptions};
pub use url::{Endpoint, Protocol, Url, UrlError};
pub use value_table::ValueTable;
