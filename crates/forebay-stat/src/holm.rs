//! Holm's correction for several comparisons.

/// Returns the p-values corrected for several comparisons, in the order of `p`.
///
/// With the correction, the probability that any true null hypothesis is rejected is at most the
/// chosen level (Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian
/// Journal of Statistics 6, 1979). A NaN stays NaN and does not count as a comparison.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).filter(|&index| !p[index].is_nan()).collect();
    order.sort_by(|&left, &right| p[left].total_cmp(&p[right]));
    let mut raised = p.to_vec();
    let mut largest = 0.0f64;
    // The correction must keep the order of the p-values. So each corrected value is at least as
    // large as the previous corrected value.
    for (rank, &index) in order.iter().enumerate() {
        largest = largest.max(p[index] * (order.len() - rank) as f64).min(1.0);
        raised[index] = largest;
    }
    raised
}

/// Returns the level of each comparison's interval. An interval with this level excludes the null
/// hypothesis if and only if Holm's test at level `alpha` rejects it.
///
/// The p-values are tested in ascending order. The i-th of m tests has the level alpha / (m - i +
/// 1). After the first test that does not reject, no further test rejects. All further tests keep
/// the level of that test. A NaN gets the level `alpha`.
pub fn holm_levels(p: &[f64], alpha: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).filter(|&index| !p[index].is_nan()).collect();
    order.sort_by(|&left, &right| p[left].total_cmp(&p[right]));
    let mut levels = vec![alpha; p.len()];
    let mut failed = None;
    for (rank, &index) in order.iter().enumerate() {
        let level = alpha / (order.len() - rank) as f64;
        if p[index] > level {
            failed.get_or_insert(level);
        }
        levels[index] = failed.unwrap_or(level);
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_reject_exactly_what_the_corrected_values_reject() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..2000 {
            let p: Vec<f64> = (0..random.usize(1..8)).map(|_| random.f64().powi(4)).collect();
            let levels = holm_levels(&p, 0.05);
            for (index, corrected) in holm(&p).into_iter().enumerate() {
                assert_eq!(corrected <= 0.05, p[index] <= levels[index], "{p:?} {levels:?}");
            }
        }
        assert_eq!(holm_levels(&[0.001, f64::NAN, 0.04], 0.05), [0.025, 0.05, 0.05]);
        assert_eq!(holm_levels(&[0.04, 0.03], 0.05), [0.025, 0.025]);
    }

    #[test]
    fn the_smallest_pays_for_all_and_order_is_kept() {
        let raised = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(raised.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{raised:?}");
    }

    #[test]
    fn rejected_keys_cost_no_comparison() {
        let raised = holm(&[0.04, f64::NAN]);
        assert_eq!(raised[0], 0.04);
        assert!(raised[1].is_nan());
        assert!(holm(&[]).is_empty());
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }
}
