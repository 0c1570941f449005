//! Upgrades (RFC 9110 section 7.8): requests that may turn their connection into a tunnel.
//!
//! Upgrades to another HTTP version or to TLS are ignored, because requests in such a tunnel would
//! bypass the routes. The RFC permits this.

use forebay_net::head::Request;
use forebay_wire::http1::{Field, KnownField, encode};

/// Returns true if the request asks for an upgrade that Forebay forwards. Returns false if one of
/// the requested protocols is HTTP or TLS, because requests in such a tunnel would bypass the
/// routes.
pub fn is_requested(request: &Request) -> bool {
    request.head.upgrade
        && protocols(&request.head.fields, &request.bytes).next().is_some()
        && !protocols(&request.head.fields, &request.bytes).any(is_http_or_tls)
}

/// Appends `Connection: upgrade`, and the `Upgrade` fields of `fields`. Appends nothing if `fields`
/// has no `Upgrade`.
pub fn append_fields(out: &mut Vec<u8>, fields: &[Field], bytes: &[u8]) {
    if !fields.iter().any(|field| field.known == KnownField::Upgrade) {
        return;
    }
    out.extend_from_slice(b"Connection: upgrade\r\n");
    for field in fields.iter().filter(|field| field.known == KnownField::Upgrade) {
        encode::field(out, "Upgrade", field.value.of(bytes));
    }
}

/// Returns true if the reply names at least one protocol, and only protocols that the client
/// requested.
pub fn is_answered(
    request: &[Field],
    request_bytes: &[u8],
    reply: &[Field],
    reply_bytes: &[u8],
) -> bool {
    let mut chosen = protocols(reply, reply_bytes).peekable();
    chosen.peek().is_some()
        && chosen.all(|protocol| {
            let mut wanted = protocols(request, request_bytes);
            wanted.any(|wanted| name_of(wanted).eq_ignore_ascii_case(name_of(protocol)))
        })
}

/// Returns the protocols in `Upgrade`, in order.
pub fn protocols<'a>(fields: &'a [Field], bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let upgrades = fields.iter().filter(|field| field.known == KnownField::Upgrade);
    let elements = upgrades.flat_map(|field| field.value.of(bytes).split(|&b| b == b','));
    elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// Returns the name in `name/version`.
fn name_of(protocol: &[u8]) -> &[u8] {
    protocol.split(|&b| b == b'/').next().unwrap_or_default()
}

fn is_http_or_tls(protocol: &[u8]) -> bool {
    let name = name_of(protocol);
    [&b"h2c"[..], b"h2", b"h3", b"http", b"https", b"tls", b"ssl"]
        .iter()
        .any(|known| known.eq_ignore_ascii_case(name))
}
