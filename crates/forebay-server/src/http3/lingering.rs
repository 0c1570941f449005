//! Waits until the client has acknowledged the replies of a connection.
//!
//! A connection stays open until the client has acknowledged all replies. Clients acknowledge
//! nearly all replies in the order of sending, often together with the next request. The task of
//! the connection therefore waits for the oldest reply only, so that a small reply needs no task of
//! its own.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_net::deadline::{Deadlines, NEVER, Ticks};

use super::connection::{Open, Progress};
use super::stream::{Http3, LOOK};

/// If at most this many replies wait, only the oldest reply is examined.
const FEW: usize = 16;

/// A stream whose reply is complete.
pub(super) struct Served {
    pub stream: Rc<Http3>,
    /// Counts the stream until it ends.
    pub open: Open,
}

/// The streams of a connection whose reply is complete, but not yet acknowledged by the client.
pub(super) struct Unacknowledged {
    /// Each stream, with the time since the client last acknowledged data.
    waiting: VecDeque<(Served, Duration)>,
    /// If more streams than this wait, all of them are examined.
    sweep_at: usize,
    /// Progress of the connection at the latest call of [`Self::look`].
    progress: Option<Progress>,
    /// Tick of the next call of [`Self::look`].
    look_due: Ticks,
}

impl Served {
    /// Waits until the client has acknowledged the whole reply or stops accepting it.
    pub async fn linger(self) {
        self.stream.linger().await;
        drop(self.open);
    }
}

impl Unacknowledged {
    pub fn new() -> Self {
        Self { waiting: VecDeque::new(), sweep_at: FEW, progress: None, look_due: NEVER }
    }

    /// Adds a stream, and removes the streams whose replies the client has acknowledged.
    pub fn add(&mut self, served: Served, deadlines: &Deadlines) {
        self.remove_first();
        if self.waiting.is_empty() {
            self.look_due = deadlines.due(LOOK);
        }
        self.waiting.push_back((served, Duration::ZERO));
        // The client may never acknowledge the first reply, so also remove acknowledged streams
        // that follow it.
        if self.waiting.len() > self.sweep_at {
            self.waiting.retain(|(served, _)| !served.stream.is_acknowledged());
            self.sweep_at = FEW.max(2 * self.waiting.len());
        }
    }

    /// Returns the tick at which `look` must be called.
    pub fn look_due(&self) -> Ticks {
        if self.waiting.is_empty() { NEVER } else { self.look_due }
    }

    fn remove_first(&mut self) {
        while self.waiting.front().is_some_and(|(served, _)| served.stream.is_acknowledged()) {
            self.waiting.pop_front();
        }
    }

    /// Completes when the client has acknowledged the oldest reply. Never completes if no reply
    /// waits.
    pub async fn wait(&mut self) {
        let Some((first, _)) = self.waiting.front() else { return pending().await };
        poll_fn(|context| first.stream.poll_acknowledged(context)).await;
        self.waiting.pop_front();
        self.remove_first();
    }

    /// Resets each stream for which the client has acknowledged no data of the connection during
    /// the stream's time limit. Does nothing before the time of `look_due`.
    pub fn look(&mut self, deadlines: &Deadlines) {
        if self.look_due() > deadlines.now() {
            return;
        }
        self.look_due = deadlines.due(LOOK);
        if let Some((first, _)) = self.waiting.front() {
            let now = first.stream.connection.progress();
            let has_progressed = self.progress.replace(now).is_some_and(|then| now.is_beyond(then));
            for (served, waited) in &mut self.waiting {
                *waited = if has_progressed { Duration::ZERO } else { *waited + LOOK };
                served.stream.give_up_after(*waited);
            }
        }
        self.waiting.retain(|(served, _)| !served.stream.is_acknowledged());
    }
}

/// Runs futures one after the other in the same memory, if each completes at its first poll.
pub(super) struct FirstPoll<F>(Option<Pin<Box<Option<F>>>>);

/// A future that has not completed at its first poll.
pub(super) struct Rest<F>(Pin<Box<Option<F>>>);

impl<F: Future> FirstPoll<F> {
    pub fn new() -> Self {
        Self(None)
    }

    /// Sets the next future. This function is not `async`, because the caller's future would then
    /// be larger by the size of `future`.
    pub fn set(&mut self, future: F) {
        match &mut self.0 {
            Some(place) => place.set(Some(future)),
            None => self.0 = Some(Box::pin(Some(future))),
        }
    }

    /// Polls the future once. Returns its output, or the future if it has not completed.
    pub async fn run(&mut self) -> Result<F::Output, Rest<F>> {
        poll_fn(|context| {
            let mut place = self.0.take().unwrap_or_else(|| Box::pin(None));
            let outcome = match poll(&mut place, context) {
                Poll::Ready(output) => {
                    place.set(None);
                    self.0 = Some(place);
                    Ok(output)
                }
                Poll::Pending => Err(Rest(place)),
            };
            Poll::Ready(outcome)
        })
        .await
    }

    /// Releases the memory of the future.
    pub fn shrink(&mut self) {
        self.0 = None;
    }
}

impl<F: Future> Future for Rest<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        poll(&mut self.0, context)
    }
}

fn poll<F: Future>(place: &mut Pin<Box<Option<F>>>, context: &mut Context<'_>) -> Poll<F::Output> {
    place.as_mut().as_pin_mut().map_or(Poll::Pending, |future| future.poll(context))
}
