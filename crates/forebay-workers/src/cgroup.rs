//! A control group (Linux, version 2) for the processes of one application, where Forebay may make
//! one: <https://docs.kernel.org/admin-guide/cgroup-v2.html>.
//!
//! It is made below the group that Forebay is in, or beside it: a group with processes cannot hand
//! out controllers. So systemd has to delegate (`Delegate=yes`), best with `DelegateSubgroup=main`.

use crate::stderr::Log;
use std::fs;
use std::path::{Path, PathBuf};

/// The period of cpu.max, in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;

/// What the processes of an application may use together. `None`: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes of memory; the kernel kills what exceeds it.
    pub memory: Option<u64>,
    /// CPU time in percent of one core.
    pub cpu_percent: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// A control group; dropped, it is removed, if no process is in it any more.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// A group for `app` with these limits, or why there cannot be one. None without limits.
    pub(crate) fn make(app: &str, limits: CgroupLimits) -> Result<Option<Cgroup>, String> {
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

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A group for `app`, if limits ask for one; and what to say where there cannot be one, which is
/// said in the log, too.
pub(crate) fn prepare(
    app: &str,
    limits: CgroupLimits,
    log: &Log,
) -> (Option<Cgroup>, Option<String>) {
    match Cgroup::make(app, limits) {
        Ok(group) => (group, None),
        Err(why) => {
            let note = format!("no control group, so the limits of `cgroup` do not hold: {why}");
            log(&format!("[{app}] {note}"));
            (None, Some(note))
        }
    }
}

fn make_in(place: &Path, app: &str, limits: CgroupLimits) -> Result<Cgroup, String> {
    let files = files(limits);
    let has = fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
    for (controller, ..) in &files {
        if !has.split_whitespace().any(|name| name == *controller) {
            return Err(format!("there is no {controller} controller"));
        }
        // Fails where it is handed out already by others' leave, which the next step finds out.
        let _ = fs::write(place.join("cgroup.subtree_control"), format!("+{controller}"));
    }
    let name: String =
        app.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let path = place.join(format!("forebay-{name}-{}", std::process::id()));
    fs::create_dir_all(&path).map_err(|error| error.to_string())?;
    let group = Cgroup(path);
    for (_, file, value) in files {
        fs::write(group.0.join(file), value).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(group)
}

/// Controllers, files and what is written into them.
fn files(limits: CgroupLimits) -> Vec<(&'static str, &'static str, String)> {
    let CgroupLimits { memory, cpu_percent, processes } = limits;
    let memory = memory.map(|most| ("memory", "memory.max", most.to_string()));
    let share = |percent: u64| format!("{} {PERIOD}", percent.saturating_mul(PERIOD) / 100);
    let cpu = cpu_percent.map(|percent| ("cpu", "cpu.max", share(percent)));
    let pids = processes.map(|most| ("pids", "pids.max", most.to_string()));
    [memory, cpu, pids].into_iter().flatten().collect()
}

/// Where version 2 is mounted, and the group that this process is in.
fn own_group() -> Option<(PathBuf, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| PathBuf::from(mount.split(' ').nth(4).unwrap_or("/")))
    })?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some((mount.clone(), mount.join(own)))
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
        assert!(Cgroup::make("a", CgroupLimits::default()).unwrap().is_none());
    }
}
