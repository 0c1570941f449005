//! A request that waits for a worker.

use super::{Given, Message};
use crate::control::Mark;
use crate::error::Unavailable;
use crate::waiters::Waiter;
use crate::worker::WorkerShared;
use std::cell::Cell;
use std::thread::ThreadId;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A request that waits for a worker: in the queue, or in a worker's prefetch queue.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) sender: oneshot::Sender<Result<Given, Unavailable>>,
    pub(super) thread: ThreadId,
    /// The client, for [`Waiters`](crate::waiters::Waiters).
    pub(super) client: u64,
    pub(super) since: Instant,
    /// Time when the request was put into a worker's prefetch queue.
    pub(super) put: Cell<Option<Instant>>,
    pub(super) mark: Mark,
    pub(super) message: Message,
    /// True if a client still waits for the reply.
    pub(super) is_wanted: bool,
    /// True if the request asks for an idle worker from time to time ([`super::Pool::hurry`]).
    pub(super) hurries: bool,
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
    pub(super) fn put_to(&self, shared: &WorkerShared) -> bool {
        let is_put = self.message.as_ref().is_some_and(|message| shared.prefetch.put(&[message]));
        self.put.set(is_put.then(Instant::now));
        is_put
    }
}
