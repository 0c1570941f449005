//! Selects the next of the backends that are up: by weight, active requests or times of replies.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use forebay_conf as conf;

use super::balancing::mix;
use super::slow_start::Ramp;
use super::{Group, Set, bit, bits};

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
