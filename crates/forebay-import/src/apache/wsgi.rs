//! Translates `WSGIScriptAlias` of mod_wsgi to applications of kind `wsgi`.

use super::Cx;
use super::sections::{Sections, last};
use super::syntax::{Directive, is, line};
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;
use crate::value::Table;

/// Options of `WSGIDaemonProcess` that need no key.
const NEEDLESS: [&str; 9] = [
    "display-name",
    "home",
    "inactivity-timeout",
    "lang",
    "locale",
    "maximum-requests",
    "python-eggs",
    "socket-user",
    "umask",
];

/// What answers for all paths of a `WSGIScriptAlias` of `file`: the name of the application. If it
/// has no translation, the paths are closed (the route in the error), because the source may be
/// among the files that the site sends.
pub fn answer(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    directive: &Directive,
    (file, matcher): (&str, &Matcher),
) -> Result<String, Box<DraftRoute>> {
    directive.settle();
    let route = DraftRoute::new(&directive.place, line(directive), matcher.clone());
    let layers = sections.layers(directive.arg(0), Some(file));
    match application(cx, &layers, directive, file) {
        Ok(table) => {
            let stem = std::path::Path::new(&file).file_stem().unwrap_or_default();
            let name: String = stem
                .to_string_lossy()
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
                .collect();
            Ok(cx.draft.add_app(&name, table))
        }
        Err(next) => Err(Box::new(route.closed(cx.note(directive, next)))),
    }
}

/// Returns the table of the application in `file`. The text of an error says what the user must do.
fn application(
    cx: &mut Cx<'_>,
    layers: &[&[Directive]],
    directive: &Directive,
    file: &str,
) -> Result<Table, String> {
    let next = "run the application with [app.NAME], kind = \"wsgi\"";
    if !directive.arg(0).starts_with('/') || !files::is_readable(file) {
        return Err(format!("the file {file} cannot be read here: {next}"));
    }
    let (dir, name) = file.rsplit_once('/').ok_or(next)?;
    let mut table = Table::default().with("kind", "wsgi").with("dir", dir);
    match name.strip_suffix(".py").filter(|stem| is_module(stem)) {
        Some(module) => table.set("module", format!("{module}:application")),
        None => table.set("file", name),
    }
    let group = directive.args.iter().find_map(|arg| arg.strip_prefix("process-group="));
    let line = last(layers, "WSGIProcessGroup");
    line.iter().for_each(|line| line.settle());
    let group = group.or_else(|| line.map(|line| line.arg(0))).unwrap_or_default();
    let hosts =
        cx.main.iter().filter(|host| is(host, "VirtualHost")).flat_map(|host| host.inside());
    let daemon = cx
        .main
        .iter()
        .chain(hosts)
        .find(|daemon| is(daemon, "WSGIDaemonProcess") && daemon.arg(0) == group);
    let mut options: Vec<(&str, &str, &Directive)> = Vec::new();
    for (name, key) in [("WSGIPythonHome", "python-home"), ("WSGIPythonPath", "python-path")] {
        if let Some(line) = last(layers, name) {
            line.settle();
            options.push((key, line.arg(0), line));
        }
    }
    if let Some(daemon) = daemon {
        daemon.settle();
        for option in &daemon.args[1..] {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            options.push((key, value, daemon));
        }
    }
    for (key, value, line) in options {
        if !set(cx, &mut table, key, value) && !NEEDLESS.contains(&key) {
            let next = format!("{key} of the application has no translation: see [app.NAME]");
            cx.draft.notes.add(&line.place, &super::syntax::line(line), next);
        }
    }
    Ok(table)
}

/// Sets the key for an option of the application. Returns false if there is none.
fn set(cx: &Cx<'_>, table: &mut Table, key: &str, value: &str) -> bool {
    match key {
        "python-home" => {
            let python = files::joined(&cx.path(value), "bin/python");
            let exists = files::is_readable(&python);
            if exists {
                table.set("python", python);
            }
            exists
        }
        "python-path" => {
            let dirs: Vec<&str> = value.split(':').filter(|dir| !dir.is_empty()).collect();
            let exist = dirs.iter().all(|dir| files::is_directory(dir));
            if exist && !dirs.is_empty() {
                table.set("lib", dirs);
            }
            exist
        }
        // Each worker runs one request at a time, so a thread of mod_wsgi becomes a worker.
        "processes" | "threads" => match value.parse::<u64>() {
            Ok(count @ 1..=64) => {
                let before = match table.get("workers") {
                    Some(crate::value::Value::Number(before)) => *before,
                    _ => 1,
                };
                table.set("workers", (before * count).min(64));
                true
            }
            _ => false,
        },
        "user" => {
            if files::user_of_apps().is_some() && files::has_user(value) {
                table.set("user", value);
            }
            files::has_user(value)
        }
        "group" => files::has_group(value),
        "request-timeout" => match crate::units::duration(value) {
            Some(time) => {
                table.set("request_timeout", time);
                true
            }
            None => false,
        },
        _ => false,
    }
}

/// Returns true if Python can import a module of this name.
fn is_module(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
