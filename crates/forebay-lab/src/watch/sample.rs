//! A thread that looks at a server several times a second while it is loaded.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Cpu, CpuMethod, Glance, Tree};

/// From the beginning of a turn to the first look: in the middle of a short one.
const FIRST: Duration = Duration::from_millis(70);
/// Long enough not to disturb what is measured, short enough to see a peak.
const INTERVAL: Duration = Duration::from_millis(200);

/// How often and how long to look for a quiet moment.
const QUIET_INTERVAL: Duration = Duration::from_millis(10);
const QUIET_LOOKS: usize = 3;
const QUIET_PATIENCE: Duration = Duration::from_secs(2);

/// Resident memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// How long the server had been loaded by then.
    pub at: Duration,
    /// Resident memory in bytes.
    pub rss: u64,
}

/// What was seen of a server while it was loaded.
#[derive(Clone, Debug)]
pub struct Series {
    /// CPU time taken in its turns.
    pub cpu: Cpu,
    /// How that was counted.
    pub cpu_method: CpuMethod,
    /// Resident memory over time, from the start of the load to its end.
    pub memory: Vec<Point>,
    /// Resident memory in bytes at a quiet moment before the load.
    pub rss_start: u64,
    /// The same after it, once processes that only served requests in flight are gone.
    pub rss_end: u64,
    /// The largest of everything seen.
    pub most: Glance,
}

/// A sampler, which looks only in its server's turns.
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
    /// Looks for a quiet moment before it returns.
    pub fn start(tree: Tree) -> Self {
        let (orders, ordered) = mpsc::channel();
        let (looked, looks) = mpsc::channel();
        let thread = std::thread::spawn(move || sample(&tree, &ordered, &looked));
        // An error here means that the thread is gone, which `finish` will report.
        let _ = looks.recv();
        Self { orders, looks, thread }
    }

    /// The server's turn begins.
    pub fn begin(&self) {
        let _ = self.orders.send(Order::Begin);
    }

    /// The server's turn is over; what was seen then.
    pub fn end(&self) -> Glance {
        let _ = self.orders.send(Order::End);
        self.looks.recv().unwrap_or_default()
    }

    /// Waits for a quiet moment and returns what was seen.
    pub fn finish(self) -> Series {
        let _ = self.orders.send(Order::Finish);
        self.thread.join().expect("the sampler only reads /proc and control group files")
    }
}

fn sample(tree: &Tree, orders: &Receiver<Order>, looked: &Sender<Glance>) -> Series {
    let quiet = quiet_before(tree);
    let mut series = Series::begin(tree, &quiet);
    let _ = looked.send(quiet);
    let mut loaded = Duration::ZERO;
    while let Ok(Order::Begin) = orders.recv() {
        let began = Instant::now();
        let mut wait = FIRST;
        while let Err(RecvTimeoutError::Timeout) = orders.recv_timeout(wait) {
            series.look(tree, loaded + began.elapsed());
            wait = INTERVAL;
        }
        loaded += began.elapsed();
        let _ = looked.send(series.look(tree, loaded));
    }
    series.rss_end = quiet_after(tree, &quiet).rss;
    series
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

/// The least of a few looks: the process that answered the last check may still be ending.
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

/// A look once there are no more processes than before, or when patience ends.
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
