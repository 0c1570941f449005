//! Removal of the replies that an unsafe request outdates (RFC 9111 section 4.4).

use std::rc::Rc;
use std::sync::Arc;

use forebay_conf as conf;
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};

use super::key::{KeyOf, Use};
use super::recording::Invalidation;
use super::store::{Key, Store};

/// The stored replies of all routes of a site.
pub struct SiteReplies {
    store: Arc<Store>,
    keys: Vec<KeyOf>,
}

impl SiteReplies {
    /// Creates a value for the routes with these zones and settings.
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

    /// Lets `origin` answer a request that may change a resource, and then removes the replies for
    /// this resource.
    pub(super) async fn change(
        &self,
        origin: &dyn Origin,
        exchange: &mut Exchange,
    ) -> Result<(), Fault> {
        let recorder = Rc::new(Invalidation::default());
        exchange.reply.record(recorder.clone(), false);
        let outcome = origin.serve(exchange).await;
        exchange.reply.take_captured();
        // Remove outdated replies even if the client has disconnected before the end of the reply.
        for key in self.changed(&exchange.request, &recorder) {
            self.store.invalidate(&key);
        }
        outcome
    }

    fn changed(&self, request: &Request, recorder: &Invalidation) -> Vec<Key> {
        self.keys.iter().flat_map(|key| key.changed(request, recorder)).collect()
    }
}

/// An origin that stores nothing, on a site with stored replies of other routes.
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
    fn takes_body(&self) -> bool {
        self.origin.takes_body()
    }

    fn may_fall_back(&self) -> bool {
        self.origin.may_fall_back()
    }

    fn ends_with_client(&self) -> bool {
        self.origin.ends_with_client()
    }

    fn serve_now(&self, exchange: &mut Exchange) -> bool {
        let changes = matches!(Use::of(&exchange.request), Use::Invalidate);
        !changes && self.origin.serve_now(exchange)
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        let changes = matches!(Use::of(&exchange.request), Use::Invalidate);
        if !changes || exchange.reply.stream().asks_for_tunnel() {
            return self.origin.serve(exchange);
        }
        let (replies, origin) = (&self.replies, &*self.origin);
        OriginFuture::new(&exchange.blocks(), || replies.change(origin, exchange))
    }
}
