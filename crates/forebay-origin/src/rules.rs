//! Finds the other paths of a file or script, so that a rule applies to the resource and not only
//! to one of its paths.
//!
//! A route is a rule for later routes if it does one of these: it admits only some clients
//! (`allow`, `deny`, `basic_auth`); it answers instead of later routes (`respond`, `redirect`); it
//! keeps later routes from running files of a directory. The walk over the routes compares rules
//! with the path of the request and with the paths that this module finds: that of the script, that
//! of a file in another coding or language, and the path as an external server may read it.

mod around;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_conf::{
    self as conf, Access, Action, AppKind, PathParameters, Plan, ScriptsBelow, Site,
};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::decide::{
    IndexFinder, Instead, OtherPath, OtherPathKind, OtherPaths, RouteFacts,
};
use forebay_upstream::fastcgi::{below_prefix, script_end};
use forebay_upstream::script::Scripts;
use forebay_wire::path::{merge_slashes, without_parameters};

use crate::apps::program::{PathMapping, Protocol};
use crate::apps::running;
use crate::files::{FileResolver, ScriptRoutes, runs_scripts, split_language};

pub use around::{incomparable, paths_below, rules_beside, ways_around};

/// Returns true if the route admits only some clients.
pub fn has_gate(route: &conf::Route) -> bool {
    route.access != Access::default()
}

/// Returns `Refuses` for a route with a fixed error reply. Returns `Answers` for another fixed
/// reply or a redirect. Returns `No` for all other routes.
pub fn instead(route: &conf::Route) -> Instead {
    match &route.action {
        Action::Respond(respond) if respond.status >= 400 => Instead::Refuses,
        Action::Respond(_) | Action::Redirect(_) => Instead::Answers,
        _ => Instead::No,
    }
}

/// Returns, for each route of `site`, the numbers of the later script routes that must not run its
/// files. Only the key `scripts` of a files route excludes script routes. With `Covered`, a script
/// route may run the files if the files route matches every request of the script route. Without
/// this exception, the script route would never run a script.
pub fn kept_scripts(site: &Site, plan: &Plan) -> Vec<Vec<usize>> {
    let run: Vec<_> = site.routes.iter().map(|route| runs_scripts(route, plan)).collect();
    let kept_from = |(at, route): (usize, &conf::Route)| {
        let Action::Files(files) = &route.action else { return Vec::new() };
        let is_kept = |below: &usize| match files.scripts {
            ScriptsBelow::All => false,
            ScriptsBelow::Nothing => run[*below],
            ScriptsBelow::Covered => {
                run[*below] && !route.matcher.covers(&site.routes[*below].matcher)
            }
        };
        (at + 1..site.routes.len()).filter(is_kept).collect()
    };
    site.routes.iter().enumerate().map(kept_from).collect()
}

/// What the walk over the routes of `site` must know of each, and the resolvers of the files routes.
pub fn facts(site: &Site, plan: &Plan) -> (Vec<RouteFacts>, Vec<Option<Rc<FileResolver>>>) {
    let kept = kept_scripts(site, plan);
    let scripts = ScriptRoutes::of(site, plan);
    let of_route = |(at, route): (usize, &conf::Route)| {
        let files = FileResolver::of_route(site, at, &scripts, &kept[at]).map(Rc::new);
        let may_lead = at > 0 || !scripts.is_empty();
        let index = files.clone().filter(|_| may_lead);
        let others = Others::of_route(site, plan, at, &kept);
        let facts = RouteFacts {
            matcher: route.matcher.clone(),
            has_gate: has_gate(route),
            asks_about_path: route.access.forward_auth.is_some(),
            instead: instead(route),
            redirects: matches!(route.action, Action::Redirect(_) | Action::Moved(_)),
            internal: route.access.internal,
            rewrite: route.rewrite.clone(),
            only_rewrites: route.action == Action::Rewrite,
            fallback: route.fallback,
            fallback_to: route.fallback_to.clone(),
            keeps_from: kept[at].clone(),
            same_origin: if others.is_some() { same_origin(site, at) } else { Vec::new() },
            names: others.map(|others| Box::new(others) as Box<dyn OtherPaths>),
            index: index.map(|index| index as Rc<dyn IndexFinder>),
        };
        (facts, files)
    };
    site.routes.iter().enumerate().map(of_route).unzip()
}

/// Returns the numbers of the routes before `at` that run the same scripts for the same paths.
fn same_origin(site: &Site, at: usize) -> Vec<usize> {
    let route = &site.routes[at];
    // Only here does the whole path name the script, whatever the pattern of the route is.
    if !matches!(&route.action, Action::Fastcgi(fastcgi) if fastcgi.mount.is_none()) {
        return Vec::new();
    }
    let is_same = |earlier: &usize| {
        let earlier = &site.routes[*earlier];
        earlier.action == route.action
            && earlier.rewrite.is_none()
            && earlier.matcher.when.is_none()
            && earlier.request_headers == route.request_headers
    };
    (0..at).filter(is_same).collect()
}

/// Finds the other paths of the resources that a route serves.
pub struct Others {
    named: Named,
    parameters: PathParameters,
    ignores_case: bool,
    /// True if the origin also receives the client's own target, as REQUEST_URI.
    has_request_uri: bool,
}

/// Resources that the paths of a route name.
enum Named {
    /// Files, and the index files of directories.
    Files(conf::Files),
    /// Scripts, with the rest of the path.
    Scripts(Scripts),
    /// Scripts whose names a FastCGI application receives.
    Fastcgi(Box<conf::Fastcgi>),
    /// Resources that only the backend or application knows. The first value searches a directory
    /// that may have its scripts. The second value is a prefix that is removed from a path before
    /// this search.
    Unknown(Option<Scripts>, Option<String>),
}

impl Others {
    /// Returns the finder for route `at` of `site`. `kept` is the result of [`kept_scripts`] for
    /// the site. Returns `None` for a route without resources, such as a redirect. Also returns
    /// `None` if no rule comes before the route. But if the route refuses path parameters, always
    /// returns a finder, because the finder refuses them.
    pub fn of_route(site: &Site, plan: &Plan, at: usize, kept: &[Vec<usize>]) -> Option<Self> {
        let route = &site.routes[at];
        let is_rule = |(above, route): (usize, &conf::Route)| {
            has_gate(route) || instead(route) != Instead::No || kept[above].contains(&at)
        };
        let has_rule = site.routes[..at].iter().enumerate().any(is_rule);
        if !has_rule && route.path_parameters != PathParameters::Refuse {
            return None;
        }
        let mut ignores_case = false;
        let in_dir = |dir: &PathBuf| Scripts::new(dir.clone());
        let named = match &route.action {
            Action::Respond(_) | Action::Redirect(_) | Action::Moved(_) | Action::Rewrite => {
                return None;
            }
            Action::Files(files) => Named::Files(files.clone()),
            Action::Cgi(cgi) if cgi.program.is_none() => Named::Scripts(in_dir(&cgi.dir)),
            Action::Fastcgi(fastcgi) if fastcgi.mount.is_none() => {
                Named::Fastcgi(Box::new(fastcgi.clone()))
            }
            Action::AppServer(server) => Named::Unknown(server.root.as_ref().map(in_dir), None),
            Action::App(name) => match &plan.apps[name].kind {
                AppKind::CgiBin { dir, .. }
                | AppKind::PerlCgi { dir, .. }
                | AppKind::PythonCgi { dir, .. } => Named::Scripts(in_dir(dir)),
                kind => {
                    // Mono compares file names and routes without regard to case.
                    ignores_case = matches!(kind, AppKind::Mono { .. });
                    of_program(&plan.apps[name])
                }
            },
            Action::Cgi(_) | Action::Fastcgi(_) | Action::Ajp(_) | Action::Proxy(_) => {
                Named::Unknown(None, None)
            }
        };
        let has_request_uri = has_request_uri(route, plan);
        Some(Self { named, parameters: route.path_parameters, ignores_case, has_request_uri })
    }

    /// Appends the paths that an external server may derive from `path`, which is the request's own
    /// path or another reading of it.
    fn guess<'r>(
        &self,
        path: Cow<'r, [u8]>,
        scripts: Option<(&Scripts, &Option<String>)>,
        second: u64,
        found: &mut Vec<OtherPath<'r>>,
    ) {
        let mut add = |path, kind| {
            found.push(OtherPath { path, kind, ignores_case: self.ignores_case });
        };
        if let Some((scripts, prefix)) = scripts
            && let Some(below) = below_prefix(&path, prefix.as_deref())
            && let Ok(script) = scripts.find(below, second)
        {
            let end = path.len() - script.path_info;
            add(cut(&path, end), OtherPathKind::Certain);
        }
        // `/admin.php/x` may run `/admin.php`.
        add(path, OtherPathKind::Heads);
    }
}

fn cut<'r>(path: &Cow<'r, [u8]>, end: usize) -> Cow<'r, [u8]> {
    match path {
        Cow::Borrowed(path) => Cow::Borrowed(&path[..end]),
        Cow::Owned(path) => Cow::Owned(path[..end].to_vec()),
    }
}

impl OtherPaths for Others {
    fn of<'r>(&self, request: &'r Request, second: u64) -> Result<Vec<OtherPath<'r>>, Fault> {
        let path = &request.path[..];
        let mut found = Vec::new();
        let mut certain = |path: Cow<'r, [u8]>| {
            found.push(OtherPath { path, kind: OtherPathKind::Certain, ignores_case: false });
        };
        match &self.named {
            Named::Files(files) => {
                // `/a.txt.gz` has the content of `/a.txt`.
                let extensions = files.precompressed.iter().map(|coding| coding.extension());
                let plain = extensions
                    .filter_map(|end| path.strip_suffix(end.as_bytes())?.strip_suffix(b"."));
                plain.map(Cow::Borrowed).for_each(&mut certain);
                // A gate of `/about` protects `/about.html`, too. A redirect from the one to the other
                // is for clients, and no rule.
                let longer = files.extensions.iter();
                let shorter = longer.filter_map(|end| path.strip_suffix(end.as_bytes()));
                found.extend(shorter.map(|path| OtherPath {
                    path: path.into(),
                    kind: OtherPathKind::Guess,
                    ignores_case: false,
                }));
                if !files.languages.is_empty() {
                    add_languages(files, request, &mut found);
                }
            }
            Named::Scripts(scripts) => {
                if let Ok(script) = scripts.find(request.rest(), second) {
                    certain(Cow::Borrowed(&path[..path.len() - script.path_info]));
                }
            }
            Named::Fastcgi(fastcgi) => {
                // The origin declines a path without this prefix, so no script runs.
                let prefix = fastcgi.strip_prefix.as_deref();
                let Some(below) = below_prefix(path, prefix) else { return Ok(found) };
                let end = script_end(below, fastcgi).map(|end| path.len() - below.len() + end);
                match end {
                    Some(end) => certain(Cow::Borrowed(&path[..end])),
                    None if path.ends_with(b"/") => {
                        certain([path, fastcgi.index.as_bytes()].concat().into());
                    }
                    None => {}
                }
                let is_here = fastcgi.root.as_deref().is_some_and(Path::is_dir);
                let unmasked = Some(&request.unmasked[..]).filter(|unmasked| !unmasked.is_empty());
                for read in [path].into_iter().chain(unmasked).filter(|_| !is_here) {
                    self.guess(Cow::Borrowed(read), None, second, &mut found);
                }
            }
            Named::Unknown(root, prefix) => {
                if self.parameters == PathParameters::Refuse && path.contains(&b';') {
                    return Err(refused_parameter());
                }
                let scripts = root.as_ref().map(|root| (root, prefix));
                for read in [path, &request.unmasked].into_iter().filter(|read| !read.is_empty()) {
                    let plain = without_parameters(read);
                    let plain = plain.filter(|_| self.parameters == PathParameters::Match);
                    for read in [Some(Cow::Borrowed(read)), plain.map(Cow::Owned)] {
                        let Some(read) = read else { continue };
                        found.push(OtherPath {
                            path: read.clone(),
                            kind: OtherPathKind::Certain,
                            ignores_case: self.ignores_case,
                        });
                        self.guess(read, scripts, second, &mut found);
                    }
                }
            }
        }
        if self.has_request_uri {
            // An application that routes by REQUEST_URI may not resolve dot segments.
            let ignores_case = self.ignores_case;
            found.extend(request.unresolved_path().map(|path| OtherPath {
                path: path.into(),
                kind: OtherPathKind::Guess,
                ignores_case,
            }));
        }
        add_merged(path, &mut found);
        found.retain(|other| {
            *other.path != *path || other.ignores_case || other.kind == OtherPathKind::Heads
        });
        Ok(found)
    }
}

/// Adds the path with merged slashes. If a site keeps repeated slashes, files and backends may
/// still read `//` as `/`.
fn add_merged<'r>(path: &'r [u8], found: &mut Vec<OtherPath<'r>>) {
    let has_repeated = |path: &[u8]| memchr::memmem::find(path, b"//").is_some();
    if !has_repeated(path) {
        return;
    }
    found.push(OtherPath { path: path.into(), kind: OtherPathKind::Certain, ignores_case: false });
    for other in found.iter_mut().filter(|other| has_repeated(&other.path)) {
        merge_slashes(other.path.to_mut());
    }
}

/// Returns true if the route's origin receives the client's own target as REQUEST_URI.
fn has_request_uri(route: &conf::Route, plan: &Plan) -> bool {
    match &route.action {
        Action::Cgi(_) | Action::Fastcgi(_) | Action::AppServer(_) => true,
        Action::App(name) => {
            let app = &plan.apps[name];
            let is_server = |app| match running::program_options(app).protocol {
                Protocol::Http(route) => route.variables.is_none(),
                Protocol::Ajp(_) => true,
                Protocol::Fastcgi(..) | Protocol::AppServer(_) => false,
            };
            !running::listens(app) || !is_server(app)
        }
        Action::Files(_)
        | Action::Ajp(_)
        | Action::Proxy(_)
        | Action::Respond(_)
        | Action::Redirect(_)
        | Action::Moved(_)
        | Action::Rewrite => false,
    }
}

fn refused_parameter() -> Fault {
    Fault::client(404, "a path parameter, which `path_parameters = \"refuse\"` keeps out")
}

/// Adds the paths of the file's variants in other languages. `/a.html.de` has the content of
/// `/a.html`, if the client prefers this language.
fn add_languages(files: &conf::Files, request: &Request, found: &mut Vec<OtherPath<'_>>) {
    let other = |path: Vec<u8>, kind| OtherPath { path: path.into(), kind, ignores_case: false };
    // The walk over the routes follows the path of the index itself.
    let index = found_index(files, request);
    let own = [Some(&request.path), index.as_ref()];
    let own = || own.iter().flatten().map(|path| &path[..]);
    let paths = || found.iter().map(|other| &other.path[..]).chain(own());
    let plain = |path| split_language(path, &files.languages).map(|(base, _)| base.to_vec());
    let mut more: Vec<_> =
        paths().filter_map(plain).map(|path| other(path, OtherPathKind::Certain)).collect();
    let before = request.path.len() - request.rest().len();
    for path in paths() {
        let file = files.root.join(OsStr::from_bytes(path.get(before..).unwrap_or_default()));
        let variants = files.languages.iter().filter(|tag| {
            let mut name = file.clone().into_os_string();
            name.push(format!(".{tag}"));
            Path::new(&name).is_file()
        });
        // Forebay may send this variant or another one. So only rules that restrict or refuse the
        // variant's path apply to the request.
        let variants = variants.map(|tag| [path, b".", tag.as_bytes()].concat());
        more.extend(variants.map(|path| other(path, OtherPathKind::Guess)));
    }
    found.append(&mut more);
}

/// Returns the path of the file that answers for the request although it has a longer name: the
/// index of a directory, or the file with an extension more.
fn found_index(files: &conf::Files, request: &Request) -> Option<Vec<u8>> {
    let is_directory = request.path.ends_with(b"/");
    let names = if is_directory { &files.index } else { &files.extensions };
    let has = |name: &&String| {
        let file = files.root.join(OsStr::from_bytes(&[request.rest(), name.as_bytes()].concat()));
        let in_language = |tag: &String| {
            let mut file = file.clone().into_os_string();
            file.push(format!(".{tag}"));
            Path::new(&file).is_file()
        };
        file.is_file() || files.languages.iter().any(in_language)
    };
    Some([&request.path, names.iter().find(has)?.as_bytes()].concat())
}

/// Returns the kind of resources that request paths name in an application without a directory of
/// CGI scripts.
fn of_program(app: &conf::App) -> Named {
    if !running::listens(app) {
        return Named::Unknown(None, None);
    }
    match running::program_options(app).protocol {
        Protocol::Fastcgi(PathMapping::Scripts, settings) => Named::Fastcgi(Box::new(settings)),
        Protocol::Fastcgi(PathMapping::Below, settings) => {
            Named::Unknown(settings.root.map(Scripts::new), settings.strip_prefix)
        }
        Protocol::Fastcgi(PathMapping::Mount, _) => Named::Unknown(None, None),
        Protocol::AppServer(server) => Named::Unknown(server.root.map(Scripts::new), None),
        Protocol::Http(_) | Protocol::Ajp(_) => Named::Unknown(None, None),
    }
}
