//! Checks for placeholders in texts that Forebay sends as they are, and for variables of other
//! servers, which are plain text in Forebay.

use forebay_conf::{
    Action, Finding, Placeholder, Plan, RequestChange, Route, Scope, ServerProtocol, Template,
    TemplatePart,
};

/// Returns warnings about fixed texts that contain placeholders, and about texts with variables of
/// nginx or Apache.
pub fn doubts(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, site) in plan.sites.iter().enumerate() {
        for (index, route) in site.routes.iter().enumerate() {
            let mut add = |key: &str, message: String, help: &str| {
                let key = ["site", &at.to_string(), "route", &index.to_string(), key];
                let finding =
                    Finding { key: key.map(str::to_owned).to_vec(), message, help: help.into() };
                if !found.contains(&finding) {
                    found.push(finding);
                }
            };
            for (key, text) in fixed(route) {
                // Give no warning if the route has `replace`, which may replace the placeholder.
                if route.filters.replace.is_none() && has_placeholder(text) {
                    let message = "this text is sent as it is, with the names in braces".to_owned();
                    add(key, message, FIXED);
                }
                if let Some(name) = variable(text, key) {
                    add(key, format!("\"{name}\" is sent as it is"), FIXED);
                }
            }
            for (key, template) in templates(route) {
                let texts = template.parts().iter().filter_map(|part| match part {
                    TemplatePart::Text(text) => Some(text),
                    TemplatePart::Value(_) => None,
                });
                for name in texts.filter_map(|text| variable(text, key)) {
                    let help = match placeholder(name) {
                        Some(ours) => format!("write {ours}"),
                        None => "placeholders of Forebay are in braces, such as {client}; groups \
                                 of `path_regex` have names"
                            .to_owned(),
                    };
                    add(key, format!("\"{name}\" is plain text here, not a variable"), &help);
                }
            }
        }
    }
    for (name, app) in &plan.apps {
        for (param, value) in &app.params {
            let message = if has_placeholder(value) {
                "this text is sent as it is, with the names in braces".to_owned()
            } else if let Some(variable) = variable(value, "params") {
                format!("\"{variable}\" is sent as it is")
            } else {
                continue;
            };
            let key = ["app", name, "params", param].map(str::to_owned).to_vec();
            found.push(Finding { key, message, help: FIXED.into() });
        }
    }
    found
}

const FIXED: &str = "placeholders have values in `redirect`, `set_headers`, `request_headers` and \
    error pages, but not in `respond` and `params`";

/// The texts of a route that have no placeholders, with their keys.
fn fixed(route: &Route) -> Vec<(&'static str, &str)> {
    let mut all = match &route.action {
        Action::Respond(reply) => vec![("respond", &*reply.body)],
        action => params(action),
    };
    if let Some(auth) = &route.access.forward_auth {
        let params = params(&auth.server);
        all.extend(params.into_iter().map(|(_, value)| ("forward_auth", value)));
    }
    all
}

/// The values of `params`, with the key of the action.
fn params(action: &Action) -> Vec<(&'static str, &str)> {
    let (key, params) = match action {
        Action::Fastcgi(fastcgi) => ("fastcgi", &fastcgi.params),
        Action::AppServer(server) => match server.protocol {
            ServerProtocol::Scgi => ("scgi", &server.params),
            ServerProtocol::Uwsgi { .. } => ("uwsgi", &server.params),
        },
        _ => return Vec::new(),
    };
    params.values().map(|value| (key, value.as_str())).collect()
}

/// The templates of a route, with their keys.
fn templates(route: &Route) -> Vec<(&'static str, &Template)> {
    let mut all: Vec<(&str, &Template)> = Vec::new();
    if let Action::Redirect(redirect) = &route.action {
        all.push(("redirect", &redirect.to));
    }
    all.extend(route.rewrite.iter().map(|rewrite| ("rewrite", &rewrite.to)));
    all.extend(route.fallback_to.iter().map(|rewrite| ("fallback_to", &rewrite.to)));
    for field in &route.reply_headers {
        all.push((if field.is_added { "add_headers" } else { "set_headers" }, &field.value));
    }
    all.extend(route.request_headers.iter().filter_map(|field| match &field.change {
        RequestChange::Set(value) | RequestChange::Add(value) => Some(("request_headers", value)),
        RequestChange::Remove => None,
    }));
    let asked = route.access.forward_auth.iter().flat_map(|auth| &auth.params);
    all.extend(asked.map(|(_, value)| ("forward_auth", value)));
    all
}

/// Variables of nginx and Apache, with the placeholders that take their place.
const VARIABLES: [(&str, &str); 25] = [
    ("$args", "{query}"),
    ("$binary_remote_addr", "{client}"),
    ("$document_uri", "{path}"),
    ("$host", "{host}"),
    ("$http_host", "{host}{requested_port}"),
    ("$is_args", ""),
    ("$proxy_add_x_forwarded_for", ""),
    ("$query_string", "{query}"),
    ("$remote_addr", "{client}"),
    ("$remote_port", "{client_port}"),
    ("$remote_user", "{user}"),
    ("$request_id", "{request_id}"),
    ("$request_method", "{method}"),
    ("$request_uri", "{uri}"),
    ("$scheme", "{scheme}"),
    ("$server_name", "{host}"),
    ("$server_port", "{port}"),
    ("$ssl_client_s_dn", "{tls.subject}"),
    ("$uri", "{path}"),
    ("%{HTTP_HOST}", "{host}{requested_port}"),
    ("%{HTTPS}", "{scheme}"),
    ("%{QUERY_STRING}", "{query}"),
    ("%{REMOTE_ADDR}", "{client}"),
    ("%{REQUEST_URI}", "{path}"),
    ("%{SERVER_NAME}", "{host}"),
];

/// The beginnings of nginx's variables with a name in them.
const FAMILIES: [&str; 4] = ["$arg_", "$cookie_", "$http_", "$upstream_"];

fn placeholder(name: &str) -> Option<&'static str> {
    let found = VARIABLES.iter().find(|(variable, _)| *variable == name);
    found.map(|(_, ours)| *ours).filter(|ours| !ours.is_empty())
}

/// Returns the first variable of another server in a text. A group such as `$1` counts only in
/// paths, because a field may have a price.
fn variable<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let is_path = matches!(key, "redirect" | "rewrite" | "fallback_to");
    text.match_indices(['$', '%']).find_map(|(at, sign)| {
        let rest = &text[at..];
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = match rest[1..].strip_prefix('{') {
            Some(braced) => braced.find('}').map_or(rest.len(), |end| end + 3),
            None => rest[1..].find(|c| !is_name(c)).map_or(rest.len(), |end| end + 1),
        };
        let name = &rest[..end];
        let is_group = sign == "$" && name.len() == 2 && name.as_bytes()[1].is_ascii_digit();
        let is_known = VARIABLES.iter().any(|(variable, _)| *variable == name)
            || FAMILIES.iter().any(|family| name.len() > family.len() && name.starts_with(family));
        (is_known || is_group && is_path).then_some(name)
    })
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

#[cfg(test)]
mod tests {
    use super::variable;

    #[test]
    fn variables_of_other_servers_are_found_and_prices_are_not() {
        for (text, key, found) in [
            ("/new/$1", "redirect", Some("$1")),
            ("$remote_addr", "request_headers", Some("$remote_addr")),
            ("a $http_x_y b", "set_headers", Some("$http_x_y")),
            ("https://%{HTTP_HOST}/", "redirect", Some("%{HTTP_HOST}")),
            ("costs $1", "set_headers", None),
            ("$hostname", "set_headers", None),
            ("100% $ {client}", "set_headers", None),
            ("%{x", "set_headers", None),
            ("$", "redirect", None),
            ("$é", "redirect", None),
        ] {
            assert_eq!(variable(text, key), found, "{text}");
        }
    }
}
