//! Closed routes for `Files` and `FilesMatch` sections that restrict access.

use super::Cx;
use super::access::{gate, refused, restriction};
use super::bases::{Base, below, urls_of};
use super::globs;
use super::regions::of_name;
use super::sections::Sections;
use super::sections::narrowed;
use super::syntax::is;
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::pattern::{Use, as_regex, classify};

/// Returns the routes of `Files` and `FilesMatch` sections that restrict access.
pub fn of_files(cx: &mut Cx<'_>, sections: &Sections<'_>, bases: &[Base<'_>]) -> Vec<DraftRoute> {
    let mut out = Vec::new();
    for (section, around) in &sections.files {
        let rules = gate(cx, &[section.inside()]);
        if rules.is_open() && restriction(section.inside()).is_none() {
            continue;
        }
        let text = section.args.last().map_or("", String::as_str);
        let is_regex = is(section, "FilesMatch") || section.arg(0) == "~";
        let is_dotted = text.starts_with("^\\.ht") && !text.contains('|');
        if is_dotted || text == ".htaccess" || text == ".ht*" {
            // Forebay never sends files whose names begin with a dot.
            section.settle_all();
            continue;
        }
        section.settle_all();
        let found = if is_regex { of_regex(cx, text) } else { of_text(cx, text) };
        let is_refusal = rules.refuses_all() && found.is_some();
        let regions = match around {
            Some(dir) => urls_of(dir, bases).iter().map(|url| below(url)).collect(),
            None => vec![Matcher::path("/*")],
        };
        for region in regions {
            let matcher = found.clone().unwrap_or_else(|| region.clone());
            let next = "write these rules in the routes that answer for these files";
            let route = refused(cx, section, matcher, is_refusal, next);
            out.extend(narrowed(cx, route, &region));
        }
    }
    out
}

/// Returns true if no path info can follow the names of the files. The reason is that the matcher
/// has only suffixes, and none of them is the suffix of a script.
fn are_static(matcher: &Matcher) -> bool {
    let scripts = [".php", ".phtml", ".phar", ".cgi", ".fcgi", ".pl", ".py", ".rb", ".sh", ".lua"];
    let is_script = |suffix: &String| {
        let end = suffix.rsplit_once('.').map_or("", |(_, end)| end);
        end.is_empty() || scripts.iter().any(|script| format!(".{end}").starts_with(script))
    };
    !matcher.suffixes.is_empty()
        && matcher.paths.is_empty()
        && !matcher.suffixes.iter().any(is_script)
}

/// Returns the conditions for a file name, which may have wildcards. Returns `None` if a route
/// cannot have these conditions.
fn of_text(cx: &Cx<'_>, text: &str) -> Option<Matcher> {
    if let Some(matcher) = of_name(text).filter(are_static) {
        return Some(matcher);
    }
    let regex = format!("/{}(?:/|$)", globs::of_glob(text));
    as_regex(&regex, false, cx.keys).map(|found| found.matcher)
}

/// Returns the conditions for a regular expression on file names. Returns `None` if a route cannot
/// have these conditions.
fn of_regex(cx: &Cx<'_>, text: &str) -> Option<Matcher> {
    let (ignore_case, text) = match text.strip_prefix("(?i)") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let simple = classify(text, ignore_case, cx.keys, Use::Exact).ok();
    if let Some(found) = simple.filter(|found| are_static(&found.matcher)) {
        return Some(found.matcher);
    }
    // In the path, the file name follows a slash.
    let whole =
        if text.contains('^') { globs::after(text, "/", "[^/]*?")? } else { text.to_owned() };
    let whole = globs::with_path_info(&whole);
    as_regex(&whole, ignore_case, cx.keys).map(|found| found.matcher)
}
