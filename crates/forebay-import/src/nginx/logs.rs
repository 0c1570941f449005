//! Translates `access_log`.

use super::Cx;
use super::scope::Scope;
use super::syntax::Directive;
use crate::draft::{DraftRoute, DraftSite};
use crate::files;
use crate::value::Table;

/// The next step for a log of the whole process.
const OF_PROCESS: &str = "choose a file that Forebay may write: [log] with access = \"FILE\" and \
                          format = \"combined\"";

/// The next step for a log of a site.
const OF_SITE: &str = "choose a file that Forebay may write: log = { access = \"FILE\", \
                       format = \"combined\" }";

/// Adds a note on the log of the block `http`.
pub fn process(cx: &mut Cx<'_>) {
    let mut all = cx.http.own().iter();
    let log = all.find(|directive| directive.name == "access_log" && directive.arg(0) != "off");
    let Some(log) = log else { return };
    let comment = cx.note(log, OF_PROCESS);
    cx.draft.comments.push(comment);
}

/// Adds the access log of a server that has its own `access_log`. Adds a note if the directory of
/// the file does not exist here, or if Forebay cannot write the log in this format.
pub fn site(cx: &mut Cx<'_>, scope: &Scope<'_>, site: &mut DraftSite) {
    let Some(log) = scope.peek_own("access_log").filter(|log| log.arg(0) != "off") else { return };
    match file(cx, log).filter(|_| cx.keys.has("Site", "log")) {
        Some(file) => {
            log.settle();
            site.keys.set("log", Table::default().with("access", file));
        }
        None => site.comments.push(cx.note(log, OF_SITE)),
    }
}

/// Translates the access log of a location, or turns logging off. A line without a translation is
/// not marked as read, so it gets a note later.
pub fn route(cx: &Cx<'_>, scope: &Scope<'_>, route: &mut DraftRoute) {
    let Some(nearest) = scope.peek(&["access_log"]).first().copied() else { return };
    if nearest.arg(0) == "off" {
        nearest.settle();
        route.keys.set("log", false);
        return;
    }
    let is_of_location = scope.blocks().len() > cx.http.blocks().len() + 1;
    let own = scope.peek_own("access_log").filter(|_| is_of_location);
    if let Some(log) = own.filter(|_| cx.keys.has("LogFile", "access"))
        && let Some(file) = file(cx, log)
    {
        log.settle();
        route.keys.set("log", Table::default().with("access", file));
    }
}

/// Returns the file of a log. Returns `None` if Forebay cannot write all lines to this file in
/// nginx's format.
fn file(cx: &Cx<'_>, log: &Directive) -> Option<String> {
    let file = files::below(&cx.dir, log.arg(0));
    let is_file = !log.arg(0).contains(['$', ':']) && files::is_in_directory(&file);
    // With `if=`, nginx leaves out some requests, but Forebay would write all lines.
    let is_known = |option: &String| {
        let name = option.split('=').next().unwrap_or_default();
        matches!(name, "combined" | "buffer" | "flush" | "gzip")
    };
    (is_file && log.args.iter().skip(1).all(is_known)).then_some(file)
}
