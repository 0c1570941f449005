//! Decides when to return free memory to the system after a burst of connections.
//!
//! Each thread checks every ten seconds, after its lists have freed unused objects (`free_list`).
//! Memory is returned only after a burst, because a busy server would soon request it again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Minimum size of a burst that is worth the work, in connections or unused buffers.
const BURST: usize = 64;

/// Observed numbers of connections, shared by all threads.
#[derive(Default)]
pub struct HeapWatch {
    /// Maximum number of connections since memory was returned.
    peak: AtomicUsize,
    /// True if a connection was opened after the last idle return of memory. At an idle return, no
    /// connection is open.
    was_used: AtomicBool,
}

impl HeapWatch {
    /// Records the current number of connections.
    pub fn see(&self, connections: usize) {
        if connections > self.peak.load(Ordering::Relaxed) {
            self.peak.store(connections, Ordering::Relaxed);
        }
        if connections > 0 && !self.was_used() {
            self.was_used.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if a connection was opened after the last idle return of memory. At an idle
    /// return, no connection is open.
    pub fn was_used(&self) -> bool {
        self.was_used.load(Ordering::Relaxed)
    }

    /// Returns true if memory should be returned now: a burst of connections has ended, many
    /// objects were freed, or no connection is open. `freed` is the number of objects that a
    /// thread's lists have just freed. If the result is true, resets the observed numbers.
    pub fn is_over(&self, connections: usize, freed: usize) -> bool {
        let has_fallen = self.peak.load(Ordering::Relaxed) >= BURST.max(2 * connections);
        let rests = connections == 0 && (freed > 0 || self.was_used());
        if !(has_fallen || rests || freed >= BURST) {
            return false;
        }
        self.peak.store(connections, Ordering::Relaxed);
        if connections == 0 {
            self.was_used.store(false, Ordering::Relaxed);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_when_a_burst_is_over_and_at_rest() {
        let watch = HeapWatch::default();
        assert!(!watch.is_over(0, 0), "there was nothing");
        watch.see(1000);
        assert!(!watch.is_over(1000, 0), "it goes on");
        assert!(watch.is_over(500, 0));
        assert!(!watch.is_over(400, 0), "more than half are left");
        assert!(watch.is_over(400, BURST), "others lay unused");
        assert!(watch.is_over(0, 3));
        assert!(!watch.is_over(0, 0), "nothing since");
        watch.see(1);
        assert!(!watch.is_over(1, 0));
        assert!(watch.is_over(0, 0));
        assert!(watch.is_over(0, 1), "a list of another thread");
    }
}
