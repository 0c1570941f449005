//! Patterns of hosts, paths and methods, which select the site and route of a request.

use super::{Regex, When};

/// A pattern of host names. Names in patterns are in lower case, without port or final dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// Exactly this name.
    Exact(String),
    /// Any name that ends in this text, which begins with a dot (typed as `*.example.org`).
    Suffix(String),
    /// Any name, and requests without a host name.
    Any,
}

impl HostPattern {
    /// Returns true if the pattern matches the name. Case does not matter. `host` has no port and
    /// no final dot.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name.eq_ignore_ascii_case(host),
            Self::Suffix(suffix) => {
                host.len() > suffix.len()
                    && host.as_bytes()[host.len() - suffix.len()..]
                        .eq_ignore_ascii_case(suffix.as_bytes())
            }
            Self::Any => true,
        }
    }
}

/// A pattern of paths, compared byte by byte with the decoded, normalized path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// Exactly this path.
    Exact(String),
    /// Any path that begins with this text, which the user typed before a final `*`.
    Prefix(String),
}

impl PathPattern {
    /// Returns the part that the final `*` matched, or an empty part for an exact path. Returns
    /// `None` if the path does not match.
    pub fn matches<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        match self {
            Self::Exact(typed) => (typed.as_bytes() == path).then_some(b""),
            Self::Prefix(typed) => path.strip_prefix(typed.as_bytes()),
        }
    }

    /// Returns true if some path may match both patterns.
    fn shares_paths(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Returns true if this pattern matches every path that `other` matches.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(ours), Self::Exact(theirs)) => ours == theirs,
            (Self::Exact(_), Self::Prefix(_)) => false,
            (Self::Prefix(ours), Self::Exact(theirs) | Self::Prefix(theirs)) => {
                theirs.starts_with(ours.as_str())
            }
        }
    }
}

/// The conditions of a route. A request must meet each kind of condition that the route has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// The path must match one of these patterns. If empty, any path is accepted.
    pub paths: Vec<PathPattern>,
    /// The path must end in one of these texts. If empty, any path is accepted.
    pub suffixes: Vec<String>,
    /// True if the case of ASCII letters in `suffixes` does not matter.
    pub suffix_ignores_case: bool,
    /// True if a suffix may also end a segment within the path. The rest of the path is then
    /// PATH_INFO. Only for actions that run scripts.
    pub allows_path_info: bool,
    /// The method must be one of these. If empty, any method is accepted. `GET` includes `HEAD`.
    pub methods: Vec<String>,
    /// The path must match this expression. `None`: any path is accepted.
    pub regex: Option<Regex>,
    /// Conditions on other parts of the request. `None`: no such conditions. [`Matcher::matches`]
    /// does not get these parts, so the server tests them.
    pub when: Option<Box<When>>,
}

/// The part of a path that a route's pattern matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match<'p> {
    /// The path to look up below the origin's directory, without a leading `/`: the part that the
    /// `*` matched, or the whole path. The text is always the end of the matched path. With `paths
    /// = ["/x", "/x/*"]`, it is empty for "/x".
    pub rest: &'p [u8],
    /// True if `rest` is the whole path: the route matched by a suffix, by an exact path, or
    /// without a condition on the path.
    pub by_suffix: bool,
}

impl Matcher {
    /// Returns the part of the path that a pattern matched. Returns `None` if the request does not
    /// meet the conditions on method and path. Does not check `when`.
    ///
    /// `path` is decoded and normalized, and has no query. It need not be UTF-8.
    pub fn matches<'p>(&self, method: &[u8], path: &'p [u8]) -> Option<Match<'p>> {
        if !self.takes_method(method)
            || !self.takes_suffix(path)
            || self.regex.as_ref().is_some_and(|regex| !regex.is_match(path))
        {
            return None;
        }
        let below = |rest: &'p [u8]| {
            let slashes = rest.iter().take_while(|&&b| b == b'/').count();
            Match { rest: &rest[slashes..], by_suffix: false }
        };
        let mut is_exact = self.paths.is_empty();
        for pattern in &self.paths {
            match (pattern, pattern.matches(path)) {
                (PathPattern::Prefix(_), Some(rest)) => return Some(below(rest)),
                (PathPattern::Exact(_), found) => is_exact |= found.is_some(),
                (PathPattern::Prefix(_), None) => {}
            }
        }
        let whole = Match { rest: path.strip_prefix(b"/").unwrap_or(path), by_suffix: true };
        is_exact.then(|| self.rest(path).map_or(whole, below))
    }

    /// Returns the text that matches the `*` of a pattern: `c` for the pattern `/x/*` and the path
    /// `/x/c`. Also returns an empty text for the path `/x`, which the pattern `/x/*` does not
    /// match. Returns `None` for other paths.
    pub fn rest<'p>(&self, path: &'p [u8]) -> Option<&'p [u8]> {
        self.paths.iter().find_map(|pattern| match pattern {
            PathPattern::Prefix(typed) => {
                let is_start = || typed.strip_suffix('/').is_some_and(|t| t.as_bytes() == path);
                let rest = path.strip_prefix(typed.as_bytes());
                rest.or_else(|| is_start().then(|| &path[path.len()..]))
            }
            PathPattern::Exact(_) => None,
        })
    }

    /// Returns true if the request meets the conditions. With `ignores_case`, the case of the path
    /// does not matter, because some backends ignore case.
    pub fn holds_for(&self, method: &[u8], path: &[u8], ignores_case: bool) -> bool {
        if !ignores_case {
            return self.matches(method, path).is_some();
        }
        self.takes_method(method)
            && self.regex.as_ref().is_none_or(|regex| regex.is_match_in_any_case(path))
            && (self.suffixes.is_empty() || self.ends_in(path, true))
            && self.takes_path(path, true)
    }

    /// Returns true if the path fits one of `paths`, or if there are none.
    fn takes_path(&self, path: &[u8], ignores_case: bool) -> bool {
        let is_alike = |typed: &str, path: &[u8]| {
            path == typed.as_bytes() || ignores_case && path.eq_ignore_ascii_case(typed.as_bytes())
        };
        let takes = |pattern: &PathPattern| match pattern {
            PathPattern::Exact(typed) => is_alike(typed, path),
            PathPattern::Prefix(typed) => {
                path.get(..typed.len()).is_some_and(|start| is_alike(typed, start))
            }
        };
        self.paths.is_empty() || self.paths.iter().any(takes)
    }

    fn ends_in(&self, path: &[u8], ignores_case: bool) -> bool {
        self.ends(path)
            || ignores_case && self.suffixes.iter().any(|suffix| ends_in_any_case(path, suffix))
    }

    /// The first beginning of `path` that may be the name of a script, with PATH_INFO after it, and
    /// that meets the conditions: `/admin.php` of `/admin.php/x`. A server that Forebay cannot look
    /// into may run this script for the whole path.
    ///
    /// The time is linear in the length of the path, because a client chooses how many segments
    /// look like scripts. So the expression, the only condition that reads a beginning from its
    /// start, is tried on [`MAX_HEADS`] beginnings. No honest path has more, so the next one counts
    /// as a match: a rule then holds, rather than fails to hold.
    pub fn find_head<'p>(
        &self,
        method: &[u8],
        path: &'p [u8],
        ignores_case: bool,
    ) -> Option<&'p [u8]> {
        self.find_head_by(method, path, ignores_case, |regex, head| {
            if ignores_case { regex.is_match_in_any_case(head) } else { regex.is_match(head) }
        })
    }

    fn find_head_by<'p>(
        &self,
        method: &[u8],
        path: &'p [u8],
        ignores_case: bool,
        mut is_match: impl FnMut(&Regex, &[u8]) -> bool,
    ) -> Option<&'p [u8]> {
        let is_exact = |pattern: &PathPattern| matches!(pattern, PathPattern::Exact(_));
        // An expression without an end that matches a beginning also matches the whole path, and
        // so does a prefix. Such a rule holds for the path itself.
        let has_end = !self.suffixes.is_empty()
            || self.paths.iter().any(is_exact)
            || self.regex.as_ref().is_some_and(Regex::may_have_end);
        if !has_end || !self.takes_method(method) {
            return None;
        }
        let mut tried = 0;
        let mut has_suffix = self.suffixes.is_empty();
        let ends = (0..path.len()).filter(|&at| path[at] == b'/').skip(1);
        for end in ends {
            let head = &path[..end];
            let ends = self.suffixes.is_empty() || self.ends_in(head, ignores_case);
            has_suffix |= ends;
            if !(ends || self.allows_path_info && has_suffix)
                || !looks_like_file_name(head)
                || !self.takes_path(head, ignores_case)
            {
                continue;
            }
            let Some(regex) = &self.regex else { return Some(head) };
            tried += 1;
            if tried > MAX_HEADS || is_match(regex, head) {
                return Some(head);
            }
        }
        None
    }

    /// Returns true if this matcher accepts every request that `other` accepts, so that a later
    /// route with `other` never runs. False does not prove the opposite, because not all patterns
    /// can be compared.
    pub fn covers(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty()
                && other.methods.iter().all(|m| self.takes_method(m.as_bytes())));
        let has_letter = |suffix: &String| suffix.bytes().any(|b| b.is_ascii_alphabetic());
        let is_wider = other.suffix_ignores_case
            && !self.suffix_ignores_case
            && other.suffixes.iter().any(has_letter);
        let takes_all = !other.suffixes.is_empty()
            && other.suffixes.iter().all(|s| self.takes_suffix(s.as_bytes()));
        let suffixes = self.suffixes.is_empty() || takes_all && !is_wider;
        let paths = self.paths.is_empty()
            || self.paths.iter().any(|p| *p == PathPattern::Prefix("/".into()))
            || (!other.paths.is_empty()
                && other.paths.iter().all(|theirs| self.paths.iter().any(|p| p.covers(theirs))));
        let when = self.when.is_none() || self.when == other.when;
        methods && suffixes && paths && when && self.regex_covers(other)
    }

    /// Returns true if this matcher has no expression, or if its expression matches every path that
    /// `other` accepts. False does not prove the opposite: the expression can only be compared with
    /// an equal expression, and with the paths of `other`.
    fn regex_covers(&self, other: &Self) -> bool {
        let Some(regex) = &self.regex else { return true };
        let start = regex.literal_start().filter(|start| regex.pattern()[1..] == **start);
        let takes = |path: &PathPattern| match path {
            PathPattern::Exact(path) => regex.is_match(path.as_bytes()),
            PathPattern::Prefix(path) => {
                start.as_ref().is_some_and(|start| path.starts_with(start.as_str()))
            }
        };
        other.regex.as_ref() == Some(regex)
            || !other.paths.is_empty() && other.paths.iter().all(takes)
    }

    /// Returns true if some path may match both matchers, with any method.
    pub fn shares_paths(&self, other: &Self) -> bool {
        let by_path = self.paths.is_empty()
            || other.paths.is_empty()
            || self.paths.iter().any(|ours| other.paths.iter().any(|o| ours.shares_paths(o)));
        let by_suffix = self.suffixes.is_empty()
            || other.suffixes.is_empty()
            || self.suffixes.iter().any(|own| other.ends(own.as_bytes()))
            || other.suffixes.iter().any(|theirs| self.ends(theirs.as_bytes()));
        by_path && by_suffix
    }

    /// Returns true if this matcher accepts a method that `other` does not accept.
    pub fn takes_others(&self, other: &Self) -> bool {
        let is_other = |method: &String| !other.takes_method(method.as_bytes());
        !other.methods.is_empty() && (self.methods.is_empty() || self.methods.iter().any(is_other))
    }

    /// Returns true if conditions other than paths, suffixes and methods also decide about
    /// requests.
    pub fn is_conditional(&self) -> bool {
        self.regex.is_some() || self.when.is_some()
    }

    fn takes_method(&self, method: &[u8]) -> bool {
        let takes = |m: &String| m.as_bytes() == method || (m == "GET" && method == b"HEAD");
        self.methods.is_empty() || self.methods.iter().any(takes)
    }

    /// Returns true for a path such as `/a.php/b` and the suffix `.php`: the suffix ends an inner
    /// segment, and path info follows. The caller knows that the path matches. The route then
    /// answers only if the script exists. Otherwise a later route answers.
    pub fn is_by_segment(&self, path: &[u8]) -> bool {
        !self.suffixes.is_empty() && !self.ends(path)
    }

    /// Returns true if the path ends in one of the suffixes, or if there are no suffixes. With
    /// `allows_path_info`, a suffix at the end of any segment is enough.
    fn takes_suffix(&self, path: &[u8]) -> bool {
        self.suffixes.is_empty() || self.ends(path) || self.allows_path_info && self.has(path)
    }

    /// Returns true if the text ends in one of the suffixes.
    pub fn ends(&self, text: &[u8]) -> bool {
        self.suffixes.iter().any(|suffix| text.ends_with(suffix.as_bytes()))
            || self.suffix_ignores_case
                && self.suffixes.iter().any(|suffix| ends_in_any_case(text, suffix))
    }

    /// Returns true if a segment of the path ends in one of the suffixes.
    fn has(&self, path: &[u8]) -> bool {
        path.split(|&b| b == b'/').any(|segment| self.ends(segment))
    }
}

/// Maximum number of beginnings of a path on which [`Matcher::find_head`] tries an expression.
pub const MAX_HEADS: usize = 16;

/// Returns true if the last segment of `path` ends like a script or page: in a dot and a few
/// letters.
pub fn looks_like_file_name(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    let Some(dot) = name.iter().rposition(|&b| b == b'.') else { return false };
    let end = &name[dot + 1..];
    dot > 0
        && matches!(end.len(), 1..=8)
        && end[0].is_ascii_alphabetic()
        && end.iter().all(u8::is_ascii_alphanumeric)
}

/// Returns true if `text` ends in `suffix`, compared without the case of ASCII letters.
pub fn ends_in_any_case(text: &[u8], suffix: &str) -> bool {
    let start = text.len().checked_sub(suffix.len());
    start.is_some_and(|start| text[start..].eq_ignore_ascii_case(suffix.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(paths: &[&str], suffixes: &[&str], methods: &[&str]) -> Matcher {
        let own = |list: &[&str]| list.iter().map(|s| s.to_string()).collect();
        let pattern = |path: &&str| match path.strip_suffix('*') {
            Some(prefix) => PathPattern::Prefix(prefix.into()),
            None => PathPattern::Exact((*path).into()),
        };
        Matcher {
            paths: paths.iter().map(pattern).collect(),
            suffixes: own(suffixes),
            methods: own(methods),
            ..Matcher::default()
        }
    }

    #[test]
    fn a_suffix_within_the_path_is_for_scripts() {
        let plain = matcher(&[], &[".cgi"], &[]);
        assert!(plain.matches(b"GET", b"/x.cgi/a/b").is_none());
        let scripts = Matcher { allows_path_info: true, ..plain };
        for (path, by_segment) in [("/x.cgi/a/b", true), ("/x.cgi/", true), ("/x.cgi", false)] {
            assert!(scripts.matches(b"GET", path.as_bytes()).is_some(), "{path}");
            assert_eq!(scripts.is_by_segment(path.as_bytes()), by_segment, "{path}");
        }
        for path in ["/x.cgis/a", "/x/a", "/"] {
            assert!(scripts.matches(b"GET", path.as_bytes()).is_none(), "{path}");
        }
    }

    #[test]
    fn the_star_is_what_is_looked_up() {
        let found = matcher(&["/cgi-bin/*"], &[], &[]).matches(b"GET", b"/cgi-bin/a/x.pl");
        assert_eq!(found, Some(Match { rest: b"a/x.pl", by_suffix: false }));
        assert_eq!(matcher(&["/cgi-bin/*"], &[], &[]).matches(b"GET", b"/cgi-bin"), None);
    }

    #[test]
    fn suffixes_can_ignore_case() {
        let exact = Matcher { allows_path_info: true, ..matcher(&[], &[".pl"], &[]) };
        let any = Matcher { suffix_ignores_case: true, ..exact.clone() };
        for path in ["/a.PL", "/a.Pl/x", "/.pL"] {
            assert!(exact.matches(b"GET", path.as_bytes()).is_none(), "{path}");
            assert!(any.matches(b"GET", path.as_bytes()).is_some(), "{path}");
        }
        for path in ["/a.p", "/PL", "/a.PLx", "/a.\u{212a}"] {
            assert!(any.matches(b"GET", path.as_bytes()).is_none(), "{path}");
        }
        assert!(any.covers(&exact) && !exact.covers(&any));
        let upper = matcher(&[], &[".PL"], &[]);
        assert!(any.shares_paths(&upper) && upper.shares_paths(&any) && any.covers(&upper));
        let digits = matcher(&[], &[".1"], &[]);
        assert!(digits.covers(&Matcher { suffix_ignores_case: true, ..digits.clone() }));
    }

    #[test]
    fn suffix_exact_path_and_no_path_look_up_the_whole_path() {
        let whole = Some(Match { rest: b"a/x.php", by_suffix: true });
        assert_eq!(matcher(&[], &[".php"], &[]).matches(b"GET", b"/a/x.php"), whole);
        assert_eq!(matcher(&["/a/x.php"], &[], &[]).matches(b"GET", b"/a/x.php"), whole);
        assert_eq!(matcher(&[], &[], &[]).matches(b"GET", b"/a/x.php"), whole);
        assert_eq!(matcher(&[], &[".php"], &[]).matches(b"GET", b"/a/x.phps"), None);
    }

    #[test]
    fn an_exact_path_beside_a_star_has_the_rest_of_the_star() {
        for paths in [["/shop", "/shop/*"], ["/shop/*", "/shop"]] {
            let shop = matcher(&paths, &[], &[]);
            let rest = |path: &'static str| shop.matches(b"GET", path.as_bytes());
            assert_eq!(rest("/shop"), Some(Match { rest: b"", by_suffix: false }));
            assert_eq!(rest("/shop/"), Some(Match { rest: b"", by_suffix: false }));
            assert_eq!(rest("/shop/a"), Some(Match { rest: b"a", by_suffix: false }));
            assert_eq!(rest("/shopping"), None);
        }
        let both = matcher(&["/icon", "/shop/", "/shop/*"], &[], &[]);
        let rest = |path: &'static str| both.matches(b"GET", path.as_bytes()).map(|m| m.rest);
        assert_eq!(rest("/icon"), Some(&b"icon"[..]));
        assert_eq!(rest("/shop/"), Some(&b""[..]));
        assert_eq!(rest("/shop"), None);
    }

    #[test]
    fn all_conditions_must_hold() {
        let both = matcher(&["/img/*"], &[".jpg", ".gif"], &["GET"]);
        assert_eq!(both.matches(b"GET", b"/img/a.gif").map(|m| m.rest), Some(&b"a.gif"[..]));
        assert_eq!(both.matches(b"HEAD", b"/img/a.gif").map(|m| m.rest), Some(&b"a.gif"[..]));
        assert_eq!(both.matches(b"POST", b"/img/a.gif"), None);
        assert_eq!(both.matches(b"GET", b"/img/a.png"), None);
        assert_eq!(both.matches(b"GET", b"/a.gif"), None);
    }

    #[test]
    fn a_remainder_is_never_an_absolute_path() {
        let found = matcher(&["/a*"], &[], &[]).matches(b"GET", b"/a//etc/passwd");
        assert_eq!(found.map(|m| m.rest), Some(&b"etc/passwd"[..]));
    }

    #[test]
    fn the_cost_of_many_heads_is_bounded() {
        let of = |pattern: &str, paths: &[&str], suffixes: &[&str]| Matcher {
            regex: (!pattern.is_empty()).then(|| Regex::new(pattern, false).unwrap()),
            ..matcher(paths, suffixes, &[])
        };
        let path = |heads: usize| format!("{}{}x", "/abc".repeat(2000), "/a.b/".repeat(heads));
        for (rule, heads, tries, holds) in [
            (of("/admin\\.php$", &[], &[]), 16, 16, false),
            (of("/admin\\.php$", &[], &[]), 17, 16, true),
            (of("/admin\\.php$", &[], &[]), 20_000, 16, true),
            // Other conditions leave out heads that cost nothing.
            (of("/admin\\.php$", &["/x/*"], &[]), 20_000, 0, false),
            (of("x$", &[], &[".php"]), 20_000, 0, false),
            (of("", &["/admin.php"], &[]), 20_000, 0, false),
            // What matches a head matches the whole path.
            (of("/admin", &[], &[]), 20_000, 0, false),
            (of("", &["/abc/*"], &[]), 20_000, 0, false),
        ] {
            let path = path(heads);
            let (mut tried, mut bytes) = (0, 0);
            let found = rule.find_head_by(b"GET", path.as_bytes(), false, |regex, head| {
                (tried, bytes) = (tried + 1, bytes + head.len());
                regex.is_match(head)
            });
            assert_eq!((tried, found.is_some()), (tries, holds), "{rule:?} {heads}");
            assert!(bytes <= MAX_HEADS * path.len());
        }
    }

    #[test]
    fn a_head_meets_all_conditions() {
        let regex = |pattern: &str| Some(Regex::new(pattern, false).unwrap());
        let php = matcher(&[], &[".php"], &[]);
        let by_segment = Matcher {
            allows_path_info: true,
            regex: regex("b$"),
            ..matcher(&["/x/*"], &[".php"], &[])
        };
        for (rule, path, head) in [
            (&php, "/a.php/b.php/c", Some("/a.php")),
            (&php, "/a/b", None),
            (&php, "/a.php", None),
            (&php, "/A.PHP/b", None),
            (&matcher(&["/a.x"], &[], &[]), "/a.x/", Some("/a.x")),
            (&matcher(&["/a.x"], &[], &["PUT"]), "/a.x/", None),
            (&matcher(&["/v1.0"], &[], &[]), "/v1.0/", None),
            (&by_segment, "/x/a.php/c.b/d", Some("/x/a.php/c.b")),
            (&by_segment, "/y/a.php/c.b/d", None),
        ] {
            let found = rule.find_head(b"GET", path.as_bytes(), false);
            assert_eq!(found, head.map(str::as_bytes), "{path}");
        }
        assert_eq!(php.find_head(b"GET", b"/A.PHP/b", true), Some(&b"/A.PHP"[..]));
    }

    #[test]
    fn hosts() {
        let suffix = HostPattern::Suffix(".example.org".into());
        assert!(suffix.matches("www.Example.ORG"));
        assert!(!suffix.matches("example.org"));
        assert!(!suffix.matches(".example.org"));
        assert!(!suffix.matches("\u{e9}xample.org"));
        assert!(HostPattern::Exact("example.org".into()).matches("EXAMPLE.org"));
        assert!(!HostPattern::Exact("example.org".into()).matches("example.org."));
        assert!(HostPattern::Any.matches(""));
    }

    #[test]
    fn an_expression_covers_itself_and_paths() {
        let of = |pattern: &str, paths: &[&str]| Matcher {
            regex: (!pattern.is_empty()).then(|| Regex::new(pattern, false).unwrap()),
            ..matcher(paths, &[], &[])
        };
        let under_a = of("^/a/", &[]);
        assert!(under_a.covers(&of("^/a/", &[])) && under_a.covers(&of("", &["/a/b", "/a/c/*"])));
        assert!(!under_a.covers(&of("^/a/b", &[])) && !under_a.covers(&of("", &["/a*"])));
        assert!(!under_a.covers(&of("", &[])) && of("", &["/*"]).covers(&under_a));
        let digits = of("^/[0-9]+$", &[]);
        assert!(digits.covers(&of("", &["/12"])) && !digits.covers(&of("", &["/1*"])));
    }

    #[test]
    fn a_route_with_when_covers_only_its_equals() {
        let when =
            |method: &str| Some(Box::new(When { methods: vec![method.into()], ..When::default() }));
        let get = Matcher { when: when("GET"), ..matcher(&["/*"], &[], &[]) };
        let all = matcher(&["/*"], &[], &[]);
        assert!(all.covers(&get) && !get.covers(&all) && get.covers(&get.clone()));
        assert!(!get.covers(&Matcher { when: when("POST"), ..all.clone() }));
    }

    #[test]
    fn covers_only_what_is_never_reached() {
        let all = matcher(&["/*"], &[], &[]);
        let img = matcher(&["/img/*"], &[], &[]);
        let jpg = matcher(&[], &[".jpg"], &[]);
        let get = matcher(&[], &[], &["GET"]);
        assert!(all.covers(&img) && all.covers(&jpg) && all.covers(&get));
        assert!(!img.covers(&all) && !jpg.covers(&img) && !get.covers(&img));
        assert!(get.covers(&matcher(&["/x"], &[], &["HEAD"])));
        assert!(jpg.covers(&matcher(&["/img/*"], &[".min.jpg"], &[])));
        assert!(!matcher(&["/img/a"], &[], &[]).covers(&img));
    }
}
