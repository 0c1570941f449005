//! Metrics of lost log lines and of exported traces.

use forebay_net::log::LostAt;
use forebay_net::trace::ExportResult;

use crate::metrics::{LOG_LINES_LOST, TRACED_REQUESTS};

/// Appends the metrics of logs and traces.
pub fn append_metrics(out: &mut String) {
    LOG_LINES_LOST.begin(out);
    for at in LostAt::ALL {
        LOG_LINES_LOST.value(out, &format!("log=\"{}\"", at.name()), at.lines());
    }
    TRACED_REQUESTS.begin(out);
    for result in ExportResult::ALL {
        TRACED_REQUESTS.value(out, &format!("result=\"{}\"", result.name()), result.requests());
    }
}
