//! Resolves `[log]`, `log` of sites and routes, `[traces]` and `[metrics]`.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use super::tls::backend_tls;
use super::value::{host_and_port, is_token, no_control, text, time_above_zero};
use super::{Context, Resolution};
use crate::error::Problem;
use crate::file::{self, At, File, TextOr};
use crate::key::no_effect;
use crate::key::paths::{in_directory, socket};
use crate::plan::{
    AccessLog, BackendTls, Collector, Format, Log, LogFile, LogSender, LogService, LogValue,
    Metrics, Rotation, Traces,
};
use crate::suggest;

/// The value of `per_million` that selects all requests.
const MILLION: f64 = 1e6;
/// The path of OTLP over HTTP.
const TRACES_PATH: &str = "/v1/traces";
const METRICS_PATH: &str = "/v1/metrics";
/// The time between two exports of metrics by default, and the accepted times.
const METRICS_INTERVAL: Duration = Duration::from_secs(60);
const METRICS_INTERVALS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(3600);
/// The socket of the local syslog service.
const LOCAL_SYSLOG: &str = "/dev/log";
/// The socket of systemd's journal.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// The facilities of syslog by number (RFC 5424 section 6.2.1).
const FACILITIES: [&str; 24] = [
    "kern",
    "user",
    "mail",
    "daemon",
    "auth",
    "syslog",
    "lpr",
    "news",
    "uucp",
    "cron",
    "authpriv",
    "ftp",
    "ntp",
    "security",
    "console",
    "solaris-cron",
    "local0",
    "local1",
    "local2",
    "local3",
    "local4",
    "local5",
    "local6",
    "local7",
];

/// Checks `[log]`, `[traces]` and `[metrics]`, and adds the defaults.
pub(super) fn log(context: &Context<'_>, file: &File) -> Resolution<Log> {
    let typed = &file.log;
    let access = typed.access.as_ref().map_or(Ok(AccessLog::Off), |at| access(context, at))?;
    let format = typed.format.as_ref().map_or(Ok(Format::default()), format)?;
    if let (Some(at), None) = (&typed.format, &typed.access) {
        let help = "set the file of the log: access = \"stdout\", or the path of a file";
        return Err(no_effect(&at.span, "format", "without `access`", help));
    }
    let rotate = rotation(&access, typed.rotate.as_ref(), None)?;
    let error = match typed.error.as_ref().filter(|at| at.as_str() != "stderr") {
        None => None,
        Some(at) => match service(context, at)? {
            Some(service) => Some(service),
            None => {
                let message = format!("the error log cannot go to \"{}\"", at.value);
                return Err(Problem::new(&at.span, message).help(
                    "there are \"stderr\", \"syslog\" and \"journald\"; for a file, redirect \
                     standard error",
                ));
            }
        },
    };
    let level = typed.level.as_ref().map(|at| at.value).unwrap_or_default();
    let error_format = typed.error_format.as_ref().map(|at| at.value).unwrap_or_default();
    let (traces, metrics) = (traces(context, &file.traces)?, metrics(context, &file.metrics)?);
    let (sender, others) = (sender(typed)?, Vec::new());
    Ok(Log { access, format, rotate, error, sender, traces, metrics, level, error_format, others })
}

/// Returns facility and name of messages to log services.
fn sender(typed: &file::Log) -> Resolution<LogSender> {
    let mut sender = LogSender::default();
    if let Some(at) = &typed.syslog_facility {
        let number = FACILITIES.iter().position(|name| *name == at.as_str());
        let Some(number) = number.and_then(|number| u8::try_from(number).ok()) else {
            let problem = Problem::new(&at.span, format!("unknown facility \"{}\"", at.value));
            let problem = match suggest::nearest(&at.value, FACILITIES) {
                Some(name) => problem.label(format!("did you mean \"{name}\"?")),
                None => problem,
            };
            return Err(problem.help("write a facility of syslog such as \"daemon\" or \"local0\""));
        };
        sender.facility = number;
    }
    if let Some(at) = &typed.syslog_tag {
        let tag = text(at)?;
        // RFC 5424 limits APP-NAME to 48 printable characters. In messages to /dev/log, a colon or
        // a bracket would end the tag.
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
        if tag.len() > 48 || !tag.bytes().all(is_plain) {
            let problem = Problem::new(&at.span, format!("\"{tag}\" is no name for syslog"));
            return Err(problem.help("use at most 48 letters, digits, `-`, `_`, `.` and `/`"));
        }
        tag.clone_into(&mut sender.tag);
    }
    Ok(sender)
}

/// Checks `[traces]`. Returns `None` without `to`.
fn traces(context: &Context<'_>, typed: &file::Traces) -> Resolution<Option<Traces>> {
    let Some(to) = &typed.to else {
        let sample = typed.sample.as_ref().map(|at| ("sample", &at.span));
        let accept = typed.accept.as_ref().map(|at| ("accept", &at.span));
        let query = typed.query.as_ref().map(|at| ("query", &at.span));
        return without_collector(sample.or(accept).or(query), TypedCollector::from(typed));
    };
    let collector = collector(context, to, TRACES_PATH, TypedCollector::from(typed))?;
    let accept = typed.accept.as_ref().map(|at| at.value).unwrap_or_default();
    let per_million = typed.sample.as_ref().map_or(Ok(MILLION as u32), per_million)?;
    let query = typed.query.as_ref().is_some_and(|at| at.value);
    Ok(Some(Traces { collector, per_million, accept, query }))
}

/// Checks `[metrics]`. Returns `None` without `to`.
fn metrics(context: &Context<'_>, typed: &file::Metrics) -> Resolution<Option<Metrics>> {
    let Some(to) = &typed.to else {
        let interval = typed.interval.as_ref().map(|at| ("interval", &at.span));
        return without_collector(interval, TypedCollector::from(typed));
    };
    let collector = collector(context, to, METRICS_PATH, TypedCollector::from(typed))?;
    let interval = time_above_zero(&typed.interval, METRICS_INTERVAL)?;
    if let Some(at) = typed.interval.as_ref().filter(|_| !METRICS_INTERVALS.contains(&interval)) {
        return Err(Problem::new(&at.span, "this is no time between two exports")
            .help("give a time from 1s to 1h"));
    }
    Ok(Some(Metrics { collector, interval }))
}

/// The keys that `[traces]` and `[metrics]` share.
struct TypedCollector<'a> {
    headers: &'a BTreeMap<String, At<String>>,
    tls: &'a Option<At<file::BackendTls>>,
    service: &'a Option<At<String>>,
}

impl<'a> From<&'a file::Traces> for TypedCollector<'a> {
    fn from(file::Traces { headers, tls, service, .. }: &'a file::Traces) -> Self {
        Self { headers, tls, service }
    }
}

impl<'a> From<&'a file::Metrics> for TypedCollector<'a> {
    fn from(file::Metrics { headers, tls, service, .. }: &'a file::Metrics) -> Self {
        Self { headers, tls, service }
    }
}

/// Fails if a key is set that has no effect without `to`. `other` is one that the tables do not share.
fn without_collector<T>(
    other: Option<(&str, &Range<usize>)>,
    typed: TypedCollector<'_>,
) -> Resolution<Option<T>> {
    let service = typed.service.as_ref().map(|at| ("service", &at.span));
    let headers = typed.headers.values().next().map(|at| ("headers", &at.span));
    let tls = typed.tls.as_ref().map(|at| ("tls", &at.span));
    match other.or(service).or(headers).or(tls) {
        Some((key, span)) => {
            let help = "add the collector: to = \"http://127.0.0.1:4318\"";
            Err(no_effect(span, key, "without `to`", help))
        }
        None => Ok(None),
    }
}

fn collector(
    context: &Context<'_>,
    to: &At<String>,
    default_path: &str,
    typed: TypedCollector<'_>,
) -> Resolution<Collector> {
    let (host, path, is_https) = collector_url(to, default_path)?;
    let tls = match typed.tls {
        Some(at) if !is_https => {
            let help = "write https:// before the collector's address, or leave it out";
            return Err(no_effect(&at.span, "tls", "with a collector without TLS", help));
        }
        Some(at) => Some(backend_tls(context, at)?),
        None => is_https.then(BackendTls::default),
    };
    let headers =
        typed.headers.iter().map(|(name, at)| header(name, at)).collect::<Resolution<_>>()?;
    let service = typed.service.as_ref().map_or(Ok("forebay"), text)?.to_owned();
    Ok(Collector { host, path, tls, headers, service })
}

fn per_million(typed: &At<f64>) -> Resolution<u32> {
    // NaN is outside of the range, so it is an error, too.
    if (0.0..=1.0).contains(&typed.value) {
        return Ok((typed.value * MILLION).round() as u32);
    }
    Err(Problem::new(&typed.span, format!("{} is not a part of the requests", typed.value))
        .help("give a number from 0 to 1, such as 0.01 for one request in 100"))
}

/// Checks a field of requests to the collector.
fn header(name: &str, typed: &At<String>) -> Resolution<(String, String)> {
    /// Fields that Forebay sets.
    const OWN: [&str; 6] =
        ["host", "content-type", "content-length", "transfer-encoding", "connection", "expect"];
    let wrong = |message: String, help: &str| Err(Problem::new(&typed.span, message).help(help));
    if !is_token(name) {
        return wrong(
            format!("\"{name}\" is not a field name"),
            "write a name such as \"Authorization\"",
        );
    }
    if OWN.contains(&name.to_ascii_lowercase().as_str()) {
        return wrong(format!("Forebay sets {name} itself"), "leave it out");
    }
    Ok((name.to_owned(), no_control(text(typed)?, typed)?.to_owned()))
}

/// Returns the host and the path of a collector's URL, and true for https://. The host has a port,
/// by default 4318, or 443 for https://.
fn collector_url(typed: &At<String>, default_path: &str) -> Resolution<(String, String, bool)> {
    let url = text(typed)?;
    let wrong = |why: &str| {
        Problem::new(&typed.span, format!("\"{url}\" is no collector: {why}")).help(
            "write the address of OTLP over HTTP, such as \"http://127.0.0.1:4318\" or \
             \"https://collector.example\"",
        )
    };
    let Some((scheme @ ("http" | "https"), rest)) = url.split_once("://") else {
        return Err(wrong("no http:// or https:// URL"));
    };
    let is_https = scheme == "https";
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let is_url = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#?".contains(&byte);
    if !path.bytes().all(is_url) {
        return Err(wrong("its path has other characters than a URL"));
    }
    let host = if host_and_port(host) {
        host.to_owned()
    } else if host_and_port(&format!("{host}:4318")) {
        // Public collectors over TLS have the port of their URL, not that of OTLP.
        format!("{host}:{}", if is_https { 443 } else { 4318 })
    } else {
        return Err(wrong("no host with a port"));
    };
    let path = if matches!(path, "" | "/") { default_path } else { path };
    Ok((host, path.to_owned(), is_https))
}

/// Returns the log service that the text names. Returns `None` if the text names no log service.
fn service(context: &Context<'_>, typed: &At<String>) -> Resolution<Option<LogService>> {
    let text = typed.as_str();
    if text == "journald" {
        return Ok(Some(LogService::Journal(JOURNAL.into())));
    }
    if let Some(path) = text.strip_prefix("journald:unix:") {
        return Ok(Some(LogService::Journal(socket(context.sources, &typed.with(path))?)));
    }
    if text == "syslog" {
        return Ok(Some(LogService::Unix(LOCAL_SYSLOG.into())));
    }
    let Some(rest) = text.strip_prefix("syslog:") else { return Ok(None) };
    let to = rest.strip_prefix("udp://").map(|host| (host, LogService::Udp as fn(String) -> _));
    let to = to.or_else(|| rest.strip_prefix("tcp://").map(|host| (host, LogService::Tcp as _)));
    match (rest.strip_prefix("unix:"), to) {
        (Some(path), _) => Ok(Some(LogService::Unix(socket(context.sources, &typed.with(path))?))),
        (None, Some((host, service))) if host_and_port(host) => Ok(Some(service(host.to_owned()))),
        _ => Err(Problem::new(&typed.span, format!("\"{text}\" names no syslog server")).help(
            "write \"syslog:unix:/dev/log\", \"syslog:udp://HOST:PORT\" or \
             \"syslog:tcp://HOST:PORT\"",
        )),
    }
}

/// Checks `rotate`. `inherited` applies if a site or route does not have the key. Returns `None` if
/// the log is not rotated.
fn rotation(
    access: &AccessLog,
    typed: Option<&At<Rotation>>,
    inherited: Option<&At<Rotation>>,
) -> Resolution<Option<Rotation>> {
    let is_file = matches!(access, AccessLog::Path(_));
    if let Some(at) = typed.filter(|_| !is_file) {
        let help = "only a log with the path of a file is rotated";
        return Err(no_effect(&at.span, "rotate", "on this log", help));
    }
    Ok(typed.or(inherited).filter(|_| is_file).map(|at| at.value))
}

fn access(context: &Context<'_>, typed: &At<String>) -> Resolution<AccessLog> {
    Ok(match typed.as_str() {
        "off" => AccessLog::Off,
        "stdout" => AccessLog::Stdout,
        _ => match service(context, typed)? {
            Some(service) => AccessLog::Service(service),
            None => AccessLog::Path(in_directory(context.sources, typed)?),
        },
    })
}

/// Returns the access log of a site. Returns `None` if the site has no `log`.
pub(super) fn site_log(
    context: &Context<'_>,
    file: &File,
    typed: &Option<At<TextOr<file::LogFile>>>,
) -> Resolution<Option<LogFile>> {
    let short;
    let (at, table) = match typed {
        None => return Ok(None),
        Some(at @ At { value: TextOr::Text(path), .. }) => {
            let access = Some(at.with(path.clone()));
            short = file::LogFile { access, ..file::LogFile::default() };
            (at, &short)
        }
        Some(at @ At { value: TextOr::Table(table), .. }) => (at, table),
    };
    log_file(context, file, &at.with(table)).map(Some)
}

/// Returns the access log of a site or route. Keys that the table does not have come from `[log]`.
pub(super) fn log_file(
    context: &Context<'_>,
    file: &File,
    typed: &At<&file::LogFile>,
) -> Resolution<LogFile> {
    let table = typed.value;
    let Some(at) = table.access.as_ref().or(file.log.access.as_ref()) else {
        let help = "set the file of the log: access = \"stdout\", or the path of a file";
        return Err(no_effect(&typed.span, "log", "without `access`", help));
    };
    let format_of = table.format.as_ref().or(file.log.format.as_ref());
    let access = access(context, at)?;
    let rotate = rotation(&access, table.rotate.as_ref(), file.log.rotate.as_ref())?;
    let format = format_of.map_or(Ok(Format::default()), format)?;
    Ok(LogFile { access, format, rotate })
}

/// Returns the first unknown directive of a log pattern. Returns `None` if all directives are
/// known.
fn unknown_directive(pattern: &str) -> Option<String> {
    const LETTERS: &str = "haAlutrsbBDTmUqHvVpP%";
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        let tail = rest[at + 1..].trim_start_matches(['>', '<']);
        let named = tail.strip_prefix('{').and_then(|tail| tail.split_once('}'));
        let (name, tail) = named.map_or((None, tail), |(name, tail)| (Some(name), tail));
        let letter = tail.chars().next();
        let is_known = match (name, letter) {
            (None, Some(letter)) => LETTERS.contains(letter),
            (Some(_), Some('i')) => true,
            (Some(name), Some('x')) => LogValue::parse(name).is_some(),
            _ => false,
        };
        rest = &tail[letter.map_or(0, char::len_utf8)..];
        if !is_known {
            let end = letter.map_or(String::new(), String::from);
            return Some(name.map_or(format!("%{end}"), |name| format!("%{{{name}}}{end}")));
        }
    }
    None
}

/// Checks the format of an access log: a name, or a pattern of Apache.
fn format(typed: &At<String>) -> Resolution<Format> {
    match typed.as_str() {
        "common" => Ok(Format::Common),
        "combined" => Ok(Format::Combined),
        "json" => Ok(Format::Json),
        pattern if pattern.contains('%') => {
            // Tabs may separate columns, because Forebay escapes the tabs in values.
            no_control(&pattern.replace('\t', ""), typed)?;
            match unknown_directive(pattern) {
                None => Ok(Format::Pattern(pattern.to_owned())),
                Some(unknown) => {
                    let message = format!("\"{unknown}\" is no directive of an access log");
                    let names = LogValue::NAMES.map(|(name, _)| format!("%{{{name}}}x"));
                    Err(Problem::new(&typed.span, message).help(format!(
                        "there are %h %a %A %l %u %t %r %s %b %B %D %T %m %U %q %H %v %V %p %P, \
                         %{{FIELD}}i, {}, and each placeholder such as %{{cookie.NAME}}x",
                        names.join(", ")
                    )))
                }
            }
        }
        other => {
            let names = ["common", "combined", "json"];
            let problem = Problem::new(&typed.span, format!("unknown log format \"{other}\""));
            let problem = match suggest::nearest(other, names) {
                Some(name) => problem.label(format!("did you mean \"{name}\"?")),
                None => problem,
            };
            Err(problem.help(
                "write \"common\", \"combined\", \"json\", or a pattern such as \"%h %r %>s\"",
            ))
        }
    }
}
