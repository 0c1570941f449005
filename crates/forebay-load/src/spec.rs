//! Specification of a run.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use forebay_client::Gateway;

use crate::{Error, Url};

/// Specification of one run of the load generator.
#[derive(Clone, Debug)]
pub struct Spec {
    /// URL to request.
    pub url: Url,
    /// Number of connections.
    pub connections: usize,
    /// HTTP/2: maximum number of concurrent requests per connection; fewer if the server allows
    /// fewer.
    pub streams: usize,
    /// Number of load threads; at most one per connection is started.
    pub threads: usize,
    /// End of the run.
    pub stop: Stop,
    /// The request method.
    pub method: String,
    /// Header fields in addition to `Host`, `User-Agent` and `Content-Length`. A `Host` or
    /// `User-Agent` given here replaces the default.
    pub headers: Vec<(String, String)>,
    /// The request body.
    pub body: Vec<u8>,
    /// Reuses connections. If false, HTTP/1.1 sends `Connection: close`.
    pub keepalive: bool,
    /// Time limit of a request, including its connect.
    pub timeout: Duration,
    /// Pause on each connection between a reply and the next request.
    pub think: Option<Duration>,
    /// Sends requests at this rate instead of as fast as replies arrive.
    pub rate: Option<Rate>,
    /// Condition for every reply.
    pub check: Option<Check>,
    /// Root and further variables for an application over FastCGI, SCGI or uwsgi.
    pub gateway: Gateway,
    /// TLS options for https:// URLs.
    pub tls: TlsOptions,
}

/// TLS options for https:// URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Accepts any certificate.
    pub insecure: bool,
    /// PEM file with the trusted certificate authorities; `None` for those of this machine.
    pub ca: Option<PathBuf>,
    /// Resumes the last session of a connection when it reconnects.
    pub resume: bool,
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After exactly this many requests over all threads.
    Requests(u64),
    /// After this time.
    Duration(Duration),
}

/// Open loop: requests are due at planned instants, regardless of replies, and latency counts from
/// the planned instant. A request that is due while every connection is busy waits for a free one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second over all connections.
    pub per_second: f64,
    /// Distribution of the planned instants.
    pub arrivals: Arrivals,
}

/// Distribution of the planned instants of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Equal gaps.
    Even,
    /// Exponentially distributed gaps: independent users.
    Poisson,
}

/// Condition that a reply must satisfy to count as completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The expected status.
    pub status: u16,
    /// Bytes that the body must contain.
    pub body_contains: Option<Vec<u8>>,
}

/// Handle of a running load, shared with the code that watches or cancels it.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to true to end the run early. The outcome then covers the time so far.
    pub cancelled: AtomicBool,
    /// Requests completed so far, published by each thread a few times per second.
    pub completed: AtomicU64,
    /// Requests failed so far, published in the same way.
    pub failed: AtomicU64,
}

/// Maximum number of streams per connection.
const STREAMS_LIMIT: usize = 65_536;

impl Spec {
    /// Returns the default: `GET url` over 10 keep-alive connections for 10 seconds, on as many
    /// threads as cores, with a timeout of 10 seconds.
    pub fn new(url: Url) -> Self {
        let connections = 10;
        Self {
            url,
            connections,
            streams: 1,
            threads: default_threads(connections),
            stop: Stop::Duration(Duration::from_secs(10)),
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            keepalive: true,
            timeout: Duration::from_secs(10),
            think: None,
            rate: None,
            check: None,
            gateway: Gateway::default(),
            tls: TlsOptions::default(),
        }
    }

    /// Checks the numbers of the specification. Method and fields are checked when the request is
    /// encoded.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Invalid(what.to_owned()));
        if self.connections == 0 || self.threads == 0 {
            return refuse("at least one connection and one thread are needed");
        }
        if self.streams == 0 || self.streams > STREAMS_LIMIT {
            return refuse("streams must be from 1 to 65,536");
        }
        if self.streams > 1 && !self.url.protocol().is_http2() {
            return refuse(
                "several streams on a connection need HTTP/2: write h2c://, or add --http2",
            );
        }
        if self.streams > 1 && !self.keepalive {
            return refuse(
                "without keep-alive a connection carries one request: leave out the streams",
            );
        }
        if !self.url.protocol().is_tls() && self.tls != TlsOptions::default() {
            return refuse("certificates and sessions of TLS need an https:// URL");
        }
        if self.stop == Stop::Requests(0) || self.stop == Stop::Duration(Duration::ZERO) {
            return refuse("at least one request, or a duration above zero, is needed");
        }
        if self.timeout.is_zero() {
            return refuse("the timeout must be above zero");
        }
        if let Some(rate) = self.rate {
            // At more than one request per nanosecond and thread, the gaps round to zero.
            if !(rate.per_second > 0.0 && rate.per_second <= 1e8) {
                return refuse("the rate must be above 0 and at most 100 million per second");
            }
            if self.think.is_some() {
                return refuse("a think time and a rate exclude each other: leave out one");
            }
        }
        Ok(())
    }
}

/// Returns one thread per core, but never more than connections.
pub(crate) fn default_threads(connections: usize) -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(connections).max(1)
}
