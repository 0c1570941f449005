//! What disturbs a measurement without being part of it: seen from the machine, never from the result.

use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use super::Tree;

/// What the machine did to others during a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Processor time that the hypervisor gave to other machines, of all processors together.
    pub steal: Duration,
    /// How long threads of the server were ready to run and had to wait.
    pub run_delay: Duration,
    /// The slower of two runs of a fixed loop, before the slice and behind it.
    pub calibration: Duration,
}

/// Looks at the machine at the beginning of a slice and at its end.
pub struct Witness {
    steal: Duration,
    run_delay: Duration,
    calibration: Duration,
}

/// Turns of the calibration loop: 0.1 ms or so.
const TURNS: u64 = 100_000;
/// The fastest of so many runs counts, so that a mere interrupt is no evidence.
const RUNS: usize = 3;

impl Witness {
    /// Looks before a slice.
    pub fn begin(tree: &Tree) -> Self {
        let calibration = calibrate();
        Self { steal: steal(), run_delay: tree.run_delay(), calibration }
    }

    /// Looks behind it.
    pub fn end(self, tree: &Tree) -> Evidence {
        let (steal, run_delay) = (steal(), tree.run_delay());
        Evidence {
            steal: steal.saturating_sub(self.steal),
            // Processes that ended meanwhile took their figures with them.
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

/// Stolen time since the machine started (proc_stat(5), the eighth figure of the first line).
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
        // Not this process: other tests start children of it meanwhile.
        let mut parent = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let tree = Tree::new(parent.id() as i32, None);
        let evidence = Witness::begin(&tree).end(&tree);
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(evidence.calibration > Duration::ZERO);
        assert_eq!(evidence.run_delay, Duration::ZERO, "that process has no children");
    }
}
