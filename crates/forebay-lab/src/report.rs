//! Reports of an experiment: a table for terminals, JSON and CSV for programs, Markdown and an HTML
//! page.

mod bench;
mod chart;
mod html;
mod json;
mod label;
mod profile;
mod read;
pub mod sentence;
mod table;

pub use bench::bench_page;
pub use html::html;
pub use json::json;
pub use profile::{folded_names, read_folded};
pub use read::read;
pub use sentence::{conclusions, interval, more_rounds, noise_floor};
pub use table::csv;
pub use table::markdown;
pub use table::table;

use crate::number;

/// Columns of the table in every report.
const COLUMNS: [&str; 12] = [
    "Configuration",
    "Requests/s",
    "SD",
    "SD\u{a0}%",
    "p50",
    "p99",
    "CPU µs/request",
    "CPU ratio [95\u{a0}%]",
    "Memory growth",
    "Failed",
    "Ratio to baseline [95\u{a0}%]",
    "Notes",
];

/// Returns the titles of the columns. With a client command, its unit replaces `Requests/s`.
fn columns(plan: &crate::Plan) -> [String; 12] {
    let mut columns = COLUMNS.map(str::to_owned);
    if let Some(client) = &plan.load.client {
        columns[1].clone_from(&client.unit);
        columns[6] = "CPU µs/count".to_owned();
    }
    columns
}

/// Returns a row's cells without the notes, because each report places the notes differently.
fn cells(row: &crate::Row) -> [String; 11] {
    let missing = || "–".to_owned();
    let rate = row.rate.as_ref();
    let name = if row.baseline { format!("{} (baseline)", row.name) } else { row.name.clone() };
    [
        name,
        rate.map_or_else(missing, |rate| number::rate(rate.mean)),
        rate.filter(|rate| rate.n > 1).map_or_else(missing, |rate| number::rate(rate.sd)),
        rate.filter(|rate| rate.n > 1).map_or_else(missing, |rate| format!("{:.1}", rate.sd_pct)),
        number::percentile(&row.latency, 50.0).unwrap_or_else(missing),
        number::percentile(&row.latency, 99.0).unwrap_or_else(missing),
        row.cpu_us_per_request.map_or_else(missing, number::significant),
        row.cpu_ratio.as_ref().map_or_else(missing, number::ratio),
        row.memory_growth.map_or_else(missing, number::growth),
        if row.rate.is_some() || row.failed > 0 { failed(row) } else { missing() },
        row.ratio.as_ref().map_or_else(missing, number::ratio),
    ]
}

/// Formats the number of failed requests, and the number of requests that were sent again.
fn failed(row: &crate::Row) -> String {
    match row.resent {
        0 => number::count(row.failed),
        resent => format!("{} ({} resent)", number::count(row.failed), number::count(resent)),
    }
}

/// Describes the load in words.
fn load_in_words(plan: &crate::Plan) -> String {
    let load = &plan.load;
    use crate::experiment::Amount;
    if let (Some(client), Amount::Duration(duration)) = (&load.client, load.amount) {
        let better = match client.better {
            crate::Better::Higher => "more",
            crate::Better::Lower => "less",
        };
        return format!(
            "loaded by {} for {duration:?} a trial; {better} {} is better",
            client.command.join(" "),
            client.unit,
        );
    }
    let amount = match load.amount {
        Amount::Requests(requests) => format!("{} requests", number::count(requests)),
        Amount::Duration(duration) => format!("{duration:?}"),
    };
    let pace = match load.rate {
        Some(rate) => format!("open loop at {} requests/s", number::significant(rate)),
        None => "closed loop".to_owned(),
    };
    let think = load.think.map(|think| format!(", a pause of {think:?} after each reply"));
    let connections = match load.connections {
        1 => "1 connection".to_owned(),
        many => format!("{many} connections"),
    };
    let reuse = if load.keepalive { "kept alive" } else { "closed after each reply" };
    let is_matrix = plan.configurations.iter().any(|configuration| configuration.cell.is_some());
    format!(
        "{} {} for {amount} a trial, {connections}, {reuse}, {pace}{}{}",
        load.method,
        load.path,
        think.unwrap_or_default(),
        if is_matrix { ", except for the values in brackets" } else { "" }
    )
}
