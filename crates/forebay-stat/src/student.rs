//! Student's t distribution.

use std::f64::consts::FRAC_2_PI;

/// Returns the `p` quantile of Student's t distribution with `degrees` degrees of freedom.
///
/// The function inverts the distribution function of Abramowitz and Stegun 26.7.3 and 26.7.4 by
/// bisection. The sums in these formulas are finite for whole degrees of freedom, so the result is
/// exact except for rounding. Returns NaN if `degrees` is 0, or if `p` is not greater than 0 and
/// less than 1.
pub fn t_quantile(p: f64, degrees: u32) -> f64 {
    if degrees == 0 || !(p > 0.0 && p < 1.0) {
        return f64::NAN;
    }
    if p < 0.5 {
        return -t_quantile(1.0 - p, degrees);
    }
    // At the quantile x, the probability of |t| <= x is `central`.
    let central = 2.0 * p - 1.0;
    // Double the upper bound until it exceeds the quantile, then bisect.
    let (mut low, mut high) = (0.0, 1.0);
    while central_probability(high, degrees) < central && high < 1e300 {
        high *= 2.0;
    }
    loop {
        let middle = low + (high - low) / 2.0;
        if middle <= low || middle >= high {
            return middle;
        }
        if central_probability(middle, degrees) < central {
            low = middle;
        } else {
            high = middle;
        }
    }
}

/// Returns the two-sided p-value of `t`: the probability that a t-distributed variable is further
/// from 0 than `t`. Returns NaN if `degrees` is 0 or `t` is NaN.
pub fn t_two_sided(t: f64, degrees: u32) -> f64 {
    if degrees == 0 || t.is_nan() {
        return f64::NAN;
    }
    (1.0 - central_probability(t.abs(), degrees)).clamp(0.0, 1.0)
}

/// Returns the probability that a t-distributed variable is between `-t` and `t`.
fn central_probability(t: f64, degrees: u32) -> f64 {
    let degrees_f = f64::from(degrees);
    let theta = (t / degrees_f.sqrt()).atan();
    let (sin, cos) = theta.sin_cos();
    let odd = degrees % 2 == 1;
    // Each term is cos^k times a product of (k - 1) / k. The exponent k rises by 2, up to
    // degrees - 2.
    let mut term = if odd { cos } else { 1.0 };
    let mut sum = if degrees == 1 { 0.0 } else { term };
    let mut k = if odd { 3 } else { 2 };
    while k + 2 <= degrees {
        term *= cos * cos * f64::from(k - 1) / f64::from(k);
        sum += term;
        k += 2;
    }
    if odd { FRAC_2_PI * (theta + sin * sum) } else { sin * sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each element is `(p, degrees, scipy.stats.t.ppf(p, degrees))`. The usual printed tables
    /// agree.
    const PUBLISHED: &[(f64, u32, f64)] = &[
        (0.975, 1, 12.706_204_736_432_095),
        (0.975, 2, 4.302_652_729_749_462),
        (0.975, 3, 3.182_446_305_284_263),
        (0.975, 4, 2.776_445_105_197_793),
        (0.975, 5, 2.570_581_835_636_314),
        (0.975, 6, 2.446_911_851_144_97),
        (0.975, 9, 2.262_157_162_798_205),
        (0.975, 10, 2.228_138_851_964_939),
        (0.975, 29, 2.045_229_642_132_703),
        (0.975, 30, 2.042_272_456_301_236),
        (0.975, 100, 1.983_971_518_523_55),
        (0.95, 5, 2.015_048_373_333_023_4),
        (0.995, 5, 4.032_142_983_555_227),
        (0.9, 7, 1.414_923_927_650_763_4),
    ];

    #[test]
    fn agrees_with_published_values() {
        for &(p, degrees, expected) in PUBLISHED {
            let found = t_quantile(p, degrees);
            assert!((found / expected - 1.0).abs() < 1e-9, "{p} {degrees}: {found} {expected}");
        }
    }

    #[test]
    fn is_symmetric_around_the_median() {
        assert!(t_quantile(0.5, 7).abs() < 1e-12);
        assert!((t_quantile(0.025, 5) + t_quantile(0.975, 5)).abs() < 1e-9);
    }

    #[test]
    fn no_quantile_outside_the_distribution() {
        assert!(t_quantile(0.975, 0).is_nan());
        assert!(t_quantile(1.0, 3).is_nan());
        assert!(t_quantile(f64::NAN, 3).is_nan());
    }
}
