//! The state of backends as JSON, metrics and HTML.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{BackendRow, BackendsOf, escape, label};
use crate::metrics::{self, Metric};

/// Returns the backends as JSON.
pub fn json(backends: &[BackendRow]) -> Vec<Value> {
    let row = |backend: &BackendRow| {
        let mut row = json!({
            "server": backend.server, "address": backend.address, "state": state(backend),
            "backup": backend.is_backup, "active": backend.active,
            "requests": backend.requests, "failures": backend.failures,
            "activation": backend.activation, "weight": backend.weight,
        });
        match &backend.of {
            BackendsOf::Route { site, route, line } => {
                row["site"] = (*site).into();
                row["route"] = (*route).into();
                row["line"] = (*line).into();
            }
            BackendsOf::Stream { stream, line } => {
                row["stream"] = (*stream).into();
                row["line"] = (*line).into();
            }
            BackendsOf::Upstream(name) => row["upstream"] = name.clone().into(),
        }
        if let Some(percent) = backend.slow_start {
            row["slow_start"] = percent.into();
        }
        row
    };
    backends.iter().map(row).collect()
}

/// A metric and its value.
type Figure = (Metric, fn(&BackendRow) -> u64);

const FAMILIES: [Figure; 4] = [
    (metrics::BACKEND_UP, |b| b.is_up.into()),
    (metrics::BACKEND_ACTIVE, |b| b.active),
    (metrics::BACKEND_REQUESTS, |b| b.requests),
    (metrics::BACKEND_FAILURES, |b| b.failures),
];

/// Appends the metrics of the backends.
pub fn append_metrics(out: &mut String, backends: &[BackendRow]) {
    // All labels come from the configuration, so that traffic cannot create new labels.
    for (metric, value) in FAMILIES {
        metric.begin(out);
        for backend in backends {
            let of = match &backend.of {
                BackendsOf::Route { site, route, .. } => {
                    format!("site=\"{site}\",route=\"{route}\"")
                }
                BackendsOf::Stream { stream, .. } => format!("stream=\"{stream}\""),
                BackendsOf::Upstream(name) => format!("upstream=\"{}\"", label(name)),
            };
            let (server, address) = (backend.server, label(&backend.address));
            let labels = format!("{of},server=\"{server}\",address=\"{address}\"");
            metric.value(out, &labels, value(backend));
        }
    }
}

/// Appends the backends as a table of the status page.
pub fn append_page(page: &mut String, backends: &[BackendRow]) {
    if backends.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Backends</h2>\n<table><tr><th>Of</th><th class=\"text\">Address</th><th>State</th>\
         <th>Active</th><th>Requests</th><th>Failures</th></tr>\n",
    );
    for backend in backends {
        let BackendRow { active, requests, failures, .. } = backend;
        let of = match &backend.of {
            BackendsOf::Route { site, route, line } => {
                format!("site {site}, route {route} (line {line})")
            }
            BackendsOf::Stream { stream, line } => format!("stream {stream} (line {line})"),
            BackendsOf::Upstream(name) => format!("upstream {}", escape(name)),
        };
        let backup = if backend.is_backup { ", backup" } else { "" };
        let slow = backend.slow_start.map(|percent| format!(", slow start: {percent} %"));
        let slow = slow.unwrap_or_default();
        let _ = writeln!(
            page,
            "<tr><td>{of}</td><td class=\"text\">{}</td>\
             <td>{}{backup}{slow}</td><td>{active}</td><td>{requests}</td><td>{failures}</td></tr>",
            escape(&backend.address),
            state(backend),
        );
    }
    page.push_str("</table>\n");
}

fn state(backend: &BackendRow) -> &'static str {
    if backend.is_up { "up" } else { "down" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_of_a_group_are_found_by_its_name() {
        let row = BackendRow {
            of: BackendsOf::Upstream("a<b".into()),
            server: 2,
            address: "10.0.0.1:80".into(),
            is_up: true,
            activation: "active",
            weight: 1,
            slow_start: None,
            is_backup: false,
            active: 0,
            requests: 3,
            failures: 0,
        };
        let rows = [row];
        let json = &json(&rows)[0];
        assert_eq!((&json["upstream"], &json["route"]), (&"a<b".into(), &Value::Null));
        let (mut metrics, mut page) = (String::new(), String::new());
        append_metrics(&mut metrics, &rows);
        let line = "forebay_backend_requests_total{upstream=\"a<b\",server=\"2\",\
                    address=\"10.0.0.1:80\"} 3\n";
        assert!(metrics.contains(line), "{metrics}");
        append_page(&mut page, &rows);
        assert!(page.contains("<td>upstream a&lt;b</td>"), "{page}");
    }
}
