//! The connections to a worker. The control socket is registered with the runtime of the thread
//! that uses the worker. The output, a socket or a pipe, is registered only if a reply takes long.
//!
//! Most reads and writes call the kernel directly; the runtime is used only to wait. Sockets are
//! not registered for writing, because the gateway would then wake each time a worker reads a
//! request.

use crate::sys;
use rustix::buffer::{Buffer, spare_capacity};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio, ioctl_fionread, read};
use rustix::net::{RecvFlags, recv};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket that is registered with the runtime of one thread, for reading: the control socket of a
/// worker.
#[derive(Debug)]
pub(crate) struct Link {
    fd: AsyncFd<Arc<OwnedFd>>,
    home: ThreadId,
}

/// The gateway's end of the output, a socket or a pipe. Most output does not wake the gateway
/// through this descriptor, because the worker announces output on the control socket
/// (`control::Reply::Waiting`).
#[derive(Debug)]
pub(crate) struct Output {
    fd: Arc<OwnedFd>,
    /// Set while the runtime watches the socket.
    watched: Option<AsyncFd<Arc<OwnedFd>>>,
}

/// Unexpected input on a socket of an idle worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Noise {
    Bytes,
    HungUp,
}

impl Link {
    /// Registers the socket with the runtime of the calling thread.
    pub(crate) fn new(fd: impl Into<Arc<OwnedFd>>) -> io::Result<Link> {
        let fd = sys::register(fd, Interest::READABLE)?;
        Ok(Link { fd, home: std::thread::current().id() })
    }

    /// Moves the registration to the runtime of the calling thread.
    pub(crate) fn moved_here(self) -> io::Result<Link> {
        Link::new(self.fd.into_inner())
    }

    pub(crate) fn is_at_home(&self, thread: ThreadId) -> bool {
        self.home == thread
    }

    /// Resolves when there may be something to read. An error means that the runtime has ended.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_read_ready(context).map_ok(|_| ())
    }

    /// Clears the runtime's record that the socket is readable. Call this after everything was
    /// read.
    pub(crate) fn forget_readiness(&self) {
        forget_readiness(&self.fd);
    }

    /// Reads available bytes into `buf`, up to its size. Returns 0 at the end of the socket.
    /// Returns `None` if no bytes are available now. The next
    /// [`poll_readable`](Link::poll_readable) then waits.
    pub(crate) fn receive(&self, buf: impl Buffer<u8>) -> Result<Option<usize>, Errno> {
        // A signal never interrupts this call, because the call does not wait.
        match recv(&self.fd, buf, RecvFlags::DONTWAIT) {
            Ok((_, read)) => Ok(Some(read)),
            Err(Errno::AGAIN) => {
                self.forget_readiness();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns true if the runtime has recorded that the socket is readable.
    pub(crate) fn is_noticed(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.fd.poll_read_ready(&mut context).is_ready()
    }
}

impl Output {
    /// Sets the gateway's end to non-blocking mode. The worker's end keeps its mode.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Output> {
        ioctl_fionbio(&fd, true)?;
        Ok(Output { fd: Arc::new(fd), watched: None })
    }

    /// Registers the socket with the runtime of the calling thread. The runtime also reports input
    /// that arrived before the registration.
    pub(crate) fn watch(&mut self) -> io::Result<()> {
        if self.watched.is_none() {
            self.watched = Some(sys::register(self.fd.clone(), Interest::READABLE)?);
        }
        Ok(())
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.is_some()
    }

    pub(crate) fn stop_watching(&mut self) {
        self.watched = None;
    }

    /// Resolves when there may be something to read. Never resolves while the socket is not
    /// watched.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.watched {
            Some(fd) => fd.poll_read_ready(context).map_ok(|_| ()),
            None => Poll::Pending,
        }
    }

    /// Appends available bytes to `buf`, up to its capacity. Returns as [`Link::receive`] does.
    pub(crate) fn receive(&self, buf: &mut Vec<u8>) -> Result<Option<usize>, Errno> {
        match read(&self.fd, spare_capacity(buf)) {
            Ok(read) => Ok(Some(read)),
            Err(Errno::AGAIN) => {
                self.forget_readiness();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Clears the runtime's record as [`Link::forget_readiness`] does.
    pub(crate) fn forget_readiness(&self) {
        if let Some(fd) = &self.watched {
            forget_readiness(fd);
        }
    }

    /// Returns the kind of unexpected input. Returns `None` if there is no input.
    pub(crate) fn noise(&self) -> Option<Noise> {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) => None,
            _ if ioctl_fionread(self).is_ok_and(|bytes| bytes > 0) => Some(Noise::Bytes),
            // `poll` fails if the limit on open files is 0. Treat the worker as silent.
            Err(_) => None,
            Ok(_) => Some(Noise::HungUp),
        }
    }
}

fn forget_readiness(fd: &AsyncFd<Arc<OwnedFd>>) {
    let mut context = Context::from_waker(Waker::noop());
    if let Poll::Ready(Ok(mut guard)) = fd.poll_read_ready(&mut context) {
        guard.clear_ready();
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::pipe::{PipeFlags, pipe_with};

    #[test]
    fn output_reports_bytes_and_its_end_on_a_socket_and_on_a_pipe() {
        let flags = SocketFlags::CLOEXEC;
        let socket = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        for (ours, theirs) in [socket, pipe_with(PipeFlags::CLOEXEC).unwrap()] {
            let output = Output::new(ours).unwrap();
            let mut bytes = Vec::with_capacity(8);
            assert_eq!(output.noise(), None);
            assert_eq!(output.receive(&mut bytes), Ok(None));
            rustix::io::write(&theirs, b"abc").unwrap();
            assert_eq!(output.noise(), Some(Noise::Bytes));
            drop(theirs);
            assert_eq!(output.noise(), Some(Noise::Bytes));
            assert_eq!(output.receive(&mut bytes), Ok(Some(3)));
            assert_eq!(output.noise(), Some(Noise::HungUp));
            assert_eq!(output.receive(&mut bytes), Ok(Some(0)));
        }
    }
}
