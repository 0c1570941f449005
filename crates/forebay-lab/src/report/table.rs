//! The report as a table for a terminal of 80 columns.

use comfy_table::{
    Cell, CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, presets,
};

use super::{cells, columns, conclusions, labels, noise_floor};
use crate::{Experiment, Row, Trial, number, summary};

/// Width of the table and of all text.
const WIDTH: usize = 80;
/// Width of a note's text. The note's number is on its left.
const NOTE: usize = WIDTH - 5;
/// Maximum number of characters of a name. Longer names are shortened.
const LONGEST_NAME: usize = 30;

/// Columns of the table of rates and of the table of resources, as indices of the result of
/// [`columns`].
const RATES: [usize; 6] = [1, 3, 4, 5, 9, 10];
const RESOURCES: [usize; 3] = [6, 7, 8];

/// Returns the tables, the numbered notes, and the conclusions.
pub fn table(experiment: &Experiment) -> String {
    let rows = summary::rows(experiment);
    let mut footnotes: Vec<String> = Vec::new();
    let names = names(&rows, &mut footnotes);
    let columns = columns(&experiment.plan);
    let mut out = format!("{}\n{}\n", experiment.plan.title, part(&rows, &names, &columns, &RATES));
    let is_watched = |row: &Row| row.cpu_us_per_request.is_some() || row.memory_growth.is_some();
    if rows.iter().any(is_watched) {
        out += &format!("\n{}\n", part(&rows, &names, &columns, &RESOURCES));
    }
    for (index, note) in footnotes.iter().enumerate() {
        for (line, text) in wrapped(note, NOTE).iter().enumerate() {
            let number = if line == 0 { (index + 1).to_string() } else { String::new() };
            out += &format!("{number:>2}  {text}\n");
        }
    }
    out += "\n";
    for sentence in conclusions(experiment, &rows).into_iter().chain(noise_floor(experiment, &rows))
    {
        out += &format!("{}\n", wrapped(&sentence, WIDTH).join("\n"));
    }
    out
}

/// Returns a table with the columns in `shown`.
fn part(rows: &[Row], names: &[String], columns: &[String; 12], shown: &[usize]) -> Table {
    let mut table = Table::new();
    let headings = std::iter::once("Configuration").chain(shown.iter().map(|&at| &*columns[at]));
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()))
        .set_header(headings.map(narrow))
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH as u16);
    for (row, name) in rows.iter().zip(names) {
        let cells = cells(row);
        let figures = shown.iter().map(|&at| cells[at].replace(" (", "\n("));
        let figures = figures.map(Cell::new);
        table.add_row(std::iter::once(Cell::new(name)).chain(figures));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if index > 0 {
            // Long names wrap to several lines, figures do not.
            column.set_constraint(ColumnConstraint::ContentWidth);
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns the names, each with the numbers of its notes.
fn names(rows: &[Row], footnotes: &mut Vec<String>) -> Vec<String> {
    let short = labels(rows.iter().map(|row| row.name.as_str()), LONGEST_NAME);
    let named = rows.iter().zip(short).map(|(row, mut name)| {
        if row.baseline {
            name += " (baseline)";
        }
        match references(&row.notes, footnotes).as_str() {
            "" => name,
            numbers => format!("{name} [{numbers}]"),
        }
    });
    named.collect()
}

/// Breaks a heading at its spaces into lines. The spaces in `Ratio to` and `CPU ratio` remain.
fn narrow(heading: &str) -> String {
    let kept = heading.replacen("Ratio to ", "Ratio to\u{a0}", 1);
    kept.replacen("CPU ratio", "CPU\u{a0}ratio", 1).replace(' ', "\n").replace('\u{a0}', " ")
}

/// Returns the numbers of `notes` and adds new notes to `footnotes`. Equal notes share a number.
fn references(notes: &[String], footnotes: &mut Vec<String>) -> String {
    let mut number = |note: &String| {
        let known = footnotes.iter().position(|footnote| footnote == note);
        let index = known.unwrap_or_else(|| {
            footnotes.push(note.clone());
            footnotes.len() - 1
        });
        (index + 1).to_string()
    };
    notes.iter().map(&mut number).collect::<Vec<_>>().join(" ")
}

/// Breaks text into lines of at most `width` characters, at spaces. A word longer than `width` is
/// not broken.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                *line = format!("{line} {word}");
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

const COLUMNS: &str = "configuration,round,order,void,requests_per_s,completed,failed,duration_s,p50_us,\
                       p99_us,cpu_us_per_request,rss_start,rss_end,rss_max,processes_max,threads_max,\
                       fds_max,load_mean";

/// Returns all trials as CSV. Values that were not measured are empty.
pub fn csv(experiment: &Experiment) -> String {
    let mut out = format!("{COLUMNS}\n");
    for results in &experiment.results {
        for trial in &results.trials {
            out += &line(&results.configuration.name, trial);
        }
    }
    out
}

/// Returns the line of one trial, in the order of `COLUMNS`. A trial without a measurement has
/// empty columns.
fn line(name: &str, trial: &Trial) -> String {
    let void = trial.void.as_deref().unwrap_or_default();
    let (round, order) = (trial.id.round, trial.id.order);
    let mut line = format!("{},{round},{order},{}", quoted(name), quoted(void));
    let Some(measured) = &trial.measured else {
        return line + &",".repeat(COLUMNS.matches(',').count() - 3) + "\n";
    };
    let (outcome, server) = (&measured.outcome, &measured.server);
    line += &format!(
        ",{},{},{},{},{},{},{}",
        measured.rate(),
        outcome.requests.completed,
        outcome.requests.failed,
        outcome.duration.as_secs_f64(),
        outcome.latency.percentile_us(50.0),
        outcome.latency.percentile_us(99.0),
        measured.cpu_us_per_request().map(|us| us.to_string()).unwrap_or_default(),
    );
    let most = &server.most;
    line += &format!(
        ",{},{},{},{},{},{},{}\n",
        server.rss_start,
        server.rss_end,
        most.rss,
        most.processes,
        most.threads,
        most.fds,
        server.load.map(|load| format!("{load:.2}")).unwrap_or_default(),
    );
    line
}

/// Quotes a text according to RFC 4180. The prefix `'` keeps spreadsheets from reading a text as a
/// formula.
fn quoted(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let plain = if is_formula { format!("'{text}") } else { text.to_owned() };
    if plain.contains([',', '"', '\n', '\r']) {
        return format!("\"{}\"", plain.replace('"', "\"\""));
    }
    plain
}

/// Returns title, conclusions, table, load and machine.
pub fn markdown(experiment: &Experiment) -> String {
    let rows = summary::rows(experiment);
    let mut out = format!("# {}\n\n", escaped(&experiment.plan.title));
    if let Some(reason) = &experiment.incomplete {
        out += &format!("**Incomplete:** {}\n\n", escaped(reason));
    }
    for sentence in conclusions(experiment, &rows).into_iter().chain(noise_floor(experiment, &rows))
    {
        out += &format!("- {}\n", escaped(&sentence));
    }
    let columns = columns(&experiment.plan);
    let figures = columns.len() - 2;
    out += &format!("\n| {} |\n", columns.map(|name| escaped(&name)).join(" | "));
    out += &format!("|---|{}---|\n", "---:|".repeat(figures));
    for row in &rows {
        let notes: Vec<String> = row.notes.iter().map(|note| escaped(note)).collect();
        let line: Vec<String> = cells(row).iter().map(|cell| escaped(cell)).collect();
        out += &format!("| {} | {} |\n", line.join(" | "), notes.join("<br>"));
    }
    out += &format!("\n{}\n", escaped(&setting(experiment)));
    out
}

/// Describes load, rounds and machine in one paragraph.
fn setting(experiment: &Experiment) -> String {
    let machine = &experiment.machine;
    format!(
        "{}; {} of {} rounds, seed {}. {}, {} cores, {} memory, {}, {}; forebay {}, {}.",
        super::load_in_words(&experiment.plan),
        experiment.rounds_finished,
        experiment.plan.rounds,
        experiment.seed,
        machine.cpu,
        machine.cores,
        number::size(machine.memory as f64),
        machine.os,
        machine.kernel,
        machine.forebay,
        machine.date,
    )
}

/// Escapes text for Markdown. The result is on one line and can be used in a table.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\\' | '`' | '*' | '_' | '|' | '#' | '[' | ']' => out.extend(['\\', character]),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '\n' | '\r' => out.push(' '),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stay_in_their_cells() {
        assert_eq!(quoted("a"), "a");
        assert_eq!(quoted("a, \"b\""), "\"a, \"\"b\"\"\"");
        assert_eq!(quoted("=1+1"), "'=1+1");
    }
}

#[cfg(test)]
mod markdown_tests {
    use super::*;

    #[test]
    fn no_text_breaks_out_of_its_cell() {
        assert_eq!(escaped("a|b\n<script>`x`"), "a\\|b &lt;script>\\`x\\`");
    }
}
