//! Destinations of access log lines.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_conf::{self as conf, Rotation};

use super::message::LineKind;
use super::service::Service;
use crate::log_file::{self, Owner};
use crate::log_opener::Opener;
use crate::log_rotation::{Compression, RotatedLog, WRITABLE, is_due, try_lock, unlock};

/// Time until the next attempt after a rotation that failed.
const RETRY: Duration = Duration::from_secs(60);
/// Number of attempts to take a lock that another process holds, and the pause between them.
// A rotation locks the file for less than a millisecond. But any user who may read the file can
// lock it for any time, so do not wait for long.
const ATTEMPTS: (u32, Duration) = (20, Duration::from_millis(1));

/// Destination of access log lines.
pub enum Target {
    Off,
    Stdout,
    File(Box<FileTarget>),
    Service(ServiceHandle),
}

/// A handle to a log service.
#[derive(Clone)]
pub struct ServiceHandle(pub(super) Arc<Service>);

impl Target {
    pub(super) fn write(&mut self, lines: Vec<u8>, opener: Option<&mut Opener>) -> io::Result<()> {
        match self {
            Self::Off => Ok(()),
            Self::Stdout => io::stdout().lock().write_all(&lines),
            Self::File(file) => file.write(&lines, opener),
            Self::Service(service) => {
                service.0.send(LineKind::Access, lines);
                Ok(())
            }
        }
    }

    /// Returns the file, or `None` if the destination is no file.
    pub(super) fn file(&mut self) -> Option<&mut FileTarget> {
        match self {
            Self::File(file) => Some(file),
            Self::Off | Self::Stdout | Self::Service(_) => None,
        }
    }
}

/// A log file.
pub struct FileTarget {
    path: PathBuf,
    file: File,
    rotation: Option<Rotation>,
    /// Time of the last rotation that failed.
    failed: Option<Instant>,
    /// True if the current file has no write permission, although it was not rotated.
    is_read_only: bool,
    /// True if an old file may wait for its compression.
    has_old: bool,
    /// `None` if no old file is being compressed. `Some(Some(log))` if this process replaces the
    /// old file of `log` after the compression. `Some(None)` if the log opener's process does it.
    compressing: Option<Option<RotatedLog>>,
}

impl FileTarget {
    pub(super) fn open(
        path: &Path,
        rotation: Option<Rotation>,
        owner: Option<Owner>,
    ) -> io::Result<Self> {
        let file = log_file::open(path, owner).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            rotation,
            failed: None,
            is_read_only: false,
            has_old: false,
            compressing: None,
        })
    }

    /// Rotates the file if a rotation is due, and then appends lines.
    fn write(&mut self, lines: &[u8], opener: Option<&mut Opener>) -> io::Result<()> {
        let Some(rotation) = self.rotation else { return self.file.write_all(lines) };
        self.prepare(&rotation, lines.len() as u64, opener);
        let outcome = self.file.write_all(lines);
        unlock(&self.file);
        outcome
    }

    /// Prepares a write of `more` bytes. Opens the log again if another process has rotated it.
    /// Rotates the log if a rotation is due. Locks `file` (shared) for the write. If another
    /// process keeps an exclusive lock, continues without the lock.
    fn prepare(&mut self, rotation: &Rotation, more: u64, mut opener: Option<&mut Opener>) {
        self.lock();
        let Ok(found) = self.file.metadata() else { return };
        if self.was_rotated(&found) {
            unlock(&self.file);
            self.reopen(opener.as_deref_mut());
            self.lock();
        }
        let Ok(found) = self.file.metadata() else { return };
        let may_try = self.failed.is_none_or(|failed| failed.elapsed() > RETRY);
        if !may_try || !is_due(&found, rotation, more) {
            return;
        }
        // Replace the shared lock by an exclusive one. This fails if another process has a shared
        // lock. Then that process rotates the file, or this process does so before its next write.
        if !try_lock(&self.file, true) {
            self.lock();
            return;
        }
        if !self.file.metadata().is_ok_and(|found| !self.was_rotated(&found)) {
            // Another process has already rotated the file. The next write opens the new file.
            self.lock();
            return;
        }
        match self.rotate(rotation, more, opener) {
            Ok(file) => {
                self.file = file;
                (self.failed, self.is_read_only) = (None, false);
                self.has_old = true;
            }
            Err(error) => {
                if self.failed.is_none() {
                    let path = self.path.display();
                    warn(&format!("cannot rotate the log {path}, which grows: {error}"));
                }
                self.failed = Some(Instant::now());
            }
        }
        self.lock();
    }

    /// Renames the file, through `opener` if this process lacks the permission. Returns the new
    /// file.
    fn rotate(
        &self,
        rotation: &Rotation,
        more: u64,
        opener: Option<&mut Opener>,
    ) -> io::Result<File> {
        let rotated = RotatedLog::open(&self.path, *rotation).and_then(|mut log| log.rotate(more));
        match (rotated, opener.filter(|opener| opener.is_for(&self.path))) {
            (Err(error), Some(opener)) if error.kind() == io::ErrorKind::PermissionDenied => {
                opener.rotate(&self.path)
            }
            (rotated, _) => rotated,
        }
    }

    fn lock(&self) {
        let (attempts, pause) = ATTEMPTS;
        for _ in 0..attempts {
            if try_lock(&self.file, false) {
                return;
            }
            std::thread::sleep(pause);
        }
    }

    /// Returns true if another process has renamed or removed the file.
    fn was_rotated(&self, found: &Metadata) -> bool {
        if !found.is_file() {
            return false;
        }
        match std::fs::metadata(&self.path) {
            Ok(now) => (now.dev(), now.ino()) != (found.dev(), found.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            // This process cannot read the metadata at the path. But a rotation also removes the
            // write permission of the old file, so check this permission.
            Err(_) => found.mode() & WRITABLE == 0 && !self.is_read_only,
        }
    }

    /// Opens the file again, through `opener` if this process lacks the permission. After an error,
    /// keeps the old file.
    pub(super) fn reopen(&mut self, opener: Option<&mut Opener>) {
        let opener = opener.filter(|opener| opener.is_for(&self.path));
        let reopened = match (Self::open(&self.path, self.rotation, None), opener) {
            (Err(error), Some(opener)) if error.kind() == io::ErrorKind::PermissionDenied => {
                opener.open(&self.path)
            }
            (reopened, _) => reopened.map(|target| target.file),
        };
        match reopened {
            Ok(file) => {
                self.file = file;
                let mode = self.file.metadata().map_or(0, |found| found.mode());
                self.is_read_only = mode & WRITABLE == 0;
            }
            Err(error) => {
                warn(&format!("cannot reopen the access log, keeping the old file: {error}"));
            }
        }
    }

    /// Begins to compress an old file. Returns `None` if no old file waits, or if an old file is
    /// being compressed already. After an error, logs it and returns `None`.
    pub(super) fn begin_compression(&mut self, opener: Option<&mut Opener>) -> Option<Compression> {
        if !std::mem::take(&mut self.has_old) || self.compressing.is_some() {
            return None;
        }
        let rotation = self.rotation.filter(|rotation| rotation.compress)?;
        let begun = RotatedLog::open(&self.path, rotation).and_then(|mut log| {
            let compression = log.begin_compression()?;
            Ok((Some(log), compression))
        });
        let begun = match (begun, opener.filter(|opener| opener.is_for(&self.path))) {
            (Err(error), Some(opener)) if error.kind() == io::ErrorKind::PermissionDenied => {
                opener.begin_compression(&self.path).map(|compression| (None, compression))
            }
            (begun, _) => begun,
        };
        match begun {
            Ok((log, compression)) => {
                self.compressing = compression.as_ref().map(|_| log);
                compression
            }
            Err(error) => {
                self.warn_uncompressed(&error);
                None
            }
        }
    }

    /// Replaces the old file by its compressed copy, if `outcome` is a success. Otherwise deletes
    /// the copy.
    pub(super) fn end_compression(
        &mut self,
        path: &Path,
        outcome: &io::Result<()>,
        opener: Option<&mut Opener>,
    ) {
        if self.path != path {
            return;
        }
        let Some(log) = self.compressing.take() else { return };
        let is_complete = outcome.is_ok();
        let ended = match (log, opener) {
            (Some(mut log), _) => log.end_compression(is_complete),
            (None, Some(opener)) => opener.end_compression(path, is_complete),
            (None, None) => Ok(()),
        };
        if let Err(error) = outcome {
            self.warn_uncompressed(error);
        }
        if let Err(error) = ended {
            self.warn_uncompressed(&error);
        }
        // Old files from before a restart may also wait for compression.
        self.has_old |= is_complete;
    }

    fn warn_uncompressed(&self, error: &io::Error) {
        let path = self.path.display();
        warn(&format!("an old file of the log {path} stays uncompressed: {error}"));
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Opens the destination of a log. `service` returns a handle to a log service.
pub(super) fn open(
    log: &conf::LogFile,
    owner: Option<Owner>,
    service: impl FnOnce(&conf::LogService) -> io::Result<ServiceHandle>,
) -> io::Result<Target> {
    Ok(match &log.access {
        conf::AccessLog::Off => Target::Off,
        conf::AccessLog::Stdout => Target::Stdout,
        conf::AccessLog::Path(path) => {
            Target::File(Box::new(FileTarget::open(path, log.rotate, owner)?))
        }
        conf::AccessLog::Service(to) => Target::Service(service(to)?),
    })
}

/// Writes a warning to standard error: the error log would make the log thread wait for itself.
fn warn(line: &str) {
    let _ = writeln!(io::stderr(), "forebay: {line}");
}
