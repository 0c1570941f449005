//! What kinds of processes differ in: how one is started and known to be ready, who gives it its
//! requests, and how it is asked to end.

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

/// A kind of process, with what it takes to start one and the pool that gives them requests.
pub(crate) trait ProcessKind: 'static {
    /// One process, as the supervisor holds it.
    type Process;
    /// What a process that is ready serves by.
    type Ready: 'static;
    /// What the log calls a process, and several.
    const NOUN: (&'static str, &'static str);

    /// By which rules processes are kept.
    fn rules(&self) -> &Rules;

    /// Starts a process. The error names what cannot be started.
    fn start(&mut self, new: New<Self::Ready>) -> io::Result<Started<Self>>
    where
        Self: Sized;

    /// Lists a process in the pool, which gives it no request yet.
    fn add(&self, process: &Self::Process);

    /// What it is called by in the log.
    fn pid(&self, process: &Self::Process) -> u32;

    /// What it uses; nothing if that cannot be read.
    fn usage(&self, process: &Self::Process) -> Usage;

    /// How all processes of the pool are at this moment.
    fn snapshots(&self) -> Vec<Snapshot>;

    /// How many processes those who wait could be served by, besides the ones that serve.
    fn missing(&self) -> usize;

    /// Requests are given to the process from now on.
    fn serve(&self, process: &Self::Process, ready: Self::Ready);

    /// The process is given no further request.
    fn retire(&self, process: &Self::Process);

    /// Asks a process to end that has nothing to do, or no more time. False where that cannot be
    /// asked, and force has to be used.
    fn request_stop(&self, process: &Self::Process) -> bool;

    /// Ends the process by force.
    fn force(&self, process: &Self::Process, fault: Option<Fault>);

    /// Force was used some time ago, and the process has not ended.
    fn force_again(&self, process: &Self::Process);

    /// The program has ended; what looks after it has not yet.
    fn program_ended(&self, process: &mut Self::Process, exit: Exit, was_stopped: bool);

    /// Whether a process that nobody has asked to end may do so like this.
    fn may_end(&self, process: &Self::Process, reaped: Exit) -> bool;

    /// How a process that has crashed came to its end, for the log.
    fn describe_end(&self, process: &Self::Process, reaped: Exit, why: Option<Fault>) -> End;

    /// Forgets a process that has ended.
    fn remove(&mut self, process: Self::Process, reaped: Exit, crashed: bool);

    /// Refuses all requests that wait and, while nothing serves, all that come.
    fn begin_crash_loop(&self, why: String);

    /// Lets requests wait again, for the next attempt.
    fn let_wait(&self);

    /// Refuses all requests from now on.
    fn close(&self);
}

/// By which rules processes are kept. Times are as in the specification of an application or a
/// program.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) name: String,
    pub(crate) workers: Workers,
    /// One is started before all others, even where none has to run: what cannot be compiled shows
    /// at once, and once.
    pub(crate) first_alone: bool,
    pub(crate) max_requests: Option<u64>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_memory: Option<u64>,
    pub(crate) max_cpu: Option<Duration>,
    pub(crate) idle_timeout: Duration,
    /// From a process's start until it is ready.
    pub(crate) start_timeout: Duration,
    /// From asking a process to end until force is used.
    pub(crate) stop_timeout: Duration,
    /// `stop_timeout` goes on when the time that a shutdown grants is over.
    pub(crate) stop_outlasts_grace: bool,
    /// How long a retired process may finish its requests; `None`: as long as these take.
    pub(crate) drain_timeout: Option<Duration>,
    /// A process is ended whose request takes longer. `None`: who sent the request sees to that.
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) watch: Vec<PathBuf>,
    /// What is looked at when the configuration was read again.
    pub(crate) watch_at_reload: Vec<PathBuf>,
}

/// A process that is about to be started.
pub(crate) struct New<R> {
    /// Counts processes of this supervisor; process ids may come again.
    pub(crate) id: u64,
    /// It is replaced after this many requests.
    pub(crate) limit: u64,
    /// Where its program's end is reported, if that comes before the process's.
    pub(crate) events: UnboundedSender<Event<R>>,
}

/// A process that has been started.
pub(crate) struct Started<K: ProcessKind> {
    pub(crate) process: K::Process,
    /// The reading end of what it writes to standard error, non-blocking.
    pub(crate) stderr: OwnedFd,
    /// What its lines are called in the log.
    pub(crate) stderr_name: u32,
    /// Ends when it is ready; `None` where it will not be.
    pub(crate) ready: Pin<Box<dyn Future<Output = Option<K::Ready>>>>,
    /// Ends when it has ended and was reaped.
    pub(crate) reaped: Pin<Box<dyn Future<Output = Exit>>>,
}

/// How a process is at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) id: u64,
    pub(crate) stage: Stage,
    pub(crate) requests: u64,
    /// Requests that it has at this moment.
    pub(crate) under_way: usize,
    /// When the last request ended, or it became ready.
    pub(crate) idle_since: Instant,
    /// When its request began, where [`Rules::request_timeout`] counts for that.
    pub(crate) busy_since: Option<Instant>,
}

impl Snapshot {
    /// Of a process that has just been started.
    pub(crate) fn of_new(id: u64, now: Instant) -> Snapshot {
        let (stage, idle_since) = (Stage::Starting, now);
        Snapshot { id, stage, requests: 0, under_way: 0, idle_since, busy_since: None }
    }
}

/// How far a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Starting,
    Serving,
    /// It gets no further request.
    Retired,
    /// The pool has asked it to end, as it had its last request.
    Ending,
}

/// Why the supervisor ends a process, where that is its own fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    NotReady,
    RequestTimeout,
    /// Nothing was heard of it.
    Silent,
    /// It refused a connection.
    Refused,
    /// It has ended by itself.
    Unexpected,
}

/// How a process that has crashed came to its end.
pub(crate) struct End {
    pub(crate) text: String,
    /// By SIGKILL or SIGTERM, as from outside.
    pub(crate) was_killed: bool,
}
