//! Translates certificates on demand: the global option `on_demand_tls`, and `tls { on_demand }`.

use super::Cx;
use super::syntax::Directive;
use crate::value::Table;

/// Returns the URL of the application that permits names, or `None` if no line has a usable URL.
/// Adds notes on the other lines.
pub fn ask(cx: &mut Cx<'_>, option: &Directive) -> Option<String> {
    let mut found = None;
    for inner in option.inside() {
        let url = match (inner.name.as_str(), inner.arg(0)) {
            ("ask", url) => url,
            ("permission", "http") => inner.arg(1),
            _ => "",
        };
        if is_usable(url) && found.is_none() {
            found = Some(url.to_owned());
        } else {
            cx.note(inner, "see `on_demand` of ACME: its `ask` is one http:// or https:// URL");
        }
    }
    found
}

/// Returns true if the key `ask` accepts this URL.
fn is_usable(url: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte);
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    rest.is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with(['/', '?']) && !rest.contains('@')
    }) && url.bytes().all(is_plain)
}

/// Returns the line `on_demand` of a `tls` block. Returns `None` if the block has no such line, or
/// has other lines.
pub fn only(tls: &Directive) -> Option<&Directive> {
    match tls.inside() {
        [line] if line.name == "on_demand" => Some(line),
        _ => None,
    }
}

/// Returns the table `on_demand` with the application that permits names. Without this application,
/// each client could order certificates. Adds a note and returns `None` if `ask` is `None`, or if
/// this version has no key `on_demand`.
pub fn table(cx: &mut Cx<'_>, line: &Directive, ask: Option<&str>) -> Option<Table> {
    if !cx.keys.has("Acme", "on_demand") || ask.is_none() {
        cx.note(line, "name the application that permits names in `ask` of `on_demand`");
    }
    let ask = ask.filter(|_| cx.keys.has("Acme", "on_demand"))?;
    Some(Table::default().with("ask", ask))
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    #[test]
    fn certificates_on_demand_need_an_application_that_permits_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("Caddyfile");
        for (option, is_translated) in [
            ("on_demand_tls {\n ask http://127.0.0.1:3000/may?x=1\n }", true),
            ("on_demand_tls {\n permission http http://127.0.0.1:3000/\n }", true),
            ("on_demand_tls {\n ask https://example.org/may\n }", true),
            ("on_demand_tls {\n ask ftp://example.org/may\n }", false),
            ("on_demand_tls {\n ask http://{env.HOST}/may\n }", false),
            ("on_demand_tls {\n ask http://\n }", false),
            ("email a@example.org", false),
        ] {
            let text = format!(
                "{{\n {option}\n}}\nhttps:// {{\n tls {{\n on_demand\n }}\n respond \"x\"\n}}\n"
            );
            std::fs::write(&file, text).unwrap();
            let imported = import(Language::Caddy, &file).unwrap();
            let toml = imported.toml;
            assert_eq!(toml.contains("ask = \"http"), is_translated, "{option}: {toml}");
            assert_eq!(imported.notes.is_empty(), is_translated, "{option}: {:?}", imported.notes);
            assert_eq!(toml.contains("127.0.0.1:443"), !is_translated, "{option}: {toml}");
        }
    }
}
