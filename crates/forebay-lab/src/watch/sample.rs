//! Thread that samples memory, threads and processes of a server several times per second while it
//! is loaded.

use std::fs;
use std::hint::black_box;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use procfs::{Current, LoadAverage};

use super::{Cpu, CpuMethod, Glance, Tree};

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
    use super::*;

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
