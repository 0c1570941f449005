//! Detection of steps that other work on the machine disturbed. The figures of a step do not show a
//! disturbance, because a server at its limit misses the goals, too.
//!
//! - Before a step, while the server is idle, a loop computes for a moment. If the loop often waits
//!   for a processor, other programs use the processors.
//! - During a step, a thread sleeps for a few milliseconds at a time, and adds up the delays of its
//!   wake-ups. A pause of the whole machine delays this thread, but a busy server hardly does: the
//!   scheduler prefers a thread that sleeps most of the time. The closed loop before the first step
//!   loads the server fully. So the delays during this loop are the usual ones without a
//!   disturbance.
//! - The kernel counts the time that a hypervisor gave to other machines.

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Sign that other work disturbed a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepDisturbance {
    /// Other programs used the processors before the step.
    Busy,
    /// Threads ran later than planned during the step.
    Late,
    /// The hypervisor gave the processors to other machines during the step.
    Stolen,
}

impl fmt::Display for StepDisturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "other programs used the processors",
            Self::Late => "threads ran late",
            Self::Stolen => "stolen processor time",
        })
    }
}

/// Duration of the loop before a step. It is longer than the scheduler's time slices.
const LOOP: Duration = Duration::from_millis(20);
/// The machine is busy if the loop waits for more than this share of its time.
const BUSY: f64 = 0.25;
/// A short job of another program is no disturbance: the loop runs again, up to this many times,
/// after a pause.
const LOOPS: usize = 4;
const PAUSE: Duration = Duration::from_millis(30);

/// Interval of the wake-ups during a step.
const INTERVAL: Duration = Duration::from_millis(5);
/// Delays up to this value are usual on an idle machine.
const USUAL: Duration = Duration::from_millis(1);
/// A step is disturbed if its delays, as a share of its duration, exceed this limit: `USUAL_LATE`
/// times the share in the closed loop, plus `LATE`.
const LATE: f64 = 0.01;
const USUAL_LATE: f64 = 1.5;

/// Minimum stolen time of a disturbed step, as a share of its duration.
const STOLEN: f64 = 0.1;

/// Signs of other work during one load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// True if other programs used the processors before the load.
    pub is_busy: bool,
    pub late: f64,
    pub stolen: f64,
}

impl Evidence {
    /// Runs `load`, and watches the machine before and during the load. Returns the evidence and
    /// the result of `load`.
    pub fn of<T>(load: impl FnOnce() -> T) -> (Self, T) {
        let is_busy = is_busy();
        let (is_over, stolen, began) = (AtomicBool::new(false), stolen(), Instant::now());
        let (late, result) = thread::scope(|scope| {
            let watching = thread::Builder::new().name("watch".into());
            let watching = watching.spawn_scoped(scope, || delays(&is_over));
            let result = load();
            is_over.store(true, Ordering::Relaxed);
            let late = watching.map(|thread| thread.join().unwrap_or_default());
            (late.unwrap_or_default(), result)
        });
        let duration = began.elapsed().as_secs_f64().max(1e-9);
        let stolen = self::stolen().saturating_sub(stolen).as_secs_f64() / duration;
        (Self { is_busy, late: late.as_secs_f64() / duration, stolen }, result)
    }

    /// Returns the sign that other work disturbed this step, or `None` without such a sign. `usual`
    /// is the evidence of the closed loop that runs before the first step.
    pub fn disturbance(&self, usual: &Self) -> Option<StepDisturbance> {
        if self.is_busy {
            Some(StepDisturbance::Busy)
        } else if self.stolen > STOLEN {
            Some(StepDisturbance::Stolen)
        } else if self.late > usual.late * USUAL_LATE + LATE {
            Some(StepDisturbance::Late)
        } else {
            None
        }
    }
}

/// Returns true if this thread often waits for a processor.
fn is_busy() -> bool {
    (0..LOOPS).all(|turn| {
        if turn > 0 {
            thread::sleep(PAUSE);
        }
        let (began, used) = (Instant::now(), processor_time());
        while began.elapsed() < LOOP {
            std::hint::spin_loop();
        }
        let (elapsed, used) = (began.elapsed(), processor_time().saturating_sub(used));
        elapsed.saturating_sub(used) > elapsed.mul_f64(BUSY)
    })
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Sleeps repeatedly for `INTERVAL`, until `is_over` is true. Returns the sum of the delays of all
/// wake-ups. `USUAL` is subtracted from each delay.
fn delays(is_over: &AtomicBool) -> Duration {
    let mut sum = Duration::ZERO;
    while !is_over.load(Ordering::Relaxed) {
        let due = Instant::now() + INTERVAL;
        thread::sleep(INTERVAL);
        sum += due.elapsed().saturating_sub(USUAL);
    }
    sum
}

/// Returns the stolen time since the boot, as the mean over the processors. The eighth figure in
/// the first line of `/proc/stat` (proc_stat(5)) is the stolen time of all processors together.
fn stolen() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks = text.lines().next().and_then(|line| line.split_whitespace().nth(8)?.parse().ok());
    let ticks: u64 = ticks.unwrap_or(0);
    // The lines after the first one each describe one processor.
    let processors = text.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
    let ticks = ticks as f64 / processors.max(1) as f64;
    Duration::from_secs_f64(ticks / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_disturbed_by_other_programs_pauses_and_other_machines() {
        let usual = Evidence { late: 0.02, ..Evidence::default() };
        let of = |is_busy, late, stolen| Evidence { is_busy, late, stolen }.disturbance(&usual);
        assert_eq!(of(false, 0.03, 0.05), None);
        assert_eq!(of(true, 0.0, 0.0), Some(StepDisturbance::Busy));
        assert_eq!(of(false, 0.05, 0.0), Some(StepDisturbance::Late));
        assert_eq!(of(false, 0.0, 0.2), Some(StepDisturbance::Stolen));
    }

    #[test]
    fn a_load_is_watched_to_its_end() {
        let (evidence, result) = Evidence::of(|| 7);
        assert_eq!(result, 7);
        assert!(evidence.late >= 0.0 && evidence.stolen >= 0.0, "{evidence:?}");
        assert!(processor_time() > Duration::ZERO);
    }
}
