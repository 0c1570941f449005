//! Lost log lines.

use std::fmt::Write;

use forebay_net::log::LostAt;

use super::family;

/// Appends the metrics of logs.
pub fn append_metrics(out: &mut String) {
    let name = "forebay_log_lines_lost_total";
    family(out, name, "counter", "Log lines that were lost, by the place where they were lost.");
    for at in LostAt::ALL {
        let _ = writeln!(out, "{name}{{log=\"{}\"}} {}", at.name(), at.lines());
    }
}
