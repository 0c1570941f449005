//! Translates `map` to tables [map.NAME], for the values of fields.

use super::Cx;
use super::syntax::Directive;
use super::variables::{Piece, Variables, split};
use crate::template::literal;
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
                out.push_str(&literal(text, cx.keys));
                continue;
            }
            Piece::Variable(name) => name,
        };
        match variables.fill(&format!("${{{name}}}")) {
            Ok(filled) => out.push_str(&filled),
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
                let table = table_of(&of_all, name).ok_or(unknown)?;
                if cx.draft.maps.iter().all(|(other, _)| other != name) {
                    cx.draft.maps.push((name.to_owned(), table));
                }
                out.push_str(&format!("{{map.{name}}}"));
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
                table.set(key, value);
            }
            _ if has_names && key.starts_with('.') => {
                table.set(&key[1..], value.as_str());
                table.set(&format!("*{key}"), value);
            }
            _ if has_names && key.contains('*') => table.set(key, value),
            // nginx ignores the case of letters. In Forebay, `*` and the key `from` have a special
            // meaning. So write a text with letters or `*`, and the text `from`, as an expression.
            _ if key.contains('*') || key == "from" || has_letters(key) => {
                table.set(&format!("~*^{}$", regex_syntax::escape(key)), value);
            }
            _ => table.set(key.trim_start_matches('\\'), value),
        }
    }
    map.settle_all();
    Some(table)
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
