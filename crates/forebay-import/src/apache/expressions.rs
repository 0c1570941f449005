//! Closed routes for sections whose paths or conditions are expressions, and that restrict access.

use super::Cx;
use super::access::{gate, refused, restriction};
use super::bases::{Base, below, urls_of};
use super::globs;
use super::sections::{SectionScope, Sections};
use super::syntax::{Directive, is};
use crate::draft::DraftRoute;
use crate::matcher::Matcher;
use crate::pattern::{self, Use, as_regex, classify};

/// Returns routes that refuse the paths of sections with expressions, if these sections restrict
/// access.
pub fn expressions(
    cx: &mut Cx<'_>,
    sections: &Sections<'_>,
    bases: &[Base<'_>],
) -> Vec<DraftRoute> {
    let mut out = Vec::new();
    for (section, place) in &sections.expressions {
        let rules = gate(cx, &[section.inside()]);
        let is_open = rules.is_open() && restriction(section.inside()).is_none();
        let unread = cx.note_unread(section.inside());
        if is_open && unread.is_empty() && section.inside().iter().all(|d| is(d, "Require")) {
            section.settle_all();
            continue;
        }
        if is_open {
            cx.note(section, "write a route for these paths, before the others");
            continue;
        }
        let is_condition = ["If", "ElseIf", "Else"].iter().any(|name| is(section, name));
        // Mark the section as read: each of its paths gets a route below.
        section.settle_all();
        let found = matchers(cx, section, place, bases);
        let is_refusal = rules.refuses_all() && !is_condition && found.is_ok();
        for matcher in found.unwrap_or_else(|superset| superset) {
            let next = "write a route with these rules, before the others";
            out.push(refused(cx, section, matcher, is_refusal, next));
        }
    }
    out
}

/// Returns matchers for the paths of a section. If no matchers are exact, the error contains
/// matchers that also take other paths.
fn matchers(
    cx: &Cx<'_>,
    section: &Directive,
    place: &SectionScope,
    bases: &[Base<'_>],
) -> Result<Vec<Matcher>, Vec<Matcher>> {
    let whole = || vec![Matcher::path("/*")];
    let text = section.args.last().map_or("", String::as_str);
    let is_glob = section.arg(0) != "~";
    match section.name.to_ascii_lowercase().as_str() {
        "location" if is_glob => {
            let regex = format!("^{}$", globs::of_glob(text));
            as_regex(&regex, false, cx.keys).map(|found| vec![found.matcher]).ok_or_else(whole)
        }
        "location" | "locationmatch" => match classify(text, false, cx.keys, Use::Exact) {
            Ok(found) => Ok(vec![found.matcher]),
            Err(unknown) => Err(unknown.superset.map_or_else(whole, |matcher| vec![*matcher])),
        },
        "directory" if is_glob => {
            let regex = format!("^{}$", globs::of_glob(text.trim_end_matches('/')));
            directories(cx, &regex, bases)
        }
        "directory" | "directorymatch" => directories(cx, text, bases),
        _ => Err(match place {
            SectionScope::Anywhere => whole(),
            SectionScope::Directory(dir) => {
                urls_of(dir, bases).iter().map(|url| below(url)).collect()
            }
            SectionScope::Path(url) => vec![below(url)],
        }),
    }
}

/// Returns matchers for the URL paths of the directories that an expression matches in the file
/// system. The URL path of a directory depends on the base that serves the directory. If a matcher
/// also takes other paths, returns the matchers as the error.
fn directories(cx: &Cx<'_>, text: &str, bases: &[Base<'_>]) -> Result<Vec<Matcher>, Vec<Matcher>> {
    let (mut found, mut is_exact) = (Vec::new(), true);
    for base in bases {
        let Some(dir) = &base.dir else { continue };
        if let Some(matcher) = below_base(cx, text, dir, base) {
            found.push(matcher);
            continue;
        }
        let Some(starts) = pattern::literals(text) else {
            let starts =
                pattern::literal_starts(text).unwrap_or_else(|| vec![(String::new(), false)]);
            let dir = format!("{}/", dir.to_ascii_lowercase().trim_end_matches('/'));
            if starts.iter().any(|(start, _)| dir.starts_with(start) || start.starts_with(&dir)) {
                // The expression may match a directory above the base, or any directory below it,
                // so take the whole base.
                found.push(base.matcher.clone());
                is_exact = false;
            }
            continue;
        };
        for (start, is_anchored) in starts {
            let dir = format!("{}/", dir.trim_end_matches('/'));
            if dir.starts_with(&start) || !is_anchored && dir.contains(&start) {
                found.push(base.matcher.clone());
                continue;
            }
            if let Some(rest) = start.strip_prefix(&dir) {
                let url = format!("{}/{rest}", base.url.trim_end_matches('/'));
                found.extend(base.matcher.and(&Matcher::prefix(&url)));
            }
            if !is_anchored {
                // Without `^`, the text `/b/c` may match the directory `b/c` below the base. If the
                // base's directory ends with `/b`, the text also matches the directory `c` below
                // the base.
                let ends = start.match_indices('/').map(|(at, _)| &start[at..]);
                let ends = ends.filter(|end| {
                    *end == start
                        || dir.ends_with(&format!("{}/", &start[..start.len() - end.len()]))
                });
                for end in ends {
                    let regex = regex_syntax::escape(end);
                    let regex = as_regex(&regex, false, cx.keys);
                    let narrow = regex.and_then(|regex| base.matcher.and(&regex.matcher));
                    found.push(narrow.unwrap_or_else(|| base.matcher.clone()));
                }
            }
        }
    }
    found.dedup();
    if is_exact { Ok(found) } else { Err(found) }
}

/// Returns the matcher for an expression about files, such as `^/dir/x`, if it begins with the
/// directory of the base. The matcher has the URLs of these files. Returns `None` for other
/// expressions, and if one route cannot have both this expression and the paths of the base.
fn below_base(cx: &Cx<'_>, text: &str, dir: &str, base: &Base<'_>) -> Option<Matcher> {
    let dir = dir.trim_end_matches('/');
    let plain = text.strip_prefix('^')?;
    let rest = [dir.to_owned(), regex_syntax::escape(dir)].iter().find_map(|dir| {
        let rest = plain.strip_prefix(dir.as_str())?.strip_prefix('/')?;
        (!rest.is_empty() && globs::is_one(text)).then(|| rest.to_owned())
    })?;
    let url = regex_syntax::escape(base.url.trim_end_matches('/'));
    let regex = globs::with_path_info(&format!("^{url}/{rest}"));
    base.matcher.and(&as_regex(&regex, false, cx.keys)?.matcher)
}
