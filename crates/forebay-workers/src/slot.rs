//! Where a worker's next requests lie: a socket of whole messages, of which Forebay holds both ends.
//!
//! So a request can be put behind the one that the worker runs, which then need not sleep between
//! the two; and it can be taken back, as long as the worker has not read it, if that one takes long.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use crate::control::HEAD;
use crate::trailer::Mark;

/// Bytes of a request at the most; what hosts have room for. Two of them fit the socket's buffer.
pub(crate) const LARGEST: usize = 64 * 1024;

/// The sockets of one worker.
#[derive(Debug)]
pub(crate) struct Slot {
    ours: OwnedFd,
    theirs: OwnedFd,
    /// Of requests that a worker which has ended had not read.
    unread: Mutex<Vec<Mark>>,
}

impl Slot {
    /// A slot, and the worker's end of it.
    pub(crate) fn pair() -> io::Result<(Slot, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let its = theirs.try_clone()?;
        Ok((Slot { ours, theirs, unread: Mutex::default() }, its))
    }

    /// Puts a request behind those that lie there; false if it has no room.
    pub(crate) fn put<const N: usize>(&self, parts: &[&[u8]; N]) -> bool {
        if parts.iter().map(|part| part.len()).sum::<usize>() > LARGEST {
            return false;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let parts = parts.map(IoSlice::new);
        sendmsg(&self.ours, &parts, &mut SendAncillaryBuffer::default(), flags).is_ok()
    }

    /// Takes the request with this mark back; false if the worker has read it, or has one before it
    /// still to read.
    pub(crate) fn take_back(&self, mark: Mark) -> bool {
        // If it is the first none other can be by the second call.
        let is_first = self.receive(RecvFlags::PEEK) == Some(mark);
        is_first && self.receive(RecvFlags::empty()).is_some() || self.forget_unread(mark)
    }

    /// Takes everything back that the worker has not read.
    pub(crate) fn take_all_back(&self) -> Vec<Mark> {
        std::iter::from_fn(|| self.receive(RecvFlags::empty())).collect()
    }

    /// Whether a worker that has ended had not read the request with this mark. True only once.
    pub(crate) fn had_not_read(&self, mark: Mark) -> bool {
        let mut rest = self.take_all_back();
        self.unread.lock().unwrap_or_else(PoisonError::into_inner).append(&mut rest);
        self.forget_unread(mark)
    }

    fn forget_unread(&self, mark: Mark) -> bool {
        let mut unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        let found = unread.iter().position(|known| *known == mark);
        found.map(|at| unread.swap_remove(at)).is_some()
    }

    /// The mark of the first request; `None` if there is none.
    fn receive(&self, flags: RecvFlags) -> Option<Mark> {
        let mut head = [0; HEAD];
        loop {
            match recv(&self.theirs, &mut head, flags | RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Ok(_) => return head.last_chunk().copied().map(Mark),
                Err(_) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control;

    fn put(slot: &Slot, mark: Mark) -> bool {
        slot.put(&[&control::head(3, 0, mark).unwrap(), b"A\0\0", b""])
    }

    fn read(end: &OwnedFd) -> Vec<u8> {
        let mut message = [0; 64];
        let read = rustix::io::read(end, &mut message).unwrap();
        message[..read].to_vec()
    }

    #[test]
    fn a_request_can_be_taken_back_until_it_is_read() {
        let (slot, its_end) = Slot::pair().unwrap();
        let (first, second) = (Mark::new(), Mark::new());
        assert!(put(&slot, first) && put(&slot, second));
        assert!(!slot.take_back(second), "one lies before it");
        assert_eq!(read(&its_end)[HEAD - 16..HEAD], first.0);
        assert!(slot.take_back(second));
        assert_eq!(rustix::io::read(&its_end, &mut [0; 8]), Err(Errno::AGAIN));
        assert!(!slot.take_back(second));
    }

    #[test]
    fn what_is_taken_back_is_what_was_not_read() {
        let (slot, its_end) = Slot::pair().unwrap();
        let marks = [Mark::new(), Mark::new(), Mark::new()];
        assert!(marks.iter().all(|mark| put(&slot, *mark)));
        read(&its_end);
        assert!(!slot.take_back(marks[0]));
        assert_eq!(slot.take_all_back(), marks[1..]);
        assert_eq!(slot.take_all_back(), []);
    }

    #[test]
    fn what_a_dead_worker_has_not_read_is_known_once_for_each_request() {
        let (slot, its_end) = Slot::pair().unwrap();
        let marks = [Mark::new(), Mark::new(), Mark::new()];
        assert!(marks.iter().all(|mark| put(&slot, *mark)));
        read(&its_end);
        let unread = marks.map(|mark| slot.had_not_read(mark));
        assert_eq!(unread, [false, true, true]);
        assert!(!slot.had_not_read(marks[2]));
        assert!(put(&slot, marks[0]) && put(&slot, marks[1]));
        assert!(slot.had_not_read(marks[0]));
        assert!(slot.take_back(marks[1]), "it was unread, too");
    }

    #[test]
    fn what_hosts_have_no_room_for_is_refused() {
        let (slot, _its_end) = Slot::pair().unwrap();
        let head = control::head(0, 0, Mark::new()).unwrap();
        assert!(slot.put(&[&head, &[0; LARGEST - HEAD], b""]));
        assert!(!slot.put(&[&head, &[0; LARGEST - HEAD], b"1"]));
    }
}
