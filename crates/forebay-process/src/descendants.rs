//! The descendants of a process.

use std::collections::HashMap;
use std::fs;
use std::iter::Sum;
use std::ops::{Add, Sub};
use std::path::Path;
use std::time::Duration;

/// A process, as proc_pid_stat(5) describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Stat {
    pub pid: i32,
    /// Id of the parent: the process that started this process, or that adopted it later.
    pub parent: i32,
    /// Name of the program. The kernel cuts this name to 15 bytes.
    pub name: String,
    pub cpu: Cpu,
    /// CPU time of children that the process has waited for.
    pub cpu_of_children: Cpu,
    pub threads: u64,
    /// Resident memory in bytes; 0 for a zombie.
    pub rss: u64,
}

impl Stat {
    /// Returns the process with this id. Returns `None` if there is no such process.
    pub fn of(pid: i32) -> Option<Stat> {
        read(pid, Path::new("/proc").join(pid.to_string()).as_path())
    }
}

/// Returns all descendants of `root`, including zombies.
pub fn descendants(root: i32) -> Vec<Stat> {
    let mut by_parent: HashMap<i32, Vec<Stat>> = HashMap::new();
    for folder in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = folder.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(stat) = pid.and_then(|pid| read(pid, &folder.path())) {
            by_parent.entry(stat.parent).or_default().push(stat);
        }
    }
    let mut all = by_parent.remove(&root).unwrap_or_default();
    let mut at = 0;
    while let Some(next) = all.get(at) {
        let children = by_parent.remove(&next.pid);
        all.extend(children.into_iter().flatten());
        at += 1;
    }
    all
}

/// Resources that processes use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory in bytes. Shared pages count for each process.
    pub rss: u64,
    /// CPU time since the start of the processes. Includes the CPU time of children that were
    /// waited for.
    pub cpu: Duration,
}

/// Returns the resources of a process. Memory and CPU time are zero if the process does not exist.
pub fn usage_of(pid: i32) -> Usage {
    Stat::of(pid).map_or_else(Usage::default, |stat| Usage {
        rss: stat.rss,
        cpu: stat.cpu.total() + stat.cpu_of_children.total(),
    })
}

/// Returns the resources of all descendants of `root`, including ended ones.
pub fn usage_below(root: i32) -> Usage {
    let ended = Stat::of(root).map_or(Duration::ZERO, |stat| stat.cpu_of_children.total());
    descendants(root).iter().fold(Usage { rss: 0, cpu: ended }, |all, stat| Usage {
        rss: all.rss + stat.rss,
        cpu: all.cpu + stat.cpu.total() + stat.cpu_of_children.total(),
    })
}

/// Returns true if the end of the process has begun, or if the process does not exist. The kernel
/// marks a process before it closes its files, so the mark is visible to a peer that sees a
/// connection break.
pub fn is_exiting(pid: u32) -> bool {
    /// PF_EXITING in proc_pid_stat(5), field 9.
    const EXITING: u32 = 4;
    let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { return true };
    let stat = String::from_utf8_lossy(&stat);
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
    let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u32>().ok());
    flags.is_none_or(|flags| flags & EXITING != 0)
}

fn read(pid: i32, folder: &Path) -> Option<Stat> {
    parse(pid, &String::from_utf8_lossy(&fs::read(folder.join("stat")).ok()?))
}

fn parse(pid: i32, stat: &str) -> Option<Stat> {
    // The name in parentheses may itself contain spaces and parentheses.
    let (front, fields) = stat.rsplit_once(") ")?;
    let name = front.split_once('(')?.1.to_owned();
    // The first of these fields is field 3 of the manual page, the state.
    let fields: Vec<&str> = fields.trim_end().split(' ').collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let cpu = |user: usize, system: usize| {
        Some(Cpu { user: ticks(number(user)?), system: ticks(number(system)?) })
    };
    Some(Stat {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        name,
        cpu: cpu(11, 12)?,
        cpu_of_children: cpu(13, 14)?,
        threads: number(17)?,
        rss: number(21)? * rustix::param::page_size() as u64,
    })
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// CPU time of one or more processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu {
    /// CPU time in the program itself.
    pub user: Duration,
    /// CPU time in the kernel, on behalf of the program.
    pub system: Duration,
}

impl Cpu {
    /// Returns user and system time together.
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    #[test]
    fn an_end_that_has_begun_is_seen_until_it_is_reaped_and_after() {
        assert!(!is_exiting(std::process::id()));
        let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        // The process has closed its files, so it is a zombie or becomes one soon.
        std::io::copy(child.stdout.as_mut().unwrap(), &mut std::io::sink()).unwrap();
        assert!(is_exiting(pid));
        child.wait().unwrap();
        assert!(is_exiting(pid));
    }

    #[test]
    fn a_line_of_proc_is_read_whatever_the_name() {
        let line = "5 (a) b) S 4 0 0 0 0 0 0 0 0 0 100 200 300 0 0 0 2 0 0 0 7 0\n";
        let found = parse(5, line).unwrap();
        assert_eq!((found.parent, found.name.as_str(), found.threads), (4, "a) b", 2));
        assert_eq!(found.rss, 7 * rustix::param::page_size() as u64);
        assert_eq!(found.cpu.total(), found.cpu_of_children.total());
        assert_eq!(found.cpu.system, 2 * found.cpu.user);
        assert_eq!(parse(5, "5 (a"), None);
        assert_eq!(parse(5, "5 (a) S 4 0"), None);
    }

    #[test]
    fn a_child_and_its_memory_are_found() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let own = std::process::id() as i32;
        assert!(descendants(own).iter().any(|found| found.pid == child.id() as i32));
        // For a moment, the child has no memory of its own.
        let deadline = Instant::now() + Duration::from_secs(20);
        while usage_below(own).rss == 0 {
            assert!(Instant::now() < deadline, "its memory was never found");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!descendants(own).iter().any(|found| found.pid == child.id() as i32));
    }

    #[test]
    fn cpu_time_of_a_process_and_of_what_has_ended_below_it_is_counted() {
        let own = std::process::id() as i32;
        let (before, ended) = (usage_of(own), usage_below(own));
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        assert!(Command::new("sh").args(["-c", work]).status().unwrap().success());
        assert!(usage_below(own).cpu > ended.cpu);
        assert!(usage_of(own).cpu > before.cpu);
        assert_eq!(usage_of(i32::MAX), Usage::default());
    }
}
