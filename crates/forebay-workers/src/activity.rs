//! What a process does at this moment, as the kernel tells.

use rustix::process::Pid;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

/// What the first thread of a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Activity {
    /// It runs, or waits for nothing but a processor.
    pub(crate) is_runnable: bool,
    /// How long it has run since its start.
    pub(crate) cpu: Duration,
}

impl Activity {
    /// `None` where the kernel does not tell, as of another user's process with `hidepid`.
    pub(crate) fn of(process: Pid) -> Option<Activity> {
        let stat = read(process, "stat")?;
        // The name in front of the state may hold anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        let schedstat = read(process, "schedstat")?;
        let nanoseconds = schedstat.split(' ').next()?.parse().ok()?;
        let cpu = Duration::from_nanos(nanoseconds);
        Some(Activity { is_runnable: fields.starts_with('R'), cpu })
    }
}

fn read(process: Pid, name: &str) -> Option<String> {
    let mut text = [0; 1024];
    let mut file = File::open(format!("/proc/{}/{name}", process.as_raw_nonzero())).ok()?;
    let len = file.read(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text[..len]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn start(script: &str) -> (Child, Pid) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_child(&child);
        (child, pid)
    }

    /// Looks until it fits, for 20 s at the most.
    fn becomes(process: Pid, fits: impl Fn(Activity) -> bool) -> bool {
        (0..20_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            Activity::of(process).is_some_and(&fits)
        })
    }

    #[test]
    fn who_computes_and_who_sleeps_is_told_apart() {
        let (mut computing, its_pid) = start("while :; do :; done");
        assert!(becomes(its_pid, |seen| seen.is_runnable && seen.cpu > Duration::ZERO));
        let before = Activity::of(its_pid).unwrap().cpu;
        assert!(becomes(its_pid, |seen| seen.is_runnable && seen.cpu > before));
        let (mut sleeping, pid) = start("exec sleep 60");
        assert!(becomes(pid, |seen| !seen.is_runnable));
        for child in [&mut computing, &mut sleeping] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(Activity::of(pid), None);
    }
}
