//! Facts of the kernel about a running server.

use std::fs;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

/// Returns the private memory of a process in bytes.
pub fn resident(pid: u32) -> u64 {
    try_resident(pid).expect("the process lives")
}

/// Returns the private memory of all these processes in bytes. Ended ones do not count.
pub fn resident_of_all(pids: &[u32]) -> u64 {
    pids.iter().filter_map(|&pid| try_resident(pid)).sum()
}

fn try_resident(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    Some(kib * 1024)
}

/// Returns the open descriptors of a process.
pub fn descriptors(pid: u32) -> Vec<u32> {
    let folder = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").flatten();
    let mut numbers: Vec<u32> =
        folder.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the CPU time of all threads of a process in clock ticks.
pub fn processor_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    let fields: Vec<&str> = fields.split(' ').collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

/// Returns the number of times that the threads of a process have waited.
pub fn waits(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten();
    let statuses =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    statuses.map(|status| waits_of(&status)).sum()
}

fn waits_of(status: &str) -> u64 {
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.expect("the kernel counts them").trim().parse().expect("a number")
}

/// Returns the children of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let folder = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let ids = folder.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|&id| parent(id) == Some(pid)).collect()
}

/// Returns all processes below this one.
pub fn descendants(root: u32) -> Vec<u32> {
    let folder = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let ids = folder.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = ids.filter_map(|id| Some((id, parent(id)?))).collect();
    let mut all = vec![root];
    let mut at = 0;
    while at < all.len() {
        let of_this = parents.iter().filter(|(_, parent)| *parent == all[at]);
        let next: Vec<u32> = of_this.map(|(id, _)| *id).collect();
        all.extend(next);
        at += 1;
    }
    all.split_off(1)
}

/// Returns the children that run a program of this name, even if they have changed their own name.
pub fn children_that_run(pid: u32, program: &str) -> Vec<u32> {
    let runs = |child: &u32| {
        let file = fs::read_link(format!("/proc/{child}/exe"));
        file.is_ok_and(|file| file.file_name().is_some_and(|name| name == program))
    };
    children(pid).into_iter().filter(runs).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    (fields.next()? != "Z").then(|| fields.next()?.parse().ok())?
}

/// Sends SIGKILL, unless the process has ended.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Sends a signal, unless the process has ended.
pub fn signal(pid: u32, signal: Signal) {
    let _has_ended = kill_process(raw(pid), signal);
}

/// Prevents a process from opening descriptors. Its open descriptors stay.
pub fn starve(pid: u32) {
    limit_descriptors(pid, 0);
}

/// Lets a process open a descriptor only after it has closed another.
pub fn fill_descriptors(pid: u32) {
    let open = descriptors(pid);
    let unused = (0..).find(|number| !open.contains(number)).expect("some number is unused");
    limit_descriptors(pid, u64::from(unused));
}

/// Prevents files of a process from growing beyond this many bytes.
pub fn limit_file_size(pid: u32, most: u64) {
    let limit = Rlimit { current: Some(most), maximum: getrlimit(Resource::Fsize).maximum };
    prlimit(Some(raw(pid)), Resource::Fsize, limit).expect("the process is ours");
}

/// Lets a process open only descriptors below this number.
pub fn limit_descriptors(pid: u32, most: u64) {
    let limit = Rlimit { current: Some(most), maximum: getrlimit(Resource::Nofile).maximum };
    prlimit(Some(raw(pid)), Resource::Nofile, limit).expect("the process is ours");
}

fn raw(pid: u32) -> Pid {
    Pid::from_raw(pid as i32).expect("a process id is not 0")
}
