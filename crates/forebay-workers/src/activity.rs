//! State and CPU time of a process, from `/proc/PID/stat` and `schedstat` (proc(5)).

use rustix::process::Pid;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

/// The activity of the first thread of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Activity {
    /// True if the thread runs, or is ready to run and waits only for a processor.
    pub(crate) is_runnable: bool,
    /// CPU time of the thread since its start.
    pub(crate) cpu: Duration,
}

impl Activity {
    /// Reads the activity. Returns `None` if the process has ended, or if the kernel hides its
    /// activity, as for processes of other users with `hidepid`.
    pub(crate) fn of(process: Pid) -> Option<Self> {
        let stat = read(process, "stat")?;
        // The name of the program, in parentheses, precedes the state. The name may contain
        // parentheses, so search for the last one.
        let (_, fields) = stat.rsplit_once(") ")?;
        let schedstat = read(process, "schedstat")?;
        let nanoseconds = schedstat.split(' ').next()?.parse().ok()?;
        let cpu = Duration::from_nanos(nanoseconds);
        Some(Self { is_runnable: fields.starts_with('R'), cpu })
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

    /// A process that is killed at the end of the test, even after a failed assertion.
    struct KilledOnDrop(Child);

    impl KilledOnDrop {
        fn new(script: &str) -> (Self, Pid) {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = Pid::from_child(&child);
            (Self(child), pid)
        }
    }

    impl Drop for KilledOnDrop {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Checks until `fits` returns true, for at most 20 s.
    fn becomes(process: Pid, fits: impl Fn(Activity) -> bool) -> bool {
        (0..20_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            Activity::of(process).is_some_and(&fits)
        })
    }

    #[test]
    fn computing_and_sleeping_processes_are_distinguished() {
        let (_computing, its_pid) = KilledOnDrop::new("while :; do :; done");
        assert!(becomes(its_pid, |seen| seen.is_runnable && seen.cpu > Duration::ZERO));
        let before = Activity::of(its_pid).unwrap().cpu;
        assert!(becomes(its_pid, |seen| seen.is_runnable && seen.cpu > before));
        let (sleeping, pid) = KilledOnDrop::new("exec sleep 60");
        assert!(becomes(pid, |seen| !seen.is_runnable));
        drop(sleeping);
        assert_eq!(Activity::of(pid), None);
    }
}
