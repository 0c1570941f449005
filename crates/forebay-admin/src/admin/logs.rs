//! Metrics of lost log lines and of exported traces.

use std::fmt::Write;

use forebay_net::log::LostAt;
use forebay_net::trace::ExportResult;

use super::family;

/// Appends the metrics of logs and traces.
pub fn append_metrics(out: &mut String) {
    let name = "forebay_log_lines_lost_total";
    family(out, name, "counter", "Log lines that were lost, by the place where they were lost.");
    for at in LostAt::ALL {
        let _ = writeln!(out, "{name}{{log=\"{}\"}} {}", at.name(), at.lines());
    }
    let name = "forebay_traced_requests_total";
    family(out, name, "counter", "Recorded requests, by the result of the export of their spans.");
    for result in ExportResult::ALL {
        let _ = writeln!(out, "{name}{{result=\"{}\"}} {}", result.name(), result.requests());
    }
}
