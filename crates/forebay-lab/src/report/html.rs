//! The report as one HTML page: no scripts, and nothing is fetched from anywhere.

use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;

use super::{COLUMNS, cells, chart, conclusions, load_in_words, noise_floor};
use crate::machine::Machine;
use crate::number;
use crate::watch::{CpuMethod, Series};
use crate::{Experiment, Measured, Row, Trial, summary};

const TEMPLATE: &str = include_str!("page.html");
const MISSING: &str = "–";

/// The page. All text from the experiment and from servers is escaped.
pub fn html(experiment: &Experiment) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.add_template("page.html", TEMPLATE)?;
    environment.get_template("page.html")?.render(Serde(&page(experiment)))
}

/// What the template shows. Charts are finished SVG; all else is text still to be escaped.
#[derive(Serialize)]
struct Page<'a> {
    title: &'a str,
    incomplete: Option<&'a str>,
    conclusions: Vec<String>,
    noise_floor: Option<String>,
    load: String,
    check: String,
    columns: [&'static str; 12],
    rows: Vec<RowView>,
    rate_chart: Option<String>,
    latency_chart: Option<String>,
    open_loop: bool,
    memory_chart: Option<String>,
    memory_axis: Option<&'static str>,
    trials: Vec<TrialView<'a>>,
    rounds: u32,
    rounds_finished: u32,
    seed: String,
    machine: &'a Machine,
    memory: String,
    cpu_from_proc: bool,
}

#[derive(Serialize)]
struct RowView {
    name: String,
    baseline: bool,
    version: Option<String>,
    figures: Vec<String>,
    factor: String,
    interval: String,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct TrialView<'a> {
    round: u32,
    order: u32,
    name: &'a str,
    figures: [String; 9],
    void: Option<&'a str>,
}

fn page(experiment: &Experiment) -> Page<'_> {
    let rows = summary::rows(experiment);
    let (memory_chart, memory_axis) =
        chart::memory(experiment, &rows).map(|chart| (chart.svg, chart.axis)).unzip();
    Page {
        title: &experiment.plan.title,
        incomplete: experiment.incomplete.as_deref(),
        conclusions: conclusions(&rows),
        noise_floor: noise_floor(experiment, &rows),
        load: load_in_words(&experiment.plan.load),
        check: check_in_words(experiment),
        columns: COLUMNS,
        rate_chart: chart::rate(experiment, &rows),
        latency_chart: chart::latency(&rows),
        open_loop: experiment.plan.load.rate.is_some(),
        memory_chart,
        memory_axis,
        rows: rows.into_iter().map(RowView::from).collect(),
        trials: trials(experiment),
        rounds: experiment.plan.rounds,
        rounds_finished: experiment.rounds_finished,
        seed: experiment.seed.to_string(),
        machine: &experiment.machine,
        memory: number::size(experiment.machine.memory as f64),
        cpu_from_proc: cpu_from_proc(experiment),
    }
}

fn check_in_words(experiment: &Experiment) -> String {
    let check = &experiment.plan.check;
    match &check.body_contains {
        Some(text) => format!("status {} and a body that contains “{text}”", check.status),
        None => format!("status {}", check.status),
    }
}

impl From<Row> for RowView {
    fn from(row: Row) -> Self {
        let ratio = row.ratio.as_ref().map(number::ratio).unwrap_or_default();
        let (factor, interval) = ratio.split_once(' ').unwrap_or((&ratio, ""));
        Self {
            figures: cells(&row)[1..10].to_vec(),
            factor: factor.to_owned(),
            interval: interval.to_owned(),
            name: row.name,
            baseline: row.baseline,
            version: row.version,
            notes: row.notes,
        }
    }
}

/// All trials in the order in which they ran.
fn trials(experiment: &Experiment) -> Vec<TrialView<'_>> {
    let mut all: Vec<(&str, &Trial)> = experiment
        .results
        .iter()
        .flat_map(|results| {
            results.trials.iter().map(|trial| (results.configuration.name.as_str(), trial))
        })
        .collect();
    all.sort_by_key(|(_, trial)| (trial.id.round, trial.id.order));
    all.into_iter()
        .map(|(name, trial)| TrialView {
            round: trial.id.round,
            order: trial.id.order,
            name,
            figures: trial
                .measured
                .as_ref()
                .map_or_else(|| [(); 9].map(|()| MISSING.to_owned()), figures),
            void: trial.void.as_deref(),
        })
        .collect()
}

fn figures(measured: &Measured) -> [String; 9] {
    let Measured { outcome, server, .. } = measured;
    let or_missing = |text: Option<String>| text.unwrap_or_else(|| MISSING.to_owned());
    [
        number::rate(outcome.rate_per_s()),
        or_missing(number::percentile(&outcome.latency, 50.0)),
        or_missing(number::percentile(&outcome.latency, 99.0)),
        or_missing(measured.cpu_us_per_request().map(number::significant)),
        number::size(server.most.rss as f64),
        number::count(server.most.processes),
        number::count(server.most.threads),
        number::count(server.most.fds),
        number::count(outcome.requests.failed),
    ]
}

fn cpu_from_proc(experiment: &Experiment) -> bool {
    let from_proc = |server: &Series| server.cpu_method == CpuMethod::Proc;
    let mut counted =
        experiment.results.iter().flat_map(|results| crate::trial::counted(&results.trials));
    counted.any(|(_, measured)| from_proc(&measured.server))
}
