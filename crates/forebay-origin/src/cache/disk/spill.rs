//! Writes a large reply to disk while it arrives.

use std::io::{self, Write};
use std::sync::Arc;

use super::super::checksum::Checker;
use super::super::resource_key::{Key, KeyHash};
use super::super::stored::Stored;
use super::super::vary::Variant;
use super::directory::TemporaryFile;
use super::entry::{PREAMBLE, Preamble};
use super::index::{EntryFacts, EntryName, blocks};
use super::write::{url_hashes, write_preamble};
use super::{Disk, DiskPhase, DiskShared};

/// Maximum number of blocks that an arriving body reserves ahead.
const STEP: u32 = 256;

/// A reply that is being written. If it is dropped before [`Spill::finish`], nothing remains.
pub struct Spill {
    shared: Arc<DiskShared>,
    temporary: TemporaryFile,
    job: u64,
    checker: Checker,
    length: u64,
    most: u64,
    reserved: u32,
    is_published: bool,
}

impl Disk {
    /// Returns true if the disk can be used now.
    pub fn is_ready(&self) -> bool {
        matches!(self.shared.lock().phase, DiskPhase::Loading | DiskPhase::Ready)
    }

    /// Begins to write a reply with a body of at most `most` bytes. The variant is not known yet.
    /// Returns `None` if the disk cannot be used now, or if the file cannot be created or written.
    pub fn spill(&self, key: KeyHash, most: u64) -> Option<Spill> {
        let directory = self.shared.directory.get()?;
        let job = self.shared.begin_job(EntryName { key, variant: 0 })?;
        let mut temporary = match directory.create() {
            Ok(temporary) => temporary,
            Err(error) => {
                self.shared.abandon(job, 0);
                self.shared.report("create a file", &error);
                return None;
            }
        };
        // Leave space for the preamble, which is written last.
        let is_begun = temporary.file.write_all(&[0; PREAMBLE]);
        let spill = Spill {
            shared: self.shared.clone(),
            temporary,
            job,
            checker: Checker::default(),
            length: 0,
            most: most.min(self.most()),
            reserved: 0,
            is_published: false,
        };
        match is_begun {
            Ok(()) => Some(spill),
            Err(error) => {
                self.shared.report("write a reply", &error);
                None
            }
        }
    }
}

impl Spill {
    /// Appends bytes of the body. Returns false if the bytes cannot be stored, for example because
    /// the body is too large.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let length = self.length + bytes.len() as u64;
        if length > self.most || !self.reserve(length) {
            return false;
        }
        if let Err(error) = self.temporary.file.write_all(bytes) {
            self.shared.report("write a reply", &error);
            return false;
        }
        self.checker.update(bytes);
        self.length = length;
        true
    }

    /// Sets the variant, which is known only after the head has arrived. A later removal of an
    /// entry with another variant then does not discard this reply.
    pub fn set_variant(&self, variant: &Variant) {
        if let Some(name) = self.shared.lock().writing.get_mut(&self.job) {
            name.variant = variant.hash();
        }
    }

    /// Completes the reply. `stored` has everything except the body.
    pub fn finish(mut self, key: &Key, stored: &Stored) {
        if let Err(error) = self.complete(key, stored) {
            self.shared.report("write a reply", &error);
        }
    }

    fn complete(&mut self, key: &Key, stored: &Stored) -> io::Result<()> {
        let shared = self.shared.clone();
        let head = stored.to_entry(key).encode();
        let sum = std::mem::take(&mut self.checker).finish();
        let preamble = Preamble::of(&head, self.length, sum);
        let size = blocks(preamble.file_length());
        let Some(directory) = shared.directory.get() else { return Ok(()) };
        if size > self.reserved && !self.reserve_blocks(size - self.reserved) {
            return Ok(());
        }
        self.temporary.file.write_all(&head)?;
        write_preamble(&self.temporary.file, &preamble)?;
        let name = EntryName { key: key.hash(), variant: stored.variant.hash() };
        shared.lock().index.release(self.reserved - size);
        self.is_published = true;
        // The checksum was computed from the bytes that were written, so the next read need not
        // check it.
        let urls = url_hashes(&stored.url, &stored.other_url);
        let facts = EntryFacts { urls, verified: 1, blocks: size, ..EntryFacts::default() };
        shared.publish(directory, (self.job, name), facts, &self.temporary);
        Ok(())
    }

    fn reserve(&mut self, length: u64) -> bool {
        let wanted = blocks(PREAMBLE as u64 + length);
        // A whole `STEP` could displace all entries of a small store, so limit the step to 1/64 of
        // the store.
        let step = STEP.min(blocks(self.shared.capacity) / 64);
        wanted <= self.reserved || self.reserve_blocks((wanted - self.reserved).max(step))
    }

    fn reserve_blocks(&mut self, blocks: u32) -> bool {
        let Some(directory) = self.shared.directory.get() else { return false };
        if !self.shared.reserve(directory, self.job, blocks) {
            return false;
        }
        self.reserved += blocks;
        true
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        self.shared.abandon(self.job, self.reserved);
        if let Some(directory) = self.shared.directory.get() {
            directory.discard(&self.temporary);
        }
    }
}
