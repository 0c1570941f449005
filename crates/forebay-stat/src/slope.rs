//! Slope of a set of points that tolerates outliers.

use crate::summary::median;

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
