//! Temporary directory and control group of a measured server.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_process::cgroup::Cgroup;
use tempfile::TempDir;

/// Name of the file in the server's temporary directory for its standard output and error.
pub const OUTPUT_FILE: &str = "server-output.log";

/// Prefix of the names of directories and control groups. The keeper's process ID follows the
/// prefix.
const PREFIX: &str = "forebay-compare-";

/// Temporary directory and, if permitted, control group of a measured server. Only the owner can
/// write to the directory, but a server that dropped its privileges can read it. Dropping this
/// value removes the directory and the group.
pub struct Room {
    directory: Option<TempDir>,
    pub cgroup: Option<Cgroup>,
}

impl Room {
    /// Creates the directory and the control group. First cleans up after keepers that were killed.
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

    pub fn path(&self) -> &Path {
        self.directory.as_ref().map_or(Path::new(""), TempDir::path)
    }

    /// Removes the directory and the group. Returns the items that could not be removed.
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

/// Ends processes of servers that earlier keepers have left, and removes their directories. If a
/// keeper is killed, the kernel ends the server, but not processes that the server has put into the
/// background. If `forebay compare` was killed, too, only the control group still lists these
/// processes.
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

/// Returns true if a keeper with this process ID is running. Zombies, and other programs that got
/// the same ID, do not count.
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

/// Removes a control group. The kernel needs a moment after the last process has ended, so the
/// removal is retried.
pub fn remove_soon(cgroup: &Cgroup) -> std::io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        match cgroup.remove() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            result => return result,
        }
    }
}
