//! The report as JSON, schema `forebay.compare/1`. Names of times end in `_us` for microseconds and
//! in `_s` for seconds. Sizes are in bytes. Values that were not measured are null.

use std::collections::BTreeMap;

use forebay_stat::{Ratio, Summary, Verdict};
use serde_json::{Map, Value, json};

use super::{conclusions, profile};
use crate::disturbance::Disturbance;
use crate::experiment::{Amount, Check, Load};
use crate::summary::{self, Judged, Leak, Row};
use crate::trial::{Halt, Measured, Slice, Trial};
use crate::watch::CpuMethod;
use crate::{Experiment, Results};

/// Name of the schema.
pub const SCHEMA: &str = "forebay.compare/1";

/// Converts the results of all configurations and trials to JSON.
pub fn json(experiment: &Experiment) -> Value {
    let rows = summary::rows(experiment);
    let judged = summary::judged(experiment);
    let configurations: Vec<Value> = experiment
        .results
        .iter()
        .zip(&rows)
        .zip(&judged)
        .zip(profile::folded_names(experiment))
        .zip(experiment.problems())
        .map(|((((results, row), judged), folded), problems)| {
            let mut object = configuration(results, row, judged);
            object["problems"] = json!(problems);
            object["profile"] = profile::json_of(results, folded);
            object
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "title": experiment.plan.title,
        "machine": machine(experiment),
        "seed": experiment.seed,
        "rounds": experiment.plan.rounds,
        "rounds_finished": experiment.rounds_finished,
        "elapsed_s": experiment.elapsed.as_secs_f64(),
        "complete": experiment.incomplete.is_none(),
        "interrupted": matches!(experiment.halt, Some(Halt::Interrupted)),
        "incomplete_reason": experiment.incomplete,
        "output": output(experiment),
        "confidence": 1.0 - experiment.alpha,
        "against_itself": experiment.against_itself,
        "conclusions": conclusions(experiment, &rows),
        "load": load(&experiment.plan.load),
        "check": check(&experiment.plan.check),
        "plan": experiment.plan,
        "configurations": configurations,
    })
}

fn machine(experiment: &Experiment) -> Value {
    let mut machine = serde_json::to_value(&experiment.machine).unwrap_or_default();
    let versions: Map<String, Value> = experiment
        .results
        .iter()
        .filter_map(|results| {
            Some((results.configuration.name.clone(), json!(results.version.as_ref()?)))
        })
        .collect();
    machine["versions"] = Value::Object(versions);
    machine
}

/// Returns the last output lines of the server that ended the experiment, or else of the first
/// server that did not start. Returns null if there is no such server.
fn output(experiment: &Experiment) -> Value {
    match &experiment.halt {
        Some(Halt::CannotStart { output, .. }) => json!(output),
        _ => {
            let failure = experiment.results.iter().find_map(Results::start_failure);
            failure.map_or(Value::Null, |failure| json!(failure.output))
        }
    }
}

/// Returns the load with a unit in the name of each time: `think_s` is in seconds.
fn load(load: &Load) -> Value {
    let amount = |amount: Amount| match amount {
        Amount::Requests(requests) => json!({ "requests": requests }),
        Amount::Duration(duration) => json!({ "duration_s": duration.as_secs_f64() }),
    };
    json!({
        "method": load.method,
        "path": load.path,
        "connections": load.connections,
        "threads": load.threads,
        "keepalive": load.keepalive,
        "rate_per_s": load.rate,
        "think_s": load.think.map(|think| think.as_secs_f64()),
        "amount": amount(load.amount),
        "warmup": load.warmup.map(amount),
        "steady_s": load.steady.map(|ceiling| ceiling.as_secs_f64()),
        "slices": load.slices().len(),
        "timeout_s": load.timeout.as_secs_f64(),
        "client": load.client,
    })
}

fn check(check: &Check) -> Value {
    json!({ "status": check.status, "body_contains": check.body_contains, "max_failed": check.max_failed })
}

/// Returns the results of one configuration: the summary, and every trial.
fn configuration(results: &Results, row: &Row, judged: &Judged<'_>) -> Value {
    let trial = |each: &Trial| trial(each, &judged.evidence(each.id.round));
    json!({
        "name": row.name,
        "baseline": row.baseline,
        "start": results.configuration.start,
        "url": results.configuration.url,
        "missing": results.missing,
        "version": row.version,
        "trials": results.trials.iter().map(trial).collect::<Vec<_>>(),
        "trials_counted": row.counted,
        "rate": row.rate.as_ref().map(rate),
        "latency_us": merged_latency(results, row),
        "cpu_us_per_request": row.cpu_us_per_request,
        "memory_growth": row.memory_growth,
        "rss_max": row.memory_most,
        "memory_per_request": row.leak.as_ref().map(leak),
        "slices": { "all": row.slices, "disturbed": row.disturbed },
        "isolated": results.configuration.isolated,
        "failed": row.failed,
        "failures": row.failures.by_kind().into_iter().collect::<BTreeMap<_, _>>(),
        "requests": row.requests,
        "resent": row.resent,
        "start_failure": results.start_failure(),
        "reference": row.reference,
        "saved": results.configuration.saved,
        "ratio": row.ratio.as_ref().map(ratio),
        "cpu_ratio": row.cpu_ratio.as_ref().map(less_is_better),
        "memory_ratio": row.memory_ratio.as_ref().map(less_is_better),
        "notes": row.notes,
    })
}

fn rate(rate: &Summary) -> Value {
    json!({
        "mean": rate.mean, "sd": rate.sd, "sd_pct": rate.sd_pct,
        "median": rate.median, "min": rate.min, "max": rate.max, "n": rate.n,
    })
}

/// Converts a ratio. An unbounded end of the interval becomes null.
fn ratio(ratio: &Ratio) -> Value {
    json!({
        "mean": ratio.mean,
        "ci95": ratio.ci95,
        "level": 1.0 - ratio.level,
        "comparisons": ratio.comparisons,
        "pairs": ratio.pairs,
        "slices": ratio.slices,
        "p": ratio.p,
        "p_holm": ratio.p_holm,
        "verdict": match ratio.verdict() {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Same => "same",
        },
    })
}

/// Converts a ratio of CPU times or memory. The verdict says `more` or `less`, because less is
/// better here.
fn less_is_better(used: &Ratio) -> Value {
    let mut object = ratio(used);
    object["verdict"] = json!(match used.verdict() {
        Verdict::Faster => "more",
        Verdict::Slower => "less",
        Verdict::Same => "same",
    });
    object
}

fn leak(leak: &Leak) -> Value {
    json!({
        "slope": leak.slope,
        "ci95": leak.ci95,
        "trials": leak.trials,
        "leaking": leak.leaking,
        "leaks": leak.is_leak(),
    })
}

/// Returns the latencies of all counted trials together, in the format of a single trial's
/// latencies. Returns null if no trial counts.
fn merged_latency(results: &Results, row: &Row) -> Value {
    let Some((_, any)) = crate::trial::counted(&results.trials).next() else { return Value::Null };
    let mut outcome = any.outcome.clone();
    outcome.latency = row.latency.clone();
    outcome.to_json()["latency_us"].take()
}

fn trial(trial: &Trial, evidence: &[Option<Disturbance>]) -> Value {
    let mut object = json!({
        "round": trial.id.round,
        "order": trial.id.order,
        "void": trial.void.is_some(),
        "void_reason": trial.void,
        "server_failed": trial.failed,
        "notes": trial.notes,
        "start_failure": trial.start_failure,
    });
    let Some(measured) = &trial.measured else { return object };
    let mut outcome = measured.outcome.to_json();
    let fields = outcome.as_object_mut().map(std::mem::take).unwrap_or_default();
    // Leave out the schema and version of the load generator, because the report has its own. Leave
    // out the counts per second, because a load in slices has none.
    let is_own = |key: &str| !matches!(key, "schema" | "version" | "series");
    for (key, value) in fields.into_iter().filter(|(key, _)| is_own(key)) {
        object[key] = value;
    }
    object["server"] = server(measured);
    let none = [None];
    let evidence = evidence.iter().chain(none.iter().cycle());
    let slices = measured.slices.iter().zip(evidence);
    object["slices"] = slices.map(|(each, evidence)| slice(each, *evidence)).collect();
    object
}

/// Returns the measurements of a slice and the evidence for disturbances.
fn slice(slice: &Slice, disturbance: Option<Disturbance>) -> Value {
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    json!({
        "number": slice.number,
        "rate_per_s": slice.rate(),
        "duration_s": slice.duration.as_secs_f64(),
        "completed": slice.completed,
        "cpu_us": us(slice.cpu),
        "rss": slice.rss,
        "steal_us": us(slice.evidence.steal),
        "run_delay_us": us(slice.evidence.run_delay),
        "calibration_us": us(slice.evidence.calibration),
        "printed": slice.printed,
        "disturbed": disturbance.map(|disturbance| disturbance.to_string()),
    })
}

/// Returns the CPU time and memory of the server in a trial.
fn server(measured: &Measured) -> Value {
    let series = &measured.server;
    let memory: Vec<Value> =
        series.memory.iter().map(|point| json!([point.at.as_secs_f64(), point.rss])).collect();
    json!({
        "cpu_us_per_request": measured.cpu_us_per_request(),
        "cpu_user_s": series.cpu.user.as_secs_f64(),
        "cpu_system_s": series.cpu.system.as_secs_f64(),
        "cpu_method": match series.cpu_method {
            CpuMethod::Cgroup => "cgroup",
            CpuMethod::Proc => "proc",
        },
        "rss_start": series.rss_start,
        "rss_end": series.rss_end,
        "rss_max": series.most.rss,
        "rss_over_time": memory,
        "threads_max": series.most.threads,
        "processes_max": series.most.processes,
        "fds_max": series.most.fds,
        "load_mean": series.load,
    })
}
