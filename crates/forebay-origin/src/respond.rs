//! Replies that need no backend: fixed ones and redirections.

use forebay_conf::{Redirect, Respond};
use forebay_engine::{Exchange, Length, Origin, Serving};

/// A fixed reply.
pub struct FixedReply(pub Respond);

impl Origin for FixedReply {
    fn takes_body(&self) -> bool {
        false
    }

    fn ends_with_client(&self) -> bool {
        false
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        let Respond { status, body, content_type } = &self.0;
        Box::pin(async move {
            if matches!(status, 204 | 304) {
                exchange.reply.begin(*status, b"");
                exchange.reply.end_head(Length::None, false);
                return exchange.reply.finish().await;
            }
            exchange.reply.respond(*status, content_type, body.as_bytes()).await
        })
    }
}

/// A redirection.
pub struct Redirection(pub Redirect);

impl Origin for Redirection {
    fn takes_body(&self) -> bool {
        false
    }

    fn ends_with_client(&self) -> bool {
        false
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> Serving<'a> {
        Box::pin(async move {
            let reply = &mut exchange.reply;
            reply.begin(self.0.status, b"");
            reply.field("Location", self.0.to.as_bytes());
            reply.end_head(Length::Known(0), false);
            reply.finish().await
        })
    }
}
