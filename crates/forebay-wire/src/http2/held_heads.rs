//! Heads of one connection: the limit of the memory that they occupy together, and the unused ones,
//! whose memory the connection reuses.
//!
//! HPACK and QPACK let a client repeat a field with few bytes: with two bytes, each request can
//! contain a field of 4 KiB again. So the number of received bytes does not limit the size of the
//! decoded heads, which a server keeps until it has answered the requests.

use super::Head;

/// Maximum total size of the held heads, in heads of the largest allowed size.
// With the usual limit of 32 KiB per head, the total is 1 MiB. This is enough for 100 concurrent
// requests with 10 KiB each. A client whose requests are refused because of the total may send them
// again.
const LARGEST_HEADS: usize = 32;

/// Total size of the request heads and trailers that a server holds for one connection.
#[derive(Clone, Copy, Debug)]
pub struct HeldHeads {
    bytes: usize,
    limit: usize,
    /// Number of bytes that a head counts at least.
    least: usize,
}

impl HeldHeads {
    /// Creates the limit for a client that may open `streams` streams at once. The limit of a
    /// single head is `largest` bytes.
    pub fn new(largest: usize, streams: u32) -> Self {
        let limit = largest.saturating_mul(LARGEST_HEADS);
        // A client can open streams, reset them and open others, while the server still works on
        // the first requests. To bound their number, each head counts at least `limit / requests`.
        // Even the smallest heads then reach the limit after `2 * streams` requests.
        let requests = 2 * streams.max(1) as usize;
        Self { bytes: 0, limit, least: limit / requests }
    }

    /// Creates a limit that is never reached.
    pub fn unlimited() -> Self {
        Self { bytes: 0, limit: usize::MAX, least: 0 }
    }

    /// Counts a request head, and sets its [`Head::counted`]. Returns false, and counts nothing, if
    /// the limit would be exceeded.
    #[must_use]
    pub fn hold(&mut self, head: &mut Head) -> bool {
        head.counted = head.counted.max(self.least);
        self.hold_trailers(head)
    }

    /// Counts the trailers of a request. Returns false, and counts nothing, if the limit would be
    /// exceeded.
    #[must_use]
    pub fn hold_trailers(&mut self, trailers: &Head) -> bool {
        let bytes = self.bytes.saturating_add(trailers.counted);
        let fits = bytes <= self.limit;
        if fits {
            self.bytes = bytes;
        }
        fits
    }

    /// Subtracts the [`Head::counted`] of a head or trailers that are no longer held.
    pub fn release(&mut self, counted: usize) {
        self.bytes = self.bytes.saturating_sub(counted);
    }
}

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

    fn counted(bytes: usize) -> Head {
        let mut head = Head::default();
        head.counted = bytes;
        head
    }

    #[test]
    fn heads_fit_up_to_the_limit_and_again_after_their_release() {
        let mut held = HeldHeads::new(1_000, 100);
        let mut heads = vec![counted(1_000); 32];
        assert!(heads.iter_mut().all(|head| held.hold(head)));
        assert!(!held.hold(&mut counted(1)) && !held.hold_trailers(&counted(1)));
        held.release(heads[0].counted);
        assert!(!held.hold(&mut counted(1_001)), "larger than the released head");
        assert!(held.hold_trailers(&counted(999)) && held.hold_trailers(&counted(1)));
        assert!(!held.hold_trailers(&counted(1)));
    }

    #[test]
    fn small_heads_of_twice_as_many_requests_as_streams_fit() {
        for (largest, streams) in [(32 * 1024, 100), (1_024, 100), (77, 3), (1_000, 1)] {
            let mut held = HeldHeads::new(largest, streams);
            let mut sizes = Vec::new();
            let mut head = counted(1);
            while held.hold(&mut head) {
                sizes.push(std::mem::replace(&mut head, counted(1)).counted);
            }
            // Division leaves a rest, so one more may fit.
            let most = 2 * streams as usize;
            assert!((most..=most + 1).contains(&sizes.len()), "{} of {streams}", sizes.len());
            sizes.into_iter().for_each(|size| held.release(size));
            assert_eq!(held.bytes, 0);
        }
    }

    #[test]
    fn without_a_limit_every_head_fits() {
        let mut held = HeldHeads::unlimited();
        assert!((0..3).all(|_| held.hold(&mut counted(usize::MAX))));
    }

    fn boxed(bytes: usize) -> Box<Head> {
        let mut head = Box::<Head>::default();
        head.fields.push(b"a", &vec![b'v'; bytes]);
        head
    }

    #[test]
    fn many_small_heads_are_kept_and_one_large_one_for_a_moment() {
        let mut heads = Heads::new(HeldHeads::unlimited());
        (0..40).for_each(|_| heads.give(boxed(32 * 1024)));
        assert_eq!(heads.unused.len(), 1);
        (0..40).for_each(|_| heads.give(boxed(100)));
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
