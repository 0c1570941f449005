//! Which processes are replaced or ended, though nothing is wrong with them.

use super::{Ending, Supervisor};
use crate::program::instance_pool::{Snapshot, Stage};
use std::sync::atomic::Ordering;
use tokio::time::Instant;

impl Supervisor {
    /// Starts the process that takes the place of `id`, unless starts fail at present.
    pub(super) fn replace(&mut self, id: u64) {
        let may = !self.starts.are_paused() && self.closing.is_none();
        let Some(entry) = self.entries.get_mut(&id).filter(|_| may) else { return };
        if matches!(entry.ending, Ending::No) && !entry.is_being_replaced {
            entry.is_being_replaced = true;
            self.start_process(Some(id));
        }
    }

    pub(super) fn end_idle(&mut self, snapshots: &[Snapshot], now: Instant) {
        let mut idle: Vec<&Snapshot> = snapshots
            .iter()
            .filter(|snapshot| snapshot.stage == Stage::Serving && snapshot.under_way == 0)
            .filter(|snapshot| snapshot.idle_since + self.spec.idle_timeout <= now)
            .collect();
        idle.sort_by_key(|snapshot| snapshot.idle_since);
        for snapshot in idle {
            if self.live() <= self.spec.workers.min || self.pool.waiting() > 0 {
                return;
            }
            self.retire(snapshot.instance.id, now + self.spec.drain_timeout);
        }
    }

    /// Replaces what is too old, too large or outdated.
    pub(super) fn look_closely(&mut self, snapshots: &[Snapshot], now: Instant) {
        for snapshot in snapshots.iter().filter(|snapshot| snapshot.stage == Stage::Serving) {
            let (id, instance) = (snapshot.instance.id, &snapshot.instance);
            let is_old = instance.replace_at.is_some_and(|at| at <= now);
            let is_over_memory = self.spec.max_memory.is_some_and(|most| instance.memory() > most);
            let is_used_up = instance.requests.load(Ordering::Relaxed) >= instance.limit;
            let is_news = self.entries.get(&id).is_some_and(|entry| !entry.is_being_replaced);
            if is_over_memory && is_news {
                let pid = instance.life.pid();
                self.starts.log(&format!("process {pid} uses too much memory"));
            }
            if is_old || is_over_memory || is_used_up {
                self.replace(id);
            }
        }
        if self.changes.look() {
            self.outdate("files have changed");
        }
    }

    /// Has all processes replaced.
    pub(super) fn outdate(&mut self, why: &str) {
        self.starts.log(&format!("{why}: its processes are replaced"));
        self.outdated = self.pool.snapshot().iter().map(|snapshot| snapshot.instance.id).collect();
    }

    /// Replaces the next process that runs by old files, when the one before is done.
    pub(super) fn replace_outdated(&mut self) {
        while let Some(&id) = self.outdated.front() {
            match self.entries.get(&id) {
                Some(entry) if matches!(entry.ending, Ending::No) => {
                    let is_starting = self
                        .snapshot_of(id)
                        .is_some_and(|snapshot| snapshot.stage == Stage::Starting);
                    if entry.is_being_replaced || is_starting || self.starts.are_paused() {
                        return;
                    }
                    self.replace(id);
                    return;
                }
                _ => drop(self.outdated.pop_front()),
            }
        }
    }
}
