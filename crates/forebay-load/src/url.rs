//! URLs of the load generator: `http://host[:port]/path` and `http+unix:///socket:/path`. Other
//! schemes than `http` are `https`, `h2c`, `grpc`, `grpcs`, `ws`, `wss`, `fcgi`, `scgi`, `uwsgi`,
//! `ajp` and `tcp`.

use std::fmt;
use std::path::PathBuf;

/// URL that the load generator can request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    text: String,
    protocol: Protocol,
    endpoint: Endpoint,
    host: String,
    target: String,
}

/// Protocol of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    /// HTTP/2 over cleartext, with prior knowledge.
    H2c,
    /// HTTP/2 over TLS, with ALPN.
    H2,
    /// HTTP/3, over QUIC.
    Http3,
    /// FastCGI, between a web server and an application.
    Fastcgi,
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi,
    /// AJP 1.3, between a web server and a servlet container.
    Ajp,
    /// WebSocket: messages over an upgraded HTTP/1.1 connection.
    Ws,
    /// WebSocket over TLS.
    Wss,
    /// gRPC, over HTTP/2 with prior knowledge.
    Grpc,
    /// gRPC over TLS.
    Grpcs,
    /// Fixed bytes, without a protocol.
    Tcp,
}

/// Address of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Host and port.
    Tcp {
        /// Host name or IP address, without the brackets of an IPv6 address.
        host: String,
        /// Port: the one in the URL, or the default port of the protocol.
        port: u16,
    },
    /// A Unix stream socket.
    Unix(PathBuf),
}

/// Reason why a URL was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// The scheme is unknown or missing. Contains the URL.
    Scheme(String),
    /// HTTP/2 is requested, but the URL has this protocol instead of HTTP.
    NotHttp(Protocol),
    /// HTTP/3 is requested, but the URL has this protocol instead of HTTPS.
    NotHttps(Protocol),
    /// HTTP/3 is requested for a Unix socket.
    NoUdp,
    /// The URL has a path in place of a host, such as the path of a socket.
    NoHost(Protocol),
    /// The host, port or socket path is malformed. The text says why.
    Authority(&'static str),
    /// The path or query is malformed. The text says why.
    Target(&'static str),
}

/// Maximum length of a socket path in bytes, which `sockaddr_un` imposes.
pub(crate) const SOCKET_PATH_LIMIT: usize = 107;

impl Url {
    /// Parses `text` strictly: an error that a browser would repair is reported.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(UrlError::Scheme(text.to_owned()));
        };
        let (name, is_unix) = match scheme.strip_suffix("+unix") {
            Some(name) => (name, true),
            None => (scheme, false),
        };
        let protocol = Protocol::of_scheme(name).ok_or(UrlError::Scheme(text.to_owned()))?;
        if !is_unix && rest.len() > 1 && rest.starts_with('/') {
            return Err(UrlError::NoHost(protocol));
        }
        let (endpoint, host, target) =
            if is_unix { split_unix(rest)? } else { split_tcp(rest, protocol.port())? };
        check_target(&target)?;
        if protocol == Protocol::Tcp {
            if matches!(endpoint, Endpoint::Tcp { port: 0, .. }) {
                return Err(UrlError::Authority("tcp:// has no default port: add :PORT"));
            }
            if target != "/" {
                return Err(UrlError::Target("tcp:// has no path"));
            }
        }
        Ok(Self { text: text.to_owned(), protocol, endpoint, host, target })
    }

    /// Returns the URL with another path and query, such as `/status?full`. Fails if `target` is
    /// not a valid path and query.
    pub fn with_target(&self, target: &str) -> Result<Self, UrlError> {
        if !target.starts_with('/') {
            return Err(UrlError::Target("it must begin with /"));
        }
        check_target(target)?;
        let scheme = self.protocol.scheme();
        let base = match self.text.split_once("+unix://") {
            Some((_, rest)) => {
                format!("{scheme}+unix://{}:", rest.split_once(":/").map_or(rest, |(path, _)| path))
            }
            None => format!("{scheme}://{}", self.host),
        };
        Ok(Self { text: base + target, target: target.to_owned(), ..self.clone() })
    }

    /// Returns the URL for HTTP/2: with ALPN for `https`, and with prior knowledge for `http`.
    /// Fails if the protocol is neither HTTP/1.1 nor HTTP/2.
    pub fn over_http2(self) -> Result<Self, UrlError> {
        match self.protocol {
            Protocol::Http | Protocol::H2c => Ok(Self { protocol: Protocol::H2c, ..self }),
            Protocol::Https | Protocol::H2 => Ok(Self { protocol: Protocol::H2, ..self }),
            other => Err(UrlError::NotHttp(other)),
        }
    }

    /// Returns the URL for HTTP/3. Fails if the URL is not an `https` URL with a host.
    pub fn over_http3(self) -> Result<Self, UrlError> {
        if matches!(self.endpoint, Endpoint::Unix(_)) {
            return Err(UrlError::NoUdp);
        }
        match self.protocol {
            Protocol::Https | Protocol::Http3 => Ok(Self { protocol: Protocol::Http3, ..self }),
            other => Err(UrlError::NotHttps(other)),
        }
    }

    /// Returns the URL for gRPC: over TLS for `https`, and with prior knowledge for `http`. Fails
    /// if the protocol is none of HTTP/1.1, HTTP/2 and gRPC.
    pub fn over_grpc(self) -> Result<Self, UrlError> {
        match self.protocol {
            Protocol::Http | Protocol::H2c | Protocol::Grpc => {
                Ok(Self { protocol: Protocol::Grpc, ..self })
            }
            Protocol::Https | Protocol::H2 | Protocol::Grpcs => {
                Ok(Self { protocol: Protocol::Grpcs, ..self })
            }
            other => Err(UrlError::NotHttp(other)),
        }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the address to connect to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns what distinguishes servers: the address of connections and, with TLS, the name in the
    /// handshake.
    pub(crate) fn server(&self) -> (&Endpoint, &str) {
        (&self.endpoint, if self.protocol.is_tls() { self.host_name() } else { "" })
    }

    /// Returns the address that the text of the URL names.
    pub(crate) fn own_endpoint(&self) -> Endpoint {
        match split_port(&self.host, self.protocol.port()) {
            Ok((host, port)) if !self.text.contains("+unix://") => {
                Endpoint::Tcp { host: host.to_owned(), port }
            }
            _ => self.endpoint.clone(),
        }
    }

    pub(crate) fn with_endpoint(self, endpoint: Endpoint) -> Self {
        Self { endpoint, ..self }
    }

    /// Returns the host name or address of the URL, without the brackets of an IPv6 address.
    pub(crate) fn host_name(&self) -> &str {
        split_port(&self.host, 1).map_or("localhost", |(name, _)| name)
    }

    /// Returns the value of the `Host` field: host and port as written in the URL, or `localhost`
    /// for a Unix socket.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns path and query, as the request line contains them.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Returns the text from which the URL was parsed.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Protocol {
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::H2 | Self::Http3 | Self::Wss | Self::Grpcs)
    }

    /// Returns true if the protocol is HTTP/2, or gRPC over HTTP/2.
    pub fn is_http2(self) -> bool {
        matches!(self, Self::H2c | Self::H2 | Self::Grpc | Self::Grpcs)
    }

    pub fn is_grpc(self) -> bool {
        matches!(self, Self::Grpc | Self::Grpcs)
    }

    /// Returns true if every connection of the protocol can carry several requests at once. Returns
    /// false for FastCGI, whose connections do this only if the load asks for several streams.
    pub fn has_streams(self) -> bool {
        self.is_http2() || self == Self::Http3
    }

    pub fn is_websocket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }

    /// All protocols. `of_scheme` takes the first match, so HTTP/2 over TLS and HTTP/3 must follow
    /// `Https`: all have the scheme `https`.
    const ALL: [Self; 14] = [
        Self::Http,
        Self::Https,
        Self::H2c,
        Self::H2,
        Self::Http3,
        Self::Fastcgi,
        Self::Scgi,
        Self::Uwsgi,
        Self::Ajp,
        Self::Ws,
        Self::Wss,
        Self::Grpc,
        Self::Grpcs,
        Self::Tcp,
    ];

    /// Returns the protocol whose `Display` text is `name`. Returns `None` if there is none.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.to_string() == name)
    }

    fn of_scheme(scheme: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.scheme() == scheme)
    }

    fn scheme(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https | Self::H2 | Self::Http3 => "https",
            Self::H2c => "h2c",
            Self::Fastcgi => "fcgi",
            Self::Scgi => "scgi",
            Self::Uwsgi => "uwsgi",
            Self::Ajp => "ajp",
            Self::Ws => "ws",
            Self::Wss => "wss",
            Self::Grpc => "grpc",
            Self::Grpcs => "grpcs",
            Self::Tcp => "tcp",
        }
    }

    /// Returns the default port. For HTTP, it is the port of the standard. For the other protocols,
    /// it is the port in the manual of php-fpm, SCGI, uWSGI or Tomcat. Returns 0 for `tcp`, which
    /// has no default port.
    fn port(self) -> u16 {
        match self {
            Self::Http | Self::H2c | Self::Ws | Self::Grpc => 80,
            Self::Https | Self::H2 | Self::Http3 | Self::Wss | Self::Grpcs => 443,
            Self::Tcp => 0,
            Self::Fastcgi => 9000,
            Self::Scgi => 4000,
            Self::Uwsgi => 3031,
            Self::Ajp => 8009,
        }
    }
}

fn split_tcp(rest: &str, default: u16) -> Result<(Endpoint, String, String), UrlError> {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    let target = if target.starts_with('/') { target.into() } else { format!("/{target}") };
    if authority.contains('@') {
        let hint = "user and password do not belong there; use -H 'Authorization: ...'";
        return Err(UrlError::Authority(hint));
    }
    let (host, port) = split_port(authority, default)?;
    let endpoint = Endpoint::Tcp { host: host.to_owned(), port };
    Ok((endpoint, authority.to_owned(), target))
}

/// Splits an authority into host and port. The brackets of an IPv6 address are removed. Without a
/// port, returns `default`.
pub(crate) fn split_port(authority: &str, default: u16) -> Result<(&str, u16), UrlError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) =
                rest.split_once(']').ok_or(UrlError::Authority("a ] is missing"))?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| UrlError::Authority("the brackets do not contain an IPv6 address"))?;
            (host, after)
        }
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            let named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
            if host.is_empty() || !host.bytes().all(named) {
                return Err(UrlError::Authority("a host name or address is missing"));
            }
            (host, port)
        }
    };
    if port.is_empty() {
        return Ok((host, default));
    }
    let digits = port.strip_prefix(':').unwrap_or("");
    match digits.parse() {
        Ok(port) if port > 0 && digits.bytes().all(|b| b.is_ascii_digit()) => Ok((host, port)),
        _ => Err(UrlError::Authority("the port must be a number from 1 to 65535")),
    }
}

fn split_unix(rest: &str) -> Result<(Endpoint, String, String), UrlError> {
    let (path, target) = match rest.find(":/") {
        Some(colon) => (&rest[..colon], &rest[colon + 1..]),
        None => (rest, "/"),
    };
    if !path.starts_with('/') {
        return Err(UrlError::Authority("write SCHEME+unix:///path/to/socket:/path"));
    }
    if path.len() > SOCKET_PATH_LIMIT || path.contains('\0') {
        return Err(UrlError::Authority("a socket path has at most 107 bytes and no NUL"));
    }
    Ok((Endpoint::Unix(path.into()), "localhost".to_owned(), target.to_owned()))
}

fn check_target(target: &str) -> Result<(), UrlError> {
    if target.contains('#') {
        return Err(UrlError::Target("leave out the part from #, which is never sent"));
    }
    if !target.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(UrlError::Target("write spaces and non-ASCII characters as %20 and the like"));
    }
    Ok(())
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http/1.1",
            Self::Https => "http/1.1 over TLS",
            Self::H2 => "h2",
            Self::H2c => "h2c",
            Self::Http3 => "h3",
            Self::Fastcgi => "fastcgi",
            Self::Scgi => "scgi",
            Self::Uwsgi => "uwsgi",
            Self::Ajp => "ajp",
            Self::Ws => "websocket",
            Self::Wss => "websocket over TLS",
            Self::Grpc => "grpc",
            Self::Grpcs => "grpc over TLS",
            Self::Tcp => "tcp",
        })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme(text) => write!(
                f,
                "{text:?} does not begin with a known scheme; write http://HOST:PORT/PATH or \
                 http+unix:///SOCKET:/PATH, or https, h2c, grpc, grpcs, ws, wss, fcgi, scgi, uwsgi, ajp or tcp in \
                 place of http"
            ),
            Self::NotHttp(protocol) => {
                write!(
                    f,
                    "HTTP/2 and gRPC are for http://, https:// and h2c://, but the URL is for {protocol}"
                )
            }
            Self::NotHttps(protocol) => {
                write!(f, "HTTP/3 is for https:// URLs, but the URL is for {protocol}")
            }
            Self::NoUdp => f.write_str("HTTP/3 needs a host and port, because it uses UDP"),
            Self::NoHost(protocol) => {
                let scheme = protocol.scheme();
                let path = if *protocol == Protocol::Tcp { "" } else { ":/PATH" };
                write!(
                    f,
                    "a host name or address is missing; for a Unix socket, write \
                     {scheme}+unix:///SOCKET{path}"
                )
            }
            Self::Authority(what) => write!(f, "the host part is malformed: {what}"),
            Self::Target(what) => write!(f, "the path is malformed: {what}"),
        }
    }
}

impl std::error::Error for UrlError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn http_parts() {
        let url = Url::parse("http://127.0.0.1:8080/a/b?c=d").unwrap();
        assert_eq!(url.endpoint(), &tcp("127.0.0.1", 8080));
        assert_eq!((url.host(), url.target()), ("127.0.0.1:8080", "/a/b?c=d"));
        let bare = Url::parse("http://example.org").unwrap();
        assert_eq!((bare.endpoint(), bare.target()), (&tcp("example.org", 80), "/"));
        assert_eq!(Url::parse("http://h?q").unwrap().target(), "/?q");
    }

    #[test]
    fn ipv6_in_brackets() {
        let url = Url::parse("http://[::1]:81/").unwrap();
        assert_eq!(url.endpoint(), &tcp("::1", 81));
        assert_eq!((url.host(), url.endpoint().to_string()), ("[::1]:81", "[::1]:81".into()));
    }

    #[test]
    fn unix_socket_and_path() {
        let url = Url::parse("http+unix:///run/app.sock:/status?x").unwrap();
        assert_eq!(url.endpoint(), &Endpoint::Unix("/run/app.sock".into()));
        assert_eq!((url.host(), url.target()), ("localhost", "/status?x"));
        assert_eq!(Url::parse("http+unix:///run/app.sock").unwrap().target(), "/");
    }

    #[test]
    fn other_protocols_have_ports_of_their_own() {
        let url = Url::parse("fcgi://h/x.php?y").unwrap();
        assert_eq!((url.protocol(), url.endpoint()), (Protocol::Fastcgi, &tcp("h", 9000)));
        let url = Url::parse("scgi+unix:///run/s:/x").unwrap();
        assert_eq!(url.endpoint(), &Endpoint::Unix("/run/s".into()));
        assert_eq!(url.with_target("/y").unwrap().as_str(), "scgi+unix:///run/s:/y");
        assert_eq!(Url::parse("uwsgi://h:1").unwrap().protocol(), Protocol::Uwsgi);
    }

    #[test]
    fn tls_has_a_scheme_and_http2_over_it_is_asked_for() {
        let url = Url::parse("https://h/x").unwrap();
        assert_eq!((url.protocol(), url.endpoint()), (Protocol::Https, &tcp("h", 443)));
        let url = url.over_http2().unwrap();
        assert_eq!(url.protocol(), Protocol::H2);
        assert_eq!(url.with_target("/y").unwrap().as_str(), "https://h/y");
        assert_eq!(url.clone().over_http2(), Ok(url));
    }

    #[test]
    fn http2_has_a_scheme_of_its_own_or_is_asked_for() {
        let url = Url::parse("h2c://h/x").unwrap();
        assert_eq!((url.protocol(), url.endpoint()), (Protocol::H2c, &tcp("h", 80)));
        assert_eq!(url.clone().over_http2(), Ok(url));
        let url = Url::parse("http+unix:///run/s:/x").unwrap().over_http2().unwrap();
        assert_eq!(url.protocol().to_string(), "h2c");
        let error = Url::parse("fcgi://h/").unwrap().over_http2().unwrap_err();
        assert_eq!(error, UrlError::NotHttp(Protocol::Fastcgi));
    }

    #[test]
    fn http3_is_for_https_with_a_port() {
        let url = Url::parse("https://h:1/x").unwrap().over_http3().unwrap();
        assert_eq!((url.protocol().to_string(), url.as_str()), ("h3".into(), "https://h:1/x"));
        assert!(url.protocol().is_tls() && url.protocol().has_streams());
        assert_eq!(url.clone().over_http3(), Ok(url));
        assert_eq!(Protocol::named("h3"), Some(Protocol::Http3));
        let over = |text: &str| Url::parse(text).unwrap().over_http3();
        assert_eq!(over("http://h/"), Err(UrlError::NotHttps(Protocol::Http)));
        assert_eq!(over("h2c://h/"), Err(UrlError::NotHttps(Protocol::H2c)));
        assert_eq!(over("https+unix:///s:/"), Err(UrlError::NoUdp));
    }

    #[test]
    fn another_target_on_the_same_server() {
        let url = Url::parse("http://h:1/x").unwrap().with_target("/y?z").unwrap();
        assert_eq!((url.as_str(), url.target()), ("http://h:1/y?z", "/y?z"));
        let url = Url::parse("http+unix:///s:/x").unwrap().with_target("/y").unwrap();
        assert_eq!(url, Url::parse("http+unix:///s:/y").unwrap());
        assert!(url.with_target("y").is_err());
    }

    #[test]
    fn websocket_has_schemes_of_its_own() {
        for (scheme, port) in [("ws", 80), ("wss", 443)] {
            let url = Url::parse(&format!("{scheme}://h/x")).unwrap();
            assert_eq!((url.endpoint(), url.protocol().is_websocket()), (&tcp("h", port), true));
            assert!(url.over_http2().is_err());
        }
    }

    #[test]
    fn grpc_and_raw_bytes_have_schemes_of_their_own() {
        for (grpc, http, port) in [("grpc", "http", 80), ("grpcs", "https", 443)] {
            let url = Url::parse(&format!("{grpc}://h/a.B/C")).unwrap();
            assert_eq!((url.endpoint(), url.target()), (&tcp("h", port), "/a.B/C"));
            let other = Url::parse(&format!("{http}://h/a.B/C")).unwrap().over_grpc().unwrap();
            assert_eq!(other.protocol(), url.protocol());
            assert!(url.protocol().is_http2() && url.over_http2().is_err());
        }
        assert_eq!(Url::parse("tcp://h:7").unwrap().endpoint(), &tcp("h", 7));
        assert_eq!(
            Url::parse("tcp+unix:///run/s").unwrap().endpoint(),
            &Endpoint::Unix("/run/s".into())
        );
        for wrong in ["tcp://h", "tcp://h:7/x", "tcp+unix:///run/s:/x"] {
            assert!(Url::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_in_place_of_a_host_gets_the_form_for_sockets() {
        for (scheme, path) in [
            ("fcgi", ":/PATH"),
            ("scgi", ":/PATH"),
            ("uwsgi", ":/PATH"),
            ("ajp", ":/PATH"),
            ("http", ":/PATH"),
            ("h2c", ":/PATH"),
            ("tcp", ""),
        ] {
            let error = Url::parse(&format!("{scheme}:///run/x.sock")).unwrap_err().to_string();
            let form = format!("write {scheme}+unix:///SOCKET{path}");
            assert!(error.ends_with(&form), "{error}");
            let url = form.trim_start_matches("write ");
            assert!(matches!(Url::parse(url).unwrap().endpoint(), Endpoint::Unix(_)));
        }
    }

    #[test]
    fn malformed_is_refused() {
        for text in [
            "",
            "localhost:8080/",
            "ftp://h/",
            "http://",
            "http:///x",
            "http://:80/",
            "http://u:p@h/",
            "http://h:0/",
            "http://h:65536/",
            "http://h:+1/",
            "http://h:/",
            "http://h:1:2/",
            "http://h /",
            "http://[::1/",
            "http://[h]/",
            "http://[::1]x/",
            "http://h/a b",
            "http://h/\r\nX: y",
            "http://h/é",
            "http://h/#top",
            "http+unix://run/app.sock",
            "http+unix://",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
        let long = format!("http+unix:///{}", "x".repeat(107));
        assert!(Url::parse(&long).is_err());
    }
}
