//! Requests to the administrator's listener.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use forebay_wire::forms;
use forebay_wire::http1::{Http1Limits, KnownField, Progress, RequestHead, RequestParser, host_of};

/// Time limit for a client to send its request, and to read the answer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Maximum bytes of a form.
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
    /// Token of a POST, from its `Authorization` field, else from its form. Empty without a token.
    pub token: String,
    /// True if an unread body may follow.
    pub has_more: bool,
}

/// The supported methods, and all others.
#[derive(PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Other,
}

/// Reads a request; `None` if it is invalid or late.
pub fn read(stream: &mut TcpStream) -> Option<AdminRequest> {
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
        let n = stream.read(&mut chunk).ok().filter(|&n| n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
        if let Progress::Complete(end) = parser.parse(&bytes, &mut head).ok()? {
            let target = str::from_utf8(head.path_and_query.of(&bytes)).ok()?;
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let (path, query) = (path.to_owned(), query.to_owned());
            let accept = head.value(KnownField::Accept, &bytes);
            let accepts_html =
                accept.is_some_and(|value| memchr::memmem::find(value, b"text/html").is_some());
            let method = match head.method.of(&bytes) {
                b"GET" => Method::Get,
                b"HEAD" => Method::Head,
                b"POST" => Method::Post,
                _ => Method::Other,
            };
            let host = head.authority.map(|span| span.of(&bytes)).unwrap_or_default();
            let host = String::from_utf8_lossy(host_of(host)).to_ascii_lowercase();
            let mut request = AdminRequest {
                has_more: !matches!(method, Method::Get | Method::Head),
                method,
                path,
                query,
                host,
                accepts_html,
                token: String::new(),
            };
            if request.method == Method::Post {
                request.token = token(&head, &bytes)
                    .or_else(|| token_of_form(stream, &head, bytes, end, deadline))
                    .unwrap_or_default();
            }
            return Some(request);
        }
    }
    None
}

/// Returns the token of `Authorization: Bearer TOKEN`.
fn token(head: &RequestHead, bytes: &[u8]) -> Option<String> {
    let is_it = |name: &[u8]| name.eq_ignore_ascii_case(b"authorization");
    let field = head.fields.iter().find(|field| is_it(field.name.of(bytes)))?;
    let value = str::from_utf8(field.value.of(bytes)).ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim().to_owned())
}

/// Returns the token of `token=TOKEN` in a small form.
fn token_of_form(
    stream: &mut TcpStream,
    head: &RequestHead,
    mut bytes: Vec<u8>,
    start: usize,
    deadline: Instant,
) -> Option<String> {
    let length = str::from_utf8(head.value(KnownField::ContentLength, &bytes)?).ok()?;
    let length = length.parse().ok().filter(|&length: &usize| length <= LONGEST_FORM)?;
    while bytes.len() < start + length && Instant::now() < deadline {
        let mut chunk = [0; 4096];
        let n = stream.read(&mut chunk).ok().filter(|&n| n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
    }
    let form = bytes.get(start..start + length)?;
    let value = form.split(|&b| b == b'&').find_map(|pair| pair.strip_prefix(b"token="))?;
    String::from_utf8(forms::decode(value).into_owned()).ok()
}

/// Closes the sending side, then reads and drops the rest of a request. Gives up after `PATIENCE`.
pub fn read_on(stream: &mut TcpStream) -> std::io::Result<()> {
    // Closing with unread bytes would reset the connection, and the client could lose the answer.
    let deadline = Instant::now() + PATIENCE;
    stream.shutdown(Shutdown::Write)?;
    let mut chunk = [0; 4096];
    while Instant::now() < deadline && stream.read(&mut chunk)? > 0 {}
    Ok(())
}
