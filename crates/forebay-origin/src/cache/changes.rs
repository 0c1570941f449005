//! Removal of the replies that an unsafe request outdates (RFC 9111 section 4.4).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_conf as conf;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::reply::{Keep, Length, Recorder};
use forebay_wire::caching::is_safe;
use forebay_wire::fields::of_lines;

use super::forwarded::Forwarded;
use super::key::KeyOf;
use super::resource_key::ChangedKeys;
use super::store::Store;

/// Fields of a reply that name further changed resources. With `X-Accel-Redirect`, the client gets
/// the reply for the path in this field, so a stored reply for that path must be removed first.
const REFERENCES: [&[u8]; 3] = [b"location", b"content-location", b"x-accel-redirect"];

/// The stored replies of all routes of a site.
pub struct SiteReplies {
    store: Arc<Store>,
    keys: Vec<KeyOf>,
}

impl SiteReplies {
    /// Creates the value from the zone and the settings of each route that stores replies.
    pub fn new<'a>(
        store: &Arc<Store>,
        routes: impl Iterator<Item = (String, &'a conf::Cache)>,
    ) -> Rc<Self> {
        let keys = routes.map(|(zone, settings)| KeyOf::new(&zone, &settings.key)).collect();
        Rc::new(Self { store: store.clone(), keys })
    }

    /// Returns true if no route of the site stores replies.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Lets `origin` answer a request that may change a resource. If the reply has a status from
    /// 200 to 399, removes the stored replies for this resource. If `is_cached` is true, the route
    /// stores replies, and `Cache-Status` says that this request bypassed them.
    pub(super) async fn change(
        self: &Rc<Self>,
        origin: &dyn Origin,
        exchange: &mut Exchange,
        is_cached: bool,
    ) -> Result<(), Fault> {
        let mut request = exchange.request.clone();
        // The body, which may follow the head, is not part of a key.
        request.bytes.truncate(request.head.len);
        request.bytes.shrink_to_fit();
        let (replies, changed) = (self.clone(), RefCell::default());
        let invalidation = Rc::new(Invalidation { replies, request, changed, is_cached });
        exchange.reply.record(invalidation.clone(), false);
        let outcome = origin.serve(exchange).await;
        exchange.reply.take_captured();
        // The application may change the resource while it writes the body. Dropping
        // `invalidation` removes replies that were stored in the meantime.
        drop(invalidation);
        outcome
    }
}

/// Recorder of the reply to a request that may change a resource. The recorder stores nothing. If
/// the status is 200 to 399, it removes the replies for the resource before the client gets the
/// head of the reply. After the head, the client may ask for the resource again, or leave.
struct Invalidation {
    replies: Rc<SiteReplies>,
    request: Request,
    /// The resources that have changed.
    changed: RefCell<ChangedKeys>,
    is_cached: bool,
}

impl Drop for Invalidation {
    /// Removes the replies once more, also if the client leaves before the end of the reply.
    fn drop(&mut self) {
        self.remove();
    }
}

impl Invalidation {
    /// Removes the replies for the request's target, and for the URLs in `targets`.
    fn change(&self, targets: &[&[u8]]) {
        let mut changed = ChangedKeys::default();
        for key in &self.replies.keys {
            key.add_changed(&self.request, targets, &mut changed);
        }
        *self.changed.borrow_mut() = changed;
        self.remove();
    }

    fn remove(&self) {
        let changed = self.changed.borrow();
        if !changed.keys.is_empty() {
            self.replies.store.invalidate(&changed);
        }
    }
}

impl Recorder for Invalidation {
    fn decide(&self, status: u16, lines: &[u8], _length: Length) -> Keep {
        if matches!(status, 200..=399) {
            let is_reference =
                |name: &[u8]| REFERENCES.iter().any(|other| name.eq_ignore_ascii_case(other));
            let references = of_lines(lines).filter(|field| is_reference(field.name));
            self.change(&references.map(|field| field.value).collect::<Vec<_>>());
        }
        Keep::No
    }

    fn append_fields(&self, lines: &mut Vec<u8>) {
        if self.is_cached {
            Forwarded::Method.append_fields(lines);
        }
    }

    fn redirected(&self, target: &[u8]) {
        self.change(&[target]);
    }

    fn reserve(&self, _bytes: usize) -> bool {
        false
    }
}

/// Wraps the origin of a route without a cache, on a site whose other routes have one.
pub struct ChangingOrigin {
    origin: Box<dyn Origin>,
    replies: Rc<SiteReplies>,
}

impl ChangingOrigin {
    /// Creates an origin that removes outdated replies from `replies`.
    pub fn new(origin: Box<dyn Origin>, replies: Rc<SiteReplies>) -> Self {
        Self { origin, replies }
    }
}

impl Origin for ChangingOrigin {
    fn wrapped(&self) -> Option<&dyn Origin> {
        Some(&*self.origin)
    }

    fn serve_now(&self, exchange: &mut Exchange) -> bool {
        let changes = !is_safe(exchange.request.method());
        !changes && self.origin.serve_now(exchange)
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        let changes = !is_safe(exchange.request.method());
        if !changes || exchange.reply.stream().asks_for_tunnel() {
            return self.origin.serve(exchange);
        }
        let (replies, origin) = (&self.replies, &*self.origin);
        OriginFuture::new(&exchange.blocks(), || replies.change(origin, exchange, false))
    }
}
