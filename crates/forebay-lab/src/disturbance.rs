//! Detection of slices that other work on the machine disturbed. A slice is excluded only because
//! of counters read during the slice, never because of its rate.

use std::fmt;
use std::time::Duration;

use forebay_stat::median;

use crate::trial::Slice;

/// Sign that other work disturbed a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disturbance {
    /// The hypervisor gave the processors to other machines.
    Steal,
    /// The server's threads waited longer for a processor than usual.
    RunDelay,
    /// A loop of fixed work took longer than usual.
    Calibration,
}

/// Minimum stolen processor time that makes a slice disturbed. The limit applies to the sum over
/// all processors, as a share of the slice's duration.
const STEAL: f64 = 0.1;
/// A slice is disturbed if its run-queue delay, as a share of its duration, exceeds this limit: the
/// configuration's median share times `USUAL_RUN_DELAY`, plus `RUN_DELAY`. The median is not zero:
/// in every slice, the server's threads compete with each other and with the client.
const RUN_DELAY: f64 = 0.25;
const USUAL_RUN_DELAY: f64 = 1.5;
/// Minimum ratio of the calibration loop's time in a disturbed slice to its median in the
/// experiment.
const CALIBRATION: f64 = 1.2;

/// Minimum number of slices that give a useful median.
const FEWEST_SLICES: usize = 10;

/// Returns one result for each of `slices`: the kind of disturbance by other work, or `None`. All
/// `slices` belong to one configuration.
///
/// With fewer than ten slices, all results are `None`. `calibration` is the median time of the
/// calibration loop in the whole experiment.
pub fn disturbances(slices: &[Slice], calibration: Duration) -> Vec<Option<Disturbance>> {
    if slices.len() < FEWEST_SLICES {
        return vec![None; slices.len()];
    }
    let share =
        |slice: &Slice, part: Duration| part.as_secs_f64() / slice.duration.as_secs_f64().max(1e-9);
    let delays: Vec<f64> =
        slices.iter().map(|slice| share(slice, slice.evidence.run_delay)).collect();
    let usual = median(&delays).unwrap_or(0.0);
    let judge = |(slice, delay): (&Slice, &f64)| {
        let evidence = &slice.evidence;
        if share(slice, evidence.steal) > STEAL {
            Some(Disturbance::Steal)
        } else if *delay > usual * USUAL_RUN_DELAY + RUN_DELAY {
            Some(Disturbance::RunDelay)
        } else if evidence.calibration > calibration.mul_f64(CALIBRATION) {
            Some(Disturbance::Calibration)
        } else {
            None
        }
    };
    slices.iter().zip(&delays).map(judge).collect()
}

/// Returns the median time of the calibration loop over all slices.
pub fn usual_calibration<'a>(slices: impl Iterator<Item = &'a Slice>) -> Duration {
    let times: Vec<f64> = slices.map(|slice| slice.evidence.calibration.as_secs_f64()).collect();
    Duration::from_secs_f64(median(&times).unwrap_or(0.0))
}

impl fmt::Display for Disturbance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Steal => "stolen processor time",
            Self::RunDelay => "run-queue delay",
            Self::Calibration => "a slower calibration loop",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Evidence;

    const MS: Duration = Duration::from_millis(1);

    fn slice(steal: Duration, run_delay: Duration, calibration: Duration) -> Slice {
        let evidence = Evidence { steal, run_delay, calibration };
        let duration = 150 * MS;
        Slice { number: 0, duration, completed: 100, cpu: MS, rss: 0, evidence, printed: None }
    }

    #[test]
    fn each_evidence_is_told_from_what_is_usual() {
        let usual = slice(Duration::ZERO, 60 * MS, MS);
        let mut slices = vec![usual; 10];
        slices[1] = slice(20 * MS, 60 * MS, MS);
        slices[2] = slice(10 * MS, 60 * MS, MS);
        slices[3] = slice(Duration::ZERO, 200 * MS, MS);
        slices[4] = slice(Duration::ZERO, 90 * MS, MS);
        slices[5] = slice(Duration::ZERO, 60 * MS, MS * 5 / 4);
        let found = disturbances(&slices, usual_calibration(slices.iter()));
        let mut expected = vec![None; 10];
        expected[1] = Some(Disturbance::Steal);
        expected[3] = Some(Disturbance::RunDelay);
        expected[5] = Some(Disturbance::Calibration);
        assert_eq!(found, expected);
    }

    #[test]
    fn the_result_of_a_slice_is_no_evidence() {
        let mut slices = vec![slice(Duration::ZERO, MS, MS); 10];
        (slices[3].completed, slices[3].cpu) = (1, 100 * MS);
        assert_eq!(disturbances(&slices, MS), [None; 10]);
        assert!(disturbances(&[], MS).is_empty());
        assert_eq!(disturbances(&[slice(MS * 100, MS, MS); 9], MS), [None; 9], "too few");
    }
}
