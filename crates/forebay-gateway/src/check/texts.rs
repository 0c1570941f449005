//! Checks for placeholders in texts that Forebay sends as they are.

use forebay_conf::{Action, Finding, Placeholder, Plan, Scope, Template, TemplatePart};

/// Returns warnings about fixed replies that contain placeholders.
pub fn doubts(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, site) in plan.sites.iter().enumerate() {
        for (index, route) in site.routes.iter().enumerate() {
            let Action::Respond(reply) = &route.action else { continue };
            // Give no warning if the route has `replace`, which may replace the placeholder.
            if route.filters.replace.is_some() || !has_placeholder(&reply.body) {
                continue;
            }
            let key = ["site", &at.to_string(), "route", &index.to_string(), "respond"];
            found.push(Finding {
                key: key.map(str::to_owned).to_vec(),
                message: "this text is sent as it is, with the names in braces".into(),
                help:
                    "placeholders have values in `redirect`, `set_headers`, `request_headers` and \
                       error pages, but not in `respond`"
                        .into(),
            });
        }
    }
    found
}

/// Returns true if the text has a placeholder that error pages support, except `{status}` and
/// `{reason}`. Other text in braces, such as `{"a": 1}`, is not a placeholder.
fn has_placeholder(text: &str) -> bool {
    let scope = Scope { is_page: true, ..Scope::default() };
    let is_value = |part: &TemplatePart| {
        matches!(part, TemplatePart::Value(value)
            if !matches!(value, Placeholder::Status | Placeholder::Reason))
    };
    Template::parse(text, scope).is_ok_and(|text| text.parts().iter().any(is_value))
}
