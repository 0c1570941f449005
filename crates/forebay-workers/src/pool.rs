//! The idle workers of one application and the requests that wait for one.

use crate::error::Unavailable;
use crate::health::Health;
use crate::pace::{self, Pace};
use crate::worker::{Facts, Worker, WorkerState};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A request that has waited this long is first, whatever thread it waits on.
const PATIENCE: Duration = Duration::from_millis(5);
/// How far into the queue to look for a request on the worker's own thread.
const NEARBY: usize = 16;

/// Shared by the gateway's threads and the supervisor.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The one that became idle last is last.
    idle: Vec<Worker>,
    waiting: VecDeque<Waiting>,
    pace: Pace,
    /// Every worker that is not reaped.
    all: Vec<Arc<Facts>>,
    closed: bool,
    crash_loop: Option<String>,
    /// Requests may not wait for the next start.
    refuses: bool,
    starts: u64,
    crashes: u64,
}

#[derive(Debug)]
struct Waiting {
    sender: oneshot::Sender<Result<Worker, Unavailable>>,
    thread: ThreadId,
    since: Instant,
}

/// Brings a request its worker when its turn comes.
pub(crate) type Turn = oneshot::Receiver<Result<Worker, Unavailable>>;

/// What a request gets at once.
pub(crate) enum Taken {
    Worker(Worker),
    Wait(Turn),
    /// As [`Taken::Wait`], but after a moment [`Pool::take_idle`] may have one.
    WaitAMoment(Turn),
}

impl Pool {
    /// An idle worker, or a place in the queue of at most `limit`; also where one is idle, if enough
    /// are at work (see [`Pace`]). The worker used last is preferred, among those that are registered
    /// with `thread`'s runtime if there are any.
    pub(crate) fn take(&self, thread: ThreadId, limit: usize) -> Result<Taken, Unavailable> {
        let mut inner = self.lock();
        if inner.closed {
            return Err(Unavailable::ShuttingDown);
        }
        if inner.holds(limit) {
            return Ok(Taken::WaitAMoment(inner.queue(thread)));
        }
        if let Some(worker) = inner.take_idle(thread) {
            return Ok(Taken::Worker(worker));
        }
        if let Some(lines) = inner.crash_loop.as_ref().filter(|_| inner.refuses) {
            return Err(Unavailable::CrashLoop(lines.clone()));
        }
        if inner.waiting.len() >= limit {
            inner.waiting.retain(|request| !request.sender.is_closed());
        }
        if inner.waiting.len() >= limit {
            return Err(Unavailable::QueueFull);
        }
        Ok(Taken::Wait(inner.queue(thread)))
    }

    /// A worker for a request that has waited for a moment in vain.
    pub(crate) fn take_idle(&self, thread: ThreadId) -> Option<Worker> {
        self.lock().take_idle(thread)
    }

    /// Hands a worker to the request that waits longest, else makes it idle, else lets it end.
    pub(crate) fn give(&self, mut worker: Worker) {
        loop {
            let mut inner = self.lock();
            if inner.closed || worker.facts.retired.load(Ordering::Relaxed) {
                worker.facts.enter(WorkerState::Ending);
                drop(inner);
                return;
            }
            let Some(next) = inner.next_for(&worker) else {
                worker.facts.enter(WorkerState::Idle);
                inner.idle.push(worker);
                return;
            };
            drop(inner);
            match next.sender.send(Ok(worker)) {
                Ok(()) => return,
                Err(returned) => worker = returned.expect("only workers are sent here"),
            }
        }
    }

    /// Learns from a request that a worker has ended.
    pub(crate) fn learn(&self, facts: &Facts) {
        if let Some(sleeps) = pace::sleeps(facts) {
            self.lock().pace.learn(sleeps);
        }
    }

    /// Keeps a worker from getting another request; true if it was idle and ends now.
    pub(crate) fn retire(&self, facts: &Facts) -> bool {
        let mut inner = self.lock();
        facts.retired.store(true, Ordering::Relaxed);
        let Some(at) = inner.idle.iter().position(|worker| worker.facts.id == facts.id) else {
            return false;
        };
        let worker = inner.idle.remove(at);
        drop(inner);
        worker.facts.enter(WorkerState::Ending);
        true
    }

    /// Lists a process that has been started.
    pub(crate) fn add(&self, facts: Arc<Facts>) {
        let mut inner = self.lock();
        inner.starts += 1;
        inner.all.push(facts);
    }

    /// Counts a process that has ended without having been told to.
    pub(crate) fn count_crash(&self) {
        self.lock().crashes += 1;
    }

    pub(crate) fn health(&self) -> Health {
        let workers = self.all().iter().map(|facts| facts.status()).collect();
        let waiting = self.waiting();
        let inner = self.lock();
        let (starts, crashes) = (inner.starts, inner.crashes);
        let crash_loop = inner.crash_loop.clone();
        Health { workers, waiting, starts, crashes, crash_loop, note: None }
    }

    /// Forgets a process that has ended.
    pub(crate) fn remove(&self, id: u64) {
        let mut inner = self.lock();
        inner.all.retain(|facts| facts.id != id);
        let gone = inner.idle.iter().position(|worker| worker.facts.id == id);
        let worker = gone.map(|at| inner.idle.remove(at));
        drop(inner);
        drop(worker);
    }

    /// Refuses all requests that wait and, while no worker is idle, all that come.
    pub(crate) fn begin_crash_loop(&self, last_lines: String) {
        let mut inner = self.lock();
        let waiting = std::mem::take(&mut inner.waiting);
        inner.crash_loop = Some(last_lines.clone());
        inner.refuses = true;
        drop(inner);
        for request in waiting {
            let _ = request.sender.send(Err(Unavailable::CrashLoop(last_lines.clone())));
        }
    }

    pub(crate) fn end_crash_loop(&self) {
        let mut inner = self.lock();
        inner.crash_loop = None;
        inner.refuses = false;
    }

    /// Lets requests wait again, for the next attempt.
    pub(crate) fn let_wait(&self) {
        self.lock().refuses = false;
    }

    /// Refuses all requests from now on and lets idle workers end.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        let waiting = std::mem::take(&mut inner.waiting);
        let idle = std::mem::take(&mut inner.idle);
        drop(inner);
        for worker in &idle {
            worker.facts.enter(WorkerState::Ending);
        }
        for request in waiting {
            let _ = request.sender.send(Err(Unavailable::ShuttingDown));
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.iter().filter(|request| !request.sender.is_closed()).count()
    }

    /// How many requests wait for which no worker is idle.
    pub(crate) fn missing(&self) -> usize {
        let waiting = self.waiting();
        waiting.saturating_sub(self.lock().idle.len())
    }

    /// The worker that has been idle longest, and since when.
    pub(crate) fn longest_idle(&self) -> Option<(Arc<Facts>, Instant)> {
        let inner = self.lock();
        let oldest = inner.idle.iter().min_by_key(|worker| worker.facts.since())?;
        Some((oldest.facts.clone(), oldest.facts.since()))
    }

    pub(crate) fn all(&self) -> Vec<Arc<Facts>> {
        self.lock().all.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether a request should wait for a worker that is busy although one is idle.
    fn holds(&self, limit: usize) -> bool {
        let may_wait = !self.idle.is_empty() && self.waiting.len() < limit;
        may_wait && self.pace.holds(&self.all, Instant::now())
    }

    fn queue(&mut self, thread: ThreadId) -> Turn {
        let (sender, receiver) = oneshot::channel();
        self.waiting.push_back(Waiting { sender, thread, since: Instant::now() });
        receiver
    }

    /// The worker used last, among those registered with `thread`'s runtime if there are any.
    fn take_idle(&mut self, thread: ThreadId) -> Option<Worker> {
        let here = self.idle.iter().rposition(|worker| worker.is_at_home(thread));
        here.map(|at| self.idle.remove(at)).or_else(|| self.idle.pop())
    }

    /// Who gets this worker: the first in the queue, but rather one on the worker's own thread if
    /// nobody waits long, because to move a worker to another thread costs four system calls.
    fn next_for(&mut self, worker: &Worker) -> Option<Waiting> {
        let first = self.waiting.front()?;
        let near = if first.since.elapsed() > PATIENCE {
            None
        } else {
            self.waiting.iter().take(NEARBY).position(|request| worker.is_at_home(request.thread))
        };
        self.waiting.remove(near.unwrap_or(0))
    }
}
