//! Order in which streams may send data (RFC 9218 section 10).

use std::collections::VecDeque;

use crate::http2::Priority;

const URGENCIES: usize = 8;

/// Streams that have data to send, by urgency. Among streams of equal urgency, those that are not
/// incremental come first, in the order of their identifiers. Incremental streams follow and send
/// alternately.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    waiting: [VecDeque<(u32, bool)>; URGENCIES],
    len: usize,
    /// The stream that `give_turn` has named, if it has not sent since. This stream may send even
    /// if other streams were queued in the meantime. Zero means that there is no such stream.
    turn: u32,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn insert(&mut self, stream: u32, priority: Priority) {
        let waiting = &mut self.waiting[usize::from(priority.urgency) % URGENCIES];
        let place = if priority.incremental {
            waiting.len()
        } else {
            waiting.partition_point(|&(other, incremental)| !incremental && other < stream)
        };
        waiting.insert(place, (stream, priority.incremental));
        self.len += 1;
    }

    pub fn remove(&mut self, stream: u32, priority: Priority) {
        let waiting = &mut self.waiting[usize::from(priority.urgency) % URGENCIES];
        if let Some(place) = waiting.iter().position(|&(other, _)| other == stream) {
            waiting.remove(place);
            self.len -= 1;
        }
    }

    pub fn pop(&mut self) -> Option<u32> {
        let (stream, _) = self.waiting.iter_mut().find_map(VecDeque::pop_front)?;
        self.len -= 1;
        Some(stream)
    }

    /// Permits `stream` to send next. The permission remains valid if other streams are inserted
    /// before `stream` sends.
    #[inline]
    pub fn give_turn(&mut self, stream: u32) {
        self.turn = stream;
    }

    /// Returns true if [`Self::give_turn`] has permitted this stream to send next. The permission
    /// is then used up.
    #[inline]
    pub fn use_turn(&mut self, stream: u32) -> bool {
        let has_turn = self.turn == stream;
        if has_turn {
            self.turn = 0;
        }
        has_turn
    }

    /// Returns true if a waiting stream is as urgent as `priority` or more urgent. Smaller numbers
    /// are more urgent.
    pub fn goes_before(&self, priority: Priority) -> bool {
        let more_urgent = &self.waiting[..=usize::from(priority.urgency) % URGENCIES];
        self.len > 0 && more_urgent.iter().any(|waiting| !waiting.is_empty())
    }

    pub fn shrink(&mut self) {
        self.waiting.iter_mut().for_each(VecDeque::shrink_to_fit);
    }

    pub fn allocated(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.capacity() * size_of::<(u32, bool)>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_streams_go_first_whole_ones_in_order_and_parts_in_turns() {
        let mut queue = Queue::default();
        let priority = |urgency, incremental| Priority { urgency, incremental };
        for (stream, urgency, incremental) in [
            (9, 3, true),
            (7, 3, false),
            (5, 3, false),
            (11, 3, true),
            (13, 0, true),
            (1, 7, false),
        ] {
            queue.insert(stream, priority(urgency, incremental));
        }
        assert!(queue.goes_before(priority(0, false)));
        queue.remove(1, priority(7, false));
        let mut order = Vec::new();
        while let Some(stream) = queue.pop() {
            order.push(stream);
            if stream == 9 && order.len() < 6 {
                queue.insert(9, priority(3, true));
            }
        }
        assert_eq!(order, [13, 5, 7, 9, 11, 9]);
        assert!(queue.is_empty() && !queue.goes_before(priority(7, false)));
    }
}
