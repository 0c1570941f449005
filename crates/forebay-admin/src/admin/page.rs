//! The page of `/status`. Its script reads `/status.json` every 2 s. Without scripts, the page shows
//! tables, and reloads itself.

use std::fmt::Write as _;

use forebay_net::counters::Totals;
use forebay_net::limit::Limit;
use forebay_net::timing::Step;

use super::request::AdminRequest;
use super::shell::{SCRIPT_PATH, head};
use super::{Admin, CLASSES, Status, backends, cache, control, escape, mirrors, routes};

impl Admin {
    /// Returns the HTML page of `/status`.
    pub(super) fn page(&self, request: &AdminRequest) -> String {
        let more = format!(
            "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\
             <script src=\"{SCRIPT_PATH}\" defer></script>"
        );
        let mut page = head("Forebay", &more);
        page.push_str("<body><h1>Forebay</h1>\n<main id=\"live\"></main>\n<noscript>\n");
        self.append_tables(&mut page, request);
        page.push_str("</noscript>\n</body></html>\n");
        page
    }

    /// Appends the state as tables, for browsers without scripts.
    fn append_tables(&self, page: &mut String, request: &AdminRequest) {
        let totals = Totals::of(&self.meters.threads);
        let _ = write!(
            page,
            "<p>Version {}, process {}, up {} s. {} connections open, {} requests served.</p>\n\
             <table><tr><th>Replies</th>",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            self.meters.started.elapsed().as_secs(),
            self.meters.connections().sum::<usize>(),
            totals.requests(),
        );
        for (class, n) in CLASSES.iter().zip(totals.classes) {
            let _ = write!(page, "<tr><td>{class}</td><td>{n}</td></tr>");
        }
        page.push_str("</table>\n");
        append_details(page, &totals);
        let Status { apps, backends, cache, routes, mirrors, .. } = self.status_for(request);
        routes::append_page(page, &routes);
        backends::append_page(page, &backends);
        mirrors::append_page(page, &mirrors);
        if let Some(row) = &cache {
            cache::append_page(page, row);
        }
        for app in &apps {
            let (name, link) = (escape(&app.name), control::encode_name(&app.name));
            let _ = writeln!(page, "<h2><a href=\"/apps/{link}\">{name}</a></h2>");
            control::append_app(page, app);
        }
    }
}

/// Appends a table of the durations of request steps, if they were measured, and a table of the
/// limits that were reached.
fn append_details(page: &mut String, totals: &Totals) {
    let steps = Step::ALL.iter().zip(&totals.steps).filter(|(_, took)| took.count() > 0);
    let steps: Vec<_> = steps.collect();
    if !steps.is_empty() {
        page.push_str("<table><tr><th>Step</th><th>Requests</th><th>Mean</th></tr>\n");
        for (step, took) in steps {
            let (name, count) = (step.name(), took.count());
            let mean = took.sum_us as f64 / count as f64 / 1e3;
            let _ = writeln!(page, "<tr><td>{name}</td><td>{count}</td><td>{mean:.3} ms</td></tr>");
        }
        page.push_str("</table>\n");
    }
    let limits = Limit::ALL.iter().zip(totals.limits.0).filter(|(_, n)| *n > 0);
    let limits: Vec<_> = limits.collect();
    if !limits.is_empty() {
        page.push_str("<table><tr><th>Limit</th><th>Reached</th></tr>\n");
        for (limit, n) in limits {
            let _ = writeln!(page, "<tr><td>{}</td><td>{n}</td></tr>", limit.name());
        }
        page.push_str("</table>\n");
    }
}
