//! Resolves the typed tables of a configuration into a plan: fills in defaults, makes paths
//! absolute and looks up names.
//!
//! For each table, only the first problem is reported. The problems of all tables are reported
//! together.

mod access;
mod action;
mod app;
mod app_server;
mod effect;
mod expect;
mod filter;
mod inherited;
mod jwt;
mod listing;
mod log;
mod media;
mod mod_perl;
mod moved;
mod peer;
mod program;
mod proxies;
mod proxy;
mod ready;
mod relay;
mod reply;
mod route;
mod server;
mod site;
mod socket;
mod store;
mod template;
mod tls;
mod upstream;
mod value;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Problem;
use crate::file::At;
use crate::hosts::{Directories, Names};
use crate::inputs::owner_patterns;
use crate::left_out::LeftOut;
use crate::merge::AllFilled;
use crate::plan::{Action, Listen, Plan, Scope, Upstream};
use crate::source::{SourceFile, Sources};
use crate::whole::Whole;

use peer::{backend, listen};

pub(crate) use crate::key::{MOST_PROBLEMS, Resolution};

/// The sources, groups and maps that all functions of this module need.
pub(crate) struct Context<'a> {
    /// The files of the configuration, for positions and relative paths.
    sources: &'a Sources,
    /// The keys that were added from defaults and sets.
    filled: &'a AllFilled,
    /// The groups [upstream.NAME] by name.
    groups: BTreeMap<String, Arc<Upstream>>,
    /// What all texts may name.
    scope: Scope<'a>,
    /// The directories whose entries are hosts (`hosts_from`), or users (`users_from`).
    host_directories: Vec<PathBuf>,
    left_out: &'a LeftOut,
}

impl<'a> Context<'a> {
    /// Returns the context for the values of these sources.
    pub fn new(
        sources: &'a Sources,
        filled: &'a AllFilled,
        scope: Scope<'a>,
        left_out: &'a LeftOut,
    ) -> Self {
        let (groups, host_directories) = (BTreeMap::new(), Vec::new());
        Self { sources, filled, groups, scope, host_directories, left_out }
    }

    /// Returns the absolute base directory of relative paths at this position of the configuration.
    fn base(&self, span: &Range<usize>) -> &'a Path {
        self.sources.base(span)
    }

    /// Returns the number of the line at a position in its file, from 1.
    fn line(&self, position: usize) -> usize {
        self.sources.line(position)
    }

    /// Returns the directory of `hosts_from` or `users_from` that contains a root.
    fn beneath(&self, root: &Path) -> Option<PathBuf> {
        let contains = |before: &&PathBuf| root != *before && root.starts_with(before);
        self.host_directories.iter().find(contains).cloned()
    }

    /// Returns true if this value comes from `[defaults]` or `[site.defaults]`. Such a value may
    /// have no effect on some routes; this is no error.
    fn is_default(&self, span: &Range<usize>) -> bool {
        self.filled.defaults.contains(&span.start)
    }

    /// Returns the value of a key. Returns `None` if the key is not set, or if the value comes from
    /// a default.
    fn own<'t, T>(&self, typed: &'t Option<At<T>>) -> Option<&'t At<T>> {
        typed.as_ref().filter(|at| !self.is_default(&at.span))
    }
}

/// Resolves a whole file to a plan. An error contains at least one problem.
pub(crate) fn resolve(
    whole: &Whole,
    sources: &Sources,
    left_out: &LeftOut,
) -> Result<Plan, Vec<Problem>> {
    let file = &whole.file;
    let scope = Scope { captures: &[], ..whole.names.scope() };
    let mut context = Context::new(sources, &whole.filled, scope, left_out);
    for site in file.site.iter().flat_map(|sites| sites.iter()) {
        let routes = site.route.iter().flatten().filter_map(|route| route.users_from.as_ref());
        let patterns = site.hosts_from.iter().map(|pattern| (Names::Hosts, pattern));
        for (names, pattern) in patterns.chain(routes.map(|pattern| (Names::Users, pattern))) {
            let base = context.base(&pattern.span);
            let found = Directories::parse(names, pattern, base).map(|found| found.before);
            let is_new = |found: &PathBuf| !context.host_directories.contains(found);
            if let Some(found) = found.filter(is_new) {
                context.host_directories.push(found);
            }
        }
    }
    let (mut problems, mut of_directories) = (whole.problems.clone(), Vec::new());

    let server =
        keep(server::server(&context, &file.server, file.metrics.to.is_some()), &mut problems);
    let log = keep(log::log(&context, file), &mut problems);
    let mut apps = BTreeMap::new();
    for (name, typed) in &file.app {
        if problems.len() >= MOST_PROBLEMS {
            break;
        }
        match (app::app(&context, name, typed), context.filled.app_directories.get(name)) {
            (Ok(app), _) => drop(apps.insert(name.clone(), app)),
            (Err(problem), None) => problems.push(problem),
            (Err(problem), Some(own)) => of_directories.push(problem.in_directory(own)),
        }
    }
    let (groups, unused_upstreams) = upstream::groups(&context, file, &mut problems);
    context.groups = groups;
    let sites = site::sites(&context, file, (&mut problems, &mut of_directories));
    let relays = relay::relays(&context, file, &sites, &mut problems);

    if let Some(admin) = server.as_ref().and_then(|server| server.admin.as_ref()) {
        let is_chosen = matches!(admin, Listen::Tcp(address) if address.port() == 0);
        let is_same = |listen: &Listen| !is_chosen && listen.socket() == admin;
        let by_site = sites.iter().flat_map(|site| &site.listen).any(is_same);
        let by_stream = relays.iter().flat_map(|relay| &relay.listen).any(is_same);
        if by_site || by_stream {
            let span = file.server.admin.as_ref().map_or(0..0, |at| at.span.clone());
            let what = if by_site { "site" } else { "stream" };
            let problem = Problem::new(&span, format!("a {what} listens on {admin}, too"));
            problems.push(problem.help("give `admin` a port or socket of its own"));
        }
    }
    match (server, log) {
        (Some(server), Some(log)) if problems.is_empty() && of_directories.is_empty() => {
            let mut plan = Plan {
                server,
                log,
                sites,
                relays,
                apps,
                unused_upstreams,
                file: SourceFile::default(),
                left_out: LeftOut::default(),
                own_apps: context.filled.app_directories.keys().cloned().collect(),
                owner_patterns: owner_patterns(sources),
            };
            plan.collect_logs();
            fill_in_users(&mut plan);
            Ok(plan)
        }
        _ => {
            problems.extend(of_directories);
            Err(problems)
        }
    }
}

/// Gives the `app_user` of `[server]` to all applications and scripts that name no user.
fn fill_in_users(plan: &mut Plan) {
    let Some(app_user) = &plan.server.app_user else { return };
    let routes = plan.sites.iter_mut().flat_map(|site| &mut Arc::make_mut(site).routes);
    let scripts = routes.filter_map(|route| match &mut route.action {
        Action::Cgi(cgi) => Some(&mut cgi.user),
        _ => None,
    });
    let users = plan.apps.values_mut().map(|app| &mut app.user).chain(scripts);
    users.filter(|user| user.is_none()).for_each(|user| *user = Some(app_user.clone()));
}

/// Returns the value. If there is a problem, adds it to `problems` and returns `None`.
fn keep<T>(outcome: Resolution<T>, problems: &mut Vec<Problem>) -> Option<T> {
    outcome.map_err(|problem| problems.push(problem)).ok()
}
