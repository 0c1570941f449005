//! Receives a request on a stream of HTTP/3.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use forebay_net::deadline::{NEVER, TICK};
use forebay_net::socket::BUFFER;
use forebay_wire::http2;
use forebay_wire::http3::{self, Http3Error, RequestEvent};
use quinn::{ReadError, RecvStream};

use crate::http3::stream::{Arrived, Http3, LOOK};

/// Bytes of the first try to read. Most heads are smaller.
// Each read first zeroes this part of the buffer. With 16 KiB, zeroing took about 2 % of the CPU
// time of a small reply.
const FIRST_READ: usize = 1024;

/// Reads at most `BUFFER` bytes to the start of `raw`, which grows as needed. Completes with the
/// number of bytes.
fn read_into(
    receive: &mut RecvStream,
    context: &mut Context<'_>,
    raw: &mut Vec<u8>,
) -> Poll<Result<usize, ReadError>> {
    raw.resize(FIRST_READ, 0);
    let first = receive.poll_read(context, raw);
    if !matches!(first, Poll::Ready(Ok(FIRST_READ))) {
        return first;
    }
    raw.resize(BUFFER, 0);
    match receive.poll_read(context, &mut raw[FIRST_READ..]) {
        Poll::Ready(more) => Poll::Ready(more.map(|more| FIRST_READ + more)),
        Poll::Pending => first,
    }
}

impl Http3 {
    /// Completes with the next input of the stream. Reads from QUIC until a body part, a field
    /// section or the end has been decoded. Completes with an error if the stream is lost, or if
    /// the client violates the protocol.
    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<io::Result<Arrived>> {
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
            let read = read_into(&mut self.receive.borrow_mut(), context, &mut raw);
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

    /// Decodes bytes that were read. Returns the kind of input, or `None` if more bytes are needed.
    fn decode(&self) -> Result<Option<Arrived>, Http3Error> {
        let mut raw = self.raw.borrow_mut();
        if raw.is_empty() {
            return Ok(None);
        }
        let mut decoder = self.decoder.borrow_mut();
        let (mut read, mut came) = (0, None);
        // Combine the data of many small DATA frames into one piece.
        while read < raw.len() && matches!(came, None | Some(Arrived::Data)) {
            let rest = &raw[read..];
            let decoded = decoder.decode(rest);
            self.connection.charge(decoder.take_price());
            let step = decoded?;
            match step.event {
                None => {}
                Some(RequestEvent::Section) => came = Some(Arrived::Section),
                Some(RequestEvent::TooLarge) => came = Some(Arrived::TooLarge),
                Some(RequestEvent::Data(data)) => {
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

    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<()> {
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
        // Do not use the connection's shared head, because it may still contain the head of this
        // request.
        let mut head = http2::Head::default();
        match http3::read_trailers(&section, self.connection.list_limits(), &mut head) {
            Ok(()) if !self.hold_trailers(&head) => {}
            Ok(()) => head.write_trailers(&mut self.request_trailers.borrow_mut()),
            Err(error) => self.fail(&error),
        }
    }

    pub(crate) async fn read(&self, buffer: &mut Vec<u8>, limit: Duration) -> io::Result<usize> {
        self.limit_read(limit);
        self.readable().await;
        let read = self.read_now(buffer);
        self.read_due.set(NEVER);
        read
    }

    pub(crate) fn has_request_ended(&self) -> bool {
        self.has_ended.get()
    }

    pub(crate) fn request_trailers(&self) -> Vec<u8> {
        self.request_trailers.borrow().clone()
    }

    pub(crate) fn limit_read(&self, after: Duration) {
        self.read_due.set(self.connection.accepted.thread.deadlines.due(after));
    }

    pub(crate) fn is_expired(&self) -> bool {
        self.is_expired.get()
    }

    /// Waits until the stream has input, or the read deadline has passed. While the server stops, a
    /// tunnel without traffic gets an earlier deadline.
    pub(crate) async fn readable(&self) {
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

    pub(crate) fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
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
