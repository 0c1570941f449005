//! The conditions of a route, in the form of the configuration.

use crate::value::{Table, Value};

/// The conditions of a route. A request must meet each kind of condition that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Paths such as `/x` and `/x/*`; one of them must match. Empty for any path.
    pub paths: Vec<String>,
    /// Ends of paths; one of them must match. Empty for any end.
    pub suffixes: Vec<String>,
    /// A regular expression that the path must match.
    pub regex: Option<String>,
    /// Methods; empty for any method.
    pub methods: Vec<String>,
    /// The value of the key `when`.
    pub when: Table,
}

impl Matcher {
    pub fn path(path: impl Into<String>) -> Self {
        Self { paths: vec![path.into()], ..Self::default() }
    }

    /// Returns the matcher of all paths that begin with this text.
    pub fn prefix(prefix: &str) -> Self {
        Self::path(format!("{prefix}*"))
    }

    pub fn with_methods(mut self, methods: Vec<String>) -> Self {
        self.methods = methods;
        self
    }

    /// Returns a matcher for the paths of this matcher that begin with `prefix`. Returns `None` if
    /// there are no such paths.
    pub fn within(&self, prefix: &str) -> Option<Self> {
        if prefix == "/" || prefix.is_empty() {
            return Some(self.clone());
        }
        let pattern = format!("{prefix}*");
        let paths = if self.paths.is_empty() {
            vec![pattern]
        } else {
            intersection(&self.paths, &[pattern])?
        };
        Some(Self { paths, ..self.clone() })
    }

    /// Returns the matcher for requests that both matchers take. Returns `None` if there are no
    /// such requests, or if one route cannot have these conditions.
    pub fn and(&self, other: &Self) -> Option<Self> {
        let either = |ours: &[String], theirs: &[String]| match (ours.is_empty(), theirs.is_empty())
        {
            (true, _) => Some(theirs.to_vec()),
            (_, true) => Some(ours.to_vec()),
            _ => None,
        };
        let paths = match either(&self.paths, &other.paths) {
            Some(paths) => paths,
            None => intersection(&self.paths, &other.paths)?,
        };
        let suffixes = match either(&self.suffixes, &other.suffixes) {
            Some(suffixes) => suffixes,
            None => longer_suffixes(&self.suffixes, &other.suffixes)?,
        };
        let regex = match (&self.regex, &other.regex) {
            (Some(ours), Some(theirs)) if ours != theirs => return None,
            (ours, theirs) => ours.clone().or_else(|| theirs.clone()),
        };
        let methods = match either(&self.methods, &other.methods) {
            Some(methods) => methods,
            None => {
                let both = self.methods.iter().filter(|method| other.methods.contains(method));
                let both: Vec<_> = both.cloned().collect();
                if both.is_empty() {
                    return None;
                }
                both
            }
        };
        let when = all_of(&self.when, &other.when)?;
        Some(Self { paths, suffixes, regex, methods, when })
    }

    /// Returns true if one route cannot have the conditions in `when` of both matchers. Even then,
    /// a request may meet both matchers.
    pub fn is_at_odds(&self, other: &Self) -> bool {
        all_of(&self.when, &other.when).is_none()
    }

    /// Returns true if some requests may meet both matchers although one route cannot have the
    /// conditions of both.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let rest = |of: &Self| Self { regex: None, when: Table::default(), ..of.clone() };
        self.and(other).is_none()
            && rest(self).and(&rest(other)).is_some()
            && !excludes(&self.when, &other.when)
    }

    /// Returns true if the matcher takes every request that `other` takes. The comparison is not
    /// complete, so false does not prove the opposite.
    pub fn covers(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty()
            || (!other.methods.is_empty()
                && other.methods.iter().all(|m| {
                    self.methods.contains(m)
                        || (m == "HEAD" && self.methods.iter().any(|own| own == "GET"))
                }));
        let suffixes = self.suffixes.is_empty()
            || (!other.suffixes.is_empty()
                && other.suffixes.iter().all(|s| self.suffixes.iter().any(|own| s.ends_with(own))));
        let all = |paths: &[String]| paths.is_empty() || paths.iter().any(|path| path == "/*");
        let paths = all(&self.paths)
            || (!other.paths.is_empty()
                && other.paths.iter().all(|p| self.paths.iter().any(|own| path_covers(own, p))));
        let regex = self.regex.is_none() || self.regex == other.regex;
        let when = all_of(&other.when, &self.when).as_ref() == Some(&other.when);
        methods && suffixes && paths && regex && when
    }

    /// Returns true if the matcher takes a request with this method and path. Returns `None` if the
    /// result depends on other conditions, for example on an expression.
    pub fn takes(&self, method: &str, path: &str) -> Option<bool> {
        let takes_method = self.methods.is_empty()
            || self.methods.iter().any(|m| m == method || (m == "GET" && method == "HEAD"));
        let takes_path = self.paths.is_empty() || self.paths.iter().any(|p| path_covers(p, path));
        let segments = || path.split('/');
        let ends = |text: &str| self.suffixes.iter().any(|suffix| text.ends_with(suffix.as_str()));
        if !takes_method || !takes_path {
            return Some(false);
        }
        if !self.suffixes.is_empty() && !ends(path) {
            // A segment within the path has the suffix. If this segment is the name of a script,
            // path info follows it, so the result is unknown.
            return if segments().any(ends) { None } else { Some(false) };
        }
        if self.regex.is_some() || !self.when.is_empty() { None } else { Some(true) }
    }

    /// Returns a path that the matcher takes. Returns `None` for a matcher with an expression. Also
    /// returns `None` if the first path has no `*`, and does not end with the first suffix.
    pub fn sample(&self) -> Option<String> {
        if self.regex.is_some() {
            return None;
        }
        let path = self.paths.first().map_or("/*", String::as_str);
        let suffix = self.suffixes.first().map_or("", String::as_str);
        match path.strip_suffix('*') {
            Some(start) if start == "/" && suffix.is_empty() => Some("/".into()),
            // A suffix without a dot, such as `Makefile`, may be the whole file name.
            Some(start) if !suffix.is_empty() && !suffix.starts_with('.') => {
                Some(format!("{start}{suffix}"))
            }
            Some(start) => Some(format!("{start}x{suffix}")),
            None if path.ends_with(suffix) => Some(path.to_owned()),
            None => None,
        }
    }
}

/// Returns the conditions of both tables. Returns `None` if one table cannot have all of them.
fn all_of(ours: &Table, theirs: &Table) -> Option<Table> {
    let mut both = ours.clone();
    for (key, value) in &theirs.0 {
        let merged = match (both.get(key), value) {
            (None, _) => value.clone(),
            (Some(own), value) if own == value => continue,
            // A table `not` holds if one of its conditions fails, so two such tables cannot be
            // merged.
            (Some(Value::Table(own)), Value::Table(other)) if key != "not" => {
                Value::Table(all_of(own, other)?)
            }
            _ => return None,
        };
        both.set(key, merged);
    }
    Some(both)
}

/// Returns true if no request meets the conditions of both tables, because they require different
/// values of one scheme, field, cookie or parameter.
fn excludes(ours: &Table, theirs: &Table) -> bool {
    let differ = |ours: Option<&Value>, theirs: Option<&Value>| match (ours, theirs) {
        (Some(Value::Text(ours)), Some(Value::Text(theirs))) => {
            ours != theirs && !ours.starts_with('~') && !theirs.starts_with('~')
        }
        _ => false,
    };
    let in_tables = |key: &str| match (ours.get(key), theirs.get(key)) {
        (Some(Value::Table(ours)), Some(Value::Table(theirs))) => {
            ours.0.iter().any(|(name, value)| differ(Some(value), theirs.get(name)))
        }
        _ => false,
    };
    differ(ours.get("scheme"), theirs.get("scheme"))
        || ["header", "cookie", "query", "variable"].into_iter().any(in_tables)
}

/// Returns true if the path pattern `ours` matches every path that `theirs` matches.
fn path_covers(ours: &str, theirs: &str) -> bool {
    match (ours.strip_suffix('*'), theirs.strip_suffix('*')) {
        (Some(ours), Some(theirs)) => theirs.starts_with(ours),
        (Some(ours), None) => theirs.starts_with(ours),
        (None, Some(_)) => false,
        (None, None) => ours == theirs,
    }
}

/// Returns path patterns for the paths that both lists match. Returns `None` if there are none.
fn intersection(ours: &[String], theirs: &[String]) -> Option<Vec<String>> {
    let mut both = Vec::new();
    for own in ours {
        for other in theirs {
            let narrow = if path_covers(own, other) {
                other
            } else if path_covers(other, own) {
                own
            } else {
                continue;
            };
            if !both.contains(narrow) {
                both.push(narrow.clone());
            }
        }
    }
    (!both.is_empty()).then_some(both)
}

fn longer_suffixes(ours: &[String], theirs: &[String]) -> Option<Vec<String>> {
    let mut both = Vec::new();
    for own in ours {
        for other in theirs {
            if own.ends_with(other.as_str()) {
                both.push(own.clone());
            } else if other.ends_with(own.as_str()) {
                both.push(other.clone());
            }
        }
    }
    both.dedup();
    (!both.is_empty()).then_some(both)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_combined() {
        let php = Matcher { suffixes: vec![".php".into()], ..Matcher::default() };
        let admin = Matcher::prefix("/admin/");
        let both = php.and(&admin).unwrap();
        assert_eq!((both.paths.len(), both.suffixes.len()), (1, 1));
        assert!(admin.covers(&both) && php.covers(&both) && !both.covers(&php));
        assert_eq!(both.takes("GET", "/admin/x.php"), Some(true));
        assert_eq!(both.takes("GET", "/admin/x.php/y"), None);
        assert_eq!(both.takes("GET", "/x.php"), Some(false));
        assert_eq!(both.sample().as_deref(), Some("/admin/x.php"));
        let header = |name: &str| Table::default().with(name, "1");
        let of = |table: Table| Matcher {
            when: Table::default().with("header", table),
            ..Matcher::default()
        };
        let whens = of(header("A")).and(&of(header("B"))).unwrap().when;
        assert_eq!(whens, Table::default().with("header", header("A").with("B", "1")));
        let other = of(Table::default().with("A", "2"));
        assert_eq!(of(header("A")).and(&other), None);
        assert!(of(header("A")).is_at_odds(&other) && !admin.is_at_odds(&other));
        assert!(!of(header("A")).conflicts_with(&other));
        let regex = of(Table::default().with("A", "~^2"));
        assert!(of(header("A")).conflicts_with(&regex));
        assert!(of(header("A")).covers(&of(header("B").with("A", "1"))));
        assert!(!of(header("B").with("A", "1")).covers(&of(header("A"))));
        assert_eq!(Matcher::path("/a").and(&Matcher::path("/b")), None);
        assert_eq!(Matcher::prefix("/a").within("/ab").unwrap(), Matcher::prefix("/ab"));
    }
}
