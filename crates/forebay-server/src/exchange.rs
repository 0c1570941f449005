//! One request and its reply, as an origin sees them.

use std::any::Any;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::socket::BUFFER;
use forebay_net::sys::recycled::{Blocks, Recycled};
use forebay_net::thread::Thread;
use forebay_net::timing::Step;
use forebay_wire::http1::RequestHead;

use crate::body::Body;
use crate::reply::Reply;
use crate::stream::Stream;
use crate::tunnel::Tunnel;

/// Handler of a route's requests. Each thread has its own instance, which may therefore use `Rc`
/// and `Cell`.
pub trait Origin {
    /// Answers one request: finishes a reply or returns a fault. A fault before the reply begins
    /// becomes an error page. A later fault closes the connection, so that the client does not
    /// accept a partial reply as complete.
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a>;

    /// Answers one request without waiting, if possible: buffers the head and body of the reply,
    /// which the server then finishes. Returns false, and does nothing, if [`Origin::serve`] has to
    /// answer.
    fn serve_now(&self, _exchange: &mut Exchange) -> bool {
        false
    }

    /// Returns the origin that this origin wraps, if any. By default, the functions below have the
    /// results of the wrapped origin.
    fn wrapped(&self) -> Option<&dyn Origin> {
        None
    }

    /// Returns true if the origin reads request bodies. Otherwise the server reads, checks and
    /// drops a small body before `serve`. A larger body closes the connection.
    fn takes_body(&self) -> bool {
        self.wrapped().is_none_or(|wrapped| wrapped.takes_body())
    }

    /// Returns true if the origin may leave a request and its body to another route, even if the
    /// origin's route has no `fallback`.
    fn may_fall_back(&self) -> bool {
        self.wrapped().is_some_and(|wrapped| wrapped.may_fall_back())
    }

    /// Returns true if `serve` may take so long that the client leaves meanwhile. The server then
    /// drops the future of `serve`, or lets it finish without the client (`on_abort`).
    fn ends_with_client(&self) -> bool {
        self.wrapped().is_none_or(|wrapped| wrapped.ends_with_client())
    }
}

/// Access check of a route.
pub trait Gate {
    /// Returns true if the request may use the route. Returns false if the gate itself has answered
    /// the request. Returns a fault if the request must be refused with an error.
    fn admit<'a>(&'a self, exchange: &'a mut Exchange) -> Admitting<'a>;

    /// Returns true if the decision of [`Self::admit`] may depend on the request's path.
    fn is_by_path(&self) -> bool {
        false
    }

    /// Returns the part of the decision of [`Self::admit`] that depends on the method alone.
    fn permission(&self, _method: &[u8]) -> Permission {
        Permission::Checked
    }

    /// Returns true if the decision of [`Self::admit`] may depend on the client: on its address,
    /// its credentials or the number of its requests.
    fn is_by_client(&self) -> bool {
        true
    }
}

/// The part of a gate's decision that depends on the method alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The gate refuses all requests with the method.
    Refused,
    /// The gate checks requests with the method.
    Checked,
    /// The gate asks for no user or address.
    Open,
}

/// The future of [`Gate::admit`].
pub enum Admitting<'a> {
    /// The gate has decided without waiting. No memory has to be allocated.
    Now(bool),
    Later(Pin<Box<dyn Future<Output = Result<bool, Fault>> + 'a>>),
}

impl Future for Admitting<'_> {
    type Output = Result<bool, Fault>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Now(is_admitted) => Poll::Ready(Ok(*is_admitted)),
            Self::Later(future) => future.as_mut().poll(context),
        }
    }
}

/// The future of [`Origin::serve`].
pub type OriginFuture<'a> = Recycled<'a, Result<(), Fault>>;

/// A stream without a client, for requests that Forebay itself makes. Several requests may share
/// the stream.
pub struct NoClient(Stream);

impl NoClient {
    /// Creates the stream, which needs a file descriptor.
    pub fn new(thread: &Rc<Thread>) -> io::Result<Self> {
        Stream::without_client(thread).map(Self)
    }
}

/// A request, its body and its reply. The three are separate fields, so that the body can be sent
/// to a backend while the reply arrives.
pub struct Exchange {
    /// The head of the request.
    pub request: Request,
    /// The body of the request.
    pub body: Body,
    /// The reply to the client.
    pub reply: Reply,
    pub tunnel: Option<Box<Tunnel>>,
    /// What the request holds until its end, such as a place within a limit.
    pub held: Vec<Box<dyn Any>>,
}

impl Exchange {
    /// Records that the request enters another step, for the timing statistics.
    pub fn enter(&self, step: Step) {
        self.reply.stream().enter(step);
    }

    /// Turns the connection into a tunnel after the origin returns. The origin must have sent
    /// status 101 with [`Reply::switch`].
    pub fn open_tunnel(&mut self, tunnel: Box<Tunnel>) {
        self.tunnel = Some(tunnel);
    }

    /// Keeps `held` until the tunnel ends, if the connection has become a tunnel.
    pub fn hold(&mut self, held: impl Any) {
        if let Some(tunnel) = &mut self.tunnel {
            let before = std::mem::replace(&mut tunnel.held, Box::new(()));
            tunnel.held = Box::new((before, held));
        }
    }

    /// Returns the thread's unused memory blocks. An [`OriginFuture`] is stored in such a block.
    pub fn blocks(&self) -> Rc<Blocks> {
        self.reply.stream().thread().blocks.clone()
    }

    pub fn new(stream: &Stream) -> Self {
        let accepted = stream.accepted();
        let bytes = Vec::with_capacity(BUFFER);
        let mut request =
            Request::new(bytes, RequestHead::default(), accepted.peer, accepted.local);
        request.https = accepted.tls.is_some();
        request.tls = accepted.tls.clone();
        let (body, reply) = (Body::new(stream), Reply::new(stream));
        Self { request, body, reply, tunnel: None, held: Vec::new() }
    }

    /// Returns an exchange for a request that Forebay itself makes on behalf of this exchange's
    /// client. The caller must call [`Reply::record`] with `is_silent`, so that no part of the
    /// reply reaches the client.
    pub fn aside(&self, request: Request) -> Self {
        let stream = self.reply.stream();
        let (body, mut reply) = (Body::new(stream), Reply::new(stream));
        reply.prepare(&request.head, request.method());
        Self { request, body, reply, tunnel: None, held: Vec::new() }
    }

    /// Returns an exchange for a copy of a client's request, with this body. The new exchange does
    /// not use the client's connection. The caller must call [`Reply::record`] with `is_silent`.
    pub fn of_copy(
        NoClient(stream): &NoClient,
        mut request: Request,
        body: Option<Vec<u8>>,
    ) -> Self {
        let body = body.map_or_else(|| Body::new(stream), |bytes| Body::of_bytes(stream, bytes));
        request.head.framing = body.framing();
        request.head.expect_continue = false;
        let mut reply = Reply::new(stream);
        reply.prepare(&request.head, request.method());
        Self { request, body, reply, tunnel: None, held: Vec::new() }
    }

    /// Reuses the exchange for another stream.
    pub fn attach(&mut self, stream: &Stream) {
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

    /// Releases the stream and oversized buffers.
    pub fn detach(&mut self) {
        self.body.detach();
        self.reply.detach();
        self.request.tls = None;
        self.tunnel = None;
        self.held.clear();
        if self.request.bytes.capacity() > 2 * BUFFER {
            self.request.bytes = Vec::with_capacity(BUFFER);
        }
    }

    /// Prepares for the next request on the connection. Keeps the bytes received after the previous
    /// request.
    pub fn next(&mut self) {
        if !self.body.take_rest(&mut self.request.bytes) {
            let len = self.request.head.len.min(self.request.bytes.len());
            self.request.bytes.drain(..len);
        }
        self.held.clear();
        self.request.head.len = 0;
        self.request.original = None;
        self.request.user.clear();
        self.request.https = self.reply.stream().accepted().tls.is_some();
    }
}
