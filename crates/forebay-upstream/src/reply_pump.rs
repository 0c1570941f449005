//! Sends replies to the client as they arrive. If the client does not read, the pump reads no more
//! from the backend.
//!
//! Output of scripts and applications arrives in pieces of any size. Its head, length and end are
//! known only after parsing. So [`ReplyPump`] holds small pieces back until nothing has arrived for
//! [`PAUSE`]. Backends with HTTP or AJP frame their replies. [`FramedPump`] sends such replies
//! after each read, directly from the receive buffer and without a timer.

use std::time::Duration;

use forebay_net::fault::{Fault, Retry};
use forebay_net::socket::Socket;
use forebay_server::reply::Reply;

use crate::output::Output;
use crate::script_reply::PAUSE;
use crate::upstream::Backend;

/// Size of a receive buffer, in bytes.
const INBOX: usize = 16 * 1024;
/// Size of a receive buffer for a long body, in bytes. This is more than the largest AJP packet.
const LARGE_INBOX: usize = 128 * 1024;

/// Moves the output of a script or application to the client.
pub struct ReplyPump<'a> {
    output: Output,
    reply: &'a mut Reply,
}

impl<'a> ReplyPump<'a> {
    /// Creates the pump from `output` to `reply`.
    pub fn new(output: Output, reply: &'a mut Reply) -> Self {
        Self { output, reply }
    }

    /// Returns the result of `read`. If `read` takes longer than [`PAUSE`] while output is held,
    /// cancels `read`, sends this output to the client, and calls `read` again. So `read` must not
    /// lose data when it is cancelled.
    pub async fn next<T>(&mut self, mut read: impl AsyncFnMut() -> T) -> Result<T, Fault> {
        if self.output.has_output() {
            tokio::select! {
                biased;
                brought = read() => return Ok(brought),
                () = tokio::time::sleep(PAUSE) => {}
            }
            self.output.flush(self.reply).await?;
        }
        Ok(read().await)
    }

    /// Returns the time limit between two reads from `backend`.
    pub fn silence(&self, backend: &Backend) -> Duration {
        backend.silence_of(self.reply)
    }

    /// Processes the next piece of output.
    pub async fn feed(&mut self, output: &[u8]) -> Result<(), Fault> {
        self.output.feed(output, self.reply).await
    }

    /// Sends the output so far to the client, so that the client need not wait for the next output.
    pub async fn flush(&mut self) -> Result<(), Fault> {
        if self.output.has_output() { self.output.flush(self.reply).await } else { Ok(()) }
    }

    /// Ends the reply, because the output has ended.
    pub async fn finish(&mut self) -> Result<(), Fault> {
        self.output.finish(self.reply).await
    }

    /// Ends the output of a killed script. If the output is complete by its `Content-Length`, ends
    /// the reply normally. Otherwise sends the client the output so far, as Apache does, and
    /// returns `fault`. The caller then sends an error page if the header is incomplete, and
    /// otherwise resets the connection or stream.
    pub async fn cut_off(mut self, fault: Fault) -> Result<(), Fault> {
        if self.output.is_complete() {
            return self.finish().await;
        }
        if self.output.has_head() {
            self.output.flush(self.reply).await?;
        }
        Err(fault)
    }

    /// Returns the output so far.
    pub fn output(&self) -> &Output {
        &self.output
    }
}

/// Sends the client a reply of a backend that frames its replies (HTTP or AJP).
pub struct FramedPump<'a> {
    pub backend: &'a Backend,
    pub socket: &'a Socket,
    /// True if bytes of the reply have arrived. The backend has then processed the request.
    pub any: bool,
    /// True if the head is not sent before the first bytes of its body.
    // One write then sends head and body. If the backend fails after the head, the client gets an
    // error page instead of an incomplete reply.
    pub holds_head: bool,
}

impl FramedPump<'_> {
    /// Reads more bytes into `inbox`. The first `used` bytes of `inbox` were passed to `reply`.
    /// Sends these bytes to the client first, unless the head is held. Returns 0 at the end of the
    /// connection.
    pub async fn next(
        &mut self,
        inbox: &mut Vec<u8>,
        used: usize,
        reply: &mut Reply,
    ) -> Result<usize, Fault> {
        if !self.holds_head {
            reply.flush().await?;
        }
        make_room(inbox, used);
        let limit = self.backend.silence_of(reply);
        let read = self.backend.read_within(self.socket, inbox, limit).await;
        let read = read.map_err(|fault| if self.any { fault.retry(Retry::No) } else { fault })?;
        self.any |= read > 0;
        Ok(read)
    }

    /// Returns the fault of a connection that ended before the end of its reply.
    pub fn cut_off(&self) -> Fault {
        self.backend.cut_off(self.any)
    }
}

/// Removes the first `used` bytes. If the buffer was full, enlarges it up to `LARGE_INBOX`, or
/// further if an incomplete element fills it.
fn make_room(inbox: &mut Vec<u8>, used: usize) {
    let was_full = inbox.len() == inbox.capacity();
    inbox.drain(..used);
    match inbox.capacity() {
        _ if !was_full => {}
        0..INBOX => inbox.reserve(INBOX),
        INBOX..LARGE_INBOX => inbox.reserve(LARGE_INBOX),
        LARGE_INBOX.. if inbox.len() == inbox.capacity() => inbox.reserve(INBOX),
        LARGE_INBOX.. => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_was_filled_grows_and_has_room_in_any_case() {
        let mut inbox = Vec::new();
        for (used, most) in [(0, 2 * INBOX), (0, 3 * LARGE_INBOX), (0, 4 * LARGE_INBOX)] {
            inbox.resize(inbox.capacity(), b'x');
            make_room(&mut inbox, used);
            assert!(inbox.capacity() > inbox.len() && inbox.capacity() <= most);
        }
        let (capacity, len) = (inbox.capacity(), inbox.len());
        make_room(&mut inbox, len);
        assert!(inbox.is_empty() && inbox.capacity() == capacity);
    }
}
