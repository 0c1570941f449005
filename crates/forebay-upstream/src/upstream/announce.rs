//! The PROXY header before the first request of a connection. The header applies to the whole
//! connection. So a route that sends PROXY headers never reuses a connection for another client.
//!
//! One write sends the header and the request's head. The header of a health check names no client
//! (`LOCAL`, or `UNKNOWN` in version 1).

use std::net::SocketAddr;

use forebay_conf::ProxyHeader;
use forebay_wire::ClientAddress;
use forebay_wire::proxy_protocol::{encode_local_v1, encode_local_v2, encode_v1, encode_v2};

/// Appends the header with the client's address and the server's address on the client's
/// connection. For a client without an IP address, appends the header of [`append_local`].
pub fn append_client(
    out: &mut Vec<u8>,
    version: ProxyHeader,
    client: ClientAddress,
    server: SocketAddr,
) {
    let ClientAddress::Ip(client) = client else { return append_local(out, version) };
    match version {
        ProxyHeader::V1 => encode_v1(out, client, server),
        ProxyHeader::V2 => encode_v2(out, client, server),
    }
}

/// Appends the header of a connection that Forebay opens for itself.
pub fn append_local(out: &mut Vec<u8>, version: ProxyHeader) {
    match version {
        ProxyHeader::V1 => encode_local_v1(out),
        ProxyHeader::V2 => encode_local_v2(out),
    }
}
