//! Unused heads, whose memory the connection reuses, and the limit of the heads that its caller
//! holds.

use crate::http2::{Head, HeldHeads};

/// Maximum number of unused heads.
const KEPT: usize = 32;

/// Maximum size in bytes of an unused head. One larger head is kept while more input is decoded.
// A client that sends one large head often sends more of them. If the buffer of each head grew
// anew, the allocator's heap would be fragmented.
const LARGEST: usize = 8 * 1024;

/// Unused heads of a connection, and the limit of the heads that its caller holds.
#[derive(Debug)]
pub(super) struct Heads {
    #[expect(clippy::vec_box, reason = "events carry them boxed")]
    unused: Vec<Box<Head>>,
    /// Heads and trailers of requests that the caller of a server has not released.
    pub held: HeldHeads,
}

impl Heads {
    pub fn new(held: HeldHeads) -> Self {
        Self { unused: Vec::new(), held }
    }

    /// Returns an empty head. Reuses the memory of a stored head if there is one.
    #[inline]
    pub fn take(&mut self) -> Box<Head> {
        self.unused.pop().unwrap_or_default()
    }

    /// Stores a head for reuse, or frees the head if enough heads are stored.
    #[inline]
    pub fn give(&mut self, mut head: Box<Head>) {
        let is_small = head.fields.allocated() <= LARGEST;
        if self.unused.is_empty() || is_small && self.unused.len() < KEPT {
            head.clear();
            self.unused.push(head);
        }
    }

    /// Frees the stored head that is larger than `LARGEST`, if there is one. The caller calls this
    /// function after it has processed all received input.
    #[inline]
    pub fn free_large(&mut self) {
        // `give` stores a larger head only if no other head is stored. So only the first stored
        // head can be larger.
        if self.unused.first().is_some_and(|head| head.fields.allocated() > LARGEST) {
            self.unused.swap_remove(0);
        }
    }

    pub fn shrink(&mut self) {
        self.unused = Vec::new();
    }

    pub fn allocated(&self) -> usize {
        let fields: usize = self.unused.iter().map(|head| head.fields.allocated()).sum();
        let heads = self.unused.len() * size_of::<Head>();
        fields + heads + self.unused.capacity() * size_of::<Box<Head>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: usize) -> Box<Head> {
        let mut head = Box::<Head>::default();
        head.fields.push(b"a", &vec![b'v'; bytes]);
        head
    }

    #[test]
    fn many_small_heads_are_kept_and_one_large_one_for_a_moment() {
        let mut heads = Heads::new(HeldHeads::unlimited());
        (0..40).for_each(|_| heads.give(of(32 * 1024)));
        assert_eq!(heads.unused.len(), 1);
        (0..40).for_each(|_| heads.give(of(100)));
        assert_eq!(heads.unused.len(), KEPT);
        assert!(heads.allocated() < 128 * 1024, "{}", heads.allocated());
        assert!(heads.take().fields.is_empty());
        heads.free_large();
        assert_eq!(heads.unused.len(), KEPT - 2);
        heads.free_large();
        assert_eq!(heads.unused.len(), KEPT - 2);
        heads.shrink();
        assert_eq!(heads.allocated(), 0);
    }
}
