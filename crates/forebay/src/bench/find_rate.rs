//! Option `--find-rate`: finds the highest rate that meets goals, and an interval for it.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use forebay_lab::Interrupt;
use forebay_load::{Arrivals, Capacity, Control, Error, Outcome, Search, Spec, Step, find_rate};
use serde_json::{Value, json};

use super::report::figure;
use super::{BenchArgs, fail, report};

/// Default duration of a step.
const STEP: Duration = Duration::from_secs(3);

/// Exit codes: `NONE` if no rate meets the goals, `UNSURE` if the search was inconclusive.
const NONE: u8 = 1;
const UNSURE: u8 = 4;

/// If the highest rate exceeds this share of the closed loop's rate, the number of connections may
/// be the limit.
const ALL_OF_IT: f64 = 0.9;

/// Searches for the highest rate. Prints and writes the result.
pub fn run(args: &BenchArgs, spec: &Spec, arrivals: Arrivals, interrupt: &Interrupt) -> ExitCode {
    let control = Control { cancelled: interrupt.flag(), ..Control::default() };
    let step = args.duration.unwrap_or(STEP);
    let search = Search { goals: args.find_rate.clone(), step, arrivals };
    let mut show = |step: &Step| {
        if !args.quiet {
            let met = if step.passed { "met" } else { "not met" };
            let rate = figure(step.rate);
            let disturbance = step.disturbance.map(|sign| format!(" (disturbed: {sign})"));
            let disturbance = disturbance.unwrap_or_default();
            let why = &step.why;
            let _ = writeln!(io::stderr(), "{rate:>11} requests/s  {met:<7}  {why}{disturbance}");
        }
    };
    let found = match find_rate(spec, &search, &control, &mut show) {
        Ok(found) => found,
        Err(error @ Error::Invalid(_)) => return fail(2, &error.to_string()),
        Err(error) => return fail(3, &error.to_string()),
    };
    let goals: Vec<String> = args.find_rate.iter().map(ToString::to_string).collect();
    let goals = goals.join(",");
    let is_interrupted = interrupt.is_set();
    let code = if is_interrupted {
        interrupt.exit_code()
    } else if !found.is_met() && found.disturbed() * 2 <= found.steps.len() {
        NONE
    } else if !found.is_met() || !found.is_sure {
        UNSURE
    } else {
        0
    };
    let best = found.best().map(|step| &step.outcome);
    if !args.quiet {
        let text = text(spec, &found, &goals, step);
        let details = best.map(report::text).unwrap_or_default();
        let text = format!("{text}\n{details}");
        let _ = if args.outputs().uses_stdout() {
            io::stderr().write_all(text.as_bytes())
        } else {
            io::stdout().write_all(text.as_bytes())
        };
    }
    let none = Outcome { url: spec.url.to_string(), is_interrupted, ..Outcome::default() };
    let result = to_json(&found, &goals);
    if let Err(why) = args.outputs().write(best.unwrap_or(&none), Some(("find_rate", result))) {
        return fail(3, &why);
    }
    ExitCode::from(code)
}

/// Returns the result as text for people.
fn text(spec: &Spec, found: &Capacity, goals: &str, step: Duration) -> String {
    let [low, high] = found.interval.map(figure);
    let steps = found.steps.len();
    let mut out = String::new();
    if !found.is_met() {
        let lowest = found.steps.iter().map(|step| step.rate).reduce(f64::min).unwrap_or(0.0);
        let lowest = figure(lowest);
        let _ = writeln!(out, "No rate was found that meets {goals}, down to {lowest} requests/s.");
        out.push_str(&disturbed(found));
        return out;
    }
    let _ = writeln!(
        out,
        "{} requests/s is the highest rate that meets {goals}\n(95 % interval {low} to {high}; \
         {steps} steps of {step:?} or more)",
        figure(found.rate)
    );
    if !found.is_sure {
        let _ =
            writeln!(out, "! This is not sure yet: use longer steps (-d), or a quieter machine.");
        out.push_str(&disturbed(found));
    }
    if found.rate > found.closed_loop * ALL_OF_IT {
        let _ = writeln!(
            out,
            "! {} connections carry {} requests/s in a closed loop: with more of them (-c),\n  \
             the rate may be higher.",
            spec.connections,
            figure(found.closed_loop)
        );
    }
    out
}

/// Returns a line with the number of failed steps that other work on the machine disturbed. Returns
/// an empty text if there are none.
fn disturbed(found: &Capacity) -> String {
    match found.disturbed() {
        0 => String::new(),
        1 => "! Other work on the machine disturbed a step that failed.\n".to_owned(),
        count => format!("! Other work on the machine disturbed {count} steps that failed.\n"),
    }
}

/// Returns the object `find_rate` of the report: the rate and every step of the search.
fn to_json(found: &Capacity, goals: &str) -> Value {
    let step = |step: &Step| {
        json!({
            "rate": step.rate,
            "met": step.passed,
            "why": step.why,
            "disturbance": step.disturbance.map(|sign| sign.to_string()),
            "rate_per_s": step.outcome.rate_per_s(),
            "duration_s": step.outcome.duration.as_secs_f64(),
        })
    };
    json!({
        "goals": goals,
        "rate": found.is_met().then_some(found.rate),
        "interval": found.interval,
        "confidence": 0.95,
        "sure": found.is_sure,
        "closed_loop_rate": found.closed_loop,
        "steps": found.steps.iter().map(step).collect::<Vec<_>>(),
    })
}
