//! Identifiers of the client's streams: those that were opened, and those that may be.

/// The largest identifier of a stream.
const LARGEST: u32 = 0x7fff_ffff;

/// Identifiers that the client has used, and the limit after our GOAWAY.
#[derive(Debug)]
pub(super) struct Identifiers {
    /// The highest stream that the client has opened.
    last_opened: u32,
    /// Streams above this limit are not accepted.
    accept_to: u32,
}

impl Identifiers {
    pub fn new() -> Self {
        Self { last_opened: 0, accept_to: u32::MAX }
    }

    /// Returns true if the client of this connection can open `stream`.
    #[inline]
    pub fn is_of_client(stream: u32) -> bool {
        !stream.is_multiple_of(2)
    }

    /// Returns true if the client has used this identifier or a higher one.
    #[inline]
    pub fn is_opened(&self, id: u32) -> bool {
        id <= self.last_opened
    }

    /// Returns true if the client can have opened this stream.
    #[inline]
    pub fn was_opened(&self, id: u32) -> bool {
        self.is_opened(id) && Self::is_of_client(id)
    }

    /// Opens the client's stream. Returns false if it is above the limit of our GOAWAY.
    #[inline]
    pub fn open(&mut self, id: u32) -> bool {
        self.last_opened = id;
        self.accepts(id)
    }

    /// Opens the next stream as client.
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

    /// Accepts no streams above those that are open.
    pub fn limit(&mut self) {
        self.accept_to = self.accept_to.min(self.last_opened);
    }

    /// Returns the highest stream that was opened and accepted, for a GOAWAY.
    pub fn last_accepted(&self) -> u32 {
        self.last_opened.min(self.accept_to)
    }
}
