//! A control group (version 2) for one trial's server, where this machine permits one.
//!
//! It counts the CPU time of every process that was ever in it, short-lived ones included, and can
//! end all of them at once. Without permission, or without cgroup v2, there is simply none:
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use procfs::process::Process;

use super::Cpu;

/// A group that exists.
#[derive(Clone, Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Creates a group below this process's own; none where that is not permitted.
    pub fn create(name: &str) -> Option<Self> {
        let path = own_group()?.join(name);
        fs::create_dir(&path).ok()?;
        let group = Self { path };
        if group.cpu().is_ok() {
            return Some(group);
        }
        let _ = group.remove();
        None
    }

    /// Groups beside it that other processes made, by name.
    pub fn siblings() -> Vec<(String, Self)> {
        let entries = own_group().and_then(|own| fs::read_dir(own).ok());
        let named = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            entry.file_type().ok()?.is_dir().then(|| (name, Self { path: entry.path() }))
        };
        entries.into_iter().flatten().flatten().filter_map(named).collect()
    }

    /// A group made by another process.
    pub fn existing(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where it lies in the file system.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling process into the group. Only for a process with a single thread.
    pub fn enter(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), "0")
    }

    /// CPU time of all processes that were ever in the group.
    pub fn cpu(&self) -> io::Result<Cpu> {
        let text = fs::read_to_string(self.path.join("cpu.stat"))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).map(Duration::from_micros)
        };
        match (field("user_usec "), field("system_usec ")) {
            (Some(user), Some(system)) => Ok(Cpu { user, system }),
            _ => Err(io::Error::other("cpu.stat holds no CPU time")),
        }
    }

    /// The processes in the group now.
    pub fn processes(&self) -> io::Result<Vec<i32>> {
        let text = fs::read_to_string(self.path.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Ends every process in the group at once (Linux 5.14 and later).
    pub fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Removes the group, which must be empty.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

/// The directory of the group that this process is in. Version 2 may be mounted anywhere, often at
/// `/sys/fs/cgroup`, beside version 1 at `/sys/fs/cgroup/unified`.
fn own_group() -> Option<PathBuf> {
    let myself = Process::myself().ok()?;
    let mounts = myself.mountinfo().ok()?;
    let mount = mounts.0.into_iter().find(|mount| mount.fs_type == "cgroup2")?;
    let groups = myself.cgroups().ok()?;
    let own = groups.0.into_iter().find(|group| group.hierarchy == 0)?.pathname;
    let below = Path::new(&own).strip_prefix(&mount.root).ok()?;
    Some(mount.mount_point.join(below))
}
