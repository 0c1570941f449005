//! Signs that other work disturbed a measurement. All signs come from the machine's counters, never
//! from the measured rate.

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use super::Tree;

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
