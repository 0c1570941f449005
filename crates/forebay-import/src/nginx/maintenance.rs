//! Translates `if (-f FILE) { return 503; }` with its page.

use super::Cx;
use super::here::Here;
use super::locations::LocationKind;
use super::pages;
use super::server::TranslatedServer;
use super::syntax::Directive;
use crate::value::Table;

/// The next step if two files close the same requests.
pub const TWO_FILES: &str = "a route has one file in `maintenance`: let one file close all of them";

/// Returns true if both `maintenance` tables depend on the same file.
pub fn is_same_file(ours: &Table, theirs: &Table) -> bool {
    ours.get("while_exists") == theirs.get("while_exists")
}

/// Returns the key `maintenance`, which sends the page for status 503 while the file `file` exists.
/// Returns `None` if the location has no such page.
pub fn table(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    here: &Here<'_, '_>,
    file: &str,
) -> Option<Table> {
    if !cx.keys.route("maintenance") {
        return None;
    }
    let pages = here.location.scope.peek(&["error_page"]);
    let is_503 = |page: &&&Directive| page.args.iter().any(|code| code == "503");
    let page = pages.iter().find(is_503)?;
    let to = page.args.last()?;
    let (path, delay) = if to.starts_with('@') { named(server, to)? } else { (to.clone(), None) };
    let page = pages::file(cx, &path, &server.locations)?;
    let mut table = Table::default().with("page", page);
    table.set_some("retry_after", delay);
    table.set("while_exists", file);
    Some(table)
}

/// Returns the path of the page that a named location sends, and the time for the field
/// Retry-After. The time is `None` if the location does not set this field. Returns `None` if the
/// location sends no page.
fn named(server: &TranslatedServer<'_>, name: &str) -> Option<(String, Option<String>)> {
    let mut all = server.locations.iter();
    let location = all.find(|location| location.kind == LocationKind::Named(name))?;
    let scope = &location.scope;
    let path = match (scope.of_own("rewrite"), scope.of_own("try_files")) {
        (Some(rewrite), None) if rewrite.arg(2) == "break" => rewrite.arg(1),
        (None, Some(files)) => files.arg(0),
        _ => return None,
    };
    let fields = scope.all("add_header");
    let delay = fields.iter().find(|field| field.arg(0).eq_ignore_ascii_case("retry-after"));
    let delay = delay.and_then(|field| field.arg(1).parse::<u32>().ok());
    Some((path.to_owned(), delay.map(|seconds| format!("{seconds}s"))))
}

#[cfg(test)]
mod tests {
    use crate::{Language, import};

    /// Returns the translation of a server with these lines, and the number of its notes.
    fn site(lines: &str) -> (String, usize) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("m.html"), "closed").unwrap();
        let file = dir.path().join("nginx.conf");
        let root = dir.path().display();
        let text = format!(
            "events {{}}\nhttp {{ server {{ listen 8080; root {root}; error_page 503 /m.html;\n\
             {lines}\n}} }}\n"
        );
        std::fs::write(&file, text).unwrap();
        let imported = import(Language::Nginx, &file).unwrap();
        (imported.toml, imported.notes.len())
    }

    #[test]
    fn no_maintenance_is_lost() {
        let (a, b) = ("if (-f /run/a) { return 503; }", "if (-f /run/b) { return 503; }");
        let pass = "location / { proxy_pass http://127.0.0.1:9; }";
        for lines in [
            format!("{a}\n{b}\n{pass}"),
            format!("{a}\nlocation / {{ {b} proxy_pass http://127.0.0.1:9; }}"),
            format!("location / {{ {a} {b} proxy_pass http://127.0.0.1:9; }}"),
            format!("{a}\n{b}\nreturn 200 text;"),
            format!("location / {{ {a} try_files $uri @b; }} location @b {{ {b} return 200 a; }}"),
        ] {
            let (toml, notes) = site(&lines);
            assert!(notes > 0 && toml.contains("status = 403"), "{lines}:\n{toml}");
            assert!(!toml.contains("proxy =") && !toml.contains("\"text\""), "{lines}:\n{toml}");
        }
        for lines in [
            format!("{a}\nreturn 301 https://b.example$request_uri;"),
            format!("location / {{ {a} return 301 https://b.example$request_uri; }}"),
            format!("{a}\n{a}\n{pass}"),
            format!("{a}\nlocation / {{ {a} proxy_pass http://127.0.0.1:9; }}"),
        ] {
            let (toml, _) = site(&lines);
            assert!(toml.contains("while_exists = \"/run/a\""), "{lines}:\n{toml}");
            assert!(!toml.contains("status = 403"), "{lines}:\n{toml}");
        }
    }
}
