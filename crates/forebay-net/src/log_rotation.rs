//! Renames a log file and begins a new one.
//!
//! The callers are the thread that writes the logs, and the process that stays root to open logs
//! (`log_opener`). Both callers work within the open directory of the log. Both follow no link, and
//! touch only files whose names have the form of old logs: `access.log.20261127T073000Z`, with
//! `.gz` if the file is compressed.
//!
//! Several processes may write one log during an upgrade. A process that renames the file holds an
//! exclusive `flock` of it, so that no other process renames it again. Afterwards the old file has
//! no write permission. The other processes notice this, and open the new file.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::time::Duration;

use forebay_conf::Rotation;
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, flock, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::log_file::{self, Owner};

/// Bits of a mode that permit to write.
pub const WRITABLE: u32 = 0o222;
/// Number of names that a rotation tries.
const MOST_ATTEMPTS: u32 = 100;

/// A log file and the open directory that contains it.
#[derive(Debug)]
pub struct RotatedLog {
    dir: OwnedFd,
    name: OsString,
    owner: Option<Owner>,
    rotation: Rotation,
    /// Name of the file that is being compressed.
    compressing: Option<OsString>,
}

/// An old file that is to be compressed.
#[derive(Debug)]
pub struct Compression {
    /// The old file, with an exclusive `flock`.
    pub from: File,
    /// The empty file for the result.
    pub to: File,
}

impl RotatedLog {
    /// Creates the rotation of the log `name` in the directory `dir`. New files belong to `owner`.
    pub fn new(dir: OwnedFd, name: &OsStr, owner: Option<Owner>, rotation: Rotation) -> Self {
        Self { dir, name: name.to_owned(), owner, rotation, compressing: None }
    }

    /// Opens the directory of the log at `path`. Root follows only links that root owns.
    pub fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let is_root = geteuid().is_root();
        let path = if is_root { log_file::resolve(path)? } else { path.canonicalize()? };
        let name = path.file_name().ok_or(Errno::ISDIR)?;
        Ok(Self::new(log_file::open_dir(&path)?, name, None, rotation))
    }

    /// If a rotation is due before a write of `more` bytes, renames the log, creates a new file,
    /// and deletes the oldest files. Returns the current file.
    pub fn rotate(&mut self, more: u64) -> io::Result<File> {
        let current = log_file::open_at(&self.dir, self.name.as_ref(), self.owner)?;
        let found = current.metadata()?;
        if !is_due(&found, &self.rotation, more) {
            return Ok(current);
        }
        let old = self.rename()?;
        let new = self.create(&found).inspect_err(|_| {
            // Undo the renaming, so that the old file remains the log.
            let _ = renameat_with(&self.dir, &old, &self.dir, &self.name, RenameFlags::NOREPLACE);
        })?;
        let read_only = Permissions::from_mode(found.mode() & 0o777 & !WRITABLE);
        // The missing write permission shows other processes that the file was rotated. Ignore a
        // failure, for example if the file belongs to another user. Other processes then see that
        // the path names another file.
        let _ = current.set_permissions(read_only);
        self.delete_oldest()?;
        Ok(new)
    }

    /// Gives the log the name of an old file. Returns this name.
    fn rename(&self) -> io::Result<OsString> {
        let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
        // Make the new name later than all others, even if the clock was set back, because the
        // oldest files are deleted.
        let last = self.old_files()?.pop();
        let last = last.filter(|last| *last.time >= *now.as_bytes());
        let (time, first) = match last {
            Some(last) => (OsString::from_vec(last.time), last.number.saturating_add(1)),
            None => (now.into(), 0),
        };
        for number in first..first.saturating_add(MOST_ATTEMPTS) {
            let mut old = self.name.clone();
            old.push(".");
            old.push(&time);
            if number > 0 {
                old.push(format!(".{number}"));
            }
            let mut packed = old.clone();
            packed.push(".gz");
            let is_free = |name: &OsStr| {
                let found = statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW);
                matches!(found, Err(Errno::NOENT))
            };
            if !is_free(&old) || !is_free(&packed) {
                continue;
            }
            let flags = RenameFlags::NOREPLACE;
            match renameat_with(&self.dir, &self.name, &self.dir, &old, flags) {
                Ok(()) => return Ok(old),
                Err(Errno::EXIST) => {}
                // Some file systems do not support NOREPLACE. Rename without this flag, because the
                // new name was free a moment ago.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    renameat(&self.dir, &self.name, &self.dir, &old)?;
                    return Ok(old);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("all names for the old file are taken"))
    }

    /// Creates the new file with mode and owner of the old one.
    fn create(&self, old: &Metadata) -> io::Result<File> {
        // Limit the mode at the creation. Otherwise another user could open the file before the
        // change of its mode, and read all later lines.
        let (name, mode) = (self.name.as_ref(), old.mode());
        let new = log_file::open_with_mode(&self.dir, name, self.owner, mode)?;
        let found = new.metadata()?;
        // If the file has content, another process has created it and set its mode, so change
        // nothing.
        if found.is_file() && found.len() == 0 && found.nlink() == 1 {
            let mode = Permissions::from_mode(old.mode() & 0o777);
            let _ = new.set_permissions(mode);
            if geteuid().is_root() {
                fchown(&new, Some(old.uid()), Some(old.gid()))?;
            }
        }
        Ok(new)
    }

    /// Returns the old files, with the oldest first.
    fn old_files(&self) -> io::Result<Vec<OldFile>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = Dir::new(openat(&self.dir, ".", flags, Mode::empty())?)?;
        let mut files = Vec::new();
        for entry in dir {
            let entry = entry?;
            files.extend(OldFile::parse(entry.file_name().to_bytes(), self.name.as_bytes()));
        }
        files.sort();
        Ok(files)
    }

    fn delete_oldest(&self) -> io::Result<()> {
        let files = self.old_files()?;
        for file in &files[..files.len().saturating_sub(self.rotation.keep)] {
            let found = statat(&self.dir, &file.name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                unlinkat(&self.dir, &file.name, AtFlags::empty())?;
            }
        }
        Ok(())
    }

    /// Opens the oldest uncompressed file that no process uses, and a file for the result. Returns
    /// `None` if there is no such file, or if the rule demands no compression.
    pub fn begin_compression(&mut self) -> io::Result<Option<Compression>> {
        if !self.rotation.compress {
            return Ok(None);
        }
        for file in self.old_files()?.into_iter().filter(|file| !file.is_compressed) {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let from = File::from(openat(&self.dir, &file.name, flags, Mode::empty())?);
            // A process that still writes the file holds a shared lock, so leave the file for
            // later.
            if flock(&from, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let found = from.metadata()?;
            // Root must not read a file of another user for the server.
            let is_owners = self.owner.is_none_or(|(user, _)| user == found.uid());
            if !found.is_file() || found.nlink() != 1 || !is_owners {
                continue;
            }
            let result = temporary(&file.name);
            match unlinkat(&self.dir, &result, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let to = openat(&self.dir, &result, flags, Mode::from_raw_mode(0o600))?;
            let to = File::from(to);
            to.set_permissions(Permissions::from_mode(found.mode() & 0o777 & !WRITABLE))?;
            if geteuid().is_root() {
                fchown(&to, Some(found.uid()), Some(found.gid()))?;
            }
            self.compressing = Some(file.name);
            return Ok(Some(Compression { from, to }));
        }
        Ok(None)
    }

    /// Replaces the old file by its compressed copy. If `is_complete` is false, deletes the copy.
    pub fn end_compression(&mut self, is_complete: bool) -> io::Result<()> {
        let Some(name) = self.compressing.take() else { return Ok(()) };
        let result = temporary(&name);
        if !is_complete {
            return Ok(unlinkat(&self.dir, &result, AtFlags::empty())?);
        }
        let mut packed = name.clone();
        packed.push(".gz");
        renameat(&self.dir, &result, &self.dir, &packed)?;
        Ok(unlinkat(&self.dir, &name, AtFlags::empty())?)
    }
}

fn temporary(name: &OsStr) -> OsString {
    let mut name = name.to_owned();
    name.push(".gz.part");
    name
}

/// Compresses a file with gzip, and waits until the result is on disk.
pub fn compress(Compression { mut from, to }: Compression) -> io::Result<()> {
    let mut encoder = flate2::write::GzEncoder::new(to, flate2::Compression::default());
    io::copy(&mut from, &mut encoder)?;
    let mut to = encoder.finish()?;
    to.flush()?;
    // The original is deleted afterwards, so the copy must survive a crash of the system.
    to.sync_all()
}

/// Returns true if the file has to be rotated before `more` bytes are written.
pub fn is_due(file: &Metadata, rotation: &Rotation, more: u64) -> bool {
    if !file.is_file() || file.len() == 0 {
        return false;
    }
    let is_large = rotation.size.is_some_and(|size| file.len().saturating_add(more) > size);
    is_large
        || rotation.age.is_some_and(|age| {
            // The time of the last write determines the period of the file, also after a restart.
            let now = jiff::Timestamp::now().as_second();
            period(file.mtime(), age) < period(now, age)
        })
}

/// Returns the number of the period that contains a time, in seconds since 1970.
fn period(second: i64, age: Duration) -> i64 {
    let zone = jiff::tz::TimeZone::system();
    let time = jiff::Timestamp::from_second(second).unwrap_or_default();
    let local = second.saturating_add(i64::from(zone.to_offset(time).seconds()));
    local.div_euclid((age.as_secs() as i64).max(1))
}

/// An old file of a log. Files compare by time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OldFile {
    time: Vec<u8>,
    /// Number that distinguishes files of one second.
    number: u32,
    is_compressed: bool,
    name: OsString,
}

impl OldFile {
    /// Parses the name of a file in the directory of the log `log`. Returns `None` if the file is
    /// no old file of this log.
    fn parse(name: &[u8], log: &[u8]) -> Option<Self> {
        const TIME: &[u8] = b"00000000T000000Z";
        let rest = name.strip_prefix(log)?.strip_prefix(b".")?;
        let (rest, is_compressed) =
            rest.strip_suffix(b".gz").map_or((rest, false), |rest| (rest, true));
        let (time, rest) = rest.split_at_checked(TIME.len())?;
        let is_time = time.iter().zip(TIME).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == form,
        });
        let number = match rest {
            b"" => 0,
            rest => {
                let digits = rest.strip_prefix(b".")?;
                let is_number = digits.iter().all(u8::is_ascii_digit);
                str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?
            }
        };
        let name = OsString::from_vec(name.to_vec());
        is_time.then(|| Self { time: time.to_vec(), number, is_compressed, name })
    }
}

/// Takes a shared or exclusive lock of a log file without waiting. Returns false if another process
/// holds a lock that excludes this one.
pub fn try_lock(file: &impl AsFd, is_exclusive: bool) -> bool {
    let operation = if is_exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    flock(file, operation).is_ok()
}

/// Releases the lock of a log file.
pub fn unlock(file: &impl AsFd) {
    let _ = flock(file, FlockOperation::Unlock);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn rotation(keep: usize) -> Rotation {
        Rotation { size: Some(10), age: None, keep, compress: true }
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_names_of_old_logs_are_recognised() {
        let parse = |name: &str| OldFile::parse(name.as_bytes(), b"a.log");
        assert!(parse("a.log.20261127T073000Z").is_some());
        let second = parse("a.log.20261127T073000Z.2.gz").unwrap();
        assert_eq!((second.number, second.is_compressed), (2, true));
        assert!(parse("a.log.20261127T073000Z.10") > parse("a.log.20261127T073000Z.9.gz"));
        for name in [
            "a.log",
            "a.log.1",
            "a.log.gz",
            "a.log.2026112xT073000Z",
            "b.log.20261127T073000Z",
            "a.log.20261127T073000Z.gz.part",
            "a.log.20261127T073000Z.",
            "a.log.20261127T073000Z.+1",
            "a.log.20261127T073000Z.99999999999",
            "a.log.20261127T073000ZZ",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn the_oldest_files_are_deleted_and_others_stay() {
        let tmp = tempfile::tempdir().unwrap();
        let log = tmp.path().join("a.log");
        let secret = tmp.path().join("secret");
        std::fs::write(&secret, "s").unwrap();
        symlink(&secret, tmp.path().join("a.log.20200101T000000Z")).unwrap();
        std::fs::write(tmp.path().join("a.log.1"), "x").unwrap();
        for number in 0..4 {
            std::fs::write(&log, format!("line {number} is long\n")).unwrap();
            std::fs::set_permissions(&log, Permissions::from_mode(0o640)).unwrap();
            let mut rotated = RotatedLog::open(&log, rotation(2)).unwrap();
            let new = rotated.rotate(1).unwrap();
            assert_eq!(new.metadata().unwrap().len(), 0);
            assert_eq!(new.metadata().unwrap().mode() & 0o777, 0o640);
        }
        let left = names(tmp.path());
        // The link counts as an old file, but is not deleted. Its target stays, too.
        assert_eq!(left.len(), 6, "{left:?}");
        assert!(left.contains(&"a.log.1".to_owned()) && left.contains(&"secret".to_owned()));
        let old: Vec<_> = left.iter().filter(|name| name.contains("Z")).skip(1).collect();
        let read = |name: &str| std::fs::read_to_string(tmp.path().join(name)).unwrap();
        assert_eq!(read(old[0]), "line 2 is long\n");
        assert_eq!(read(old[1]), "line 3 is long\n");
        let mode = tmp.path().join(old[1]).metadata().unwrap().mode();
        assert_eq!(mode & WRITABLE, 0);
    }

    #[test]
    fn an_old_file_is_compressed_when_no_process_writes_it() {
        let tmp = tempfile::tempdir().unwrap();
        let log = tmp.path().join("a.log");
        std::fs::write(&log, "a line that is long\n").unwrap();
        let writer = File::open(&log).unwrap();
        assert!(try_lock(&writer, false));
        let mut rotated = RotatedLog::open(&log, rotation(3)).unwrap();
        rotated.rotate(1).unwrap();
        assert!(rotated.begin_compression().unwrap().is_none(), "a process writes the file");
        unlock(&writer);
        let compression = rotated.begin_compression().unwrap().unwrap();
        let mut another = RotatedLog::open(&log, rotation(3)).unwrap();
        assert!(another.begin_compression().unwrap().is_none(), "only one process compresses it");
        compress(compression).unwrap();
        rotated.end_compression(true).unwrap();
        let left = names(tmp.path());
        assert!(left.len() == 2 && left[1].ends_with("Z.gz"), "{left:?}");
        let packed = File::open(tmp.path().join(&left[1])).unwrap();
        let text = io::read_to_string(flate2::read::GzDecoder::new(packed)).unwrap();
        assert_eq!(text, "a line that is long\n");
        assert!(rotated.begin_compression().unwrap().is_none());
    }

    #[test]
    fn a_file_is_due_by_size_or_by_the_period_of_its_last_line() {
        let tmp = tempfile::NamedTempFile::new().unwrap();
        let file = tmp.as_file();
        let by_age =
            |age| Rotation { size: None, age: Some(Duration::from_secs(age)), ..rotation(1) };
        assert!(!is_due(&file.metadata().unwrap(), &rotation(1), 100), "an empty file is kept");
        file.set_len(8).unwrap();
        assert!(!is_due(&file.metadata().unwrap(), &rotation(1), 2));
        assert!(is_due(&file.metadata().unwrap(), &rotation(1), 3));
        assert!(!is_due(&file.metadata().unwrap(), &by_age(100 * 365 * 86400), 1));
        let before = std::time::SystemTime::now() - Duration::from_secs(2 * 86400);
        file.set_modified(before).unwrap();
        assert!(is_due(&file.metadata().unwrap(), &by_age(86400), 1));
        assert_eq!(period(-1, Duration::from_secs(1)), period(0, Duration::from_secs(1)) - 1);
    }
}
