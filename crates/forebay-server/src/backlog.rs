//! Stores the part of a reply that a slow client has not accepted yet (the backlog): first in
//! memory, then in an unlinked file. The origin therefore does not wait for the client.
//!
//! A fast client never causes a backlog: bytes that the socket accepts are written directly, and
//! only the rest is copied. If memory and file are full, the disk is full, or the limit for all
//! replies is reached, the origin waits for the client.
//!
//! By default, replies have a backlog if a slow client would otherwise occupy a process of an
//! application: CGI, FastCGI, SCGI, uwsgi, AJP, and all applications except ASGI. The memory is 64
//! KiB; the file is a ring buffer. The request's task writes the backlog to the client while the
//! origin runs (`dispatch.rs`), and after it has returned.
//!
//! Replies of `proxy` backends are buffered only if the route sets `buffer`. Most of these backends
//! accept many connections, and clients cannot use outdated events of an event stream.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_conf::Level;
use forebay_net::limit::{Buffered, Limit};
use forebay_net::thread::Thread;

/// Maximum bytes of a backlog that are written before other tasks may run.
const AT_ONCE: u64 = 128 << 10;

/// Maximum bytes per read from the file.
const PIECE: u64 = 32 << 10;

/// The backlog of one stream, which is nearly always empty.
#[derive(Default)]
pub struct Backlog(pub RefCell<Option<Box<Queue>>>);

/// Reason to stop writing a backlog for now.
pub enum PauseReason {
    /// The client accepts no bytes at present.
    Blocked,
    /// The backlog is empty, or other tasks must run first.
    Turn,
}

/// The bytes of a backlog. The bytes in memory are sent first, then the bytes in the file.
pub struct Queue {
    memory: VecDeque<u8>,
    file: Option<Ring>,
    most_memory: usize,
    most_file: u64,
    most_in_all: u64,
    buffered: Arc<Buffered>,
    dir: PathBuf,
    /// True if the file could not be created or written.
    pub has_failed: bool,
    /// Trailers to send after the backlog, if the protocol sends trailers in a frame.
    pub trailers: Option<Vec<u8>>,
}

impl Queue {
    pub fn new(thread: &Thread) -> Self {
        let limits = &thread.settings().limits;
        Self {
            memory: VecDeque::new(),
            file: None,
            most_memory: usize::try_from(limits.buffer_memory).unwrap_or(usize::MAX),
            most_file: limits.buffer_file,
            most_in_all: limits.buffer_total,
            buffered: thread.load.buffered.clone(),
            dir: thread.settings().spool_dir(),
            has_failed: false,
            trailers: None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.file.is_none()
    }

    /// Stores as many bytes of `data` as the limits allow. Returns the number of stored bytes.
    pub fn append(&mut self, data: &[u8], thread: &Thread) -> usize {
        let mut kept = 0;
        if self.file.is_none() {
            let room = data.len().min(self.most_memory.saturating_sub(self.memory.len()));
            kept = self.buffered.take(room as u64, self.most_in_all) as usize;
            if self.memory.try_reserve(kept).is_err() {
                self.buffered.give_back(kept as u64);
                kept = 0;
            }
            self.memory.extend(&data[..kept]);
        }
        if kept < data.len() && self.most_file > 0 && !self.has_failed {
            match self.append_to_file(&data[kept..]) {
                Ok(more) => kept += more,
                Err(error) => {
                    self.has_failed = true;
                    thread.counters.count_limit(Limit::SpoolDir);
                    thread.log_limited(Level::Error, &format!(
                        "cannot keep a reply for a slow client in {}: {error}; free some space, or \
                         name another directory as `spool_dir` in [server] (the application waits \
                         for the client)",
                        self.dir.display()
                    ));
                }
            }
        }
        kept
    }

    fn append_to_file(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut kept = 0;
        while kept < data.len() {
            let ring = match &mut self.file {
                Some(ring) => ring,
                none => {
                    // Do not create a file if the limit for all replies is reached, because it
                    // could not store a byte.
                    if self.buffered.bytes() >= self.most_in_all {
                        return Ok(kept);
                    }
                    none.insert(Ring::new(tempfile::tempfile_in(&self.dir)?, self.most_file))
                }
            };
            let (at, room) = ring.room();
            let wanted = room.min((data.len() - kept) as u64);
            let growth = (at + wanted).saturating_sub(ring.length);
            let granted = self.buffered.take(growth, self.most_in_all);
            ring.length += granted;
            let n = (wanted - (growth - granted)) as usize;
            if n == 0 {
                break;
            }
            if let Err(error) = ring.file.write_all_at(&data[kept..kept + n], at) {
                self.drop_empty_file();
                return Err(error);
            }
            ring.written += n as u64;
            kept += n;
        }
        self.drop_empty_file();
        Ok(kept)
    }

    /// Writes the backlog with `try_write`, until the client accepts no more bytes or [`AT_ONCE`]
    /// bytes are written.
    pub fn write(
        &mut self,
        try_write: impl Fn(&[IoSlice<'_>]) -> io::Result<u64>,
    ) -> io::Result<PauseReason> {
        let mut left = AT_ONCE;
        while left > 0 && !self.is_empty() {
            let n = if self.memory.is_empty() {
                self.write_file(&try_write, left.min(PIECE))?
            } else {
                let (front, back) = self.memory.as_slices();
                let n = try_write(&[IoSlice::new(front), IoSlice::new(back)])?;
                self.memory.drain(..n as usize);
                self.buffered.give_back(n);
                n
            };
            if n == 0 {
                return Ok(PauseReason::Blocked);
            }
            left = left.saturating_sub(n);
        }
        Ok(PauseReason::Turn)
    }

    fn write_file(
        &mut self,
        try_write: &impl Fn(&[IoSlice<'_>]) -> io::Result<u64>,
        most: u64,
    ) -> io::Result<u64> {
        let Some(ring) = &mut self.file else { return Ok(0) };
        let (at, length) = ring.unsent();
        // Copy the bytes. With sendfile(2), the kernel could read the file's pages after this ring
        // buffer has overwritten them.
        let mut bytes = vec![0; length.min(most) as usize];
        ring.file.read_exact_at(&mut bytes, at)?;
        let n = try_write(&[IoSlice::new(&bytes)])?;
        ring.sent += n;
        self.drop_empty_file();
        Ok(n)
    }

    fn drop_empty_file(&mut self) {
        if let Some(ring) = self.file.take_if(|ring| ring.sent == ring.written) {
            self.buffered.give_back(ring.length);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let file = self.file.as_ref().map_or(0, |ring| ring.length);
        self.buffered.give_back(self.memory.len() as u64 + file);
    }
}

/// An unlinked file used as a ring buffer.
struct Ring {
    file: File,
    /// Maximum size in bytes.
    size: u64,
    /// Current size in bytes, all of it counted in `buffered`.
    length: u64,
    /// Total bytes written, over all rounds of the ring.
    written: u64,
    /// Total bytes sent.
    sent: u64,
}

impl Ring {
    fn new(file: File, size: u64) -> Self {
        Self { file, size, length: 0, written: 0, sent: 0 }
    }

    /// Returns the position in the file and the maximum length of the next write.
    fn room(&self) -> (u64, u64) {
        let at = self.written % self.size;
        (at, (self.size - at).min(self.size - (self.written - self.sent)))
    }

    /// Returns the position in the file and the length of the next bytes to send.
    fn unsent(&self) -> (u64, u64) {
        let at = self.sent % self.size;
        (at, (self.size - at).min(self.written - self.sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(memory: usize, file: u64, total: u64) -> Queue {
        Queue {
            memory: VecDeque::new(),
            file: None,
            most_memory: memory,
            most_file: file,
            most_in_all: total,
            buffered: Arc::default(),
            dir: std::env::temp_dir(),
            has_failed: false,
            trailers: None,
        }
    }

    fn ring_of(queue: &Queue) -> &Ring {
        queue.file.as_ref().unwrap()
    }

    #[test]
    fn a_file_is_written_round_and_round_within_its_size() {
        let mut queue = queue(0, 10, 100);
        assert_eq!(queue.append_to_file(b"0123456789ab").unwrap(), 10);
        assert_eq!(queue.buffered.bytes(), 10);
        queue.file.as_mut().unwrap().sent = 4;
        assert_eq!(queue.append_to_file(b"ABCDEF").unwrap(), 4);
        let mut all = [0; 10];
        ring_of(&queue).file.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all, b"ABCD456789");
        assert_eq!(ring_of(&queue).unsent(), (4, 6));
        queue.file.as_mut().unwrap().sent = 10;
        assert_eq!(ring_of(&queue).unsent(), (0, 4));
        assert_eq!(queue.buffered.bytes(), 10, "what was sent still has its place in the file");
        queue.file.as_mut().unwrap().sent = 14;
        queue.drop_empty_file();
        assert!(queue.is_empty());
        assert_eq!(queue.buffered.bytes(), 0);
    }

    #[test]
    fn all_replies_together_have_no_more_than_they_may() {
        let mut queue = queue(4, 10, 7);
        let buffered = queue.buffered.clone();
        assert_eq!(buffered.take(1, 7), 1, "another reply");
        assert_eq!(queue.buffered.take(4, queue.most_in_all), 4);
        queue.memory.extend(b"0123");
        assert_eq!(queue.append_to_file(b"4567").unwrap(), 2);
        assert_eq!(queue.append_to_file(b"67").unwrap(), 0);
        assert_eq!(buffered.bytes(), 7);
        drop(queue);
        assert_eq!(buffered.bytes(), 1);
    }
}
