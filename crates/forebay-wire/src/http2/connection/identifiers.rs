//! Identifiers of streams: those that were opened, and those that may still be opened.

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
