//! Which workers are replaced, though nothing is wrong with them: those that are too old or too
//! large, and those that run by files that have changed.

use super::{LOOK_INTERVAL, Supervisor};
use crate::worker::{WorkerShared, WorkerState};
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
            self.replace_over_memory();
            if self.changes.look() {
                self.outdate("files have changed");
            }
        }
        self.replace_outdated();
    }

    /// The configuration was read again.
    pub(super) fn look_after_reload(&mut self) {
        if self.closing.is_none() && self.at_reload.look_once() {
            self.outdate("files have changed");
        }
    }

    pub(super) fn outdate(&mut self, why: &str) {
        self.starts.log(&format!("{why}: its workers are replaced"));
        self.outdated = self.entries.keys().copied().collect();
    }

    fn replace_outdated(&mut self) {
        let is_under_way = self
            .entries
            .values()
            .any(|entry| entry.replaces.is_some() && entry.shared.state() == WorkerState::Starting);
        if is_under_way || self.starts.are_paused() {
            return;
        }
        while let Some(&id) = self.outdated.front() {
            let entry = self.entries.get(&id);
            match entry.filter(|entry| !entry.shared.retired.load(Ordering::Relaxed)) {
                None => drop(self.outdated.pop_front()),
                Some(entry) => {
                    if !entry.shared.replacing.swap(true, Ordering::Relaxed) {
                        self.replace(id);
                    }
                    return;
                }
            }
        }
    }

    fn replace_old(&mut self, now: Instant) {
        let old: Vec<Arc<WorkerShared>> = self
            .entries
            .values()
            .filter(|entry| entry.replace_at.is_some_and(|at| at <= now))
            .map(|entry| entry.shared.clone())
            .collect();
        self.replace_each(old, "");
    }

    fn replace_over_memory(&mut self) {
        let Some(limit) = self.spec.max_memory else { return };
        let shared = self.entries.values().map(|entry| &entry.shared);
        let over_memory: Vec<Arc<WorkerShared>> = shared
            .filter(|shared| !shared.replacing.load(Ordering::Relaxed) && shared.rss() > limit)
            .cloned()
            .collect();
        self.replace_each(over_memory, "uses too much memory");
    }

    fn replace_each(&mut self, workers: Vec<Arc<WorkerShared>>, why: &str) {
        for shared in workers {
            if matches!(shared.state(), WorkerState::Idle | WorkerState::Busy)
                && !shared.replacing.swap(true, Ordering::Relaxed)
            {
                if !why.is_empty() {
                    self.starts.log(&format!("worker {} {why}", shared.pid.as_raw_nonzero()));
                }
                self.replace(shared.id);
            }
        }
    }
}
