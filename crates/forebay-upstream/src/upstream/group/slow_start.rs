//! Gives a backend that has come back its share of requests gradually (`slow_start`).
//!
//! A server that has just started is slow: caches are empty, and code is not compiled yet. If such
//! a server got its full share at once, it could fail again. As in nginx and HAProxy, the weight
//! grows linearly.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::balancing::mix;
use super::{Group, Member, Set, bit, bits, millis};

/// The whole weight, in thousandths.
pub const FULL: u64 = 1000;

/// The time of a slow start, and the backends in it.
pub struct SlowStart {
    time: u64,
    /// The backends in their slow start. While this set is empty, a request reads no clock.
    begun: AtomicU64,
}

/// Backends that get less than their weight, at one moment.
#[derive(Clone, Copy)]
pub struct Ramp {
    set: Set,
    now: u64,
    time: u64,
}

impl SlowStart {
    /// Creates the state at the time `now`, in ms since the start. A member that came back less
    /// than `time` ago, before a reload, continues its slow start.
    pub fn new(time: Duration, members: &[Member], now: u64) -> Self {
        let time = millis(time).max(1);
        let is_slow = |member: &Member| match member.record.back_at.load(Ordering::Relaxed) {
            0 => false,
            at => now.saturating_sub(at) < time,
        };
        let slow = members.iter().enumerate().filter(|(_, member)| is_slow(member));
        Self { time, begun: AtomicU64::new(slow.fold(0, |set, (index, _)| set | bit(index))) }
    }
}

impl Group {
    /// Begins the slow start of a backend that has come back.
    pub(super) fn begin_slow_start(&self, index: usize) {
        if let Some(slow) = &self.slow_start {
            let now = millis(self.started.elapsed()).max(1);
            self.members[index].record.back_at.store(now, Ordering::Relaxed);
            slow.begun.fetch_or(bit(index), Ordering::Relaxed);
        }
    }

    /// Returns the backends that are in their slow start now.
    pub(super) fn ramp(&self) -> Ramp {
        let none = Ramp { set: 0, now: 0, time: 1 };
        let Some(slow) = &self.slow_start else { return none };
        let set = slow.begun.load(Ordering::Relaxed);
        if set == 0 {
            return none;
        }
        let ramp = Ramp { set, now: millis(self.started.elapsed()), time: slow.time };
        let done = bits(set).filter(|&index| self.share(index, &ramp) == FULL);
        let done = done.fold(0, |done, index| done | bit(index));
        if done != 0 {
            slow.begun.fetch_and(!done, Ordering::Relaxed);
        }
        Ramp { set: set & !done, ..ramp }
    }

    /// Returns the share of its weight that a backend has now, in thousandths. The share is 1000
    /// after the slow start, and at least 1 during it.
    pub(super) fn share(&self, index: usize, ramp: &Ramp) -> u64 {
        if ramp.set & bit(index) == 0 {
            return FULL;
        }
        let passed =
            ramp.now.saturating_sub(self.members[index].record.back_at.load(Ordering::Relaxed));
        (passed.min(ramp.time).saturating_mul(FULL) / ramp.time).max(1)
    }

    /// Returns backends in their slow start that this request should not use. `random` differs for
    /// each request, so that each backend in its slow start gets only its share of the requests.
    pub(super) fn held_back(&self, ramp: &Ramp, random: u64) -> Set {
        let is_held =
            |&index: &usize| mix(random ^ mix(index as u64)) % FULL >= self.share(index, ramp);
        bits(ramp.set).filter(is_held).fold(0, |set, index| set | bit(index))
    }

    /// Returns the percentage of its weight that a backend has now, or `None` if it is not in its
    /// slow start.
    pub fn slow_start_percent(&self, index: usize) -> Option<u64> {
        let share = self.share(index, &self.ramp());
        (share < FULL).then_some(share * 100 / FULL)
    }
}
