//! The counters of routes as JSON, metrics and HTML.

use std::fmt::Write;

use forebay_net::counters::RouteTotals;
use serde_json::{Value, json};

use super::{escape, histogram, label};
use crate::metrics::{ROUTE_BODY_BYTES, ROUTE_DURATION, ROUTE_REQUESTS};

/// Returns the counters of requests as JSON, with an object for each route.
pub fn json(routes: &[RouteTotals]) -> Vec<Value> {
    let requests = |route: &RouteTotals| {
        let row = |(method, status, n): &(&str, String, u64)| json!({ "method": method, "status": status, "requests": n });
        route.requests.iter().map(row).collect::<Vec<_>>()
    };
    let row = |route: &RouteTotals| {
        json!({
            "site": route.labels.site, "route": route.labels.route, "replies": requests(route),
            "body_bytes": route.body_bytes, "duration_sum_us": route.durations.sum_us,
            "timed": route.durations.count(),
        })
    };
    routes.iter().map(row).collect()
}

/// Appends the metrics of routes. Their labels are names from the configuration, and known methods
/// and statuses, so that traffic cannot create new labels.
pub fn append_metrics(out: &mut String, routes: &[RouteTotals]) {
    if routes.is_empty() {
        return;
    }
    let labels: Vec<_> = routes.iter().map(labels_of).collect();
    ROUTE_REQUESTS.begin(out);
    for (route, of) in routes.iter().zip(&labels) {
        for (method, status, n) in &route.requests {
            let labels = format!("{of},method=\"{method}\",code=\"{status}\"");
            ROUTE_REQUESTS.value(out, &labels, n);
        }
    }
    ROUTE_BODY_BYTES.begin(out);
    for (route, of) in routes.iter().zip(&labels) {
        ROUTE_BODY_BYTES.value(out, of, route.body_bytes);
    }
    ROUTE_DURATION.begin(out);
    for (route, of) in routes.iter().zip(&labels) {
        histogram(out, ROUTE_DURATION, of, &route.durations);
    }
}

fn labels_of(route: &RouteTotals) -> String {
    format!("site=\"{}\",route=\"{}\"", label(&route.labels.site), label(&route.labels.route))
}

/// Appends the routes as a table of the status page.
pub fn append_page(page: &mut String, routes: &[RouteTotals]) {
    if routes.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Routes</h2>\n<table><tr><th class=\"text\">Site</th><th class=\"text\">Route</th>\
         <th>Requests</th><th>Errors (4xx)</th><th>Errors (5xx)</th><th>Mean</th></tr>\n",
    );
    for route in routes {
        let of_class = |class: char| -> u64 {
            let counted = route.requests.iter().filter(|(_, status, _)| status.starts_with(class));
            counted.map(|(_, _, n)| n).sum()
        };
        let all: u64 = route.requests.iter().map(|(_, _, n)| n).sum();
        let mean = match route.durations.count() {
            0 => "-".to_owned(),
            count => format!("{:.3} ms", route.durations.sum_us as f64 / count as f64 / 1e3),
        };
        let _ = writeln!(
            page,
            "<tr><td class=\"text\">{}</td><td class=\"text\">{}</td><td>{all}</td><td>{}</td>\
             <td>{}</td><td>{mean}</td></tr>",
            escape(&route.labels.site),
            escape(&route.labels.route),
            of_class('4'),
            of_class('5'),
        );
    }
    page.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_net::counters::{RouteLabels, RouteRegistry};

    use super::*;

    #[test]
    fn a_route_has_its_labels_everywhere() {
        let registry = RouteRegistry::default();
        let labels = RouteLabels { site: "a.example".into(), route: "/x\"<*".into() };
        let counters = registry.counters(labels, 0);
        counters.count(b"GET", 200, 7, Some(Duration::from_millis(3)));
        counters.count(b"POST", 503, 0, None);
        let totals = registry.totals();
        let (mut metrics, mut page) = (String::new(), String::new());
        append_metrics(&mut metrics, &totals);
        let of = "site=\"a.example\",route=\"/x\\\"<*\"";
        for line in [
            format!("forebay_route_requests_total{{{of},method=\"GET\",code=\"200\"}} 1\n"),
            format!("forebay_route_requests_total{{{of},method=\"POST\",code=\"503\"}} 1\n"),
            format!("forebay_route_reply_body_bytes_total{{{of}}} 7\n"),
            format!("forebay_route_duration_seconds_bucket{{{of},le=\"0.005\"}} 1\n"),
            format!("forebay_route_duration_seconds_sum{{{of}}} 0.003\n"),
        ] {
            assert!(metrics.contains(&line), "{line}{metrics}");
        }
        append_page(&mut page, &totals);
        assert!(page.contains("/x&quot;&lt;*</td><td>2</td><td>0</td><td>1</td>"), "{page}");
        assert_eq!(json(&totals)[0]["replies"][1]["status"], "503");
    }
}
