//! Divides the number of requests of a run among its threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Stop;

/// Number of requests that one thread may still send. In a run of n requests, all threads together
/// send exactly n requests.
///
/// The threads draw requests from a common stock in batches, which avoids an atomic operation per
/// request. Batches become smaller as the stock becomes smaller. So near the end of the run, no
/// thread keeps many requests while other threads have none.
#[derive(Debug)]
pub(crate) struct RequestBudget {
    held: u64,
    /// Common stock of all threads. `None` if the run ends after a time.
    stock: Option<Arc<AtomicU64>>,
    threads: u64,
}

const BATCH_LIMIT: u64 = 256;

impl RequestBudget {
    pub fn of(stop: Stop, threads: usize) -> Vec<Self> {
        let stock = match stop {
            Stop::Requests(n) => Some(Arc::new(AtomicU64::new(n))),
            Stop::Duration(_) => None,
        };
        let claim = |_| Self { held: 0, stock: stock.clone(), threads: threads as u64 };
        (0..threads).map(claim).collect()
    }

    pub fn none() -> Self {
        Self { held: 0, stock: Some(Arc::default()), threads: 1 }
    }

    /// Drops the requests that are left in this budget.
    pub fn close(&mut self) {
        *self = Self::none();
    }

    /// Takes one request from the budget. Returns false if no request is left.
    #[inline]
    pub fn take(&mut self) -> bool {
        if self.held == 0 && !self.draw() {
            return false;
        }
        self.held -= 1;
        true
    }

    /// Returns true if this thread can take no further request.
    pub fn is_empty(&self) -> bool {
        let is_empty = |stock: &Arc<AtomicU64>| stock.load(Ordering::Relaxed) == 0;
        self.held == 0 && self.stock.as_ref().is_some_and(is_empty)
    }

    /// Returns true if the run ends after a number of requests.
    pub fn limited(&self) -> bool {
        self.stock.is_some()
    }

    fn draw(&mut self) -> bool {
        let Some(stock) = &self.stock else {
            self.held = u64::MAX;
            return true;
        };
        // A batch is an eighth of a thread's share of the stock, so batches become smaller with the
        // stock.
        let batch = |left: u64| left.min((left / (self.threads * 8)).clamp(1, BATCH_LIMIT));
        let drawn = stock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            (left > 0).then(|| left - batch(left))
        });
        let Ok(left) = drawn else { return false };
        self.held = batch(left);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn exactly_as_many_as_there_are() {
        for n in [1, 2, 3, 17, 1000, 100_003] {
            let mut claims = RequestBudget::of(Stop::Requests(n), 3);
            let mut taken = 0;
            loop {
                let round = claims.iter_mut().map(|claim| u64::from(claim.take())).sum::<u64>();
                taken += round;
                if round == 0 {
                    break;
                }
            }
            assert_eq!(taken, n);
        }
    }

    #[test]
    fn threads_draw_exactly_n_together() {
        let taken: u64 = std::thread::scope(|scope| {
            let count = |mut claim: RequestBudget| std::iter::repeat_with(move || claim.take());
            let threads: Vec<_> = RequestBudget::of(Stop::Requests(50_001), 4)
                .into_iter()
                .map(|claim| scope.spawn(move || count(claim).take_while(|t| *t).count() as u64))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 50_001);
    }

    #[test]
    fn a_duration_never_runs_out() {
        let mut claim = RequestBudget::of(Stop::Duration(Duration::from_secs(1)), 1).remove(0);
        assert!((0..1000).all(|_| claim.take()));
        assert!(!claim.limited());
    }
}
