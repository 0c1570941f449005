//! The report as Markdown, for repositories and issue trackers.

use super::{cells, columns, conclusions, noise_floor};
use crate::number;
use crate::{Experiment, summary};

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
    fn no_text_breaks_out_of_its_cell() {
        assert_eq!(escaped("a|b\n<script>`x`"), "a\\|b &lt;script>\\`x\\`");
    }
}
