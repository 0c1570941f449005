//! Converts an AJP request to an HTTP/1.1 request head, and extracts information about the client.

use std::net::{IpAddr, SocketAddr};

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_wire::ClientAddress;
use forebay_wire::ajp13::{Attribute, RequestHead};
use forebay_wire::http1::{Http1Limits, KnownField, Progress, RequestParser, Version, encode};

use crate::part::Accepted;
use crate::refusal::head_fault;

/// Converts `packet` to the lines of an HTTP/1.1 request, and parses these lines into `request`.
///
/// Fields about the client's connection to the web server (`Connection`, `Expect`) are ignored. An
/// upgrade is ignored, too, because AJP has no tunnels (RFC 9110 section 7.8 allows this).
pub fn decode_request(
    packet: &RequestHead,
    request: &mut Request,
    limits: &Http1Limits,
) -> Result<(), Fault> {
    let bytes = &mut request.bytes;
    let text = |span: forebay_wire::Span| span.of(packet.fields.bytes());
    let uri = text(packet.uri);
    if uri.contains(&b'?') {
        return Err(Fault::client(400, "a question mark in a path of AJP"));
    }
    bytes.extend_from_slice(text(packet.method));
    bytes.push(b' ');
    bytes.extend_from_slice(uri);
    if let Some(query) = packet.attribute(Attribute::QueryString) {
        bytes.push(b'?');
        bytes.extend_from_slice(query);
    }
    bytes.extend_from_slice(b" HTTP/1.1\r\n");
    if packet.fields.value(KnownField::Host).is_none() {
        // An HTTP/1.0 client need not send `Host`. Use the web server's name, without its port.
        let name = plain(text(packet.server_name))?;
        bytes.extend_from_slice(b"Host: ");
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    for field in &packet.fields {
        bytes.extend_from_slice(field.name);
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(field.value);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    match RequestParser::new(*limits).parse(&request.bytes, &mut request.head) {
        Ok(Progress::Complete(length)) if length == request.bytes.len() => {}
        Ok(_) => return Err(Fault::client(400, "an AJP head that is no valid HTTP/1.1 head")),
        Err(error) => return Err(head_fault(error, request, limits)),
    }
    let head = &mut request.head;
    head.version = match text(packet.protocol) {
        b"HTTP/1.0" | b"HTTP/0.9" => Version::Http10,
        b"HTTP/2.0" | b"HTTP/2" => Version::Http2,
        b"HTTP/3.0" | b"HTTP/3" => Version::Http3,
        _ => Version::Http11,
    };
    (head.keep_alive, head.expect_continue, head.upgrade) = (true, false, false);
    Ok(())
}

/// Stores the web server's information about the client. Returns the client's address, or the
/// address of the web server if the packet names no client. Fails for an invalid address, for a
/// text that is not UTF-8, and for control bytes in a text other than the client's certificate.
pub fn describe_client(
    packet: &RequestHead,
    request: &mut Request,
    accepted: &Accepted,
) -> Result<ClientAddress, Fault> {
    let text = |span: forebay_wire::Span| plain(span.of(packet.fields.bytes()));
    let of_name = |name: &[u8]| packet.request_attribute(name).map(plain).transpose();
    let peer = match text(packet.remote_addr)? {
        "" => accepted.peer,
        address => {
            let port = of_name(b"AJP_REMOTE_PORT")?.and_then(|port| port.parse().ok());
            SocketAddr::new(ip(address)?, port.unwrap_or(0)).into()
        }
    };
    let local = of_name(b"AJP_LOCAL_ADDR")?.filter(|address| !address.is_empty());
    let local = local.map_or(Ok(accepted.local.ip()), ip)?;
    request.server = SocketAddr::new(local, packet.server_port);
    request.https = packet.is_ssl;
    let user = packet.attribute(Attribute::RemoteUser).map(plain).transpose()?;
    request.user.clear();
    request.user.extend_from_slice(user.unwrap_or_default().as_bytes());
    request.announced.clear();
    let mut announce = |name, value: Option<&str>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            request.announced.push((name, value.to_owned()));
        }
    };
    for (name, attribute) in [
        ("AUTH_TYPE", Attribute::AuthType),
        ("AJP_ROUTE", Attribute::Route),
        ("SSL_CIPHER", Attribute::SslCipher),
        ("SSL_SESSION_ID", Attribute::SslSession),
    ] {
        announce(name, packet.attribute(attribute).map(plain).transpose()?);
    }
    announce("JK_LB_ACTIVATION", of_name(b"JK_LB_ACTIVATION")?);
    announce("SSL_PROTOCOL", of_name(b"AJP_SSL_PROTOCOL")?);
    // Accept control bytes in a certificate, because PEM contains line ends.
    let certificate = packet.attribute(Attribute::SslCert).map(std::str::from_utf8);
    announce("SSL_CLIENT_CERT", certificate.transpose().map_err(|_| control())?);
    if let Some(bits) = packet.ssl_key_size {
        let mut digits = Vec::new();
        encode::decimal(&mut digits, u64::from(bits));
        announce("SSL_CIPHER_USEKEYSIZE", std::str::from_utf8(&digits).ok());
    }
    Ok(peer)
}

/// Returns `text` as a string. Fails if `text` is not UTF-8. Also fails if `text` contains control
/// bytes, because an application could take them for the end of a line.
fn plain(text: &[u8]) -> Result<&str, Fault> {
    let text = std::str::from_utf8(text).map_err(|_| control())?;
    if text.bytes().any(|byte| byte.is_ascii_control()) { Err(control()) } else { Ok(text) }
}

fn control() -> Fault {
    Fault::client(400, "an AJP attribute with control bytes, or not in UTF-8")
}

/// Parses an address. Ignores a zone (`fe80::1%eth0`).
fn ip(text: &str) -> Result<IpAddr, Fault> {
    let (address, _) = text.split_once('%').unwrap_or((text, ""));
    address.parse().map_err(|_| Fault::client(400, "an invalid address in an AJP request"))
}
