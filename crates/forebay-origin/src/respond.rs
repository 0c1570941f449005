//! Replies that need no backend: fixed replies and redirects.

use forebay_conf::{Redirect, RedirectPart, Respond};
use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::exchange::{Exchange, Origin, OriginFuture};
use forebay_server::reply::Length;
use forebay_wire::http1::{encode, host_of};
use forebay_wire::path;

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

    /// Returns true if a gRPC client should get an error, which must have the form of a gRPC
    /// status.
    fn is_grpc_error(&self, exchange: &Exchange) -> bool {
        self.respond.status >= 400 && exchange.reply.is_to_grpc()
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
        !matches!(status, 204 | 304)
            && !self.is_grpc_error(exchange)
            && exchange.reply.buffer_reply(*status, &self.content_type, body.as_bytes())
    }

    fn serve<'a>(&'a self, exchange: &'a mut Exchange) -> OriginFuture<'a> {
        let Respond { status, body, content_type } = &self.respond;
        OriginFuture::new(&exchange.blocks(), || async move {
            if matches!(status, 204 | 304) {
                exchange.reply.begin(*status, b"");
                exchange.reply.end_head(Length::None, false);
                return exchange.reply.finish().await;
            }
            if self.is_grpc_error(exchange) {
                return exchange.reply.respond_error(*status).await;
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
            let location = location(&self.0.to, &exchange.request)?;
            reply.begin(self.0.status, b"");
            reply.field("Location", &location);
            reply.end_head(Length::Known(0), false);
            reply.finish().await
        })
    }
}

/// Returns the target of the redirect for `request`. The client's part contains no control byte and
/// no space, because the target and host were parsed. Characters that a URL does not allow are
/// escaped.
pub fn location(parts: &[RedirectPart], request: &Request) -> Result<Vec<u8>, Fault> {
    let uri = request.target();
    let (path, query) = uri.split_at(memchr::memchr(b'?', uri).unwrap_or(uri.len()));
    let mut location = Vec::new();
    for part in parts {
        match part {
            RedirectPart::Text(text) => location.extend_from_slice(text.as_bytes()),
            RedirectPart::Path => append_escaped(path, &mut location),
            RedirectPart::Query => {
                append_escaped(query.get(1..).unwrap_or_default(), &mut location)
            }
            RedirectPart::Uri => append_escaped(uri, &mut location),
            RedirectPart::Rest => {
                let taken = &request.path[..request.rest.start];
                let rest = path::strip_prefix(path, taken).unwrap_or_default();
                append_escaped(rest, &mut location);
            }
            RedirectPart::Scheme => {
                location.extend_from_slice(if request.https { b"https" } else { b"http" });
            }
            RedirectPart::Port => location.extend(request.server.port().to_string().bytes()),
            RedirectPart::Host => location.extend_from_slice(host(request)?),
        }
    }
    // A browser would read `//host` as another host.
    let slashes = location.iter().take_while(|&&byte| byte == b'/').count();
    location.drain(..slashes.saturating_sub(1));
    Ok(location)
}

/// Returns the requested host, if a URL can contain it.
fn host(request: &Request) -> Result<&[u8], Fault> {
    let authority = request.head.authority.map(|span| span.of(&request.bytes));
    let host = host_of(authority.unwrap_or_default());
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._[:]".contains(byte);
    if host.is_empty() || !host.iter().all(is_plain) {
        return Err(Fault::client(
            400,
            "the redirect needs the requested host, and the request names none",
        ));
    }
    Ok(host)
}

pub(crate) fn append_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        if byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}
