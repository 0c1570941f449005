//! Translates media types, charsets and output filters.

use super::Cx;
use super::sections::{all, last};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::template::literal;
use crate::value::{Table, Value};

/// Adds the keys for the media types, the charset and the filters of a route.
pub fn decorate(cx: &mut Cx<'_>, layers: &[&[Directive]], route: &mut DraftRoute) {
    charset(cx, layers, route);
    let sends_files = route.keys.get("files").is_some();
    if sends_files {
        types(cx, layers, route);
    }
    if let Some(directive) = last(layers, "ForceType").filter(|found| !is_none(found)) {
        if sends_files && is_type(directive.arg(0)) {
            route.keys.table("set_headers").set("Content-Type", literal(directive.arg(0), cx.keys));
        } else {
            let next = "write the type in `set_headers`: { Content-Type = \"TYPE\" }";
            route.comments.push(cx.note(directive, next));
        }
    }
    for name in ["AddOutputFilter", "SetOutputFilter"] {
        for directive in all(layers, name) {
            filter(cx, directive, route);
        }
    }
}

/// Translates `AddDefaultCharset`.
fn charset(cx: &mut Cx<'_>, layers: &[&[Directive]], route: &mut DraftRoute) {
    let Some(directive) = last(layers, "AddDefaultCharset") else { return };
    let name = match directive.arg(0) {
        off if off.eq_ignore_ascii_case("off") => return,
        on if on.eq_ignore_ascii_case("on") => "iso-8859-1",
        name => name,
    };
    let is_token = !name.is_empty()
        && name.len() <= 40
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b));
    if is_token && cx.keys.route("charset") {
        route.keys.set("charset", name);
    } else {
        let next = "write the charset of texts in `charset`, such as \"utf-8\"";
        route.comments.push(cx.note(directive, next));
    }
}

/// Translates `AddType TYPE EXTENSION...` to `types` of the key `files`.
fn types(cx: &mut Cx<'_>, layers: &[&[Directive]], route: &mut DraftRoute) {
    let mut table = Table::default();
    for directive in all(layers, "AddType") {
        let kind = directive.arg(0);
        // Types such as `application/x-httpd-php` select a handler, and are no media types of
        // files.
        if kind.contains("httpd") {
            continue;
        }
        let ends: Vec<&str> =
            directive.args.iter().skip(1).map(|end| end.trim_start_matches('.')).collect();
        let is_plain = |end: &&str| {
            !end.is_empty() && end.len() <= 40 && end.bytes().all(|b| b.is_ascii_alphanumeric())
        };
        if !is_type(kind) || !ends.iter().all(is_plain) || !cx.keys.has("Files", "types") {
            let next = "write the type in `types` of `files`: { \".END\" = \"TYPE\" }";
            route.comments.push(cx.note(directive, next));
            continue;
        }
        ends.iter().for_each(|end| table.set(&format!(".{end}"), kind));
    }
    if table.is_empty() {
        return;
    }
    let mut files = match route.keys.get("files") {
        Some(Value::Table(files)) => files.clone(),
        Some(root) => Table::default().with("root", root.clone()),
        None => return,
    };
    files.set("types", table);
    route.keys.set("files", files);
}

/// Returns true if `kind` is a media type without parameters.
pub fn is_type(kind: &str) -> bool {
    let is_part = |part: &str| {
        let is_short = (1..=100).contains(&part.len());
        is_short && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-+._".contains(&b))
    };
    kind.split_once('/').is_some_and(|(main, sub)| is_part(main) && is_part(sub))
}

/// Translates a filter that compresses replies. Adds a note for other filters except `NONE` and
/// `INCLUDES`. The function `includes` translates `INCLUDES`.
fn filter(cx: &mut Cx<'_>, directive: &Directive, route: &mut DraftRoute) {
    for name in directive.arg(0).split(';') {
        match name.to_ascii_uppercase().as_str() {
            "INCLUDES" | "NONE" => {}
            "DEFLATE" | "BROTLI_COMPRESS" => {
                if route.keys.get("compress").is_none() {
                    route.keys.set("compress", true);
                }
            }
            "SUBSTITUTE" => {
                let next = "write the texts in `replace`: see the guide on changing pages";
                route.comments.push(cx.note(directive, next));
            }
            _ => {
                let next = "there is no such filter: change the text in the application";
                route.comments.push(cx.note(directive, next));
            }
        }
    }
}

fn is_none(directive: &Directive) -> bool {
    directive.arg(0).eq_ignore_ascii_case("none")
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    /// Returns the translation of a site with these lines, and its notes.
    fn translated(lines: &str) -> (String, String) {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("htdocs");
        std::fs::create_dir(&root).unwrap();
        let file = dir.path().join("httpd.conf");
        let text = format!(
            "Listen 8080\n<VirtualHost *:8080>\nDocumentRoot {0}\n<Directory {0}>\n\
             Require all granted\n{lines}\n</Directory>\n</VirtualHost>\n",
            root.display()
        );
        std::fs::write(&file, text).unwrap();
        let imported = import(Language::Apache, &file).unwrap();
        let notes = imported.notes.iter().map(|note| format!("{note}\n")).collect();
        (imported.toml, notes)
    }

    #[test]
    fn types_charsets_and_filters_become_keys() {
        for (lines, expected) in [
            ("AddType text/x-a .a b", "types = { \".a\" = \"text/x-a\", \".b\" = \"text/x-a\" }"),
            ("AddDefaultCharset utf-8", "charset = \"utf-8\""),
            ("AddDefaultCharset On", "charset = \"iso-8859-1\""),
            ("ForceType text/plain", "Content-Type = \"text/plain\""),
            ("SetOutputFilter DEFLATE", "compress = true"),
            ("Options +Includes\nSetOutputFilter INCLUDES;DEFLATE", "ssi = true"),
            ("Options +Includes\nAddHandler server-parsed .shtml", "ssi = true"),
        ] {
            let (toml, notes) = translated(lines);
            assert!(toml.contains(expected), "{lines}: {toml}");
            assert_eq!(notes, "", "{lines}");
        }
    }

    #[test]
    fn hostile_lines_are_named_with_the_next_step() {
        let long = "x".repeat(5000);
        for (lines, next) in [
            ("AddType text/x\\\"y .a".to_owned(), "`types`"),
            (format!("AddType text/{long} .a"), "`types`"),
            ("AddType text/x .a\\\"b".to_owned(), "`types`"),
            ("AddType".to_owned(), "`types`"),
            (format!("AddDefaultCharset {long}"), "`charset`"),
            ("AddDefaultCharset \"a;b\"".to_owned(), "`charset`"),
            ("ForceType nothing".to_owned(), "`set_headers`"),
            ("ForceType".to_owned(), "`set_headers`"),
            ("SetOutputFilter SUBSTITUTE".to_owned(), "`replace`"),
            ("SetOutputFilter OWN".to_owned(), "no such filter"),
            ("DefaultType text/x".to_owned(), "`default_type`"),
            ("<Limit PUT>\n</Limit>".to_owned(), "`allow_methods`"),
        ] {
            let (toml, notes) = translated(&lines);
            assert!(notes.contains(next), "{lines}: {notes}\n{toml}");
        }
        // None of these lines changes what the site sends.
        let (toml, notes) =
            translated("ForceType None\nAddDefaultCharset Off\nSetOutputFilter NONE");
        assert!(notes.is_empty() && !toml.contains("charset") && !toml.contains("Content-Type"));
    }
}
