//! Translates `error_page` to files for errors.

use super::Cx;
use super::files_of::root;
use super::locations::{Location, LocationKind, longest};
use super::scope::Scope;
use super::syntax::Directive;
use crate::files;
use crate::pattern::{Use, classify};
use crate::value::Table;

/// Returns the error pages of a scope: a file for each status. Adds notes on pages without a
/// translation.
pub fn pages(cx: &mut Cx<'_>, scope: &Scope<'_>, locations: &[Location<'_>]) -> Table {
    let mut table = Table::default();
    for page in scope.own().iter().filter(|directive| directive.name == "error_page") {
        let Some((to, codes)) = page.args.split_last() else { continue };
        // `error_page 404 = /x` adds no page: the path `/x` answers for missing files.
        let changes = codes.iter().any(|code| code.starts_with('='));
        let status = codes.iter().find_map(|code| code.strip_prefix('=')?.parse::<u16>().ok());
        let has_page = status.is_some() && file(cx, to, locations).is_some();
        if (changes || to.starts_with('@')) && !has_page && codes.iter().any(|code| code == "404") {
            continue;
        }
        if codes.iter().all(|code| code == "503") && closes(scope.own()) {
            // The key `maintenance` has the page, so it needs no other key.
            page.settle();
            continue;
        }
        let is_status = |status: u16| status == 200 || (400..=599).contains(&status);
        let has_status = status.is_some_and(is_status) && cx.keys.has("ErrorPage", "status");
        let is_known = (!changes || has_status) && cx.keys.route("error_pages");
        let file = file(cx, to, locations).filter(|_| is_known);
        let Some(file) = file else {
            cx.note(page, "write the file of the page in `error_pages` if this version has it");
            continue;
        };
        page.settle();
        for code in codes {
            let is_error = code.parse::<u16>().is_ok_and(|code| (400..=599).contains(&code));
            match status {
                _ if !is_error => {}
                Some(status) => {
                    let page = Table::default().with("file", file.as_str());
                    table.set(code, page.with("status", u64::from(status)));
                }
                None => table.set(code, file.as_str()),
            }
        }
    }
    table
}

/// Returns the file that nginx sends for a URL path. Returns `None` if the file cannot be read, if
/// it is a PHP script, or if the path has variables.
pub fn file(cx: &Cx<'_>, path: &str, locations: &[Location<'_>]) -> Option<String> {
    if !path.starts_with('/') || path.contains('$') || path.ends_with(".php") {
        return None;
    }
    let exact = locations.iter().find(|location| location.kind == LocationKind::Exact(path));
    let location = exact
        .or_else(|| locations.iter().find(|location| takes(cx, location, path)))
        .or_else(|| longest(locations, path))?;
    let file = files::joined(&root(cx, &location.scope), path);
    files::is_readable(&file).then_some(file)
}

/// Returns true if the expression of a location matches a path. Returns false for a location
/// without an expression, and if the result is unknown.
fn takes(cx: &Cx<'_>, location: &Location<'_>, path: &str) -> bool {
    let LocationKind::Regex { text, ignore_case } = location.kind else { return false };
    let found = classify(text, ignore_case, cx.keys, Use::Exact);
    found.is_ok_and(|found| found.matcher.takes("GET", path) == Some(true))
}

/// Returns true if a block, or a location in it, has an `if` that answers with 503 while a file
/// exists.
fn closes(block: &[Directive]) -> bool {
    block.iter().any(|inner| match inner.name.as_str() {
        "location" => closes(inner.inside()),
        "if" => {
            let is_file = matches!(inner.arg(0), "(-f" | "(-e");
            is_file && inner.inside().iter().any(|inner| inner.args == ["503"])
        }
        _ => false,
    })
}
