//! The queue of requests that wait for a worker, or for a process of a program. The queue also
//! decides when such requests are refused.

use crate::error::Unavailable;
use std::collections::VecDeque;

/// A request that waits in [`Waiters`].
pub(crate) trait Waiter {
    /// Returns true if the request still waits for the outcome.
    fn is_open(&self) -> bool;

    /// Ends the wait with this reason.
    fn refuse(self, why: Unavailable);
}

/// Waiting requests. The first one is the next to be served.
#[derive(Debug)]
pub(crate) struct Waiters<W> {
    pub(crate) requests: VecDeque<W>,
    is_closed: bool,
    crash_loop: Option<String>,
    /// True if requests fail instead of waiting for the next start.
    refuses: bool,
}

impl<W> Default for Waiters<W> {
    fn default() -> Waiters<W> {
        let requests = VecDeque::new();
        Waiters { requests, is_closed: false, crash_loop: None, refuses: false }
    }
}

impl<W: Waiter> Waiters<W> {
    /// Returns true if fewer than `limit` requests wait, so that one more may wait. Drops requests
    /// that are not wanted any more.
    pub(crate) fn has_room(&mut self, limit: usize) -> bool {
        if self.requests.len() >= limit {
            self.requests.retain(W::is_open);
        }
        self.requests.len() < limit
    }

    /// Returns the number of waiting requests.
    pub(crate) fn count(&self) -> usize {
        self.requests.iter().filter(|request| request.is_open()).count()
    }

    /// Returns the reason why no request may wait at present. Returns `None` if requests may wait.
    pub(crate) fn refusal(&self) -> Option<Unavailable> {
        let why = self.crash_loop.as_ref().filter(|_| self.refuses)?;
        Some(Unavailable::CrashLoop(why.clone()))
    }

    /// Refuses waiting requests and, until the next start, new ones.
    pub(crate) fn begin_crash_loop(&mut self, why: String) {
        self.crash_loop = Some(why.clone());
        self.refuses = true;
        self.refuse_all(&Unavailable::CrashLoop(why));
    }

    pub(crate) fn end_crash_loop(&mut self) {
        self.crash_loop = None;
        self.refuses = false;
    }

    /// Lets new requests wait for the next attempt to start a process.
    /// [`begin_crash_loop`](Waiters::begin_crash_loop) refused such requests.
    pub(crate) fn let_wait(&mut self) {
        self.refuses = false;
    }

    /// Returns the last output of processes that end right after their start. Returns `None` if
    /// starts succeed.
    pub(crate) fn crash_loop(&self) -> Option<String> {
        self.crash_loop.clone()
    }

    /// Refuses all requests from now on.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.refuse_all(&Unavailable::ShuttingDown);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn refuse_all(&mut self, why: &Unavailable) {
        for request in self.requests.drain(..) {
            request.refuse(why.clone());
        }
    }
}
