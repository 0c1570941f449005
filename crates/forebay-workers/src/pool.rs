//! The workers of one application and the requests that wait for a worker.
//!
//! Idle workers form one stack for all threads. A request prefers a worker whose sockets are
//! registered with the event loop of its thread, because registering costs system calls. If a
//! worker has reached a limit or its files have changed, a replacement starts before the old
//! process ends. If the first replacement does not start, the other old workers stay.

mod state;

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use forebay_process::kept_processor;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::control::Mark;
use crate::error::Unavailable;
use crate::pace;
use crate::worker::{Health, Worker, WorkerShared, WorkerState};
use state::{Outgoing, PoolState, Waiting};

/// Interval at which the pool looks after waiting requests ([`Pool::look_after`]).
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// The pool of one application. The gateway's threads and the supervisor share it.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    state: Mutex<PoolState>,
}

/// The request, encoded for a worker's prefetch queue. `None` if this request must not wait in a
/// prefetch queue.
pub(crate) type Message = Option<Arc<Vec<u8>>>;

/// A worker assigned to a request.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) worker: Worker,
    /// True if the worker gets, or has already got, the request from its prefetch queue.
    pub(crate) has_request: bool,
}

/// Receives the worker for a waiting request.
pub(crate) type Turn = oneshot::Receiver<Result<Given, Unavailable>>;

/// The immediate answer to a request for a worker.
pub(crate) enum Taken {
    Worker(Worker),
    /// The request has to wait.
    Wait {
        turn: Turn,
        /// True if the caller has to begin to call [`Pool::look_after`].
        begins_looks: bool,
    },
}

impl Pool {
    /// Returns an idle worker, or a place in the queue, which holds at most `limit` requests. In the
    /// queue, the requests of each `client` take turns with those of other clients.
    /// Prefers workers that are registered with `thread`'s runtime.
    ///
    /// If enough workers run (see [`Pace`](pace::Pace)), the request has to wait even if another
    /// worker is idle. A request waits in the prefetch queue of a busy worker if possible. `message`
    /// builds the bytes that the worker reads, and `mark` identifies the request.
    pub(crate) fn take(
        &self,
        thread: ThreadId,
        limit: usize,
        mark: Mark,
        (client, message): (impl FnOnce() -> u64, impl FnOnce() -> Message),
    ) -> Result<Taken, Unavailable> {
        let mut state = self.lock();
        if state.waiters.is_closed() {
            return Err(Unavailable::ShuttingDown);
        }
        let now = Instant::now();
        state.is_pinned |= kept_processor().is_some();
        let holds = state.holds(thread, now);
        if !holds && let Some(worker) = state.take_idle(thread) {
            return Ok(Taken::Worker(worker));
        }
        if let Some(why) = state.waiters.refusal().filter(|_| !holds) {
            return Err(why);
        }
        let client = client();
        let prefetched = state.prefetched();
        if state.waiters.requests().len() + prefetched >= limit {
            // An idle worker is better than a refusal.
            if let Some(worker) = state.take_idle(thread) {
                return Ok(Taken::Worker(worker));
            }
            if !state.waiters.has_room(limit.saturating_sub(prefetched), client) {
                return Err(Unavailable::QueueFull);
            }
        }
        let (sender, turn) = oneshot::channel();
        state.queue(
            Waiting {
                sender,
                thread,
                client,
                since: now,
                mark,
                message: message(),
                is_wanted: true,
            },
            now,
        );
        let begins_looks = !std::mem::replace(&mut state.is_looked_after, true);
        Ok(Taken::Wait { turn, begins_looks })
    }

    /// Takes requests back from workers whose current request takes long, and gives waiting requests
    /// to idle workers if these are needed now. Call this every [`TICK`] while requests wait.
    /// Returns false when no request waits any more.
    pub(crate) fn look_after(&self) -> bool {
        let mut state = self.lock();
        state.take_back_delayed();
        while state.replace_busy() {}
        state.is_looked_after = !state.waiters.requests().is_empty() || state.prefetched() > 0;
        state.is_looked_after
    }

    /// Lets the next request that has to wait begin to call [`look_after`](Pool::look_after) again.
    pub(crate) fn end_looks(&self) {
        self.lock().is_looked_after = false;
    }

    /// Handles the requests in the prefetch queue of a worker that was killed or has ended.
    /// Requests that the worker has not read wait for other workers. Each request that the worker
    /// has already read gets an error.
    pub(crate) fn rescue(&self, shared: &WorkerShared) {
        self.lock().rescue(shared.id, true);
    }

    /// Forgets the request with this mark, because it is not wanted any more. Returns true if the
    /// request was taken out of a queue. Returns false if a worker has read the request, or was
    /// assigned to the request. This worker may still run the request, but no other worker will.
    pub(crate) fn forget(&self, mark: Mark) -> bool {
        let mut state = self.lock();
        let has_left = state.leave(mark).is_some();
        let mut queued = state.busy.iter_mut().flat_map(|busy| &mut busy.queued);
        if let Some(request) = queued.find(|request| request.mark == mark) {
            request.is_wanted = false;
        }
        has_left
    }

    /// Takes back the requests that follow in the prefetch queue, because the current request takes
    /// long. Returns true if the worker has already read at least one of these requests.
    pub(crate) fn withdraw(&self, shared: &WorkerShared) -> bool {
        let mut state = self.lock();
        let Some(busy) = state.busy.iter_mut().find(|busy| busy.shared.id == shared.id) else {
            return false;
        };
        let taken_back: Vec<_> = busy.take_back().collect();
        let is_read = !busy.queued.is_empty();
        for request in taken_back {
            state.requeue(request);
        }
        is_read
    }

    /// Takes back a worker that has finished a request. Assigns the worker to the next request in
    /// its prefetch queue, or else to the next waiting request. If no request waits, makes the
    /// worker idle. Ends a retired worker.
    pub(crate) fn give(&self, worker: Worker) {
        let mut state = self.lock();
        let ends = state.waiters.is_closed() || worker.shared.retired.load(Ordering::Relaxed);
        let mut queued = state.end_request(&worker.shared, ends);
        state.take_back_delayed();
        if let Some(request) = queued.pop_front() {
            state.assign(worker, request, queued, true);
            return;
        }
        if ends {
            worker.shared.enter(WorkerState::Ending);
            state.replace_busy();
            drop(state);
            drop(worker);
            return;
        }
        state.assign_next(worker);
    }

    /// Updates the pool's [`Pace`](pace::Pace) after a worker has finished a request.
    pub(crate) fn learn(&self, shared: &WorkerShared) {
        if let Some(window) = pace::window(shared) {
            self.lock().pace.learn(window);
        }
    }

    /// Stops giving requests to a worker. Returns true if the worker was idle and ends now.
    pub(crate) fn retire(&self, shared: &WorkerShared) -> bool {
        let mut state = self.lock();
        shared.retired.store(true, Ordering::Relaxed);
        let Some(at) = state.idle.iter().position(|worker| worker.shared.id == shared.id) else {
            return false;
        };
        let worker = state.idle.remove(at);
        drop(state);
        worker.shared.enter(WorkerState::Ending);
        true
    }

    /// Adds a process that has been started.
    pub(crate) fn add(&self, shared: Arc<WorkerShared>) {
        let mut state = self.lock();
        state.starts += 1;
        state.all.push(shared);
    }

    pub(crate) fn health(&self) -> Health {
        let workers = self.all().iter().map(|shared| shared.status()).collect();
        let queued = self.waiting();
        let state = self.lock();
        let waiting = queued + state.prefetched();
        let (starts, crashes) = (state.starts, state.crashes);
        let crash_loop = state.waiters.crash_loop();
        Health { workers, waiting, starts, crashes, crash_loop, note: None }
    }

    /// Counts a worker as crashed although it has ended normally.
    pub(crate) fn count_crash(&self) {
        self.lock().crashes += 1;
    }

    /// Removes a process that has ended. Counts a crash if `crashed` is true.
    pub(crate) fn remove(&self, id: u64, crashed: bool) {
        let mut state = self.lock();
        state.crashes += u64::from(crashed);
        state.all.retain(|shared| shared.id != id);
        state.rescue(id, false);
        let position = state.idle.iter().position(|worker| worker.shared.id == id);
        let worker = position.map(|at| state.idle.remove(at));
        drop(state);
        drop(worker);
    }

    /// Refuses all waiting requests. From now on, also refuses each new request that finds no idle
    /// worker.
    pub(crate) fn begin_crash_loop(&self, last_lines: String) {
        self.lock().waiters.begin_crash_loop(last_lines);
    }

    pub(crate) fn end_crash_loop(&self) {
        self.lock().waiters.end_crash_loop();
    }

    /// Lets new requests wait for the next attempt to start a worker.
    /// [`begin_crash_loop`](Pool::begin_crash_loop) refused such requests.
    pub(crate) fn let_wait(&self) {
        self.lock().waiters.let_wait();
    }

    /// Refuses all requests from now on, and ends idle workers.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.waiters.close();
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        for worker in &idle {
            worker.shared.enter(WorkerState::Ending);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().waiters.is_closed()
    }

    /// Returns the number of requests in the queue.
    /// True if a worker serves requests, so that one that waits does so because of others.
    pub(crate) fn is_serving(&self) -> bool {
        let serves = |state| matches!(state, WorkerState::Idle | WorkerState::Busy);
        self.all().iter().any(|worker| serves(worker.state()))
    }

    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiters.count()
    }

    /// Returns the number of requests that wait for a worker minus the number of idle workers, or 0.
    pub(crate) fn missing(&self) -> usize {
        let state = self.lock();
        // Requests that only compute wait in prefetch queues because their worker is soon free.
        let prefetched = if state.pace.computes() { 0 } else { state.prefetched() };
        (state.waiters.count() + prefetched).saturating_sub(state.idle.len())
    }

    pub(crate) fn all(&self) -> Vec<Arc<WorkerShared>> {
        self.lock().all.clone()
    }

    fn lock(&self) -> Locked<'_> {
        Locked(Some(self.state.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The locked state. When it is dropped, first unlocks the state and then sends the requests that
/// were assigned to prefetch queues. A message wakes a worker, which may at once take the processor
/// of this thread: other threads would then wait for the lock until this one runs again.
struct Locked<'a>(Option<MutexGuard<'a, PoolState>>);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.0.take() else { return };
        let outbox = std::mem::take(&mut state.outbox);
        drop(state);
        outbox.into_iter().for_each(Outgoing::send);
    }
}

impl Deref for Locked<'_> {
    type Target = PoolState;

    fn deref(&self) -> &PoolState {
        self.0.as_ref().expect("only drop takes it")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut PoolState {
        self.0.as_mut().expect("only drop takes it")
    }
}

/// The contents of a pool, for tests of its invariants.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Contents {
    /// The ids of idle workers.
    pub(crate) idle: Vec<u64>,
    /// The ids of busy workers, with the number of requests in their prefetch queues.
    pub(crate) busy: Vec<(u64, usize)>,
    /// The time that each request in the queue has waited, if its client still waits.
    pub(crate) waiting: Vec<Duration>,
    /// True if as many requests as processors have begun within the given time.
    pub(crate) is_full: bool,
    /// The ids of workers whose request began before this time, with an unread request behind it.
    pub(crate) delaying: Vec<u64>,
}

#[cfg(test)]
impl Pool {
    pub(crate) fn contents(&self, within: Duration) -> Contents {
        let state = self.lock();
        let open = state.waiters.requests().iter().filter(|request| !request.sender.is_closed());
        let delays = |busy: &&state::Busy| {
            let first = busy.shared.prefetch.first();
            busy.shared.since().elapsed() > within
                && first.is_some_and(|mark| busy.has_queued(mark))
        };
        Contents {
            idle: state.idle.iter().map(|worker| worker.shared.id).collect(),
            busy: state.busy.iter().map(|busy| (busy.shared.id, busy.queued.len())).collect(),
            waiting: open.map(|request| request.since.elapsed()).collect(),
            is_full: state.pace.have_begun(&state.all, Instant::now(), within),
            delaying: state.busy.iter().filter(delays).map(|busy| busy.shared.id).collect(),
        }
    }

    /// Behaves as if each thread were pinned to a processor.
    pub(crate) fn set_near(&self) {
        self.lock().is_pinned = true;
    }

    pub(crate) fn set_pace(&self, processors: usize, computes: bool) {
        self.lock().pace = pace::Pace::known(processors, computes);
    }
}
