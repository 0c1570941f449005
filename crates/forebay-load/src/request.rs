//! Encodes the requests of a run for their protocol.

use std::sync::Arc;

use forebay_client::{
    AjpRequest, Gateway, Http2Request, Http3Request, HttpRequest, WEBSOCKET_KEY, WebSocketRequest,
};
use forebay_wire::http1::{HeadError, is_field_value, is_token};

use crate::{Error, Part, Protocol, Spec};

/// Header fields that users cannot set, each with the reason for the error message.
const OWN_FIELDS: [(&str, &str); 3] = [
    ("content-length", "it is computed from the body"),
    ("transfer-encoding", "the body is sent with its length"),
    ("expect", "100-continue is not available"),
];

/// Header fields that HTTP/2 and HTTP/3 forbid (RFC 9113 section 8.2.2, RFC 9114 section 4.2).
const CONNECTION_FIELDS: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Requests of a run, encoded for their protocol.
pub(crate) struct Requests {
    all: Vec<Encoded>,
    keepalive: bool,
    is_tls: bool,
}

/// Encoded request.
struct Encoded {
    /// Request as HTTP/1.1. For HTTP/2 and HTTP/3, it is converted later. For a WebSocket, it is the
    /// handshake.
    bytes: Arc<[u8]>,
    /// Request that is used instead of `bytes` for AJP.
    ajp: Arc<AjpRequest>,
    /// Message that a WebSocket sends after the handshake.
    message: Vec<u8>,
    to_head: bool,
}

impl Requests {
    /// Encodes the requests that `spec` describes.
    pub fn of(spec: &Spec) -> Result<Self, Error> {
        let protocol = spec.url.protocol();
        check_gateway(protocol, &spec.gateway)?;
        let all = if spec.parts.is_empty() {
            vec![Encoded::of(spec)?]
        } else {
            let plain = spec.without_parts();
            let encode = |part: &Part| Encoded::of(&plain.with_part(part));
            spec.parts.iter().map(encode).collect::<Result<_, _>>()?
        };
        Ok(Self { all, keepalive: spec.keepalive, is_tls: protocol.is_tls() })
    }

    /// Returns the requests for an HTTP/1.1, SCGI or uwsgi connection.
    pub fn http(&self) -> Arc<[HttpRequest]> {
        let request =
            |each: &Encoded| HttpRequest { bytes: each.bytes.clone(), to_head: each.to_head };
        self.all.iter().map(request).collect()
    }

    /// Returns the requests for an HTTP/2 connection.
    pub fn http2(&self) -> Result<Arc<[Arc<Http2Request>]>, Error> {
        let request = |each: &Encoded| Http2Request::of(&each.bytes, self.is_tls).map(Arc::new);
        self.all.iter().map(request).collect::<Result<_, _>>().map_err(malformed)
    }

    /// Returns the requests for an HTTP/3 connection.
    pub fn http3(&self) -> Result<Arc<[Arc<Http3Request>]>, Error> {
        let request = |each: &Encoded| Http3Request::of(&each.bytes).map(Arc::new);
        self.all.iter().map(request).collect::<Result<_, _>>().map_err(malformed)
    }

    /// Returns the requests for a FastCGI connection.
    pub fn fastcgi(&self) -> Arc<[Arc<[u8]>]> {
        self.all.iter().map(|each| each.bytes.clone()).collect()
    }

    /// Returns the requests for an AJP connection.
    pub fn ajp(&self) -> Arc<[Arc<AjpRequest>]> {
        self.all.iter().map(|each| each.ajp.clone()).collect()
    }

    /// Returns the requests for a WebSocket connection.
    pub fn websocket(&self) -> Arc<[WebSocketRequest]> {
        let request =
            |each: &Encoded| WebSocketRequest::new(each.bytes.clone(), each.message.as_slice());
        self.all.iter().map(request).collect()
    }

    /// Returns true if connections stay open after a request.
    pub fn keepalive(&self) -> bool {
        self.keepalive
    }
}

impl Encoded {
    /// Encodes one request for the protocol of `spec`.
    fn of(spec: &Spec) -> Result<Self, Error> {
        let mut message = Vec::new();
        let http = if spec.url.protocol().is_websocket() {
            let default = || DEFAULT_MESSAGE.to_vec();
            message = if spec.body.is_empty() { default() } else { spec.body.clone() };
            websocket_handshake(spec)?
        } else {
            http_request(spec)?
        };
        let (gateway, keepalive) = (&spec.gateway, spec.keepalive);
        let mut ajp = AjpRequest::default();
        let bytes = match spec.url.protocol() {
            Protocol::Http | Protocol::Https | Protocol::H2c | Protocol::H2 => http,
            Protocol::Http3 | Protocol::Ws | Protocol::Wss => http,
            Protocol::Fastcgi => {
                forebay_client::fastcgi_request(&http, gateway, keepalive).map_err(malformed)?
            }
            Protocol::Scgi => forebay_client::scgi_request(&http, gateway).map_err(malformed)?,
            Protocol::Uwsgi => forebay_client::uwsgi_request(&http, gateway)
                .map_err(|error| Error::Invalid(error.to_string()))?,
            Protocol::Ajp => {
                ajp = forebay_client::ajp_request(&http, gateway)
                    .map_err(|error| Error::Invalid(error.to_string()))?;
                Vec::new()
            }
        };
        Ok(Self { bytes: bytes.into(), ajp: ajp.into(), message, to_head: spec.method == "HEAD" })
    }
}

/// Rejects options of `Gateway` that the protocol does not support.
fn check_gateway(protocol: Protocol, gateway: &Gateway) -> Result<(), Error> {
    let takes_variables = matches!(protocol, Protocol::Fastcgi | Protocol::Scgi | Protocol::Uwsgi);
    let why = if !takes_variables && (gateway.root.is_some() || !gateway.variables.is_empty()) {
        "a root and variables need an application protocol: use fcgi, scgi or uwsgi"
    } else if protocol != Protocol::Ajp && gateway.secret.is_some() {
        "a secret needs the protocol of servlet containers: use ajp"
    } else {
        return Ok(());
    };
    Err(Error::Invalid(why.to_owned()))
}

fn malformed(error: HeadError) -> Error {
    Error::Invalid(format!("the request is malformed: {error}"))
}

/// Encodes the request of `spec` as HTTP/1.1.
fn http_request(spec: &Spec) -> Result<Vec<u8>, Error> {
    if !is_token(spec.method.as_bytes()) || spec.method == "CONNECT" {
        return Err(Error::Invalid(format!("the method {:?} cannot be sent", spec.method)));
    }
    let mut bytes = format!("{} {} HTTP/1.1\r\n", spec.method, spec.url.target()).into_bytes();
    let given = |name: &str| spec.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    let mut field = |name: &str, value: &str| {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    };
    if !given("host") {
        field("Host", spec.url.host());
    }
    if !given("user-agent") {
        field("User-Agent", concat!("forebay/", env!("CARGO_PKG_VERSION")));
    }
    for (name, value) in &spec.headers {
        check_field(name, value)?;
        if spec.url.protocol().has_streams() {
            check_http2_field(name, value)?;
        }
        field(name, value);
    }
    if !spec.keepalive && !given("connection") {
        field("Connection", "close");
        // For these methods, a server may require a length even if the body is empty.
    }
    if !spec.body.is_empty() || matches!(spec.method.as_str(), "POST" | "PUT" | "PATCH") {
        field("Content-Length", &spec.body.len().to_string());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&spec.body);
    Ok(bytes)
}

/// WebSocket message if the user gives no body.
const DEFAULT_MESSAGE: &[u8] = b"forebay";

/// Encodes the handshake request of a WebSocket.
fn websocket_handshake(spec: &Spec) -> Result<Vec<u8>, Error> {
    if spec.method != "GET" {
        return Err(Error::Invalid("a WebSocket handshake has the method GET".to_owned()));
    }
    let own = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", WEBSOCKET_KEY),
    ];
    let is_own = |name: &str| own.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    if let Some((name, _)) = spec.headers.iter().find(|(name, _)| is_own(name)) {
        let why = format!("leave out the field {name}: it is part of the WebSocket handshake");
        return Err(Error::Invalid(why));
    }
    let own = own.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let headers = spec.headers.iter().cloned().chain(own).collect();
    // The body becomes the WebSocket message, so the handshake has none. The connection must stay
    // open after it.
    http_request(&Spec { headers, body: Vec::new(), keepalive: true, ..spec.without_parts() })
}

fn check_field(name: &str, value: &str) -> Result<(), Error> {
    if !is_token(name.as_bytes()) || !is_field_value(value.as_bytes()) {
        return Err(Error::Invalid(format!("\"{name}: {value}\" is not a header field")));
    }
    match OWN_FIELDS.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)) {
        Some((_, why)) => Err(Error::Invalid(format!("leave out the field {name}: {why}"))),
        None => Ok(()),
    }
}

fn check_http2_field(name: &str, value: &str) -> Result<(), Error> {
    let is_about_connection = CONNECTION_FIELDS.iter().any(|own| own.eq_ignore_ascii_case(name));
    if is_about_connection {
        let why = format!("leave out the field {name}: HTTP/2 and HTTP/3 forbid it");
        return Err(Error::Invalid(why));
    }
    if name.eq_ignore_ascii_case("te") && value != "trailers" {
        return Err(Error::Invalid(format!(
            "HTTP/2 and HTTP/3 allow only `{name}: trailers`, not {value}"
        )));
    }
    Ok(())
}
