//! Finds and reads entries. A file with an error is removed, and the request goes to the origin.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use forebay_net::head::Request;
use rustix::fs::Stat;

use super::super::checksum::{Checker, Checksum, checksum};
use super::super::resource_key::{Group, Key};
use super::super::stored::{BodyFile, BodyName, Stored, StoredBody, wall_clock};
use super::super::vary::Variant;
use super::directory::Directory;
use super::entry::{EntryHead, PREAMBLE, Preamble};
use super::identity::is_settled;
use super::index::{BLOCK, EntryFacts, EntryName};
use super::write::url_hashes;
use super::{Disk, DiskPhase, DiskShared, DiskState, add};

/// Maximum length in bytes of a file that is read on the event loop. A larger file is read on a
/// thread for blocking work.
const READ_AT_ONCE: u64 = 256 * 1024;
/// Maximum number of large files that are checked at the same time.
// The limit leaves threads for other blocking work, such as checks of passwords.
pub const CHECKS: usize = 4;
/// Maximum time that a request waits for the check of a large file. Then it asks the origin.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of bytes of a body that are read at once for its checksum.
const PIECE: usize = 128 * 1024;
/// Maximum number of different `Vary` lists, such as `accept-encoding, cookie`, that get a number.
/// An entry of the index has this number in place of the list.
const MOST_LISTS: usize = 1000;

/// Content of a file.
enum EntryFile {
    Entry(Box<Stored>, EntryFacts),
    /// The file belongs to another key with the same hash.
    OtherKey,
    Broken,
}

impl Disk {
    /// Returns the newest entry for `request` that `may_use` allows.
    // After a restart, or after a change of `Vary`, several entries can match.
    pub async fn find(
        &self,
        key: &Key,
        request: &Request,
        may_use: impl Fn(&Stored) -> bool,
    ) -> Option<Stored> {
        let directory = self.shared.directory.get()?;
        let mut newest: Option<Stored> = None;
        for (name, facts) in self.candidates(key, request) {
            let stored = if u64::from(facts.blocks) * BLOCK <= READ_AT_ONCE {
                self.shared.read(directory, &name, key)
            } else {
                self.read_aside(name, facts, key).await
            };
            let is_usable = |stored: &Stored| may_use(stored) && stored.variant.matches(request);
            let is_newer = |stored: &Stored| {
                newest
                    .as_ref()
                    .is_none_or(|newest| stored.freshness.age(0) < newest.freshness.age(0))
            };
            if let Some(stored) = stored.filter(is_usable).filter(is_newer) {
                newest = Some(stored);
            }
        }
        if newest.is_some() {
            add(&self.shared.counts.hits);
        }
        newest
    }

    /// Reads an entry on a thread for blocking work. If no file of the entry was checked before,
    /// first waits for one of the [`CHECKS`] permits. Returns `None` if the entry cannot be used,
    /// or if no permit is free in time.
    pub(super) async fn read_aside(
        &self,
        name: EntryName,
        facts: EntryFacts,
        key: &[u8],
    ) -> Option<Stored> {
        let turn = if facts.verified == 0 {
            let turn = self.checks.clone().acquire_owned();
            Some(tokio::time::timeout(PATIENCE, turn).await.ok()?.ok()?)
        } else {
            None
        };
        let (shared, key) = (self.shared.clone(), key.to_vec());
        // The thread holds the permit, because the check continues even if the request ends early.
        let read = move || {
            let stored = shared.read(shared.directory.get()?, &name, &key);
            drop(turn);
            stored
        };
        tokio::task::spawn_blocking(read).await.ok()?
    }

    /// Returns `stored`, whose head is in memory, with its body opened. Returns `None` if the file
    /// with this body is no longer on disk, or if it cannot be used.
    pub async fn open_body(&self, stored: &Stored, key: &[u8]) -> Option<Stored> {
        let StoredBody::Named(body) = &stored.body else { return Some(stored.clone()) };
        let facts = self.shared.lock().index.facts(&body.name)?;
        let found = self.read_aside(body.name, facts, key).await?;
        let is_same = matches!(&found.body, StoredBody::File(file) if file.name == *body);
        is_same.then(|| Stored { body: found.body, ..stored.clone() })
    }

    /// Returns the entries of a resource that may match the request. Returns no entries if the disk
    /// cannot be used now, or if an unsafe request has outdated the resource.
    fn candidates(&self, key: &Key, request: &Request) -> Vec<(EntryName, EntryFacts)> {
        let key = key.hash();
        let state = self.shared.lock();
        if !matches!(state.phase, DiskPhase::Loading | DiskPhase::Ready) {
            return Vec::new();
        }
        // A change has outdated this group. `finish_load` removes the group at the end of the load.
        if Group::all_of(&key).iter().any(|group| state.missed.groups.contains(group)) {
            return Vec::new();
        }
        let mut found = state.index.variants(&key);
        found.retain(|(name, facts)| match (name.variant, facts.vary) {
            (0, _) | (_, 0) => true,
            (variant, list) => {
                let names = state.vary.get(usize::from(list) - 1);
                names.is_none_or(|names| {
                    Variant::hash_for(names.iter().map(|name| &**name), request) == variant
                })
            }
        });
        found
    }
}

impl DiskState {
    /// Returns the number of a list of names in `Vary`. The number is 0 for an empty list, and for
    /// new lists if the table is full.
    fn number_of_list(&mut self, variant: &Variant) -> u16 {
        if variant.names().next().is_none() {
            return 0;
        }
        let is_same = |list: &Arc<[String]>| list.iter().map(|name| &**name).eq(variant.names());
        let at = self.vary.iter().position(is_same).or_else(|| {
            let is_full = self.vary.len() == MOST_LISTS;
            let list = variant.names().map(str::to_owned).collect();
            (!is_full).then(|| self.vary.push(list))?;
            Some(self.vary.len() - 1)
        });
        at.and_then(|at| u16::try_from(at + 1).ok()).unwrap_or(0)
    }
}

impl DiskShared {
    /// Reads an entry. Returns `None` if the entry cannot be used. Removes an entry whose file has
    /// an error.
    pub(super) fn read(
        &self,
        directory: &Directory,
        name: &EntryName,
        key: &[u8],
    ) -> Option<Stored> {
        let facts = self.lock().index.facts(name).unwrap_or_default();
        match self.try_read(directory, name, key, &facts) {
            Ok(EntryFile::Entry(stored, found)) => {
                let mut state = self.lock();
                let vary = state.number_of_list(&stored.variant);
                state.index.update(name, |known| {
                    // If the facts differ, a new reply has got this name since the read, so keep
                    // its facts.
                    if *known == facts {
                        *known = EntryFacts { vary, ..found };
                    }
                });
                Some(*stored)
            }
            Ok(EntryFile::OtherKey) => None,
            Ok(EntryFile::Broken) => {
                self.remove_broken(directory, name);
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut state = self.lock();
                // If there is a file now, a new reply has got this name since the read. Its entry
                // stays in the index.
                if directory.length(name).is_none() {
                    state.index.remove(name);
                }
                None
            }
            Err(error) => {
                self.report("read a reply", &error);
                None
            }
        }
    }

    /// Removes an entry whose file has an error, and counts the error.
    pub(super) fn remove_broken(&self, directory: &Directory, name: &EntryName) {
        add(&self.counts.broken);
        self.lock().index.remove(name);
        directory.remove(name);
    }

    fn try_read(
        &self,
        directory: &Directory,
        name: &EntryName,
        key: &[u8],
        facts: &EntryFacts,
    ) -> io::Result<EntryFile> {
        let Some((file, found)) = open(directory, name, false)? else {
            return Ok(EntryFile::Broken);
        };
        let identity = self.identities.of(&found);
        let is_checked = facts.verified == identity;
        let Some(content) = self.content(file, &found, is_checked)? else {
            return Ok(EntryFile::Broken);
        };
        let Content { head, is_expired, body } = content;
        if head.key != key {
            return Ok(EntryFile::OtherKey);
        }
        let now = wall_clock();
        let is_known = is_checked && facts.urls[0] != 0;
        let urls = if is_known { facts.urls } else { url_hashes(&head.url, &head.other_url) };
        // Remember that the checksum of a large file was right, even if the file could still change
        // (`is_settled` is false), because a second comparison would take long.
        let is_large = matches!(body, ContentBody::File(..));
        let counts = is_checked || is_large || is_settled(&found, now);
        let verified = if counts { identity } else { 0 };
        let facts = EntryFacts { urls, verified, ..*facts };
        let body = match body {
            ContentBody::Memory(body) => StoredBody::Memory(Arc::new(body)),
            ContentBody::File(file, length, sum) => {
                let name = BodyName { name: *name, sum, length };
                StoredBody::File(Arc::new(BodyFile { file, offset: PREAMBLE as u64, name }))
            }
        };
        let stored = Stored::of_entry(head, is_expired, body, now);
        Ok(EntryFile::Entry(Box::new(stored), facts))
    }

    /// Returns the content of a file; `None` if the file is too short or a checksum is wrong. If
    /// `is_checked` is true, the file has not changed since its checksums were compared. Compares
    /// no checksum of such a file, except that of the head of a large file.
    fn content(&self, file: File, found: &Stat, is_checked: bool) -> io::Result<Option<Content>> {
        let length = u64::try_from(found.st_size).unwrap_or(0);
        let is_small = length <= self.in_memory;
        let at_first = if is_small { length } else { PREAMBLE as u64 };
        let mut bytes = vec![0; usize::try_from(at_first).unwrap_or(usize::MAX)];
        if !is_whole(file.read_exact_at(&mut bytes, 0))? {
            return Ok(None);
        }
        let Some(preamble) = Preamble::decode(&bytes, length) else { return Ok(None) };
        let is_expired = preamble.is_expired;
        if is_small {
            let head_at = usize::try_from(preamble.body).unwrap_or(usize::MAX) + PREAMBLE;
            let (body, head) = (&bytes[PREAMBLE..head_at], &bytes[head_at..]);
            let is_right =
                is_checked || preamble.matches(head) && checksum(body) == preamble.body_sum;
            let head = EntryHead::decode(head).filter(|_| is_right);
            bytes.truncate(head_at);
            bytes.drain(..PREAMBLE);
            bytes.shrink_to_fit();
            let body = ContentBody::Memory(bytes);
            return Ok(head.map(|head| Content { head, is_expired, body }));
        }
        let Some(head) = read_head(&file, &preamble)? else { return Ok(None) };
        if !is_checked && body_sum(&file, preamble.body)? != Some(preamble.body_sum) {
            return Ok(None);
        }
        let body = ContentBody::File(file, preamble.body, preamble.body_sum);
        Ok(Some(Content { head, is_expired, body }))
    }
}

struct Content {
    head: EntryHead,
    is_expired: bool,
    body: ContentBody,
}

enum ContentBody {
    Memory(Vec<u8>),
    File(File, u64, Checksum),
}

/// Opens the file of an entry. Returns `None` if the file is a link or not a regular file.
pub fn open(
    directory: &Directory,
    name: &EntryName,
    is_writable: bool,
) -> io::Result<Option<(File, Stat)>> {
    match directory.open(name, is_writable) {
        Ok(opened) => Ok(Some(opened)),
        Err(error)
            if error.kind() == io::ErrorKind::InvalidData
                || error.raw_os_error().is_some_and(is_of_other_kind) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns true if the number is an error of `open` for a symbolic link, a socket or a directory.
fn is_of_other_kind(error: i32) -> bool {
    use rustix::io::Errno;
    [Errno::LOOP, Errno::NXIO, Errno::ISDIR].map(Errno::raw_os_error).contains(&error)
}

/// Reads the head of an entry. Returns `None` if the file is too short, or if the head's checksum
/// or format is wrong.
pub fn read_head(file: &File, preamble: &Preamble) -> io::Result<Option<EntryHead>> {
    let mut head = vec![0; usize::try_from(preamble.head).unwrap_or(usize::MAX)];
    if !is_whole(file.read_exact_at(&mut head, PREAMBLE as u64 + preamble.body))? {
        return Ok(None);
    }
    Ok(preamble.matches(&head).then(|| EntryHead::decode(&head)).flatten())
}

/// Returns the checksum of a body of this length; `None` if the file is shorter.
fn body_sum(file: &File, length: u64) -> io::Result<Option<Checksum>> {
    let mut piece = vec![0; PIECE];
    let (mut checker, mut done) = (Checker::default(), 0);
    while done < length {
        let wanted = PIECE.min(usize::try_from(length - done).unwrap_or(PIECE));
        if !is_whole(file.read_exact_at(&mut piece[..wanted], PREAMBLE as u64 + done))? {
            return Ok(None);
        }
        checker.update(&piece[..wanted]);
        done += wanted as u64;
    }
    Ok(Some(checker.finish()))
}

/// Returns false if the file is shorter than the bytes to read.
fn is_whole(read: io::Result<()>) -> io::Result<bool> {
    match read {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
