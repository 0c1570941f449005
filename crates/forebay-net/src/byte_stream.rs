//! The byte stream below a socket: TCP, a Unix socket or, in tests, a link in memory.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use rustix::buffer::spare_capacity;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use crate::memory::Link;

/// A byte stream without TLS.
pub enum Io {
    Tcp(TcpStream),
    Unix(UnixStream),
    Memory(Link),
}

impl Io {
    /// Returns the file descriptor. For a link in memory, which has no descriptor, returns the link
    /// as the error.
    pub fn fd(&self) -> Result<BorrowedFd<'_>, &Link> {
        match self {
            Self::Tcp(stream) => Ok(stream.as_fd()),
            Self::Unix(stream) => Ok(stream.as_fd()),
            Self::Memory(link) => Err(link),
        }
    }

    /// Appends received bytes, up to the spare capacity. Returns their number, or 0 if the peer has
    /// closed. Fails with `WouldBlock` if nothing has arrived.
    pub fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        match self.fd() {
            Ok(fd) => Ok(rustix::net::recv(fd, spare_capacity(buffer), RecvFlags::DONTWAIT)?.1),
            Err(link) => link.append_to(buffer, buffer.capacity() - buffer.len()),
        }
    }

    /// Reads received bytes into an initialized slice. The results are those of [`Io::read`].
    pub fn read_slice(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.fd() {
            Ok(fd) => Ok(rustix::net::recv(fd, bytes, RecvFlags::DONTWAIT)?.0),
            Err(link) => link.try_read(bytes),
        }
    }

    /// Writes as many bytes as the send buffer accepts. Returns the number of written bytes. Fails
    /// with `WouldBlock` if the buffer is full.
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(match (self.fd(), pieces) {
            (Ok(fd), [piece]) => rustix::net::send(fd, piece, SendFlags::NOSIGNAL)?,
            (Ok(fd), _) => rustix::io::writev(fd, pieces)?,
            (Err(link), [piece]) => link.try_write(piece)?,
            (Err(link), _) => {
                let bytes: Vec<u8> =
                    pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
                link.try_write(&bytes)?
            }
        })
    }

    /// Sends up to `count` bytes of `file` from `at` on, and advances `at`. Returns the number of
    /// sent bytes, or 0 at the end of the file.
    pub fn send_file(&self, file: BorrowedFd<'_>, at: &mut u64, count: usize) -> io::Result<usize> {
        let link = match self.fd() {
            Ok(fd) => return Ok(rustix::fs::sendfile(fd, file, Some(at), count)?),
            Err(link) => link,
        };
        let mut bytes = vec![0; count];
        let n = rustix::io::pread(file, &mut bytes, *at)?;
        let written = if n == 0 { 0 } else { link.try_write(&bytes[..n])? };
        *at += written as u64;
        Ok(written)
    }

    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_read_ready(context),
            Self::Unix(stream) => stream.poll_read_ready(context),
            Self::Memory(link) => link.poll_readable(context).map(Ok),
        }
    }

    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(stream) => stream.poll_write_ready(context),
            Self::Unix(stream) => stream.poll_write_ready(context),
            Self::Memory(link) => link.poll_writable(context).map(Ok),
        }
    }

    /// Waits until the send buffer has room. Another task may use [`Io::poll_writable`] at the same
    /// time.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
            Self::Memory(link) => {
                poll_fn(|context| link.poll_writable(context)).await;
                Ok(())
            }
        }
    }

    /// Clears the write readiness that tokio has recorded. Call this after a write failed with
    /// `WouldBlock`, because the recorded readiness may be older than the write.
    pub fn forget_room(&self) {
        let _ = self.try_io(Interest::WRITABLE, || {
            Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock))
        });
    }

    /// Calls `action`. But if the event loop knows that `action` would block, returns `WouldBlock`
    /// instead. Clears the recorded readiness if `action` returns `WouldBlock`.
    pub fn try_io<R>(
        &self,
        interest: Interest,
        action: impl FnOnce() -> io::Result<R>,
    ) -> io::Result<R> {
        match self {
            Self::Tcp(stream) => stream.try_io(interest, action),
            Self::Unix(stream) => stream.try_io(interest, action),
            // A link reports its current state, so there is no recorded readiness to clear.
            Self::Memory(link) => match link.peek() {
                None => Err(io::ErrorKind::WouldBlock.into()),
                Some(_) => action(),
            },
        }
    }
}
