//! Contains all `unsafe` code of the crate. This module handles inherited descriptors and returns free
//! memory to the system. `recycled` has the memory of futures, and `datagrams` assigns datagrams to
//! sockets.
#![allow(unsafe_code)]

pub mod datagrams;
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

/// Returns free memory of the allocator to the system.
///
/// glibc's allocator keeps freed memory below the top of a heap. After 3,000 connections with an
/// open POST, glibc kept 58 MB. After a second round of connections, glibc kept 90 MB. Other
/// allocators return memory by themselves.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number and is allowed at any time on any thread. It locks each heap
    // in turn.
    let _ = unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, IntoRawFd};

    use rustix::param::page_size;

    use super::*;

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

    /// Returns the private resident memory of the process in bytes.
    fn resident() -> u64 {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: Vec<u64> = text.split(' ').take(3).map(|pages| pages.parse().unwrap()).collect();
        (pages[1] - pages[2]) * page_size() as u64
    }

    #[test]
    fn memory_that_was_freed_in_pieces_is_given_back() {
        const SIZE: usize = 20_000;
        let pieces: Vec<Vec<u8>> = (0..2000).map(|_| vec![1; SIZE]).collect();
        let held = resident();
        // Keep one piece, so that the allocator does not return everything by itself.
        let last = pieces.last().cloned();
        drop(pieces);
        trim_heap();
        let left = resident();
        assert!(left + 20_000_000 < held, "{left} bytes of {held}");
        drop(last);
    }
}
