//! Writes to a socket. A write waits while the send buffer is full.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Socket;
use crate::deadline::NEVER;

impl Socket {
    /// Queues `data` to be sent after all ready tasks have run. Writes immediately if `data` is
    /// larger than 4 KiB or a part of earlier output is unsent. If sending fails later, the next
    /// read returns end of file. Use this only if a read follows, for example of a reply.
    ///
    /// # Errors
    /// Returns the errors of [`Socket::write_all`].
    pub async fn write_soon(&self, data: &[u8]) -> io::Result<()> {
        if self.send_soon(data) {
            return Ok(());
        }
        self.write_all(data).await
    }

    /// Queues `data` to be sent after all ready tasks have run. Returns false and queues nothing if
    /// `data` is too large or empty, or if a part of earlier output is unsent.
    pub fn send_soon(&self, data: &[u8]) -> bool {
        self.deadlines.send_soon(&self.shared, data)
    }

    /// Sends the queued output of all sockets of the thread. Waits until the output of this socket
    /// has been sent or has failed.
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

    /// Sends the queued output of all sockets of the thread, if output of this socket is queued.
    /// Does not wait for room in the kernel's buffers.
    pub(super) fn send_now(&self) {
        if self.shared.is_sending.get() {
            self.deadlines.send_outgoing();
        }
    }

    /// Writes all of `data`. Lets all other ready tasks run first.
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

    /// Writes all of several pieces, with as few system calls as possible. Lets all other ready
    /// tasks run first.
    pub async fn write_pieces(&self, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut pieces, 0);
        self.sent().await;
        // Yielding brings the writes of several tasks close together, so fewer of them wake a
        // sleeping peer. These wake-ups took a tenth of the time of a proxied request.
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

    /// Writes as many bytes of the non-empty `pieces` as the send buffer accepts. Returns 0 if the
    /// buffer is full.
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
        // A socket's buffer may accept megabytes. Other tasks run between slices, so that many
        // clients of large files do not delay a client of a small one.
        const AT_ONCE: u64 = 128 << 10;
        self.sent().await;
        while length > 0 {
            let count = length.min(AT_ONCE) as usize;
            match self.shared.send_file(file, &mut offset, count) {
                // The file became shorter after its length was sent to the client.
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

    /// Waits for room in the send buffer if a write failed because the buffer was full. Ignores an
    /// interruption, and returns all other errors.
    pub(super) async fn after_write_error(&self, error: io::Error) -> io::Result<()> {
        match error.kind() {
            io::ErrorKind::Interrupted => Ok(()),
            io::ErrorKind::WouldBlock => self.wait_for_room().await,
            _ if self.is_expired() => Err(io::ErrorKind::TimedOut.into()),
            _ => Err(error),
        }
    }

    /// Starts the time limit of [`Socket::limit_writes`], because the send buffer is full.
    /// [`Socket::poll_room`] or [`Socket::try_write`] ends the limit. A second call does not
    /// restart the limit, because a task may call this again after an unrelated wake-up.
    pub fn expect_room(&self) {
        // The event loop may have recorded that the socket is writable before the buffer became
        // full. With this outdated record, the wait would end at once.
        self.shared.io.forget_room();
        if self.shared.write_due.get() == NEVER {
            self.shared.write_due.set(self.deadlines.due(self.shared.write_limit.get()));
        }
    }

    /// Sets the limit as [`Socket::limit_writes`] does, and shortens a wait in progress to `pause`
    /// from now.
    pub fn shorten_write_limit(&self, pause: Duration) {
        self.limit_writes(pause);
        let due = self.shared.write_due.get();
        if due != NEVER {
            self.shared.write_due.set(due.min(self.deadlines.due(pause)));
        }
    }

    /// Completes when the send buffer has room.
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

    /// Waits until the send buffer has room, at most for the limit of [`Socket::limit_writes`].
    pub async fn wait_for_room(&self) -> io::Result<()> {
        // Discard the deadline of an earlier wait that was cancelled.
        self.shared.write_due.set(NEVER);
        self.expect_room();
        poll_fn(|context| self.poll_room(context)).await
    }
}

/// Lets all tasks run that are ready now.
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
