//! Range of a receive buffer.

/// Range `start..end` of the buffer from which a head was parsed, in bytes.
///
/// With spans, a head neither borrows the buffer nor copies strings from it. A span has a meaning
/// only together with the parsed buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Creates the span `start..end`. Heads are limited to far less than 4 GiB, so offsets fit into
    /// 32 bits.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// Returns the bytes of the span in `bytes`. The result is empty if the span exceeds `bytes`.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Returns the length in bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Returns true if the span is empty.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}
