//! Stored replies on disk, the level below the memory.
//!
//! Each reply is one file (`disk/entry.rs`). Its name has the hashes of key and variant, so a
//! restart needs only the names in the directory. A file gets its name after it is complete, by
//! `rename`. Forebay does not wait until a file has reached the disk: after a power failure,
//! checksums find incomplete files. Each read compares the key. Forebay compares the checksums
//! after a restart, and after each change of the file (`disk/identity.rs`).
//!
//! A separate thread loads the index and writes small replies. The event loops read small files.
//! Threads for blocking work read and check large ones. One lock orders the publication of files
//! and their removal, so a reply that is removed while it is written does not return.
//!
//! Only one process at a time uses a directory. While a process waits for the lock, it only notes
//! removals. The process makes these removals before it uses the first entry.

mod directory;
mod doorkeeper;
pub mod entry;
mod identity;
pub mod index;
mod purge;
mod read;
mod spill;
mod write;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_admin::DiskRow;
use forebay_net::log::ErrorLog;

use super::purging::Purging;
use super::resource_key::{ChangedKeys, Group, Key, KeyHash};
use super::stored::Stored;
pub use directory::examine;
use directory::{Directory, UnlockedDirectory};
use doorkeeper::Doorkeeper;
use identity::Identities;
use index::{EntryFacts, EntryName, FIRST_EPOCH, Index, blocks};
use read::CHECKS;
pub use spill::Spill;
use tokio::sync::Semaphore;

/// Maximum number of replies that wait for the writing thread.
const QUEUE: usize = 256;
/// The total size in bytes of all replies that wait for the writing thread is at most this multiple
/// of `in_memory`.
const QUEUED: u64 = 4;
/// Time between two attempts to lock the directory.
const LOCK_AGAIN: Duration = Duration::from_millis(250);
/// Time between two log lines about errors of the disk.
const REPORT_AGAIN: Duration = Duration::from_secs(600);
/// A reply may have at most the size of the disk store, divided by this number.
const SHARE: u64 = 8;
/// Maximum number of changes that are noted while another process uses the directory.
const MOST_MISSED: usize = 100_000;

/// The store on disk.
pub struct Disk {
    shared: Arc<DiskShared>,
    jobs: SyncSender<Job>,
    /// Permits to check the bodies of large files.
    checks: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State of the store on disk that the event loops share with the writing thread.
struct DiskShared {
    path: PathBuf,
    capacity: u64,
    /// Maximum size in bytes of a body that is read into memory.
    in_memory: u64,
    directory: OnceLock<Directory>,
    state: Mutex<DiskState>,
    door: Doorkeeper,
    identities: Identities,
    /// Bytes of replies that wait for the writing thread.
    queued: AtomicU64,
    /// Epoch of the index.
    epoch: AtomicU32,
    counts: DiskCounts,
    errors: ErrorLog,
}

#[derive(Default)]
struct DiskState {
    phase: DiskPhase,
    index: Index,
    /// Entries that are being written, by the number of the job. A removal of an entry also removes
    /// it here, so that its file is not published.
    writing: HashMap<u64, EntryName>,
    next_job: u64,
    missed: Missed,
    /// Lists of names in `Vary`.
    vary: Vec<Arc<[String]>>,
    reported: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DiskPhase {
    /// Another process uses the directory.
    #[default]
    Waiting,
    Loading,
    Ready,
    Failed,
}

/// Removals that wait until the index is loaded. During [`DiskPhase::Waiting`], all removals wait.
/// During [`DiskPhase::Loading`], only removals of groups wait, and others are made at once. If a
/// list becomes too long, `is_all` becomes true. The load then removes all files that the index
/// does not list yet.
#[derive(Debug, Default)]
struct Missed {
    keys: HashSet<KeyHash>,
    groups: BTreeSet<Group>,
    purges: Vec<Purging>,
    is_all: bool,
}

#[derive(Debug, Default)]
struct DiskCounts {
    hits: AtomicU64,
    written: AtomicU64,
    skipped: AtomicU64,
    broken: AtomicU64,
    errors: AtomicU64,
}

enum Job {
    Write {
        job: u64,
        name: EntryName,
        key: Key,
        stored: Arc<Stored>,
    },
    /// Deletes a file that [`Directory::hide`] has renamed to this name.
    Delete(String),
    End,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Disk {
    /// Opens the directory, and starts a thread that loads the index and writes replies. Bodies of
    /// at most `in_memory` bytes are read into memory. An error says why the directory cannot be
    /// used.
    pub fn open(
        path: &Path,
        capacity: u64,
        in_memory: u64,
        errors: &ErrorLog,
    ) -> Result<Arc<Self>, String> {
        let unlocked = UnlockedDirectory::open(path)?;
        let shared = Arc::new(DiskShared {
            path: path.to_owned(),
            capacity,
            in_memory,
            directory: OnceLock::new(),
            state: Mutex::new(DiskState { index: Index::new(capacity), ..DiskState::default() }),
            door: Doorkeeper::new(capacity),
            identities: Identities::default(),
            queued: AtomicU64::new(0),
            epoch: AtomicU32::new(FIRST_EPOCH),
            counts: DiskCounts::default(),
            errors: errors.clone(),
        });
        let (jobs, queue) = sync_channel(QUEUE);
        let worker = shared.clone();
        let thread = std::thread::Builder::new()
            .name("cache-disk".to_owned())
            .spawn(move || worker.run(unlocked, &queue))
            .map_err(|error| format!("cannot start the thread of the cache: {error}"))?;
        let checks = Arc::new(Semaphore::new(CHECKS));
        Ok(Arc::new(Self { shared, jobs, checks, thread: Mutex::new(Some(thread)) }))
    }

    /// Returns true if this store has the same settings.
    pub fn is_at(&self, path: &Path, capacity: u64, in_memory: u64) -> bool {
        let shared = &self.shared;
        shared.path == path && shared.capacity == capacity && shared.in_memory == in_memory
    }

    /// Returns the maximum size of a body in bytes.
    pub fn most(&self) -> u64 {
        self.shared.capacity / SHARE
    }

    /// Returns the maximum size in bytes of a body that is read into memory.
    pub fn in_memory(&self) -> u64 {
        self.shared.in_memory
    }

    /// Records a request for a reply that could be stored. Returns true if a recent request was for
    /// the same resource, so that the reply is worth a place on disk.
    pub fn admits(&self, key: &KeyHash) -> bool {
        self.shared.door.is_known(key)
    }

    /// Returns the current epoch: see `Index::epoch`.
    pub fn epoch(&self) -> u32 {
        self.shared.epoch.load(Ordering::Relaxed)
    }

    /// Marks the entry of a reply as used. Returns false if the disk has no such entry.
    pub fn touch(&self, key: &Key, stored: &Stored) -> bool {
        let name = EntryName { key: key.hash(), variant: stored.variant.hash() };
        let mut state = self.shared.lock();
        let has_entry = state.index.facts(&name).is_some();
        state.index.update(&name, |_| {});
        has_entry
    }

    /// Queues a reply for the disk. Returns false if the queue is full, or if the disk cannot be
    /// used now. Returns true and does nothing if the body is not in memory.
    pub fn write(&self, key: &Key, stored: &Arc<Stored>) -> bool {
        if stored.body.in_memory().is_none() {
            return true;
        }
        let name = EntryName { key: key.hash(), variant: stored.variant.hash() };
        let Some(job) = self.shared.begin_job(name) else { return false };
        let (key, stored) = (key.clone(), stored.clone());
        let size = stored.size() as u64;
        let has_space = self.shared.queue(size);
        let is_queued =
            has_space && self.jobs.try_send(Job::Write { job, name, key, stored }).is_ok();
        if !is_queued {
            if has_space {
                self.shared.unqueue(size);
            }
            add(&self.shared.counts.skipped);
            self.shared.lock().writing.remove(&job);
        }
        is_queued
    }

    /// Removes the entry `name`, because a new reply replaces it. While another process uses the
    /// directory, only notes the key of the entry. When this process loads the index later, it
    /// removes all entries of this key.
    pub fn supersede(&self, name: &EntryName) {
        let mut state = self.shared.lock();
        match state.phase {
            DiskPhase::Waiting => state.missed.note(name.key),
            DiskPhase::Failed => {}
            DiskPhase::Loading => self.remove(&mut state, name),
            DiskPhase::Ready => {
                state.writing.retain(|_, other| other != name);
                if state.index.facts(name).is_some() {
                    self.remove(&mut state, name);
                }
            }
        }
    }

    /// Removes all entries of the resources that have changed, so that these entries do not return
    /// after a restart.
    pub fn invalidate(&self, changes: &ChangedKeys) {
        let mut state = self.shared.lock();
        match state.phase {
            DiskPhase::Failed => return,
            DiskPhase::Waiting => return state.missed.note_all(changes),
            // The index does not list all members of the groups yet, so `finish_load` removes the
            // members.
            DiskPhase::Loading => state.missed.note_groups(&changes.groups),
            DiskPhase::Ready => {}
        }
        let mut keys: HashSet<_> = changes.keys.iter().map(Key::hash).collect();
        let mut removed = BTreeSet::new();
        for group in &changes.groups {
            if let Some(members) = state.index.in_group(group) {
                keys.extend(members);
                removed.insert(*group);
            }
        }
        let mut names = HashSet::new();
        for key in &keys {
            names.extend(state.index.variants(key).into_iter().map(|(name, _)| name));
        }
        if state.phase == DiskPhase::Loading
            && let Some(directory) = self.shared.directory.get()
        {
            names.extend(directory.changed_entries(changes));
        }
        let is_removed = |key: &KeyHash| {
            keys.contains(key) || Group::all_of(key).iter().any(|group| removed.contains(group))
        };
        state.writing.retain(|_, other| !is_removed(&other.key));
        names.iter().for_each(|name| self.remove(&mut state, name));
    }

    /// Removes an entry. A large file is only renamed here, because its deletion may take long.
    fn remove(&self, state: &mut DiskState, name: &EntryName) {
        const LARGE: u32 = 256;
        let Some(directory) = self.shared.directory.get() else { return };
        state.writing.retain(|_, other| other != name);
        let is_large = state.index.facts(name).is_some_and(|facts| facts.blocks > LARGE);
        state.index.remove(name);
        if !is_large {
            return directory.remove(name);
        }
        if let Some(hidden) = directory.hide(name)
            && self.jobs.try_send(Job::Delete(hidden.clone())).is_err()
        {
            directory.delete_hidden(&hidden);
        }
    }

    /// Writes the queued replies, and ends the thread.
    pub fn finish(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && self.jobs.send(Job::End).is_ok()
        {
            let _ = thread.join();
        }
    }

    /// Returns the counts that `/status` shows.
    pub fn status(&self) -> DiskRow {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.shared.counts;
        let state = self.shared.lock();
        DiskRow {
            state: match state.phase {
                DiskPhase::Waiting => "waiting for another process",
                DiskPhase::Loading => "loading",
                DiskPhase::Ready => "ready",
                DiskPhase::Failed => "failed",
            },
            replies: state.index.len(),
            bytes: state.index.bytes(),
            capacity: self.shared.capacity,
            hits: of(&counts.hits),
            written: of(&counts.written),
            skipped: of(&counts.skipped),
            broken: of(&counts.broken),
            errors: of(&counts.errors),
        }
    }
}

impl Missed {
    fn note(&mut self, key: KeyHash) {
        self.is_all |= self.keys.len() >= MOST_MISSED;
        if !self.is_all {
            self.keys.insert(key);
        }
    }

    fn note_groups(&mut self, groups: &BTreeSet<Group>) {
        self.is_all |= self.groups.len() >= MOST_MISSED;
        if !self.is_all {
            self.groups.extend(groups);
        }
    }

    fn note_all(&mut self, changes: &ChangedKeys) {
        changes.keys.iter().for_each(|key| self.note(key.hash()));
        self.note_groups(&changes.groups);
    }
}

impl DiskShared {
    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves memory for a reply that will wait for the writing thread. All waiting replies
    /// together may have `in_memory * QUEUED` bytes. Returns false if the reply would exceed this
    /// limit. If no other reply waits, always accepts the reply.
    fn queue(&self, size: u64) -> bool {
        let before = self.queued.fetch_add(size, Ordering::Relaxed);
        let has_space = before == 0 || before + size <= self.in_memory * QUEUED;
        if !has_space {
            self.unqueue(size);
        }
        has_space
    }

    fn unqueue(&self, size: u64) {
        self.queued.fetch_sub(size, Ordering::Relaxed);
    }

    /// Counts an error, and logs it if none was logged recently.
    fn report(&self, what: &str, error: &io::Error) {
        add(&self.counts.errors);
        let mut state = self.lock();
        if state.reported.is_none_or(|reported| reported.elapsed() >= REPORT_AGAIN) {
            state.reported = Some(Instant::now());
            drop(state);
            self.errors.warn(&format!(
                "the cache cannot {what} in {}: {error}; replies that are not stored there come \
                 from their applications (further errors are counted in /status, and logged every \
                 10 minutes)",
                self.path.display()
            ));
        }
    }

    /// Registers an entry that will be written, and returns the number of the job. Returns `None`
    /// if the disk cannot be used now.
    fn begin_job(&self, name: EntryName) -> Option<u64> {
        let mut state = self.lock();
        if !matches!(state.phase, DiskPhase::Loading | DiskPhase::Ready) {
            return None;
        }
        state.next_job += 1;
        let job = state.next_job;
        state.writing.insert(job, name);
        Some(job)
    }

    /// Locks the directory, loads the index and then writes replies.
    fn run(&self, unlocked: UnlockedDirectory, queue: &Receiver<Job>) {
        match self.wait_for_lock(unlocked, queue) {
            None => return,
            Some(Ok(directory)) => {
                let _ = self.directory.set(directory);
                self.load();
            }
            Some(Err(error)) => {
                self.report("use its directory", &error);
                self.lock().phase = DiskPhase::Failed;
            }
        }
        let Some(directory) = self.directory.get() else { return };
        for job in queue {
            match job {
                Job::Write { job, name, key, stored } => {
                    self.write(directory, (job, name), &key, &stored);
                    self.unqueue(stored.size() as u64);
                }
                Job::Delete(hidden) => directory.delete_hidden(&hidden),
                Job::End => return,
            }
        }
    }

    /// Waits until no other process uses the directory, and locks the directory. Returns `None` if
    /// this store ends during the wait.
    fn wait_for_lock(
        &self,
        mut unlocked: UnlockedDirectory,
        queue: &Receiver<Job>,
    ) -> Option<io::Result<Directory>> {
        let mut is_logged = false;
        loop {
            unlocked = match unlocked.lock() {
                Ok(locked) => return Some(locked),
                Err(unlocked) => unlocked,
            };
            if !is_logged {
                is_logged = true;
                self.errors.info(&format!(
                    "another process uses {}: until it ends, the cache stores replies only in \
                     memory",
                    self.path.display()
                ));
            }
            match queue.recv_timeout(LOCK_AGAIN) {
                Ok(Job::End) | Err(RecvTimeoutError::Disconnected) => return None,
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Lists the files of the directory in the index. Also performs the removals that were noted
    /// while another process used the directory.
    fn load(&self) {
        let Some(directory) = self.directory.get() else { return };
        let purges = {
            let mut state = self.lock();
            state.phase = DiskPhase::Loading;
            std::mem::take(&mut state.missed.purges)
        };
        for purge in &purges {
            self.walk(directory, purge, &HashSet::new());
        }
        let mut foreign = 0;
        for part in directory.entries() {
            let names = match part {
                Ok((names, others)) => {
                    foreign += others;
                    names
                }
                Err(error) => {
                    self.report("list files", &error);
                    continue;
                }
            };
            for name in names {
                self.load_entry(directory, name);
            }
            let displaced = self.lock().index.shrink();
            displaced.iter().for_each(|name| directory.remove(name));
        }
        if foreign > 0 {
            self.errors.warn(&format!(
                "{} contains {foreign} files that are not of the cache: the cache ignores them",
                self.path.display()
            ));
        }
        self.finish_load(directory);
    }

    /// Removes the entries of the groups in `missed`. During the load, unsafe requests have changed
    /// the resources of these groups, but the index did not list all of their entries. Until this
    /// removal, requests do not use entries of these groups.
    fn finish_load(&self, directory: &Directory) {
        loop {
            // The lock is released after each group, because requests wait for it.
            let mut state = self.lock();
            let Some(group) = state.missed.groups.pop_first() else {
                state.phase = DiskPhase::Ready;
                state.missed = Missed::default();
                return;
            };
            for key in state.index.in_group(&group).unwrap_or_default() {
                for (name, _) in state.index.variants(&key) {
                    state.index.remove(&name);
                    directory.remove(&name);
                }
            }
        }
    }

    fn load_entry(&self, directory: &Directory, name: EntryName) {
        let mut state = self.lock();
        if state.index.facts(&name).is_some() {
            return;
        }
        if state.missed.is_all || state.missed.keys.contains(&name.key) {
            return directory.remove(&name);
        }
        match directory.length(&name) {
            Some(length) if length <= self.capacity => {
                let facts = EntryFacts { blocks: blocks(length), ..EntryFacts::default() };
                if let Some(oldest) = state.index.insert(name, facts) {
                    directory.remove(&oldest);
                }
            }
            _ => directory.remove(&name),
        }
    }
}

#[cfg(test)]
mod admission;
#[cfg(test)]
mod tests;
