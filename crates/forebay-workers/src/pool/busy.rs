//! A worker that has a request, and the requests that follow in its prefetch queue.

use super::waiting::Waiting;
use crate::control::{LARGEST, Mark};
use crate::pace::MOMENT;
use crate::worker::WorkerShared;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ThreadId;
use tokio::time::Instant;

/// Maximum number of requests in a prefetch queue. If a queue held only one request, a worker would
/// often finish before the next request arrives. With 64 clients, there were 0.50 context switches
/// of the gateway per request with a limit of four, and 0.28 with 16. Eight cost as little as 16.
pub(super) const DEPTH: usize = 8;

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
    pub(super) fn is_at_work(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.shared.since()) < MOMENT
    }

    /// Returns true if this request may be put into the worker's prefetch queue, which may hold
    /// `depth` requests.
    pub(super) fn may_take(&self, request: &Waiting, depth: usize, now: Instant) -> bool {
        request.message.is_some()
            && self.queued.len() < depth
            && self.queued.iter().map(Waiting::size).sum::<usize>() + request.size() <= LARGEST
            && self.thread == request.thread
            && self.shared.open.load(Ordering::Relaxed)
            && !self.shared.retired.load(Ordering::Relaxed)
            && self.is_at_work(now)
    }
}
