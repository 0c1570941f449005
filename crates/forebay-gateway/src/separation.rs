//! Who serves, and who runs applications: the users of a plan, and the helper that starts processes
//! of other users after the gateway has given up root.

use std::io;

use forebay_conf::{Action, Plan, Server};
use forebay_workers::{Helper, Identity, Owners, Person};

/// The user that will serve: `user` of `[server]`, or the one of this process. `None` if there is no
/// such user.
pub fn gateway_person(server: &Server) -> Option<Person> {
    Person::named(server.user.as_deref(), server.group.as_deref())
}

/// The user that will run a process with these keys. Without keys, the one that will serve.
pub fn person_of(server: &Server, user: Option<&str>, group: Option<&str>) -> Option<Person> {
    match (user, group) {
        (None, None) => gateway_person(server),
        _ => Person::named(user, group),
    }
}

/// Returns true if the server switches to a user other than root.
pub fn gives_up_root(server: &Server) -> bool {
    server.user.as_deref().is_some_and(|user| user != "root")
}

/// Starts the helper if this process is root and will give root up, and if `plan` has applications
/// or scripts with their own users, or may have them once a directory has come. Must be called before root is given up.
pub fn start_helper(plan: &Plan) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() || !gives_up_root(&plan.server) {
        return Ok(());
    }
    let apps = plan.apps.iter();
    let apps = apps.map(|(name, app)| (name.as_str(), app.user.as_deref(), app.group.as_deref()));
    let routes = plan.sites.iter().flat_map(|site| &site.routes);
    let scripts = routes.filter_map(|route| match &route.action {
        Action::Cgi(cgi) => Some(("cgi", cgi.user.as_deref(), cgi.group.as_deref())),
        _ => None,
    });
    let mut users: Vec<Identity> = Vec::new();
    for (name, user, group) in apps.chain(scripts) {
        let found = Identity::look_up(name, user, group).map_err(io::Error::other)?;
        users.extend(found.filter(|identity| !users.contains(identity)));
    }
    let owners = plan.owner_patterns.iter();
    let owners: Vec<_> = owners
        .map(|(before, behind)| Owners { before: before.clone(), behind: behind.clone() })
        .collect();
    if users.is_empty() && owners.is_empty() {
        return Ok(());
    }
    let Server { user, group, .. } = &plan.server;
    let own = Identity::look_up("server", user.as_deref(), group.as_deref());
    let group = own.map_err(io::Error::other)?.and_then(|identity| identity.group);
    Helper::start(users, owners, group.ok_or(io::ErrorKind::NotFound)?)
}
