//! The handlers that run scripts: CGI, FastCGI or others.

use super::Cx;
use super::globs;
use super::sections::{Sections, all, is_below, last};
use super::syntax::{Directive, is};
use crate::matcher::Matcher;
use crate::pattern::as_regex;

/// The handler that runs a script.
#[derive(Clone, Copy, Debug)]
pub enum Runner<'a> {
    Cgi,
    /// mod_fcgid or mod_fastcgi.
    Fastcgi,
    /// The handler that this directive names.
    Other(&'a Directive),
}

/// Returns true if a directive names a handler. Returns false for `SetHandler none`.
pub fn names_handler(directive: &Directive) -> bool {
    is(directive, "AddHandler")
        || is(directive, "SetHandler") && !directive.arg(0).eq_ignore_ascii_case("none")
}

impl<'a> Runner<'a> {
    pub fn named_by(directive: &'a Directive) -> Self {
        match &*directive.arg(0).to_ascii_lowercase() {
            "cgi-script" => Self::Cgi,
            name if is_fastcgi(name) => Self::Fastcgi,
            _ => Self::Other(directive),
        }
    }
}

/// Returns true for the name of the handler of mod_fcgid or mod_fastcgi.
pub fn is_fastcgi(name: &str) -> bool {
    name.eq_ignore_ascii_case("fcgid-script") || name.eq_ignore_ascii_case("fastcgi-script")
}

/// Returns the handler that runs a file as a script. With `by_name`, a name such as `x.fcgi` is
/// enough for FastCGI if its module is loaded.
pub fn runner<'a>(
    cx: &Cx<'_>,
    sections: &Sections<'a>,
    layers: &[&'a [Directive]],
    (file, by_name): (&str, bool),
) -> Runner<'a> {
    let name = file.rsplit('/').next().unwrap_or(file);
    let mut layers = layers.to_vec();
    for (section, around) in &sections.files {
        let holds = around.as_deref().is_none_or(|around| is_below(file, around));
        if !holds || !section.inside().iter().any(names_handler) {
            continue;
        }
        match selects(section, name) {
            Some(true) => layers.push(section.inside()),
            Some(false) => {}
            None => return Runner::Other(section),
        }
    }
    if let Some(handler) = last(&layers, "SetHandler").filter(|handler| names_handler(handler)) {
        return Runner::named_by(handler);
    }
    // Apache looks at all endings of a name such as `x.fcgi.en`.
    let ends: Vec<String> = name.split('.').skip(1).map(str::to_ascii_lowercase).collect();
    let is_own = |end: &String| ends.contains(&end.trim_start_matches('.').to_ascii_lowercase());
    let handlers = all(&layers, "AddHandler").into_iter();
    let handlers = handlers.filter(|handler| handler.args.iter().skip(1).any(is_own));
    let found: Vec<Runner<'a>> = handlers.map(Runner::named_by).collect();
    let is_named = by_name && ends.iter().any(|end| end == "fcgi" || end == "fcg");
    if found.iter().any(|runner| matches!(runner, Runner::Fastcgi)) || is_named && is_loaded(cx) {
        return Runner::Fastcgi;
    }
    let other = found.into_iter().rfind(|runner| matches!(runner, Runner::Other(_)));
    other.unwrap_or(Runner::Cgi)
}

/// Returns true if a `Files` or `FilesMatch` section applies to a file with this name. Returns
/// `None` if the expression of the section cannot be read.
fn selects(section: &Directive, name: &str) -> Option<bool> {
    let text = section.args.last()?;
    let regex =
        if is_regex(section) { text.clone() } else { format!("^{}$", globs::of_glob(text)) };
    Some(forebay_conf::Regex::new(&regex, false).ok()?.is_match(name.as_bytes()))
}

fn is_regex(section: &Directive) -> bool {
    is(section, "FilesMatch") || section.arg(0) == "~"
}

/// Returns the conditions of the files that a `Files` or `FilesMatch` section selects, also with
/// path info. `start` is an expression for the beginning of their paths. Returns `None` if a route
/// cannot have these conditions.
pub fn of_section(cx: &Cx<'_>, section: &Directive, start: &str) -> Option<Matcher> {
    let text = section.args.last()?;
    let (ignore_case, text) = match text.strip_prefix("(?i)") {
        Some(text) => (true, text),
        None => (false, text.as_str()),
    };
    let start = format!("{start}(?:.*/)?");
    let regex = if is_regex(section) {
        globs::with_path_info(&globs::after(text, &start, "[^/]*?")?)
    } else {
        format!("{start}{}(?:/|$)", globs::of_glob(text))
    };
    as_regex(&regex, ignore_case, cx.keys).map(|found| found.matcher)
}

/// Returns true if mod_fcgid or mod_fastcgi is loaded. Without `LoadModule` lines, the modules are
/// unknown, so returns true.
pub fn is_loaded(cx: &Cx<'_>) -> bool {
    let mut modules = cx.main.iter().filter(|line| is(line, "LoadModule")).peekable();
    let is_fastcgi = |name: &str| ["fcgid", "fastcgi"].iter().any(|start| name.starts_with(start));
    modules.peek().is_none() || modules.any(|line| is_fastcgi(line.arg(0)))
}
