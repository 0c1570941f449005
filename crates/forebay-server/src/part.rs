//! Types that the streams of all protocols use: the connection, the parts of replies, and the state
//! of the current request.

use std::borrow::Cow;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use forebay_conf::{Level, OnAbort};
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;
use forebay_net::timing::StepTimer;
use forebay_net::tls::Handshake;
use forebay_wire::ClientAddress;

use crate::backlog::Backlog;

/// An accepted client connection.
pub struct Accepted {
    /// The thread that serves the connection.
    pub thread: Rc<Thread>,
    /// Address of the other end.
    pub peer: ClientAddress,
    /// Local address of the connection.
    pub local: SocketAddr,
    /// Number of the listener.
    pub listener: usize,
    /// TLS handshake, if the connection uses TLS.
    pub tls: Option<Rc<Handshake>>,
}

impl Accepted {
    /// Counts and logs a request that is refused because of
    /// [`HeldHeads`](forebay_wire::http2::HeldHeads).
    pub(crate) fn report_held_heads(&self) {
        self.thread.counters.count_limit(Limit::HeldHeads);
        self.thread.log_limited_with(Level::Info, || {
            format!(
                "a request was refused, because the heads of all active requests of its connection \
                 are too large together, from {}; if your clients send such heads, raise head_size \
                 of [server.limits]",
                self.peer
            )
        });
    }
}

/// State of the current request that body and reply share.
#[derive(Default)]
pub struct SharedState {
    /// Measures the time per step.
    pub timer: StepTimer,
    /// Reply bytes that the client has not accepted yet.
    pub backlog: Backlog,
    /// What happens if the client leaves. Applies while an origin answers.
    pub on_abort: Cell<OnAbort>,
    /// Set if the client has left, and the request runs on. Nothing is written any more.
    pub lost: Cell<Option<io::ErrorKind>>,
    /// True if the reply has no end that could be waited for: an event stream, or gRPC.
    pub is_live: Cell<bool>,
}

/// The way in which a client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The client has closed its sending side. It may still read.
    Closed,
    /// The client has cancelled the request or reset its connection.
    Gone,
}

/// Reason to end a stream before its reply ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The rest of the reply is not available.
    ReplyLost,
    /// The backend has cancelled its stream, for example at the deadline of a gRPC call.
    Cancelled,
}

/// The head of a reply, for protocols that do not send heads as lines.
pub struct Head<'a> {
    /// Status of the reply.
    pub status: u16,
    /// Fields, as lines.
    pub lines: &'a [u8],
}

impl Head<'_> {
    /// Returns status and fields for a client that requested a tunnel (RFC 8441 section 5, RFC
    /// 9220). Status 101 becomes 200, which starts the tunnel. Fails if the reply's own status is
    /// 2xx.
    pub fn of_tunnel(&self) -> io::Result<(u16, Cow<'_, [u8]>)> {
        match self.status {
            101 => {
                let lines = self.lines.split_inclusive(|&b| b == b'\n');
                let accept = b"sec-websocket-accept";
                let is_kept = |line: &&[u8]| {
                    !line.get(..accept.len()).is_some_and(|name| name.eq_ignore_ascii_case(accept))
                };
                Ok((200, lines.filter(is_kept).flatten().copied().collect()))
            }
            // Refuse this status, because the client would treat it as the start of its tunnel.
            200..=299 => Err(io::Error::other("no tunnel was made")),
            status => Ok((status, self.lines.into())),
        }
    }
}

/// A part of a reply to write.
pub struct Part<'a> {
    /// Status of the head.
    pub status: u16,
    /// Start of the head's field lines in `gathered`.
    pub fields_at: usize,
    /// Collected bytes: the head, if any, and then body bytes.
    pub gathered: &'a [u8],
    /// Start of the body in `gathered`.
    pub body_at: usize,
    /// True if `gathered` contains the head.
    pub has_head: bool,
    /// Body bytes that follow `gathered`.
    pub data: &'a [u8],
    /// True if the body is chunked.
    pub is_chunked: bool,
    /// Trailer fields, as lines, if this part ends the reply.
    pub last: Option<&'a [u8]>,
    /// True if the connection continues after this part. The bytes may then be sent later, after
    /// all ready tasks have run.
    pub may_wait: bool,
}

/// Properties of a reply for the end of its head, such as the field `Connection`.
pub struct HeadEnd {
    /// True if the body is chunked.
    pub is_chunked: bool,
    /// True if the connection may carry another request.
    pub keep_alive: bool,
    /// True if the client speaks HTTP/1.0.
    pub to_http10: bool,
}
