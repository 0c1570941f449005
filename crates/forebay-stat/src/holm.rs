//! Holm's correction for several comparisons.

/// Returns the p-values corrected for several comparisons, in the order of `p`.
///
/// With the correction, the probability that any true null hypothesis is rejected is at most the
/// chosen level (Holm, "A Simple Sequentially Rejective Multiple Test Procedure", Scandinavian
/// Journal of Statistics 6, 1979). NaN stays NaN and does not count as a comparison.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).filter(|&index| !p[index].is_nan()).collect();
    order.sort_by(|&left, &right| p[left].total_cmp(&p[right]));
    let mut raised = p.to_vec();
    let mut largest = 0.0f64;
    // A p-value may not be smaller than the corrected one of a smaller p-value.
    for (rank, &index) in order.iter().enumerate() {
        largest = largest.max(p[index] * (order.len() - rank) as f64).min(1.0);
        raised[index] = largest;
    }
    raised
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_pays_for_all_and_order_is_kept() {
        let raised = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        assert!(raised.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12), "{raised:?}");
    }

    #[test]
    fn what_was_not_compared_costs_nothing() {
        let raised = holm(&[0.04, f64::NAN]);
        assert_eq!(raised[0], 0.04);
        assert!(raised[1].is_nan());
        assert!(holm(&[]).is_empty());
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
    }
}
