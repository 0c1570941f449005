//! From a plan to the tables that the engine's threads serve by.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{Action, Address, App as AppPlan, AppKind, Listen, PerlMode, Plan};
use forebay_engine::{
    AppStatus, AppsStatus, ErrorLog, Origin, Route, Rules, Sendfile, Site, Table, Tables, Thread,
    WorkerRow,
};
use forebay_workers::{self as workers, App, AppSpec, Kind, WorkerState, WorkerStatus};
use tokio::sync::Semaphore;

use crate::app::ScriptApp;
use crate::cgi::Cgi;
use crate::connect::{Backend, Endpoint, Use};
use crate::fastcgi::Fastcgi;
use crate::files::Files;
use crate::proxy::{Check, Checker, Group, Proxy};
use crate::respond::{FixedReply, Redirection};
use crate::script::Scripts;
use crate::slots::Slots;

/// How long an HTTP backend's connection may be idle. Servers give 5 s and more.
const HTTP_IDLE: Duration = Duration::from_secs(60);
/// How long a FastCGI connection may be idle: each holds a process of php-fpm, which closes it when
/// it has served its number of requests.
const FASTCGI_IDLE: Duration = Duration::from_secs(2);
/// Idle FastCGI connections kept by each thread.
const FASTCGI_KEEP: usize = 32;

/// Why a plan cannot be carried out.
#[derive(Debug)]
pub enum BuildError {
    /// A backend's name has no address.
    Lookup {
        /// The backend.
        address: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// An application does not start.
    App(workers::StartError),
    /// The application is of a kind that this version does not run.
    Kind(String),
    /// The system refused the thread that asks backends how they are.
    Checks(std::io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lookup { address, error } => {
                write!(f, "cannot find the backend {address}: {error}; check the name in `to`")
            }
            Self::App(error) => error.fmt(f),
            Self::Checks(error) => write!(f, "cannot start health checks: {error}"),
            Self::Kind(name) => write!(f, "the application {name} is of a kind not available yet"),
        }
    }
}

impl std::error::Error for BuildError {}

/// What all threads share: backends looked up, applications started, limits over all threads.
pub struct Origins {
    plan: Plan,
    endpoints: BTreeMap<String, Endpoint>,
    apps: BTreeMap<String, App>,
    /// By backend: routes to the same one share its limit.
    slots: BTreeMap<String, Arc<Slots>>,
    /// By site and route.
    shared: Vec<Vec<Shared>>,
    _checker: Option<Checker>,
}

/// What all threads share of one route.
#[derive(Clone, Default)]
struct Shared {
    /// The processes that there may be at once.
    room: Option<Arc<Semaphore>>,
    /// The backends of a proxy.
    group: Option<Arc<Group>>,
}

impl Origins {
    /// Looks up backends and starts applications.
    pub fn new(plan: Plan, errors: &ErrorLog) -> Result<Self, BuildError> {
        let mut endpoints = BTreeMap::new();
        for address in plan.sites.iter().flat_map(|site| &site.routes).flat_map(addresses) {
            let name = address.to_string();
            let endpoint = Endpoint::resolve(&address)
                .map_err(|error| BuildError::Lookup { address: name.clone(), error })?;
            endpoints.insert(name, endpoint);
        }
        let mut apps = BTreeMap::new();
        for (name, app) in &plan.apps {
            let errors = errors.clone();
            let started = App::start(spec(name, app)?, move |line| errors.say(line));
            apps.insert(name.clone(), started.map_err(BuildError::App)?);
        }
        let shared: Vec<Vec<_>> =
            plan.sites.iter().map(|site| site.routes.iter().map(shared).collect()).collect();
        let slots = slots(&plan);
        let checks = checks(&plan, &shared, &endpoints);
        let checker = Checker::start(checks, errors).map_err(BuildError::Checks)?;
        Ok(Self { plan, endpoints, apps, slots, shared, _checker: checker })
    }

    /// What makes the table of each thread, for listeners on the addresses `listen`.
    pub fn tables(self: &Arc<Self>, listen: &[Listen]) -> Tables {
        let origins = self.clone();
        let listen = listen.to_vec();
        Arc::new(move |thread| origins.table(&listen, thread))
    }

    /// What asks the applications how they are.
    pub fn status(&self) -> AppsStatus {
        let apps = self.apps.clone();
        Arc::new(move || {
            let status = |(name, app): (&String, &App)| AppStatus {
                name: name.clone(),
                workers: app.status().into_iter().map(worker_row).collect(),
            };
            apps.iter().map(status).collect()
        })
    }

    /// Stops the applications, giving requests under way `grace` to end.
    pub fn stop(&self, grace: Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            for app in self.apps.values() {
                app.shutdown(grace).await;
            }
        });
    }

    fn table(&self, listen: &[Listen], thread: &Rc<Thread>) -> Table {
        let sites: Vec<_> =
            (0..self.plan.sites.len()).map(|index| Rc::new(self.site(index, thread))).collect();
        let listeners = listen.iter().map(|address| {
            let here = self.plan.sites.iter().enumerate();
            here.filter(|(_, site)| site.listen.contains(address))
                .map(|(index, _)| sites[index].clone())
                .collect()
        });
        Table { listeners: listeners.collect() }
    }

    fn site(&self, index: usize, thread: &Rc<Thread>) -> Site {
        let site = &self.plan.sites[index];
        let routes = site.routes.iter().enumerate().map(|(at, route)| Route {
            matcher: route.matcher.clone(),
            origin: self.origin(route, &self.shared[index][at], thread),
            log: route.log,
            rules: rules(route),
            max_body: route.max_body.unwrap_or(self.plan.server.limits.max_body),
            fallback: route.fallback,
            sendfile: route.sendfile_root.as_ref().map(|root| Sendfile {
                root: root.clone(),
                files: Box::new(Files::new(
                    thread.clone(),
                    forebay_conf::Files {
                        index: Vec::new(),
                        ..forebay_conf::Files::new(root.clone())
                    },
                    true,
                )),
            }),
        });
        Site {
            hosts: site.hosts.clone(),
            trusted_proxies: site.trusted_proxies.clone(),
            routes: routes.collect(),
        }
    }

    fn origin(
        &self,
        route: &forebay_conf::Route,
        Shared { room, group }: &Shared,
        thread: &Rc<Thread>,
    ) -> Box<dyn Origin> {
        let thread = thread.clone();
        match &route.action {
            Action::Files(files) => Box::new(Files::new(thread, files.clone(), route.fallback)),
            Action::Cgi(cgi) => {
                let room = room.clone();
                let room = room.unwrap_or_else(|| Arc::new(Semaphore::new(cgi.max_processes)));
                Box::new(Cgi::new(thread, cgi.clone(), room))
            }
            Action::Fastcgi(fastcgi) => {
                let how = || Use {
                    keep: if fastcgi.keep_conn { FASTCGI_KEEP } else { 0 },
                    idle_time: FASTCGI_IDLE,
                    is_hasty: true,
                    ..Use::default()
                };
                let backends = fastcgi.to.iter().map(|to| self.backend(to, how(), &thread));
                let backends = backends.collect();
                Box::new(Fastcgi::new(thread, backends, fastcgi.clone()))
            }
            Action::Proxy(proxy) => {
                let how = || Use {
                    keep: proxy.keepalive,
                    idle_time: HTTP_IDLE,
                    connect_timeout: proxy.connect_timeout,
                    reply_timeout: proxy.reply_timeout,
                    ..Use::default()
                };
                let backends = proxy.to.iter().map(|to| self.backend(&to.address, how(), &thread));
                let backends = backends.collect();
                let group = group.clone().unwrap_or_else(|| Group::new(proxy));
                Box::new(Proxy::new(thread, backends, group, proxy))
            }
            Action::App(name) => {
                let app = &self.plan.apps[name];
                let dir = match &app.kind {
                    AppKind::PerlCgi { dir, .. } => dir.clone(),
                    _ => app.dir.clone(),
                };
                let (running, scripts) = (self.apps[name].clone(), Scripts::new(dir));
                Box::new(ScriptApp::new(thread, running, scripts, app.max_output))
            }
            Action::Respond(respond) => Box::new(FixedReply(respond.clone())),
            Action::Redirect(redirect) => Box::new(Redirection(redirect.clone())),
        }
    }

    fn backend(&self, address: &Address, how: Use, thread: &Rc<Thread>) -> Backend {
        let name = address.to_string();
        let slots = self.slots.get(&name).cloned();
        let endpoint = self.endpoints[&name].clone();
        Backend::new(thread.clone(), endpoint, Use { name, slots, ..how })
    }
}

fn shared(route: &forebay_conf::Route) -> Shared {
    match &route.action {
        Action::Cgi(cgi) => {
            Shared { room: Some(Arc::new(Semaphore::new(cgi.max_processes))), group: None }
        }
        Action::Proxy(proxy) => Shared { room: None, group: Some(Group::new(proxy)) },
        _ => Shared::default(),
    }
}

/// Which backends are to be asked how they are.
fn checks(
    plan: &Plan,
    shared: &[Vec<Shared>],
    endpoints: &BTreeMap<String, Endpoint>,
) -> Vec<Check> {
    let routes = plan.sites.iter().flat_map(|site| &site.routes).zip(shared.iter().flatten());
    let mut checks = Vec::new();
    for (route, shared) in routes {
        let (Action::Proxy(proxy), Some(group)) = (&route.action, &shared.group) else { continue };
        let Some(health) = &proxy.health else { continue };
        for (index, backend) in proxy.to.iter().enumerate() {
            let name = backend.address.to_string();
            checks.push(Check {
                group: group.clone(),
                index,
                endpoint: endpoints[&name].clone(),
                name,
                authority: backend.authority.clone(),
                health: health.clone(),
            });
        }
    }
    checks
}

/// The limits on connections; where routes differ about a backend, the smallest one.
fn slots(plan: &Plan) -> BTreeMap<String, Arc<Slots>> {
    let mut most = BTreeMap::new();
    for route in plan.sites.iter().flat_map(|site| &site.routes) {
        let Action::Fastcgi(fastcgi) = &route.action else { continue };
        let Some(limit) = fastcgi.max_connections else { continue };
        for address in &fastcgi.to {
            let most = most.entry(address.to_string()).or_insert(limit);
            *most = limit.min(*most);
        }
    }
    most.into_iter().map(|(name, most)| (name, Slots::new(most))).collect()
}

fn worker_row(worker: WorkerStatus) -> WorkerRow {
    WorkerRow {
        pid: worker.pid,
        state: match worker.state {
            WorkerState::Starting => "starting",
            WorkerState::Idle => "idle",
            WorkerState::Busy => "busy",
            WorkerState::Ending => "ending",
        },
        requests: worker.requests,
        age: worker.age,
        rss: worker.rss,
        current_request: worker.current_request,
    }
}

fn addresses(route: &forebay_conf::Route) -> Vec<Address> {
    match &route.action {
        Action::Fastcgi(fastcgi) => fastcgi.to.clone(),
        Action::Proxy(proxy) => proxy.to.iter().map(|backend| backend.address.clone()).collect(),
        _ => Vec::new(),
    }
}

fn rules(route: &forebay_conf::Route) -> Option<Rc<Rules>> {
    let sends_files = route.sendfile_root.is_some();
    let changes_fields = !route.set_headers.is_empty() || !route.remove_headers.is_empty();
    if !sends_files && !changes_fields && route.expires.is_none() {
        return None;
    }
    let mut rules = Rules {
        remove: route.remove_headers.clone(),
        expires: route.expires.map(|expires| expires.as_secs()),
        sends_files,
        ..Rules::default()
    };
    for (name, value) in &route.set_headers {
        rules.remove.push(name.to_ascii_lowercase());
        forebay_wire::http1::encode::field(&mut rules.add, name, value.as_bytes());
    }
    Some(Rc::new(rules))
}

fn spec(name: &str, app: &AppPlan) -> Result<AppSpec, BuildError> {
    let kind = match &app.kind {
        AppKind::PerlCgi { dir, mode: PerlMode::Registry } => {
            Kind::PerlCgi { dir: dir.clone(), mode: workers::PerlMode::Registry }
        }
        AppKind::PerlCgi { dir, mode: PerlMode::RegistryPrefork } => {
            Kind::PerlCgi { dir: dir.clone(), mode: workers::PerlMode::RegistryPrefork }
        }
        _ => return Err(BuildError::Kind(name.to_owned())),
    };
    Ok(AppSpec {
        workers: workers::Workers { min: app.workers.min, max: app.workers.max },
        max_requests: app.max_requests,
        request_timeout: app.request_timeout,
        queue: app.queue,
        queue_timeout: app.queue_timeout,
        env: app.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        max_memory: app.max_memory,
        idle_timeout: app.idle_timeout,
        ..AppSpec::new(name, kind)
    })
}
