//! An extended CONNECT stream (RFC 8441) as the backend's end of a tunnel.

use std::io::{self, ErrorKind};
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_server::tunnel::Duplex;
use forebay_wire::http2::ErrorCode;

use super::connection::{Http2Connection, StreamEnd};
use super::stream::Stream;

/// A stream that carries bytes in both directions.
pub struct StreamTunnel(pub Stream);

impl StreamTunnel {
    fn lost(&self) -> io::Error {
        io::Error::new(ErrorKind::ConnectionReset, "the backend reset the tunnel")
    }
}

impl Duplex for StreamTunnel {
    /// Sets the maximum time for which the backend may keep the stream's window closed. The
    /// connection's task checks this limit at each tick (100 ms).
    fn begin_tunnel(&self, pause: Duration) {
        self.0.state().waits.tunnel_idle.set(Some(pause));
    }

    fn limit_read(&self, after: Duration) {
        let deadlines = &self.0.connection().thread.deadlines;
        self.0.state().waits.read_due.set(deadlines.due(after));
    }

    fn is_expired(&self) -> bool {
        self.0.state().waits.is_expired.get()
    }

    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_ready(context).map(|_| Ok(()))
    }

    fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let mut data = Vec::new();
        if self.0.take_data(&mut data) {
            buffer.extend_from_slice(&data);
            return Ok(data.len());
        }
        match self.0.state().end.get() {
            _ if self.is_expired() => Ok(0),
            None => Err(ErrorKind::WouldBlock.into()),
            Some(StreamEnd::Whole) => Ok(0),
            Some(_) => Err(self.lost()),
        }
    }

    fn poll_write(&self, data: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let state = self.0.state();
        loop {
            match self.0.try_send(data, false) {
                Ok(0) => {}
                Ok(taken) => return Poll::Ready(Ok(taken)),
                Err(_) => return Poll::Ready(Err(self.lost())),
            }
            if !state.waits.has_room.take() {
                state.waits.writer.set(Some(context.waker().clone()));
                return Poll::Pending;
            }
        }
    }

    fn finish_writing(&self) {
        // Ignore an error, which means that the stream has ended. The next read from the stream
        // reports this end.
        let _ = self.0.try_send(b"", true);
    }

    fn reset(&self) {
        let (connection, id) = (self.0.connection(), self.0.state().id.get());
        connection.codec.borrow_mut().reset(id, ErrorCode::CANCEL, Http2Connection::now());
        connection.wake();
    }
}
