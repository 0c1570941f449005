//! Reports of an experiment: a table for terminals, JSON and CSV for programs, Markdown and an HTML
//! page.

mod bench;
mod chart;
mod html;
mod json;
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
pub use table::{csv, markdown, table};

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

// Shortens names for charts and tables.

/// Returns the names shortened to `longest` characters, but still different from each other.
///
/// If a name is too long, the start that all names share is dropped first.
fn labels<'a>(names: impl IntoIterator<Item = &'a str>, longest: usize) -> Vec<String> {
    let names: Vec<&str> = names.into_iter().collect();
    let is_long = |name: &str| name.chars().count() > longest;
    let shared = if names.iter().any(|name| is_long(name)) { shared(&names) } else { 0 };
    let mut labels: Vec<String> = Vec::new();
    for name in names {
        let rest = if shared > 0 { format!("…{}", &name[shared..]) } else { name.to_owned() };
        let label = short(&rest, longest);
        let number = 1 + labels.iter().filter(|other| is_numbered(other, &label)).count();
        labels.push(match number {
            1 => label,
            number => format!("{} ({number})", short(&label, longest.saturating_sub(4))),
        });
    }
    labels
}

/// Cuts a name to `longest` characters.
fn short(name: &str, longest: usize) -> String {
    if name.chars().count() <= longest {
        return name.to_owned();
    }
    let kept: String = name.chars().take(longest - 1).collect();
    format!("{}…", kept.trim_end())
}

/// Returns true if `other` is equal to `label`, or is made of the beginning of `label` and a
/// number. For the label `abc`, `abc (2)` and `ab… (2)` are such labels.
fn is_numbered(other: &str, label: &str) -> bool {
    let Some((bare, end)) = other.rsplit_once(" (") else { return other == label };
    let has_number = end.strip_suffix(')').is_some_and(|number| number.parse::<u32>().is_ok());
    let bare = bare.trim_end_matches('…');
    other == label || has_number && !bare.is_empty() && label.starts_with(bare)
}

/// Returns the length in bytes of the start that all names share. The start ends after a character
/// that is no letter or digit, as `web-` in `web-a1` and `web-a2`. Returns 0 if the start is
/// shorter than `WORTH`, or if a name is nothing but this start.
fn shared(names: &[&str]) -> usize {
    const WORTH: usize = 4;
    let Some((first, others)) = names.split_first().filter(|(_, others)| !others.is_empty()) else {
        return 0;
    };
    let common = |other: &&str| {
        let pairs = first.char_indices().zip(other.chars());
        let differ = pairs.map(|((at, ours), theirs)| (at, ours != theirs)).find(|(_, d)| *d);
        differ.map_or(first.len().min(other.len()), |(at, _)| at)
    };
    let end = others.iter().map(common).min().unwrap_or(0);
    let is_sign = |c: char| !c.is_alphanumeric();
    let end = first[..end]
        .rfind(is_sign)
        .map_or(0, |at| at + first[at..].chars().next().map_or(0, char::len_utf8));
    // No name may become empty.
    if end < WORTH || names.iter().any(|name| name.len() == end) { 0 } else { end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_parts_of_long_names_are_dropped() {
        let urls = ["http://127.0.0.1:8080/an/application", "http://127.0.0.1:8081/an/application"];
        assert_eq!(labels(urls, 24), ["…8080/an/application", "…8081/an/application"]);
        assert_eq!(labels(["nginx", "forebay"], 24), ["nginx", "forebay"]);
        assert_eq!(labels(["a long name, and alone"], 10), ["a long na…"]);
    }

    #[test]
    fn a_word_in_parentheses_is_no_number() {
        let names = ["Apache (mod_perl)", "Apache mod_php"];
        assert_eq!(labels(names, 24), names);
        assert_eq!(labels(["nginx", "nginx", "nginx"], 24), ["nginx", "nginx (2)", "nginx (3)"]);
    }

    #[test]
    fn names_stay_different() {
        let long =
            ["the same beginning of A", "the same beginning of B", "other than both of those"];
        let cut = labels(long, 12);
        assert_ne!(cut[0], cut[1], "{cut:?}");
        assert!(cut.iter().all(|label| label.chars().count() <= 12), "{cut:?}");
    }
}
