//! The report as one HTML page, without scripts and without external resources.

use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;

use super::profile::{self, ProfilesView};
use super::{cells, chart, columns, conclusions, load_in_words, noise_floor};
use crate::machine::Machine;
use crate::number;
use crate::watch::{CpuMethod, Series};
use crate::{Experiment, Measured, Results, Row, Template, Trial, summary};

const TEMPLATE: &str = include_str!("page.html");
/// Style of all pages.
pub const STYLE: &str = include_str!("page.css");
const MISSING: &str = "–";

/// Renders the page. All text from the experiment and from servers is escaped.
pub fn html(experiment: &Experiment) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.add_template("page.css", STYLE)?;
    environment.add_template("page.html", TEMPLATE)?;
    environment.get_template("page.html")?.render(Serde(&page(experiment)))
}

/// Data for the template. The charts are complete SVG elements. The template escapes all other
/// text.
#[derive(Serialize)]
// More than 20 fields: the template uses each of them by name.
struct Page<'a> {
    title: &'a str,
    incomplete: Option<&'a str>,
    conclusions: Vec<String>,
    noise_floor: Option<String>,
    load: String,
    check: String,
    columns: [String; 12],
    rows: Vec<RowView>,
    rate_title: &'a str,
    rate_chart: Option<String>,
    latency_chart: Option<String>,
    open_loop: bool,
    memory_chart: Option<String>,
    memory_axis: Option<&'static str>,
    cpu_chart: Option<String>,
    cpu_axis: Option<&'static str>,
    profiles: Option<ProfilesView<'a>>,
    configurations: Vec<ConfigurationView<'a>>,
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

/// Section of the page with the command and the settings of a configuration.
#[derive(Serialize)]
struct ConfigurationView<'a> {
    name: &'a str,
    /// Names of settings, and their values.
    lines: Vec<(&'static str, String)>,
    /// Template files of the configuration and of the services.
    files: Vec<&'a Template>,
}

#[derive(Serialize)]
struct TrialView<'a> {
    round: u32,
    order: u32,
    name: &'a str,
    figures: [String; 10],
    void: Option<&'a str>,
}

/// Collects the values of all parts of the report's page.
fn page(experiment: &Experiment) -> Page<'_> {
    let rows = summary::rows(experiment);
    let (memory_chart, memory_axis) =
        chart::memory(experiment, &rows).map(|chart| (chart.svg, chart.axis)).unzip();
    let (cpu_chart, cpu_axis) =
        chart::cpu(experiment, &rows).map(|chart| (chart.svg, chart.axis)).unzip();
    Page {
        title: &experiment.plan.title,
        incomplete: experiment.incomplete.as_deref(),
        conclusions: conclusions(experiment, &rows),
        noise_floor: noise_floor(experiment, &rows),
        load: load_in_words(&experiment.plan),
        check: check_in_words(experiment),
        columns: columns(&experiment.plan),
        rate_title: experiment.plan.load.client.as_ref().map_or("Requests per second", |c| &c.unit),
        rate_chart: chart::rate(experiment, &rows),
        latency_chart: chart::latency(&rows),
        open_loop: experiment.plan.load.rate.is_some(),
        memory_chart,
        memory_axis,
        cpu_chart,
        cpu_axis,
        profiles: profile::view(experiment),
        configurations: configurations(experiment),
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

/// Returns how each configuration was started: command, address, version and environment.
fn configurations(experiment: &Experiment) -> Vec<ConfigurationView<'_>> {
    let services = &experiment.plan.services;
    let of = |results: &'_ Results| {
        let Results { configuration, version, .. } = results;
        let mut lines = Vec::new();
        if !configuration.start.is_empty() {
            lines.push(("Command", command(&configuration.start)));
        }
        lines.push(("Address", configuration.url.clone()));
        lines.extend(version.clone().map(|version| ("Version", version)));
        let env = configuration.env.iter().map(|(name, value)| format!("{name}={value}"));
        lines.extend(env.map(|variable| ("Environment", variable)));
        let started = services.iter().map(|service| command(&service.start));
        lines.extend(started.map(|start| ("Service", start)));
        lines
    };
    let view = |results| {
        let lines = of(results);
        let Results { configuration, .. } = results;
        let of_services = services.iter().flat_map(|service| &service.templates);
        let files = configuration.templates.iter().chain(of_services).collect();
        ConfigurationView { name: &configuration.name, lines, files }
    };
    experiment.results.iter().map(view).collect()
}

/// Formats a command with the quotes that a shell needs.
fn command(argv: &[String]) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "{}_-+=./:,@%".contains(c);
    let quoted = |word: &String| {
        if !word.is_empty() && word.chars().all(is_plain) {
            return word.clone();
        }
        format!("'{}'", word.replace('\'', "'\\''"))
    };
    argv.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Returns all trials, in the order of their starts.
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
                .map_or_else(|| [(); 10].map(|()| MISSING.to_owned()), figures),
            void: trial.void.as_deref(),
        })
        .collect()
}

fn figures(measured: &Measured) -> [String; 10] {
    let Measured { outcome, server, .. } = measured;
    let or_missing = |text: Option<String>| text.unwrap_or_else(|| MISSING.to_owned());
    [
        number::rate(measured.rate()),
        or_missing(number::percentile(&outcome.latency, 50.0)),
        or_missing(number::percentile(&outcome.latency, 99.0)),
        or_missing(measured.cpu_us_per_request().map(number::significant)),
        number::size(server.most.rss as f64),
        number::count(server.most.processes),
        number::count(server.most.threads),
        number::count(server.most.fds),
        or_missing(server.load.map(|load| format!("{load:.1}"))),
        number::count(outcome.requests.failed),
    ]
}

fn cpu_from_proc(experiment: &Experiment) -> bool {
    let from_proc = |server: &Series| server.cpu_method == CpuMethod::Proc;
    let mut counted =
        experiment.results.iter().flat_map(|results| crate::trial::counted(&results.trials));
    counted.any(|(_, measured)| from_proc(&measured.server))
}
