//! A small HTTP client: one GET request on each connection.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_trust::Trust;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// Maximum time of a whole reply.
const PATIENCE: Duration = Duration::from_secs(60);

/// Maximum size of the head of a reply, and of the part of its body that is compared, in bytes.
const LARGEST_HEAD: u64 = 64 * 1024;
const LARGEST_BODY: u64 = 16 * 1024 * 1024;

/// A URL to request.
pub struct VerifiedUrl {
    /// The whole URL, for messages.
    pub url: String,
    pub is_https: bool,
    /// Host and port, for the field `Host`.
    pub authority: String,
    /// The host.
    pub name: String,
    /// Path and query.
    path: String,
    /// The host with the port of the old server, which its redirects may contain.
    pub with_port: Option<String>,
}

/// A reply.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub status: u16,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl VerifiedUrl {
    pub fn parse(url: &str) -> Result<Self, String> {
        let refuse = |why: &str| format!("{url:?} {why}: write it as http://example.org/path");
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refuse("is no URL"))?;
        let is_https = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err(refuse("has another scheme than http or https")),
        };
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains('#') {
            return Err(refuse("has a character that a request cannot have"));
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let port = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
        let name = port.map_or(authority, |(name, _)| name).to_owned();
        if name.is_empty() || authority.contains('@') {
            return Err(refuse("has no plain host"));
        }
        let (url, authority) = (url.to_owned(), authority.to_owned());
        Ok(Self { url, is_https, authority, name, path, with_port: None })
    }

    /// Returns the address of the server, with a port.
    fn address(&self) -> String {
        let has_port = self.authority.len() > self.name.len();
        match (has_port, self.is_https) {
            (true, _) => self.authority.clone(),
            (false, true) => format!("{}:443", self.authority),
            (false, false) => format!("{}:80", self.authority),
        }
    }

    fn request(&self, more: &str) -> String {
        let Self { path, authority, .. } = self;
        format!(
            "GET {path} HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\n\
             User-Agent: forebay-import\r\n{more}Connection: close\r\n\r\n"
        )
    }
}

/// Requests a URL from the server that Forebay will replace. Connects to `connect` if it is given,
/// otherwise to the host of the URL.
pub fn from_old(target: &VerifiedUrl, connect: Option<&str>) -> std::io::Result<Received> {
    let address = connect.map_or_else(|| target.address(), str::to_owned);
    let mut last = Error::new(ErrorKind::NotFound, format!("{address} has no address"));
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                let request = target.request("");
                if !target.is_https {
                    return exchange(stream, &request);
                }
                let name = ServerName::try_from(target.name.clone()).map_err(Error::other)?;
                let connection =
                    ClientConnection::new(tls_config()?, name).map_err(Error::other)?;
                return exchange(StreamOwned::new(connection, stream), &request);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn tls_config() -> std::io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(default_provider());
    let verifier = Trust::of_machine().verifier(provider.clone()).map_err(Error::other)?;
    let verifier = verifier.ok_or_else(|| Error::other("this machine trusts no authority"))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(Error::other)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    Ok(Arc::new(builder.with_no_client_auth()))
}

/// Requests a URL from Forebay, which runs the translated configuration and listens on `socket`.
pub fn from_socket(target: &VerifiedUrl, socket: &Path) -> std::io::Result<Received> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let scheme = if target.is_https { "https" } else { "http" };
    let more = format!("X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: {scheme}\r\n");
    exchange(stream, &target.request(&more))
}

/// Sends a request and reads the reply.
fn exchange(mut stream: impl Read + Write, request: &str) -> std::io::Result<Received> {
    stream.write_all(request.as_bytes())?;
    stream.flush()?;
    let stream = Deadline { stream, end: Instant::now() + PATIENCE };
    read(BufReader::new(stream))
}

/// Reads a final reply, and skips the informational replies before it.
fn read(mut from: impl BufRead) -> std::io::Result<Received> {
    let mut reply = loop {
        let reply = head(&mut from)?;
        if reply.status >= 200 {
            break reply;
        }
    };
    let field = |name: &str| {
        reply.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    };
    let body = if matches!(reply.status, 204 | 304) {
        Vec::new()
    } else if field("transfer-encoding")
        .is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"))
    {
        chunks(&mut from)?
    } else {
        let length = field("content-length").and_then(|length| length.parse().ok());
        let mut body = Vec::new();
        from.take(length.unwrap_or(u64::MAX).min(LARGEST_BODY)).read_to_end(&mut body)?;
        body
    };
    reply.body = body;
    Ok(reply)
}

/// Reads the head of a reply. Names of fields become lower case.
fn head(from: &mut impl BufRead) -> std::io::Result<Received> {
    let mut from = from.take(LARGEST_HEAD);
    let first = line(&mut from)?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| Error::new(ErrorKind::InvalidData, "no HTTP reply"))?;
    let mut fields = Vec::new();
    loop {
        let line = line(&mut from)?;
        if line.is_empty() {
            return Ok(Received { status, fields, body: Vec::new() });
        }
        let no_field = || Error::new(ErrorKind::InvalidData, "a header field without a colon");
        let (name, value) = line.split_once(':').ok_or_else(no_field)?;
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn line(from: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = Vec::new();
    if from.take(LARGEST_HEAD).read_until(b'\n', &mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
}

/// Reads a body in chunks.
fn chunks(from: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = line(from)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16)
            .map_err(|_| Error::new(ErrorKind::InvalidData, "a chunk has no size"))?;
        let room = LARGEST_BODY.saturating_sub(body.len() as u64);
        if size == 0 || size > room {
            return Ok(body);
        }
        if from.take(size).read_to_end(&mut body)? as u64 != size {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self::line(from)?;
    }
}

/// A stream whose reads fail after a deadline, so that a slow server cannot keep the command busy.
struct Deadline<S> {
    stream: S,
    end: Instant,
}

impl<S: Read> Read for Deadline<S> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if Instant::now() > self.end {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_each_framing_are_read() {
        for (bytes, body) in [
            (
                "HTTP/1.1 103 Early\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc",
                "ab",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
                "abc",
            ),
            ("HTTP/1.0 200 OK\r\n\r\nabc", "abc"),
        ] {
            let reply = read(bytes.as_bytes()).unwrap();
            assert_eq!((reply.status, reply.body), (200, body.as_bytes().to_vec()), "{bytes}");
        }
        let no_colon = "HTTP/1.1 200 OK\r\nA b\r\n\r\n";
        for bytes in
            ["", "x\r\n\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n", "HTTP/1.1 x\r\n\r\n", no_colon]
        {
            assert!(read(bytes.as_bytes()).is_err(), "{bytes}");
        }
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        for rest in ["", "z\r\n", "5\r\nab", "ffffffffffffffffff\r\n"] {
            assert!(read(format!("{chunked}{rest}").as_bytes()).is_err(), "{rest}");
        }
    }

    #[test]
    fn urls_cannot_add_fields_to_a_request() {
        let target = VerifiedUrl::parse("https://a.example:8443/x?y=1").unwrap();
        assert_eq!(
            (target.name.as_str(), target.address().as_str()),
            ("a.example", "a.example:8443")
        );
        assert_eq!(VerifiedUrl::parse("http://a.example?x").unwrap().path, "/?x");
        assert_eq!(VerifiedUrl::parse("http://[::1]/").unwrap().address(), "[::1]:80");
        for url in [
            "a.example",
            "ftp://a/",
            "http:///x",
            "http://u@a/",
            "http://a/ b",
            "http://a/\r\nX: y",
        ] {
            assert!(VerifiedUrl::parse(url).is_err(), "{url}");
        }
    }
}
