//! Requests to the administrator's listener.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use forebay_wire::forms;
use forebay_wire::http1::{Http1Limits, KnownField, Progress, RequestHead, RequestParser, host_of};

use super::connection::{AdminConnection, Peer};

/// Time limit for a client to send its request, and to read the answer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Time limit for a client to send a body.
const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// Maximum size of a form in bytes.
const LONGEST_FORM: usize = 4096;

/// A request of the administrator.
pub struct AdminRequest {
    pub method: Method,
    /// Path without the query.
    pub path: String,
    /// Query, undecoded.
    pub query: String,
    /// Host in the `Host` field, without port, in lower case. Empty if there is no such field.
    pub host: String,
    pub accepts_html: bool,
    /// Token of `Authorization: Bearer TOKEN`. Empty without a token.
    pub bearer: String,
    /// Token in the form of the body. Empty without a token.
    pub form_token: String,
    /// Media type of the body, in lower case, without parameters.
    pub content_type: String,
    /// Number in `If-Match`: the change applies only to the configuration with this number.
    pub generation: Option<u64>,
    /// True if a page of another site sends the request.
    pub is_cross_site: bool,
    pub peer: Peer,
    /// True if an unread body may follow.
    pub has_more: bool,
    /// Length of the body. `None`: unknown.
    length: Option<u64>,
    /// True if the client waits for the status 100 before it sends the body.
    waits: bool,
    /// Bytes that follow the head and that were read with it.
    rest: Vec<u8>,
}

/// The supported methods, and all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Other,
}

/// Reason to refuse a body.
pub enum BodyFault {
    /// The length is unknown.
    NoLength,
    /// The body is larger than the limit.
    TooLarge,
    /// The body did not arrive.
    Incomplete,
}

/// Reads a request. Returns `None` if the request is invalid, or incomplete after `PATIENCE`.
pub fn read(connection: &mut AdminConnection) -> Option<AdminRequest> {
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::with_capacity(4096);
    let mut head = RequestHead::default();
    let mut parser = RequestParser::new(Http1Limits {
        head: 16 * 1024,
        fields: 100,
        target: 2048,
        get_body: false,
    });
    while Instant::now() < deadline {
        let mut chunk = [0; 4096];
        let n = connection.read(&mut chunk).ok().filter(|&n| n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
        if let Progress::Complete(end) = parser.parse(&bytes, &mut head).ok()? {
            let mut request = of_head(&head, &bytes, connection.peer())?;
            request.rest = bytes.split_off(end);
            if request.bearer.is_empty() && request.is_form() {
                request.form_token = request.read_form(connection).unwrap_or_default();
            }
            return Some(request);
        }
    }
    None
}

fn of_head(head: &RequestHead, bytes: &[u8], peer: Peer) -> Option<AdminRequest> {
    let target = str::from_utf8(head.path_and_query.of(bytes)).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let known = |field| head.value(field, bytes).and_then(|value| str::from_utf8(value).ok());
    let other = |name: &[u8]| {
        let found = head.fields.iter().find(|f| f.name.of(bytes).eq_ignore_ascii_case(name))?;
        str::from_utf8(found.value.of(bytes)).ok()
    };
    let method = match head.method.of(bytes) {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"POST" => Method::Post,
        _ => Method::Other,
    };
    let authority = head.authority.map(|span| span.of(bytes)).unwrap_or_default();
    let content_type = known(KnownField::ContentType).unwrap_or_default();
    let generation = known(KnownField::IfMatch).map(|tag| tag.trim_matches('"').parse());
    Some(AdminRequest {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        host: String::from_utf8_lossy(host_of(authority)).to_ascii_lowercase(),
        accepts_html: known(KnownField::Accept).is_some_and(|value| value.contains("text/html")),
        bearer: other(b"authorization").and_then(token).unwrap_or_default(),
        form_token: String::new(),
        content_type: content_type.split(';').next()?.trim().to_ascii_lowercase(),
        // An invalid number in `If-Match` becomes 0. No configuration has the number 0, so the
        // change is refused.
        generation: generation.map(|number| number.unwrap_or(0)),
        is_cross_site: is_cross_site(other(b"origin"), other(b"sec-fetch-site"), authority),
        peer,
        has_more: !matches!(method, Method::Get | Method::Head),
        length: known(KnownField::ContentLength).and_then(|length| length.parse().ok()),
        waits: known(KnownField::Expect).is_some(),
        rest: Vec::new(),
    })
}

/// Returns the token of `Bearer TOKEN`. Returns `None` for other schemes.
fn token(value: &str) -> Option<String> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim().to_owned())
}

/// Returns true if a browser says that a page of another site sends the request.
fn is_cross_site(origin: Option<&str>, fetch_site: Option<&str>, authority: &[u8]) -> bool {
    let is_foreign = |origin: &str| {
        // `null` is the origin of a page in a sandbox, which counts as another site.
        let host = origin.split_once("://").map(|(_, host)| host);
        host.is_none_or(|host| !host.as_bytes().eq_ignore_ascii_case(authority))
    };
    fetch_site.is_some_and(|site| !matches!(site, "same-origin" | "none"))
        || origin.is_some_and(is_foreign)
}

impl AdminRequest {
    fn is_form(&self) -> bool {
        // Requests below `/control/` have the token in `Authorization`, and their bodies are not
        // forms.
        self.method == Method::Post && !self.path.starts_with("/control/")
    }

    /// Reads a form from the body, and returns the value of its field `token`. Returns `None` if
    /// there is no such field, or if the body is incomplete or larger than [`LONGEST_FORM`].
    fn read_form(&mut self, connection: &mut AdminConnection) -> Option<String> {
        let form = self.body(connection, LONGEST_FORM).ok()?;
        let value = form.split(|&b| b == b'&').find_map(|pair| pair.strip_prefix(b"token="))?;
        String::from_utf8(forms::decode(value).into_owned()).ok()
    }

    pub fn body(
        &mut self,
        connection: &mut AdminConnection,
        most: usize,
    ) -> Result<Vec<u8>, BodyFault> {
        let length = self.length.ok_or(BodyFault::NoLength)?;
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > most {
            return Err(BodyFault::TooLarge);
        }
        let mut body = std::mem::take(&mut self.rest);
        if self.waits && body.len() < length {
            let interim = b"HTTP/1.1 100 Continue\r\n\r\n";
            connection.write_all(interim).map_err(|_| BodyFault::Incomplete)?;
        }
        let deadline = Instant::now() + BODY_PATIENCE;
        let mut chunk = [0; 4096];
        while body.len() < length {
            match connection.read(&mut chunk) {
                Ok(n) if n > 0 && Instant::now() < deadline => {
                    body.extend_from_slice(&chunk[..n]);
                }
                _ => return Err(BodyFault::Incomplete),
            }
        }
        self.has_more = false;
        body.truncate(length);
        Ok(body)
    }
}

/// Closes the sending side, then reads and drops the rest of a request. Gives up after `PATIENCE`.
pub fn read_on(connection: &mut AdminConnection) -> std::io::Result<()> {
    // Closing with unread bytes would reset the connection, and the client could lose the answer.
    let deadline = Instant::now() + PATIENCE;
    connection.shutdown_write()?;
    let mut chunk = [0; 4096];
    while Instant::now() < deadline && connection.read(&mut chunk)? > 0 {}
    Ok(())
}
