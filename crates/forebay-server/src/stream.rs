//! One request and its reply on a client's connection, in any protocol. Bodies are read from a
//! stream, and replies are written to it. Each variant encodes bytes for its protocol.
//!
//! The connections of each protocol, such as `http1::connection`, interpret requests and decide
//! when a connection ends.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_conf::OnAbort;
use forebay_net::deadline::TICK;
use forebay_net::socket::{Lingering, SILENCE, Socket, yield_to_readers};
use forebay_net::thread::Thread;
use forebay_net::timing::{Step, StepTimer, Steps};
use forebay_wire::ClientAddress;
use forebay_wire::http1::{BodyDecoder, RequestFraming, ResponseFraming};
use tokio::net::UnixStream;

use crate::ajp::stream::AjpStream;
use crate::backlog::Backlog;
use crate::http1::stream::{self as http1, Http1};
use crate::http2::stream::Http2;
use crate::http3::stream::Http3;
use crate::part::{Abort, Accepted, Head, HeadEnd, Left, Part, SharedState};

mod ajp;
mod backlog;
mod included;

pub use included::{IncludeState, Included, IncludedReply};

/// One request and its reply, over any protocol. All clones refer to the same request. The
/// request's body and the reply hold one clone each.
// The methods box the futures of HTTP/3, because these futures contain large timers. Requests over
// other protocols then need no memory for the timers.
#[derive(Clone)]
pub enum Stream {
    /// The current request of an HTTP/1 connection.
    Http1(Rc<Http1>),
    /// A stream of HTTP/2.
    Http2(Rc<Http2>),
    /// A stream of HTTP/3.
    Http3(Rc<Http3>),
    /// The current request of an AJP connection.
    Ajp(Rc<AjpStream>),
    /// A request that a page makes with server-side includes.
    Included(Rc<Included>),
}

impl Stream {
    /// Creates a stream without a client, for requests that Forebay itself makes. Nothing can be
    /// read from the stream, and several requests may share it.
    pub(crate) fn without_client(thread: &Rc<Thread>) -> io::Result<Self> {
        // The other end closes at once, so that nothing can be read from the stream.
        let (socket, _) = UnixStream::pair()?;
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let accepted = Accepted {
            thread: thread.clone(),
            peer: nowhere.into(),
            local: nowhere,
            listener: usize::MAX,
            tls: None,
        };
        let socket = Socket::unix(socket, &thread.deadlines);
        Ok(Self::Http1(Rc::new(Http1::new(socket, accepted))))
    }

    /// Returns the client's connection, which may carry further requests.
    pub fn accepted(&self) -> &Accepted {
        match self {
            Self::Http1(stream) => &stream.accepted,
            Self::Http2(stream) => &stream.connection.accepted,
            Self::Http3(stream) => &stream.connection.accepted,
            Self::Ajp(stream) => &stream.accepted,
            Self::Included(stream) => &stream.accepted,
        }
    }

    /// Returns the client's address: the other end of the connection, or the client that a web
    /// server names over AJP.
    pub fn peer(&self) -> ClientAddress {
        match self {
            Self::Http1(_) | Self::Http2(_) | Self::Http3(_) => self.accepted().peer,
            Self::Ajp(stream) => stream.client(),
            Self::Included(stream) => stream.parent.peer(),
        }
    }

    fn shared(&self) -> &SharedState {
        match self {
            Self::Http1(stream) => &stream.shared,
            Self::Http2(stream) => &stream.shared,
            Self::Http3(stream) => &stream.shared,
            Self::Ajp(stream) => &stream.shared,
            Self::Included(stream) => &stream.shared,
        }
    }

    fn backlog(&self) -> &Backlog {
        &self.shared().backlog
    }

    /// Returns the thread that serves the stream.
    pub fn thread(&self) -> &Rc<Thread> {
        &self.accepted().thread
    }

    /// Returns the timer of the request's steps.
    pub fn timer(&self) -> &StepTimer {
        &self.shared().timer
    }

    /// Starts the timer when a request head begins to arrive.
    pub fn begin_steps(&self) {
        if self.thread().is_timing() {
            self.timer().begin();
            if self.thread().is_tracing() {
                self.timer().record();
            }
        }
    }

    /// Records that the request enters another step. Returns the previous step, or `None` if no
    /// request is measured.
    pub fn enter(&self, step: Step) -> Option<Step> {
        self.timer().enter(step)
    }

    /// Counts the duration of each step after the reply has been written. Returns the steps, if
    /// they were timed.
    pub fn end_steps(&self) -> Option<Box<Steps>> {
        let mut steps = self.timer().take()?;
        steps.enter(Step::Reply);
        if self.thread().reports_steps() {
            self.thread().counters.count_steps(steps.ended());
        }
        Some(steps)
    }

    /// Returns the decoder that extracts the payload from the bytes of [`Self::read`].
    pub fn body_decoder(&self, framing: RequestFraming) -> BodyDecoder {
        match self {
            Self::Http1(_) => BodyDecoder::request(framing).keeping_trailers(),
            // The streams of these protocols remove the framing themselves.
            Self::Http2(_) | Self::Http3(_) | Self::Ajp(_) | Self::Included(_) => match framing {
                RequestFraming::Chunked => BodyDecoder::response(ResponseFraming::Close),
                framing => BodyDecoder::request(framing),
            },
        }
    }

    /// Returns true if the end of the request has arrived. Over HTTP/2 and HTTP/3, the end may
    /// arrive after the last byte of the body. For the other protocols, always returns true.
    pub fn has_request_ended(&self) -> bool {
        match self {
            Self::Http2(stream) => stream.has_request_ended(),
            Self::Http3(stream) => stream.has_request_ended(),
            Self::Http1(_) | Self::Ajp(_) | Self::Included(_) => true,
        }
    }

    /// Returns the trailers of an HTTP/2 or HTTP/3 request, as lines. Returns nothing over
    /// HTTP/1.1, because the body decoder has the trailers.
    pub fn request_trailers(&self) -> Vec<u8> {
        match self {
            Self::Http2(stream) => stream.request_trailers(),
            Self::Http3(stream) => stream.request_trailers(),
            Self::Http1(_) | Self::Ajp(_) | Self::Included(_) => Vec::new(),
        }
    }

    /// Returns true if the stream can end before its whole request has arrived, and its connection
    /// then continues. Returns false over HTTP/1.
    pub fn ends_alone(&self) -> bool {
        !matches!(self, Self::Http1(_))
    }

    /// Returns true if the client requests a tunnel with extended CONNECT. A reply with status 2xx
    /// then opens the tunnel (RFC 8441 section 5, RFC 9220).
    pub fn asks_for_tunnel(&self) -> bool {
        match self {
            Self::Http2(stream) => stream.is_tunnel(),
            Self::Http3(stream) => stream.is_tunnel(),
            Self::Http1(_) | Self::Ajp(_) | Self::Included(_) => false,
        }
    }

    /// Returns true if the protocol itself marks the end of a body. Returns false over HTTP/1,
    /// because HTTP/1.0 clients accept no chunks.
    pub fn frames_bodies(&self) -> bool {
        !matches!(self, Self::Http1(_))
    }

    /// Stores `has_input`, which is true if received bytes of a body or of the next request are
    /// unread. Does nothing over protocols other than HTTP/1.
    pub fn set_has_input(&self, has_input: bool) {
        match self {
            Self::Http1(stream) => stream.set_has_input(has_input),
            Self::Http2(_) | Self::Http3(_) | Self::Ajp(_) | Self::Included(_) => {}
        }
    }

    /// Limits the time that writes wait for a client that reads nothing. `None` means the limit of
    /// the server.
    pub fn limit_writes(&self, limit: Option<Duration>) {
        match self {
            Self::Http1(stream) => stream.limit_writes(limit),
            Self::Http2(stream) => stream.limit_writes(limit),
            Self::Http3(stream) => stream.write_limit.set(limit),
            // Ignore the route's limit: a web server reads at its own speed, and an included reply
            // stays in memory.
            Self::Ajp(_) | Self::Included(_) => {}
        }
    }

    /// Ends the stream after its reply. Does nothing over HTTP/1 and AJP, because the stream is the
    /// whole connection.
    pub fn close(&self) {
        match self {
            Self::Http2(stream) => stream.close(),
            Self::Http3(stream) => stream.close(),
            Self::Http1(_) | Self::Ajp(_) | Self::Included(_) => {}
        }
    }

    /// Sends `100 Continue` to a client that waits for this reply before it sends the body.
    pub async fn send_continue(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.send_continue().await,
            Self::Http2(stream) => stream.send_continue(),
            Self::Http3(stream) => stream.send_continue(),
            // The web server itself sends `100 Continue` when it reads the body.
            Self::Ajp(_) | Self::Included(_) => Ok(()),
        }
    }

    /// Waits until body bytes can be read, so that the caller needs no buffer until then; at most
    /// `limit`, which the next [`Self::read`] reports. Over AJP, returns at once, because a web
    /// server sends the body when it is asked for it.
    pub async fn body_readable(&self, limit: Duration) -> io::Result<()> {
        if let Self::Ajp(_) = self {
            return Ok(());
        }
        self.limit_read(limit);
        self.readable().await
    }

    /// Reads after [`Self::body_readable`]. Over HTTP/1, fails with `WouldBlock` if nothing has
    /// arrived in spite of it; the other protocols wait, because this does not occur there.
    pub async fn read_body_now(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        let Self::Http1(stream) = self else { return self.read(buffer, limit).await };
        let read = stream.socket.read_now(buffer);
        if !matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            stream.socket.unlimit_read();
        }
        read
    }

    /// Appends received body bytes to `buffer`, which must have spare capacity. Returns 0 at the
    /// end. Fails with `TimedOut` if nothing arrives within `limit`.
    pub async fn read(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        match self {
            Self::Http1(stream) => stream.read(buffer, limit).await,
            Self::Http2(stream) => stream.read(buffer, limit).await,
            Self::Http3(stream) => Box::pin(stream.read(buffer, limit)).await,
            Self::Ajp(stream) => self.read_body(stream, buffer, limit).await,
            // An included request has no body.
            Self::Included(_) => Ok(0),
        }
    }

    /// Begins the head of a reply in `out`. An empty `reason` selects the standard phrase. Writes
    /// nothing over HTTP/2 and HTTP/3, which have no status line.
    pub fn begin_head(&self, out: &mut Vec<u8>, status: u16, reason: &[u8]) {
        match self {
            Self::Http1(_) | Self::Ajp(_) => http1::begin_head(out, status, reason),
            Self::Http2(_) | Self::Http3(_) | Self::Included(_) => {}
        }
    }

    /// Ends the head of a final or interim reply in `out`.
    pub fn end_head(&self, out: &mut Vec<u8>, end: &HeadEnd) {
        match self {
            Self::Http1(_) => http1::end_head(out, end),
            Self::Http2(_) | Self::Http3(_) | Self::Included(_) => {}
            Self::Ajp(stream) => stream.set_keep_alive(end.keep_alive),
        }
    }

    /// Queues a part of a reply, which is sent after all ready tasks have run. Returns false, and
    /// does nothing, if the caller must use [`Self::write`] instead.
    pub fn write_later(&self, part: &Part<'_>) -> bool {
        matches!(self, Self::Http1(stream) if part.may_wait
            && part.is_one_piece()
            && !self.has_backlog()
            && stream.socket.send_soon(part.gathered))
    }

    /// Writes a part of a reply as fast as the client accepts it. If `keeps`, the backlog stores
    /// the bytes that the client does not accept at once. Drops the part if the client has left.
    pub async fn write(&self, part: Part<'_>, keeps: bool) -> io::Result<()> {
        if self.lost().is_some() {
            return Ok(());
        }
        match self {
            Self::Http1(_) => {
                let size = part.chunk_size();
                let (mut pieces, count) = part.pieces(&size);
                self.write_pieces(&mut pieces[..count], keeps, false).await
            }
            Self::Http2(_) | Self::Http3(_) => self.write_frames(part, keeps).await,
            Self::Ajp(stream) => self.write_packets(stream, part, keeps).await,
            Self::Included(stream) => stream.write(&part),
        }
    }

    /// Writes a part of a reply over a protocol that has separate frames for head and body.
    async fn write_frames(&self, part: Part<'_>, keeps: bool) -> io::Result<()> {
        let (head, body) = part.gathered.split_at(part.body_at);
        // Pass only non-empty pieces.
        let (mut pieces, count) = match (body, part.data) {
            (b"", b"") => ([IoSlice::new(b""); 2], 0),
            (one, b"") | (b"", one) => ([IoSlice::new(one), IoSlice::new(b"")], 1),
            both => ([IoSlice::new(both.0), IoSlice::new(both.1)], 2),
        };
        let pieces = &mut pieces[..count];
        let ends = part.last == Some(b"");
        if part.has_head {
            let head = Head { status: part.status, lines: &head[part.fields_at..] };
            match self {
                Self::Http3(stream) if !pieces.is_empty() => stream.begin_head(&head)?,
                _ => self.send_head(&head, ends && pieces.is_empty())?,
            }
        }
        if !pieces.is_empty() {
            self.write_pieces(pieces, keeps, ends).await?;
        }
        match part.last {
            Some(trailers) if !self.keep_end(trailers) => self.send_end(trailers),
            _ => Ok(()),
        }
    }

    fn send_head(&self, head: &Head<'_>, ends: bool) -> io::Result<()> {
        match self {
            Self::Http2(stream) => stream.send_head(head, ends),
            Self::Http3(stream) => stream.send_head(head, ends),
            Self::Http1(_) | Self::Ajp(_) | Self::Included(_) => Ok(()),
        }
    }

    /// Ends the reply over a protocol that has a frame for the end of a reply.
    fn send_end(&self, trailers: &[u8]) -> io::Result<()> {
        match self {
            Self::Http2(stream) => stream.send_end(trailers),
            Self::Http3(stream) => stream.send_end(trailers),
            Self::Http1(_) | Self::Ajp(_) | Self::Included(_) => Ok(()),
        }
    }

    /// Sends `length` bytes of `file` from `offset` on, without copying them if possible. Ends the
    /// reply if `ends`.
    pub async fn send_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        ends: bool,
    ) -> io::Result<()> {
        if self.lost().is_some() {
            return Ok(());
        }
        match self {
            Self::Http1(stream) => stream.socket.send_file(file, offset, length).await,
            Self::Http2(stream) => stream.send_file(file, offset, length, ends).await,
            Self::Http3(stream) => Box::pin(stream.send_file(file, offset, length, ends)).await,
            Self::Ajp(stream) => self.send_file_packets(stream, file, offset, length, ends).await,
            Self::Included(stream) => stream.send_file(file, offset, length, ends),
        }
    }

    async fn write_through(&self, pieces: &mut [IoSlice<'_>], ends: bool) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.write_pieces(pieces).await,
            Self::Http2(stream) => stream.write_through(pieces, ends).await,
            Self::Http3(stream) => Box::pin(stream.write_through(pieces, ends)).await,
            Self::Ajp(stream) => stream.socket.write_pieces(pieces).await,
            Self::Included(stream) => pieces.iter().try_for_each(|piece| stream.append(piece)),
        }
    }

    /// Writes as many bytes of `pieces` as the client accepts now. `pieces` then contains the rest.
    fn write_now(&self, pieces: &mut &mut [IoSlice<'_>], ends: bool) -> io::Result<()> {
        while !pieces.is_empty() {
            match self.try_write(pieces, ends)? {
                0 => return Ok(()),
                n => IoSlice::advance_slices(pieces, n as usize),
            }
        }
        Ok(())
    }

    /// Writes some bytes of the non-empty `pieces`. Returns 0 if the client accepts none. Ends the
    /// reply if `ends`, in protocols that mark the last bytes.
    fn try_write(&self, pieces: &[IoSlice<'_>], ends: bool) -> io::Result<u64> {
        match self {
            Self::Http1(stream) => stream.socket.try_write(pieces),
            Self::Http2(stream) => stream.try_write(pieces, ends),
            Self::Http3(stream) => stream.try_write(pieces, ends),
            Self::Ajp(stream) => stream.socket.try_write(pieces),
            Self::Included(stream) => {
                pieces.iter().try_for_each(|piece| stream.append(piece))?;
                Ok(pieces.iter().map(|piece| piece.len() as u64).sum())
            }
        }
    }

    async fn wait_for_room(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.wait_for_room().await,
            Self::Http2(stream) => stream.wait_for_room().await,
            Self::Http3(stream) => Box::pin(stream.wait_for_room()).await,
            Self::Ajp(stream) => stream.socket.wait_for_room().await,
            Self::Included(_) => Ok(()),
        }
    }

    /// Over HTTP/1 and AJP, lets other tasks read before this stream writes to its socket. Does
    /// nothing for other protocols, which do not write at once.
    async fn yield_to_readers(&self) {
        match self {
            Self::Http1(_) | Self::Ajp(_) => yield_to_readers().await,
            Self::Http2(_) | Self::Http3(_) | Self::Included(_) => {}
        }
    }

    /// Sets what happens if the client leaves while an origin answers.
    pub(crate) fn begin_answer(&self, on_abort: OnAbort) {
        self.shared().on_abort.set(on_abort);
        self.shared().is_live.set(false);
    }

    /// Returns true if the reply goes on for as long as the client stays: an event stream or gRPC.
    pub fn is_live(&self) -> bool {
        self.shared().is_live.get()
    }

    pub(crate) fn set_live(&self) {
        self.shared().is_live.set(true);
    }

    /// Returns the error of the write that showed that the client has left, if the request runs on.
    pub(crate) fn lost(&self) -> Option<io::ErrorKind> {
        self.shared().lost.get()
    }

    /// Records that the client has left, if the request is to run on. Further output is dropped.
    /// Returns false, and does nothing, if the request ends with its client.
    pub(crate) fn lose(&self, error: &io::Error) -> bool {
        let runs_on = self.shared().on_abort.get() == OnAbort::Finish && !self.is_live();
        if runs_on && self.lost().is_none() {
            self.shared().lost.set(Some(error.kind()));
            *self.backlog().0.borrow_mut() = None;
        }
        runs_on
    }

    /// Waits until the client has left, and the request ends because of this.
    ///
    /// Nothing wakes this future when an event stream begins. So each time that the request's task
    /// wakes up, it must poll the origin's future first and this future afterwards.
    pub(crate) async fn ended_by_client(&self) {
        let left = self.left().await;
        poll_fn(|_| match self.shared().on_abort.get() {
            OnAbort::Stop => Poll::Ready(()),
            OnAbort::Cancel if left == Left::Gone => Poll::Ready(()),
            _ if self.is_live() => Poll::Ready(()),
            OnAbort::Cancel | OnAbort::Finish => Poll::Pending,
        })
        .await;
    }

    /// Waits until the client has cancelled the request or reset its connection.
    pub async fn cancelled(&self) {
        if self.left().await == Left::Closed {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the client leaves. Over HTTP/1, a client may close only its sending side and
    /// still read. So if a body or further requests are then unread, waits forever.
    async fn left(&self) -> Left {
        let socket = match self {
            Self::Http1(stream) => {
                stream.closed_by_client().await;
                &stream.socket
            }
            Self::Ajp(stream) => {
                stream.socket.wait_for_close().await;
                &stream.socket
            }
            Self::Http2(stream) => {
                stream.cancelled().await;
                return Left::Gone;
            }
            Self::Http3(stream) => {
                Box::pin(stream.cancelled()).await;
                return Left::Gone;
            }
            Self::Included(stream) => return Box::pin(stream.parent.left()).await,
        };
        if socket.is_reset() { Left::Gone } else { Left::Closed }
    }

    /// Ends the stream so that the client recognizes the reply as incomplete.
    pub fn abort(&self, why: Abort) {
        match self {
            Self::Http1(stream) => stream.socket.reset(),
            Self::Http2(stream) => stream.abort(why),
            Self::Http3(stream) => stream.abort(why),
            // Do not reset the connection after a complete reply, so that the web server can read
            // the reply.
            Self::Ajp(stream) if stream.has_ended() => {}
            Self::Ajp(stream) => stream.socket.reset(),
            Self::Included(stream) => drop(stream.take_reply()),
        }
    }
}

/// The stream as a bidirectional byte stream, after a reply that switched protocols.
impl Stream {
    /// Marks the stream as a tunnel. From now on, a write fails if the client accepts no bytes for
    /// `pause`. A tunnel without traffic ends soon after the server begins to stop.
    pub fn begin_tunnel(&self, pause: Duration) {
        match self {
            Self::Http1(stream) => stream.socket.begin_tunnel(pause),
            Self::Http2(stream) => stream.begin_tunnel(pause),
            Self::Http3(stream) => stream.begin_tunnel(pause),
            Self::Ajp(stream) => stream.socket.begin_tunnel(pause),
            Self::Included(_) => {}
        }
    }

    /// Limits the duration of the next read.
    pub fn limit_read(&self, after: Duration) {
        match self {
            Self::Http1(stream) => stream.socket.limit_read(after),
            Self::Http2(stream) => stream.limit_read(after),
            Self::Http3(stream) => stream.limit_read(after),
            Self::Ajp(stream) => stream.socket.limit_read(after),
            Self::Included(_) => {}
        }
    }

    /// Waits until bytes or the end can be read.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.readable().await,
            Self::Http2(stream) => stream.readable().await,
            Self::Http3(stream) => {
                Box::pin(stream.readable()).await;
                Ok(())
            }
            Self::Ajp(stream) => stream.socket.readable().await,
            Self::Included(_) => Ok(()),
        }
    }

    /// Appends the received bytes to `buffer`. Returns 0 at the end. Fails with `WouldBlock` if no
    /// bytes have arrived.
    pub fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Http1(stream) => stream.socket.read_now(buffer),
            Self::Http2(stream) => stream.read_now(buffer),
            Self::Http3(stream) => stream.read_now(buffer),
            Self::Ajp(stream) => stream.socket.read_now(buffer),
            Self::Included(_) => Ok(0),
        }
    }

    /// Returns true if a time limit of the stream has passed.
    pub fn is_expired(&self) -> bool {
        match self {
            Self::Http1(stream) => stream.socket.is_expired(),
            Self::Http2(stream) => stream.is_expired(),
            Self::Http3(stream) => stream.is_expired(),
            Self::Ajp(stream) => stream.socket.is_expired(),
            Self::Included(_) => false,
        }
    }

    /// Writes all of `data`.
    pub async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.write_all(data).await,
            Self::Http2(stream) => stream.write_through(&mut [IoSlice::new(data)], false).await,
            Self::Http3(stream) => {
                Box::pin(stream.write_through(&mut [IoSlice::new(data)], false)).await
            }
            Self::Ajp(stream) => stream.socket.write_all(data).await,
            Self::Included(stream) => stream.append(data),
        }
    }

    /// Over HTTP/1, ends the sending direction, then reads and drops input for a moment. Does
    /// nothing over other protocols. Call this before the connection closes.
    pub async fn linger(&self) {
        match self {
            // Closing a socket with unread bytes makes the kernel send RST, and the client may lose
            // the reply.
            Self::Http1(stream) => stream.socket.linger().await,
            Self::Http2(_) | Self::Http3(_) | Self::Ajp(_) | Self::Included(_) => {}
        }
    }

    /// Over HTTP/2 and HTTP/3, returns true if the reply is complete and the client may still send
    /// its request.
    pub fn awaits_rest(&self) -> bool {
        match self {
            Self::Http2(stream) => stream.awaits_rest(),
            Self::Http3(stream) => stream.awaits_rest(),
            Self::Http1(_) | Self::Ajp(_) | Self::Included(_) => false,
        }
    }

    /// Reads and drops the rest of the request, until the client stops or `limit` is reached.
    /// Returns false at the limit. Corresponds to `Socket::linger_for`.
    pub async fn discard_rest(&self, limit: Lingering) -> bool {
        let deadlines = &self.thread().deadlines;
        let (mut left, end) = (limit.bytes, deadlines.due(limit.time));
        if let Self::Http3(stream) = self
            && stream.send_leftover().await.is_err()
        {
            return true;
        }
        let mut dropped = Vec::new();
        while self.awaits_rest() {
            let rest = TICK.saturating_mul(end.saturating_sub(deadlines.now()));
            match self.read(&mut dropped, rest.min(SILENCE)).await {
                Ok(n) => match left.checked_sub(n as u64) {
                    Some(rest) => left = rest,
                    None => return false,
                },
                Err(_) => return deadlines.now() < end,
            }
            dropped.clear();
        }
        true
    }

    /// Ends the sending direction.
    pub fn finish_writing(&self) {
        match self {
            Self::Http1(stream) => stream.socket.finish_writing(),
            Self::Http2(stream) => stream.finish_writing(),
            Self::Http3(stream) => stream.finish_writing(),
            Self::Ajp(stream) => stream.socket.finish_writing(),
            Self::Included(_) => {}
        }
    }
}
