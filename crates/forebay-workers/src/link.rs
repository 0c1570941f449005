//! The sockets to a worker, registered with the runtime of the thread that uses them.
//!
//! The hot path calls the kernel directly and asks the runtime only to wait. Interest is in reading
//! alone: with interest in writing, each request that a worker takes in would wake this side.

use crate::sys;
use rustix::buffer::Buffer;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, Waker};
use std::thread::ThreadId;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(crate) struct Link {
    fd: AsyncFd<OwnedFd>,
    home: ThreadId,
}

/// What lies in a socket that should be silent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Noise {
    Bytes,
    HungUp,
}

impl Link {
    /// Registers with the runtime of the calling thread.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Link> {
        let fd = sys::register(fd, Interest::READABLE)?;
        Ok(Link { fd, home: std::thread::current().id() })
    }

    /// Moves to the runtime of the calling thread.
    pub(crate) fn moved_here(self) -> io::Result<Link> {
        Link::new(self.fd.into_inner())
    }

    pub(crate) fn is_at_home(&self, thread: ThreadId) -> bool {
        self.home == thread
    }

    /// Ready when there may be something to read. An error means that the runtime is gone.
    pub(crate) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_read_ready(context).map_ok(|_| ())
    }

    /// Takes back what the runtime has noticed so far, after everything was read.
    pub(crate) fn forget_readiness(&self) {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(Ok(mut guard)) = self.fd.poll_read_ready(&mut context) {
            guard.clear_ready();
        }
    }

    /// Reads what there is into `buf`; 0 at the end. `None`: nothing for now, and the next
    /// [`poll_readable`](Link::poll_readable) waits.
    pub(crate) fn receive(&self, buf: impl Buffer<u8>) -> Result<Option<usize>, Errno> {
        // Never interrupted by a signal: the call does not wait.
        match recv(&self.fd, buf, RecvFlags::DONTWAIT) {
            Ok((_, read)) => Ok(Some(read)),
            Err(Errno::AGAIN) => {
                self.forget_readiness();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// What has come although nothing was asked. Without `look`, no system call unless the runtime
    /// has noticed something.
    pub(crate) fn noise(&self, look: bool) -> Option<Noise> {
        let mut context = Context::from_waker(Waker::noop());
        if !look && self.fd.poll_read_ready(&mut context).is_pending() {
            return None;
        }
        let noise = noise(self);
        if noise.is_none() {
            self.forget_readiness();
        }
        noise
    }
}

fn noise(socket: impl AsFd) -> Option<Noise> {
    let mut byte = [0; 1];
    match recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
        Ok((1.., _)) => Some(Noise::Bytes),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Ok(_) | Err(_) => Some(Noise::HungUp),
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
