//! Which workers are replaced, though nothing is wrong with them: those that are too old or too
//! large, and those that run by files that have changed.

use super::{LOOK_INTERVAL, Supervisor};
use crate::worker::{Facts, WorkerState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

impl Supervisor {
    /// Whether there is something to look at from time to time.
    pub(super) fn needs_looks(&self) -> bool {
        let spec = &self.spec;
        spec.max_memory.is_some() || spec.max_age.is_some() || !spec.watch.is_empty()
    }

    /// Replaces workers, those with old files one after the other.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.needs_looks() && now >= self.looked + LOOK_INTERVAL {
            self.looked = now;
            self.replace_old(now);
            self.replace_fat();
            if self.changes.look() {
                self.outdate("files have changed");
            }
        }
        self.replace_outdated();
    }

    /// The configuration was read again.
    pub(super) fn note_reload(&mut self) {
        if self.closing.is_none() && self.at_reload.look_once() {
            self.outdate("files have changed");
        }
    }

    pub(super) fn outdate(&mut self, why: &str) {
        self.starts.say(&format!("{why}: its workers are replaced"));
        self.outdated = self.entries.keys().copied().collect();
    }

    fn replace_outdated(&mut self) {
        let is_under_way = self
            .entries
            .values()
            .any(|entry| entry.replaces.is_some() && entry.facts.state() == WorkerState::Starting);
        if is_under_way || self.starts.are_paused() {
            return;
        }
        while let Some(&id) = self.outdated.front() {
            let entry = self.entries.get(&id);
            match entry.filter(|entry| !entry.facts.retired.load(Ordering::Relaxed)) {
                None => drop(self.outdated.pop_front()),
                Some(entry) => {
                    if !entry.facts.replacing.swap(true, Ordering::Relaxed) {
                        self.replace(id);
                    }
                    return;
                }
            }
        }
    }

    fn replace_old(&mut self, now: Instant) {
        let old: Vec<Arc<Facts>> = self
            .entries
            .values()
            .filter(|entry| entry.replace_at.is_some_and(|at| at <= now))
            .map(|entry| entry.facts.clone())
            .collect();
        self.replace_each(old, "");
    }

    fn replace_fat(&mut self) {
        let Some(limit) = self.spec.max_memory else { return };
        let facts = self.entries.values().map(|entry| &entry.facts);
        let fat: Vec<Arc<Facts>> = facts
            .filter(|facts| !facts.replacing.load(Ordering::Relaxed) && facts.rss() > limit)
            .cloned()
            .collect();
        self.replace_each(fat, "uses too much memory");
    }

    fn replace_each(&mut self, workers: Vec<Arc<Facts>>, why: &str) {
        for facts in workers {
            if matches!(facts.state(), WorkerState::Idle | WorkerState::Busy)
                && !facts.replacing.swap(true, Ordering::Relaxed)
            {
                if !why.is_empty() {
                    self.starts.say(&format!("worker {} {why}", facts.pid.as_raw_nonzero()));
                }
                self.replace(facts.id);
            }
        }
    }
}
