//! Starts the helper for a server that gives up root and has applications with their own users.

use std::io;

use forebay_conf::{Action, Plan, Server};
use forebay_workers::{Helper, Identity};

/// Returns true if the server switches to a user other than root.
pub fn gives_up_root(server: &Server) -> bool {
    server.user.as_deref().is_some_and(|user| user != "root")
}

/// Starts the helper if this process is root and will give root up, and if `plan` has applications
/// or scripts with their own users. Must be called before root is given up.
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
    if users.is_empty() {
        return Ok(());
    }
    let Server { user, group, .. } = &plan.server;
    let own = Identity::look_up("server", user.as_deref(), group.as_deref());
    let group = own.map_err(io::Error::other)?.and_then(|identity| identity.group);
    Helper::start(users, group.ok_or(io::ErrorKind::NotFound)?)
}
