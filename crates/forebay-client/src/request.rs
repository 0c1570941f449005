//! Converts an HTTP/1.1 request into a FastCGI, SCGI, uwsgi or AJP request.
//!
//! The converted request has the same variables that Forebay sends to applications as a gateway.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use forebay_wire::ajp13::{self, AjpError};
use forebay_wire::cgi::{self, Sink};
use forebay_wire::http1::{
    Claims, HeadError, Http1Limits, Progress, RequestHead, RequestParser, host_of,
};
use forebay_wire::uwsgi::UwsgiError;
use forebay_wire::{fastcgi, path, scgi, uwsgi};

use crate::ajp::AjpRequest;

/// Request ID of the only request on a FastCGI connection.
pub(crate) const ID: u16 = 1;

/// Settings that the functions of this module need in addition to the HTTP request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gateway {
    /// Directory of the scripts. If it is `None`, there is no script, and the whole path becomes
    /// PATH_INFO.
    pub root: Option<String>,
    /// Additional variables. They replace variables of the request with the same names.
    pub variables: Vec<(String, String)>,
    /// Secret that a servlet container requires from web servers over AJP.
    pub secret: Option<String>,
}

/// Reason why a request cannot be encoded in another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The HTTP/1.1 request is malformed.
    Malformed(HeadError),
    /// A variable is too long for uwsgi.
    Uwsgi(UwsgiError),
    /// The head is too long for AJP.
    Ajp(AjpError),
}

impl fmt::Display for EncodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(out, "the request is malformed: {error}"),
            Self::Uwsgi(error) => error.fmt(out),
            Self::Ajp(error) => error.fmt(out),
        }
    }
}

impl std::error::Error for EncodeError {}

/// Returns a FastCGI request. If `keepalive` is true, the request asks the application to keep the
/// connection open. Fails if `http` is malformed.
pub fn fastcgi_request(
    http: &[u8],
    gateway: &Gateway,
    keepalive: bool,
) -> Result<Vec<u8>, HeadError> {
    let (head, body) = parse(http)?;
    let mut out = Vec::new();
    fastcgi::begin(&mut out, ID, keepalive);
    let mut params = fastcgi::Params::new(&mut out, ID);
    append_variables(http, &head, body, gateway, &mut params);
    params.finish();
    fastcgi::stdin(&mut out, ID, body);
    fastcgi::end_of_stdin(&mut out, ID);
    Ok(out)
}

/// Returns an SCGI request. Fails if `http` is malformed.
pub fn scgi_request(http: &[u8], gateway: &Gateway) -> Result<Vec<u8>, HeadError> {
    let (head, body) = parse(http)?;
    let mut out = Vec::new();
    let mut variables = scgi::Head::new(&mut out, body.len() as u64);
    append_variables(http, &head, body, gateway, &mut variables);
    variables.finish();
    out.extend_from_slice(body);
    Ok(out)
}

/// Returns a uwsgi request with both modifiers 0 (WSGI). Fails if `http` is malformed, or if a
/// variable is too long for uwsgi.
pub fn uwsgi_request(http: &[u8], gateway: &Gateway) -> Result<Vec<u8>, EncodeError> {
    let (head, body) = parse(http).map_err(EncodeError::Malformed)?;
    let mut out = Vec::new();
    let mut variables = uwsgi::Packet::new(&mut out, 0, 0);
    append_variables(http, &head, body, gateway, &mut variables);
    variables.finish().map_err(EncodeError::Uwsgi)?;
    out.extend_from_slice(body);
    Ok(out)
}

/// Returns an AJP request. If `keepalive` is true, the connection may be used again after the
/// reply. Fails if `http` is malformed, or if its head is too long for AJP.
pub fn ajp_request(
    http: &[u8],
    gateway: &Gateway,
    keepalive: bool,
) -> Result<AjpRequest, EncodeError> {
    let (head, body) = parse(http).map_err(EncodeError::Malformed)?;
    let target = head.path_and_query.of(http);
    let (uri, query) = match memchr::memchr(b'?', target) {
        Some(at) => (&target[..at], Some(&target[at + 1..])),
        None => (target, None),
    };
    let method = head.method.of(http);
    let line = ajp13::RequestLine {
        method,
        protocol: b"HTTP/1.1",
        uri: if uri.is_empty() { b"/" } else { uri },
        remote_addr: b"127.0.0.1",
        remote_host: b"127.0.0.1",
        server_name: head.authority.map(|span| host_of(span.of(http))).unwrap_or_default(),
        server_port: 80,
        is_ssl: false,
    };
    let mut request = AjpRequest { to_head: method == b"HEAD", keepalive, ..AjpRequest::default() };
    let mut forward = ajp13::Forward::new(&mut request.packets, &line);
    for field in head.fields.iter().filter(|field| !field.known.is_hop_by_hop()) {
        forward.field(field.name.of(http), field.value.of(http));
    }
    let mut attributes = forward.attributes();
    if let Some(secret) = &gateway.secret {
        attributes.attribute(ajp13::Attribute::Secret, secret.as_bytes());
    }
    if let Some(query) = query {
        attributes.attribute(ajp13::Attribute::QueryString, query);
    }
    attributes.finish(ajp13::LEAST_PACKET).map_err(EncodeError::Ajp)?;
    let (first, rest) = body.split_at(body.len().min(ajp13::most_data(ajp13::LEAST_PACKET)));
    if !first.is_empty() {
        request.packets.extend_from_slice(&ajp13::data_header(first.len()));
        request.packets.extend_from_slice(first);
    }
    request.rest = rest.to_vec();
    Ok(request)
}

pub(crate) fn parse(http: &[u8]) -> Result<(RequestHead, &[u8]), HeadError> {
    let mut head = RequestHead::default();
    match RequestParser::new(Http1Limits::default()).parse(http, &mut head)? {
        Progress::Complete(len) => Ok((head, &http[len..])),
        Progress::Partial => Err(HeadError::TooLarge),
    }
}

fn append_variables(
    http: &[u8],
    head: &RequestHead,
    body: &[u8],
    gateway: &Gateway,
    sink: &mut impl Sink,
) {
    let target = head.path_and_query.of(http);
    let mut decoded = Vec::new();
    // If the path cannot be decoded, pass it unchanged, so that the application can reject it.
    if path::normalize(target, &mut decoded).is_err() {
        decoded = target.to_vec();
    }
    let root = gateway.root.as_deref().unwrap_or_default().trim_end_matches('/').as_bytes();
    let file = [root, &decoded].concat();
    let is_script = gateway.root.is_some();
    let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let request = cgi::Request {
        head,
        bytes: http,
        request_uri: if target.is_empty() { b"/" } else { target },
        script_name: if is_script { &decoded } else { b"" },
        script_filename: if is_script { &file } else { b"" },
        path_info: if is_script { b"" } else { &decoded },
        document_root: root,
        document_uri: &decoded,
        content_length: (!body.is_empty()).then_some(body.len() as u64),
        client: here.into(),
        server: here,
        https: false,
        connection: &[],
        // The user typed `X-Forwarded-*` fields on the command line, so they are passed on
        // unchanged.
        claims: Claims::XForwarded,
        user: b"",
    };
    cgi::variables(&request, &mut Replaced { sink, by: &gateway.variables });
    for (name, value) in &gateway.variables {
        sink.variable(name.as_bytes(), value.as_bytes());
    }
}

/// Passes variables to `sink`, except those whose names are in `by`. The caller adds the variables
/// of `by` later, and SCGI allows each name only once.
struct Replaced<'a, S> {
    sink: &'a mut S,
    by: &'a [(String, String)],
}

impl<S: Sink> Sink for Replaced<'_, S> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        if !self.by.iter().any(|(replaced, _)| replaced.as_bytes() == name) {
            self.sink.variable(name, value);
        }
    }
}
