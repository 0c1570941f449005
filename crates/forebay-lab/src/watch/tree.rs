//! All processes that descend from one, and what they take together.

use std::collections::{HashMap, HashSet};
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::time::Duration;

use procfs::process::{Process, Stat, all_processes};

use super::Cgroup;

/// CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// In the program itself.
    pub user: Duration,
    /// In the kernel on its behalf.
    pub system: Duration,
}

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
    page_size: u64,
}

impl Tree {
    /// The descendants of process `keeper`. The control group is used only if they are in it.
    pub fn new(keeper: i32, cgroup: Option<Cgroup>) -> Self {
        let occupied = |group: &Cgroup| group.processes().is_ok_and(|pids| !pids.is_empty());
        Self { keeper, cgroup: cgroup.filter(occupied), page_size: procfs::page_size() }
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
        let keeper = Process::new(self.keeper).and_then(|process| process.stat());
        let ended = keeper.map_or(Cpu::default(), |stat| waited_for(&stat));
        ended + descendants(self.keeper).iter().map(|stat| own(stat) + waited_for(stat)).sum()
    }

    /// What is taken now. Costs a few microseconds per process, so take it a few times a second.
    pub fn glance(&self) -> Glance {
        let mut glance = Glance::default();
        for stat in self.processes() {
            glance.rss += stat.rss * self.page_size;
            glance.threads += stat.num_threads.max(0) as u64;
            glance.processes += 1;
            let fds = Process::new(stat.pid).and_then(|process| process.fd_count());
            glance.fds += fds.unwrap_or(0) as u64;
        }
        glance
    }

    fn processes(&self) -> Vec<Stat> {
        match self.cgroup.as_ref().and_then(|group| group.processes().ok()) {
            Some(pids) => pids.into_iter().filter_map(stat_of).collect(),
            None => descendants(self.keeper),
        }
    }
}

/// Every process below `ancestor`, which is not among them. Zombies are.
pub fn descendants(ancestor: i32) -> Vec<Stat> {
    let Ok(all) = all_processes() else { return Vec::new() };
    let mut children: HashMap<i32, Vec<Stat>> = HashMap::new();
    for stat in all.flatten().filter_map(|process| process.stat().ok()) {
        children.entry(stat.ppid).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut seen = HashSet::from([ancestor]);
    let mut next = vec![ancestor];
    while let Some(parent) = next.pop() {
        for stat in children.remove(&parent).unwrap_or_default() {
            if seen.insert(stat.pid) {
                next.push(stat.pid);
                found.push(stat);
            }
        }
    }
    found
}

fn stat_of(pid: i32) -> Option<Stat> {
    Process::new(pid).and_then(|process| process.stat()).ok()
}

fn own(stat: &Stat) -> Cpu {
    Cpu { user: ticks(stat.utime), system: ticks(stat.stime) }
}

fn waited_for(stat: &Stat) -> Cpu {
    let since_start = |ticks_taken: i64| ticks(ticks_taken.max(0) as u64);
    Cpu { user: since_start(stat.cutime), system: since_start(stat.cstime) }
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / procfs::ticks_per_second() as f64)
}

impl Cpu {
    /// User and system time together.
    pub fn total(&self) -> Duration {
        self.user + self.system
    }
}

impl Add for Cpu {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            user: self.user.saturating_sub(other.user),
            system: self.system.saturating_sub(other.system),
        }
    }
}

impl Sum for Cpu {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}
