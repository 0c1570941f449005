//! Which of a group's backends takes a request. All threads, and all routes that name it, share one
//! [`Group`], so that turns, requests under way and failures are counted over all of them, in atomics
//! alone.
//!
//! One round of smooth weighted round robin is computed for each set of backends that are up, so a
//! turn is one `fetch_add`; while none has failed, one load shows it and no clock is read. A group
//! has up to 64 backends, a bit each. As with nginx, one failure in 10 s leaves a backend out for
//! 10 s, then one request tries it; unlike there, when all are out all are tried in turn, so the
//! first that is back serves. Health checks have a thread of their own.

mod balancing;
mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_conf as conf;
use tokio::time::Instant;

pub use balancing::Balancing;
pub use turns::Turns;

/// The backends of a group, one bit each: a group has no more than there are bits.
pub type Set = u64;

const _: () = assert!(conf::Upstream::MOST <= Set::BITS as usize);

/// What all threads know about the backends of a group.
pub struct Group {
    members: Vec<Member>,
    balance: conf::Balance,
    max_fails: u32,
    fail_timeout: Duration,
    primaries: Set,
    backups: Set,
    /// Those for clients alone that stay with them.
    disabled: Set,
    /// Those with failures or a bad health check. As long as there are none, nothing else is
    /// looked at and no clock is read.
    marked: AtomicU64,
    turn: AtomicUsize,
    started: Instant,
}

struct Member {
    weight: u32,
    unwell: AtomicBool,
    record: Arc<Record>,
}

/// What has been seen of a backend, for the groups of configurations that follow each other.
#[derive(Default)]
struct Record {
    under_way: AtomicUsize,
    failures: AtomicU32,
    /// When the last failure was, in ms since the start.
    failed_at: AtomicU64,
    /// When it may be tried again, in ms since the start.
    retry_at: AtomicU64,
}

/// A request under way to a backend.
pub struct UnderWay(Option<(Arc<Group>, usize)>);

impl Group {
    /// Backends that are all up.
    pub fn new(balancing: &Balancing) -> Arc<Self> {
        Self::with(balancing, Instant::now(), |_| (Arc::default(), false))
    }

    /// Backends of which some were in a group before: `index_before` says which of it each was. What
    /// was seen of those holds on, with `keeps_health` what health checks found, too.
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
        let Balancing { to, balance, max_fails, fail_timeout } = balancing;
        let member = |(index, &(weight, ..)): (usize, &(u32, bool, conf::Activation))| {
            let (record, is_unwell) = known(index);
            Member { weight: weight.max(1), unwell: AtomicBool::new(is_unwell), record }
        };
        let set = |has: &dyn Fn(bool, conf::Activation) -> bool| {
            let here = to.iter().enumerate().filter(|(_, of)| has(of.1, of.2));
            here.fold(0, |set, (index, _)| set | bit(index))
        };
        let active = conf::Activation::Active;
        let primaries = set(&|is_backup, activation| !is_backup && activation == active);
        let backups = set(&|is_backup, activation| is_backup && activation == active);
        let members: Vec<_> = to.iter().enumerate().map(member).collect();
        let is_marked = |member: &Member| {
            member.unwell.load(Ordering::Relaxed)
                || member.record.failures.load(Ordering::Relaxed) > 0
        };
        let marked = members.iter().enumerate().filter(|(_, member)| is_marked(member));
        let marked = marked.fold(0, |set, (index, _)| set | bit(index));
        Arc::new(Self {
            members,
            balance: *balance,
            // An only one is never left out, so its failures are not counted against it.
            max_fails: if (primaries | backups).count_ones() > 1 { *max_fails } else { 0 },
            fail_timeout: *fail_timeout,
            primaries,
            backups,
            disabled: set(&|_, activation| activation == conf::Activation::Disabled),
            marked: AtomicU64::new(marked),
            turn: AtomicUsize::new(0),
            started,
        })
    }

    /// How many backends there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether a backend is neither left out for its failures, which an only one never is, nor down
    /// by its health check.
    pub fn is_up(&self, index: usize) -> bool {
        self.up() & bit(index) != 0
    }

    /// The backend to ask next, none of `tried`: `wanted` if it is up, else one that is up and no
    /// backup, else a backup that is up. When none is up, all are tried in the same order: an
    /// error at once would help nobody, and the first that answers is up again.
    pub fn pick(&self, wanted: Option<usize>, tried: Set, turns: &Turns) -> Option<usize> {
        if self.members.len() == 1 {
            return (tried == 0).then_some(0);
        }
        let now = Now::new(self.started);
        let up = self.up();
        if let Some(wanted) = wanted.filter(|&wanted| bit(wanted) & self.all() & !tried != 0)
            && (up & bit(wanted) != 0 || self.may_try(wanted, &now))
        {
            return Some(wanted);
        }
        for set in [self.primaries, self.backups] {
            if let Some(index) = self.due_for_trial(set & !up & !tried, &now) {
                return Some(index);
            }
            if set & up & !tried != 0 {
                return self.next(set & up, tried, turns);
            }
        }
        let sets = [self.primaries, self.backups].into_iter();
        sets.filter(|set| set & !tried != 0).find_map(|set| self.next(set, tried, turns))
    }

    /// Counts a request as under way, where that decides who is next.
    pub fn enter(self: &Arc<Self>, index: usize) -> UnderWay {
        let counts = self.balance == conf::Balance::LeastConnections && self.members.len() > 1;
        UnderWay(counts.then(|| {
            self.members[index].record.under_way.fetch_add(1, Ordering::Relaxed);
            (self.clone(), index)
        }))
    }

    /// The backend answered. A failure before is forgotten only if it had been left out for it.
    pub fn succeeded(&self, index: usize) {
        if self.marked.load(Ordering::Relaxed) & bit(index) == 0 {
            return;
        }
        let member = &self.members[index];
        if self.max_fails > 0 && member.record.failures.load(Ordering::Relaxed) >= self.max_fails {
            self.forgive(index);
        }
    }

    /// The backend failed. Whether it is left out because of that from now on.
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
        member.record.retry_at.store(now + millis(self.fail_timeout), Ordering::Relaxed);
        self.marked.fetch_or(bit(index), Ordering::Relaxed);
        failures >= self.max_fails && !is_out
    }

    /// What a health check found. A backend that is well again starts without failures.
    pub fn set_well(&self, index: usize, well: bool) {
        self.members[index].unwell.store(!well, Ordering::Relaxed);
        if well {
            self.forgive(index);
        } else {
            self.marked.fetch_or(bit(index), Ordering::Relaxed);
        }
    }

    /// Whether the last health check found the backend well.
    pub fn is_well(&self, index: usize) -> bool {
        !self.members[index].unwell.load(Ordering::Relaxed)
    }

    /// How long a backend is left out for its failures.
    pub fn fail_timeout(&self) -> Duration {
        self.fail_timeout
    }

    fn forgive(&self, index: usize) {
        let member = &self.members[index];
        member.record.failures.store(0, Ordering::Relaxed);
        if !member.unwell.load(Ordering::Relaxed) {
            self.marked.fetch_and(!bit(index), Ordering::Relaxed);
        }
    }

    fn all(&self) -> Set {
        self.primaries | self.backups | self.disabled
    }

    fn up(&self) -> Set {
        let marked = self.marked.load(Ordering::Relaxed);
        bits(marked).fold(self.all(), |up, index| {
            let member = &self.members[index];
            let is_out = self.max_fails > 0
                && member.record.failures.load(Ordering::Relaxed) >= self.max_fails
                || member.unwell.load(Ordering::Relaxed);
            if is_out { up & !bit(index) } else { up }
        })
    }

    /// One of `set` that was left out for long enough: this request tries it.
    fn due_for_trial(&self, set: Set, now: &Now) -> Option<usize> {
        bits(set).find(|&index| self.may_try(index, now))
    }

    /// Whether the time has come to try a backend that was left out, by one request of all threads.
    fn may_try(&self, index: usize, now: &Now) -> bool {
        let member = &self.members[index];
        let at = member.record.retry_at.load(Ordering::Relaxed);
        let next = now.millis() + millis(self.fail_timeout);
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

/// The time since the start, looked at only when it matters.
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

/// The set of one backend.
pub fn bit(index: usize) -> Set {
    1 << index
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
mod tests {
    use super::*;

    fn group(to: &str, more: &str) -> Arc<Group> {
        let text = format!(
            "[[site]]\nlisten = 8080\n[[site.route]]\n[site.route.proxy]\nto = [{to}]\n{more}\n"
        );
        let plan = forebay_conf::parse(&text, "test", std::path::Path::new("/")).unwrap();
        let conf::Action::Proxy(proxy) = &plan.sites[0].routes[0].action else { panic!() };
        Group::new(&(&*proxy.upstream).into())
    }

    fn picks(group: &Group, count: usize) -> String {
        let turns = Turns::default();
        (0..count).map(|_| letter(group.pick(None, 0, &turns))).collect()
    }

    fn letter(index: Option<usize>) -> char {
        index.map_or('-', |index| (b'a' + index as u8) as char)
    }

    const THREE: &str = r#""http://a", "http://b", "http://c""#;
    const WEIGHTED: &str = r#"
        { url = "http://a", weight = 50 },
        { url = "http://b", weight = 10 },
        { url = "http://c", weight = 10 },
    "#;
    const BACKUP: &str = r#""http://a", "http://b", { url = "http://c", backup = true }"#;

    #[test]
    fn backends_take_turns() {
        assert_eq!(picks(&group(THREE, ""), 7), "abcabca");
        assert_eq!(picks(&group(WEIGHTED, ""), 14), "aabacaaaabacaa", "as nginx does");
        assert_eq!(picks(&group(r#""http://a""#, ""), 3), "aaa");
    }

    #[test]
    fn disabled_backends_serve_who_stays_with_them_and_stopped_ones_nobody() {
        let group = group(
            r#""http://a", { url = "http://b", activation = "disabled" },
               { url = "http://c", activation = "stopped" },
               { url = "http://d", activation = "active" }"#,
            "",
        );
        let turns = Turns::default();
        assert_eq!(picks(&group, 4), "adad");
        assert_eq!(group.pick(Some(1), 0, &turns), Some(1));
        assert_ne!(group.pick(Some(2), 0, &turns), Some(2));
        assert_eq!((group.is_up(1), group.is_up(2)), (true, false));
        // Nor where all others have been tried.
        assert_eq!(group.pick(None, bit(0) | bit(3), &turns), None);
        assert!(group.failed(1));
        assert_ne!(group.pick(Some(1), 0, &turns), Some(1), "left out");
    }

    #[test]
    fn turns_are_counted_over_all_threads() {
        let group = group(THREE, "");
        let (one, other) = (Turns::default(), Turns::default());
        let picks: String = (0..6)
            .map(|n| letter(group.pick(None, 0, if n % 2 == 0 { &one } else { &other })))
            .collect();
        assert_eq!(picks, "abcabc");
    }

    #[test]
    fn who_failed_is_left_out_and_its_share_spread() {
        let group = group(THREE, "");
        assert!(group.failed(0), "one failure is enough");
        assert!(!group.failed(0), "it is out already");
        let picks = picks(&group, 10);
        assert_eq!(picks.matches('b').count(), 5, "{picks}");
        assert_eq!(picks.matches('c').count(), 5, "{picks}");
    }

    #[test]
    fn an_only_backend_is_never_left_out() {
        let group = group(r#""http://a""#, "");
        assert!(!group.failed(0));
        assert!(group.is_up(0));
        assert_eq!(picks(&group, 2), "aa");
        group.set_well(0, false);
        assert!(!group.is_up(0), "by its health check");
        assert_eq!(picks(&group, 2), "aa", "it is asked nevertheless");
    }

    #[test]
    fn one_request_tries_who_was_left_out_for_long_enough() {
        let group = group(THREE, "fail_timeout = \"1ms\"");
        group.failed(1);
        std::thread::sleep(Duration::from_millis(3));
        let turns = Turns::default();
        assert_eq!(group.pick(None, 0, &turns), Some(1));
        group.members[1].record.retry_at.store(u64::MAX / 2, Ordering::Relaxed);
        assert!(!picks(&group, 6).contains('b'), "the others wait for how that goes");
        group.succeeded(1);
        assert!(picks(&group, 6).contains('b'));
        assert_eq!(group.marked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn failures_count_only_within_their_time() {
        let group = group(THREE, "max_fails = 2\nfail_timeout = \"1h\"");
        assert!(!group.failed(0));
        group.succeeded(0);
        assert!(group.failed(0), "a success in between changes nothing");
        let group = self::group(THREE, "max_fails = 2\nfail_timeout = \"1ms\"");
        for _ in 0..3 {
            assert!(!group.failed(0), "the failure before is too long ago");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!self::group(THREE, "max_fails = 0").failed(0), "nobody counts");
    }

    #[test]
    fn backups_wait_until_all_others_are_down() {
        let group = group(BACKUP, "");
        assert_eq!(picks(&group, 4), "abab");
        group.failed(0);
        assert_eq!(picks(&group, 2), "bb");
        group.set_well(1, false);
        assert_eq!(picks(&group, 2), "cc");
        group.failed(2);
        let all = picks(&group, 4);
        assert!(all == "abab" || all == "baba", "none is up: all are tried, {all}");
        group.set_well(1, true);
        assert_eq!(picks(&group, 2), "bb");
    }

    #[test]
    fn each_is_tried_once() {
        let group = group(BACKUP, "");
        let turns = Turns::default();
        let mut tried = 0;
        let mut order = String::new();
        while let Some(index) = group.pick(None, tried, &turns) {
            tried |= bit(index);
            group.failed(index);
            order.push(letter(Some(index)));
        }
        assert_eq!(order, "abc");
    }

    #[test]
    fn least_connections_looks_at_what_is_under_way() {
        let group = group(
            r#"{ url = "http://a", weight = 2 }, "http://b""#,
            "balance = \"least-connections\"",
        );
        let turns = Turns::default();
        let mut under_way = Vec::new();
        let mut order = String::new();
        for _ in 0..6 {
            let index = group.pick(None, 0, &turns).unwrap();
            under_way.push(group.enter(index));
            order.push(letter(Some(index)));
        }
        assert_eq!(order.matches('a').count(), 4, "{order}");
        drop(under_way);
        let idle = picks(&group, 6);
        assert_eq!(idle.matches('a').count(), 4, "by turns while nobody is busy: {idle}");
        let busy = [group.enter(0), group.enter(0), group.enter(0)];
        assert_eq!(picks(&group, 3), "bbb");
        drop(busy);
    }

    #[test]
    fn who_is_wanted_is_taken_if_it_is_up() {
        let group = group(BACKUP, "");
        let turns = Turns::default();
        assert_eq!(group.pick(Some(2), 0, &turns), Some(2), "even a backup");
        assert_eq!(group.pick(Some(1), bit(1), &turns), Some(0));
        group.failed(1);
        assert_eq!(group.pick(Some(1), 0, &turns), Some(0));
    }

    #[test]
    fn many_backends_and_large_weights_are_no_trouble() {
        let to: Vec<_> =
            (0..64).map(|n| format!("{{ url = \"http://h{n}\", weight = {} }}", 256 - n)).collect();
        let group = group(&to.join(", "), "");
        let turns = Turns::default();
        let mut seen = 0;
        for _ in 0..100_000 {
            seen |= bit(group.pick(None, 0, &turns).unwrap());
        }
        assert_eq!(seen, Set::MAX);
    }
}
