//! Reloads the configuration when its files change (`--watch`), when the directories of `hosts_from`
//! do, or when a directory that was left out may be complete.
//!
//! A thread compares the metadata of the files once a second. inotify would need a watch on each
//! directory in the path of a file: Kubernetes updates a mounted ConfigMap by swapping a link to a
//! directory.

use std::collections::BTreeMap;
use std::fs::metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::{Duration, Instant};

use forebay_conf::{LeftOut, LeftOutRow};
use forebay_net::log::ErrorLog;
use rustix::process::{Signal, getpid, kill_process};

use super::live::Live;

/// Time between two checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Number of checks in a row that find a change, after which the configuration is read although the
/// files may still change.
const RESTLESS: u32 = 10;

/// Device, inode, size, and time of the last change of a file.
type Stamp = (u64, u64, u64, i64, i64);

/// State of each file; `None` if it cannot be found.
type Stamps = BTreeMap<PathBuf, Option<Stamp>>;

/// The files of a configuration, each with its state when the configuration was last read.
pub(super) struct Watched {
    file: PathBuf,
    /// True without `--watch`: only the directories of `hosts_from` are watched.
    only_hosts: bool,
    stamps: Stamps,
    /// Number of checks in a row that found a change.
    restless: u32,
}

impl Watched {
    /// Notes the state of all files. Call this before the configuration is read.
    pub(super) fn new(file: &Path) -> Self {
        Self::begin(file, false)
    }

    /// Notes the state of the directories of `hosts_from`. Returns `None` if no site has this key.
    pub(super) fn of_hosts(file: &Path) -> Option<Self> {
        Some(Self::begin(file, true)).filter(|watched| !watched.stamps.is_empty())
    }

    fn begin(file: &Path, only_hosts: bool) -> Self {
        let file = file.to_owned();
        let mut watched = Self { file, only_hosts, stamps: Stamps::new(), restless: 0 };
        watched.renew();
        watched
    }

    /// Watches the files on a thread of its own. After a change, sends SIGHUP to this process,
    /// because the main thread carries out reloads and upgrades one at a time.
    pub(super) fn start(mut self, errors: ErrorLog, live: Weak<Live>) {
        let thread = std::thread::Builder::new().name("watch".into());
        let log = errors.clone();
        let unseen = self.unseen();
        if !unseen.is_empty() {
            let them = unseen.join(", ");
            errors.warn(&format!("cannot look at {them}: after a change, send SIGHUP"));
        }
        let watching = move || {
            let mut retry = Retry::default();
            loop {
                std::thread::sleep(INTERVAL);
                let Some(live) = live.upgrade() else { return };
                if self.has_changed() {
                    let what = if self.only_hosts { "directories of sites" } else { "files" };
                    log.info(&format!("the {what} of the configuration have changed"));
                } else if retry.is_due(&live.left_out()) {
                    log.info("looking again for what the directories that are left out lack");
                } else {
                    continue;
                }
                let _ = kill_process(getpid(), Signal::HUP);
            }
        };
        if let Err(error) = thread.spawn(watching) {
            errors.error(&format!("cannot watch files: {error}"));
        }
    }

    /// Returns true if the files have changed since the last call that returned true. Returns false
    /// while two checks in a row find different states, because a write may take some time. After
    /// [`RESTLESS`] such calls, returns true although the files are still changing.
    fn has_changed(&mut self) -> bool {
        let now = self.look();
        if now == self.stamps {
            self.restless = 0;
            return false;
        }
        std::thread::sleep(INTERVAL / 10);
        if !self.is_settled(self.look() == now) {
            return false;
        }
        self.stamps = now;
        self.renew();
        true
    }

    /// Returns true if the configuration should be read now. `is_same` is true if two checks in a
    /// row have found the same state.
    fn is_settled(&mut self, is_same: bool) -> bool {
        self.restless += 1;
        let is_settled = is_same || self.restless >= RESTLESS;
        if is_settled {
            self.restless = 0;
        }
        is_settled
    }

    /// Returns the current state of all files. A file whose state cannot be read keeps its last
    /// state.
    fn look(&self) -> Stamps {
        let look = |(path, known): (&PathBuf, &Option<Stamp>)| {
            (path.clone(), stamp(path).unwrap_or(*known))
        };
        self.stamps.iter().map(look).collect()
    }

    /// Returns the files whose state cannot be read, for example by the `user` of `[server]`.
    fn unseen(&self) -> Vec<String> {
        let unseen = self.stamps.keys().filter(|path| stamp(path).is_none());
        unseen.map(|path| path.display().to_string()).collect()
    }

    /// Updates the list of the configuration's files. If the configuration has an error, keeps the
    /// files of the last list, because the error may be in one of them.
    fn renew(&mut self) {
        if stamp(&self.file).is_none() && !self.stamps.is_empty() {
            // The file may now be a pipe, and opening a pipe blocks until a writer opens it.
            return;
        }
        let mut paths = forebay_conf::host_directories(&self.file);
        if !self.only_hosts {
            paths.extend(forebay_conf::inputs(&self.file));
            match forebay_conf::load(&self.file) {
                Ok(plan) => paths.extend(forebay_conf::certificate_files(&plan)),
                Err(_) => paths.extend(self.stamps.keys().cloned()),
            }
        } else if paths.is_empty() {
            paths.extend(self.stamps.keys().cloned());
        }
        let known = std::mem::take(&mut self.stamps);
        // Keep the recorded state of a known file. If the file has changed after the last check,
        // the next check then notices the change.
        let first = |path: &PathBuf| stamp(path).flatten();
        let state = |path: &PathBuf| known.get(path).copied().unwrap_or_else(|| first(path));
        self.stamps = paths.into_iter().map(|path| (path.clone(), state(&path))).collect();
    }
}

/// When to try again to serve directories that are left out: at once after a change of a file that the
/// configuration names for them, and after growing pauses, because the cause may be elsewhere, such as
/// in `/etc/passwd`, or in a file that only root sees.
#[derive(Default)]
struct Retry {
    directories: Vec<LeftOutRow>,
    stamps: Stamps,
    pause: Duration,
    next: Option<Instant>,
}

/// The first and the longest pause between two attempts.
const RETRY: Duration = Duration::from_secs(2);
const MAX_RETRY: Duration = Duration::from_secs(600);

impl Retry {
    fn is_due(&mut self, left_out: &LeftOut) -> bool {
        let directories: Vec<_> = left_out.rows().collect();
        let now = Instant::now();
        let stamps: Stamps =
            left_out.paths().map(|path| (path.clone(), stamp(path).flatten())).collect();
        if directories != self.directories {
            // A file that came after the configuration was read is found by the next attempt.
            let next = (!directories.is_empty()).then_some(now + RETRY);
            *self = Self { directories, stamps, pause: RETRY, next };
            return false;
        }
        let is_late = self.next.is_some_and(|next| now >= next);
        if is_late {
            self.pause = MAX_RETRY.min(self.pause * 2);
            self.next = Some(now + self.pause);
        }
        let has_changed = stamps != self.stamps;
        self.stamps = stamps;
        has_changed || is_late
    }
}

/// Returns the state of a file; the inner `None` means that there is no such file. Returns `None`
/// if this process may not read the state. Returns `None` for a pipe or a device, too, because a
/// reload could wait without end for its contents.
fn stamp(path: &Path) -> Option<Option<Stamp>> {
    match metadata(path) {
        Ok(found) if found.is_file() || found.is_dir() => {
            Some(Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec())))
        }
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
        Err(_) => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use forebay_testkit::folder::Folder;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_pipe_in_place_of_the_file_is_no_change() {
        let folder = Folder::new();
        let file = folder.path().join("site.toml");
        let text = "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nrespond = \"x\"\n";
        fs::write(&file, text).unwrap();
        let mut watched = Watched::new(&file);
        assert!(!watched.has_changed());
        fs::remove_file(&file).unwrap();
        mknodat(CWD, &file, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(!watched.has_changed());
        assert_eq!(watched.unseen(), [file.display().to_string()]);
        fs::remove_file(&file).unwrap();
        assert!(watched.has_changed(), "it is gone");
        fs::write(&file, text).unwrap();
        assert!(watched.has_changed());
        assert!(!watched.has_changed());
    }

    #[test]
    fn files_that_change_without_end_are_read_sometimes() {
        let folder = Folder::new();
        let mut watched = Watched::new(&folder.path().join("site.toml"));
        let looks = [false, false, true].into_iter().chain((0..2 * RESTLESS).map(|_| false));
        let read: Vec<_> =
            looks.enumerate().filter(|(_, is_same)| watched.is_settled(*is_same)).collect();
        let reads = read.iter().map(|(index, _)| *index as u32).collect::<Vec<_>>();
        assert_eq!(reads, [2, 2 + RESTLESS, 2 + 2 * RESTLESS]);
    }
}
