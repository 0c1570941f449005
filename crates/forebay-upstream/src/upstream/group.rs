//! Selects the backend of a group for a request. All threads, and all routes that name a group,
//! share one [`Group`]. The group's atomics count selections, active requests and failures over all
//! threads and routes.
//!
//! Each thread keeps a computed round of smooth weighted round robin for the backends that are up.
//! A selection then costs one `fetch_add`. A group has up to 64 backends, one bit each.
//!
//! By default, as in nginx, one failure in 10 s excludes a backend for 10 s. Then one request tries
//! the backend again. Unlike in nginx, if all backends are excluded, a request tries all of them.
//!
//! `distance` and `redirect` work as in mod_jk. If the backend of a session is excluded, the
//! backend in its `redirect` takes over. Other requests go to the nearest backends that are up.

mod balancing;
mod budget;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_conf as conf;
use tokio::time::Instant;

use balancing::{ReplyTime, SlowStart, score};
use budget::Retries;

pub use balancing::{Balancing, Begun, Rank, Turns, stable_hash};

/// Set of a group's backends, one bit each.
pub type Set = u64;

const _: () = assert!(conf::Upstream::MOST <= Set::BITS as usize);

/// A group of backends: the state that all threads share.
pub struct Group {
    members: Vec<Member>,
    balance: conf::Balance,
    max_fails: u32,
    fail_timeout: Duration,
    recover_time: Duration,
    /// Retries that a reply's status causes.
    retries: Option<Retries>,
    slow_start: Option<SlowStart>,
    /// Tiers of the backends that serve all clients, the nearest first. A tier is used if all
    /// earlier tiers are down.
    tiers: Vec<Set>,
    /// Backend that serves all clients if all tiers are down.
    standby: Option<usize>,
    /// All backends except the stopped ones.
    all: Set,
    /// Backends with failures or a failed health check. While this set is empty, a request reads no
    /// further state and no clock.
    marked: AtomicU64,
    /// True if another backend can serve while one is excluded.
    is_replaceable: bool,
    turn: AtomicUsize,
    started: Instant,
}

struct Member {
    weight: u32,
    /// Hash of the backend's address.
    identity: u64,
    /// Backend that takes over while this backend is excluded.
    redirect: Option<usize>,
    unwell: AtomicBool,
    record: Arc<Record>,
}

/// A backend's failures and active requests. A reload replaces the group, but keeps this record.
#[derive(Default)]
struct Record {
    under_way: AtomicUsize,
    failures: AtomicU32,
    /// Time of the last failure, in ms since the start.
    failed_at: AtomicU64,
    /// Time from which an excluded backend may be tried again, in ms since the start.
    retry_at: AtomicU64,
    /// Time at which the backend came back, in ms since the start; 0 if it was never down.
    back_at: AtomicU64,
    reply_time: ReplyTime,
}

/// A request that is active at a backend.
pub struct UnderWay(Option<(Arc<Group>, usize)>);

impl Group {
    /// Creates a group whose backends are all up.
    pub fn new(balancing: &Balancing) -> Arc<Self> {
        Self::with(balancing, Instant::now(), |_| (Arc::default(), false))
    }

    /// Creates a group that replaces `before`. `index_before` returns the number that a backend had
    /// in `before`, or `None` for a new backend. A backend of `before` keeps its record. If
    /// `keeps_health` is true, such a backend also keeps the result of its last health check.
    pub fn after(
        before: &Self,
        balancing: &Balancing,
        index_before: impl Fn(usize) -> Option<usize>,
        keeps_health: bool,
    ) -> Arc<Self> {
        Self::with(balancing, before.started, |index| {
            let member = index_before(index).map(|index| &before.members[index]);
            let record = member.map_or_else(Arc::default, |member| member.record.clone());
            let is_unwell = member.is_some_and(|member| member.unwell.load(Ordering::Relaxed));
            (record, keeps_health && is_unwell)
        })
    }

    fn with(
        balancing: &Balancing,
        started: Instant,
        known: impl Fn(usize) -> (Arc<Record>, bool),
    ) -> Arc<Self> {
        let Balancing { to, balance, max_fails, fail_timeout, recover_time, .. } = balancing;
        let member = |(index, rank): (usize, &Rank)| {
            let (record, is_unwell) = known(index);
            let (weight, unwell) = (rank.weight.max(1), AtomicBool::new(is_unwell));
            Member { weight, identity: rank.identity, redirect: rank.redirect, unwell, record }
        };
        let members: Vec<_> = to.iter().enumerate().map(member).collect();
        let is_marked = |member: &Member| {
            member.unwell.load(Ordering::Relaxed)
                || member.record.failures.load(Ordering::Relaxed) > 0
        };
        let marked = members.iter().enumerate().filter(|(_, member)| is_marked(member));
        let marked = marked.fold(0, |set, (index, _)| set | bit(index));
        let disabled = set_of(to, conf::Activation::Disabled);
        let tiers = tiers(to);
        let taking_all = tiers.iter().fold(0, |all, tier| all | tier);
        let redirects = to.iter().filter_map(|rank| rank.redirect);
        let standby = redirects.clone().next();
        let replacements = redirects.fold(0, |set, index| set | bit(index)) & disabled;
        // If the group has only one backend that can serve, requests still go to it while it fails,
        // as the last resort. But it counts as down, so that status and metrics show the failures.
        let is_replaceable = (taking_all | replacements).count_ones() > 1;
        let now = millis(started.elapsed());
        let slow_start = balancing.slow_start.filter(|_| is_replaceable);
        Arc::new(Self {
            slow_start: slow_start.map(|time| SlowStart::new(time, &members, now)),
            members,
            balance: *balance,
            max_fails: *max_fails,
            is_replaceable,
            fail_timeout: *fail_timeout,
            recover_time: *recover_time,
            retries: balancing.retry.clone().map(Retries::new),
            all: taking_all | disabled,
            tiers,
            standby,
            marked: AtomicU64::new(marked),
            turn: AtomicUsize::new(0),
            started,
        })
    }

    /// Returns the number of backends.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns true if a backend is up: failures do not exclude it, and its health check has not
    /// failed. The only backend of a group gets requests even while it is down.
    pub fn is_up(&self, index: usize) -> bool {
        self.up() & bit(index) != 0
    }

    /// Returns the next backend that is not in `tried`. The order of preference is:
    ///
    /// 1. `wanted`, else the backend in its `redirect`
    /// 2. a backend of the nearest tier that has a usable backend
    /// 3. the standby, else the backend in its `redirect`
    /// 4. a backend that is down
    ///
    /// A backend is usable if it is up, or if this request should try an excluded backend again.
    /// Returns `None` if all backends are in `tried`.
    ///
    /// `key`, if given, is a hash that selects the backend of a tier, in place of the balance
    /// method.
    pub fn pick(
        &self,
        (wanted, key): (Option<usize>, Option<u64>),
        tried: Set,
        turns: &Turns,
    ) -> Option<usize> {
        if self.members.len() == 1 {
            return (tried == 0).then_some(0);
        }
        let now = Now::new(self.started);
        let up = self.up();
        if let Some(index) = wanted.and_then(|wanted| self.it_or_redirect(wanted, up, tried, &now))
        {
            return Some(index);
        }
        for tier in &self.tiers {
            if let Some(index) = self.due_for_trial(tier & !up & !tried, &now) {
                return Some(index);
            }
            if tier & up & !tried != 0 {
                return self.next_for(key, tier & up, tried, turns);
            }
        }
        let standby = self.standby.and_then(|index| self.it_or_redirect(index, up, tried, &now));
        standby.or_else(|| self.last_resort((wanted, key), tried, turns))
    }

    /// Returns the next backend that is not in `tried`, even if it is down. Call this if no backend
    /// is up. Returns `None` if all backends are in `tried`.
    fn last_resort(
        &self,
        (wanted, key): (Option<usize>, Option<u64>),
        tried: Set,
        turns: &Turns,
    ) -> Option<usize> {
        let left = self.all & !tried;
        let is_left = |index: &usize| left & bit(*index) != 0;
        let mut tiers = self.tiers.iter().filter(|tier| *tier & left != 0);
        wanted
            .filter(is_left)
            .or_else(|| tiers.find_map(|tier| self.next_for(key, *tier, tried, turns)))
            .or_else(|| self.standby.filter(is_left))
    }

    /// Returns the backend of `set` for `key`. Without a key, returns the next backend by the
    /// balance method. Returns `None` if all backends of `set` are in `tried`.
    fn next_for(&self, key: Option<u64>, set: Set, tried: Set, turns: &Turns) -> Option<usize> {
        let Some(key) = key else { return self.next(set, tried, turns) };
        // During the slow start of a backend, its share and therefore its scores grow. So the
        // backend gets more and more of the keys that it will serve after the slow start.
        let ramp = self.ramp();
        let score_of = |index: usize| {
            let member = &self.members[index];
            score(member.identity, u64::from(member.weight) * self.share(index, &ramp), key)
        };
        bits(set & !tried).max_by(|&a, &b| score_of(a).total_cmp(&score_of(b)))
    }

    /// Returns backend `index` if this request may use it. Otherwise returns the backend in its
    /// `redirect`, if this request may use that backend, else `None`. Accepts backends that are
    /// disabled for new sessions.
    fn it_or_redirect(&self, index: usize, up: Set, tried: Set, now: &Now) -> Option<usize> {
        [Some(index), self.members[index].redirect].into_iter().flatten().find(|&index| {
            bit(index) & self.all & !tried != 0
                && (up & bit(index) != 0 || self.may_try(index, now))
        })
    }

    /// Counts a request as active, if the balance method needs the count.
    pub fn enter(self: &Arc<Self>, index: usize) -> UnderWay {
        let is_by_load = matches!(
            self.balance,
            conf::Balance::LeastConnections | conf::Balance::RandomTwo | conf::Balance::LeastTime
        );
        let counts = is_by_load && self.members.len() > 1;
        UnderWay(counts.then(|| {
            self.members[index].record.under_way.fetch_add(1, Ordering::Relaxed);
            (self.clone(), index)
        }))
    }

    /// Records a reply. If failures exclude the backend, clears its failures, so that the backend
    /// is up again. Keeps the failures of a backend that is not excluded.
    pub fn succeeded(&self, index: usize) {
        if self.marked.load(Ordering::Relaxed) & bit(index) == 0 {
            return;
        }
        let member = &self.members[index];
        if self.max_fails > 0 && member.record.failures.load(Ordering::Relaxed) >= self.max_fails {
            self.forgive(index);
        }
    }

    /// Records a failure. Returns true if this failure excludes the backend. Returns false if the
    /// backend remains in use, for example because it is the only one, or if it was already
    /// excluded.
    pub fn failed(&self, index: usize) -> bool {
        if self.max_fails == 0 {
            return false;
        }
        let (member, now) = (&self.members[index], millis(self.started.elapsed()));
        let last = member.record.failed_at.swap(now, Ordering::Relaxed);
        let is_fresh = now.saturating_sub(last) > millis(self.fail_timeout);
        let before = member.record.failures.load(Ordering::Relaxed);
        let is_out = before >= self.max_fails;
        let failures = if is_fresh && !is_out { 1 } else { before.saturating_add(1) };
        member.record.failures.store(failures, Ordering::Relaxed);
        member.record.retry_at.store(now + millis(self.recover_time), Ordering::Relaxed);
        self.marked.fetch_or(bit(index), Ordering::Relaxed);
        failures >= self.max_fails && !is_out && self.is_replaceable
    }

    /// Records the decision of the health checks: `well` is true if the backend is up. In this
    /// case, also clears the backend's failures.
    pub fn set_well(&self, index: usize, well: bool) {
        self.members[index].unwell.store(!well, Ordering::Relaxed);
        if well {
            self.forgive(index);
        } else {
            self.marked.fetch_or(bit(index), Ordering::Relaxed);
        }
    }

    /// Returns true if the last health check passed.
    pub fn is_well(&self, index: usize) -> bool {
        !self.members[index].unwell.load(Ordering::Relaxed)
    }

    /// Returns the time for which failures exclude a backend.
    pub fn recover_time(&self) -> Duration {
        self.recover_time
    }

    /// Clears the failures of a backend that has come back.
    fn forgive(&self, index: usize) {
        let member = &self.members[index];
        member.record.failures.store(0, Ordering::Relaxed);
        self.begin_slow_start(index);
        if !member.unwell.load(Ordering::Relaxed) {
            self.marked.fetch_and(!bit(index), Ordering::Relaxed);
        }
    }

    fn up(&self) -> Set {
        let marked = self.marked.load(Ordering::Relaxed);
        bits(marked).fold(self.all, |up, index| {
            let member = &self.members[index];
            let is_out = self.max_fails > 0
                && member.record.failures.load(Ordering::Relaxed) >= self.max_fails
                || member.unwell.load(Ordering::Relaxed);
            if is_out { up & !bit(index) } else { up }
        })
    }

    /// Returns an excluded backend of `set` that this request should try again, if there is one.
    fn due_for_trial(&self, set: Set, now: &Now) -> Option<usize> {
        bits(set).find(|&index| self.may_try(index, now))
    }

    /// Returns true if this request should try an excluded backend again. Returns true for only one
    /// request of all threads in each `recover_time`, and never while health checks fail.
    fn may_try(&self, index: usize, now: &Now) -> bool {
        let member = &self.members[index];
        let at = member.record.retry_at.load(Ordering::Relaxed);
        let next = now.millis() + millis(self.recover_time);
        !member.unwell.load(Ordering::Relaxed)
            && now.millis() >= at
            && member
                .record
                .retry_at
                .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some((group, index)) = &self.0 {
            group.members[*index].record.under_way.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Time since the start. The clock is read only when the time is first needed.
struct Now {
    started: Instant,
    millis: std::cell::OnceCell<u64>,
}

impl Now {
    fn new(started: Instant) -> Self {
        Self { started, millis: std::cell::OnceCell::new() }
    }

    fn millis(&self) -> u64 {
        *self.millis.get_or_init(|| millis(self.started.elapsed()))
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2).min(u64::MAX / 2)
}

/// Returns the set of one backend.
pub fn bit(index: usize) -> Set {
    1 << index
}

/// Returns the tiers of active backends in order: first the tiers without backups, then the tiers
/// of backups. In both parts, tiers with a smaller distance come first.
fn tiers(to: &[Rank]) -> Vec<Set> {
    let mut tiers = BTreeMap::<_, Set>::new();
    let active =
        to.iter().enumerate().filter(|(_, rank)| rank.activation == conf::Activation::Active);
    for (index, rank) in active {
        *tiers.entry((rank.backup, rank.distance)).or_default() |= bit(index);
    }
    tiers.into_values().collect()
}

fn set_of(to: &[Rank], activation: conf::Activation) -> Set {
    let those = to.iter().enumerate().filter(|(_, rank)| rank.activation == activation);
    those.fold(0, |set, (index, _)| set | bit(index))
}

fn bits(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = set.trailing_zeros() as usize;
        (set != 0).then(|| {
            set &= set - 1;
            index
        })
    })
}

#[cfg(test)]
mod tests;
