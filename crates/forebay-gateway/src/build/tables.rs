//! Builds the routing table of one thread: sites, routes, streams and their origins.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf::{Action, Address, ErrorPages, Jwt, Listen};
use forebay_net::request_fields::RequestFields;
use forebay_net::thread::Thread;
use forebay_origin::access::{ForwardAuth, GateState, Guarded};
use forebay_origin::cache::{CachedOrigin, ChangingOrigin, RequestTraits, SiteReplies};
use forebay_origin::files::{FileResolver, Files, ScriptRoutes};
use forebay_origin::moved::MovedRedirects;
use forebay_origin::respond::{FixedReply, Redirection, Rewriting};
use forebay_origin::rules::{facts, has_gate};
use forebay_origin::scripts::cgi::{Cgi, PASSED, Processes};
use forebay_server::compress::Compression;
use forebay_server::exchange::{Gate, Origin};
use forebay_server::filter::Filters;
use forebay_server::pages::Closed;
use forebay_server::relay::Relay;
use forebay_server::reply::{Lifetimes, Rules};
use forebay_server::route::{Route, Sendfile, Site, Table};
use forebay_upstream::ajp::Ajp;
use forebay_upstream::app_server::AppServer;
use forebay_upstream::fastcgi::{FAREWELL, FASTCGI_IDLE, Fastcgi};
use forebay_upstream::hops::{HopLimit, OwnListeners};
use forebay_upstream::http2::Http2Pools;
use forebay_upstream::proxy::Proxy;
use forebay_upstream::relay::RelayUpstream;
use forebay_upstream::script::{exact_paths, scripts_of};
use forebay_upstream::{Backend, BackendOptions, IdlePools, Upstream};
use tokio::sync::Semaphore;

use super::labels::name_of_site;
use super::shared::{Shared, SharedUpstream, alpn, host_of_url};
use super::{Origins, by_https, replies, slashes, trust};

/// Idle limit of a connection to an HTTP backend.
// An HTTP server itself closes idle connections, after 5 s or later, so the limit can be long.
const HTTP_IDLE: Duration = Duration::from_secs(60);
/// Idle limit of a servlet container's connection.
// By default, Tomcat keeps connections open forever. Pools of idle connections are selected by
// address and idle limit. With a limit other than `HTTP_IDLE`, an address that speaks HTTP and AJP
// has two pools.
const AJP_IDLE: Duration = Duration::from_secs(59);

impl Origins {
    /// Returns the table of one thread. On each listener, the table selects the site of a request.
    pub(super) fn table(&self, listen: &[Option<Listen>], thread: &Rc<Thread>) -> Table {
        let listeners = self.plan.sites.iter().flat_map(|site| &site.listen).collect();
        let pools = Pools { listeners: Rc::new(listeners), ..Pools::default() };
        let sites = 0..self.plan.sites.len();
        let sites: Vec<_> =
            sites.map(|index| Rc::new(self.site(index, (thread, &pools)))).collect();
        let relays = 0..self.plan.relays.len();
        let relays: Vec<_> =
            relays.map(|index| Rc::new(self.relay(index, thread, &pools))).collect();
        let listeners = listen.iter().map(|address| {
            let is_here = |site: &forebay_conf::Site| {
                address.as_ref().is_some_and(|address| is_found_at(site, address))
            };
            let sites_here = self.plan.sites.iter().zip(&sites).filter(|(plan, _)| is_here(plan));
            let has = |plan: &forebay_conf::Relay| {
                address.as_ref().is_some_and(|address| plan.listen.contains(address))
            };
            let relays_here = self.plan.relays.iter().zip(&relays).filter(|(plan, _)| has(plan));
            (
                sites_here.map(|(_, site)| site.clone()).collect(),
                relays_here.map(|(_, relay)| relay.clone()).collect(),
                address.clone(),
            )
        });
        let mut table = Table::new(listeners);
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
            proxy_lists: plan.proxy_lists.clone(),
            access: plan.access.clone(),
            idle: plan.idle_timeout,
            backends: Box::new(RelayUpstream::new(upstream, &plan.upstream)),
        }
    }

    fn site(&self, index: usize, (thread, pools): (&Rc<Thread>, &Pools)) -> Site {
        let site = &self.plan.sites[index];
        let (facts, files) = facts(site, &self.plan);
        let replies = self.store.as_ref().map(|store| replies::of_site(site, store));
        let replies = replies.filter(|replies| !replies.is_empty());
        let known = facts.into_iter().zip(&files);
        let routes = site.routes.iter().zip(known).enumerate();
        let routes = routes.map(|(at, (route, (facts, files)))| Route {
            name: self.labels(site, route).route.into(),
            facts,
            gate: self.gate((index, at), route, (thread, pools)),
            origin: {
                let shared = &self.shared[index][at];
                let answering = self.origin((site, at), files.clone(), shared, (thread, pools));
                let answering = self.cached(route, answering, (replies.as_ref(), thread));
                self.mirrored(route, answering, shared, (thread, pools))
            },
            log: self.plan.log_of(site, Some(route)),
            counters: self.route_counters(site, route, thread),
            fields: RequestFields::new(&route.request_headers),
            rules: rules(route),
            pages: pages(&route.error_pages),
            intercepts: route.error_pages.intercept && reaches_application(&route.action),
            closed: route.maintenance.clone().map(|settings| Box::new(Closed::new(settings))),
            cors: route.cors.clone().map(Rc::new),
            filters: Filters::new(&route.filters),
            compression: route.compress.clone().map(|settings| Rc::new(Compression::new(settings))),
            bandwidth_limit: route.bandwidth_limit,
            timeouts: route.timeouts,
            max_body: route.max_body.unwrap_or(self.plan.server.limits.max_body),
            buffer: route.buffer,
            on_abort: route.on_abort,
            runs_on: self.runs_on(&route.action),
            request_buffering: route.request_buffering,
            internal_redirects: route.internal_redirects,
            sendfile: route.sendfile_root.as_ref().map(|root| Sendfile {
                root: root.clone(),
                files: Box::new(Files::new(thread.clone(), Rc::new(files_of_replies(root)))),
            }),
        });
        Site {
            name: self.plan.file.hide(&name_of_site(site)).into(),
            log: self.plan.log_of(site, None),
            hosts: site.hosts.clone(),
            all_hosts: self.all_hosts.clone(),
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
            passes_marks: site.underscores_in_headers,
            held: self.held.clone(),
            pages: pages(&site.error_pages),
            routes: routes.collect(),
            index: self.route_indexes[index].clone(),
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
            let server = match settings.app() {
                Some(name) => {
                    self.apps[name].origin(name, &self.plan.apps[name], route, thread.clone())
                }
                None => self
                    .servers(&strict(&settings.server), shared, (thread, pools))
                    .expect("a server decides"),
            };
            ForwardAuth::new(server, settings.clone())
        });
        let url = route.access.jwt.as_ref().and_then(Jwt::url);
        let key_server = url.map(|url| {
            let shared = &self.shared[site][at].keys;
            let mut proxy = url.proxy.clone();
            Arc::make_mut(&mut proxy.upstream).strict = true;
            Box::new(self.proxy(&proxy, shared, (thread, pools))) as Box<dyn Origin>
        });
        let state = GateState {
            key_server,
            checks: self.password_checks.clone(),
            limiters: &self.limiters[site][at],
            concurrency: &self.concurrency[site][at],
            keys: self.token_keys[site][at].clone(),
            forward,
            crawlers: self.crawlers.clone(),
            challenge_key: &self.challenge_key,
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
            strict: plan.strict,
            ..how.clone()
        };
        let backends = plan.to.iter().map(|to| {
            let mut how = how();
            if to.https {
                // TLS connections are not shared, because another route may verify certificates
                // differently.
                how.pools = None;
                how.tls = Some((self.tls.backends[&plan.tls].clone(), host_of_url(to)));
                how.alpn = alpn(to);
            }
            self.backend(&to.address, how, thread)
        });
        let backends = backends.collect();
        let SharedUpstream { group, tallies, .. } =
            shared.as_ref().expect("a route to backends has what they share");
        let upstream = Upstream::new(thread.clone(), backends, group.clone(), tallies);
        upstream.hashed_by(plan.hash_key.clone())
    }

    pub(super) fn proxy(
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

    /// Returns `origin`, which sends requests to `upstream`. If a backend's address may be a
    /// listener of this server, wraps `origin` in an origin that ends loops.
    fn hop_limited(
        &self,
        upstream: &forebay_conf::Upstream,
        origin: Box<dyn Origin>,
        pools: &Pools,
    ) -> Box<dyn Origin> {
        let endpoints = upstream.addresses().map(|address| &self.endpoints[&address.to_string()]);
        HopLimit::around(origin, endpoints, &pools.listeners)
    }

    /// Returns the time limit of a request that runs on after its client has left: that of the
    /// application, or the longest silence of the backend.
    fn runs_on(&self, action: &Action) -> Duration {
        let limit = match action {
            Action::Cgi(cgi) => Some(cgi.timeout),
            Action::App(name) => Some(self.plan.apps[name].request_timeout),
            Action::Fastcgi(fastcgi) => fastcgi.reply_timeout,
            Action::AppServer(server) => server.reply_timeout,
            Action::Ajp(ajp) => ajp.reply_timeout,
            Action::Proxy(proxy) => proxy.reply_timeout,
            Action::Files(_)
            | Action::Respond(_)
            | Action::Redirect(_)
            | Action::Moved(_)
            | Action::Rewrite => None,
        };
        limit.unwrap_or(self.plan.server.timeouts.reply_idle)
    }

    /// Returns the origin that answers the requests of a route on one thread.
    fn origin(
        &self,
        (site, at): (&forebay_conf::Site, usize),
        files: Option<Rc<FileResolver>>,
        Shared { room, launcher, upstream: shared, .. }: &Shared,
        (thread, pools): (&Rc<Thread>, &Pools),
    ) -> Box<dyn Origin> {
        let route = &site.routes[at];
        if let Some(origin) = self.servers(&route.action, shared, (thread, pools)) {
            return origin;
        }
        let thread = thread.clone();
        match &route.action {
            Action::Files(_) => {
                Box::new(Files::new(thread, files.expect("a files route has a resolver")))
            }
            Action::Cgi(cgi) => {
                let room = room.clone();
                let room = room.unwrap_or_else(|| Arc::new(Semaphore::new(cgi.max_processes)));
                let (reaper, launcher) = (self.reaper.clone(), launcher.clone());
                let processes = Processes { room, reaper, launcher, passed: &PASSED };
                let scripts = (scripts_of(&cgi.dir, route), exact_paths(route));
                Box::new(Cgi::new(thread, cgi.clone(), processes, scripts))
            }
            Action::App(name) => {
                let app = &self.plan.apps[name];
                self.apps[name].origin(name, app, route, thread)
            }
            Action::Respond(respond) => Box::new(FixedReply::new(respond.clone())),
            Action::Redirect(redirect) => Box::new(Redirection(redirect.clone())),
            Action::Moved(pages) => Box::new(MovedRedirects(pages.clone())),
            Action::Rewrite => Box::new(Rewriting),
            Action::Fastcgi(_) | Action::AppServer(_) | Action::Ajp(_) | Action::Proxy(_) => {
                unreachable!("servers() returns an origin for these")
            }
        }
    }

    /// The origin of an action that passes requests to other servers, on one thread.
    fn servers(
        &self,
        action: &Action,
        shared: &Option<SharedUpstream>,
        (thread, pools): (&Rc<Thread>, &Pools),
    ) -> Option<Box<dyn Origin>> {
        let upstream = |plan: &forebay_conf::Upstream, keep: Option<usize>, how: BackendOptions| {
            self.upstream((plan, shared), keep, how, (thread, pools))
        };
        Some(match action {
            Action::Fastcgi(fastcgi) => {
                let how = BackendOptions {
                    idle_time: FASTCGI_IDLE,
                    violates_keep_alive: true,
                    reply_timeout: fastcgi.reply_timeout,
                    farewell: &FAREWELL,
                    ..BackendOptions::default()
                };
                let keep = if fastcgi.keep_conn { fastcgi.upstream.keepalive } else { Some(0) };
                let upstream = upstream(&fastcgi.upstream, keep, how);
                Box::new(Fastcgi::new(thread.clone(), upstream, fastcgi.clone()))
            }
            Action::AppServer(settings) => {
                let reply_timeout = settings.reply_timeout;
                let how = BackendOptions { reply_timeout, ..BackendOptions::default() };
                let upstream = upstream(&settings.upstream, Some(0), how);
                Box::new(AppServer::new(thread.clone(), upstream, settings.clone()))
            }
            Action::Ajp(ajp) => {
                let reply_timeout = ajp.reply_timeout;
                let how = BackendOptions {
                    idle_time: AJP_IDLE,
                    reply_timeout,
                    ..BackendOptions::default()
                };
                let keep = ajp.upstream.keepalive;
                let origin = Ajp::new(thread, upstream(&ajp.upstream, keep, how), ajp.clone());
                self.hop_limited(&ajp.upstream, Box::new(origin), pools)
            }
            Action::Proxy(proxy) => {
                let origin = self.proxy(proxy, shared, (thread, pools));
                self.hop_limited(&proxy.upstream, Box::new(origin), pools)
            }
            _ => return None,
        })
    }

    /// Returns `origin`. If the route has `cache`, wraps `origin` in an origin that stores replies.
    /// Some routes without `cache` reach an application on a site where other routes have `cache`.
    /// For such a route, wraps `origin` in an origin that removes outdated replies.
    fn cached(
        &self,
        route: &forebay_conf::Route,
        origin: Box<dyn Origin>,
        (replies, thread): (Option<&Rc<SiteReplies>>, &Rc<Thread>),
    ) -> Box<dyn Origin> {
        let Some((replies, store)) = replies.zip(self.store.as_ref()) else { return origin };
        let Some(settings) = &route.cache else {
            return if reaches_application(&route.action) {
                Box::new(ChangingOrigin::new(origin, replies.clone()))
            } else {
                origin
            };
        };
        let zone = replies::zone(route);
        let names_users = route.access.names_users_otherwise();
        // An HTTP application gets no REQUEST_URI. If a page includes a document, the application
        // sees only the target of the document, not the client's own target.
        let hides_own_target = matches!(route.action, Action::Proxy(_));
        let traits = RequestTraits { names_users, hides_own_target };
        let (replies, thread) = ((store, replies, &*zone), thread.clone());
        Box::new(CachedOrigin::new(origin, settings, replies, thread, traits))
    }

    fn backend(&self, address: &Address, how: BackendOptions, thread: &Rc<Thread>) -> Backend {
        let name = address.to_string();
        let permits = self.permits.get(&name).map(|(_, permits)| permits.clone());
        let endpoint = self.endpoints[&name].clone();
        // Never close an idle TLS connection to let the backend accept a new one. A TLS server
        // usually handles many connections at once, and a new connection costs a handshake.
        let pending = self.pending_connections.get(&name).filter(|_| how.tls.is_none()).cloned();
        let how = BackendOptions { name, permits, pending, ..how };
        Backend::new(thread.clone(), endpoint, how)
    }
}

/// State that the routes of one thread share: connection pools, and addresses of listeners.
#[derive(Default)]
pub(super) struct Pools {
    idle: Rc<IdlePools>,
    http2: Http2Pools,
    /// All listeners of sites.
    listeners: Rc<OwnListeners>,
}

/// Returns true if the listener at `address` may select this site. An HTTP/3 listener selects from
/// all sites of the TLS listener on the same address, so that a host selects the same site over
/// HTTP/3 and over TLS. If this site does not offer HTTP/3, the site refuses the request.
fn is_found_at(site: &forebay_conf::Site, address: &Listen) -> bool {
    let is_beside = |listen: &Listen| listen.beside_for_http3().as_ref() == Some(address);
    site.listen.contains(address) || site.listen.iter().any(is_beside)
}

fn pages(pages: &ErrorPages) -> Option<Rc<ErrorPages>> {
    (!pages.pages.is_empty()).then(|| Rc::new(pages.clone()))
}

/// Returns true if an application or another server answers, not Forebay itself.
fn reaches_application(action: &Action) -> bool {
    !matches!(
        action,
        Action::Files(_)
            | Action::Respond(_)
            | Action::Redirect(_)
            | Action::Moved(_)
            | Action::Rewrite
    )
}

/// The settings of a server that decides about access. Its odd replies are refused, because their
/// fields name the user.
fn strict(server: &Action) -> Action {
    let mut server = server.clone();
    if let Some(upstream) = server.upstream_mut() {
        Arc::make_mut(upstream).strict = true;
    }
    server
}

fn rules(route: &forebay_conf::Route) -> Option<Rc<Rules>> {
    let sends_files = route.sendfile_root.is_some() || route.internal_redirects;
    let changes_fields = !route.reply_headers.is_empty() || !route.remove_headers.is_empty();
    let is_plain =
        !sends_files && !changes_fields && route.cors.is_none() && route.charset.is_none();
    if is_plain && route.expires.is_none() && route.cookies.is_none() {
        return None;
    }
    Some(Rc::new(Rules {
        expires: route.expires.as_ref().map(Lifetimes::new),
        cookies: route.cookies,
        charset: route.charset.as_deref().map(Into::into),
        sends_files,
        cors: route.cors.clone().map(Rc::new),
        ..Rules::new(&route.reply_headers, &route.remove_headers)
    }))
}

/// The resolver of the files that replies name. Names may begin with a dot, because the application
/// decides which files are sent.
fn files_of_replies(root: &Path) -> FileResolver {
    let settings = forebay_conf::Files {
        index: Vec::new(),
        hidden: true,
        ignores_htaccess: true,
        ..forebay_conf::Files::new(root.to_owned())
    };
    FileResolver::new(settings, true, ScriptRoutes::default())
}
