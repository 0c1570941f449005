//! Regions: parts of a base that have their own sections, by path and directory.

use super::access::Gate;
use super::bases::{Base, Content, below};
use super::sections::{Section, Sections, all, url_of};
use super::syntax::Directive;
use crate::draft::DraftRoute;
use crate::files;
use crate::matcher::Matcher;

/// Returns the URL path and the directory of each section below a base, the longest path first. The
/// directory is `None` if the base has no directory.
pub fn regions<'a>(sections: &Sections<'a>, base: &Base<'_>) -> Vec<(String, Option<String>)> {
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    let bare = base.url.trim_end_matches('/');
    if let Some(dir) = &base.dir {
        let inner = |section: &&Section<'a>| {
            section.path != *dir && super::sections::is_below(&section.path, dir)
        };
        for section in sections.directories.iter().filter(inner) {
            if let Some(url) = url_of(&section.path, dir, &base.url) {
                found.push((url, Some(section.path.clone())));
            }
        }
    }
    for section in &sections.locations {
        let path = section.path.trim_end_matches('/');
        if path != bare && super::sections::is_below(path, bare) {
            let rest = path.strip_prefix(bare).unwrap_or("");
            let dir = base.dir.as_ref().map(|dir| files::joined(dir, rest));
            found.push((section.path.clone(), dir));
        }
    }
    found.sort_by_key(|(url, _)| std::cmp::Reverse(url.len()));
    found.dedup_by(|a, b| a.0 == b.0);
    found
}

/// Returns the matcher for the requests of a base at `url` and below it. Returns `None` if there
/// are no such requests, or if one route cannot have the conditions.
pub fn region_matcher(base: &Base<'_>, url: &str) -> Option<Matcher> {
    let matcher = base.matcher.and(&below(url))?;
    if !matches!(base.content, Content::Cgi) || matcher.regex.is_some() {
        return Some(matcher);
    }
    // The path of a route selects the script and sets SCRIPT_NAME, so keep the path of the base.
    let end = if url.ends_with('/') { "" } else { "(?:/|$)" };
    let regex = format!("^{}{end}", regex_syntax::escape(url));
    Some(Matcher { regex: Some(regex), ..base.matcher.clone() })
}

/// Adds access rules to a route. Closes the route if a rule has no translation.
pub fn guarded(mut route: DraftRoute, gate: &Gate) -> DraftRoute {
    if let Some(comment) = &gate.closed {
        return route.closed(comment.clone());
    }
    gate.keys.0.iter().for_each(|(key, value)| route.keys.set(key, value.clone()));
    route
}

/// Returns the matcher with the suffix `.bak` for the file name `*.bak`. Returns `None` if the name
/// has other wildcards or a slash. Also returns `None` for a name of letters and digits only, such
/// as `core`.
pub fn of_name(text: &str) -> Option<Matcher> {
    let end = text.strip_prefix('*').unwrap_or(text);
    let is_suffix =
        !end.contains(['*', '?', '/', '[']) && end.bytes().any(|b| !b.is_ascii_alphanumeric());
    is_suffix.then(|| Matcher { suffixes: vec![end.to_owned()], ..Matcher::default() })
}

/// Removes the path `url` from the end of `dir`, and returns the rest. Returns `None` if `dir` does
/// not end with `url`.
pub fn whole_root(url: &str, dir: &str) -> Option<String> {
    let root = dir.trim_end_matches('/').strip_suffix(url.trim_end_matches('/'))?;
    Some(if root.is_empty() { "/".into() } else { root.to_owned() })
}

/// Returns the path and the directory of a region, or of the nearest part of the site above it whose
/// directory exists. The path has no slash at its end. Returns `None` if there is none.
pub fn existing((url, dir): (&str, &str)) -> Option<(String, String)> {
    let (mut url, mut dir) = (url.trim_end_matches('/'), dir.trim_end_matches('/'));
    while !files::is_directory(dir) {
        let (outer_url, name) = url.rsplit_once('/')?;
        let (outer_dir, _) = dir.rsplit_once('/').filter(|(_, last)| *last == name)?;
        (url, dir) = (outer_url, outer_dir);
    }
    Some((url.to_owned(), dir.to_owned()))
}

/// Returns true if the merged `Options` of the layers include this option.
pub fn has_option(layers: &[&[Directive]], name: &str) -> bool {
    let mut is_on = false;
    for options in all(layers, "Options") {
        let is_absolute = !options.args.iter().any(|option| option.starts_with(['+', '-']));
        if is_absolute {
            is_on = false;
        }
        for option in &options.args {
            let plain = option.trim_start_matches(['+', '-']);
            let is_meant = plain.eq_ignore_ascii_case(name)
                || (plain.eq_ignore_ascii_case("all") && !name.eq_ignore_ascii_case("multiviews"));
            if is_meant {
                is_on = !option.starts_with('-');
            }
        }
    }
    is_on
}
