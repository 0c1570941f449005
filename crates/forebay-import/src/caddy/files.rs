//! Translates `php_fastcgi` and `file_server`.

use super::addresses::url;
use super::around::Around;
use super::needless::is_needless;
use super::syntax::Directive;
use super::{Cx, line};
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;
use crate::units::duration;
use crate::value::{Table, Value};

/// Returns the routes of `php_fastcgi`: scripts, and the front controller for other paths.
pub fn php(
    cx: &mut Cx<'_>,
    directive: &Directive,
    args: &[String],
    route: DraftRoute,
    here: &mut Around<'_>,
) -> Vec<DraftRoute> {
    let mut root = here.root.clone();
    let mut params = Table::default();
    let mut fallback = Some("/index.php".to_owned());
    let mut servers: Vec<String> = args.to_vec();
    let mut reply_timeout = None;
    let is_option = |inner: &&Directive| !is_needless("php_fastcgi", &inner.name);
    for inner in directive.inside().iter().filter(is_option) {
        inner.settle();
        match inner.name.as_str() {
            "root" => root = Some(files::below(&cx.dir, inner.arg(0))),
            "env" if !inner.arg(1).contains('{') => params.set(inner.arg(0), inner.arg(1)),
            "index" if inner.arg(0) == "off" => fallback = None,
            "index" => fallback = Some(format!("/{}", inner.arg(0))),
            "to" => servers.extend(inner.args.iter().cloned()),
            "split" if inner.args == [".php"] => {}
            "try_files" if inner.args.last().is_some_and(|last| is_script(last)) => {
                let last = inner.args.last().map_or("", String::as_str);
                fallback = Some(format!("/{}", last.trim_start_matches('/')));
                let is_usual = |file: &&String| {
                    matches!(file.as_str(), "{path}" | "{path}/index.php") || *file == last
                };
                if !inner.args.iter().all(|file| is_usual(&file)) {
                    cx.note(inner, "add routes for the other files before this one");
                }
            }
            "read_timeout" if duration(inner.arg(0)).is_some() => {
                reply_timeout = duration(inner.arg(0)).filter(|time| time != "0s");
            }
            _ => drop(cx.note(inner, "see the keys of `fastcgi`")),
        }
    }
    let address = |text: &String| {
        let url = url(text)?;
        Some(url.trim_start_matches("http://").to_owned())
    };
    let to: Option<Vec<String>> = servers.iter().map(address).collect();
    let (Some(to), Some(root)) = (to.filter(|to| !to.is_empty()), root) else {
        let comment =
            cx.note(directive, "write the server in `to` and the directory in `root` of `fastcgi`");
        return vec![route.closed(comment)];
    };
    if here.strip.as_deref().is_some_and(|prefix| !prefix.is_empty()) {
        let comment = cx.note(
            directive,
            "scripts keep their path: put them in a directory of the prefix's name",
        );
        return vec![route.closed(comment)];
    }
    let mut table = Table::default();
    match &to[..] {
        [to] => table.set("to", to.as_str()),
        to => table.set("to", to.to_vec()),
    }
    table.set("root", root.as_str());
    if !params.is_empty() {
        table.set("params", params);
    }
    table.set_some(
        "reply_timeout",
        reply_timeout.filter(|_| cx.keys.has("Fastcgi", "reply_timeout")),
    );
    let mut scripts = route.clone();
    let Some(matcher) =
        scripts.matcher.and(&Matcher { suffixes: vec![".php".into()], ..Matcher::default() })
    else {
        return Vec::new();
    };
    scripts.matcher = matcher;
    scripts.keys.set("fastcgi", table);
    here.is_php = true;
    if here.has_file_server {
        here.fallback = fallback;
        return vec![scripts];
    }
    let mut others = route;
    others.keys.set_some("fallback_to", fallback);
    let file_route = files_route(&root, &["index.php", "index.html"], others);
    vec![scripts, file_route]
}

/// Returns true for the path of a script, such as `index.php`.
fn is_script(file: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    file.ends_with(".php") && file.chars().all(is_plain)
}

pub fn file_server(
    cx: &mut Cx<'_>,
    directive: &Directive,
    args: &[String],
    mut route: DraftRoute,
    here: &Around<'_>,
) -> Vec<DraftRoute> {
    let mut root = here.root.clone().unwrap_or_else(|| cx.dir.display().to_string());
    let mut table = Table::default();
    let mut passes_on = false;
    if args.iter().any(|arg| arg == "browse") {
        table.set("listing", true);
    }
    let mut hidden: Vec<DraftRoute> = Vec::new();
    for inner in directive.inside() {
        inner.settle();
        match inner.name.as_str() {
            "root" => root = files::below(&cx.dir, inner.arg(0)),
            "browse" => {
                table.set("listing", true);
                if !inner.args.is_empty() || inner.block.is_some() {
                    let next =
                        "write a page for listings: listing = { template = \"listing.html\" }";
                    cx.note(inner, next);
                }
            }
            "index" => table.set("index", inner.args.clone()),
            "pass_thru" => passes_on = true,
            "precompressed" => {
                let ends = inner.args.iter().filter_map(|kind| match kind.as_str() {
                    "br" => Some("br"),
                    "zstd" => Some("zst"),
                    "gzip" => Some("gz"),
                    _ => None,
                });
                let ends: Vec<&str> = ends.collect();
                let ends = if ends.is_empty() { Value::Bool(true) } else { Value::from(ends) };
                table.set("precompressed", ends);
            }
            "hide" => hidden.extend(hide(cx, inner, &route)),
            "disable_canonical_uris" | "status" | "fs" => drop(cx.note(inner, "remove the line")),
            _ => drop(cx.note(inner, "see the keys of `files`")),
        }
    }
    if !here.extensions.is_empty() {
        table.set("extensions", here.extensions.clone());
    }
    route.keys.set_some("fallback_to", here.fallback.clone());
    if passes_on {
        route.keys.set("fallback", true);
        route.keys.remove("fallback_to");
    }
    let index: Vec<String> = match table.get("index") {
        Some(Value::List(list)) => {
            list.iter().map(|name| name.to_string().trim_matches('"').to_owned()).collect()
        }
        _ if here.is_php => vec!["index.php".into(), "index.html".into()],
        _ => vec!["index.html".into(), "index.txt".into()],
    };
    table.remove("index");
    let index: Vec<&str> = index.iter().map(String::as_str).collect();
    let mut found = Vec::new();
    for (matcher, dir) in directories(&root, here.strip.as_deref().unwrap_or(""), &route.matcher) {
        let part = DraftRoute { matcher, ..route.clone() };
        let mut part = files_route(&dir, &index, part);
        if let Some(Value::Table(files)) = part.keys.get("files").cloned() {
            let mut files = files;
            files.0.extend(table.0.iter().cloned());
            part.keys.set("files", files);
        }
        found.push(part);
    }
    hidden.extend(found);
    hidden
}

/// Returns a route for each name that `file_server` hides. The route answers 404, or is closed if
/// the name has no translation. Names that begin with a dot need no route.
fn hide(cx: &mut Cx<'_>, inner: &Directive, route: &DraftRoute) -> Vec<DraftRoute> {
    let mut found = Vec::new();
    for name in &inner.args {
        let is_dotted = name.starts_with('.') || name.starts_with("*/.");
        let end = name.trim_start_matches('*');
        if is_dotted {
            continue;
        }
        let suffix = Matcher { suffixes: vec![end.to_owned()], ..Matcher::default() };
        let is_suffix =
            !end.contains(['/', '*', '?']) && end.bytes().any(|b| !b.is_ascii_alphanumeric());
        match route.matcher.and(&suffix).filter(|_| is_suffix) {
            Some(matcher) => {
                found.push(DraftRoute::new(&inner.place, line(inner), matcher).respond(404));
            }
            None => {
                let comment = cx.note(
                    inner,
                    format!("write a route with `respond` for {name}, before the files"),
                );
                found.push(
                    DraftRoute::new(&inner.place, line(inner), route.matcher.clone())
                        .closed(comment),
                );
            }
        }
    }
    found
}

/// Splits the paths of a matcher into parts, and returns the directory of each part. For a path
/// with `*`, Forebay looks up only the text that `*` matches.
fn directories(root: &str, strip: &str, matcher: &Matcher) -> Vec<(Matcher, String)> {
    if matcher.paths.is_empty() {
        return vec![(matcher.clone(), root.to_owned())];
    }
    let mut found = Vec::new();
    for path in &matcher.paths {
        let start = path.trim_end_matches('*');
        let below = start.strip_prefix(strip).unwrap_or(start);
        if !path.ends_with('*') {
            found.push((Matcher { paths: vec![path.clone()], ..matcher.clone() }, root.to_owned()));
        } else if start.ends_with('/') {
            found.push((
                Matcher { paths: vec![path.clone()], ..matcher.clone() },
                files::joined(root, below),
            ));
        } else {
            if strip.is_empty() {
                found.push((
                    Matcher { paths: vec![start.to_owned()], ..matcher.clone() },
                    root.to_owned(),
                ));
            }
            let dir = files::joined(root, below);
            found.push((Matcher { paths: vec![format!("{start}/*")], ..matcher.clone() }, dir));
        }
    }
    found
}

fn files_route(root: &str, index: &[&str], mut route: DraftRoute) -> DraftRoute {
    let root = if root.len() > 1 { root.trim_end_matches('/') } else { root };
    let table = Table::default().with("root", root).with("index", index.to_vec());
    if files::is_directory(root) {
        route.keys.set("files", table);
        return route;
    }
    route.comments.push(format!(
        "There is no directory {root} here. When there is: files = {}",
        Value::Table(table)
    ));
    route.respond(404)
}
