//! A stream of HTTP/3: one request and its reply, on a QUIC stream of its own.
//!
//! QUIC limits the bytes that wait to be read, and the bytes that wait to be acknowledged
//! (`listen.rs`). In addition, a stream stores the bytes of one read.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use forebay_net::deadline::{NEVER, Ticks};
use forebay_wire::http2::{Head, budget};
use forebay_wire::http3::{ErrorCode, Http3Error, RequestDecoder};
use quinn::{RecvStream, SendStream};

use crate::part::{Abort, SharedState};

use crate::http3::connection::{Connection, Partial};

/// Interval at which waiting streams check if the server stops.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// Urgency of a request that states none (RFC 9218 section 4.1).
const DEFAULT_URGENCY: u8 = 3;

/// Time that a stopping server waits for a client that no longer accepts data, for example after a
/// network failure.
const OUTAGE: Duration = Duration::from_secs(5);

/// Kind of input that arrived on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// A part of the body.
    Data,
    /// The head or the trailers.
    Section,
    /// A head that exceeds the limit and was not read.
    TooLarge,
    /// The end of the request.
    End,
}

/// A stream of an HTTP/3 connection: one request and its reply.
// More than 20 fields: all users of the stream share one reference, so each value that changes
// needs a cell of its own.
pub struct Http3 {
    /// The stream's connection.
    pub connection: Rc<Connection>,
    pub(crate) shared: SharedState,
    /// True if the client requests a tunnel (RFC 9220).
    pub(super) is_tunnel: Cell<bool>,
    pub(super) receive: RefCell<RecvStream>,
    pub(super) decoder: RefCell<RequestDecoder>,
    pub(super) partial: Partial,
    /// Bytes that were read but not decoded yet.
    pub(super) raw: RefCell<Vec<u8>>,
    /// Body bytes that were decoded but not read by the origin yet.
    pub(super) incoming: RefCell<Vec<u8>>,
    /// True if the request has ended.
    pub(super) has_ended: Cell<bool>,
    /// Trailers of the request that may be forwarded, as lines.
    pub(super) request_trailers: RefCell<Vec<u8>>,
    /// Number of bytes that the head and the trailers count in the connection's `HeldHeads`, until
    /// [`Self::close`].
    held: Cell<usize>,
    pub(super) send: RefCell<SendStream>,
    /// Headers of DATA frames, and complete other frames. They must be sent before further data.
    pub(super) frames: RefCell<Vec<u8>>,
    /// Remaining bytes of the current DATA frame.
    pub(super) frame_left: Cell<u64>,
    /// True if the reply ends after `frames`.
    pub(super) has_finished: Cell<bool>,
    /// True if the stream was reset or its connection has ended.
    pub(super) is_closed: Cell<bool>,
    /// True if a time limit has passed.
    pub(super) is_expired: Cell<bool>,
    pub(super) read_due: Cell<Ticks>,
    /// Maximum idle time of the tunnel, if the stream carries one.
    pub(super) tunnel_idle: Cell<Option<Duration>>,
    /// Maximum time that the client may accept nothing, if the route has a limit of its own.
    pub(crate) write_limit: Cell<Option<Duration>>,
    /// True if the server has reset the stream.
    pub(super) is_reset: Cell<bool>,
    stopped: RefCell<Stopped>,
}

/// State of the wait until the client has acknowledged or cancelled the reply.
#[derive(Default)]
enum Stopped {
    #[default]
    Unasked,
    Asked(Pin<Box<dyn Future<Output = bool>>>),
    /// True if the client stopped before it accepted the whole reply.
    Known(bool),
}

impl Http3 {
    /// Creates a stream whose request has not arrived yet.
    pub fn new(
        connection: Rc<Connection>,
        (send, receive): (SendStream, RecvStream),
        largest_section: usize,
    ) -> Self {
        Self {
            partial: Partial::new(connection.clone()),
            connection,
            shared: SharedState::default(),
            is_tunnel: Cell::new(false),
            receive: RefCell::new(receive),
            decoder: RefCell::new(RequestDecoder::new(largest_section)),
            raw: RefCell::default(),
            incoming: RefCell::default(),
            has_ended: Cell::new(false),
            request_trailers: RefCell::default(),
            held: Cell::new(0),
            send: RefCell::new(send),
            frames: RefCell::default(),
            frame_left: Cell::new(0),
            has_finished: Cell::new(false),
            is_closed: Cell::new(false),
            is_expired: Cell::new(false),
            read_due: Cell::new(NEVER),
            tunnel_idle: Cell::new(None),
            write_limit: Cell::new(None),
            is_reset: Cell::new(false),
            stopped: RefCell::default(),
        }
    }

    /// Records that the client requests a tunnel.
    pub fn expect_tunnel(&self) {
        self.is_tunnel.set(true);
    }

    pub(crate) fn is_tunnel(&self) -> bool {
        self.is_tunnel.get()
    }

    /// Sets the priority of the reply. Replies with a smaller number are sent first (RFC 9218).
    pub fn set_urgency(&self, urgency: u8) {
        // In `quinn`, the default priority is 0, and higher priorities are sent first. So invert
        // the urgency.
        let priority = i32::from(DEFAULT_URGENCY) - i32::from(urgency);
        if priority != 0 {
            // Ignore a failure, which means that the stream was reset. Other code detects the
            // reset.
            let _ = self.send.borrow().set_priority(priority);
        }
    }

    /// Sets the announced length of the body, if any.
    pub fn expect_content(&self, length: Option<u64>) {
        self.decoder.borrow_mut().expect_content(length);
    }

    /// Takes the received field section.
    pub fn take_section(&self) -> Vec<u8> {
        let section = self.decoder.borrow_mut().take_section();
        // This call cannot exceed the limit, because it reduces the connection's total.
        let _ = self.partial.set(0);
        section
    }

    /// Counts the head of the request until the stream is closed. Returns false, and refuses the
    /// request, if the total size of the connection's heads is too large.
    pub fn hold_head(&self, head: &mut Head) -> bool {
        let fits = self.connection.held.borrow_mut().hold(head);
        if fits {
            self.held.set(head.counted);
        } else {
            self.connection.accepted.report_held_heads();
            self.fail(&Http3Error::held_heads());
        }
        fits
    }

    /// Counts the trailers of the request. Returns false, and resets the stream, if the total size
    /// of the connection's heads and trailers is too large.
    pub(super) fn hold_trailers(&self, trailers: &Head) -> bool {
        let fits = self.connection.held.borrow_mut().hold_trailers(trailers);
        if fits {
            self.held.set(self.held.get() + trailers.counted);
        } else {
            self.connection.accepted.report_held_heads();
            self.fail(&Http3Error::held_trailers());
        }
        fits
    }

    /// Waits for the next input. Fails if the stream or its connection is lost.
    pub async fn next(&self) -> io::Result<Arrived> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Returns true if the request has ended without a body. Does not wait for further input.
    pub fn has_no_body(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        // Ignore `Pending`, because a later wait registers its own waker.
        let _ = self.poll_readable(&mut context);
        self.has_ended.get() && self.incoming.borrow().is_empty()
    }

    /// Stops reading the request, because its head is refused.
    pub fn read_no_more(&self) {
        // Ignore a failure, which means that the receiving direction has already ended.
        let _ = self.receive.borrow_mut().stop(ErrorCode::NO_ERROR.0.into());
        self.raw.borrow_mut().clear();
        self.has_ended.set(true);
    }

    /// Handles a protocol error of the client: closes the connection, or resets the stream and
    /// charges the client.
    pub fn fail(&self, error: &Http3Error) {
        let was_closed = self.is_closed.replace(true);
        if error.ends_connection {
            self.connection.fail(error);
        } else if !was_closed {
            self.give_up(error.code);
            // Charge the client for the reset that it has caused, as for its own resets.
            self.connection.charge_reset();
        }
    }

    /// Returns true if the stream was reset or its connection has ended.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Resets both directions of the stream.
    pub fn give_up(&self, code: ErrorCode) {
        // Ignore a failure, which means that the receiving direction has already ended.
        let _ = self.receive.borrow_mut().stop(code.0.into());
        self.reset(code);
    }

    /// Ends the stream after its reply. Resets the stream if the reply is incomplete.
    pub(crate) fn close(&self) {
        self.connection.held.borrow_mut().release(self.held.take());
        if !self.has_finished.get() {
            self.reset(self.lost_code());
        }
        if !self.has_ended.get() {
            // Ask the client to stop sending the rest of the request, which is not needed (RFC 9114
            // section 4.1).
            let _ = self.receive.borrow_mut().stop(ErrorCode::NO_ERROR.0.into());
        }
        if !self.is_closed.get() {
            self.connection.earn(budget::STREAM_DONE);
        }
    }

    /// Returns true if the reply is complete and the client may still send its request. A tunnel has
    /// no such rest.
    pub(crate) fn awaits_rest(&self) -> bool {
        let is_lost = self.is_reset.get() || self.is_closed.get();
        let is_answered = self.has_finished.get() && !is_lost;
        is_answered && !self.has_ended.get() && self.tunnel_idle.get().is_none()
    }

    /// Waits until QUIC has all bytes of the reply. Returns an error if the stream is lost.
    pub async fn send_leftover(&self) -> io::Result<()> {
        while !self.frames.borrow().is_empty() && !self.is_closed.get() {
            self.wait_for_room().await?;
        }
        Ok(())
    }

    /// Waits until the client has acknowledged the whole reply or stops accepting it. Resets the
    /// stream if the client accepts no data for too long.
    pub async fn linger(&self) {
        if self.send_leftover().await.is_err() {
            return;
        }
        let thread = &self.connection.accepted.thread;
        let (mut progress, mut waited) = (self.connection.progress(), Duration::ZERO);
        while !self.is_reset.get() {
            let taken = poll_fn(|context| self.poll_acknowledged(context));
            if thread.deadlines.timeout(LOOK, taken).await.is_ok() {
                return;
            }
            waited += LOOK;
            let now = self.connection.progress();
            if now.is_beyond(progress) {
                (progress, waited) = (now, Duration::ZERO);
            } else {
                self.give_up_after(waited);
            }
        }
    }

    /// Completes when the client has acknowledged the whole reply or stops accepting it, or when
    /// the stream was reset.
    pub(super) fn poll_acknowledged(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_reset.get() { Poll::Ready(()) } else { self.poll_stopped(context).map(drop) }
    }

    /// Returns true if the client has acknowledged the whole reply, or if the stream was reset.
    pub(super) fn is_acknowledged(&self) -> bool {
        // `quinn` forgets an acknowledged stream, and then returns an error.
        self.is_reset.get() || self.send.borrow().priority().is_err()
    }

    /// Resets the stream if `waited`, the time without progress, has reached the time limit. While
    /// the server stops, the limit is at most `OUTAGE`.
    pub(super) fn give_up_after(&self, waited: Duration) {
        let thread = &self.connection.accepted.thread;
        let limit = self.write_limit.get().unwrap_or(thread.settings().timeouts.write);
        if waited >= limit || waited >= OUTAGE && thread.is_stopping() {
            self.give_up(ErrorCode::REQUEST_CANCELLED);
        }
    }

    pub(crate) fn abort(&self, why: Abort) {
        match why {
            Abort::ReplyLost => self.reset(self.lost_code()),
            Abort::Cancelled => self.reset(ErrorCode::REQUEST_CANCELLED),
        }
        self.is_closed.set(true);
    }

    /// Returns the reset code for a reply whose rest is not available.
    fn lost_code(&self) -> ErrorCode {
        if self.tunnel_idle.get().is_some() {
            return ErrorCode::REQUEST_CANCELLED;
        }
        ErrorCode::INTERNAL_ERROR
    }

    pub(super) fn reset(&self, code: ErrorCode) {
        // Ignore a failure, which means that the stream was already reset.
        let _ = self.send.borrow_mut().reset(code.0.into());
        self.is_reset.set(true);
        self.has_finished.set(true);
        self.frames.borrow_mut().clear();
    }

    /// Records that the client has cancelled the stream, and charges the client for this.
    pub(super) fn cancel(&self) {
        if !self.is_closed.replace(true) {
            self.connection.charge_reset();
        }
    }

    pub(crate) async fn cancelled(&self) {
        let thread = &self.connection.accepted.thread;
        while !self.is_closed.get() {
            let is_full = !self.incoming.borrow().is_empty();
            let cancelled = poll_fn(|context| self.poll_cancelled(context, is_full));
            if !is_full {
                cancelled.await;
            } else if thread.deadlines.timeout(LOOK, cancelled).await.is_err() {
                self.look_for_reset();
            }
        }
    }

    /// Completes when the client cancels the stream. `is_full` is true if the caller knows that
    /// unread data is stored. If `is_full` is false, also completes when such data arrives.
    fn poll_cancelled(&self, context: &mut Context<'_>, is_full: bool) -> Poll<()> {
        self.poll_leftover(context);
        // Only a read detects a reset, so read if no unread data is stored.
        if self.incoming.borrow().is_empty() && !self.has_ended.get() && !self.is_closed.get() {
            let _ = self.poll_readable(context);
        }
        // After a complete reply, `poll_stopped` completes with false, because the client can
        // cancel nothing.
        if !self.is_closed.get() && self.poll_stopped(context) == Poll::Ready(true) {
            self.cancel();
        }
        let is_newly_full = !is_full && !self.incoming.borrow().is_empty();
        if self.is_closed.get() || is_newly_full { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Checks for a reset by reading one byte. If the read fails, cancels the stream. Otherwise
    /// stores the byte for later.
    fn look_for_reset(&self) {
        // While data is unread, `quinn` wakes no task for a reset. After a reset, `quinn` drops the
        // unread data, so a read fails at once.
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        match self.receive.borrow_mut().poll_read(&mut context, &mut byte) {
            Poll::Ready(Ok(count)) => self.raw.borrow_mut().extend_from_slice(&byte[..count]),
            Poll::Ready(Err(_)) => self.cancel(),
            Poll::Pending => {}
        }
    }

    /// Completes with true if the client stops reading before it has accepted the whole reply.
    /// Completes with false when the client has acknowledged the whole reply.
    fn poll_stopped(&self, context: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.stopped.borrow_mut();
        loop {
            match &mut *state {
                Stopped::Unasked => {
                    let stopped = self.send.borrow().stopped();
                    let asked = Box::pin(async move { !matches!(stopped.await, Ok(None)) });
                    *state = Stopped::Asked(asked);
                }
                Stopped::Asked(stopped) => {
                    *state = Stopped::Known(ready!(stopped.as_mut().poll(context)));
                }
                Stopped::Known(is_given_up) => return Poll::Ready(*is_given_up),
            }
        }
    }

    pub(super) fn lost(&self) -> io::Error {
        let is_expired = self.is_expired.get();
        if is_expired { ErrorKind::TimedOut } else { ErrorKind::ConnectionReset }.into()
    }
}
