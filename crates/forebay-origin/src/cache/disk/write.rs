//! Writes entries.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use rustix::fs::fstat;

use super::super::checksum::checksum;
use super::super::stored::Stored;
use super::directory::{Directory, TemporaryFile};
use super::entry::Preamble;
use super::index::{EntryFacts, EntryName, blocks};
use super::{DiskShared, add};

/// Returns a hash of a URL, which is never 0.
pub fn url_hash(url: &[u8]) -> u32 {
    let [a, b, c, d, ..] = checksum(url);
    u32::from_le_bytes([a, b, c, d]).max(1)
}

/// Returns the hashes of both URLs of a reply.
pub fn url_hashes(url: &[u8], other_url: &[u8]) -> [u32; 2] {
    [url, other_url].map(url_hash)
}

impl DiskShared {
    /// Writes a reply whose body is in memory. Does nothing if the body is not in memory.
    pub(super) fn write(
        &self,
        directory: &Directory,
        (job, name): (u64, EntryName),
        key: &[u8],
        stored: &Stored,
    ) {
        let Some(body) = stored.body.in_memory() else { return };
        let head = stored.to_entry(key).encode();
        let preamble = Preamble::of(&head, body.len() as u64, checksum(body));
        let blocks = blocks(preamble.file_length());
        if !self.reserve(directory, job, blocks) {
            return;
        }
        let written = directory.create().and_then(|mut temporary| {
            let parts = [&preamble.encode()[..], body, &head];
            match write_all(&mut temporary.file, &parts) {
                Ok(()) => Ok(temporary),
                Err(error) => {
                    directory.discard(&temporary);
                    Err(error)
                }
            }
        });
        match written {
            Ok(temporary) => {
                let urls = url_hashes(&stored.url, &stored.other_url);
                let facts = EntryFacts { blocks, urls, ..EntryFacts::default() };
                self.publish(directory, (job, name), facts, &temporary);
            }
            Err(error) => {
                self.abandon(job, blocks);
                self.report("write a reply", &error);
            }
        }
    }

    /// Reserves space for an entry, and removes the entries whose space it needs. Returns false if
    /// the entry was removed in the meantime, or if it is too large.
    pub(super) fn reserve(&self, directory: &Directory, job: u64, blocks: u32) -> bool {
        let mut state = self.lock();
        if !state.writing.contains_key(&job) {
            return false;
        }
        let Some(displaced) = state.index.reserve(blocks) else {
            state.writing.remove(&job);
            return false;
        };
        self.epoch.store(state.index.epoch(), Ordering::Relaxed);
        drop(state);
        displaced.iter().for_each(|name| directory.remove(name));
        true
    }

    /// Gives back the space of an entry that was not published.
    pub(super) fn abandon(&self, job: u64, blocks: u32) {
        let mut state = self.lock();
        state.writing.remove(&job);
        state.index.release(blocks);
    }

    /// Gives a complete file its name, unless its reply was removed in the meantime. The disk may be
    /// slow, so the file gets its name without the lock, and loses it again if a removal came.
    pub(super) fn publish(
        &self,
        directory: &Directory,
        (job, name): (u64, EntryName),
        facts: EntryFacts,
        temporary: &TemporaryFile,
    ) {
        let is_removed = !self.lock().writing.contains_key(&job);
        let outcome = if is_removed { Ok(()) } else { directory.publish(temporary, &name) };
        if is_removed || outcome.is_err() {
            self.abandon(job, facts.blocks);
            directory.discard(temporary);
            return outcome.unwrap_or_else(|error| self.report("name a file", &error));
        }
        // The rename has changed the `ctime` of the file, on which its identity depends. So compute
        // the identity only now.
        let found = (facts.verified != 0).then(|| fstat(&temporary.file).ok()).flatten();
        let verified = found.map_or(0, |found| self.identities.of(&found));
        let mut state = self.lock();
        state.index.release(facts.blocks);
        if state.writing.remove(&job).is_none() {
            // If a later reply has taken the name since, the next read finds nothing.
            drop(state);
            return directory.remove(&name);
        }
        let displaced = state.index.insert(name, EntryFacts { verified, ..facts });
        drop(state);
        if let Some(displaced) = displaced {
            directory.remove(&displaced);
        }
        add(&self.counts.written);
    }
}

fn write_all(file: &mut File, parts: &[&[u8]]) -> io::Result<()> {
    const SMALL: usize = 64 * 1024;
    if parts.iter().map(|part| part.len()).sum::<usize>() <= SMALL {
        return file.write_all(&parts.concat());
    }
    parts.iter().try_for_each(|part| file.write_all(part))
}

/// Writes the preamble of a file whose body and head are written.
pub fn write_preamble(file: &File, preamble: &Preamble) -> io::Result<()> {
    file.write_all_at(&preamble.encode(), 0)
}
