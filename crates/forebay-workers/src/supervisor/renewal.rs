//! Ends idle processes, and replaces processes that have reached a limit (requests, age, memory,
//! CPU time) or whose files have changed. None of them has failed.

use super::{LOOK_INTERVAL, ProcessEntry, ProcessKind, Stage, Supervisor};
use tokio::time::Instant;

impl<K: ProcessKind> Supervisor<K> {
    /// Starts a replacement of process `id`. Does nothing during the pause after a failed start,
    /// during the shutdown, or if the process is ending or is already being replaced.
    pub(super) fn replace(&mut self, id: u64) {
        let may = !self.starts.are_paused() && self.closing.is_none();
        let Some(entry) = self.entries.get_mut(&id).filter(|_| may) else { return };
        if entry.stays() && !entry.is_being_replaced {
            entry.is_being_replaced = true;
            self.start_process(Some(id));
        }
    }

    /// Ends processes that have been idle for too long, the longest idle one first. The minimum
    /// number of processes stays.
    pub(super) fn end_idle(&mut self, now: Instant) {
        let rules = self.kind.rules();
        let (min, limit) = (rules.workers.min, rules.idle_timeout);
        let is_over = |entry: &&ProcessEntry<K::Process>| {
            entry.is_idle() && entry.seen.idle_since + limit <= now
        };
        let idle = self.entries.values().filter(is_over);
        let mut idle: Vec<_> = idle.map(|entry| (entry.seen.idle_since, entry.seen.id)).collect();
        idle.sort();
        let surplus = self.live().saturating_sub(min);
        for (_, id) in idle.into_iter().take(surplus) {
            self.retire(id);
        }
    }

    /// Returns true if processes or files have to be checked regularly.
    pub(super) fn needs_looks(&self) -> bool {
        let rules = self.kind.rules();
        let is_used_up = rules.max_requests.is_some() || rules.max_age.is_some();
        let has_excess = rules.max_memory.is_some() || rules.max_cpu.is_some();
        is_used_up || has_excess || !rules.watch.is_empty()
    }

    /// Replaces processes that have reached a limit, and processes with old files. Processes with
    /// old files are replaced one by one.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.needs_looks() && now >= self.looked + LOOK_INTERVAL {
            self.looked = now;
            let serving = self.entries.values().filter(|entry| entry.seen.stage == Stage::Serving);
            let serving: Vec<u64> = serving.map(|entry| entry.seen.id).collect();
            for id in serving {
                self.look_at(id, now);
            }
            if self.changes.look() {
                self.outdate(&self.changes.in_words());
            }
        }
        self.replace_outdated();
    }

    /// Replaces the process if it has reached a limit of requests, age, memory or CPU time.
    fn look_at(&mut self, id: u64, now: Instant) {
        let Some(entry) = self.entries.get(&id).filter(|entry| !entry.is_being_replaced) else {
            return;
        };
        let excess = self.excess(entry);
        if let Some(what) = excess {
            let (noun, pid) = (K::NOUN.0, self.kind.pid(&entry.process));
            self.starts.log(&format!("{noun} {pid} {what}"));
        }
        let is_old = entry.replace_at.is_some_and(|at| at <= now);
        if is_old || excess.is_some() || entry.seen.requests >= entry.limit {
            self.replace(id);
        }
    }

    /// Returns the limit that a process exceeds, as words for the log. Returns `None` if the
    /// process exceeds no limit of memory or CPU time.
    fn excess(&self, entry: &ProcessEntry<K::Process>) -> Option<&'static str> {
        let max_memory = self.kind.rules().max_memory;
        if max_memory.is_none() && entry.max_cpu.is_none() {
            return None;
        }
        let usage = self.kind.usage(&entry.process);
        if max_memory.is_some_and(|most| usage.rss > most) {
            Some("uses too much memory")
        } else if entry.max_cpu.is_some_and(|most| usage.cpu > most) {
            Some("has used its CPU time")
        } else {
            None
        }
    }

    /// Replaces all processes if files have changed. Called after a reload of the configuration.
    pub(super) fn look_after_reload(&mut self) {
        if self.closing.is_none() && self.at_reload.look_once() {
            self.outdate(&self.at_reload.in_words());
        }
    }

    /// Lets [`renew`](Self::renew) replace all processes, one after the other. Logs the reason
    /// `why`.
    pub(super) fn outdate(&mut self, why: &str) {
        self.starts.log(&format!("{why}: its {} are replaced", K::NOUN.1));
        self.outdated = self.entries.keys().copied().collect();
    }

    /// Replaces the next process that has old files, after the previous replacement is complete.
    fn replace_outdated(&mut self) {
        while let Some(&id) = self.outdated.front() {
            match self.entries.get(&id).filter(|entry| entry.stays()) {
                None => drop(self.outdated.pop_front()),
                Some(entry) if entry.is_being_replaced => return,
                // This process may have read the old files. Replace the process after it is ready.
                Some(entry) if entry.seen.stage == Stage::Starting => return,
                Some(_) => return self.replace(id),
            }
        }
    }
}
