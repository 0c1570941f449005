//! Meta-variables of a request (RFC 3875 section 4.1).

use std::net::SocketAddr;

use crate::ClientAddress;
use crate::http1::{Claims, Disguises, Field, KnownField, RequestHead, Version, encode, position};

/// Receiver of variables, which encodes them for a protocol.
pub trait Sink {
    /// Receives one variable. Neither `name` nor `value` contains a NUL byte.
    fn variable(&mut self, name: &[u8], value: &[u8]);
}

/// Sequence of `name NUL value NUL`. Persistent workers get the variables in this encoding.
#[derive(Clone, Debug, Default)]
pub struct Block(pub Vec<u8>);

impl Sink for Block {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        self.0.extend_from_slice(name);
        self.0.push(0);
        self.0.extend_from_slice(value);
        self.0.push(0);
    }
}

impl Sink for Vec<(Vec<u8>, Vec<u8>)> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        self.push((name.to_vec(), value.to_vec()));
    }
}

/// Data from which the variables are made. All paths except `request_uri` are decoded.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The parsed head.
    pub head: &'a RequestHead,
    /// Buffer that contains the head's spans.
    pub bytes: &'a [u8],
    /// Path and query as the client sent them.
    pub request_uri: &'a [u8],
    /// Part of the path that names the script.
    pub script_name: &'a [u8],
    /// File of the script. If it is empty, the application has no script file, and variables that
    /// only scripts use are skipped.
    pub script_filename: &'a [u8],
    /// Part of the path after the script. It may be empty.
    pub path_info: &'a [u8],
    /// Root directory for paths (`DOCUMENT_ROOT`). It may be empty.
    pub document_root: &'a [u8],
    /// Decoded path without the query. It equals nginx's `$document_uri`.
    pub document_uri: &'a [u8],
    /// Length of the request body in bytes. `None` if the request has no body.
    pub content_length: Option<u64>,
    /// Address of the client.
    pub client: ClientAddress,
    /// Local address of the connection.
    pub server: SocketAddr,
    /// True if the client used TLS.
    pub https: bool,
    /// Further variables of the connection. Variables that start with `SSL_` have the names of
    /// Apache's mod_ssl, and are passed only if `https` is true. All others come from a web server
    /// that forwards requests to Forebay. `AUTH_TYPE` is the authentication scheme that this server
    /// used for `user`.
    pub connection: &'a [(&'static str, String)],
    /// Fields about the client and the requested URL that a trusted proxy has set.
    pub claims: Claims,
    /// User that Forebay, or a web server that forwards requests to it, has authenticated. Empty if
    /// there is no such user.
    pub user: &'a [u8],
}

/// Passes the variables of `request` to `sink`.
///
/// A field becomes a variable `HTTP_NAME`. Fields with equal names are joined with `", "`, but
/// cookies with `"; "`. These fields are skipped:
///
/// - `Content-Length` and `Content-Type`, which become variables without `HTTP_`.
/// - A field whose name the application could mistake for another field of the request, such as
///   `X_Real_IP` for `X-Real-IP` (see [`Disguises`]).
/// - `X-Forwarded-*` and similar fields, if the client may have forged them.
/// - `Proxy` (httpoxy), and `Transfer-Encoding`.
/// - `Authorization` with the client's password, if `user` is not empty.
pub fn variables(request: &Request<'_>, sink: &mut impl Sink) {
    let Request { head, bytes, .. } = *request;
    let target = head.path_and_query.of(bytes);
    let query = position(b'?', target).map_or(&b""[..], |at| &target[at + 1..]);
    let method = head.method.of(bytes);
    sink.variable(b"GATEWAY_INTERFACE", b"CGI/1.1");
    sink.variable(b"SERVER_SOFTWARE", b"Forebay");
    sink.variable(b"REQUEST_METHOD", method);
    sink.variable(b"REQUEST_URI", request.request_uri);
    sink.variable(b"QUERY_STRING", query);
    sink.variable(b"SCRIPT_NAME", request.script_name);
    let is_script = !request.script_filename.is_empty();
    if is_script {
        sink.variable(b"SCRIPT_FILENAME", request.script_filename);
        // php-cgi and php-fpm refuse to run without this variable (cgi.force_redirect).
        sink.variable(b"REDIRECT_STATUS", b"200");
    }
    if !request.path_info.is_empty() || !is_script {
        sink.variable(b"PATH_INFO", request.path_info);
    }
    if !request.path_info.is_empty() && is_script {
        let mut translated = request.document_root.to_vec();
        translated.extend_from_slice(request.path_info);
        sink.variable(b"PATH_TRANSLATED", &translated);
    }
    if !request.document_root.is_empty() {
        sink.variable(b"DOCUMENT_ROOT", request.document_root);
    }
    sink.variable(b"DOCUMENT_URI", request.document_uri);
    sink.variable(
        b"SERVER_PROTOCOL",
        match head.version {
            Version::Http10 => b"HTTP/1.0",
            Version::Http11 => b"HTTP/1.1",
            Version::Http2 => b"HTTP/2.0",
            Version::Http3 => b"HTTP/3.0",
        },
    );
    sink.variable(b"REQUEST_SCHEME", if request.https { b"https" } else { b"http" });
    if request.https {
        sink.variable(b"HTTPS", b"on");
    }
    let mut auth_type = None;
    for (name, value) in request.connection {
        match *name {
            "AUTH_TYPE" => auth_type = Some(value.as_str()),
            name if name.starts_with("SSL_") && !request.https => {}
            name => sink.variable(name.as_bytes(), value.as_bytes()),
        }
    }
    // This buffer is reused for addresses, numbers and names of fields.
    let mut text = Vec::with_capacity(64);
    addresses(request, &mut text, sink);
    if !request.user.is_empty() {
        let auth_type = auth_type.unwrap_or_else(|| head.auth_scheme(bytes));
        sink.variable(b"AUTH_TYPE", auth_type.as_bytes());
        sink.variable(b"REMOTE_USER", request.user);
    }
    if let Some(length) = request.content_length {
        number(b"CONTENT_LENGTH", length, &mut text, sink);
    } else if head.value(KnownField::ContentLength, bytes).is_some() {
        // The caller passes no body, although the head has `Content-Length`.
        sink.variable(b"CONTENT_LENGTH", b"0");
    }
    if let Some(content_type) = head.value(KnownField::ContentType, bytes) {
        sink.variable(b"CONTENT_TYPE", content_type);
    }
    header_fields(request, &mut text, sink);
}

fn addresses(request: &Request<'_>, text: &mut Vec<u8>, sink: &mut impl Sink) {
    let authority = request.head.authority.map(|span| span.of(request.bytes)).unwrap_or_default();
    encode::address(text, request.server.ip());
    let name = host_of(authority);
    sink.variable(b"SERVER_NAME", if name.is_empty() { text } else { name });
    sink.variable(b"SERVER_ADDR", text);
    let port = server_port(request.server, authority, request.https);
    number(b"SERVER_PORT", u64::from(port), text, sink);
    text.clear();
    request.client.append(text);
    sink.variable(b"REMOTE_ADDR", text);
    number(b"REMOTE_PORT", u64::from(request.client.port()), text, sink);
}

fn number(name: &[u8], value: u64, text: &mut Vec<u8>, sink: &mut impl Sink) {
    text.clear();
    encode::decimal(text, value);
    sink.variable(name, text);
}

/// Returns the port for `SERVER_PORT`: the port of the listener. If the listener is a Unix socket,
/// returns the port of `authority`, or the default port of the scheme.
pub fn server_port(server: SocketAddr, authority: &[u8], https: bool) -> u16 {
    if server.port() != 0 {
        return server.port();
    }
    requested_port(authority, https)
}

/// Returns the port of `authority`, or the default port of the scheme.
pub fn requested_port(authority: &[u8], https: bool) -> u16 {
    let typed = authority[host_of(authority).len()..].strip_prefix(b":");
    let port = typed.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    port.filter(|&port| port != 0).unwrap_or(if https { 443 } else { 80 })
}

/// Returns `authority` without its port.
fn host_of(authority: &[u8]) -> &[u8] {
    // Most authorities have no port, which `position` finds out faster.
    match position(b':', authority).and_then(|_| memchr::memrchr(b':', authority)) {
        Some(at) if authority[at + 1..].iter().all(u8::is_ascii_digit) => &authority[..at],
        _ => authority,
    }
}

fn header_fields(request: &Request<'_>, name: &mut Vec<u8>, sink: &mut impl Sink) {
    let Request { head, bytes, claims, user, .. } = *request;
    let mut joined = Vec::new();
    let mut has_joined = false;
    let disguises = Disguises::of(head, bytes);
    for (at, field) in head.fields.iter().enumerate() {
        let text = field.name.of(bytes);
        let is_same = |other: &&Field| {
            other.known == field.known
                && other.name.len() == text.len()
                && other.name.of(bytes).eq_ignore_ascii_case(text)
        };
        // If the user is already authenticated, applications do not get the password, as in Apache.
        let is_password = !user.is_empty()
            && field.known != KnownField::Gateway
            && text.eq_ignore_ascii_case(b"authorization");
        let has_own_variable =
            matches!(field.known, KnownField::ContentLength | KnownField::ContentType);
        let is_about_framing =
            matches!(field.known, KnownField::TransferEncoding | KnownField::Proxy);
        if has_own_variable
            || is_about_framing
            || is_password
            || claims.are_forged(field, head, bytes)
            || has_joined && head.fields[..at].iter().any(|other| is_same(&other))
        {
            continue;
        }
        name.clear();
        name.extend_from_slice(b"HTTP_");
        name.extend(text.iter().map(|&byte| IN_VARIABLE[usize::from(byte)]));
        if disguises.as_ref().is_some_and(|disguises| disguises.have(field)) {
            continue;
        }
        let mut others = head.fields[at + 1..].iter().filter(is_same).peekable();
        if others.peek().is_none() {
            // The host of an absolute target replaces `Host` (RFC 9112 section 3.2.2), so the
            // variable contains this host.
            let host = head.authority.filter(|_| field.known == KnownField::Host);
            sink.variable(name, host.unwrap_or(field.value).of(bytes));
            continue;
        }
        let separator: &[u8] = if name[..] == *b"HTTP_COOKIE" { b"; " } else { b", " };
        has_joined = true;
        joined.clear();
        joined.extend_from_slice(field.value.of(bytes));
        for other in others {
            joined.extend_from_slice(separator);
            joined.extend_from_slice(other.value.of(bytes));
        }
        sink.variable(name, &joined);
    }
}

/// Maps each byte of a field's name to the byte in the variable's name.
const IN_VARIABLE: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            letter if letter.is_ascii_alphanumeric() => letter.to_ascii_uppercase(),
            _ => b'_',
        };
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::RequestParser;

    fn of(raw: &str) -> Vec<(String, String)> {
        let mut head = RequestHead::default();
        RequestParser::default().parse(raw.as_bytes(), &mut head).unwrap();
        let request = Request {
            head: &head,
            bytes: raw.as_bytes(),
            request_uri: b"/cgi//x/more?a=b",
            script_name: b"/cgi/x",
            script_filename: b"/srv/cgi/x",
            path_info: b"/more",
            document_root: b"/srv",
            document_uri: b"/cgi/x/more",
            content_length: Some(0),
            client: ClientAddress::Ip("192.0.2.1:1234".parse().unwrap()),
            server: "[::ffff:127.0.0.1]:80".parse().unwrap(),
            https: true,
            connection: &[],
            claims: Claims::Nobodys,
            user: b"",
        };
        let mut pairs = Vec::new();
        variables(&request, &mut pairs);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        pairs.into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn value(pairs: &[(String, String)], name: &str) -> Option<String> {
        let mut found = pairs.iter().filter(|(n, _)| n == name);
        let value = found.next().map(|(_, value)| value.clone());
        assert!(found.next().is_none(), "{name} is given twice");
        value
    }

    #[test]
    fn variables_of_a_request() {
        let pairs = of(
            "POST /cgi/x/more?a=b HTTP/1.1\r\nHost: example.org:8080\r\nCookie: a=1\r\n\
            X-A: 1\r\ncookie: b=2\r\nx-a: 2\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n",
        );
        for (name, expected) in [
            ("QUERY_STRING", "a=b"),
            ("REQUEST_URI", "/cgi//x/more?a=b"),
            ("SERVER_NAME", "example.org"),
            ("SERVER_ADDR", "127.0.0.1"),
            ("SERVER_PORT", "80"),
            ("REMOTE_ADDR", "192.0.2.1"),
            ("PATH_TRANSLATED", "/srv/more"),
            ("CONTENT_TYPE", "text/plain"),
            ("CONTENT_LENGTH", "0"),
            ("HTTPS", "on"),
            ("HTTP_COOKIE", "a=1; b=2"),
            ("HTTP_X_A", "1, 2"),
            ("HTTP_HOST", "example.org:8080"),
        ] {
            assert_eq!(value(&pairs, name).as_deref(), Some(expected), "{name}");
        }
        assert_eq!(value(&pairs, "HTTP_CONTENT_TYPE"), None);
        assert_eq!(value(&pairs, "HTTP_CONTENT_LENGTH"), None);
    }

    #[test]
    fn the_port_on_a_unix_socket_is_that_of_the_host_or_the_scheme() {
        let unix = "0.0.0.0:0".parse().unwrap();
        for (authority, https, expected) in [
            ("example.org:8443", true, 8443),
            ("[::1]:81", false, 81),
            ("[::1]", false, 80),
            ("example.org", true, 443),
            ("example.org", false, 80),
            ("example.org:", true, 443),
            ("example.org:99999", false, 80),
            ("", false, 80),
        ] {
            assert_eq!(server_port(unix, authority.as_bytes(), https), expected, "{authority}");
        }
        assert_eq!(server_port("127.0.0.1:8080".parse().unwrap(), b"h:1", true), 8080);
    }

    #[test]
    fn names_that_fold_onto_others_and_proxy_are_dropped() {
        let pairs = of("GET / HTTP/1.1\r\nHost: h\r\nX_A: 1\r\nX-A: 2\r\nX.B: 1\r\nx_b: 2\r\n\
            Proxy: evil\r\nX_Forwarded_For: 1\r\nContent_Type: 1\r\nApi_Key: 4\r\nX-C: 3\r\n\r\n");
        let names: Vec<_> = pairs.iter().filter(|(n, _)| n.starts_with("HTTP_")).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert_eq!(value(&pairs, "HTTP_X_A").as_deref(), Some("2"));
        assert_eq!(value(&pairs, "HTTP_API_KEY").as_deref(), Some("4"));
    }
}
