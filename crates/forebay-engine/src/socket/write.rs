//! Writing to a socket, waiting where the peer has no room.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Socket;
use crate::deadline::NEVER;

impl Socket {
    /// Has `data` sent at the end of this thread's turn; written at once where it is larger than 4 KiB,
    /// or the socket has no room for what came before. Where sending fails later, the next read finds
    /// end of file: use it where a read follows, as that of a reply.
    ///
    /// # Errors
    /// Those of [`Socket::write_all`].
    pub async fn write_soon(&self, data: &[u8]) -> io::Result<()> {
        if self.send_soon(data) {
            return Ok(());
        }
        self.write_all(data).await
    }

    /// Has `data` sent at the end of this thread's turn. `false`, and nothing done, where it is too
    /// large or empty, or the socket has no room for what came before.
    pub(crate) fn send_soon(&self, data: &[u8]) -> bool {
        self.deadlines.send_soon(&self.shared, data)
    }

    /// Waits until what [`Socket::write_soon`] was given has been sent, or cannot be.
    pub async fn sent(&self) {
        poll_fn(|context| self.poll_sent(context)).await;
    }

    fn poll_sent(&self, context: &Context<'_>) -> Poll<()> {
        self.send_now();
        if !self.shared.is_sending.get() {
            return Poll::Ready(());
        }
        self.shared.at_sent.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Sends what [`Socket::write_soon`] was given and has not been sent, as far as there is room.
    pub(super) fn send_now(&self) {
        if self.shared.is_sending.get() {
            self.deadlines.send_outgoing();
        }
    }

    /// As [`Socket::write_pieces`], all of `data`.
    pub async fn write_all(&self, mut data: &[u8]) -> io::Result<()> {
        self.sent().await;
        yield_to_readers().await;
        while !data.is_empty() {
            match self.shared.write(&[IoSlice::new(data)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => data = &data[n..],
                Err(error) => self.after_write_error(error).await?,
            }
        }
        Ok(())
    }

    /// Writes all of several pieces, by as few system calls as there can be. Tasks that have
    /// something to read come first: when writes follow each other closely, fewer of them find
    /// their peer asleep and have to wake it, which took a tenth of the time of a proxied request.
    pub async fn write_pieces(&self, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut pieces, 0);
        self.sent().await;
        yield_to_readers().await;
        while !pieces.is_empty() {
            match self.shared.write(pieces) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut pieces, n),
                Err(error) => self.after_write_error(error).await?,
            }
        }
        Ok(())
    }

    /// Writes some of what is not empty; 0 where the peer has no room.
    pub fn try_write(&self, pieces: &[IoSlice<'_>]) -> io::Result<u64> {
        self.send_now();
        if self.shared.is_sending.get() {
            return Ok(0);
        }
        loop {
            match self.shared.write(pieces) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.shared.write_due.set(NEVER);
                    return Ok(n as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if self.is_expired() => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends `length` bytes of `file` from `offset` on, without copying them through this process.
    pub async fn send_file(
        &self,
        file: BorrowedFd<'_>,
        mut offset: u64,
        mut length: u64,
    ) -> io::Result<()> {
        // A socket's buffer may take megabytes. Between slices others have their turn: many clients
        // that ask for large files at once must not hold up one that asks for little.
        const AT_ONCE: u64 = 128 << 10;
        self.sent().await;
        while length > 0 {
            let count = length.min(AT_ONCE) as usize;
            match self.shared.send_file(file, &mut offset, count) {
                // The file has become shorter since its length was sent to the client.
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    length -= n as u64;
                    if length > 0 {
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) => self.after_write_error(error).await?,
            }
        }
        Ok(())
    }

    /// Waits for room where that is what was missing.
    pub(super) async fn after_write_error(&self, error: io::Error) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            io::ErrorKind::WouldBlock => self.wait_for_room().await,
            _ if self.is_expired() => Err(io::ErrorKind::TimedOut.into()),
            _ => Err(error),
        }
    }

    /// The peer has no room: from now on it may take as long as [`Socket::limit_writes`] allows
    /// until [`Socket::poll_room`] finds some or [`Socket::try_write`] writes. Saying so again while
    /// that time runs does not prolong it: a task that is woken for other reasons tries again.
    pub fn expect_room(&self) {
        // Readiness may be stale from before the buffer filled up.
        self.shared.io.forget_room();
        if self.shared.write_due.get() == NEVER {
            self.shared.write_due.set(self.deadlines.due(self.shared.write_limit.get()));
        }
    }

    /// As [`Socket::limit_writes`], also where room is waited for already: it is waited for no
    /// longer than `pause` from now.
    pub fn shorten_write_limit(&self, pause: Duration) {
        self.limit_writes(pause);
        let due = self.shared.write_due.get();
        if due != NEVER {
            self.shared.write_due.set(due.min(self.deadlines.due(pause)));
        }
    }

    /// Whether the peer has room.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.poll_sent(context).is_pending() {
            return Poll::Pending;
        }
        let ready = self.shared.io.poll_writable(context);
        if ready.is_ready() {
            self.shared.write_due.set(NEVER);
        }
        ready
    }

    /// Waits until the peer has room, as long as [`Socket::limit_writes`] allows.
    pub(crate) async fn wait_for_room(&self) -> io::Result<()> {
        // That of a wait that was given up.
        self.shared.write_due.set(NEVER);
        self.expect_room();
        poll_fn(|context| self.poll_room(context)).await
    }
}

/// Lets every task run that is ready now.
pub async fn yield_to_readers() {
    let mut has_given = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_given, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
