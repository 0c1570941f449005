//! Specification of a run, and errors that prevent the run.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use forebay_client::{Gateway, ReplyEnd};
use forebay_stat::Latency;

use crate::value_table::{divided, has_placeholder};
use crate::{Protocol, Ramp, Replay, ScenarioPlan, Shard, SlowPeers, Url, ValueTable};

/// Settings of a run of the load generator.
#[derive(Clone, Debug)]
// More than 20 fields: one for each setting of a load.
pub struct Spec {
    /// URL to request.
    pub url: Url,
    /// Number of connections.
    pub connections: usize,
    /// Maximum number of concurrent requests per connection, for HTTP/2, HTTP/3 and FastCGI. The
    /// server may allow fewer.
    pub streams: usize,
    /// Number of load threads. No more threads than connections are started.
    pub threads: usize,
    /// Condition that ends the run.
    pub stop: Stop,
    /// Requests of a mixed load. If there are any, they replace the URL, method and body; their
    /// header fields are added.
    pub parts: Vec<Part>,
    /// Method of the request.
    pub method: String,
    /// Header fields in addition to `Host`, `User-Agent` and `Content-Length`. If this list
    /// contains `Host` or `User-Agent`, the listed value replaces the default.
    pub headers: Vec<(String, String)>,
    /// Body of the request; for a WebSocket or gRPC, the message; for `tcp`, the bytes to send.
    pub body: Vec<u8>,
    /// Ranges of the body, in ascending order, that are sent unchanged. Texts such as `{n}` in them
    /// are no placeholders. A range may extend past the end of the body.
    pub fixed: Vec<Range<usize>>,
    /// Number of messages that a gRPC request sends, all equal.
    pub messages: usize,
    /// Rule that finds the end of a reply over `tcp`.
    pub reply_end: ReplyEnd,
    /// Sends further requests over an open connection. If false, each request has a new connection;
    /// HTTP/1.1 requests have `Connection: close`.
    pub keepalive: bool,
    /// Limits of each connection.
    pub lifetime: Lifetime,
    /// Maximum pace of connections that send or read slowly.
    pub slow: SlowPeers,
    /// Time limit of a request, including the time to connect.
    pub timeout: Duration,
    /// Pause on each connection between a reply and the next request.
    pub think: Option<Duration>,
    /// Rate at which requests are sent; `None` sends the next request after each reply (closed
    /// loop).
    pub rate: Option<Rate>,
    /// Changes of the rate in stages or, without a rate, of the number of connections. Set with
    /// [`Spec::with_ramp`].
    pub ramp: Option<Arc<Ramp>>,
    /// Condition that a reply must meet to count as completed.
    pub check: Option<Check>,
    /// Script directory and variables for FastCGI, SCGI or uwsgi, or the secret for AJP.
    pub gateway: Gateway,
    /// TLS options for `https://` and `wss://` URLs.
    pub tls: TlsOptions,
    /// Shard of this run, if several machines generate the load. The other settings then describe
    /// only this shard ([`Spec::divided`]).
    pub shard: Option<Shard>,
    /// Order and times of a log. Its entries name requests in `parts`.
    pub replay: Option<Arc<Replay>>,
    /// Scenarios of virtual users, whose steps send the requests in `parts`. A number of requests
    /// or a rate then counts iterations.
    pub scenario: Option<Arc<ScenarioPlan>>,
    /// Table of values for placeholders such as `{column}` in targets, header fields and bodies.
    pub values: Option<Arc<ValueTable>>,
    /// Sends the cookies that the server has set on the connection.
    pub cookies: bool,
}

/// One request of a mixed load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// URL of the request. The URLs of a mixed load may be of several servers.
    pub url: Url,
    /// Method of the request.
    pub method: String,
    /// Header fields in addition to those of the run. A field replaces a field of the run with the
    /// same name.
    pub headers: Vec<(String, String)>,
    /// Body of the request.
    pub body: Vec<u8>,
    /// Weight of the request. Its share of all requests is its weight divided by the sum of all
    /// weights.
    pub weight: u32,
}

/// Limits of a connection. After the reply that reaches a limit, the connection is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetime {
    /// Maximum number of requests; `None` for no limit.
    pub requests: Option<u64>,
    /// Maximum age at a reply; `None` for no limit.
    pub age: Option<Duration>,
}

/// TLS options for `https://` and `wss://` URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Accepts any certificate.
    pub insecure: bool,
    /// PEM file with the trusted certificate authorities; `None` trusts the authorities of this
    /// machine.
    pub ca: Option<PathBuf>,
    /// Name that the client sends in the handshake, and that the certificate must have; `None` for
    /// the host of the URL.
    pub server_name: Option<String>,
    /// Resumes the last TLS session when a connection reconnects.
    pub resume: bool,
}

/// Condition that ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The run ends after exactly this number of requests over all threads.
    Requests(u64),
    /// The run ends after this time.
    Duration(Duration),
}

/// Rate of an open loop. Requests are due at planned instants, and do not wait for earlier replies.
/// If every connection is busy, a due request waits for a free connection. The latency counts from
/// the planned instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second over all connections.
    pub per_second: f64,
    /// Distribution of the planned instants in time.
    pub arrivals: Arrivals,
}

/// Distribution of the planned instants of an open loop in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// Equal gaps between requests.
    Even,
    /// Exponentially distributed gaps, as independent users cause them.
    Poisson,
}

impl Arrivals {
    /// Returns the name that the command line and JSON use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Poisson => "poisson",
        }
    }
}

/// Condition that a reply must meet to count as completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Status that the reply must have.
    pub status: u16,
    /// Bytes that the body must contain.
    pub body_contains: Option<Vec<u8>>,
}

/// Counts of the requests that ended in one second of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Number of completed requests.
    pub completed: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Latencies of the completed requests: the encoding of a coarse
    /// [`Latency`]. Empty if there are none.
    // An encoded histogram takes a few hundred bytes, and a decoded one 30 kB.
    pub histogram: String,
}

impl Second {
    /// Returns the latencies of the completed requests, to 2 significant digits. Returns no
    /// latencies if the stored histogram is empty or damaged.
    pub fn latency(&self) -> Latency {
        let decoded = (!self.histogram.is_empty()).then(|| Latency::decode(&self.histogram));
        decoded.and_then(Result::ok).unwrap_or_else(Latency::coarse)
    }

    /// Adds the counts of the same second of another thread or machine.
    pub(crate) fn add(&mut self, other: Self) {
        self.completed += other.completed;
        self.failed += other.failed;
        if self.histogram.is_empty() {
            self.histogram = other.histogram;
        } else if !other.histogram.is_empty() {
            let mut latency = self.latency();
            latency.merge(&other.latency());
            self.histogram = latency.encode();
        }
    }
}

/// Maximum size of all messages of a gRPC request.
const MESSAGES_LIMIT: usize = 64 << 20;

/// Maximum number of different requests in a mixed load.
const PARTS_LIMIT: usize = 1_000_000;

/// Maximum number of concurrent requests per connection.
const STREAMS_LIMIT: usize = 65_536;

impl Spec {
    /// Returns the default settings: `GET url` over 10 keep-alive connections for 10 seconds, with
    /// one thread per core (at most 10) and a timeout of 10 seconds.
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
            fixed: Vec::new(),
            messages: 1,
            reply_end: ReplyEnd::Close,
            keepalive: true,
            lifetime: Lifetime::default(),
            slow: SlowPeers::default(),
            timeout: Duration::from_secs(10),
            think: None,
            rate: None,
            ramp: None,
            check: None,
            gateway: Gateway::default(),
            tls: TlsOptions::default(),
            shard: None,
            replay: None,
            scenario: None,
            values: None,
            cookies: false,
        }
    }

    /// Returns a copy without the requests of a mixed load.
    pub(crate) fn without_parts(&self) -> Self {
        // A derived clone would copy all requests in `parts`, and there can be many.
        let Self { url, method, headers, body, .. } = self;
        let (url, method) = (url.clone(), method.clone());
        let (gateway, tls) = (self.gateway.clone(), self.tls.clone());
        Self {
            parts: Vec::new(),
            method,
            headers: headers.clone(),
            body: body.clone(),
            fixed: self.fixed.clone(),
            messages: self.messages,
            reply_end: self.reply_end.clone(),
            gateway,
            tls,
            check: self.check.clone(),
            connections: self.connections,
            streams: self.streams,
            threads: self.threads,
            stop: self.stop,
            keepalive: self.keepalive,
            lifetime: self.lifetime,
            slow: self.slow,
            timeout: self.timeout,
            think: self.think,
            rate: self.rate,
            ramp: self.ramp.clone(),
            shard: self.shard.clone(),
            values: self.values.clone(),
            scenario: self.scenario.clone(),
            cookies: self.cookies,
            ..Self::new(url)
        }
    }

    /// Makes the load change in stages, and end after the last stage. If the load has a rate, the
    /// stages change the rate. Otherwise, they change the number of connections.
    ///
    /// Sets the rate to the mean of all stages, or the number of connections to the highest value
    /// of all stages.
    ///
    /// # Errors
    /// Fails if no stage has a rate or number of connections above 0, or if a number is out of
    /// range.
    pub fn with_ramp(self, ramp: Ramp) -> Result<Self, Error> {
        ramp.validate()?;
        let rate = self.rate.map(|rate| Rate { per_second: ramp.mean(), ..rate });
        let connections =
            if rate.is_some() { self.connections } else { ramp.highest().ceil() as usize };
        let stop = Stop::Duration(ramp.time());
        Ok(Self { rate, connections, stop, ramp: Some(Arc::new(ramp)), ..self })
    }

    /// Reduces the whole load to one shard. All shards together have the connections and the
    /// requests of the whole load. Each shard has an equal share of the rate.
    ///
    /// # Errors
    /// Fails if the load has fewer connections or requests than shards.
    pub fn divided(self, mut shard: Shard) -> Result<Self, Error> {
        shard.connections = self.connections;
        shard.rate = self.rate.map(|rate| rate.per_second);
        let whole = shard.clone();
        let too_few = |count: u64, what: &str| {
            let Shard { number, count: shards, .. } = whole;
            Error::Invalid(format!(
                "--shard {number}/{shards}: {count} {what} cannot be divided among {shards} \
                 shards: use at least {shards}"
            ))
        };
        let connections = shard.part(self.connections as u64);
        if self.connections < shard.count as usize {
            return Err(too_few(self.connections as u64, "connections (-c)"));
        }
        let mut stop = self.stop;
        if let Stop::Requests(requests) = &mut stop {
            shard.requests = Some(*requests);
            if *requests < u64::from(shard.count) {
                return Err(too_few(*requests, "requests (-n)"));
            }
            *requests = shard.part(*requests);
        }
        let connections = connections as usize;
        let count = f64::from(shard.count);
        Ok(Self {
            connections,
            threads: self.threads.min(connections),
            stop,
            rate: self.rate.map(|rate| Rate { per_second: rate.per_second / count, ..rate }),
            shard: Some(shard),
            ..self
        })
    }

    /// Returns the time until the last request is due; `None` for a closed loop.
    pub(crate) fn planned_time(&self) -> Option<Duration> {
        let replay = self.replay.as_ref().filter(|replay| replay.speed.is_some());
        match (self.stop, self.rate, replay) {
            (Stop::Duration(time), Some(_), _) | (Stop::Duration(time), _, Some(_)) => Some(time),
            (Stop::Requests(n), Some(rate), _) => {
                Duration::try_from_secs_f64(n as f64 / rate.per_second).ok()
            }
            (Stop::Requests(n), None, Some(replay)) => {
                let shards = self.shard.as_ref().map_or(1, |shard| u64::from(shard.count));
                replay.due((n - 1).saturating_mul(shards))
            }
            (_, None, None) => None,
        }
    }

    /// Returns true if the session of a connection can carry several requests at once.
    fn is_multiplexed(&self) -> bool {
        let protocol = self.url.protocol();
        protocol.has_streams() || protocol == Protocol::Fastcgi && self.streams > 1
    }

    /// Returns true if requests may have placeholders or cookies.
    pub(crate) fn has_values(&self) -> bool {
        let table = self.values.as_deref();
        let is_open = |text: &[u8]| has_placeholder(text, table);
        let is_open_body =
            |body: &[u8]| divided(body, &self.fixed).iter().any(|(open, _)| is_open(open));
        let has_fields =
            |fields: &[(String, String)]| fields.iter().any(|(_, value)| is_open(value.as_bytes()));
        let is_templated = |part: &Part| {
            is_open(part.url.target().as_bytes())
                || is_open_body(&part.body)
                || has_fields(&part.headers)
        };
        self.cookies
            || self.scenario.is_some()
            || is_open(self.url.target().as_bytes())
            || is_open_body(&self.body)
            || has_fields(&self.headers)
            || self.parts.iter().any(is_templated)
    }

    /// Returns the settings of a run that sends only `part`. `self` must have no parts.
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

    /// Checks numbers, and rejects settings that exclude each other, such as a think time and a
    /// rate. Also checks that all parts use one server. Method and header fields are checked when
    /// the requests are encoded.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let refuse = |what: &str| Err(Error::Invalid(what.to_owned()));
        if self.connections == 0 || self.threads == 0 {
            return refuse("at least one connection and one thread are needed");
        }
        if self.streams == 0 || self.streams > STREAMS_LIMIT {
            return refuse("streams must be from 1 to 65,536");
        }
        if self.streams > 1 && !self.is_multiplexed() {
            return refuse(
                "several streams on a connection need HTTP/2, HTTP/3 or FastCGI: write h2c:// or \
                 fcgi://, or add --http2 or --http3",
            );
        }
        if self.streams > 1 && !self.keepalive {
            return refuse(
                "without keep-alive a connection carries one request: leave out the streams",
            );
        }
        let Lifetime { requests, age } = self.lifetime;
        if requests == Some(0) || age.is_some_and(|age| age.is_zero()) {
            return refuse("the lifetime of a connection must be above zero");
        }
        if (requests.is_some() || age.is_some()) && self.is_multiplexed() {
            return refuse(
                "a lifetime of connections needs a protocol with one request at a time: leave out \
                 HTTP/2, HTTP/3 and streams",
            );
        }
        if self.slow.read == Some(0) || self.slow.send == Some(0) {
            return refuse("--slow-read and --slow-send need at least one byte per second");
        }
        if self.slow.is_used() && self.is_multiplexed() {
            return refuse(
                "--slow-read and --slow-send need a protocol with one request at a time: leave out \
                 HTTP/2, HTTP/3 and streams",
            );
        }
        if self.messages != 1 && !self.url.protocol().is_grpc() {
            return refuse("a number of messages needs gRPC: write grpc://, or add --grpc");
        }
        if self.messages.saturating_mul(self.body.len() + 5) > MESSAGES_LIMIT {
            return refuse("the messages of a gRPC request may have at most 64 MiB together");
        }
        if self.reply_end != ReplyEnd::Close && self.url.protocol() != Protocol::Tcp {
            return refuse("--reply-end is for tcp:// URLs");
        }
        if matches!(&self.reply_end, ReplyEnd::Length(0) | ReplyEnd::UpTo(0))
            || self.reply_end == ReplyEnd::Pattern(Vec::new())
        {
            return refuse("the end of a reply is at least one byte");
        }
        if !self.url.protocol().is_tls() && self.tls != TlsOptions::default() {
            return refuse("certificates and sessions of TLS need an https:// URL");
        }
        for part in &self.parts {
            let (ours, theirs) = (&self.url, &part.url);
            if ours.protocol() != theirs.protocol() {
                return Err(Error::Invalid(format!(
                    "{theirs} has another protocol than {ours}: a run has one protocol"
                )));
            }
            // A user and a log have one server.
            let has_order = self.scenario.is_some() || self.replay.is_some();
            if has_order && ours.server() != theirs.server() {
                return Err(Error::Invalid(format!("{theirs} is not on the server of {ours}")));
            }
        }
        if self.parts.iter().any(|part| part.weight == 0) || self.parts.len() > PARTS_LIMIT {
            return refuse("weights must be above 0, and at most a million requests can be mixed");
        }
        if let Some(replay) = &self.replay {
            let is_known = |(index, _): &(u32, Duration)| (*index as usize) < self.parts.len();
            if replay.entries.is_empty() || !replay.entries.iter().all(is_known) {
                return refuse("a replay needs at least one request");
            }
            if replay.speed.is_some() && (self.rate.is_some() || self.think.is_some()) {
                return refuse("a log's own pace excludes a rate and a think time: leave out one");
            }
        }
        if let Some(plan) = &self.scenario {
            plan.validate(&self.url, self.parts.len())?;
        }
        if let Some(ramp) = &self.ramp {
            ramp.validate()?;
            if self.stop != Stop::Duration(ramp.time()) {
                return refuse("stages end the run: leave out a duration and a number of requests");
            }
            if self.replay.as_ref().is_some_and(|replay| replay.speed.is_some()) {
                return refuse("a log's own pace excludes stages: leave out one");
            }
        }
        if self.stop == Stop::Requests(0) || self.stop == Stop::Duration(Duration::ZERO) {
            return refuse("at least one request, or a duration above zero, is needed");
        }
        if self.timeout.is_zero() {
            return refuse("the timeout must be above zero");
        }
        if let Some(rate) = self.rate {
            // The limit of 1e8 requests per second in total leaves at least 10 ns between two
            // requests. Gaps below 1 ns would round to zero.
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
    forebay_wire::caching::is_idempotent(method.as_bytes())
}

/// Returns the number of cores, limited to the number of connections.
fn default_threads(connections: usize) -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(connections).max(1)
}

/// Error that prevents a run. A failed request is no such error, but is counted in the outcome.
#[derive(Debug)]
pub enum Error {
    /// The settings of the run are invalid. The text says why.
    Invalid(String),
    /// The host name could not be resolved.
    Resolve {
        /// Host and port.
        endpoint: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// No connect succeeded during the run.
    Unreachable {
        /// Host and port, or path of the Unix socket.
        endpoint: String,
        /// Error of the last attempt.
        source: io::Error,
    },
    /// The TLS handshake failed: the server does not speak TLS, did not answer, supports no common
    /// protocol version, or has a certificate that is not trusted. `source` says which of these is
    /// the case, and what to do.
    Handshake {
        /// Host and port, or path of the Unix socket.
        endpoint: String,
        /// Error of the last handshake.
        source: io::Error,
    },
    /// A FastCGI application does not take several requests on a connection.
    NotMultiplexed {
        /// Host and port, or path of the Unix socket.
        endpoint: String,
        /// The application's answer, or the reason why there is none.
        source: io::Error,
    },
    /// The system refused a resource that the load generator needs.
    System {
        /// Operation that failed, as text for the message.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(what) => f.write_str(what),
            Self::Resolve { endpoint, source } => write!(
                f,
                "cannot resolve the host of {endpoint} ({source}): check its spelling and the \
                 name service"
            ),
            Self::Unreachable { endpoint, source } => write!(
                f,
                "cannot connect to {endpoint} ({source}): check that the server runs and \
                 listens on this address"
            ),
            Self::Handshake { endpoint, source } => {
                write!(f, "the TLS handshake with {endpoint} failed: {source}")
            }
            Self::NotMultiplexed { endpoint, source } => write!(
                f,
                "{endpoint} does not take several requests on a connection ({source}): leave out \
                 --streams"
            ),
            Self::System { what, source } => write!(f, "{what} failed: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Invalid(_) => None,
            Self::Resolve { source, .. }
            | Self::Unreachable { source, .. }
            | Self::Handshake { source, .. }
            | Self::NotMultiplexed { source, .. }
            | Self::System { source, .. } => Some(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_all_shards_add_up_exactly() {
        let rate = Some(Rate { per_second: 100.0, arrivals: Arrivals::Even });
        let whole = Spec {
            connections: 10,
            stop: Stop::Requests(1003),
            rate,
            ..Spec::new(Url::parse("http://h/").unwrap())
        };
        for count in [1, 2, 3, 7, 10] {
            let parts: Vec<Spec> = (1..=count)
                .map(|n| format!("{n}/{count}").parse::<Shard>().unwrap())
                .map(|shard| whole.clone().divided(shard).unwrap())
                .collect();
            let requests = |spec: &Spec| match spec.stop {
                Stop::Requests(n) => n,
                Stop::Duration(_) => 0,
            };
            assert_eq!(parts.iter().map(|spec| spec.connections).sum::<usize>(), 10);
            assert_eq!(parts.iter().map(requests).sum::<u64>(), 1003);
            assert!(parts.iter().all(|spec| spec.threads <= spec.connections));
            let shard = parts[0].shard.as_ref().unwrap();
            assert_eq!((shard.rate, shard.requests), (Some(100.0), Some(1003)));
            let rates: f64 = parts.iter().map(|spec| spec.rate.unwrap().per_second).sum();
            assert!((rates - 100.0).abs() < 1e-9);
        }
        let error = whole.divided("3/11".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("10 connections (-c) cannot be divided among 11"), "{error}");
    }
}
