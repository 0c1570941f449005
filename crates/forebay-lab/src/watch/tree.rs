//! All descendants of a process, and their common resource usage.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_process::Cpu;
use forebay_process::cgroup::Cgroup;
use forebay_process::descendants::{Stat, descendants};

/// Source of the server's CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMethod {
    /// The trial's control group: exact to the microsecond.
    Cgroup,
    /// `/proc`, in clock ticks (usually 10 ms). The sum includes processes that are alive and those
    /// reaped by a parent. Children of a process that ignores SIGCHLD are missing.
    Proc,
}

/// Resource usage of the processes at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Glance {
    /// Resident memory in bytes; a page shared by n processes counts n times.
    pub rss: u64,
    /// Threads of all processes.
    pub threads: u64,
    /// Processes.
    pub processes: u64,
    /// Open file descriptors, of processes with readable `/proc` entries.
    pub fds: u64,
}

/// Processes of one trial's server: the descendants of its keeper.
pub struct Tree {
    keeper: i32,
    cgroup: Option<Cgroup>,
}

impl Tree {
    /// Creates the tree of process `keeper`. The control group is used only if it contains
    /// processes.
    pub fn new(keeper: i32, cgroup: Option<Cgroup>) -> Self {
        let occupied = |group: &Cgroup| group.processes().is_ok_and(|pids| !pids.is_empty());
        Self { keeper, cgroup: cgroup.filter(occupied) }
    }

    /// Returns the source of [`cpu`](Self::cpu).
    pub fn method(&self) -> CpuMethod {
        if self.cgroup.is_some() { CpuMethod::Cgroup } else { CpuMethod::Proc }
    }

    /// Returns the CPU time used so far, including ended processes.
    pub fn cpu(&self) -> Cpu {
        if let Some(cpu) = self.cgroup.as_ref().and_then(|group| group.cpu().ok()) {
            return cpu;
        }
        // The keeper is read first. The CPU time of a child that ends during the loop is then
        // missing for a moment, but never counted twice.
        let ended = Stat::of(self.keeper).map_or(Cpu::default(), |keeper| keeper.cpu_of_children);
        let taken = |stat: &Stat| stat.cpu + stat.cpu_of_children;
        ended + descendants(self.keeper).iter().map(taken).sum()
    }

    /// Returns the current resource usage. The call costs a few microseconds per process, so it is
    /// made only a few times per second.
    pub fn glance(&self) -> Glance {
        let mut glance = Glance::default();
        for stat in self.processes() {
            glance.rss += stat.rss;
            glance.threads += stat.threads;
            glance.processes += 1;
            let fds = fs::read_dir(format!("/proc/{}/fd", stat.pid)).map(Iterator::count);
            glance.fds += fds.unwrap_or(0) as u64;
        }
        glance
    }

    /// Returns the time that threads of living processes were ready to run but had to wait.
    pub fn run_delay(&self) -> Duration {
        let pids: Vec<i32> = match self.cgroup.as_ref().and_then(|group| group.processes().ok()) {
            Some(pids) => pids,
            None => descendants(self.keeper).iter().map(|stat| stat.pid).collect(),
        };
        pids.into_iter().map(run_delay).sum()
    }

    /// Returns the control group of the processes, if they have one.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(Cgroup::path)
    }

    /// Returns the living processes, without zombies.
    pub fn pids(&self) -> Vec<i32> {
        self.processes().iter().filter(|stat| stat.rss > 0).map(|stat| stat.pid).collect()
    }

    fn processes(&self) -> Vec<Stat> {
        match self.cgroup.as_ref().and_then(|group| group.processes().ok()) {
            Some(pids) => pids.into_iter().filter_map(Stat::of).collect(),
            None => descendants(self.keeper),
        }
    }
}

/// Returns the run-queue delay of a process: the sum over all threads of the second figure of
/// `/proc/PID/task/TID/schedstat`, in nanoseconds (Documentation/scheduler/sched-stats.rst).
/// Returns zero if the kernel does not count it.
fn run_delay(pid: i32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let waited = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}
