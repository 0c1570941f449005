//! The workers of one application and the requests that wait for one.
//!
//! Idle workers are one stack for all threads, LIFO; a worker whose sockets belong to the asking
//! thread's event loop is preferred, another is registered anew. A request whose client has left
//! may run for one more second before its worker is ended: few need longer, and a warm process is
//! worth more. A replacement starts before what it replaces ends (age, requests, memory, changed
//! files; those with old files one by one); if the first replacement does not start, the others
//! stay.

mod busy;
mod inner;

use crate::activity::Activity;
use crate::control::Mark;
use crate::error::Unavailable;
use crate::health::Health;
use crate::pace::{self, MOMENT};
use crate::worker::{Worker, WorkerShared, WorkerState};
use forebay_process::kept_processor;
use inner::{Inner, Waiting};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A prefetched request is taken back after this at the latest: by then each of several other processes
/// has had its slice of the processor, of 3 to 4 ms.
const LONGEST_PREFETCHED: Duration = Duration::from_millis(20);

/// How often a request that lies in a prefetch queue looks after itself.
pub(crate) const LOOK: Duration = Duration::from_millis(1);
/// Whether workers have stopped, the first so many requests of a queue ask each [`MOMENT`], each so many
/// behind them a moment later, the last after 40 ms, as those before them may be gone by then. With 256
/// clients that all asked every 5 ms it was four times for each request.
const FIRST_ONES: u32 = 16;
const LAST_PLACES: u32 = 7;

/// Shared by the gateway's threads and the supervisor.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    inner: Mutex<Inner>,
}

/// What a worker is to read in its prefetch queue; `None` if the request is not to lie there.
pub(crate) type Message = Option<Vec<u8>>;

/// A worker for a request.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) worker: Worker,
    /// The request lies in its prefetch queue, or did.
    pub(crate) has_request: bool,
}

/// Brings a request its worker when its turn comes.
pub(crate) type Turn = oneshot::Receiver<Result<Given, Unavailable>>;

/// What a request gets at once.
pub(crate) enum Taken {
    Worker(Worker),
    /// Not for long, if `soon`. After a moment in any case [`Pool::hurry`] is to be asked.
    Wait {
        turn: Turn,
        soon: bool,
    },
}

/// What became of a request that has waited for a moment.
pub(crate) enum Hurried {
    Worker(Worker),
    /// It is in the queue, and need not ask again: no worker rests while it is there.
    Waits,
    /// It stays where it is, and is to ask again after this time.
    Held(Duration),
}

impl Pool {
    /// An idle worker, or a place in the queue of at most `limit`; also where one is idle, if
    /// enough are at work (see [`Pace`](pace::Pace)): then rather the prefetch queue of one of
    /// those. The worker used last is preferred, among those that are registered with `thread`'s
    /// runtime if there are any. `message` makes what the worker will read, by which it is known as
    /// `mark`.
    pub(crate) fn take(
        &self,
        thread: ThreadId,
        limit: usize,
        mark: Mark,
        message: impl FnOnce() -> Message,
    ) -> Result<Taken, Unavailable> {
        let mut inner = self.lock();
        if inner.waiters.is_closed() {
            return Err(Unavailable::ShuttingDown);
        }
        let now = Instant::now();
        inner.is_near |= kept_processor().is_some();
        let holds = inner.holds(thread, now);
        if !holds && let Some(worker) = inner.take_idle(thread) {
            return Ok(Taken::Worker(worker));
        }
        if let Some(why) = inner.waiters.refusal().filter(|_| !holds) {
            return Err(why);
        }
        if !inner.waiters.has_room(limit) {
            // Nobody need wait in vain for what is idle.
            let idle = inner.take_idle(thread).map(Taken::Worker);
            return idle.ok_or(Unavailable::QueueFull);
        }
        let (sender, turn) = oneshot::channel();
        inner.queue(
            Waiting {
                sender,
                thread,
                since: now,
                mark,
                message: message(),
                is_wanted: true,
                hurries: true,
                put: Cell::default(),
            },
            now,
        );
        Ok(Taken::Wait { turn, soon: holds })
    }

    /// A worker for the request with this mark, which has `waited` in vain. A prefetched one is taken
    /// back, and not prefetched again, unless its worker has gone on to those behind it or is not let
    /// run, for [`LONGEST_PREFETCHED`] at the most.
    pub(crate) fn hurry(&self, mark: Mark, thread: ThreadId, waited: Duration) -> Hurried {
        if self.keeps_queue(mark) {
            return Hurried::Held(LOOK);
        }
        let mut inner = self.lock();
        let place = inner.waiters.requests.iter().position(|request| request.mark == mark);
        if place.is_some() && waited < MOMENT {
            return Hurried::Held(MOMENT - waited);
        }
        // One more would only take their caches from those at work: with 64 clients and ten workers a
        // request waits for 6 ms, and by another worker after 5 it took twice the CPU time.
        if let Some(place) = place
            && inner.pace.holds(&inner.all, Instant::now())
        {
            let places = (place as u32 / FIRST_ONES).min(LAST_PLACES);
            return Hurried::Held(MOMENT * (1 + places));
        }
        let Some(mut request) = inner.leave(mark) else { return Hurried::Held(LOOK) };
        if place.is_none() {
            inner.rest();
        }
        if let Some(worker) = inner.take_idle(thread) {
            return Hurried::Worker(worker);
        }
        request.message = None;
        request.hurries = false;
        if inner.waiters.is_closed() {
            inner.serve(request);
            return Hurried::Held(LOOK);
        }
        inner.waiters.requests.insert(place.unwrap_or(0), request);
        Hurried::Waits
    }

    /// Whether this request had better stay in the prefetch queue in which it lies: the worker has gone
    /// on to those there, or has hardly run since somebody first looked, as other processes have its
    /// processor. The kernel is asked without the lock: two files of /proc take some 15 us.
    fn keeps_queue(&self, mark: Mark) -> bool {
        let Some((worker, next, put)) = self.lock().queue_of(mark) else { return false };
        if put.elapsed() >= LONGEST_PREFETCHED {
            return false;
        }
        if worker.prefetch.first() != Some(next) {
            return true;
        }
        let Some(activity) = Activity::of(worker.pid) else { return false };
        self.lock().is_starved(worker.id, activity)
    }

    /// Forgets a worker that will not be given back.
    pub(crate) fn rescue(&self, shared: &WorkerShared) {
        self.lock().rescue(shared.id, true);
    }

    /// Forgets the request with this mark; false if a worker has it, or was given to it. Where the
    /// worker dies without having read it, nobody else is to run it.
    pub(crate) fn forget(&self, mark: Mark) -> bool {
        let mut inner = self.lock();
        let has_left = inner.leave(mark).is_some();
        let mut queued = inner.busy.iter_mut().flat_map(|busy| &mut busy.queued);
        if let Some(request) = queued.find(|request| request.mark == mark) {
            request.is_wanted = false;
        }
        has_left
    }

    /// The request that a worker runs goes on: what lies behind it in the prefetch queue is for
    /// another worker. True if it is too late for that: this worker has read it.
    pub(crate) fn withdraw(&self, shared: &WorkerShared) -> bool {
        let mut inner = self.lock();
        let Some(busy) = inner.busy.iter_mut().find(|busy| busy.shared.id == shared.id) else {
            return false;
        };
        let taken_back: Vec<_> = busy.take_back().collect();
        let is_read = !busy.queued.is_empty();
        if !taken_back.is_empty() {
            inner.rest();
        }
        for request in taken_back {
            inner.serve(request);
        }
        is_read
    }

    /// Hands a worker to the request in its prefetch queue, else to the one that waits longest,
    /// else makes it idle, else lets it end.
    pub(crate) fn give(&self, worker: Worker) {
        let mut inner = self.lock();
        let ends = inner.waiters.is_closed() || worker.shared.retired.load(Ordering::Relaxed);
        let mut queued = inner.end_request(&worker.shared, ends);
        if let Some(request) = queued.pop_front() {
            inner.hand(worker, request, queued, true);
            return;
        }
        if ends {
            worker.shared.enter(WorkerState::Ending);
            inner.replace_busy();
            drop(inner);
            drop(worker);
            return;
        }
        inner.employ(worker);
    }

    /// Learns from a request that a worker has ended.
    pub(crate) fn learn(&self, shared: &WorkerShared) {
        if let Some(window) = pace::window(shared) {
            self.lock().pace.learn(window);
        }
    }

    /// Keeps a worker from getting another request; true if it was idle and ends now.
    pub(crate) fn retire(&self, shared: &WorkerShared) -> bool {
        let mut inner = self.lock();
        shared.retired.store(true, Ordering::Relaxed);
        let Some(at) = inner.idle.iter().position(|worker| worker.shared.id == shared.id) else {
            return false;
        };
        let worker = inner.idle.remove(at);
        drop(inner);
        worker.shared.enter(WorkerState::Ending);
        true
    }

    /// Lists a process that has been started.
    pub(crate) fn add(&self, shared: Arc<WorkerShared>) {
        let mut inner = self.lock();
        inner.starts += 1;
        inner.all.push(shared);
    }

    pub(crate) fn health(&self) -> Health {
        let workers = self.all().iter().map(|shared| shared.status()).collect();
        let queued = self.waiting();
        let inner = self.lock();
        let waiting = queued + inner.busy.iter().map(|busy| busy.queued.len()).sum::<usize>();
        let (starts, crashes) = (inner.starts, inner.crashes);
        let crash_loop = inner.waiters.crash_loop();
        Health { workers, waiting, starts, crashes, crash_loop, note: None }
    }

    /// Counts a worker as crashed although it has ended as it should.
    pub(crate) fn count_crash(&self) {
        self.lock().crashes += 1;
    }

    /// Forgets a process that has ended.
    pub(crate) fn remove(&self, id: u64, crashed: bool) {
        let mut inner = self.lock();
        inner.crashes += u64::from(crashed);
        inner.all.retain(|shared| shared.id != id);
        inner.rescue(id, false);
        let position = inner.idle.iter().position(|worker| worker.shared.id == id);
        let worker = position.map(|at| inner.idle.remove(at));
        drop(inner);
        drop(worker);
    }

    /// Refuses all requests that wait and, while no worker is idle, all that come.
    pub(crate) fn begin_crash_loop(&self, last_lines: String) {
        self.lock().waiters.begin_crash_loop(last_lines);
    }

    pub(crate) fn end_crash_loop(&self) {
        self.lock().waiters.end_crash_loop();
    }

    /// Lets requests wait again, for the next attempt.
    pub(crate) fn let_wait(&self) {
        self.lock().waiters.let_wait();
    }

    /// Refuses all requests from now on and lets idle workers end.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.waiters.close();
        let idle = std::mem::take(&mut inner.idle);
        drop(inner);
        for worker in &idle {
            worker.shared.enter(WorkerState::Ending);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().waiters.is_closed()
    }

    /// How many requests wait in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiters.count()
    }

    /// How many requests wait for which no worker is idle.
    pub(crate) fn missing(&self) -> usize {
        let waiting = self.waiting();
        waiting.saturating_sub(self.lock().idle.len())
    }

    pub(crate) fn all(&self) -> Vec<Arc<WorkerShared>> {
        self.lock().all.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a pool holds, for tests of what it must.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Contents {
    /// The ids of idle workers.
    pub(crate) idle: Vec<u64>,
    /// Those of busy ones, with how many requests lie in their prefetch queues.
    pub(crate) busy: Vec<(u64, usize)>,
    /// How long each request in the queue has waited, if somebody still waits for it.
    pub(crate) waiting: Vec<Duration>,
    /// Whether as many requests as there are processors have begun within the time asked for.
    pub(crate) is_full: bool,
}

#[cfg(test)]
impl Pool {
    pub(crate) fn contents(&self, within: Duration) -> Contents {
        let inner = self.lock();
        let open = inner.waiters.requests.iter().filter(|request| !request.sender.is_closed());
        Contents {
            idle: inner.idle.iter().map(|worker| worker.shared.id).collect(),
            busy: inner.busy.iter().map(|busy| (busy.shared.id, busy.queued.len())).collect(),
            waiting: open.map(|request| request.since.elapsed()).collect(),
            is_full: inner.pace.have_begun(&inner.all, Instant::now(), within),
        }
    }

    /// As if each thread kept to a processor.
    pub(crate) fn set_near(&self) {
        self.lock().is_near = true;
    }

    pub(crate) fn set_pace(&self, processors: usize, computes: bool) {
        self.lock().pace = pace::Pace::known(processors, computes);
    }
}
