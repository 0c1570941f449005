//! Encodes the requests of a run for their protocol.

use std::sync::Arc;

use forebay_client::{
    AjpRequest, Gateway, Http2Request, Http3Request, HttpRequest, WEBSOCKET_KEY, WebSocketRequest,
};
use forebay_wire::http1::{HeadError, Http1Limits, is_field_value, is_token, list_has};

use crate::grpc;
use crate::template::{Encode, Names, RequestSource, Template};
use crate::{Error, Protocol, Spec};

/// Header fields that users cannot set, each with the reason for the error message.
const OWN_FIELDS: [(&str, &str); 1] = [("content-length", "it is computed from the body")];

/// Header fields that change how a request is sent over HTTP/1.1, each with its only value.
const FRAMING_FIELDS: [(&str, &str); 2] =
    [("transfer-encoding", "chunked"), ("expect", "100-continue")];

/// Maximum size of the chunks of a body.
const CHUNK: usize = 16 << 10;

/// Header fields that HTTP/2 and HTTP/3 forbid (RFC 9113 section 8.2.2, RFC 9114 section 4.2).
const CONNECTION_FIELDS: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Requests of a run, encoded for their protocol.
pub(crate) struct Requests {
    all: Vec<Encoded>,
    /// Templates of all requests; empty without placeholders, cookies and scenarios.
    templates: Vec<Template>,
    converter: Converter,
    keepalive: bool,
    is_tls: bool,
}

/// Conversion of an HTTP/1.1 request to the encoding of a protocol.
#[derive(Clone)]
struct Converter {
    protocol: Protocol,
    /// Number of messages of a gRPC request.
    messages: usize,
    gateway: Gateway,
    keepalive: bool,
    /// True if a request has a `Connection` field or one of [`FRAMING_FIELDS`].
    has_framing_field: bool,
}

/// Encoded request.
struct Encoded {
    /// Request in FastCGI, SCGI or uwsgi, or else in HTTP/1.1. For HTTP/2 and HTTP/3, it is
    /// converted later. For a WebSocket, it is the handshake. Empty for AJP.
    bytes: Arc<[u8]>,
    /// Request that is used instead of `bytes` for AJP.
    ajp: Arc<AjpRequest>,
    /// Message that a WebSocket sends after the handshake, or bytes for `tcp`.
    message: Vec<u8>,
    to_head: bool,
    /// False if the connection is not used again after the reply.
    keepalive: bool,
    /// Length of the head, if the body waits for `100 Continue`.
    expects: Option<usize>,
}

impl Requests {
    pub fn of(spec: &Spec) -> Result<Self, Error> {
        let protocol = spec.url.protocol();
        check_gateway(protocol, &spec.gateway)?;
        let fields = spec.parts.iter().flat_map(|part| &part.headers).chain(&spec.headers);
        let converter = Converter {
            protocol,
            messages: spec.messages,
            gateway: spec.gateway.clone(),
            keepalive: spec.keepalive,
            has_framing_field: fields.into_iter().any(|(name, _)| {
                name.eq_ignore_ascii_case("connection") || framing_value(name).is_some()
            }),
        };
        let (mut all, mut templates) = (Vec::new(), Vec::new());
        let plain = spec.without_parts();
        let parts = spec.parts.iter().map(|part| plain.with_part(part));
        let whole = spec.parts.is_empty().then(|| plain.clone());
        let has_values = spec.has_values();
        let fixed = &spec.fixed[..];
        for request in parts.chain(whole) {
            let (http, message) = http_of(&request)?;
            if has_values {
                let extracted = spec.scenario.as_ref().map(|plan| plan.variables.as_slice());
                let names = Names { table: spec.values.as_deref(), extracted, fixed };
                let template = Template::of(&http, &message, names).map_err(Error::Invalid)?;
                let [http, message] = template.render_longest(names);
                // `convert` does not parse the head of an HTTP/1.1 request. So encode the request
                // for FastCGI, which fails if the head is malformed or too large. The encoded
                // request is not used.
                forebay_client::fastcgi_request(&http, &spec.gateway, true).map_err(malformed)?;
                converter.convert(http, message, false)?;
                templates.push(template);
            }
            all.push(converter.convert(http, message, request.method == "HEAD")?);
        }
        if spec.streams > 1 && all.iter().any(|request| !request.keepalive) {
            let why = "after a request with `Connection: close`, a connection carries no other: \
                       leave out the field or the streams";
            return Err(Error::Invalid(why.to_owned()));
        }
        // Without placeholders, cookies and scenarios, all copies of a request are equal. The
        // request is then encoded only once, and needs no template.
        let has_placeholders = templates.iter().any(Template::has_placeholders);
        if !has_placeholders && !spec.cookies && spec.scenario.is_none() {
            if spec.values.is_some() {
                let why = "no request has a placeholder of the table: write {COLUMN} in a URL, field or body";
                return Err(Error::Invalid(why.to_owned()));
            }
            templates.clear();
        }
        Ok(Self { all, templates, converter, keepalive: spec.keepalive, is_tls: protocol.is_tls() })
    }

    /// Returns the requests of a protocol. `encode` creates the protocol's request.
    fn source<R: Clone>(
        &self,
        encode: impl Fn(&Encoded) -> Result<R, Error> + Clone + Send + Sync + 'static,
    ) -> Result<RequestSource<R>, Error> {
        let fixed = self.all.iter().map(&encode).collect::<Result<Arc<[R]>, _>>()?;
        let source = RequestSource::fixed(fixed);
        if self.templates.is_empty() {
            return Ok(source);
        }
        let rendering = |each: &Encoded| {
            let (converter, encode) = (self.converter.clone(), encode.clone());
            let to_head = each.to_head;
            let render = move |[http, message]: [Vec<u8>; 2]| {
                converter.check_length(&http)?;
                encode(&converter.convert(http, message, to_head)?)
            };
            Box::new(render) as Encode<R>
        };
        let renderings = self.all.iter().map(rendering).collect();
        Ok(source.with_templates(self.templates.clone(), renderings))
    }

    /// Returns the requests for an HTTP/1.1, SCGI or uwsgi connection.
    pub fn http(&self) -> Result<RequestSource<HttpRequest>, Error> {
        self.source(|each| {
            let Encoded { to_head, keepalive, expects, .. } = *each;
            Ok(HttpRequest { bytes: each.bytes.clone(), to_head, keepalive, expects })
        })
    }

    pub fn http2(&self) -> Result<RequestSource<Arc<Http2Request>>, Error> {
        let is_tls = self.is_tls;
        let is_grpc = self.converter.protocol.is_grpc();
        let convert = if is_grpc { Http2Request::without_length } else { Http2Request::of };
        self.source(move |each| convert(&each.bytes, is_tls).map(Arc::new).map_err(malformed))
    }

    pub fn http3(&self) -> Result<RequestSource<Arc<Http3Request>>, Error> {
        self.source(|each| Http3Request::of(&each.bytes).map(Arc::new).map_err(malformed))
    }

    pub fn fastcgi(&self) -> Result<RequestSource<Arc<[u8]>>, Error> {
        self.source(|each| Ok(each.bytes.clone()))
    }

    pub fn ajp(&self) -> Result<RequestSource<Arc<AjpRequest>>, Error> {
        self.source(|each| Ok(each.ajp.clone()))
    }

    pub fn raw(&self) -> Result<RequestSource<Arc<[u8]>>, Error> {
        self.source(|each| Ok(each.message.as_slice().into()))
    }

    pub fn websocket(&self) -> Result<RequestSource<WebSocketRequest>, Error> {
        self.source(|each| Ok(WebSocketRequest::new(each.bytes.clone(), each.message.as_slice())))
    }

    /// Returns true if connections stay open after a request.
    pub fn keepalive(&self) -> bool {
        self.keepalive
    }
}

/// Returns the request of `spec` as HTTP/1.1, and a message.
///
/// - WebSocket: the handshake, and the message to send.
/// - gRPC: the head, and the message to send.
/// - `tcp`: an HTTP/1.1 request that is never sent, and the bytes to send.
/// - Other protocols: the whole request, and an empty message.
fn http_of(spec: &Spec) -> Result<(Vec<u8>, Vec<u8>), Error> {
    match spec.url.protocol() {
        Protocol::Ws | Protocol::Wss => {}
        Protocol::Grpc | Protocol::Grpcs => return Ok((grpc_request(spec)?, spec.body.clone())),
        Protocol::Tcp => return Ok((raw_request(spec)?, spec.body.clone())),
        _ => return Ok((http_request(spec)?, Vec::new())),
    }
    let default = || DEFAULT_MESSAGE.to_vec();
    let message = if spec.body.is_empty() { default() } else { spec.body.clone() };
    Ok((websocket_handshake(spec)?, message))
}

impl Converter {
    /// Fails if the head of an HTTP/1.1 request or a WebSocket handshake is longer than most
    /// servers accept. For the other protocols, the encoding of the request checks its length.
    fn check_length(&self, http: &[u8]) -> Result<(), Error> {
        use Protocol::{Http, Https, Ws, Wss};
        if !matches!(self.protocol, Http | Https | Ws | Wss) {
            return Ok(());
        }
        let head = memchr::memmem::find(http, b"\r\n\r\n").map_or(http.len(), |at| at + 4);
        let limit = Http1Limits::default().head;
        if head <= limit { Ok(()) } else { Err(malformed(HeadError::TooLarge)) }
    }

    /// Converts an HTTP/1.1 request to the encoding of the protocol.
    fn convert(
        &self,
        mut http: Vec<u8>,
        message: Vec<u8>,
        to_head: bool,
    ) -> Result<Encoded, Error> {
        let gateway = &self.gateway;
        let (mut keepalive, mut expects) = (self.keepalive, None);
        if self.has_framing_field {
            let head = memchr::memmem::find(&http, b"\r\n\r\n").map_or(http.len(), |at| at + 4);
            let has = |name: &str, option: &str| lists(&http[..head], name, option);
            keepalive &= !has("connection", "close");
            let is_chunked = has("transfer-encoding", "chunked");
            expects = (has("expect", "100-continue") && http.len() > head).then_some(head);
            if is_chunked {
                http = chunked(&http, head);
            }
        }
        let mut ajp = AjpRequest::default();
        let bytes = match self.protocol {
            Protocol::Http | Protocol::Https | Protocol::H2c | Protocol::H2 => http,
            Protocol::Http3 | Protocol::Ws | Protocol::Wss | Protocol::Tcp => http,
            Protocol::Grpc | Protocol::Grpcs => {
                let mut body = Vec::new();
                grpc::append_messages(&message, self.messages, &mut body);
                with_body(&http, &body)
            }
            Protocol::Fastcgi => {
                forebay_client::fastcgi_request(&http, gateway, keepalive).map_err(malformed)?
            }
            Protocol::Scgi => forebay_client::scgi_request(&http, gateway).map_err(malformed)?,
            Protocol::Uwsgi => forebay_client::uwsgi_request(&http, gateway)
                .map_err(|error| Error::Invalid(error.to_string()))?,
            Protocol::Ajp => {
                ajp = forebay_client::ajp_request(&http, gateway, keepalive)
                    .map_err(|error| Error::Invalid(error.to_string()))?;
                Vec::new()
            }
        };
        Ok(Encoded { bytes: bytes.into(), ajp: ajp.into(), message, to_head, keepalive, expects })
    }
}

/// Returns true if a field `name` of an HTTP/1.1 head has `option` in its list. A request may have
/// fields that a strict parser refuses, because users test servers with them.
fn lists(head: &[u8], name: &str, option: &str) -> bool {
    head.split(|&b| b == b'\n').any(|line| {
        let mut parts = line.splitn(2, |&b| b == b':');
        let is_named = parts.next().is_some_and(|n| n.eq_ignore_ascii_case(name.as_bytes()));
        is_named
            && parts.next().is_some_and(|value| list_has(value.trim_ascii_end(), option.as_bytes()))
    })
}

/// Returns the request with its body in chunks. `head` is the length of its head.
fn chunked(http: &[u8], head: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(http.len() + http.len() / 1024 + 16);
    out.extend_from_slice(&http[..head]);
    for chunk in http[head..].chunks(CHUNK) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// Returns the only value of a field that changes how a request is sent.
fn framing_value(name: &str) -> Option<&'static str> {
    let field = FRAMING_FIELDS.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
    field.map(|(_, value)| *value)
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

/// Encodes the request of `spec` as HTTP/1.1. Fails if the method or a field cannot be sent.
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
    let mut is_chunked = false;
    for (name, value) in &spec.headers {
        check_field(name, value)?;
        check_framing_field(name, value, spec.url.protocol())?;
        if name.eq_ignore_ascii_case("transfer-encoding") {
            is_chunked = true;
            continue;
        }
        // Without a body, there is nothing to wait for (RFC 9110, section 10.1.1).
        if name.eq_ignore_ascii_case("expect") && spec.body.is_empty() {
            continue;
        }
        if spec.url.protocol().has_streams() {
            check_http2_field(name, value)?;
        }
        field(name, value);
    }
    if !spec.keepalive && !given("connection") {
        field("Connection", "close");
    }
    // For these methods, a server may require a length even if the body is empty.
    if !spec.body.is_empty() || matches!(spec.method.as_str(), "POST" | "PUT" | "PATCH" | "QUERY") {
        if is_chunked {
            field("Transfer-Encoding", "chunked");
        } else {
            field("Content-Length", &spec.body.len().to_string());
        }
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&spec.body);
    Ok(bytes)
}

/// Adds a body to the HTTP/1.1 request `head`.
fn with_body(head: &[u8], body: &[u8]) -> Vec<u8> {
    let fields = head.strip_suffix(b"\r\n").unwrap_or(head);
    let length = format!("Content-Length: {}\r\n\r\n", body.len());
    [fields, length.as_bytes(), body].concat()
}

/// Encodes the head of a gRPC request as HTTP/1.1, without `Content-Length`.
fn grpc_request(spec: &Spec) -> Result<Vec<u8>, Error> {
    if !matches!(spec.method.as_str(), "GET" | "POST") {
        return Err(Error::Invalid("a gRPC request has the method POST".to_owned()));
    }
    if spec.url.target().matches('/').count() != 2 || spec.url.target().contains('?') {
        let why = "the path of a gRPC URL is /PACKAGE.SERVICE/METHOD";
        return Err(Error::Invalid(why.to_owned()));
    }
    let mut headers = spec.headers.clone();
    let mut add = |name: &str, value: String| {
        if !headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            headers.push((name.to_owned(), value));
        }
    };
    add("Content-Type", grpc::CONTENT_TYPE.to_owned());
    add("TE", "trailers".to_owned());
    // A server can stop its work at the end of the time in Grpc-Timeout. The value has at most 8
    // digits.
    let ms = spec.timeout.as_millis();
    let timeout = if ms < 100_000_000 {
        format!("{}m", ms.max(1))
    } else {
        format!("{}S", (ms / 1000).min(99_999_999))
    };
    add("Grpc-Timeout", timeout);
    // Pass GET and change the method afterwards, because with POST the head would get a
    // `Content-Length`.
    let head = http_request(&Spec {
        method: "GET".to_owned(),
        headers,
        body: Vec::new(),
        ..spec.without_parts()
    })?;
    Ok([b"POST".as_slice(), &head[3..]].concat())
}

/// Checks the settings of a raw request. Returns an HTTP/1.1 request, which is not sent.
fn raw_request(spec: &Spec) -> Result<Vec<u8>, Error> {
    if spec.method != "GET" || !spec.headers.is_empty() || spec.cookies {
        let why = "tcp:// sends bytes only: leave out method, header fields and cookies";
        return Err(Error::Invalid(why.to_owned()));
    }
    http_request(&Spec { body: Vec::new(), ..spec.without_parts() })
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
    // open after the handshake.
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

/// Fails for a field that changes how a request is sent, unless `value` is possible and the protocol
/// is HTTP/1.1.
fn check_framing_field(name: &str, value: &str, protocol: Protocol) -> Result<(), Error> {
    let Some(only) = framing_value(name) else { return Ok(()) };
    let why = if !matches!(protocol, Protocol::Http | Protocol::Https) {
        format!("leave out the field {name}, which needs HTTP/1.1")
    } else if !value.eq_ignore_ascii_case(only) {
        format!("the field {name} can only have the value {only}, not {value:?}")
    } else {
        return Ok(());
    };
    Err(Error::Invalid(why))
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
