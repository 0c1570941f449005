//! One request and its reply on a client's connection, in any protocol: what a body is read from
//! and a reply written to. What bytes that takes on the connection is the variant's to know.
//!
//! What is not here: what a request means, and when a connection ends (`front`).

use std::borrow::Cow;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use forebay_wire::ClientAddress;
use forebay_wire::http1::{BodyDecoder, RequestFraming, ResponseFraming};

use crate::socket::yield_to_readers;
use crate::thread::Thread;
use crate::timing::{Step, StepTimer};
use crate::tls::Handshake;

mod ajp;
mod backlog;
mod http1;
mod http2;
mod http3;

pub use ajp::Ajp;
use backlog::Backlog;
pub use http1::Http1;
pub use http2::{Connection, Http2, websocket_key};
pub use http3::{Arrived, Connection as Http3Connection, Http3, Open as Http3Open};

/// A client's connection, as it was accepted.
pub struct Accepted {
    /// The thread that serves it.
    pub thread: Rc<Thread>,
    /// The other end.
    pub peer: ClientAddress,
    /// The address that took it.
    pub local: SocketAddr,
    /// The number of the listener.
    pub listener: usize,
    /// What the handshake was about, where there was one.
    pub tls: Option<Rc<Handshake>>,
}

/// A stream. Its clones are the same one: body and reply hold one each.
///
/// What waits by HTTP/3 has boxes of its own: requests by other protocols need no room for its timers.
#[derive(Clone)]
pub enum Stream {
    /// The request under way on a connection of HTTP/1.
    Http1(Rc<Http1>),
    /// One of HTTP/2.
    Http2(Rc<Http2>),
    /// One of HTTP/3.
    Http3(Rc<Http3>),
    /// The request under way on a connection of AJP.
    Ajp(Rc<Ajp>),
}

/// What body and reply of the request under way share.
#[derive(Default)]
struct Shared {
    /// Where it spends its time.
    timer: StepTimer,
    /// What the client has not taken of the reply yet.
    backlog: Backlog,
}

/// Why a stream ends before its reply does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The rest of the reply cannot be had.
    ReplyLost,
    /// The backend has cancelled its stream, as at the deadline of a gRPC call.
    Cancelled,
}

/// The head of a reply, for protocols that have other heads than lines.
pub struct Head<'a> {
    /// Its status.
    pub status: u16,
    /// Its fields, as lines.
    pub lines: &'a [u8],
}

impl Head<'_> {
    /// Status and fields of a reply to who requested a tunnel (RFC 8441 section 5, RFC 9220): the tunnel
    /// begins by 200 where HTTP/1.1 has 101.
    fn of_tunnel(&self) -> io::Result<(u16, Cow<'_, [u8]>)> {
        match self.status {
            101 => {
                let lines = self.lines.split_inclusive(|&b| b == b'\n');
                let accept = b"sec-websocket-accept";
                let is_kept = |line: &&[u8]| {
                    !line.get(..accept.len()).is_some_and(|name| name.eq_ignore_ascii_case(accept))
                };
                Ok((200, lines.filter(is_kept).flatten().copied().collect()))
            }
            // The client would take it for one.
            200..=299 => Err(io::Error::other("no tunnel was made")),
            status => Ok((status, self.lines.into())),
        }
    }
}

/// A part of a reply to write.
pub struct Part<'a> {
    /// The status of the head.
    pub status: u16,
    /// Where the field lines of the head begin in `gathered`.
    pub fields_at: usize,
    /// What has gathered: the head, or what is left of it, and bytes of the body.
    pub gathered: &'a [u8],
    /// Where the body begins in it.
    pub body_at: usize,
    /// Whether the head is in it.
    pub has_head: bool,
    /// Bytes of the body behind it.
    pub data: &'a [u8],
    /// Whether the body is chunked.
    pub is_chunked: bool,
    /// The trailer fields, as lines, where nothing of the reply follows.
    pub last: Option<&'a [u8]>,
    /// Whether it may be sent at the end of the thread's turn: the connection goes on behind it.
    pub may_wait: bool,
}

/// What the protocol adds to the head of a reply.
pub struct HeadEnd {
    /// Whether the body is chunked.
    pub is_chunked: bool,
    /// Whether the connection may carry another request.
    pub keep_alive: bool,
    /// Whether the client has HTTP/1.0.
    pub to_http10: bool,
}

impl Stream {
    /// The connection.
    pub fn accepted(&self) -> &Accepted {
        match self {
            Self::Http1(stream) => &stream.accepted,
            Self::Http2(stream) => &stream.connection.accepted,
            Self::Http3(stream) => &stream.connection.accepted,
            Self::Ajp(stream) => &stream.accepted,
        }
    }

    /// The other end of the connection, or of that which a web server in front has with the client.
    pub fn peer(&self) -> ClientAddress {
        match self {
            Self::Http1(_) | Self::Http2(_) | Self::Http3(_) => self.accepted().peer,
            Self::Ajp(stream) => stream.client(),
        }
    }

    fn shared(&self) -> &Shared {
        match self {
            Self::Http1(stream) => &stream.shared,
            Self::Http2(stream) => &stream.shared,
            Self::Http3(stream) => &stream.shared,
            Self::Ajp(stream) => &stream.shared,
        }
    }

    fn backlog(&self) -> &Backlog {
        &self.shared().backlog
    }

    /// The thread that serves it.
    pub fn thread(&self) -> &Rc<Thread> {
        &self.accepted().thread
    }

    /// Where the request spends its time.
    pub fn timer(&self) -> &StepTimer {
        &self.shared().timer
    }

    /// The head of a request begins to come in.
    pub fn begin_steps(&self) {
        if self.thread().is_timing() {
            self.timer().begin();
        }
    }

    /// The request comes to another step; the one before.
    pub fn enter(&self, step: Step) -> Option<Step> {
        self.timer().enter(step)
    }

    /// The reply has been written: counts how long each step took.
    pub fn end_steps(&self) {
        if let Some(mut steps) = self.timer().take() {
            steps.enter(Step::Reply);
            self.thread().counters.count_steps(steps.ended());
        }
    }

    /// What finds the payload in what [`Self::read`] gives.
    pub fn body_decoder(&self, framing: RequestFraming) -> BodyDecoder {
        match self {
            Self::Http1(_) => BodyDecoder::request(framing).keeping_trailers(),
            // What is read is payload.
            Self::Http2(_) | Self::Http3(_) | Self::Ajp(_) => match framing {
                RequestFraming::Chunked => BodyDecoder::response(ResponseFraming::Close),
                framing => BodyDecoder::request(framing),
            },
        }
    }

    /// Whether the end of the request has come, where that is not part of its body's framing (HTTP/2
    /// and HTTP/3); true elsewhere.
    pub fn has_request_ended(&self) -> bool {
        match self {
            Self::Http2(stream) => stream.has_request_ended(),
            Self::Http3(stream) => stream.has_request_ended(),
            Self::Http1(_) | Self::Ajp(_) => true,
        }
    }

    /// The trailers of the request that came beside its body, as lines.
    pub fn request_trailers(&self) -> Vec<u8> {
        match self {
            Self::Http2(stream) => stream.request_trailers(),
            Self::Http3(stream) => stream.request_trailers(),
            Self::Http1(_) | Self::Ajp(_) => Vec::new(),
        }
    }

    /// Whether it can end without the rest of its request, and leave its connection as it is.
    pub fn ends_alone(&self) -> bool {
        matches!(self, Self::Http2(_) | Self::Http3(_) | Self::Ajp(_))
    }

    /// Returns true if the client asks for a tunnel by extended CONNECT, which no 2xx but that of a
    /// tunnel may answer (RFC 8441 section 5, RFC 9220).
    pub fn asks_for_tunnel(&self) -> bool {
        match self {
            Self::Http2(stream) => stream.is_tunnel(),
            Self::Http3(stream) => stream.is_tunnel(),
            Self::Http1(_) | Self::Ajp(_) => false,
        }
    }

    /// Whether the end of a body is told by frames of the protocol, whatever version the client
    /// has.
    pub fn frames_bodies(&self) -> bool {
        matches!(self, Self::Http2(_) | Self::Http3(_) | Self::Ajp(_))
    }

    /// Whether there are bytes of the client still to be used: of a body, or of a next request.
    pub fn set_has_input(&self, has_input: bool) {
        match self {
            Self::Http1(stream) => stream.set_has_input(has_input),
            Self::Http2(_) | Self::Http3(_) | Self::Ajp(_) => {}
        }
    }

    /// Nothing but the end of the request can come.
    pub fn expect_end(&self) {
        if let Self::Http2(stream) = self {
            stream.expect_end();
        }
    }

    /// The request is answered as far as it ever will be: a stream beside others ends.
    pub fn close(&self) {
        match self {
            Self::Http2(stream) => stream.close(),
            Self::Http3(stream) => stream.close(),
            Self::Http1(_) | Self::Ajp(_) => {}
        }
    }

    /// Lets a client go on that waits for that before it sends the body.
    pub async fn send_continue(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.send_continue().await,
            Self::Http2(stream) => stream.send_continue(),
            Self::Http3(stream) => stream.send_continue(),
            // The web server does so when it reads the body.
            Self::Ajp(_) => Ok(()),
        }
    }

    /// Appends what comes of the body to `buffer`, which must have room; 0 at the end. Fails with
    /// `TimedOut` where nothing comes for as long as `limit`.
    pub async fn read(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        match self {
            Self::Http1(stream) => stream.read(buffer, limit).await,
            Self::Http2(stream) => stream.read(buffer, limit).await,
            Self::Http3(stream) => Box::pin(stream.read(buffer, limit)).await,
            Self::Ajp(stream) => self.read_body(stream, buffer, limit).await,
        }
    }

    /// Begins the head of a reply in `out`. An empty `reason` stands for the usual one.
    pub fn begin_head(&self, out: &mut Vec<u8>, status: u16, reason: &[u8]) {
        match self {
            Self::Http1(_) | Self::Ajp(_) => http1::begin_head(out, status, reason),
            Self::Http2(_) | Self::Http3(_) => {}
        }
    }

    /// Ends the head of a reply, final or interim, in `out`.
    pub fn end_head(&self, out: &mut Vec<u8>, end: &HeadEnd) {
        match self {
            Self::Http1(_) => http1::end_head(out, end),
            Self::Http2(_) | Self::Http3(_) => {}
            Self::Ajp(stream) => stream.set_keep_alive(end.keep_alive),
        }
    }

    /// Writes a part of a reply, as fast as the client takes it; where `keeps`, what it does not
    /// take at once is kept for it.
    pub async fn write(&self, part: Part<'_>, keeps: bool) -> io::Result<()> {
        if let Self::Http1(stream) = self
            && part.may_wait
            && part.is_one_piece()
            && !self.has_backlog()
            && stream.socket.send_soon(part.gathered)
        {
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
        }
    }

    /// Writes a part of a reply by a protocol that has frames for both.
    async fn write_frames(&self, part: Part<'_>, keeps: bool) -> io::Result<()> {
        let (head, body) = part.gathered.split_at(part.body_at);
        // Those that are not empty.
        let (mut pieces, count) = match (body, part.data) {
            (b"", b"") => ([IoSlice::new(b""); 2], 0),
            (one, b"") | (b"", one) => ([IoSlice::new(one), IoSlice::new(b"")], 1),
            both => ([IoSlice::new(both.0), IoSlice::new(both.1)], 2),
        };
        let pieces = &mut pieces[..count];
        let ends = part.last == Some(b"");
        if part.has_head {
            let head = Head { status: part.status, lines: &head[part.fields_at..] };
            self.send_head(&head, ends && pieces.is_empty())?;
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
            Self::Http1(_) | Self::Ajp(_) => Ok(()),
        }
    }

    /// Ends the reply by a protocol that has frames for that.
    fn send_end(&self, trailers: &[u8]) -> io::Result<()> {
        match self {
            Self::Http2(stream) => stream.send_end(trailers),
            Self::Http3(stream) => stream.send_end(trailers),
            Self::Http1(_) | Self::Ajp(_) => Ok(()),
        }
    }

    /// Sends `length` bytes of `file` from `offset` on, without copying them where that can be;
    /// nothing of the reply follows where it `ends`.
    pub async fn send_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        ends: bool,
    ) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.send_file(file, offset, length).await,
            Self::Http2(stream) => stream.send_file(file, offset, length, ends).await,
            Self::Http3(stream) => Box::pin(stream.send_file(file, offset, length, ends)).await,
            Self::Ajp(stream) => self.send_file_packets(stream, file, offset, length, ends).await,
        }
    }

    async fn write_through(&self, pieces: &mut [IoSlice<'_>], ends: bool) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.write_pieces(pieces).await,
            Self::Http2(stream) => stream.write_through(pieces, ends).await,
            Self::Http3(stream) => Box::pin(stream.write_through(pieces, ends)).await,
            Self::Ajp(stream) => stream.socket.write_pieces(pieces).await,
        }
    }

    /// Writes what the client has room for; `pieces` are then what is left.
    fn write_now(&self, pieces: &mut &mut [IoSlice<'_>], ends: bool) -> io::Result<()> {
        while !pieces.is_empty() {
            match self.try_write(pieces, ends)? {
                0 => return Ok(()),
                n => IoSlice::advance_slices(pieces, n as usize),
            }
        }
        Ok(())
    }

    /// Writes some of what is not empty; 0 where the client has no room. Nothing follows where it
    /// `ends`, for protocols that mark the last bytes.
    fn try_write(&self, pieces: &[IoSlice<'_>], ends: bool) -> io::Result<u64> {
        match self {
            Self::Http1(stream) => stream.socket.try_write(pieces),
            Self::Http2(stream) => stream.try_write(pieces, ends),
            Self::Http3(stream) => stream.try_write(pieces, ends),
            Self::Ajp(stream) => stream.socket.try_write(pieces),
        }
    }

    async fn wait_for_room(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.wait_for_room().await,
            Self::Http2(stream) => stream.wait_for_room().await,
            Self::Http3(stream) => Box::pin(stream.wait_for_room()).await,
            Self::Ajp(stream) => stream.socket.wait_for_room().await,
        }
    }

    /// Others that have something to read have their turn, where the writing is done at once.
    async fn yield_to_readers(&self) {
        match self {
            Self::Http1(_) | Self::Ajp(_) => yield_to_readers().await,
            Self::Http2(_) | Self::Http3(_) => {}
        }
    }

    /// Waits until the client has gone away, or has given the request up.
    pub async fn cancelled(&self) {
        match self {
            Self::Http1(stream) => stream.closed_by_client().await,
            Self::Http2(stream) => stream.cancelled().await,
            Self::Http3(stream) => Box::pin(stream.cancelled()).await,
            Self::Ajp(stream) => stream.socket.wait_for_close().await,
        }
    }

    /// Ends the stream so that the client does not take what it got for the whole.
    pub fn abort(&self, why: Abort) {
        match self {
            Self::Http1(stream) => stream.socket.reset(),
            Self::Http2(stream) => stream.abort(why),
            Self::Http3(stream) => stream.abort(why),
            // What has been written to its end can be read to its end.
            Self::Ajp(stream) if stream.has_ended() => {}
            Self::Ajp(stream) => stream.socket.reset(),
        }
    }
}

/// The stream as one of bytes both ways, behind a reply that switches protocols.
impl Stream {
    /// From now on it is one; the client may take this long to make room, and it ends soon after
    /// the server begins to stop.
    pub fn begin_tunnel(&self, pause: Duration) {
        match self {
            Self::Http1(stream) => stream.socket.begin_tunnel(pause),
            Self::Http2(stream) => stream.begin_tunnel(pause),
            Self::Http3(stream) => stream.begin_tunnel(pause),
            Self::Ajp(stream) => stream.socket.begin_tunnel(pause),
        }
    }

    /// A read may take this long.
    pub fn limit_read(&self, after: Duration) {
        match self {
            Self::Http1(stream) => stream.socket.limit_read(after),
            Self::Http2(stream) => stream.limit_read(after),
            Self::Http3(stream) => stream.limit_read(after),
            Self::Ajp(stream) => stream.socket.limit_read(after),
        }
    }

    /// Waits until there is something to read, or the end.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.readable().await,
            Self::Http2(stream) => stream.readable().await,
            Self::Http3(stream) => {
                Box::pin(stream.readable()).await;
                Ok(())
            }
            Self::Ajp(stream) => stream.socket.readable().await,
        }
    }

    /// Appends what has come to `buffer`: 0 at the end, `WouldBlock` where nothing has.
    pub fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Http1(stream) => stream.socket.read_now(buffer),
            Self::Http2(stream) => stream.read_now(buffer),
            Self::Http3(stream) => stream.read_now(buffer),
            Self::Ajp(stream) => stream.socket.read_now(buffer),
        }
    }

    /// Whether a time limit has passed.
    pub fn is_expired(&self) -> bool {
        match self {
            Self::Http1(stream) => stream.socket.is_expired(),
            Self::Http2(stream) => stream.is_expired(),
            Self::Http3(stream) => stream.is_expired(),
            Self::Ajp(stream) => stream.socket.is_expired(),
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
        }
    }

    /// Reads on for a moment what nobody wants, where closing with unread bytes would have the
    /// client lose what it was sent.
    pub(crate) async fn linger(&self) {
        match self {
            Self::Http1(stream) => stream.socket.linger().await,
            Self::Http2(_) | Self::Http3(_) | Self::Ajp(_) => {}
        }
    }

    /// The client is sent no more.
    pub fn finish_writing(&self) {
        match self {
            Self::Http1(stream) => stream.socket.finish_writing(),
            Self::Http2(stream) => stream.finish_writing(),
            Self::Http3(stream) => stream.finish_writing(),
            Self::Ajp(stream) => stream.socket.finish_writing(),
        }
    }
}
