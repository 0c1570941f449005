//! The order of locations. nginx looks for an exact path first, then for the longest prefix. Unless
//! the prefix says `^~`, nginx then looks for the first expression that matches. Forebay takes the
//! first route that matches.

use super::scope::Scope;
use super::syntax::Directive;

/// A location of a server.
#[derive(Debug)]
pub struct Location<'a> {
    pub kind: LocationKind<'a>,
    /// The directive; `None` for paths that no location takes.
    pub directive: Option<&'a Directive>,
    pub scope: Scope<'a>,
    inner: Vec<Location<'a>>,
}

/// The condition of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocationKind<'a> {
    Exact(&'a str),
    /// `stops` is true for `^~`: nginx tries no regular expressions after this prefix.
    Prefix {
        path: &'a str,
        stops: bool,
    },
    Regex {
        text: &'a str,
        ignore_case: bool,
    },
    Named(&'a str),
}

/// A position in the order of routes, and the location that is translated there.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'l, 'a> {
    pub location: &'l Location<'a>,
    /// If set, the location applies only to paths with this beginning.
    pub region: Option<&'a str>,
    /// True if the slot is for the redirect from `/x` to `/x/`. nginx sends this redirect if the
    /// location `/x/` passes requests to a backend.
    pub adds_slash: bool,
}

impl<'a> Location<'a> {
    /// Returns the locations of a server block. If there is no location `/`, adds a location for
    /// the paths that no other location takes.
    pub fn of_server(scope: &Scope<'a>) -> Vec<Self> {
        let mut all = Self::all(scope);
        let is_root =
            |location: &Self| matches!(location.kind, LocationKind::Prefix { path: "/", .. });
        if !all.iter().any(is_root) {
            let kind = LocationKind::Prefix { path: "/", stops: false };
            all.push(Self { kind, directive: None, scope: scope.inside(&[]), inner: Vec::new() });
        }
        all
    }

    /// Returns a location for all paths, which has the directives of a server block.
    pub fn of_block(scope: &Scope<'a>) -> Self {
        let kind = LocationKind::Prefix { path: "/", stops: false };
        Self { kind, directive: None, scope: scope.clone(), inner: Vec::new() }
    }

    fn all(scope: &Scope<'a>) -> Vec<Self> {
        let blocks = scope.own().iter().filter(|directive| directive.name == "location");
        let location = |directive: &'a Directive| {
            let scope = scope.inside(directive.inside());
            let inner = Self::all(&scope);
            Self { kind: kind(directive), directive: Some(directive), scope, inner }
        };
        blocks.map(location).collect()
    }

    /// Returns the path of an exact location or a prefix location. Returns `None` for other
    /// locations.
    pub fn path(&self) -> Option<&'a str> {
        self.kind.path()
    }

    /// Returns the locations inside of a location with an expression, because the function `order`
    /// returns no slots for them. Returns no locations if this location has no expression.
    pub fn within_regex(&self) -> &[Location<'a>] {
        if matches!(self.kind, LocationKind::Regex { .. }) { &self.inner } else { &[] }
    }

    /// Returns the locations inside of a location.
    pub fn inner(&self) -> &[Location<'a>] {
        &self.inner
    }

    /// Returns true if the location, or a location inside it, passes requests to a backend that
    /// does not look for files. FastCGI applications do not count, because they look for scripts.
    pub fn passes_on_without_files(&self) -> bool {
        let passes = |directive: &Directive| {
            directive.name.ends_with("_pass") && directive.name != "fastcgi_pass"
        };
        self.scope.own().iter().any(passes) || self.inner.iter().any(Self::passes_on_without_files)
    }

    fn is_regex(&self) -> bool {
        matches!(self.kind, LocationKind::Regex { .. })
    }

    fn passes_on(&self) -> bool {
        self.scope.own().iter().any(|directive| {
            let kind = directive.name.strip_suffix("_pass");
            kind.is_some_and(|kind| ["proxy", "fastcgi", "grpc", "scgi", "uwsgi"].contains(&kind))
        })
    }
}

impl<'a> LocationKind<'a> {
    fn path(&self) -> Option<&'a str> {
        match *self {
            Self::Exact(path) | Self::Prefix { path, .. } => Some(path),
            Self::Regex { .. } | Self::Named(_) => None,
        }
    }
}

/// Returns the path of a `location` directive for an exact path or a prefix. Returns `None` for
/// other directives.
pub fn path_of(directive: &Directive) -> Option<&str> {
    if directive.name == "location" { kind(directive).path() } else { None }
}

/// Returns the condition of a `location` directive.
fn kind(directive: &Directive) -> LocationKind<'_> {
    let (first, second) = (directive.arg(0), directive.arg(1));
    if directive.args.len() >= 2 {
        return match first {
            "=" => LocationKind::Exact(second),
            "^~" => LocationKind::Prefix { path: second, stops: true },
            "~" => LocationKind::Regex { text: second, ignore_case: false },
            "~*" => LocationKind::Regex { text: second, ignore_case: true },
            _ => LocationKind::Prefix { path: first, stops: false },
        };
    }
    if first.starts_with('@') {
        return LocationKind::Named(first);
    }
    if let Some(path) = first.strip_prefix('=') {
        return LocationKind::Exact(path);
    }
    if let Some(path) = first.strip_prefix("^~") {
        return LocationKind::Prefix { path, stops: true };
    }
    if let Some(text) = first.strip_prefix("~*") {
        return LocationKind::Regex { text, ignore_case: true };
    }
    match first.strip_prefix('~') {
        Some(text) => LocationKind::Regex { text, ignore_case: false },
        None => LocationKind::Prefix { path: first, stops: false },
    }
}

/// A location with a prefix, and the locations with expressions that precede it.
struct Static<'l, 'a> {
    location: &'l Location<'a>,
    path: &'a str,
    expressions: Vec<&'l Location<'a>>,
}

/// Returns the slots of locations, in an order for routes that selects the same locations as nginx.
pub fn order<'l, 'a>(locations: &'l [Location<'a>]) -> Vec<Slot<'l, 'a>> {
    let (mut exact, mut statics) = (Vec::new(), Vec::new());
    gather(locations, &[], &mut exact, &mut statics);
    let global: Vec<&Location<'a>> = locations.iter().filter(|inner| inner.is_regex()).collect();
    let is_same = |list: &[&Location<'a>]| {
        list.len() == global.len() && list.iter().zip(&global).all(|(a, b)| std::ptr::eq(*a, *b))
    };
    statics.sort_by_key(|found: &Static<'_, '_>| std::cmp::Reverse(found.path.len()));
    let own: Vec<&str> = statics
        .iter()
        .filter(|found| !is_same(&found.expressions))
        .map(|found| found.path)
        .collect();
    let slot = |location, region| Slot { location, region, adds_slash: false };
    let mut slots: Vec<_> = exact.iter().map(|location| slot(*location, None)).collect();
    slots.extend(slashes(&exact, &statics));
    // `global` has the expressions of the server block, which precede most prefix locations. But a
    // prefix location with other expressions, or with `^~`, precedes `global`. A longer prefix that
    // begins with the prefix of such a location also precedes `global`.
    let (first, last): (Vec<_>, Vec<_>) =
        statics.into_iter().partition(|found| own.iter().any(|path| found.path.starts_with(path)));
    for found in first {
        let region = Some(found.path);
        slots.extend(found.expressions.iter().map(|location| slot(*location, region)));
        slots.push(slot(found.location, None));
    }
    slots.extend(global.into_iter().map(|location| slot(location, None)));
    slots.extend(last.into_iter().map(|found| slot(found.location, None)));
    slots
}

/// Collects the exact locations and the prefix locations of a block and of its inner blocks.
/// `outer` are the expressions of the blocks around this block.
fn gather<'l, 'a>(
    level: &'l [Location<'a>],
    outer: &[&'l Location<'a>],
    exact: &mut Vec<&'l Location<'a>>,
    statics: &mut Vec<Static<'l, 'a>>,
) {
    let regexes = |level: &'l [Location<'a>]| level.iter().filter(|inner| inner.is_regex());
    for location in level {
        match location.kind {
            LocationKind::Exact(_) => exact.push(location),
            LocationKind::Prefix { path, stops } => {
                let own = regexes(level).filter(|_| !stops);
                let after: Vec<_> = own.chain(outer.iter().copied()).collect();
                let expressions = regexes(&location.inner).chain(after.iter().copied()).collect();
                statics.push(Static { location, path, expressions });
                let (before, of_before) = (exact.len(), statics.len());
                gather(&location.inner, &after, exact, statics);
                // nginx first selects one location of this block. So a longer prefix of this block
                // takes paths even from the locations inside of `location`.
                let is_reached = |inner: &str| {
                    !level.iter().any(|other| match other.kind {
                        LocationKind::Prefix { path: longer, .. } => {
                            longer.len() > path.len() && inner.starts_with(longer)
                        }
                        _ => false,
                    })
                };
                let found = exact.split_off(before);
                let is_exact = |found: &&Location<'a>| found.path().is_some_and(is_reached);
                exact.extend(found.into_iter().filter(is_exact));
                let found = statics.split_off(of_before);
                statics.extend(found.into_iter().filter(|found| is_reached(found.path)));
            }
            LocationKind::Regex { .. } | LocationKind::Named(_) => {}
        }
    }
}

/// Returns the slots of redirects that add a slash to a path.
fn slashes<'l, 'a>(exact: &[&'l Location<'a>], statics: &[Static<'l, 'a>]) -> Vec<Slot<'l, 'a>> {
    let is_taken = |path: &str| {
        exact.iter().any(|location| location.path() == Some(path))
            || statics.iter().any(|found| found.path == path)
    };
    let adds = |found: &&Static<'l, 'a>| {
        let bare = found.path.strip_suffix('/').unwrap_or("");
        !bare.is_empty() && !is_taken(bare) && found.location.passes_on()
    };
    let slot =
        |found: &Static<'l, 'a>| Slot { location: found.location, region: None, adds_slash: true };
    statics.iter().filter(adds).map(slot).collect()
}

/// Returns the prefix location with the longest path that `path` begins with. Also searches the
/// locations inside of locations. Returns `None` if there is no such location.
pub fn longest<'l, 'a>(locations: &'l [Location<'a>], path: &str) -> Option<&'l Location<'a>> {
    let matching = locations.iter().filter(|location| {
        matches!(location.kind, LocationKind::Prefix { path: prefix, .. } if path.starts_with(prefix))
    });
    let best = matching.max_by_key(|location| location.path().map_or(0, str::len))?;
    Some(longest(&best.inner, path).unwrap_or(best))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nginx::syntax::read;

    /// Returns the order of a server's locations, with the regions of expressions.
    fn order_of(text: &str) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("x"), text).unwrap();
        let server = read(&dir.path().join("x")).unwrap();
        let locations = Location::of_server(&Scope::new(&server));
        let name = |slot: Slot<'_, '_>| {
            let name = match slot.location.kind {
                LocationKind::Exact(path) => format!("={path}"),
                LocationKind::Prefix { path, .. } if slot.adds_slash => format!("{path}?"),
                LocationKind::Prefix { path, .. } => path.into(),
                LocationKind::Regex { text, .. } => format!("~{text}"),
                LocationKind::Named(name) => name.into(),
            };
            slot.region.map_or(name.clone(), |region| format!("{name} in {region}"))
        };
        order(&locations).into_iter().map(name).collect()
    }

    #[test]
    fn exact_paths_precede_expressions_and_these_prefixes() {
        let text = "location /a/ { } location / { } location ~ r1 { } location = /x { } \
                    location /a/b/ { } location ~* r2 { }";
        assert_eq!(order_of(text), ["=/x", "~r1", "~r2", "/a/b/", "/a/", "/"]);
    }

    #[test]
    fn a_prefix_that_stops_the_search_precedes_expressions() {
        let text = "location ~ r { } location ^~ /img/ { } location /img/raw/ { }";
        assert_eq!(order_of(text), ["~r in /img/raw/", "/img/raw/", "/img/", "~r", "/"]);
    }

    #[test]
    fn expressions_within_a_prefix_hold_there_first() {
        let text = "location ~ out { } location /a/ { location ~ in { } location /a/b/ { } }";
        let all = order_of(text);
        let expected = [
            "~in in /a/b/",
            "~out in /a/b/",
            "/a/b/",
            "~in in /a/",
            "~out in /a/",
            "/a/",
            "~out",
            "/",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_slash_is_added_before_a_location_that_passes_requests_on() {
        let text = "location /a/ { proxy_pass http://b; } location /c/ { proxy_pass http://d; } \
                    location = /c { }";
        assert_eq!(order_of(text), ["=/c", "/a/?", "/a/", "/c/", "/"]);
    }
}
