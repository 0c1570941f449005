//! Checks for names of request fields that the site removes.

use forebay_conf::{
    Finding, Placeholder, Plan, RequestChange, Route, Template, TemplatePart, When,
};
use forebay_wire::http1::has_mark;

/// Returns warnings about routes that use a request field that their site removes. A site removes
/// fields whose names contain a mark such as `_`.
pub fn doubts(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    let sites = plan.sites.iter().enumerate().filter(|(_, site)| !site.underscores_in_headers);
    for (at, site) in sites {
        for (index, route) in site.routes.iter().enumerate() {
            let named = conditions(route).map(|name| ("when", name));
            let named = named.chain(of_replies(route).map(|name| ("set_headers", name)));
            let mut named = named.chain(of_requests(route).map(|name| ("request_headers", name)));
            let Some((key, name)) = named.find(|(_, name)| has_mark(name.as_bytes())) else {
                continue;
            };
            let place = ["site", &at.to_string(), "route", &index.to_string(), key];
            found.push(Finding {
                key: place.map(str::to_owned).to_vec(),
                message: format!("the site removes the field {name} from each request"),
                help: format!(
                    "write {}, or set underscores_in_headers = true in the site",
                    name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
                ),
            });
        }
    }
    found
}

/// Returns the names of the fields that the route's conditions compare.
fn conditions(route: &Route) -> impl Iterator<Item = &str> {
    let first = route.matcher.when.as_deref();
    let all = std::iter::successors(first, |when: &&When| when.not.as_deref());
    all.flat_map(|when| when.headers.iter().map(|(name, _)| name.as_str()))
}

/// Returns the names of the fields whose values the route puts into its reply.
fn of_replies(route: &Route) -> impl Iterator<Item = &str> {
    route.reply_headers.iter().flat_map(|field| named(&field.value))
}

/// Returns the names of the fields whose values the route passes to its origin in other fields.
fn of_requests(route: &Route) -> impl Iterator<Item = &str> {
    let values = route.request_headers.iter().filter_map(|field| match &field.change {
        RequestChange::Set(value) | RequestChange::Add(value) => Some(value),
        RequestChange::Remove => None,
    });
    values.flat_map(named)
}

/// Returns the names of the fields in a template.
fn named(template: &Template) -> impl Iterator<Item = &str> {
    template.parts().iter().filter_map(|part| match part {
        TemplatePart::Value(Placeholder::Header(name)) => Some(name.as_str()),
        _ => None,
    })
}
