//! A worker that has a request, and the requests that follow in its prefetch queue.

use super::waiting::Waiting;
use crate::activity::Activity;
use crate::control::{LARGEST, Mark};
use crate::pace::MOMENT;
use crate::worker::WorkerShared;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of requests in a prefetch queue. If a queue held only one request, a worker would
/// often finish before the next request arrives. With 64 clients, there were 0.50 context switches
/// of the gateway per request with a limit of four, and 0.28 with 16.
const DEPTH: usize = 16;
/// A request that takes this much CPU time counts as long. For comparison: a request that takes 90
/// us with warm caches takes 0.5 ms with cold caches.
const LONG: Duration = Duration::from_millis(2);

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
    /// CPU time of the process at the first check for a long request.
    cpu_at_first_look: Option<Duration>,
}

impl Busy {
    pub(super) fn new(
        shared: Arc<WorkerShared>,
        thread: ThreadId,
        queued: VecDeque<Waiting>,
    ) -> Self {
        Self { shared, thread, queued, cpu_at_first_look: None }
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

    /// Returns true if this request may be put into the worker's prefetch queue.
    pub(super) fn may_take(&self, request: &Waiting, now: Instant) -> bool {
        request.message.is_some()
            && self.queued.len() < DEPTH
            && self.queued.iter().map(Waiting::size).sum::<usize>() + request.size() <= LARGEST
            && self.thread == request.thread
            && self.shared.open.load(Ordering::Relaxed)
            && !self.shared.retired.load(Ordering::Relaxed)
            && now.saturating_duration_since(self.shared.since()) < MOMENT
    }

    /// Returns true if the process runs or waits for a processor, but has used less than `LONG` of
    /// CPU time for the current request. CPU time before the first call of this function for this
    /// request is unknown, and does not count.
    pub(super) fn is_starved(&mut self, activity: Activity) -> bool {
        let first = *self.cpu_at_first_look.get_or_insert(activity.cpu);
        activity.is_runnable && activity.cpu.saturating_sub(first) < LONG
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefetch::PrefetchQueue;

    #[test]
    fn sleeping_and_computing_take_long_but_starving_does_not() {
        let (prefetch, _its_end) = PrefetchQueue::pair().unwrap();
        let shared = Arc::new(WorkerShared::without_process(1, prefetch, 1));
        let thread = std::thread::current().id();
        let mut busy = Busy::new(shared, thread, VecDeque::new());
        let runnable = |cpu| Activity { is_runnable: true, cpu };
        let start = Duration::from_secs(1);
        assert!(busy.is_starved(runnable(start)), "how long it has run is not known yet");
        assert!(busy.is_starved(runnable(start + LONG / 2)));
        assert!(!busy.is_starved(runnable(start + LONG)));
        assert!(!busy.is_starved(Activity { is_runnable: false, cpu: start }));
    }
}
