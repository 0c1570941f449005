//! The access logs and the error log.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use forebay_conf_derive::{Choice, Table};

use super::{BackendTls, Placeholder, Scope, Template, TemplatePart};
use crate::error::Problem;
use crate::key::{Bytes, Given, Resolution, Whole};

/// The access logs, the error log and the traces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The destination of the access log.
    pub access: AccessLog,
    /// The format of its lines.
    pub format: Format,
    /// The rotation of its file.
    pub rotate: Option<Rotation>,
    /// The destination of the error log. `None` means standard error.
    pub error: Option<LogService>,
    /// Facility and name of messages to log services.
    pub sender: LogSender,
    /// Export of traces.
    pub traces: Option<Traces>,
    /// Export of metrics.
    pub metrics: Option<Metrics>,
    /// The least severe level of messages in the error log.
    pub level: Level,
    /// The form of messages in the error log.
    pub error_format: ErrorFormat,
    /// Other access logs, of sites and routes. No two of them are equal, and none is off.
    pub others: Vec<LogFile>,
}

/// An access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// The destination of the access log.
    pub access: AccessLog,
    /// The format of its lines.
    pub format: Format,
    /// The rotation of its file.
    pub rotate: Option<Rotation>,
}

/// Rotation of a log file. Needs `size` or `age`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Table)]
#[table(name = "Rotate", check = begins_new_files)]
pub struct Rotation {
    /// Begins a new file before a line would make the file larger than this. Default: no limit.
    #[key(as = Bytes<1024, { 1 << 50 }>)]
    pub size: Option<u64>,
    /// Begins a new file for the first line of each period, such as "1d" for one file a day. Days
    /// begin at midnight in local time. Default: no limit.
    #[key(check = at_least_a_minute)]
    pub age: Option<Duration>,
    /// The number of old files that are kept. Older ones are deleted.
    #[key(as = Whole<1, 1000>, default = 7)]
    pub keep: usize,
    /// Compresses old files with gzip.
    #[key(default = true)]
    pub compress: bool,
}

fn begins_new_files(rotation: &mut Rotation, given: &Given<'_, '_>) -> Resolution<()> {
    if rotation.size.is_none() && rotation.age.is_none() {
        return Err(Problem::new(&given.span, "`rotate` needs `size` or `age`")
            .help("write rotate = { size = \"100MB\" } or { age = \"1d\" }"));
    }
    Ok(())
}

fn at_least_a_minute(age: &Duration, span: &Range<usize>) -> Resolution<()> {
    if *age < Duration::from_secs(60) {
        return Err(Problem::new(span, "this age is too short").help("the least is \"1m\""));
    }
    Ok(())
}

/// A service that receives log messages over a socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogService {
    /// syslog over datagrams of a Unix socket, in the local form.
    Unix(PathBuf),
    /// syslog over UDP (RFC 5424, RFC 5426), at a host and port.
    Udp(String),
    /// syslog over TCP (RFC 5424, RFC 6587 with octet counting), at a host and port.
    Tcp(String),
    /// The native protocol of systemd's journal.
    Journal(PathBuf),
}

/// The sender of messages to log services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSender {
    /// The number of the facility, from 0 to 23.
    pub facility: u8,
    /// The name of the sender.
    pub tag: String,
}

impl Default for LogSender {
    fn default() -> Self {
        Self { facility: 3, tag: "forebay".to_owned() }
    }
}

/// An OpenTelemetry collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// Host and port of the collector.
    pub host: String,
    /// The path of requests to the collector.
    pub path: String,
    /// TLS settings of an https:// collector. `None`: http://.
    pub tls: Option<BackendTls>,
    /// Further fields of requests to the collector, with their values.
    pub headers: Vec<(String, String)>,
    /// The name of this server.
    pub service: String,
}

/// The export of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    pub collector: Collector,
    /// The time between two exports. Default 60 s.
    pub interval: Duration,
}

/// The export of traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    pub collector: Collector,
    /// The sampled part of the requests, in millionths.
    pub per_million: u32,
    /// The clients whose `traceparent` is accepted.
    pub accept: TraceClients,
    /// True if the collector gets the queries of URLs. Default false.
    pub query: bool,
}

/// The clients whose traces continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum TraceClients {
    /// The trusted proxies of the site.
    #[default]
    Trusted,
    /// Every client.
    All,
    /// No client.
    None,
}

/// A value of an access log that Apache's directives do not have. A format names it as `%{NAME}x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogValue {
    /// `upstream`: the last backend to which the request was sent.
    Upstream,
    /// `upstream_us`: time from the start of the wait for a connection to the head of the origin's
    /// reply.
    UpstreamTime,
    /// `cache`: the result of the cache lookup.
    Cache,
    /// `request_id`: the request's identifier, if a template has used {request_id}.
    RequestId,
    /// `trace_id`: the trace of the request.
    TraceId,
    /// `span_id`: the server's span of the request.
    SpanId,
    /// `site`: the first host name of the site.
    Site,
    /// `route`: the name of the route, or its paths.
    Route,
    /// `tls_version`: the version of TLS.
    TlsVersion,
    /// `tls_cipher`: the cipher suite, by OpenSSL's name.
    TlsCipher,
    /// `bytes_in`: bytes of the request's head and body.
    BytesIn,
    /// `bytes_out`: bytes of the reply's head and body.
    BytesOut,
    /// `time`: the time in the form of RFC 3339.
    Time,
    /// A placeholder of templates.
    Placeholder(Placeholder),
}

impl LogValue {
    /// The names of values without a parameter.
    pub const NAMES: [(&str, Self); 13] = [
        ("upstream", Self::Upstream),
        ("upstream_us", Self::UpstreamTime),
        ("cache", Self::Cache),
        ("request_id", Self::RequestId),
        ("trace_id", Self::TraceId),
        ("span_id", Self::SpanId),
        ("site", Self::Site),
        ("route", Self::Route),
        ("tls_version", Self::TlsVersion),
        ("tls_cipher", Self::TlsCipher),
        ("bytes_in", Self::BytesIn),
        ("bytes_out", Self::BytesOut),
        ("time", Self::Time),
    ];

    /// Returns the value with this name: one of [`Self::NAMES`] or a placeholder without braces.
    /// Returns `None` for any other name.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some((_, value)) = Self::NAMES.iter().find(|(known, _)| *known == name) {
            return Some(value.clone());
        }
        let template = Template::parse(&format!("{{{name}}}"), Scope::default()).ok()?;
        match template.parts() {
            [TemplatePart::Value(placeholder)] => Some(Self::Placeholder(placeholder.clone())),
            _ => None,
        }
    }
}

impl Log {
    /// Returns all access logs. The log of `[log]` is the first.
    pub fn files(&self) -> impl Iterator<Item = LogFile> + '_ {
        let (access, format) = (self.access.clone(), self.format.clone());
        let first = LogFile { access, format, rotate: self.rotate };
        std::iter::once(first).chain(self.others.iter().cloned())
    }

    /// Returns the paths of all log files, with their rotations.
    pub fn paths(&self) -> Vec<(PathBuf, Option<Rotation>)> {
        let mut paths: Vec<(PathBuf, Option<Rotation>)> = Vec::new();
        for file in self.files() {
            let AccessLog::Path(path) = file.access else { continue };
            match paths.iter_mut().find(|(known, _)| *known == path) {
                Some((_, rotation)) => *rotation = rotation.or(file.rotate),
                None => paths.push((path, file.rotate)),
            }
        }
        paths
    }

    /// Returns true if `other` has equal access logs, rotations and destinations of the error log.
    /// Formats and levels may differ.
    pub fn has_destinations_of(&self, other: &Self) -> bool {
        let files =
            |log: &Self| log.files().map(|file| (file.access, file.rotate)).collect::<Vec<_>>();
        files(self) == files(other) && (&self.error, &self.sender) == (&other.error, &other.sender)
    }
}

/// A level of the error log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Choice)]
pub enum Level {
    /// A failure that needs the administrator.
    Error,
    /// A fault of a backend or application.
    Warn,
    /// A change of state, or a fault of a client.
    #[default]
    Info,
    /// A detail for finding errors.
    Debug,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        })
    }
}

/// The form of messages in the error log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Choice)]
pub enum ErrorFormat {
    /// A line of text with time and level.
    #[default]
    Text,
    /// An object for each line, with time, level and message.
    Json,
}

/// The destination of an access log, which has one line for each request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// No access log. The default.
    #[default]
    Off,
    /// Standard output.
    Stdout,
    /// A file. Forebay appends lines to it. Its directory existed when the configuration was
    /// loaded.
    Path(PathBuf),
    /// A log service.
    Service(LogService),
}

/// The format of a line of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// NCSA common log format.
    Common,
    /// The common format, with referrer and user agent. The default.
    #[default]
    Combined,
    /// One JSON object per line.
    Json,
    /// A pattern of Apache's `%` directives, with at least one `%` and no line break.
    Pattern(String),
}
