//! The `forebay bench` subcommand: options, progress, report and exit code.

pub mod duration;
mod export;
mod progress;
mod report;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use crate::body_file;
use clap::ValueEnum;
use forebay_load::{
    Arrivals, Control, Error, Gateway, Outcome, Rate, Spec, Stop, TlsOptions, Url, run as run_load,
};

/// Send load to a server and report the results
///
/// Keeps CONNECTIONS busy for a time (-d) or a number of requests (-n). Each connection sends its
/// next request when it has the reply to the last one. HTTP/2 sends up to STREAMS requests at once
/// per connection. With -r, requests are due at a given rate, regardless of replies. Latency counts
/// from the due time of a request to the last byte of its reply.
///
/// Exit codes: 0 success; 1 failed requests, or replies with 4xx or 5xx (unless --allow-failures);
/// 2 wrong usage; 3 the server cannot be reached, or a result file cannot be written.
#[derive(clap::Args)]
pub struct Args {
    #[arg(
        help = "URL to request: http://HOST[:PORT]/PATH or http+unix:///SOCKET:/PATH; with https instead of \
                  http over TLS, with h2c over HTTP/2, with fcgi, scgi, uwsgi or ajp directly to an \
                  application"
    )]
    url: String,
    /// Number of concurrent connections
    #[arg(short, long, default_value_t = 10, allow_negative_numbers = true)]
    connections: usize,
    /// Stop after exactly this many requests
    #[arg(short = 'n', long, conflicts_with = "duration", allow_negative_numbers = true)]
    requests: Option<u64>,
    /// Stop after this time, such as 10s, 500ms or 2m [default: 10s]
    #[arg(short, long, value_parser = duration::parse)]
    duration: Option<Duration>,
    /// Load threads [default: one per core, at most one per connection]
    #[arg(short, long, allow_negative_numbers = true)]
    threads: Option<usize>,
    /// Requests per second over all connections, instead of as fast as replies come
    #[arg(short, long, allow_negative_numbers = true)]
    rate: Option<f64>,
    /// Distribution of the requests of a given rate over time
    #[arg(long, value_enum, default_value_t = Spread::Poisson, requires = "rate")]
    arrivals: Spread,
    /// Request method
    #[arg(short = 'X', long, default_value = "GET")]
    method: String,
    /// Header field to send, 'name: value'; may be repeated
    #[arg(short = 'H', long = "header", value_parser = parse_field)]
    headers: Vec<(String, String)>,
    /// Request body
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// File with the request body, at most 64 MiB
    #[arg(long, value_name = "FILE", conflicts_with = "body")]
    body_file: Option<PathBuf>,
    /// Directory of scripts for fcgi, scgi and uwsgi; the path is appended to it for
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
    /// Use HTTP/2: with ALPN for https://, else with prior knowledge, as h2c:// does
    #[arg(long)]
    http2: bool,
    /// Accept any certificate of an https:// server
    #[arg(long)]
    insecure: bool,
    /// PEM file with the certificate authorities to trust [default: those of this machine]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Resume TLS sessions: only a connection's first handshake is full; with --no-keepalive there
    /// is one handshake per request
    #[arg(long)]
    tls_resume: bool,
    /// Concurrent HTTP/2 requests per connection, fewer if the server allows fewer
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    streams: usize,
    /// Pause on each connection between a reply and the next request, such as 100ms
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "rate")]
    think: Option<Duration>,
    /// Time limit of a request, such as 5s
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "10s")]
    timeout: Duration,
    /// Write the result as JSON; - means standard output, and the report then goes to standard
    /// error
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the result as CSV with one row
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the latencies as an HdrHistogram interval log, in microseconds
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Exit with 0 even if requests failed
    #[arg(long)]
    allow_failures: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

/// Names of [`Arrivals`] on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Spread {
    /// Independent users: exponentially distributed gaps
    Poisson,
    /// Equal gaps
    Even,
}

const DEFAULT_DURATION: Duration = Duration::from_secs(10);

pub fn run(args: &Args) -> ExitCode {
    let spec = match args.spec().and_then(|spec| args.outputs().check().map(|()| spec)) {
        Ok(spec) => spec,
        Err(why) => return fail(2, &why),
    };
    let control = Arc::new(Control::default());
    if let Err(error) = end_on_interrupt(control.clone()) {
        return fail(3, &format!("cannot catch Ctrl-C: {error}"));
    }
    let began = SystemTime::now();
    let show = !args.quiet && io::stderr().is_terminal();
    let outcome = match progress::watch(show, spec.stop, &control, || run_load(&spec, &control)) {
        Ok(outcome) => outcome,
        Err(error @ Error::Invalid(_)) => return fail(2, &error.to_string()),
        Err(error) => return fail(3, &error.to_string()),
    };
    if !args.quiet {
        // A closed pipe must not prevent the result files.
        let text = report::text(&spec, &outcome, control.cancelled.load(Ordering::Relaxed));
        let _ = if args.outputs().uses_stdout() {
            io::stderr().write_all(text.as_bytes())
        } else {
            io::stdout().write_all(text.as_bytes())
        };
    }
    if let Err(why) = args.outputs().write(&outcome, began) {
        return fail(3, &why);
    }
    ExitCode::from(u8::from(!args.allow_failures && has_failures(&outcome)))
}

impl Args {
    /// Returns the load that the options describe.
    fn spec(&self) -> Result<Spec, String> {
        let url = Url::parse(&self.url);
        let url = if self.http2 { url.and_then(Url::over_http2) } else { url };
        let url = url.map_err(|error| error.to_string())?;
        let body = match (&self.body, &self.body_file) {
            (Some(text), _) => text.clone().into_bytes(),
            (_, Some(file)) => body_file::read(file)
                .map_err(|error| format!("--body-file {}: {error}", file.display()))?,
            _ => Vec::new(),
        };
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let arrivals = match self.arrivals {
            Spread::Poisson => Arrivals::Poisson,
            Spread::Even => Arrivals::Even,
        };
        Ok(Spec {
            connections: self.connections,
            streams: self.streams,
            threads: self.threads.unwrap_or(cores.min(self.connections.max(1))),
            stop: match self.requests {
                Some(n) => Stop::Requests(n),
                None => Stop::Duration(self.duration.unwrap_or(DEFAULT_DURATION)),
            },
            method: self.method.clone(),
            headers: self.headers.clone(),
            body,
            keepalive: !self.no_keepalive,
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
            },
            ..Spec::new(url)
        })
    }

    fn outputs(&self) -> export::Outputs<'_> {
        export::Outputs {
            json: self.json.as_deref(),
            csv: self.csv.as_deref(),
            hlog: self.hlog.as_deref(),
        }
    }
}

fn has_failures(outcome: &Outcome) -> bool {
    outcome.requests.failed > 0 || outcome.error_replies() > 0 || outcome.gave_up
}

/// Handles Ctrl-C and SIGTERM. The first ends the run with a report of the results so far, the
/// second ends the program.
fn end_on_interrupt(control: Arc<Control>) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || {
        if control.cancelled.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
}

fn fail(code: u8, why: &str) -> ExitCode {
    let _ = writeln!(io::stderr(), "forebay bench: {why}");
    ExitCode::from(code)
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
