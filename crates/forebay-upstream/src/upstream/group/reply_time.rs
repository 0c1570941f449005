//! Mean time that a backend takes until it replies (`balance = "least-time"`).
//!
//! This is "peak EWMA" of Finagle (`PeakEwma.scala`), which the linkerd proxy uses as well
//! (`peak_ewma.rs` of the crate tower). A slower reply replaces the mean at once. A faster reply
//! changes it to `mean * w + time * (1 - w)` with `w = exp(-age / 10 s)`. `age` is the time since
//! the last reply. Without replies, the mean falls to `mean * w`, so that a slow backend is tried
//! again. A request goes to the backend with the lowest `mean * (open requests + 1) / weight`.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};

use forebay_conf as conf;

use super::Group;

/// Age at which a mean has the weight 1/e, in microseconds.
const DECAY: f64 = 10e6;
/// Mean of a backend that has open requests and has not replied yet, in microseconds. This backend
/// gets one request, and further requests only after its first reply.
const UNKNOWN: f64 = 1e12;

/// Time at which a request was sent, or `None` if the time is not needed. The value is the low 32
/// bits of the microseconds since the start. It is always odd, so that it is not 0. Each request
/// stores the value, so it must be small.
pub type Begun = Option<NonZeroU32>;

/// The mean time that one backend takes for a reply.
#[derive(Default)]
pub struct ReplyTime(Mutex<ReplyMean>);

#[derive(Clone, Copy, Default)]
struct ReplyMean {
    micros: f64,
    /// Time of the last reply, in microseconds since the start.
    at: f64,
    /// True after the first reply. A mean of 0 does not show this: an old mean falls to 0, too.
    has_replied: bool,
}

impl ReplyTime {
    /// Records a reply at the time `now` that took `micros`. Both are in microseconds.
    pub fn record(&self, now: f64, micros: f64) {
        // Ignore the poison of a panic, because the mean is valid after each update.
        let mut mean = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let weight = mean.weight(now);
        let smoothed = mean.micros * weight + micros * (1.0 - weight);
        let micros = if micros > mean.micros { micros } else { smoothed };
        *mean = ReplyMean { micros, at: now, has_replied: true };
    }

    /// Returns the cost of another request at the time `now`. The cost is the mean, which decays
    /// with its age, times the number of active requests with the new one. `open` is the number of
    /// active requests without the new one.
    pub fn cost(&self, now: f64, open: usize) -> f64 {
        let mean = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let micros = mean.micros * mean.weight(now);
        let micros = if !mean.has_replied && open > 0 { UNKNOWN } else { micros };
        micros * (open as f64 + 1.0)
    }
}

impl Group {
    /// Returns the time at which a request is sent, or `None` if the balance method needs no times.
    pub fn begin_timing(&self) -> Begun {
        let is_timed = self.balance == conf::Balance::LeastTime && self.members.len() > 1;
        if is_timed { NonZeroU32::new(self.micros() as u64 as u32 | 1) } else { None }
    }

    /// Records a reply to a request that was sent at `begun`.
    pub fn record_time(&self, index: usize, begun: NonZeroU32) {
        let now = self.micros();
        // The counter of 32 bits overflows every 71 minutes, so the subtraction must wrap.
        let taken = (now as u64 as u32 | 1).wrapping_sub(begun.get());
        self.members[index].record.reply_time.record(now, f64::from(taken));
    }

    /// Returns the time since the start, in microseconds.
    pub(super) fn micros(&self) -> f64 {
        self.started.elapsed().as_secs_f64() * 1e6
    }
}

impl ReplyMean {
    /// Returns the weight of the old mean at the time `now`, from 1 to 0. The weight falls as the
    /// last reply becomes older.
    fn weight(&self, now: f64) -> f64 {
        (-(now - self.at).max(0.0) / DECAY).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: f64 = 1e6;

    #[test]
    fn a_slow_reply_counts_at_once_and_fast_ones_gradually() {
        let time = ReplyTime::default();
        time.record(0.0, 1000.0);
        assert_eq!(time.cost(0.0, 0), 1000.0);
        assert_eq!(time.cost(0.0, 3), 4000.0, "open requests multiply the cost");
        time.record(SECOND, 50_000.0);
        assert_eq!(time.cost(SECOND, 0), 50_000.0);
        time.record(2.0 * SECOND, 1000.0);
        let after_one = time.cost(2.0 * SECOND, 0);
        assert!((45_000.0..46_000.0).contains(&after_one), "{after_one}");
        for second in 3..60 {
            time.record(f64::from(second) * SECOND, 1000.0);
        }
        let later = time.cost(59.0 * SECOND, 0);
        assert!((1000.0..1500.0).contains(&later), "{later}");
        let idle = time.cost(69.0 * SECOND, 0);
        assert!(idle < later * 0.4, "the mean falls without replies: {idle}");
    }

    #[test]
    fn a_backend_that_has_not_replied_gets_one_request() {
        let (new, slow) = (ReplyTime::default(), ReplyTime::default());
        slow.record(0.0, SECOND);
        assert!(new.cost(0.0, 0) < slow.cost(0.0, 0));
        assert!(new.cost(0.0, 1) > slow.cost(0.0, 100));
        let after_a_day = 86_400.0 * SECOND;
        assert!(slow.cost(after_a_day, 1) < UNKNOWN, "its mean has fallen to 0");
    }
}
