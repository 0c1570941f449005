//! Observes processes: finds the processes of a server, and reads their CPU time and memory.

pub use forebay_process::Cpu;

use std::collections::BTreeSet;
use std::fs;
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_process::cgroup::Cgroup;
use forebay_process::descendants::{Stat, descendants};
use procfs::net::{self, TcpState};
use procfs::process::{FDTarget, all_processes};
use procfs::{Current, LoadAverage};

// All descendants of a process, and their total resource usage.

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

// Thread that samples memory, threads and processes of a server several times per second while it
// is loaded.

/// Time from the start of a slice to its first sample. Even a short slice then has a sample.
const FIRST: Duration = Duration::from_millis(70);
/// Interval of further samples: long enough not to disturb the measurement, short enough to see a
/// peak.
const INTERVAL: Duration = Duration::from_millis(200);

/// Interval, number and total time limit of the samples that look for an idle server.
const QUIET_INTERVAL: Duration = Duration::from_millis(10);
const QUIET_LOOKS: usize = 3;
const QUIET_PATIENCE: Duration = Duration::from_secs(2);

/// Resident memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Loaded time of the server so far, without the pauses between slices.
    pub at: Duration,
    /// Resident memory in bytes.
    pub rss: u64,
}

/// Observations of a server during its load.
#[derive(Clone, Debug)]
pub struct Series {
    /// CPU time that the server used in its slices.
    pub cpu: Cpu,
    /// Source from which the CPU time was read.
    pub cpu_method: CpuMethod,
    /// Resident memory over time, from the start of the first slice to the end of the last.
    pub memory: Vec<Point>,
    /// Resident memory in bytes before the load, when the server was idle.
    pub rss_start: u64,
    /// Resident memory in bytes after the load, when the server was idle and processes for single
    /// requests had ended.
    pub rss_end: u64,
    /// Maximum of each value over all samples.
    pub most: Glance,
    /// Mean load of the machine in the slices: threads of all programs that ran or wanted to. The
    /// kernel's own averages also contain what other servers did in the last minutes. `None`: not
    /// known.
    pub load: Option<f64>,
}

/// Handle of the sampling thread, which takes samples only while its server is loaded.
pub struct Sampler {
    orders: Sender<Order>,
    looks: Receiver<Glance>,
    thread: JoinHandle<Series>,
}

enum Order {
    Begin,
    End,
    Finish,
}

impl Sampler {
    /// Starts the thread. Returns after the first sample, which is taken while the server is idle.
    pub fn start(tree: Tree) -> Self {
        let (orders, ordered) = mpsc::channel();
        let (looked, looks) = mpsc::channel();
        let thread = std::thread::spawn(move || sample(&tree, &ordered, &looked));
        // An error means that the thread has ended; `finish` reports that.
        let _ = looks.recv();
        Self { orders, looks, thread }
    }

    /// Starts sampling at the start of a slice.
    pub fn begin(&self) {
        let _ = self.orders.send(Order::Begin);
    }

    /// Ends sampling at the end of a slice, and returns the last sample of the slice.
    pub fn end(&self) -> Glance {
        let _ = self.orders.send(Order::End);
        self.looks.recv().unwrap_or_default()
    }

    /// Waits until the server is idle and returns all observations.
    pub fn finish(self) -> Series {
        let _ = self.orders.send(Order::Finish);
        self.thread.join().expect("the sampler only reads /proc and control group files")
    }
}

/// Observes the server's processes during each period of load, once before the first period, and
/// once after the last.
fn sample(tree: &Tree, orders: &Receiver<Order>, looked: &Sender<Glance>) -> Series {
    let quiet = quiet_before(tree);
    let mut series = Series::begin(tree, &quiet);
    let _ = looked.send(quiet);
    let (mut loaded, mut loads) = (Duration::ZERO, Vec::new());
    while let Ok(Order::Begin) = orders.recv() {
        let began = Instant::now();
        let mut wait = FIRST;
        while let Err(RecvTimeoutError::Timeout) = orders.recv_timeout(wait) {
            loads.extend(runnable());
            series.look(tree, loaded + began.elapsed());
            wait = INTERVAL;
        }
        loaded += began.elapsed();
        if loads.is_empty() {
            loads.extend(runnable());
        }
        let _ = looked.send(series.look(tree, loaded));
    }
    series.load = (!loads.is_empty()).then(|| loads.iter().sum::<f64>() / loads.len() as f64);
    series.rss_end = quiet_after(tree, &quiet).rss;
    series
}

/// The number of threads of the machine that run or want to, without this one.
fn runnable() -> Option<f64> {
    LoadAverage::current().ok().map(|load| f64::from(load.cur.saturating_sub(1)))
}

impl Series {
    fn begin(tree: &Tree, quiet: &Glance) -> Self {
        Self {
            cpu: Cpu::default(),
            cpu_method: tree.method(),
            memory: vec![Point { at: Duration::ZERO, rss: quiet.rss }],
            rss_start: quiet.rss,
            rss_end: quiet.rss,
            most: *quiet,
            load: None,
        }
    }

    fn look(&mut self, tree: &Tree, at: Duration) -> Glance {
        let glance = tree.glance();
        self.memory.push(Point { at, rss: glance.rss });
        self.most.rss = self.most.rss.max(glance.rss);
        self.most.threads = self.most.threads.max(glance.threads);
        self.most.processes = self.most.processes.max(glance.processes);
        self.most.fds = self.most.fds.max(glance.fds);
        glance
    }
}

/// Takes a few samples, and returns the one with the least memory. During the first sample, the
/// process that answered the last check may still be running.
fn quiet_before(tree: &Tree) -> Glance {
    let mut quiet = tree.glance();
    for _ in 1..QUIET_LOOKS {
        std::thread::sleep(QUIET_INTERVAL);
        let glance = tree.glance();
        if glance.rss < quiet.rss {
            quiet = glance;
        }
    }
    quiet
}

/// Waits until at most as many processes exist as in `before`, or the time limit is over. Returns
/// the last sample.
fn quiet_after(tree: &Tree, before: &Glance) -> Glance {
    let deadline = Instant::now() + QUIET_PATIENCE;
    loop {
        let glance = tree.glance();
        if glance.processes <= before.processes || Instant::now() >= deadline {
            return glance;
        }
        std::thread::sleep(QUIET_INTERVAL);
    }
}

/// Counters that show if other work disturbed a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Processor time that the hypervisor gave to other machines, over all processors.
    pub steal: Duration,
    /// Time that threads of the server were ready to run but had to wait.
    pub run_delay: Duration,
    /// Time of a fixed loop: the larger of one value from before and one from after the slice.
    pub calibration: Duration,
}

/// Reads the machine's counters at the start and at the end of a slice.
pub struct Witness {
    steal: Duration,
    run_delay: Duration,
    calibration: Duration,
}

/// Number of iterations of the calibration loop, which take about 0.1 ms.
const TURNS: u64 = 100_000;
/// Number of times that the loop runs. The fastest run counts, so that a single interrupt is no
/// sign of a disturbance.
const RUNS: usize = 3;

impl Witness {
    /// Reads the counters before a slice.
    pub fn begin(tree: &Tree) -> Self {
        let calibration = calibrate();
        Self { steal: steal(), run_delay: tree.run_delay(), calibration }
    }

    /// Reads the counters after the slice.
    pub fn end(self, tree: &Tree) -> Evidence {
        let (steal, run_delay) = (steal(), tree.run_delay());
        Evidence {
            steal: steal.saturating_sub(self.steal),
            // Processes that ended during the slice no longer contribute, so the difference could
            // be negative.
            run_delay: run_delay.saturating_sub(self.run_delay),
            calibration: self.calibration.max(calibrate()),
        }
    }
}

fn calibrate() -> Duration {
    let run = || {
        let began = Instant::now();
        let mut value = black_box(1u64);
        for turn in 0..TURNS {
            value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn);
        }
        black_box(value);
        began.elapsed()
    };
    (0..RUNS).map(|_| run()).min().unwrap_or_default()
}

/// Returns the stolen time since the boot: the eighth figure in the first line of `/proc/stat`
/// (proc_stat(5)). Returns zero if the figure cannot be read.
fn steal() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
    let ticks: u64 = ticks.unwrap_or(0);
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
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

    #[test]
    fn a_calibration_takes_time_and_a_quiet_process_no_delay() {
        // This test does not observe its own process, because other tests start child processes in
        // it at the same time.
        let mut parent = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let tree = Tree::new(parent.id() as i32, None);
        let evidence = Witness::begin(&tree).end(&tree);
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(evidence.calibration > Duration::ZERO);
        assert_eq!(evidence.run_delay, Duration::ZERO, "that process has no children");
    }
}
