//! Runs a load in one or several parts (turns): starts threads, divides the load among them, and
//! adds up their counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};
use std::{io, thread};

use forebay_client::{
    AjpClient, AppServer, FastcgiClient, FastcgiMux, Http1, Http2, Http3, MuxSession, Raw, Session,
    WebSocket,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::backlog::BacklogWindow;
use crate::connection::LoadConnection;
use crate::cookies::SharedJar;
use crate::inspection::Inspection;
use crate::mux::MuxConnection;
use crate::pacer::{Pacer, RequestBudget};
use crate::ramp::ActiveTimes;
use crate::request::Requests;
use crate::schedule::Mix;
use crate::series::add_series;
use crate::tally::{IterationTally, PartTally, Tally};
use crate::template::{RequestSource, Values};
use crate::tls::quic::Datagrams;
use crate::tls::{Tls, TlsClient};
use crate::transport::ServerAddresses;
use crate::transport::{Plain, Transport};
use crate::virtual_user::VirtualUser;
use crate::worker::{Drive, Finished, Share, Worker};
use crate::{
    ClientUsage, Control, Error, IterationCounts, Outcome, Part, PartCounts, Protocol, RampStage,
    Rate, Replay, Scenario, ShardRun, Spec, StageCounts, Stop, Url,
};

/// Share of its time above which a load thread counts as busy. If every thread is busy, the client
/// may limit the rate.
const SATURATION: f64 = 0.85;

/// Shortest window of a turn in which the growth of the backlog is measured.
const LEAST_WINDOW: Duration = Duration::from_millis(500);

/// Number of files that a run may open in addition to its connections and to two files per thread.
const SPARE_FILES: u64 = 64;

/// Load that runs in several turns. Its connections stay open and idle between turns.
pub struct Turns {
    spec: Spec,
    crew: Box<dyn Crew>,
}

impl Turns {
    /// Prepares the load that `spec` describes. The first turn opens the connections.
    ///
    /// # Errors
    /// Fails as [`crate::run()`] does, except for an unreachable server.
    pub fn new(spec: &Spec) -> Result<Self, Error> {
        Ok(Self { spec: spec.clone(), crew: crew(spec)? })
    }

    /// Runs a turn until `stop`. The turn is an open loop if `rate` is given, otherwise a closed
    /// loop. Before the call returns, it waits for the replies to active requests, so that none of
    /// them arrives in the next turn.
    ///
    /// # Errors
    /// Fails as [`crate::run()`] does.
    pub fn run(
        &mut self,
        stop: Stop,
        rate: Option<Rate>,
        control: &Control,
    ) -> Result<Outcome, Error> {
        (self.spec.stop, self.spec.rate) = (stop, rate);
        self.spec.validate()?;
        self.crew.run(&self.spec, LoadThreads { drains: true, first: 0 }, control)
    }
}

/// Group of load threads with their connections, for any protocol.
pub(crate) trait Crew: Send {
    fn run(
        &mut self,
        spec: &Spec,
        threads: LoadThreads,
        control: &Control,
    ) -> Result<Outcome, Error>;
}

/// Settings of the load threads of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadThreads {
    /// Waits at the end of the turn for the replies to active requests.
    pub drains: bool,
    /// Index of the first thread, for the live view.
    pub first: usize,
}

struct WorkerCrew<C> {
    workers: Vec<Worker<C>>,
    target: Arc<ServerAddresses>,
}

pub(crate) fn crew(spec: &Spec) -> Result<Box<dyn Crew>, Error> {
    spec.validate()?;
    if spec.has_servers() {
        let why = "the URLs are of several servers, which is only possible for a single run";
        return Err(Error::Invalid(why.to_owned()));
    }
    if spec.url.protocol() == Protocol::Http3 {
        return http3_crew(spec);
    }
    if spec.url.protocol().is_tls() {
        let client = TlsClient::new(&spec.url, &spec.tls)?;
        crew_over::<Tls>(spec, || client.for_connection())
    } else {
        crew_over::<Plain>(spec, || ())
    }
}

/// Creates the load threads for the protocol of `spec`. Each connection gets its own `config`.
fn crew_over<T: Transport + 'static>(
    spec: &Spec,
    config: impl Fn() -> T::Config,
) -> Result<Box<dyn Crew>, Error> {
    let requests = Requests::of(spec)?;
    let keepalive = requests.keepalive();
    match spec.url.protocol() {
        Protocol::Http | Protocol::Https => {
            single_crew::<_, T>(spec, requests.http()?, config, Http1::new)
        }
        Protocol::Ws | Protocol::Wss => {
            single_crew::<_, T>(spec, requests.websocket()?, config, |request, inspection| {
                WebSocket::new(request, keepalive, inspection)
            })
        }
        Protocol::H2c | Protocol::H2 | Protocol::Grpc | Protocol::Grpcs => {
            mux_crew::<_, T>(spec, requests.http2()?, |request, inspections| {
                (Http2::new(request, keepalive, inspections), config())
            })
        }
        Protocol::Tcp => {
            single_crew::<_, T>(spec, requests.raw()?, config, |request, inspection| {
                Raw::new(request, spec.reply_end.clone(), keepalive, inspection)
            })
        }
        Protocol::Http3 => http3_crew(spec),
        Protocol::Fastcgi if spec.streams > 1 => {
            mux_crew::<_, T>(spec, requests.fastcgi()?, |request, inspections| {
                (FastcgiMux::new(request, inspections), config())
            })
        }
        Protocol::Fastcgi => {
            single_crew::<_, T>(spec, requests.fastcgi()?, config, FastcgiClient::new)
        }
        Protocol::Ajp => single_crew::<_, T>(spec, requests.ajp()?, config, AjpClient::new),
        Protocol::Scgi | Protocol::Uwsgi => {
            single_crew::<_, T>(spec, requests.http()?, config, AppServer::new)
        }
    }
}

/// Creates the load threads for HTTP/3, whose sessions perform the TLS handshakes.
fn http3_crew(spec: &Spec) -> Result<Box<dyn Crew>, Error> {
    let requests = Requests::of(spec)?;
    let keepalive = requests.keepalive();
    let client = TlsClient::new(&spec.url, &spec.tls)?;
    // Check the configuration once. The copies for the connections then cannot fail.
    client.for_quic()?;
    mux_crew::<_, Datagrams>(spec, requests.http3()?, |request, inspections| {
        let (config, verdict) = client.for_quic().expect("a copy of a valid configuration");
        (Http3::new(request, keepalive, inspections, config), verdict)
    })
}

/// Creates load threads whose connections carry one request at a time. `session` creates the
/// session of a connection.
fn single_crew<C, T>(
    spec: &Spec,
    requests: RequestSource<C::Request>,
    config: impl Fn() -> T::Config,
    session: impl Fn(C::Request, Inspection) -> C,
) -> Result<Box<dyn Crew>, Error>
where
    C: Session<Sink = Inspection, Request: Send + Sync> + Send + 'static,
    T: Transport + 'static,
{
    let url = Arc::new(spec.url.clone());
    Ok(Box::new(WorkerCrew::new(spec, |id| {
        let jar = (spec.cookies || spec.scenario.is_some()).then(SharedJar::default);
        let session = session(requests.first(), inspection_of(spec, jar.clone()));
        let user = user_of(spec, &url, jar.clone());
        LoadConnection::<_, T>::new(id, session, requests.for_connection(jar), config())
            .with_user(user)
    })?))
}

/// Creates load threads whose connections carry several requests at once. `session` creates the
/// session of a connection, and the configuration of its transport.
fn mux_crew<C, T>(
    spec: &Spec,
    requests: RequestSource<C::Request>,
    session: impl Fn(C::Request, std::vec::IntoIter<Inspection>) -> (C, T::Config),
) -> Result<Box<dyn Crew>, Error>
where
    C: MuxSession<Sink = Inspection, Request: Send + Sync> + Send + 'static,
    T: Transport + 'static,
{
    let url = Arc::new(spec.url.clone());
    Ok(Box::new(WorkerCrew::new(spec, |id| {
        let StreamUsers { jar, inspections, users } = StreamUsers::of(spec, &url);
        let (session, config) = session(requests.first(), inspections.into_iter());
        let requests = requests.for_connection(jar);
        MuxConnection::<_, T>::new(id, session, requests, spec.streams, config).with_users(users)
    })?))
}

/// Users and inspections of the streams of a connection.
struct StreamUsers {
    /// Cookies of the connection, if its streams have no users.
    jar: Option<SharedJar>,
    inspections: Vec<Inspection>,
    users: Vec<VirtualUser>,
}

impl StreamUsers {
    /// Creates the users and cookies of a connection's streams. With scenarios, each stream has a
    /// user with its own cookies. Without scenarios, there are no users, and the streams share
    /// their cookies.
    fn of(spec: &Spec, url: &Arc<Url>) -> Self {
        let common = spec.cookies.then(SharedJar::default);
        let jars: Vec<_> =
            (0..spec.streams)
                .map(|_| {
                    if spec.scenario.is_some() {
                        Some(SharedJar::default())
                    } else {
                        common.clone()
                    }
                })
                .collect();
        Self {
            inspections: jars.iter().map(|jar| inspection_of(spec, jar.clone())).collect(),
            users: jars.iter().filter_map(|jar| user_of(spec, url, jar.clone())).collect(),
            jar: common,
        }
    }
}

fn inspection_of(spec: &Spec, jar: Option<SharedJar>) -> Inspection {
    let inspection = match jar {
        Some(jar) if spec.scenario.is_some() => Inspection::for_user(jar),
        jar => Inspection::new(spec.check.as_ref(), jar),
    };
    if spec.url.protocol().is_grpc() { inspection.for_grpc() } else { inspection }
}

/// Returns a user of the scenarios, who keeps cookies in `jar`. Returns `None` if the load has no
/// scenarios.
fn user_of(spec: &Spec, url: &Arc<Url>, jar: Option<SharedJar>) -> Option<VirtualUser> {
    let plan = spec.scenario.as_ref()?;
    Some(VirtualUser::new(plan, url, jar.unwrap_or_default()))
}

impl<C: Drive + Send> WorkerCrew<C> {
    /// Creates the load threads. `connection` creates a connection from its index in its thread.
    fn new(spec: &Spec, connection: impl Fn(usize) -> C) -> Result<Self, Error> {
        let threads = spec.threads.min(spec.connections);
        allow_files(spec.connections as u64 + 2 * threads as u64)?;
        let target = Arc::new(ServerAddresses::resolve(spec)?);
        let orders = Mix::of(spec, threads).into_iter().zip(Values::of(spec, threads));
        let workers = orders.enumerate().map(|(index, order)| {
            let connections =
                (0..part(spec.connections, threads, index)).map(&connection).collect();
            let worker = Worker::new(connections, target.clone(), order, spec);
            worker.map_err(system("opening epoll"))
        });
        let workers = workers.collect::<Result<_, _>>()?;
        Ok(Self { workers, target })
    }
}

impl<C: Drive + Send> Crew for WorkerCrew<C> {
    fn run(
        &mut self,
        spec: &Spec,
        LoadThreads { drains, first }: LoadThreads,
        control: &Control,
    ) -> Result<Outcome, Error> {
        let threads = self.workers.len();
        let (start, started_at) = (Instant::now(), SystemTime::now());
        let end = match spec.stop {
            Stop::Duration(duration) => Some(start + duration),
            Stop::Requests(_) => None,
        };
        let shares = RequestBudget::of(spec.stop, threads).into_iter().enumerate();
        let shares = shares.map(|(index, budget)| {
            let pacer = Pacer::new(spec, start, index, threads);
            let active_times = spec.ramp.as_ref().filter(|_| spec.rate.is_none()).map(|ramp| {
                let shard = spec.shard.as_ref();
                Box::new(ActiveTimes::new(ramp, start, (index, threads), shard))
            });
            let stage_ends = stage_ends(spec, start);
            let windows = BacklogWindow::all(spec);
            // Before a turn, there is no backlog. In a short turn, it grows until its end.
            let is_measured = |window: &BacklogWindow| !drains || window.length() >= LEAST_WINDOW;
            let windows = windows.into_iter().filter(is_measured).collect();
            Share {
                thread: first + index,
                budget,
                pacer,
                active_times,
                stage_ends,
                windows,
                start,
                end,
                drains,
            }
        });
        let finished = run_threads(self.workers.iter_mut().zip(shares), control)?;
        if !self.target.reached() && !control.cancelled.load(Ordering::Relaxed) {
            let refusal = finished.into_iter().find_map(|thread| thread.last_refusal);
            let mut endpoint = spec.url.endpoint().to_string();
            if spec.url.protocol() == Protocol::Http3 {
                endpoint += " over UDP";
            }
            return Err(match refusal {
                // An error with an OS error code comes from the connect or from UDP, not from the
                // TLS handshake.
                Some(source) if spec.url.protocol().is_tls() && source.raw_os_error().is_none() => {
                    Error::Handshake { endpoint, source }
                }
                // For FastCGI, an error without an OS error code comes from the question
                // FCGI_GET_VALUES, which asks if the application can multiplex requests.
                Some(source)
                    if spec.url.protocol() == Protocol::Fastcgi
                        && source.raw_os_error().is_none() =>
                {
                    Error::NotMultiplexed { endpoint, source }
                }
                source => Error::Unreachable {
                    endpoint,
                    source: source.unwrap_or_else(|| io::ErrorKind::TimedOut.into()),
                },
            });
        }
        let is_interrupted = control.cancelled.load(Ordering::Relaxed);
        Ok(Outcome { is_interrupted, started_at, ..sum(spec, start, finished) })
    }
}

/// Returns the end of each stage of the ramp. Returns no ends without a ramp.
fn stage_ends(spec: &Spec, start: Instant) -> Vec<Instant> {
    let stages = spec.ramp.iter().flat_map(|ramp| &ramp.stages);
    let end = |end: &mut Instant, stage: &RampStage| {
        *end += stage.time;
        Some(*end)
    };
    stages.scan(start, end).collect()
}

/// Runs one turn on all load threads, and waits for their end. If a thread cannot be started,
/// cancels the turn and returns the error.
fn run_threads<'a, C: Drive + Send + 'a>(
    workers: impl Iterator<Item = (&'a mut Worker<C>, Share)>,
    control: &Control,
) -> Result<Vec<Finished>, Error> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut failure = None;
        for (worker, share) in workers {
            let name = thread::Builder::new().name(format!("load-{}", threads.len()));
            match name.spawn_scoped(scope, move || worker.run(share, control)) {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    control.cancelled.store(true, Ordering::Relaxed);
                    failure = Some(Error::System { what: "starting a load thread", source });
                    break;
                }
            }
        }
        let ended = threads.into_iter().map(|thread| {
            let result = thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")));
            result.map_err(system("a load thread"))
        });
        let finished: Result<Vec<_>, _> = ended.collect();
        failure.map_or(finished, Err)
    })
}

/// Adds up the results of all threads to the outcome of the turn.
fn sum(spec: &Spec, start: Instant, finished: Vec<Finished>) -> Outcome {
    let threads = finished.len();
    let ended = finished.iter().map(|thread| thread.ended).max().unwrap_or(start);
    let duration = ended - start;
    let busy = |thread: &Finished| (thread.cpu_user + thread.cpu_system).as_secs_f64();
    let saturated = finished.iter().all(|t| busy(t) > SATURATION * duration.as_secs_f64());
    let client = ClientUsage {
        cpu_user: finished.iter().map(|thread| thread.cpu_user).sum(),
        cpu_system: finished.iter().map(|thread| thread.cpu_system).sum(),
        saturated: saturated && duration > Duration::ZERO,
        saturated_for: if saturated { duration } else { Duration::ZERO },
    };
    let gave_up = finished.iter().any(|thread| thread.gave_up);
    let oldest_in_flight = finished.iter().map(|thread| thread.oldest).max().unwrap_or_default();
    let shortfall = finished.iter().map(|thread| thread.shortfall).sum::<f64>() / threads as f64;
    let mut tally = Tally::new(0);
    let backlog = finished.iter().map(|thread| thread.backlog.clone());
    let backlog = backlog.reduce(|mut sum, thread| {
        sum.add(&thread);
        sum
    });
    let share = spec.shard.as_ref().map_or(1.0, |shard| 1.0 / f64::from(shard.count));
    let growth = backlog.map_or(0.0, |backlog| backlog.shortfall(spec.ramp.as_deref(), share));
    let (mut series, mut stages) = (Vec::new(), Vec::new());
    for thread in finished {
        stages.push(thread.stages);
        tally.merge(thread.tally);
        add_series(&mut series, thread.series, 0);
    }
    Outcome {
        url: spec.url.to_string(),
        method: spec.method.clone(),
        protocol: spec.url.protocol(),
        rate: spec.rate,
        shortfall: shortfall.max(growth),
        oldest_in_flight,
        connections: spec.connections,
        streams: spec.streams,
        threads,
        duration,
        requests: tally.requests(),
        parts: spec
            .parts
            .iter()
            .zip(tally.parts)
            .enumerate()
            .map(|(index, (part, tally))| PartCounts {
                name: spec
                    .scenario
                    .as_ref()
                    .and_then(|plan| plan.step_name(index))
                    .map(str::to_owned),
                ..counts_of(part, tally)
            })
            .collect(),
        iterations: iterations(spec, tally.iterations),
        bytes: tally.bytes,
        latency: tally.latency,
        client,
        handshakes: spec.url.protocol().is_tls().then_some(tally.handshakes),
        first_failure: tally.first_failure,
        gave_up,
        series,
        stages: spec
            .ramp
            .as_ref()
            .map_or_else(Vec::new, |ramp| StageCounts::of(ramp, duration, stages)),
        shard: spec.shard.as_ref().map(ShardRun::new),
        replay: spec.replay.as_deref().map(Replay::summary),
        slow: tally.slow,
        ..Outcome::default()
    }
}

/// Converts the counts of one request of a mixed load.
fn counts_of(part: &Part, tally: PartTally) -> PartCounts {
    let PartTally { completed, failed, failures, time, latency } = tally;
    PartCounts {
        name: None,
        url: part.url.to_string(),
        method: part.method.clone(),
        weight: part.weight,
        completed,
        failed,
        failures,
        mean: time.div_f64(completed.max(1) as f64),
        latency,
    }
}

/// Returns the counts of the iterations of each scenario.
fn iterations(spec: &Spec, tallies: Vec<IterationTally>) -> Vec<IterationCounts> {
    let scenarios = spec.scenario.iter().flat_map(|plan| &plan.scenarios);
    let counts = |(scenario, tally): (&Scenario, IterationTally)| IterationCounts {
        name: scenario.name.clone(),
        weight: scenario.weight,
        completed: tally.completed,
        failed: tally.failed,
        interrupted: tally.started - tally.completed - tally.failed,
        time: tally.time,
    };
    scenarios.zip(tallies).map(counts).collect()
}

/// Returns the size of part `index` when `total` is divided into `parts`. The remainder of the
/// division is distributed among the first parts, one unit to each.
fn part(total: usize, parts: usize, index: usize) -> usize {
    total / parts + usize::from(index < total % parts)
}

/// Raises the soft limit of open files as far as needed. Fails if the hard limit is too low.
pub(crate) fn allow_files(wanted: u64) -> Result<(), Error> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    let wanted = wanted + open + SPARE_FILES;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        return Err(Error::Invalid(format!(
            "so many connections need {wanted} open files, but at most {} are allowed: use fewer, \
             or raise the limit with `ulimit -Hn`",
            limit.maximum.unwrap_or_default()
        )));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
        .map_err(|errno| system("raising the limit of open files")(errno.into()))
}

fn system(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::System { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_spread_with_their_remainder() {
        let parts: Vec<_> = (0..3).map(|index| part(100, 3, index)).collect();
        assert_eq!(parts, [34, 33, 33]);
        assert_eq!((0..7).map(|index| part(100, 7, index)).sum::<usize>(), 100);
    }
}
