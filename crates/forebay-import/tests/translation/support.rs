//! Translates a text that a test gives.

use std::path::Path;

use forebay_import::{Imported, Language, import};

/// Returns the translation of a file `name` with this text in `dir`. Panics if Forebay does not
/// accept the translation.
pub fn translated(language: Language, dir: &Path, name: &str, text: &str) -> Imported {
    let file = dir.join(name);
    std::fs::write(&file, text).unwrap();
    let found = import(language, &file).unwrap();
    if let Err(error) = forebay_conf::parse(&found.toml, "site.toml", dir) {
        panic!("{}\n{}", found.toml, error.plain());
    }
    found
}

/// Returns the translation of a Caddyfile.
pub fn caddy(text: &str) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    translated(Language::Caddy, dir.path(), "Caddyfile", text)
}

/// Returns the translation of the block `http` of nginx.
pub fn nginx(text: &str) -> Imported {
    let dir = tempfile::tempdir().unwrap();
    let text = format!("events {{}}\nhttp {{\n{text}\n}}\n");
    translated(Language::Nginx, dir.path(), "nginx.conf", &text)
}

/// Returns the routes of a translation.
pub fn routes(toml: &str) -> Vec<&str> {
    toml.split("[[site.route]]").skip(1).collect()
}

/// Returns the notes of a translation as texts.
pub fn notes(found: &Imported) -> Vec<String> {
    found.notes.iter().map(ToString::to_string).collect()
}
