//! Judges the files, sockets and programs of a plan as the user that will use them, and the users
//! themselves: `check` usually runs as root, who may do everything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_conf::{Action, Address, App, AppKind, Finding, Listen, Plan, Server, Upstream};
use forebay_origin::apps::definition::{Definition, asgi_interpreter, definition, module_files};
use forebay_workers::{Person, Refusal, Right, Seen, StartError};

use crate::directories::{directories, is_made_by_root};
use crate::separation::{gateway_person, gives_up_root, person_of};

/// Returns a warning for everything of `plan` that a user will be refused, for programs that share a
/// user with others, and for an administrator's address that anybody may reach.
pub fn doubts(plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(gateway) = gateway_person(&plan.server) {
        found.extend(of_files(plan, &gateway));
        found.extend(of_sockets(plan, &gateway));
        found.extend(of_directories(plan, &gateway));
    }
    found.extend(of_programs(plan));
    found.extend(shared_users(plan));
    found.extend(open_admin(&plan.server));
    found
}

fn warning(key: Vec<String>, refused: Refusal) -> Finding {
    Finding { key, message: format!("WARNING: {}", refused.message), help: refused.help }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The routes with the path of their tables.
fn routes(plan: &Plan) -> impl Iterator<Item = (Vec<String>, &forebay_conf::Route)> {
    plan.sites.iter().enumerate().flat_map(|(site, of)| {
        of.routes.iter().enumerate().map(move |(at, route)| {
            (words(&["site", &site.to_string(), "route", &at.to_string()]), route)
        })
    })
}

/// The files that close routes, and the roots of `files` and their indexes: the most that can be
/// known without a request.
fn of_files(plan: &Plan, gateway: &Person) -> Vec<Finding> {
    let seen = Seen::default();
    let of_route = |(mut key, route): (Vec<String>, &forebay_conf::Route)| {
        if let Some(closed) = &route.maintenance
            && let Some(file) = &closed.while_exists
            && let Some(refused) = gateway.refusal(file.parent()?, Right::Run)
        {
            // A file that the gateway cannot see does not close the route.
            key.extend(words(&["maintenance", "while_exists"]));
            return Some(warning(key, refused));
        }
        let Action::Files(files) = &route.action else { return None };
        let indexes = files.index.iter().map(|name| files.root.join(name));
        let root = gateway.refusal_after(&seen, &files.root, Right::Run);
        let refused = root.or_else(|| {
            let mut indexes = indexes;
            indexes.find_map(|index| gateway.refusal_after(&seen, &index, Right::Read))
        })?;
        key.push("files".into());
        Some(warning(key, refused))
    };
    routes(plan).filter_map(of_route).collect()
}

/// The Unix sockets of backends: those that are missing, and those that refuse the gateway.
fn of_sockets(plan: &Plan, gateway: &Person) -> Vec<Finding> {
    let of_routes = routes(plan).flat_map(|(key, route)| {
        route.upstreams().map(move |upstream| (key.clone(), upstream)).collect::<Vec<_>>()
    });
    let of_streams = plan.relays.iter().enumerate();
    let of_streams =
        of_streams.map(|(at, relay)| (words(&["stream", &at.to_string()]), &relay.upstream));
    let mut found: Vec<Finding> = Vec::new();
    for (key, upstream) in of_routes.chain(of_streams) {
        let (key, upstream): (Vec<String>, &Upstream) = (key, upstream);
        let key = match &upstream.name {
            Some(name) => words(&["upstream", name]),
            None => key,
        };
        for address in upstream.addresses() {
            let Address::Unix(path) = address else { continue };
            let Some(finding) = of_socket(path, gateway, &key) else { continue };
            if !found.iter().any(|other| other.message == finding.message) {
                found.push(finding);
            }
        }
    }
    found
}

fn of_socket(path: &Path, gateway: &Person, key: &[String]) -> Option<Finding> {
    if let Some(refused) = gateway.refusal(path, Right::Write) {
        let message = refused.message.replace(" may not write to ", " may not connect to ");
        let help = if refused.command.starts_with("chown") {
            format!(
                "let its server open it for a group of {0} (php-fpm: listen.group and listen.mode = \
                 0660), or: usermod -aG GROUP {0}",
                gateway.name
            )
        } else {
            refused.help
        };
        return Some(warning(key.to_vec(), Refusal { message, help, ..refused }));
    }
    let error = std::fs::symlink_metadata(path).err()?;
    if error.kind() != std::io::ErrorKind::NotFound {
        return None;
    }
    let dir = path.parent()?;
    let mut others: Vec<_> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| Path::new(name).extension().is_some_and(|end| end == "sock"))
        .take(3)
        .collect();
    others.sort();
    let help = match &others[..] {
        [] => "start its server, or correct the path".to_owned(),
        others => format!(
            "start its server, or correct the path: {} has {}",
            dir.display(),
            others.join(", ")
        ),
    };
    let message =
        format!("WARNING: no server listens at {}: there is no such socket", path.display());
    Some(Finding { key: key.to_vec(), message, help })
}

/// The directories in which the gateway makes files after it has given up root.
fn of_directories(plan: &Plan, gateway: &Person) -> Vec<Finding> {
    let spool = plan.server.spool_dir.iter();
    let spool = spool.map(|dir| (words(&["server", "spool_dir"]), &**dir));
    let refused = spool.chain(directories(plan)).filter_map(|(key, dir)| {
        // What does not exist yet is made in the directory above it.
        let there = dir.ancestors().find(|part| part.exists())?;
        let right = if is_made_by_root(dir) { Right::Run } else { Right::Write };
        Some(warning(key, gateway.refusal(there, right)?))
    });
    let mut found: Vec<Finding> = Vec::new();
    for finding in refused {
        if !found.iter().any(|other| other.message == finding.message) {
            found.push(finding);
        }
    }
    found
}

/// The programs, interpreters and directories of applications and scripts.
fn of_programs(plan: &Plan) -> Vec<Finding> {
    let server = &plan.server;
    let of_app = |(name, app): (&String, &forebay_conf::App)| {
        let person = person_of(server, app.user.as_deref(), app.group.as_deref())?;
        let refused = match definition(name, app).ok()? {
            Definition::Workers(spec) => spec.refusal(&person),
            Definition::Scripts(spec) => {
                spec.perl.iter().chain(&spec.python).find_map(|spec| spec.refusal(&person))
            }
            Definition::Program(spec) => {
                spec.refusal(&person).or_else(|| asgi_interpreter(name, app)?.refusal(&person))
            }
        };
        let error: StartError = refused.or_else(|| unreadable(name, app, &person))?;
        let key = ["app", name].into_iter().chain(error.key().iter().copied());
        Some(Finding {
            key: key.map(str::to_owned).collect(),
            message: format!("WARNING: app {name} cannot start: {}", error.what()),
            help: error.advice().to_owned(),
        })
    };
    let of_route = |(mut key, route): (Vec<String>, &forebay_conf::Route)| {
        let Action::Cgi(cgi) = &route.action else { return None };
        let person = person_of(server, cgi.user.as_deref(), cgi.group.as_deref())?;
        let refused = person.refusal(cgi.program.as_deref().unwrap_or(&cgi.dir), Right::Run)?;
        key.push("cgi".into());
        Some(warning(key, refused))
    };
    plan.apps.iter().filter_map(of_app).chain(routes(plan).filter_map(of_route)).collect()
}

/// Returns the error for the first file or directory that an application of the right kind reads
/// before it can answer, and that its user may not read.
pub(super) fn unreadable(name: &str, app: &App, person: &Person) -> Option<StartError> {
    let (key, read): (&[&str], Vec<PathBuf>) = match &app.kind {
        AppKind::Wsgi { module, dir, .. } | AppKind::Asgi { module, dir, .. } => {
            // Python lists the directory to find modules in it.
            let listed = (!module.starts_with('/')).then(|| dir.clone());
            (&["module"], listed.into_iter().chain(module_files(module, dir)).collect())
        }
        AppKind::Psgi { file } | AppKind::Rack { file, .. } | AppKind::Pagi { file, .. } => {
            (&["file"], vec![file.clone()])
        }
        AppKind::ModPerl { preload, .. }
        | AppKind::PerlCgi { preload, .. }
        | AppKind::CgiBin { preload, .. } => {
            let files = preload.iter().filter(|item| item.starts_with('/'));
            (&["preload"], files.map(PathBuf::from).collect())
        }
        AppKind::Mono { dir, .. } => (&["dir"], vec![dir.clone()]),
        _ => return None,
    };
    let Refusal { message, help, .. } =
        read.iter().find_map(|path| person.refusal(path, Right::Read))?;
    Some(StartError::new(name, message).at(key).help(help))
}

/// Warns about programs that run as the user of the gateway, and about applications that share a
/// user: each may signal, read and replace what belongs to the others. A gateway that does not give
/// up root has another warning, and one that has no root cannot separate anything.
fn shared_users(plan: &Plan) -> Vec<Finding> {
    let server = &plan.server;
    if !gives_up_root(server) {
        return Vec::new();
    }
    let Some(gateway) = gateway_person(server) else { return Vec::new() };
    let of_apps = plan.apps.iter().map(|(name, app)| {
        (format!("app {name}"), person_of(server, app.user.as_deref(), app.group.as_deref()))
    });
    let of_routes = routes(plan).filter_map(|(_, route)| match &route.action {
        Action::Cgi(cgi) => Some((
            format!("cgi {}", cgi.dir.display()),
            person_of(server, cgi.user.as_deref(), cgi.group.as_deref()),
        )),
        _ => None,
    });
    let (mut own, mut shared) = (Vec::new(), BTreeMap::<String, Vec<String>>::new());
    for (what, person) in of_apps.chain(of_routes) {
        let Some(person) = person else { continue };
        let users = if person.is_same_user(&gateway) {
            &mut own
        } else {
            shared.entry(person.name).or_default()
        };
        if !users.contains(&what) {
            users.push(what);
        }
    }
    let mut found = Vec::new();
    if !own.is_empty() {
        found.push(Finding {
            key: words(&["server", "user"]),
            message: format!(
                "WARNING: {} runs as {}, as Forebay does, and can read its keys and stop it",
                own.join(", "),
                gateway.name
            ),
            help: "give applications another user: app_user = \"www-data\" in [server], or `user` \
                   in their tables"
                .into(),
        });
    }
    for (user, of_user) in shared.into_iter().filter(|(_, of_user)| of_user.len() > 1) {
        found.push(Finding {
            key: words(&["server", "app_user"]),
            message: format!(
                "WARNING: {} run as {user}, so each can read and change what the others have",
                of_user.join(", ")
            ),
            help: "if one of them is not trusted with the others, give it a `user` of its own"
                .into(),
        });
    }
    found
}

/// Warns if `admin` listens where machines of others may reach it.
fn open_admin(server: &Server) -> Option<Finding> {
    let Some(Listen::Tcp(address)) = &server.admin else { return None };
    if !address.ip().is_unspecified() {
        return None;
    }
    Some(Finding {
        key: words(&["server", "admin"]),
        message: format!(
            "WARNING: everybody who reaches port {} of this machine can read the status",
            address.port()
        ),
        help: "listen on 127.0.0.1, on the address of a private network, or on a Unix socket"
            .into(),
    })
}
