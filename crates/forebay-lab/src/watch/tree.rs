//! All processes that descend from one, and what they take together.

use std::fs;
use std::path::Path;
use std::time::Duration;

use forebay_process::Cpu;
use forebay_process::cgroup::Cgroup;
use forebay_process::descendants::{Stat, descendants};

/// How the server's CPU time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMethod {
    /// By the trial's control group: exact, to the microsecond.
    Cgroup,
    /// From `/proc`, in clock ticks (10 ms as a rule): of the processes alive and of those that a
    /// parent waited for. Children of a process that ignores SIGCHLD are lost.
    Proc,
}

/// What the processes take at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Glance {
    /// Resident memory in bytes; a page shared by n processes counts n times.
    pub rss: u64,
    /// Threads of all processes.
    pub threads: u64,
    /// Processes.
    pub processes: u64,
    /// Open file descriptors, of those processes that may be looked into.
    pub fds: u64,
}

/// The processes of one trial's server: the descendants of its keeper.
pub struct Tree {
    keeper: i32,
    cgroup: Option<Cgroup>,
}

impl Tree {
    /// The descendants of process `keeper`. The control group is used only if they are in it.
    pub fn new(keeper: i32, cgroup: Option<Cgroup>) -> Self {
        let occupied = |group: &Cgroup| group.processes().is_ok_and(|pids| !pids.is_empty());
        Self { keeper, cgroup: cgroup.filter(occupied) }
    }

    /// How [`cpu`](Self::cpu) counts.
    pub fn method(&self) -> CpuMethod {
        if self.cgroup.is_some() { CpuMethod::Cgroup } else { CpuMethod::Proc }
    }

    /// CPU time taken so far, ended processes included.
    pub fn cpu(&self) -> Cpu {
        if let Some(cpu) = self.cgroup.as_ref().and_then(|group| group.cpu().ok()) {
            return cpu;
        }
        // The keeper is first: what its children leave behind while the rest is read is then
        // missed for a moment, never counted twice.
        let ended = Stat::of(self.keeper).map_or(Cpu::default(), |keeper| keeper.cpu_of_children);
        let taken = |stat: &Stat| stat.cpu + stat.cpu_of_children;
        ended + descendants(self.keeper).iter().map(taken).sum()
    }

    /// What is taken now. Costs a few microseconds per process, so take it a few times a second.
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

    /// How long threads of the processes alive were ready to run but had to wait for a processor.
    pub fn run_delay(&self) -> Duration {
        let pids: Vec<i32> = match self.cgroup.as_ref().and_then(|group| group.processes().ok()) {
            Some(pids) => pids,
            None => descendants(self.keeper).iter().map(|stat| stat.pid).collect(),
        };
        pids.into_iter().map(run_delay).sum()
    }

    /// The control group that they are in, if they have one.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(Cgroup::path)
    }

    /// The processes alive; zombies are not.
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

/// The second figure of `/proc/PID/task/TID/schedstat`, over all threads, is nanoseconds
/// (Documentation/scheduler/sched-stats.rst). Zero where the kernel does not count it.
fn run_delay(pid: i32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let waited = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}
