//! Specification of a run.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Requests of a mixed load, instead of the URL, method, header fields and body below.
    pub parts: Vec<Part>,
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

/// One of several requests of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// URL, on the server of the run.
    pub url: Url,
    /// The request method.
    pub method: String,
    /// Header fields in addition to those of the run.
    pub headers: Vec<(String, String)>,
    /// The request body.
    pub body: Vec<u8>,
    /// Share of the requests, relative to the other weights.
    pub weight: u32,
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

impl Arrivals {
    /// Returns the name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Poisson => "poisson",
        }
    }
}

/// Condition that a reply must satisfy to count as completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The expected status.
    pub status: u16,
    /// Bytes that the body must contain.
    pub body_contains: Option<Vec<u8>>,
}

/// Counts of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Requests completed.
    pub completed: u64,
    /// Requests failed.
    pub failed: u64,
}

/// Handle of a running load, shared with the code that watches or cancels it.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to true to end the run early. The outcome then covers the time so far.
    pub cancelled: Arc<AtomicBool>,
    /// Requests completed so far, published by each thread a few times per second.
    pub completed: AtomicU64,
    /// Requests failed so far, published in the same way.
    pub failed: AtomicU64,
}

impl Control {
    /// Returns the counts so far.
    pub(crate) fn counts(&self) -> Second {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Second { completed: read(&self.completed), failed: read(&self.failed) }
    }
}

/// Maximum number of different requests.
const PARTS_LIMIT: usize = 100_000;

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
            parts: Vec::new(),
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

    /// Returns the specification without the requests of a mixed load.
    pub(crate) fn without_parts(&self) -> Self {
        // Not by a clone of everything: there can be many requests.
        let Self { url, method, headers, body, .. } = self;
        let (url, method) = (url.clone(), method.clone());
        let (gateway, tls) = (self.gateway.clone(), self.tls.clone());
        Self {
            parts: Vec::new(),
            method,
            headers: headers.clone(),
            body: body.clone(),
            gateway,
            tls,
            check: self.check.clone(),
            connections: self.connections,
            streams: self.streams,
            threads: self.threads,
            stop: self.stop,
            keepalive: self.keepalive,
            timeout: self.timeout,
            think: self.think,
            rate: self.rate,
            ..Self::new(url)
        }
    }

    /// Returns the specification of a run with only this request. `self` has no parts.
    pub(crate) fn with_part(&self, part: &Part) -> Self {
        let replaced =
            |name: &String| part.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        let common = self.headers.iter().filter(|(name, _)| !replaced(name));
        Self {
            url: part.url.clone(),
            method: part.method.clone(),
            headers: common.chain(&part.headers).cloned().collect(),
            body: part.body.clone(),
            ..self.clone()
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
        for part in &self.parts {
            let (ours, theirs) = (&self.url, &part.url);
            if ours.protocol() != theirs.protocol() || ours.endpoint() != theirs.endpoint() {
                return Err(Error::Invalid(format!(
                    "{theirs} is not on the server of {ours}: a run loads one server (to compare \
                     several, use forebay compare)"
                )));
            }
        }
        if self.parts.iter().any(|part| part.weight == 0) || self.parts.len() > PARTS_LIMIT {
            return refuse("weights must be above 0, and at most 100,000 requests can be mixed");
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

/// Returns true if a request of this method may be sent twice (RFC 9110, section 9.2.2).
pub(crate) fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// Returns one thread per core, but never more than connections.
pub(crate) fn default_threads(connections: usize) -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(connections).max(1)
}
