//! Translates `map` to tables [map.NAME], for the values of fields.

use super::Cx;
use super::syntax::Directive;
use super::variables::{Piece, Variables, split};
use crate::template::{join, literal};
use crate::value::Table;

/// Returns a text with values or placeholders in place of its variables. For a variable that a
/// `map` sets, adds a table [map.NAME] to the draft. An error is the name of a variable that has
/// neither a value nor a placeholder.
pub fn fill(cx: &mut Cx<'_>, variables: &Variables<'_, '_>, text: &str) -> Result<String, String> {
    let unknown = match variables.fill(text) {
        Ok(filled) => return Ok(filled),
        Err(unknown) => unknown,
    };
    if !cx.keys.has("ValueMap", "from") {
        return Err(unknown);
    }
    let mut out = String::new();
    for piece in split(text) {
        let name = match piece {
            Piece::Text(text) => {
                join(&mut out, &literal(text, cx.keys)).ok_or_else(|| unknown.clone())?;
                continue;
            }
            Piece::Variable(name) => name,
        };
        match variables.fill(&format!("${{{name}}}")) {
            Ok(filled) => join(&mut out, &filled).ok_or_else(|| unknown.clone())?,
            Err(unknown) => {
                // Another directive may change the variable after the `map` has set it.
                if cx.changed.contains(&format!("${name}")) {
                    return Err(unknown);
                }
                // All sites share the table [map.NAME], so its values must not depend on this
                // location.
                let http = cx.http.clone();
                let of_all = Variables {
                    scope: &http,
                    keys: cx.keys,
                    found: None,
                    server_name: None,
                    scheme: None,
                };
                let table = table_of(&of_all, name).ok_or_else(|| unknown.clone())?;
                if cx.draft.maps.iter().all(|(other, _)| other != name) {
                    cx.draft.maps.push((name.to_owned(), table));
                }
                join(&mut out, &format!("{{map.{name}}}")).ok_or(unknown)?;
            }
        }
    }
    Ok(out)
}

/// Returns the table for the `map` that sets a variable. Returns `None` if no `map` sets the
/// variable, or if Forebay cannot express the `map`.
fn table_of(variables: &Variables<'_, '_>, name: &str) -> Option<Table> {
    let is_of = |map: &&Directive| map.arg(1).strip_prefix('$') == Some(name);
    let map = variables.scope.every("map").find(is_of)?;
    let from = variables.fill(map.arg(0)).ok().filter(|from| from.contains('{'))?;
    let has_names = map.inside().iter().any(|entry| entry.name == "hostnames");
    let mut table = Table::default().with("from", from);
    let mut entries = Vec::new();
    for entry in map.inside() {
        let key = entry.name.as_str();
        if matches!(key, "hostnames" | "volatile") {
            continue;
        }
        let value = variables.fill(entry.arg(0)).ok()?;
        let is_text = entry.args.len() == 1 && !value.chars().any(char::is_control);
        if !is_text || key == "include" || key.chars().any(char::is_control) {
            return None;
        }
        match key {
            "default" => table.set("default", value),
            _ if key.starts_with('~') => {
                let expression = key.trim_start_matches(['~', '*']);
                regex_syntax::Parser::new().parse(expression).ok()?;
                entries.push((Rank::Expression, key.to_owned(), value));
            }
            _ if has_names && key.starts_with('.') => {
                entries.push((Rank::Text, text_key(&key[1..]), value.clone()));
                entries.push((Rank::any_start(key), expression(".+", key, ""), value));
            }
            _ if has_names && key.starts_with("*.") => {
                entries.push((Rank::any_start(key), expression(".+", &key[1..], ""), value));
            }
            _ if has_names && key.ends_with(".*") => {
                let start = &key[..key.len() - 1];
                entries.push((Rank::any_end(key), expression("", start, ".+"), value));
            }
            _ => {
                let text = key.strip_prefix('\\').unwrap_or(key);
                entries.push((Rank::Text, text_key(text), value));
            }
        }
    }
    // The sort is stable, so expressions stay in the order of the file.
    entries.sort_by_key(|(rank, ..)| *rank);
    entries.into_iter().for_each(|(_, key, value)| table.set(&key, value));
    map.settle_all();
    Some(table)
}

/// The order in which nginx looks for the entry of a text. Of two names with a wildcard, the longer
/// one is first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Text,
    AnyStart(std::cmp::Reverse<usize>),
    AnyEnd(std::cmp::Reverse<usize>),
    Expression,
}

impl Rank {
    fn any_start(key: &str) -> Self {
        Self::AnyStart(std::cmp::Reverse(key.trim_start_matches('*').len()))
    }

    fn any_end(key: &str) -> Self {
        Self::AnyEnd(std::cmp::Reverse(key.len()))
    }
}

/// Returns the key of an exact text. nginx ignores the case of letters. In Forebay, `*` and the
/// keys `from` and `default` have a special meaning. So a text with letters or `*` becomes an
/// expression.
fn text_key(text: &str) -> String {
    let is_plain = !text.contains('*') && !text.starts_with('~') && !has_letters(text);
    if is_plain { text.to_owned() } else { expression("", text, "") }
}

/// Returns the key of an expression for `text` between two expressions.
fn expression(before: &str, text: &str, after: &str) -> String {
    format!("~*^{before}{}{after}$", regex_syntax::escape(text))
}

fn has_letters(text: &str) -> bool {
    text.chars().any(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    fn imported(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("nginx.conf");
        std::fs::write(&file, text).unwrap();
        let toml = import(Language::Nginx, &file).unwrap().toml;
        forebay_conf::parse(&toml, "site.toml", dir.path())
            .unwrap_or_else(|error| panic!("{toml}\n{}", error.plain()));
        toml
    }

    #[test]
    fn a_map_in_a_field_becomes_a_table() {
        let toml = imported(
            "events {}\nhttp {\nmap $http_origin $cors { default \"\"; https://a.example $http_origin; \
             \"~^https://[a-z]+[.]b$\" x; 5 five; }\n\
             map $http_x $unused { default 1; }\n\
             server { listen 8080; location / { add_header A \"<$cors>\"; return 200 x; } } }\n",
        );
        for part in [
            "A = \"<{map.cors}>\"",
            "[map.cors]\nfrom = \"{header.Origin}\"",
            "'~*^https://a\\.example$' = \"{header.Origin}\"",
            "\"~^https://[a-z]+[.]b$\" = \"x\"",
            "5 = \"five\"",
        ] {
            assert!(toml.contains(part), "{part}: {toml}");
        }
        assert!(!toml.contains("unused"), "{toml}");
    }

    #[test]
    fn the_entries_of_a_map_have_the_order_of_nginx() {
        let toml = imported(
            "events {}\nhttp {\nmap $host $kind { hostnames; default d; ~example e; *.example.org s; \
             *.www.example.org l; www.example.org t; .example.net n; mail.* m; \\default x; 10.0.0.1 i; }\n\
             server { listen 8080; location / { add_header A $kind; return 200 x; } } }\n",
        );
        let keys = [
            r"'~*^www\.example\.org$'",
            r"'~*^example\.net$'",
            "\"~*^default$\"",
            r"'~*^.+\.www\.example\.org$'",
            r"'~*^.+\.example\.org$'",
            r"'~*^mail\..+$'",
            "\"~example\"",
        ];
        let places: Vec<_> = keys
            .iter()
            .map(|key| toml.find(key).unwrap_or_else(|| panic!("{key}: {toml}")))
            .collect();
        assert!(places.is_sorted(), "{toml}");
        assert!(toml.contains("\"10.0.0.1\" = \"i\""), "{toml}");
    }

    #[test]
    fn a_map_that_forebay_cannot_express_is_noted() {
        for map in [
            "map $http_origin $x { default $unknown; }",
            "map $unknown $x { default 1; }",
            "map $http_origin $x { \"~(?=a)\" 1; }",
            "map $http_origin $x { include missing.map; }",
        ] {
            let toml = imported(&format!(
                "events {{}}\nhttp {{\n{map}\nserver {{ listen 8080; location / {{ add_header A $x; return 200 x; }} }} }}\n"
            ));
            assert!(toml.contains("NOT TRANSLATED") && !toml.contains("map.x"), "{toml}");
        }
    }
}
