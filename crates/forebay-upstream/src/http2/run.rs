//! The task of a connection: reads and writes for all its streams.

use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll};

use forebay_net::deadline::Ticks;
use forebay_net::socket::yield_to_readers;
use forebay_wire::http2::{self, ErrorCode};
use tokio::sync::mpsc::UnboundedReceiver;

use super::connection::Http2Connection;

/// Number of bytes to read at a time: usually `INBOX`, and `LARGE_INBOX` after a large read.
const INBOX: usize = 16 * 1024;
const LARGE_INBOX: usize = 128 * 1024;

/// Time limit for the answer to a PING, in ticks of 100 ms.
const PATIENCE: Ticks = 50;

/// The event for which the task waited.
enum Ready {
    /// There is data to write, or a stream has ended.
    Woken,
    Readable,
    Tick,
}

struct Task<'a> {
    connection: &'a Http2Connection,
    /// Bytes that were read but do not form a whole frame yet.
    input: Vec<u8>,
    /// True if the last read returned [`INBOX`] bytes or more. More data probably follows, so later
    /// reads use the large buffer, even after a pause.
    is_bulk: bool,
    /// True while the idle limit runs.
    is_idle: bool,
    /// Signals that another thread waits for this connection's permit (`max_connections`).
    nudges: Option<UnboundedReceiver<()>>,
}

impl Http2Connection {
    /// Reads and writes until the connection breaks or is no longer needed.
    pub async fn run(self: Rc<Self>) {
        let nudges = self.link.permit().map(|permit| permit.join().1);
        let mut task =
            Task { connection: &self, input: Vec::new(), is_bulk: false, is_idle: false, nudges };
        let outcome = task.serve().await;
        self.fail(outcome.err().unwrap_or_else(|| "Forebay closed it".into()));
        // Try to send the queued GOAWAY. Ignore an error, because the connection ends.
        let _ = task.write();
    }
}

impl Task<'_> {
    /// Serves until the connection is no longer needed. If the connection breaks, returns the
    /// reason.
    async fn serve(&mut self) -> Result<(), String> {
        let connection = self.connection;
        loop {
            self.receive()?;
            // Let the streams that are ready now add to the same write.
            yield_to_readers().await;
            connection.give_turn();
            if let Err(error) = self.write() {
                self.read_rest();
                return Err(format!("cannot write: {error}"));
            }
            if connection.is_finished() || self.is_given_up().await {
                self.send_goaway();
                return Ok(());
            }
            self.set_limits();
            match self.wait().await {
                Ready::Woken => {}
                Ready::Tick => self.tick()?,
                Ready::Readable => match self.read() {
                    Err(error) if error.kind() == ErrorKind::TimedOut && connection.is_idle() => {
                        self.send_goaway();
                        return Ok(());
                    }
                    Ok(0) => return Err("the backend closed it".into()),
                    Ok(_) => connection.heard(),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.to_string()),
                },
            }
        }
    }

    /// Decodes the bytes that were read.
    fn receive(&mut self) -> Result<(), String> {
        let now = Http2Connection::now();
        let (connection, mut at) = (self.connection, 0);
        let is_first = !self.input.is_empty() && self.input.starts_with(b"HTTP/1.");
        loop {
            let step = connection.codec.borrow_mut().receive(&self.input[at..], now);
            let http2::ReceivedEvent { consumed, event } = step.map_err(|error| {
                if is_first {
                    "it speaks HTTP/1.1, not HTTP/2: write http:// in place of h2c://".into()
                } else {
                    error.to_string()
                }
            })?;
            let Some(event) = event else {
                at += consumed;
                break;
            };
            connection.handle(event, &self.input[at..]);
            at += consumed;
        }
        if at > 0 {
            self.input.drain(..at);
            connection.announce_capacity();
        }
        if self.input.is_empty() && !self.is_bulk {
            connection.thread.keep_buffer(std::mem::take(&mut self.input));
        }
        Ok(())
    }

    /// Writes as much as the socket takes.
    fn write(&self) -> io::Result<()> {
        let connection = self.connection;
        loop {
            let mut codec = connection.codec.borrow_mut();
            if codec.output().is_empty() {
                return Ok(());
            }
            if connection.link.socket.is_tls() {
                // A TLS write may send bytes and yet report 0. So count each attempt as a write.
                connection.has_written.set(true);
            }
            let written = connection.link.socket.try_write(&[IoSlice::new(codec.output())])?;
            codec.wrote(written as usize);
            connection.has_written.set(connection.has_written.get() || written > 0);
            drop(codec);
            if written == 0 {
                let limit = connection.thread.settings().timeouts.write;
                connection.link.socket.limit_writes(connection.write_limit(limit));
                connection.link.socket.expect_room();
                return Ok(());
            }
            connection.give_turn();
        }
    }

    /// Reads the rest of a connection that the backend has closed or reset. The rest may contain
    /// replies, and a GOAWAY that names the last stream that the backend processed.
    fn read_rest(&mut self) {
        while matches!(self.read(), Ok(1..)) && self.receive().is_ok() {}
    }

    /// Announces that no more streams follow.
    fn send_goaway(&self) {
        self.connection.codec.borrow_mut().goaway(ErrorCode::NO_ERROR);
    }

    /// Returns true if the connection is idle and must close, because a request on another thread
    /// waits for a permit. The close passes the permit of this connection to that request.
    async fn is_given_up(&self) -> bool {
        let connection = self.connection;
        let Some(permit) = connection.link.permit() else { return false };
        if !connection.is_idle() {
            permit.set_busy();
            return false;
        }
        if !permit.set_idle() {
            return false;
        }
        // Tasks of this thread may be ready to send a request on this connection. Let them run
        // first, because they then keep the connection.
        tokio::task::yield_now().await;
        connection.is_idle() && permit.bequeath()
    }

    /// When the connection becomes idle, starts the idle limit and frees unused memory. When a
    /// request begins, stops the limit.
    fn set_limits(&mut self) {
        let connection = self.connection;
        let (is_idle, socket) = (connection.is_idle(), &connection.link.socket);
        if is_idle == self.is_idle {
            return;
        }
        self.is_idle = is_idle;
        if is_idle {
            self.is_bulk = false;
            if self.input.is_empty() {
                self.input = Vec::new();
            }
            connection.codec.borrow_mut().shrink();
            let limit = connection.thread.settings().timeouts.write;
            socket.shorten_write_limit(limit);
            socket.limit_read(connection.idle_time);
        } else {
            socket.unlimit_read();
        }
        socket.set_idle(is_idle);
    }

    /// Waits for the next event of the connection. Another thread's request for the permit of an
    /// idle connection is such an event.
    async fn wait(&mut self) -> Ready {
        let (connection, nudges) = (self.connection, &mut self.nudges);
        let socket = &connection.link.socket;
        let begun = connection.thread.deadlines.now();
        let has_ticks = connection.needs_ticks();
        let has_rest = !self.input.is_empty() || connection.has_partial_replies();
        poll_fn(|context| {
            if connection.poll_woken(context).is_ready() {
                return Poll::Ready(Ready::Woken);
            }
            if is_nudged(nudges, context) && connection.is_idle() {
                return Poll::Ready(Ready::Woken);
            }
            let codec = connection.codec.borrow();
            let mut poll = || {
                if has_rest { socket.poll_rest(context) } else { socket.poll_readable(context) }
            };
            if codec.can_receive() && poll().is_ready() {
                return Poll::Ready(Ready::Readable);
            }
            if !codec.output().is_empty() && socket.poll_room(context).is_ready() {
                return Poll::Ready(Ready::Woken);
            }
            if has_ticks && socket.poll_tick(begun, context).is_ready() {
                return Poll::Ready(Ready::Tick);
            }
            Poll::Pending
        })
        .await
    }

    fn read(&mut self) -> io::Result<usize> {
        if self.input.capacity() == 0 {
            self.input = self.connection.thread.take_buffer();
        }
        self.input.reserve(if self.is_bulk { LARGE_INBOX } else { INBOX });
        let read = self.connection.link.socket.read_now(&mut self.input)?;
        self.is_bulk = read >= INBOX;
        Ok(read)
    }

    fn tick(&self) -> Result<(), String> {
        let connection = self.connection;
        let limit = connection.thread.settings().timeouts.write;
        connection.check_deadlines(limit);
        connection.link.socket.shorten_write_limit(connection.write_limit(limit));
        let Some(since) = connection.doubted.get() else { return Ok(()) };
        if connection.codec.borrow().unanswered_ping().is_none() {
            connection.doubted.set(None);
            connection.announce_capacity();
        } else if connection.thread.deadlines.now() > since + PATIENCE {
            return Err("it answers no PING".into());
        }
        Ok(())
    }
}

/// Returns true if another thread has asked for the permit. Removes all messages that ask for the
/// permit, because they would accumulate while the connection is in use.
fn is_nudged(nudges: &mut Option<UnboundedReceiver<()>>, context: &mut Context<'_>) -> bool {
    let Some(nudges) = nudges else { return false };
    let mut is_nudged = false;
    while let Poll::Ready(Some(())) = nudges.poll_recv(context) {
        is_nudged = true;
    }
    is_nudged
}
