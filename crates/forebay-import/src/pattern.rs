//! Translates regular expressions to conditions of routes. If an expression only describes exact
//! paths, or beginnings or ends of paths, the translation uses `path` or `suffix`. Otherwise, it
//! uses `path_regex`.

mod parts;

use crate::keys::Keys;
use crate::matcher::Matcher;
use parts::{Part, parts};

/// Maximum number of alternatives. With more, the conditions would be harder to read than the
/// expression.
const READABLE: usize = 12;

/// The conditions for an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PatternConditions {
    pub matcher: Matcher,
    /// The number of the group that matches the text of `{rest}`, from 1.
    pub rest: Option<usize>,
    /// The number of the group that matches the text of `{path}`, from 1.
    pub path: Option<usize>,
    /// Paths that the expression excludes by `(?!...)`.
    pub except: Option<Matcher>,
    /// True if path info may follow the suffix.
    pub is_script: bool,
}

/// An expression that cannot be translated to conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    pub why: String,
    /// Conditions that all paths of the expression meet. Other paths may meet them, too.
    pub superset: Option<Box<Matcher>>,
}

/// The purpose of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The conditions must match exactly the paths of the expression.
    Exact,
    /// The expression selects scripts. `\.php` without an end then means `\.php(/|$)`.
    Scripts,
}

/// Returns the conditions for an expression of nginx, Apache or Caddy. Returns an error for an
/// expression that excludes paths, because the conditions of a route cannot exclude them. Also
/// returns an error for an expression that Forebay cannot read or express.
pub fn classify(
    text: &str,
    ignore_case: bool,
    keys: &Keys,
    of: Use,
) -> Result<PatternConditions, Unknown> {
    let found = classify_with_exception(text, ignore_case, keys, of)?;
    if found.except.is_some() { Err(excludes(found.matcher)) } else { Ok(found) }
}

fn excludes(superset: Matcher) -> Unknown {
    Unknown {
        why: "a route cannot exclude paths, as (?!...) does".into(),
        superset: Some(Box::new(superset)),
    }
}

/// Returns the conditions for an expression, and the paths that it excludes in
/// [`PatternConditions::except`]. The caller must write routes for these paths.
pub fn classify_with_exception(
    text: &str,
    ignore_case: bool,
    keys: &Keys,
    of: Use,
) -> Result<PatternConditions, Unknown> {
    if let Some((before, excluded, after)) = negative_lookahead(text) {
        let mut found = classify(&format!("{before}{after}"), ignore_case, keys, of)?;
        let except =
            classify(&format!("^{before}(?:{excluded})"), ignore_case, keys, Use::Exact).ok();
        let except = except.map(|except| except.matcher);
        let Some(except) = except.filter(|matcher| !matcher.paths.is_empty()) else {
            return Err(excludes(found.matcher));
        };
        found.except = Some(except);
        return Ok(found);
    }
    let branches = parts(text, ignore_case).map_err(|why| Unknown {
        why: format!("the expression cannot be read: {why}"),
        superset: None,
    })?;
    let count =
        |found: &PatternConditions| found.matcher.paths.len() + found.matcher.suffixes.len();
    let readable = match (of, ignore_case) {
        (Use::Scripts, _) => usize::MAX,
        (Use::Exact, true) => 1,
        (Use::Exact, false) => READABLE,
    };
    match simple(&branches, of) {
        Some(found) if count(&found) <= readable || !keys.route("path_regex") => Ok(found),
        _ => as_regex(text, ignore_case, keys).ok_or_else(|| Unknown {
            why: "a route cannot have this expression".into(),
            superset: superset(&branches).map(Box::new),
        }),
    }
}

/// Returns the conditions as `path_regex`, with a name for each group. Returns `None` if this
/// version has no such key, or if the expression cannot be read.
pub fn as_regex(text: &str, ignore_case: bool, keys: &Keys) -> Option<PatternConditions> {
    if !keys.route("path_regex") || parts(text, ignore_case).is_err() {
        return None;
    }
    let flag = if ignore_case { "~*" } else { "" };
    let regex = Some(format!("{flag}{}", named_groups(text)));
    Some(PatternConditions {
        matcher: Matcher { regex, ..Matcher::default() },
        ..PatternConditions::default()
    })
}

/// Returns an expression for the paths of a list such as `/x/*` and `/y`.
pub fn path_list_expression(paths: &[String]) -> String {
    let regex = paths.iter().map(|path| match path.strip_suffix('*') {
        Some(start) => regex_syntax::escape(start),
        None => format!("{}$", regex_syntax::escape(path)),
    });
    format!("^(?:{})", regex.collect::<Vec<_>>().join("|"))
}

/// Returns the conditions of a part of a route, with the paths of the whole route. With the path
/// `/x/*` and the root `/srv`, Forebay sends `/srv/a` for the request `/x/a`. So a part has an
/// expression in place of narrower paths: each path still names the same file, and `{rest}` stays
/// the same text. Returns `None` if one route cannot have these conditions.
pub fn keeping_paths(whole: &Matcher, part: &Matcher, keys: &Keys) -> Option<Matcher> {
    if part.paths == whole.paths {
        return Some(part.clone());
    }
    let own = Matcher { paths: whole.paths.clone(), ..part.clone() };
    own.and(&as_regex(&path_list_expression(&part.paths), false, keys)?.matcher)
}

/// Returns the matcher of the paths that an expression does not match. Returns `None` if a route
/// cannot have this condition.
pub fn negated(text: &str, ignore_case: bool, keys: &Keys) -> Option<Matcher> {
    if !keys.route("path_regex") || parts(text, ignore_case).is_err() || text.contains("(?<") {
        return None;
    }
    let sign = if ignore_case { "!~*" } else { "!~" };
    Some(Matcher { regex: Some(format!("{sign}{text}")), ..Matcher::default() })
}

/// Returns the name of a numbered group in `path_regex`.
pub fn group_name(number: usize) -> String {
    format!("g{number}")
}

/// Returns true if Forebay can read an expression.
pub fn is_readable(text: &str) -> bool {
    text.len() < 1_000 && parts(text, false).is_ok()
}

/// Returns true if an expression has a `$` that means the end of the path.
pub fn has_end(text: &str) -> bool {
    let (mut in_class, mut chars) = (false, text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '$' if !in_class => return true,
            _ => {}
        }
    }
    false
}

/// Gives each numbered group a name, because placeholders have names.
fn named_groups(text: &str) -> String {
    let (mut named, mut number, mut in_class) = (String::new(), 0, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        named.push(c);
        match c {
            '\\' => named.extend(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => {
                let is_plain = chars.peek() != Some(&'?');
                let rest: String = chars.clone().take(3).collect();
                let is_named =
                    rest.starts_with("?<") && !rest.starts_with("?<=") && !rest.starts_with("?<!")
                        || rest.starts_with("?P<");
                if is_plain || is_named {
                    number += 1;
                }
                if is_plain {
                    named.push_str(&format!("?<{}>", group_name(number)));
                }
            }
            _ => {}
        }
    }
    named
}

/// Splits an expression at its first `(?!...)` into the text before it, the text inside it, and the
/// text after it. Returns `None` if the expression has no such group.
pub fn negative_lookahead(text: &str) -> Option<(&str, &str, &str)> {
    let (before, after) = text.split_once("(?!")?;
    let (mut depth, mut is_escaped) = (1, false);
    for (at, c) in after.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            let is_group = !before.ends_with('\\');
            return is_group.then_some((before, &after[..at], &after[at + 1..]));
        }
    }
    None
}

/// Returns conditions without `path_regex`. All branches must give conditions of the same kind.
/// Otherwise returns `None`.
fn simple(branches: &[Vec<Part>], of: Use) -> Option<PatternConditions> {
    let mut all: Option<PatternConditions> = None;
    for branch in branches {
        let found = of_branch(branch, of)?;
        let Some(before) = &mut all else {
            all = Some(found);
            continue;
        };
        let (ours, theirs) = (&mut before.matcher, found.matcher);
        let is_same_kind = ours.paths.is_empty() == theirs.paths.is_empty()
            && ours.suffixes.is_empty() == theirs.suffixes.is_empty()
            && (ours.paths.is_empty() || ours.suffixes.is_empty());
        if !is_same_kind || before.is_script != found.is_script {
            return None;
        }
        ours.paths.extend(theirs.paths);
        ours.suffixes.extend(theirs.suffixes);
        (before.rest, before.path) = (None, None);
    }
    all
}

/// The end of an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    End,
    EndOrSlash,
    /// `.*`, with its group.
    Any(Option<usize>),
    /// No condition on the end.
    Open,
}

/// Returns the conditions for one branch of an expression. Returns `None` if only a regular
/// expression can express the branch.
fn of_branch(branch: &[Part], of: Use) -> Option<PatternConditions> {
    let (starts, rest) = match branch {
        [Part::Start, rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (body, tail) = match rest {
        [body @ .., Part::Any(group), Part::End] | [body @ .., Part::Any(group)] => {
            (body, Tail::Any(*group))
        }
        [body @ .., Part::EndOrSlash] => (body, Tail::EndOrSlash),
        [body @ .., Part::End] => (body, Tail::End),
        body => (body, Tail::Open),
    };
    let all = |path| {
        Some(PatternConditions {
            matcher: Matcher::path("/*"),
            path,
            ..PatternConditions::default()
        })
    };
    match (starts, body, tail) {
        (_, [], Tail::Any(group)) => all(group),
        (_, [], Tail::Open) => all(None),
        (true, [Part::Literals(texts)], tail) => of_start(texts, tail),
        _ => of_end(starts, body, tail, of),
    }
}

/// Returns the conditions for an expression such as `^/x` or `^/(x|y)/`, which begins with `^` and
/// one of `texts`. Returns `None` if a route cannot have one of the resulting paths.
fn of_start(texts: &[String], tail: Tail) -> Option<PatternConditions> {
    let ends: &[&str] = match tail {
        Tail::End => &[""],
        Tail::EndOrSlash => &["", "/*"],
        Tail::Any(_) | Tail::Open => &["*"],
    };
    let is_directory = texts.iter().all(|text| text.ends_with('/'));
    let rest = match tail {
        Tail::Any(group) if is_directory => group,
        _ => None,
    };
    let matcher = Matcher { paths: paths(texts, ends)?, ..Matcher::default() };
    Some(PatternConditions { matcher, rest, ..PatternConditions::default() })
}

/// Returns the conditions for an expression that ends with one of several texts. Returns `None` for
/// an expression of another form.
fn of_end(starts: bool, body: &[Part], tail: Tail, of: Use) -> Option<PatternConditions> {
    let [before @ .., Part::Literals(ends)] = body else { return None };
    // Ignore a `.` before the extension, because every path has a character there.
    let before = before.strip_suffix(&[Part::AnyOne]).unwrap_or(before);
    let start = match (starts, before) {
        (false, []) | (_, [Part::Any(_)]) => None,
        (true, [Part::Literals(start), Part::Any(_)]) if start[..] == ["/"] => None,
        (true, [Part::Literals(start), Part::Any(_)]) => Some(start),
        _ => return None,
    };
    let is_script = match tail {
        Tail::End => false,
        Tail::EndOrSlash => true,
        Tail::Any(_) | Tail::Open if of == Use::Scripts => true,
        Tail::Any(_) | Tail::Open => return None,
    };
    let is_suffix = |text: &String| {
        !text.contains(['/', '*']) && text.bytes().any(|byte| !byte.is_ascii_alphanumeric())
    };
    if !ends.iter().all(is_suffix) {
        return None;
    }
    let paths = match start {
        Some(start) => paths(start, &["*"])?,
        None => Vec::new(),
    };
    let matcher = Matcher { paths, suffixes: ends.clone(), ..Matcher::default() };
    Some(PatternConditions { matcher, is_script, ..PatternConditions::default() })
}

/// Returns each text with each ending as a path pattern; `None` if a route cannot have one of the
/// patterns.
fn paths(texts: &[String], ends: &[&str]) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for text in texts {
        let text = if ends.len() > 1 { text.trim_end_matches('/') } else { text };
        for end in ends {
            let path = format!("{text}{end}");
            if !is_path(&path) {
                return None;
            }
            found.push(path);
        }
    }
    Some(found)
}

/// Returns the texts that a match may begin with, in lower case: `/x` and `/y` for `^/(x|y)`. The
/// flag of a text is true if any text may follow it, as for `^/x`, `^/x.*` and `^/x.+`. Returns
/// `None` if a match may begin with a text that is not fixed.
pub fn literal_starts(text: &str) -> Option<Vec<(String, bool)>> {
    let mut all = Vec::new();
    for branch in parts(text, false).ok()? {
        let [Part::Start, Part::Literals(texts), rest @ ..] = &branch[..] else { return None };
        let is_whole = matches!(rest, [] | [Part::Any(_)] | [Part::Any(_), Part::End]);
        all.extend(texts.iter().map(|text| (text.to_ascii_lowercase(), is_whole)));
    }
    Some(all)
}

/// Returns the texts that an expression looks for: `/x` and `/y` for `/(x|y)`. The flag of a text
/// is true if the expression has a `^` before the text. Returns `None` if other texts also match,
/// as for `/x.*`.
pub fn literals(text: &str) -> Option<Vec<(String, bool)>> {
    let mut all = Vec::new();
    for branch in parts(text, false).ok()? {
        let (is_start, texts) = match &branch[..] {
            [Part::Start, Part::Literals(texts), Part::EndOrSlash | Part::End]
            | [Part::Start, Part::Literals(texts)] => (true, texts),
            [Part::Literals(texts)] => (false, texts),
            _ => return None,
        };
        all.extend(texts.iter().map(|text| (text.clone(), is_start)));
    }
    Some(all)
}

/// Returns true if an expression may match an empty text, or if it cannot be read.
pub fn may_be_empty(text: &str) -> bool {
    let mut builder = regex_syntax::ParserBuilder::new();
    let parsed = builder.unicode(false).utf8(false).nest_limit(50).build().parse(text);
    parsed.map_or(true, |hir| hir.properties().minimum_len().is_none_or(|least| least == 0))
}

/// Returns true if a route may have this path.
pub fn is_path(path: &str) -> bool {
    let plain = path.strip_suffix('*').unwrap_or(path);
    let hex = |at: usize| plain.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    plain.starts_with('/')
        && !plain.contains(['*', '?', '#'])
        && !plain.contains("//")
        && !plain.chars().any(char::is_control)
        && !plain.match_indices('%').any(|(at, _)| hex(at + 1) && hex(at + 2))
        && !plain.split('/').any(|part| part == "." || part == "..")
}

/// Returns a matcher for the fixed beginnings of the branches. The matcher takes all paths of the
/// expression, and perhaps other paths. Returns `None` if a branch has no fixed beginning, or if
/// the beginning is `/`.
fn superset(branches: &[Vec<Part>]) -> Option<Matcher> {
    let mut all = Matcher::default();
    for branch in branches {
        match &branch[..] {
            [Part::Start, Part::Literals(texts), ..] => {
                let texts = if texts[..] == ["/"] { return None } else { texts };
                all.paths.extend(paths(texts, &["*"])?);
            }
            _ => return None,
        }
    }
    (!all.paths.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> PatternConditions {
        classify(text, false, &Keys::without(&["path_regex"]), Use::Exact)
            .unwrap_or_else(|unknown| panic!("{text}: {unknown:?}"))
    }

    #[test]
    fn expressions_become_plain_conditions() {
        for (text, paths, suffixes) in [
            ("^/old$", &["/old"][..], &[][..]),
            ("^/old/", &["/old/*"], &[]),
            ("^/old/(.*)$", &["/old/*"], &[]),
            ("^/(?:build|data)(?:$|/)", &["/build", "/build/*", "/data", "/data/*"], &[]),
            ("^/(?:occ|issue)", &["/occ*", "/issue*"], &[]),
            ("\\.php$", &[], &[".php"]),
            ("[^/]\\.php(/|$)", &[], &[".php"]),
            ("^(.+\\.php)(/.*)?$", &[], &[".php"]),
            ("\\.php(?:$|/)", &[], &[".php"]),
            ("^/uploads/.*\\.php$", &["/uploads/*"], &[".php"]),
            ("\\.(?:css|jpe?g)$", &[], &[".css", ".jpeg", ".jpg"]),
            ("^/a$|^/b$", &["/a", "/b"], &[]),
            ("^(.*)$", &["/*"], &[]),
            ("^", &["/*"], &[]),
        ] {
            let matcher = found(text).matcher;
            let mut ours = matcher.suffixes.clone();
            ours.sort();
            assert_eq!(
                (&matcher.paths[..], &ours[..]),
                (&own(paths)[..], &own(suffixes)[..]),
                "{text}"
            );
        }
    }

    fn own(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn groups_are_the_rest_or_the_path() {
        assert_eq!(found("^/old/(.*)$").rest, Some(1));
        assert_eq!(found("^/(.*)").rest, Some(1));
        assert_eq!(found("^(.*)$").path, Some(1));
        assert_eq!(found("^/old$").rest, None);
    }

    #[test]
    fn case_is_spelled_out_or_left_to_an_expression() {
        let without = Keys::without(&["path_regex"]);
        let found = classify("\\.inc$", true, &without, Use::Exact).unwrap();
        assert_eq!(found.matcher.suffixes.len(), 8);
        let with =
            classify("\\.(inc|bak)$", true, &Keys::with(&["path_regex"]), Use::Exact).unwrap();
        assert_eq!(with.matcher.regex.as_deref(), Some("~*\\.(?<g1>inc|bak)$"));
    }

    #[test]
    fn text_that_a_lookahead_excludes_is_named() {
        let keys = Keys::with(&["path_regex"]);
        let found =
            classify_with_exception(r"/\.(?!well-known).*", false, &keys, Use::Exact).unwrap();
        let unknown = classify(r"/\.(?!well-known).*", false, &keys, Use::Exact).unwrap_err();
        assert!(unknown.superset.is_some());
        // The excluded paths have no translation, so the whole expression has none.
        assert!(classify_with_exception(r"^/(?!.*\.php$).*", false, &keys, Use::Exact).is_err());
        assert_eq!(found.matcher.regex.as_deref(), Some(r"/\..*"));
        assert_eq!(found.except, Some(Matcher::prefix("/.well-known")));
    }

    #[test]
    fn other_expressions_are_refused_without_the_key() {
        let keys = Keys::without(&["path_regex"]);
        let unknown = classify("^/user/[0-9]+$", false, &keys, Use::Exact).unwrap_err();
        assert_eq!(unknown.superset, Some(Box::new(Matcher::prefix("/user/"))));
        assert!(classify(r"\.php", false, &keys, Use::Exact).is_err());
        assert!(classify(r"^/(.+\.php)(.*)$", false, &keys, Use::Scripts).unwrap().is_script);
        assert!(classify(r"/\.ht", false, &keys, Use::Exact).is_err());
        assert!(
            classify("(", false, &keys, Use::Exact).unwrap_err().why.contains("cannot be read")
        );
        assert!(classify(&"(".repeat(100_000), false, &keys, Use::Exact).is_err());
        assert!(classify("(a{1000}){1000}", false, &keys, Use::Exact).is_err());
    }
}
