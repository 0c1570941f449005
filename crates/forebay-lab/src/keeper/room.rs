//! A trial's place on the machine: its temporary directory and its control group.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_process::cgroup::Cgroup;
use tempfile::TempDir;

/// The file in the trial's directory that takes the server's standard output and error.
pub const OUTPUT_FILE: &str = "server-output.log";

/// What the names of directories and control groups begin with; the keeper's process id follows.
const PREFIX: &str = "forebay-compare-";

/// A directory that only its owner can write to, but servers that drop privileges can read; and a
/// control group where permitted. Both are gone when this is dropped.
pub struct Room {
    directory: Option<TempDir>,
    pub cgroup: Option<Cgroup>,
}

impl Room {
    /// Makes both.
    pub fn open() -> std::io::Result<Self> {
        sweep();
        let keeper = std::process::id();
        let directory = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{keeper}-"))
            .permissions(Permissions::from_mode(0o755))
            .tempdir()?;
        let cgroup = Cgroup::create(&format!("{PREFIX}{keeper}"));
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

/// Ends what is left of earlier trials. Nobody could, where a keeper was killed together with its
/// `forebay compare`: the kernel then ends the server, but not what that put into the background.
/// Only the control group still knows those processes.
fn sweep() {
    for (name, cgroup) in Cgroup::siblings() {
        let Some(keeper) = name.strip_prefix(PREFIX).filter(|pid| pid.parse::<u32>().is_ok())
        else {
            continue;
        };
        if is_alive(keeper) {
            continue;
        }
        let _ = cgroup.kill();
        if remove_soon(&cgroup).is_ok() {
            remove_directories(&format!("{PREFIX}{keeper}-"));
        }
    }
}

/// Whether a keeper of this id lives; neither a zombie nor whoever got the id later is one.
fn is_alive(keeper: &str) -> bool {
    let command = Path::new("/proc").join(keeper).join("cmdline");
    std::fs::read(command).is_ok_and(|line| line.split(|&byte| byte == 0).any(|a| a == b"__keeper"))
}

fn remove_directories(prefix: &str) {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
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
