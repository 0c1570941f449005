//! Limits on the number of requests with the same key (`rate_limit`).
//!
//! The algorithm is the generic cell rate algorithm (GCRA, ITU-T I.371). Each key has the time at
//! which its next request is due, and each admitted request moves this time by the interval of the
//! rate. A request is refused if this time is further ahead of the clock than the burst allows.
//!
//! All threads share the table of a limit: 64 Ki buckets of eight keys, 8 MiB. If a bucket is full,
//! a new key replaces the key with the earliest time, which is the least limited.
//!
//! Machines with the same store add up the requests that each has admitted
//! ([`RateLimiter::take_counts`], [`RateLimiter::add_ahead`]). The local table alone still decides
//! about a request.

mod texts;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use forebay_conf::{HostPattern, RateLimit};
use forebay_net::head::Request;

pub(crate) use texts::KeyPart;
pub(crate) use texts::{network as client_network, texts as key_texts};
use texts::{network, texts};

/// Parts of a table, each with its own lock.
const PARTS: usize = 16;
/// Buckets of a part.
const BUCKETS: usize = 4096;
/// Keys of a bucket.
const KEYS: usize = 8;

/// Eight hashes of keys, and then for each key the time at which its next request is due, in
/// nanoseconds.
type Bucket = [u64; 2 * KEYS];

/// A rate limit, with the time at which the next request of each key is due.
pub struct RateLimiter {
    limit: RateLimit,
    key: Vec<KeyPart>,
    /// The names of the site.
    hosts: Vec<HostPattern>,
    /// Nanoseconds between requests at the rate.
    interval: u64,
    /// Nanoseconds that a key may be ahead of the clock.
    ahead: u64,
    start: Instant,
    hasher: RandomState,
    parts: Vec<Mutex<Vec<Bucket>>>,
    /// Counts of requests for the other machines. `None` if no store is shared.
    shared: Option<Box<SharedCounts>>,
}

/// Maximum number of keys whose counts wait to be sent to the store. Requests of further keys count
/// only on this machine.
const MOST_SHARED: usize = 65_536;

/// Hash function for keys. All machines with the same store use the same function.
#[derive(Clone)]
pub struct SharedKeys(hmac::Key);

impl SharedKeys {
    /// Creates the function from a secret that all machines have.
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Returns the hash of a text.
    pub fn hash(&self, text: &[u8]) -> u64 {
        let tag = hmac::sign(&self.0, text);
        tag.as_ref()[..8].iter().fold(0, |hash, byte| hash << 8 | u64::from(*byte))
    }
}

/// Numbers of requests that this machine has admitted since it last sent its counts to the store.
struct SharedCounts {
    keys: SharedKeys,
    waiting: Mutex<HashMap<u64, u32>>,
}

impl SharedCounts {
    fn count(&self, key: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < MOST_SHARED || waiting.contains_key(&key) {
            let count = waiting.entry(key).or_default();
            *count = count.saturating_add(1);
        }
    }
}

impl RateLimiter {
    /// Creates the state of a limit, without any keys. With `shared`, the limit shares its counts
    /// with other machines.
    pub fn new(limit: RateLimit, shared: Option<SharedKeys>) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        Self {
            key: limit.key.parts().iter().map(KeyPart::of).collect(),
            hosts: Vec::new(),
            interval: nanoseconds(limit.interval()),
            ahead: nanoseconds(limit.ahead()).min(u64::MAX / 4),
            limit,
            start: Instant::now(),
            hasher: RandomState::new(),
            parts: (0..PARTS).map(|_| Mutex::new(Vec::new())).collect(),
            shared: shared.map(|keys| Box::new(SharedCounts { keys, waiting: Mutex::default() })),
        }
    }

    /// Sets the names of the site. Requests to all other hosts then share one counter. Otherwise a
    /// client could get a new counter with each invented host.
    pub fn of_site(self, hosts: &[HostPattern]) -> Self {
        Self { hosts: hosts.to_vec(), ..self }
    }

    /// Returns true if the limit is for a site with these names.
    pub fn is_of_site(&self, hosts: &[HostPattern]) -> bool {
        self.hosts == hosts
    }

    /// Returns true if the limit shares its counts with other machines, and hashes keys with
    /// `keys`. If `keys` is `None`, returns true if the limit does not share its counts.
    pub fn is_shared_by(&self, keys: Option<&SharedKeys>) -> bool {
        // Compare the hashes of one text, because the secrets cannot be compared.
        let sample = |keys: &SharedKeys| keys.hash(b"");
        self.shared.as_ref().map(|shared| sample(&shared.keys)) == keys.map(sample)
    }

    /// Takes the number of admitted requests since the last call, by key.
    pub fn take_counts(&self) -> Vec<(u64, u32)> {
        let Some(shared) = &self.shared else { return Vec::new() };
        let mut waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting).into_iter().collect()
    }

    /// Gives back counts that the store has not taken.
    pub fn return_counts(&self, counts: &[(u64, u32)]) {
        let Some(shared) = &self.shared else { return };
        let mut waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, count) in counts {
            if waiting.len() < MOST_SHARED || waiting.contains_key(key) {
                let sum = waiting.entry(*key).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
    }

    /// Delays the next request with `key`, because other machines have also admitted requests with
    /// this key. According to the store, the next request is due `ahead` after `asked`. Adds the
    /// time for requests that this machine has not yet reported to the store.
    pub fn add_ahead(&self, key: u64, ahead: Duration, asked: Instant) {
        let Some(shared) = &self.shared else { return };
        let waiting = {
            let waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.get(&key).copied().unwrap_or(0)
        };
        let ahead = u64::try_from(ahead.min(self.furthest()).as_nanos()).unwrap_or(u64::MAX / 4);
        let ahead = ahead.saturating_add(self.interval.saturating_mul(waiting.into()));
        let due = self.at(asked).saturating_add(ahead);
        let mut part = self.part(key);
        let (keys, times) = bucket_of(&mut part, key).split_at_mut(KEYS);
        // Do nothing if the bucket no longer has the key, because keys with later times have
        // replaced it.
        if let Some(at) = keys.iter().position(|known| *known == key) {
            times[at] = times[at].max(due);
        }
    }

    /// Returns the longest delay of a key that Forebay accepts from the store. In this time, the
    /// rate admits `1000 * (burst + 1)` requests. So a wrong time in the store cannot refuse a
    /// client for ever.
    pub fn furthest(&self) -> Duration {
        self.limit.ahead().saturating_add(self.limit.interval()).saturating_mul(1000)
    }

    fn part(&self, key: u64) -> MutexGuard<'_, Vec<Bucket>> {
        let part = &self.parts[(key as usize) % PARTS];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Converts `now` to nanoseconds for the table. The result is at least `self.ahead`. So the
    /// time 0 of an unused entry is far enough in the past to admit a whole burst.
    fn at(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.start).as_nanos();
        self.ahead.saturating_add(since as u64)
    }

    /// Returns the limit.
    pub fn limit(&self) -> &RateLimit {
        &self.limit
    }

    /// Returns the hash of the client's network, if the key is only `{client}`. Returns `None` for
    /// other keys, and for a client of a Unix socket.
    fn client_key(&self, request: &Request) -> Option<u64> {
        let [KeyPart::Client] = self.key[..] else { return None };
        let (network, length) = network(request.client.ip()?);
        Some(self.hash(&network[..length]))
    }

    /// Returns the hashes of the request's keys. If the result is empty, the request is not
    /// limited.
    fn keys(&self, request: &Request) -> Vec<u64> {
        if let Some(key) = self.client_key(request) {
            return vec![key];
        }
        texts(&self.key, &self.hosts, request).iter().map(|text| self.hash(text)).collect()
    }

    fn hash(&self, key: &[u8]) -> u64 {
        let hash = match &self.shared {
            None => self.hasher.hash_one(key),
            Some(shared) => shared.keys.hash(key),
        };
        // Zero marks an unused entry.
        hash.max(1)
    }

    /// Returns the time that a request with this key must wait. If the limit refuses the request,
    /// returns as the error the time until a request is admitted again. If `counts` is true, counts
    /// an admitted request.
    fn decide(&self, key: u64, now: Instant, counts: bool) -> Result<Duration, Duration> {
        let now = self.at(now);
        let mut part = self.part(key);
        let (keys, times) = bucket_of(&mut part, key).split_at_mut(KEYS);
        let known = keys.iter().position(|known| *known == key);
        let due = known.map_or(now, |at| times[at].max(now));
        let early = due - now;
        if early > self.ahead {
            return Err(Duration::from_nanos(early - self.ahead));
        }
        if counts {
            let earliest = || (0..KEYS).min_by_key(|at| times[*at]).unwrap_or(0);
            let at = known.unwrap_or_else(earliest);
            (keys[at], times[at]) = (key, due.saturating_add(self.interval));
            if let Some(shared) = &self.shared {
                shared.count(key);
            }
        }
        let wait = if self.limit.delay { early } else { 0 };
        Ok(Duration::from_nanos(wait))
    }
}

/// Returns the bucket of a key. Allocates the buckets of `part` at the first call.
fn bucket_of(part: &mut Vec<Bucket>, key: u64) -> &mut Bucket {
    if part.is_empty() {
        *part = vec![[0; 2 * KEYS]; BUCKETS];
    }
    &mut part[(key as usize / PARTS) % BUCKETS]
}

/// `Ok` is the delay of an admitted request. `Err` is the limit that refuses the request for the
/// longest time, and this time.
pub type Judged<'l> = Result<Duration, (&'l RateLimiter, Duration)>;

/// Applies all limits to `request`. Returns the time that the request must wait, or the limit that
/// refuses the request. A refused request normally counts for no limit.
pub fn judge<'l>(limits: &'l [Arc<RateLimiter>], request: &Request) -> Judged<'l> {
    // tokio's clock is used, because tests can pause it.
    let now = || tokio::time::Instant::now().into_std();
    match limits {
        [] => return Ok(Duration::ZERO),
        // Most limits have the key `{client}`, which needs no allocation.
        [limit] => {
            if let Some(key) = limit.client_key(request) {
                return limit.decide(key, now(), true).map_err(|after| (&**limit, after));
            }
        }
        _ => {}
    }
    let keys_of =
        |limit: &'l Arc<RateLimiter>| limit.keys(request).into_iter().map(|key| (&**limit, key));
    decide_all(&limits.iter().flat_map(keys_of).collect::<Vec<_>>(), now())
}

fn decide_all<'l>(limits: &[(&'l RateLimiter, u64)], now: Instant) -> Judged<'l> {
    if limits.len() > 1 {
        // First check all limits without counting, so that a refused request counts for no limit.
        // Before the second check, another thread may admit a request with the same key. One limit
        // may then refuse this request, although the other limits have counted it.
        decide_each(limits, now, false)?;
    }
    decide_each(limits, now, true)
}

fn decide_each<'l>(limits: &[(&'l RateLimiter, u64)], now: Instant, counts: bool) -> Judged<'l> {
    let (mut longest, mut refusal) = (Duration::ZERO, None);
    for (limiter, key) in limits {
        match limiter.decide(*key, now, counts) {
            Ok(wait) => longest = longest.max(wait),
            Err(after) => match refusal {
                Some((_, longer)) if longer >= after => {}
                _ => refusal = Some((*limiter, after)),
            },
        }
    }
    refusal.map_or(Ok(longest), Err)
}

/// Returns the fields of a refusal: `Retry-After`, and those of
/// draft-ietf-httpapi-ratelimit-headers-10.
pub fn refusal_fields(limit: &RateLimit, after: Duration) -> Vec<u8> {
    let seconds = |time: Duration| (time.as_nanos().div_ceil(1_000_000_000)).max(1);
    let (after, window) = (seconds(after), seconds(limit.rate.period));
    let quota = limit.rate.requests;
    format!(
        "Retry-After: {after}\r\nRateLimit-Policy: \"default\";q={quota};w={window}\r\n\
         RateLimit: \"default\";r=0;t={after}\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use forebay_conf::{Rate, Template};

    use super::*;

    fn limiter(requests: u32, seconds: u64, burst: u32, delay: bool) -> RateLimiter {
        let period = Duration::from_secs(seconds);
        RateLimiter::new(
            RateLimit {
                rate: Rate { requests, period },
                burst: Some(burst),
                key: Template::text("all"),
                delay,
            },
            None,
        )
    }

    fn admitted(limiter: &RateLimiter, key: u64, at: Instant) -> bool {
        limiter.decide(key, at, true).is_ok()
    }

    #[test]
    fn a_burst_is_admitted_and_then_the_rate() {
        let limiter = limiter(10, 1, 4, false);
        let start = limiter.start;
        let first = (0..20).filter(|_| admitted(&limiter, 1, start)).count();
        assert_eq!(first, 5, "the next one and a burst of four");
        assert_eq!(
            limiter.decide(1, start, true),
            Err(Duration::from_millis(100)),
            "the next place is free after one interval"
        );
        assert!(admitted(&limiter, 2, start), "another key has its own rate");
        let mut count = 0;
        for millisecond in 0..10_000 {
            let at = start + Duration::from_millis(millisecond);
            count += usize::from(admitted(&limiter, 1, at));
        }
        assert_eq!(count, 99, "ten in a second for ten seconds");
    }

    #[test]
    fn two_threads_admit_as_many_requests_as_one() {
        const TICKS: u32 = 1000;
        // Ten seconds in steps of 10 ms. In each step, eight clients of each thread send a request
        // with the same key, which is 16 times the rate.
        let limiter = limiter(100, 1, 19, false);
        let barrier = std::sync::Barrier::new(2);
        let client = || {
            let at = |tick| limiter.start + Duration::from_millis(10) * tick;
            let in_step = |tick| {
                barrier.wait();
                (0..8).filter(|_| admitted(&limiter, 1, at(tick))).count()
            };
            (0..TICKS).map(in_step).sum::<usize>()
        };
        let total = std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(client));
            threads.map(|thread| thread.join().unwrap()).iter().sum::<usize>()
        });
        assert_eq!(total, 19 + TICKS as usize, "a burst, and then the rate");
    }

    #[test]
    fn requests_of_a_burst_wait_with_delay() {
        let limiter = limiter(2, 1, 2, true);
        let waits: Vec<_> = (0..4).map(|_| limiter.decide(1, limiter.start, true)).collect();
        let after = |milliseconds| Ok(Duration::from_millis(milliseconds));
        assert_eq!(waits[..3], [after(0), after(500), after(1000)]);
        assert!(waits[3].is_err());
    }

    #[test]
    fn a_refused_request_counts_for_no_limit() {
        let (wide, narrow) = (limiter(100, 1, 9, false), limiter(1, 1, 0, false));
        let now = wide.start.max(narrow.start);
        let both = [(&wide, 1), (&narrow, 1)];
        assert_eq!(decide_all(&both, now).ok(), Some(Duration::ZERO));
        for _ in 0..50 {
            let refused_by = decide_all(&both, now).err().map(|(limiter, _)| limiter.limit());
            assert_eq!(refused_by, Some(narrow.limit()));
        }
        let left = (0..50).filter(|_| admitted(&wide, 1, now)).count();
        assert_eq!(left, 9);
    }

    #[test]
    fn a_million_keys_take_no_more_memory_than_the_table_has() {
        let limiter = limiter(1, 3600, 0, false);
        for key in 1..=1_000_000_u64 {
            // Spreads the keys as a hash function would.
            let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert!(admitted(&limiter, key.rotate_left(32).max(1), limiter.start));
        }
        let keys = |part: &Mutex<Vec<Bucket>>| part.lock().unwrap().len() * KEYS;
        assert_eq!(limiter.parts.iter().map(keys).sum::<usize>(), PARTS * BUCKETS * KEYS);
    }

    /// Returns the number of requests that machines admit, if all send as much as they can. They
    /// exchange counts every `every` milliseconds.
    fn admitted_by(machines: usize, every: u64, seconds: u64, (rate, burst): (u32, u32)) -> u64 {
        let period = Duration::from_secs(1);
        let limit = RateLimit {
            rate: Rate { requests: rate, period },
            burst: Some(burst),
            key: Template::text("all"),
            delay: false,
        };
        let keys = SharedKeys::new(b"");
        let limiter = || RateLimiter::new(limit.clone(), Some(keys.clone()));
        let all: Vec<_> = (0..machines).map(|_| limiter()).collect();
        let start = all.iter().map(|limiter| limiter.start).max().unwrap();
        let (mut admitted, mut due) = (0, Duration::ZERO);
        // A step of the simulation in milliseconds. The time of each step grows with the machines.
        let step = if machines > 100 { 10 } else { 1 };
        for millisecond in (0..seconds * 1000).step_by(step) {
            let since = Duration::from_millis(millisecond);
            let now = start + since;
            for (number, limiter) in all.iter().enumerate() {
                while limiter.decide(1, now, true).is_ok() {
                    admitted += 1;
                }
                // The machines exchange at different times.
                if millisecond % every == (number * step) as u64 % every {
                    for (key, count) in limiter.take_counts() {
                        due = due.max(since) + limit.interval() * count;
                        limiter.add_ahead(key, due - since, now);
                    }
                }
            }
        }
        admitted
    }

    #[test]
    fn machines_that_exchange_counts_keep_the_rate_together() {
        let (rate, burst, seconds) = (50, 20, 60);
        let exact = u64::from(burst + 1) + u64::from(rate) * seconds;
        assert!(admitted_by(1, 500, seconds, (rate, burst)) <= exact);
        for machines in [2, 4, 16, 1000] {
            let count = admitted_by(machines, 500, seconds, (rate, burst));
            // Each machine may admit a burst, and the rate until the first exchange. Afterwards,
            // requests that were admitted too early delay the following ones.
            let early = machines as u64 * (u64::from(burst + 1) + u64::from(rate) / 2);
            assert!(count <= exact + early, "{machines}: {count} of {exact}");
            assert!(count >= exact * 9 / 10, "{machines}: {count} of {exact}");
            println!("{machines} machines: {count} admitted, {exact} permitted");
        }
    }

    #[test]
    fn limits_are_shared_by_machines_with_the_same_keys() {
        let (one, other) = (SharedKeys::new(b"one"), SharedKeys::new(b"other"));
        let limit = limiter(10, 1, 4, false).limit;
        let shared = RateLimiter::new(limit.clone(), Some(one.clone()));
        assert!(shared.is_shared_by(Some(&one)));
        assert!(!shared.is_shared_by(Some(&other)) && !shared.is_shared_by(None));
        assert!(RateLimiter::new(limit, None).is_shared_by(None));
    }

    #[test]
    fn counts_that_the_store_did_not_take_wait() {
        let limit = limiter(10, 1, 4, false).limit;
        let limiter = RateLimiter::new(limit, Some(SharedKeys::new(b"key")));
        let now = limiter.start;
        assert!(admitted(&limiter, 7, now) && admitted(&limiter, 7, now));
        let counts = limiter.take_counts();
        assert_eq!(counts, [(7, 2)]);
        assert!(limiter.take_counts().is_empty());
        limiter.return_counts(&counts);
        assert!(admitted(&limiter, 7, now));
        assert_eq!(limiter.take_counts(), [(7, 3)]);
        // A time that is far too late, and a key that this machine does not have.
        limiter.add_ahead(7, Duration::MAX, now);
        limiter.add_ahead(8, Duration::MAX, now);
        assert!(!admitted(&limiter, 7, now) && admitted(&limiter, 8, now));
        assert!(admitted(&limiter, 7, now + limiter.furthest()));
    }

    #[test]
    fn the_longest_times_do_not_overflow() {
        let limiter = limiter(1, 30 * 24 * 3600, u32::MAX, false);
        let late = limiter.start + Duration::from_secs(100 * 365 * 24 * 3600);
        assert!(admitted(&limiter, 1, limiter.start));
        assert!(admitted(&limiter, 1, late));
    }
}
