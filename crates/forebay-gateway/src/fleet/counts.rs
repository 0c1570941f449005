//! The exchange of counts of rate limits with the store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use forebay_origin::access::RateLimiter;
use forebay_store::{Count, LARGEST_BATCH, Store, StoreError};

/// A rate limit that machines share, and its name in the store.
#[derive(Clone)]
pub struct SharedLimit {
    pub name: String,
    pub limiter: Arc<RateLimiter>,
}

/// The batches of counts that the store has not confirmed.
///
/// If the store's answer is lost, the store may have added the batch already. The batch is then
/// sent again with the same number, so that the store adds it only once. Later batches wait until
/// the store has confirmed this batch.
#[derive(Default)]
pub struct CountExchange {
    unconfirmed: VecDeque<CountBatch>,
}

/// Numbers of requests that this machine has admitted, for keys of one limit.
struct CountBatch {
    limit: SharedLimit,
    number: u64,
    counts: Vec<(u64, u32)>,
}

impl CountExchange {
    /// Adds this machine's admitted requests to the counts of all machines, and reads the sums.
    /// Returns `None` if there was nothing to add.
    pub fn exchange(
        &mut self,
        store: &Store,
        limits: &[SharedLimit],
    ) -> Result<Option<()>, StoreError> {
        // Drop the batches of limits that a reload has removed.
        let is_known = |limiter: &Arc<RateLimiter>| {
            limits.iter().any(|limit| Arc::ptr_eq(&limit.limiter, limiter))
        };
        self.unconfirmed.retain(|batch| is_known(&batch.limit.limiter));
        let earlier = self.send(store)?;
        for limit in limits {
            let counts = limit.limiter.take_counts();
            let batches = counts.chunks(LARGEST_BATCH).map(|counts| CountBatch {
                limit: limit.clone(),
                number: store.next_batch(),
                counts: counts.to_vec(),
            });
            self.unconfirmed.extend(batches);
        }
        Ok(self.send(store)?.or(earlier))
    }

    /// Sends all batches in order. Removes a batch after the store has confirmed or refused it, or
    /// has sent an unusable answer. Stops when the store cannot be reached. Returns the last error,
    /// or `None` if there are no batches.
    fn send(&mut self, store: &Store) -> Result<Option<()>, StoreError> {
        let mut outcome = Ok(None);
        while let Some(batch) = self.unconfirmed.front() {
            match batch.send(store) {
                Ok(()) => outcome = outcome.map(|_| Some(())),
                Err(error @ StoreError::Refused(_)) => {
                    batch.limit.limiter.return_counts(&batch.counts);
                    outcome = Err(error);
                }
                // The answer is unusable, and the store may have added the batch. So remove the
                // batch.
                Err(error @ StoreError::Content(_)) => outcome = Err(error),
                Err(error) => return Err(error),
            }
            self.unconfirmed.pop_front();
        }
        outcome
    }
}

impl CountBatch {
    fn send(&self, store: &Store) -> Result<(), StoreError> {
        let SharedLimit { name, limiter } = &self.limit;
        let (interval, most) = (limiter.limit().interval(), limiter.furthest());
        let count =
            |&(key, count): &(u64, u32)| Count { key, step: interval.saturating_mul(count), most };
        let counts: Vec<_> = self.counts.iter().map(count).collect();
        let asked = Instant::now();
        let ahead = store.advance(name, self.number, &counts)?;
        for ((key, _), ahead) in self.counts.iter().zip(ahead) {
            limiter.add_ahead(*key, ahead, asked);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::path::Path;
    use std::thread;

    use forebay_conf::Plan;
    use forebay_origin::access::SharedKeys;

    use super::*;

    /// Returns a limit, and a store at this address.
    fn limit_and_store(address: &str) -> (SharedLimit, Store) {
        let text = format!(
            "[server]\nstore = \"redis://{address}\"\nstore_key = \"{}\"\n[[site]]\nlisten = \":80\"\n\
             [[site.route]]\nrespond = \"x\"\nrate_limit = {{ rate = \"5/s\" }}\n",
            "0".repeat(32)
        );
        let plan: Plan = forebay_conf::parse(&text, "site.toml", Path::new("/")).unwrap();
        let limit = plan.sites[0].routes[0].access.rate_limits[0].clone();
        let limiter = Arc::new(RateLimiter::new(limit, Some(SharedKeys::new(b"x"))));
        let store = Store::new(plan.server.store.as_deref().unwrap()).unwrap();
        (SharedLimit { name: "limit".to_owned(), limiter }, store)
    }

    /// Reads a command, and returns its words without the name and the script. Returns none at the
    /// end of the connection.
    fn words(client: &mut impl BufRead) -> Vec<String> {
        let mut line = || {
            let mut line = String::new();
            client.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let count = line().trim_start_matches('*').parse().unwrap_or(0);
        let words: Vec<_> = (0..count).map(|_| (line(), line()).1).collect();
        words.into_iter().skip(2).collect()
    }

    #[test]
    fn a_batch_without_an_answer_is_sent_again_before_the_next_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (limit, store) = limit_and_store(&listener.local_addr().unwrap().to_string());
        let server = thread::spawn(move || {
            let mut batches = Vec::new();
            // The first connection ends without an answer to the batch.
            for replies in [0, 2] {
                let mut client = BufReader::new(listener.accept().unwrap().0);
                words(&mut client);
                client.get_mut().write_all(b"+PONG\r\n").unwrap();
                for _ in 0..replies {
                    batches.push(words(&mut client));
                    client.get_mut().write_all(b"*1\r\n:7\r\n").unwrap();
                }
                batches.push(words(&mut client));
            }
            batches
        });
        let mut exchange = CountExchange::default();
        limit.limiter.return_counts(&[(7, 3)]);
        let limits = [limit.clone()];
        let lost = exchange.exchange(&store, &limits);
        assert!(matches!(lost, Err(StoreError::Away(_))), "{lost:?}");
        limit.limiter.return_counts(&[(7, 1)]);
        // After a failure, calls fail for a while without a request to the store.
        while exchange.exchange(&store, &limits).is_err() {}
        assert!(limit.limiter.take_counts().is_empty() && exchange.unconfirmed.is_empty());
        drop(store);
        let batches = server.join().unwrap();
        assert_eq!(batches[0], batches[1], "the same batch");
        // The number of keys, the number of the batch, and 200 ms for each request.
        let times = |batch: &[String]| (batch[0].clone(), batch[3].clone(), batch[5].clone());
        assert_eq!(times(&batches[0]), ("2".into(), "1".into(), "600000".into()));
        assert_eq!(times(&batches[2]), ("2".into(), "2".into(), "200000".into()));
    }

    #[test]
    fn batches_of_a_removed_limit_are_forgotten() {
        let (limit, store) = limit_and_store("127.0.0.1:1");
        let mut exchange = CountExchange::default();
        limit.limiter.return_counts(&[(7, 3)]);
        assert!(exchange.exchange(&store, &[limit]).is_err());
        assert_eq!(exchange.unconfirmed.len(), 1);
        assert!(matches!(exchange.exchange(&store, &[]), Ok(None)));
    }
}
