//! How backends are, in the three forms that the administrator may ask for.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{BackendRow, escape, family, label};

/// As JSON.
pub fn json(backends: &[BackendRow]) -> Vec<Value> {
    let row = |backend: &BackendRow| {
        json!({
            "site": backend.site, "route": backend.route, "line": backend.line,
            "server": backend.server, "address": backend.address, "state": state(backend),
            "backup": backend.is_backup, "active": backend.active,
            "requests": backend.requests, "failures": backend.failures,
        })
    };
    backends.iter().map(row).collect()
}

/// A family of metrics: name, type, help and value.
type Family = (&'static str, &'static str, &'static str, fn(&BackendRow) -> u64);

const FAMILIES: [Family; 4] = [
    ("forebay_backend_up", "gauge", "Whether a backend is given requests.", |b| b.is_up.into()),
    (
        "forebay_backend_active_requests",
        "gauge",
        "Requests and tunnels under way to a backend.",
        |b| b.active,
    ),
    ("forebay_backend_requests_total", "counter", "Requests sent to a backend.", |b| b.requests),
    ("forebay_backend_failures_total", "counter", "Requests that a backend failed at.", |b| {
        b.failures
    }),
];

/// As metrics. Site, route and server are numbers in the order of the configuration, so that there
/// are as many label sets as it names backends.
pub fn append_metrics(out: &mut String, backends: &[BackendRow]) {
    for (name, kind, help, value) in FAMILIES {
        family(out, name, kind, help);
        for backend in backends {
            let BackendRow { site, route, server, .. } = backend;
            let _ = writeln!(
                out,
                "{name}{{site=\"{site}\",route=\"{route}\",server=\"{server}\",address=\"{}\"}} {}",
                label(&backend.address),
                value(backend)
            );
        }
    }
}

/// As a table of the status page.
pub fn append_page(page: &mut String, backends: &[BackendRow]) {
    if backends.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Backends</h2>\n<table><tr><th>Route</th><th class=\"text\">Address</th><th>State</th>\
         <th>Active</th><th>Requests</th><th>Failures</th></tr>\n",
    );
    for backend in backends {
        let BackendRow { site, route, line, active, requests, failures, .. } = backend;
        let backup = if backend.is_backup { ", backup" } else { "" };
        let _ = writeln!(
            page,
            "<tr><td>site {site}, route {route} (line {line})</td><td class=\"text\">{}</td>\
             <td>{}{backup}</td><td>{active}</td><td>{requests}</td><td>{failures}</td></tr>",
            escape(&backend.address),
            state(backend),
        );
    }
    page.push_str("</table>\n");
}

fn state(backend: &BackendRow) -> &'static str {
    if backend.is_up { "up" } else { "down" }
}
