//! The queue of a worker's next requests: a socket that carries whole messages. Forebay holds both
//! ends, so that it can also take requests back.
//!
//! Forebay can put requests into the queue while the worker still runs the previous one. So the
//! worker need not sleep between two requests. If the current request takes longer than 5 ms
//! (`pace::MOMENT`), Forebay takes back the next requests, unless the worker has already read them.
//!
//! The queue holds up to eight requests that only compute. It holds one request that may sleep, and
//! only while all workers are busy: a worker that becomes free first takes that request back.
//!
//! If the output of the current request reaches 64 KiB or pauses for 1 ms, its task takes the other
//! requests back at once. If the worker has already read one of them, the current request has
//! ended. Its task then reads all output, so that a slow client does not delay the others.
//!
//! When the worker dies, unread requests go to other workers. All requests in a queue belong to one
//! thread, so other threads never add requests to the queue.
//!
//! A read by Forebay would wake a worker that waits in a blocking read. So a worker reads without
//! blocking, and waits with `select` or `poll`.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use crate::control::{HEAD, LARGEST, Mark};

/// The prefetch queue of one worker: a socket that holds the worker's next requests. Contains both
/// ends of this socket.
#[derive(Debug)]
pub(crate) struct PrefetchQueue {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// Marks of requests that a dead worker had not read, or that were never sent to it.
    unread: Mutex<Vec<Mark>>,
}

impl PrefetchQueue {
    /// Returns a prefetch queue, and the socket from which the worker reads.
    pub(crate) fn pair() -> io::Result<(PrefetchQueue, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let its = theirs.try_clone()?;
        Ok((PrefetchQueue { ours, theirs, unread: Mutex::default() }, its))
    }

    /// Appends a request to the queue. Returns false if the request is too large or the queue is
    /// full.
    pub(crate) fn put<const N: usize>(&self, parts: &[&[u8]; N]) -> bool {
        if parts.iter().map(|part| part.len()).sum::<usize>() > LARGEST {
            return false;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let parts = parts.map(IoSlice::new);
        sendmsg(&self.ours, &parts, &mut SendAncillaryBuffer::default(), flags).is_ok()
    }

    /// Records that a request could not be put into the queue, so that the worker cannot read it.
    pub(crate) fn refused(&self, mark: Mark) {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner).push(mark);
    }

    /// Takes back the requests with these marks that the worker has not read, and returns their
    /// marks. Takes none back if the first unread request has another mark, because reading the
    /// socket would remove that request.
    pub(crate) fn take_back(&self, marks: &[Mark]) -> Vec<Mark> {
        if !self.first().is_some_and(|first| marks.contains(&first)) {
            return Vec::new();
        }
        // The worker may read some of these requests at the same time. The result does not contain
        // the marks of such requests.
        std::iter::from_fn(|| self.receive(RecvFlags::empty())).collect()
    }

    /// Returns the mark of the first request that the worker has not read. Returns `None` if the
    /// queue is empty.
    pub(crate) fn first(&self) -> Option<Mark> {
        self.receive(RecvFlags::PEEK)
    }

    /// Returns true if a worker has ended without reading the request with this mark. Returns true
    /// only once for each request.
    pub(crate) fn had_not_read(&self, mark: Mark) -> bool {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        unread.extend(std::iter::from_fn(|| self.receive(RecvFlags::empty())));
        let found = unread.iter().position(|known| *known == mark);
        found.map(|at| unread.swap_remove(at)).is_some()
    }

    /// Reads the first request, and returns its mark. Returns `None` if the queue is empty.
    fn receive(&self, flags: RecvFlags) -> Option<Mark> {
        let mut head = [0; HEAD];
        loop {
            match recv(&self.theirs, &mut head, flags | RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Ok((HEAD, _)) => return head.last_chunk().copied().map(Mark),
                // A result of 0 means that a script has shut down the socket. Treat the queue as
                // empty.
                Ok(_) | Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control;

    fn put(prefetch: &PrefetchQueue, mark: Mark) -> bool {
        prefetch.put(&[&control::head(3, 0, mark).unwrap(), b"A\0\0", b""])
    }

    fn read(end: &OwnedFd) -> Vec<u8> {
        let mut message = [0; 64];
        let read = rustix::io::read(end, &mut message).unwrap();
        message[..read].to_vec()
    }

    #[test]
    fn only_unread_requests_are_taken_back() {
        let (prefetch, its_end) = PrefetchQueue::pair().unwrap();
        let marks = [Mark::new(), Mark::new(), Mark::new()];
        assert!(marks.iter().all(|mark| put(&prefetch, *mark)));
        assert_eq!(read(&its_end)[HEAD - 16..HEAD], marks[0].0);
        assert_eq!(
            prefetch.take_back(&marks[2..]),
            [],
            "its turn would come before that of another"
        );
        assert_eq!(prefetch.take_back(&marks), marks[1..]);
        assert_eq!(rustix::io::read(&its_end, &mut [0; 8]), Err(Errno::AGAIN));
        assert_eq!(prefetch.take_back(&[]), []);
    }

    #[test]
    fn unread_requests_of_a_dead_worker_are_reported_once() {
        let (prefetch, its_end) = PrefetchQueue::pair().unwrap();
        let marks = [Mark::new(), Mark::new(), Mark::new()];
        assert!(marks.iter().all(|mark| put(&prefetch, *mark)));
        read(&its_end);
        let unread = marks.map(|mark| prefetch.had_not_read(mark));
        assert_eq!(unread, [false, true, true]);
        assert!(!prefetch.had_not_read(marks[2]));
    }

    #[test]
    fn a_queue_that_was_shut_down_is_empty() {
        let (prefetch, its_end) = PrefetchQueue::pair().unwrap();
        rustix::net::shutdown(&its_end, rustix::net::Shutdown::Both).unwrap();
        assert_eq!(prefetch.take_back(&[]), []);
    }

    #[test]
    fn requests_too_large_for_hosts_are_refused() {
        let (prefetch, _its_end) = PrefetchQueue::pair().unwrap();
        let head = control::head(0, 0, Mark::new()).unwrap();
        assert!(prefetch.put(&[&head, &[0; LARGEST - HEAD], b""]));
        assert!(!prefetch.put(&[&head, &[0; LARGEST - HEAD], b"1"]));
    }
}
