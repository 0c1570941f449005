//! Limit of the memory that request heads of one connection occupy together.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counted: usize) -> Head {
        let mut head = Head::default();
        head.counted = counted;
        head
    }

    #[test]
    fn heads_fit_up_to_the_limit_and_again_after_their_release() {
        let mut held = HeldHeads::new(1_000, 100);
        let mut heads = vec![of(1_000); 32];
        assert!(heads.iter_mut().all(|head| held.hold(head)));
        assert!(!held.hold(&mut of(1)) && !held.hold_trailers(&of(1)));
        held.release(heads[0].counted);
        assert!(!held.hold(&mut of(1_001)), "larger than the released head");
        assert!(held.hold_trailers(&of(999)) && held.hold_trailers(&of(1)));
        assert!(!held.hold_trailers(&of(1)));
    }

    #[test]
    fn small_heads_of_twice_as_many_requests_as_streams_fit() {
        for (largest, streams) in [(32 * 1024, 100), (1_024, 100), (77, 3), (1_000, 1)] {
            let mut held = HeldHeads::new(largest, streams);
            let mut counted = Vec::new();
            let mut head = of(1);
            while held.hold(&mut head) {
                counted.push(std::mem::replace(&mut head, of(1)).counted);
            }
            // Division leaves a rest, so one more may fit.
            let most = 2 * streams as usize;
            assert!((most..=most + 1).contains(&counted.len()), "{} of {streams}", counted.len());
            counted.into_iter().for_each(|counted| held.release(counted));
            assert_eq!(held.bytes, 0);
        }
    }

    #[test]
    fn without_a_limit_every_head_fits() {
        let mut held = HeldHeads::unlimited();
        assert!((0..3).all(|_| held.hold(&mut of(usize::MAX))));
    }
}
