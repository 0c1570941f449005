//! Passes replies on to the client as they come. A client that takes nothing holds the reading up.
//!
//! Output of scripts and applications, whoever runs them, comes in pieces of any size and shows its
//! head, length and end only when it is parsed: [`ReplyPump`] holds small pieces back until nothing
//! has come for [`PAUSE`]. Replies of backends that frame them (HTTP, AJP) are passed on by
//! [`FramedPump`] at each read, without that timer and without a copy: what was read goes out from
//! the buffer that it was read into.

use forebay_engine::{Fault, Reply, Retry, Socket};

use crate::output::Output;
use crate::script_reply::PAUSE;
use crate::upstream::Backend;

/// Size of a receive buffer, in bytes.
const INBOX: usize = 16 * 1024;
/// Size of one for a long body, in bytes: more than the largest packet of AJP.
const LARGE_INBOX: usize = 128 * 1024;

/// One reply on its way from where it is read to the client.
pub struct ReplyPump<'a> {
    output: Output,
    reply: &'a mut Reply,
}

impl<'a> ReplyPump<'a> {
    /// Makes `reply` of `output`, which is read from now on.
    pub fn new(output: Output, reply: &'a mut Reply) -> Self {
        Self { output, reply }
    }

    /// What `read` brings. Where that takes a moment, what has come so far goes to the client first;
    /// `read` is given up meanwhile and called again, so it must lose nothing.
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

    /// Takes output.
    pub async fn feed(&mut self, output: &[u8]) -> Result<(), Fault> {
        self.output.feed(output, self.reply).await
    }

    /// Nothing comes for a while: what has come goes to the client.
    pub async fn flush(&mut self) -> Result<(), Fault> {
        if self.output.has_output() { self.output.flush(self.reply).await } else { Ok(()) }
    }

    /// All has come.
    pub async fn finish(&mut self) -> Result<(), Fault> {
        self.output.finish(self.reply).await
    }

    /// The script was killed: the client gets what the script printed, as with Apache, but never as a
    /// whole reply unless all of its `Content-Length` has come. `fault` is the outcome otherwise: before
    /// the end of the header an error page, after it the end of the connection or stream.
    pub async fn cut_off(mut self, fault: Fault) -> Result<(), Fault> {
        if self.output.is_complete() {
            return self.finish().await;
        }
        if self.output.has_head() {
            self.output.flush(self.reply).await?;
        }
        Err(fault)
    }

    /// The output so far.
    pub fn output(&self) -> &Output {
        &self.output
    }
}

/// One reply, which its backend frames, on its way to the client.
pub struct FramedPump<'a> {
    pub backend: &'a Backend,
    pub socket: &'a Socket,
    /// Bytes of the reply came, so that the request must have been acted on.
    pub any: bool,
    /// The head waits for the first of the body that it announces: one write in place of two, and a
    /// backend that dies in between costs the client no cut-off reply.
    pub holds_head: bool,
}

impl FramedPump<'_> {
    /// Reads more into `inbox`, whose first `used` bytes were passed to `reply`: the client is sent
    /// them first, unless the head is held. 0 at the end of the connection.
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
        let read = self.backend.read(self.socket, inbox).await;
        let read = read.map_err(|fault| if self.any { fault.retry(Retry::No) } else { fault })?;
        self.any |= read > 0;
        Ok(read)
    }

    /// The connection ended before the reply did.
    pub fn cut_off(&self) -> Fault {
        self.backend.cut_off(self.any)
    }
}

/// Drops what has been passed on; a body that fills the buffer again gets a larger one.
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
