//! The administrator's listener: status, metrics and health. Separate threads answer, so that busy
//! serving threads do not delay the answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{ErrorKind, Write};
use std::net::{IpAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use forebay_conf::{Listen, Setting, SocketAccess};
use forebay_net::counters::{BUCKETS, Counters, Durations, KINDS, RouteTotals, Totals, heaviest};
use forebay_net::limit::Limit;
use forebay_net::listen::{self, ListenError, Listener, Loads};
use forebay_net::timing::Step;
use forebay_net::tls::Renewal;
use forebay_wire::http1::encode;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use crate::metrics::{self, Metric};

mod backends;
mod cache;
mod changes;
mod connection;
mod control;
mod logs;
mod mirrors;
mod page;
mod request;
mod routes;
mod shell;
mod visitors;

pub use cache::{CacheRow, DiskRow, Purge, Purged};
pub use changes::{
    AdminChange, BackendChange, BackendState, ChangeOrder, Changed, ClosedSite, MaintenanceChange,
    Refused, WeightChange,
};
use connection::{AdminConnection, Peer};
pub use mirrors::{MirrorCounts, MirrorRow};
use request::{AdminRequest, Method, PATIENCE};
use visitors::{Visitor, Visitors};

/// State of applications and backends at one moment.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The applications, by name.
    pub apps: Vec<AppStatus>,
    /// The backends of routes and groups, for any protocol.
    pub backends: Vec<BackendRow>,
    /// Stored replies, if a route has `cache`.
    pub cache: Option<CacheRow>,
    /// Counters of routes, if `route_metrics` is set.
    pub routes: Vec<RouteTotals>,
    /// Copies of requests, for each route with `mirror`.
    pub mirrors: Vec<MirrorRow>,
    /// Certificates of sites and streams.
    pub certificates: Vec<CertificateRow>,
    /// The configuration that runs.
    pub configuration: ConfigurationRow,
    /// The sites and users that are left out: each with its problem, and the next step.
    pub left_out: Vec<(String, String, String)>,
}

/// A certificate at one moment.
#[derive(Clone, Debug)]
pub struct CertificateRow {
    /// Host names of the site or stream.
    pub names: Vec<String>,
    /// Path of the file, or `ACME`.
    pub source: String,
    /// Begin and end of the validity in seconds since 1970. `None`: there is no certificate yet.
    pub validity: Option<(i64, i64)>,
    /// The next order, if Forebay obtains the certificate.
    pub renewal: Option<Renewal>,
}

/// The configuration that runs.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationRow {
    /// Number of the configuration, from 1. Each change increases it.
    pub generation: u64,
    /// Name of the file; empty without a file.
    pub file: String,
    /// True if the administrator has replaced the file's configuration by a text.
    pub is_posted: bool,
    /// The administrator's changes of backends and sites that are in force, in words.
    pub changes: Vec<String>,
    /// Time at which the configuration was read, in seconds since 1970.
    pub read: u64,
    /// The last reload, if there was one.
    pub last_reload: Option<ReloadRow>,
}

/// An attempt to replace the configuration, by SIGHUP or by the administrator.
#[derive(Clone, Debug)]
pub struct ReloadRow {
    /// Time of its end, in seconds since 1970.
    pub time: u64,
    /// Reason of a failure, after which the old configuration stays in use.
    pub error: Option<String>,
}

/// Owner of a backend.
#[derive(Clone, Debug)]
pub enum BackendsOf {
    Route {
        /// Number of the site in the configuration, from 1.
        site: usize,
        /// Number of the route in the site, from 1.
        route: usize,
        /// Line at which the route begins; 0 without a file.
        line: usize,
    },
    Stream {
        /// Number of the stream in the configuration, from 1.
        stream: usize,
        /// Line at which the stream begins.
        line: usize,
    },
    /// A group of this name.
    Upstream(String),
}

/// A backend at one moment.
#[derive(Clone, Debug)]
pub struct BackendRow {
    /// Owner of the backend.
    pub of: BackendsOf,
    /// Number of the backend in its owner's list, from 1.
    pub server: usize,
    /// Address of the backend.
    pub address: String,
    /// False if failures exclude the backend or its health check fails.
    pub is_up: bool,
    /// `active`, `drain` (only for sessions that the backend already has) or `down` (for no
    /// client).
    pub activation: &'static str,
    /// Weight of the backend in its group.
    pub weight: u32,
    /// Percentage of its weight that the backend has during its slow start.
    pub slow_start: Option<u64>,
    /// True if the backend is used only when the others are down.
    pub is_backup: bool,
    /// Current requests and tunnels.
    pub active: u64,
    /// Requests sent to the backend.
    pub requests: u64,
    /// Requests that failed at the backend.
    pub failures: u64,
}

/// An application and its workers at one moment.
#[derive(Clone, Debug)]
pub struct AppStatus {
    pub name: String,
    /// The application's workers, oldest first.
    pub workers: Vec<WorkerRow>,
    /// Requests that wait for a worker.
    pub waiting: usize,
    /// Number of processes started, including the first.
    pub starts: u64,
    /// Number of processes that ended unexpectedly.
    pub crashes: u64,
    /// Exit reason and last output, if processes end immediately after their start.
    pub crash_loop: Option<String>,
    /// A configured feature that does not work on this machine.
    pub note: Option<String>,
    /// In mode `prove`, the state of each script.
    pub proofs: Vec<ProofRow>,
}

/// What is known about a script in mode `prove`.
#[derive(Clone, Debug)]
pub struct ProofRow {
    pub script: String,
    /// State: `proving`, `proved` or `refused`.
    pub state: &'static str,
    /// Requests without a finding in processes of their own, and the number that a proof needs.
    pub requests: u64,
    pub needed: u64,
    /// Number of different inputs among them.
    pub inputs: usize,
    /// Checks of kept requests.
    pub checks: u64,
    /// Variables that each request changes in the same way.
    pub harmless: usize,
    /// Mean time of a comparison in microseconds.
    pub micros: u64,
    /// Why the script is refused.
    pub finding: Option<FindingRow>,
}

/// Why a script is not kept.
#[derive(Clone, Debug)]
pub struct FindingRow {
    pub variable: String,
    pub why: String,
    /// File and line of the assignment, or empty.
    pub place: String,
    /// Values after two requests, described.
    pub values: Vec<String>,
    pub cure: String,
}

/// A worker at one moment.
#[derive(Clone, Debug)]
pub struct WorkerRow {
    pub pid: u32,
    /// State: `starting`, `idle`, `busy` or `ending`.
    pub state: &'static str,
    /// Number of requests that the worker received.
    pub requests: u64,
    /// Time since the start.
    pub age: Duration,
    /// Resident memory in bytes.
    pub rss: u64,
    /// CPU time since the start.
    pub cpu: Duration,
    /// Method and target of the current request.
    pub current_request: Option<String>,
}

/// Access to the server's applications and backends for the administrator's listener.
pub trait Control: Send + Sync {
    /// Returns the current state.
    fn status(&self) -> Status;

    /// Replaces the processes of an application. Returns false if the name is unknown.
    fn restart(&self, app: &str) -> bool;

    /// Removes stored replies. Returns the number of removed replies, or `None` if no route stores
    /// replies.
    fn purge(&self, purge: &Purge) -> Option<usize>;

    /// Carries out a change, and waits until the change is in force. Fails if the server refuses
    /// the change.
    fn change(&self, order: ChangeOrder) -> Result<Changed, Refused>;

    /// Returns the generation of the running configuration, and its settings.
    fn settings(&self) -> (u64, Vec<Setting>);

    /// Compares the running configuration with the settings in `next`. If `next` is `None`,
    /// compares it with the configuration file. Returns a line of text for each difference, and the
    /// names of the applications that a reload would restart. Fails if the file has an error.
    fn difference(&self, next: Option<Vec<Setting>>)
    -> Result<(Vec<String>, Vec<String>), Refused>;
}

/// Opens the administrator's listener: a TCP listener, or a Unix socket with the mode and owner in
/// `access`. Every other kind of listener is an error.
pub fn open(wanted: &Listen, access: SocketAccess) -> Result<Listener, ListenError> {
    let address = match wanted {
        Listen::Tcp(address) => *address,
        Listen::Unix(path) => {
            let accesses = [(path.clone(), access)].into();
            let (_, mut listeners) = listen::open(wanted, 1, &accesses)?;
            return Ok(listeners.remove(0));
        }
        other => {
            let error = ErrorKind::Unsupported.into();
            return Err(ListenError { listen: other.clone(), error });
        }
    };
    let open = || {
        let listener = TcpListener::bind(address)?;
        // After an upgrade, two processes share the listener for a moment, so accepting must not
        // block.
        listener.set_nonblocking(true)?;
        Ok(Listener::Tcp(listener))
    };
    open().map_err(|error| ListenError { listen: wanted.clone(), error })
}

/// What metrics and status are read from.
pub struct Meters {
    pub threads: Vec<Arc<Counters>>,
    pub loads: Arc<Loads>,
    pub control: Arc<dyn Control>,
    pub started: Instant,
}

/// The administrator's listener, with the state that its answers show.
pub struct Admin {
    pub meters: Arc<Meters>,
    /// Accepted `Host` names, in addition to addresses and `localhost`.
    pub hosts: Vec<String>,
    /// Token that every change over TCP requires. `None` refuses all such changes.
    pub token: Option<String>,
    /// False before this process serves, and after a signal to stop.
    pub is_ready: Arc<AtomicBool>,
    /// Becomes readable when this process must answer no more clients.
    pub stopped: UnixStream,
}

struct AdminAnswer {
    status: u16,
    content_type: &'static str,
    /// Names and values of additional fields.
    fields: Vec<(&'static str, String)>,
    body: String,
}

impl AdminAnswer {
    fn new(status: u16, content_type: &'static str, body: impl Into<String>) -> Self {
        Self { status, content_type, fields: Vec::new(), body: body.into() }
    }

    fn text(status: u16, body: impl Into<String>) -> Self {
        Self::new(status, "text/plain", body)
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.fields.push((name, value.into()));
        self
    }
}

impl Admin {
    /// Answers clients until `stopped` becomes readable. Each client has its own thread, because a
    /// change may take long, and a client may be slow.
    pub fn serve(self: Arc<Self>, listener: &Listener) {
        let visitors = Arc::new(Visitors::default());
        loop {
            let socket = match listener {
                Listener::Unix(listener) => PollFd::new(listener, PollFlags::IN),
                Listener::Tcp(listener) => PollFd::new(listener, PollFlags::IN),
                Listener::Udp(_) | Listener::Datagrams(_) => return,
            };
            let mut sockets = [socket, PollFd::new(&self.stopped, PollFlags::IN)];
            let _ = poll(&mut sockets, None);
            if !sockets[1].revents().is_empty() {
                return;
            }
            match AdminConnection::accept(listener) {
                // If the limit of clients is reached, or if no thread can be started, the drop of
                // `connection` closes the connection.
                Ok(connection) => {
                    let Some(visitor) = visitors.admit(&connection) else { continue };
                    let admin = self.clone();
                    let thread = std::thread::Builder::new().name("admin-client".into());
                    let _ = thread.spawn(move || drop(admin.visit(connection, &visitor)));
                }
                // Another process that shares the listener has accepted the connection.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Reads one request of a client, sends the answer, and closes the connection.
    fn visit(&self, mut connection: AdminConnection, visitor: &Visitor) -> std::io::Result<()> {
        connection.limit(PATIENCE)?;
        let mut request = request::read(&mut connection);
        visitor.is_served();
        let answer = match &mut request {
            None => AdminAnswer::text(400, "bad request\n"),
            Some(request) if !self.is_for_us(request) => {
                let host = &request.host;
                AdminAnswer::text(421, format!("name {host} in admin_hosts of [server]\n"))
            }
            Some(request) => self.answer(request, &mut connection),
        };
        visitor.waits(&connection);
        let AdminAnswer { status, content_type, fields, body } = answer;
        let mut out = Vec::new();
        encode::status_line(&mut out, status, b"");
        for (name, value) in fields {
            encode::field(&mut out, name, value.as_bytes());
        }
        encode::field(&mut out, "Content-Type", content_type.as_bytes());
        encode::field(&mut out, "Cache-Control", b"no-store");
        encode::field(&mut out, "X-Content-Type-Options", b"nosniff");
        encode::field(&mut out, "Connection", b"close");
        encode::field_number(&mut out, "Content-Length", body.len() as u64);
        out.extend_from_slice(b"\r\n");
        let is_head = request.as_ref().is_some_and(|request| request.method == Method::Head);
        out.extend_from_slice(if is_head { b"" } else { body.as_bytes() });
        connection.write_all(&out)?;
        if request.is_some_and(|request| request.has_more) {
            request::read_on(&mut connection)?;
        }
        Ok(())
    }

    /// Returns true if the host of a request is an address, `localhost`, empty, or a configured
    /// name. On a Unix socket, every name is accepted, because no web page can reach the socket.
    fn is_for_us(&self, request: &AdminRequest) -> bool {
        let host = &*request.host;
        // Refuse other names. Otherwise, a web page could read answers if its own name resolves to
        // this address (DNS rebinding).
        let address = host.trim_start_matches('[').trim_end_matches(']');
        matches!(request.peer, Peer::Local(_))
            || host.is_empty()
            || host == "localhost"
            || address.parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|name| name == host)
    }

    /// Returns the answer to a request for any path. An unknown path gets 404.
    fn answer(&self, request: &mut AdminRequest, connection: &mut AdminConnection) -> AdminAnswer {
        if request.is_cross_site && !matches!(request.method, Method::Get | Method::Head) {
            return AdminAnswer::text(403, "a page of another site sends this request\n");
        }
        if let Some(answer) = self.answer_for_control(request, connection) {
            return answer;
        }
        if let Some(answer) = self.answer_for_app(request) {
            return answer;
        }
        if let Some(answer) = self.answer_for_cache(request) {
            return answer;
        }
        if matches!(request.method, Method::Post | Method::Other) {
            let answer = AdminAnswer::text(405, "GET and HEAD are answered here\n");
            return answer.with("Allow", "GET, HEAD");
        }
        match &*request.path {
            "/healthz" => AdminAnswer::text(200, "ok\n"),
            "/readyz" if self.is_ready.load(Ordering::Relaxed) => AdminAnswer::text(200, "ready\n"),
            "/readyz" => AdminAnswer::text(503, "not ready: it starts or stops\n"),
            "/metrics" => AdminAnswer::new(200, "text/plain; version=0.0.4", self.meters.metrics()),
            "/status" if request.accepts_html => shell::secured(self.page(request)),
            shell::SCRIPT_PATH => AdminAnswer::new(200, "text/javascript", shell::SCRIPT),
            shell::STYLE_PATH => AdminAnswer::new(200, "text/css", shell::STYLE),
            "/status" | "/status.json" => {
                AdminAnswer::new(200, "application/json", self.json(request))
            }
            _ => AdminAnswer::text(
                404,
                "there are /status, /metrics, /healthz, /readyz, /apps/NAME, /cache/purge and /control/\n",
            ),
        }
    }

    /// Returns the clients, networks, agents and paths that take the most time. Empty without
    /// `timing`.
    fn top(&self) -> serde_json::Value {
        let threads = self.meters.threads.iter().map(|counters| &counters.top);
        let shown = KINDS.iter().zip(heaviest(threads)).map(|(kind, names)| {
            let rows = names.iter().map(|(name, times)| {
                json!({
                    "name": name, "requests": times.requests,
                    "time_s": times.time_us as f64 / 1e6, "queue_s": times.queue_us as f64 / 1e6,
                })
            });
            (*kind, rows.collect::<Vec<_>>())
        });
        json!(shown.collect::<BTreeMap<_, _>>())
    }

    /// Returns the body of `/status.json`.
    fn json(&self, request: &AdminRequest) -> String {
        let totals = Totals::of(&self.meters.threads);
        let Status {
            apps,
            backends,
            cache,
            routes,
            mirrors,
            certificates,
            configuration,
            left_out,
        } = self.status_for(request);
        let apps = apps.iter().map(|app| {
            let workers = app.workers.iter().map(|worker| {
                json!({
                    "pid": worker.pid, "state": worker.state, "requests": worker.requests,
                    "age_s": worker.age.as_secs_f64(), "rss": worker.rss,
                    "cpu_s": worker.cpu.as_secs_f64(),
                    "current_request": worker.current_request,
                })
            });
            json!({
                "name": app.name, "workers": workers.collect::<Vec<_>>(),
                "waiting": app.waiting, "starts": app.starts, "crashes": app.crashes,
                "crash_loop": app.crash_loop, "note": app.note,
                "proofs": app.proofs.iter().map(proof_json).collect::<Vec<_>>(),
            })
        });
        let status = json!({
            "schema": "forebay.status/1",
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.meters.started.elapsed().as_secs_f64(),
            "threads": self.meters.connections().collect::<Vec<_>>(),
            "connections": self.meters.connections().sum::<usize>(),
            "accepted": totals.accepted,
            "requests": totals.requests(),
            "replies": CLASSES.iter().zip(totals.classes).map(|(name, n)| (*name, n))
                .collect::<BTreeMap<_, _>>(),
            "body_bytes": totals.body_bytes,
            "steps": steps(&totals),
            "top": self.top(),
            "buffered_bytes": self.meters.loads.buffered.bytes(),
            "limits_reached": Limit::ALL.iter().zip(totals.limits.0)
                .map(|(limit, n)| (limit.name(), n)).collect::<BTreeMap<_, _>>(),
            "apps": apps.collect::<Vec<_>>(),
            "backends": backends::json(&backends),
            "cache": cache.as_ref().map(cache::json),
            "routes": routes::json(&routes),
            "mirrors": mirrors::json(&mirrors),
            "durations": durations_json(&totals.durations),
            "certificates": certificates.iter().map(|row| json!({
                "names": row.names, "source": row.source,
                "starts": row.validity.map(|(start, _)| start),
                "expires": row.validity.map(|(_, end)| end),
                "renewal": row.renewal.as_ref().map(|next| json!({
                    "due": seconds(next.due), "failures": next.failures, "error": next.error,
                })),
            })).collect::<Vec<_>>(),
            "left_out": left_out.iter().map(|(name, problem, help)| json!({
                "name": name, "problem": problem, "help": help,
            })).collect::<Vec<_>>(),
            "configuration": {
                "generation": configuration.generation,
                "file": configuration.file,
                "source": if configuration.is_posted { "posted" } else { "file" },
                "changes": configuration.changes,
                "read": configuration.read,
                "last_reload": configuration.last_reload.as_ref().map(|reload| json!({
                    "time": reload.time, "error": reload.error,
                })),
            },
        });
        format!("{status:#}\n")
    }
}

impl Meters {
    fn connections(&self) -> impl Iterator<Item = usize> {
        (0..self.threads.len()).map(|thread| self.loads.connections(thread))
    }

    /// Returns the metrics in Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        // Labels are status classes and names from the configuration, so that traffic cannot create
        // new labels.
        let totals = Totals::of(&self.threads);
        let mut out = String::new();
        metrics::REQUESTS.begin(&mut out);
        for (class, n) in CLASSES.iter().zip(totals.classes) {
            metrics::REQUESTS.value(&mut out, &format!("class=\"{class}\""), n);
        }
        durations(&mut out, &totals);
        limits(&mut out, &totals);
        logs::append_metrics(&mut out);
        metrics::REPLY_BODY_BYTES.single(&mut out, totals.body_bytes);
        metrics::CONNECTIONS_ACCEPTED.single(&mut out, totals.accepted);
        metrics::CONNECTIONS.single(&mut out, self.connections().sum::<usize>());
        metrics::BUFFERED_BYTES.single(&mut out, self.loads.buffered.bytes());
        append_process(&mut out, self.started.elapsed());
        let Status {
            apps,
            backends,
            cache,
            routes,
            mirrors,
            certificates,
            configuration,
            left_out,
        } = self.control.status();
        metrics::LEFT_OUT.single(&mut out, left_out.len());
        append_configuration(&mut out, &configuration, &certificates);
        routes::append_metrics(&mut out, &routes);
        append_apps(&mut out, &apps);
        backends::append_metrics(&mut out, &backends);
        mirrors::append_metrics(&mut out, &mirrors);
        if let Some(row) = &cache {
            cache::append_metrics(&mut out, row);
        }
        out
    }
}

/// Appends the metrics of the program, the configuration that runs, and its certificates. Their
/// names and forms follow those of Prometheus itself.
fn append_configuration(out: &mut String, row: &ConfigurationRow, certificates: &[CertificateRow]) {
    metrics::BUILD_INFO.begin(out);
    metrics::BUILD_INFO.value(out, concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""), 1);
    let last = row.last_reload.as_ref();
    let is_good = last.is_none_or(|reload| reload.error.is_none());
    metrics::CONFIG_GENERATION.single(out, row.generation);
    metrics::RELOAD_SUCCESSFUL.single(out, u64::from(is_good));
    metrics::RELOAD_TIME.single(out, last.map_or(row.read, |reload| reload.time));
    metrics::RELOAD_SUCCESS_TIME.single(out, row.read);
    let mut rows = BTreeMap::new();
    for row in certificates {
        let (names, source) = (label(&row.names.join(",")), label(&row.source));
        // A map, because Prometheus refuses two values with the same labels.
        rows.entry(format!("names=\"{names}\",source=\"{source}\"")).or_insert(row);
    }
    type Figure = (Metric, fn(&CertificateRow) -> Option<i64>);
    let figures: [Figure; 4] = [
        (metrics::CERTIFICATE_START, |row| Some(row.validity?.0)),
        (metrics::CERTIFICATE_EXPIRY, |row| Some(row.validity?.1)),
        (metrics::CERTIFICATE_RENEWAL, |row| Some(seconds(row.renewal.as_ref()?.due) as i64)),
        (metrics::CERTIFICATE_FAILURES, |row| Some(row.renewal.as_ref()?.failures.into())),
    ];
    for (metric, of) in figures {
        metric.begin(out);
        for (labels, row) in &rows {
            if let Some(value) = of(row) {
                metric.value(out, labels, value);
            }
        }
    }
}

/// Returns a time in seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

const STATES: [&str; 4] = ["starting", "idle", "busy", "ending"];

/// Returns a proof as `/status.json` and `forebay prove --json` show it.
pub fn proof_json(proof: &ProofRow) -> serde_json::Value {
    let finding = proof.finding.as_ref().map(|finding| {
        json!({
            "variable": finding.variable, "why": finding.why, "place": finding.place,
            "values": finding.values, "cure": finding.cure,
        })
    });
    json!({
        "script": proof.script, "state": proof.state, "requests": proof.requests,
        "needed": proof.needed, "inputs": proof.inputs, "checks": proof.checks,
        "harmless": proof.harmless, "comparison_us": proof.micros, "finding": finding,
    })
}

/// Appends the metrics of each application. Process ids are not used as labels, because their
/// number is unbounded.
fn append_apps(out: &mut String, apps: &[AppStatus]) {
    let names: Vec<String> = apps.iter().map(|app| label(&app.name)).collect();
    metrics::WORKERS.begin(out);
    for (app, name) in apps.iter().zip(&names) {
        for state in STATES {
            let n = app.workers.iter().filter(|worker| worker.state == state).count();
            metrics::WORKERS.value(out, &format!("app=\"{name}\",state=\"{state}\""), n);
        }
    }
    let memory = |app: &AppStatus| app.workers.iter().map(|worker| worker.rss).sum();
    type Figure<'a> = (Metric, &'a dyn Fn(&AppStatus) -> u64);
    let figures: [Figure<'_>; 5] = [
        (metrics::WORKERS_MEMORY, &memory),
        (metrics::APP_WAITING, &|app| app.waiting as u64),
        (metrics::WORKER_STARTS, &|app| app.starts),
        (metrics::WORKER_CRASHES, &|app| app.crashes),
        (metrics::APP_CRASH_LOOP, &|app| u64::from(app.crash_loop.is_some())),
    ];
    for (metric, of) in figures {
        metric.begin(out);
        for (app, name) in apps.iter().zip(&names) {
            metric.value(out, &format!("app=\"{name}\""), of(app));
        }
    }
}

/// Appends the metrics of this process under the names of Prometheus' own clients, which ready boards
/// and rules look for.
fn append_process(out: &mut String, uptime: Duration) {
    metrics::UPTIME.single(out, uptime.as_secs());
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    metrics::START_TIME.single(out, since.saturating_sub(uptime).as_secs());
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    metrics::CPU.single(out, format_args!("{}.{:09}", cpu.tv_sec, cpu.tv_nsec));
    // Size, then resident pages.
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    if let Some(pages) = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()) {
        metrics::MEMORY.single(out, pages * page_size());
    }
}

const CLASSES: [&str; 6] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Returns `text` as the value of a Prometheus label, without the quotes around it. Escapes
/// backslashes and quotes, and replaces line feeds by spaces.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}

fn durations(out: &mut String, totals: &Totals) {
    metrics::REQUEST_DURATION.begin(out);
    histogram(out, metrics::REQUEST_DURATION, "", &totals.durations);
    metrics::STEP_DURATION.begin(out);
    for (step, durations) in Step::ALL.iter().zip(&totals.steps) {
        let label = format!("step=\"{}\"", step.name());
        histogram(out, metrics::STEP_DURATION, &label, durations);
    }
}

fn histogram(out: &mut String, metric: Metric, label: &str, durations: &Durations) {
    let name = metric.name;
    let (label, comma) = if label.is_empty() { ("", "") } else { (label, ",") };
    let mut sum = 0;
    let ends = BUCKETS.iter().map(|&end| (end as f64 / 1e6).to_string());
    for (end, n) in ends.chain(["+Inf".to_owned()]).zip(durations.buckets) {
        sum += n;
        let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{end}\"}} {sum}");
    }
    let label = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
    let seconds = durations.sum_us as f64 / 1e6;
    let _ = writeln!(out, "{name}_sum{label} {seconds}\n{name}_count{label} {sum}");
}

fn limits(out: &mut String, totals: &Totals) {
    metrics::LIMIT_REACHED.begin(out);
    for (limit, n) in Limit::ALL.iter().zip(totals.limits.0) {
        metrics::LIMIT_REACHED.value(out, &format!("limit=\"{}\"", limit.name()), n);
    }
}

/// Returns count and mean duration of each step. Leaves out steps that were not measured. The
/// result is therefore empty if the configuration does not set `timing`.
fn steps(totals: &Totals) -> BTreeMap<&'static str, serde_json::Value> {
    let steps = Step::ALL.iter().zip(&totals.steps).filter(|(_, took)| took.count() > 0);
    let show = |(step, took): (&Step, &Durations)| {
        let mean = took.sum_us as f64 / took.count() as f64;
        (step.name(), json!({"count": took.count(), "mean_us": mean}))
    };
    steps.map(show).collect()
}

/// Returns the histogram of request durations. Each count has an upper limit in microseconds
/// (`le_us`), which is `null` for the last count.
fn durations_json(durations: &Durations) -> serde_json::Value {
    let ends = BUCKETS.iter().map(|&end| Some(end)).chain([None]);
    let buckets = ends.zip(durations.buckets).map(|(end, n)| json!({ "le_us": end, "count": n }));
    json!({ "sum_us": durations.sum_us, "buckets": buckets.collect::<Vec<_>>() })
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
