//! Trials: their results, and the preparation of a fresh server. `round.rs` runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fmt, io};

use forebay_load::{Control, Endpoint, Gateway, Outcome, Protocol, Spec, Stop, TlsOptions, Url};
use procfs::process::Process;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::experiment::{
    Amount, Configuration, Load, Plan, Printed, ServiceValues, Template, Values,
};
use crate::keeper::{Keeper, KeeperError, Launch};
use crate::watch::{Evidence, Series};

/// Interval between attempts to reach a server that is not ready yet.
pub(crate) const READY_INTERVAL: Duration = Duration::from_millis(20);

/// Position of a trial in the experiment. `round` and `order` start at 1. For a trial outside the
/// rounds, `round` and `order` are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialId {
    /// Number of the round.
    pub round: u32,
    /// Position within the round, in the order of server starts.
    pub order: u32,
}

/// Result of one trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Position in the experiment.
    pub id: TrialId,
    /// Measurements of the load; `None` if the trial failed before its end.
    pub measured: Option<Measured>,
    /// Reason why the trial is void, that is, not counted; `None` if it counts.
    pub void: Option<String>,
    /// True if the trial is void because the server failed, and not because the load generator was
    /// the limit.
    pub failed: bool,
    /// Further notes for the report.
    pub notes: Vec<String>,
    /// Reason why the server did not start, if this made the trial void.
    pub start_failure: Option<StartFailure>,
}

/// Reason why a server did not start.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StartFailure {
    /// Description of the failure.
    pub reason: String,
    /// Last lines of the server's output.
    pub output: Vec<String>,
}

/// Measurements of a load.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Counts and latencies of the client.
    pub outcome: Outcome,
    /// CPU time and memory of the server.
    pub server: Series,
    /// Slices of the load, in their order.
    pub slices: Vec<Slice>,
}

/// Slice of a trial's load: a fraction of a second during which only this server is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Number of the slice, from 0. Slices of other configurations with the same round and number
    /// were loaded at about the same time.
    pub number: u32,
    /// Time from the start of the slice to the last reply.
    pub duration: Duration,
    /// Number of completed requests.
    pub completed: u64,
    /// CPU time that the server used during the slice.
    pub cpu: Duration,
    /// Resident memory of the server at the end of the slice, in bytes.
    pub rss: u64,
    /// Signs that other work on the machine disturbed the slice.
    pub evidence: Evidence,
    /// Number that the client printed, if `[load.client]` loads the server.
    pub printed: Option<Printed>,
}

/// Reason why an experiment ends before its last round.
#[derive(Clone, Debug, PartialEq)]
pub enum Halt {
    /// A signal interrupted the run.
    Interrupted,
    /// The server of a configuration did not give a correct reply within its `ready_timeout`.
    CannotStart {
        /// Name of the configuration.
        configuration: String,
        /// Reason of the failure.
        reason: String,
        /// Last lines of the server's output.
        output: Vec<String>,
    },
    /// Forebay could not do something that every trial needs.
    Broken(String),
}

impl fmt::Display for Halt {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => out.write_str("interrupted by a signal"),
            Self::CannotStart { configuration, reason, .. } => {
                write!(out, "\"{configuration}\" could not be started: {reason}")
            }
            Self::Broken(reason) => out.write_str(reason),
        }
    }
}

/// Failure that ends one trial or the whole experiment.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The server or the client of the trial failed. The experiment continues.
    Trial(String),
    /// The experiment ends for this reason.
    Experiment(Halt),
}

impl RunError {
    /// Adds to the message that the failure occurred during the warm-up. An error that ends the
    /// experiment stays unchanged.
    pub fn during_warm_up(self) -> Self {
        match self {
            Self::Trial(wrong) => Self::Trial(format!("during warm-up {wrong}")),
            Self::Experiment(halt) => Self::Experiment(halt),
        }
    }
}

impl From<Halt> for RunError {
    fn from(halt: Halt) -> Self {
        Self::Experiment(halt)
    }
}

/// Returns the trials that count, with their measurements.
pub fn counted(trials: &[Trial]) -> impl Iterator<Item = (&Trial, &Measured)> {
    trials
        .iter()
        .filter(|trial| trial.void.is_none())
        .filter_map(|trial| Some((trial, trial.measured.as_ref()?)))
}

/// Runs trials on this machine with real servers and the load generator of `forebay bench`.
pub struct Runner {
    pub(crate) plan: Plan,
    pub(crate) program: PathBuf,
    pub(crate) interrupt: Interrupt,
    pub(crate) cores: usize,
    pub(crate) server_cpus: Vec<usize>,
    /// Configurations whose first start failed, and which are not started again.
    pub(crate) unstartable: BTreeMap<String, StartFailure>,
    /// Configurations that have started at least once.
    pub(crate) started: BTreeSet<String>,
    /// Seed of the experiment. The order of trials and the seeds of clients are derived from this
    /// seed.
    pub(crate) seed: u64,
}

/// Request or connection that checks a server before and after its load.
pub(crate) enum TrialCheck {
    /// Sends one request of the load.
    Request(Box<Spec>),
    /// Connects to `HOST:PORT` or `unix:PATH`, for servers that do not speak HTTP.
    Connection(String),
}

impl Trial {
    /// Returns a void trial whose server failed before the measurement.
    pub fn failed(id: TrialId, reason: impl Into<String>) -> Self {
        Self {
            id,
            measured: None,
            void: Some(reason.into()),
            failed: true,
            notes: Vec::new(),
            start_failure: None,
        }
    }

    /// Returns a void trial whose server did not start.
    pub fn not_started(id: TrialId, failure: StartFailure) -> Self {
        let reason = format!("could not be started: {}", failure.reason);
        Self { start_failure: Some(failure), ..Self::failed(id, reason) }
    }
}

impl Slice {
    /// Returns the number that a client command printed. Without a client command, returns
    /// completed requests per second.
    pub fn rate(&self) -> f64 {
        if let Some(printed) = self.printed {
            return printed.value;
        }
        self.completed as f64 / self.duration.as_secs_f64().max(1e-9)
    }

    /// Returns the CPU time that the server used per completed request, in microseconds.
    pub fn cpu_us_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.completed as f64
    }
}

impl Measured {
    /// Returns the mean of the numbers that a client command printed. Without a client command,
    /// returns completed requests per second.
    pub fn rate(&self) -> f64 {
        let printed: Vec<f64> =
            self.slices.iter().filter_map(|slice| Some(slice.printed?.value)).collect();
        match printed.len() {
            0 => self.outcome.rate_per_s(),
            runs => printed.iter().sum::<f64>() / runs as f64,
        }
    }

    /// Returns [`rate`](Self::rate), or its reciprocal if a lower number is better. A higher result
    /// is therefore always better.
    pub fn goodness(&self) -> f64 {
        let printed = self.slices.first().and_then(|slice| slice.printed);
        let of = |printed: Printed| Printed { value: self.rate(), ..printed }.goodness();
        printed.map_or_else(|| self.rate(), of)
    }

    /// Returns the CPU time (user and system) that the server used per completed request, in
    /// microseconds. Returns `None` if no request was completed, or the server's processes were not
    /// observed.
    pub fn cpu_us_per_request(&self) -> Option<f64> {
        let completed = self.outcome.requests.completed;
        let is_seen = completed > 0 && self.is_watched();
        let total = self.server.cpu.total().as_secs_f64() * 1e6;
        is_seen.then(|| total / completed as f64)
    }

    /// Returns true if the server's processes were observed: Forebay started the server, or found
    /// it by its listening socket.
    pub fn is_watched(&self) -> bool {
        self.server.most.processes > 0
    }

    /// Returns the growth of the idle server's resident memory from before the load to after the
    /// load, in bytes.
    pub fn memory_growth(&self) -> f64 {
        self.server.rss_end as f64 - self.server.rss_start as f64
    }
}

impl Runner {
    /// Creates a runner.
    ///
    /// `program` is the path of the running `forebay`, and `cores` is the number of the machine's
    /// cores. Servers without `cpus` run on `server_cpus`. `seed` is the experiment's seed.
    pub fn new(
        plan: &Plan,
        program: PathBuf,
        interrupt: Interrupt,
        cores: usize,
        server_cpus: Vec<usize>,
        seed: u64,
    ) -> Self {
        Self {
            plan: plan.clone(),
            program,
            interrupt,
            cores,
            server_cpus,
            unstartable: BTreeMap::new(),
            started: BTreeSet::new(),
            seed,
        }
    }

    /// Chooses a free port and returns the values of all placeholders. `dir` is the value of
    /// `{dir}`. Fails if no port is free.
    pub(crate) fn values(
        &self,
        dir: &Path,
        keeper: &Keeper,
        services: &[ServiceValues],
    ) -> Result<Values, Halt> {
        let port = free_port().ok_or_else(|| {
            Halt::Broken("no free port on 127.0.0.1: end programs that use ports".into())
        })?;
        let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
        let (dir, tmp) = (text(dir), text(keeper.tmp()));
        Ok(Values { port, dir, tmp, services: services.to_vec() })
    }

    pub(crate) fn place_templates(
        &self,
        templates: &[Template],
        values: &Values,
    ) -> Result<(), Halt> {
        for Template { path, text } in templates {
            let name = Path::new(path).file_name().unwrap_or_default();
            let placed =
                std::fs::write(format!("{}/{}", values.tmp, name.display()), values.fill(text));
            placed.map_err(|error| {
                Halt::Broken(format!("cannot fill in the template {path}: {error}"))
            })?;
        }
        Ok(())
    }

    pub(crate) fn launch(&self, configuration: &Configuration, values: &Values) -> Launch {
        let own_cpus = !configuration.cpus.is_empty();
        Launch {
            argv: self.fill_command(&configuration.start, values),
            env: configuration
                .env
                .iter()
                .map(|(name, value)| (name.clone(), values.fill(value)))
                .collect(),
            cwd: configuration.dir.join(values.fill(&configuration.cwd)),
            cpus: if own_cpus { configuration.cpus.clone() } else { self.server_cpus.clone() },
            grace: configuration.stop_timeout,
        }
    }

    /// Replaces the placeholders of a command. If the first word is `forebay`, replaces this word
    /// by the path of this program.
    pub(crate) fn fill_command(&self, start: &[String], values: &Values) -> Vec<String> {
        let mut argv: Vec<String> = start.iter().map(|argument| values.fill(argument)).collect();
        if argv[0] == "forebay" {
            argv[0] = self.program.to_string_lossy().into_owned();
        }
        argv
    }

    /// Returns the load generator's settings for checks, warm-up and measurement.
    pub(crate) fn spec(&self, load: &Load, url: Url, values: &Values) -> Spec {
        let url = match url.protocol() {
            Protocol::Https if load.http3 => url.clone().over_http3().unwrap_or(url),
            Protocol::Http | Protocol::Https if load.http2 => {
                url.clone().over_http2().unwrap_or(url)
            }
            _ => url,
        };
        let has_streams = url.protocol().has_streams();
        let filled = |(name, value): &(String, String)| (name.clone(), values.fill(value));
        let gateway = match url.protocol() {
            Protocol::Http
            | Protocol::Https
            | Protocol::H2c
            | Protocol::H2
            | Protocol::Http3
            | Protocol::Ws
            | Protocol::Wss
            | Protocol::Grpc
            | Protocol::Grpcs
            | Protocol::Tcp => Gateway::default(),
            Protocol::Ajp => Gateway { secret: load.secret.clone(), ..Gateway::default() },
            Protocol::Fastcgi | Protocol::Scgi | Protocol::Uwsgi => Gateway {
                root: load.root.as_ref().map(|root| values.fill(root)),
                variables: load.params.iter().map(filled).collect(),
                secret: None,
            },
        };
        let right = &self.plan.check;
        Spec {
            connections: load.connections as usize,
            streams: if has_streams { load.streams as usize } else { 1 },
            gateway,
            threads: load.threads as usize,
            method: load.method.clone(),
            headers: load.headers.clone(),
            body: load.body.clone().into_bytes(),
            keepalive: load.keepalive,
            timeout: load.timeout,
            think: load.think,
            check: Some(forebay_load::Check {
                // A WebSocket message has no status. The handshake's status, 101, is checked
                // instead.
                status: match right.status {
                    200 if url.protocol().is_websocket() => 101,
                    200 if url.protocol() == Protocol::Tcp => 0,
                    status => status,
                },
                body_contains: right.body_contains.clone().map(String::into_bytes),
            }),
            tls: if url.protocol().is_tls() {
                TlsOptions {
                    insecure: load.insecure,
                    ca: load.ca.as_ref().map(|ca| self.plan.dir.join(values.fill(ca))),
                    resume: load.tls_resume,
                    server_name: None,
                }
            } else {
                TlsOptions::default()
            },
            ..Spec::new(url)
        }
    }

    /// Waits until the server replies correctly. The end of the server, a wait longer than
    /// `ready_timeout` and an interruption are errors.
    pub(crate) fn until_ready(
        &self,
        configuration: &Configuration,
        check: &TrialCheck,
        keeper: &mut Keeper,
    ) -> Result<(), Halt> {
        let began = Instant::now();
        loop {
            if self.interrupt.is_set() {
                return Err(Halt::Interrupted);
            }
            let left = configuration.ready_timeout.saturating_sub(began.elapsed());
            let wrong = match self.probe(check, Some(left)) {
                Ok(()) => return Ok(()),
                Err(wrong) => wrong,
            };
            let reason = match keeper.ended() {
                Some(how) => format!("it never answered: {how}"),
                None if left.is_zero() => {
                    format!("no correct reply within {:?}: {wrong}", configuration.ready_timeout)
                }
                None => {
                    std::thread::sleep(READY_INTERVAL);
                    continue;
                }
            };
            return Err(Halt::CannotStart {
                configuration: configuration.name.clone(),
                reason,
                output: keeper.last_output(),
            });
        }
    }

    /// Checks the server with one request of the load, or with one connection. `patience` limits
    /// the time of the check. The error describes the wrong reply, or says that no reply came.
    pub(crate) fn probe(
        &self,
        check: &TrialCheck,
        patience: Option<Duration>,
    ) -> Result<(), String> {
        let spec = match check {
            TrialCheck::Request(spec) => spec.as_ref(),
            TrialCheck::Connection(address) if is_listening(address) => return Ok(()),
            TrialCheck::Connection(address) => return Err(format!("nothing listens at {address}")),
        };
        let patience = patience.unwrap_or(spec.timeout);
        let timeout = spec.timeout.min(patience).max(Duration::from_millis(100));
        let once =
            Spec { connections: 1, threads: 1, stop: Stop::Requests(1), timeout, ..spec.clone() };
        let outcome =
            forebay_load::run(&once, &Control::default()).map_err(|error| error.to_string())?;
        match outcome.requests.completed {
            0 => Err(outcome.first_failure.unwrap_or_else(|| "no answer".to_owned())),
            _ => Ok(()),
        }
    }
}

pub(crate) fn stop(amount: Amount) -> Stop {
    match amount {
        Amount::Requests(requests) => Stop::Requests(requests),
        Amount::Duration(duration) => Stop::Duration(duration),
    }
}

/// Returns a port without a listener, if possible outside of the range of ports for outgoing
/// connections. Inside that range, a connection of the client could take the port, or a check could
/// connect to itself. Returns `None` if 1,000 attempts find no port.
fn free_port() -> Option<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let outgoing = range.and_then(|text| {
        let mut ends = text.split_whitespace().map(str::parse);
        Some((ends.next()?.ok()?, ends.next()?.ok()?))
    });
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(ports_outside(outgoing))).take(1000).find(free)
}

/// Returns the ports from 10,000 to the start of the range `outgoing`, or else the ports above this
/// range. If both sides have fewer than 2,000 ports, or the range is unknown, returns the ports
/// from 10,000 to 32,767. The default range of Linux begins at 32,768.
fn ports_outside(outgoing: Option<(u16, u16)>) -> RangeInclusive<u16> {
    match outgoing {
        Some((lowest, _)) if lowest > 12_000 => 10_000..=lowest - 1,
        Some((_, highest)) if highest < 63_000 => highest + 1..=u16::MAX,
        _ => 10_000..=32_767,
    }
}

/// Refuses to start a server if another program listens at its TCP address, because the load would
/// measure that program. A Unix socket is not checked.
pub(crate) fn refuse_occupied(
    configuration: &Configuration,
    check: &TrialCheck,
) -> Result<(), Halt> {
    let at = match check {
        TrialCheck::Connection(address) if address.starts_with("unix:") => return Ok(()),
        TrialCheck::Connection(address) => address.clone(),
        TrialCheck::Request(spec) => match spec.url.endpoint() {
            Endpoint::Tcp { host, port } => format!("{host}:{port}"),
            Endpoint::Unix { .. } => return Ok(()),
        },
    };
    if !is_listening(&at) {
        return Ok(());
    }
    Err(Halt::CannotStart {
        configuration: configuration.name.clone(),
        reason: format!(
            "something else already listens at {at}; end it, or use {{port}} for a free one"
        ),
        output: Vec::new(),
    })
}

pub(crate) fn broken(error: KeeperError) -> Halt {
    Halt::Broken(error.to_string())
}

// Signals such as Ctrl-C. The first signal asks the experiment to end. The second signal ends this
// program at once. The keeper of each server (a process, see `keeper`) still ends the server and
// removes its files.

/// Flag that a signal has arrived, and the number of the signal.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    is_set: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Watches for SIGINT, SIGTERM and SIGHUP. A signal that was ignored when the program started
    /// (for example because of `nohup`) stays ignored.
    pub fn watch() -> io::Result<Self> {
        let interrupt = Self::default();
        let ignored = Process::myself().and_then(|process| process.status());
        let ignored = ignored.map_or(0, |status| status.sigign);
        let heeded = |signal: &i32| ignored & (1 << (signal - 1)) == 0;
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(heeded) {
            flag::register_conditional_shutdown(signal, 128 + signal, interrupt.is_set.clone())?;
            flag::register_usize(signal, interrupt.signal.clone(), signal as usize)?;
            flag::register(signal, interrupt.is_set.clone())?;
        }
        Ok(interrupt)
    }

    /// Returns true if a signal has arrived.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, so that it can cancel a running load.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_set.clone()
    }

    /// Returns 128 plus the number of the signal that arrived. A shell reports this exit code for a
    /// program that the signal ended.
    pub fn exit_code(&self) -> u8 {
        128u8.saturating_add(self.signal.load(Ordering::Relaxed) as u8)
    }
}

/// Returns true if a connection to `HOST:PORT` or `unix:PATH` succeeds. Closes the connection at
/// once.
pub fn is_listening(address: &str) -> bool {
    match address.strip_prefix("unix:") {
        Some(path) => UnixStream::connect(Path::new(path)).is_ok(),
        None => TcpStream::connect(address).is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_outside_of_those_of_outgoing_connections() {
        assert_eq!(ports_outside(Some((32_768, 60_999))), 10_000..=32_767);
        assert_eq!(ports_outside(Some((1024, 60_999))), 61_000..=65_535);
        assert_eq!(ports_outside(Some((1024, 65_535))), 10_000..=32_767);
        assert_eq!(ports_outside(None), 10_000..=32_767);
        assert!(free_port().is_some());
    }
}
