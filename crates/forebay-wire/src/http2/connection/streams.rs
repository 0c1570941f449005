//! The streams of a connection that are not closed, found by their identifiers.

use std::time::Instant;

use super::flow::Inbound;
use crate::http2::Priority;

/// What one side of a stream may still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Interim heads and the head.
    Head,
    /// Data, then trailers perhaps.
    Body,
    /// Nothing: END_STREAM was sent.
    Ended,
}

/// One stream.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub id: u32,
    /// What the peer may send.
    pub incoming: Half,
    /// What we may send.
    pub outgoing: Half,
    /// What the peer may send before we open the window further.
    pub inbound: Inbound,
    /// What we may send before the peer opens the window further; settings can make it negative.
    pub send_window: i64,
    /// What is left of `content-length`.
    pub body_left: Option<u64>,
    /// No DATA may have content, whatever `content-length` says.
    pub without_body: bool,
    /// The request was HEAD, or CONNECT without protocol (client).
    pub request: RequestKind,
    /// Data is dropped and its windows opened as it comes.
    pub discards: bool,
    pub priority: Priority,
    /// `send_data` took less than it was given.
    pub wants_to_send: bool,
    /// It waits for its turn.
    pub is_queued: bool,
    /// When it began to wait for a window, and what was sent since.
    pub stall: Option<Stall>,
}

/// A stream that has data and no window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stall {
    pub since: Instant,
    pub sent: usize,
}

/// What the method says about the body of the reply.
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

    /// Whether neither side may send more.
    pub fn is_closed(&self) -> bool {
        self.incoming == Half::Ended && self.outgoing == Half::Ended
    }
}

/// Streams in one allocation, and an open-addressing hash table of their indices.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    entries: Vec<Stream>,
    /// An index into `entries` plus one; zero where the slot is free. Its length is a power of two and
    /// at least twice the number of entries.
    slots: Vec<u32>,
}

impl Streams {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
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
        self.slots[slot] = self.entries.len() as u32;
    }

    pub fn remove(&mut self, id: u32) -> Option<Stream> {
        let slot = self.find(id)?;
        let index = self.slots[slot] as usize - 1;
        self.free(slot);
        let stream = self.entries.swap_remove(index);
        if let Some(moved) = self.entries.get(index).map(|moved| moved.id) {
            // `swap_remove` moved the last stream here; its slot still holds the old index.
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

    /// Gives the memory back once there is no stream.
    pub fn shrink(&mut self) {
        if self.entries.is_empty() {
            *self = Self::default();
        }
    }

    /// Bytes allocated.
    pub fn allocated(&self) -> usize {
        self.entries.capacity() * size_of::<Stream>() + self.slots.capacity() * 4
    }

    /// The preferred slot. Multiplicative hashing: consecutive identifiers would form long probe runs.
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

    /// Frees a slot by backward-shift deletion, so that later entries of the probe run stay reachable.
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
                // Gaps make some of them meet in one slot.
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
