//! HTTP backends: distributes requests among them and streams the replies back.
//!
//! This module selects the version. `http1.rs` carries a request over HTTP/1.1, and
//! `http2/request.rs` over a stream of HTTP/2. `http` has the parts that both use.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::fault::{Fault, Retry};
use forebay_net::head::Request;
use forebay_net::socket::Socket;
use forebay_net::thread::Thread;
use forebay_net::timing::Step;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::tunnel::{Duplex, Tunnel};
use forebay_wire::http1::RequestFraming;
use forebay_workers::Life;

use crate::http::prefix::{self, BackendView};
use crate::http::rewrite::Rewrite;
use crate::http::{ProxyAttempt, ProxySettings};
use crate::http1::Disposition;
use crate::http2::request::RequestHead;
use crate::http2::{AssignedStream, Http2Pool, Http2Pools};
use crate::sticky::Sticky;
use crate::upgrade;
use crate::upstream::{self, BodyAtHand, Carrier, ConnectionOrigin, Upstream};

use crate::http::request_head;
pub use crate::http::request_head::{ScopeLine, Variables};

/// Idle limit of an HTTP/2 connection.
// Tomcat closes an idle connection after 20 s, and Jetty after 30 s. A longer limit is safe,
// because both send a GOAWAY first.
const HTTP2_IDLE: Duration = Duration::from_secs(60);

/// A thread's proxy for the backends of one route.
pub struct Proxy {
    settings: ProxySettings,
    upstream: Upstream,
    /// Shared HTTP/2 connections by backend; `None` for HTTP/1.1.
    pools: Vec<Option<Rc<Http2Pool>>>,
}

impl Proxy {
    /// Creates the proxy for the backends of `upstream`, configured by `plan`. Routes share the
    /// HTTP/2 connections in `pools`.
    pub fn new(
        thread: Rc<Thread>,
        upstream: Upstream,
        plan: &conf::Proxy,
        pools: &Http2Pools,
    ) -> Self {
        let authorities =
            || plan.upstream.to.iter().map(|backend| backend.authority.clone()).collect();
        let idle_time = match plan.upstream.keepalive {
            Some(0) => Duration::ZERO,
            _ => HTTP2_IDLE,
        };
        let pool = |to: &conf::Backend| {
            let has_prior_knowledge = to.version == conf::HttpVersion::Http2;
            let make = || Http2Pool::new(thread.clone(), has_prior_knowledge, idle_time);
            match to.version {
                conf::HttpVersion::Http11 => None,
                // Do not share this pool, because another route may verify certificates
                // differently.
                _ if to.https => Some(Rc::new(make())),
                _ => Some(pools.of((to.address.to_string(), idle_time), make)),
            }
        };
        Self {
            pools: plan.upstream.to.iter().map(pool).collect(),
            upstream,
            settings: ProxySettings {
                buffers: thread.free_list(),
                thread,
                tunnel_idle: plan.tunnel_idle,
                sticky: Sticky::new(&plan.upstream),
                hosts: (plan.host == conf::HostField::Backend).then(authorities),
                strip_prefix: plan.strip_prefix.clone(),
                decodes_path: plan.decodes_path,
                rewrite: Rewrite::new(plan),
                send_proxy: plan.upstream.send_proxy,
                variables: None,
                scope_line: None,
            },
        }
    }

    /// Makes the proxy send a scope line before each head, if given. The backend must then be
    /// `hosts/asgi.py`, over HTTP/1.1.
    pub fn with_scope_line(mut self, line: Option<ScopeLine>) -> Self {
        self.settings.scope_line = line;
        self
    }

    /// Makes the proxy send `variables` instead of a head, if given. The backend must then be
    /// `hosts/rack.rb`, over HTTP/1.1.
    pub fn with_variables(mut self, variables: Option<Variables>) -> Self {
        self.settings.variables = variables;
        self
    }

    /// Returns the pool of HTTP/2 connections to backend number `index`. Returns `None` if Forebay
    /// uses only HTTP/1.1 with this backend.
    fn pool(&self, index: usize) -> Option<&Http2Pool> {
        self.pools.get(index)?.as_deref()
    }

    /// Sends the request to one of the backends. After a successful upgrade, opens the tunnel.
    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        // With a body, the request is an ordinary one: a tunnel would begin after the body, and
        // backends disagree about its end. `Upgrade` only offers, so it may be ignored.
        let is_upgrade = exchange.body.framing() == RequestFraming::None
            && upgrade::is_requested(&exchange.request);
        prefix::check(&exchange.request, self.settings.strip_prefix.as_deref())?;
        let wanted =
            self.settings.sticky.as_ref().and_then(|sticky| sticky.wanted(&exchange.request));
        let is_repeatable =
            exchange.request.is_idempotent() && exchange.body.framing() == RequestFraming::None;
        let mut carrier = ProxyCarrier {
            proxy: self,
            wanted,
            is_upgrade,
            is_repeatable,
            needs_http1: false,
            was_proven: true,
        };
        exchange.enter(Step::Connect);
        let (switched, in_flight) = self.upstream.send(&mut carrier, exchange, wanted).await?;
        if let Some(tunnel) = switched {
            exchange.open_tunnel(tunnel);
            exchange.hold(in_flight);
        }
        Ok(())
    }
}

/// A request that the upstream may send to several backends, one after another.
pub struct ProxyCarrier<'a> {
    pub proxy: &'a Proxy,
    /// The backend that the client's cookie names.
    pub wanted: Option<usize>,
    pub is_upgrade: bool,
    /// True if the request may be sent more than once.
    pub is_repeatable: bool,
    /// True if a backend requires HTTP/1.1 for the request.
    pub needs_http1: bool,
    /// True if the shared connection had carried replies before it failed.
    pub was_proven: bool,
}

impl Carrier for ProxyCarrier<'_> {
    type Connection = AssignedStream;
    /// The tunnel, if the connection has switched protocols.
    type Outcome = Option<Box<Tunnel>>;

    async fn connect(
        &mut self,
        attempt: &upstream::Attempt<'_>,
        is_new: bool,
    ) -> Result<(AssignedStream, ConnectionOrigin), Fault> {
        let (backend, is_repeatable) = (attempt.backend, self.is_repeatable);
        let place = match self.proxy.pool(attempt.index()) {
            // If the backend supports HTTP/1.1 and HTTP/2, upgrades use HTTP/1.1, because a client
            // sends them in this form.
            Some(_) if self.needs_http1 || self.is_upgrade && backend.is_https() => {
                AssignedStream::Alone(backend.connect_http1().await?)
            }
            Some(pool) => pool.place(backend, is_new, is_repeatable).await?,
            None if is_repeatable || is_new => {
                AssignedStream::Alone(backend.connect(is_new).await?)
            }
            None => AssignedStream::Alone(backend.connect_non_idempotent().await?),
        };
        let past = place.past();
        Ok((place, past))
    }

    async fn exchange(
        &mut self,
        attempt: &upstream::Attempt<'_>,
        place: AssignedStream,
        exchange: &mut Exchange,
    ) -> Result<Option<Box<Tunnel>>, Fault> {
        exchange.enter(Step::Origin);
        let Self { wanted, is_upgrade, .. } = *self;
        let proxy = &self.proxy.settings;
        let attempt = ProxyAttempt { proxy, to: attempt, wanted, is_upgrade };
        let connection = match place {
            AssignedStream::Alone(connection) => connection,
            AssignedStream::Shared(stream) => {
                let mut buffers = proxy.take_buffers();
                let outcome = attempt.run_as_stream(stream, exchange, &mut buffers).await;
                proxy.keep_buffers(buffers);
                return outcome.map_err(|(fault, failed)| {
                    self.was_proven = failed.is_proven;
                    self.needs_http1 |= failed.needs_http1 && attempt.backend().is_https();
                    if self.needs_http1 { fault.retry(Retry::Unprocessed) } else { fault }
                });
            }
        };
        match attempt.run(&connection, exchange).await? {
            Disposition::Keep => attempt.to.backend.keep(connection),
            Disposition::Close => {}
            Disposition::Tunnel(backend_prefix) => {
                let idle = proxy.tunnel_idle();
                let (socket, permit) = connection.into_parts();
                let backend: Box<dyn Duplex> = match attempt.to.backend.life() {
                    Some(life) => Box::new(SupervisedSocket { socket, life: life.clone() }),
                    None => Box::new(socket),
                };
                let held = Box::new(permit);
                return Ok(Some(Box::new(Tunnel { backend, backend_prefix, idle, held })));
            }
        }
        Ok(None)
    }

    fn body(&self) -> BodyAtHand {
        BodyAtHand::Streamed
    }

    fn was_proven(&self) -> bool {
        self.was_proven
    }
}

impl Origin for Proxy {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.forward(exchange))
    }
}

/// Appends the head that backend number `index` would receive over HTTP/2, one field in each line.
pub fn append_http2_head(out: &mut Vec<u8>, request: &Request, plan: &conf::Proxy, index: usize) {
    let view = view_of(plan, index);
    let mut head = RequestHead::new(request, view.host);
    head.write(request, view, upgrade::is_requested(request));
    head.append(out, if view.https { b"https" } else { b"http" });
}

/// Appends the head that backend number `index` would receive over HTTP/1.1.
pub fn append_head(out: &mut Vec<u8>, request: &Request, plan: &conf::Proxy, index: usize) {
    let is_upgrade = upgrade::is_requested(request);
    request_head::append_head(out, request, view_of(plan, index), is_upgrade);
}

/// How backend number `index` would see the resources that clients name.
fn view_of(plan: &conf::Proxy, index: usize) -> BackendView<'_> {
    let backend = plan.upstream.to.get(index);
    let is_named = plan.host == conf::HostField::Backend;
    BackendView {
        strip_prefix: plan.strip_prefix.as_deref(),
        decodes_path: plan.decodes_path,
        host: backend.filter(|_| is_named).map(|backend| &backend.authority[..]),
        https: backend.is_some_and(|backend| backend.https),
    }
}

/// Appends the head that `hosts/asgi.py` would receive.
pub fn append_scoped_head(out: &mut Vec<u8>, request: &Request, line: &ScopeLine) {
    line.append_head(out, request, upgrade::is_requested(request));
}

/// A tunnel to a process of Forebay. Its bytes are signs of life: a request that hangs in an event
/// loop must not end the process while tunnels of others are in use.
struct SupervisedSocket {
    socket: Socket,
    life: Arc<Life>,
}

impl Duplex for SupervisedSocket {
    fn begin_tunnel(&self, pause: Duration) {
        self.socket.begin_tunnel(pause);
    }

    fn limit_read(&self, after: Duration) {
        self.socket.limit_read(after);
    }

    fn is_expired(&self) -> bool {
        self.socket.is_expired()
    }

    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_readable(context)
    }

    fn read_now(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let read = self.socket.read_now(buffer)?;
        self.life.record();
        Ok(read)
    }

    fn poll_write(&self, data: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        Duplex::poll_write(&self.socket, data, context)
    }

    fn finish_writing(&self) {
        self.socket.finish_writing();
    }

    fn reset(&self) {
        self.socket.reset();
    }
}
