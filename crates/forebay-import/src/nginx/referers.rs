//! Translates `valid_referers`, which sets `$invalid_referer`.

use super::Cx;
use super::scope::Scope;
use super::server::TranslatedServer;
use crate::matcher::Matcher;
use crate::pattern::is_readable;
use crate::value::{Table, Value};

/// Returns the matcher of requests with an invalid Referer. Returns `None` if there is no
/// `valid_referers`, or if routes cannot have this condition.
pub fn invalid(cx: &Cx<'_>, server: &TranslatedServer<'_>, scope: &Scope<'_>) -> Option<Matcher> {
    let directives = scope.all("valid_referers");
    let words = || directives.iter().flat_map(|directive| directive.args.iter());
    if !cx.keys.route("when") || directives.is_empty() {
        return None;
    }
    let has = |word: &str| words().any(|other| other == word);
    let mut valid = Vec::new();
    for word in words().filter(|word| !matches!(word.as_str(), "none" | "blocked")) {
        if word == "server_names" {
            let names = server.scope.of_own("server_name").map(|names| &names.args[..]);
            for name in names.unwrap_or_default() {
                valid.push(host(name)?);
            }
        } else {
            valid.push(host(word)?);
        }
    }
    let mut when = Table::default();
    match (has("none"), has("blocked")) {
        (true, false) => when.table("header").set("Referer", true),
        // With `blocked`, a Referer without a scheme is valid, because a proxy may have removed the
        // scheme.
        (true, true) => when.table("header").set("Referer", "~*^https?://"),
        (false, false) => {}
        (false, true) => return None,
    }
    if !valid.is_empty() {
        // The variable joins all Referer fields of a request, so that a second, valid field does
        // not make the first one valid.
        let (key, name) = if cx.keys.has("When", "variable") {
            ("variable", "http_referer")
        } else {
            ("header", "Referer")
        };
        let valid = Table::default().with(name, Value::List(valid));
        when.set("not", Table::default().with(key, valid));
    }
    (!when.is_empty()).then(|| Matcher { when, ..Matcher::default() })
}

/// Returns the expression for a Referer with a host, such as "example.org", "*.example.org",
/// "example.org/path" or "~expression". Returns `None` if a route cannot have it.
fn host(word: &str) -> Option<Value> {
    let text = if let Some(expression) = word.strip_prefix('~') {
        match expression.strip_prefix('^') {
            Some(rest) => format!("~*^https?://{rest}"),
            None => format!("~*^https?://.*{expression}"),
        }
    } else {
        let (name, path) = word.split_once('/').map_or((word, ""), |(name, path)| (name, path));
        let escaped = regex_syntax::escape(name);
        let name = match escaped.strip_prefix("\\*") {
            Some(rest) => format!("[^/]+{rest}"),
            None => match escaped.strip_prefix("\\.") {
                Some(rest) => format!("([^/]+\\.)?{rest}"),
                None => escaped,
            },
        };
        let name = match name.strip_suffix("\\*") {
            Some(start) => format!("{start}[^/:]+"),
            None => name,
        };
        let end = if path.is_empty() {
            "(/|$)".into()
        } else {
            format!("/{}", regex_syntax::escape(path))
        };
        format!("~*^https?://{name}(:[0-9]+)?{end}")
    };
    let is_plain = !word.contains('$') || word.starts_with('~');
    (is_plain && is_readable(text.trim_start_matches("~*"))).then_some(Value::Text(text))
}
