//! What to load, how, and for how long.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use forebay_client::Gateway;

use crate::{Error, Url};

/// One run of the load generator.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What to ask for.
    pub url: Url,
    /// Connections kept busy at the same time.
    pub connections: usize,
    /// HTTP/2: requests in flight at most on each connection; fewer where the server allows fewer.
    pub streams: usize,
    /// Load threads; at most one per connection is started.
    pub threads: usize,
    /// When the run is over.
    pub stop: Stop,
    /// The request method.
    pub method: String,
    /// Header fields in addition to `Host`, `User-Agent` and `Content-Length`; the first two may be
    /// replaced by a field of the same name here.
    pub headers: Vec<(String, String)>,
    /// The request body.
    pub body: Vec<u8>,
    /// Whether to use a connection again. If not, HTTP/1.1 sends `Connection: close`.
    pub keepalive: bool,
    /// How long a request, its connect included, may take.
    pub timeout: Duration,
    /// Pause on each connection between a reply and the next request.
    pub think: Option<Duration>,
    /// Requests at a given rate instead of as fast as replies come.
    pub rate: Option<Rate>,
    /// What every reply must satisfy.
    pub check: Option<Check>,
    /// Root and further variables for an application behind FastCGI, SCGI or uwsgi.
    pub gateway: Gateway,
    /// How an https:// server is spoken to.
    pub tls: TlsOptions,
}

/// How an https:// server is spoken to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Whether any certificate is taken.
    pub insecure: bool,
    /// A file with the certificates, in PEM, of those that issue the server's. None: those that this
    /// machine trusts.
    pub ca: Option<PathBuf>,
    /// Whether a connection that is made anew resumes its last session.
    pub resume: bool,
}

/// When a run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// After exactly this many requests, shared over the threads.
    Requests(u64),
    /// After this time.
    Duration(Duration),
}

/// An open loop: requests are due at planned instants, whether or not replies came, and latency
/// counts from the planned instant. What is due while every connection is busy waits its turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second over all connections.
    pub per_second: f64,
    /// How the planned instants are spread.
    pub arrivals: Arrivals,
}

/// How the planned instants of an open loop are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// The same gap between all.
    Even,
    /// Exponentially distributed gaps: independent users.
    Poisson,
}

/// What a reply must satisfy to count as completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The expected status.
    pub status: u16,
    /// Bytes that the body must contain.
    pub body_contains: Option<Vec<u8>>,
}

/// The handle on a running load, shared with whoever watches or cancels it.
#[derive(Debug, Default)]
pub struct Control {
    /// Set to true to end the run early; what was measured so far is the outcome.
    pub cancelled: AtomicBool,
    /// Requests completed so far, published by each thread a few times per second.
    pub completed: AtomicU64,
    /// Requests failed so far, published in the same way.
    pub failed: AtomicU64,
}

/// Most streams of a connection.
const STREAMS_LIMIT: usize = 65_536;

impl Spec {
    /// `GET url` over 10 keep-alive connections for 10 seconds, on as many threads as there are
    /// cores, with a timeout of 10 seconds.
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

    /// Whether the numbers make a run. Method and fields are checked where the request is written.
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
                "several streams on a connection are for HTTP/2: write h2c://, or add --http2",
            );
        }
        if self.streams > 1 && !self.keepalive {
            return refuse(
                "without keep-alive a connection carries one request: leave the streams out",
            );
        }
        if !self.url.protocol().is_tls() && self.tls != TlsOptions::default() {
            return refuse("certificates and sessions of TLS are for https:// URLs");
        }
        if self.stop == Stop::Requests(0) || self.stop == Stop::Duration(Duration::ZERO) {
            return refuse("at least one request, or a duration above zero, is needed");
        }
        if self.timeout.is_zero() {
            return refuse("the timeout must be above zero");
        }
        if let Some(rate) = self.rate {
            // Beyond a request per nanosecond and thread the gaps round to nothing.
            if !(rate.per_second > 0.0 && rate.per_second <= 1e8) {
                return refuse("the rate must be above 0 and at most 100 million per second");
            }
            if self.think.is_some() {
                return refuse("a think time and a rate exclude each other: leave one out");
            }
        }
        Ok(())
    }
}

/// One thread per core, but never more than connections.
pub(crate) fn default_threads(connections: usize) -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(connections).max(1)
}
