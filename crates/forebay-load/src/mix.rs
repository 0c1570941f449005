//! Choice of the next request of a mixed load, by weight.

use std::sync::Arc;
use std::time::Instant;

use crate::schedule::{NextRequest, Schedule};
use crate::spec::is_idempotent;
use crate::{Protocol, Shard, Spec};

/// Order of the requests of a mixed load, for one thread.
#[derive(Debug)]
pub(crate) struct Mix {
    /// Indices of the requests; empty if all requests are equal.
    order: Arc<[u32]>,
    next: usize,
    is_mixed: bool,
    /// Requests of a log, which are sent in its order.
    schedule: Option<Box<Schedule>>,
    /// For each request, true if it may be sent again on another connection.
    may_resend: Arc<[bool]>,
}

/// Maximum length of the order. With a larger sum of weights, the shares are rounded.
const LONGEST: u64 = 100_000;

impl Mix {
    /// Returns one mix per thread. Each thread starts at a different position of the same order.
    pub fn of(spec: &Spec, threads: usize) -> Vec<Self> {
        let weights: Vec<u32> = match &spec.scenario {
            Some(plan) => plan.scenarios.iter().map(|scenario| scenario.weight).collect(),
            None => spec.parts.iter().map(|part| part.weight).collect(),
        };
        let order: Arc<[u32]> = match weights.len() {
            // An empty order means that all requests are equal. The order `[0]` means a single
            // request that must be encoded anew each time, because of its placeholders or cookies.
            0 | 1 if spec.has_values() => [0].into(),
            0 | 1 => Arc::default(),
            _ => order(&weights).into(),
        };
        // A message over WebSocket, gRPC or `tcp` may have any effect, so it is never sent again.
        let protocol = spec.url.protocol();
        let has_messages =
            protocol.is_websocket() || protocol.is_grpc() || protocol == Protocol::Tcp;
        let may_resend: Arc<[bool]> = if has_messages {
            vec![false; spec.parts.len().max(1)].into()
        } else if spec.parts.is_empty() {
            [is_idempotent(&spec.method)].into()
        } else {
            spec.parts.iter().map(|part| is_idempotent(&part.method)).collect()
        };
        let phase = spec.shard.as_ref().map_or(0.0, Shard::phase);
        let position = |thread: usize| {
            (order.len() as f64 * (thread as f64 + phase) / threads as f64) as usize
        };
        let schedule =
            spec.replay.as_ref().map(|replay| Schedule::new(replay, spec.shard.as_ref()));
        let mix = |thread: usize| Self {
            is_mixed: !order.is_empty() || schedule.is_some(),
            schedule: schedule.as_ref().map(|schedule| Box::new(schedule.for_thread(thread))),
            next: position(thread).min(order.len().saturating_sub(1)),
            order: order.clone(),
            may_resend: may_resend.clone(),
        };
        (0..threads).map(mix).collect()
    }

    /// Returns true if requests can differ: several requests, a replayed log, or a request with
    /// placeholders or cookies.
    #[inline]
    pub fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Returns the index of the scenario for the next virtual user.
    pub fn next_scenario(&mut self) -> usize {
        let scenario = self.order[self.next] as usize;
        self.next = (self.next + 1) % self.order.len();
        scenario
    }

    pub fn next(&mut self, now: Instant) -> NextRequest {
        if let Some(schedule) = &mut self.schedule {
            return schedule.take(now);
        }
        let request = self.order[self.next] as usize;
        self.next = (self.next + 1) % self.order.len();
        NextRequest { request, due: None }
    }

    pub fn begin(&mut self, start: Instant) {
        if let Some(schedule) = &mut self.schedule {
            schedule.begin(start);
        }
    }

    /// Returns the schedule of a replayed log that determines the due times. Returns `None` if no
    /// log is replayed, or if the log determines only the order of the requests.
    pub fn schedule(&self) -> Option<&Schedule> {
        self.schedule.as_deref().filter(|schedule| schedule.is_paced())
    }

    /// Returns true if `request` may be sent again on another connection.
    pub fn may_resend(&self, request: usize) -> bool {
        self.may_resend[request]
    }
}

/// Returns the order of the requests, by nginx's smooth weighted round robin. Each request occurs
/// in proportion to its weight, and its occurrences are evenly spread. For example, the weights 2
/// and 1 give the order `0, 1, 0`.
fn order(weights: &[u32]) -> Vec<u32> {
    let divisor = weights.iter().fold(0, |divisor, weight| gcd(divisor, *weight)).max(1);
    let total: u64 = weights.iter().map(|weight| u64::from(weight / divisor)).sum();
    if weights.iter().all(|weight| weight / divisor == 1) {
        return (0..weights.len() as u32).collect();
    }
    let mut behind = vec![0i64; weights.len()];
    let mut order = Vec::new();
    for _ in 0..total.min(LONGEST) {
        for (behind, weight) in behind.iter_mut().zip(weights) {
            *behind += i64::from(weight / divisor);
        }
        let most = (0..behind.len()).rev().max_by_key(|&index| behind[index]).unwrap_or(0);
        behind[most] -= total as i64;
        order.push(most as u32);
    }
    order
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_occur_by_weight_and_evenly_spread() {
        assert_eq!(order(&[1, 1, 1]), [0, 1, 2]);
        assert_eq!(order(&[30, 10]), [0, 0, 1, 0]);
        assert_eq!(order(&[5, 1, 1]), [0, 0, 1, 0, 2, 0, 0]);
        let order = order(&[7, 2, 1]);
        let count = |request| order.iter().filter(|other| **other == request).count();
        assert_eq!([0, 1, 2].map(count), [7, 2, 1]);
    }

    #[test]
    fn a_large_weight_costs_no_memory() {
        assert_eq!(order(&[u32::MAX, 1]).len(), LONGEST as usize);
    }
}
