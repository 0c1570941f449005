//! Open streams of a connection, indexed by identifier.

use std::collections::VecDeque;
use std::time::Instant;

use super::flow::Inbound;
use crate::http2::Priority;

/// State of one direction of a stream: the next part of the message that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Interim heads, then the final head.
    Head,
    /// Data, optionally followed by trailers.
    Body,
    /// Nothing, because END_STREAM was sent.
    Ended,
}

/// Stream that is open, or that is closed and has unconsumed data.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub id: u32,
    /// State of the peer's direction.
    pub incoming: Half,
    /// State of our direction.
    pub outgoing: Half,
    /// Receive window.
    pub inbound: Inbound,
    /// Send window. Settings can make it negative.
    pub send_window: i64,
    /// Bytes of `content-length` that have not arrived yet.
    pub body_left: Option<u64>,
    /// True for a reply whose DATA must be empty, regardless of `content-length`.
    pub without_body: bool,
    /// Kind of the request that we sent (client).
    pub request: RequestKind,
    /// True if received data is dropped, and the window reopens immediately.
    pub discards: bool,
    pub priority: Priority,
    /// True if `send_data` accepted only a part of the data.
    pub wants_to_send: bool,
    /// True if the stream is in the queue of streams that may send.
    pub is_queued: bool,
    /// Wait for a window, if the stream waits now.
    pub stall: Option<Stall>,
}

/// Wait of a stream that has data but no window. `sent` counts the bytes that were sent since the
/// wait began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    pub since: Instant,
    pub sent: usize,
}

/// Kind of a request. It determines if the reply has a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Ordinary,
    Head,
    Connect,
}

impl Stream {
    pub fn new(id: u32, inbound: Inbound, send_window: i64) -> Self {
        Self {
            id,
            incoming: Half::Head,
            outgoing: Half::Head,
            inbound,
            send_window,
            body_left: None,
            without_body: false,
            request: RequestKind::Ordinary,
            discards: false,
            priority: Priority::default(),
            wants_to_send: false,
            is_queued: false,
            stall: None,
        }
    }

    /// Returns true if both sides have ended the stream.
    pub fn is_closed(&self) -> bool {
        self.incoming == Half::Ended && self.outgoing == Half::Ended
    }
}

/// Streams of a connection in one allocation, with an open-addressing hash table of their indices.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    entries: Vec<Stream>,
    /// Each element is an index into `entries` plus one, or zero for a free slot. The length is a
    /// power of two and at least twice the number of entries.
    slots: Vec<u32>,
    /// Number of entries that are not closed.
    active: u32,
}

impl Streams {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the number of streams that are not closed. A closed stream remains in `entries`
    /// while it has unconsumed data.
    #[inline]
    pub fn active(&self) -> u32 {
        self.active
    }

    /// Counts a stream as closed if both sides have ended it. Returns true in this case.
    #[inline]
    pub fn close(&mut self, id: u32) -> bool {
        let is_closed = self.get(id).is_some_and(Stream::is_closed);
        if is_closed {
            self.active -= 1;
        }
        is_closed
    }

    pub fn get_mut(&mut self, id: u32) -> Option<&mut Stream> {
        let slot = self.find(id)?;
        self.entries.get_mut(self.slots[slot] as usize - 1)
    }

    pub fn get(&self, id: u32) -> Option<&Stream> {
        let slot = self.find(id)?;
        self.entries.get(self.slots[slot] as usize - 1)
    }

    pub fn insert(&mut self, stream: Stream) {
        if self.slots.len() < (self.entries.len() + 1) * 2 {
            self.grow();
        }
        let slot = self.free_slot(stream.id);
        self.entries.push(stream);
        self.active += 1;
        self.slots[slot] = self.entries.len() as u32;
    }

    pub fn remove(&mut self, id: u32) -> Option<Stream> {
        let slot = self.find(id)?;
        let index = self.slots[slot] as usize - 1;
        self.free(slot);
        let stream = self.entries.swap_remove(index);
        if !stream.is_closed() {
            self.active -= 1;
        }
        if let Some(moved) = self.entries.get(index).map(|moved| moved.id) {
            // `swap_remove` moved the last stream to this index. The slot of that stream still
            // contains its old index.
            let old = self.entries.len() as u32 + 1;
            let mut slot = self.home(moved);
            while self.slots[slot] != old {
                slot = (slot + 1) & (self.slots.len() - 1);
            }
            self.slots[slot] = index as u32 + 1;
        }
        Some(stream)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.entries.iter()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.entries.iter_mut()
    }

    /// Frees all memory if there is no stream.
    pub fn shrink(&mut self) {
        if self.entries.is_empty() {
            *self = Self::default();
        }
    }

    pub fn allocated(&self) -> usize {
        self.entries.capacity() * size_of::<Stream>() + self.slots.capacity() * 4
    }

    /// Returns the slot at which the search for `id` starts. The hash is multiplicative, because
    /// consecutive identifiers would otherwise form long probe runs.
    fn home(&self, id: u32) -> usize {
        (id.wrapping_mul(0x9e37_79b9) >> 16) as usize & (self.slots.len() - 1)
    }

    fn find(&self, id: u32) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut slot = self.home(id);
        loop {
            match self.slots[slot] {
                0 => return None,
                entry if self.entries[entry as usize - 1].id == id => return Some(slot),
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
    }

    fn free_slot(&self, id: u32) -> usize {
        let mut slot = self.home(id);
        while self.slots[slot] != 0 {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        slot
    }

    /// Frees a slot with backward-shift deletion, so that later entries of the probe run stay
    /// reachable.
    fn free(&mut self, mut hole: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = hole;
        loop {
            slot = (slot + 1) & mask;
            let entry = self.slots[slot];
            if entry == 0 {
                break;
            }
            let home = self.home(self.entries[entry as usize - 1].id);
            if (slot.wrapping_sub(home) & mask) >= (slot.wrapping_sub(hole) & mask) {
                self.slots[hole] = entry;
                hole = slot;
            }
        }
        self.slots[hole] = 0;
    }

    fn grow(&mut self) {
        let len = (self.slots.len() * 2).max(16);
        self.slots.clear();
        self.slots.resize(len, 0);
        for index in 0..self.entries.len() {
            let slot = self.free_slot(self.entries[index].id);
            self.slots[slot] = index as u32 + 1;
        }
    }
}

// Identifiers of streams: those that were opened, and those that may still be opened.

/// The largest identifier of a stream.
const LARGEST: u32 = 0x7fff_ffff;

/// Highest identifier that the client has used, and the limit that our GOAWAY set.
#[derive(Debug)]
pub(super) struct Identifiers {
    /// Highest identifier of a stream that the client has opened.
    last_opened: u32,
    /// Streams above this limit are not accepted.
    accept_to: u32,
}

impl Identifiers {
    pub fn new() -> Self {
        Self { last_opened: 0, accept_to: u32::MAX }
    }

    /// Returns true if `stream` is an identifier that only a client may use.
    #[inline]
    pub fn is_of_client(stream: u32) -> bool {
        !stream.is_multiple_of(2)
    }

    /// Returns true if the client has used this identifier or a higher one.
    #[inline]
    pub fn is_opened(&self, id: u32) -> bool {
        id <= self.last_opened
    }

    /// Returns true if a client may use the identifier `id`, and has used or skipped it.
    #[inline]
    pub fn was_opened(&self, id: u32) -> bool {
        self.is_opened(id) && Self::is_of_client(id)
    }

    /// Records that the client opens a stream. Returns false if the stream is above the limit of
    /// our GOAWAY.
    #[inline]
    pub fn open(&mut self, id: u32) -> bool {
        self.last_opened = id;
        self.accepts(id)
    }

    /// Returns the identifier of the next stream that we open as client.
    pub fn open_next(&mut self) -> u32 {
        self.last_opened = if self.last_opened == 0 { 1 } else { self.last_opened + 2 };
        self.last_opened
    }

    /// Returns the number of streams that can still be opened.
    pub fn left(&self) -> u32 {
        (LARGEST - self.last_opened.min(LARGEST)) / 2
    }

    #[inline]
    pub fn accepts(&self, id: u32) -> bool {
        id <= self.accept_to
    }

    /// Returns true if we have sent a GOAWAY with a limit.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.accept_to < u32::MAX
    }

    /// From now on, rejects streams above the highest stream that was opened.
    pub fn limit(&mut self) {
        self.accept_to = self.accept_to.min(self.last_opened);
    }

    /// Returns the highest identifier that was opened and accepted. A GOAWAY contains this
    /// identifier.
    pub fn last_accepted(&self) -> u32 {
        self.last_opened.min(self.accept_to)
    }
}

// Identifiers of streams that no longer exist. With them, the connection distinguishes late frames
// from invalid frames.

/// Number of closed streams that are remembered, to distinguish their frames from those of streams
/// that were never open.
const CLOSED: usize = 16;

/// Number of reset streams that are remembered individually.
const RESET: usize = 64;

/// Streams that were closed or reset recently.
#[derive(Debug, Default)]
pub(super) struct PastStreams {
    /// Streams that we have reset. Later frames of these streams are dropped.
    reset: VecDeque<u32>,
    /// Highest identifier that was removed from `reset`.
    reset_forgotten: u32,
    /// Ring buffer of the streams that were closed last. `next_closed` is its next position.
    closed: [u32; CLOSED],
    next_closed: usize,
}

impl PastStreams {
    #[inline]
    pub fn add_closed(&mut self, id: u32) {
        self.closed[self.next_closed] = id;
        self.next_closed = (self.next_closed + 1) % CLOSED;
    }

    pub fn add_reset(&mut self, id: u32) {
        if self.reset.len() == RESET {
            let forgotten = self.reset.pop_front().unwrap_or_default();
            self.reset_forgotten = self.reset_forgotten.max(forgotten);
        }
        self.reset.push_back(id);
    }

    /// Returns true if the stream is one of the last 16 that were closed.
    pub fn was_closed(&self, id: u32) -> bool {
        self.closed.contains(&id)
    }

    /// Returns true if we have reset this stream. Only the last 64 resets are remembered
    /// individually, so the result is also true for every stream up to the highest forgotten one.
    pub fn was_reset(&self, id: u32) -> bool {
        id <= self.reset_forgotten || self.reset.contains(&id)
    }

    pub fn shrink(&mut self) {
        self.reset.shrink_to_fit();
    }

    pub fn allocated(&self) -> usize {
        self.reset.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_found_whatever_came_and_went() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut streams = Streams::default();
        let mut expected: Vec<u32> = Vec::new();
        let mut next = 1;
        for _ in 0..20_000 {
            if expected.len() < 40 && random.bool() {
                // Gaps between identifiers make some streams collide.
                next += 2 * random.u32(1..40);
                streams.insert(Stream::new(next, Inbound::new(10), 10));
                expected.push(next);
            } else if !expected.is_empty() {
                let id = expected.swap_remove(random.usize(..expected.len()));
                assert_eq!(streams.remove(id).map(|stream| stream.id), Some(id));
                assert!(streams.remove(id).is_none());
            }
            assert_eq!(streams.len(), expected.len());
            for &id in &expected {
                assert_eq!(streams.get(id).map(|stream| stream.id), Some(id));
            }
            assert!(streams.get(next + 2).is_none());
        }
        assert!(streams.slots.len() <= 128);
    }
}
