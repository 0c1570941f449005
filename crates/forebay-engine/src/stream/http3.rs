//! A stream of HTTP/3: a stream of QUIC, which it reads and writes itself.
//!
//! What a client may send before it is read, and what waits until a client has it, QUIC bounds
//! (`accept/quic.rs`). Beside that a stream holds what one read has brought.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use forebay_wire::http2::budget;
use forebay_wire::http3::{ErrorCode, Http3Error, RequestDecoder};
use quinn::{RecvStream, SendStream};

use super::{Abort, Shared};
use crate::deadline::{NEVER, Ticks};

mod connection;
mod receive;
mod room_queue;
mod send;

use connection::Partial;
pub use connection::{Connection, Open};

/// How often who waits looks whether the server stops.
const LOOK: Duration = Duration::from_secs(1);

/// How long a stopping server waits for a client that takes nothing of the last replies, as after the loss
/// of its network.
const OUTAGE: Duration = Duration::from_secs(5);

/// What a stream has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Some of the body.
    Data,
    /// The head, or the trailers.
    Section,
    /// A head that is too large, which was not read.
    TooLarge,
    /// Nothing more comes.
    End,
}

/// One stream.
pub struct Http3 {
    /// Its connection.
    pub connection: Rc<Connection>,
    pub(super) shared: Shared,
    /// Whether a tunnel is requested (RFC 9220).
    is_tunnel: Cell<bool>,
    receive: RefCell<RecvStream>,
    decoder: RefCell<RequestDecoder>,
    partial: Partial,
    /// What one read has brought and was not decoded.
    raw: RefCell<Vec<u8>>,
    /// What came of the body and was not read.
    incoming: RefCell<Vec<u8>>,
    /// Nothing more comes.
    has_ended: Cell<bool>,
    /// The trailers of its request that may be passed on, as lines.
    request_trailers: RefCell<Vec<u8>>,
    send: RefCell<SendStream>,
    /// Heads of frames, and frames that are no DATA, that go before anything else.
    frames: RefCell<Vec<u8>>,
    /// What is left of the DATA frame that was begun.
    frame_left: Cell<u64>,
    /// Nothing more is sent behind `frames`.
    has_finished: Cell<bool>,
    /// It was reset, or its connection has ended.
    is_closed: Cell<bool>,
    /// A time limit has passed.
    is_expired: Cell<bool>,
    read_due: Cell<Ticks>,
    /// Where it carries a tunnel: how long that may carry nothing.
    tunnel_idle: Cell<Option<Duration>>,
    /// We have reset it.
    is_reset: Cell<bool>,
    stopped: RefCell<Stopped>,
}

/// Whether the client takes no more.
#[derive(Default)]
enum Stopped {
    #[default]
    Unasked,
    Asked(Pin<Box<dyn Future<Output = bool>>>),
    /// `true` where it has not taken all.
    Known(bool),
}

impl Http3 {
    /// A stream whose request is to come.
    pub fn new(
        connection: Rc<Connection>,
        (send, receive): (SendStream, RecvStream),
        largest_section: usize,
    ) -> Self {
        Self {
            partial: Partial::new(connection.clone()),
            connection,
            shared: Shared::default(),
            is_tunnel: Cell::new(false),
            receive: RefCell::new(receive),
            decoder: RefCell::new(RequestDecoder::new(largest_section)),
            raw: RefCell::default(),
            incoming: RefCell::default(),
            has_ended: Cell::new(false),
            request_trailers: RefCell::default(),
            send: RefCell::new(send),
            frames: RefCell::default(),
            frame_left: Cell::new(0),
            has_finished: Cell::new(false),
            is_closed: Cell::new(false),
            is_expired: Cell::new(false),
            read_due: Cell::new(NEVER),
            tunnel_idle: Cell::new(None),
            is_reset: Cell::new(false),
            stopped: RefCell::default(),
        }
    }

    /// A tunnel is requested.
    pub fn expect_tunnel(&self) {
        self.is_tunnel.set(true);
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.is_tunnel.get()
    }

    /// Sends this reply before those whose urgency is a larger number (RFC 9218).
    pub fn set_urgency(&self, urgency: u8) {
        // Fails where it was reset, which shows elsewhere.
        let _ = self.send.borrow().set_priority(-i32::from(urgency));
    }

    /// Its body has as many bytes as the head says, where it does.
    pub fn expect_content(&self, length: Option<u64>) {
        self.decoder.borrow_mut().expect_content(length);
    }

    /// Takes the head that has come.
    pub fn take_section(&self) -> Vec<u8> {
        let section = self.decoder.borrow_mut().take_section();
        // Less than before is never too much.
        let _ = self.partial.set(0);
        section
    }

    /// Waits for what comes next; an error where the stream or its connection is lost.
    pub async fn next(&self) -> io::Result<Arrived> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Whether nothing but the end of the request has come yet, without waiting.
    pub fn has_no_body(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        // Who waits for it registers anew.
        let _ = self.poll_readable(&mut context);
        self.has_ended.get() && self.incoming.borrow().is_empty()
    }

    /// What comes of the request is not read: its head is refused.
    pub fn read_no_more(&self) {
        // Fails where it has ended already.
        let _ = self.receive.borrow_mut().stop(ErrorCode::NO_ERROR.0.into());
        self.raw.borrow_mut().clear();
        self.has_ended.set(true);
    }

    /// The client has broken a rule. A reset that it makes us send costs it as much as one of its own.
    pub fn fail(&self, error: &Http3Error) {
        let was_closed = self.is_closed.replace(true);
        if error.ends_connection {
            self.connection.fail(error);
        } else if !was_closed {
            self.give_up(error.code);
            self.connection.charge_reset();
        }
    }

    /// Whether it was reset, or has ended with its connection.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Ends both directions.
    pub fn give_up(&self, code: ErrorCode) {
        // Each fails where it has ended already.
        let _ = self.receive.borrow_mut().stop(code.0.into());
        self.reset(code);
    }

    /// Its request is answered as far as it ever will be.
    pub(super) fn close(&self) {
        if !self.has_finished.get() {
            self.reset(self.lost_code());
        }
        if !self.has_ended.get() {
            // The rest of the request is of no use (RFC 9114 section 4.1).
            let _ = self.receive.borrow_mut().stop(ErrorCode::NO_ERROR.0.into());
        }
        if !self.is_closed.get() {
            self.connection.earn(budget::STREAM_DONE);
        }
    }

    /// Waits until the client has all of the reply, or takes no more of it.
    pub async fn linger(&self) {
        while !self.frames.borrow().is_empty() && !self.is_closed.get() {
            if self.wait_for_room().await.is_err() {
                return;
            }
        }
        let thread = &self.connection.accepted.thread;
        let limit = thread.settings().timeouts.write;
        let (mut progress, mut waited) = (self.connection.progress(), Duration::ZERO);
        while !self.is_reset.get() {
            let taken = poll_fn(|context| self.poll_stopped(context).map(drop));
            if thread.deadlines.timeout(LOOK, taken).await.is_ok() {
                return;
            }
            waited += LOOK;
            let now = self.connection.progress();
            if now.is_beyond(progress) {
                (progress, waited) = (now, Duration::ZERO);
            } else if waited >= limit || waited >= OUTAGE && thread.is_stopping() {
                self.give_up(ErrorCode::REQUEST_CANCELLED);
            }
        }
    }

    pub(super) fn abort(&self, why: Abort) {
        match why {
            Abort::ReplyLost => self.reset(self.lost_code()),
            Abort::Cancelled => self.reset(ErrorCode::REQUEST_CANCELLED),
        }
        self.is_closed.set(true);
    }

    /// The code of a reset where the rest cannot be had.
    fn lost_code(&self) -> ErrorCode {
        if self.tunnel_idle.get().is_some() {
            return ErrorCode::REQUEST_CANCELLED;
        }
        ErrorCode::INTERNAL_ERROR
    }

    fn reset(&self, code: ErrorCode) {
        // Fails where it was reset already.
        let _ = self.send.borrow_mut().reset(code.0.into());
        self.is_reset.set(true);
        self.has_finished.set(true);
        self.frames.borrow_mut().clear();
    }

    /// The client has given it up.
    fn cancel(&self) {
        if !self.is_closed.replace(true) {
            self.connection.charge_reset();
        }
    }

    pub(super) async fn cancelled(&self) {
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

    /// Ready where the client has given it up, and where there is something unread that was not before.
    fn poll_cancelled(&self, context: &mut Context<'_>, is_full: bool) -> Poll<()> {
        self.poll_leftover(context);
        // A reset is found by reading, where nothing waits to be read.
        if self.incoming.borrow().is_empty() && !self.has_ended.get() && !self.is_closed.get() {
            let _ = self.poll_readable(context);
        }
        // Where all was taken nothing can be given up any more.
        if !self.is_closed.get() && self.poll_stopped(context) == Poll::Ready(true) {
            self.cancel();
        }
        let is_newly_full = !is_full && !self.incoming.borrow().is_empty();
        if self.is_closed.get() || is_newly_full { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Finds out whether the client has reset its request, behind data that nobody reads: QUIC does not
    /// wake for it before that is read, nor does it have the data any more then. So one byte is read.
    fn look_for_reset(&self) {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        match self.receive.borrow_mut().poll_read(&mut context, &mut byte) {
            Poll::Ready(Ok(count)) => self.raw.borrow_mut().extend_from_slice(&byte[..count]),
            Poll::Ready(Err(_)) => self.cancel(),
            Poll::Pending => {}
        }
    }

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

    fn lost(&self) -> io::Error {
        let is_expired = self.is_expired.get();
        if is_expired { ErrorKind::TimedOut } else { ErrorKind::ConnectionReset }.into()
    }
}
