//! A stream of HTTP/1 (RFC 9112): the connection itself, which carries one request at a time.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::time::Duration;

use forebay_net::socket::Socket;
use forebay_wire::http1::encode;

use crate::part::{Accepted, HeadEnd, Part, SharedState};

/// An HTTP/1 connection with the state of its current request.
pub struct Http1 {
    /// The connection's socket.
    pub socket: Socket,
    /// Addresses, listener and TLS of the connection.
    pub accepted: Accepted,
    /// True if received bytes, of a body or of the next request, are still unread.
    has_input: Cell<bool>,
    /// True if the client has closed its sending side while requests wait for an answer.
    is_half_closed: Cell<bool>,
    /// True if the limit on writes is that of a route.
    has_write_limit: Cell<bool>,
    /// State of the current request.
    pub(crate) shared: SharedState,
}

impl Http1 {
    /// Creates a connection without a request.
    pub fn new(socket: Socket, accepted: Accepted) -> Self {
        let (has_input, is_half_closed) = (Cell::new(false), Cell::new(false));
        let has_write_limit = Cell::new(false);
        let shared = SharedState::default();
        Self { socket, accepted, has_input, is_half_closed, has_write_limit, shared }
    }

    /// Sets the maximum time that a write waits for the client. `limit` is the limit of the route.
    /// `None` means the limit of the server.
    pub(crate) fn limit_writes(&self, limit: Option<Duration>) {
        if self.has_write_limit.replace(limit.is_some()) || limit.is_some() {
            let default = || self.accepted.thread.settings().timeouts.write;
            self.socket.limit_writes(limit.unwrap_or_else(default));
        }
    }

    pub(crate) fn set_has_input(&self, has_input: bool) {
        self.has_input.set(has_input);
    }

    pub(crate) async fn send_continue(&self) -> io::Result<()> {
        self.socket.write_all(encode::CONTINUE).await
    }

    pub(crate) async fn read(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        self.socket.limit_read(limit);
        let read = self.socket.read(buffer).await;
        self.socket.unlimit_read();
        read
    }

    /// Waits until the client has disconnected. If a body or further requests are unread when the
    /// client closes its sending side, waits forever, because the client may still expect replies.
    pub(crate) async fn closed_by_client(&self) {
        if !self.is_half_closed.get() {
            self.socket.wait_for_close().await;
            let is_reset = match self.socket.peek() {
                Some(true) => false,
                Some(false) | None => !self.has_input.get(),
            };
            if is_reset {
                return;
            }
            self.is_half_closed.set(true);
        }
        std::future::pending::<()>().await;
    }
}

pub(crate) fn begin_head(out: &mut Vec<u8>, status: u16, reason: &[u8]) {
    encode::status_line(out, status, reason);
}

pub(crate) fn end_head(out: &mut Vec<u8>, end: &HeadEnd) {
    if end.is_chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    match (end.keep_alive, end.to_http10) {
        (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
        (true, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (true, false) => {}
    }
    out.extend_from_slice(b"\r\n");
}

impl<'a> Part<'a> {
    /// Returns true if the part consists only of `gathered`.
    pub(crate) fn is_one_piece(&self) -> bool {
        self.data.is_empty() && !self.is_chunked
    }

    /// Returns the size line of the chunk. The line is empty if the part is not a chunk.
    pub(crate) fn chunk_size(&self) -> Vec<u8> {
        let length = self.gathered.len() - self.body_at + self.data.len();
        let mut line = Vec::new();
        if self.is_chunked && length > 0 {
            line.reserve(20);
            encode::chunk_size(&mut line, length);
        }
        line
    }

    /// Returns all bytes in order, with `size` before the body, and the count of used slices.
    pub(crate) fn pieces(&self, size: &'a [u8]) -> ([IoSlice<'a>; 8], usize) {
        // A single slice needs a simpler system call, so split `gathered` only for a chunk.
        let split = if size.is_empty() { self.gathered.len() } else { self.body_at };
        let (head, body) = self.gathered.split_at(split);
        let chunk_end = if size.is_empty() { b"" } else { encode::CHUNK_END };
        let (last, trailers, end): (&[u8], _, &[u8]) = match self.last {
            Some(trailers) if self.is_chunked => (b"0\r\n", trailers, b"\r\n"),
            _ => (b"", &b""[..], b""),
        };
        let mut pieces = [IoSlice::new(b""); 8];
        let mut count = 0;
        for piece in [head, size, body, self.data, chunk_end, last, trailers, end] {
            if !piece.is_empty() {
                pieces[count] = IoSlice::new(piece);
                count += 1;
            }
        }
        (pieces, count)
    }
}
