//! Names of sites and routes in metrics. These names come from the configuration. A change of other
//! routes or of line numbers does not change them.

use forebay_conf::{HostPattern, PathPattern, Route, Site};
use forebay_net::counters::RouteLabels;

/// Maximum number of a route's paths in its label.
const MOST_PATHS: usize = 3;

/// Returns the labels of a route.
pub fn labels_of(site: &Site, route: &Route) -> RouteLabels {
    RouteLabels { site: name_of_site(site), route: name_of_route(route) }
}

/// Returns the first host name of a site. If the first host is `*`, or the site has no hosts,
/// returns the site's first listener.
pub fn name_of_site(site: &Site) -> String {
    match site.hosts.first() {
        Some(HostPattern::Exact(name)) => name.clone(),
        Some(HostPattern::Suffix(end)) => format!("*{end}"),
        Some(HostPattern::Any) | None => {
            site.listen.first().map(ToString::to_string).unwrap_or_default()
        }
    }
}

/// Returns the `name` of a route, or its conditions on paths as they are written in the
/// configuration. Routes with the same conditions share a label.
fn name_of_route(route: &Route) -> String {
    if let Some(name) = &route.name {
        return name.clone();
    }
    let matcher = &route.matcher;
    let paths = matcher.paths.iter().map(|path| match path {
        PathPattern::Exact(path) => path.clone(),
        PathPattern::Prefix(start) => format!("{start}*"),
    });
    let ends = matcher.suffixes.iter().map(|end| format!("*{end}"));
    let regex = matcher.regex.iter().map(|regex| regex.condition());
    let all: Vec<_> = paths.chain(ends).chain(regex).collect();
    match all.len() {
        0 => "*".to_owned(),
        1..=MOST_PATHS => all.join(" "),
        _ => format!("{} ...", all[..MOST_PATHS].join(" ")),
    }
}
