//! Frames that the caller has not written yet.

/// Frames for the peer. The caller has written a part of them.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Frames are appended to this buffer.
    pub bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that the caller has written.
    written: usize,
}

impl Output {
    #[inline]
    pub fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Counts `len` more bytes as written by the caller. If more than half of `bytes` is written,
    /// frees the space of the written bytes.
    pub fn wrote(&mut self, len: usize) {
        self.written = self.written.saturating_add(len).min(self.bytes.len());
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        } else if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    pub fn shrink(&mut self) {
        self.bytes.drain(..self.written);
        self.written = 0;
        self.bytes.shrink_to_fit();
    }
}
