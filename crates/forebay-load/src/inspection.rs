//! What is looked at of each reply: how long its body is, and whether a check is satisfied.

use forebay_client::Sink;

use crate::Check;
use crate::search::Search;

/// Counts the payload, and looks at it where a check asks for that.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    length: u64,
    status: Option<u16>,
    search: Option<Search>,
}

/// How a whole, well-formed reply is not the one that the check asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mismatch {
    /// The status should have been this.
    Status(u16),
    /// The body lacks the text.
    Body,
}

impl Inspection {
    /// Looks at replies as `check` asks.
    pub fn new(check: Option<&Check>) -> Self {
        let needle = check.and_then(|check| check.body_contains.as_deref());
        let status = check.map(|check| check.status);
        Self { length: 0, status, search: needle.map(Search::new) }
    }

    /// Payload bytes of the reply.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// How the reply, of this status, differs from what the check asks for.
    pub fn mismatch(&self, status: u16) -> Option<Mismatch> {
        match self.status {
            Some(expected) if expected != status => Some(Mismatch::Status(expected)),
            _ if self.search.as_ref().is_none_or(Search::found) => None,
            _ => Some(Mismatch::Body),
        }
    }
}

impl Sink for Inspection {
    fn begin(&mut self) {
        self.length = 0;
        if let Some(search) = &mut self.search {
            search.reset();
        }
    }

    fn field(&mut self, _: &[u8], _: &[u8]) {}

    fn wants_fields(&self) -> bool {
        false
    }

    fn body(&mut self, piece: &[u8]) {
        self.length += piece.len() as u64;
        if let Some(search) = &mut self.search {
            search.feed(piece);
        }
    }
}
