//! Encoding of the request of a run, and the session that sends it.

use std::sync::Arc;

use forebay_client::{
    Ajp, AjpRequest, AppServer, Fastcgi, Gateway, Http1, Http2, Http2Request, Sink,
};
use forebay_wire::http1::{HeadError, is_field_value, is_token};

use crate::{Error, Protocol, Spec};

/// Fields that the load generator writes itself, with the reason for the error message.
const OWN_FIELDS: [(&str, &str); 3] = [
    ("content-length", "it is computed from the body"),
    ("transfer-encoding", "the body is sent with its length"),
    ("expect", "100-continue is not available"),
];

/// Fields that HTTP/2 forbids (RFC 9113 section 8.2.2).
const CONNECTION_FIELDS: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Request of a run, encoded for its protocol.
pub(crate) struct Request {
    /// For HTTP/2, the request in the form of HTTP/1.1.
    bytes: Arc<[u8]>,
    /// Used instead of `bytes` for AJP.
    ajp: Arc<AjpRequest>,
    to_head: bool,
    keepalive: bool,
    is_tls: bool,
}

impl Request {
    /// Encodes the request that `spec` describes.
    pub fn of(spec: &Spec) -> Result<Self, Error> {
        let http = http_request(spec)?;
        let protocol = spec.url.protocol();
        check_gateway(protocol, &spec.gateway)?;
        let (gateway, keepalive) = (&spec.gateway, spec.keepalive);
        let mut ajp = AjpRequest::default();
        let bytes = match protocol {
            Protocol::Http | Protocol::Https | Protocol::H2c | Protocol::H2 => http,
            Protocol::Fastcgi => {
                forebay_client::fastcgi_request(&http, gateway, keepalive).map_err(malformed)?
            }
            Protocol::Scgi => forebay_client::scgi_request(&http, gateway).map_err(malformed)?,
            Protocol::Uwsgi => forebay_client::uwsgi_request(&http, gateway)
                .map_err(malformed)?
                .map_err(|error| Error::Invalid(error.to_string()))?,
            Protocol::Ajp => {
                ajp = forebay_client::ajp_request(&http, gateway)
                    .map_err(malformed)?
                    .map_err(|error| Error::Invalid(error.to_string()))?;
                Vec::new()
            }
        };
        Ok(Self {
            bytes: bytes.into(),
            ajp: ajp.into(),
            to_head: spec.method == "HEAD",
            keepalive,
            is_tls: protocol.is_tls(),
        })
    }

    /// Creates the session of an HTTP/1.1 connection.
    pub fn http1<S: Sink>(&self, sink: S) -> Http1<S> {
        Http1::new(self.bytes.clone(), self.to_head, self.keepalive, sink)
    }

    /// Returns the parts that HTTP/2 sends.
    pub fn http2_parts(&self) -> Result<Arc<Http2Request>, Error> {
        Http2Request::of(&self.bytes, self.is_tls).map(Arc::new).map_err(malformed)
    }

    /// Creates the session of an HTTP/2 connection that sends `parts` on as many streams as there
    /// are sinks.
    pub fn http2<S: Sink>(
        &self,
        parts: &Arc<Http2Request>,
        sinks: impl Iterator<Item = S>,
    ) -> Http2<S> {
        Http2::new(parts.clone(), self.keepalive, sinks)
    }

    /// Creates the session of a FastCGI connection.
    pub fn fastcgi<S: Sink>(&self, sink: S) -> Fastcgi<S> {
        Fastcgi::new(self.bytes.clone(), self.keepalive, sink)
    }

    /// Creates the session of an AJP connection.
    pub fn ajp<S: Sink>(&self, sink: S) -> Ajp<S> {
        Ajp::new(self.ajp.clone(), self.keepalive, sink)
    }

    /// Creates the session of an SCGI or uwsgi connection.
    pub fn app_server<S: Sink>(&self, sink: S) -> AppServer<S> {
        AppServer::new(self.bytes.clone(), self.to_head, sink)
    }
}

/// Rejects gateway options that the protocol does not support.
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

/// Encodes the request as HTTP/1.1.
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
        if spec.url.protocol().is_http2() {
            check_http2_field(name, value)?;
        }
        field(name, value);
    }
    if !spec.keepalive && !given("connection") {
        field("Connection", "close");
        // A server may require a length for these methods even if the body is empty.
    }
    if !spec.body.is_empty() || matches!(spec.method.as_str(), "POST" | "PUT" | "PATCH") {
        field("Content-Length", &spec.body.len().to_string());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&spec.body);
    Ok(bytes)
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
        let why = format!("leave out the field {name}: HTTP/2 forbids it");
        return Err(Error::Invalid(why));
    }
    if name.eq_ignore_ascii_case("te") && value != "trailers" {
        return Err(Error::Invalid(format!("HTTP/2 allows only `{name}: trailers`, not {value}")));
    }
    Ok(())
}
