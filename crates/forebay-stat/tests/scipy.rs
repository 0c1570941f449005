//! Checks every formula against an independent implementation. `scipy_values.json` holds the output
//! of `scipy_values.py`, so the tests need neither scipy nor Python.

use forebay_stat::{Estimate, holm, ratio_ci, t_quantile, t_two_sided, theil_sen};
use serde_json::Value;

fn values(name: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("scipy_values.json")).unwrap();
    let values = all[name].as_array().unwrap().clone();
    assert!(!values.is_empty());
    values
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn assert_close(found: f64, expected: &Value, what: &Value) {
    let expected = expected.as_f64().unwrap();
    // scipy inverts its own t distribution to about 1e-9.
    let allowed = 1e-8 * expected.abs().max(1e-6);
    assert!((found - expected).abs() <= allowed, "{found} is not {expected} in {what}");
}

#[test]
fn trimmed_mean_and_yuens_interval() {
    for case in values("yuen") {
        let estimate = Estimate::trimmed(&numbers(&case["samples"])).unwrap();
        let [low, high] = estimate.interval(0.05);
        assert_close(estimate.mean, &case["mean"], &case);
        assert_close(estimate.error, &case["error"], &case);
        assert_close(estimate.p(), &case["p"], &case);
        assert_close(low, &case["low"], &case);
        assert_close(high, &case["high"], &case);
    }
}

#[test]
fn students_interval_of_paired_logarithms() {
    for case in values("student") {
        let pairs: Vec<(f64, f64)> =
            numbers(&case["samples"]).iter().map(|log| (log.exp() * 100.0, 100.0)).collect();
        let ratio = ratio_ci(&pairs);
        assert_close(ratio.ci95[0].ln(), &case["low"], &case);
        assert_close(ratio.ci95[1].ln(), &case["high"], &case);
        assert_close(ratio.p, &case["p"], &case);
    }
}

#[test]
fn students_distribution() {
    for case in values("t_ppf") {
        let [p, degrees, expected] = [&case[0], &case[1], &case[2]];
        let found = t_quantile(p.as_f64().unwrap(), degrees.as_u64().unwrap() as u32);
        assert_close(found, expected, &case);
    }
    for case in values("t_two_sided") {
        let found = t_two_sided(case[0].as_f64().unwrap(), case[1].as_u64().unwrap() as u32);
        assert!((found - case[2].as_f64().unwrap()).abs() < 1e-12, "{found} in {case}");
    }
}

#[test]
fn theil_sens_slope() {
    for case in values("theil_sen") {
        let points: Vec<(f64, f64)> = case["points"]
            .as_array()
            .unwrap()
            .iter()
            .map(|point| (point[0].as_f64().unwrap(), point[1].as_f64().unwrap()))
            .collect();
        assert_close(theil_sen(&points).unwrap(), &case["slope"], &case["slope"]);
    }
}

#[test]
fn holms_correction() {
    for case in values("holm") {
        for (found, expected) in holm(&numbers(&case["p"])).iter().zip(numbers(&case["adjusted"])) {
            assert!((found - expected).abs() < 1e-12, "{case}");
        }
    }
}
