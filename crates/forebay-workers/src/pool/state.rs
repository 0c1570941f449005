//! The state of the pool, and the assignment of workers to requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Given, Message};
use crate::control::{LARGEST, Mark};
use crate::error::Unavailable;
use crate::pace::{MOMENT, Pace};
use crate::waiters::{Waiter, Waiters};
use crate::worker::{Killed, Worker, WorkerShared, WorkerState};

/// Number of requests at the front of the queue that the pool searches for a request of the
/// worker's own thread.
const NEARBY: usize = 256;

/// The workers of one application, and the requests that wait for a worker.
#[derive(Debug, Default)]
pub(super) struct PoolState {
    /// The most recently used worker is last.
    pub(super) idle: Vec<Worker>,
    pub(super) busy: Vec<Busy>,
    pub(super) waiters: Waiters<Waiting>,
    pub(super) pace: Pace,
    /// True if each thread is pinned to one processor. Then workers whose requests only compute are
    /// pinned, too.
    pub(super) is_pinned: bool,
    /// Messages to send when the pool is unlocked.
    pub(super) outbox: Vec<Outgoing>,
    /// True while somebody calls [`Pool::look_after`](super::Pool::look_after) regularly.
    pub(super) is_looked_after: bool,
    /// All workers whose process has not been reaped.
    pub(super) all: Vec<Arc<WorkerShared>>,
    pub(super) starts: u64,
    pub(super) crashes: u64,
}

impl PoolState {
    /// Returns true if a request on `thread` should wait for a busy worker although another worker
    /// is idle. This is so if requests only compute, and each processor has a running worker. With
    /// pinned threads, one running worker of `thread` is enough.
    pub(super) fn holds(&self, thread: ThreadId, now: Instant) -> bool {
        if !self.is_pinned {
            return self.pace.holds(&self.all, now);
        }
        self.pace.computes() && self.has_at_work(thread, now)
    }

    /// Returns true if this thread has a running worker: one whose request began within [`MOMENT`].
    fn has_at_work(&self, thread: ThreadId, now: Instant) -> bool {
        self.busy.iter().any(|busy| busy.thread == thread && busy.is_at_work(now))
    }

    /// Returns true if the first request of the queue goes to the next free worker of any thread.
    /// This is so if `first` has waited for more than [`MOMENT`], and no worker of its own thread
    /// runs. With 128 clients, all requests wait this long, and each worker would otherwise change
    /// its thread with each request.
    fn is_urgent(&self, first: &Waiting, now: Instant) -> bool {
        now.saturating_duration_since(first.since) > MOMENT && !self.has_at_work(first.thread, now)
    }

    /// Puts a request into the prefetch queue of a worker that should finish soon. If no worker can
    /// take the request, puts it into the pool's queue.
    pub(super) fn queue(&mut self, request: Waiting, now: Instant) {
        let depth = if self.waiters.requests().is_empty() { self.depth() } else { 0 };
        let soonest = self
            .busy
            .iter_mut()
            .filter(|busy| busy.may_take(&request, depth, now))
            .min_by_key(|busy| (busy.queued.len(), busy.shared.since()));
        match soonest {
            Some(busy) => {
                self.outbox.extend(request.sent_to(&busy.shared));
                busy.queued.push_back(request);
            }
            None => self.waiters.push(request),
        }
    }

    /// Returns the number of requests that a prefetch queue may hold. If requests sleep, it holds one
    /// while all workers are busy, so that a worker need not wait between two requests.
    fn depth(&self) -> usize {
        if self.pace.computes() { DEPTH } else { usize::from(self.idle.is_empty()) }
    }

    /// Returns the number of requests in all prefetch queues.
    pub(super) fn prefetched(&self) -> usize {
        self.busy.iter().map(|busy| busy.queued.len()).sum()
    }

    /// Takes back the unread requests of all workers whose current request takes longer than a
    /// [`MOMENT`].
    pub(super) fn take_back_delayed(&mut self) {
        let now = Instant::now();
        let is_delayed = |busy: &&mut Busy| !busy.queued.is_empty() && !busy.is_at_work(now);
        let delayed = self.busy.iter_mut().filter(is_delayed);
        let taken: Vec<_> = delayed.flat_map(Busy::take_back).collect();
        for request in taken {
            self.requeue(request);
        }
    }

    fn holder(&mut self, mark: Mark) -> Option<&mut Busy> {
        self.busy.iter_mut().find(|busy| busy.has_queued(mark))
    }

    /// Removes a request from the pool's queue or from a prefetch queue, and returns it. Returns
    /// `None` if a worker already has the request.
    pub(super) fn leave(&mut self, mark: Mark) -> Option<Waiting> {
        if let Some(at) = self.waiters.requests().iter().position(|request| request.mark == mark) {
            return self.waiters.remove(at);
        }
        let mut found = None;
        // Take back all unread requests, because the socket returns requests only in order. Then
        // put all of them, except the request with `mark`, into the pool's queue.
        for request in self.holder(mark)?.take_back() {
            if request.mark == mark {
                found = Some(request);
            } else {
                self.requeue(request);
            }
        }
        found
    }

    /// Handles a request that was taken back from a prefetch queue. Assigns an idle worker to the
    /// request, or puts the request at the front of the pool's queue. Drops a request that is not
    /// wanted any more. Refuses the request after the pool has closed.
    pub(super) fn requeue(&mut self, request: Waiting) {
        if self.waiters.is_closed() {
            return request.refuse(Unavailable::ShuttingDown);
        }
        if !request.is_wanted {
            return;
        }
        self.waiters.push_front(request);
        self.replace_busy();
    }

    /// Assigns an idle worker to the first request in the queue, if this request
    /// [needs](Self::is_needed) another worker. Callers call this after a busy worker has ended,
    /// and after a request was put back into the queue. In both cases, another worker may be
    /// allowed to run now. Returns true if a worker was assigned.
    pub(super) fn replace_busy(&mut self) -> bool {
        let Some(first) = self.waiters.first_open() else { return false };
        let thread = first.thread;
        let needed = self
            .waiters
            .requests()
            .front()
            .is_some_and(|first| self.is_needed(first, Instant::now()));
        let Some(worker) = needed.then(|| self.pop_idle(thread)).flatten() else { return false };
        let idle = self.idle.len();
        self.assign_next(worker);
        self.idle.len() == idle
    }

    /// Gives the next request to `worker`, which has no request now. If there is no request for
    /// this worker, makes the worker idle.
    pub(super) fn assign_next(&mut self, mut worker: Worker) {
        self.take_back_for_free();
        let here = std::thread::current().id();
        while let Some(request) = self.next_for(&worker) {
            let may_send = request.thread == here && worker.is_at_home(here);
            let message = request.sent_to(&worker.shared);
            let message = message.filter(|_| may_send && worker.carryover.is_empty());
            let has_request = message.is_some();
            self.outbox.extend(message);
            match self.assign(worker, request, VecDeque::new(), has_request) {
                Some(returned) => worker = returned,
                None => return,
            }
        }
        worker.shared.enter(WorkerState::Idle);
        self.idle.push(worker);
    }

    /// Assigns a worker to a request, and fills the worker's prefetch queue. `queued` are the
    /// requests that this prefetch queue already contains. `has_request` is true if the worker gets
    /// `request` itself through the prefetch queue.
    ///
    /// If the request is not wanted any more and `has_request` is true, kills the worker. If the
    /// request is not wanted any more and `has_request` is false, returns the worker. In all other
    /// cases, returns `None`.
    pub(super) fn assign(
        &mut self,
        worker: Worker,
        request: Waiting,
        queued: VecDeque<Waiting>,
        has_request: bool,
    ) -> Option<Worker> {
        let shared = worker.shared.clone();
        self.busy.push(Busy::new(shared.clone(), request.thread, queued));
        shared.open.store(has_request, Ordering::Relaxed);
        shared.enter(WorkerState::Busy);
        if let Err(Ok(given)) = request.sender.send(Ok(Given { worker, has_request })) {
            if has_request {
                shared.kill(Killed::LeaseDropped);
                return None;
            }
            self.end_request(&shared, true);
            return Some(given.worker);
        }
        if has_request {
            self.fill(&shared);
        }
        None
    }

    /// Moves requests of the worker's thread from the pool's queue to the prefetch queue of this
    /// busy worker.
    fn fill(&mut self, shared: &Arc<WorkerShared>) {
        let (now, depth) = (Instant::now(), self.depth());
        let Some(at) = self.busy.iter().position(|busy| busy.shared.id == shared.id) else {
            return;
        };
        // If the first request is urgent, the worker takes it as soon as the worker is free.
        while let Some(front) = self.waiters.requests().front()
            && !self.is_urgent(front, now)
        {
            let thread = self.busy[at].thread;
            let mut nearby = self.waiters.requests().iter().take(NEARBY.min(self.waiters.peers()));
            let is_own = |request: &Waiting| request.thread == thread && request.is_open();
            // A request that does not fit is not overtaken, and so gets the worker next.
            let Some(own) = nearby.position(is_own) else { return };
            if !self.busy[at].may_take(&self.waiters.requests()[own], depth, now) {
                return;
            }
            let Some(request) = self.waiters.remove(own) else { return };
            self.outbox.extend(request.sent_to(shared));
            self.busy[at].queued.push_back(request);
        }
    }

    /// Takes back the requests that wait behind another one, if no other request waits for the worker
    /// that is free now. Requests that only compute stay, because their worker is soon free, too.
    fn take_back_for_free(&mut self) {
        if !self.waiters.requests().is_empty() || self.pace.computes() {
            return;
        }
        let behind = self.busy.iter_mut().filter(|busy| !busy.queued.is_empty());
        let Some(busy) = behind.min_by_key(|busy| busy.shared.since()) else { return };
        let taken: Vec<_> = busy.take_back().filter(|request| request.is_wanted).collect();
        taken.into_iter().for_each(|request| self.waiters.push_front(request));
    }

    /// Puts the unread requests of an ended worker back into the queue. If `gives_up` is true, the
    /// requests that the worker has read are lost. If `gives_up` is false, these requests stay with
    /// the worker. The current lease reads its remaining output, and then gives the worker to the
    /// next of these requests.
    pub(super) fn rescue(&mut self, id: u64, gives_up: bool) {
        let Some(at) = self.busy.iter().position(|busy| busy.shared.id == id) else { return };
        let Busy { shared, thread, queued, .. } = self.busy.swap_remove(at);
        let prefetch = &shared.prefetch;
        let (unread, read): (VecDeque<_>, VecDeque<_>) =
            queued.into_iter().partition(|request| prefetch.had_not_read(request.mark));
        if gives_up {
            for request in read {
                let _ = request.sender.send(Err(Unavailable::WorkerLost));
            }
        } else if !read.is_empty() {
            self.busy.push(Busy::new(shared, thread, read));
        }
        for request in unread.into_iter().rev() {
            self.requeue(request);
        }
        self.replace_busy();
    }

    /// Ends the current request of a worker, and returns the requests in its prefetch queue. If
    /// `ends` is true, returns only the requests that the worker has already read, because the
    /// worker serves no others. The unread requests then return to the pool's queue.
    pub(super) fn end_request(&mut self, shared: &WorkerShared, ends: bool) -> VecDeque<Waiting> {
        let Some(at) = self.busy.iter().position(|busy| busy.shared.id == shared.id) else {
            return VecDeque::new();
        };
        shared.open.store(false, Ordering::Relaxed);
        let mut busy = self.busy.swap_remove(at);
        if ends {
            for request in busy.take_back() {
                self.requeue(request);
            }
        }
        busy.queued
    }

    /// Returns the most recently used idle worker. Prefers workers that are registered with
    /// `thread`'s runtime. If threads are pinned and requests only compute, pins the worker to the
    /// thread's processor, unless this thread has a busy worker. Returns `None` if no worker is
    /// idle.
    pub(super) fn take_idle(&mut self, thread: ThreadId) -> Option<Worker> {
        let worker = self.pop_idle(thread)?;
        let shared = worker.shared.clone();
        self.busy.push(Busy::new(shared, thread, VecDeque::new()));
        Some(worker)
    }

    fn pop_idle(&mut self, thread: ThreadId) -> Option<Worker> {
        let here = self.idle.iter().rposition(|worker| worker.is_at_home(thread));
        let mut worker = here.map(|at| self.idle.remove(at)).or_else(|| self.idle.pop())?;
        // Do not pin a second worker of this thread, so that the kernel can run it on a free
        // processor.
        let is_first = !self.busy.iter().any(|busy| busy.thread == thread);
        worker.is_pinned = self.is_pinned && is_first && self.pace.computes();
        Some(worker)
    }

    /// Returns the next request for this worker. An urgent first request has priority. Otherwise
    /// prefers a request of the worker's own thread, because moving a worker to another thread
    /// costs system calls. Returns `None` if no request waits, or the worker [is not
    /// needed](Self::is_needed).
    fn next_for(&mut self, worker: &Worker) -> Option<Waiting> {
        let now = Instant::now();
        let first = self.waiters.requests().front()?;
        let at = if self.is_urgent(first, now) { 0 } else { self.own_request(worker).unwrap_or(0) };
        if !self.is_needed(&self.waiters.requests()[at], now) {
            return None;
        }
        self.waiters.remove(at)
    }

    fn own_request(&self, worker: &Worker) -> Option<usize> {
        let nearby = NEARBY.min(self.waiters.peers());
        let mut nearby = self.waiters.requests().iter().take(nearby);
        nearby.position(|request| worker.is_at_home(request.thread))
    }

    /// Returns true if a free worker should run this request. Returns false if requests only
    /// compute and all processors are busy: one more running worker would evict the data of the
    /// others from the CPU caches. Exception: with pinned threads, returns true if no worker of the
    /// request's thread runs.
    fn is_needed(&self, request: &Waiting, now: Instant) -> bool {
        let at_work = self.busy.iter().map(|busy| &busy.shared);
        !self.pace.holds(at_work, now) || self.is_pinned && !self.has_at_work(request.thread, now)
    }
}

// A worker that has a request, and the requests that follow in its prefetch queue.

/// Maximum number of requests in a prefetch queue. If a queue held only one request, a worker would
/// often finish before the next request arrives. With 64 clients, there were 0.50 context switches
/// of the gateway per request with a limit of four, and 0.28 with 16. Eight cost as little as 16.
const DEPTH: usize = 8;

/// A worker that has a request.
#[derive(Debug)]
pub(super) struct Busy {
    pub(super) shared: Arc<WorkerShared>,
    /// The gateway thread of the current request. Only this thread adds requests to the prefetch
    /// queue, so the queue cannot grow while the thread works on it.
    pub(super) thread: ThreadId,
    /// Requests that Forebay put into the prefetch queue, in order. The worker may already have
    /// read the first of them.
    pub(super) queued: VecDeque<Waiting>,
}

impl Busy {
    pub(super) fn new(
        shared: Arc<WorkerShared>,
        thread: ThreadId,
        queued: VecDeque<Waiting>,
    ) -> Self {
        Self { shared, thread, queued }
    }

    pub(super) fn has_queued(&self, mark: Mark) -> bool {
        self.queued.iter().any(|request| request.mark == mark)
    }

    /// Takes back all requests that the worker has not read. Returns these requests, the last one
    /// in the queue first.
    pub(super) fn take_back(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        let marks: Vec<_> = self.queued.iter().map(|request| request.mark).collect();
        let unread = self.shared.prefetch.take_back(&marks);
        let is_read = |request: &Waiting| !unread.contains(&request.mark);
        let (read, taken): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.queued).into_iter().partition(is_read);
        self.queued = read;
        taken.into_iter().rev()
    }

    /// Returns true if the current request began within the last [`MOMENT`].
    fn is_at_work(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.shared.since()) < MOMENT
    }

    /// Returns true if this request may be put into the worker's prefetch queue, which may hold
    /// `depth` requests.
    fn may_take(&self, request: &Waiting, depth: usize, now: Instant) -> bool {
        request.message.is_some()
            && self.queued.len() < depth
            && self.queued.iter().map(Waiting::size).sum::<usize>() + request.size() <= LARGEST
            && self.thread == request.thread
            && self.shared.open.load(Ordering::Relaxed)
            && !self.shared.retired.load(Ordering::Relaxed)
            && self.is_at_work(now)
    }
}

// A request that waits for a worker.

/// A request that waits for a worker: in the queue, or in a worker's prefetch queue.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) sender: oneshot::Sender<Result<Given, Unavailable>>,
    pub(super) thread: ThreadId,
    /// The client, for [`Waiters`].
    pub(super) client: u64,
    pub(super) since: Instant,
    pub(super) mark: Mark,
    pub(super) message: Message,
    /// True if a client still waits for the reply.
    pub(super) is_wanted: bool,
}

/// A message for a worker's prefetch queue.
#[derive(Debug)]
pub(super) struct Outgoing {
    shared: Arc<WorkerShared>,
    mark: Mark,
    message: Arc<Vec<u8>>,
}

impl Outgoing {
    /// Puts the message into the queue. If this is impossible, because the application has shut the
    /// socket down, kills the worker; the request then goes to another one.
    pub(super) fn send(self) {
        let Self { shared, mark, message } = self;
        if !shared.prefetch.put(&[&message]) {
            shared.prefetch.refused(mark);
            shared.kill(Killed::BrokeProtocol);
        }
    }
}

impl Waiter for Waiting {
    fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    fn client(&self) -> u64 {
        self.client
    }

    fn refuse(self, why: Unavailable) {
        let _ = self.sender.send(Err(why));
    }
}

impl Waiting {
    /// Returns this request's message to a worker, to be sent when the pool is unlocked. Only the
    /// request's own thread may send it.
    fn sent_to(&self, shared: &Arc<WorkerShared>) -> Option<Outgoing> {
        let message = self.message.clone()?;
        Some(Outgoing { shared: shared.clone(), mark: self.mark, message })
    }

    pub(super) fn size(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.len())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;
    use crate::link::{Link, Output};
    use crate::prefetch::PrefetchQueue;

    struct Worked {
        state: PoolState,
        its_end: OwnedFd,
        turns: Vec<(Mark, super::super::Turn)>,
    }

    /// A request on this thread.
    fn waiting(since: Instant, message: Message) -> (Waiting, super::super::Turn) {
        let (sender, turn) = oneshot::channel();
        let request = Waiting {
            sender,
            thread: std::thread::current().id(),
            client: 0,
            since,
            mark: Mark::new(),
            message,
            is_wanted: true,
        };
        (request, turn)
    }

    fn busy(id: u64) -> Busy {
        let (prefetch, _) = PrefetchQueue::pair().unwrap();
        let shared = Arc::new(WorkerShared::without_process(id, prefetch, u64::MAX));
        shared.enter(WorkerState::Busy);
        Busy::new(shared, std::thread::current().id(), VecDeque::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_is_free_rests_while_each_processor_has_one_at_work() {
        let socket = || OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0);
        for (at_work, is_pinned, rests) in [(1, false, false), (2, false, true), (2, true, true)] {
            let mut state =
                PoolState { pace: Pace::known(2, true), is_pinned, ..PoolState::default() };
            state.busy.extend((0..at_work).map(busy));
            let (first, _its_turn) = waiting(Instant::now(), None);
            let (request, _turn) = waiting(Instant::now(), None);
            state.waiters.push(first);
            state.waiters.push(request);
            let (control, output) = (Link::new(socket()).unwrap(), Output::new(socket()).unwrap());
            let worker = Worker::new(busy(9).shared, control, output);
            state.assign_next(worker);
            assert_eq!(state.idle.len() == 1, rests, "{at_work} {is_pinned}");
            assert_eq!(state.waiters.requests().len() == 2, rests);
        }
    }

    /// A worker with three requests in its prefetch queue. It has read the first `read` of them.
    fn worked(read: usize) -> Worked {
        let (prefetch, its_end) = PrefetchQueue::pair().unwrap();
        let shared = Arc::new(WorkerShared::without_process(1, prefetch, u64::MAX));
        shared.enter(WorkerState::Busy);
        shared.open.store(true, Ordering::Relaxed);
        let mut state = PoolState::default();
        let thread = std::thread::current().id();
        state.busy.push(Busy::new(shared.clone(), thread, VecDeque::new()));
        let mut turns = Vec::new();
        for _ in 0..3 {
            let (mut request, turn) = waiting(Instant::now(), None);
            let mark = request.mark;
            let message = crate::control::message(b"", crate::control::Body::Empty, mark);
            request.message = message.map(Arc::new);
            request.sent_to(&shared).unwrap().send();
            state.busy[0].queued.push_back(request);
            turns.push((mark, turn));
        }
        for _ in 0..read {
            rustix::io::read(&its_end, &mut [0; 64]).unwrap();
        }
        Worked { state, its_end, turns }
    }

    fn marks(requests: &VecDeque<Waiting>) -> Vec<Mark> {
        requests.iter().map(|request| request.mark).collect()
    }

    #[test]
    fn a_request_leaves_from_any_place_and_the_others_keep_theirs() {
        let Worked { mut state, turns, its_end } = worked(1);
        let [first, second, third] = [turns[0].0, turns[1].0, turns[2].0];
        assert_eq!(state.leave(third).map(|request| request.mark), Some(third));
        assert_eq!(marks(&state.busy[0].queued), [first], "it was read");
        assert_eq!(marks(state.waiters.requests()), [second]);
        assert!(rustix::io::read(&its_end, &mut [0; 64]).is_err(), "nothing is left to read");
        assert!(state.leave(first).is_none());
        assert_eq!(state.leave(second).map(|request| request.mark), Some(second));
    }

    #[test]
    fn requests_behind_a_long_one_are_taken_back() {
        for (age, stays) in [(Duration::ZERO, true), (MOMENT, false)] {
            let Worked { mut state, turns, its_end: _its_end } = worked(1);
            std::thread::sleep(age);
            state.take_back_delayed();
            assert_eq!(state.waiters.requests().is_empty(), stays);
            assert_eq!(state.busy[0].queued.front().map(|one| one.mark), Some(turns[0].0));
        }
    }

    #[test]
    fn requests_that_a_lost_worker_has_read_fail_and_others_move() {
        let Worked { mut state, mut turns, .. } = worked(1);
        state.rescue(1, false);
        assert_eq!(marks(&state.busy[0].queued), [turns[0].0], "its lease may hand the worker on");
        assert_eq!(marks(state.waiters.requests()), [turns[1].0, turns[2].0]);
        state.rescue(1, true);
        assert!(state.busy.is_empty());
        assert!(matches!(turns[0].1.try_recv(), Ok(Err(Unavailable::WorkerLost))));
    }

    #[test]
    fn requests_taken_back_after_the_end_are_refused() {
        let Worked { mut state, mut turns, .. } = worked(0);
        state.waiters.close();
        assert_eq!(state.end_request(&state.busy[0].shared.clone(), true).len(), 0);
        for (_, turn) in &mut turns {
            assert!(matches!(turn.try_recv(), Ok(Err(Unavailable::ShuttingDown))));
        }
    }

    #[test]
    fn a_request_without_a_slot_is_not_overtaken() {
        for age in [Duration::ZERO, 2 * MOMENT] {
            let Worked { mut state, its_end: _its_end, .. } = worked(0);
            (0..32)
                .for_each(|_| state.pace.learn(crate::worker::Window { sleeps: 0, prefetched: 0 }));
            state.busy[0].queued.clear();
            let now = Instant::now();
            let (big, _its_turn) = waiting(now - age, None);
            let (small, _its_turn) = waiting(now, Some(vec![0; 64].into()));
            state.waiters.push(big);
            state.waiters.push(small);
            let shared = state.busy[0].shared.clone();
            state.fill(&shared);
            assert!(state.busy[0].queued.is_empty(), "after {age:?}");
        }
    }

    #[test]
    fn a_thread_with_a_processor_of_its_own_holds_requests_for_its_own_worker_alone() {
        let Worked { mut state, its_end: _its_end, .. } = worked(0);
        let (here, now) = (std::thread::current().id(), state.busy[0].shared.since());
        let there = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
        state.is_pinned = true;
        assert!(!state.holds(here, now), "too little is known yet");
        state.pace = Pace::known(2, true);
        assert!(state.holds(here, now));
        assert!(!state.holds(there, now), "its own processor may be idle");
        assert!(!state.holds(here, now + MOMENT), "that takes longer");
        state.is_pinned = false;
        assert!(!state.holds(here, now), "there are two processors for one at work");
    }
}
