//! Redirects of many old addresses, from a file.

use forebay_conf::{Moved, MovedPages};
use forebay_net::fault::{Decline, Fault};
use forebay_net::head::Request;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::reply::Length;

use forebay_net::template::append_escaped;

/// Redirects of old addresses. Later routes answer other paths.
pub struct MovedRedirects(pub MovedPages);

impl Origin for MovedRedirects {
    fn takes_body(&self) -> bool {
        false
    }

    fn ends_with_client(&self) -> bool {
        false
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        OriginFuture::new(&exchange.blocks(), || async move {
            let (moved, location) = new_address(&self.0, &exchange.request)?;
            let reply = &mut exchange.reply;
            reply.begin(moved.status, b"");
            reply.field("Location", &location);
            reply.end_head(Length::Known(0), false);
            reply.finish().await
        })
    }
}

/// Returns the entry for the request, and the `Location` of its reply. Declines the request if no
/// entry has its address.
pub fn new_address<'p>(
    pages: &'p MovedPages,
    request: &Request,
) -> Result<(&'p Moved, Vec<u8>), Fault> {
    let query = request.target().splitn(2, |&byte| byte == b'?').nth(1).unwrap_or_default();
    let Some(moved) = pages.find(&request.path, query) else {
        return Err(Fault::client(404, "not an old address").decline(Decline::Always));
    };
    let mut location = moved.to.clone().into_bytes();
    if moved.keeps_query && !query.is_empty() {
        location.push(b'?');
        append_escaped(query, &mut location);
    }
    Ok((moved, location))
}
