//! QPACK, the compression of heads (RFC 9204), with only the static table.
//!
//! A peer that obeys our settings refers to no other table. Our own field sections also use only
//! the static table, so they are valid for all settings of the peer.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::Span;
use crate::fields::{FieldRef, Fields};
use crate::http1::{KnownField, has_upper_case};
use crate::http2::RequestPseudo;
use crate::http2::hpack::{
    self, Decoded, Flaw, HUFFMAN_FROM, HpackError, List, ListLimits, Literal, huffman, is_marked,
    is_name, is_secret, is_value, string,
};

/// Decodes a field section and appends its fields to `fields`.
///
/// # Errors
/// Fails if the section cannot be decoded, which ends the connection. A reference to the dynamic
/// table counts as a reference to a missing entry.
pub fn decode(
    section: &[u8],
    limits: ListLimits,
    fields: &mut Fields,
) -> Result<Decoded, HpackError> {
    let mut rest = section;
    // Read the prefix (section 4.5.1). The field section must require no entry of the dynamic
    // table. The value of the base is then irrelevant, but a negative base is invalid.
    if hpack::decode_integer(&mut rest, 8)? != 0 {
        return Err(HpackError::Index);
    }
    let is_negative = rest.first().is_some_and(|byte| byte & 0x80 != 0);
    hpack::decode_integer(&mut rest, 7)?;
    if is_negative {
        return Err(HpackError::Index);
    }
    let mut list = List::new(limits, fields);
    while let Some(&first) = rest.first() {
        match first {
            // This is an indexed field of the static table.
            0xc0.. => {
                let place = hpack::decode_integer(&mut rest, 6)?;
                let (name, value) = ENTRIES.get(place).ok_or(HpackError::Index)?;
                if list.has_room(name, value.len()) {
                    list.fields.push(name, value);
                }
            }
            // This is a literal with a name of the static table.
            0x50..=0x5f | 0x70..=0x7f => {
                let place = hpack::decode_integer(&mut rest, 4)?;
                let (name, _) = ENTRIES.get(place).ok_or(HpackError::Index)?;
                let arena = list.fields.arena();
                let start = arena.len();
                arena.extend_from_slice(name);
                literal(start, Flaw::None, &mut rest, &mut list, first & 0x20 != 0)?;
            }
            // This is a literal with its own name.
            0x20..=0x3f => {
                let arena = list.fields.arena();
                let start = arena.len();
                string(&mut rest, 3, arena)?;
                let flaw = if is_name(&arena[start..]) { Flaw::None } else { Flaw::Name };
                literal(start, flaw, &mut rest, &mut list, first & 0x10 != 0)?;
            }
            // All other patterns refer to the dynamic table.
            _ => return Err(HpackError::Index),
        }
    }
    Ok(list.finish())
}

/// Reads the value of a literal whose name starts at `start` in the buffer of the fields.
fn literal(
    start: usize,
    flaw: Flaw,
    rest: &mut &[u8],
    list: &mut List,
    sensitive: bool,
) -> Result<(), HpackError> {
    let arena = list.fields.arena();
    let middle = arena.len();
    string(rest, 7, arena)?;
    let is_flawed = flaw == Flaw::None && !is_value(&arena[middle..]);
    let flaw = if is_flawed { Flaw::Value } else { flaw };
    let end = arena.len();
    let known = KnownField::of(&arena[start..middle]);
    let has_mark = is_marked(known, &arena[start..middle]);
    let (name, value) = (Span::new(start, middle), Span::new(middle, end));
    list.push(Literal { name, value, known, flaw, has_mark }, sensitive);
    Ok(())
}

/// Appends the prefix of a field section.
pub fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends a `:status` field.
pub fn status(out: &mut Vec<u8>, status: u16) {
    let digit = |value: u16| b'0' + (value % 10) as u8;
    pair(out, b":status", &[digit(status / 100), digit(status / 10), digit(status)], false);
}

/// Appends the pseudo-header fields of a request. An empty authority is left out.
pub fn request(out: &mut Vec<u8>, pseudo: &RequestPseudo<'_>) {
    pair(out, b":method", pseudo.method, false);
    pair(out, b":scheme", pseudo.scheme, false);
    if !pseudo.authority.is_empty() {
        pair(out, b":authority", pseudo.authority, false);
    }
    pair(out, b":path", pseudo.path, false);
}

/// Appends a field and converts its name to lower case.
pub fn field(out: &mut Vec<u8>, field: FieldRef<'_>) {
    if has_upper_case(field.name) {
        let lower = field.name.to_ascii_lowercase();
        pair(out, &lower, field.value, field.sensitive);
    } else {
        pair(out, field.name, field.value, field.sensitive);
    }
}

/// Appends a field with a lower-case name.
fn pair(out: &mut Vec<u8>, name: &[u8], value: &[u8], sensitive: bool) {
    let places = places_of(name);
    if let Some(&place) = places.iter().find(|&&place| ENTRIES[usize::from(place)].1 == value) {
        return hpack::encode_integer(out, place.into(), 6, 0xc0);
    }
    let is_never_indexed = sensitive || is_secret(name, value);
    match places.first() {
        Some(&place) => {
            let pattern = if is_never_indexed { 0x70 } else { 0x50 };
            hpack::encode_integer(out, place.into(), 4, pattern);
        }
        None => append_string(out, name, 3, if is_never_indexed { 0x30 } else { 0x20 }),
    }
    append_string(out, value, 7, 0);
}

fn append_string(out: &mut Vec<u8>, text: &[u8], bits: u32, pattern: u8) {
    if text.len() >= HUFFMAN_FROM {
        let length = huffman::encoded_len(text);
        if length < text.len() {
            hpack::encode_integer(out, length, bits, pattern | 1 << bits);
            return huffman::encode(text, out);
        }
    }
    hpack::encode_integer(out, text.len(), bits, pattern);
    out.extend_from_slice(text);
}

// The static table (RFC 9204 appendix A).

/// Entries of the static table. Indices start at zero.
const ENTRIES: [(&[u8], &[u8]); 99] = [
    (b":authority", b""),
    (b":path", b"/"),
    (b"age", b"0"),
    (b"content-disposition", b""),
    (b"content-length", b"0"),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"referer", b""),
    (b"set-cookie", b""),
    (b":method", b"CONNECT"),
    (b":method", b"DELETE"),
    (b":method", b"GET"),
    (b":method", b"HEAD"),
    (b":method", b"OPTIONS"),
    (b":method", b"POST"),
    (b":method", b"PUT"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"103"),
    (b":status", b"200"),
    (b":status", b"304"),
    (b":status", b"404"),
    (b":status", b"503"),
    (b"accept", b"*/*"),
    (b"accept", b"application/dns-message"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"accept-ranges", b"bytes"),
    (b"access-control-allow-headers", b"cache-control"),
    (b"access-control-allow-headers", b"content-type"),
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"max-age=0"),
    (b"cache-control", b"max-age=2592000"),
    (b"cache-control", b"max-age=604800"),
    (b"cache-control", b"no-cache"),
    (b"cache-control", b"no-store"),
    (b"cache-control", b"public, max-age=31536000"),
    (b"content-encoding", b"br"),
    (b"content-encoding", b"gzip"),
    (b"content-type", b"application/dns-message"),
    (b"content-type", b"application/javascript"),
    (b"content-type", b"application/json"),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"content-type", b"image/gif"),
    (b"content-type", b"image/jpeg"),
    (b"content-type", b"image/png"),
    (b"content-type", b"text/css"),
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-type", b"text/plain"),
    (b"content-type", b"text/plain;charset=utf-8"),
    (b"range", b"bytes=0-"),
    (b"strict-transport-security", b"max-age=31536000"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains"),
    (b"strict-transport-security", b"max-age=31536000; includesubdomains; preload"),
    (b"vary", b"accept-encoding"),
    (b"vary", b"origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-xss-protection", b"1; mode=block"),
    (b":status", b"100"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"302"),
    (b":status", b"400"),
    (b":status", b"403"),
    (b":status", b"421"),
    (b":status", b"425"),
    (b":status", b"500"),
    (b"accept-language", b""),
    (b"access-control-allow-credentials", b"FALSE"),
    (b"access-control-allow-credentials", b"TRUE"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"get"),
    (b"access-control-allow-methods", b"get, post, options"),
    (b"access-control-allow-methods", b"options"),
    (b"access-control-expose-headers", b"content-length"),
    (b"access-control-request-headers", b"content-type"),
    (b"access-control-request-method", b"get"),
    (b"access-control-request-method", b"post"),
    (b"alt-svc", b"clear"),
    (b"authorization", b""),
    (b"content-security-policy", b"script-src 'none'; object-src 'none'; base-uri 'none'"),
    (b"early-data", b"1"),
    (b"expect-ct", b""),
    (b"forwarded", b""),
    (b"if-range", b""),
    (b"origin", b""),
    (b"purpose", b"prefetch"),
    (b"server", b""),
    (b"timing-allow-origin", b"*"),
    (b"upgrade-insecure-requests", b"1"),
    (b"user-agent", b""),
    (b"x-forwarded-for", b""),
    (b"x-frame-options", b"deny"),
    (b"x-frame-options", b"sameorigin"),
];

/// Indices of the entries with each name.
static BY_NAME: LazyLock<HashMap<&'static [u8], Vec<u8>>> = LazyLock::new(|| {
    let mut places: HashMap<_, Vec<u8>> = HashMap::new();
    for (place, (name, _)) in (0..).zip(ENTRIES) {
        places.entry(name).or_default().push(place);
    }
    places
});

/// Returns the indices of the entries with this name.
fn places_of(name: &[u8]) -> &'static [u8] {
    BY_NAME.get(name).map_or(&[], |places| places)
}
