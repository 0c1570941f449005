//! Checks for placeholders in texts that Forebay sends as they are, and for variables of other
//! servers, which are plain text in Forebay.

use forebay_conf::{
    Action, Finding, Placeholder, Plan, ReplyChange, RequestChange, Route, Scope, ServerProtocol,
    Template, TemplatePart,
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
                    add(key, plain(name), &advice(name));
                }
            }
            for (key, text) in constants(route) {
                if let Some(name) = variable(text, key) {
                    add(key, plain(name), CONSTANT);
                }
            }
        }
    }
    for (name, app) in &plan.apps {
        let fair = app.fair.parts().iter().filter_map(|part| match part {
            TemplatePart::Text(text) => Some(("fair", None, text)),
            TemplatePart::Value(_) => None,
        });
        let env = app.env.iter().map(|(variable, value)| ("env", Some(variable), value));
        for (key, of, text) in fair.chain(env) {
            if let Some(variable) = variable(text, key) {
                let mut place = ["app", name, key].map(str::to_owned).to_vec();
                place.extend(of.cloned());
                let help = if key == "fair" { advice(variable) } else { CONSTANT.to_owned() };
                found.push(Finding { key: place, message: plain(variable), help });
            }
        }
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

const CONSTANT: &str = "the value of `env` is the same for all requests; programs get the values of \
    a request in variables of CGI, such as REMOTE_ADDR";

fn plain(name: &str) -> String {
    format!("\"{name}\" is plain text here, not a variable")
}

fn advice(name: &str) -> String {
    match placeholder(name) {
        Some(ours) => format!("write {ours}"),
        None => "placeholders of Forebay are in braces, such as {client}; groups of `path_regex` \
                 have names"
            .to_owned(),
    }
}

/// Texts for programs of a route, with their keys.
fn constants(route: &Route) -> Vec<(&'static str, &str)> {
    let env = match &route.action {
        Action::Cgi(cgi) => &cgi.env,
        _ => return Vec::new(),
    };
    env.values().map(|value| ("cgi", value.as_str())).collect()
}

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
        let is_added = field.change == ReplyChange::Add;
        all.push((if is_added { "add_headers" } else { "set_headers" }, &field.value));
    }
    let asked = route.access.forward_auth.iter();
    let fields = route.request_headers.iter().map(|field| ("request_headers", field));
    let of_asked = asked.clone().flat_map(|auth| &auth.request_headers);
    let fields = fields.chain(of_asked.map(|field| ("forward_auth", field)));
    all.extend(fields.filter_map(|(key, field)| match &field.change {
        RequestChange::Set(value) | RequestChange::Add(value) => Some((key, value)),
        RequestChange::Remove => None,
    }));
    all.extend(asked.flat_map(|auth| &auth.params).map(|(_, value)| ("forward_auth", value)));
    let access = &route.access;
    all.extend(access.rate_limits.iter().map(|limit| ("rate_limit", &limit.key)));
    all.extend(access.concurrency_limits.iter().map(|limit| ("concurrency_limit", &limit.key)));
    all.extend(access.signed_url.iter().map(|signed| ("signed_url", &signed.text)));
    all.extend(route.cache.iter().map(|cache| ("cache", &cache.key)));
    let replaced = route.filters.replace.iter().flat_map(|replace| &replace.texts);
    all.extend(replaced.map(|(_, to)| ("replace", to)));
    let hashed = route.action.upstream().and_then(|upstream| upstream.hash_key.as_ref());
    let key = if matches!(route.action, Action::Proxy(_)) { "proxy" } else { "hash_key" };
    all.extend(hashed.map(|text| (key, text)));
    all.extend(maps(&all).into_iter().map(|text| ("map", text)));
    all
}

/// The texts of the tables [map.NAME] that the templates use.
fn maps<'t>(templates: &[(&str, &'t Template)]) -> Vec<&'t Template> {
    let parts = templates.iter().flat_map(|(_, template)| template.parts());
    let used = parts.filter_map(|part| match part {
        TemplatePart::Value(Placeholder::Map(map)) => Some(map),
        _ => None,
    });
    used.flat_map(|map| map.templates()).collect()
}

/// Variables of nginx and Apache, with the placeholders that take their place.
const VARIABLES: [(&str, &str); 45] = [
    ("$args", "{query}"),
    ("$binary_remote_addr", "{client}"),
    ("$body_bytes_sent", ""),
    ("$content_length", "{header.Content-Length}"),
    ("$content_type", "{header.Content-Type}"),
    ("$document_root", ""),
    ("$document_uri", "{path}"),
    ("$fastcgi_path_info", ""),
    ("$fastcgi_script_name", ""),
    ("$host", "{host}"),
    ("$http_host", "{host}{requested_port}"),
    ("$https", "{scheme}"),
    ("$is_args", ""),
    ("$proxy_add_x_forwarded_for", ""),
    ("$proxy_host", ""),
    ("$proxy_port", ""),
    ("$query_string", "{query}"),
    ("$realip_remote_addr", ""),
    ("$realpath_root", ""),
    ("$remote_addr", "{client}"),
    ("$remote_port", "{client_port}"),
    ("$remote_user", "{user}"),
    ("$request_body", ""),
    ("$request_filename", ""),
    ("$request_id", "{request_id}"),
    ("$request_method", "{method}"),
    ("$request_uri", "{uri}"),
    ("$scheme", "{scheme}"),
    ("$server_addr", ""),
    ("$server_name", "{host}"),
    ("$server_port", "{port}"),
    ("$server_protocol", ""),
    ("$ssl_cipher", ""),
    ("$ssl_client_cert", ""),
    ("$ssl_client_serial", ""),
    ("$ssl_client_verify", ""),
    ("$ssl_protocol", ""),
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
const FAMILIES: [&str; 6] = ["$arg_", "$cookie_", "$geoip_", "$http_", "$sent_http_", "$upstream_"];

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
    use std::path::Path;

    use super::{doubts, variable};

    #[test]
    fn each_text_with_placeholders_is_searched() {
        const SITE: &str = "[[site]]\nlisten = \"127.0.0.1:0\"\n";
        let route = |keys: &str| format!("{SITE}[[site.route]]\n{keys}\n");
        let responds = |keys: &str| route(&format!("respond = \"x\"\n{keys}"));
        let to = "proxy = \"http://127.0.0.1:1\"\n";
        let cases = [
            ("redirect", route("redirect = \"/$host\"")),
            ("rewrite", route(&format!("{to}rewrite = \"/$host\""))),
            ("set_headers", responds("set_headers = { X = \"$host\" }")),
            ("add_headers", responds("add_headers = { X = \"$host\" }")),
            ("request_headers", route(&format!("{to}request_headers = {{ X = \"$host\" }}"))),
            ("rate_limit", responds("rate_limit = { rate = \"2/m\", key = \"$host\" }")),
            ("concurrency_limit", responds("concurrency_limit = { max = 2, key = \"$host\" }")),
            (
                "proxy",
                route(
                    "proxy = { to = [\"http://127.0.0.1:1\", \"http://127.0.0.1:2\"], \
                balance = \"hash\", hash_key = \"$host\" }",
                ),
            ),
            ("cache", route(&format!("{to}cache = {{ key = \"$host{{path}}\" }}"))),
            ("replace", route(&format!("{to}replace = {{ texts = {{ a = \"$host\" }} }}"))),
            (
                "forward_auth",
                route(&format!(
                    "{to}forward_auth = {{ to = \"http://127.0.0.1:1/\", request_headers = {{ X = \"$host\" }} }}"
                )),
            ),
            (
                "fastcgi",
                route(
                    "fastcgi = { to = \"127.0.0.1:1\", root = \"/\", \
                params = { X = \"$document_root$fastcgi_script_name\" } }",
                ),
            ),
            ("scgi", route("scgi = { to = \"127.0.0.1:1\", params = { X = \"$host\" } }")),
            ("cgi", route("cgi = { dir = \"/\", env = { X = \"$document_root\" } }")),
            ("respond", route("respond = \"$host\"")),
            (
                "env",
                format!(
                    "[app.a]\nkind = \"wsgi\"\ndir = \"/\"\nmodule = \"a:a\"\n\
                env = {{ X = \"$host\" }}\n{}",
                    route("app = \"a\"")
                ),
            ),
            (
                "fair",
                format!(
                    "[app.a]\nkind = \"wsgi\"\ndir = \"/\"\nmodule = \"a:a\"\n\
                fair = \"$host\"\n{}",
                    route("app = \"a\"")
                ),
            ),
            (
                "map",
                format!(
                    "[map.m]\nfrom = \"{{host}}\"\na = \"$host\"\n{}",
                    responds("set_headers = { X = \"{map.m}\" }")
                ),
            ),
        ];
        for (key, text) in cases {
            let plan = forebay_conf::parse(&text, "site.toml", Path::new("/"));
            let plan = plan.unwrap_or_else(|error| panic!("{key}: {error}"));
            let found = doubts(&plan);
            let is_found = found.iter().any(|finding| finding.key.contains(&key.to_owned()));
            assert!(is_found, "{key}: {found:?}");
        }
    }

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
