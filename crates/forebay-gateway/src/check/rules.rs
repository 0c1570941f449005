//! Checks for rules that can be bypassed, and for scripts that a files route prevents from being
//! run.

use forebay_conf::{Action, Finding, PathPattern, Plan, ScriptsBelow, Site};
use forebay_origin::files::{RouteId, ScriptRoutes};
use forebay_origin::rules::{incomparable, kept_scripts, paths_below, ways_around};

/// Returns warnings about access rules that can be bypassed, and about scripts that a files route
/// prevents from being run.
pub fn all(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, site) in plan.sites.iter().enumerate().filter(|_| plan.has_file()) {
        let key = |at: usize, last: &str| {
            ["site", &number.to_string(), "route", &at.to_string(), last]
                .map(str::to_owned)
                .to_vec()
        };
        for below in paths_below(site, plan) {
            let line = site.routes[below.route].line;
            let (path, _) = below.path.rsplit_once('/').unwrap_or_default();
            found.push(Finding {
                key: key(below.rule, ""),
                message: format!(
                    "WARNING: the path \"{path}/\" is this one path only: the route on line {line} \
                     answers {}",
                    below.path
                ),
                help: format!(
                    "for everything below, write paths = [\"{path}\", \"{path}/*\"]; if only this \
                     path is meant, nothing is wrong"
                ),
            });
        }
        for around in ways_around(site, plan) {
            let line = site.routes[around.route].line;
            let why = around.backend.map_or(String::new(), |(of_rule, path)| {
                format!(" ({of_rule} and this path both become {path} at the backend)")
            });
            found.push(Finding {
                key: key(around.rule, ""),
                message: format!(
                    "WARNING: {} gets past the rule of this route: the route on line {line} answers \
                     it, with what the rule protects{why}",
                    around.path
                ),
                help: format!(
                    "add this path to the rule, or give the route on line {line} the same rule; if that \
                     route is meant to be open, nothing is wrong"
                ),
            });
        }
        found.extend(incomparable(site).into_iter().map(|at| Finding {
            key: key(at, "path_regex"),
            message: "WARNING: the paths of this rule cannot be compared with those of other routes, \
                      because it has a `path_regex`"
                .into(),
            help: "give the rule a `path` if you can; otherwise try paths with `forebay explain`"
                .into(),
        }));
        let kept = kept_scripts(site, plan);
        let scripts = ScriptRoutes::of(site, plan);
        found.extend(kept.iter().enumerate().filter_map(|(at, kept)| {
            let (name, line) = kept_script(site, at, kept, &scripts)?;
            Some(Finding {
                key: key(at, "files"),
                message: format!(
                    "{name} is not run: this route takes it first, and the route on line {line} gets no \
                     script of this directory"
                ),
                help: "write scripts = \"below\" in `files` to have it run, scripts = \"refuse\" if it \
                       should not be, or move this route below that one"
                    .into(),
            })
        }));
    }
    found
}

/// Searches the directory of the files route `at` for a script that one of the later routes `kept`
/// is meant to run. The files route forbids the routes in `kept` to run files of this directory.
/// Returns the file name of the script, and the line of its route. Returns `None` if there is no
/// such script.
fn kept_script(
    site: &Site,
    at: usize,
    kept: &[usize],
    scripts: &ScriptRoutes,
) -> Option<(String, usize)> {
    let Action::Files(files) = &site.routes[at].action else { return None };
    let kept_from: Vec<_> = kept.iter().map(|&below| RouteId::of(site, below)).collect();
    if kept_from.is_empty() || files.scripts == ScriptsBelow::Nothing {
        return None;
    }
    let entries = std::fs::read_dir(&files.root).into_iter().flatten().take(super::LOOKED_AT);
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    // A route with `suffix = ".css"` gets no request for a script that ends in .php.
    let matcher = &site.routes[at].matcher;
    // A route with `path = "/robots.txt"` gets requests only for this file.
    let is_path_of = |name: &str| {
        let is_it = |pattern: &PathPattern| match pattern {
            PathPattern::Exact(path) => {
                let (_, last) = path.rsplit_once('/').unwrap_or_default();
                last.is_empty() || last == name
            }
            _ => true,
        };
        matcher.paths.is_empty() || matcher.paths.iter().any(is_it)
    };
    let is_requested = |name: &String| {
        is_path_of(name) && (matcher.suffixes.is_empty() || matcher.ends(name.as_bytes()))
    };
    let mut run = names.filter(is_requested).filter_map(|name| {
        let path = files.root.join(&name);
        let id = path.is_file().then(|| scripts.route_of(&path))??;
        kept_from.contains(&id).then_some((name, id.line))
    });
    run.next()
}
