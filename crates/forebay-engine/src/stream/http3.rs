//! A stream of HTTP/3: a stream of QUIC, which it reads and writes itself.
//!
//! What a client may send before it is read, and what waits until a client has it, QUIC bounds
//! (`accept/quic.rs`). Beside that a stream holds what one read has brought.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use forebay_wire::fields;
use forebay_wire::http2;
use forebay_wire::http3::{self, ErrorCode, Event, Http3Error, RequestDecoder};
use quinn::{ReadError, RecvStream, SendStream, WriteError};

use super::{Abort, Head, Shared};
use crate::deadline::{NEVER, TICK, Ticks};
use crate::socket::BUFFER;

mod connection;
mod room_queue;

pub use connection::Connection;
use connection::Partial;
use room_queue::Waiting;

/// Bytes of a file that are read at a time.
const PIECE: usize = 2 * BUFFER;

/// How often who waits looks whether the server stops.
const LOOK: Duration = Duration::from_secs(1);

/// How many times as long as it may take nothing a client may leave one stream waiting while it takes
/// something of others.
const PATIENCE: u32 = 10;

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
    /// Once the backlog is written these trailers end the reply.
    trailers: RefCell<Option<Vec<u8>>>,
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
            trailers: RefCell::default(),
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
            self.connection.earn();
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
        let (mut sent, mut waited) = (self.connection.sent(), Duration::ZERO);
        while !self.is_reset.get() {
            let taken = poll_fn(|context| self.poll_stopped(context).map(drop));
            if thread.deadlines.timeout(LOOK, taken).await.is_ok() {
                return;
            }
            waited += LOOK;
            if sent != self.connection.sent() {
                (sent, waited) = (self.connection.sent(), Duration::ZERO);
            } else if waited >= limit || thread.is_stopping() {
                self.give_up(ErrorCode::REQUEST_CANCELLED);
            }
        }
    }

    pub(super) fn abort(&self, why: Abort) {
        match why {
            Abort::ReplyLost => self.reset(self.lost_code()),
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

/// What comes.
impl Http3 {
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<io::Result<Arrived>> {
        loop {
            match self.decode() {
                Ok(Some(came)) => return Poll::Ready(Ok(came)),
                Ok(None) => {}
                Err(error) => {
                    self.fail(&error);
                    return Poll::Ready(Err(self.lost()));
                }
            }
            if self.has_ended.get() {
                return Poll::Ready(Ok(Arrived::End));
            }
            let thread = &self.connection.accepted.thread;
            let mut raw = thread.take_buffer();
            raw.resize(BUFFER, 0);
            let read = self.receive.borrow_mut().poll_read(context, &mut raw);
            let count = if let Poll::Ready(Ok(count)) = read { count } else { 0 };
            raw.truncate(count);
            if raw.is_empty() {
                thread.keep_buffer(raw);
            } else {
                self.raw.replace(raw);
            }
            match ready!(read) {
                Ok(0) => {
                    let ended = self.decoder.borrow().end();
                    if let Err(error) = ended {
                        self.fail(&error);
                        return Poll::Ready(Err(self.lost()));
                    }
                    self.has_ended.set(true);
                }
                Ok(_) => {}
                Err(ReadError::Reset(_)) => {
                    self.cancel();
                    return Poll::Ready(Err(self.lost()));
                }
                Err(_) => {
                    self.is_closed.set(true);
                    return Poll::Ready(Err(self.lost()));
                }
            }
        }
    }

    /// Takes apart what was read.
    fn decode(&self) -> Result<Option<Arrived>, Http3Error> {
        let mut raw = self.raw.borrow_mut();
        if raw.is_empty() {
            return Ok(None);
        }
        let mut decoder = self.decoder.borrow_mut();
        let (mut read, mut came) = (0, None);
        // Data of many small frames is taken at once.
        while read < raw.len() && matches!(came, None | Some(Arrived::Data)) {
            let rest = &raw[read..];
            let step = decoder.decode(rest)?;
            match step.event {
                None => {}
                Some(Event::Section) => came = Some(Arrived::Section),
                Some(Event::TooLarge) => came = Some(Arrived::TooLarge),
                Some(Event::Data(data)) => {
                    self.incoming.borrow_mut().extend_from_slice(&rest[data]);
                    came = Some(Arrived::Data);
                }
            }
            read += step.consumed;
        }
        raw.drain(..read);
        self.partial.set(decoder.section_len())?;
        if raw.is_empty() {
            self.connection.accepted.thread.keep_buffer(std::mem::take(&mut raw));
        }
        Ok(came)
    }

    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_leftover(context);
        while !self.is_readable() {
            match ready!(self.poll_next(context)) {
                Ok(Arrived::Section) => self.receive_trailers(),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        Poll::Ready(())
    }

    fn is_readable(&self) -> bool {
        !self.incoming.borrow().is_empty()
            || self.has_ended.get()
            || self.is_closed.get()
            || self.is_expired.get()
    }

    fn receive_trailers(&self) {
        let section = self.take_section();
        // Not where the request's own head lies until it is written down.
        let mut head = http2::Head::default();
        match http3::read_trailers(&section, self.connection.list_limits(), &mut head) {
            Ok(()) => head.write_trailers(&mut self.request_trailers.borrow_mut()),
            Err(error) => self.fail(&error),
        }
    }

    pub(super) async fn read(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        self.limit_read(limit);
        self.readable().await;
        let read = self.read_now(buffer);
        self.read_due.set(NEVER);
        read
    }

    pub(super) fn has_request_ended(&self) -> bool {
        self.has_ended.get()
    }

    pub(super) fn request_trailers(&self) -> Vec<u8> {
        self.request_trailers.borrow().clone()
    }

    pub(super) fn limit_read(&self, after: Duration) {
        self.read_due.set(self.connection.accepted.thread.deadlines.due(after));
    }

    pub(super) fn is_expired(&self) -> bool {
        self.is_expired.get()
    }

    pub(super) async fn readable(&self) {
        let thread = &self.connection.accepted.thread;
        loop {
            let readable = poll_fn(|context| self.poll_readable(context));
            let (due, is_tunnel) = (self.read_due.get(), self.tunnel_idle.get().is_some());
            if due == NEVER && !is_tunnel {
                return readable.await;
            }
            let left = TICK.saturating_mul(due.saturating_sub(thread.deadlines.now()));
            let wait = if is_tunnel { left.min(LOOK) } else { left };
            if thread.deadlines.timeout(wait, readable).await.is_ok() {
                return;
            }
            if is_tunnel && thread.is_stopping() {
                let quiet = thread.deadlines.tunnel_quiet();
                self.read_due.set(self.read_due.get().min(quiet));
            }
            if self.read_due.get() <= thread.deadlines.now() {
                self.read_due.set(NEVER);
                self.is_expired.set(true);
                return;
            }
        }
    }

    pub(super) fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let incoming = std::mem::take(&mut *self.incoming.borrow_mut());
        if !incoming.is_empty() {
            buffer.extend_from_slice(&incoming);
            return Ok(incoming.len());
        }
        if self.is_closed.get() || self.is_expired.get() {
            return Err(self.lost());
        }
        if self.has_ended.get() { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) }
    }
}

/// What goes out.
impl Http3 {
    pub(super) fn send_continue(&self) -> io::Result<()> {
        self.send_reply(100, b"", false)
    }

    /// Sends a head, which may be all of the reply.
    pub(super) fn send_head(&self, head: &Head<'_>, ends: bool) -> io::Result<()> {
        if !self.is_tunnel.get() {
            return self.send_reply(head.status, head.lines, ends);
        }
        let (status, lines) = head.of_tunnel()?;
        self.send_reply(status, &lines, ends && status >= 300)
    }

    fn send_reply(&self, status: u16, lines: &[u8], ends: bool) -> io::Result<()> {
        if self.is_closed.get() {
            return Err(self.lost());
        }
        let fields = fields::of_lines(lines);
        http3::head(&mut self.frames.borrow_mut(), status, fields);
        self.flush(ends && status >= 200)
    }

    /// Writes the frames that wait, as far as there is room; nothing follows them where they `end` the
    /// reply.
    fn flush(&self, end: bool) -> io::Result<()> {
        if end {
            self.has_finished.set(true);
        }
        let mut context = Context::from_waker(Waker::noop());
        match self.poll_frames(&mut context) {
            Poll::Ready(outcome) => outcome,
            // Whoever writes next or waits for the client has it sent.
            Poll::Pending => Ok(()),
        }
    }

    /// Sends frames for which there was no room, such as a head behind which the origin is silent.
    fn poll_leftover(&self, context: &mut Context<'_>) {
        if !self.frames.borrow().is_empty() && !self.is_closed.get() {
            // Where it fails the stream is closed.
            let _ = self.poll_frames(context);
        }
    }

    fn poll_frames(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.frames.borrow().is_empty() {
            let mut frames = self.frames.borrow_mut();
            let written = Pin::new(&mut *self.send.borrow_mut()).poll_write(context, &frames);
            match ready!(written) {
                Ok(count) => drop(frames.drain(..count)),
                Err(error) => {
                    drop(frames);
                    return Poll::Ready(Err(self.write_failed(&error)));
                }
            }
        }
        if self.has_finished.get() {
            // Fails where it was reset, which shows elsewhere.
            let _ = self.send.borrow_mut().finish();
        }
        Poll::Ready(Ok(()))
    }

    fn write_failed(&self, error: &WriteError) -> io::Error {
        match error {
            WriteError::Stopped(_) => self.cancel(),
            _ => self.is_closed.set(true),
        }
        self.lost()
    }

    /// Sends some of what is not empty, or the `end`; 0 where there is no room.
    pub(super) fn try_write(&self, pieces: &[IoSlice<'_>], end: bool) -> io::Result<u64> {
        if self.is_closed.get() {
            return Err(self.lost());
        }
        if self.frame_left.get() == 0 {
            let length = pieces.iter().map(|piece| piece.len() as u64).sum();
            http3::data_header(&mut self.frames.borrow_mut(), length);
            self.frame_left.set(length);
        }
        let mut context = Context::from_waker(Waker::noop());
        if self.poll_frames(&mut context)?.is_pending() {
            return Ok(0);
        }
        let mut total = 0;
        for (at, piece) in pieces.iter().enumerate() {
            let is_last = end && at + 1 == pieces.len();
            let taken = self.try_write_piece(piece, &mut context)?;
            total += taken as u64;
            if taken < piece.len() {
                break;
            }
            if is_last {
                self.flush(true)?;
            }
        }
        Ok(total)
    }

    /// Sends some of a piece, within the frame that was begun.
    fn try_write_piece(&self, piece: &[u8], context: &mut Context<'_>) -> io::Result<usize> {
        let mut total = 0;
        while total < piece.len() && self.frame_left.get() > 0 {
            let most = usize::try_from(self.frame_left.get()).unwrap_or(usize::MAX);
            let rest = &piece[total..];
            let rest = &rest[..rest.len().min(most)];
            let written = Pin::new(&mut *self.send.borrow_mut()).poll_write(context, rest);
            match written {
                Poll::Ready(Ok(count)) => {
                    total += count;
                    self.frame_left.set(self.frame_left.get() - count as u64);
                }
                Poll::Ready(Err(error)) => return Err(self.write_failed(&error)),
                Poll::Pending => break,
            }
        }
        Ok(total)
    }

    pub(super) async fn write_through(
        &self,
        mut pieces: &mut [IoSlice<'_>],
        end: bool,
    ) -> io::Result<()> {
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            match self.try_write(pieces, end)? {
                0 => self.wait_for_room().await?,
                n => IoSlice::advance_slices(&mut pieces, n as usize),
            }
        }
        Ok(())
    }

    pub(super) async fn wait_for_room(&self) -> io::Result<()> {
        let thread = &self.connection.accepted.thread;
        let limit = self.tunnel_idle.get().unwrap_or(thread.settings().timeouts.write);
        let (mut sent, mut left) = (self.connection.sent(), PATIENCE);
        let mut waiting = Waiting::new(&self.connection.waiting);
        loop {
            let room = poll_fn(|context| self.poll_room(context, &mut waiting));
            if let Ok(outcome) = thread.deadlines.timeout(limit, room).await {
                return outcome;
            }
            left -= 1;
            if sent == self.connection.sent() || left == 0 {
                self.is_expired.set(true);
                self.is_closed.set(true);
                self.give_up(ErrorCode::REQUEST_CANCELLED);
                return Err(self.lost());
            }
            sent = self.connection.sent();
        }
    }

    /// Whether there is room. Of several streams that wait for the same, most let others go first.
    fn poll_room(
        &self,
        context: &mut Context<'_>,
        waiting: &mut Waiting<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_closed.get() {
            return Poll::Ready(Err(self.lost()));
        }
        if waiting.lets_others_go() {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_frames(context))?;
        // Of nothing, as much as there is is written once there is room.
        match ready!(Pin::new(&mut *self.send.borrow_mut()).poll_write(context, b"")) {
            Ok(_) => Poll::Ready(Ok(())),
            Err(WriteError::ClosedStream) if self.has_finished.get() => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(self.write_failed(&error))),
        }
    }

    /// The reply has ended with these trailers; they wait for the backlog, where there is one.
    pub(super) fn finish(&self, trailers: &[u8], has_backlog: bool) -> io::Result<()> {
        if self.has_finished.get() {
            return Ok(());
        }
        if has_backlog {
            *self.trailers.borrow_mut() = Some(trailers.to_vec());
            return Ok(());
        }
        self.send_end(trailers)
    }

    /// The backlog is written.
    pub(super) fn drained(&self) -> io::Result<()> {
        match self.trailers.take() {
            Some(trailers) => self.send_end(&trailers),
            None => Ok(()),
        }
    }

    fn send_end(&self, trailers: &[u8]) -> io::Result<()> {
        if self.is_closed.get() {
            return Err(self.lost());
        }
        if !trailers.is_empty() {
            http3::trailers(&mut self.frames.borrow_mut(), fields::of_lines(trailers));
        }
        self.flush(true)
    }

    pub(super) async fn send_file(
        &self,
        file: BorrowedFd<'_>,
        mut offset: u64,
        mut length: u64,
        ends: bool,
    ) -> io::Result<()> {
        let mut piece = Vec::new();
        while length > 0 {
            piece.resize(PIECE.min(usize::try_from(length).unwrap_or(PIECE)), 0);
            let count = rustix::io::pread(file, &mut piece[..], offset)?;
            if count == 0 {
                // The file has become shorter since its length was sent to the client.
                return Err(ErrorKind::UnexpectedEof.into());
            }
            offset += count as u64;
            length -= count as u64;
            let is_last = ends && length == 0;
            self.write_through(&mut [IoSlice::new(&piece[..count])], is_last).await?;
        }
        Ok(())
    }

    /// From now on its client may leave a window closed as long as the tunnel may carry nothing.
    pub(super) fn begin_tunnel(&self, idle: Duration) {
        self.tunnel_idle.set(Some(idle));
    }

    pub(super) fn finish_writing(&self) {
        // Where it fails the client is not there.
        let _ = self.send_end(b"");
    }
}
