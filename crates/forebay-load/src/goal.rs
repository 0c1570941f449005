//! Goals: conditions on the outcome of a run, such as `p99<50ms`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::Outcome;

/// Condition on the outcome of a run.
///
/// The metric `failed` counts failed requests, and replies with a status of 400 or above. In the
/// metrics of latencies, a request counts as slower than every reply if it failed, or if it was due
/// but not sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    text: String,
    metric: Metric,
    comparison: Comparison,
    limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Metric {
    /// Latency in microseconds that this percentage of the requests does not exceed.
    Percentile(f64),
    /// Mean latency, in microseconds.
    Mean,
    /// Largest latency, in microseconds.
    Max,
    /// Number of failed requests.
    Failed,
    /// Failed requests as a percentage of all requests.
    FailedPercent,
    /// Completed requests per second.
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Result of a comparison with a goal.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// The condition holds. The text contains the value.
    True(String),
    /// The condition does not hold. The text contains the value.
    False(String),
    /// The outcome does not show if the condition holds. The text says why.
    Unknown(String),
}

/// Minimum number of requests that must be slower than a percentile. With fewer, the percentile
/// depends on chance.
const BEYOND: f64 = 10.0;

const UNITS: [(&str, f64); 4] = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6)];

const HELP: &str = "write METRIC<VALUE or METRIC>VALUE with the metric p50, p99.9 (or another \
                    percentile), mean, max (values such as 50ms), failed (0.1% or 5) or rate (500)";

impl Goal {
    /// Decides if an outcome meets the goal. The result is `Unknown` if the outcome does not have
    /// the metric.
    pub fn judge(&self, outcome: &Outcome) -> Judgement {
        let value = match self.value(outcome) {
            Ok(value) => value,
            Err(why) => return Judgement::Unknown(format!("{}: {why}", self.text)),
        };
        let holds = match self.comparison {
            Comparison::Less => value < self.limit,
            Comparison::LessOrEqual => value <= self.limit,
            Comparison::Greater => value > self.limit,
            Comparison::GreaterOrEqual => value >= self.limit,
        };
        let text = format!("{} was {}", self.metric, self.metric.format(value));
        if holds { Judgement::True(text) } else { Judgement::False(text) }
    }

    /// Returns the minimum number of requests for a decision, such as 1,000 for `p99`. With fewer
    /// requests, [`judge`](Self::judge) returns `Unknown`.
    pub fn samples(&self) -> u64 {
        match self.metric {
            Metric::Percentile(percent) => (BEYOND * 100.0 / (100.0 - percent)).ceil() as u64,
            _ => 1,
        }
    }

    /// Returns the value of the metric. Requests that failed or were not sent count as infinitely
    /// slow. An error says why the outcome does not have the metric, for example because too few
    /// requests were sent.
    fn value(&self, outcome: &Outcome) -> Result<f64, String> {
        let requests = &outcome.requests;
        let (completed, failed) = (requests.completed, requests.failed);
        let lost = failed + requests.unsent;
        let errors = failed + outcome.error_replies();
        let none = || Err("no request was completed".to_owned());
        match self.metric {
            Metric::Failed => Ok(errors as f64),
            Metric::FailedPercent if completed + failed == 0 => none(),
            Metric::FailedPercent => Ok(100.0 * errors as f64 / (completed + failed) as f64),
            Metric::Rate => Ok(outcome.rate_per_s()),
            _ if completed == 0 && lost == 0 => none(),
            Metric::Mean | Metric::Max if lost > 0 => Ok(f64::INFINITY),
            Metric::Mean => Ok(outcome.latency.mean_us()),
            Metric::Max => Ok(outcome.latency.max_us() as f64),
            Metric::Percentile(percent) => {
                let all = (completed + lost) as f64;
                if all * (100.0 - percent) / 100.0 + 1e-6 < BEYOND {
                    let needed = self.samples();
                    return Err(format!("{needed} requests are needed, and there were {all}"));
                }
                let percent = percent * all / completed.max(1) as f64;
                let is_lost = completed == 0 || percent > 100.0;
                let value = || outcome.latency.percentile_us(percent) as f64;
                Ok(if is_lost { f64::INFINITY } else { value() })
            }
        }
    }
}

impl Metric {
    fn format(self, value: f64) -> String {
        match self {
            Self::Failed => format!("{value:.0}"),
            Self::FailedPercent => format!("{value:.3} %"),
            Self::Rate => format!("{value:.1} requests/s"),
            _ if value.is_infinite() => "infinite, as requests were lost".to_owned(),
            _ => format!("{:?}", Duration::from_micros(value as u64)),
        }
    }
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a condition: {HELP}");
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (name, rest) = (text[..at].trim(), &text[at..]);
        let (comparison, value) = match (rest.strip_prefix("<="), rest.strip_prefix(">=")) {
            (Some(value), _) => (Comparison::LessOrEqual, value),
            (_, Some(value)) => (Comparison::GreaterOrEqual, value),
            _ if rest.starts_with('<') => (Comparison::Less, &rest[1..]),
            _ => (Comparison::Greater, &rest[1..]),
        };
        let value = value.trim();
        let (metric, limit) = match name {
            "mean" => (Metric::Mean, time(value)),
            "max" => (Metric::Max, time(value)),
            "rate" => (Metric::Rate, number(value)),
            "failed" => match value.strip_suffix('%') {
                Some(percent) => (Metric::FailedPercent, number(percent.trim())),
                None => (Metric::Failed, number(value)),
            },
            _ => {
                let percent = name.strip_prefix('p').and_then(number);
                let percent = percent.filter(|percent| *percent > 0.0 && *percent < 100.0);
                (Metric::Percentile(percent.ok_or_else(wrong)?), time(value))
            }
        };
        let limit = limit.ok_or_else(wrong)?;
        Ok(Self { text: text.to_owned(), metric, comparison, limit })
    }
}

fn number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse::<f64>().ok().filter(|number| is_plain && number.is_finite())
}

/// Parses a time and returns microseconds: 50,000 for `50ms`. Returns `None` if the number is
/// missing, or if the unit is not one of [`UNITS`].
fn time(text: &str) -> Option<f64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (digits, unit) = text.split_at(split);
    let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(number(digits.trim())? * scale)
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percentile(percent) => write!(f, "p{percent}"),
            Self::Mean => f.write_str("the mean"),
            Self::Max => f.write_str("the maximum"),
            Self::Failed => f.write_str("the number of failures"),
            Self::FailedPercent => f.write_str("the share of failures"),
            Self::Rate => f.write_str("the rate"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Requests;

    /// Returns an outcome with 10,000 replies of 1 to 10,000 us, with failed and unsent requests.
    fn outcome(failed: u64, unsent: u64) -> Outcome {
        let mut outcome = Outcome::default();
        (1..=10_000).for_each(|us| outcome.latency.record_us(us));
        outcome.duration = Duration::from_secs(10);
        outcome.requests = Requests { completed: 10_000, failed, unsent, ..Requests::default() };
        outcome.requests.status = [(200, 9_990), (503, 10)].into();
        outcome
    }

    fn holds(goal: &str, outcome: &Outcome) -> Option<bool> {
        match goal.parse::<Goal>().unwrap().judge(outcome) {
            Judgement::True(_) => Some(true),
            Judgement::False(_) => Some(false),
            Judgement::Unknown(_) => None,
        }
    }

    #[test]
    fn conditions_compare_with_the_outcome() {
        let plain = outcome(0, 0);
        for (goal, expected) in [
            ("p99<10ms", true),
            ("p99 > 9.8ms", true),
            ("p50<=5010us", true),
            ("p50>5.1ms", false),
            ("p99.9<0.01s", true),
            ("max<9ms", false),
            ("mean>1m", false),
            ("failed<0.2%", true),
            ("failed<=0.1%", true),
            ("failed<0.1%", false),
            ("failed<11", true),
            ("failed>10", false),
            ("rate>=1000", true),
        ] {
            assert_eq!(holds(goal, &plain), Some(expected), "{goal}");
        }
        assert_eq!(holds("p99.99<1s", &plain), None, "one request is above it");
        assert_eq!(holds("failed<1%", &Outcome::default()), None);
    }

    #[test]
    fn lost_requests_are_slower_than_all_others() {
        assert_eq!(holds("p99<1m", &outcome(0, 50)), Some(true));
        assert_eq!(holds("p99<1m", &outcome(0, 150)), Some(false));
        assert_eq!(holds("p99<1m", &outcome(150, 0)), Some(false));
        let Judgement::False(text) = "p99<1s".parse::<Goal>().unwrap().judge(&outcome(0, 5000))
        else {
            panic!("it holds");
        };
        assert_eq!(text, "p99 was infinite, as requests were lost");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "p99", "p99<", "p99<50", "p0<1ms", "p100<1s", "q<1s", "failed<x", "p99=1s"]
        {
            assert!(text.parse::<Goal>().is_err(), "{text}");
        }
        assert_eq!("p99<1s".parse::<Goal>().unwrap().samples(), 1000);
    }
}
