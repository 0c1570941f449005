//! One request and its reply, as an origin sees them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use forebay_conf::EncodedSlashes;
use forebay_wire::Span;
use forebay_wire::http1::{
    Claims, Known, RequestFraming, RequestHead, TargetForm, Version, list_has,
};
use forebay_wire::path::{self, PathError};

use crate::backlog::Backlog;
use crate::body::Body;
use crate::fault::Fault;
use crate::reply::Reply;
use crate::socket::Socket;
use crate::thread::Thread;
use crate::timing::{Step, Steps};
use crate::tunnel::Tunnel;

/// What answers the requests of a route. One per route and thread, so it may keep `Rc` and `Cell`.
pub trait Origin {
    /// Answers one request: a reply is begun and finished, or a fault returned. A fault before the
    /// reply has begun becomes an error page; after that the connection is cut, so that no client
    /// takes half a reply for a whole one.
    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a>;

    /// Whether request bodies are looked at. Where not, one that is small is read, checked and
    /// dropped before `serve` is called, and a larger one closes the connection.
    fn takes_body(&self) -> bool {
        true
    }

    /// Whether a request may be left, with its body, to another route although the route of this
    /// origin does not say so.
    fn may_pass_on(&self) -> bool {
        false
    }

    /// Whether the work is given up, by dropping the future of `serve`, when the client closes the
    /// connection, or only its own side of it (as nginx has it for requests that it passes on).
    fn ends_with_client(&self) -> bool {
        true
    }
}

/// What decides whether a request may use a route.
pub trait Gate {
    /// Whether it may. Where not, it has been answered, or a fault says why.
    fn admit<'a>(&'a self, exchange: &'a mut Exchange) -> Admitting<'a>;
}

/// The future of [`Gate::admit`].
pub type Admitting<'a> = Pin<Box<dyn Future<Output = Result<bool, Fault>> + 'a>>;

/// The future of [`Origin::serve`].
pub type Serving<'a> = Pin<Box<dyn Future<Output = Result<(), Fault>> + 'a>>;

/// A request, its body and its reply. The parts are borrowed apart: a backend may be sent the body
/// while its reply already comes in.
pub struct Exchange {
    /// What was asked.
    pub request: Request,
    /// The request's body.
    pub body: Body,
    /// The reply.
    pub reply: Reply,
    pub(crate) tunnel: Option<Box<Tunnel>>,
}

/// What was asked.
pub struct Request {
    /// The bytes of the head; pipelined requests may follow in them.
    pub bytes: Vec<u8>,
    /// The head, as spans of `bytes`.
    pub head: RequestHead,
    /// The path, decoded and without dot segments.
    pub path: Vec<u8>,
    /// The path as a server reads it that takes `%2F` and backslashes for slashes, where it has any;
    /// else empty.
    pub unmasked: Vec<u8>,
    /// Path and query as they came, where `head` has them without dot segments and repeated slashes.
    pub asked: Option<Span>,
    /// The user that the route has let in; empty where none was asked for.
    pub user: Vec<u8>,
    /// The part of `path` that the `*` of the route matched, or all of it without a `*`.
    pub rest: Range<usize>,
    /// Who the client is, by the word of proxies that are trusted.
    pub client: SocketAddr,
    /// The other end of the connection.
    pub peer: SocketAddr,
    /// Whether the peer is a proxy whose word is believed.
    pub is_peer_trusted: bool,
    /// Whether it told in `Forwarded`, so that `X-Forwarded-` fields are the client's own.
    pub used_forwarded: bool,
    /// The address that took the connection.
    pub server: SocketAddr,
    /// Whether the client came by TLS.
    pub https: bool,
}

impl Request {
    /// The method.
    pub fn method(&self) -> &[u8] {
        self.head.method.of(&self.bytes)
    }

    /// Which fields that say where the request comes from are a trusted proxy's own.
    pub fn claims(&self) -> Claims {
        match (self.is_peer_trusted, self.used_forwarded) {
            (false, _) => Claims::Nobodys,
            (true, true) => Claims::Forwarded,
            (true, false) => Claims::XForwarded,
        }
    }

    /// Whether the same request may be sent twice (RFC 9110 section 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method(), b"GET" | b"HEAD" | b"PUT" | b"DELETE" | b"OPTIONS")
    }

    /// Whether the client takes trailer fields (RFC 9110 section 10.1.4).
    pub fn takes_trailers(&self) -> bool {
        self.head.version == Version::Http11
            && self.head.fields.iter().any(|field| {
                field.known == Known::Te && list_has(field.value.of(&self.bytes), b"trailers")
            })
    }

    /// Path and query as backends are sent them: the path that routes were found by, with its escapes
    /// as they came. `/` for an absolute target without path.
    pub fn target(&self) -> &[u8] {
        or_root(self.head.path_and_query.of(&self.bytes))
    }

    /// Path and query as they came.
    pub fn asked_target(&self) -> &[u8] {
        or_root(self.asked.unwrap_or(self.head.path_and_query).of(&self.bytes))
    }

    /// Sets the path that routes are found by, and makes the target the same path.
    pub fn prepare_path(&mut self, slashes: EncodedSlashes) -> Result<(), PathError> {
        self.clean_path()?;
        let target = self.head.path_and_query.of(&self.bytes);
        if !path::has_hidden_slash(target) {
            return Ok(());
        }
        if slashes == EncodedSlashes::Refuse {
            return Err(PathError::EncodedSlash);
        }
        path::unmask(target, &mut self.unmasked)
    }

    /// The part of the path to look up in the route's directory. It starts with a slash only where
    /// the pattern had none before its `*`.
    pub fn rest(&self) -> &[u8] {
        &self.path[self.rest.clone()]
    }

    /// Makes routes be found by another path, which is normal. The target stays.
    pub fn reroute(&mut self, path: Vec<u8>) {
        self.unmasked.clear();
        self.rest = 0..path.len();
        self.path = path;
    }

    /// Gives a target without a path (`http://host?query`) the path `/`. The new target goes behind
    /// the head, as in `become_get`.
    pub fn complete_target(&mut self) {
        let head = &self.head;
        if !matches!(head.form, TargetForm::Absolute { .. })
            || head.path_and_query.of(&self.bytes).starts_with(b"/")
        {
            return;
        }
        let target = [b"/", head.path_and_query.of(&self.bytes)].concat();
        self.replace_target(&target);
    }

    /// Sets the path from the target; all of it is looked up until a route says otherwise. A target
    /// that is not clean is replaced by one that is, behind the head.
    pub(crate) fn clean_path(&mut self) -> Result<(), PathError> {
        self.unmasked.clear();
        self.asked = None;
        self.path.clear();
        let target = self.head.path_and_query;
        let normal = path::normalize(target.of(&self.bytes), &mut self.path);
        self.rest = 0..self.path.len();
        normal?;
        if let Some(clean) = path::canonical(target.of(&self.bytes)) {
            self.replace_target(&clean);
            self.asked = Some(target);
        }
        Ok(())
    }

    fn replace_target(&mut self, target: &[u8]) {
        let at = self.head.len;
        self.bytes.splice(at..at, target.iter().copied());
        self.head.len += target.len();
        self.head.path_and_query = Span::new(at, self.head.len);
    }

    /// Makes it a GET without a body (HEAD stays HEAD), for `target` where that is given. The new
    /// bytes go behind the head, in front of what the client may have sent after it.
    pub(crate) fn become_get(&mut self, target: Option<&[u8]>) {
        let head = &mut self.head;
        let at = head.len;
        if head.method.of(&self.bytes) != b"HEAD" {
            self.bytes.splice(head.len..head.len, *b"GET");
            head.method = Span::new(at, at + 3);
            head.len += 3;
        }
        head.framing = RequestFraming::None;
        head.expect_continue = false;
        head.fields.retain(|field| {
            let of_body = [Known::ContentLength, Known::ContentType, Known::TransferEncoding];
            !of_body.contains(&field.known) && field.known != Known::Expect
        });
        if let Some(target) = target {
            self.replace_target(target);
        }
    }

    /// The query, without its question mark; `None` where there is no question mark.
    pub fn query(&self) -> Option<&[u8]> {
        let target = self.target();
        memchr::memchr(b'?', target).map(|at| &target[at + 1..])
    }
}

fn or_root(target: &[u8]) -> &[u8] {
    if target.is_empty() { b"/" } else { target }
}

/// The connection that an exchange belongs to.
pub struct Client {
    pub socket: Socket,
    pub thread: Rc<Thread>,
    pub peer: SocketAddr,
    pub local: SocketAddr,
    /// Whether there are bytes of the client still to be used: of a body, or of a next request.
    pub has_input: Cell<bool>,
    /// Whether the client has closed its side with requests still to be answered.
    pub is_half_closed: Cell<bool>,
    /// Where the request under way spends its time, if that is measured.
    pub(crate) steps: RefCell<Option<Box<Steps>>>,
    /// What the client has not taken of the reply yet.
    pub(crate) backlog: Backlog,
}

impl Client {
    pub fn new(socket: Socket, thread: Rc<Thread>, peer: SocketAddr, local: SocketAddr) -> Self {
        let (has_input, is_half_closed) = (Cell::new(false), Cell::new(false));
        let (steps, backlog) = (RefCell::default(), Backlog::default());
        Self { socket, thread, peer, local, has_input, is_half_closed, steps, backlog }
    }

    /// The head of a request begins to come in.
    pub(crate) fn begin_steps(&self) {
        if self.thread.is_timing() {
            *self.steps.borrow_mut() = Some(Box::new(Steps::begin()));
        }
    }

    /// The request under way comes to another step; the one before.
    pub(crate) fn enter(&self, step: Step) -> Option<Step> {
        self.steps.borrow_mut().as_mut().map(|steps| steps.enter(step))
    }

    /// The request is in the step `to` again, if it is in `from`.
    pub(crate) fn go_back(&self, from: Step, to: Option<Step>) {
        if let (Some(steps), Some(to)) = (&mut *self.steps.borrow_mut(), to) {
            steps.go_back(from, to);
        }
    }

    /// The reply has been written: counts how long each step took.
    pub(crate) fn end_steps(&self) {
        if let Some(mut steps) = self.steps.take() {
            steps.enter(Step::Reply);
            self.thread.counters.count_steps(steps.ended());
        }
    }

    /// Waits until the client has gone away. One that closes its side behind a body that is still
    /// being read, or behind further requests, has said all it has to say and is still there.
    pub async fn gone(&self) {
        if !self.is_half_closed.get() {
            self.socket.wait_for_close().await;
            let is_reset = match self.socket.peek() {
                Some(true) => false,
                Some(false) | None => !self.has_input.get(),
            };
            if is_reset {
                return;
            }
            self.is_half_closed.set(true);
        }
        std::future::pending().await
    }
}

impl Exchange {
    /// The request comes to another step, for those who want to know where time is spent.
    pub fn enter(&self, step: Step) {
        self.reply.client().enter(step);
    }

    pub(crate) fn new(client: &Rc<Client>) -> Self {
        Self {
            request: Request {
                bytes: Vec::with_capacity(BUFFER),
                head: RequestHead::default(),
                path: Vec::new(),
                unmasked: Vec::new(),
                asked: None,
                user: Vec::new(),
                rest: 0..0,
                client: client.peer,
                peer: client.peer,
                is_peer_trusted: false,
                used_forwarded: false,
                server: client.local,
                https: false,
            },
            body: Body::new(client),
            reply: Reply::new(client),
            tunnel: None,
        }
    }

    /// Makes a used exchange the one of another connection.
    pub(crate) fn attach(&mut self, client: &Rc<Client>) {
        self.request.bytes.clear();
        self.request.asked = None;
        self.request.user.clear();
        self.request.client = client.peer;
        self.request.peer = client.peer;
        self.request.server = client.local;
        self.body.attach(client);
        self.reply.attach(client);
    }

    /// Lets go of the connection and of buffers that have grown out of proportion.
    pub(crate) fn detach(&mut self) {
        self.body.detach();
        self.reply.detach();
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
        self.request.asked = None;
        self.request.user.clear();
        self.request.https = false;
    }
}

/// Size of a receive buffer, in bytes: most heads and small bodies fit.
pub const BUFFER: usize = 16 * 1024;
