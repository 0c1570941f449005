//! Copies of requests (`mirror` of a route), which go to another server. Forebay drops the replies.
//!
//! A copy has its own task, connection and memory, so it cannot delay or change the client's reply.
//! A request without a body is copied before the route's origin gets the request. A body is copied
//! while the origin reads it, and the copy is sent after the body's last byte.
//!
//! Copies have a field with a random token of this process. A request with this token is not copied
//! again, so copies never loop, even if several Forebays copy to each other. A client cannot use
//! the field to prevent copies of its requests, because it does not know the token.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use aws_lc_rs::rand;
use forebay_admin::MirrorCounts;
use forebay_conf::{self as conf, Level, RequestChange, RequestField, Template, TemplatePart};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::request_fields::RequestFields;
use forebay_net::thread::Thread;
use forebay_server::body::BodyTap;
use forebay_server::exchange::{Exchange, NoClient, Origin, OriginFuture};
use forebay_server::reply::{Keep, Length, Recorder};
use forebay_wire::http1::RequestFraming;
use tokio::sync::Notify;

/// The field with the tokens of all processes that have copied a request.
const FIELD: &str = "Forebay-Mirror";
/// Fields with the client's credentials.
const CREDENTIALS: [&str; 3] = ["Authorization", "Proxy-Authorization", "Cookie"];
/// The number of bytes of a reply that are read and dropped. After a longer reply, the connection
/// is closed.
const LONGEST_REPLY: usize = 1024 * 1024;
/// The largest number of unread body bytes that are read for a copy if the origin reads no bodies.
const UNREAD_BODY: u64 = 64 * 1024;

/// The state of a route's copies that all threads share.
#[derive(Debug, Default)]
pub struct MirrorState {
    active: AtomicUsize,
    /// Bytes of bodies in memory.
    body_bytes: AtomicUsize,
    counts: [AtomicU64; 5],
}

/// The outcome of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyOutcome {
    /// The server has answered.
    Answered,
    /// The server could not be reached, or its answer was broken.
    Failed,
    /// The copy took too long.
    TimedOut,
    /// Too many copies were under way, too many bytes of bodies were in memory, or the origin read
    /// only a part of the body.
    Dropped,
    /// The body was larger than `max_body`.
    TooLarge,
}

impl MirrorState {
    /// Returns the number of copies under way, and of copies that ended so far.
    pub fn counts(&self) -> MirrorCounts {
        let of = |outcome: CopyOutcome| self.counts[outcome as usize].load(Ordering::Relaxed);
        MirrorCounts {
            active: self.active.load(Ordering::Relaxed) as u64,
            answered: of(CopyOutcome::Answered),
            failed: of(CopyOutcome::Failed),
            timed_out: of(CopyOutcome::TimedOut),
            dropped: of(CopyOutcome::Dropped),
            too_large: of(CopyOutcome::TooLarge),
        }
    }

    fn count(&self, outcome: CopyOutcome) {
        self.counts[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// A reserved part of a limited amount. Dropping this value gives the part back.
struct Reserved {
    state: Arc<MirrorState>,
    of: fn(&MirrorState) -> &AtomicUsize,
    amount: usize,
}

impl Reserved {
    fn none(state: &Arc<MirrorState>, of: fn(&MirrorState) -> &AtomicUsize) -> Self {
        Self { state: state.clone(), of, amount: 0 }
    }

    /// Takes `amount` more. Returns false if the total of all copies would exceed `most`.
    fn add(&mut self, amount: usize, most: usize) -> bool {
        let total = (self.of)(&self.state);
        let within = |used: usize| used.checked_add(amount).filter(|sum| *sum <= most);
        if total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_err() {
            return false;
        }
        self.amount += amount;
        true
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        (self.of)(&self.state).fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// An origin whose requests are copied.
pub struct MirroredOrigin {
    origin: Box<dyn Origin>,
    mirror: Rc<Mirror>,
    /// True if the route has a fallback, so that another route may answer a request.
    falls_back: bool,
}

/// One thread's connections to a route's mirror.
struct Mirror {
    server: Box<dyn Origin>,
    settings: conf::Mirror,
    state: Arc<MirrorState>,
    thread: Rc<Thread>,
    /// The stream that all copies use in place of a client's. Created for the first copy.
    stream: OnceCell<NoClient>,
    /// State of the random selection.
    random: Cell<u64>,
}

impl MirroredOrigin {
    /// Creates an origin whose requests are also sent to `server`. `falls_back` is true if another
    /// route answers requests that `origin` declines.
    pub fn new(
        (origin, falls_back): (Box<dyn Origin>, bool),
        server: Box<dyn Origin>,
        settings: conf::Mirror,
        state: Arc<MirrorState>,
        thread: Rc<Thread>,
    ) -> Self {
        let falls_back = falls_back || origin.may_fall_back();
        let (stream, random) = (OnceCell::new(), Cell::new(seed()));
        let mirror = Mirror { server, settings, state, thread, stream, random };
        Self { origin, mirror: Rc::new(mirror), falls_back }
    }

    /// Returns true if this origin must read the bodies of requests itself, because nothing else
    /// reads the bytes to copy. In this case, `origin` reads no bodies, and no later route answers
    /// requests that `origin` declines.
    fn reads_for_copy(&self) -> bool {
        !self.origin.takes_body() && !self.falls_back
    }

    async fn answer(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        let mut waiting = None;
        if self.mirror.selects(exchange) {
            let request = self.mirror.copy_of(&exchange.request);
            match exchange.body.framing() {
                RequestFraming::None if self.falls_back => waiting = Some(request),
                RequestFraming::None => self.mirror.start(request, None),
                _ => exchange.body.observe(Box::new(BodyCopy::new(&self.mirror, request))),
            }
        }
        if self.reads_for_copy() && !exchange.body.discard(UNREAD_BODY).await? {
            exchange.reply.close_after();
        }
        let outcome = self.origin.serve(exchange).await;
        let is_declined = outcome.as_ref().is_err_and(Fault::is_declined);
        if let Some(request) = waiting.filter(|_| !is_declined) {
            self.mirror.start(request, None);
        }
        outcome
    }
}

impl Origin for MirroredOrigin {
    fn wrapped(&self) -> Option<&dyn Origin> {
        Some(&*self.origin)
    }

    fn takes_body(&self) -> bool {
        self.origin.takes_body() || self.reads_for_copy()
    }

    fn serve_now(&self, exchange: &mut Exchange) -> bool {
        // `serve` copies requests with a body.
        if exchange.body.framing() != RequestFraming::None {
            return false;
        }
        if !self.mirror.selects(exchange) {
            return self.origin.serve_now(exchange);
        }
        let request = self.mirror.copy_of(&exchange.request);
        let is_answered = self.origin.serve_now(exchange);
        if is_answered {
            self.mirror.start(request, None);
        }
        is_answered
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.answer(exchange))
    }
}

impl Mirror {
    /// Returns true if the request of `exchange` must be copied: at random, for the configured
    /// share of requests. A request for a tunnel is never copied, and neither is a copy that this
    /// process has made.
    fn selects(&self, exchange: &Exchange) -> bool {
        let request = &exchange.request;
        let is_for_tunnel = request.head.upgrade || exchange.reply.stream().asks_for_tunnel();
        self.draws() && !is_for_tunnel && !is_own_copy(request)
    }

    /// Returns true for the configured share of all calls, at random.
    fn draws(&self) -> bool {
        // SplitMix64. The selection needs no secrecy, only independence from the requests.
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % 1_000_000 < u64::from(self.settings.per_million)
    }

    /// Returns the request that the server gets.
    fn copy_of(&self, request: &Request) -> Request {
        let mut copy = request.clone();
        copy.bytes.truncate(copy.head.len);
        let tokens = match &copy.joined_field(FIELD)[..] {
            b"" => token().to_owned(),
            others => format!("{}, {}", String::from_utf8_lossy(others), token()),
        };
        let text = Template::of(vec![TemplatePart::Text(tokens)]);
        let set = |name: &str, change| RequestField { name: name.to_owned(), change };
        let mut changes = vec![set(FIELD, RequestChange::Set(text))];
        changes.push(set("Expect", RequestChange::Remove));
        if !self.settings.credentials {
            changes.extend(CREDENTIALS.map(|name| set(name, RequestChange::Remove)));
        }
        if let Some(fields) = RequestFields::new(&changes) {
            fields.change(&mut copy);
        }
        copy
    }

    /// Sends a copy in a task of its own, unless too many copies are under way. `body` is the body,
    /// and the reservation of its memory.
    fn start(self: &Rc<Self>, request: Request, body: Option<(Vec<u8>, Reserved)>) {
        let mut place = Reserved::none(&self.state, |state| &state.active);
        if !place.add(1, self.settings.max_requests) {
            return self.state.count(CopyOutcome::Dropped);
        }
        let mirror = self.clone();
        tokio::task::spawn_local(async move {
            let (bytes, reserved) = body.unzip();
            let outcome = mirror.send(request, bytes).await;
            mirror.state.count(outcome);
            drop((reserved, place));
        });
    }

    async fn send(&self, request: Request, body: Option<Vec<u8>>) -> CopyOutcome {
        let warn = |why: &str| {
            self.thread.log_limited(Level::Warn, &format!("mirror: {why}"));
            CopyOutcome::Failed
        };
        let stream = match self.stream.get() {
            Some(stream) => stream,
            None => match NoClient::new(&self.thread) {
                Ok(stream) => self.stream.get_or_init(|| stream),
                Err(error) => return warn(&error.to_string()),
            },
        };
        let mut exchange = Exchange::of_copy(stream, request, body);
        let dropping = Rc::new(Dropping::default());
        exchange.reply.record(dropping.clone(), true);
        let outcome = tokio::select! {
            biased;
            // The reply is too long, so stop reading it. The mirror server has got the whole
            // request, or does not want the rest of the request.
            () = dropping.has_enough.notified() => Some(Ok(())),
            outcome = self.server.serve(&mut exchange) => Some(outcome),
            () = tokio::time::sleep(self.settings.timeout) => None,
        };
        exchange.reply.take_captured();
        exchange.detach();
        match outcome {
            Some(Ok(())) => CopyOutcome::Answered,
            Some(Err(fault)) if fault.status == 504 => CopyOutcome::TimedOut,
            Some(Err(fault)) => warn(&fault.to_string()),
            None => CopyOutcome::TimedOut,
        }
    }
}

/// Drops the reply to a copy.
#[derive(Default)]
struct Dropping {
    bytes: Cell<usize>,
    /// Ends the exchange with a server that sends too much.
    has_enough: Notify,
}

impl Recorder for Dropping {
    fn decide(&self, _status: u16, _lines: &[u8], _length: Length) -> Keep {
        Keep::Drop
    }

    fn reserve(&self, _bytes: usize) -> bool {
        false
    }

    fn dropped(&self, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        if self.bytes.get() > LONGEST_REPLY {
            self.has_enough.notify_one();
        }
    }
}

/// Copies a body while the origin reads it.
struct BodyCopy {
    mirror: Rc<Mirror>,
    /// `None` after the end of the copy.
    request: Option<Request>,
    bytes: Vec<u8>,
    reserved: Reserved,
}

impl BodyCopy {
    fn new(mirror: &Rc<Mirror>, request: Request) -> Self {
        let reserved = Reserved::none(&mirror.state, |state| &state.body_bytes);
        Self { mirror: mirror.clone(), request: Some(request), bytes: Vec::new(), reserved }
    }

    /// Ends the copy without a request to the server. Always returns false.
    fn give_up(&mut self, outcome: CopyOutcome) -> bool {
        if self.request.take().is_some() {
            self.mirror.state.count(outcome);
        }
        false
    }
}

impl BodyTap for BodyCopy {
    fn piece(&mut self, piece: &[u8]) -> bool {
        let settings = &self.mirror.settings;
        let length = self.bytes.len() + piece.len();
        if length > settings.max_body {
            return self.give_up(CopyOutcome::TooLarge);
        }
        let most = settings.max_requests.saturating_mul(settings.max_body);
        // `restart` keeps the memory that an earlier attempt has reserved, so reserve only the
        // missing bytes.
        let more = length.saturating_sub(self.reserved.amount);
        if !self.reserved.add(more, most) {
            return self.give_up(CopyOutcome::Dropped);
        }
        self.bytes.extend_from_slice(piece);
        true
    }

    fn restart(&mut self) {
        self.bytes.clear();
    }

    fn end(mut self: Box<Self>) {
        let Some(request) = self.request.take() else { return };
        let none = Reserved::none(&self.mirror.state, |state| &state.body_bytes);
        let reserved = std::mem::replace(&mut self.reserved, none);
        let bytes = std::mem::take(&mut self.bytes);
        self.mirror.start(request, Some((bytes, reserved)));
    }
}

impl Drop for BodyCopy {
    fn drop(&mut self) {
        // The origin has not read the whole body, or the client has not sent it.
        self.give_up(CopyOutcome::Dropped);
    }
}

/// Returns the random token of this process.
fn token() -> &'static str {
    static TOKEN: OnceLock<String> = OnceLock::new();
    TOKEN.get_or_init(|| {
        let mut bytes = [0; 16];
        rand::fill(&mut bytes).expect("the system has random bytes");
        format!("{:032x}", u128::from_be_bytes(bytes))
    })
}

/// Returns true if the request is a copy that this process has made.
fn is_own_copy(request: &Request) -> bool {
    let tokens = request.joined_field(FIELD);
    tokens.split(|&byte| byte == b',').any(|one| one.trim_ascii() == token().as_bytes())
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    rand::fill(&mut bytes).expect("the system has random bytes");
    u64::from_le_bytes(bytes)
}
