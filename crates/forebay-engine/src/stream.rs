//! One request and its reply on a client's connection, in any protocol: what a body is read from and
//! a reply written to. What bytes that takes on the connection is the variant's to know.
//!
//! What is not here: what a request means, and when a connection ends (`front`).

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use forebay_wire::http1::{BodyDecoder, RequestFraming};

use crate::thread::Thread;
use crate::timing::{Step, StepTimer};
use crate::tls::Handshake;

mod backlog;
mod http1;

use backlog::Backlog;
pub use http1::Http1;

/// A client's connection, as it was accepted.
pub struct Accepted {
    /// The thread that serves it.
    pub thread: Rc<Thread>,
    /// The other end.
    pub peer: SocketAddr,
    /// The address that took it.
    pub local: SocketAddr,
    /// The number of the listener.
    pub listener: usize,
    /// What the handshake was about, where there was one.
    pub tls: Option<Rc<Handshake>>,
}

/// A stream. Its clones are the same one: body and reply hold one each.
#[derive(Clone)]
pub enum Stream {
    /// The request under way on a connection of HTTP/1.
    Http1(Rc<Http1>),
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
}

/// A part of a reply to write.
pub struct Part<'a> {
    /// What has gathered: the head, or what is left of it, and bytes of the body.
    pub gathered: &'a [u8],
    /// Where the body begins in it.
    pub body_at: usize,
    /// Bytes of the body behind it.
    pub data: &'a [u8],
    /// Whether each part of the body is told by its length.
    pub is_chunked: bool,
    /// The trailer fields, as lines, where nothing of the reply follows.
    pub last: Option<&'a [u8]>,
}

/// What the protocol adds to the head of a reply.
pub struct HeadEnd {
    /// Whether each part of the body is told by its length.
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
        }
    }

    fn shared(&self) -> &Shared {
        match self {
            Self::Http1(stream) => &stream.shared,
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
            Self::Http1(_) => BodyDecoder::request(framing),
        }
    }

    /// Whether there are bytes of the client still to be used: of a body, or of a next request.
    pub fn set_has_input(&self, has_input: bool) {
        match self {
            Self::Http1(stream) => stream.set_has_input(has_input),
        }
    }

    /// Lets a client go on that waits for that before it sends the body.
    pub async fn send_continue(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.send_continue().await,
        }
    }

    /// Appends what comes of the body to `buffer`, which must have room; 0 at the end. Fails with
    /// `TimedOut` where nothing comes for as long as `limit`.
    pub async fn read(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        match self {
            Self::Http1(stream) => stream.read(buffer, limit).await,
        }
    }

    /// Begins the head of a reply in `out`. An empty `reason` stands for the usual one.
    pub fn begin_head(&self, out: &mut Vec<u8>, status: u16, reason: &[u8]) {
        match self {
            Self::Http1(_) => http1::begin_head(out, status, reason),
        }
    }

    /// Ends the head of a reply, final or interim, in `out`.
    pub fn end_head(&self, out: &mut Vec<u8>, end: &HeadEnd) {
        match self {
            Self::Http1(_) => http1::end_head(out, end),
        }
    }

    /// Writes a part of a reply, as fast as the client takes it; where `keeps`, what it does not
    /// take at once is kept for it.
    pub async fn write(&self, part: Part<'_>, keeps: bool) -> io::Result<()> {
        match self {
            Self::Http1(_) => {
                let size = part.chunk_size();
                let (mut pieces, count) = part.pieces(&size);
                self.write_pieces(&mut pieces[..count], keeps).await
            }
        }
    }

    /// Sends `length` bytes of `file` from `offset` on, without copying them where that can be.
    pub async fn send_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
    ) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.send_file(file, offset, length).await,
        }
    }

    async fn write_through(&self, pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.write_pieces(pieces).await,
        }
    }

    /// Writes what the client has room for; `pieces` are then what is left.
    fn write_now(&self, pieces: &mut &mut [IoSlice<'_>]) -> io::Result<()> {
        while !pieces.is_empty() {
            match self.try_write(pieces)? {
                0 => return Ok(()),
                n => IoSlice::advance_slices(pieces, n as usize),
            }
        }
        Ok(())
    }

    /// Writes some of what is not empty; 0 where the client has no room.
    fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<u64> {
        match self {
            Self::Http1(stream) => stream.socket.try_write(pieces),
        }
    }

    async fn wait_for_room(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.wait_for_room().await,
        }
    }

    /// Waits until the client has gone away, or has given the request up.
    pub async fn cancelled(&self) {
        match self {
            Self::Http1(stream) => stream.closed_by_client().await,
        }
    }

    /// Ends the stream so that the client does not take what it got for the whole.
    pub fn abort(&self, why: Abort) {
        match (self, why) {
            (Self::Http1(stream), Abort::ReplyLost) => stream.socket.reset(),
        }
    }
}

/// The stream as one of bytes both ways, behind a reply that says so.
impl Stream {
    /// From now on it is one; the client may take this long to make room, and it ends soon after
    /// the server is told to stop.
    pub fn begin_tunnel(&self, pause: Duration) {
        match self {
            Self::Http1(stream) => stream.socket.begin_tunnel(pause),
        }
    }

    /// A read may take this long.
    pub fn limit_read(&self, after: Duration) {
        match self {
            Self::Http1(stream) => stream.socket.limit_read(after),
        }
    }

    /// Waits until there is something to read, or the end.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.readable().await,
        }
    }

    /// Appends what has come to `buffer`: 0 at the end, `WouldBlock` where nothing has.
    pub fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Http1(stream) => stream.socket.read_now(buffer),
        }
    }

    /// Whether a time limit has passed.
    pub fn is_expired(&self) -> bool {
        match self {
            Self::Http1(stream) => stream.socket.is_expired(),
        }
    }

    /// Writes all of `data`.
    pub async fn write_all(&self, data: &[u8]) -> io::Result<()> {
        match self {
            Self::Http1(stream) => stream.socket.write_all(data).await,
        }
    }

    /// The client is sent no more.
    pub fn finish_writing(&self) {
        match self {
            Self::Http1(stream) => stream.socket.finish_writing(),
        }
    }
}
