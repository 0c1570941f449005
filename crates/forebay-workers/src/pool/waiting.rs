//! A request that waits for a worker.

use super::{Given, Message};
use crate::control::Mark;
use crate::error::Unavailable;
use crate::waiters::Waiter;
use crate::worker::{Killed, WorkerShared};
use std::sync::Arc;
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
    pub(super) fn sent_to(&self, shared: &Arc<WorkerShared>) -> Option<Outgoing> {
        let message = self.message.clone()?;
        Some(Outgoing { shared: shared.clone(), mark: self.mark, message })
    }

    pub(super) fn size(&self) -> usize {
        self.message.as_ref().map_or(0, |message| message.len())
    }
}
