//! Purges entries: reads the head of each file that the purge may include.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::FileExt;

use forebay_admin::Purged;

use super::super::purging::{PurgedReply, Purging};
use super::directory::Directory;
use super::entry::{EXPIRED, EntryHead, MARK_AT, PREAMBLE, Preamble};
use super::index::EntryName;
use super::read::{open, read_head};
use super::write::{url_hash, url_hashes};
use super::{Disk, DiskPhase, DiskShared};

impl Disk {
    /// Purges entries, including those that the index does not list yet. Returns the number of
    /// purged entries, without those in `counted`. Waits until the changes are on disk, so a power
    /// failure does not undo them. While another process uses the directory, notes the purge for
    /// later, and returns 0.
    pub fn purge(&self, purge: &Purging, counted: &HashSet<EntryName>) -> usize {
        let mut state = self.shared.lock();
        if state.phase == DiskPhase::Waiting {
            state.missed.is_all |= state.missed.purges.len() >= 1000;
            state.missed.purges.push(purge.clone());
            return 0;
        }
        state.writing.clear();
        drop(state);
        let Some(directory) = self.shared.directory.get() else { return 0 };
        let count = self.shared.walk(directory, purge, counted);
        if let Err(error) = directory.sync() {
            self.shared.report("write a purge to the disk", &error);
        }
        count
    }
}

impl DiskShared {
    pub(super) fn walk(
        &self,
        directory: &Directory,
        purge: &Purging,
        counted: &HashSet<EntryName>,
    ) -> usize {
        let mut count = 0;
        let urls: Option<Vec<_>> =
            purge.only_urls().map(|urls| urls.iter().map(|url| url_hash(url)).collect());
        for part in directory.entries() {
            let names = match part {
                Ok((names, _)) => names,
                Err(error) => {
                    self.report("list files", &error);
                    continue;
                }
            };
            for name in names {
                let known = self.lock().index.facts(&name).map_or([0; 2], |facts| facts.urls);
                let is_other = urls.as_ref().is_some_and(|urls| {
                    known[0] != 0 && !known.iter().any(|known| urls.contains(known))
                });
                if !is_other && self.purge_entry(directory, purge, &name) {
                    count += usize::from(!counted.contains(&name));
                }
            }
        }
        count
    }

    /// Purges an entry and returns true, if `purge` includes the entry. Otherwise returns false. If
    /// the entry cannot be read, removes it and returns false.
    fn purge_entry(&self, directory: &Directory, purge: &Purging, name: &EntryName) -> bool {
        if purge.purge.what == Purged::All && !purge.purge.is_soft {
            self.remove(directory, name);
            return true;
        }
        match self.purge_file(directory, purge, name) {
            Ok(outcome) => outcome,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => {
                // The purge may include the entry, so the entry must not be used any more.
                self.remove(directory, name);
                self.report("purge a reply", &error);
                false
            }
        }
    }

    fn purge_file(
        &self,
        directory: &Directory,
        purge: &Purging,
        name: &EntryName,
    ) -> io::Result<bool> {
        let Some((file, found)) = open(directory, name, purge.purge.is_soft)? else {
            self.remove_broken(directory, name);
            return Ok(false);
        };
        let mut bytes = [0; PREAMBLE];
        let length = u64::try_from(found.st_size).unwrap_or(0);
        let is_read = length >= PREAMBLE as u64;
        if is_read {
            file.read_exact_at(&mut bytes, 0)?;
        }
        let preamble = Preamble::decode(&bytes, length);
        let head = preamble.map_or(Ok(None), |preamble| read_head(&file, &preamble))?;
        let Some(EntryHead { key, url, other_url, lines, .. }) = head else {
            self.remove_broken(directory, name);
            return Ok(false);
        };
        {
            let mut state = self.lock();
            if let Some(mut facts) = state.index.facts(name) {
                facts.urls = url_hashes(&url, &other_url);
                state.index.learn(name, facts);
            }
        }
        let reply = PurgedReply { key: &key, url: &url, other_url: &other_url, lines: &lines };
        if !purge.includes(&reply) {
            return Ok(false);
        }
        if purge.purge.is_soft {
            file.write_all_at(&[EXPIRED], MARK_AT)?;
        } else {
            self.remove(directory, name);
        }
        Ok(true)
    }

    fn remove(&self, directory: &Directory, name: &EntryName) {
        let mut state = self.lock();
        state.index.remove(name);
        directory.remove(name);
    }
}
