//! Translates `if (-f FILE) { return 503; }` with its page.

use super::Cx;
use super::here::Here;
use super::locations::LocationKind;
use super::pages;
use super::server::TranslatedServer;
use super::syntax::Directive;
use crate::value::Table;

/// Returns the key `maintenance` for the page of status 503 while a file exists. Returns `None` if
/// there is no such page.
pub fn table(
    cx: &Cx<'_>,
    server: &TranslatedServer<'_>,
    here: &Here<'_, '_>,
    file: &str,
) -> Option<Table> {
    if !cx.keys.route("maintenance") {
        return None;
    }
    let pages = here.location.scope.all("error_page");
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

/// Returns the path of the page that a named location sends, and its Retry-After.
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
