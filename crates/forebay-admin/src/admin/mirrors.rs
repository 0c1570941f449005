//! Copies of requests (`mirror`) as JSON, metrics and HTML.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::metrics::{MIRROR_ACTIVE, MIRROR_REQUESTS};

/// Counts of the copies of one route's requests, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct MirrorRow {
    /// Number of the site in the configuration, from 1.
    pub site: usize,
    /// Number of the route in the site, from 1.
    pub route: usize,
    /// Line at which the route begins; 0 without a file.
    pub line: usize,
    pub counts: MirrorCounts,
}

/// Numbers of copies by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorCounts {
    /// Copies under way.
    pub active: u64,
    /// Copies that the server has answered.
    pub answered: u64,
    /// Copies that failed.
    pub failed: u64,
    /// Copies that took too long.
    pub timed_out: u64,
    /// Requests that were not copied because of a limit on copies, or an incomplete body.
    pub dropped: u64,
    /// Requests that were not copied, because their body is too large.
    pub too_large: u64,
}

impl MirrorCounts {
    fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("answered", self.answered),
            ("failed", self.failed),
            ("timed_out", self.timed_out),
            ("dropped", self.dropped),
            ("too_large", self.too_large),
        ]
    }
}

/// Returns the counts of copied requests as JSON, with an object for each route.
pub(super) fn json(rows: &[MirrorRow]) -> Vec<Value> {
    let row = |row: &MirrorRow| {
        let mut value = json!({
            "site": row.site, "route": row.route, "line": row.line, "active": row.counts.active,
        });
        for (name, count) in row.counts.named() {
            value[name] = count.into();
        }
        value
    };
    rows.iter().map(row).collect()
}

/// Appends the counts of copied requests as metrics.
pub(super) fn append_metrics(out: &mut String, rows: &[MirrorRow]) {
    if rows.is_empty() {
        return;
    }
    MIRROR_REQUESTS.begin(out);
    for MirrorRow { site, route, counts, .. } in rows {
        for (result, count) in counts.named() {
            let labels = format!("site=\"{site}\",route=\"{route}\",result=\"{result}\"");
            MIRROR_REQUESTS.value(out, &labels, count);
        }
    }
    MIRROR_ACTIVE.begin(out);
    for MirrorRow { site, route, counts, .. } in rows {
        let labels = format!("site=\"{site}\",route=\"{route}\"");
        MIRROR_ACTIVE.value(out, &labels, counts.active);
    }
}

/// Appends the counts of copied requests as a table of the status page.
pub(super) fn append_page(page: &mut String, rows: &[MirrorRow]) {
    if rows.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Mirrors</h2>\n<table><tr><th>Of</th><th>Active</th><th>Answered</th><th>Failed</th>\
         <th>Timed out</th><th>Dropped</th><th>Too large</th></tr>\n",
    );
    for MirrorRow { site, route, line, counts } in rows {
        let _ = write!(
            page,
            "<tr><td>site {site}, route {route} (line {line})</td><td>{}</td>",
            counts.active
        );
        counts.named().iter().for_each(|(_, count)| {
            let _ = write!(page, "<td>{count}</td>");
        });
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_a_line() {
        let counts = MirrorCounts { answered: 3, dropped: 1, ..MirrorCounts::default() };
        let rows = [MirrorRow { site: 1, route: 2, line: 7, counts }];
        assert_eq!(json(&rows)[0]["answered"], 3);
        let (mut metrics, mut page) = (String::new(), String::new());
        append_metrics(&mut metrics, &rows);
        let line = "forebay_mirror_requests_total{site=\"1\",route=\"2\",result=\"dropped\"} 1\n";
        assert!(metrics.contains(line), "{metrics}");
        append_page(&mut page, &rows);
        assert!(page.contains("site 1, route 2 (line 7)</td><td>0</td><td>3</td>"), "{page}");
    }
}
