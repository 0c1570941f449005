//! Header fields that a proxy adds, changes and removes.

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::reply::{Length, Reply};
use forebay_wire::fields::{FieldRef, of_lines};
use forebay_wire::http1::{
    Claims, Field, KnownField, ResponseFraming, ResponseHead, encode, is_disguised,
};

/// Appends the end-to-end fields of `request` and those that identify the client. Drops the
/// client's own `X-Forwarded-*` fields, which can be forged, and names that a backend may confuse
/// with them (`X_Forwarded_For`). `host` replaces the client's host.
pub fn append_request_fields(out: &mut Vec<u8>, request: &Request, host: Option<&str>) {
    let bytes = &request.bytes;
    let authority = request.head.authority.map(|span| span.of(bytes));
    out.extend_from_slice(b"Host: ");
    out.extend_from_slice(host.map(str::as_bytes).or(authority).unwrap_or_default());
    out.extend_from_slice(b"\r\n");
    let (claims, fields) = (request.claims(), &request.head.fields);
    encode::forward_request_fields(out, &request.head, bytes, |field| {
        is_replaced(field) || claims.are_forged(field, bytes) || is_disguised(field, fields, bytes)
    });
    append_chain(out, request);
    out.extend_from_slice(request.subject_field.as_deref().unwrap_or_default());
    encode::field(out, "X-Forwarded-Proto", if request.https { b"https" } else { b"http" });
    let is_trusted = claims == Claims::XForwarded;
    let claimed = request.head.value(KnownField::XForwardedHost, bytes).filter(|_| is_trusted);
    if let Some(host) = claimed.or(authority) {
        encode::field(out, "X-Forwarded-Host", host);
    }
}

/// Appends the addresses that the request came through: those from trusted proxies, then the peer.
fn append_chain(out: &mut Vec<u8>, request: &Request) {
    out.extend_from_slice(b"X-Forwarded-For: ");
    let start = out.len();
    if request.used_forwarded {
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
        // A peer without an address would stop a backend's search for the client.
        None if out.len() > start => out.truncate(out.len() - b", ".len()),
        None => out.extend_from_slice(UNKNOWN),
    }
    out.extend_from_slice(b"\r\n");
}

/// Name of an unknown client in RFC 7239. Without it, backends would use Forebay's address as the
/// client's.
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

/// Returns the trailers of a request that the backend gets; `lines` are all of them. None if
/// `Connection` names fields, because the trailers could contain such fields.
pub fn request_trailers<'a>(
    request: &'a Request,
    lines: &'a [u8],
) -> impl Iterator<Item = FieldRef<'a>> {
    let lines = if request.head.connection_names_fields { b"" } else { lines };
    of_lines(lines).filter(|field| request.may_pass_trailer(field.name))
}

/// Passes on an interim reply whose `head` was parsed from `bytes`.
pub async fn inform(reply: &mut Reply, head: &ResponseHead, bytes: &[u8]) -> Result<(), Fault> {
    let mut lines = Vec::with_capacity(head.len);
    encode::forward_response_fields(&mut lines, head, bytes, |field| {
        field.known == KnownField::ContentLength
    });
    reply.inform(head.status, head.reason.of(bytes), &lines).await
}

/// Ends the head of a reply after its fields, with the length from the backend's `head`.
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
