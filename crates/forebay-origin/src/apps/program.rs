//! Programs that Forebay runs and that have their own listener. A request goes to one of the
//! program's processes as if the process were a backend.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::fault::{Fault, Retry, Side};
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;
use forebay_net::timing::Step;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::spool::Spooled;
use forebay_upstream::ajp::Ajp;
use forebay_upstream::app_server::AppServer;
use forebay_upstream::fastcgi::{FAREWELL, Fastcgi, FoundScripts, Script};
use forebay_upstream::http2::Http2Pools;
use forebay_upstream::proxy::{Proxy, ScopeLine, Variables};
use forebay_upstream::sticky;
use forebay_upstream::{
    Attempts, Backend, BackendOptions, Balancing, BodyAtHand, Endpoint, Group, Permits, Tallies,
    Upstream,
};
use forebay_workers::{Permit, ProcessAddress, Program};

use crate::apps::fault::unavailable;
use crate::apps::turns::Turns;

/// Maximum number of idle connections of a thread to a process whose connections are not limited
/// ([`ProgramApp::limits_connections`]).
const MOST_IDLE: usize = 32;
/// Maximum number of processes to try for one request, because a process may end before it reads
/// the request.
const OFFERS: usize = 3;
/// Idle limits of connections.
// An HTTP server itself closes idle connections, after 5 s or later, so the limit can be long. With
// FastCGI, each idle connection occupies a process, so the limit is short.
const HTTP_IDLE: Duration = Duration::from_secs(60);
const FASTCGI_IDLE: Duration = Duration::from_secs(2);

/// Authority of a program on a Unix socket.
pub const UNIX_AUTHORITY: &str = "localhost";

/// Options for passing requests to a program.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// Protocol, and the meaning of paths.
    pub protocol: Protocol,
    /// Maximum time without output of a process during a request.
    pub silence: Duration,
    /// True for Forebay's own host of mono. Its processes answer OVERLOADED when they are about to
    /// end, and take the close of a connection as the leave of the client.
    pub is_mono_host: bool,
    /// Names the client of a request that waits for a process.
    pub fair: conf::Template,
}

/// Protocol of a program.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// HTTP.
    Http(HttpRoute),
    /// FastCGI, with the settings of a route to one application. Paths are relative to its root.
    Fastcgi(PathMapping, conf::Fastcgi),
    /// SCGI or uwsgi.
    AppServer(conf::AppServer),
    /// AJP 1.3, with the settings of a route to one container.
    Ajp(conf::Ajp),
}

/// Settings for a program that speaks HTTP.
#[derive(Clone, Debug, Default)]
pub struct HttpRoute {
    /// `Host` that the program receives.
    pub host: conf::HostField,
    /// Prefix that is removed from paths.
    pub strip_prefix: Option<String>,
    /// Cookie that names a client's process.
    pub sticky: Option<String>,
    /// Version of HTTP.
    pub version: conf::HttpVersion,
    /// If present, the program is `hosts/rack.rb` and gets these variables instead of HTTP heads.
    pub variables: Option<Variables>,
    /// If present, the program is `hosts/asgi.py` and gets this scope line before each HTTP head.
    pub scope_line: Option<ScopeLine>,
}

/// Meaning of a path for a FastCGI program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMapping {
    /// An existing script below the root, with one of the configured endings.
    Scripts,
    /// A file below the root, which the program looks for.
    Below,
    /// The program itself, which takes every path.
    Mount,
}

/// Limits on connections to each process of a program, over all threads.
pub struct Connections {
    most: usize,
    by_process: Mutex<HashMap<u64, std::sync::Weak<Permits>>>,
}

impl Connections {
    /// Creates limits of `most` connections for each process.
    pub fn new(most: usize) -> Self {
        Self { most, by_process: Mutex::default() }
    }

    fn to(&self, process: u64) -> Arc<Permits> {
        let mut known = self.by_process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = known.get(&process).and_then(std::sync::Weak::upgrade) {
            return permits;
        }
        known.retain(|_, permits| permits.strong_count() > 0);
        let permits = Permits::new(self.most);
        known.insert(process, Arc::downgrade(&permits));
        permits
    }
}

/// Origin of the requests to a program. Each thread has one.
pub struct ProgramApp {
    thread: Rc<Thread>,
    name: String,
    program: Program,
    connections: Arc<Connections>,
    options: ProgramOptions,
    turns: Turns,
    clients: Rc<Clients>,
    found: FoundScripts,
}

/// Clients for the processes that this thread has used, by process number.
type Clients = RefCell<HashMap<u64, Rc<InstanceClient>>>;

/// Client of one process.
enum InstanceClient {
    Http(Proxy),
    Fastcgi(Fastcgi),
    AppServer(AppServer),
    Ajp(Ajp),
}

/// A prepared request, which can be sent more than once.
enum Prepared {
    /// The body is streamed.
    Streamed,
    Fastcgi(Script, Spooled),
    AppServer(Spooled),
}

impl ProgramApp {
    /// Creates the origin for the processes of `program`. Call this within the event loop of the
    /// thread.
    pub fn new(
        thread: Rc<Thread>,
        name: String,
        program: Program,
        connections: Arc<Connections>,
        options: ProgramOptions,
    ) -> Self {
        let clients = Rc::default();
        tokio::task::spawn_local(forget_ended(program.clone(), Rc::downgrade(&clients)));
        let found = FoundScripts::default();
        let turns = Turns::new(&options.fair);
        Self { thread, name, program, connections, options, turns, clients, found }
    }

    /// Sends the request to a process of the program. Tries up to `OFFERS` processes while the
    /// request may be resent.
    async fn run(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let prepared = self.prepare(exchange).await?;
        let at_hand = match prepared {
            Prepared::Streamed => BodyAtHand::Streamed,
            _ => BodyAtHand::Whole,
        };
        let mut attempts = Attempts::default();
        for _ in 0..OFFERS {
            exchange.enter(Step::Connect);
            let permit = self
                .program
                .checkout_at(self.wanted(&exchange.request), || {
                    self.turns.client(&exchange.request)
                })
                .await
                .map_err(unavailable)?;
            let client = self.client(&permit);
            permit.begin(exchange.request.method(), exchange.request.target());
            let fault = match client.forward(exchange, &prepared).await {
                Ok(()) => {
                    exchange.hold(permit);
                    return Ok(());
                }
                Err(fault) => fault,
            };
            let fault = self.report_fault(&permit, fault);
            drop(permit);
            attempts.failed(fault, exchange, at_hand)?;
        }
        Err(attempts.last().unwrap_or_else(|| Fault::us(500, "no process was offered the request")))
    }

    /// Returns the process that the request's cookie names. Returns `None` if there is no such
    /// cookie, or if that process takes no requests.
    fn wanted(&self, request: &Request) -> Option<u64> {
        let Protocol::Http(HttpRoute { sticky: Some(cookie), .. }) = &self.options.protocol else {
            return None;
        };
        sticky::values(request, cookie).find_map(|name| self.program.named(name))
    }

    /// Prepares a request. If a process takes one request at a time, reads the whole body first.
    /// The process then never waits for a slow upload.
    async fn prepare(&self, exchange: &mut Exchange) -> Result<Prepared, Fault> {
        Ok(match &self.options.protocol {
            Protocol::Http(_) | Protocol::Ajp(_) => Prepared::Streamed,
            Protocol::Fastcgi(mapping, settings) => {
                let found = (&self.found, self.thread.second());
                let script = mapping.find(&exchange.request, settings, found)?;
                Prepared::Fastcgi(script, exchange.body.spool().await?)
            }
            Protocol::AppServer(_) => Prepared::AppServer(exchange.body.spool().await?),
        })
    }

    /// Reports a fault to the supervisor if the fault shows that the process refuses requests, ends
    /// or is silent. Returns the fault, with the limit `request_timeout` instead of `reply_idle`,
    /// which applications do not have.
    fn report_fault(&self, permit: &Permit, fault: Fault) -> Fault {
        match (fault.side, fault.status, fault.retry) {
            (Side::Backend, 502, Retry::Yes) => permit.was_refused(),
            (Side::Backend, 503, Retry::Yes) if self.options.is_mono_host => {
                permit.leaves();
            }
            (Side::Backend, 504, _) => permit.was_silent(self.options.silence),
            _ => {}
        }
        match fault.limit {
            Some(Limit::ReplyIdle) => fault.limited_by(Limit::RequestTimeout),
            _ => fault,
        }
    }

    fn client(&self, permit: &Permit) -> Rc<InstanceClient> {
        let mut clients = self.clients.borrow_mut();
        clients.entry(permit.id()).or_insert_with(|| Rc::new(self.new_client(permit))).clone()
    }

    /// Returns true if an open connection uses resources of the process even while it is idle.
    fn limits_connections(&self) -> bool {
        // `hosts/rack.rb` needs no thread for an idle connection, so each serving thread of Forebay
        // can keep its own connections. The process's permits limit the active requests.
        !matches!(self.options.protocol, Protocol::Http(HttpRoute { variables: Some(_), .. }))
    }

    /// Creates the client for the process of `permit`. The process is the only backend of this
    /// client.
    fn new_client(&self, permit: &Permit) -> InstanceClient {
        let endpoint = match permit.place() {
            ProcessAddress::Unix(path) => Endpoint::Unix(path.clone()),
            ProcessAddress::Tcp(address) => Endpoint::Tcp(*address),
        };
        let (keeps_alive, idle_time, farewell): (_, _, &[u8]) = match self.options.protocol {
            Protocol::Http(_) | Protocol::Ajp(_) => (true, HTTP_IDLE, &[]),
            // For Forebay's own host of mono, the close itself is the end: bytes before it would
            // hide from an application that its client has left.
            Protocol::Fastcgi(..) if self.options.is_mono_host => (false, FASTCGI_IDLE, &[]),
            Protocol::Fastcgi(..) => (false, FASTCGI_IDLE, &FAREWELL),
            Protocol::AppServer(_) => (false, FASTCGI_IDLE, &[]),
        };
        let options = BackendOptions {
            name: format!("app {}", self.name),
            idle_time,
            violates_keep_alive: !keeps_alive,
            keep: (!self.limits_connections()).then_some(MOST_IDLE),
            permits: self.limits_connections().then(|| self.connections.to(permit.id())),
            reply_timeout: Some(self.options.silence),
            life: Some(permit.life()),
            farewell,
            ..BackendOptions::default()
        };
        let backend = Backend::new(self.thread.clone(), endpoint, options);
        let (group, tallies) = (Group::new(&Balancing::equal(1)), Tallies::new(1));
        let thread = self.thread.clone();
        let upstream = Upstream::new(thread.clone(), vec![backend], group, &tallies);
        match &self.options.protocol {
            Protocol::Http(route) => {
                let mut plan = route.at(permit.place());
                Arc::make_mut(&mut plan.upstream).to[0].route = Some(permit.name().to_owned());
                let proxy = Proxy::new(thread, upstream, &plan, &Http2Pools::default());
                InstanceClient::Http(
                    proxy
                        .with_variables(route.variables.clone())
                        .with_scope_line(route.scope_line.clone()),
                )
            }
            Protocol::Fastcgi(_, settings) => {
                InstanceClient::Fastcgi(Fastcgi::new(thread, upstream, settings.clone()))
            }
            Protocol::AppServer(settings) => {
                InstanceClient::AppServer(AppServer::new(thread, upstream, settings.clone()))
            }
            Protocol::Ajp(settings) => {
                InstanceClient::Ajp(Ajp::new(&thread, upstream, settings.clone()))
            }
        }
    }
}

impl Origin for ProgramApp {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.run(exchange))
    }
}

impl InstanceClient {
    async fn forward(&self, exchange: &mut Exchange, prepared: &Prepared) -> Result<(), Fault> {
        match (self, prepared) {
            (Self::Http(proxy), Prepared::Streamed) => proxy.serve(exchange).await,
            (Self::Ajp(ajp), Prepared::Streamed) => ajp.serve(exchange).await,
            (Self::Fastcgi(fastcgi), Prepared::Fastcgi(script, body)) => {
                fastcgi.forward_with(exchange, script, body).await
            }
            (Self::AppServer(server), Prepared::AppServer(body)) => {
                server.forward_with(exchange, body).await
            }
            _ => Err(Fault::us(500, "a request made ready for another protocol")),
        }
    }
}

impl PathMapping {
    /// Returns the script that the path of `request` names. `found` is the cache of known scripts,
    /// and the current second.
    pub fn find(
        self,
        request: &Request,
        settings: &conf::Fastcgi,
        found: (&FoundScripts, u64),
    ) -> Result<Script, Fault> {
        match self {
            Self::Scripts => Script::find(request, settings, found),
            Self::Below => Script::whole(request, settings, ""),
            Self::Mount => Ok(Script::mounted(request, settings, settings.root.as_deref())),
        }
    }
}

impl HttpRoute {
    /// Returns the route to one HTTP server with this `authority`.
    pub fn to(&self, address: conf::Address, authority: &str) -> conf::Proxy {
        let backend = conf::Backend {
            version: self.version,
            ..conf::Backend::new(conf::Scheme::Http, address, authority.to_owned())
        };
        let strip_prefix = self.strip_prefix.clone();
        let cookie = self.sticky.clone();
        let sticky = cookie.map(|cookie| conf::Sticky { cookie, routes: false });
        let mut proxy = conf::Proxy::new(vec![backend]);
        Arc::make_mut(&mut proxy.upstream).sticky = sticky;
        conf::Proxy { host: self.host, strip_prefix, ..proxy }
    }

    /// Returns the route to one HTTP server at this address.
    fn at(&self, place: &ProcessAddress) -> conf::Proxy {
        match place {
            ProcessAddress::Unix(path) => {
                self.to(conf::Address::Unix(path.clone()), UNIX_AUTHORITY)
            }
            ProcessAddress::Tcp(address) => {
                let address = address.to_string();
                self.to(conf::Address::Tcp(address.clone()), &address)
            }
        }
    }
}

/// Closes the idle connections to processes that get no more requests.
async fn forget_ended(program: Program, clients: Weak<Clients>) {
    let mut changes = program.changes();
    while changes.changed().await.is_ok() {
        let Some(clients) = clients.upgrade() else { return };
        let old: Vec<_> = clients.borrow_mut().extract_if(|&id, _| !program.serves(id)).collect();
        // Drop these after the borrow has ended, because their drops may use `clients`.
        drop(old);
    }
}
