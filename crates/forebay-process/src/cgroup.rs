//! Control groups (Linux, version 2), if this machine lets Forebay make them:
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html>.

use crate::Cpu;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The period of cpu.max, in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;

/// An existing control group. Dropping this value does not remove the group.
#[derive(Clone, Debug)]
pub struct Cgroup {
    path: PathBuf,
}

/// Limits of all processes of an application together. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Memory in bytes. The kernel kills processes of a group that exceeds this limit.
    pub memory: Option<u64>,
    /// CPU time in percent of one core.
    pub cpu_percent: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// A control group with limits. Dropping this value removes the group if no process is in the
/// group.
#[derive(Debug)]
pub struct LimitedCgroup(Cgroup);

impl Cgroup {
    /// Creates a group below the group of this process. Returns `None` if that is not permitted, or
    /// if the group does not count CPU time.
    pub fn create(name: &str) -> Option<Self> {
        let path = own_group()?.1.join(name);
        fs::create_dir(&path).ok()?;
        let group = Self { path };
        if group.cpu().is_ok() {
            return Some(group);
        }
        let _ = group.remove();
        None
    }

    /// Returns the control groups below the group of this process, with their names.
    /// [`create`](Cgroup::create) makes groups there, and other processes may make groups there,
    /// too.
    pub fn siblings() -> Vec<(String, Self)> {
        let entries = own_group().and_then(|(_, own)| fs::read_dir(own).ok());
        let named = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok()?;
            entry.file_type().ok()?.is_dir().then(|| (name, Self { path: entry.path() }))
        };
        entries.into_iter().flatten().flatten().filter_map(named).collect()
    }

    /// Returns a group that another process has made.
    pub fn existing(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the group's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the calling process into the group. The process must have only one thread.
    pub fn enter(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), "0")
    }

    /// Returns the CPU time of all processes that were ever in the group.
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

    /// Returns the processes that are in the group now.
    pub fn processes(&self) -> io::Result<Vec<i32>> {
        let text = fs::read_to_string(self.path.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Kills all processes in the group at once (Linux 5.14 and later).
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

impl LimitedCgroup {
    /// Returns a group for `app` with these limits, or the reason why none can be made. Returns
    /// `None` without limits.
    ///
    /// First tries to make the group below Forebay's own group. This fails if Forebay's own group
    /// contains processes, because such a group cannot enable controllers for groups below it. Then
    /// tries to make the group next to Forebay's own group. Under systemd, Forebay's unit needs
    /// `Delegate=yes`, best with `DelegateSubgroup=main`.
    pub(crate) fn make_here(
        app: &str,
        limits: CgroupLimits,
    ) -> Result<Option<LimitedCgroup>, String> {
        if limits == CgroupLimits::default() {
            return Ok(None);
        }
        let (mount, own) = own_group().ok_or("cgroup version 2 is not mounted")?;
        let beside = own.parent().filter(|parent| parent.starts_with(&mount));
        let mut why = String::new();
        for place in [Some(own.as_path()), beside].into_iter().flatten() {
            match make_in(place, app, limits) {
                Ok(group) => return Ok(Some(group)),
                Err(reason) => why = format!("{}: {reason}", place.display()),
            }
        }
        Err(why)
    }

    /// Returns a group that another process has made as [`make_here`](LimitedCgroup::make_here)
    /// does.
    pub(crate) fn made_at(path: PathBuf) -> LimitedCgroup {
        LimitedCgroup(Cgroup { path })
    }

    /// Returns the group's directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for LimitedCgroup {
    fn drop(&mut self) {
        let _ = self.0.remove();
    }
}

fn make_in(place: &Path, app: &str, limits: CgroupLimits) -> Result<LimitedCgroup, String> {
    let files = files(limits);
    let has = fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
    for (controller, ..) in &files {
        if !has.split_whitespace().any(|name| name == *controller) {
            return Err(format!("there is no {controller} controller"));
        }
        // Ignore an error, because the controller may be enabled already. If the controller is not
        // enabled, the write of the limit fails below.
        let _ = fs::write(place.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    let name: String =
        app.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let path = place.join(format!("forebay-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).map_err(|error| error.to_string())?;
    let group = LimitedCgroup(Cgroup { path });
    for (_, file, value) in files {
        fs::write(group.path().join(file), value).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(group)
}

/// Returns, for each limit, the controller, the file to write, and the text to write.
fn files(limits: CgroupLimits) -> Vec<(&'static str, &'static str, String)> {
    let CgroupLimits { memory, cpu_percent, processes } = limits;
    let memory = memory.map(|most| ("memory", "memory.max", most.to_string()));
    let share = |percent: u64| format!("{} {PERIOD}", percent.saturating_mul(PERIOD) / 100);
    let cpu = cpu_percent.map(|percent| ("cpu", "cpu.max", share(percent)));
    let pids = processes.map(|most| ("pids", "pids.max", most.to_string()));
    [memory, cpu, pids].into_iter().flatten().collect()
}

/// Returns the mount point of cgroup v2, and the directory of this process's group. Returns `None`
/// if cgroup v2 is not mounted, or the mounted part of the hierarchy does not contain the group.
fn own_group() -> Option<(PathBuf, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    find_group(&mounts, &groups)
}

/// Returns the same as [`own_group`]. `mounts` is the content of `/proc/self/mountinfo`, and
/// `groups` the content of `/proc/self/cgroup`.
///
/// The mount point is often `/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` if cgroup v1 is mounted,
/// too. In a container, only a part of the hierarchy may be mounted.
fn find_group(mounts: &str, groups: &str) -> Option<(PathBuf, PathBuf)> {
    let (root, mount) = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, mount) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then(|| (PathBuf::from(root), PathBuf::from(mount)))
    })?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let own = mount.join(Path::new(own).strip_prefix(&root).ok()?);
    Some((mount, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_become_files() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let limits =
            CgroupLimits { memory: Some(1 << 20), cpu_percent: Some(150), processes: Some(9) };
        let group = make_in(dir.path(), "a/b", limits).unwrap();
        let read = |file| fs::read_to_string(group.path().join(file)).unwrap();
        assert_eq!(read("memory.max"), "1048576");
        assert_eq!(read("cpu.max"), "150000 100000");
        assert_eq!(read("pids.max"), "9");
        assert_eq!(group.path().parent(), Some(dir.path()));
    }

    #[test]
    fn a_controller_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let limits = CgroupLimits { processes: Some(9), ..CgroupLimits::default() };
        let why = make_in(dir.path(), "a", limits).unwrap_err();
        assert_eq!(why, "there is no pids controller");
        assert!(LimitedCgroup::make_here("a", CgroupLimits::default()).unwrap().is_none());
    }

    #[test]
    fn the_own_group_is_found_wherever_version_2_is_mounted() {
        let mounts = "1 2 0:3 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      4 2 0:5 /box /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n";
        let found = find_group(mounts, "3:cpu:/x\n0::/box/a.service\n").unwrap();
        let mount = Path::new("/sys/fs/cgroup/unified");
        assert_eq!(found, (mount.to_owned(), mount.join("a.service")));
        assert_eq!(find_group(mounts, "0::/other"), None, "it lies outside of what is mounted");
        assert_eq!(find_group("", "0::/a"), None);
    }
}
