//! A range of a receive buffer.

/// A range `start..end` of the buffer that a head was parsed from, in bytes.
///
/// Spans keep heads free of borrowed and owned strings: the same span is read by every encoder.
/// A span is only meaningful together with the bytes it was parsed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset just past the last byte.
    pub end: u32,
}

impl Span {
    /// The span `start..end`. Heads are limited to well below 4 GiB, so offsets fit 32 bits.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// The bytes this span names in `bytes`; empty where it does not fit them.
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether the span holds no byte.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}
