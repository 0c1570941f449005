//! Parser of JSON reports. A report is read to resume its experiment, or to compare its results
//! with new ones.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::json::SCHEMA;
use crate::experiment::{Configuration, Plan};
use crate::profile::{Profile, Stacks};
use crate::trial::{Measured, Slice, Trial, TrialId};
use crate::watch::{Cpu, CpuMethod, Evidence, Glance, Point, Series};
use crate::{Experiment, Machine, Results};

/// Parses the output of [`json`](super::json()).
///
/// # Errors
/// Returns a description of the error.
pub fn read(text: &str) -> Result<Experiment, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if json["schema"] != SCHEMA {
        return Err(format!("it is not a report of `forebay compare` (schema {SCHEMA})"));
    }
    experiment(&json).map_err(|field| format!("it is damaged, or of another version: {field}"))
}

fn experiment(json: &Value) -> Result<Experiment, String> {
    let plan: Plan = part(&json["plan"], "plan")?;
    let configurations = list(json, "configurations")?;
    let is_same = |(planned, json): (&Configuration, &Value)| json["name"] == planned.name;
    let baselines = plan.configurations.iter().filter(|configuration| configuration.baseline);
    if configurations.len() != plan.configurations.len()
        || !plan.configurations.iter().zip(configurations).all(is_same)
        || baselines.count() != 1
    {
        return Err("configurations".to_owned());
    }
    let results = plan.configurations.iter().zip(configurations);
    let results =
        results.map(|(planned, json)| results_of(planned, json)).collect::<Result<_, _>>()?;
    let confidence = json["confidence"].as_f64().filter(|level| (0.0..1.0).contains(level));
    Ok(Experiment {
        seed: count(json, "seed")?,
        against_itself: json["against_itself"] == true,
        machine: part::<Machine>(&json["machine"], "machine")?,
        results,
        rounds_finished: count(json, "rounds_finished")?
            .try_into()
            .map_err(|_| "rounds_finished")?,
        // Reports of older versions do not have this field.
        elapsed: duration(json, "elapsed_s", 1.0).unwrap_or_default(),
        alpha: 1.0 - confidence.ok_or("confidence")?,
        incomplete: json["incomplete_reason"].as_str().map(str::to_owned),
        halt: None,
        plan,
    })
}

fn results_of(configuration: &Configuration, json: &Value) -> Result<Results, String> {
    let trials = list(json, "trials")?.iter().map(trial).collect::<Result<_, _>>()?;
    Ok(Results {
        configuration: configuration.clone(),
        missing: part(&json["missing"], "missing")?,
        version: json["version"].as_str().map(str::to_owned),
        trials,
        profile: profile(&json["profile"])?,
    })
}

/// Parses a profile without its stacks, which are in a separate file. Returns `None` if `json` is
/// null.
fn profile(json: &Value) -> Result<Option<Profile>, String> {
    if json.is_null() {
        return Ok(None);
    }
    Ok(Some(Profile {
        frequency: count(json, "frequency_hz")?.try_into().map_err(|_| "frequency_hz")?,
        requests: json["requests"].as_u64(),
        stacks: Stacks::default(),
        timings: part(&json["server_timing_ms"], "server_timing_ms")?,
        notes: part(&json["notes"], "notes")?,
    }))
}

fn trial(json: &Value) -> Result<Trial, String> {
    let number = |name| count(json, name)?.try_into().map_err(|_| name.to_owned());
    Ok(Trial {
        id: TrialId { round: number("round")?, order: number("order")? },
        measured: json.get("server").map(|_| measured(json)).transpose()?,
        void: json["void_reason"].as_str().map(str::to_owned),
        failed: json["server_failed"] == true,
        notes: part(&json["notes"], "notes")?,
        start_failure: part(&json["start_failure"], "start_failure")?,
    })
}

fn measured(json: &Value) -> Result<Measured, String> {
    let slices = list(json, "slices")?.iter().map(slice).collect::<Result<_, _>>()?;
    let outcome = forebay_load::Outcome::from_json(json)?;
    Ok(Measured { outcome, server: series(&json["server"])?, slices })
}

/// Reads a server's CPU time and memory. The error is the name of the wrong key.
fn series(json: &Value) -> Result<Series, String> {
    let points: Vec<(f64, u64)> = part(&json["rss_over_time"], "rss_over_time")?;
    let point = |(at, rss)| Ok(Point { at: time(at, 1.0, "rss_over_time")?, rss });
    let cpu_method = match json["cpu_method"].as_str() {
        Some("cgroup") => CpuMethod::Cgroup,
        Some("proc") => CpuMethod::Proc,
        _ => return Err("cpu_method".to_owned()),
    };
    Ok(Series {
        cpu: Cpu {
            user: duration(json, "cpu_user_s", 1.0)?,
            system: duration(json, "cpu_system_s", 1.0)?,
        },
        cpu_method,
        memory: points.into_iter().map(point).collect::<Result<_, String>>()?,
        rss_start: count(json, "rss_start")?,
        rss_end: count(json, "rss_end")?,
        most: Glance {
            rss: count(json, "rss_max")?,
            threads: count(json, "threads_max")?,
            processes: count(json, "processes_max")?,
            fds: count(json, "fds_max")?,
        },
        load: json["load_mean"].as_f64(),
    })
}

/// Reads a slice. The error is the name of the wrong key.
fn slice(json: &Value) -> Result<Slice, String> {
    const US: f64 = 1e-6;
    Ok(Slice {
        number: count(json, "number")?.try_into().map_err(|_| "number")?,
        duration: duration(json, "duration_s", 1.0)?,
        completed: count(json, "completed")?,
        cpu: duration(json, "cpu_us", US)?,
        rss: count(json, "rss")?,
        evidence: Evidence {
            steal: duration(json, "steal_us", US)?,
            run_delay: duration(json, "run_delay_us", US)?,
            calibration: duration(json, "calibration_us", US)?,
        },
        printed: json.get("printed").map_or(Ok(None), |printed| part(printed, "printed"))?,
    })
}

fn part<T: for<'de> Deserialize<'de>>(json: &Value, name: &str) -> Result<T, String> {
    T::deserialize(json).map_err(|error| format!("{name}: {error}"))
}

fn list<'a>(json: &'a Value, name: &str) -> Result<&'a [Value], String> {
    json[name].as_array().map(Vec::as_slice).ok_or_else(|| name.to_owned())
}

fn count(json: &Value, name: &str) -> Result<u64, String> {
    json[name].as_u64().ok_or_else(|| name.to_owned())
}

fn duration(json: &Value, name: &str, unit: f64) -> Result<Duration, String> {
    time(json[name].as_f64().ok_or_else(|| name.to_owned())?, unit, name)
}

/// Converts a number of the report to a duration. `unit` is the unit of the number, in seconds. The
/// rounding to nanoseconds restores the duration from which the report's number was computed.
fn time(value: f64, unit: f64, name: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value * unit).map_err(|_| name.to_owned())
}
