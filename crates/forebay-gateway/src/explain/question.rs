//! The request to explain: as typed, and as a listener would read it.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use forebay_conf::{HostPattern, Listen, Plan};
use forebay_net::head::Request;
use forebay_wire::ClientAddress;
use forebay_wire::http1::{Http1Limits, Progress, RequestFraming, RequestHead, RequestParser};

use super::{carried, printable};

/// A request to explain, as typed.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// `http://host[:port]/path?query`, or only path and query.
    pub url: &'a str,
    /// The method.
    pub method: &'a str,
    /// Header fields, each as `name: value`.
    pub fields: &'a [String],
    /// The body. If the fields lack the length or the type of the body, Forebay adds these fields.
    pub body: Option<&'a [u8]>,
}

/// Error in a question.
#[derive(Debug)]
pub struct QuestionError(String);

impl QuestionError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Returns the error for a question about a URL if the configuration has only streams.
    pub(super) fn without_sites() -> Self {
        Self::new("there is no site; ask for a stream: tcp://db.example.org:5432")
    }
}

impl fmt::Display for QuestionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuestionError {}

/// Parts of the question's URL.
pub(super) struct Url<'a> {
    /// `host[:port]`; `None` if only a path was given.
    pub(super) authority: Option<&'a str>,
    pub(super) port: u16,
    is_https: bool,
    pub(super) target: &'a str,
}

impl<'a> Url<'a> {
    /// Parses a URL or a path. A path is a request over HTTP to port 80 without a host. Returns an
    /// error for other texts.
    pub(super) fn parse(text: &'a str) -> Result<Self, QuestionError> {
        let wrong = |what: &str| {
            let example = "give a URL such as http://example.org/path or a path such as /path";
            QuestionError(format!("\"{}\" {what}; {example}", printable(text.as_bytes())))
        };
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("has a character that has to be percent-encoded"));
        }
        let text = text.split('#').next().unwrap_or_default();
        if text.starts_with('/') {
            return Ok(Self { authority: None, port: 80, is_https: false, target: text });
        }
        let (is_https, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => return Err(wrong("is not a URL")),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let port = match authority.rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => {
                port.parse().map_err(|_| wrong("has no valid port"))?
            }
            _ if is_https => 443,
            _ => 80,
        };
        if authority.is_empty() {
            return Err(wrong("names no host"));
        }
        Ok(Self { authority: Some(authority), port, is_https, target })
    }

    /// Returns the host if it is an IP address. Returns `None` for a name, and for a path without a
    /// host.
    fn ip(&self) -> Option<IpAddr> {
        let authority = self.authority?;
        let host = authority.parse::<SocketAddr>().map(|address| address.ip());
        host.ok().or_else(|| authority.trim_matches(['[', ']']).parse().ok())
    }
}

/// Returns the listener that would take the connection. If no listener fits, or the URL has no
/// host, returns the first listener of the first site. The second value is true if the URL has a
/// host, but no listener fits. A listener with port 0 fits every port, because the system chooses
/// the port.
pub(super) fn listener(plan: &Plan, url: &Url<'_>) -> (Listen, bool) {
    let all = || plan.sites.iter().flat_map(|site| &site.listen);
    let fits = |listen: &&Listen, exact: bool| match listen.socket() {
        // An AJP listener fits both schemes, because a web server may pass HTTP and HTTPS requests
        // to this listener.
        _ if !listen.is_ajp() && listen.is_https() != url.is_https => false,
        Listen::Tcp(address) => {
            let ip = address.ip();
            let of_ip = url.ip().is_none_or(|wanted| wanted == ip || ip.is_unspecified());
            (address.port() == url.port || address.port() == 0) && (of_ip || !exact)
        }
        Listen::Unix(_)
        | Listen::Named(_)
        | Listen::Https(_)
        | Listen::Ajp(_)
        | Listen::Stream(_)
        | Listen::Udp(_)
        | Listen::Http3(_) => false,
    };
    let found = url.authority.and_then(|_| {
        all().find(|listen| fits(listen, true)).or_else(|| all().find(|listen| fits(listen, false)))
    });
    match found {
        Some(listen) => (listen.clone(), false),
        None => (plan.sites[0].listen[0].clone(), url.authority.is_some()),
    }
}

/// Reads the request as a listener would. A path without a host belongs to the first site. Returns
/// an error if a listener would refuse the head.
pub(super) fn request(
    question: &Question<'_>,
    url: &Url<'_>,
    listen: &Listen,
    plan: &Plan,
) -> Result<Request, QuestionError> {
    let server = server(url, listen);
    let raw = written(question, url, server, plan)?;
    let head = parsed(&raw, question, plan)?;
    let peer = match listen.socket() {
        Listen::Unix(_) => ClientAddress::Unix,
        _ => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0).into(),
    };
    let mut request = Request::new(raw.into_bytes(), head, peer, server);
    request.https = listen.is_https() || listen.is_ajp() && url.is_https;
    Ok(request)
}

/// Returns the listener's address as the application would see it.
fn server(url: &Url<'_>, listen: &Listen) -> SocketAddr {
    match listen.socket() {
        Listen::Tcp(address) => {
            let ip = if address.ip().is_unspecified() { url.ip() } else { Some(address.ip()) };
            let port = if address.port() == 0 { url.port } else { address.port() };
            SocketAddr::new(ip.unwrap_or(Ipv4Addr::LOCALHOST.into()), port)
        }
        Listen::Unix(_)
        | Listen::Named(_)
        | Listen::Https(_)
        | Listen::Ajp(_)
        | Listen::Stream(_)
        | Listen::Udp(_)
        | Listen::Http3(_) => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0),
    }
}

/// Returns the head of the request as a client would send it: the request line and the fields.
/// Fails if a field contains a line end.
fn written(
    question: &Question<'_>,
    url: &Url<'_>,
    server: SocketAddr,
    plan: &Plan,
) -> Result<String, QuestionError> {
    let slash = if url.target.starts_with('/') { "" } else { "/" };
    let mut raw = format!("{} {slash}{} HTTP/1.1\r\n", question.method, url.target);
    let is_given = |name: &str| {
        let is_it = |field: &String| field.to_ascii_lowercase().starts_with(name);
        question.fields.iter().any(is_it)
    };
    if !is_given("host:") {
        let name = plan.sites[0].hosts.iter().find_map(|pattern| match pattern {
            HostPattern::Exact(name) => Some(name.clone()),
            _ => None,
        });
        let host = url.authority.map(str::to_owned).or(name).unwrap_or_else(|| server.to_string());
        let _ = write!(raw, "Host: {host}\r\n");
    }
    for field in question.fields {
        if field.contains(['\r', '\n']) {
            return Err(QuestionError("a header field is one line: \"name: value\"".into()));
        }
        let _ = write!(raw, "{field}\r\n");
    }
    if let Some(body) = question.body {
        if !is_given("content-type:") {
            let _ = write!(raw, "Content-Type: {}\r\n", carried::FORM);
        }
        if !is_given("content-length:") && !is_given("transfer-encoding:") {
            let _ = write!(raw, "Content-Length: {}\r\n", body.len());
        }
    }
    raw.push_str("\r\n");
    Ok(raw)
}

/// Parses the head of the request as a listener does. Returns an error if a listener would refuse
/// the head, or if the question's body has another length than `Content-Length` says.
fn parsed(raw: &str, question: &Question<'_>, plan: &Plan) -> Result<RequestHead, QuestionError> {
    let mut head = RequestHead::default();
    let get_body = plan.server.limits.get_body;
    let limits = Http1Limits { head: 1 << 20, fields: 1000, target: 1 << 19, get_body };
    match RequestParser::new(limits).parse(raw.as_bytes(), &mut head) {
        Ok(Progress::Complete(len)) if len == raw.len() => {}
        Ok(_) => return Err(QuestionError("this is not one request".into())),
        Err(error) => {
            let message = format!("such a request is refused with {}: {error}", error.status());
            return Err(QuestionError(message));
        }
    }
    if let (Some(body), RequestFraming::Length(declared)) = (question.body, head.framing)
        && body.len() as u64 != declared
    {
        let message = format!("Content-Length says {declared} bytes, the body has {}", body.len());
        return Err(QuestionError(message));
    }
    Ok(head)
}
