//! Header block that continues in CONTINUATION frames.

/// Stream, end flag and frame count of an incomplete block.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenBlock {
    pub stream: u32,
    pub end_stream: bool,
    /// Number of CONTINUATION frames so far.
    pub frames: usize,
}

/// The received part of a header block.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    bytes: Vec<u8>,
    open: Option<OpenBlock>,
}

impl Fragments {
    #[inline]
    pub fn open(&self) -> Option<OpenBlock> {
        self.open
    }

    /// Begins a block with the fragment of a HEADERS frame.
    pub fn begin(&mut self, stream: u32, end_stream: bool, fragment: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(fragment);
        self.open = Some(OpenBlock { stream, end_stream, frames: 0 });
    }

    /// Counts a CONTINUATION frame. Returns the open block, or `None` if no block is open.
    pub fn count(&mut self) -> Option<OpenBlock> {
        let open = self.open.as_mut()?;
        open.frames += 1;
        Some(*open)
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn extend(&mut self, fragment: &[u8]) {
        self.bytes.extend_from_slice(fragment);
    }

    /// Ends the block, and returns its bytes. The caller gives the memory back with
    /// [`Self::recycle`].
    pub fn finish(&mut self) -> Vec<u8> {
        self.open = None;
        std::mem::take(&mut self.bytes)
    }

    pub fn recycle(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.bytes = bytes;
    }

    pub fn shrink(&mut self) {
        if self.open.is_none() {
            self.bytes = Vec::new();
        }
    }

    pub fn allocated(&self) -> usize {
        self.bytes.capacity()
    }
}
