//! The queue of a worker's next requests: a socket of whole messages. Forebay holds both ends.
//!
//! A request can be queued after the one that the worker runs, so that the worker need not sleep
//! between them. It can be taken back while the worker has not read it, if the current request
//! takes long.
//!
//! The queue holds up to 16 requests. Their tasks check each millisecond, and take them back unless
//! the worker has read one of them. They also wait if the worker has hardly run since the first
//! check because other processes have its processor (state R, less than 2 ms of CPU). This wait
//! costs less than a second worker on the same processor, and ends after 20 ms.
//!
//! The requests are taken back at once if 1 ms has passed since the last output without an end, or
//! if there are 64 KiB of output. If the worker has already read one, the end of the previous
//! request is in the socket. Then all output is read, so that a slow client does not delay the
//! others.
//!
//! When the worker dies, unread requests go to other workers. After a request was taken back from a
//! living worker, prefetch queues stay empty for 100 ms. A request is queued only after one of the
//! same thread, so nothing happens between two steps.
//!
//! A blocking read of the queue would be woken for 0.7 of the requests when Forebay reads the last
//! reply. So a worker reads without blocking, and waits with `select` or `poll`.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use crate::control::{HEAD, LARGEST, Mark};

/// The sockets of one worker.
#[derive(Debug)]
pub(crate) struct PrefetchQueue {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// Marks of requests that a dead worker had not read.
    unread: Mutex<Vec<Mark>>,
}

impl PrefetchQueue {
    /// Returns a prefetch queue, and the worker's end of it.
    pub(crate) fn pair() -> io::Result<(PrefetchQueue, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let its = theirs.try_clone()?;
        Ok((PrefetchQueue { ours, theirs, unread: Mutex::default() }, its))
    }

    /// Appends a request to the queue; returns false if there is no room.
    pub(crate) fn put<const N: usize>(&self, parts: &[&[u8]; N]) -> bool {
        if parts.iter().map(|part| part.len()).sum::<usize>() > LARGEST {
            return false;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let parts = parts.map(IoSlice::new);
        sendmsg(&self.ours, &parts, &mut SendAncillaryBuffer::default(), flags).is_ok()
    }

    /// Takes back those of these requests that the worker has not read. Takes none back if an
    /// earlier request is unread, because the next request would take its place.
    pub(crate) fn take_back(&self, marks: &[Mark]) -> Vec<Mark> {
        if !self.first().is_some_and(|first| marks.contains(&first)) {
            return Vec::new();
        }
        // The worker may read some of them meanwhile; these are not returned.
        std::iter::from_fn(|| self.receive(RecvFlags::empty())).collect()
    }

    /// Returns the first request that the worker has not read.
    pub(crate) fn first(&self) -> Option<Mark> {
        self.receive(RecvFlags::PEEK)
    }

    /// Returns true, once, if a worker that has ended had not read the request with this mark.
    pub(crate) fn had_not_read(&self, mark: Mark) -> bool {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        unread.extend(std::iter::from_fn(|| self.receive(RecvFlags::empty())));
        let found = unread.iter().position(|known| *known == mark);
        found.map(|at| unread.swap_remove(at)).is_some()
    }

    /// Returns the mark of the first request; `None` if there is none.
    fn receive(&self, flags: RecvFlags) -> Option<Mark> {
        let mut head = [0; HEAD];
        loop {
            match recv(&self.theirs, &mut head, flags | RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Ok((HEAD, _)) => return head.last_chunk().copied().map(Mark),
                // Less than a head: a script has shut down the socket.
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
    fn what_is_taken_back_is_what_was_not_read() {
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
    fn what_a_dead_worker_has_not_read_is_known_once_for_each_request() {
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
    fn what_hosts_have_no_room_for_is_refused() {
        let (prefetch, _its_end) = PrefetchQueue::pair().unwrap();
        let head = control::head(0, 0, Mark::new()).unwrap();
        assert!(prefetch.put(&[&head, &[0; LARGEST - HEAD], b""]));
        assert!(!prefetch.put(&[&head, &[0; LARGEST - HEAD], b"1"]));
    }
}
