//! The settings of a configuration as a list, for people and for comparisons: all files together,
//! with defaults and sets applied.
//!
//! Placeholders such as `{env.TOKEN}` stay as they were typed, so that no value from outside is in
//! the list. Typed secrets are in [`Setting::value`], but not in [`Setting::shown`].

use std::collections::HashSet;

use toml::de::DeValue;

use crate::error::MARK;
use crate::source::{SourceFile, Sources};
use crate::tree::{self, Node, Tree};
use crate::{hosts, merge, preset};

/// A setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The part of the configuration, such as `site example.org, route /x/*`.
    pub part: String,
    /// The key in the part, such as `proxy.to`.
    pub key: String,
    /// The value as text. May be a secret.
    pub value: String,
    /// The value as text, without secrets.
    pub shown: String,
}

/// Text that replaces a secret.
const HIDDEN: &str = "(hidden)";

/// Parts of names and texts that announce a secret.
const SECRET_WORDS: [&str; 14] = [
    "secret",
    "token",
    "pass",
    "hmac",
    "mac_key",
    "store_key",
    "authorization",
    "credential",
    "cookie",
    "api-key",
    "api_key",
    "apikey",
    "private-key",
    "private_key",
];

impl SourceFile {
    /// Returns the settings. A configuration without a file has none.
    pub fn settings(&self) -> Vec<Setting> {
        let mut list = List::default();
        if let Ok(tree) = typed(&self.0) {
            tree.iter().for_each(|(key, node)| list.add_top(tree::name(key), node));
        }
        list.settings
    }
}

/// Returns the tree of all sources, with defaults and sets applied. The texts in the tree contain
/// placeholders, not their values.
fn typed(sources: &Sources) -> Result<Tree<'_>, Vec<crate::error::Problem>> {
    let mut tree = tree::parse(sources)?;
    hosts::expand(&mut tree, sources)?;
    let mut filled = merge::fill_sites(&mut tree);
    preset::expand(&mut tree)?;
    merge::fill_routes(&mut tree, &mut filled)?;
    Ok(tree)
}

#[derive(Default)]
struct List {
    settings: Vec<Setting>,
    /// Names of parts in use.
    parts: HashSet<String>,
}

impl List {
    fn add_top(&mut self, key: &str, node: &Node<'_>) {
        match (key, node.get_ref()) {
            // The keys of these tables are already in the sites and routes.
            ("include" | "defaults" | "set", _) => {}
            ("site" | "stream", DeValue::Array(items)) => {
                for item in items.iter().filter_map(|item| item.get_ref().as_table()) {
                    let part = self.part(format!("{key} {}", name_of(item)));
                    self.add_site(&part, item);
                }
            }
            ("app" | "upstream", DeValue::Table(all)) => {
                for (name, item) in all {
                    self.add(&format!("{key} {}", tree::name(name)), "", item);
                }
            }
            _ => self.add(key, "", node),
        }
    }

    fn add_site(&mut self, part: &str, site: &Tree<'_>) {
        for (key, node) in site {
            match (tree::name(key), node.get_ref()) {
                ("route", DeValue::Array(routes)) => {
                    for route in routes.iter().filter_map(|route| route.get_ref().as_table()) {
                        let part = self.part(format!("{part}, route {}", name_of(route)));
                        route.iter().for_each(|(key, node)| self.add(&part, tree::name(key), node));
                    }
                }
                (key, _) => self.add(part, key, node),
            }
        }
    }

    /// Returns a unique name for a part of the configuration: `example.org`, or `example.org (2)`
    /// for the second part with this name.
    fn part(&mut self, name: String) -> String {
        let numbered = (2..).map(|number| format!("{name} ({number})"));
        let names = std::iter::once(name.clone()).chain(numbered);
        let free = names.into_iter().find(|name| self.parts.insert(name.clone()));
        free.unwrap_or(name)
    }

    fn add(&mut self, part: &str, key: &str, node: &Node<'_>) {
        if key.ends_with(MARK) {
            return;
        }
        if let DeValue::Table(table) = node.get_ref() {
            for (name, node) in table {
                let dot = if key.is_empty() { "" } else { "." };
                self.add(part, &format!("{key}{dot}{}", tree::name(name)), node);
            }
            if !table.is_empty() {
                return;
            }
        }
        let (mut value, mut shown) = (String::new(), String::new());
        append(&mut value, node, &mut |_, _| None);
        let mut is_next_secret = false;
        append(&mut shown, node, &mut |name, text| {
            let is_secret = std::mem::replace(&mut is_next_secret, is_secret_option(text));
            let key = format!("{key}.{}", name.unwrap_or_default());
            if is_secret { Some(HIDDEN.to_owned()) } else { hidden(&key, text) }
        });
        self.settings.push(Setting { part: part.to_owned(), key: key.to_owned(), value, shown });
    }
}

/// Returns the name of a site, stream or route: its hosts, else its paths or listeners.
fn name_of(table: &Tree<'_>) -> String {
    let keys = ["name", "hosts", "sni", "path", "paths", "path_regex", "suffix", "listen"];
    let texts = keys.iter().find_map(|key| {
        let node = table.get(*key)?;
        Some(tree::texts(node)?.iter().map(|(_, text)| (*text).to_owned()).collect::<Vec<_>>())
    });
    texts.map_or_else(|| "*".to_owned(), |texts| texts.join(" "))
}

/// A value in TOML, on one line. It may contain secrets.
pub(crate) fn text(node: &Node<'_>) -> String {
    let mut text = String::new();
    append(&mut text, node, &mut |_, _| None);
    text
}

/// A table in TOML, on one line. It may contain secrets.
pub(crate) fn text_of(table: &Tree<'_>) -> String {
    let mut text = String::new();
    append_table(&mut text, table, &mut |_, _| None);
    text
}

/// Appends a value in TOML. Calls `replace` with each text and the name of its key. If the result
/// is not `None`, appends the result in place of the text.
fn append(
    out: &mut String,
    node: &Node<'_>,
    replace: &mut impl FnMut(Option<&str>, &str) -> Option<String>,
) {
    append_named(out, None, node, replace);
}

fn append_named(
    out: &mut String,
    name: Option<&str>,
    node: &Node<'_>,
    replace: &mut impl FnMut(Option<&str>, &str) -> Option<String>,
) {
    match node.get_ref() {
        DeValue::String(text) => match replace(name, text) {
            Some(shown) => out.push_str(&format!("{shown:?}")),
            None => out.push_str(&format!("{text:?}")),
        },
        DeValue::Integer(number) => out.push_str(&number.to_string()),
        DeValue::Float(number) => out.push_str(&number.to_string()),
        DeValue::Boolean(value) => out.push_str(&value.to_string()),
        DeValue::Datetime(value) => out.push_str(&value.to_string()),
        DeValue::Array(items) => {
            out.push('[');
            for (number, item) in items.iter().enumerate() {
                out.push_str(if number == 0 { "" } else { ", " });
                append_named(out, name, item, replace);
            }
            out.push(']');
        }
        DeValue::Table(table) => append_table(out, table, replace),
    }
}

fn append_table(
    out: &mut String,
    table: &Tree<'_>,
    replace: &mut impl FnMut(Option<&str>, &str) -> Option<String>,
) {
    out.push('{');
    for (number, (key, item)) in table.iter().enumerate() {
        out.push_str(if number == 0 { " " } else { ", " });
        out.push_str(&format!("{} = ", tree::name(key)));
        append_named(out, Some(tree::name(key)), item, replace);
    }
    out.push_str(if table.is_empty() { "}" } else { " }" });
}

/// Returns true if the lower-case `text` contains a word such as `password`, so that its value may
/// be secret.
fn announces(text: &str) -> bool {
    SECRET_WORDS.iter().any(|word| text.contains(word))
}

/// Returns true for an option of a program, such as `--password`, whose value is the next argument.
fn is_secret_option(text: &str) -> bool {
    text.starts_with('-') && !text.contains('=') && announces(&text.to_ascii_lowercase())
}

/// Returns the text to show instead of a secret. Returns `None` if `text` is no secret.
fn hidden(key: &str, text: &str) -> Option<String> {
    let (key, lower) = (key.to_ascii_lowercase(), text.to_ascii_lowercase());
    let is_in_env = key.split('.').any(|part| part == "env");
    // The text may contain `password=x` or a query such as `?key=x`, or may be a command line with
    // a secret option.
    let has_values = lower.contains('=') && (announces(&lower) || lower.contains("key="));
    let has_options = lower.contains("--") && lower.contains(' ') && announces(&lower);
    if is_in_env || announces(&key) || has_values || has_options {
        return Some(HIDDEN.to_owned());
    }
    // Hide the password in a URL. The password of a store may contain any character, so the last
    // `@` ends it.
    let (scheme, rest) = text.split_once("://")?;
    let authority =
        if scheme.starts_with("redis") { rest } else { rest.split(['/', '?']).next()? };
    let (_, host) = authority.rsplit_once('@')?;
    Some(format!("{scheme}://{HIDDEN}@{host}{}", &rest[authority.len()..]))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn secrets_are_not_shown_and_defaults_are() {
        let text = "[server]\nadmin = \":1\"\nadmin_token = \"0123456789abcdefgh\"\n\
            [defaults]\ncompress = true\n\
            [app.a]\nkind = \"command\"\nrun = [\"x\", \"{port}\", \"--password=geheim\"]\nspeaks = \"http\"\n\
            env = { DB = \"geheim\" }\n\
            [[site]]\nlisten = \":80\"\n[[site.route]]\npath = \"/a\"\napp = \"a\"\n\
            request_headers = { Authorization = \"Basic geheim\", X-Plain = \"plain\" }\n\
            [[site.route]]\npath = \"/b\"\nrespond = \"{env.PATH}\"\n";
        let plan = crate::parse(text, "site.toml", Path::new("/")).unwrap();
        let settings = plan.file.settings();
        let shown = |part: &str, key: &str| {
            let found = settings.iter().find(|s| s.part == part && s.key == key);
            found.unwrap_or_else(|| panic!("no {part} {key} in {settings:?}")).shown.clone()
        };
        assert_eq!(shown("server", "admin_token"), "\"(hidden)\"");
        assert_eq!(shown("app a", "run"), "[\"x\", \"{port}\", \"(hidden)\"]");
        assert_eq!(shown("site :80, route /a", "request_headers.X-Plain"), "\"plain\"");
        assert_eq!(shown("site :80, route /a", "compress"), "true");
        assert_eq!(shown("site :80, route /b", "respond"), "\"{env.PATH}\"");
        let all: String = settings.iter().map(|setting| setting.shown.clone()).collect();
        assert!(!all.contains("geheim") && !all.contains("0123456789"), "{all}");
        for (url, shown) in [
            ("http://me:geheim@h:1/0?x@y", "http://(hidden)@h:1/0?x@y"),
            ("redis://me:ge/he@im?x@h:1/0", "redis://(hidden)@h:1/0"),
            ("http://h/?key=geheim", "(hidden)"),
        ] {
            assert_eq!(hidden("to", url).as_deref(), Some(shown), "{url}");
        }
        assert_eq!(hidden("proxy.to", "http://h:1/x@y"), None);
    }

    #[test]
    fn typed_keys_and_arguments_of_programs_are_secrets() {
        let text = "[server]\nadmin = \":1\"\nadmin_token = \"/geheim/base64/begins\"\n\
            store = \"redis://u:ge/heim@h\"\nstore_key = \"geheim-geheim-geheim-geheim-geheim\"\n\
            [app.a]\nkind = \"command\"\nrun = [\"x\", \"{port}\", \"--db-pass\", \"geheim\", \"plain\"]\n\
            speaks = \"http\"\n[app.b]\nkind = \"command\"\nspeaks = \"http\"\n\
            run = [\"sh\", \"-c\", \"x --port {port} --token geheim\"]\n\
            [[site]]\nlisten = \"https://:1\"\nhosts = [\"h\"]\n[site.tls.acme]\nemail = \"a@h\"\ndirectory = \"https://h/d\"\n\
            external_account = { key_id = \"k\", mac_key = \"Z2VoZWltLWdlaGVpbQgeheim\" }\n\
            [[site.route]]\napp = \"a\"\n[[site.route]]\napp = \"b\"\n";
        let sources = Sources::one("site.toml", text, Path::new("/"));
        let mut list = List::default();
        for (key, node) in &typed(&sources).unwrap() {
            list.add_top(tree::name(key), node);
        }
        let all: Vec<_> = list.settings.iter().map(|s| format!("{} {}", s.key, s.shown)).collect();
        assert!(!all.join("\n").contains("geheim"), "{all:?}");
        assert!(all.join("\n").contains("\"--db-pass\", \"(hidden)\", \"plain\""), "{all:?}");
    }
}
