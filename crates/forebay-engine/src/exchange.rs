//! One request and its reply, as an origin sees them.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_wire::http1::RequestHead;

use crate::body::Body;
use crate::fault::Fault;
use crate::head::Request;
use crate::reply::Reply;
use crate::socket::BUFFER;
use crate::stream::Stream;
use crate::sys::recycled::{Blocks, Recycled};
use crate::timing::Step;
use crate::tunnel::Tunnel;

/// What answers the requests of a route. One per route and thread, so it may keep `Rc` and `Cell`.
pub trait Origin {
    /// Answers one request: a reply is begun and finished, or a fault returned. A fault before the
    /// reply has begun becomes an error page; after that the connection is cut, so that no client
    /// takes half a reply for a whole one.
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a>;

    /// As [`Origin::serve`], where there is nothing to wait for: puts head and body of the reply down,
    /// which the engine then finishes. `false`, and nothing done, where `serve` is to answer.
    fn serve_now(&self, _exchange: &mut Exchange) -> bool {
        false
    }

    /// Whether request bodies are looked at. Where not, one that is small is read, checked and
    /// dropped before `serve` is called, and a larger one closes the connection.
    fn takes_body(&self) -> bool {
        true
    }

    /// Whether a request may be left, with its body, to another route although the route of this
    /// origin has no `fallback`.
    fn may_fall_back(&self) -> bool {
        false
    }

    /// Whether the work is given up, by dropping the future of `serve`, when the client closes the
    /// connection, or only its own side of it (as nginx has it for requests that it proxies).
    fn ends_with_client(&self) -> bool {
        true
    }
}

/// What decides whether a request may use a route.
pub trait Gate {
    /// Whether it may. Where not, it has been answered, or the fault is the reason.
    fn admit<'a>(&'a self, exchange: &'a mut Exchange) -> Admitting<'a>;
}

/// The future of [`Gate::admit`].
pub type Admitting<'a> = Pin<Box<dyn Future<Output = Result<bool, Fault>> + 'a>>;

/// The future of [`Origin::serve`].
pub type Serving<'a> = Recycled<'a, Result<(), Fault>>;

/// A request, its body and its reply. The parts are borrowed apart: a backend may be sent the body
/// while its reply already comes in.
pub struct Exchange {
    /// The request.
    pub request: Request,
    /// The request's body.
    pub body: Body,
    /// The reply.
    pub reply: Reply,
    pub(crate) tunnel: Option<Box<Tunnel>>,
}

impl Exchange {
    /// The request comes to another step, for those who want to know where time is spent.
    pub fn enter(&self, step: Step) {
        self.reply.stream().enter(step);
    }

    /// Lets the connection become a tunnel once the origin has returned, which has sent the 101
    /// by [`Reply::switch`].
    pub fn open_tunnel(&mut self, tunnel: Tunnel) {
        self.tunnel = Some(Box::new(tunnel));
    }

    /// Keeps `held` until the tunnel ends, if the connection has become one.
    pub fn hold(&mut self, held: impl Any) {
        if let Some(tunnel) = &mut self.tunnel {
            let before = std::mem::replace(&mut tunnel.held, Box::new(()));
            tunnel.held = Box::new((before, held));
        }
    }

    /// Where [`Serving`] has its future.
    pub fn blocks(&self) -> Rc<Blocks> {
        self.reply.stream().thread().blocks.clone()
    }

    pub(crate) fn new(stream: &Stream) -> Self {
        let accepted = stream.accepted();
        let bytes = Vec::with_capacity(BUFFER);
        let mut request =
            Request::new(bytes, RequestHead::default(), accepted.peer, accepted.local);
        request.https = accepted.tls.is_some();
        request.tls = accepted.tls.clone();
        Self { request, body: Body::new(stream), reply: Reply::new(stream), tunnel: None }
    }

    /// Makes a used exchange the one of another stream.
    pub(crate) fn attach(&mut self, stream: &Stream) {
        let accepted = stream.accepted();
        self.request.bytes.clear();
        self.request.original = None;
        self.request.user.clear();
        self.request.client = accepted.peer;
        self.request.peer = accepted.peer;
        self.request.server = accepted.local;
        self.request.https = accepted.tls.is_some();
        self.request.tls = accepted.tls.clone();
        self.request.announced.clear();
        self.body.attach(stream);
        self.reply.attach(stream);
    }

    /// Lets go of the stream and of buffers that have grown out of proportion.
    pub(crate) fn detach(&mut self) {
        self.body.detach();
        self.reply.detach();
        self.request.tls = None;
        self.tunnel = None;
        if self.request.bytes.capacity() > 2 * BUFFER {
            self.request.bytes = Vec::with_capacity(BUFFER);
        }
    }

    /// Makes ready for the next request on the connection: what came behind the last one stays.
    pub(crate) fn next(&mut self) {
        if !self.body.take_rest(&mut self.request.bytes) {
            let len = self.request.head.len.min(self.request.bytes.len());
            self.request.bytes.drain(..len);
        }
        self.request.head.len = 0;
        self.request.original = None;
        self.request.user.clear();
        self.request.https = self.reply.stream().accepted().tls.is_some();
    }
}
