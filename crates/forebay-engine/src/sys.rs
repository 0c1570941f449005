//! The one place with `unsafe`: descriptors that the process was started with, the memory of futures
//! (`recycled`), memory that the allocator gives back (`heap`), and which of several sockets a datagram goes to
//! (`datagrams`).
#![allow(unsafe_code)]

pub mod datagrams;
pub mod heap;
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

/// Has all descriptors from `first` on closed in the programs that this process starts.
///
/// A shell or a service may have left any open. What this process itself opens is closed on exec
/// anyway.
pub fn keep_from_programs(first: RawFd) {
    let first_number = libc::c_uint::try_from(first).unwrap_or(0);
    let flags = libc::c_uint::try_from(libc::CLOSE_RANGE_CLOEXEC).unwrap_or(0);
    // SAFETY: the call takes three numbers. It closes nothing, and sets a flag that has no effect
    // before an exec.
    if unsafe { libc::syscall(libc::SYS_close_range, first_number, libc::c_uint::MAX, flags) } == 0
    {
        return;
    }
    // Linux before 5.11 does not know the flag.
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(number) = number.filter(|number| *number >= first) else { continue };
        // SAFETY: the number is not negative, and the borrow ends with the call. If nothing is open
        // under it any more, the call fails.
        let _ = fcntl_setfd(unsafe { BorrowedFd::borrow_raw(number) }, FdFlags::CLOEXEC);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, IntoRawFd};

    #[test]
    fn descriptors_from_a_number_on_are_kept_from_programs() {
        let open = |least| {
            let copy = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), least).unwrap();
            fcntl_setfd(&copy, FdFlags::empty()).unwrap();
            copy
        };
        // High numbers, as other tests of this process open descriptors meanwhile.
        let (below, beyond) = (open(700), open(800));
        keep_from_programs(800);
        assert!(!fcntl_getfd(&below).unwrap().contains(FdFlags::CLOEXEC));
        assert!(fcntl_getfd(&beyond).unwrap().contains(FdFlags::CLOEXEC));
    }

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
