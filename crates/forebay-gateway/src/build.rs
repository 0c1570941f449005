//! Turns a plan into the state that all threads share. `tables` builds the routing table of a
//! thread.

mod certificates;
mod keys;
mod labels;
mod limits;
mod mirrors;
mod replies;
mod shared;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_admin::{BackendRow, BackendsOf, Purge, Status};
use forebay_conf::{
    Activation, Address, Clients, Placeholder, Plan, Redirect, Template, TemplatePart,
};
use forebay_net::counters::{RouteCounters, RouteLabels, RouteRegistry};
use forebay_net::log::ErrorLog;
use forebay_net::thread::Thread;
use forebay_origin::access::{
    ConcurrencyLimiter, DigestUsers, HashQueue, KeyError, PasswordChecks, RateLimiter, TokenKeys,
    Users, UsersError, checks_at_once, random_key,
};
use forebay_origin::apps::definition::Definition;
use forebay_origin::apps::running::RunningApp;
use forebay_origin::cache::Store;
use forebay_origin::scripts::reaper::ScriptReaper;
use forebay_server::forwarded::Trust;
use forebay_server::host_index::HostIndex;
use forebay_server::route_index::RouteIndex;
use forebay_server::serving::Tables;
use forebay_upstream::{
    Checker, Crawlers, Endpoint, Names, PendingConnections, Permits, wait_for_names,
};
use forebay_wire::path::Slashes;
use forebay_workers::StartError;

use crate::fleet::Fleet;
use crate::networks::NetworkService;
use crate::start::start_all;
use crate::tls::{AcmeService, SiteTls};
use keys::token_keys;
use labels::labels_of;
use limits::{concurrency_limiters, limiters, shared_limits};
pub(crate) use replies::places;
pub(crate) use shared::launch_of;
use shared::{Shared, SharedUpstream, checks, names, permits, shared_of_all};

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
    /// The scripts of a route cannot be started with the route's settings.
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
    /// The thread that reads lists of trusted proxies could not start.
    Networks(std::io::Error),
    /// The store that machines share cannot be used.
    Store(std::io::Error),
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
            Self::Store(error) => write!(f, "`store`: {error}"),
            Self::Networks(error) => write!(f, "cannot read lists of trusted proxies: {error}"),
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
    /// Nothing serves yet. Applications that fail are started again later.
    Later,
    /// Another process serves until all applications have started.
    All,
    /// The given origins serve until all applications of the new plan have started.
    After(&'a Origins),
    /// As [`Self::After`], but the plan differs only in the administrator's changes of backends and
    /// sites. Files of users and keys are not read again, so that such a change succeeds whatever
    /// has become of them.
    Changing(&'a Origins),
}

impl<'a> Starts<'a> {
    fn previous(self) -> Option<&'a Origins> {
        match self {
            Self::After(previous) | Self::Changing(previous) => Some(previous),
            Self::Later | Self::All => None,
        }
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
    /// Crawlers that DNS has verified.
    crawlers: Arc<Crawlers>,
    apps: BTreeMap<String, RunningApp>,
    /// Maximum number of connections, and their permits, by backend. All routes to a backend share
    /// the backend's limit.
    permits: BTreeMap<String, (usize, Arc<Permits>)>,
    /// New connections that have not received a reply yet, by backend.
    pending_connections: BTreeMap<String, Arc<PendingConnections>>,
    /// State of each route, by site and route.
    shared: Vec<Vec<Shared>>,
    /// Groups of the streams.
    relays: Vec<SharedUpstream>,
    /// Reaper of all CGI scripts. A reload keeps this reaper.
    reaper: Arc<ScriptReaper>,
    _checker: Option<Checker>,
    /// Known users, and passwords that wait for a check.
    password_checks: Arc<PasswordChecks>,
    /// Stored replies of all routes.
    store: Option<Arc<Store>>,
    /// Rate limits by site and route, with the state of their keys.
    limiters: Vec<Vec<Vec<Arc<RateLimiter>>>>,
    /// Counts of running requests by site and route.
    concurrency: Vec<Vec<Vec<Arc<ConcurrencyLimiter>>>>,
    /// Key of challenges without a secret: that of the store, or a random one. A reload keeps it.
    challenge_key: [u8; 32],
    /// Keys of `jwt` by site and route.
    token_keys: Vec<Vec<Option<Arc<TokenKeys>>>>,
    tls: Arc<SiteTls>,
    acme: Option<AcmeService>,
    /// The thread that reads lists of trusted proxies again. It ends with this value.
    _networks: Option<NetworkService>,
    /// The exchange with other machines.
    fleet: Option<Arc<Fleet>>,
    /// Counters of routes, if `route_metrics` is set.
    registry: Option<Arc<RouteRegistry>>,
    /// Every site has a clone, so that the reference count shows if requests still use a site.
    held: Arc<()>,
    /// Host names of all sites.
    all_hosts: Arc<HostIndex>,
    /// Paths of the routes of each site.
    route_indexes: Vec<Arc<RouteIndex>>,
}

impl Origins {
    /// Looks up backends, checks files of passwords, and starts applications. Applications that the
    /// previous configuration already runs are not started.
    pub fn new(
        plan: Plan,
        tls: Arc<SiteTls>,
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
        let password_checks = previous.map_or_else(
            || Arc::new(PasswordChecks::new(checks_at_once())),
            |previous| previous.password_checks.clone(),
        );
        if !matches!(starts, Starts::Changing(_)) {
            let (basic, digest) = user_files(&plan);
            check_users(&basic, &digest).map_err(BuildError::Users)?;
            password_checks.take_of_root(&basic, &digest);
        }
        // After a reload, idle connections of the previous configuration stay open while its
        // requests are active. Some backends accept a new connection only after Forebay has closed
        // an idle one. So both configurations share the records of pending connections.
        let pending_connections = |name: &String| {
            let before = previous.and_then(|previous| previous.pending_connections.get(name));
            (name.clone(), before.cloned().unwrap_or_default())
        };
        let pending_connections = endpoints.keys().map(pending_connections).collect();
        let (shared, relays) = shared_of_all(&plan, previous)?;
        let permits = permits(&plan, previous);
        let checks = checks((&shared, &relays), &endpoints, &tls);
        let checker = Checker::start(checks, errors).map_err(BuildError::Checks)?;
        let reaper = previous.map_or_else(Arc::default, |previous| previous.reaper.clone());
        let before = previous.and_then(|previous| previous.fleet.as_ref());
        let fleet = Fleet::new(&plan, tls.tickets(), errors, before).map_err(BuildError::Store)?;
        let before = previous.and_then(|previous| previous.acme.as_ref());
        let store = fleet.as_ref().map(|fleet| fleet.store());
        let acme = AcmeService::start(&plan, &tls, (errors, store), before)
            .map_err(BuildError::Certificates)?;
        let networks =
            NetworkService::start(&plan, previous.map(|previous| &previous.plan), errors)
                .map_err(BuildError::Networks)?;
        let held = Arc::default();
        let registry = previous.and_then(|previous| previous.registry.clone());
        let registry = plan.server.route_metrics.then(|| registry.unwrap_or_default());
        let before = previous.map(|previous| &previous.limiters[..]);
        let limiters = limiters(&plan, before, fleet.as_ref().map(|fleet| fleet.keys()).as_ref());
        let before = previous.map(|previous| &previous.concurrency[..]);
        let concurrency = concurrency_limiters(&plan, before);
        let servers = &plan.server.dns_servers;
        let crawlers = previous.map(|previous| &previous.crawlers);
        let crawlers = crawlers.filter(|crawlers| crawlers.uses(servers)).cloned();
        let crawlers = crawlers.unwrap_or_else(|| Crawlers::new(servers));
        let challenge_key = fleet.as_ref().and_then(|fleet| fleet.challenge_key());
        let challenge_key = challenge_key
            .or_else(|| previous.map(|previous| previous.challenge_key))
            .unwrap_or_else(random_key);
        let token_keys = token_keys(&plan, starts).map_err(BuildError::Keys)?;
        let store =
            replies::store(&plan, errors, previous.and_then(|previous| previous.store.as_ref()))
                .map_err(BuildError::Cache)?;
        let all_hosts = HostIndex::new(plan.sites.iter().map(|site| &site.hosts[..]));
        let matchers = |site: &Arc<forebay_conf::Site>| {
            Arc::new(RouteIndex::new(site.routes.iter().map(|route| &route.matcher)))
        };
        let route_indexes = plan.sites.iter().map(matchers).collect();
        let origins = Self {
            all_hosts: Arc::new(all_hosts),
            route_indexes,
            plan,
            endpoints,
            names,
            crawlers,
            apps,
            permits,
            pending_connections,
            shared,
            relays,
            reaper,
            _checker: checker,
            _networks: networks,
            password_checks,
            store,
            limiters,
            concurrency,
            registry,
            challenge_key,
            token_keys,
            held,
            tls,
            acme,
            fleet,
        };
        if previous.is_none() {
            if origins.fleet.is_none() {
                // This process may have taken over shared ticket keys from the process that it
                // replaces. Without a store, this process must replace the keys itself.
                origins.tls.tickets().end_sharing();
            }
            origins.exchange();
        }
        Ok(origins)
    }

    /// Starts the exchange with other machines: counts of rate limits, purges, and keys of TLS
    /// tickets. Does nothing without a store.
    fn exchange(&self) {
        if let Some(fleet) = &self.fleet {
            let limits = shared_limits(&self.plan, &self.limiters, &fleet.keys());
            fleet.serve(limits, self.store.clone());
        }
    }

    /// Starts the exchange of this configuration with other machines. If `previous` has another
    /// store, ends the exchange of `previous`.
    pub fn succeed(&self, previous: &Self) {
        if let Some(before) = &previous.fleet
            && !self.fleet.as_ref().is_some_and(|fleet| Arc::ptr_eq(fleet, before))
        {
            before.end();
        }
        self.exchange();
    }

    /// Returns the certificates of all sites, which the caller can reload.
    pub fn tls(&self) -> &Arc<SiteTls> {
        &self.tls
    }

    /// Returns a function that creates the table of sites for a thread.
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
        let certificates = certificates::rows(&self.plan, &self.tls);
        Status { apps, backends, cache, routes, mirrors, certificates, ..Status::default() }
    }

    /// Returns the counters of a route for this thread. Returns `None` if counts by route are
    /// switched off.
    fn route_counters(
        &self,
        site: &forebay_conf::Site,
        route: &forebay_conf::Route,
        thread: &Rc<Thread>,
    ) -> Option<Arc<RouteCounters>> {
        let registry = self.registry.as_ref()?;
        Some(registry.counters(self.labels(site, route), thread.index))
    }

    /// Returns the names of a route in metrics, logs and traces.
    fn labels(&self, site: &forebay_conf::Site, route: &forebay_conf::Route) -> RouteLabels {
        let RouteLabels { site, route } = labels_of(site, route);
        // A path may contain a secret that the configuration reads from a file, so hide secrets in
        // labels.
        let hide = |text: String| self.plan.file.hide(&text);
        RouteLabels { site: hide(site), route: hide(route) }
    }

    /// Returns one row for each backend server. Several routes can name the same `[upstream]`: the
    /// servers of an `[upstream]` have only one row each.
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
                activation: match backend.activation {
                    Activation::Active => "active",
                    Activation::Disabled => "drain",
                    Activation::Stopped => "down",
                },
                weight: backend.weight,
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

    /// Removes the stored replies that `purge` includes, or ends their lifetime. Does so on this
    /// machine, and on other machines with the same store. Returns the number of these replies on
    /// this machine, or `None` if no route of this machine stores replies.
    pub fn purge(&self, purge: &Purge) -> Option<usize> {
        // Even if no route of this machine stores replies, routes of other machines may.
        if let Some(fleet) = &self.fleet {
            fleet.purge(purge);
        }
        self.store.as_ref().map(|store| store.purge(purge))
    }

    /// Stops the applications, the threads for certificates, the cache on disk, and the reaper of
    /// scripts. Active requests have the time `grace` to end.
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

    /// Stops the applications that `successor` does not run. Before that, waits up to `grace` until
    /// no request uses a site of this configuration. Blocks the thread.
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

    /// Returns the running application `name`. Returns `None` if no application has this name, or
    /// if its definition differs from `wanted`.
    fn running(&self, name: &str, wanted: &Definition) -> Option<RunningApp> {
        self.apps.get(name).filter(|app| app.is(wanted)).cloned()
    }
}

/// Returns the site's treatment of repeated slashes.
pub(crate) fn slashes(site: &forebay_conf::Site) -> Slashes {
    if site.merge_slashes { Slashes::Merge } else { Slashes::Keep }
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

/// Returns the user files of all routes for Basic and for Digest authentication.
fn user_files(plan: &Plan) -> (Vec<&Path>, Vec<&Path>) {
    let accesses = || plan.sites.iter().flat_map(|site| &site.routes).map(|route| &route.access);
    let basic = accesses().filter_map(|access| Some(&*access.basic_auth.as_ref()?.file));
    let digest = accesses().filter_map(|access| Some(&*access.digest_auth.as_ref()?.file));
    let unique = |mut files: Vec<_>| {
        files.sort_unstable();
        files.dedup();
        files
    };
    (unique(basic.collect()), unique(digest.collect()))
}

/// Reads the user files.
fn check_users(basic: &[&Path], digest: &[&Path]) -> Result<(), UsersError> {
    basic.iter().try_for_each(|file| Users::check(file).map(drop))?;
    digest.iter().try_for_each(|file| DigestUsers::check(file).map(drop))
}

/// Reads all user files and keys that the routes name, so that [`forebay_conf::files::record`] has
/// them. [`Origins::new`] reports what is wrong with them.
pub fn read_access_files(plan: &Plan) {
    let (basic, digest) = user_files(plan);
    basic.iter().for_each(|file| drop(Users::check(file)));
    digest.iter().for_each(|file| drop(DigestUsers::check(file)));
    for jwt in plan
        .sites
        .iter()
        .flat_map(|site| &site.routes)
        .filter_map(|route| route.access.jwt.as_ref())
    {
        drop(TokenKeys::load(jwt));
    }
}

/// Returns the site's trusted sources of client addresses.
pub fn trust(site: &forebay_conf::Site) -> Trust {
    let mut proxies = site.trusted_proxies.clone();
    if site.trusts_unix_by_address() {
        proxies.push(Clients::Unix);
    }
    Trust { proxies, lists: site.proxy_lists.clone(), fields: site.forwarded.clone() }
}
