//! Stored replies of a route's origin (RFC 9111).
//!
//! A [`CachedOrigin`] answers instead of the origin if the store has a usable reply. Otherwise it
//! records the origin's reply (`forebay_server::reply::Recorder`) and stores it if this is
//! permitted.
//!
//! Only one request for a resource asks the origin, and others wait for its reply. The others that
//! cannot use this reply then ask the origin together, and each may store its reply. If a slow
//! client can delay the first reply, the others ask the origin, too (they *pass*), and their replies
//! are not stored. A reply from before a change never replaces a newer one.
//!
//! The cache ignores the directives of requests, except `only-if-cached`: otherwise a client could
//! make each of its requests go to the origin. Requests that an application may read differently
//! from Forebay still go to the origin; `rate_limit` can limit their number.

mod aliases;
mod answer;
mod changes;
mod checksum;
mod disk;
mod forwarded;
mod key;
mod large;
mod purging;
mod recording;
mod resource;
mod resource_key;
mod running;
mod store;
mod stored;
mod vary;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_net::fault::{Fault, Side};
use forebay_net::head::Request;
use forebay_net::thread::Thread;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_upstream::hops;
use forebay_wire::caching::{CacheControl, Circumstances};
use tokio::time::Instant;

use answer::{Handled, send, send_now};
pub use changes::{ChangingOrigin, SiteReplies};
pub use disk::{Disk, examine};
use forwarded::Forwarded;
use key::{CacheFields, KeyOf, Use, asks_for_part};
pub use purging::CachedRoute;
use recording::{Recording, Verdict};
use resource_key::Key;
use running::{Seeking, WaitEnd};
pub use store::Store;
use store::{CacheLookup, Counts, Lead, Role};
use stored::{Stored, StoredBody};

use crate::named::is_personal;

/// Maximum time that a request waits for the reply to another request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of other requests for whose reply a request waits. Otherwise clients that abort
/// their requests, or change the resource, could delay others for a long time.
const MOST_WAITS: usize = 2;

/// An origin whose replies are stored.
pub struct CachedOrigin {
    parts: Rc<Parts>,
}

struct Parts {
    origin: Box<dyn Origin>,
    settings: Rc<conf::Cache>,
    key: KeyOf,
    store: Arc<Store>,
    /// The replies that an unsafe request outdates.
    replies: Rc<SiteReplies>,
    thread: Rc<Thread>,
    /// Buffer for a key, so that an answer from the store allocates nothing.
    scratch: RefCell<Vec<u8>>,
    /// True if each request counts as the request of a signed-in user, as with `forward_auth`.
    names_users: bool,
}

/// Properties of all requests of a route.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestTraits {
    /// True if each request counts as authorized for a user, as with `forward_auth`.
    pub names_users: bool,
    /// True if the origin sees only the current target of a request, and not the client's own
    /// target.
    pub hides_own_target: bool,
}

/// Properties of a request that asks the origin.
#[derive(Clone, Copy)]
struct Asking {
    circumstances: Circumstances,
    /// True if the request has conditions, or asks for a range.
    has_conditions: bool,
    /// True if no client waits for the reply.
    is_silent: bool,
}

/// A reply of the origin.
enum Fetched {
    /// The client has received the reply.
    Sent,
    /// The client gets this stored reply.
    Stored(Arc<Stored>, Handled),
}

impl CachedOrigin {
    /// Creates an origin that stores replies of `origin` in `store`. `zone` is unique to the route,
    /// because routes do not share replies.
    pub fn new(
        origin: Box<dyn Origin>,
        settings: &conf::Cache,
        (store, replies, zone): (&Arc<Store>, &Rc<SiteReplies>, &str),
        thread: Rc<Thread>,
        RequestTraits { names_users, hides_own_target }: RequestTraits,
    ) -> Self {
        let settings = Rc::new(settings.clone());
        let key = KeyOf::new(zone, &settings.key);
        let key = if hides_own_target { key.share_includes() } else { key };
        let (store, replies, scratch) = (store.clone(), replies.clone(), RefCell::default());
        let parts = Parts { origin, settings, key, store, replies, thread, scratch, names_users };
        Self { parts: Rc::new(parts) }
    }
}

impl Parts {
    async fn answer(self: &Rc<Self>, exchange: &mut Exchange) -> Result<(), Fault> {
        let has_tunnel = exchange.reply.stream().asks_for_tunnel();
        let fields = CacheFields::of(&exchange.request);
        match self.key.use_of(&exchange.request, fields) {
            _ if has_tunnel => self.origin.serve(exchange).await,
            Use::Bypass => self.forward(exchange, Forwarded::of_bypass(&exchange.request)).await,
            Use::Invalidate => self.replies.change(&*self.origin, exchange, true).await,
            Use::Lookup => self.look_up(exchange, fields).await,
        }
    }

    async fn look_up(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        fields: CacheFields,
    ) -> Result<(), Fault> {
        let key = self.key.of(&exchange.request);
        let circumstances = self.circumstances(&exchange.request, fields);
        let has_conditions = fields.has_conditions;
        let deadline = Instant::now() + PATIENCE;
        let mut waits = 0;
        // Hash of the values for `Vary` that this request had when it waited for an answer.
        let mut answered = None;
        let (lead, stale) = loop {
            let stale = match self.find_all(&key, &exchange.request, circumstances).await {
                CacheLookup::Reply(stored) if stored.is_fresh() => {
                    let handled = if waits > 0 { Handled::Collapsed } else { Handled::Hit };
                    Counts::add(&self.store.counts.hits);
                    self.store.note_hit(&stored, || key.clone());
                    return send(exchange, &stored, (handled, has_conditions)).await;
                }
                CacheLookup::Reply(stored) if stored.may_be_stale(self.allowed_while(&stored)) => {
                    Counts::add(&self.store.counts.stale);
                    self.refresh(exchange, &key, (&stored, circumstances.names_user()));
                    return send(exchange, &stored, (Handled::Stale, has_conditions)).await;
                }
                CacheLookup::Reply(stored) => Some(stored),
                CacheLookup::Nothing => None,
                CacheLookup::Passing => return self.pass(exchange).await,
            };
            if self.is_only_if_cached(&exchange.request) {
                return exchange.respond_error_with(504, b"").await;
            }
            // If a client asks for a range and nothing is stored, do not fetch the whole body,
            // which may be large. The reply to HEAD has no body to store.
            let is_part = stale.is_none() && asks_for_part(&exchange.request);
            if is_part || exchange.request.method() == b"HEAD" {
                return self.pass(exchange).await;
            }
            let variant = self.store.variant(&key, &exchange.request);
            // The last reply for this request was of no use to others, so the next one probably is
            // not, either. If requests waited for it, they would ask the origin one after another.
            // After two waits without a reply, the request does not wait again, either.
            let is_apart = answered == Some(variant)
                || waits == MOST_WAITS
                || stale.as_ref().is_some_and(|stale| !stale.was_fresh);
            let names_user = circumstances.names_user();
            match self.store.role(&key, Seeking { names_user, variant, is_apart }) {
                Role::Leads(lead) => break (lead, stale),
                // Another request already asks the origin. This request has already passed this
                // server, so that other request may wait for the reply to this one. If each waited
                // for the other, neither would end. So this request does not wait.
                Role::Waits(_) if hops::has_passed(&exchange.request) => {
                    return self.pass(exchange).await;
                }
                Role::Waits(other) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    match other.ended(left).await {
                        WaitEnd::Answered => answered = Some(variant),
                        WaitEnd::Aborted => {}
                        WaitEnd::Slow => return self.pass(exchange).await,
                    }
                    waits += 1;
                }
                Role::Passes => return self.pass(exchange).await,
            }
        };
        let asking = Asking { circumstances, has_conditions, is_silent: false };
        self.ask(exchange, lead, stale, asking).await
    }

    /// Looks up the reply for `request` in memory. Finds only a reply that the client may get.
    fn find(&self, key: &[u8], request: &Request, circumstances: Circumstances) -> CacheLookup {
        let asked = (request, circumstances.names_user());
        self.store.find(key, asked, |stored| may_use(stored, circumstances))
    }

    /// Looks up the reply for `request` in memory, then on disk. Finds only a reply that the client
    /// may get.
    async fn find_all(
        &self,
        key: &Key,
        request: &Request,
        circumstances: Circumstances,
    ) -> CacheLookup {
        let found = self.find(key, request, circumstances);
        match self.store.disk() {
            None => found,
            // The future is boxed, because most requests do not need it.
            Some(disk) => match &found {
                CacheLookup::Reply(stored) if !matches!(stored.body, StoredBody::Named(_)) => found,
                _ => Box::pin(self.find_on(disk, found, (key, request), circumstances)).await,
            },
        }
    }

    /// Looks up the reply for `request` on disk. If `found` is a reply whose body is only on disk,
    /// opens this body, and returns `CacheLookup::Nothing` if the body is missing. Otherwise
    /// returns `found` if the disk has no reply.
    async fn find_on(
        &self,
        disk: &Disk,
        found: CacheLookup,
        (key, request): (&Key, &Request),
        circumstances: Circumstances,
    ) -> CacheLookup {
        if let CacheLookup::Reply(stored) = &found {
            let opened = disk.open_body(stored, key).await;
            return opened
                .map_or(CacheLookup::Nothing, |opened| CacheLookup::Reply(Arc::new(opened)));
        }
        let removals = self.store.removals();
        let on_disk = disk.find(key, request, |stored| may_use(stored, circumstances)).await;
        let Some(stored) = on_disk.map(Arc::new) else { return found };
        self.store.promote(key, &stored, removals);
        CacheLookup::Reply(stored)
    }

    /// Lets the origin answer, and stores nothing.
    async fn pass(&self, exchange: &mut Exchange) -> Result<(), Fault> {
        exchange.request.cache = Some("pass");
        self.forward(exchange, Forwarded::Miss).await
    }

    /// Lets the origin answer. `why` is the reason for `Cache-Status` in the reply.
    async fn forward(&self, exchange: &mut Exchange, why: Forwarded) -> Result<(), Fault> {
        Counts::add(&self.store.counts.passed);
        exchange.reply.record(Rc::new(why), false);
        let outcome = self.origin.serve(exchange).await;
        exchange.reply.take_captured();
        outcome
    }

    /// Asks the origin, and answers the client. If the origin fails, answers with `stale`, provided
    /// that the settings and the directives of `stale` permit this.
    async fn ask(
        &self,
        exchange: &mut Exchange,
        lead: Lead,
        stale: Option<Arc<Stored>>,
        asking: Asking,
    ) -> Result<(), Fault> {
        let has_conditions = asking.has_conditions;
        let fetched = self.fetch(exchange, lead, stale.as_ref(), asking).await;
        match (fetched, stale) {
            (Ok(Fetched::Sent), _) => Ok(()),
            (Ok(Fetched::Stored(stored, handled)), _) => {
                send(exchange, &stored, (handled, has_conditions)).await
            }
            (Err(fault), Some(stale))
                if is_failure(&fault)
                    && !exchange.reply.has_begun()
                    && stale.may_be_stale(self.allowed_on_error(&stale)) =>
            {
                Counts::add(&self.store.counts.stale);
                send(exchange, &stale, (Handled::StaleOnError, has_conditions)).await
            }
            (Err(fault), _) => Err(fault),
        }
    }

    /// Asks the origin and stores its reply, if it may be stored.
    async fn fetch(
        &self,
        exchange: &mut Exchange,
        lead: Lead,
        stale: Option<&Arc<Stored>>,
        Asking { circumstances, has_conditions, is_silent }: Asking,
    ) -> Result<Fetched, Fault> {
        let on_error = stale.is_some_and(|stale| stale.may_be_stale(self.allowed_on_error(stale)));
        let recording = Rc::new(Recording::new(
            &self.settings,
            circumstances,
            has_conditions,
            (stale.cloned(), on_error),
            (lead, self.settings.max_size.min(self.store.most())),
        ));
        exchange.request.cache = Some("miss");
        let clients = key::set_validators(&mut exchange.request, stale.map(|stale| &**stale));
        exchange.reply.record(recording.clone(), is_silent);
        let outcome = self.origin.serve(exchange).await;
        exchange.request.head.fields = clients;
        let captured = exchange.reply.take_captured();
        // If the client has left, another request may get a reply that is of use to all. Other
        // faults of clients, such as 403, are answers.
        let is_aborted = |fault: &Fault| {
            fault.side == Side::Client && matches!(fault.status, 408 | 499) && !fault.is_declined()
        };
        if !outcome.as_ref().is_err_and(is_aborted) {
            recording.note_answer();
        }
        outcome?;
        let Some((captured, verdict)) = captured.zip(recording.verdict()) else {
            return Ok(Fetched::Sent);
        };
        let lead = recording.take_lead();
        let counts = &self.store.counts;
        match verdict {
            Verdict::Confirmed => {
                let stale = stale.expect("only a stored reply is confirmed");
                let lines = stale.lines_after(&captured.lines);
                let (confirmed, refusal) = recording.confirmed(stale, lines, &exchange.request);
                Counts::add(&counts.confirmed);
                let Some(refusal) = refusal else {
                    let stored = store(lead, confirmed, Some(stale));
                    return Ok(Fetched::Stored(stored, Handled::Confirmed));
                };
                if let Some(lead) = lead {
                    // The confirmed reply is for this client only, so other requests must ask the
                    // origin themselves, and do not wait for this request.
                    lead.let_others_pass();
                    if refusal.is_of_request() {
                        lead.pass(recording::unstorable(stale.status, refusal));
                    } else {
                        lead.remove(stale);
                    }
                }
                Ok(Fetched::Stored(Arc::new(confirmed), Handled::ConfirmedForOne))
            }
            Verdict::Failed => {
                let stale = stale.expect("only a stored reply replaces a failure");
                Counts::add(&counts.stale);
                Ok(Fetched::Stored(stale.clone(), Handled::StaleOnError))
            }
            Verdict::Refused => {
                Counts::add(&counts.misses);
                Ok(Fetched::Sent)
            }
            Verdict::Stores => {
                Counts::add(&counts.misses);
                let spill = recording.take_spill().filter(|_| captured.is_spilled);
                if captured.body.is_none() && spill.is_none() {
                    return Ok(Fetched::Sent);
                }
                let mut lines = captured.lines;
                recording::complete(&mut lines, &self.thread);
                let body = captured.body.unwrap_or_default();
                let stored = recording.stored(captured.status, &lines, &exchange.request, body);
                if let Some(spill) = spill {
                    if let Some(lead) = lead {
                        lead.store_large(spill, &stored, stale);
                    }
                    return Ok(Fetched::Sent);
                }
                let stored = store(lead, stored, stale);
                if captured.is_withheld {
                    Ok(Fetched::Stored(stored, Handled::Fetched))
                } else {
                    Ok(Fetched::Sent)
                }
            }
        }
    }

    /// Starts a task that asks the origin for a new reply, while clients get the stale reply. Does
    /// nothing if the method is not GET, or if another request asks the origin for this reply.
    fn refresh(
        self: &Rc<Self>,
        exchange: &Exchange,
        key: &Key,
        (stale, names_user): (&Arc<Stored>, bool),
    ) {
        if exchange.request.method() != b"GET" {
            return;
        }
        let variant = self.store.variant(key, &exchange.request);
        let seeking = Seeking { names_user, variant, is_apart: false };
        let Role::Leads(lead) = self.store.role(key, seeking) else { return };
        let mut request = exchange.request.clone();
        // The new reply is for all clients, so this client's conditions and ranges do not apply.
        key::remove_conditions(&mut request);
        let circumstances = self.circumstances(&request, CacheFields::of(&request));
        let asking = Asking { circumstances, has_conditions: false, is_silent: true };
        let mut exchange = exchange.aside(request);
        let (parts, stale) = (self.clone(), stale.clone());
        tokio::task::spawn_local(async move {
            // A failure leaves the stale reply, and the next request tries again.
            let _ = parts.fetch(&mut exchange, lead, Some(&stale), asking).await;
            exchange.detach();
        });
    }

    /// Returns the properties of the request that decide if its reply may be stored, and if the
    /// client may get a stored reply.
    fn circumstances(&self, request: &Request, fields: CacheFields) -> Circumstances {
        let has_certificate = !request.certificate_subject().is_empty();
        let cookies = &self.settings.private_cookies;
        Circumstances {
            is_authorized: self.names_users
                || fields.has_authorization
                || has_certificate
                || !request.user.is_empty(),
            is_personal: fields.has_cookies && is_personal(request, cookies),
            stores_cookies: self.settings.set_cookie,
        }
    }

    fn is_only_if_cached(&self, request: &Request) -> bool {
        let value = request.joined_field("Cache-Control");
        !value.is_empty()
            && CacheControl::parse([&value[..]]).is_some_and(|control| control.only_if_cached)
    }

    /// Returns the number of seconds after the lifetime of `stored` during which clients may get
    /// `stored` while Forebay fetches a new reply.
    fn allowed_while(&self, stored: &Stored) -> u64 {
        let own = self.settings.stale_while_revalidate.as_secs();
        stored.control.stale_while_revalidate.unwrap_or(own)
    }

    /// Returns the number of seconds after the lifetime of `stored` during which clients may get
    /// `stored` if the origin fails.
    fn allowed_on_error(&self, stored: &Stored) -> u64 {
        let own = self.settings.stale_if_error.as_secs();
        stored.control.stale_if_error.unwrap_or(own)
    }

    /// Answers with a fresh stored reply from memory. Returns false without an answer if there is
    /// no such reply, or if the request has conditions or asks for a part.
    fn answer_now(&self, exchange: &mut Exchange) -> bool {
        let request = &exchange.request;
        let fields = CacheFields::of(request);
        let is_simple =
            !fields.has_conditions && matches!(self.key.use_of(request, fields), Use::Lookup);
        if !is_simple || exchange.reply.stream().asks_for_tunnel() {
            return false;
        }
        let mut key = self.scratch.borrow_mut();
        key.clear();
        self.key.append(request, &mut key);
        let circumstances = self.circumstances(request, fields);
        let Some(resource) = self.store.resource(&key) else { return false };
        let stored = resource.find(request, |stored| may_use(stored, circumstances));
        let Some((stored, ages)) = stored.and_then(|stored| Some((stored, stored.fresh_ages()?)))
        else {
            return false;
        };
        let is_answered = send_now(&mut exchange.reply, stored, ages);
        if is_answered {
            Counts::add(&self.store.counts.hits);
            self.store.note_hit(stored, || self.key.of(&exchange.request));
            exchange.request.cache = Some(Handled::Hit.name());
        }
        is_answered
    }
}

/// Returns true if a request with these properties may get the reply `stored`.
fn may_use(stored: &Stored, circumstances: Circumstances) -> bool {
    (!circumstances.is_authorized || stored.is_for_users())
        && (!circumstances.is_personal || stored.freshness.is_explicit)
}

/// Returns the reply in an `Arc`, after storing it with `lead`. If `lead` is `None`, the reply
/// cannot be stored, for example because its body is too large.
fn store(lead: Option<Lead>, stored: Stored, replaced: Option<&Arc<Stored>>) -> Arc<Stored> {
    let stored = Arc::new(stored);
    if let Some(lead) = lead {
        lead.store(&stored, replaced);
    }
    stored
}

/// Returns true if the request fails with status 5xx, and the client did not cause the fault. The
/// fault may come from the origin or from Forebay itself. A request that the origin declines has
/// not failed.
fn is_failure(fault: &Fault) -> bool {
    fault.side != Side::Client && fault.status >= 500 && !fault.is_declined()
}

impl Origin for CachedOrigin {
    fn wrapped(&self) -> Option<&dyn Origin> {
        Some(&*self.parts.origin)
    }

    fn serve_now(&self, exchange: &mut Exchange) -> bool {
        self.parts.answer_now(exchange)
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || self.parts.answer(exchange))
    }
}
