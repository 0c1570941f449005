//! Replies that need no backend: fixed replies and redirects.

use forebay_conf::{Placeholder, Redirect, Respond};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_net::template::Escape;
use forebay_server::decide::no_route;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::reply::Length;
use forebay_server::rewrite::append_query;
use forebay_wire::http1::encode;

/// Status of a route that closes the connection without a reply, as in nginx.
const CLOSE: u16 = 444;

/// A fixed reply.
pub struct FixedReply {
    respond: Respond,
    content_type: Vec<u8>,
}

impl FixedReply {
    /// Creates the reply from `respond`.
    pub fn new(respond: Respond) -> Self {
        let mut content_type = Vec::new();
        encode::field(&mut content_type, "Content-Type", respond.content_type.as_bytes());
        Self { respond, content_type }
    }

    /// Returns true if the reply becomes an error reply. A gRPC client then gets a gRPC status.
    /// Another client gets the error page for the status, or Forebay's short page, if the route has
    /// no text.
    fn is_error(&self, exchange: &Exchange) -> bool {
        self.respond.status >= 400 && (exchange.reply.is_to_grpc() || self.respond.body.is_empty())
    }
}

impl Origin for FixedReply {
    fn takes_body(&self) -> bool {
        false
    }

    fn ends_with_client(&self) -> bool {
        false
    }

    fn serve_now(&self, exchange: &mut Exchange) -> bool {
        let Respond { status, body, .. } = &self.respond;
        !matches!(*status, 204 | 304 | CLOSE)
            && !self.is_error(exchange)
            && exchange.reply.buffer_reply(*status, &self.content_type, body.as_bytes())
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        let Respond { status, body, content_type } = &self.respond;
        OriginFuture::new(&exchange.blocks(), || async move {
            if *status == CLOSE {
                return Err(Fault::client(CLOSE, "the route closes the connection"));
            }
            if matches!(status, 204 | 304) {
                exchange.reply.begin(*status, b"");
                exchange.reply.end_head(Length::None, false);
                return exchange.reply.finish().await;
            }
            if self.is_error(exchange) {
                return exchange.respond_error_with(*status, b"").await;
            }
            exchange.reply.respond(*status, content_type, body.as_bytes()).await
        })
    }
}

/// A redirect.
pub struct Redirection(pub Redirect);

impl Origin for Redirection {
    fn takes_body(&self) -> bool {
        false
    }

    fn ends_with_client(&self) -> bool {
        false
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || async move {
            let reply = &mut exchange.reply;
            let location = location(&self.0, &exchange.request)?;
            reply.begin(self.0.status, b"");
            reply.field("Location", &location);
            reply.end_head(Length::Known(0), false);
            reply.finish().await
        })
    }
}

/// Origin of a route that only rewrites the path. It gets no requests, because the walk over the
/// routes follows the rewrite.
pub struct Rewriting;

impl Origin for Rewriting {
    fn takes_body(&self) -> bool {
        false
    }

    fn may_fall_back(&self) -> bool {
        true
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || async { Err(no_route()) })
    }
}

/// Returns the target of the redirect for `request`. Parts from the client are percent-encoded, so
/// that they can end neither the field nor the path. Fails if the target needs the requested host,
/// and the request names none.
pub fn location(redirect: &Redirect, request: &Request) -> Result<Vec<u8>, Fault> {
    let is_host = |value: &_| matches!(value, Placeholder::Host | Placeholder::BareHost);
    let uses_host = redirect.to.uses(is_host);
    if uses_host && request.plain_host().is_none() {
        return Err(Fault::client(
            400,
            "the redirect needs the requested host, and the request names none",
        ));
    }
    let mut location = Vec::new();
    request.fill(&redirect.to, Escape::Target, &mut location);
    if redirect.keep_query {
        append_query(&mut location, request);
    }
    // A browser would read `//host` as another host.
    let slashes = location.iter().take_while(|&&byte| byte == b'/').count();
    location.drain(..slashes.saturating_sub(1));
    Ok(location)
}
