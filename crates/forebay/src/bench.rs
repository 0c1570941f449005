//! Subcommand `forebay bench`: options, progress, report and exit code.

mod against;
pub mod conditions;
pub mod export;
mod find_rate;
mod form;
mod format;
#[cfg(feature = "tui")]
mod live;
mod load_options;
pub mod number;
mod progress;
pub mod report;
mod scenario;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::body_file;
use crate::junit::{self, Decision};
use clap::ValueEnum;
use forebay_lab::Interrupt;
use forebay_load::{
    Arrivals, ConnectTo, Control, Error, Gateway, Goal, Lifetime, LiveCounts, Outcome, Part, Ramp,
    RampStage, Rate, ReplyEnd, RunDecision, Shard, SlowPeers, Spec, Stop, TlsOptions, Url,
    ValueTable, parse_requests, run as run_load,
};

use conditions::{Conditions, INCONCLUSIVE};

/// Send load to a server and report the results
///
/// Keeps CONNECTIONS busy for a time (-d) or for a number of requests (-n). Each connection sends
/// its next request when the reply to the previous one has arrived. With HTTP/2, HTTP/3 or FastCGI,
/// each connection has up to STREAMS requests without a reply. With -r, requests are due at a given
/// rate, whether or not replies have arrived. Latency counts from the time when a request is due to
/// the last byte of its reply.
///
/// Numbers may end in k or M. Times end in us, ms, s, m or h; a time without a unit is in seconds.
///
/// Exit codes: 0 success; 1 requests failed, replies had a status of 4xx or 5xx (unless
/// --allow-failures is given), no request was completed, requests were overdue at the end, the rate
/// of -r was missed by more than 5 %, or the run is worse than --against allows; 2 wrong usage;
/// 3 the server cannot be reached, or a result file cannot be written; 4 inconclusive (--fail-if,
/// --find-rate, --against, or a run that is too short to say whether the rate was kept); 130 or 143 interrupted by Ctrl-C or SIGTERM, with the results so far.
#[derive(clap::Args)]
// More than 20 fields: one for each option of the command. clap makes `--help` and the man page
// from them.
pub struct BenchArgs {
    #[arg(
        required = true,
        value_name = "URL",
        help = "URLs to request: http://HOST[:PORT]/PATH or http+unix:///SOCKET:/PATH; with https instead of \
                  http over TLS, with h2c over HTTP/2, with ws or wss as messages of a WebSocket, \
                  each of which the server answers with one (--body TEXT), with grpc or grpcs as calls of gRPC (path \
                  /PACKAGE.SERVICE/METHOD), with tcp as fixed bytes (--body-file), with fcgi, scgi, uwsgi or ajp directly to an \
                  application. Several URLs are requested in turns; those of several servers at the same time, with the connections divided"
    )]
    urls: Vec<String>,
    /// Weights of the URLs, if there are several, in the order of the URLs, such as 3,1 [default:
    /// equal]. With several servers, connections, requests (-n) and rate (-r) are divided by them
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    weights: Vec<u32>,
    /// File of requests, which are mixed by weight: lines such as 'GET /a weight=3' or '/form POST
    /// a=1'. Lines 'Name: value' and '@BODY-FILE' may follow each of them. Paths are on the server
    /// of URL; whole URLs may be on other servers
    #[arg(long, value_name = "FILE", conflicts_with = "weights")]
    requests_file: Option<PathBuf>,
    /// File with scenarios (TOML): steps whose requests use values of earlier replies, with checks and
    /// pauses. Each connection or stream is a user; -n and -r count iterations. Paths are on the
    /// server of URL
    #[arg(long, value_name = "FILE", conflicts_with_all = ["weights", "requests_file", "replay", "find_rate", "method", "body", "body_file", "form", "data_urlencode"])]
    scenario: Option<PathBuf>,
    /// Send the requests of an access log (common or combined format) or of a HAR file to the server
    /// of URL, in their order and at their own pace. Without -n and -d, each is sent once. Only
    /// requests without bodies are sent from a log
    #[arg(long, value_name = "FILE", conflicts_with_all = ["weights", "requests_file", "find_rate", "body", "body_file"])]
    replay: Option<PathBuf>,
    /// Multiple of the pace of --replay, such as 2 or 0.5; max sends as fast as replies arrive
    #[arg(long, value_name = "FACTOR", value_parser = load_options::speed, requires = "replay", conflicts_with_all = ["rate", "think"])]
    speed: Option<load_options::Speed>,
    /// Number of concurrent connections [default: 10]
    #[arg(short, long, value_parser = number::count::<usize>, allow_negative_numbers = true)]
    connections: Option<usize>,
    /// Stop after exactly this many requests
    #[arg(short = 'n', long, conflicts_with = "duration", value_parser = number::count::<u64>, allow_negative_numbers = true)]
    requests: Option<u64>,
    /// Stop after this time, such as 10s, 500ms or 2m [default: 10s]
    #[arg(short, long, value_name = "TIME", value_parser = number::parse)]
    duration: Option<Duration>,
    /// Number of load threads [default: one per core, at most one per connection]
    #[arg(short, long, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Send this number of requests per second over all connections, such as 500 or 100k. Without
    /// it, requests are sent as fast as replies arrive
    #[arg(short, long, value_parser = number::rate, allow_negative_numbers = true, group = "paced")]
    rate: Option<f64>,
    /// Change the load in stages, such as 30s:100,1m:1000,10s:0. In each TIME, the load changes
    /// linearly to the TARGET. With -r, targets are rates, and the first stage begins at -r (which
    /// may be 0). Otherwise, targets are numbers of connections, and the first stage begins at -c,
    /// or at 0 without -c
    #[arg(long, value_name = "TIME:TARGET,...", value_delimiter = ',', value_parser = load_options::parse, conflicts_with_all = ["requests", "duration", "find_rate", "against"])]
    stages: Vec<RampStage>,
    /// Distribution in time of the requests, with -r or --find-rate
    #[arg(long, value_enum, default_value_t = Spread::Poisson, requires = "paced")]
    arrivals: Spread,
    /// Search for the highest rate that meets these conditions, such as 'p99<50ms,failed<0.1%', in
    /// steps that take -d each [default: 3s]. Metrics: p50, p99.9 or another percentile, mean, max,
    /// failed (requests without a reply, and replies with 4xx or 5xx), rate
    #[arg(long, value_name = "CONDITIONS", value_delimiter = ',', conflicts_with_all = ["rate", "requests", "think"], group = "paced")]
    find_rate: Vec<Goal>,
    /// Exit with 1 if one of these conditions holds, such as 'p99>50ms,rate<500'. Exit with 4 if
    /// there are too few requests to decide
    #[arg(long, value_name = "CONDITIONS", value_delimiter = ',', conflicts_with = "find_rate")]
    fail_if: Vec<Goal>,
    /// Generate part I of N of the load, on one of N machines: connections, requests and rate are
    /// divided. `forebay merge` adds up the results of all machines
    #[arg(long, value_name = "I/N", conflicts_with = "find_rate")]
    shard: Option<Shard>,
    /// Start at this time, so that several machines start together: seconds since 1970, or a time
    /// such as 2026-11-27T10:00:00Z. If it has passed, start at once
    #[arg(long, value_name = "TIME", value_parser = load_options::parse_start)]
    start_at: Option<SystemTime>,
    /// Request method [default: GET, or POST with a body or a form]
    #[arg(short = 'X', long)]
    method: Option<String>,
    /// Header field to send, 'name: value'; may be repeated
    #[arg(short = 'H', long = "header", value_parser = parse_field)]
    headers: Vec<(String, String)>,
    /// Request body
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// File with the request body, at most 64 MiB
    #[arg(long, value_name = "FILE", conflicts_with = "body", group = "files")]
    body_file: Option<PathBuf>,
    /// Send request bodies in chunks (Transfer-Encoding: chunked) instead of with their length, over
    /// HTTP/1.1. With -H 'Expect: 100-continue', a body is sent when the server asks for it, or after
    /// 1 s
    #[arg(long)]
    chunked: bool,
    /// Replace placeholders such as {random:1-1000} in the files of --body-file, -F and
    /// --data-urlencode. Without this option, files are sent as they are
    #[arg(long, requires = "files")]
    fill_body_file: bool,
    /// Field of a multipart form, as in curl: name=value or name=@FILE, with ;type=TYPE; may be
    /// repeated
    #[arg(short = 'F', long = "form", value_name = "NAME=VALUE", conflicts_with_all = ["body", "body_file"], group = "files")]
    form: Vec<String>,
    /// Field of a URL-encoded form, as in curl: name=value or name@FILE; may be repeated
    #[arg(long, value_name = "NAME=VALUE", conflicts_with_all = ["body", "body_file", "form"], group = "files")]
    data_urlencode: Vec<String>,
    /// CSV file of values. {COLUMN} in URLs, header fields and bodies is replaced by a value of the
    /// next row for each request. The letter n in braces is the number of the request,
    /// {random:1-1000} a random number
    #[arg(long, value_name = "FILE.csv")]
    values: Option<PathBuf>,
    /// Keep the cookies that the server sets, for each connection
    #[arg(long)]
    cookies: bool,
    /// Directory of scripts, for fcgi, scgi and uwsgi. With the path appended, it becomes
    /// SCRIPT_FILENAME
    #[arg(long, value_name = "DIR")]
    root: Option<String>,
    /// Variable for an application over fcgi, scgi or uwsgi, 'NAME=value'; may be repeated
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = parse_param)]
    params: Vec<(String, String)>,
    /// Secret that a servlet container requires over ajp: `secret` of Tomcat's connector
    #[arg(long, value_name = "TEXT")]
    secret: Option<String>,
    /// Use a new connection for each request
    #[arg(long)]
    no_keepalive: bool,
    /// Close a connection after this number of requests, and open a new one
    #[arg(long, value_name = "N", value_parser = number::count::<u64>, conflicts_with = "no_keepalive")]
    requests_per_connection: Option<u64>,
    /// Close a connection that is older than this time after a reply, and open a new one
    #[arg(long, value_name = "TIME", value_parser = number::parse, conflicts_with = "no_keepalive")]
    connection_lifetime: Option<Duration>,
    /// Read at most this number of bytes of replies per second on each connection, such as 100
    #[arg(long, value_name = "BYTES", value_parser = number::count::<u64>)]
    slow_read: Option<u64>,
    /// Send at most this number of bytes of requests per second on each connection, such as 1. The
    /// report says after which time the server closed such connections
    #[arg(long, value_name = "BYTES", value_parser = number::count::<u64>)]
    slow_send: Option<u64>,
    /// Use HTTP/2: with ALPN for https://, else with prior knowledge, as h2c:// does
    #[arg(long)]
    http2: bool,
    /// Use HTTP/3, over QUIC, for https://
    #[arg(long, conflicts_with = "http2")]
    http3: bool,
    /// Call a method of gRPC: over TLS for https://, else over h2c, as grpcs:// and grpc:// do
    #[arg(long, conflicts_with_all = ["http2", "http3"])]
    grpc: bool,
    /// Number of times that a gRPC call sends the message of --body or --body-file, which is in the
    /// encoding of protobuf, without a prefix
    #[arg(long, value_name = "N", default_value = "1", value_parser = number::count::<usize>)]
    messages: usize,
    /// End of a reply over tcp: a number of bytes, 'up-to:BYTES' for the first bytes that arrive and
    /// a close, 'text:END' with the last bytes of the reply, or close [default: close]
    #[arg(long, value_name = "END", value_parser = load_options::reply_end)]
    reply_end: Option<ReplyEnd>,
    /// Open connections to this address instead of that of the URLs, as curl does: HOST:PORT or
    /// unix:/SOCKET for all URLs, or HOST1:PORT1:HOST2:PORT2 for URLs with HOST1 and PORT1. Each
    /// part may be empty. The Host field and the name in the TLS handshake stay those of the URL.
    /// May be repeated; the first that applies is used
    #[arg(long, value_name = "[HOST1:PORT1:]HOST2:PORT2")]
    connect_to: Vec<ConnectTo>,
    /// Name of the server in the TLS handshake (SNI) and in its certificate [default: the host of
    /// the URL]
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Accept any certificate of an https:// server
    #[arg(long)]
    insecure: bool,
    /// PEM file with the certificate authorities to trust [default: those of this machine]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Resume TLS sessions: only the first handshake of each connection is full. With
    /// --no-keepalive, each request has its own handshake
    #[arg(long)]
    tls_resume: bool,
    /// Concurrent HTTP/2, HTTP/3 or FastCGI requests per connection. The server may allow fewer. A
    /// FastCGI application must multiplex (FCGI_MPXS_CONNS)
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    streams: usize,
    /// Pause on each connection between a reply and the next request, such as 100ms
    #[arg(long, value_name = "TIME", value_parser = number::parse, conflicts_with = "rate")]
    think: Option<Duration>,
    /// Time limit of a request, such as 5s
    #[arg(long, value_name = "TIME", value_parser = number::parse, default_value = "10s")]
    timeout: Duration,
    /// Write the result as JSON. With - it goes to standard output, and the report to standard
    /// error
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the result as CSV, with one row of values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the latencies as an HdrHistogram interval log, in microseconds
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Write JUnit XML with a test case for the requests, the load, each condition of --fail-if and
    /// --against
    #[arg(long, value_name = "FILE", conflicts_with = "find_rate")]
    junit: Option<PathBuf>,
    /// Write a page with charts: rate and latency over time, distribution and errors. The page
    /// loads nothing from elsewhere
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the report in the format of another load generator
    #[arg(long, value_enum, conflicts_with = "find_rate")]
    format: Option<format::Format>,
    /// Compare rate and latency with an earlier result, a file of --json. Exit with 1 if the run is
    /// worse by more than --threshold, and with 4 if the comparison is inconclusive
    #[arg(long, value_name = "FILE", conflicts_with_all = ["find_rate", "shard"])]
    against: Option<PathBuf>,
    /// Change for the worse that --against allows
    #[arg(long, value_name = "PERCENT", value_parser = number::percent, default_value = "5%", requires = "against")]
    threshold: f64,
    /// Exit with 0 even if requests failed
    #[arg(long)]
    allow_failures: bool,
    /// Show rate, latency and failures over time on the whole screen. This is the default if
    /// standard output and standard error are a terminal and no result goes to standard output
    #[arg(long, conflicts_with_all = ["quiet", "find_rate"])]
    live: bool,
    /// Show a progress bar instead of the live view
    #[arg(long, conflicts_with = "live")]
    no_live: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

/// Names of [`Arrivals`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Spread {
    /// Exponentially distributed gaps, as independent users cause them
    Poisson,
    /// Equal gaps
    Even,
}

const DEFAULT_DURATION: Duration = Duration::from_secs(10);
const DEFAULT_CONNECTIONS: usize = 10;

/// The live view of a program that was built without one.
#[cfg(not(feature = "tui"))]
mod live {
    use forebay_load::{Control, Spec};

    pub fn obstacle() -> Option<&'static str> {
        Some("this program was built without `tui`")
    }

    pub fn watch<T>(_: &Spec, _: &Control, load: impl FnOnce() -> T) -> std::io::Result<T> {
        Ok(load())
    }
}

pub fn run(args: &BenchArgs) -> ExitCode {
    let checked = || {
        args.check_files().and_then(|()| args.start_at.map_or(Ok(()), load_options::check_start))
    };
    let spec = match args.spec().and_then(|spec| checked().map(|()| spec)) {
        Ok(spec) => spec,
        Err(why) => return fail(2, &why),
    };
    if let Some(why) = live::obstacle().filter(|_| args.live) {
        return fail(2, &format!("--live: {why}"));
    }
    let earlier = match args.earlier(&spec) {
        Ok(earlier) => earlier,
        Err(why) => return fail(2, &why),
    };
    let interrupt = match Interrupt::watch() {
        Ok(interrupt) => interrupt,
        Err(error) => return fail(3, &format!("cannot catch Ctrl-C: {error}")),
    };
    if args.start_at.is_some_and(|start| !load_options::wait_for_start(start, &interrupt)) {
        print_stderr("interrupted before the start");
        return ExitCode::from(interrupt.exit_code());
    }
    if !args.find_rate.is_empty() {
        return find_rate::run(args, &spec, args.arrivals(), &interrupt);
    }
    let mut control = Control { cancelled: interrupt.flag(), ..Control::default() };
    let loaded = if args.shows_live() {
        control.live = Some(LiveCounts::default());
        live::watch(&spec, &control, || run_load(&spec, &control))
            .unwrap_or_else(|source| Err(Error::System { what: "watching signals", source }))
    } else {
        let show = !args.quiet && io::stderr().is_terminal();
        progress::watch(show, spec.stop, &control, || run_load(&spec, &control))
    };
    let mut outcome = match loaded {
        Ok(outcome) => outcome,
        Err(error @ Error::Invalid(_)) => return fail(2, &error.to_string()),
        Err(error) => {
            // Replace the file of --junit, so that a build server does not read the file of an
            // earlier run as the result of this run.
            let case = ("load".to_owned(), Decision::Problem(error.to_string()));
            let _ = args.write_junit(&spec, &[case]);
            return fail(3, &error.to_string());
        }
    };
    if let (Some(run), Some(start)) = (&mut outcome.shard, args.start_at) {
        run.late = outcome.started_at.duration_since(start).unwrap_or_default();
    }
    // An interrupted run is too short, so it is not compared with the run of `--against`.
    let earlier = earlier.filter(|_| !outcome.is_interrupted);
    let compared = earlier.as_ref().map(|earlier| earlier.compare(&outcome, args.threshold));
    if !args.quiet {
        let mut text = match args.format {
            Some(format) => format::text(format, &spec, &outcome),
            None => report::text(&outcome),
        };
        text += compared.as_ref().map_or("", |(_, text)| text);
        // If the report cannot be printed because the pipe is closed, the result files are still
        // written.
        let _ = if args.outputs().uses_stdout() {
            io::stderr().write_all(text.as_bytes())
        } else {
            io::stdout().write_all(text.as_bytes())
        };
    }
    let decision = compared.as_ref().map(|(comparison, _)| comparison.decision());
    let against = earlier.as_ref().zip(compared.as_ref());
    let against =
        against.map(|(earlier, (comparison, _))| ("against", earlier.to_json(comparison)));
    if let Err(why) = args.outputs().write(&outcome, against) {
        return fail(3, &why);
    }
    let cases = conditions::cases(&args.fail_if, &outcome, args.allow_failures, decision.as_ref());
    if let Err(why) = args.write_junit(&spec, &cases) {
        return fail(3, &why);
    }
    let conditions = conditions::check(&args.fail_if, &outcome, print_stderr);
    if args.format.is_some() && !outcome.is_interrupted {
        // The report in another program's format cannot contain these problems, so print them to
        // standard error.
        outcome.problems().iter().for_each(|problem| print_stderr(problem));
    }
    match &decision {
        Some(RunDecision::Worse(why)) => print_stderr(&format!("--against: worse: {why}")),
        Some(RunDecision::Undecided(why)) => {
            print_stderr(&format!("--against: inconclusive: {why}"));
        }
        Some(RunDecision::Fine) | None => {}
    }
    let doubt = outcome.rate_doubt();
    if let Some(doubt) = &doubt {
        print_stderr(&format!("inconclusive: {doubt}"));
    }
    let is_worse = matches!(decision, Some(RunDecision::Worse(_)));
    let is_undecided = matches!(decision, Some(RunDecision::Undecided(_)));
    ExitCode::from(if outcome.is_interrupted {
        interrupt.exit_code()
    } else if args.is_bad(&outcome) || conditions == Conditions::Hold || is_worse {
        1
    } else if conditions == Conditions::Unknown || is_undecided || doubt.is_some() {
        INCONCLUSIVE
    } else {
        0
    })
}

impl BenchArgs {
    /// Returns the settings of the load generator that the options describe.
    fn spec(&self) -> Result<Spec, String> {
        let parse = |text: &String| {
            let url = Url::parse(text);
            let url = match (self.http2, self.http3) {
                _ if self.grpc => url.and_then(Url::over_grpc),
                (true, _) => url.and_then(Url::over_http2),
                (_, true) => url.and_then(Url::over_http3),
                _ => url,
            };
            let url = url.and_then(|url| url.connected_to(&self.connect_to));
            url.map_err(|error| error.to_string())
        };
        let urls = self.urls.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let url = urls[0].clone();
        let form = self.form()?;
        let body = match (&self.body, &self.body_file) {
            (Some(text), _) => text.clone().into_bytes(),
            (_, Some(file)) => body_file::read(file)
                .map_err(|error| format!("--body-file {}: {error}", file.display()))?,
            _ => form.as_ref().map(|form| form.body.clone()).unwrap_or_default(),
        };
        let mut fixed = form.as_ref().map(|form| form.fixed.clone()).unwrap_or_default();
        if self.body_file.is_some() && !self.fill_body_file {
            fixed.push(0..usize::MAX);
        }
        let mut headers = self.headers.clone();
        let has_type = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        if let Some(form) = form.filter(|_| !has_type || !self.form.is_empty()) {
            headers.retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
            headers.push(("Content-Type".to_owned(), form.content_type));
        }
        let has_field = |name: &str| {
            headers.iter().any(|(other, _): &(String, String)| other.eq_ignore_ascii_case(name))
        };
        if self.chunked && !has_field("transfer-encoding") {
            headers.push(("Transfer-Encoding".to_owned(), "chunked".to_owned()));
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arrivals = self.arrivals();
        let ramp = self.ramp()?;
        let connections = match &ramp {
            Some(ramp) if self.rate.is_none() => ramp.highest() as usize,
            _ => self.connections.unwrap_or(DEFAULT_CONNECTIONS),
        };
        let file = self.requests_file.as_ref().or(self.replay.as_ref());
        if file.or(self.scenario.as_ref()).is_some() {
            // The file defines the bodies. `fixed` has the ranges without placeholders in the body
            // of the command line, so these ranges do not apply.
            fixed.clear();
        }
        if file.or(self.scenario.as_ref()).is_some() && urls.len() > 1 {
            let option = match (&self.replay, &self.scenario) {
                (Some(_), _) => "--replay",
                (_, Some(_)) => "--scenario",
                _ => "--requests-file",
            };
            return Err(format!("{option}: give the URL of its server alone"));
        }
        let (mut replay, mut scenario) = (None, None);
        let mut parts = match (&self.requests_file, &self.replay) {
            (Some(file), _) => read_requests(file, &url)?,
            (_, Some(file)) => {
                let speed =
                    self.speed.unwrap_or(load_options::Speed::default_of(self.is_unpaced()));
                let (parts, order) = load_options::read(file, &url, speed)?;
                replay = Some(Arc::new(order));
                parts
            }
            _ if self.scenario.is_some() => {
                let file = self.scenario.as_deref().unwrap_or(Path::new(""));
                let (parts, plan) = scenario::read(file, &url)?;
                scenario = Some(Arc::new(plan));
                parts
            }
            _ => self.mixed(&urls, &body)?,
        };
        for part in &mut parts {
            let url = part.url.clone().connected_to(&self.connect_to);
            part.url = url.map_err(|error| error.to_string())?;
        }
        let default_stop = match &replay {
            Some(replay) if self.duration.is_none() => Stop::Requests(replay.entries.len() as u64),
            _ => Stop::Duration(self.duration.unwrap_or(DEFAULT_DURATION)),
        };
        let spec = Spec {
            parts,
            connections,
            streams: self.streams,
            threads: self.threads.unwrap_or(cores.min(connections.max(1))),
            stop: self.requests.map_or(default_stop, Stop::Requests),
            replay,
            scenario,
            method: self.method().to_owned(),
            headers,
            values: self.values.as_deref().map(read_values).transpose()?,
            cookies: self.cookies,
            body,
            fixed,
            messages: self.messages,
            reply_end: self.reply_end.clone().unwrap_or(ReplyEnd::Close),
            keepalive: !self.no_keepalive,
            lifetime: Lifetime {
                requests: self.requests_per_connection,
                age: self.connection_lifetime,
            },
            slow: SlowPeers { read: self.slow_read, send: self.slow_send },
            timeout: self.timeout,
            think: self.think,
            rate: self.rate.map(|per_second| Rate { per_second, arrivals }),
            gateway: Gateway {
                root: self.root.clone(),
                variables: self.params.clone(),
                secret: self.secret.clone(),
            },
            tls: TlsOptions {
                insecure: self.insecure,
                ca: self.ca.clone(),
                resume: self.tls_resume,
                server_name: self.sni.clone(),
            },
            ..Spec::new(url)
        };
        let spec = match ramp {
            Some(ramp) => spec.with_ramp(ramp).map_err(|error| format!("--stages: {error}"))?,
            None => spec,
        };
        match &self.shard {
            Some(shard) => spec.divided(shard.clone()).map_err(|error| error.to_string()),
            None => Ok(spec),
        }
    }

    /// Returns a request for each URL. The result is empty if there is only one URL, because the
    /// load is then not mixed. Fails if the numbers of URLs and of `--weights` differ.
    fn mixed(&self, urls: &[Url], body: &[u8]) -> Result<Vec<Part>, String> {
        if !self.weights.is_empty() && self.weights.len() != urls.len() {
            let (weights, urls) = (self.weights.len(), urls.len());
            return Err(format!("--weights: {weights} weights are given for {urls} URLs"));
        }
        if urls.len() == 1 {
            return Ok(Vec::new());
        }
        let part = |(index, url): (usize, &Url)| Part {
            url: url.clone(),
            method: self.method().to_owned(),
            headers: Vec::new(),
            body: body.to_vec(),
            weight: self.weights.get(index).copied().unwrap_or(1),
        };
        Ok(urls.iter().enumerate().map(part).collect())
    }

    fn method(&self) -> &str {
        let is_call = self.grpc || self.urls[0].starts_with("grpc");
        let has_form = !self.form.is_empty() || !self.data_urlencode.is_empty();
        // With these schemes, the body is a message or the bytes to send.
        let has_messages = ["ws:", "wss:", "tcp:"].iter().any(|s| self.urls[0].starts_with(s));
        let has_body = !has_messages && (self.body.is_some() || self.body_file.is_some());
        let is_post = has_form || has_body || is_call;
        self.method.as_deref().unwrap_or(if is_post { "POST" } else { "GET" })
    }

    /// Returns the body of the form. Returns `None` if the options contain no form.
    fn form(&self) -> Result<Option<form::Form>, String> {
        if !self.form.is_empty() {
            return form::Form::multipart(&self.form, self.fill_body_file).map(Some);
        }
        let fields = Some(&self.data_urlencode).filter(|fields| !fields.is_empty());
        let fills = self.fill_body_file;
        fields.map(|fields| form::Form::urlencoded(fields, fills)).transpose()
    }

    /// Returns true if another option than --speed determines when requests are sent.
    fn is_unpaced(&self) -> bool {
        self.rate.is_some() || self.think.is_some()
    }

    fn ramp(&self) -> Result<Option<Ramp>, String> {
        if self.stages.is_empty() {
            return Ok(None);
        }
        load_options::ramp(&self.stages, self.rate, self.connections).map(Some)
    }

    fn arrivals(&self) -> Arrivals {
        match self.arrivals {
            Spread::Poisson => Arrivals::Poisson,
            Spread::Even => Arrivals::Even,
        }
    }

    /// Reads the result of the earlier run that --against names. Fails if the earlier run had
    /// another load. Returns `None` without --against.
    fn earlier(&self, spec: &Spec) -> Result<Option<against::Earlier<'_>>, String> {
        let Some(file) = &self.against else { return Ok(None) };
        let earlier = against::Earlier::read(file)?;
        earlier.check(spec)?;
        Ok(Some(earlier))
    }

    /// Returns true if the exit code must report failed requests or other problems of the load.
    fn is_bad(&self, outcome: &Outcome) -> bool {
        let has_failures = outcome.requests.failed > 0 || outcome.error_replies() > 0;
        has_failures && !self.allow_failures || !outcome.problems().is_empty()
    }

    /// Checks before the run that the result files can probably be written after the run.
    fn check_files(&self) -> Result<(), String> {
        self.outputs().check()?;
        self.junit.as_deref().map_or(Ok(()), |path| export::check_file("--junit", path))
    }

    /// Writes the test cases of --junit.
    fn write_junit(&self, spec: &Spec, cases: &[(String, Decision)]) -> Result<(), String> {
        let Some(path) = &self.junit else { return Ok(()) };
        let xml = junit::suite("forebay.bench", &spec.url.to_string(), cases);
        std::fs::write(path, xml).map_err(|error| format!("--junit {}: {error}", path.display()))
    }

    /// Returns true if the run is shown live on the whole screen.
    fn shows_live(&self) -> bool {
        let is_default = !self.quiet && !self.no_live && !self.outputs().uses_stdout();
        self.live || is_default && live::obstacle().is_none()
    }

    fn outputs(&self) -> export::Outputs<'_> {
        export::Outputs {
            json: self.json.as_deref(),
            csv: self.csv.as_deref(),
            hlog: self.hlog.as_deref(),
            html: self.html.as_deref(),
        }
    }
}

/// Reads a file of requests. Requests with only a path go to the server of `url`.
fn read_requests(file: &Path, url: &Url) -> Result<Vec<Part>, String> {
    let wrong = |why: String| format!("--requests-file {}: {why}", file.display());
    let bytes = body_file::read(file).map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
    let directory = file.parent().unwrap_or(Path::new(""));
    parse_requests(&text, url, directory).map_err(wrong)
}

/// Reads the CSV file of `--values`, whose values replace placeholders in requests.
fn read_values(file: &Path) -> Result<Arc<ValueTable>, String> {
    let wrong = |why: String| format!("--values {}: {why}", file.display());
    let bytes = body_file::read(file).map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8".to_owned()))?;
    ValueTable::parse(&text).map(Arc::new).map_err(wrong)
}

fn fail(code: u8, why: &str) -> ExitCode {
    print_stderr(why);
    ExitCode::from(code)
}

fn print_stderr(text: &str) {
    // Line ends stay, for example in errors of a scenario.
    let lines: Vec<_> = text.lines().map(report::clean).collect();
    let _ = writeln!(io::stderr(), "forebay bench: {}", lines.join("\n"));
}

fn parse_field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'name: value'")?;
    Ok((name.to_owned(), value.trim().to_owned()))
}

fn parse_param(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=value")?;
    if name.is_empty() || text.contains('\0') {
        return Err("a variable needs a name, and must not contain a NUL byte".to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}
