//! Header fields that a proxy adds, changes and removes.

use forebay_net::fault::Fault;
use forebay_net::head::{NamedBy, Request, moving_method};
use forebay_server::reply::{Length, Reply, is_live_type};
use forebay_wire::cgi::requested_port;
use forebay_wire::fields::{FieldRef, of_lines};
use forebay_wire::http1::{
    Claims, Disguises, Field, KnownField, ResponseFraming, ResponseHead, encode,
};

/// Changes to a request for a backend.
#[derive(Clone, Copy, Default)]
pub struct Changes<'a> {
    /// Replaces the client's host.
    pub host: Option<&'a str>,
    /// True if the fields that change with `strip_prefix` are skipped, because the caller appends
    /// them.
    pub skips_prefix: bool,
}

/// Appends the end-to-end fields of `request`, and the fields that identify the client. Drops the
/// client's own `X-Forwarded-*` fields, which can be forged. Also drops fields such as
/// `X_Forwarded_For`, which a backend may read as `X-Forwarded-For`.
pub fn append_request_fields(out: &mut Vec<u8>, request: &Request, changes: Changes<'_>) {
    let Changes { host, skips_prefix } = changes;
    let bytes = &request.bytes;
    let authority = request.head.authority.map(|span| span.of(bytes));
    out.extend_from_slice(b"Host: ");
    out.extend_from_slice(host.map(str::as_bytes).or(authority).unwrap_or_default());
    out.extend_from_slice(b"\r\n");
    let claims = request.claims();
    let disguises = Disguises::of(&request.head, bytes);
    encode::forward_request_fields(out, &request.head, bytes, |field| {
        is_replaced(field)
            || claims.are_forged(field, &request.head, bytes)
            || disguises.as_ref().is_some_and(|disguises| disguises.have(field))
            || depends_on_backend(field, request, skips_prefix)
    });
    if !request.is_changed(b"x-forwarded-for") {
        append_chain(out, request);
    }
    out.extend_from_slice(request.subject_field.as_deref().unwrap_or_default());
    if !request.is_changed(b"x-forwarded-proto") {
        encode::field(out, "X-Forwarded-Proto", if request.https { b"https" } else { b"http" });
    }
    let is_trusted = claims == Claims::XForwarded;
    let claimed_host = request.head.value(KnownField::XForwardedHost, bytes).filter(|_| is_trusted);
    if let Some(requested) = claimed_host.or(authority) {
        if !request.is_changed(b"x-forwarded-host") {
            encode::field(out, "X-Forwarded-Host", requested);
        }
        let is_claimed = is_trusted && claimed_value(request, b"x-forwarded-port").is_some();
        if !is_claimed && !request.is_changed(b"x-forwarded-port") {
            let port = requested_port(requested, request.https);
            encode::field_number(out, "X-Forwarded-Port", port.into());
        }
    }
}

/// Name of the field with the prefix that proxies have removed from the path.
pub const PREFIX: &[u8] = b"x-forwarded-prefix";
/// Name of the field with the target of WebDAV's MOVE and COPY.
pub const DESTINATION: &[u8] = b"destination";

/// Returns true if `http::prefix` writes the field instead: the `Destination` of MOVE and COPY, and
/// with `strip_prefix` also `X-Forwarded-Prefix`.
fn depends_on_backend(field: &Field, request: &Request, skips_prefix: bool) -> bool {
    let name = field.name.of(&request.bytes);
    skips_prefix && name.eq_ignore_ascii_case(PREFIX) && !request.is_changed(PREFIX)
        || name.eq_ignore_ascii_case(DESTINATION) && has_destination(request)
}

/// Returns true if the request's method uses the field `Destination`: only MOVE and COPY do.
pub fn has_destination(request: &Request) -> bool {
    moving_method(request).is_some()
}

/// Returns the value of the first field with this name, or `None` if there is no such field.
pub fn claimed_value<'a>(request: &'a Request, name: &[u8]) -> Option<&'a [u8]> {
    let is_it = |field: &&Field| field.name.of(&request.bytes).eq_ignore_ascii_case(name);
    request.head.fields.iter().find(is_it).map(|field| field.value.of(&request.bytes))
}

/// Appends `X-Forwarded-For`: the addresses that trusted proxies report, then the peer's address.
fn append_chain(out: &mut Vec<u8>, request: &Request) {
    out.extend_from_slice(b"X-Forwarded-For: ");
    let start = out.len();
    if request.named_by != NamedBy::XForwarded {
        if let Some(client) = request.client.ip().filter(|_| request.is_client_named()) {
            encode::address(out, client);
            out.extend_from_slice(b", ");
        }
    } else if request.is_peer_trusted {
        let chain = request.head.fields.iter().filter(|f| f.known == KnownField::XForwardedFor);
        for field in chain {
            out.extend_from_slice(field.value.of(&request.bytes));
            out.extend_from_slice(b", ");
        }
    }
    match request.peer.ip() {
        Some(peer) => encode::address(out, peer),
        // A peer on a Unix socket has no address. Do not append `unknown` to the client's address,
        // because backends read the list from its end.
        None if out.len() > start => out.truncate(out.len() - b", ".len()),
        None => out.extend_from_slice(UNKNOWN),
    }
    out.extend_from_slice(b"\r\n");
}

/// Name of an unknown client in RFC 7239. Without this name, backends would use Forebay's address
/// as the client's address.
const UNKNOWN: &[u8] = b"unknown";

fn is_replaced(field: &Field) -> bool {
    matches!(
        field.known,
        KnownField::Host
            | KnownField::ContentLength
            | KnownField::Expect
            | KnownField::Forwarded
            | KnownField::Proxy
            | KnownField::XForwardedFor
            | KnownField::XForwardedHost
            | KnownField::XForwardedProto
            | KnownField::XRealIp
    )
}

/// Returns the trailers in `lines` that the backend may get. If the request's `Connection` names
/// fields, returns no trailers, because a trailer could have one of these names.
pub fn request_trailers<'a>(
    request: &'a Request,
    lines: &'a [u8],
) -> impl Iterator<Item = FieldRef<'a>> {
    let lines = if request.head.connection_names_fields { b"" } else { lines };
    of_lines(lines).filter(|field| request.may_pass_trailer(field.name))
}

/// Passes an interim reply, whose `head` was parsed from `bytes`, to the client.
pub async fn inform(reply: &mut Reply, head: &ResponseHead, bytes: &[u8]) -> Result<(), Fault> {
    let mut lines = Vec::with_capacity(head.len);
    encode::forward_response_fields(&mut lines, head, bytes, |field| {
        field.known == KnownField::ContentLength
    });
    reply.inform(head.status, head.reason.of(bytes), &lines).await
}

/// Notes if the reply with this head is an event stream or gRPC.
pub fn note_live(reply: &mut Reply, fields: &[Field], bytes: &[u8]) {
    let is_type = |field: &&Field| field.known == KnownField::ContentType;
    if fields.iter().find(is_type).is_some_and(|field| is_live_type(field.value.of(bytes))) {
        reply.set_live();
    }
}

/// Ends the head of `reply` after the last field. The length of the body comes from the backend's
/// `head`.
pub fn end_head(reply: &mut Reply, head: &ResponseHead) {
    let length = match (head.framing, head.content_length) {
        (ResponseFraming::Length(length), _) => Length::Known(length),
        (ResponseFraming::Chunked | ResponseFraming::Close, _) => Length::Unknown,
        (ResponseFraming::None, Some(length)) if !matches!(head.status, 204 | 304) => {
            Length::Known(length)
        }
        (ResponseFraming::None, _) => Length::None,
    };
    let has_date = head.fields.iter().any(|field| field.known == KnownField::Date);
    reply.end_head(length, has_date);
}
