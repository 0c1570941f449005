//! Regular expressions that find a match in a time linear in the length of the text.
//!
//! The sizes of patterns and of their automata are limited, so that no pattern and no path takes
//! long. Patterns match bytes: `.` matches any byte, also a line feed, and `\w` matches only ASCII
//! characters.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use regex_automata::meta::{self, Regex as Compiled};
use regex_automata::util::captures::Captures;
use regex_automata::util::syntax;

/// The longest pattern, in bytes.
const LONGEST: usize = 2000;
/// The largest compiled pattern, in bytes: about two thousand states. Each byte of a text costs at
/// most one step for each state.
const SIZE: usize = 64 * 1024;
/// The memory in bytes, for each thread and pattern, for states that are built during matches.
const CACHE: usize = 256 * 1024;
/// The largest number of named groups.
const MOST_GROUPS: usize = 20;

/// A compiled regular expression. Two expressions are equal if their patterns are equal.
#[derive(Clone)]
pub struct Regex {
    pattern: String,
    ignores_case: bool,
    /// True if the expression must not match.
    is_negated: bool,
    exact: Arc<Compiled>,
    /// Like `exact`, but ignores case.
    folded: Arc<Compiled>,
    /// The names of the named groups, with their numbers in the expression.
    groups: Arc<[(String, usize)]>,
}

impl Regex {
    /// Compiles a pattern. The error says what is wrong with the pattern.
    pub fn new(pattern: &str, ignores_case: bool) -> Result<Self, String> {
        if pattern.len() > LONGEST {
            return Err(format!("it is longer than {LONGEST} bytes"));
        }
        let exact = compile(pattern, ignores_case)?;
        let folded = compile(pattern, true)?;
        let names = exact.group_info().pattern_names(regex_automata::PatternID::ZERO);
        let groups: Vec<_> = names
            .enumerate()
            .filter_map(|(number, name)| Some((name?.to_owned(), number)))
            .collect();
        if groups.len() > MOST_GROUPS {
            return Err(format!("it has more than {MOST_GROUPS} named groups"));
        }
        let (exact, folded) = (Arc::new(exact), Arc::new(folded));
        Ok(Self {
            pattern: pattern.to_owned(),
            ignores_case,
            is_negated: false,
            exact,
            folded,
            groups: groups.into(),
        })
    }

    /// Returns the expression that matches every text that this one does not match. It has no
    /// groups.
    pub fn negated(self) -> Self {
        Self { is_negated: !self.is_negated, groups: Arc::default(), ..self }
    }

    /// Returns the pattern as typed, without the signs before it.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Returns the pattern with `!~` before it if it is negated.
    pub fn condition(&self) -> String {
        format!("{}{}", if self.is_negated { "!~ " } else { "" }, self.pattern)
    }

    /// Returns the names of the groups.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|(name, _)| name.as_str())
    }

    /// Returns true if the expression matches a part of the text.
    pub fn is_match(&self, text: &[u8]) -> bool {
        self.exact.is_match(text) != self.is_negated
    }

    /// Returns true if the expression matches a part of the text when case is ignored.
    pub fn is_match_in_any_case(&self, text: &[u8]) -> bool {
        self.folded.is_match(text) != self.is_negated
    }

    /// Replaces `groups` by the ranges of the named groups, in the order of [`Self::names`]. A group
    /// that did not take part in the match is empty.
    pub fn captures(&self, text: &[u8], groups: &mut Vec<Range<usize>>) {
        groups.clear();
        if self.groups.is_empty() {
            return;
        }
        let mut found: Captures = self.exact.create_captures();
        self.exact.captures(text, &mut found);
        groups.extend(
            self.groups
                .iter()
                .map(|(_, number)| found.get_group(*number).map_or(0..0, |span| span.range())),
        );
    }

    /// Returns true if the pattern may require an end of the text. If it does not, an expression
    /// that matches the beginning of a path up to a slash also matches the whole path.
    pub fn may_have_end(&self) -> bool {
        self.is_negated || self.pattern.contains('$') || self.pattern.contains("\\z")
    }

    /// Returns the text that each match begins with, so that the pattern can be compared with the
    /// paths of other routes. Returns `None` if the pattern does not begin with `^`, contains `|`,
    /// or ignores case.
    pub fn literal_start(&self) -> Option<String> {
        let rest = self.pattern.strip_prefix('^')?;
        if self.ignores_case || self.is_negated || rest.contains('|') {
            return None;
        }
        let end = rest.find(|c: char| ".^$*+?()[]{}\\".contains(c)).unwrap_or(rest.len());
        let mut start = rest[..end].to_owned();
        if rest[end..].starts_with(['*', '?', '{']) {
            start.pop();
        }
        Some(start)
    }
}

impl PartialEq for Regex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
            && self.ignores_case == other.ignores_case
            && self.is_negated == other.is_negated
    }
}

impl Eq for Regex {}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match (self.is_negated, self.ignores_case) {
            (false, false) => "~",
            (false, true) => "~*",
            (true, false) => "!~",
            (true, true) => "!~*",
        };
        write!(f, "Regex({sign:?}, {:?})", self.pattern)
    }
}

fn compile(pattern: &str, ignores_case: bool) -> Result<Compiled, String> {
    let config = meta::Config::new()
        .utf8_empty(false)
        .nfa_size_limit(Some(SIZE))
        .onepass_size_limit(Some(SIZE))
        .hybrid_cache_capacity(CACHE)
        .dfa(false);
    let syntax = syntax::Config::new()
        .utf8(false)
        .unicode(false)
        // Without this setting, `.` would not match a line feed, so the rule `^/admin/.*$` would
        // not protect `/admin/x%0A`.
        .dot_matches_new_line(true)
        .case_insensitive(ignores_case)
        .nest_limit(50);
    let mut builder = Compiled::builder();
    builder.configure(config).syntax(syntax).build(pattern).map_err(|error| {
        match (error.size_limit(), error.syntax_error()) {
            (Some(_), _) => "it is too large: leave out repetitions such as {1000}".to_owned(),
            (None, Some(syntax)) => {
                // The error shows the pattern on several lines. The last line of the error is the
                // reason.
                let text = syntax.to_string();
                let last = text.lines().next_back().unwrap_or_default();
                last.trim().trim_start_matches("error: ").to_owned()
            }
            (None, None) => error.to_string(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_groups_are_found() {
        let regex = Regex::new("^/(?<lang>[a-z]{2})/(?:x/)?(?<rest>.*)$", false).unwrap();
        assert_eq!(regex.names().collect::<Vec<_>>(), ["lang", "rest"]);
        let mut groups = Vec::new();
        let path = b"/de/x/a/b";
        assert!(regex.is_match(path) && !regex.is_match(b"/DE/a"));
        assert!(regex.is_match_in_any_case(b"/DE/a"));
        regex.captures(path, &mut groups);
        let parts: Vec<_> = groups.into_iter().map(|range| &path[range]).collect();
        assert_eq!(parts, [&b"de"[..], b"a/b"]);
    }

    #[test]
    fn a_negated_expression_matches_all_other_texts() {
        let regex = Regex::new("^/(?<a>x)$", false).unwrap().negated();
        assert!(regex.is_match(b"/X") && !regex.is_match(b"/x"));
        assert!(!regex.is_match_in_any_case(b"/X") && regex.is_match_in_any_case(b"/y"));
        assert_eq!((regex.names().count(), regex.literal_start()), (0, None));
        assert!(regex.may_have_end() && regex != regex.clone().negated());
        let mut groups = vec![0..1, 1..2];
        regex.captures(b"/y", &mut groups);
        assert!(groups.is_empty());
    }

    #[test]
    fn a_pattern_matches_bytes_that_are_no_text() {
        let regex = Regex::new("^/a.b(?<x>.+)$", false).unwrap();
        assert!(regex.is_match(b"/a\xffb\xfe"));
        assert!(Regex::new("^/\u{fc}ber$", false).unwrap().is_match("/\u{fc}ber".as_bytes()));
    }

    #[test]
    fn large_and_wrong_patterns_are_refused() {
        for (pattern, part) in [
            ("(a{1000}){1000}", "too large"),
            ("(?:a?){500000}", ""),
            ("(((((a{100}){100}){100})))", "too large"),
            ("(a", "unclosed group"),
            ("(?<a>x)(?<a>y)", "duplicate"),
            ("a(?=b)", "look-around"),
            ("(a)\\1", "backreferences"),
        ] {
            let error = Regex::new(pattern, false).unwrap_err();
            assert!(error.contains(part) && !error.is_empty(), "{pattern}: {error}");
        }
        assert!(Regex::new(&"(".repeat(1999), false).is_err());
        assert!(Regex::new(&"a".repeat(2001), false).is_err());
    }

    #[test]
    fn patterns_that_make_other_engines_slow_are_quick() {
        for pattern in ["^(a+)+$", "^(a|a)*$", "(x+x+)+y", "^(([a-z])+.)+[A-Z]([a-z])+$"] {
            let regex = Regex::new(pattern, false).unwrap();
            let text = [&b"a".repeat(8000)[..], b"!"].concat();
            // An engine that backtracks would not end.
            assert!(!regex.is_match(&text), "{pattern}");
        }
    }

    #[test]
    fn the_literal_start_is_no_more_than_each_match_has() {
        for (pattern, start) in [
            ("^/admin/", Some("/admin/")),
            ("^/a/(?<x>.*)", Some("/a/")),
            ("^/ab*", Some("/a")),
            ("^/ab+", Some("/ab")),
            ("^/a|b", None),
            ("/a", None),
        ] {
            let regex = Regex::new(pattern, false).unwrap();
            assert_eq!(regex.literal_start().as_deref(), start, "{pattern}");
        }
    }
}
