//! Translates `ScriptAlias`: a directory of scripts, or one program.

use super::Cx;
use super::bases::Base;
use super::fastcgi::{self, application, files_below, programs};
use super::runners::{Runner, is_loaded, names_handler, of_section, runner};
use super::sections::{Sections, all, is_below, last, settle};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;
use crate::pattern::as_regex;
use crate::value::Table;

/// The next step for a script with a handler that has no translation.
const NEXT: &str = "another handler than CGI answers for this script: write a route for it";

/// Returns the routes for `ScriptAlias`: a directory of scripts, or one program. If neither exists,
/// the route answers 404. `url` is the path of the region.
pub fn scripts(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (base, url): (&Base<'_>, &str),
    mut route: DraftRoute,
) -> Vec<DraftRoute> {
    let path = base.dir.clone().unwrap_or_default();
    if files::is_readable(&path) {
        return vec![program(cx, sections, layers, (&base.url, &path), route)];
    }
    if !files::is_directory(&path) {
        let comment = cx.note(
            base.directive,
            format!("{path} does not exist here: copy it, and write cgi = \"{path}\""),
        );
        route.comments.push(comment);
        return vec![route.respond(404)];
    }
    route.matcher.paths.retain(|path| path.ends_with('*'));
    let mut own = (base.url.trim_end_matches('/').to_owned(), path.clone());
    let rest = url.strip_prefix(own.0.as_str()).unwrap_or_default();
    for name in rest.split('/').filter(|name| !name.is_empty()) {
        own = (format!("{}/{name}", own.0), files::joined(&own.1, name));
        if files::is_directory(&own.1) {
            continue;
        }
        // The region is about one script, or about a part of its path info.
        if !matches!(runner(cx, sections, layers, (&own.1, true)), Runner::Cgi) {
            return vec![program(cx, sections, layers, (&own.0, &own.1), route)];
        }
        break;
    }
    // The path info of a script selects no other script.
    let mut out = if files::is_readable(&own.1) {
        Vec::new()
    } else {
        other_handlers(cx, sections, layers, (&own.0, &own.1), &route)
    };
    route.keys.set("cgi", path);
    out.push(route);
    out
}

/// Returns the route for one script at the path `url`.
fn program(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, file): (&str, &str),
    mut route: DraftRoute,
) -> DraftRoute {
    match runner(cx, sections, layers, (file, true)) {
        Runner::Cgi => {
            route.keys.set("cgi", Table::default().with("program", file));
            route
        }
        Runner::Fastcgi => {
            sections.files.iter().for_each(|(section, _)| settle(&[section.inside()], &NAMES));
            application(cx, layers, (url, file), route)
        }
        Runner::Other(directive) => {
            let comment = cx.note(directive, NEXT);
            route.closed(comment)
        }
    }
}

/// The directives about the handlers of files.
const NAMES: [&str; 2] = ["AddHandler", "SetHandler"];

/// Returns the routes for the files in a directory of scripts that are no CGI scripts. FastCGI
/// programs become applications. Routes for other files, and for future files, answer 403.
fn other_handlers(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> Vec<DraftRoute> {
    let found = programs(cx, sections, layers, (url, dir, true), route);
    let mut out = found.routes;
    let mut comments = Vec::new();
    if !found.is_complete {
        comments.push(cx.draft.notes.add(&route.place, &route.source, fastcgi::NEXT));
    }
    for file in files_below(dir).unwrap_or_default() {
        let file = files::joined(dir, &file);
        if let Runner::Other(directive) = runner(cx, sections, layers, (&file, true)) {
            let comment = cx.note(directive, NEXT);
            comments.extend((!comments.contains(&comment)).then_some(comment));
        }
    }
    for matcher in others(cx, sections, layers, (url, dir), route) {
        let mut closed = DraftRoute { matcher, ..route.clone() }.respond(403);
        closed.comments.extend(comments.iter().cloned());
        if comments.is_empty() {
            closed.comments.push("In Apache, these files are no CGI scripts.".into());
        }
        out.push(closed);
    }
    out
}

/// Returns the conditions of the files in a directory that are no CGI scripts.
fn others(
    cx: &Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> Vec<Matcher> {
    let is_other = |directive: &Directive| {
        names_handler(directive) && !matches!(Runner::named_by(directive), Runner::Cgi)
    };
    if last(layers, "SetHandler").is_some_and(is_other) {
        return vec![route.matcher.clone()];
    }
    let handlers = all(layers, "AddHandler").into_iter().filter(|handler| is_other(handler));
    let ends = handlers.flat_map(|handler| handler.args.iter().skip(1));
    let mut ends: Vec<String> =
        ends.map(|end| regex_syntax::escape(end.trim_start_matches('.'))).collect();
    if is_loaded(cx) {
        ends.extend(["fcgi", "fcg"].map(str::to_owned));
    }
    ends.sort();
    ends.dedup();
    let start = format!("^{}/", regex_syntax::escape(url.trim_end_matches('/')));
    let mut out = Vec::new();
    if !ends.is_empty() {
        let regex = format!("{start}.*\\.(?:{})(?:[./]|$)", ends.join("|"));
        out.push(as_regex(&regex, true, cx.keys).map(|found| found.matcher));
    }
    for (section, around) in &sections.files {
        let holds = around.as_deref().is_none_or(|at| is_below(dir, at) || is_below(at, dir));
        if holds && section.inside().iter().any(is_other) {
            out.push(of_section(cx, section, &start));
        }
    }
    // Without its expression, a matcher takes all files.
    let whole = |found: Option<Matcher>| {
        let regex = found.and_then(|found| found.regex).or(route.matcher.regex.clone());
        Matcher { regex, ..route.matcher.clone() }
    };
    out.into_iter().map(whole).collect()
}
