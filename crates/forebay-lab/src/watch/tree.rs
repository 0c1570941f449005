//! All descendants of a process, and their total resource usage.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;

use forebay_process::Cpu;
use forebay_process::cgroup::Cgroup;
use forebay_process::descendants::{Stat, descendants};
use procfs::net::{self, TcpState};
use procfs::process::{FDTarget, all_processes};

/// Source of the server's CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMethod {
    /// The control group of the server, which is exact to the microsecond.
    Cgroup,
    /// `/proc`, in clock ticks (usually 10 ms). The sum includes running processes, and ended ones
    /// that their parent has reaped. If a process ignores SIGCHLD, its ended children are missing.
    Proc,
}

/// Resource usage of the processes at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Glance {
    /// Resident memory in bytes; a page shared by n processes counts n times.
    pub rss: u64,
    /// Number of threads of all processes together.
    pub threads: u64,
    /// Number of processes.
    pub processes: u64,
    /// Number of open file descriptors, of the processes whose `/proc` entries this user can read.
    pub fds: u64,
}

/// Processes of one trial's server.
pub struct Tree {
    top: Top,
    cgroup: Option<Cgroup>,
}

/// Processes from which all processes of a server descend.
enum Top {
    /// Keeper process that started the server. The keeper itself is not part of the server.
    Keeper(i32),
    /// The first processes of a server that Forebay did not start.
    Server(Vec<i32>),
}

impl Tree {
    /// Returns the server's processes: the descendants of process `keeper`. If `cgroup` contains
    /// processes, reads the processes and their CPU time from `cgroup`. Otherwise reads them from
    /// /proc.
    pub fn new(keeper: i32, cgroup: Option<Cgroup>) -> Self {
        let occupied = |group: &Cgroup| group.processes().is_ok_and(|pids| !pids.is_empty());
        Self { top: Top::Keeper(keeper), cgroup: cgroup.filter(occupied) }
    }

    /// Returns the processes of a server that Forebay did not start: `first` and their descendants.
    /// If their control group contains no other processes, reads CPU time from the group. Otherwise
    /// reads it from /proc.
    pub fn of_server(first: Vec<i32>) -> Self {
        let top = Top::Server(first);
        let own: BTreeSet<i32> = top.processes().iter().map(|stat| stat.pid).collect();
        let group = own.first().and_then(|&pid| group_of(pid));
        let is_own = |group: &Cgroup| {
            group
                .processes()
                .is_ok_and(|pids| !pids.is_empty() && pids.iter().all(|pid| own.contains(pid)))
        };
        Self { cgroup: group.filter(is_own), top }
    }

    /// Returns the source from which [`cpu`](Self::cpu) is read.
    pub fn method(&self) -> CpuMethod {
        if self.cgroup.is_some() { CpuMethod::Cgroup } else { CpuMethod::Proc }
    }

    /// Returns the CPU time used so far, including the CPU time of ended processes.
    pub fn cpu(&self) -> Cpu {
        if let Some(cpu) = self.cgroup.as_ref().and_then(|group| group.cpu().ok()) {
            return cpu;
        }
        let taken = |stat: &Stat| stat.cpu + stat.cpu_of_children;
        // First read the keeper, the parent process that counts the CPU time of ended children. If
        // a child ends after that, the sum lacks the CPU time of this child. In the other order,
        // the sum could contain this CPU time twice.
        let ended = match &self.top {
            Top::Keeper(keeper) => Stat::of(*keeper).map(|keeper| keeper.cpu_of_children),
            Top::Server(_) => None,
        };
        ended.unwrap_or_default() + self.top.processes().iter().map(taken).sum()
    }

    /// Returns the current resource usage. Each call costs a few microseconds per process, so
    /// callers make only a few calls per second.
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

    /// Returns the total time that threads of running processes were ready to run but had to wait.
    pub fn run_delay(&self) -> Duration {
        let pids: Vec<i32> = match self.cgroup.as_ref().and_then(|group| group.processes().ok()) {
            Some(pids) => pids,
            None => self.top.processes().iter().map(|stat| stat.pid).collect(),
        };
        pids.into_iter().map(run_delay).sum()
    }

    /// Returns the control group that contains the server's processes and no others, if there is
    /// one.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(Cgroup::path)
    }

    /// Returns the process IDs of the running processes, without zombies.
    pub fn pids(&self) -> Vec<i32> {
        self.processes().iter().filter(|stat| stat.rss > 0).map(|stat| stat.pid).collect()
    }

    fn processes(&self) -> Vec<Stat> {
        match self.cgroup.as_ref().and_then(|group| group.processes().ok()) {
            Some(pids) => pids.into_iter().filter_map(Stat::of).collect(),
            None => self.top.processes(),
        }
    }
}

impl Top {
    fn processes(&self) -> Vec<Stat> {
        match self {
            Self::Keeper(keeper) => descendants(*keeper),
            Self::Server(first) => {
                let with_descendants = |&pid: &i32| {
                    let first = Stat::of(pid);
                    let below = if first.is_some() { descendants(pid) } else { Vec::new() };
                    first.into_iter().chain(below)
                };
                first.iter().flat_map(with_descendants).collect()
            }
        }
    }
}

/// Returns the control group (version 2) of a process. Returns `None` if the group cannot be read,
/// or is the root group of the system.
fn group_of(pid: i32) -> Option<Cgroup> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let name = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    (!name.is_empty()).then(|| Cgroup::existing(Path::new("/sys/fs/cgroup").join(name)))
}

/// Returns the run-queue delay of a process: the sum over its threads of the second figure in
/// `/proc/PID/task/TID/schedstat`, in nanoseconds (Documentation/scheduler/sched-stats.rst).
/// Returns zero if the kernel does not count this delay.
fn run_delay(pid: i32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let waited = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').nth(1)?.parse::<u64>().ok()
    });
    Duration::from_nanos(waited.sum())
}

/// Programs that open listening sockets for other programs. Their descendants include more than
/// the server.
const STARTERS: [&str; 3] = ["systemd", "init", "dockerd"];

/// Returns the processes that listen at `HOST:PORT` or `unix:PATH` on this machine. Leaves out
/// process 1 and programs in `STARTERS`. If a process and its parent listen at the address, returns
/// only the parent.
///
/// Returns none if this user cannot see the processes. Also returns none if this program is one of
/// these processes, or a descendant of such a process.
pub fn listeners(address: &str) -> Vec<i32> {
    let sockets = match address.strip_prefix("unix:") {
        Some(path) => unix_sockets(Path::new(path)),
        None => tcp_sockets(address),
    };
    if sockets.is_empty() {
        return Vec::new();
    }
    let holders: Vec<Stat> = all_processes()
        .into_iter()
        .flatten()
        .flatten()
        .filter(|process| {
            let mut files = process.fd().into_iter().flatten().flatten();
            files.any(|file| matches!(file.target, FDTarget::Socket(at) if sockets.contains(&at)))
        })
        .filter_map(|process| Stat::of(process.pid()))
        .filter(|stat| stat.pid != 1 && !STARTERS.contains(&stat.name.as_str()))
        .collect();
    let pids: BTreeSet<i32> = holders.iter().map(|stat| stat.pid).collect();
    let roots = holders.iter().filter(|stat| !pids.contains(&stat.parent));
    let roots: Vec<i32> = roots.map(|stat| stat.pid).collect();
    let own = std::process::id() as i32;
    let is_above =
        |root: &i32| *root == own || descendants(*root).iter().any(|stat| stat.pid == own);
    if roots.iter().any(is_above) { Vec::new() } else { roots }
}

/// Returns the inodes of TCP sockets that accept connections for `address`.
fn tcp_sockets(address: &str) -> BTreeSet<u64> {
    let wanted: Vec<SocketAddr> = address
        .to_socket_addrs()
        .into_iter()
        .flatten()
        .filter(|address| is_local(address.ip()))
        .collect();
    let accepts = |listening: SocketAddr| {
        wanted.iter().any(|wanted| {
            listening.port() == wanted.port()
                && (listening.ip() == wanted.ip() || listening.ip().is_unspecified())
        })
    };
    let entries = net::tcp().into_iter().chain(net::tcp6()).flatten();
    let listening = entries.filter(|entry| entry.state == TcpState::Listen);
    listening.filter(|entry| accepts(entry.local_address)).map(|entry| entry.inode).collect()
}

fn unix_sockets(path: &Path) -> BTreeSet<u64> {
    let entries = net::unix().into_iter().flatten();
    entries.filter(|entry| entry.path.as_deref() == Some(path)).map(|entry| entry.inode).collect()
}

/// Returns true if `address` belongs to this machine: a socket can be bound only to such an
/// address.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_server_is_found_by_its_port_and_its_children_are_below_it() {
        // The parent listens, and its child inherits the socket.
        let script = "use IO::Socket::INET; $| = 1;\
            my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1') or die;\
            my $child = fork; if (!$child) { sleep 60; exit }\
            print $s->sockport, \"\\n\"; <STDIN>; kill TERM => $child; waitpid $child, 0;";
        let mut server = Command::new("perl")
            .args(["-MIO::Socket::INET", "-e", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let found = listeners(&format!("127.0.0.1:{}", port.trim()));
        drop(server.stdin.take());
        let pid = server.id() as i32;
        server.wait().unwrap();
        assert_eq!(found, [pid]);
    }

    #[test]
    fn a_server_in_this_process_and_one_elsewhere_are_not_watched() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(listeners(&address.to_string()).is_empty());
        // Documentation addresses (RFC 5737) belong to no machine.
        assert!(listeners(&format!("192.0.2.1:{}", address.port())).is_empty());
        assert!(listeners("unix:/no/such/socket").is_empty());
    }
}
