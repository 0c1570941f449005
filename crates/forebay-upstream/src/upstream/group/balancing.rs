//! Selects the next of a group's backends that are up: by weight, active requests or times of
//! replies.

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_conf as conf;

use super::{Group, Member, Set, bit, bits, millis};

/// Rules that distribute requests among backends.
pub struct Balancing {
    /// Rank of each backend.
    pub to: Vec<Rank>,
    /// Method of selection.
    pub balance: conf::Balance,
    /// Number of failures within `fail_timeout` that exclude a backend. 0 never excludes a backend.
    pub max_fails: u32,
    /// Time for which failures count.
    pub fail_timeout: Duration,
    /// Time for which a backend is excluded.
    pub recover_time: Duration,
    /// Retries that a reply's status causes.
    pub retry: Option<conf::StatusRetry>,
    /// Time until a backend that has come back has its full weight.
    pub slow_start: Option<Duration>,
}

/// Settings that decide when a backend is selected.
#[derive(Clone, Copy)]
pub struct Rank {
    /// Relative share of the requests among backends of the same tier.
    pub weight: u32,
    /// True for a backup: it is used only if all backends that are not backups are down.
    pub backup: bool,
    /// Distance of the backend. A backend is used only if all backends with a smaller distance are
    /// down.
    pub distance: u32,
    /// Backend that takes over while this backend is excluded.
    pub redirect: Option<usize>,
    /// Clients that may use this backend: all, those with a session on it, or none.
    pub activation: conf::Activation,
    /// Hash of the backend's address.
    pub identity: u64,
}

/// Returns a hash that is the same in every process (FNV-1a, 64 bits).
pub fn stable_hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns the score of a backend for a key. The backend with the highest score for a key takes
/// this key (weighted rendezvous hashing). If a backend is removed, only the keys of this backend
/// move to other backends.
pub fn score(identity: u64, weight: u64, key: u64) -> f64 {
    let mixed = mix(identity ^ key);
    // `share` is more than 0 and less than 1. So its logarithm is negative, and the score is
    // positive.
    let share = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    weight as f64 / -share.ln()
}

/// Returns a number whose bits each depend on all bits of `number` (SplitMix64: Steele, Lea and
/// Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
pub fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Balancing {
    /// Creates the rules of a group with default values and equal backends.
    pub fn equal(backends: usize) -> Self {
        let activation = conf::Activation::Active;
        let rank =
            Rank { weight: 1, backup: false, distance: 0, redirect: None, activation, identity: 0 };
        Self { to: vec![rank; backends], ..Self::from(&conf::Upstream::new(Vec::new())) }
    }
}

impl From<&conf::Upstream> for Balancing {
    fn from(upstream: &conf::Upstream) -> Self {
        let rank = |backend: &conf::Backend| Rank {
            weight: backend.weight,
            backup: backend.backup,
            distance: backend.distance,
            redirect: backend.redirect,
            activation: backend.activation,
            identity: stable_hash(backend.address.to_string().as_bytes()),
        };
        let to = upstream.to.iter().map(rank).collect();
        let conf::Upstream { balance, max_fails, fail_timeout, recover_time, slow_start, .. } =
            *upstream;
        let retry = upstream.retry.clone();
        Self { to, balance, max_fails, fail_timeout, recover_time, retry, slow_start }
    }
}

// Gives a backend that has come back its share of requests gradually (`slow_start`).
//
// A server that has just started is slow: caches are empty, and code is not compiled yet. If such
// a server got its full share at once, it could fail again. As in nginx and HAProxy, the weight
// grows linearly.

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
    fn held_back(&self, ramp: &Ramp, random: u64) -> Set {
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

// Mean time that a backend takes until it replies (`balance = "least-time"`).
//
// This is "peak EWMA" of Finagle (`PeakEwma.scala`), which the linkerd proxy uses as well
// (`peak_ewma.rs` of the crate tower). A slower reply replaces the mean at once. A faster reply
// changes it to `mean * w + time * (1 - w)` with `w = exp(-age / 10 s)`. `age` is the time since
// the last reply. Without replies, the mean falls to `mean * w`, so that a slow backend is tried
// again. A request goes to the backend with the lowest `mean * (open requests + 1) / weight`.

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
    fn micros(&self) -> f64 {
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

/// The last round that a thread has computed, with the set of backends in this round.
#[derive(Default)]
pub struct Turns(RefCell<(Set, Vec<u8>)>);

impl Group {
    /// Returns the next backend of `set` that is not in `tried`, by the group's balance method.
    /// Returns `None` if no backend is left.
    pub(super) fn next(&self, set: Set, tried: Set, turns: &Turns) -> Option<usize> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let ramp = self.ramp();
        let skipped = tried | self.held_back(&ramp, turn as u64);
        let tried = if set & !skipped == 0 { tried } else { skipped };
        if self.balance == conf::Balance::RandomTwo {
            return self.less_loaded_of_two(set & !tried, mix(turn as u64), &ramp);
        }
        if self.balance == conf::Balance::LeastTime {
            return self.quickest(set & !tried, turn, &ramp);
        }
        let mut cached = turns.0.borrow_mut();
        if cached.0 != set {
            *cached = (set, self.order(set));
        }
        let order = &cached.1;
        let start = turn % order.len().max(1);
        let mut from_here = order[start..].iter().chain(&order[..start]).map(|&at| at as usize);
        let least = match self.balance {
            conf::Balance::RoundRobin
            | conf::Balance::Hash
            | conf::Balance::RandomTwo
            | conf::Balance::LeastTime => None,
            conf::Balance::LeastConnections => {
                bits(set & !tried).map(|index| self.load(index, &ramp)).min_by(Load::compare)
            }
        };
        from_here
            .find(|&index| {
                let is_least = least.is_none_or(|least| {
                    self.load(index, &ramp).compare(&least) != std::cmp::Ordering::Greater
                });
                tried & bit(index) == 0 && is_least
            })
            // Another thread may have changed the loads since `least` was computed. If no backend
            // has this load any more, take any backend.
            .or_else(|| bits(set & !tried).next())
    }

    /// Returns the backend of `set` with the lowest cost, or `None` if `set` is empty. `turn`
    /// decides between equal costs.
    fn quickest(&self, set: Set, turn: usize, ramp: &Ramp) -> Option<usize> {
        let (now, count) = (self.micros(), set.count_ones() as usize);
        let cost = |index: usize| {
            let member = &self.members[index];
            let open = member.record.under_way.load(Ordering::Relaxed);
            let weight = u64::from(member.weight) * self.share(index, ramp);
            (index, member.record.reply_time.cost(now, open) / weight as f64)
        };
        let from_turn = bits(set).chain(bits(set)).skip(turn % count.max(1)).take(count);
        let least = from_turn.map(cost).min_by(|(_, one), (_, other)| one.total_cmp(other));
        least.map(|(index, _)| index)
    }

    fn load(&self, index: usize, ramp: &Ramp) -> Load {
        let member = &self.members[index];
        let under_way = member.record.under_way.load(Ordering::Relaxed) as u64;
        Load(under_way, u64::from(member.weight) * self.share(index, ramp))
    }

    /// Returns the less loaded of two backends that `random` selects (Mitzenmacher, "The Power of
    /// Two Choices in Randomized Load Balancing", 2001). If several gateways always chose the least
    /// loaded backend, they would all choose the same one. Returns `None` if `set` is empty.
    fn less_loaded_of_two(&self, set: Set, random: u64, ramp: &Ramp) -> Option<usize> {
        let one = self.by_weight(set, random)?;
        let Some(other) = self.by_weight(set & !bit(one), mix(random)) else { return Some(one) };
        let is_less = self.load(other, ramp).compare(&self.load(one, ramp)).is_lt();
        Some(if is_less { other } else { one })
    }

    /// Returns the backend of `set` that `random` selects, in proportion to the weights. Returns
    /// `None` if `set` is empty.
    fn by_weight(&self, set: Set, random: u64) -> Option<usize> {
        let weight = |index: usize| u64::from(self.members[index].weight);
        let mut rest = random.checked_rem(bits(set).map(weight).sum())?;
        bits(set).find(|&index| match rest.checked_sub(weight(index)) {
            Some(less) => {
                rest = less;
                false
            }
            None => true,
        })
    }

    /// Returns one round of smooth weighted round robin, as in nginx. In each step, every backend
    /// gains its weight. The backend with the highest value is next, and loses the sum of all
    /// weights.
    fn order(&self, set: Set) -> Vec<u8> {
        let divisor = bits(set).fold(0, |divisor, index| gcd(self.members[index].weight, divisor));
        let mut shares: Vec<(usize, i64, i64)> = bits(set)
            .map(|index| (index, i64::from(self.members[index].weight / divisor.max(1)), 0))
            .collect();
        let total: i64 = shares.iter().map(|&(_, weight, _)| weight).sum();
        let mut order = Vec::with_capacity(total as usize);
        for _ in 0..total {
            for (_, weight, current) in &mut shares {
                *current += *weight;
            }
            // Among equal values, the first backend is next.
            let best =
                shares.iter_mut().reduce(|best, next| if next.2 > best.2 { next } else { best });
            if let Some((index, _, current)) = best {
                *current -= total;
                order.push(*index as u8);
            }
        }
        order
    }
}

/// Number of active requests, and the weight. Loads are compared by the ratio of the two.
#[derive(Clone, Copy)]
struct Load(u64, u64);

impl Load {
    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        (self.0 * other.1).cmp(&(other.0 * self.1))
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
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
