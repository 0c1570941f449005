//! HTTP backends: distributes requests among them and streams the replies back.
//!
//! `sticky` reads and sets the cookie that names a backend. `rewrite` rewrites a backend's
//! redirects and cookies for the client. `reply_head` passes reply heads on. `session` is one
//! request over an HTTP/1.1 connection, `http2` one as an HTTP/2 stream.

mod http2;
mod reply_head;
mod rewrite;
mod session;
pub mod sticky;

use std::rc::Rc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_engine::{Exchange, Fault, FreeList, Origin, Request, Serving, Step, Thread};
use forebay_wire::http1::RequestFraming;

use crate::http2::{Http2Pool, Http2Pools};
use crate::upgrade;
use crate::upstream::Upstream;
use rewrite::Rewrite;
use session::{Attempt, Buffers, Passing};
use sticky::Sticky;

/// Size of a receive buffer, in bytes.
const INBOX: usize = 16 * 1024;
/// Idle limit of an HTTP/2 connection.
// Tomcat closes it after 20 s and Jetty after 30 s, both with a GOAWAY, so no request is lost.
const HTTP2_IDLE: Duration = Duration::from_secs(60);

/// A thread's proxy for the backends of one route.
pub struct Proxy {
    thread: Rc<Thread>,
    upstream: Upstream,
    /// Shared HTTP/2 connections by backend; `None` for HTTP/1.1.
    pools: Vec<Option<Rc<Http2Pool>>>,
    sticky: Option<Sticky>,
    /// `Host` for each backend; `None` keeps the client's.
    hosts: Option<Vec<String>>,
    strip_prefix: Option<String>,
    rewrite: Option<Rewrite>,
    send_proxy: Option<conf::ProxyHeader>,
    buffers: Rc<FreeList<Box<Buffers>>>,
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
                // Not shared: another route may verify certificates differently.
                _ if to.https => Some(Rc::new(make())),
                _ => Some(pools.of((to.address.to_string(), idle_time), make)),
            }
        };
        Self {
            pools: plan.upstream.to.iter().map(pool).collect(),
            buffers: thread.free_list(),
            thread,
            upstream,
            sticky: Sticky::new(&plan.upstream),
            hosts: (plan.host == conf::HostField::Backend).then(authorities),
            strip_prefix: plan.strip_prefix.clone(),
            rewrite: Rewrite::new(plan),
            send_proxy: plan.upstream.send_proxy,
        }
    }

    /// Returns the pool of HTTP/2 connections of backend number `index`, if it may speak HTTP/2.
    fn pool(&self, index: usize) -> Option<&Http2Pool> {
        self.pools.get(index)?.as_deref()
    }

    async fn forward(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let is_upgrade = upgrade::is_requested(&exchange.request);
        if is_upgrade {
            upgrade::refuse_body(&exchange.body)?;
        }
        let wanted = self.sticky.as_ref().and_then(|sticky| sticky.wanted(&exchange.request));
        let is_repeatable =
            exchange.request.is_idempotent() && exchange.body.framing() == RequestFraming::None;
        let mut passing = Passing {
            proxy: self,
            wanted,
            is_upgrade,
            is_repeatable,
            needs_http1: false,
            was_proven: true,
        };
        exchange.enter(Step::Connect);
        let (switched, in_flight) = self.upstream.send(&mut passing, exchange, wanted).await?;
        if let Some(tunnel) = switched {
            exchange.open_tunnel(tunnel);
            exchange.hold(in_flight);
        }
        Ok(())
    }

    /// Takes buffers. An HTTP/1.1 request without a body takes them when its reply begins, not
    /// while it waits. Other requests hold theirs from the start.
    fn take_buffers(&self) -> Box<Buffers> {
        self.buffers.take().unwrap_or_default()
    }

    fn keep_buffers(&self, mut buffers: Box<Buffers>) {
        // HTTP/2 data, up to a whole window, was swapped into it: do not keep that much memory.
        if buffers.out.capacity() > INBOX {
            buffers.out = Vec::with_capacity(INBOX);
        }
        if buffers.inbox.capacity() <= INBOX {
            self.buffers.give(buffers);
        }
    }
}

impl Origin for Proxy {
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Serving::new(&exchange.blocks(), || self.forward(exchange))
    }
}

/// Appends the head that backend number `index` would receive over HTTP/2, one field in each line.
pub fn append_http2_head(out: &mut Vec<u8>, request: &Request, plan: &conf::Proxy, index: usize) {
    let Some(backend) = plan.upstream.to.get(index) else { return };
    let is_named = plan.host == conf::HostField::Backend;
    let mut head = http2::RequestHead::new(request, is_named.then_some(&backend.authority[..]));
    head.write(request, plan.strip_prefix.as_deref(), upgrade::is_requested(request));
    let scheme: &[u8] = if backend.https { b"https" } else { b"http" };
    head.append(out, scheme);
}

/// Appends the head that backend number `index` would receive over HTTP/1.1.
pub fn append_head(out: &mut Vec<u8>, request: &Request, plan: &conf::Proxy, index: usize) {
    let is_named = plan.host == conf::HostField::Backend;
    let host =
        plan.upstream.to.get(index).filter(|_| is_named).map(|backend| &backend.authority[..]);
    let is_upgrade = upgrade::is_requested(request);
    session::append_head(out, request, plan.strip_prefix.as_deref(), host, is_upgrade);
}
