//! FastCGI programs that Apache starts itself, with mod_fcgid or mod_fastcgi. They become
//! applications: as CGI programs, many of them would start a web server.

use super::Cx;
use super::names;
use super::regions::has_option;
use super::runners::{Runner, is_fastcgi, runner};
use super::sections::{Sections, all, last};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;
use crate::value::{Table, Value};

/// The next step for a program that does not become an application.
pub const NEXT: &str = "a FastCGI program needs an application: write [app.NAME] with kind = \"command\", \
     run = [\"FILE\"], speaks = \"fastcgi\", listen = \"stdin\" and `mount`";

/// Default of `FcgidMaxRequestLen`, in bytes.
const LONGEST_BODY: u64 = 128 * 1024;

/// Maximum number of programs in one directory that become applications.
const MOST_PROGRAMS: usize = 16;

/// Maximum number of files and directories that are searched for programs.
const MOST_FILES: usize = 2_000;

/// Variables that Forebay sets for each request. `env` of an application would replace them.
const OF_REQUESTS: [&str; 12] = [
    "AUTH_",
    "CONTENT_",
    "DOCUMENT_",
    "GATEWAY_INTERFACE",
    "HTTP",
    "PATH_INFO",
    "PATH_TRANSLATED",
    "QUERY_STRING",
    "REMOTE_",
    "REQUEST_",
    "SCRIPT_",
    "SERVER_",
];

/// Returns the route that passes requests to a FastCGI program at the path `url`. Forebay starts
/// the program. The route is closed if the program has no translation.
pub fn application(
    cx: &mut Cx<'_>,
    layers: &[&[Directive]],
    (url, program): (&str, &str),
    mut route: DraftRoute,
) -> DraftRoute {
    if let Some(wrapper) = last(layers, "FcgidWrapper") {
        let comment = cx.note(wrapper, names::next_step("FcgidWrapper"));
        return route.closed(comment);
    }
    // Forebay replaces placeholders such as {port} in `run`.
    if program.contains(['{', '}']) || !files::is_executable(program) {
        let next = format!("{program} is no executable file with a plain name: {NEXT}");
        let comment = cx.draft.notes.add(&route.place, &route.source, next);
        return route.closed(comment);
    }
    let mut table = Table::default()
        .with("kind", "command")
        .with("run", vec![program])
        .with("speaks", "fastcgi")
        .with("listen", "stdin")
        .with("mount", url.trim_end_matches('/'));
    environment(cx, layers, &mut table);
    table.set_some("user", files::user_of_apps());
    let mut longest = LONGEST_BODY;
    if let Some(line) = last(layers, "FcgidMaxRequestLen") {
        match line.arg(0).parse() {
            Ok(bytes) => {
                line.settle();
                longest = bytes;
            }
            Err(_) => route.comments.push(cx.note(line, names::next_step(&line.name))),
        }
    }
    route.keys.set("app", app(cx, program, table));
    route.keys.set("max_body", Value::Number(longest));
    route
}

/// Sets `env` to the variables of `FcgidInitialEnv`.
fn environment(cx: &mut Cx<'_>, layers: &[&[Directive]], table: &mut Table) {
    for line in all(layers, "FcgidInitialEnv") {
        let (name, value) = (line.arg(0), line.args.get(1));
        let is_own = !OF_REQUESTS.iter().any(|start| name.to_ascii_uppercase().starts_with(start))
            && !name.eq_ignore_ascii_case("TLS");
        // Forebay replaces placeholders such as {port} in `env`.
        match value.filter(|value| is_own && !name.is_empty() && !value.contains(['{', '}'])) {
            Some(value) => {
                line.settle();
                table.table("env").set(name, value.as_str());
            }
            None => drop(cx.note(line, names::next_step(&line.name))),
        }
    }
}

/// Adds the application of a program to the draft. Returns the name of the application, which is
/// similar to the name of the program.
fn app(cx: &mut Cx<'_>, program: &str, table: Table) -> String {
    let file = program.rsplit('/').next().unwrap_or_default();
    let stem = file.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let mut stem: String =
        stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    if !stem.starts_with(|c: char| c.is_ascii_alphabetic()) {
        stem = format!("fastcgi-{stem}");
    }
    cx.draft.add_app(&stem, table)
}

/// The FastCGI programs in a directory.
pub struct Programs {
    /// The routes of the programs, each with its own application.
    pub routes: Vec<DraftRoute>,
    /// False if some programs have no route, so that the caller must report them.
    pub is_complete: bool,
}

/// Returns routes for the FastCGI programs in a directory and below. With `by_name`, the names of
/// files alone may select FastCGI, as below `ScriptAlias`.
pub fn programs(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir, by_name): (&str, &str, bool),
    route: &DraftRoute,
) -> Programs {
    let mut found = Programs { routes: Vec::new(), is_complete: true };
    let Some(all) = files_below(dir) else {
        return Programs { is_complete: false, ..found };
    };
    for rest in all {
        let file = files::joined(dir, &rest);
        if !matches!(runner(cx, sections, layers, (&file, by_name)), Runner::Fastcgi) {
            continue;
        }
        let path = format!("{}/{rest}", url.trim_end_matches('/'));
        let is_plain = path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._~-".contains(&b));
        let own = Matcher { paths: vec![path.clone(), format!("{path}/*")], ..Matcher::default() };
        let matcher = route.matcher.and(&own).filter(|_| is_plain && files::is_executable(&file));
        match matcher.filter(|_| found.routes.len() < MOST_PROGRAMS) {
            Some(matcher) => {
                let route = DraftRoute { matcher, ..route.clone() };
                found.routes.push(application(cx, layers, (&path, &file), route));
            }
            None => found.is_complete = false,
        }
    }
    found
}

/// Returns the routes of the FastCGI programs in a directory of files, if `Options` has `ExecCGI`.
/// If `dir` is a program, returns its route.
pub fn in_directory(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (url, dir): (&str, &str),
    route: &DraftRoute,
) -> Vec<DraftRoute> {
    let handlers = ["AddHandler", "SetHandler"].map(|name| all(layers, name)).concat();
    let is_selected = handlers.iter().any(|handler| is_fastcgi(handler.arg(0)));
    if !is_selected || !has_option(layers, "ExecCGI") {
        return Vec::new();
    }
    if !files::is_readable(dir) {
        return programs(cx, sections, layers, (url, dir, false), route).routes;
    }
    match runner(cx, sections, layers, (dir, false)) {
        Runner::Fastcgi => vec![application(cx, layers, (url, dir), route.clone())],
        _ => Vec::new(),
    }
}

/// Returns the route for the other files of a FastCGI handler in a directory of files, after the
/// routes of [`in_directory`]. The route answers 403, so that Forebay sends no source.
pub fn others(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    layers: &[&[Directive]],
    (handler, url, dir): (&Directive, &str, &str),
    mut route: DraftRoute,
) -> DraftRoute {
    if !has_option(layers, "ExecCGI") {
        route.comments.push("Options has no ExecCGI here.".into());
        return route.respond(403);
    }
    if !programs(cx, sections, layers, (url, dir, false), &route).is_complete {
        let comment = cx.note(handler, NEXT);
        return route.closed(comment);
    }
    route.comments.push("Each FastCGI program of this directory has its own route.".into());
    route.respond(403)
}

/// Returns the paths of the files in a directory and below, relative to the directory. Leaves out
/// names that begin with a dot, and does not follow links to directories. Returns `None` if there
/// are too many files.
pub fn files_below(dir: &str) -> Option<Vec<String>> {
    let (mut found, mut open, mut count) = (Vec::new(), vec![String::new()], 0);
    while let Some(below) = open.pop() {
        let path = files::joined(dir, &below);
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            count += 1;
            if count > MOST_FILES {
                return None;
            }
            let (name, kind) = (entry.file_name(), entry.file_type());
            let (Some(name), Ok(kind)) = (name.to_str(), kind) else { continue };
            if name.starts_with('.') {
                continue;
            }
            let rest = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
            if kind.is_dir() {
                open.push(rest);
            } else if entry.path().is_file() {
                found.push(rest);
            }
        }
    }
    found.sort();
    Some(found)
}
