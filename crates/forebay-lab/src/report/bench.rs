//! The result of `forebay bench` as one HTML page, without scripts and without external resources.

use forebay_load::{Outcome, Second, StageCounts};
use forebay_stat::Latency;
use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;

use super::chart::{self, HeatMap, TimeLine};
use super::html::STYLE;
use crate::number;

const TEMPLATE: &str = include_str!("bench.html");

/// Maximum number of points of a line. A longer run has several seconds in each point.
const MOST_POINTS: usize = 120;

/// Percentiles of the chart over time and of the table.
const PERCENTILES: [f64; 6] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9];

/// Renders the page. All text of the run and of its file is escaped.
///
/// # Errors
/// Fails only if the template is wrong.
pub fn bench_page(outcome: &Outcome, problems: &[String]) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.add_template("page.css", STYLE)?;
    environment.add_template("bench.html", TEMPLATE)?;
    environment.get_template("bench.html")?.render(Serde(&page(outcome, problems)))
}

/// Data for the template. The charts are complete SVG elements.
#[derive(Serialize)]
struct Page<'a> {
    title: String,
    load: String,
    started: String,
    problems: &'a [String],
    first_failure: Option<&'a str>,
    /// Names of figures, and their values.
    figures: Vec<(String, String)>,
    /// Scenarios and their steps: name, completed, failed, p50 and p99.
    steps: Vec<[String; 5]>,
    /// Stages of a ramp: values, time, rate, completed, failed, p50 and p99.
    stages: Vec<[String; 7]>,
    /// Unit of the values of the stages.
    stage_unit: String,
    /// Kinds of errors and statuses, and their counts.
    errors: Vec<(String, String)>,
    statuses: Vec<(String, String)>,
    seconds: usize,
    rate_chart: Option<String>,
    latency_chart: Option<String>,
    heat_map: Option<String>,
    distribution: Option<String>,
    open_loop: bool,
    version: &'static str,
}

/// Sums of several consecutive seconds of the run.
struct Span {
    start: f64,
    seconds: usize,
    completed: u64,
    failed: u64,
    latency: Latency,
}

fn page<'a>(outcome: &'a Outcome, problems: &'a [String]) -> Page<'a> {
    let per_point = outcome.series.len().div_ceil(MOST_POINTS).max(1);
    let spans = spans(outcome, per_point);
    let requests = &outcome.requests;
    let failures = requests.failures.by_kind().into_iter().filter(|(_, count)| *count > 0);
    Page {
        title: format!("{} {}", outcome.method, outcome.url),
        load: load(outcome),
        started: outcome.started(),
        problems,
        first_failure: outcome.first_failure.as_deref(),
        figures: figures(outcome),
        steps: steps(outcome),
        stages: outcome.stages.iter().map(stage).collect(),
        stage_unit: match outcome.rate {
            Some(_) => format!("{} per second", outcome.unit()),
            None => "connections".to_owned(),
        },
        errors: failures.map(|(kind, n)| (kind.to_owned(), number::count(n))).collect(),
        statuses: requests.status.iter().map(|(s, n)| (s.to_string(), number::count(*n))).collect(),
        seconds: per_point,
        rate_chart: rate_chart(&spans),
        latency_chart: latency_chart(&spans),
        heat_map: heat_map(spans, per_point),
        distribution: chart::distribution(&outcome.latency),
        open_loop: outcome.is_open_loop(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

fn load(outcome: &Outcome) -> String {
    let mut text = format!(
        "{} connections, {} threads, {}",
        number::count(outcome.connections as u64),
        outcome.threads,
        number::time(outcome.duration.as_secs_f64() * 1e6)
    );
    if let Some(rate) = outcome.rate {
        text += &format!(", {} requests per second wanted", number::rate(rate.per_second));
    }
    if outcome.is_interrupted {
        text += ", interrupted";
    }
    text
}

fn figures(outcome: &Outcome) -> Vec<(String, String)> {
    let requests = &outcome.requests;
    let mut figures = vec![
        ("Requests per second".to_owned(), number::rate(outcome.rate_per_s())),
        ("Completed".to_owned(), number::count(requests.completed)),
        ("Failed".to_owned(), number::count(requests.failed)),
        ("In flight at the end".to_owned(), number::count(requests.in_flight)),
        ("Due but not sent".to_owned(), number::count(requests.unsent)),
    ];
    for percent in PERCENTILES {
        let value = number::percentile(&outcome.latency, percent);
        figures.extend(value.map(|value| (format!("p{percent}"), value)));
    }
    if !outcome.latency.is_empty() {
        figures.push(("Longest".to_owned(), number::time(outcome.latency.max_us() as f64)));
    }
    figures.push(("Bytes received".to_owned(), number::size(outcome.bytes.read as f64)));
    figures
}

/// Returns one row for each scenario, with the number of its iterations, and one row for each named
/// step.
fn steps(outcome: &Outcome) -> Vec<[String; 5]> {
    let row = |name: &str, counts: [u64; 2], latency: Option<&Latency>| {
        let percentile = |percent: f64| {
            latency.and_then(|latency| number::percentile(latency, percent)).unwrap_or_default()
        };
        let [completed, failed] = counts.map(number::count);
        [name.to_owned(), completed, failed, percentile(50.0), percentile(99.0)]
    };
    let scenarios = outcome.iterations.iter().map(|counts| {
        let name = format!("Iterations of {}", counts.name);
        row(&name, [counts.completed, counts.failed], Some(&counts.time))
    });
    let steps = outcome.parts.iter().filter_map(|part| {
        let name = part.name.as_deref()?;
        Some(row(name, [part.completed, part.failed], part.latency.as_deref()))
    });
    scenarios.chain(steps).collect()
}

/// Returns the row of a stage.
fn stage(counts: &StageCounts) -> [String; 7] {
    let percentile =
        |percent: f64| number::percentile(&counts.latency, percent).unwrap_or_default();
    let [completed, failed] = [counts.completed, counts.failed].map(number::count);
    let value = |value: f64| {
        if value.fract() == 0.0 { number::count(value as u64) } else { number::rate(value) }
    };
    [
        format!("{} to {}", value(counts.from), value(counts.stage.target)),
        number::time(counts.stage.time.as_secs_f64() * 1e6),
        number::rate(counts.rate_per_s()),
        completed,
        failed,
        percentile(50.0),
        percentile(99.0),
    ]
}

/// Joins every `count` consecutive seconds of the run into one span.
fn spans(outcome: &Outcome, count: usize) -> Vec<Span> {
    let sum = |(index, seconds): (usize, &[Second])| {
        let mut latency = Latency::coarse();
        seconds.iter().for_each(|second| latency.merge(&second.latency()));
        Span {
            start: (index * count) as f64,
            seconds: seconds.len(),
            completed: seconds.iter().map(|second| second.completed).sum(),
            failed: seconds.iter().map(|second| second.failed).sum(),
            latency,
        }
    };
    outcome.series.chunks(count).enumerate().map(sum).collect()
}

fn rate_chart(spans: &[Span]) -> Option<String> {
    let line = |name, colour, count: fn(&Span) -> u64| {
        let point = |span: &Span| {
            let seconds = span.seconds as f64;
            (span.start + seconds / 2.0, count(span) as f64 / seconds)
        };
        TimeLine { name, colour, points: spans.iter().map(point).collect() }
    };
    let mut lines = vec![line("completed", 0, |span| span.completed)];
    if spans.iter().any(|span| span.failed > 0) {
        lines.push(line("failed", 1, |span| span.failed));
    }
    chart::over_time("Requests per second over time", &lines, false)
}

fn latency_chart(spans: &[Span]) -> Option<String> {
    let line = |(colour, (name, percent)): (usize, (&'static str, f64))| {
        let known = spans.iter().filter(|span| !span.latency.is_empty());
        let point = |span: &Span| {
            (span.start + span.seconds as f64 / 2.0, span.latency.percentile_us(percent) as f64)
        };
        TimeLine { name, colour, points: known.map(point).collect() }
    };
    let lines = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("longest", 100.0)];
    let lines: Vec<_> = lines.into_iter().enumerate().map(line).collect();
    chart::over_time("Latency over time", &lines, true)
}

fn heat_map(spans: Vec<Span>, seconds: usize) -> Option<String> {
    let columns = spans.into_iter().map(|span| (span.start, span.latency)).collect();
    chart::heat_map(&HeatMap { columns, width: seconds as f64 })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_page_escapes_what_it_shows_and_loads_nothing() {
        let mut outcome = Outcome {
            url: "http://h/<script>".to_owned(),
            first_failure: Some("<b>&\"".to_owned()),
            duration: Duration::from_secs(300),
            ..Outcome::default()
        };
        let mut latency = Latency::coarse();
        (1..2000).for_each(|us| latency.record_us(us * us));
        outcome.latency = latency.clone();
        let second = Second { completed: 1999, failed: 1, histogram: latency.encode() };
        outcome.series = vec![second; 300];
        let page = bench_page(&outcome, &["<i>".to_owned()]).unwrap();
        assert!(!page.contains("<script") && !page.contains("<b>&") && !page.contains("<i>"));
        assert!(!page.contains("NaN") && !page.contains(" src="), "{page}");
        assert_eq!(page.matches("<svg").count(), 8, "four charts for two widths");
        assert!(page.len() < 2_000_000, "{}", page.len());
        let empty = bench_page(&Outcome::default(), &[]).unwrap();
        assert_eq!(empty.matches("<svg").count(), 0);
    }
}
