//! The PROXY header in front of what a backend is sent. It holds for the whole connection, so that
//! no connection carries requests of two clients: none is kept where a route sends it.
//!
//! It goes out in the same write as the request's head. Health checks announce themselves (`LOCAL`,
//! or `UNKNOWN` in version 1).

use forebay_conf::ProxyHeader;
use forebay_engine::Request;
use forebay_wire::ClientAddress;
use forebay_wire::proxy_protocol::{encode_local_v1, encode_local_v2, encode_v1, encode_v2};

/// Appends the header that names the client of `request`, and the address that it came to. A client
/// without an address cannot be named.
pub fn append_client(out: &mut Vec<u8>, version: ProxyHeader, request: &Request) {
    let ClientAddress::Ip(client) = request.client else { return append_local(out, version) };
    match version {
        ProxyHeader::V1 => encode_v1(out, client, request.server),
        ProxyHeader::V2 => encode_v2(out, client, request.server),
    }
}

/// Appends the header of a connection that is our own, and no client's.
pub fn append_local(out: &mut Vec<u8>, version: ProxyHeader) {
    match version {
        ProxyHeader::V1 => encode_local_v1(out),
        ProxyHeader::V2 => encode_local_v2(out),
    }
}
