//! Comparison of a run with an earlier one.
//!
//! The result is the ratio of each metric to its earlier value, with a confidence interval. The
//! interval covers the variation between the seconds of a run. But two runs may also differ as a
//! whole, for example because the server was restarted between them. No interval from two runs
//! covers such a difference. An experiment of several rounds does (`forebay compare`).

use forebay_stat::{Ratio, ratio_of_runs};
use serde_json::{Value, json};

use crate::{Outcome, Second};

/// Comparison of a run with an earlier one.
#[derive(Clone, Debug)]
pub struct RunComparison {
    /// Compared metrics. The run counts as fine only if the first metric shows that the run is not
    /// worse.
    pub metrics: Vec<MetricRatio>,
    /// Change that counts as worse, such as 0.05.
    pub threshold: f64,
}

/// Ratio of a metric to its value in an earlier run.
#[derive(Clone, Debug)]
pub struct MetricRatio {
    /// Name: `rate`, or a percentile of the latency such as `p50`.
    pub name: &'static str,
    /// True if a larger value is better.
    pub more_is_better: bool,
    /// Value in the earlier run: requests per second, or microseconds.
    pub old: f64,
    /// Value in this run.
    pub new: f64,
    /// Ratio of the new to the old value, from the seconds of both runs.
    pub ratio: Ratio,
}

/// Decision about a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum RunDecision {
    /// The run is not worse than the threshold allows.
    Fine,
    /// The run is worse. The text names the metric.
    Worse(String),
    /// The runs do not show if the run is worse. The text says why.
    Undecided(String),
}

/// Compared percentiles. A second is used only if it has at least this number of requests.
const PERCENTILES: [(&str, f64, u64); 3] =
    [("p50", 50.0, 20), ("p90", 90.0, 100), ("p99", 99.0, 1000)];

/// Returns an error message if the loads of two runs differ, so that the runs cannot be compared.
/// The message names the first difference. Returns `None` if the loads are equal.
pub fn differs(old: &Outcome, new: &Outcome) -> Option<String> {
    let pairs = [
        ("connections", old.connections.to_string(), new.connections.to_string()),
        ("streams", old.streams.to_string(), new.streams.to_string()),
        ("protocol", old.protocol.to_string(), new.protocol.to_string()),
        ("method", old.method.clone(), new.method.clone()),
        ("different requests", old.parts.len().to_string(), new.parts.len().to_string()),
        ("servers", old.servers.len().to_string(), new.servers.len().to_string()),
        ("rate", wanted(old), wanted(new)),
        ("replay", replayed(old), replayed(new)),
    ];
    let (name, old, new) = pairs.into_iter().find(|(_, old, new)| old != new)?;
    Some(format!("its load was different ({name}: {old}, now {new})"))
}

fn wanted(outcome: &Outcome) -> String {
    outcome
        .rate
        .map_or("none".to_owned(), |rate| format!("{} {}", rate.per_second, rate.arrivals.name()))
}

fn replayed(outcome: &Outcome) -> String {
    outcome.replay.as_ref().map_or("none".to_owned(), |replay| {
        let speed = replay.speed.map_or("max".to_owned(), |speed| speed.to_string());
        format!("{} requests at speed {speed}", replay.requests)
    })
}

impl RunComparison {
    /// Compares `new` with `old`. In a closed loop, the first metric is the rate. In an open loop,
    /// the first metric is `p50`, even if its ratio has no interval. Any other percentile is
    /// included only if its ratio has an interval.
    pub fn of(old: &Outcome, new: &Outcome, threshold: f64) -> Self {
        let (ours, theirs) = (whole_seconds(new), whole_seconds(old));
        let mut metrics = Vec::new();
        // In an open loop, the plan sets the rate, so a comparison of rates shows nothing.
        if !new.is_open_loop() {
            let rates = |seconds: &[Second]| -> Vec<f64> {
                seconds.iter().map(|second| second.completed as f64).collect()
            };
            metrics.push(MetricRatio {
                name: "rate",
                more_is_better: true,
                old: old.rate_per_s(),
                new: new.rate_per_s(),
                ratio: ratio_of_runs(&rates(&ours), &rates(&theirs)),
            });
        }
        for (name, percent, needed) in PERCENTILES {
            let values = |seconds: &[Second]| -> Vec<f64> {
                let enough = seconds.iter().filter(|second| second.completed >= needed);
                let latencies = enough.map(Second::latency).filter(|latency| !latency.is_empty());
                latencies.map(|latency| latency.percentile_us(percent) as f64).collect()
            };
            let ratio = ratio_of_runs(&values(&ours), &values(&theirs));
            if ratio.has_interval() || metrics.is_empty() {
                metrics.push(MetricRatio {
                    name,
                    more_is_better: false,
                    old: old.latency.percentile_us(percent) as f64,
                    new: new.latency.percentile_us(percent) as f64,
                    ratio,
                });
            }
        }
        // Each interval gets the level 0.05 / count. All true ratios are then within their
        // intervals with a probability of 95 % (Bonferroni).
        let count = metrics.len();
        for metric in &mut metrics {
            metric.ratio.set_level(0.05 / count as f64);
            metric.ratio.comparisons = count;
        }
        Self { metrics, threshold }
    }

    /// Decides if the new run is worse. The run is `Worse` if a metric is worse by more than the
    /// threshold, and its whole interval means a worse run. The run is `Fine` if even the worse end
    /// of the first metric's interval is within the threshold. In all other cases, the result is
    /// `Undecided`.
    pub fn decision(&self) -> RunDecision {
        if let Some(worse) = self.metrics.iter().find(|metric| metric.is_worse(self.threshold)) {
            return RunDecision::Worse(worse.sentence());
        }
        match self.metrics.first() {
            Some(first) if first.is_fine(self.threshold) => RunDecision::Fine,
            Some(first) if first.ratio.has_interval() => RunDecision::Undecided(format!(
                "{}: use longer runs (-d), or forebay compare",
                first.sentence()
            )),
            _ => RunDecision::Undecided(
                "both runs need at least 7 seconds with requests (-d)".to_owned(),
            ),
        }
    }

    /// Converts the comparison to the object `against` of the JSON report.
    pub fn to_json(&self) -> Value {
        let (decision, why) = match self.decision() {
            RunDecision::Fine => ("fine", None),
            RunDecision::Worse(why) => ("worse", Some(why)),
            RunDecision::Undecided(why) => ("inconclusive", Some(why)),
        };
        let metric = |metric: &MetricRatio| {
            let ratio = &metric.ratio;
            json!({
                "name": metric.name,
                "old": metric.old,
                "new": metric.new,
                "ratio": ratio.mean,
                "interval": ratio.has_interval().then_some(ratio.ci95),
            })
        };
        json!({
            "threshold": self.threshold,
            "confidence": 0.95,
            "decision": decision,
            "why": why,
            "metrics": self.metrics.iter().map(metric).collect::<Vec<_>>(),
        })
    }
}

impl MetricRatio {
    /// Returns the ratio and its interval. Values below 1 mean that the run is worse. The ratio of
    /// a latency is therefore inverted, because a larger latency is worse.
    fn goodness(&self) -> (f64, [f64; 2]) {
        let (mean, [low, high]) = (self.ratio.mean, self.ratio.ci95);
        if self.more_is_better {
            (mean, [low, high])
        } else {
            (1.0 / mean, [1.0 / high, 1.0 / low])
        }
    }

    fn is_worse(&self, threshold: f64) -> bool {
        let (mean, [_, high]) = self.goodness();
        self.ratio.has_interval() && high < 1.0 && mean < 1.0 - threshold
    }

    fn is_fine(&self, threshold: f64) -> bool {
        let (_, [low, _]) = self.goodness();
        self.ratio.has_interval() && low >= 1.0 - threshold
    }

    /// Returns the ratio with its interval, as text.
    pub fn sentence(&self) -> String {
        let Self { name, ratio, .. } = self;
        let [low, high] = ratio.ci95;
        if ratio.has_interval() {
            format!("{name} x{:.3} (95 % interval x{low:.3} to x{high:.3})", ratio.mean)
        } else {
            format!("{name} x{:.3} (no interval)", ratio.mean)
        }
    }
}

/// Returns the seconds of a run without the first and the last. In the first second, connections
/// were opened, and the last second was not whole.
fn whole_seconds(outcome: &Outcome) -> Vec<Second> {
    let end = outcome.series.len().saturating_sub(1).max(1);
    outcome.series.get(1..end).unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_stat::Latency;

    use super::*;
    use crate::{Arrivals, Rate};

    /// Returns a run of `seconds` with about `rate` requests per second of about `us` each.
    fn run(seconds: u64, rate: u64, us: u64) -> Outcome {
        let mut random = fastrand::Rng::with_seed(seconds * rate + us);
        let mut outcome = Outcome { duration: Duration::from_secs(seconds), ..Outcome::default() };
        for _ in 0..seconds {
            let completed = rate + random.u64(0..rate / 50);
            let mut latency = Latency::coarse();
            (0..completed).for_each(|_| latency.record_us(us + random.u64(0..us / 2)));
            outcome.latency.merge(&latency);
            outcome.requests.completed += completed;
            outcome.series.push(Second { completed, failed: 0, histogram: latency.encode() });
        }
        outcome
    }

    #[test]
    fn slower_runs_are_found_and_equal_ones_are_not_accused() {
        let old = run(20, 2000, 500);
        let decide = |new: &Outcome| RunComparison::of(&old, new, 0.05).decision();
        assert_eq!(decide(&run(21, 2000, 500)), RunDecision::Fine);
        assert_eq!(decide(&run(22, 2200, 450)), RunDecision::Fine);
        let RunDecision::Worse(why) = decide(&run(20, 1800, 500)) else { panic!("it is slower") };
        assert!(why.starts_with("rate x0.90"), "{why}");
        let RunDecision::Worse(why) = decide(&run(20, 2000, 600)) else { panic!("it is slower") };
        assert!(why.starts_with("p50 x1."), "{why}");
        let RunDecision::Undecided(why) = decide(&run(6, 2000, 500)) else { panic!("it is short") };
        assert!(why.contains("at least 7 seconds"), "{why}");
    }

    #[test]
    fn a_planned_rate_is_not_compared() {
        let rate = Some(Rate { per_second: 2000.0, arrivals: Arrivals::Even });
        let open = |us| Outcome { rate, ..run(20, 2000, us) };
        let comparison = RunComparison::of(&open(500), &open(501), 0.05);
        assert_eq!(comparison.metrics[0].name, "p50");
        assert_eq!(comparison.decision(), RunDecision::Fine);
        let why = differs(&open(500), &run(20, 2000, 500)).unwrap();
        assert_eq!(why, "its load was different (rate: 2000 even, now none)");
        assert_eq!(differs(&open(500), &open(700)), None);
    }

    #[test]
    fn runs_without_a_series_are_undecided() {
        let comparison = RunComparison::of(&Outcome::default(), &Outcome::default(), 0.05);
        assert!(matches!(comparison.decision(), RunDecision::Undecided(_)));
        assert_eq!(comparison.to_json()["decision"], "inconclusive");
    }
}
