//! Checks if the programs, users, groups and watched paths of a plan exist on this machine. The
//! checks call the functions that `serve` uses to start applications.
//!
//! Only `check` asks Python for the module of an application (`probe_interpreters`); with `serve`,
//! the workers import it. A missing path to watch is only a warning, because it may be created
//! later.

mod cache;
mod clients;
mod fields;
mod htaccess;
mod loops;
pub(crate) mod rights;
mod rules;
mod store;
mod texts;

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_conf::{
    AccessLog, Action, Address, App, AppKind, AppServer, ConfError, Fastcgi, Files, Finding,
    JwtKeys, PathPattern, Plan, Route, Server, Site,
};
use forebay_net::log_file;
use forebay_net::privileges::{PrivilegeError, look_up};
use forebay_origin::access::{Algorithm, DigestUsers, TokenKeys, Users, UsersError};
use forebay_origin::apps::definition::{Definition, asgi_interpreter, definition};
use forebay_origin::files::ScriptRoutes;
use forebay_origin::scripts::cgi::obstacle;
use forebay_upstream::app_server;
use forebay_workers::{AppSpec, Identity, Launcher, StartError};

use crate::build::launch_of;
use crate::explain::find_answer_on;
use crate::separation::{gives_up_root, person_of};
use crate::tls::SiteTls;

/// Returns warnings about `plan`, if any. Fails with the errors that prevent the use of `plan` on
/// this machine. Starts nothing and makes no network lookups. Does not check if Forebay may switch
/// to the configured users.
pub fn check(plan: &Plan) -> Result<Option<ConfError>, ConfError> {
    findings(plan).map(|doubtful| plan.warnings(&doubtful)).map_err(|wrong| plan.refuse(&wrong))
}

/// As [`check`], but leaves the directories of `hosts_from` and `users_from` out that cannot be used.
/// `adapt` changes each plan before it is checked, as the command line wants.
pub fn usable(
    mut plan: Plan,
    adapt: impl Fn(&mut Plan),
) -> Result<(Plan, Option<ConfError>), ConfError> {
    loop {
        adapt(&mut plan);
        match findings(&plan) {
            Ok(doubtful) => {
                let warnings = plan.warnings(&doubtful);
                return Ok((plan, warnings));
            }
            Err(wrong) => plan = plan.without(&wrong)?,
        }
    }
}

/// Returns what is doubtful about a plan. The error is what prevents its use.
fn findings(plan: &Plan) -> Result<Vec<Finding>, Vec<Finding>> {
    let users = of_server(&plan.server);
    let apps = plan.apps.iter().filter_map(|(name, app)| of_app(name, app, &plan.server));
    let routes = plan.sites.iter().enumerate().flat_map(|(site, routes)| {
        let routes = routes.routes.iter().enumerate();
        routes.filter_map(move |(at, route)| of_route(site, at, route, &plan.server))
    });
    // Another user's access can be checked only after the switch to that user.
    let changes_user = rustix::process::geteuid().is_root() && gives_up_root(&plan.server);
    let spool = if changes_user { None } else { of_spool(&plan.server) };
    let (unreadable_users, odd_users) = of_users(plan);
    let (unreadable_digests, odd_digests) = of_digest_users(plan);
    let wrong: Vec<_> = users
        .into_iter()
        .chain(apps)
        .chain(routes)
        .chain(spool)
        .chain(cache::unusable_dir(plan))
        .chain(logs(plan))
        .chain(clients::unknown_owners(plan))
        .chain(unreadable_users)
        .chain(unusable_keys(plan))
        .chain(unreadable_digests)
        .collect();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let certificates = SiteTls::find(plan, None)?.doubts(plan);
    let unwatched = plan.apps.iter().flat_map(|(name, app)| unwatched(name, app));
    let doubtful = serves_as_root(&plan.server).into_iter().chain(unwatched);
    let doubtful =
        doubtful.chain(sources(plan)).chain(absent_roots(plan)).chain(unused_upstreams(plan));
    let doubtful = doubtful.chain(clients::doubts(plan)).chain(cache::doubts(plan));
    let doubtful = doubtful.chain(htaccess::doubts(plan)).chain(store::doubts(plan));
    let doubtful = doubtful.chain(texts::doubts(plan)).chain(fields::doubts(plan));
    let doubtful = doubtful.chain(loops::doubts(plan)).chain(rights::doubts(plan));
    Ok(doubtful
        .chain(odd_users)
        .chain(odd_digests)
        .chain(unmatched_prefixes(plan))
        .chain(rules::all(plan))
        .chain(certificates)
        .collect())
}

/// Checks that Python finds the module of each application. Without this check, the error would
/// appear only when a worker starts. Runs Python for a moment as the user that will run the
/// application, but no code of the application.
pub fn probe_interpreters(plan: &Plan) -> Result<(), ConfError> {
    let Server { user, group, .. } = &plan.server;
    let is_root = rustix::process::geteuid().is_root();
    let gateway = Identity::look_up("server", user.as_deref(), group.as_deref());
    let gateway = gateway.ok().flatten().filter(|_| is_root);
    let gateway = gateway.as_ref();
    // Python does not find a module that its user may not read. Root knows that this is why.
    let readable = plan.apps.iter().filter(|(name, app)| {
        let person = person_of(&plan.server, app.user.as_deref(), app.group.as_deref());
        !is_root || person.is_none_or(|person| rights::unreadable(name, app, &person).is_none())
    });
    let wrong = readable.filter_map(|(name, app)| match definition(name, app) {
        Ok(Definition::Workers(spec)) => {
            spec.probe_interpreter(gateway).err().map(|error| finding(name, &error))
        }
        Ok(Definition::Scripts(spec)) => {
            let python = spec.python.as_ref();
            let error = python.and_then(|python| python.probe_interpreter(gateway).err());
            error.map(|error| finding(name, &error))
        }
        Ok(Definition::Program(_)) => {
            let error = asgi_interpreter(name, app)?.probe_interpreter(gateway).err();
            error.map(|error| finding(name, &error))
        }
        Err(_) => None,
    });
    let wrong: Vec<_> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(plan.refuse(&wrong)) }
}

/// Checks that the current user may write to the spool directory. The server calls this function
/// after it has changed its user.
pub fn check_spool(plan: &Plan) -> Result<(), ConfError> {
    of_spool(&plan.server).map_or(Ok(()), |finding| Err(plan.refuse(&[finding])))
}

fn of_spool(server: &Server) -> Option<Finding> {
    let dir = server.spool_dir.as_ref()?;
    let error = tempfile::tempfile_in(dir).err()?;
    let error = error.kind();
    let user = server.user.as_deref().unwrap_or("the user that Forebay runs as");
    Some(Finding {
        key: vec!["server".into(), "spool_dir".into()],
        message: format!("cannot create a file in {}: {error}", dir.display()),
        help: format!("make it writable for {user}, or set another directory"),
    })
}

/// Returns a finding for each access log that cannot be written.
fn logs(plan: &Plan) -> Vec<Finding> {
    let first = (vec!["log".into(), "access".into()], &plan.log.access);
    let of_sites = plan.sites.iter().enumerate().flat_map(|(site, of)| {
        let place = move || vec!["site".into(), site.to_string()];
        let routes = of.routes.iter().enumerate().filter_map(move |(at, route)| {
            let key = [place(), vec!["route".into(), at.to_string(), "log".into()]].concat();
            Some((key, &route.own_log.as_ref()?.access))
        });
        let own = of.log.as_ref();
        let own = own.map(|log| ([place(), vec!["log".into()]].concat(), &log.access));
        own.into_iter().chain(routes)
    });
    let mut known = HashSet::new();
    let paths = std::iter::once(first).chain(of_sites).filter_map(|(key, access)| match access {
        AccessLog::Path(path) => Some((key, path)).filter(|_| known.insert(path)),
        _ => None,
    });
    paths.filter_map(|(key, path)| of_log(key, path)).collect()
}

fn of_log(key: Vec<String>, path: &Path) -> Option<Finding> {
    let error = log_file::check(path).err()?;
    Some(Finding {
        key,
        message: format!("cannot write the access log {}", path.display()),
        help: error.to_string(),
    })
}

fn of_server(server: &Server) -> Vec<Finding> {
    let (user, group) = (server.user.as_deref(), server.group.as_deref());
    let outcomes = [("user", look_up(user, None)), ("group", look_up(None, group))];
    let unknown = outcomes.into_iter().filter_map(|(key, outcome)| match outcome {
        Err(PrivilegeError::Unknown(who)) => Some(Finding {
            key: vec!["server".into(), key.into()],
            message: format!("there is no {who} on this machine"),
            help: format!("add the {key}, or set another one"),
        }),
        _ => None,
    });
    unknown.collect()
}

/// Returns the first reason why an application could not start, or `None` if there is no reason.
fn of_app(name: &str, app: &App, server: &Server) -> Option<Finding> {
    let gives_up_root = gives_up_root(server);
    if gives_up_root
        && let Some((key, why)) = cannot_become(app.user.as_deref(), app.group.as_deref())
    {
        return Some(unhelped(vec!["app".into(), name.into(), key.into()], why));
    }
    let as_root = rustix::process::geteuid().is_root() && !gives_up_root;
    let outcome = definition(name, app).and_then(|definition| match definition {
        Definition::Workers(spec) => spec.check(),
        Definition::Scripts(spec) => {
            let mut workers = spec.perl.iter().chain(&spec.python);
            let outcome = workers.try_for_each(AppSpec::check);
            outcome.and_then(|()| Launcher::check(name, &spec.launch))
        }
        Definition::Program(spec) => {
            let interpreter = asgi_interpreter(name, app);
            let outcome = interpreter.as_ref().map_or(Ok(()), AppSpec::check);
            outcome.and_then(|()| spec.check(as_root))
        }
    });
    outcome.err().map(|error| finding(name, &error))
}

fn serves_as_root(server: &Server) -> Option<Finding> {
    let is_root = rustix::process::geteuid().is_root() && !gives_up_root(server);
    is_root.then(|| Finding {
        key: vec!["server".into(), "user".into()],
        message: "WARNING: requests are served as root, which may read every file of this machine"
            .into(),
        help: "give `user` in [server], such as user = \"www-data\": Forebay gives root up once \
               sockets and logs are open"
            .into(),
    })
}

/// Checks the user and the program of a `cgi` route, which is route `at` of site `site`. Returns
/// the first problem. Returns `None` if there is no problem, or if the route has no `cgi`.
fn of_route(site: usize, at: usize, route: &Route, server: &Server) -> Option<Finding> {
    let Action::Cgi(cgi) = &route.action else { return None };
    let place = ["site".to_owned(), site.to_string(), "route".to_owned(), at.to_string()];
    let key = |keys: &[&str]| {
        let keys = keys.iter().map(|key| (*key).to_owned());
        place.iter().cloned().chain(["cgi".to_owned()]).chain(keys).collect()
    };
    if gives_up_root(server)
        && let Some((at, why)) = cannot_become(cgi.user.as_deref(), cgi.group.as_deref())
    {
        return Some(unhelped(key(&[at]), why));
    }
    if let Some(error) = Launcher::check("cgi", &launch_of(cgi)).err() {
        let (message, help) = (error.what().to_owned(), error.advice().to_owned());
        return Some(Finding { key: key(error.key()), message, help });
    }
    let obstacle = obstacle(cgi.program.as_deref()?)?;
    let help = "name an executable program".into();
    Some(Finding { key: key(&["program"]), message: obstacle.message.into_owned(), help })
}

/// Checks that processes can have this user and group although the gateway gives up root. A root
/// helper starts such processes, but starts none as root. Returns the wrong key and the reason, or
/// `None` if the processes can be started.
fn cannot_become(user: Option<&str>, group: Option<&str>) -> Option<(&'static str, &'static str)> {
    match (user, group) {
        (None, None) => None,
        (Some("root"), _) => {
            Some(("user", "`user` in [server] gives root up, so no process is started as root"))
        }
        (Some(_), _) => None,
        (None, Some(_)) => {
            Some(("group", "`user` in [server] gives root up, and a `group` alone needs it"))
        }
    }
}

fn unhelped(key: Vec<String>, why: &str) -> Finding {
    let help = "remove one of the two";
    Finding { key, message: why.into(), help: help.into() }
}

/// Returns a warning for each group of servers that no route names.
fn unused_upstreams(plan: &Plan) -> impl Iterator<Item = Finding> {
    plan.unused_upstreams.iter().map(|name| Finding {
        key: vec!["upstream".into(), name.clone()],
        message: format!("no route passes requests to [upstream.{name}]"),
        help: format!("name it in a route, as in proxy = \"@{name}\", or take it out"),
    })
}

/// Returns a warning for each route with a missing `root` directory and a backend on a Unix socket.
/// The directory may exist for the application if the application runs in a container.
fn absent_roots(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    for (site, of) in plan.sites.iter().enumerate() {
        for (at, route) in of.routes.iter().enumerate() {
            let (kind, to, root) = match &route.action {
                Action::Fastcgi(Fastcgi { upstream, root: Some(root), .. }) => {
                    ("fastcgi", upstream, root)
                }
                Action::AppServer(AppServer { protocol, upstream, root: Some(root), .. }) => {
                    (app_server::name(*protocol), upstream, root)
                }
                _ => continue,
            };
            let is_local = to.addresses().any(|address| matches!(address, Address::Unix(_)));
            if !is_local || root.is_dir() {
                continue;
            }
            let place = ["site", &site.to_string(), "route", &at.to_string(), kind, "root"];
            found.push(Finding {
                key: place.map(str::to_owned).into(),
                message: format!("{} is not a directory on this machine", root.display()),
                help:
                    "right if the application sees other directories, as in a container; whether \
                       a script is there is left to it then"
                        .into(),
            });
        }
    }
    found
}

/// Returns a warning for each prefix that has no effect, because no path of the route begins with
/// the prefix.
fn unmatched_prefixes(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    for (site, of) in plan.sites.iter().enumerate() {
        for (at, route) in of.routes.iter().enumerate() {
            let Some((place, key, prefix)) = start_of_paths(plan, route) else { continue };
            let prefix = prefix.trim_end_matches('/');
            let is_met = |path: &PathPattern| match path {
                PathPattern::Exact(path) => path.starts_with(prefix),
                PathPattern::Prefix(start) => {
                    start.starts_with(prefix) || prefix.starts_with(start)
                }
            };
            let paths = &route.matcher.paths;
            let message = match prefix {
                "" if key == "mount" => continue,
                "" => "strip_prefix = \"/\" removes nothing".to_owned(),
                _ if paths.is_empty() || paths.iter().any(is_met) => continue,
                _ => format!("no path of this route begins with the {key} \"{prefix}\""),
            };
            found.push(Finding {
                key: ["site", &site.to_string(), "route", &at.to_string(), place]
                    .map(str::to_owned)
                    .into(),
                message: format!("WARNING: {message}"),
                help: "give the beginning of the route's own paths, such as \"/shop\" with path = \
                       \"/shop/*\", or leave it out"
                    .into(),
            });
        }
    }
    found
}

/// Returns the prefix that the route's origin removes from paths, or the origin's mount point. The
/// result is the key of the origin, the key of the prefix, and the prefix: `proxy`, `strip_prefix`
/// and `/shop`, for example. Returns `None` if the route has neither.
fn start_of_paths<'p>(
    plan: &'p Plan,
    route: &'p Route,
) -> Option<(&'static str, &'static str, &'p str)> {
    let (place, strip_prefix, mount) = match &route.action {
        Action::Proxy(proxy) => ("proxy", &proxy.strip_prefix, &None),
        Action::Fastcgi(fastcgi) => ("fastcgi", &fastcgi.strip_prefix, &fastcgi.mount),
        Action::AppServer(server) => {
            (forebay_upstream::app_server::name(server.protocol), &None, &server.mount)
        }
        Action::App(name) => {
            let app = &plan.apps[name];
            match &app.kind {
                AppKind::Php { strip_prefix, .. } | AppKind::Command { strip_prefix, .. } => {
                    ("app", strip_prefix, &app.mount)
                }
                _ => ("app", &None, &app.mount),
            }
        }
        _ => return None,
    };
    let start = strip_prefix.as_deref().map(|prefix| ("strip_prefix", prefix));
    let start = start.or_else(|| mount.as_deref().map(|mount| ("mount", mount)));
    start.map(|(key, start)| (place, key, start))
}

/// Returns a warning for each files route that would send a source file, because no route of the
/// site runs that file.
fn sources(plan: &Plan) -> Vec<Finding> {
    let routes = plan.sites.iter().enumerate().flat_map(|(site, of)| {
        let scripts = ScriptRoutes::of(of, plan);
        let files = of.routes.iter().enumerate().filter_map(|(at, route)| match &route.action {
            Action::Files(files) => Some((at, route, files)),
            _ => None,
        });
        let sent = files.filter_map(move |(at, route, files)| {
            let is_sent = |below: &Path| is_sent(plan, of, (route, files), below);
            Some((at, source_in(route, files, (&scripts, &is_sent))?))
        });
        sent.map(move |(at, name)| (site, at, name)).collect::<Vec<_>>()
    });
    let finding = |(site, at, name): (usize, usize, String)| {
        Finding {
        key: ["site", &site.to_string(), "route", &at.to_string(), "files"]
            .map(str::to_owned)
            .into(),
        message: format!("the source of {name} is sent: no route of this site runs it"),
        help:
            "move it elsewhere, or refuse it with a `respond` route above; if visitors should run it, \
             add a route that does, such as an app of kind = \"php\" (whose `scripts` has the ends of \
             names that it runs) or \"cgi-bin\": `files` never sends what a script route of its site \
             runs"
                .into(),
    }
    };
    if plan.has_file() { routes.map(finding).collect() } else { Vec::new() }
}

/// Returns the name of a file that looks like the source of a script, but that no route runs.
/// Checks the root of the files route. For `path_regex = "^/a"`, also checks the directory `a` in
/// the root. Returns `None` if no checked file is like this.
fn source_in(route: &Route, files: &Files, known: Known<'_>) -> Option<String> {
    let start = route.matcher.regex.as_ref().and_then(|regex| regex.literal_start());
    let below = start.map(|start| files.root.join(start.trim_matches('/')));
    let directories = std::iter::once(files.root.clone()).chain(below);
    directories.into_iter().find_map(|dir| source_of(&dir, files, known))
}

/// The scripts of a site, and whether a files route of the site sends a file below its root.
type Known<'a> = (&'a ScriptRoutes, &'a dyn Fn(&Path) -> bool);

/// Returns true if a client that is admitted gets the file at `below` from this files route.
fn is_sent(plan: &Plan, site: &Site, (route, files): (&Route, &Files), below: &Path) -> bool {
    let starts = route.matcher.paths.iter().filter_map(|pattern| match pattern {
        PathPattern::Prefix(start) => Some(start.as_str()),
        PathPattern::Exact(_) => None,
    });
    let file = files.root.join(below);
    starts.chain(["/"]).any(|start| {
        let path = [start.as_bytes(), below.as_os_str().as_bytes()].concat();
        find_answer_on(plan, site, &path).is_some_and(|answer| answer.file.as_ref() == Some(&file))
    })
}

/// Returns the first file in `dir` that looks like the source of a script, but that no route runs.
/// Checks the files in `index`, and at most `LOOKED_AT` entries of `dir`. Returns `None` if no
/// checked file is like this.
fn source_of(dir: &Path, files: &Files, (scripts, is_sent): Known<'_>) -> Option<String> {
    let is_source = |name: &String| {
        let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
        end.is_some_and(|end| SOURCES.contains(&end.as_str()))
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().take(LOOKED_AT);
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    files.index.iter().cloned().chain(names).filter(is_source).find(|name| {
        let path = dir.join(name);
        let below = path.strip_prefix(&files.root);
        path.is_file() && !scripts.run_named(&path) && below.is_ok_and(is_sent)
    })
}

/// Endings of source files.
const SOURCES: [&str; 10] =
    ["php", "php3", "php4", "php5", "php7", "phtml", "cgi", "fcgi", "pl", "py"];

/// Maximum number of directory entries to check.
const LOOKED_AT: usize = 1000;

fn finding(name: &str, error: &StartError) -> Finding {
    Finding {
        key: ["app", name]
            .iter()
            .chain(error.key())
            .map(std::string::ToString::to_string)
            .collect(),
        message: error.what().to_owned(),
        help: error.advice().to_owned(),
    }
}

/// Returns a warning for each watched path that does not exist.
fn unwatched(name: &str, app: &App) -> Vec<Finding> {
    let absent = app.watch.iter().enumerate().filter(|(_, path)| !path.exists());
    absent
        .map(|(at, path)| Finding {
            key: vec!["app".into(), name.into(), "watch".into(), at.to_string()],
            message: format!("nothing to watch: {} does not exist", path.display()),
            help: format!(
                "workers are replaced once it appears; otherwise correct the path, which is relative \
                 to {}",
                app.dir.display()
            ),
        })
        .collect()
}

/// Returns errors for user files that cannot be read. Also returns warnings for invalid lines in
/// user files, and for names in `users` that the file does not contain.
fn of_users(plan: &Plan) -> (Vec<Finding>, Vec<Finding>) {
    let (mut wrong, mut doubtful) = (Vec::new(), Vec::new());
    for (site, of) in plan.sites.iter().enumerate() {
        for (at, route) in of.routes.iter().enumerate() {
            let Some(auth) = &route.access.basic_auth else { continue };
            let place = ["site", &site.to_string(), "route", &at.to_string(), "basic_auth", "file"];
            let finding = |error: &UsersError, message| Finding {
                key: place.map(str::to_owned).to_vec(),
                message,
                help: error.advice().to_owned(),
            };
            doubtful.extend(Users::absent(&auth.file, &auth.users).iter().map(|name| Finding {
                key: place.map(str::to_owned).to_vec(),
                message: format!("WARNING: the file has no user {name}, whom `users` names"),
                help: "add the user with htpasswd -B, or correct the name in `users`".into(),
            }));
            match Users::check(&auth.file) {
                Err(error) => wrong.push(finding(&error, error.to_string())),
                Ok(odd) => doubtful.extend(odd.iter().take(ODD_LINES).map(|error| {
                    finding(error, format!("WARNING: {error}; its user cannot log in"))
                })),
            }
        }
    }
    (wrong, doubtful)
}

/// Returns errors for `htdigest` files that cannot be read, and warnings for invalid lines and for
/// realms without a user.
fn of_digest_users(plan: &Plan) -> (Vec<Finding>, Vec<Finding>) {
    let (mut wrong, mut doubtful) = (Vec::new(), Vec::new());
    for (site, of) in plan.sites.iter().enumerate() {
        for (at, route) in of.routes.iter().enumerate() {
            let Some(auth) = &route.access.digest_auth else { continue };
            let finding = |key: &str, message: String, help: &str| {
                let (site, at) = (site.to_string(), at.to_string());
                let place = ["site", &site, "route", &at, "digest_auth", key];
                Finding { key: place.map(str::to_owned).into(), message, help: help.to_owned() }
            };
            match DigestUsers::check(&auth.file) {
                Err(error) => wrong.push(finding("file", error.to_string(), error.advice())),
                Ok((users, odd)) => {
                    doubtful.extend(odd.iter().take(ODD_LINES).map(|error| {
                        let message = format!("WARNING: {error}; its user cannot log in");
                        finding("file", message, error.advice())
                    }));
                    if !Algorithm::ALL.iter().any(|one| users.has(&auth.realm, *one)) {
                        let message = format!("WARNING: no user has the realm {}", auth.realm);
                        doubtful.push(finding(
                            "realm",
                            message,
                            "write the realm as in the second part of the lines of the file",
                        ));
                    }
                }
            }
        }
    }
    (wrong, doubtful)
}

/// Returns errors for keys of `jwt` that cannot be used.
fn unusable_keys(plan: &Plan) -> Vec<Finding> {
    let routes = plan.sites.iter().enumerate().flat_map(|(site, of)| {
        of.routes.iter().enumerate().map(move |(at, route)| (site, at, route))
    });
    let errors = routes.filter_map(|(site, at, route)| {
        let jwt = route.access.jwt.as_ref()?;
        let error = TokenKeys::load(jwt).err()?;
        let key = if matches!(jwt.keys, JwtKeys::Set(_)) { "jwks" } else { "key" };
        let place = ["site", &site.to_string(), "route", &at.to_string(), "jwt", key];
        Some(Finding {
            key: place.map(str::to_owned).to_vec(),
            message: error.to_string(),
            help: error.advice().to_owned(),
        })
    });
    errors.collect()
}

/// Maximum number of invalid lines to report per file.
const ODD_LINES: usize = 10;
