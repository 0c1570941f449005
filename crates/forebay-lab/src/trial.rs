//! Trials: their results, and the start of a fresh server. `round.rs` runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_load::{Control, Endpoint, Gateway, Outcome, Protocol, Spec, Stop, TlsOptions, Url};
use serde::{Deserialize, Serialize};

use crate::experiment::{
    Amount, Configuration, Load, Plan, Printed, ServiceValues, Template, Values,
};
use crate::interrupt::Interrupt;
use crate::keeper::{Keeper, KeeperError, Launch};
use crate::listening::is_listening;
use crate::watch::{Evidence, Series};

/// Interval between checks of a server that is not ready yet.
pub(crate) const READY_INTERVAL: Duration = Duration::from_millis(20);

/// Position of a trial in the experiment. Both numbers count from 1.
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
    /// Measurements; `None` if the trial failed before.
    pub measured: Option<Measured>,
    /// Reason why the trial does not count; `None` if it counts.
    pub void: Option<String>,
    /// The trial is void because the server failed, not because of the measurement.
    pub failed: bool,
    /// Other notes.
    pub notes: Vec<String>,
    /// Reason why the server did not start, if that is the failure.
    pub start_failure: Option<StartFailure>,
}

/// Reason why a server did not start.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct StartFailure {
    /// The reason.
    pub reason: String,
    /// Last lines of the server's output.
    pub output: Vec<String>,
}

/// Measurements of a load.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Results of the clients.
    pub outcome: Outcome,
    /// Resource usage of the server.
    pub server: Series,
    /// Slices of the load, in their order.
    pub slices: Vec<Slice>,
}

/// A turn of the server: a slice of its load.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Number of the slice, from 0. Slices of other configurations with equal round and number were
    /// loaded at about the same time.
    pub number: u32,
    /// Duration until the last reply.
    pub duration: Duration,
    /// Number of completed requests.
    pub completed: u64,
    /// CPU time of the server.
    pub cpu: Duration,
    /// Resident memory of the server after the slice, in bytes.
    pub rss: u64,
    /// Evidence of disturbances on the machine.
    pub evidence: Evidence,
    /// Number that the client printed, if it is a command.
    pub printed: Option<Printed>,
}

/// Reason why an experiment ends before its last round.
#[derive(Clone, Debug, PartialEq)]
pub enum Halt {
    /// A signal interrupted the run.
    Interrupted,
    /// A configuration gave no correct reply in time.
    CannotStart {
        /// Name of the configuration.
        configuration: String,
        /// Reason of the failure.
        reason: String,
        /// Last lines of the server's output.
        output: Vec<String>,
    },
    /// An operation that the experiment itself needs failed.
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

/// RunError of one trial, or of the whole experiment.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The server or the client of the trial failed. The experiment goes on.
    Trial(String),
    /// The experiment ends.
    Experiment(Halt),
}

impl RunError {
    /// Adds the time of a trial's failure to its text.
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

/// Returns the counted trials with their measurements.
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
    /// Configurations that did not start at their first attempt. They are not tried again.
    pub(crate) unstartable: BTreeMap<String, StartFailure>,
    /// Configurations that have started.
    pub(crate) started: BTreeSet<String>,
    /// Seed of the experiment, from which the order of trials and the seeds of clients are derived.
    pub(crate) seed: u64,
}

/// Check of a server before and after its load.
pub(crate) enum TrialCheck {
    /// Sends the request of the load.
    Request(Box<Spec>),
    /// Connects to `HOST:PORT` or `unix:PATH`.
    Connection(String),
}

impl Trial {
    /// Returns a trial with a server that failed before the measurement.
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

    /// Returns a trial with a server that did not start.
    pub fn not_started(id: TrialId, failure: StartFailure) -> Self {
        let reason = format!("could not be started: {}", failure.reason);
        Self { start_failure: Some(failure), ..Self::failed(id, reason) }
    }
}

impl Slice {
    /// Returns completed requests per second, or the number that a client printed.
    pub fn rate(&self) -> f64 {
        if let Some(printed) = self.printed {
            return printed.value;
        }
        self.completed as f64 / self.duration.as_secs_f64().max(1e-9)
    }

    /// Returns the CPU time of the server in microseconds per completed request.
    pub fn cpu_us_per_request(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.completed as f64
    }
}

impl Measured {
    /// Returns completed requests per second, or the mean of the numbers that a client printed.
    pub fn rate(&self) -> f64 {
        let printed: Vec<f64> =
            self.slices.iter().filter_map(|slice| Some(slice.printed?.value)).collect();
        match printed.len() {
            0 => self.outcome.rate_per_s(),
            runs => printed.iter().sum::<f64>() / runs as f64,
        }
    }

    /// Returns the rate, or its reciprocal if less is better, so that more is always better.
    pub fn goodness(&self) -> f64 {
        let printed = self.slices.first().and_then(|slice| slice.printed);
        let of = |printed: Printed| Printed { value: self.rate(), ..printed }.goodness();
        printed.map_or_else(|| self.rate(), of)
    }

    /// Returns the CPU time of the server, user and system, in microseconds per completed request.
    pub fn cpu_us_per_request(&self) -> Option<f64> {
        let completed = self.outcome.requests.completed;
        let is_seen = completed > 0 && self.is_watched();
        let total = self.server.cpu.total().as_secs_f64() * 1e6;
        is_seen.then(|| total / completed as f64)
    }

    /// Returns true if the server's processes were watched. Those of a server that ran already are
    /// not.
    pub fn is_watched(&self) -> bool {
        self.server.most.processes > 0
    }

    /// Returns the resident memory in the idle pause after the load minus that before it, in bytes.
    pub fn memory_growth(&self) -> f64 {
        self.server.rss_end as f64 - self.server.rss_start as f64
    }
}

impl Runner {
    /// Creates a runner.
    ///
    /// `program` is the running `forebay`, and the machine has `cores` cores. Servers without
    /// `cpus` run on `server_cpus`. `seed` is the experiment's seed.
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

    /// Returns the values of placeholders. `dir` belongs to the configuration or service.
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

    /// Replaces the placeholders of a command. `forebay` is replaced by the path of this program.
    pub(crate) fn fill_command(&self, start: &[String], values: &Values) -> Vec<String> {
        let mut argv: Vec<String> = start.iter().map(|argument| values.fill(argument)).collect();
        if argv[0] == "forebay" {
            argv[0] = self.program.to_string_lossy().into_owned();
        }
        argv
    }

    /// Returns the request for probes, warm-up and measurement.
    pub(crate) fn spec(&self, load: &Load, url: Url, values: &Values) -> Spec {
        let url = match url.protocol() {
            Protocol::Http | Protocol::Https if load.http2 => {
                url.clone().over_http2().unwrap_or(url)
            }
            _ => url,
        };
        let is_http2 = url.protocol().is_http2();
        let filled = |(name, value): &(String, String)| (name.clone(), values.fill(value));
        let gateway = match url.protocol() {
            Protocol::Http
            | Protocol::Https
            | Protocol::H2c
            | Protocol::H2
            | Protocol::Ws
            | Protocol::Wss => Gateway::default(),
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
            streams: if is_http2 { load.streams as usize } else { 1 },
            gateway,
            threads: load.threads as usize,
            method: load.method.clone(),
            headers: load.headers.clone(),
            body: load.body.clone().into_bytes(),
            keepalive: load.keepalive,
            timeout: load.timeout,
            think: load.think,
            check: Some(forebay_load::Check {
                // A message of a WebSocket has no status but that of the handshake.
                status: match right.status {
                    200 if url.protocol().is_websocket() => 101,
                    status => status,
                },
                body_contains: right.body_contains.clone().map(String::into_bytes),
            }),
            tls: if url.protocol().is_tls() {
                TlsOptions {
                    insecure: load.insecure,
                    ca: load.ca.as_ref().map(|ca| self.plan.dir.join(values.fill(ca))),
                    resume: load.tls_resume,
                }
            } else {
                TlsOptions::default()
            },
            ..Spec::new(url)
        }
    }

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

    /// Sends one request, equal to those of the load. The error describes a wrong reply.
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

/// Returns a port without a listener, below the range of outgoing connections. Inside that range, a
/// connection of the client could take the port, or a probe could even connect to itself.
fn free_port() -> Option<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    let lowest = range.and_then(|text| text.split_whitespace().next()?.parse().ok());
    let end = lowest.filter(|&port: &u16| port > 12_000).unwrap_or(32_768);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(10_000..end)).take(1000).find(free)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_below_those_of_outgoing_connections() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let lowest: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        let port = free_port().unwrap();
        assert!(lowest <= 12_000 || port < lowest, "{port}");
    }
}
