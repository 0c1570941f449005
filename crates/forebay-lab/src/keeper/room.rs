//! A trial's place on the machine: its temporary directory and its control group.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::watch::Cgroup;

/// The file in the trial's directory that takes the server's standard output and error.
pub const OUTPUT_FILE: &str = "server-output.log";

/// A directory that only its owner can write to, but servers that drop privileges can read; and a
/// control group where permitted. Both are gone when this is dropped.
pub struct Room {
    directory: Option<TempDir>,
    pub cgroup: Option<Cgroup>,
}

impl Room {
    /// Makes both.
    pub fn open() -> std::io::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("forebay-compare-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()?;
        let cgroup = Cgroup::create(&format!("forebay-compare-{}", std::process::id()));
        Ok(Self { directory: Some(directory), cgroup })
    }

    /// The temporary directory.
    pub fn path(&self) -> &Path {
        self.directory.as_ref().map_or(Path::new(""), TempDir::path)
    }

    /// Removes both; returns what could not be removed.
    pub fn close(&mut self) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(directory) = self.directory.take() {
            let path: PathBuf = directory.path().to_owned();
            if let Err(error) = directory.close() {
                left.push(format!("directory {}: {error}", path.display()));
            }
        }
        if let Some(Err(error)) = self.cgroup.take().as_ref().map(remove_soon) {
            left.push(format!("control group: {error}"));
        }
        left
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.close();
    }
}

/// Removes a group whose last process was only just reaped: the kernel may need a moment.
pub fn remove_soon(cgroup: &Cgroup) -> std::io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match cgroup.remove() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
}
