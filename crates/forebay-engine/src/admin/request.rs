//! What a visitor of the administrator's listener asks.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use forebay_wire::http1::{Limits, Progress, RequestHead, RequestParser, host_of};

/// How long one visitor may take to ask, and to take the answer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// What a visitor wants.
pub struct AdminRequest {
    pub method: Method,
    /// Without the query.
    pub path: String,
    /// Of the `Host` field, without its port and in lower case; empty where there is none.
    pub host: String,
    pub accepts_html: bool,
}

/// The methods that are answered, and all others.
#[derive(PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Other,
}

/// Reads the head of a request; `None` for what is none.
pub fn read(stream: &mut TcpStream) -> Option<AdminRequest> {
    let deadline = Instant::now() + PATIENCE;
    let mut bytes = Vec::with_capacity(4096);
    let mut head = RequestHead::default();
    let mut parser =
        RequestParser::new(Limits { head: 16 * 1024, fields: 100, target: 2048, get_body: false });
    while Instant::now() < deadline {
        let mut chunk = [0; 4096];
        let n = stream.read(&mut chunk).ok().filter(|&n| n > 0)?;
        bytes.extend_from_slice(&chunk[..n]);
        if let Progress::Complete(_) = parser.parse(&bytes, &mut head).ok()? {
            let target = str::from_utf8(head.path_and_query.of(&bytes)).ok()?;
            let path = target.split('?').next().unwrap_or_default().to_owned();
            let accept = head.value(forebay_wire::http1::Known::Accept, &bytes);
            let accepts_html =
                accept.is_some_and(|value| memchr::memmem::find(value, b"text/html").is_some());
            let method = match head.method.of(&bytes) {
                b"GET" => Method::Get,
                b"HEAD" => Method::Head,
                _ => Method::Other,
            };
            let host = head.authority.map(|span| span.of(&bytes)).unwrap_or_default();
            let host = String::from_utf8_lossy(host_of(host)).to_ascii_lowercase();
            return Some(AdminRequest { method, path, host, accepts_html });
        }
    }
    None
}

/// Reads what is left of a request with a body: to close with it unread would reset the connection,
/// and the visitor could lose the answer.
pub fn read_on(stream: &mut TcpStream) -> std::io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    stream.shutdown(Shutdown::Write)?;
    let mut chunk = [0; 4096];
    while Instant::now() < deadline && stream.read(&mut chunk)? > 0 {}
    Ok(())
}
