//! Reloads the configuration when its files change (`--watch`).
//!
//! A thread compares the metadata of the files once a second. Kubernetes updates a mounted ConfigMap
//! by swapping a link to a directory. So the path of a file then leads to another file, and inotify
//! would need watches on each directory of the path.

use std::collections::BTreeMap;
use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_net::log::ErrorLog;
use rustix::process::{Signal, getpid, kill_process};

/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// Device, inode, size, and time of the last change of a file.
type Stamp = (u64, u64, u64, i64, i64);

/// State of each file; `None` if it cannot be found.
type Stamps = BTreeMap<PathBuf, Option<Stamp>>;

/// The files of a configuration, as they were when it was read.
pub(super) struct Watched {
    file: PathBuf,
    stamps: Stamps,
}

impl Watched {
    /// Notes the state of all files. Call this before the configuration is read.
    pub(super) fn new(file: &Path) -> Self {
        let mut watched = Self { file: file.to_owned(), stamps: Stamps::new() };
        watched.renew();
        watched
    }

    /// Watches the files on a thread of its own. A change sends SIGHUP to this process, so that a
    /// reload never meets another one or an upgrade.
    pub(super) fn start(mut self, errors: ErrorLog) {
        let thread = std::thread::Builder::new().name("watch".into());
        let log = errors.clone();
        let watching = move || {
            loop {
                std::thread::sleep(INTERVAL);
                if self.has_changed() {
                    log.info("the files of the configuration have changed");
                    let _ = kill_process(getpid(), Signal::HUP);
                }
            }
        };
        if let Err(error) = thread.spawn(watching) {
            errors.error(&format!("--watch has no effect: {error}"));
        }
    }

    /// Returns true once after each change. A file that is being written changes again after the
    /// first write, so two looks in a row must find the same state.
    fn has_changed(&mut self) -> bool {
        let now = self.look();
        if now == self.stamps {
            return false;
        }
        std::thread::sleep(INTERVAL / 10);
        if self.look() != now {
            return false;
        }
        self.stamps = now;
        self.renew();
        true
    }

    fn look(&self) -> Stamps {
        self.stamps.keys().map(|path| (path.clone(), stamp(path))).collect()
    }

    /// Finds the files of the configuration again. If it has an error, earlier files are still
    /// watched, because the error may be in one of them.
    fn renew(&mut self) {
        let mut paths = forebay_conf::inputs(&self.file);
        match forebay_conf::load(&self.file) {
            Ok(plan) => paths.extend(forebay_conf::certificate_files(&plan)),
            Err(_) => paths.extend(self.stamps.keys().cloned()),
        }
        let known = std::mem::take(&mut self.stamps);
        // A known file keeps its state, so that a change since the look is noticed.
        let state = |path: &PathBuf| known.get(path).copied().unwrap_or_else(|| stamp(path));
        self.stamps = paths.into_iter().map(|path| (path.clone(), state(&path))).collect();
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
}
