//! The table for a terminal.

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, presets};

use super::{cells, columns, conclusions, noise_floor};
use crate::{Experiment, summary};

/// Returns the table, the numbered notes, and the conclusions.
pub fn table(experiment: &Experiment) -> String {
    let rows = summary::rows(experiment);
    let mut footnotes: Vec<String> = Vec::new();
    let columns = columns(&experiment.plan);
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()))
        .set_header(columns.iter().map(|name| narrow(name)));
    // Cells wrap on a terminal that is narrower than the table.
    table.set_content_arrangement(ContentArrangement::Dynamic);
    for row in &rows {
        let mut line: Vec<Cell> = cells(row).into_iter().map(Cell::new).collect();
        line.push(Cell::new(references(&row.notes, &mut footnotes)));
        table.add_row(line);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        let left = index == 0 || index == columns.len() - 1;
        column.set_padding((0, 2));
        column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
    }
    let mut out = format!("{}\n{table}\n", experiment.plan.title);
    for (index, note) in footnotes.iter().enumerate() {
        out += &format!(" {}  {note}\n", index + 1);
    }
    out += "\n";
    for sentence in conclusions(&rows).into_iter().chain(noise_floor(experiment, &rows)) {
        out += &format!("{sentence}\n");
    }
    out
}

/// Breaks a heading into lines at its spaces.
fn narrow(heading: &str) -> String {
    let kept = heading.replacen("Ratio to ", "Ratio to\u{a0}", 1);
    kept.replacen("CPU ratio", "CPU\u{a0}ratio", 1).replace(' ', "\n").replace('\u{a0}', " ")
}

/// Returns the footnote numbers of `notes`. Equal notes share a number.
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
