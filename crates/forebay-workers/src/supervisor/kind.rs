//! The differences between kinds of processes: start, readiness, assignment of requests, and end.

use super::Event;
use crate::error::Exit;
use crate::spec::Workers;
use forebay_process::descendants::Usage;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

/// A kind of process: starts processes, and holds the pool that assigns requests to them.
pub(crate) trait ProcessKind: 'static {
    /// The supervisor's data of one process.
    type Process;
    /// The value that a ready process needs to serve requests.
    type Ready: 'static;
    /// The words for one process and for several in the log.
    const NOUN: (&'static str, &'static str);

    /// Returns the rules for starting, replacing and ending processes.
    fn rules(&self) -> &Rules;

    /// Starts a process. The error names the program that cannot be started.
    fn start(&mut self, new: New<Self::Ready>) -> io::Result<Started<Self>>
    where
        Self: Sized;

    /// Adds a process to the pool, which assigns no request to it yet.
    fn add(&self, process: &Self::Process);

    /// Returns the process id, for the log.
    fn pid(&self, process: &Self::Process) -> u32;

    /// Returns the memory and CPU time of the process. Memory and CPU time are zero if they cannot
    /// be read.
    fn usage(&self, process: &Self::Process) -> Usage;

    /// Returns the state of all processes of the pool.
    fn snapshots(&self) -> Vec<Snapshot>;

    /// Returns the number of additional processes that the waiting requests need.
    fn missing(&self) -> usize;

    /// Lets the pool assign requests to the process from now on.
    fn serve(&self, process: &Self::Process, ready: Self::Ready);

    /// Stops the pool from assigning requests to the process.
    fn retire(&self, process: &Self::Process);

    /// Asks a process to end, because it is idle or has no time left for its requests. Returns
    /// false if the process cannot be asked and has to be killed.
    fn request_stop(&self, process: &Self::Process) -> bool;

    /// Kills the process.
    fn force(&self, process: &Self::Process, fault: Option<Fault>);

    /// Kills the process again, because it has not ended some time after `force`.
    fn force_again(&self, process: &Self::Process);

    /// Records that the program has ended, while its guardian still runs.
    fn program_ended(&mut self, process: &mut Self::Process, exit: Exit, was_stopped: bool);

    /// Returns true if the process may end by itself, so that its end is not a crash. `reaped` is
    /// the end of the process. The supervisor has not requested this end.
    fn may_end(&self, process: &Self::Process, reaped: Exit) -> bool;

    /// Describes the end of a process that has crashed, for the log.
    fn describe_end(&self, process: &Self::Process, reaped: Exit, why: Option<Fault>) -> End;

    /// Forgets a process that has ended.
    fn remove(&mut self, process: Self::Process, reaped: Exit, crashed: bool);

    /// Refuses all waiting requests. From now on, also refuses each new request that no running
    /// process can take at once.
    fn begin_crash_loop(&self, why: String);

    /// Lets new requests wait for the next attempt to start a process.
    /// [`begin_crash_loop`](ProcessKind::begin_crash_loop) refused such requests.
    fn let_wait(&self);

    /// Refuses all requests from now on.
    fn close(&self);
}

/// The rules for starting, replacing and ending processes. The times have the same meaning as in
/// `AppSpec` and `ProgramSpec`.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) name: String,
    pub(crate) workers: Workers,
    /// True if one process starts before all others, even if no process is needed yet. An error,
    /// such as a failed compilation, is then reported at once and only once.
    pub(crate) first_alone: bool,
    pub(crate) max_requests: Option<u64>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_memory: Option<u64>,
    pub(crate) max_cpu: Option<Duration>,
    pub(crate) idle_timeout: Duration,
    /// Limit from the start of a process until it is ready.
    pub(crate) start_timeout: Duration,
    /// Limit from the request to end until the process is killed.
    pub(crate) stop_timeout: Duration,
    /// True if the time limit `stop_timeout` may end after the grace period of a shutdown.
    pub(crate) stop_outlasts_grace: bool,
    /// Time in which a retired process may finish its requests; `None` for no limit.
    pub(crate) drain_timeout: Option<Duration>,
    /// A process is ended if its request takes longer than this. `None` if the sender of the
    /// request enforces a limit.
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) watch: Vec<PathBuf>,
    /// Files that are checked after a reload of the configuration.
    pub(crate) watch_at_reload: Vec<PathBuf>,
}

/// A process that is about to be started.
pub(crate) struct New<R> {
    /// Number of this process in its supervisor. Unlike a process id, it is never reused.
    pub(crate) id: u64,
    /// The process is replaced after this many requests.
    pub(crate) limit: u64,
    /// Receives the report that the program has ended, if the program ends before its guardian.
    pub(crate) events: UnboundedSender<Event<R>>,
}

pub(crate) struct Started<K: ProcessKind> {
    pub(crate) process: K::Process,
    /// The non-blocking reading end of the process's standard error.
    pub(crate) stderr: OwnedFd,
    /// The process id in the prefix of the process's log lines.
    pub(crate) stderr_name: u32,
    /// Resolves when the process is ready. Resolves with `None` if the process will never become
    /// ready.
    pub(crate) ready: Pin<Box<dyn Future<Output = Option<K::Ready>>>>,
    /// Resolves after the process has ended and was reaped.
    pub(crate) reaped: Pin<Box<dyn Future<Output = Exit>>>,
}

/// The state of a process at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) id: u64,
    pub(crate) stage: Stage,
    pub(crate) requests: u64,
    /// Number of requests that the process runs now.
    pub(crate) under_way: usize,
    /// End of the last request, or the time when the process became ready.
    pub(crate) idle_since: Instant,
    /// Start of the current request, if [`Rules::request_timeout`] applies to that request.
    pub(crate) busy_since: Option<Instant>,
}

impl Snapshot {
    /// Returns the snapshot of a process that has just been started.
    pub(crate) fn of_new(id: u64, now: Instant) -> Snapshot {
        let (stage, idle_since) = (Stage::Starting, now);
        Snapshot { id, stage, requests: 0, under_way: 0, idle_since, busy_since: None }
    }
}

/// A stage in the life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Starting,
    Serving,
    /// The process gets no further request.
    Retired,
    /// The process has finished its last request, and the pool has asked it to end.
    Ending,
}

/// The reason why the supervisor ends a process that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    NotReady,
    RequestTimeout,
    /// The process did not answer.
    Silent,
    /// The process refused a connection.
    Refused,
    /// The process has ended by itself.
    Unexpected,
}

/// The end of a process that has crashed.
pub(crate) struct End {
    pub(crate) text: String,
    /// True if SIGKILL or SIGTERM ended the process. Such a signal usually comes from outside.
    pub(crate) was_killed: bool,
}
