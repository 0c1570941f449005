//! The results as sentences about failures, rate, CPU time and memory of each configuration.

use forebay_stat::{Ratio, Verdict};

use crate::number;
use crate::{Experiment, Row};

/// Maximum ratio of an interval's upper to its lower end. A wider interval that includes 1 makes
/// the result inconclusive.
const WIDE: f64 = 1.5;
/// Smallest ratio of rates that matters: a difference of 2 %.
const MATTERS: f64 = 1.02;
/// Maximum number of rounds that the advice names.
const MOST_ROUNDS: u32 = 1000;
/// Smallest difference of memory that a sentence mentions, in bytes and as a factor. Caches and
/// allocators cause smaller differences.
const MEMORY_BYTES: f64 = 1e6;
const MEMORY_FACTOR: f64 = 1.1;
/// Load average per core from which a machine counts as busy.
const BUSY: f64 = 0.75;

/// Returns one sentence for each finding: failures, leaks, and comparisons with references. If
/// other work kept the machine busy, a last sentence says so.
pub fn conclusions(experiment: &Experiment, rows: &[Row]) -> Vec<String> {
    let is_busy = is_busy(experiment);
    let mut said: Vec<String> = Vec::new();
    for row in rows {
        said.extend(failures(row));
        said.extend(comparison(experiment, row, rows, is_busy));
        said.extend(leak(row));
    }
    if is_busy && rows.iter().any(|row| row.cpu_ratio.is_some()) {
        let machine = &experiment.machine;
        said.push(format!(
            "The machine was busy with other work (load average {} on {} cores): ratios of CPU time \
             are more certain than those of rates.",
            machine.load_average, machine.cores
        ));
    }
    said
}

/// Returns true if other work kept the machine busy when the experiment began.
fn is_busy(experiment: &Experiment) -> bool {
    let machine = &experiment.machine;
    machine.cores > 0 && machine.load_average >= BUSY * machine.cores as f64
}

/// Returns a sentence that counts the failed requests by kind, or `None` without failures.
fn failures(row: &Row) -> Option<String> {
    if row.failed == 0 {
        return None;
    }
    let kinds = row.failures.by_kind();
    let kinds = kinds.iter().filter(|(_, count)| *count > 0);
    let kinds: Vec<String> =
        kinds.map(|(kind, count)| format!("{kind}: {}", number::count(*count))).collect();
    Some(format!(
        "{}: {} of {} requests failed ({}).",
        row.name,
        number::count(row.failed),
        number::count(row.requests),
        kinds.join(", ")
    ))
}

fn leak(row: &Row) -> Option<String> {
    let leak = row.leak.filter(|leak| leak.is_leak() && !leak.may_be_cache())?;
    Some(format!("{}: memory leaks, {} a request.", row.name, number::size(leak.slope)))
}

fn comparison(experiment: &Experiment, row: &Row, rows: &[Row], is_busy: bool) -> Option<String> {
    let baseline = row.reference.as_ref()?;
    let is_found = |ratio: Option<&Ratio>| ratio.is_some_and(|r| r.verdict() != Verdict::Same);
    let cpu = row.cpu_ratio.as_ref().filter(|cpu| is_found(Some(cpu)));
    let mut parts = Vec::new();
    parts.extend(cpu.map(|cpu| {
        let times = number::factor(cpu.mean);
        format!("{times} times the CPU time per request of {baseline} ({})", interval(cpu))
    }));
    let other = rows.iter().find(|other| other.name == *baseline);
    parts.extend(other.and_then(|other| memory(row, other)));
    let is_rate_found = is_found(row.ratio.as_ref());
    let has_found = !parts.is_empty();
    let rate = row.ratio.as_ref().map(|ratio| rate(experiment, row, ratio, has_found));
    // If a difference in the rate was found and the machine was not busy, the rate comes first.
    // Otherwise the rate comes last.
    let at = if is_rate_found && !is_busy { 0 } else { parts.len() };
    if let Some(rate) = rate {
        parts.insert(at, rate);
    }
    (!parts.is_empty()).then(|| format!("{}: {}.", row.name, parts.join("; ")))
}

/// Describes the ratio of rates. `has_found` is true if CPU time or memory differs.
fn rate(experiment: &Experiment, row: &Row, ratio: &Ratio, has_found: bool) -> String {
    let baseline = row.reference.as_deref().unwrap_or("the baseline");
    let times = number::factor(ratio.mean);
    let the_rate = match &row.unit {
        Some(unit) => format!("as good as (by {unit})"),
        None => "the rate of".to_owned(),
    };
    if !ratio.has_interval() {
        return format!("{times} times {the_rate} {baseline} in a single round");
    }
    let interval = interval(ratio);
    let is_wide = ratio.ci95[1] > ratio.ci95[0] * WIDE;
    match ratio.verdict() {
        Verdict::Faster | Verdict::Slower => {
            format!("{times} times {the_rate} {baseline} ({interval})")
        }
        Verdict::Same if ratio.is_negligible() => {
            format!("no difference from {baseline} above 2 % in the rate ({interval})")
        }
        Verdict::Same if ratio.ci95[0] > 1.0 || ratio.ci95[1] < 1.0 => {
            format!("no difference from {baseline} above 2 % in the rate was shown ({interval})")
        }
        Verdict::Same if is_wide => format!(
            "its rate cannot be ranked against {baseline}, because its rounds differ too much ({interval}); {}",
            advice(experiment, ratio).unwrap_or_else(|| "use a quieter machine".to_owned())
        ),
        Verdict::Same => {
            let what = if has_found { "no difference in the rate" } else { "no difference" };
            let from = if has_found { String::new() } else { format!(" from {baseline}") };
            let advice = advice(experiment, ratio).map(|advice| format!("; {advice}"));
            format!("{what}{from} was shown ({interval}){}", advice.unwrap_or_default())
        }
    }
}

/// Returns the interval in words, with the correction for several comparisons.
pub fn interval(ratio: &Ratio) -> String {
    let [low, high] = ratio.ci95.map(number::factor);
    let corrected = match ratio.comparisons {
        0 | 1 => String::new(),
        several => format!(", corrected for {several} comparisons (Holm)"),
    };
    format!("95 % interval {low} to {high}{corrected}")
}

/// Describes the difference in memory between a configuration and its reference. Returns `None` if
/// the difference is not significant or too small to matter, or if memory was not observed.
fn memory(row: &Row, other: &Row) -> Option<String> {
    let ratio = row.memory_ratio.as_ref().filter(|ratio| ratio.verdict() != Verdict::Same)?;
    let (ours, theirs) = (row.memory_most? as f64, other.memory_most? as f64);
    let is_little = (ours - theirs).abs() < MEMORY_BYTES;
    if is_little || ratio.mean.max(1.0 / ratio.mean) < MEMORY_FACTOR {
        return None;
    }
    Some(format!(
        "{} times the memory ({} instead of {})",
        number::factor(ratio.mean),
        number::size(ours),
        number::size(theirs)
    ))
}

/// Returns the number of further rounds that would narrow the interval to 2 % on either side, with
/// the time that they take. Returns `None` if no further rounds are needed, or if more than
/// `MOST_ROUNDS` would be needed.
fn advice(experiment: &Experiment, ratio: &Ratio) -> Option<String> {
    let rounds = ratio.rounds_for(MATTERS.ln(), MOST_ROUNDS)?;
    let more = rounds.saturating_sub(ratio.pairs as u32);
    (more > 0).then(|| {
        let rounds = more_rounds(experiment, more);
        format!("about {rounds} would narrow it to 2 % on either side")
    })
}

/// Formats the number of further rounds `more`, with the options and the expected time to run them.
/// After 6 rounds, the text is `12 more rounds (--rounds 18 --resume, 40 s)`.
pub fn more_rounds(experiment: &Experiment, more: u32) -> String {
    let all = experiment.rounds_finished + more;
    let time = experiment.round_time().map(|round| (round * more).as_secs_f64());
    let time = time.map(|seconds| match seconds {
        seconds if seconds < 120.0 => format!(", {seconds:.0} s"),
        seconds => format!(", {:.0} minutes", seconds / 60.0),
    });
    let noun = if more == 1 { "round" } else { "rounds" };
    format!("{more} more {noun} (--rounds {all} --resume{})", time.unwrap_or_default())
}

/// Returns a sentence with the result of an experiment that compared the baseline with itself.
/// Returns `None` for other experiments.
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
