//! Turns a plan into the routing tables of the server's threads.

mod keys;
mod labels;
mod mirrors;
mod replies;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_admin::{BackendRow, BackendsOf, Purge, Status};
use forebay_conf::{
    Action, Address, Clients, ErrorPages, HttpVersion, Jwt, Listen, Placeholder, Plan, Redirect,
    Scheme, Template, TemplatePart,
};
use forebay_net::counters::{RouteCounters, RouteLabels, RouteRegistry};
use forebay_net::log::ErrorLog;
use forebay_net::request_fields::RequestFields;
use forebay_net::thread::Thread;
use forebay_net::tls::Alpn;
use forebay_origin::access::{
    DigestUsers, ForwardAuth, GateState, Guarded, HashQueue, KeyError, PasswordChecks, RateLimiter,
    TokenKeys, Users, UsersError, checks_at_once,
};
use forebay_origin::apps::definition::Definition;
use forebay_origin::apps::running::RunningApp;
use forebay_origin::cache::{CachedOrigin, Store};
use forebay_origin::files::{Files, RouteId, ScriptRoutes};
use forebay_origin::moved::MovedRedirects;
use forebay_origin::respond::{FixedReply, Redirection, Rewriting};
use forebay_origin::rules::{Others, has_gate, instead, kept_scripts};
use forebay_origin::scripts::cgi::{Cgi, PASSED, Processes};
use forebay_origin::scripts::reaper::ScriptReaper;
use forebay_server::compress::Compression;
use forebay_server::exchange::{Gate, Origin};
use forebay_server::forwarded::Trust;
use forebay_server::pages::Closed;
use forebay_server::relay::Relay;
use forebay_server::reply::Rules;
use forebay_server::route::{OtherPaths, Route, Sendfile, Site, Table};
use forebay_server::serving::Tables;
use forebay_upstream::ajp::Ajp;
use forebay_upstream::app_server::AppServer;
use forebay_upstream::fastcgi::{FASTCGI_IDLE, Fastcgi};
use forebay_upstream::http2::Http2Pools;
use forebay_upstream::proxy::Proxy;
use forebay_upstream::relay::RelayUpstream;
use forebay_upstream::script::{exact_paths, scripts_of};
use forebay_upstream::{
    Backend, BackendOptions, Checker, Endpoint, IdlePools, Names, PendingConnections, Permits,
    Upstream, wait_for_names,
};
use forebay_wire::path::Slashes;
use forebay_workers::StartError;
use tokio::sync::Semaphore;

use crate::start::start_all;
use crate::tls::{AcmeService, SiteTls};
use keys::token_keys;
use labels::labels_of;
pub(crate) use replies::places;
pub(crate) use shared::launch_of;
use shared::{Shared, SharedUpstream, checks, names, permits, shared_of_all};

/// Idle limit of a connection to an HTTP backend. HTTP servers keep idle connections for 5 s or
/// longer.
const HTTP_IDLE: Duration = Duration::from_secs(60);
/// Idle limit of a servlet container's connection.
// By default, Tomcat keeps connections open forever. The value differs from HTTP's, so that an
// address with both protocols has two pools.
const AJP_IDLE: Duration = Duration::from_secs(59);

/// Interval at which a reload checks if old applications are still in use.
const LOOK: Duration = Duration::from_millis(20);

/// Error that prevents the use of a plan.
#[derive(Debug)]
pub enum BuildError {
    /// The thread that resolves names of backends cannot be started.
    Names(std::io::Error),
    /// The user file of a route cannot be read.
    Users(UsersError),
    /// The keys of `jwt` cannot be read.
    Keys(KeyError),
    /// An application does not start.
    App(StartError),
    /// The scripts of a route cannot be started with its settings.
    Route {
        /// The line of the route.
        line: usize,
        /// Reason.
        error: StartError,
    },
    /// The directory of stored replies cannot be used.
    Cache(String),
    /// The thread for health checks cannot be started.
    Checks(std::io::Error),
    /// The thread for certificates cannot be started.
    Certificates(std::io::Error),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Names(error) => {
                write!(f, "cannot start the thread that resolves names of backends: {error}")
            }
            Self::Users(error) => error.fmt(f),
            Self::Keys(error) => error.fmt(f),
            Self::App(error) => error.fmt(f),
            Self::Route { line, error } => write!(
                f,
                "the `cgi` route of line {line}: {}; remove `user` and `group` from it, or start \
                 Forebay as root",
                error.what()
            ),
            Self::Cache(error) => write!(f, "`cache_dir`: {error}"),
            Self::Checks(error) => write!(f, "cannot start health checks: {error}"),
            Self::Certificates(error) => {
                write!(f, "cannot start the thread that renews certificates: {error}")
            }
        }
    }
}

impl std::error::Error for BuildError {}

/// The rule for applications that fail to start.
#[derive(Clone, Copy)]
pub enum Starts<'a> {
    /// Nothing serves yet. They are started again later.
    Later,
    /// Another process serves until all applications have started.
    All,
    /// This configuration serves until all applications have started.
    After(&'a Origins),
}

impl<'a> Starts<'a> {
    fn previous(self) -> Option<&'a Origins> {
        if let Self::After(previous) = self { Some(previous) } else { None }
    }

    fn must_succeed(self) -> bool {
        !matches!(self, Self::Later)
    }
}

/// State that all threads share: backend addresses, running applications, global limits.
pub struct Origins {
    plan: Plan,
    endpoints: BTreeMap<String, Endpoint>,
    names: Arc<Names>,
    apps: BTreeMap<String, RunningApp>,
    /// Maximum number of connections and a permit for each, by backend. All routes to a backend
    /// share its limit.
    permits: BTreeMap<String, (usize, Arc<Permits>)>,
    /// New connections that have not received a reply yet, by backend.
    pending_connections: BTreeMap<String, Arc<PendingConnections>>,
    /// State of each route, by site and route.
    shared: Vec<Vec<Shared>>,
    /// Groups of the streams.
    relays: Vec<SharedUpstream>,
    /// Reaper of all CGI scripts. A reload keeps it.
    reaper: Arc<ScriptReaper>,
    _checker: Option<Checker>,
    /// Known users, and passwords that wait for a check.
    password_checks: Arc<PasswordChecks>,
    /// Stored replies of all routes.
    store: Option<Arc<Store>>,
    /// Rate limits by site and route, with the state of their keys.
    limiters: Vec<Vec<Vec<Arc<RateLimiter>>>>,
    /// Keys of `jwt` by site and route.
    token_keys: Vec<Vec<Option<Arc<TokenKeys>>>>,
    tls: SiteTls,
    acme: Option<AcmeService>,
    /// Counters of routes, if `route_metrics` is set.
    registry: Option<Arc<RouteRegistry>>,
    /// Every site has a clone, so that the reference count shows if requests still use a site.
    held: Arc<()>,
}

impl Origins {
    /// Looks up backends and starts applications, except those that the previous configuration runs
    /// already.
    pub fn new(
        plan: Plan,
        tls: SiteTls,
        errors: &ErrorLog,
        starts: Starts<'_>,
    ) -> Result<Self, BuildError> {
        let previous = starts.previous();
        let names = names(&plan, errors, previous.map(|previous| &previous.names));
        let addresses = plan.sites.iter().flat_map(|site| &site.routes).flat_map(addresses);
        let of_streams = plan.relays.iter().flat_map(|relay| relay.upstream.addresses());
        let addresses = addresses.chain(of_streams);
        let endpoint = |address: &Address| Ok((address.to_string(), names.endpoint(address)?));
        let endpoints: BTreeMap<_, _> =
            addresses.map(endpoint).collect::<Result<_, _>>().map_err(BuildError::Names)?;
        wait_for_names(endpoints.values());
        let running = |name: &str, definition: &Definition| previous?.running(name, definition);
        let apps =
            start_all(&plan, errors, starts.must_succeed(), running).map_err(BuildError::App)?;
        for auth in plan.sites.iter().flat_map(|site| &site.routes).filter_map(passwords) {
            Users::check(&auth.file).map_err(BuildError::Users)?;
        }
        let routes = plan.sites.iter().flat_map(|site| &site.routes);
        for auth in routes.filter_map(|route| route.access.digest_auth.as_ref()) {
            DigestUsers::check(&auth.file).map_err(BuildError::Users)?;
        }
        let password_checks = previous.map_or_else(
            || Arc::new(PasswordChecks::new(checks_at_once())),
            |previous| previous.password_checks.clone(),
        );
        // The state is kept, because a previous configuration with an active request still has idle
        // connections. These idle connections may have to close for a new connection.
        let pending_connections = |name: &String| {
            let before = previous.and_then(|previous| previous.pending_connections.get(name));
            (name.clone(), before.cloned().unwrap_or_default())
        };
        let pending_connections = endpoints.keys().map(pending_connections).collect();
        let (shared, relays) = shared_of_all(&plan, previous)?;
        let permits = permits(&plan, previous);
        let checks = checks((&shared, &relays), &endpoints);
        let checker = Checker::start(checks, errors).map_err(BuildError::Checks)?;
        let reaper = previous.map_or_else(Arc::default, |previous| previous.reaper.clone());
        let before = previous.and_then(|previous| previous.acme.as_ref());
        let acme =
            AcmeService::start(&plan, &tls, errors, before).map_err(BuildError::Certificates)?;
        let held = Arc::default();
        let registry = previous.and_then(|previous| previous.registry.clone());
        let registry = plan.server.route_metrics.then(|| registry.unwrap_or_default());
        let limiters = limiters(&plan, previous.map(|previous| &previous.limiters[..]));
        let token_keys = token_keys(&plan, previous).map_err(BuildError::Keys)?;
        let store =
            replies::store(&plan, errors, previous.and_then(|previous| previous.store.as_ref()))
                .map_err(BuildError::Cache)?;
        Ok(Self {
            plan,
            endpoints,
            names,
            apps,
            permits,
            pending_connections,
            shared,
            relays,
            reaper,
            _checker: checker,
            password_checks,
            store,
            limiters,
            registry,
            token_keys,
            held,
            tls,
            acme,
        })
    }

    /// Returns the certificates, so that they can be reloaded.
    pub fn tls(&self) -> &SiteTls {
        &self.tls
    }

    /// Returns the function that creates the table of each thread.
    pub fn tables(self: &Arc<Self>) -> Tables {
        let origins = self.clone();
        Arc::new(move |thread, listen| origins.table(listen, thread))
    }

    /// Returns the queue of passwords that wait for a check.
    pub fn password_queue(&self) -> &Arc<HashQueue> {
        self.password_checks.queue()
    }

    /// Returns the state of applications and backends.
    pub fn status(&self) -> Status {
        let status = |(name, app): (&String, &RunningApp)| app.status(name);
        let apps = self.apps.iter().map(status).collect();
        let cache = self.store.as_ref().map(|store| store.status());
        let routes = self.registry.as_ref().map_or_else(Vec::new, |all| all.totals());
        let (backends, mirrors) = (self.backends(), self.mirrors());
        Status { apps, backends, cache, routes, mirrors }
    }

    /// Returns the counters of a route for this thread.
    fn route_counters(
        &self,
        site: &forebay_conf::Site,
        route: &forebay_conf::Route,
        thread: &Rc<Thread>,
    ) -> Option<Arc<RouteCounters>> {
        let registry = self.registry.as_ref()?;
        let RouteLabels { site, route } = labels_of(site, route);
        // A path may come from a file with secrets.
        let hide = |text: String| self.plan.file.hide(&text);
        let labels = RouteLabels { site: hide(site), route: hide(route) };
        Some(registry.counters(labels, thread.index))
    }

    /// Returns one row for each backend server. Routes with the same named `[upstream]` share its
    /// rows.
    fn backends(&self) -> Vec<BackendRow> {
        let mut rows = Vec::new();
        let mut names = BTreeSet::new();
        for (site, (plan, shared)) in self.plan.sites.iter().zip(&self.shared).enumerate() {
            for (at, (route, shared)) in plan.routes.iter().zip(shared).enumerate() {
                let plan_and_shared = route.action.upstream().zip(shared.upstream.as_ref());
                let Some((plan, shared)) = plan_and_shared else { continue };
                let of = match &plan.name {
                    Some(name) if !names.insert(name) => continue,
                    Some(name) => BackendsOf::Upstream(name.clone()),
                    None => BackendsOf::Route { site: site + 1, route: at + 1, line: route.line },
                };
                rows.extend(self.rows(&of, plan, shared));
            }
        }
        for (at, (relay, shared)) in self.plan.relays.iter().zip(&self.relays).enumerate() {
            let of = match &relay.upstream.name {
                Some(name) if !names.insert(name) => continue,
                Some(name) => BackendsOf::Upstream(name.clone()),
                None => BackendsOf::Stream { stream: at + 1, line: relay.line },
            };
            rows.extend(self.rows(&of, &relay.upstream, shared));
        }
        rows
    }

    /// Returns the state of one group's backends.
    fn rows(
        &self,
        of: &BackendsOf,
        plan: &forebay_conf::Upstream,
        SharedUpstream { group, tallies, .. }: &SharedUpstream,
    ) -> Vec<BackendRow> {
        let row = |(index, backend): (usize, &forebay_conf::Backend)| {
            let counted = tallies.of(index);
            BackendRow {
                of: of.clone(),
                server: index + 1,
                address: self.plan.file.hide(&backend.address.to_string()),
                is_up: group.is_up(index),
                slow_start: group.slow_start_percent(index),
                is_backup: backend.backup,
                active: counted.active,
                requests: counted.requests,
                failures: counted.failures,
            }
        };
        plan.to.iter().enumerate().map(row).collect()
    }

    /// Replaces the processes of an application. Returns false if no application has this name.
    pub fn restart(&self, app: &str) -> bool {
        self.apps.get(app).map(RunningApp::restart).is_some()
    }

    /// Removes stored replies. Returns their number; `None` if no route stores any.
    pub fn purge(&self, purge: &Purge) -> Option<usize> {
        self.store.as_ref().map(|store| store.purge(purge))
    }

    /// Stops the applications. Active requests have the time `grace` to end.
    pub fn stop(&self, grace: Duration) {
        if let Some(acme) = &self.acme {
            acme.stop();
        }
        stop(self.apps.values(), grace);
        if let Some(disk) = self.store.as_ref().and_then(|store| store.disk()) {
            disk.finish();
        }
        self.reaper.close();
    }

    /// Notifies the applications that the configuration was reloaded.
    pub fn reloaded(&self) {
        self.apps.values().for_each(RunningApp::reloaded);
    }

    /// Stops the applications that `successor` does not run. First waits until no request uses a
    /// site of these origins, for at most `grace`. Blocks the thread.
    pub fn retire(&self, successor: &Self, grace: Duration) {
        let left: Vec<_> = self
            .apps
            .iter()
            .filter(|(name, app)| !successor.apps.get(*name).is_some_and(|new| new.is_same(app)))
            .map(|(_, app)| app)
            .collect();
        if left.is_empty() {
            return;
        }
        let deadline = Instant::now() + grace;
        while Arc::strong_count(&self.held) > 1 && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        stop(left, deadline.saturating_duration_since(Instant::now()));
    }

    /// Returns the application of this name if its definition is unchanged.
    fn running(&self, name: &str, wanted: &Definition) -> Option<RunningApp> {
        self.apps.get(name).filter(|app| app.is(wanted)).cloned()
    }

    /// Returns the table that selects the site of a request on each listener. Each thread has a
    /// table.
    fn table(&self, listen: &[Option<Listen>], thread: &Rc<Thread>) -> Table {
        let pools = Pools::default();
        let sites = 0..self.plan.sites.len();
        let sites: Vec<_> = sites.map(|index| Rc::new(self.site(index, thread, &pools))).collect();
        let listeners = listen.iter().map(|address| {
            let here = self.plan.sites.iter().enumerate();
            let here = here
                .filter(|(_, site)| address.as_ref().is_some_and(|a| is_found_at(site, a)))
                .map(|(index, _)| sites[index].clone())
                .collect();
            (here, address.as_ref())
        });
        let mut table = Table::new(listeners.collect());
        let relays = 0..self.plan.relays.len();
        let relays: Vec<_> =
            relays.map(|index| Rc::new(self.relay(index, thread, &pools))).collect();
        let relays_at = |address: &Option<Listen>| {
            let here = self.plan.relays.iter().zip(&relays);
            let here =
                here.filter(|(plan, _)| address.as_ref().is_some_and(|a| plan.listen.contains(a)));
            here.map(|(_, relay)| relay.clone()).collect()
        };
        table.relays = listen.iter().map(relays_at).collect();
        table.challenges = self.acme.as_ref().map(|acme| acme.challenges.clone());
        table
    }

    fn relay(&self, index: usize, thread: &Rc<Thread>, pools: &Pools) -> Relay {
        let (plan, shared) = (&self.plan.relays[index], self.relays[index].clone());
        let how = BackendOptions::default();
        let upstream =
            self.upstream((&plan.upstream, &Some(shared)), Some(0), how, (thread, pools));
        Relay {
            names: plan.sni.clone(),
            tls: self.tls.relays[index].clone(),
            needs_hello: plan.needs_hello(),
            proxy_protocol: plan.proxy_protocol,
            trusted_proxies: plan.trusted_proxies.clone(),
            access: plan.access.clone(),
            idle: plan.idle_timeout,
            backends: Box::new(RelayUpstream::new(upstream, &plan.upstream)),
        }
    }

    fn site(&self, index: usize, thread: &Rc<Thread>, pools: &Pools) -> Site {
        let site = &self.plan.sites[index];
        let scripts = ScriptRoutes::of(site, &self.plan);
        let kept = kept_scripts(site, &self.plan);
        let routes = site.routes.iter().enumerate().map(|(at, route)| Route {
            matcher: route.matcher.clone(),
            gate: self.gate((index, at), route, (thread, pools)),
            origin: {
                let shared = &self.shared[index][at];
                let answering =
                    self.origin((site, at), (&scripts, &kept[at]), shared, (thread, pools));
                let answering = self.cached((site, route), answering, thread);
                self.mirrored(route, answering, shared, (thread, pools))
            },
            log: self.plan.log_of(site, Some(route)),
            counters: self.route_counters(site, route, thread),
            fields: RequestFields::new(&route.request_headers),
            rules: rules(route),
            pages: pages(&route.error_pages),
            intercepts: route.error_pages.intercept && has_errors_of_its_own(&route.action),
            closed: route.maintenance.clone().map(|settings| Box::new(Closed::new(settings))),
            cors: route.cors.clone().map(Rc::new),
            compression: route.compress.clone().map(|settings| Rc::new(Compression::new(settings))),
            bandwidth_limit: route.bandwidth_limit,
            max_body: route.max_body.unwrap_or(self.plan.server.limits.max_body),
            fallback: route.fallback,
            fallback_to: route.fallback_to.clone(),
            rewrite: route.rewrite.clone().filter(|_| route.action != Action::Rewrite),
            rewrites: route.action == Action::Rewrite,
            buffer: route.buffer,
            request_buffering: route.request_buffering,
            other_paths: Others::of_route(site, &self.plan, at, &kept)
                .map(|others| Box::new(others) as Box<dyn OtherPaths>),
            instead: instead(route),
            keeps_from: kept[at].clone(),
            sendfile: route.sendfile_root.as_ref().map(|root| Sendfile {
                root: root.clone(),
                files: Box::new(Files::new(
                    thread.clone(),
                    // Hidden files are included, because the application decides which files are
                    // sent.
                    forebay_conf::Files {
                        index: Vec::new(),
                        hidden: true,
                        ..forebay_conf::Files::new(root.clone())
                    },
                    true,
                    ScriptRoutes::default(),
                )),
            }),
        });
        Site {
            log: self.plan.log_of(site, None),
            hosts: site.hosts.clone(),
            trust: trust(site),
            proxy_protocol: site.proxy_protocol,
            ajp: site.ajp.clone(),
            http3: site.listen.iter().any(Listen::is_http3),
            redirect_to_https: site
                .redirect_to_https
                .map(|port| Box::new(Redirection(by_https(port))) as Box<dyn Origin>),
            tls: self.tls.sites[index].clone(),
            encoded_slashes: site.encoded_slashes,
            slashes: slashes(site),
            held: self.held.clone(),
            pages: pages(&site.error_pages),
            routes: routes.collect(),
        }
    }

    /// Returns the access control of a route, or `None` if every request may pass.
    fn gate(
        &self,
        (site, at): (usize, usize),
        route: &forebay_conf::Route,
        (thread, pools): (&Rc<Thread>, &Pools),
    ) -> Option<Box<dyn Gate>> {
        if !has_gate(route) {
            return None;
        }
        let shared = &self.shared[site][at].auth;
        let forward = route.access.forward_auth.as_ref().map(|settings| {
            let server = self.proxy(&settings.proxy, shared, (thread, pools));
            ForwardAuth::new(Box::new(server), settings.clone())
        });
        let url = route.access.jwt.as_ref().and_then(Jwt::url);
        let key_server = url.map(|url| {
            let shared = &self.shared[site][at].keys;
            Box::new(self.proxy(&url.proxy, shared, (thread, pools))) as Box<dyn Origin>
        });
        let state = GateState {
            key_server,
            checks: self.password_checks.clone(),
            limiters: &self.limiters[site][at],
            keys: self.token_keys[site][at].clone(),
            forward,
        };
        Some(Box::new(Guarded::new(thread.clone(), route.access.clone(), state)))
    }

    /// Returns the connections of one thread to the backends of a group.
    fn upstream(
        &self,
        (plan, shared): (&forebay_conf::Upstream, &Option<SharedUpstream>),
        keep: Option<usize>,
        how: BackendOptions,
        (thread, pools): (&Rc<Thread>, &Pools),
    ) -> Upstream {
        let how = || BackendOptions {
            pools: Some(pools.idle.clone()),
            keep: if plan.send_proxy.is_some() { Some(0) } else { keep },
            connect_timeout: plan.connect_timeout,
            ..how.clone()
        };
        let backends = plan.to.iter().map(|to| {
            let mut how = how();
            if to.https {
                // TLS connections are not shared, because another route may verify certificates
                // differently.
                how.pools = None;
                how.tls = Some((self.tls.backends[&plan.tls].clone(), host_of_url(to)));
                how.alpn = match to.version {
                    _ if to.scheme == Scheme::Stream => Alpn::None,
                    HttpVersion::Http11 => Alpn::Http11,
                    HttpVersion::Http2 => Alpn::Http2,
                    HttpVersion::Negotiated => Alpn::Any,
                };
            }
            self.backend(&to.address, how, thread)
        });
        let backends = backends.collect();
        let SharedUpstream { group, tallies, .. } =
            shared.as_ref().expect("a route to backends has what they share");
        let upstream = Upstream::new(thread.clone(), backends, group.clone(), tallies);
        upstream.hashed_by(plan.hash_key.clone())
    }

    fn proxy(
        &self,
        proxy: &forebay_conf::Proxy,
        shared: &Option<SharedUpstream>,
        (thread, pools): (&Rc<Thread>, &Pools),
    ) -> Proxy {
        let how = BackendOptions {
            idle_time: HTTP_IDLE,
            reply_timeout: proxy.reply_timeout,
            ..BackendOptions::default()
        };
        let keep = proxy.upstream.keepalive;
        let upstream = self.upstream((&proxy.upstream, shared), keep, how, (thread, pools));
        Proxy::new(thread.clone(), upstream, proxy, &pools.http2)
    }

    /// Returns the origin of a route on one thread: the part that answers its requests.
    fn origin(
        &self,
        (site, at): (&forebay_conf::Site, usize),
        (scripts, kept_from): (&ScriptRoutes, &[usize]),
        Shared { room, launcher, upstream: shared, .. }: &Shared,
        (thread, pools): (&Rc<Thread>, &Pools),
    ) -> Box<dyn Origin> {
        let route = &site.routes[at];
        let upstream = |plan: &forebay_conf::Upstream, keep: Option<usize>, how: BackendOptions| {
            self.upstream((plan, shared), keep, how, (thread, pools))
        };
        let thread = thread.clone();
        match &route.action {
            Action::Files(files) => {
                let passes_on = route.passes_on();
                let kept_from = kept_from.iter().map(|&below| RouteId::of(site, below)).collect();
                let files = Files::new(thread, files.clone(), passes_on, scripts.clone());
                Box::new(files.kept_from(kept_from))
            }
            Action::Cgi(cgi) => {
                let room = room.clone();
                let room = room.unwrap_or_else(|| Arc::new(Semaphore::new(cgi.max_processes)));
                let (reaper, launcher) = (self.reaper.clone(), launcher.clone());
                let processes = Processes { room, reaper, launcher, passed: &PASSED };
                let scripts = (scripts_of(&cgi.dir, route), exact_paths(route));
                Box::new(Cgi::new(thread, cgi.clone(), processes, scripts))
            }
            Action::Fastcgi(fastcgi) => {
                let how = BackendOptions {
                    idle_time: FASTCGI_IDLE,
                    violates_keep_alive: true,
                    ..BackendOptions::default()
                };
                let keep = if fastcgi.keep_conn { fastcgi.upstream.keepalive } else { Some(0) };
                let upstream = upstream(&fastcgi.upstream, keep, how);
                Box::new(Fastcgi::new(thread, upstream, fastcgi.clone()))
            }
            Action::AppServer(settings) => {
                let upstream = upstream(&settings.upstream, Some(0), BackendOptions::default());
                Box::new(AppServer::new(thread, upstream, settings.clone()))
            }
            Action::Ajp(ajp) => {
                let reply_timeout = ajp.reply_timeout;
                let how = BackendOptions {
                    idle_time: AJP_IDLE,
                    reply_timeout,
                    ..BackendOptions::default()
                };
                let keep = ajp.upstream.keepalive;
                Box::new(Ajp::new(&thread, upstream(&ajp.upstream, keep, how), ajp.clone()))
            }
            Action::Proxy(proxy) => Box::new(self.proxy(proxy, shared, (&thread, pools))),
            Action::App(name) => {
                let app = &self.plan.apps[name];
                self.apps[name].origin(name, app, route, thread)
            }
            Action::Respond(respond) => Box::new(FixedReply::new(respond.clone())),
            Action::Redirect(redirect) => Box::new(Redirection(redirect.clone())),
            Action::Moved(pages) => Box::new(MovedRedirects(pages.clone())),
            Action::Rewrite => {
                let to = route.rewrite.clone();
                Box::new(Rewriting(to.expect("a route without another action has `rewrite`")))
            }
        }
    }

    /// Returns `origin`. If the route has `cache`, wraps it in an origin that stores replies.
    fn cached(
        &self,
        (site, route): (&forebay_conf::Site, &forebay_conf::Route),
        origin: Box<dyn Origin>,
        thread: &Rc<Thread>,
    ) -> Box<dyn Origin> {
        let Some((settings, store)) = route.cache.as_ref().zip(self.store.as_ref()) else {
            return origin;
        };
        let zone = replies::zone(site, route);
        let names_users = route.access.names_users_otherwise();
        let thread = thread.clone();
        Box::new(CachedOrigin::new(origin, settings, (store, &zone), thread, names_users))
    }

    fn backend(&self, address: &Address, how: BackendOptions, thread: &Rc<Thread>) -> Backend {
        let name = address.to_string();
        let permits = self.permits.get(&name).map(|(_, permits)| permits.clone());
        let endpoint = self.endpoints[&name].clone();
        // No TLS connection is closed so that a new one is served. A TLS server usually handles
        // many connections at once, and each costs a handshake.
        let pending = self.pending_connections.get(&name).filter(|_| how.tls.is_none()).cloned();
        let how = BackendOptions { name, permits, pending, ..how };
        Backend::new(thread.clone(), endpoint, how)
    }
}

/// Connection pools that the routes of one thread share.
#[derive(Default)]
struct Pools {
    idle: Rc<IdlePools>,
    http2: Http2Pools,
}

/// Returns the site's treatment of repeated slashes.
pub(crate) fn slashes(site: &forebay_conf::Site) -> Slashes {
    if site.merge_slashes { Slashes::Merge } else { Slashes::Keep }
}

/// Returns true if a listener selects the site by name. An HTTP/3 listener selects from all sites
/// of the TLS listener on its address, so that both select the same site. A site without HTTP/3
/// then refuses the request.
fn is_found_at(site: &forebay_conf::Site, address: &Listen) -> bool {
    let is_beside = |listen: &Listen| listen.beside_for_http3().as_ref() == Some(address);
    site.listen.contains(address) || site.listen.iter().any(is_beside)
}

/// Returns the host name that a server's certificate must have.
fn host_of_url(to: &forebay_conf::Backend) -> String {
    let host = to.authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
    host.map_or(&*to.authority, |(host, _)| host).to_owned()
}

/// Returns the redirection to the same URL with https:// and `port`.
pub(crate) fn by_https(port: u16) -> Redirect {
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    let to = Template::of(vec![
        TemplatePart::Text("https://".into()),
        TemplatePart::Value(Placeholder::Host),
        TemplatePart::Text(port),
        TemplatePart::Value(Placeholder::Uri),
    ]);
    // 308 is like 301, but a POST stays a POST.
    Redirect { to, keep_query: false, status: 308 }
}

fn stop<'a>(apps: impl IntoIterator<Item = &'a RunningApp>, grace: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return };
    runtime.block_on(async {
        for app in apps {
            app.shutdown(grace).await;
        }
    });
}

fn addresses(route: &forebay_conf::Route) -> impl Iterator<Item = &Address> {
    route.upstreams().flat_map(|upstream| upstream.addresses())
}

fn passwords(route: &forebay_conf::Route) -> Option<&forebay_conf::BasicAuth> {
    route.access.basic_auth.as_ref()
}

/// Returns the site's trusted sources of client addresses.
pub fn trust(site: &forebay_conf::Site) -> Trust {
    let mut proxies = site.trusted_proxies.clone();
    if site.trusts_unix_by_address() {
        proxies.push(Clients::Unix);
    }
    Trust { proxies, fields: site.forwarded }
}

fn pages(pages: &ErrorPages) -> Option<Rc<ErrorPages>> {
    (!pages.pages.is_empty()).then(|| Rc::new(pages.clone()))
}

/// Returns true if an application or server may reply with an error.
fn has_errors_of_its_own(action: &Action) -> bool {
    !matches!(
        action,
        Action::Files(_)
            | Action::Respond(_)
            | Action::Redirect(_)
            | Action::Moved(_)
            | Action::Rewrite
    )
}

fn rules(route: &forebay_conf::Route) -> Option<Rc<Rules>> {
    let sends_files = route.sendfile_root.is_some();
    let changes_fields = !route.reply_headers.is_empty() || !route.remove_headers.is_empty();
    let is_plain = !sends_files && !changes_fields && route.cors.is_none();
    if is_plain && route.expires.is_none() {
        return None;
    }
    Some(Rc::new(Rules {
        expires: route.expires.map(|expires| expires.as_secs()),
        sends_files,
        cors: route.cors.clone().map(Rc::new),
        ..Rules::new(&route.reply_headers, &route.remove_headers)
    }))
}

/// Creates the state of all rate limits. A limit keeps its state if the previous configuration has
/// an equal limit with the same number in the same route.
fn limiters(
    plan: &Plan,
    previous: Option<&[Vec<Vec<Arc<RateLimiter>>>]>,
) -> Vec<Vec<Vec<Arc<RateLimiter>>>> {
    let sites = plan.sites.iter().enumerate().map(|(site, in_site)| {
        let routes = in_site.routes.iter().enumerate().map(|(at, route)| {
            let limits = route.access.rate_limits.iter().enumerate();
            let limits = limits.map(|(number, limit)| {
                let before = previous.and_then(|sites| sites.get(site)?.get(at)?.get(number));
                let before = before.filter(|before| before.limit() == limit).cloned();
                before.unwrap_or_else(|| Arc::new(RateLimiter::new(limit.clone())))
            });
            limits.collect()
        });
        routes.collect()
    });
    sites.collect()
}
