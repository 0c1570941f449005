//! Finds bypasses of a rule. A bypass is a route that serves a protected resource under a path that
//! the rule does not match. `check` warns about them, and `explain` shows them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_conf::{
    self as conf, Action, AppKind, Matcher, PathPattern, Plan, Site, TemplatePart,
    looks_like_file_name,
};
use forebay_server::decide::Instead;
use forebay_upstream::fastcgi::below_prefix;
use forebay_upstream::mount;

use super::{has_gate, instead, kept_scripts};

/// A bypass of a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Around {
    /// Number of the rule's route.
    pub rule: usize,
    /// Number of the route that bypasses the rule.
    pub route: usize,
    /// A path of the bypass.
    pub path: String,
    /// A path that the rule matches, and the path that the backend gets for `path`. `None` for
    /// files, and if both paths equal `path`. For example, `strip_prefix` makes them different.
    pub backend: Option<(String, String)>,
}

/// Source of the resources that a route serves. Routes with equal sources can serve the same
/// resources.
#[derive(Debug, PartialEq, Eq)]
struct AnswerSource {
    /// A file system, the addresses of servers, or an application.
    space: String,
    path: Vec<u8>,
}

/// The resources that one path of a rule protects.
struct Region {
    place: AnswerSource,
    /// The path of the rule.
    start: String,
    /// True if the region includes everything below `place`.
    is_dir: bool,
}

/// Maximum number of rules per site, and of other routes that are compared with a rule. The limit
/// is necessary, because the time grows with the third power of this number.
const MOST: usize = 100;

/// Returns the bypasses of the rules of `site`, at most one for each pair of a rule and another
/// route.
pub fn ways_around(site: &Site, plan: &Plan) -> Vec<Around> {
    let mut found: Vec<Around> = Vec::new();
    let kept = kept_scripts(site, plan);
    // Skip a rule with a regular expression, because the paths that it matches are not known.
    let is_rule =
        |at: &usize| protects(&site.routes[*at]) && site.routes[*at].matcher.regex.is_none();
    for rule in (0..site.routes.len()).filter(is_rule).take(MOST) {
        for region in regions(site, plan, rule) {
            for around in others((site, plan, &kept), rule, &region) {
                add(&mut found, around);
            }
        }
        for path in beside(&site.routes[rule].matcher) {
            let route = reached(site, &kept, rule, &path);
            if let Some(route) = route.filter(|&at| is_unknown(&site.routes[at], plan)) {
                add(&mut found, Around { rule, route, path, backend: None });
            }
        }
    }
    found
}

/// Finds rules with an exact path that ends in `/`, such as `/admin/` instead of `/admin/*`. If
/// another route answers a path below it, returns that path and that route. In nginx, a location
/// such as `/admin/` includes everything below it.
pub fn paths_below(site: &Site, plan: &Plan) -> Vec<Around> {
    let kept = kept_scripts(site, plan);
    let mut found = Vec::new();
    for (rule, route) in site.routes.iter().enumerate().take(MOST) {
        if protects(route) || instead(route) == Instead::Answers {
            let starts = beginnings(&route.matcher).into_iter().filter(|&(start, is_dir)| {
                !is_dir && start.len() > 1 && start.ends_with('/') && !leads_below(route, start)
            });
            found.extend(
                starts.filter_map(|(start, _)| below_path((site, plan, &kept), rule, start)),
            );
        }
    }
    found
}

/// Returns a path below `start` that another route answers, or `None` without such a path. `start`
/// is an exact path of the rule. If the rule is a redirect or a fixed success reply, ignores routes
/// that are meant for these paths. Such a route has a path at or below `start`, or has no directory
/// of files at `start`.
fn below_path(
    (site, plan, kept): (&Site, &Plan, &[Vec<usize>]),
    rule: usize,
    start: &str,
) -> Option<Around> {
    let matcher = &site.routes[rule].matcher;
    let is_meant = |other: &conf::Route| {
        let place = place(other, plan, start.as_bytes()).filter(|place| place.space == "files");
        let is_own = beginnings(&other.matcher).iter().any(|(own, _)| own.starts_with(start));
        is_own || !place.is_some_and(|place| Path::new(OsStr::from_bytes(&place.path)).is_dir())
    };
    for (at, other) in site.routes.iter().enumerate().take(MOST) {
        let is_rule = at == rule || instead(other) != Instead::No;
        if is_rule || !protects(&site.routes[rule]) && is_meant(other) {
            continue;
        }
        for end in ends(matcher, &other.matcher) {
            let path = format!("{start}x{end}");
            if reached(site, kept, rule, &path) == Some(at) {
                return Some(Around { rule, route: at, path, backend: None });
            }
        }
    }
    None
}

/// Returns true if the route redirects to a path below `start`, such as `/docs/` to `/docs/intro`.
/// Another route must then answer the paths below `start`, and is no bypass.
fn leads_below(route: &conf::Route, start: &str) -> bool {
    let Action::Redirect(redirect) = &route.action else { return false };
    matches!(redirect.to.parts().first(), Some(TemplatePart::Text(to)) if to.starts_with(start))
}

/// Returns the numbers of the rules of `site` that protect what route `at` serves for `path`, but
/// do not match that path.
pub fn rules_beside(site: &Site, plan: &Plan, at: usize, path: &[u8]) -> Vec<usize> {
    let Some(place) = place(&site.routes[at], plan, path) else { return Vec::new() };
    let protects_it = |rule: &usize| {
        let matcher = &site.routes[*rule].matcher;
        let is_alike = matcher.suffixes.is_empty() || matcher.ends(&place.path);
        matcher.matches(method(matcher), path).is_none()
            && is_alike
            && regions(site, plan, *rule).iter().any(|region| region.has(&place))
    };
    let is_rule = |rule: &usize| {
        let route = &site.routes[*rule];
        *rule != at && protects(route) && route.matcher.regex.is_none()
    };
    let rules = (0..site.routes.len()).filter(is_rule);
    rules.filter(protects_it).collect()
}

/// Returns the numbers of routes that have access rules and a regular expression, if other routes
/// of the site answer, too. This module cannot find bypasses of such rules.
pub fn incomparable(site: &Site) -> Vec<usize> {
    let answers = |route: &&conf::Route| instead(route) == Instead::No;
    if site.routes.iter().filter(answers).count() < 2 {
        return Vec::new();
    }
    let is_one =
        |at: &usize| has_gate(&site.routes[*at]) && site.routes[*at].matcher.regex.is_some();
    (0..site.routes.len()).filter(is_one).collect()
}

fn add(found: &mut Vec<Around>, around: Around) {
    if !found.iter().any(|one| one.rule == around.rule && one.route == around.route) {
        found.push(around);
    }
}

/// Returns true if the route has an access rule, or is an error reply.
fn protects(route: &conf::Route) -> bool {
    has_gate(route) || instead(route) == Instead::Refuses
}

fn method(matcher: &Matcher) -> &[u8] {
    matcher.methods.first().map_or(b"GET", |method| method.as_bytes())
}

impl Region {
    fn has(&self, place: &AnswerSource) -> bool {
        let rest = place.path.strip_prefix(&self.place.path[..]);
        let is_below =
            |rest: &[u8]| rest.is_empty() || rest[0] == b'/' || self.place.path.ends_with(b"/");
        self.place.space == place.space
            && if self.is_dir { rest.is_some_and(is_below) } else { self.place == *place }
    }
}

/// Returns the resources that the rule protects. A rule with a fixed reply or redirect protects the
/// resources of the later routes. Every other rule protects the resources of its own origin.
fn regions(site: &Site, plan: &Plan, rule: usize) -> Vec<Region> {
    let route = &site.routes[rule];
    let origins = match instead(route) {
        Instead::No => &site.routes[rule..=rule],
        _ => &site.routes[rule + 1..],
    };
    let mut found = Vec::new();
    for (path, is_dir) in beginnings(&route.matcher) {
        // A route for other paths only, such as `/icons/*` for the rule `/cgi-bin/*`, serves nothing
        // that the rule protects.
        let is_met = |origin: &&conf::Route| {
            instead(origin) == Instead::No && origin.matcher.shares_paths(&route.matcher)
        };
        let origins = origins.iter().filter(is_met);
        found.extend(origins.take(MOST).filter_map(|origin| {
            let place = if is_dir {
                directory(origin, plan, path)
            } else {
                place(origin, plan, path.as_bytes())
            };
            Some(Region { place: place?, start: path.to_owned(), is_dir })
        }));
    }
    found
}

/// Returns the fixed beginning of each path of a matcher. The boolean is true for a path with `*`,
/// which matches everything below its beginning. A matcher without paths matches all below `/`.
fn beginnings(matcher: &Matcher) -> Vec<(&str, bool)> {
    if matcher.paths.is_empty() {
        return vec![("/", true)];
    }
    let beginnings = matcher.paths.iter().map(|pattern| match pattern {
        PathPattern::Exact(path) => (path.as_str(), false),
        PathPattern::Prefix(path) => (path.as_str(), true),
    });
    beginnings.collect()
}

/// Returns the bypasses of the rule by other routes that serve resources of `region`.
fn others(
    (site, plan, kept): (&Site, &Plan, &[Vec<usize>]),
    rule: usize,
    region: &Region,
) -> Vec<Around> {
    let matcher = &site.routes[rule].matcher;
    let mut found = Vec::new();
    for (at, other) in site.routes.iter().enumerate().take(MOST) {
        if at == rule || instead(other) != Instead::No {
            continue;
        }
        for end in ends(matcher, &other.matcher) {
            let name = if region.is_dir { format!("x{end}") } else { String::new() };
            for (start, is_dir) in beginnings(&other.matcher) {
                let base = if is_dir {
                    directory(other, plan, start)
                } else {
                    place(other, plan, start.as_bytes())
                };
                let Some(base) = base.filter(|base| base.space == region.place.space) else {
                    continue;
                };
                let Some(path) = path_to(region, &name, &base, (start, is_dir)) else { continue };
                if reached(site, kept, rule, &path) == Some(at) {
                    let backend = at_backend(region, (other, plan), &path);
                    found.push(Around { rule, route: at, path, backend });
                }
            }
        }
    }
    found
}

/// Returns two other paths of the resource that a bypass serves at `path`. The rule matches the
/// first path, and the backend gets the second path. Returns `None` for files, and if both paths
/// are equal to `path`.
fn at_backend(
    region: &Region,
    (other, plan): (&conf::Route, &Plan),
    path: &str,
) -> Option<(String, String)> {
    let place = place(other, plan, path.as_bytes()).filter(|place| place.space != "files")?;
    let backend = String::from_utf8(place.path).ok()?;
    let region_path = std::str::from_utf8(&region.place.path).ok()?;
    let of_rule = if region.is_dir {
        let rest = backend.strip_prefix(region_path)?.trim_start_matches('/');
        format!("{}{rest}", region.start)
    } else {
        region.start.clone()
    };
    (of_rule != backend || path != backend).then_some((of_rule, backend))
}

/// Returns a path that begins with `start` and leads to a resource of the region. Returns `None` if
/// there is no such path.
fn path_to(
    region: &Region,
    name: &str,
    base: &AnswerSource,
    (start, is_dir): (&str, bool),
) -> Option<String> {
    let target =
        if region.is_dir { below(&region.place.path, name) } else { region.place.path.clone() };
    if !is_dir {
        return region.has(base).then(|| start.to_owned());
    }
    let inside = Region {
        place: AnswerSource { space: base.space.clone(), path: base.path.clone() },
        start: start.to_owned(),
        is_dir,
    };
    if inside.has(&AnswerSource { space: base.space.clone(), path: target.clone() }) {
        let rest = String::from_utf8_lossy(&target[base.path.len()..]).into_owned();
        return Some(format!("{start}{}", rest.trim_start_matches('/')));
    }
    // The whole directory of the other route is in the region, so any name below it is, too.
    (region.is_dir && region.has(base)).then(|| format!("{start}{name}"))
}

fn below(dir: &[u8], name: &str) -> Vec<u8> {
    let slash: &[u8] = if dir.ends_with(b"/") { b"" } else { b"/" };
    [dir, slash, name.as_bytes()].concat()
}

/// Returns the name endings that both matchers take.
fn ends<'m>(ours: &'m Matcher, theirs: &'m Matcher) -> Vec<&'m str> {
    let all = |matcher: &'m Matcher| matcher.suffixes.iter().map(String::as_str).collect();
    match (ours.suffixes.is_empty(), theirs.suffixes.is_empty()) {
        (true, true) => vec![""],
        (true, false) => all(theirs),
        (false, true) => all(ours),
        (false, false) => ours
            .suffixes
            .iter()
            .filter(|end| theirs.ends(end.as_bytes()))
            .map(String::as_str)
            .collect(),
    }
}

/// Returns the route that serves `path`. Returns `None` if no route serves it, or if a route with
/// an access rule or an error reply matches first. Also returns `None` if a route before `rule`
/// matches first, and `rule` would match all requests of that route. Such a route is an intended
/// exception. Skips routes that may leave the path to later routes, such as those with `when`.
fn reached(site: &Site, kept: &[Vec<usize>], rule: usize, path: &str) -> Option<usize> {
    let matcher = &site.routes[rule].matcher;
    for (at, route) in site.routes.iter().enumerate() {
        if route.matcher.matches(method(matcher), path.as_bytes()).is_none() {
            continue;
        }
        if protects(route) || at < rule && matcher.covers(&route.matcher) {
            return None;
        }
        if route.matcher.when.is_some() {
            continue;
        }
        let is_handed_on = match &route.action {
            Action::Files(_) => kept[at].is_empty() && route.passes_on(),
            Action::Moved(_) => true,
            _ => false,
        };
        if !is_handed_on {
            return Some(at);
        }
    }
    None
}

/// Returns paths that servers often treat like those of a rule.
fn beside(matcher: &Matcher) -> Vec<String> {
    let mut found = Vec::new();
    if !matcher.suffixes.is_empty() {
        return found;
    }
    for pattern in &matcher.paths {
        match pattern {
            PathPattern::Exact(path)
                if !path.ends_with('/') && !looks_like_file_name(path.as_bytes()) =>
            {
                found.push(format!("{path}/"));
            }
            PathPattern::Prefix(path) if path.len() > 1 && path.ends_with('/') => {
                found.push(path.trim_end_matches('/').to_owned());
            }
            _ => {}
        }
    }
    found
}

/// Returns true if the route passes paths to a server or application that Forebay cannot inspect.
fn is_unknown(route: &conf::Route, plan: &Plan) -> bool {
    match &route.action {
        Action::Proxy(_) | Action::Ajp(_) | Action::AppServer(_) => true,
        Action::App(name) => dir_of_app(&plan.apps[name]).is_none(),
        _ => false,
    }
}

/// Returns the directory of an application whose paths name files, and `None` for other
/// applications.
fn dir_of_app(app: &conf::App) -> Option<&Path> {
    match &app.kind {
        AppKind::CgiBin { dir, .. }
        | AppKind::PerlCgi { dir, .. }
        | AppKind::PythonCgi { dir, .. } => Some(dir),
        AppKind::Php { root, .. } => Some(root),
        _ => None,
    }
}

/// Returns the source of all answers that the route gives below `start`, or `None` if the source is
/// not known.
fn directory(route: &conf::Route, plan: &Plan, start: &str) -> Option<AnswerSource> {
    let found = place(route, plan, start.as_bytes())?;
    let path = match found.path.strip_suffix(b"/") {
        Some(path) if !path.is_empty() => path.to_vec(),
        _ => found.path,
    };
    Some(AnswerSource { path, ..found })
}

/// Returns the source of the route's answer for `path`, even if the route does not match that path.
/// Returns `None` if the source is not known.
fn place(route: &conf::Route, plan: &Plan, path: &[u8]) -> Option<AnswerSource> {
    let rest = route.matcher.rest(path);
    let rest = rest.unwrap_or_else(|| path.strip_prefix(b"/").unwrap_or(path));
    let in_dir = |dir: &Path, rest: &[u8]| {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let path = below(dir.as_os_str().as_bytes(), &String::from_utf8_lossy(rest));
        Some(AnswerSource { space: "files".into(), path })
    };
    let scripts_in = |dir: &Path, prefix: &Option<String>| {
        let below = below_prefix(path, prefix.as_deref())?;
        in_dir(dir, below.strip_prefix(b"/").unwrap_or(below))
    };
    let at_server = |path: &[u8]| {
        let upstream = route.action.upstream()?;
        let space = upstream.addresses().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        Some(AnswerSource { space, path: path.to_vec() })
    };
    let path_info =
        |point: &Option<String>| mount::split(path, path.len() - rest.len(), point.as_deref()).1;
    match &route.action {
        Action::Files(files) => in_dir(&files.root, rest),
        Action::Cgi(cgi) => in_dir(&cgi.dir, if cgi.program.is_some() { b"" } else { rest }),
        Action::Fastcgi(fastcgi) => match (&fastcgi.root, &fastcgi.mount) {
            (Some(root), None) => scripts_in(root, &fastcgi.strip_prefix),
            (_, point) => at_server(path_info(point)),
        },
        Action::Proxy(proxy) => {
            let strip = proxy.strip_prefix.as_deref().unwrap_or_default();
            at_server(path.strip_prefix(strip.as_bytes()).unwrap_or(path))
        }
        Action::AppServer(server) => at_server(path_info(&server.mount)),
        Action::Ajp(_) => at_server(path),
        Action::App(name) => match dir_of_app(&plan.apps[name]) {
            Some(dir) => match &plan.apps[name].kind {
                AppKind::Php { strip_prefix, .. } => scripts_in(dir, strip_prefix),
                _ => in_dir(dir, rest),
            },
            None => {
                let path = path_info(&plan.apps[name].mount).to_vec();
                Some(AnswerSource { space: format!("app {name}"), path })
            }
        },
        Action::Respond(_) | Action::Redirect(_) | Action::Moved(_) | Action::Rewrite => None,
    }
}
