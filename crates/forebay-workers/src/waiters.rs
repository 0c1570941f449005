//! The queue of those who wait for a worker or for a permit at an instance, and when none may wait.

use crate::error::Unavailable;
use std::collections::VecDeque;

/// A request that waits.
pub(crate) trait Waiter {
    /// Whether somebody waits for the outcome still.
    fn is_open(&self) -> bool;

    /// Ends the wait.
    fn refuse(self, why: Unavailable);
}

/// Requests that wait, the next one first.
#[derive(Debug)]
pub(crate) struct Waiters<W> {
    pub(crate) requests: VecDeque<W>,
    is_closed: bool,
    crash_loop: Option<String>,
    /// Requests may not wait for the next start.
    refuses: bool,
}

impl<W> Default for Waiters<W> {
    fn default() -> Waiters<W> {
        let requests = VecDeque::new();
        Waiters { requests, is_closed: false, crash_loop: None, refuses: false }
    }
}

impl<W: Waiter> Waiters<W> {
    /// Whether one more may wait beside at most `limit` in all. Those who have left are forgotten.
    pub(crate) fn has_room(&mut self, limit: usize) -> bool {
        if self.requests.len() >= limit {
            self.requests.retain(W::is_open);
        }
        self.requests.len() < limit
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.requests.iter().filter(|request| request.is_open()).count()
    }

    /// Why nobody may wait at present.
    pub(crate) fn refusal(&self) -> Option<Unavailable> {
        let why = self.crash_loop.as_ref().filter(|_| self.refuses)?;
        Some(Unavailable::CrashLoop(why.clone()))
    }

    /// Refuses those who wait and, until the next start, those who come.
    pub(crate) fn begin_crash_loop(&mut self, why: String) {
        self.crash_loop = Some(why.clone());
        self.refuses = true;
        self.refuse_all(&Unavailable::CrashLoop(why));
    }

    pub(crate) fn end_crash_loop(&mut self) {
        self.crash_loop = None;
        self.refuses = false;
    }

    /// Lets requests wait again, for the next attempt.
    pub(crate) fn let_wait(&mut self) {
        self.refuses = false;
    }

    /// What the processes wrote that end as soon as they are started.
    pub(crate) fn crash_loop(&self) -> Option<String> {
        self.crash_loop.clone()
    }

    /// Refuses everybody from now on.
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
