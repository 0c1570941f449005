//! The result as sentences.

use forebay_stat::{Ratio, Verdict};

use crate::number;
use crate::{Experiment, Row};

/// If the upper end of an interval that includes 1 is more than this many times the lower end, the
/// result is inconclusive.
const WIDE: f64 = 1.5;
/// Least relevant difference.
const MATTERS: f64 = 1.02;
/// Advice never names more rounds than this.
const MOST_ROUNDS: f64 = 1000.0;

/// Returns one sentence per configuration with a reference.
pub fn conclusions(rows: &[Row]) -> Vec<String> {
    rows.iter().filter_map(conclusion).collect()
}

fn conclusion(row: &Row) -> Option<String> {
    let (ratio, baseline) = (row.ratio.as_ref()?, row.reference.as_ref()?);
    let (name, times) = (&row.name, number::factor(ratio.mean));
    let the_rate = match &row.unit {
        Some(unit) => format!("as good as (by {unit})"),
        None => "the rate of".to_owned(),
    };
    if !ratio.has_interval() {
        return Some(format!("{name}: {times} times {the_rate} {baseline} in a single round."));
    }
    let [low, high] = ratio.ci95.map(number::factor);
    let is_wide = ratio.ci95[1] > ratio.ci95[0] * WIDE;
    Some(match ratio.verdict() {
        Verdict::Same if is_wide => format!(
            "{name}: cannot be told from {baseline}, for its rounds differ too much (95 % interval \
             {low} to {high} times); run more rounds on a quieter machine."
        ),
        Verdict::Same => format!(
            "{name}: no difference from {baseline} was shown (95 % interval {low} to {high} times){}.",
            narrower(ratio)
        ),
        Verdict::Faster | Verdict::Slower => {
            format!("{name}: {times} times {the_rate} {baseline} (95 % interval {low} to {high}).")
        }
    })
}

/// Returns advice to narrow an interval that is wider than a relevant difference.
fn narrower(ratio: &Ratio) -> String {
    let half = (ratio.ci95[1] / ratio.ci95[0]).ln() / 2.0;
    // The width of an interval is inversely proportional to the square root of the number of
    // rounds.
    let rounds = (ratio.pairs as f64 * (half / MATTERS.ln()).powi(2)).ceil();
    if rounds <= ratio.pairs as f64 || rounds > MOST_ROUNDS {
        return String::new();
    }
    format!("; about {rounds} rounds (--rounds) would narrow it to 2 % on either side")
}

/// Returns the result of an experiment against itself, as a sentence.
pub fn noise_floor(experiment: &Experiment, rows: &[Row]) -> Option<String> {
    if !experiment.against_itself {
        return None;
    }
    let ratio = rows.iter().find_map(|row| row.ratio.as_ref())?;
    if !ratio.has_interval() {
        return Some("Noise floor: one round cannot tell it; run more.".to_owned());
    }
    let percent = |factor: f64| (factor - 1.0) * 100.0;
    let [low, high] = ratio.ci95.map(percent);
    let floor = low.abs().max(high.abs());
    Some(format!(
        "Noise floor: the same configuration twice differed by {:+.1} % (95 % interval {low:+.1} % \
         to {high:+.1} %). A difference below {floor:.1} % means nothing here.",
        percent(ratio.mean)
    ))
}
