//! The one place with `unsafe`: descriptors that the process was started with, the memory of futures
//! (`recycled`), and which of several sockets a datagram goes to (`datagrams`).
#![allow(unsafe_code)]

pub mod datagrams;
pub mod recycled;

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor that the parent process passed, and keeps it from our children.
///
/// To be called once for each number, before anything else is opened. It fails for a number that
/// is not open, and for one that is closed on exec: that one was opened by this very process, which
/// passes that flag whenever it opens something, and cannot have come through an exec.
pub fn inherit(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is not -1, and the borrow ends before anything could close it; if nothing
    // is open under it, the calls fail with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and nobody in this process owns it: it came through an exec,
    // as it was not closed on exec, and was taken over for the first time, as it is from now on.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn only_what_came_through_an_exec_is_taken_over() {
        let ours = std::fs::File::open("/dev/null").unwrap();
        assert!(inherit(ours.as_raw_fd()).is_err(), "closed on exec");
        let number = rustix::io::fcntl_dupfd_cloexec(&ours, 100).unwrap().into_raw_fd();
        // SAFETY: the number was just let go of and is open.
        fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::empty()).unwrap();
        let taken = inherit(number).unwrap();
        assert_eq!(taken.as_raw_fd(), number);
        assert!(fcntl_getfd(&taken).unwrap().contains(FdFlags::CLOEXEC));
        assert!(inherit(number).is_err(), "taken over already");
        drop(taken);
        assert!(inherit(number).is_err(), "not open");
        assert!(inherit(1).is_err(), "standard output has an owner");
    }
}
