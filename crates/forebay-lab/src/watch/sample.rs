//! A thread that looks at a server several times a second while it is loaded.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Cpu, CpuMethod, Glance, Tree};

/// Long enough not to disturb what is measured, short enough to see a peak.
const INTERVAL: Duration = Duration::from_millis(200);

/// Resident memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Since the measured load began.
    pub at: Duration,
    /// Resident memory in bytes.
    pub rss: u64,
}

/// What was seen of a server while it was loaded.
#[derive(Clone, Debug)]
pub struct Series {
    /// CPU time taken in the measured window.
    pub cpu: Cpu,
    /// How that was counted.
    pub cpu_method: CpuMethod,
    /// Resident memory over time; first just before the load, last just after.
    pub memory: Vec<Point>,
    /// The largest of everything seen.
    pub most: Glance,
}

/// A running sampler.
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Series>,
}

impl Sampler {
    /// Looks once at once, then at intervals.
    pub fn start(tree: Tree) -> Self {
        let (stop, stopped) = mpsc::channel();
        let (first_look, looked) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut series = Series::begin(&tree);
            let cpu_before = tree.cpu();
            let began = Instant::now();
            let _ = first_look.send(());
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                series.look(&tree, began);
            }
            series.cpu = tree.cpu() - cpu_before;
            series.look(&tree, began);
            series
        });
        // An error here means that the thread is gone, which `finish` will report.
        let _ = looked.recv();
        Self { stop, thread }
    }

    /// Looks a last time and returns what was seen.
    pub fn finish(self) -> Series {
        let _ = self.stop.send(());
        self.thread.join().expect("the sampler only reads /proc and control group files")
    }
}

impl Series {
    fn begin(tree: &Tree) -> Self {
        let glance = tree.glance();
        let first = Point { at: Duration::ZERO, rss: glance.rss };
        let (cpu, cpu_method) = (Cpu::default(), tree.method());
        Self { cpu, cpu_method, memory: vec![first], most: glance }
    }

    fn look(&mut self, tree: &Tree, began: Instant) {
        let glance = tree.glance();
        self.memory.push(Point { at: began.elapsed(), rss: glance.rss });
        self.most.rss = self.most.rss.max(glance.rss);
        self.most.threads = self.most.threads.max(glance.threads);
        self.most.processes = self.most.processes.max(glance.processes);
        self.most.fds = self.most.fds.max(glance.fds);
    }
}
