//! A store in a directory, usually of a shared file system.
//!
//! | file | content |
//! |---|---|
//! | `entries/NAME` | end of the life in milliseconds since 1970, or 0; a line break; the content |
//! | `locks/NAME` | as in `entries/NAME`, with the owner of the lock as the content |
//! | `rates/LIMIT` | the last batch of each process, and the due time of each key (`rates.rs`) |
//! | `messages/CHANNEL/TIME-RANDOM` | a message |
//! | `.lock` | locked (`flock`) during each change |
//!
//! Times are those of the machines' clocks, which must agree within a few seconds. Each file is written
//! under another name and renamed, so that a reader sees the old or the new content.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};

use crate::backend::{Batch, Change, Cursor, Expected, Messages, StoreBackend};
use crate::{LARGEST_ENTRY, StoreError};

mod rates;

/// The longest wait for `.lock`. A change takes only milliseconds.
const LIMIT: Duration = Duration::from_secs(2);
/// Pause between attempts to lock. The pause between checks for a message is 20 times as long.
const LOOK: Duration = Duration::from_millis(10);
/// Life of a message.
const MESSAGE_LIFE: Duration = Duration::from_secs(3600);
/// Maximum number of messages that a reader reads at once.
const MOST_MESSAGES: usize = 100;
/// Maximum size of the counts of a limit: 64 Ki keys.
const LARGEST_COUNTS: usize = 1 << 20;

pub struct Directory {
    root: PathBuf,
}

impl Directory {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    fn path(&self, kind: &str, name: &str) -> PathBuf {
        self.root.join(kind).join(name)
    }

    /// Locks the file `.lock`, so that only one process changes the store at a time. Returns the
    /// open file, whose drop ends the lock. Fails if another process keeps the lock for longer than
    /// `LIMIT`.
    fn change(&self) -> Result<File, StoreError> {
        let path = self.root.join(".lock");
        create_directory(&self.root)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
        let file = options.open(&path).map_err(|error| away(&path, &error))?;
        let deadline = Instant::now() + LIMIT;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR)
                    if Instant::now() < deadline =>
                {
                    thread::sleep(LOOK);
                }
                Err(error) => return Err(away(&path, &error.into())),
            }
        }
    }

    /// Returns the content of an entry or of a lock. Returns `None` if its file does not exist, or
    /// if its life has ended. A file that Forebay has not written is an error.
    fn read(&self, kind: &str, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(bytes) = read(&self.path(kind, name), LARGEST_ENTRY + 32)? else {
            return Ok(None);
        };
        let end = bytes.iter().take(32).position(|byte| *byte == b'\n');
        let ends_at = end.and_then(|end| {
            let number = std::str::from_utf8(&bytes[..end]).ok()?;
            number.parse::<u128>().ok()
        });
        let (Some(end), Some(ends_at)) = (end, ends_at) else {
            let path = self.path(kind, name);
            return Err(StoreError::Content(format!(
                "{}: Forebay has not written this file",
                path.display()
            )));
        };
        let is_alive = ends_at == 0 || ends_at > since_1970().as_millis();
        Ok(is_alive.then(|| bytes[end + 1..].to_vec()))
    }

    fn write(
        &self,
        kind: &str,
        name: &str,
        value: &[u8],
        life: Option<Duration>,
    ) -> Result<(), StoreError> {
        let ends_at = life.map_or(0, |life| (since_1970() + life).as_millis());
        let mut bytes = format!("{ends_at}\n").into_bytes();
        bytes.extend_from_slice(value);
        write(&self.path(kind, name), &bytes, Durability::Disk)
    }

    fn remove_file(&self, kind: &str, name: &str) -> Result<(), StoreError> {
        let path = self.path(kind, name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(away(&path, &error)),
            _ => Ok(()),
        }
    }

    /// Returns the names of the messages of a channel in order, and removes expired messages.
    fn message_names(&self, channel: &str) -> Result<Vec<String>, StoreError> {
        let directory = self.path("messages", channel);
        let entries = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| away(&directory, &error))?,
        };
        let oldest = message_time(since_1970().saturating_sub(MESSAGE_LIFE));
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| away(&directory, &error))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.len() < 21 || !name.as_bytes()[..20].iter().all(u8::is_ascii_digit) {
                continue;
            }
            if name < oldest {
                let _ = fs::remove_file(entry.path());
            } else {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

impl StoreBackend for Directory {
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.read("entries", name)
    }

    fn set(
        &self,
        name: &str,
        Change { value, expected, life }: Change<'_>,
    ) -> Result<bool, StoreError> {
        let _lock = self.change()?;
        let is_expected = match expected {
            Expected::Anything => true,
            Expected::Nothing => self.read("entries", name)?.is_none(),
            Expected::Content(before) => self.read("entries", name)?.as_deref() == Some(before),
        };
        if is_expected {
            self.write("entries", name, value, life)?;
        }
        Ok(is_expected)
    }

    fn remove(&self, name: &str) -> Result<(), StoreError> {
        let _lock = self.change()?;
        self.remove_file("entries", name)
    }

    fn lock(&self, name: &str, owner: &str, lease: Duration) -> Result<bool, StoreError> {
        let _lock = self.change()?;
        let held = self.read("locks", name)?;
        let is_free = held.is_none_or(|held| held == owner.as_bytes());
        if is_free {
            self.write("locks", name, owner.as_bytes(), Some(lease))?;
        }
        Ok(is_free)
    }

    fn unlock(&self, name: &str, owner: &str) -> Result<(), StoreError> {
        let _lock = self.change()?;
        if self.read("locks", name)?.is_some_and(|held| held == owner.as_bytes()) {
            self.remove_file("locks", name)?;
        }
        Ok(())
    }

    fn advance(&self, limit: &str, batch: &Batch<'_>) -> Result<Vec<Duration>, StoreError> {
        let path = self.path("rates", limit);
        let _lock = self.change()?;
        // Replace a file that is too large, or that is not a regular file.
        let before = match read(&path, LARGEST_COUNTS) {
            Err(StoreError::Content(_)) => None,
            before => before?,
        };
        let (after, ahead) = rates::advance(&before.unwrap_or_default(), batch, since_1970());
        if let Some(after) = after {
            write(&path, &after[..after.len().min(LARGEST_COUNTS)], Durability::Memory)?;
        }
        Ok(ahead)
    }

    fn publish(&self, channel: &str, message: &[u8]) -> Result<(), StoreError> {
        let name = format!("{}-{:08x}", message_time(since_1970()), fastrand::u32(..));
        self.message_names(channel)?;
        write(&self.path("messages", channel).join(name), message, Durability::Memory)
    }

    fn messages(
        &self,
        channel: &str,
        Cursor(cursor): &mut Cursor,
        wait: Duration,
    ) -> Result<Messages, StoreError> {
        let deadline = Instant::now() + wait;
        loop {
            let names = self.message_names(channel)?;
            // A message is new if its name was not seen before. A comparison of times would miss
            // messages of a machine whose clock is slow.
            let Some(seen) = cursor else {
                *cursor = Some(names);
                continue;
            };
            let is_new = |name: &&String| seen.binary_search(name).is_err();
            let new: Vec<_> = names.iter().filter(is_new).take(MOST_MESSAGES).cloned().collect();
            seen.retain(|name| names.binary_search(name).is_ok());
            if new.is_empty() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(Messages::default());
                }
                thread::sleep(left.min(LOOK * 20));
                continue;
            }
            let mut messages = Messages::default();
            seen.extend_from_slice(&new);
            seen.sort_unstable();
            for name in new {
                let path = self.path("messages", channel).join(&name);
                match read(&path, LARGEST_ENTRY) {
                    Ok(Some(message)) => messages.found.push(message),
                    Ok(None) => {}
                    Err(StoreError::Content(why)) => messages.skipped.push(why),
                    Err(error) => messages.skipped.push(error.to_string()),
                }
            }
            return Ok(messages);
        }
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the first part of a message's file name: the time with leading zeros, so that names sort
/// by time.
fn message_time(time: Duration) -> String {
    format!("{:020}", time.as_nanos())
}

fn away(path: &Path, error: &io::Error) -> StoreError {
    StoreError::Away(format!("{}: {error}", path.display()))
}

fn create_directory(path: &Path) -> Result<(), StoreError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(|error| away(path, &error))
}

/// Reads a regular file of at most `limit` bytes. Returns `None` if no file exists. Fails if the
/// file is larger, or if it is a link, a pipe or a device.
fn read(path: &Path, limit: usize) -> Result<Option<Vec<u8>>, StoreError> {
    let unusable = |why: &str| StoreError::Content(format!("{} {why}", path.display()));
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(unusable("is a symbolic link"));
        }
        Err(error) => return Err(away(path, &error)),
    };
    let failed = |error: io::Error| away(path, &error);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(unusable("is no file"));
    }
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > limit {
        return Err(unusable("is too large"));
    }
    Ok(Some(bytes))
}

/// Durability of the content when `write` returns. With `Memory`, a crash of the machine may lose
/// the content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    Memory,
    Disk,
}

/// Writes a file that only its owner can read.
fn write(path: &Path, bytes: &[u8], durability: Durability) -> Result<(), StoreError> {
    let failed = |error: io::Error| away(path, &error);
    let directory = path.parent().unwrap_or(Path::new("."));
    create_directory(directory)?;
    // The name of an entry never begins with a dot, so no entry has this name.
    let beside = directory.join(format!(".new-{:016x}", fastrand::u64(..)));
    let outcome = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            if durability == Durability::Disk { file.sync_all() } else { Ok(()) }
        })
        .and_then(|()| fs::rename(&beside, path));
    if outcome.is_err() {
        let _ = fs::remove_file(&beside);
    }
    outcome.map_err(failed)
}
