//! Contains all `unsafe` code of the crate. This module handles inherited descriptors. `recycled`
//! has the memory of futures, `heap` returns free memory to the system, and `datagrams` assigns
//! datagrams to sockets.
#![allow(unsafe_code)]

pub mod datagrams;
pub mod heap;
pub mod recycled;

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

/// Takes over a descriptor that the parent process passed, and marks it close-on-exec.
///
/// Call this once for each number, before this process opens other descriptors. Fails if the number
/// is at most 2, is not open, or is already close-on-exec. A descriptor with this flag did not come
/// through an exec, so this process has opened it.
pub fn inherit(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is not -1, and the borrow ends before any code can close the descriptor.
    // If no descriptor has this number, the calls fail with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    if fcntl_getfd(borrowed)?.contains(FdFlags::CLOEXEC) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is open, and nothing else in this process owns it. It was not
    // close-on-exec, so this process did not open it. A second call for the number fails, because
    // this call has set close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Marks all descriptors from `first` on as close-on-exec.
///
/// A shell or a service manager may have left some descriptors open. Descriptors that this process
/// opens are close-on-exec anyway.
pub fn keep_from_programs(first: RawFd) {
    let first_number = libc::c_uint::try_from(first).unwrap_or(0);
    let flags = libc::c_uint::try_from(libc::CLOSE_RANGE_CLOEXEC).unwrap_or(0);
    // SAFETY: the call takes three numbers. It closes nothing, and sets a flag that has no effect
    // before an exec.
    if unsafe { libc::syscall(libc::SYS_close_range, first_number, libc::c_uint::MAX, flags) } == 0
    {
        return;
    }
    // Linux before 5.11 does not know CLOSE_RANGE_CLOEXEC, so mark each descriptor separately.
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        let Some(number) = number.filter(|number| *number >= first) else { continue };
        // SAFETY: the number is not negative, and the borrow ends with the call. If the descriptor
        // was closed in the meantime, the call fails.
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
        // Use high numbers, because other tests of this process open descriptors at the same time.
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
        // SAFETY: `into_raw_fd` has returned the number, and nothing has closed it.
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
