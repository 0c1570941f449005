//! Fills in the placeholders of a template with the values of a request.
//!
//! Most values come from the client. Each use of a template escapes them for its context. Therefore
//! no value can end a field line, begin a query, or become a tag of a page.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};

use forebay_conf::{Placeholder, Template, TemplatePart, ValueMap};
use forebay_wire::cgi::server_port;
use forebay_wire::cookies;
use forebay_wire::forms::{self, Dialect};
use forebay_wire::http1::{encode, host_of};
use forebay_wire::path;

use crate::head::Request;

/// The context of the values of a template. The context determines how the values are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// The value of a header field or a log line. Control characters are percent-encoded.
    Field,
    /// A path with a query, or a URL. Characters that would end the path or a parameter are
    /// percent-encoded.
    Target,
    /// The text of an HTML page.
    Html,
    /// A string of a JSON document.
    Json,
    /// A part of a key. Different values have different texts, and no text contains a NUL.
    Exact,
}

/// The part of a URL that receives the next value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UrlPart {
    Path,
    /// The query or the fragment. Contains true if the next value begins a parameter.
    Query(bool),
}

/// Maximum length in bytes of a request identifier of a trusted proxy.
const LONGEST_ID: usize = 128;

impl Request {
    /// Appends the text of `template` with the values of this request. Allocates nothing for a
    /// template without placeholders.
    pub fn fill(&self, template: &Template, escape: Escape, out: &mut Vec<u8>) {
        let mut place = UrlPart::Path;
        for part in template.parts() {
            match part {
                TemplatePart::Text(text) => {
                    out.extend_from_slice(text.as_bytes());
                    place = place.after(text.as_bytes());
                }
                TemplatePart::Value(value) => {
                    let start = out.len();
                    self.append(value, escape, place, out);
                    if *value == Placeholder::Uri && escape == Escape::Target {
                        place = place.after(&out[start..]);
                    } else if let UrlPart::Query(_) = place {
                        place = UrlPart::Query(false);
                    }
                }
            }
        }
    }

    /// Appends the text of an error page. Only error pages have the placeholders for `status` and
    /// its reason phrase.
    pub fn fill_page(&self, page: &Template, status: u16, escape: Escape, out: &mut Vec<u8>) {
        for part in page.parts() {
            match part {
                TemplatePart::Text(text) => out.extend_from_slice(text.as_bytes()),
                TemplatePart::Value(Placeholder::Status) => {
                    encode::decimal(out, u64::from(status));
                }
                TemplatePart::Value(Placeholder::Reason) => {
                    out.extend_from_slice(encode::reason_phrase(status).as_bytes());
                }
                TemplatePart::Value(value) => self.append(value, escape, UrlPart::Path, out),
            }
        }
    }

    fn append(&self, value: &Placeholder, escape: Escape, place: UrlPart, out: &mut Vec<u8>) {
        let target = self.target();
        let encoded: Cow<'_, [u8]> = match value {
            Placeholder::Path => self.encoded_path(),
            Placeholder::Rest => self.encoded_rest(),
            Placeholder::Prefix => {
                let prefix = self.path[..self.rest.start].strip_suffix(b"/");
                encode_path(prefix.unwrap_or(&self.path[..self.rest.start])).into()
            }
            Placeholder::Query => self.query().unwrap_or_default().into(),
            Placeholder::Uri => target.into(),
            Placeholder::Map(map) => return self.append_mapped(map, escape, place, out),
            _ => return self.append_plain(value, escape, place, out),
        };
        let is_path = !matches!(value, Placeholder::Query | Placeholder::Uri);
        match (escape, place) {
            (Escape::Target, UrlPart::Query(begins)) => match is_path {
                // The path is already encoded, so do not escape its `%`. An application then gets
                // the path after one decoding.
                true => append_parameter(&encoded, true, out),
                false if begins && *value == Placeholder::Query => append_escaped(&encoded, out),
                false => append_parameter(&encoded, false, out),
            },
            (Escape::Target | Escape::Field, _) => append_escaped(&encoded, out),
            (Escape::Exact, _) => append_exact(&encoded, out),
            (Escape::Html | Escape::Json, _) => append_for(escape, &encoded, out),
        }
    }

    /// Appends the value of a table [map.NAME] for this request. Maps contain no maps, so the depth
    /// is bounded.
    fn append_mapped(&self, map: &ValueMap, escape: Escape, place: UrlPart, out: &mut Vec<u8>) {
        for part in self.mapped(map).parts() {
            match part {
                TemplatePart::Text(text) => append_escaped_for(escape, place, text.as_bytes(), out),
                TemplatePart::Value(value) => self.append(value, escape, place, out),
            }
        }
    }

    /// Returns the value of a table [map.NAME] for this request. Looks up decoded paths, and hosts
    /// in lower case, so that all spellings of a resource have one value.
    pub fn mapped<'m>(&self, map: &'m ValueMap) -> &'m Template {
        let mut key = Vec::new();
        map.from.parts().iter().for_each(|part| self.append_normalized(part, &mut key));
        map.value(&key)
    }

    /// Appends the value of a template's part. Paths are decoded, and hosts are in lower case, so
    /// that equal resources give equal bytes.
    pub fn append_normalized(&self, part: &TemplatePart, key: &mut Vec<u8>) {
        match part {
            TemplatePart::Text(text) => key.extend_from_slice(text.as_bytes()),
            TemplatePart::Value(Placeholder::Path) => key.extend_from_slice(&self.path),
            TemplatePart::Value(Placeholder::Rest) => key.extend_from_slice(self.rest()),
            TemplatePart::Value(Placeholder::Prefix) => {
                let prefix = &self.path[..self.rest.start];
                key.extend_from_slice(prefix.strip_suffix(b"/").unwrap_or(prefix));
            }
            TemplatePart::Value(Placeholder::Host) => {
                key.extend(self.plain_host().unwrap_or_default().to_ascii_lowercase());
            }
            TemplatePart::Value(Placeholder::BareHost) => {
                key.extend(self.bare_host().to_ascii_lowercase());
            }
            TemplatePart::Value(value) => self.append(value, Escape::Field, UrlPart::Path, key),
        }
    }

    /// Appends a value that is not percent-encoded.
    fn append_plain(&self, value: &Placeholder, escape: Escape, place: UrlPart, out: &mut Vec<u8>) {
        let bytes = &self.bytes;
        let authority = self.head.authority.map(|span| span.of(bytes)).unwrap_or_default();
        let plain: Cow<'_, [u8]> = match value {
            // An address, a number and hexadecimal digits need no escapes in any context.
            Placeholder::Client => return self.client.append(out),
            Placeholder::ClientPort => {
                return encode::decimal(out, u64::from(self.client.port()));
            }
            Placeholder::Scheme => Cow::Borrowed(if self.https { b"https" } else { b"http" }),
            Placeholder::Host => {
                // Do not escape a host, because `[::1]` is a valid host.
                return out.extend_from_slice(self.plain_host().unwrap_or_default());
            }
            Placeholder::BareHost => return out.extend_from_slice(self.bare_host()),
            Placeholder::Port => {
                let port = server_port(self.server, authority, self.https);
                return encode::decimal(out, u64::from(port));
            }
            Placeholder::RequestedPort => {
                // The port has only digits, as the parser of the head has checked.
                let port = authority.strip_prefix(host_of(authority)).unwrap_or_default();
                return out.extend_from_slice(port);
            }
            Placeholder::Method => self.method().into(),
            Placeholder::User => self.user[..].into(),
            Placeholder::RequestId => self.id().into(),
            Placeholder::TraceId | Placeholder::SpanId => {
                return match (&self.trace, value) {
                    (None, _) => {}
                    (Some(trace), Placeholder::TraceId) => trace.append_trace_id(out),
                    (Some(trace), _) => trace.append_span_id(out),
                };
            }
            Placeholder::Country(geo) => {
                let code = self.client.ip().and_then(|client| geo.country(client));
                return out
                    .extend(code.unwrap_or_default().into_iter().filter(u8::is_ascii_uppercase));
            }
            Placeholder::Asn(geo) => {
                let number = self.client.ip().and_then(|client| geo.asn(client));
                return number.map_or((), |number| encode::decimal(out, number.into()));
            }
            Placeholder::TlsSubject => self.certificate_subject().as_bytes().into(),
            Placeholder::Capture(group) => self.captures.of(*group).into(),
            Placeholder::Header(name) => self.joined_field(name),
            Placeholder::Cookie(name) => self.cookie(name).unwrap_or_default().into(),
            Placeholder::Parameter(name) => self.parameter(name).unwrap_or_default(),
            // The remaining placeholders have values only in error pages.
            _ => return,
        };
        append_escaped_for(escape, place, &plain, out);
    }

    /// Returns the percent-encoded path that a backend receives. If a route has replaced the path,
    /// encodes the new path.
    fn encoded_path(&self) -> Cow<'_, [u8]> {
        if self.is_rerouted {
            return encode_path(&self.path).into();
        }
        let target = self.target();
        target[..memchr::memchr(b'?', target).unwrap_or(target.len())].into()
    }

    fn encoded_rest(&self) -> Cow<'_, [u8]> {
        let taken = &self.path[..self.rest.start];
        let rest = match self.encoded_path() {
            Cow::Borrowed(path) => path::strip_prefix(path, taken).map(Cow::Borrowed),
            Cow::Owned(_) => None,
        };
        rest.unwrap_or_else(|| encode_path(self.rest()).into())
    }

    /// Returns the requested host without its port. Returns `None` if there is no host, or if a URL
    /// cannot contain this host.
    pub fn plain_host(&self) -> Option<&[u8]> {
        let authority = self.head.authority.map(|span| span.of(&self.bytes));
        let host = host_of(authority.unwrap_or_default());
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._[:]".contains(byte);
        (!host.is_empty() && host.iter().all(is_plain)).then_some(host)
    }

    /// Returns [`Self::plain_host`] without `www.` at its beginning. `www.example` stays as it is,
    /// because `example` alone would be a top-level domain.
    fn bare_host(&self) -> &[u8] {
        let host = self.plain_host().unwrap_or_default();
        match host.split_at_checked(4) {
            Some((www, rest)) if www.eq_ignore_ascii_case(b"www.") && rest.contains(&b'.') => rest,
            _ => host,
        }
    }

    /// Returns the subject of the client's certificate. The text is empty if the client sent no
    /// certificate.
    pub fn certificate_subject(&self) -> &str {
        let mut variables = self.connection_variables().iter();
        let subject = variables.find(|(name, _)| *name == "SSL_CLIENT_S_DN");
        subject.map_or("", |(_, subject)| subject)
    }

    /// Returns the identifier of the request: the one that a trusted proxy sent in `X-Request-Id`,
    /// or else a random one.
    pub fn id(&self) -> &[u8] {
        self.request_id.get_or_init(|| {
            let of_proxy = Some(self.joined_field("X-Request-Id"));
            let of_proxy = of_proxy.filter(|id| self.is_peer_trusted && is_request_id(id));
            of_proxy.map_or_else(new_id, |id| id.into_owned().into_boxed_slice())
        })
    }

    /// Returns the values of all fields with this name, joined by `, ` (cookies by `; `).
    pub fn joined_field(&self, name: &str) -> Cow<'_, [u8]> {
        let fields = self.head.fields.iter();
        let named = fields
            .filter(|field| field.name.of(&self.bytes).eq_ignore_ascii_case(name.as_bytes()))
            .map(|field| field.value.of(&self.bytes));
        let separator: &[u8] = if name.eq_ignore_ascii_case("cookie") { b"; " } else { b", " };
        let mut joined = Cow::Borrowed(&b""[..]);
        for (number, value) in named.enumerate() {
            if number == 0 {
                joined = Cow::Borrowed(value);
            } else {
                let joined = joined.to_mut();
                joined.extend_from_slice(separator);
                joined.extend_from_slice(value);
            }
        }
        joined
    }

    /// Returns the identifier of the request, or `None` if no template has used it.
    pub(crate) fn known_id(&self) -> Option<&[u8]> {
        self.request_id.get().map(|id| &**id)
    }

    /// Returns the value of the first cookie with this name, or `None` if there is no such cookie.
    pub fn cookie(&self, name: &str) -> Option<&[u8]> {
        let fields = self.head.fields.iter();
        let mut lines = fields
            .filter(|field| field.name.of(&self.bytes).eq_ignore_ascii_case(b"cookie"))
            .map(|field| field.value.of(&self.bytes));
        lines.find_map(|line| Some(cookies::find(line, name.as_bytes())?.unquoted()))
    }

    /// Returns the decoded value of the first parameter of the query with this name, or `None` if
    /// there is no such parameter.
    pub fn parameter(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut pairs = forms::pairs(self.query()?, Dialect::Whatwg);
        let pair = pairs.find(|pair| forms::decode(pair.name)[..] == *name.as_bytes())?;
        Some(forms::decode(pair.value))
    }
}

/// Appends plain text, escaped for its context.
fn append_escaped_for(escape: Escape, place: UrlPart, plain: &[u8], out: &mut Vec<u8>) {
    match (escape, place) {
        (Escape::Target, UrlPart::Path) => encode_path_onto(plain, out),
        (Escape::Target, UrlPart::Query(_)) => append_parameter(plain, false, out),
        (Escape::Field, _) => append_field_value(plain, out),
        (Escape::Exact, _) => append_exact(plain, out),
        (escape, _) => append_for(escape, plain, out),
    }
}

impl UrlPart {
    /// Returns the part of the URL that follows `text`, if `text` begins in the part `self`.
    fn after(self, text: &[u8]) -> Self {
        let is_query = matches!(self, Self::Query(_)) || text.iter().any(|b| b"?#".contains(b));
        match text.last() {
            Some(b'?' | b'&') if is_query => Self::Query(true),
            None => self,
            _ if is_query => Self::Query(false),
            _ => Self::Path,
        }
    }
}

fn is_request_id(id: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.+/=:@".contains(byte);
    !id.is_empty() && id.len() <= LONGEST_ID && id.iter().all(is_plain)
}

/// Returns a random identifier of 128 bits, in hexadecimal digits.
fn new_id() -> Box<[u8]> {
    // Each `RandomState` of the standard library has a new random key.
    let half = |number: u64| RandomState::new().hash_one(number);
    format!("{:016x}{:016x}", half(0), half(1)).into_bytes().into_boxed_slice()
}

/// True for each byte that a URL may contain.
const IN_URL: [bool; 256] = {
    const NOT: &[u8] = b"\"<>\\^`{|}#";
    let mut is_in_url = [false; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        is_in_url[byte as usize] = true;
        byte += 1;
    }
    let mut at = 0;
    while at < NOT.len() {
        is_in_url[NOT[at] as usize] = false;
        at += 1;
    }
    is_in_url
};

/// Appends bytes that are already percent-encoded. Percent-encodes bytes that a URL must not
/// contain.
pub fn append_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    append_except(bytes, out, |byte| IN_URL[usize::from(byte)]);
}

/// Percent-encodes a decoded path.
pub fn encode_path(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    encode_path_onto(path, &mut out);
    out
}

fn encode_path_onto(path: &[u8], out: &mut Vec<u8>) {
    append_except(path, out, |byte| {
        byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(&byte)
    });
}

/// Percent-encodes a part of a parameter's value in a query. If `is_encoded` is true, existing
/// escapes remain.
fn append_parameter(bytes: &[u8], is_encoded: bool, out: &mut Vec<u8>) {
    append_except(bytes, out, |byte| {
        byte.is_ascii_alphanumeric() || b"/-._~:@,".contains(&byte) || is_encoded && byte == b'%'
    });
}

/// Appends a value of a header field. Percent-encodes control characters, so that the value is one
/// line.
fn append_field_value(bytes: &[u8], out: &mut Vec<u8>) {
    append_except(bytes, out, |byte| !byte.is_ascii_control());
}

/// Appends bytes in an unambiguous encoding without NUL: `\0` -> `\1\2`, `\1` -> `\1\1`.
pub fn append_exact(bytes: &[u8], out: &mut Vec<u8>) {
    if memchr::memchr2(0, 1, bytes).is_none() {
        return out.extend_from_slice(bytes);
    }
    for &byte in bytes {
        match byte {
            0 => out.extend_from_slice(&[1, 2]),
            1 => out.extend_from_slice(&[1, 1]),
            byte => out.push(byte),
        }
    }
}

fn append_except(bytes: &[u8], out: &mut Vec<u8>, is_kept: impl Fn(u8) -> bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut rest = bytes;
    loop {
        let kept = rest.iter().position(|&byte| !is_kept(byte)).unwrap_or(rest.len());
        out.extend_from_slice(&rest[..kept]);
        let Some(&byte) = rest.get(kept) else { return };
        out.extend_from_slice(&[
            b'%',
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]);
        rest = &rest[kept + 1..];
    }
}

/// Appends text with the escapes for an HTML page or a JSON string.
fn append_for(escape: Escape, bytes: &[u8], out: &mut Vec<u8>) {
    for c in String::from_utf8_lossy(bytes).chars() {
        let mut buffer = [0; 4];
        let escaped: Cow<'_, str> = match (escape, c) {
            (Escape::Html, '&') => "&amp;".into(),
            (Escape::Html, '<') => "&lt;".into(),
            (Escape::Html, '>') => "&gt;".into(),
            (Escape::Html, '"') => "&quot;".into(),
            (Escape::Html, '\'') => "&#39;".into(),
            (Escape::Html, '`') => "&#96;".into(),
            (Escape::Json, '"' | '\\' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}') => {
                format!("\\u{:04x}", c as u32).into()
            }
            (Escape::Json, c) if c.is_control() => format!("\\u{:04x}", c as u32).into(),
            (_, c) if c.is_control() => "\u{fffd}".into(),
            (_, c) => Cow::Borrowed(c.encode_utf8(&mut buffer)),
        };
        out.extend_from_slice(escaped.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use forebay_conf::Scope;
    use forebay_wire::http1::{RequestHead, RequestParser};

    use super::*;

    fn request(target: &str, fields: &str) -> Request {
        let raw = format!("GET {target} HTTP/1.1\r\nHost: Www.example:8080\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        RequestParser::default().parse(raw.as_bytes(), &mut head).unwrap();
        let address: SocketAddr = "192.0.2.7:4000".parse().unwrap();
        let server: SocketAddr = "10.0.0.1:81".parse().unwrap();
        let mut request = Request::new(raw.into_bytes(), head, address.into(), server);
        request
            .prepare_path(forebay_conf::EncodedSlashes::Pass, forebay_wire::path::Slashes::Merge)
            .unwrap();
        request.rest = 1..request.path.len();
        request
    }

    fn capture(request: &mut Request, group: std::ops::Range<usize>) {
        request.captures.path = request.path.clone();
        request.captures.groups.push(group);
    }

    fn filled(request: &Request, text: &str, escape: Escape) -> String {
        let captures = ["cap".to_owned()];
        let scope = Scope { captures: &captures, ..Scope::default() };
        let mut out = Vec::new();
        request.fill(&Template::parse(text, scope).unwrap(), escape, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_placeholder_has_its_value() {
        let fields = "X-A: one\r\nx-a: two\r\nCookie: a=1; b=\"2\"\r\n";
        let mut request = request("/api/x%20y?q=a%26b&r", fields);
        request.rest = 5..request.path.len();
        request.user = b"jim".to_vec();
        capture(&mut request, 1..4);
        for (text, value) in [
            ("{client}", "192.0.2.7"),
            ("{client_port}", "4000"),
            ("{scheme}://{host}:{port}{requested_port}", "http://Www.example:81:8080"),
            ("{method}", "GET"),
            ("{path}", "/api/x%20y"),
            ("{query}", "q=a%26b&r"),
            ("{uri}", "/api/x%20y?q=a%26b&r"),
            ("{rest}", "x%20y"),
            ("{prefix}", "/api"),
            ("{user}", "jim"),
            ("{tls.subject}", ""),
            ("{cap}", "api"),
            ("{header.X-A}", "one, two"),
            ("{cookie.b}{cookie.c}", "2"),
            ("{query.q}{query.r}{query.s}", "a&b"),
        ] {
            assert_eq!(filled(&request, text, Escape::Field), value, "{text}");
        }
    }

    #[test]
    fn a_value_of_a_field_is_one_line() {
        let request = request("/%0D%0AX:y?q=a%0d%0aSet-Cookie:%20b%00%7f", "");
        for (text, value) in [
            ("{path}", "/%0D%0AX:y"),
            ("{query.q}", "a%0D%0ASet-Cookie: b%00%7F"),
            ("{rest}", "%0D%0AX:y"),
        ] {
            assert_eq!(filled(&request, text, Escape::Field), value, "{text}");
        }
    }

    #[test]
    fn no_value_begins_a_query_or_another_parameter() {
        let mut request = request("/a%3Fb%26c%23d/%2e%41+?q=1&r=%2526", "X-A: a&b=c#d?e\r\n");
        let all = 1..request.path.len();
        capture(&mut request, all);
        for (text, value) in [
            ("/x/{cap}", "/x/a%3Fb&c%23d/.A+"),
            ("/x?y={cap}", "/x?y=a%3Fb%26c%23d/.A%2B"),
            ("/x?y={rest}", "/x?y=a%3Fb%26c%23d/%2e%41%2B"),
            ("/x/{rest}", "/x/a%3Fb%26c%23d/%2e%41+"),
            ("/x?{query}", "/x?q=1&r=%2526"),
            ("/x?a=1&{query}&b={query}", "/x?a=1&q=1&r=%2526&b=q%3D1%26r%3D%252526"),
            ("/x?y={uri}", "/x?y=/a%253Fb%2526c%2523d/%252e%2541%2B%3Fq%3D1%26r%3D%252526"),
            ("{uri}&z={cap}", "/a%3Fb%26c%23d/%2e%41+?q=1&r=%2526&z=a%3Fb%26c%23d/.A%2B"),
            ("/x?y={header.X-A}#{cap}", "/x?y=a%26b%3Dc%23d%3Fe#a%3Fb%26c%23d/.A%2B"),
            ("/x/{header.X-A}", "/x/a&b=c%23d%3Fe"),
        ] {
            assert_eq!(filled(&request, text, Escape::Target), value, "{text}");
        }
    }

    #[test]
    fn pages_get_text_and_no_tags() {
        let request = request("/?q=%3Cb%3E%26%22'%60%0a", "");
        assert_eq!(
            filled(&request, "<i>{query.q}", Escape::Html),
            "<i>&lt;b&gt;&amp;&quot;&#39;&#96;\u{fffd}"
        );
        let json = filled(&request, "{query.q}", Escape::Json);
        assert_eq!(json, "\\u003cb\\u003e\\u0026\\u0022'`\\u000a");
    }

    #[test]
    fn a_request_keeps_its_identifier() {
        let mut one = request("/", "X-Request-Id: abc\r\n");
        assert_eq!(one.id().len(), 32);
        assert_eq!(one.id(), one.id());
        assert_ne!(one.id(), request("/", "").id());
        one.is_peer_trusted = true;
        one.request_id.take();
        assert_eq!(one.id(), b"abc");
        for id in ["a b", "", "a;b", &"x".repeat(129)] {
            let mut odd = request("/", &format!("X-Request-Id: {id}\r\n"));
            odd.is_peer_trusted = true;
            assert_eq!(odd.id().len(), 32, "{id}");
        }
    }

    #[test]
    fn a_host_that_no_url_can_contain_is_left_out() {
        let raw = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(request("/", "").plain_host(), Some(&b"Www.example"[..]));
        let mut request = request("/", "");
        request.bytes = raw.replace("Host: a", "Host: \"").into_bytes();
        request.head.authority = Some(forebay_wire::Span::new(22, 23));
        assert_eq!(request.plain_host(), None);
    }
}
