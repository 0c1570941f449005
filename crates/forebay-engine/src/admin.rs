//! The administrator's listener: status, metrics and health, on a thread of its own, so that it
//! answers when the serving threads are busy.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_conf::Listen;
use forebay_wire::http1::{Limits, Progress, RequestHead, RequestParser, encode};
use serde_json::json;

use crate::counters::{BUCKETS, Counters, Totals};
use crate::listen::{ListenError, Loads};

/// How long one visitor may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// An application and its workers at one moment.
#[derive(Clone, Debug)]
pub struct AppStatus {
    /// The application's name.
    pub name: String,
    /// Its workers, by age.
    pub workers: Vec<WorkerRow>,
}

/// A worker at one moment.
#[derive(Clone, Debug)]
pub struct WorkerRow {
    /// Process id.
    pub pid: u32,
    /// What it does: `starting`, `idle`, `busy` or `ending`.
    pub state: &'static str,
    /// Requests it was given.
    pub requests: u64,
    /// Time since its start.
    pub age: Duration,
    /// Resident memory, in bytes.
    pub rss: u64,
    /// Method and target of the request it runs.
    pub current_request: Option<String>,
}

/// Asks the applications how they are.
pub type AppsStatus = Arc<dyn Fn() -> Vec<AppStatus> + Send + Sync>;

/// Opens the administrator's listener.
pub fn open(address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).map_err(|error| ListenError { listen: Listen::Tcp(address), error })
}

/// What the answers are made from.
pub struct Admin {
    pub threads: Vec<Arc<Counters>>,
    pub loads: Arc<Loads>,
    pub apps: AppsStatus,
    pub started: Instant,
}

impl Admin {
    /// Answers visitors one after the other, for as long as the process lives.
    pub fn serve(self, listener: &TcpListener) {
        for stream in listener.incoming() {
            match stream {
                // A visitor that goes away has nobody to tell.
                Ok(stream) => drop(self.visit(stream)),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn visit(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (status, content_type, body) = match read_request(&mut stream) {
            Some((path, accepts_html)) => self.answer(&path, accepts_html),
            None => (400, "text/plain", "bad request\n".to_owned()),
        };
        let mut out = Vec::new();
        encode::status_line(&mut out, status, b"");
        encode::field(&mut out, "Content-Type", content_type.as_bytes());
        encode::field(&mut out, "Cache-Control", b"no-store");
        encode::field(&mut out, "Connection", b"close");
        encode::field_number(&mut out, "Content-Length", body.len() as u64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body.as_bytes());
        stream.write_all(&out)
    }

    fn answer(&self, path: &str, accepts_html: bool) -> (u16, &'static str, String) {
        match path {
            "/healthz" => (200, "text/plain", "ok\n".to_owned()),
            "/metrics" => (200, "text/plain; version=0.0.4", self.metrics()),
            "/status" if accepts_html => (200, "text/html; charset=utf-8", self.page()),
            "/status" | "/status.json" => (200, "application/json", self.json()),
            _ => (404, "text/plain", "there are /status, /metrics and /healthz\n".to_owned()),
        }
    }

    fn json(&self) -> String {
        let totals = Totals::of(&self.threads);
        let apps = (self.apps)();
        let apps = apps.iter().map(|app| {
            let workers = app.workers.iter().map(|worker| {
                json!({
                    "pid": worker.pid, "state": worker.state, "requests": worker.requests,
                    "age_s": worker.age.as_secs_f64(), "rss": worker.rss,
                    "current_request": worker.current_request,
                })
            });
            json!({"name": app.name, "workers": workers.collect::<Vec<_>>()})
        });
        let status = json!({
            "schema": "forebay.status/1",
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.started.elapsed().as_secs_f64(),
            "threads": self.connections().collect::<Vec<_>>(),
            "connections": self.connections().sum::<usize>(),
            "accepted": totals.accepted,
            "requests": totals.requests(),
            "replies": CLASSES.iter().zip(totals.classes).map(|(name, n)| (*name, n))
                .collect::<std::collections::BTreeMap<_, _>>(),
            "body_bytes": totals.body_bytes,
            "apps": apps.collect::<Vec<_>>(),
        });
        format!("{status:#}\n")
    }

    fn connections(&self) -> impl Iterator<Item = usize> {
        (0..self.threads.len()).map(|thread| self.loads.connections(thread))
    }

    /// Prometheus' text format. Labels are the status class and names from the configuration, so
    /// their number does not grow with traffic.
    fn metrics(&self) -> String {
        let totals = Totals::of(&self.threads);
        let mut out = String::new();
        family(&mut out, "forebay_requests_total", "counter", "Requests, by class of status.");
        for (class, n) in CLASSES.iter().zip(totals.classes) {
            let _ = writeln!(out, "forebay_requests_total{{class=\"{class}\"}} {n}");
        }
        histogram(&mut out, &totals);
        for (name, kind, help, n) in [
            (
                "forebay_reply_body_bytes_total",
                "counter",
                "Bytes of reply bodies.",
                totals.body_bytes,
            ),
            ("forebay_connections_accepted_total", "counter", "Connections.", totals.accepted),
            (
                "forebay_connections",
                "gauge",
                "Open client connections.",
                self.connections().sum::<usize>() as u64,
            ),
            (
                "forebay_uptime_seconds",
                "gauge",
                "Time since the start.",
                self.started.elapsed().as_secs(),
            ),
        ] {
            family(&mut out, name, kind, help);
            let _ = writeln!(out, "{name} {n}");
        }
        family(&mut out, "forebay_workers", "gauge", "Worker processes, by application and state.");
        for app in (self.apps)() {
            for state in ["starting", "idle", "busy", "ending"] {
                let n = app.workers.iter().filter(|worker| worker.state == state).count();
                let name = app.name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ");
                let _ = writeln!(out, "forebay_workers{{app=\"{name}\",state=\"{state}\"}} {n}");
            }
        }
        out
    }

    fn page(&self) -> String {
        let totals = Totals::of(&self.threads);
        let mut page = String::from(
            "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
             <meta http-equiv=\"refresh\" content=\"5\"><title>Forebay</title>\n\
             <style>body{font:16px/1.5 system-ui,sans-serif;margin:2em;max-width:60em;\
             color-scheme:light dark}table{border-collapse:collapse;margin:0 0 1.5em}\
             td,th{padding:.2em 1em .2em 0;text-align:right;border-bottom:1px solid #8884}\
             td:first-child,th:first-child,.text{text-align:left}</style>\n<h1>Forebay</h1>\n",
        );
        let _ = write!(
            page,
            "<p>Version {}, process {}, up {} s. {} connections open, {} requests served.</p>\n\
             <table><tr><th>Replies</th>",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.started.elapsed().as_secs(),
            self.connections().sum::<usize>(),
            totals.requests(),
        );
        for (class, n) in CLASSES.iter().zip(totals.classes) {
            let _ = write!(page, "<tr><td>{class}</td><td>{n}</td></tr>");
        }
        page.push_str("</table>\n");
        for app in (self.apps)() {
            let _ = write!(
                page,
                "<h2>{}</h2>\n<table><tr><th>Process</th><th>State</th><th>Requests</th>\
                 <th>Age</th><th>Memory</th><th class=\"text\">Request</th></tr>\n",
                escape(&app.name)
            );
            for worker in app.workers {
                let _ = writeln!(
                    page,
                    "<tr><td>{}</td><td>{}</td><td>{}</td><td>{} s</td><td>{:.1} MB</td>\
                     <td class=\"text\">{}</td></tr>",
                    worker.pid,
                    worker.state,
                    worker.requests,
                    worker.age.as_secs(),
                    worker.rss as f64 / 1e6,
                    escape(worker.current_request.as_deref().unwrap_or_default()),
                );
            }
            page.push_str("</table>\n");
        }
        page.push_str("</html>\n");
        page
    }
}

const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

fn family(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn histogram(out: &mut String, totals: &Totals) {
    let name = "forebay_request_duration_seconds";
    family(out, name, "histogram", "From the last byte of the request head to that of the reply.");
    let mut sum = 0;
    for (end, n) in BUCKETS.iter().zip(totals.durations) {
        sum += n;
        let _ = writeln!(out, "{name}_bucket{{le=\"{}\"}} {sum}", *end as f64 / 1e6);
    }
    sum += totals.durations[BUCKETS.len()];
    let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {sum}");
    let _ = writeln!(out, "{name}_sum {}\n{name}_count {sum}", totals.duration_us as f64 / 1e6);
}

/// The path asked for and whether the visitor takes HTML; `None` for what is not a GET request.
fn read_request(stream: &mut TcpStream) -> Option<(String, bool)> {
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::with_capacity(4096);
    let mut head = RequestHead::default();
    let mut parser = RequestParser::new(Limits { head: 16 * 1024, fields: 100, target: 2048 });
    while Instant::now() < deadline {
        let mut chunk = [0; 4096];
        let n = stream.read(&mut chunk).ok().filter(|&n| n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
        if let Progress::Complete(_) = parser.parse(&bytes, &mut head).ok()? {
            let target = str::from_utf8(head.path_and_query.of(&bytes)).ok()?;
            let path = target.split('?').next().unwrap_or_default().to_owned();
            let accept = head.value(forebay_wire::http1::Known::Accept, &bytes);
            let accepts_html =
                accept.is_some_and(|value| memchr::memmem::find(value, b"text/html").is_some());
            let is_get = matches!(head.method.of(&bytes), b"GET" | b"HEAD");
            return is_get.then_some((path, accepts_html));
        }
    }
    None
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
