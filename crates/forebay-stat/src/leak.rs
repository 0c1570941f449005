//! Detection of memory that grows with the number of requests.

use crate::summary::median;

/// Growth of memory per request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Bytes per request: the Theil-Sen slope.
    pub slope: f64,
    /// 95 % bootstrap confidence interval of `slope`.
    pub ci95: [f64; 2],
    /// Theil-Sen slope over the second half of the bursts only.
    pub late_slope: f64,
}

/// Minimum number of bursts for an estimate. A burst is a series of requests, followed by an idle
/// pause.
pub const FEWEST_BURSTS: usize = 6;

/// Growth of at most this many bytes per request counts as noise of page allocation and
/// measurement.
const LEAST: f64 = 1.0;

/// Smallest ratio of the late slope to the whole slope that counts as a leak. A cache that fills
/// grows ever more slowly, but a leak grows as fast in the second half as in the first.
const PLATEAU: f64 = 0.5;

const RESAMPLINGS: usize = 999;

/// Estimates the growth of memory over `bursts`. Each burst is `(requests so far, bytes in use
/// during the idle pause after the burst)`.
///
/// Returns `None` for fewer than [`FEWEST_BURSTS`] bursts. Also returns `None` if all bursts, or
/// all bursts of the second half, have the same number of requests.
///
/// The estimate is the Theil-Sen slope (Sen 1968). Its interval is a percentile bootstrap over
/// bursts (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13).
pub fn growth(bursts: &[(f64, f64)]) -> Option<Growth> {
    if bursts.len() < FEWEST_BURSTS {
        return None;
    }
    let slope = theil_sen(bursts)?;
    let late_slope = theil_sen(&bursts[bursts.len() / 2..])?;
    // With a fixed seed, a second report from the same data is identical.
    let mut draws = Draws(0x9e37_79b9_7f4a_7c15);
    let mut slopes: Vec<f64> = (0..RESAMPLINGS)
        .filter_map(|_| {
            let sample: Vec<(f64, f64)> =
                bursts.iter().map(|_| bursts[draws.below(bursts.len())]).collect();
            theil_sen(&sample)
        })
        .collect();
    slopes.sort_by(f64::total_cmp);
    let at = |share: f64| slopes[((slopes.len() - 1) as f64 * share).round() as usize];
    Some(Growth { slope, ci95: [at(0.025), at(0.975)], late_slope })
}

impl Growth {
    /// Returns true if memory leaks: the whole interval of the growth is above one byte per
    /// request, and the growth does not level off in the second half of the bursts.
    pub fn is_leak(&self) -> bool {
        self.ci95[0] > LEAST && self.late_slope > PLATEAU * self.slope
    }
}

/// Generator of pseudo-random numbers: xorshift64* (Vigna, "An experimental exploration of
/// Marsaglia's xorshift generators, scrambled", 2016).
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        (bits as usize) % bound
    }
}

/// Returns the Theil-Sen slope of `(x, y)` points. This is the median of the slopes between all
/// pairs with different x.
///
/// The slope tolerates arbitrary errors in up to 29 % of the points (Sen, "Estimates of the
/// Regression Coefficient Based on Kendall's Tau", JASA 63, 1968). Returns `None` if all x are
/// equal.
///
/// Time and memory grow with the square of the number of points, so the function suits tens to
/// hundreds of points.
pub fn theil_sen(points: &[(f64, f64)]) -> Option<f64> {
    let mut slopes = Vec::with_capacity(points.len() * points.len().saturating_sub(1) / 2);
    for (i, (x1, y1)) in points.iter().enumerate() {
        slopes.extend(
            points[i + 1..].iter().filter(|(x2, _)| x2 != x1).map(|(x2, y2)| (y2 - y1) / (x2 - x1)),
        );
    }
    median(&slopes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bursts(memory: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let mut random = fastrand::Rng::with_seed(3);
        let noise = move |random: &mut fastrand::Rng| (random.f64() - 0.5) * 40_000.0;
        (1..=20)
            .map(|burst| f64::from(burst) * 500.0)
            .map(|requests| (requests, 8e6 + memory(requests) + noise(&mut random)))
            .collect()
    }

    #[test]
    fn a_kilobyte_a_request_is_found_with_its_size() {
        let growth = growth(&bursts(|requests| requests * 1024.0)).unwrap();
        assert!(growth.is_leak(), "{growth:?}");
        assert!(growth.ci95[0] <= 1024.0 && growth.ci95[1] >= 1024.0, "{growth:?}");
        assert!((growth.slope / 1024.0 - 1.0).abs() < 0.01, "{growth:?}");
    }

    #[test]
    fn noise_is_no_leak() {
        assert!(!growth(&bursts(|_| 0.0)).unwrap().is_leak());
    }

    #[test]
    fn a_cache_that_fills_is_no_leak() {
        let growth = growth(&bursts(|requests| requests.min(3500.0) * 2000.0)).unwrap();
        assert!(growth.slope > 1.0 && !growth.is_leak(), "{growth:?}");
    }

    #[test]
    fn few_bursts_say_nothing() {
        assert_eq!(growth(&[(1.0, 1.0); 5]), None);
        assert_eq!(growth(&[(1.0, 1.0); 9]), None, "all at the same number of requests");
    }
}

#[cfg(test)]
mod slope_tests {
    use super::*;

    #[test]
    fn a_line_has_its_slope() {
        let points: Vec<_> = (0..10).map(|x| (f64::from(x), 3.0 * f64::from(x) + 7.0)).collect();
        assert_eq!(theil_sen(&points), Some(3.0));
    }

    #[test]
    fn wild_points_do_not_move_it() {
        let mut points: Vec<_> = (0..11).map(|x| (f64::from(x), 2.0 * f64::from(x))).collect();
        points[5].1 = 1e6;
        points[9].1 = -1e6;
        assert_eq!(theil_sen(&points), Some(2.0));
    }

    #[test]
    fn median_of_pairwise_slopes() {
        // The slopes are: (1,9)-(2,15) 6, (1,9)-(3,19) 5, (1,9)-(4,20) 11/3, (2,15)-(3,19) 4,
        // (2,15)-(4,20) 2.5, (3,19)-(4,20) 1. Their median is (11/3 + 4) / 2.
        let slope = theil_sen(&[(1.0, 9.0), (2.0, 15.0), (3.0, 19.0), (4.0, 20.0)]).unwrap();
        assert!((slope - (11.0 / 3.0 + 4.0) / 2.0).abs() < 1e-12);
    }

    #[test]
    fn no_slope_without_two_places() {
        assert_eq!(theil_sen(&[(1.0, 2.0)]), None);
        assert_eq!(theil_sen(&[(1.0, 2.0), (1.0, 3.0)]), None);
    }
}
