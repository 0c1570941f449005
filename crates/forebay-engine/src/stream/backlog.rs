//! What a client's connection does not take of a reply at once: kept in memory, then in an unlinked
//! file, so that what makes the reply need not wait for a slow reader.
//!
//! A reader that keeps up never has one: what its socket takes is written as ever, and only the
//! rest is copied. Where memory and file are full, or the disk is, or all replies together have
//! what they may, the reply is held back as if there were no backlog.
//!
//! Only replies of origins that run in processes have one: a slow reader would hold a process.
//! Memory is 64 KiB, the file is written round and round, by the task of the request beside the
//! origin (`dispatch.rs`), and goes on when the origin has returned. It is not sent by sendfile(2),
//! as the kernel would still read pages that are overwritten. Backends of `proxy` are not buffered
//! unless configured: most take many connections, and some send events faster than a client reads,
//! of which old ones are worth nothing.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;

use super::Stream;
use crate::buffered::Buffered;
use crate::limit::Limit;
use crate::thread::Thread;

/// Bytes written between two turns of other connections.
const AT_ONCE: u64 = 128 << 10;

/// Bytes read from a file at a time.
const PIECE: u64 = 32 << 10;

/// The backlog of one stream; empty nearly always.
#[derive(Default)]
pub struct Backlog(RefCell<Option<Box<Queue>>>);

impl Stream {
    /// Writes all of `pieces`, as fast as the client takes them; where `keeps`, what it does not
    /// take at once is kept for it. Nothing of the reply follows where it `ends`.
    pub(super) async fn write_pieces(
        &self,
        pieces: &mut [IoSlice<'_>],
        keeps: bool,
        ends: bool,
    ) -> io::Result<()> {
        if keeps {
            return self.write_or_keep(pieces, ends).await;
        }
        self.drain().await?;
        self.write_through(pieces, ends).await
    }

    /// Writes what the client takes, and keeps the rest; waits only where there is no room for it.
    async fn write_or_keep(&self, mut pieces: &mut [IoSlice<'_>], ends: bool) -> io::Result<()> {
        IoSlice::advance_slices(&mut pieces, 0);
        self.yield_to_readers().await;
        let mut is_counted = false;
        loop {
            if !self.has_backlog() {
                self.write_now(&mut pieces, ends)?;
            }
            let has_failed = self.keep(&mut pieces);
            if pieces.is_empty() {
                return Ok(());
            }
            // A file that could not be written is logged, and no limit.
            if !has_failed && !std::mem::replace(&mut is_counted, true) {
                self.count_full();
            }
            // Room is only waited for where a write has just found none.
            match self.write_backlog()? {
                Progress::Blocked => self.wait_for_room().await?,
                Progress::Turn => tokio::task::yield_now().await,
            }
        }
    }

    /// Whether something waits for the client to take it.
    pub(crate) fn has_backlog(&self) -> bool {
        self.backlog().0.borrow().is_some()
    }

    /// Writes the backlog as the client takes it, until nothing is left.
    pub(crate) async fn drain(&self) -> io::Result<()> {
        while self.has_backlog() {
            match self.write_backlog()? {
                Progress::Blocked => self.wait_for_room().await?,
                Progress::Turn => tokio::task::yield_now().await,
            }
        }
        Ok(())
    }

    /// Writes the backlog whenever there is one; ends with the connection's failure. To be polled
    /// by the task that makes the reply, behind what makes it: nothing else is woken for it.
    pub(crate) async fn drain_for_ever(&self) -> io::Error {
        loop {
            poll_fn(|_| if self.has_backlog() { Poll::Ready(()) } else { Poll::Pending }).await;
            if let Err(error) = self.drain().await {
                return error;
            }
        }
    }

    /// Keeps as much as there is room for; whether a file for the rest could not be written.
    fn keep(&self, pieces: &mut &mut [IoSlice<'_>]) -> bool {
        if pieces.is_empty() {
            return false;
        }
        let mut state = self.backlog().0.borrow_mut();
        let queue = state.get_or_insert_with(|| Box::new(Queue::new(self.thread())));
        while let Some(piece) = pieces.first() {
            let wanted = piece.len();
            let kept = queue.append(piece, self.thread());
            IoSlice::advance_slices(pieces, kept);
            if kept < wanted {
                break;
            }
        }
        let has_failed = queue.has_failed;
        if queue.is_empty() {
            *state = None;
        }
        has_failed
    }

    /// Has the reply end with these trailers behind the backlog; false where there is none.
    pub(super) fn keep_end(&self, trailers: &[u8]) -> bool {
        let mut state = self.backlog().0.borrow_mut();
        state.as_mut().is_some_and(|queue| {
            queue.trailers = Some(trailers.to_vec());
            true
        })
    }

    fn write_backlog(&self) -> io::Result<Progress> {
        let mut state = self.backlog().0.borrow_mut();
        let Some(queue) = state.as_mut() else { return Ok(Progress::Blocked) };
        let progress = queue.write(self)?;
        if queue.is_empty() {
            let trailers = queue.trailers.take();
            *state = None;
            if let Some(trailers) = trailers {
                self.send_end(&trailers)?;
            }
        }
        Ok(progress)
    }

    fn count_full(&self) {
        let settings = self.thread().settings();
        let limits = &settings.limits;
        let is_total = self.thread().load.buffered.bytes() >= limits.buffer_total;
        let limit = if is_total { Limit::BufferTotal } else { Limit::BufferFile };
        self.thread().counters.count_limit(limit);
    }
}

/// Why writing a backlog has paused.
enum Progress {
    /// The client takes nothing at present.
    Blocked,
    /// It is the turn of others.
    Turn,
}

/// What is left to write: memory first, then the file.
struct Queue {
    memory: VecDeque<u8>,
    file: Option<Ring>,
    most_memory: usize,
    most_file: u64,
    most_in_all: u64,
    buffered: Arc<Buffered>,
    dir: PathBuf,
    /// The file could not be made or written.
    has_failed: bool,
    /// They end the reply behind it, by a protocol that has a frame for that.
    trailers: Option<Vec<u8>>,
}

impl Queue {
    fn new(thread: &Thread) -> Self {
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

    fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.file.is_none()
    }

    /// Keeps as much of `data` as there is room for; how much that is.
    fn append(&mut self, data: &[u8], thread: &Thread) -> usize {
        let mut kept = 0;
        if self.file.is_none() {
            let room = data.len().min(self.most_memory.saturating_sub(self.memory.len()));
            kept = self.buffered.take(room as u64, self.most_in_all) as usize;
            self.memory.extend(&data[..kept]);
        }
        if kept < data.len() && self.most_file > 0 && !self.has_failed {
            match self.append_to_file(&data[kept..]) {
                Ok(more) => kept += more,
                Err(error) => {
                    self.has_failed = true;
                    thread.warn_limited(&format!(
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
                    // None is made where there is nothing that it may hold.
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

    /// Writes what the client takes, up to a turn's worth.
    fn write(&mut self, stream: &Stream) -> io::Result<Progress> {
        let mut left = AT_ONCE;
        while left > 0 && !self.is_empty() {
            let n = if self.memory.is_empty() {
                self.write_file(stream, left.min(PIECE))?
            } else {
                let (front, back) = self.memory.as_slices();
                let n = stream.try_write(&[IoSlice::new(front), IoSlice::new(back)], false)?;
                self.memory.drain(..n as usize);
                self.buffered.give_back(n);
                n
            };
            if n == 0 {
                return Ok(Progress::Blocked);
            }
            left = left.saturating_sub(n);
        }
        Ok(Progress::Turn)
    }

    fn write_file(&mut self, stream: &Stream, most: u64) -> io::Result<u64> {
        let Some(ring) = &mut self.file else { return Ok(0) };
        let (at, length) = ring.unsent();
        // Copied, as the kernel would go on reading what sendfile(2) has taken while it is
        // overwritten.
        let mut bytes = vec![0; length.min(most) as usize];
        ring.file.read_exact_at(&mut bytes, at)?;
        let n = stream.try_write(&[IoSlice::new(&bytes)], false)?;
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

/// An unlinked file that is written round and round.
struct Ring {
    file: File,
    /// The most bytes that it may have.
    size: u64,
    /// Bytes that it has, of which all are counted.
    length: u64,
    /// Bytes written so far, over all rounds.
    written: u64,
    /// Bytes of them that were sent.
    sent: u64,
}

impl Ring {
    fn new(file: File, size: u64) -> Self {
        Self { file, size, length: 0, written: 0, sent: 0 }
    }

    /// Where the next bytes go, and how many may go there.
    fn room(&self) -> (u64, u64) {
        let at = self.written % self.size;
        (at, (self.size - at).min(self.size - (self.written - self.sent)))
    }

    /// Where the next bytes to be sent are, and how many are there.
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
