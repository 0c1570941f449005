//! Finds the files that the script routes of a site run, so that no other route sends their source.
//! This includes copies that editors leave next to such files.
//!
//! Each file is looked up below the directories of the site's script routes, by its name and its
//! real path. A files route leaves a script to later routes. For an index file that is a script,
//! and for `fallback_to`, Forebay selects a route again.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_conf::{
    self as conf, Action, AppKind, Matcher, PathPattern, Plan, Site, ends_in_any_case,
};
use forebay_upstream::script::looks_like_script;
use rustix::fs::{CWD, readlinkat};

use crate::apps::program::{PathMapping, Protocol};
use crate::apps::running;

/// The script routes of one site.
#[derive(Clone, Default)]
pub struct ScriptRoutes(Rc<[ScriptRoute]>);

/// Identity of a route of a site. The line does not identify the route, because one line of the
/// configuration file may have several routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteId {
    number: usize,
    /// The line of the route, for messages.
    pub line: usize,
}

impl RouteId {
    /// Returns the identity of route `number` of `site`.
    pub fn of(site: &Site, number: usize) -> Self {
        Self { number, line: site.routes[number].line }
    }
}

/// A route that runs scripts.
struct ScriptRoute {
    id: RouteId,
    /// Directory of the scripts, as configured; `real` is its path without links.
    dir: PathBuf,
    real: Option<PathBuf>,
    /// The paths that the route takes, without leading slash. Empty if the route takes all paths.
    only: Vec<String>,
    /// The paths that the route takes.
    matcher: Matcher,
    /// Endings of script names. If there are none, every file that looks like a script counts as a
    /// script.
    ends: Vec<String>,
    /// True if the case of `ends` does not matter.
    ignores_case: bool,
    /// Subdirectories of `dir` that belong to the application, with all their files.
    own: &'static [&'static str],
    /// Index script of a directory.
    index: Option<String>,
}

impl ScriptRoutes {
    /// Returns the script routes of `site`.
    pub fn of(site: &Site, plan: &Plan) -> Self {
        let numbers = 0..site.routes.len();
        Self(numbers.filter_map(|number| script_route(site, number, plan)).collect())
    }

    /// Returns true if there are no script routes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the route that would run `file`, or `None`. If `file` is an editor's copy of a
    /// script (such as `x.pl~`), returns the route that would run the original. `path` is the path
    /// that was opened, and `start` is the beginning of the file.
    pub fn runner(&self, path: &Path, file: &File, start: &[u8]) -> Option<RouteId> {
        if self.is_empty() {
            return None;
        }
        let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        let real = readlinkat(CWD, descriptor, Vec::new()).ok();
        let real =
            real.as_ref().map(|real| Path::new(std::ffi::OsStr::from_bytes(real.as_bytes())));
        let found = self.0.iter().find(|route| {
            let by_name = path.strip_prefix(&route.dir).ok();
            let by_place = route.real.as_ref().and_then(|dir| real?.strip_prefix(dir).ok());
            [by_name, by_place].into_iter().flatten().any(|below| route.runs(below, start))
        });
        found.map(|route| route.id)
    }

    /// Returns true if route `id`, which [`runner`](Self::runner) has returned, takes paths that
    /// continue after a script's name.
    pub fn takes_path_info(&self, id: RouteId) -> bool {
        self.0.iter().any(|route| route.id == id && route.only.is_empty())
    }

    /// Returns true if a route takes the URL that begins with `url` and ends with `name` as that of a
    /// script, by its ending. The script may be missing.
    pub fn take_url(&self, url: &[u8], name: &str) -> bool {
        // Most names, such as `index.html`, have no ending of scripts, so they need no allocation.
        let mut routes = self.0.iter().filter(|route| route.has_ending(name.as_bytes())).peekable();
        if routes.peek().is_none() {
            return false;
        }
        let path = [url, name.as_bytes()].concat();
        routes.any(|route| route.matcher.matches(b"GET", &path).is_some())
    }

    /// Returns the names of the routes' index scripts.
    pub fn indexes(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|route| route.index.as_deref())
    }

    /// Returns true if a route would run the file at `path`, or would run the original if the file
    /// is a copy. Does not read the file.
    pub fn run_named(&self, path: &Path) -> bool {
        self.route_of(path).is_some()
    }

    /// Returns the route that would run the file at `path`, or `None`. Does not read the file.
    pub fn route_of(&self, path: &Path) -> Option<RouteId> {
        let below = |route: &ScriptRoute| path.strip_prefix(&route.dir).ok().map(Path::to_owned);
        let mut routes = self.0.iter();
        let found = routes.find(|route| below(route).is_some_and(|below| route.runs(&below, b"")));
        found.map(|route| route.id)
    }
}

impl ScriptRoute {
    /// Returns true if the route would run this file, or would run the original if the file is a
    /// copy. `below` is the path below the route's directory.
    fn runs(&self, below: &Path, start: &[u8]) -> bool {
        let below = below.as_os_str().as_bytes();
        self.runs_named(below, start)
            || original(below).is_some_and(|below| self.runs_named(&below, start))
    }

    /// Returns true if the route would run a file with this name and beginning. Treats an editor's
    /// copy of a script as any other file.
    fn runs_named(&self, below: &[u8], start: &[u8]) -> bool {
        let is_reached = |path: &String| {
            if path.ends_with('/') || path.is_empty() {
                self.index
                    .as_ref()
                    .is_some_and(|i| [path.as_bytes(), i.as_bytes()].concat() == below)
            } else {
                path.as_bytes() == below
            }
        };
        if !self.only.is_empty() && !self.only.iter().any(is_reached) {
            return false;
        }
        let first = below.split(|&b| b == b'/').next().unwrap_or_default();
        if self.own.iter().any(|own| first.eq_ignore_ascii_case(own.as_bytes())) {
            return true;
        }
        if self.ends.is_empty() { looks_like_script(below, start) } else { self.has_ending(below) }
    }

    /// Returns true if the name has one of the configured endings.
    fn has_ending(&self, name: &[u8]) -> bool {
        self.ends.iter().any(|end| name.ends_with(end.as_bytes()))
            || self.ignores_case && self.ends.iter().any(|end| ends_in_any_case(name, end))
    }
}

/// Returns the path of the original if the name is that of a copy: `x~`, `#x#`, `x.bak` and
/// `x.bak~` are copies of `x`.
fn original(path: &[u8]) -> Option<Vec<u8>> {
    let start = memchr::memrchr(b'/', path).map_or(0, |at| at + 1);
    let (dir, mut name) = path.split_at(start);
    while let Some(shorter) = without_mark(name) {
        name = shorter;
    }
    (name.len() < path.len() - start).then(|| [dir, name].concat())
}

fn without_mark(name: &[u8]) -> Option<&[u8]> {
    let by_editor = || name.strip_prefix(b"#")?.strip_suffix(b"#");
    let by_end = || {
        let end = memchr::memrchr(b'.', name)?;
        let is_mark = COPIES.iter().any(|copy| name[end + 1..].eq_ignore_ascii_case(copy));
        is_mark.then(|| &name[..end])
    };
    let shorter = name.strip_suffix(b"~").or_else(by_editor).or_else(by_end)?;
    (!shorter.is_empty()).then_some(shorter)
}

/// Endings that editors and administrators give to copies, after a dot.
const COPIES: [&[u8]; 6] = [b"bak", b"save", b"swp", b"swo", b"old", b"orig"];

/// Endings of files that ASP.NET runs, compiles or reads, and never sends.
const OF_ASP_NET: [&str; 24] = [
    ".ashx",
    ".aspx",
    ".asmx",
    ".asax",
    ".ascx",
    ".master",
    ".skin",
    ".svc",
    ".axd",
    ".cshtml",
    ".vbhtml",
    ".cs",
    ".vb",
    ".config",
    ".browser",
    ".sitemap",
    ".resx",
    ".resources",
    ".dll",
    ".exe",
    ".mdb",
    ".pdb",
    ".csproj",
    ".sln",
];
const DIRECTORIES_OF_ASP_NET: [&str; 7] = [
    "bin",
    "App_Code",
    "App_Data",
    "App_Browsers",
    "App_GlobalResources",
    "App_LocalResources",
    "App_WebReferences",
];

/// Returns true if the route runs the files that request paths name.
pub fn runs_scripts(route: &conf::Route, plan: &Plan) -> bool {
    match &route.action {
        Action::Cgi(cgi) => cgi.program.is_none(),
        Action::Fastcgi(fastcgi) => fastcgi.mount.is_none(),
        Action::App(name) => match &plan.apps[name].kind {
            AppKind::CgiBin { .. }
            | AppKind::PerlCgi { .. }
            | AppKind::PythonCgi { .. }
            | AppKind::Mono { .. } => true,
            _ => of_program(&plan.apps[name]).is_some(),
        },
        _ => false,
    }
}

fn script_route(site: &Site, number: usize, plan: &Plan) -> Option<ScriptRoute> {
    let route = &site.routes[number];
    let mut own: &[&str] = &[];
    let mut prefix = None;
    let (dir, ends, index) = match &route.action {
        Action::Cgi(cgi) if cgi.program.is_none() => (cgi.dir.clone(), Vec::new(), None),
        Action::Fastcgi(fastcgi) if fastcgi.mount.is_none() => {
            prefix = fastcgi.strip_prefix.clone();
            let root = fastcgi.root.clone()?;
            (root, fastcgi.scripts.clone(), Some(fastcgi.index.clone()))
        }
        Action::App(name) => match &plan.apps[name].kind {
            AppKind::CgiBin { dir, .. }
            | AppKind::PerlCgi { dir, .. }
            | AppKind::PythonCgi { dir, .. } => (dir.clone(), Vec::new(), None),
            AppKind::Mono { dir, .. } => {
                own = &DIRECTORIES_OF_ASP_NET;
                (dir.clone(), OF_ASP_NET.map(str::to_owned).into(), None)
            }
            _ => {
                let (settings, index) = of_program(&plan.apps[name])?;
                prefix = settings.strip_prefix;
                (settings.root?, settings.scripts, index)
            }
        },
        _ => return None,
    };
    // If the application names no endings, use those of the route's paths.
    let ends = if ends.is_empty() { route.matcher.suffixes.clone() } else { ends };
    let exact = route.matcher.paths.iter().map(|pattern| match pattern {
        PathPattern::Exact(path) => {
            let below = path.strip_prefix(prefix.as_deref().unwrap_or_default()).unwrap_or(path);
            Some(below.trim_start_matches('/').to_owned())
        }
        PathPattern::Prefix(_) => None,
    });
    let only = exact.collect::<Option<Vec<_>>>().unwrap_or_default();
    Some(ScriptRoute {
        id: RouteId::of(site, number),
        real: dir.canonicalize().ok(),
        dir,
        only,
        matcher: route.matcher.clone(),
        ends,
        ignores_case: route.matcher.suffix_ignores_case,
        own,
        index,
    })
}

/// Returns the settings for the scripts of a FastCGI program, and its index. Returns `None` for
/// other applications.
fn of_program(app: &conf::App) -> Option<(conf::Fastcgi, Option<String>)> {
    if !running::listens(app) {
        return None;
    }
    let Protocol::Fastcgi(mapping, settings) = running::program_options(app).protocol else {
        return None;
    };
    let index = match mapping {
        PathMapping::Scripts => Some(settings.index.clone()),
        PathMapping::Below => None,
        PathMapping::Mount => return None,
    };
    Some((settings, index))
}

#[cfg(test)]
mod tests {
    use super::original;

    #[test]
    fn a_copy_is_told_by_its_name() {
        for (copy, of) in [
            ("x.php~", "x.php"),
            ("a~/x.php.bak", "a~/x.php"),
            ("x.php.SAVE", "x.php"),
            ("x.php.swp~", "x.php"),
            ("a/#x.php#", "a/x.php"),
            (".x.php.swp", ".x.php"),
        ] {
            assert_eq!(original(copy.as_bytes()), Some(of.into()), "{copy}");
        }
        for own in ["x.php", "a.bak/x.php", "~", "a/#", "##", ".bak", "x.dist", "bak", ""] {
            assert_eq!(original(own.as_bytes()), None, "{own}");
        }
    }
}
