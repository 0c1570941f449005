//! Raw HTTP/1.1 client. The client sends bytes unchanged, and reads one reply at a time with the
//! message framing of RFC 9112, section 6. Redirects are not followed, failed requests are not
//! retried, and errors are not corrected.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;

use crate::DEADLINE;
use crate::stream::{Address, TestStream};

/// Connection of the raw client to a server.
#[derive(Debug)]
pub struct Client {
    stream: TestStream,
    /// Received bytes that no reply has consumed yet.
    buffer: Vec<u8>,
}

/// Rule that determines the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The status or the method does not allow a body.
    None,
    /// The field `Content-Length` gives the number of bytes.
    Length,
    /// The last chunk ends the body (`Transfer-Encoding: chunked`).
    Chunked,
    /// The body ends when the server closes the connection.
    Close,
}

/// Names and values of header fields, unchanged and in the order of their arrival.
pub type Headers = Vec<(String, String)>;

/// Reply of a server.
#[derive(Clone, Debug)]
pub struct Reply {
    /// HTTP version: "HTTP/1.1" or "HTTP/1.0".
    pub version: String,
    /// The status code.
    pub status: u16,
    /// Reason phrase.
    pub reason: String,
    /// Header fields.
    pub headers: Headers,
    /// The body, without its framing.
    pub body: Vec<u8>,
    /// Trailer fields of a chunked body.
    pub trailers: Headers,
    /// Rule that determined the end of the body.
    pub framing: Framing,
    /// Status and header fields of each 1xx reply that preceded this reply.
    pub interim: Vec<(u16, Headers)>,
}

impl Client {
    /// Connects to a server.
    ///
    /// # Panics
    /// Panics if nothing listens on the address.
    pub fn connect(address: impl Into<Address>) -> Self {
        let address = address.into();
        Self::try_connect(&address).unwrap_or_else(|error| panic!("{address:?}: {error}"))
    }

    /// Connects to a server. Returns an error if that fails.
    pub fn try_connect(address: &Address) -> io::Result<Self> {
        Ok(Self { stream: TestStream::connect(address, DEADLINE)?, buffer: Vec::new() })
    }

    /// Creates a client on an existing connection.
    pub fn over(stream: TestStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Returns the connection, so that a test can read or write directly.
    pub fn stream(&mut self) -> &mut TestStream {
        &mut self.stream
    }

    /// Sends a GET request and reads the reply. The connection stays open if the server keeps it
    /// open.
    ///
    /// # Panics
    /// Panics if no complete reply arrives before the deadline.
    pub fn get(&mut self, target: &str) -> Reply {
        self.try_get(target).unwrap_or_else(|error| panic!("GET {target}: {error}"))
    }

    /// Works as [`Client::get`] does, but returns an error instead of a panic.
    pub fn try_get(&mut self, target: &str) -> io::Result<Reply> {
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.try_send(request.as_bytes())?;
        self.try_reply()
    }

    /// Sends bytes unchanged.
    ///
    /// # Panics
    /// Panics if the server accepts no more bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes.as_ref()).unwrap_or_else(|error| panic!("sending: {error}"));
    }

    /// Works as [`Client::send`] does, but returns an error instead of a panic. A server that
    /// rejects a request may close the connection before it has read all bytes.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Closes the sending direction. Replies can still be read.
    pub fn finish_sending(&mut self) {
        self.stream.finish_sending().expect("the connection is open");
    }

    /// Reads the reply to a request whose method is not HEAD.
    ///
    /// # Panics
    /// Panics if no complete reply arrives before the deadline.
    pub fn reply(&mut self) -> Reply {
        self.try_reply().unwrap_or_else(|error| panic!("no reply: {error}"))
    }

    /// Works as [`Client::reply`] does, but returns an error instead of a panic.
    pub fn try_reply(&mut self) -> io::Result<Reply> {
        let mut reply = self.read_head()?;
        self.read_body(&mut reply)?;
        Ok(reply)
    }

    /// Reads the reply to a HEAD request. Such a reply has no body, even if its header fields
    /// announce one.
    ///
    /// # Panics
    /// Panics if no complete head arrives before the deadline.
    pub fn reply_to_head(&mut self) -> Reply {
        self.read_head().unwrap_or_else(|error| panic!("no reply: {error}"))
    }

    /// Reads a single 1xx reply, for a client that waits for 100 (Continue).
    ///
    /// # Panics
    /// Panics if no reply arrives before the deadline.
    pub fn interim_reply(&mut self) -> (u16, Headers) {
        let head = self.read_one_head().unwrap_or_else(|error| panic!("no reply: {error}"));
        (head.status, head.headers)
    }

    /// Reads the next `count` bytes unchanged, for tests that examine a reply while it arrives.
    ///
    /// # Panics
    /// Panics if the bytes do not arrive before the deadline.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        self.take(count).unwrap_or_else(|error| panic!("{count} bytes: {error}"))
    }

    /// Reads all bytes until the server closes the connection. A reset counts as a close.
    ///
    /// # Panics
    /// Panics if the server does not close the connection before the deadline.
    pub fn rest(&mut self) -> Vec<u8> {
        loop {
            match self.fill() {
                Ok(0) => return std::mem::take(&mut self.buffer),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return std::mem::take(&mut self.buffer);
                }
                Err(error) => panic!("the server did not close: {error}"),
            }
        }
    }

    /// Waits until the server closes the connection. Returns false if the server sent further bytes
    /// before the close.
    ///
    /// # Panics
    /// Panics as [`Client::rest`] does.
    pub fn is_closed(&mut self) -> bool {
        self.rest().is_empty()
    }

    /// Returns the local address of a TCP connection.
    ///
    /// # Panics
    /// Panics if the connection is not over TCP.
    pub fn local_addr(&self) -> SocketAddr {
        match &self.stream {
            TestStream::Tls(stream) => {
                stream.sock.local_addr().expect("a connected socket has an address")
            }
            TestStream::Tcp(stream) => {
                stream.local_addr().expect("a connected socket has an address")
            }
            TestStream::Unix(_) => panic!("a connection over a Unix socket has no TCP address"),
        }
    }

    /// Returns the connection itself, for operations below HTTP.
    pub fn into_stream(self) -> TestStream {
        self.stream
    }

    /// Reads the head of the final reply, after all 1xx replies that precede it.
    fn read_head(&mut self) -> io::Result<Reply> {
        let mut interim = Vec::new();
        loop {
            let mut head = self.read_one_head()?;
            if head.status >= 200 || head.status == 101 {
                head.interim = interim;
                return Ok(head);
            }
            interim.push((head.status, head.headers));
        }
    }

    fn read_one_head(&mut self) -> io::Result<Reply> {
        let status_line = self.line()?;
        let invalid = || broken(format!("not a status line: {status_line:?}"));
        let mut parts = status_line.splitn(3, ' ');
        let version = parts.next().filter(|text| text.starts_with("HTTP/")).ok_or_else(invalid)?;
        let status = parts.next().filter(|text| text.len() == 3).ok_or_else(invalid)?;
        Ok(Reply {
            version: version.to_owned(),
            status: status.parse().map_err(|_| invalid())?,
            reason: parts.next().unwrap_or_default().to_owned(),
            headers: self.fields()?,
            body: Vec::new(),
            trailers: Vec::new(),
            framing: Framing::None,
            interim: Vec::new(),
        })
    }

    fn read_body(&mut self, reply: &mut Reply) -> io::Result<()> {
        if reply.status < 200 || matches!(reply.status, 204 | 304) {
            return Ok(());
        }
        if let Some(coding) = reply.header("Transfer-Encoding") {
            if !coding.eq_ignore_ascii_case("chunked") {
                return Err(broken(format!("transfer coding {coding:?}")));
            }
            reply.framing = Framing::Chunked;
            self.read_chunks(reply)
        } else if let Some(length) = reply.header("Content-Length") {
            let length =
                length.parse().map_err(|_| broken(format!("Content-Length: {length:?}")))?;
            reply.framing = Framing::Length;
            reply.body = self.take(length)?;
            Ok(())
        } else {
            reply.framing = Framing::Close;
            while self.fill()? > 0 {}
            reply.body = std::mem::take(&mut self.buffer);
            Ok(())
        }
    }

    fn read_chunks(&mut self, reply: &mut Reply) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default().trim_end();
            let size = usize::from_str_radix(size, 16)
                .map_err(|_| broken(format!("not a chunk size: {line:?}")))?;
            if size == 0 {
                reply.trailers = self.fields()?;
                return Ok(());
            }
            reply.body.extend(self.take(size)?);
            let end = self.line()?;
            if !end.is_empty() {
                return Err(broken(format!("a chunk longer than its size, by {end:?}")));
            }
        }
    }

    /// Reads header fields, and the empty line after them.
    fn fields(&mut self) -> io::Result<Headers> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) =
                line.split_once(':').ok_or_else(|| broken(format!("no header field: {line:?}")))?;
            fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
        }
    }

    /// Reads a line and removes CR LF, which must end it. Bytes outside of ASCII are read as
    /// Latin-1.
    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<_> = self.buffer.drain(..=end).collect();
                let text = line.strip_suffix(b"\r\n").ok_or_else(|| {
                    broken(format!("a line that ends in LF alone: {:?}", line.escape_ascii()))
                })?;
                return Ok(text.iter().map(|byte| char::from(*byte)).collect());
            }
            if self.fill()? == 0 {
                return Err(ended(&self.buffer));
            }
        }
    }

    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < length {
            if self.fill()? == 0 {
                return Err(ended(&self.buffer));
            }
        }
        Ok(self.buffer.drain(..length).collect())
    }

    /// Reads once from the connection into the buffer. Returns 0 at the end of the connection.
    fn fill(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 16 * 1024];
        let count = self.stream.read(&mut bytes).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => io::Error::new(ErrorKind::TimedOut, "nothing came in time"),
            _ => error,
        })?;
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}

impl Reply {
    /// Returns the value of the first header field with this name, or `None`; upper and lower case
    /// are equal.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers_named(name).first().copied()
    }

    /// Returns the values of all header fields with this name; upper and lower case are equal.
    pub fn headers_named(&self, name: &str) -> Vec<&str> {
        let of_name = self.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        of_name.map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the body as text.
    ///
    /// # Panics
    /// Panics if the body is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the body is UTF-8")
    }
}

fn broken(what: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

fn ended(buffer: &[u8]) -> io::Error {
    let what = format!("the connection ended in the middle, after {:?}", buffer.escape_ascii());
    io::Error::new(ErrorKind::UnexpectedEof, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::{ScriptStep, ScriptedBackend};

    fn client_of(reply: &str) -> (Client, ScriptedBackend) {
        let backend = ScriptedBackend::tcp([vec![ScriptStep::send(reply)]]);
        (Client::connect(backend.address()), backend)
    }

    #[test]
    fn replies_of_every_framing_are_read() {
        let (mut client, _backend) = client_of(concat!(
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "2\r\ntw\r\n1;x=y\r\no\r\n0\r\nSum: 1\r\n\r\n",
            "HTTP/1.0 200 OK\r\n\r\nthree",
        ));
        let one = client.reply();
        assert_eq!((one.text(), one.framing, one.interim[0].0), ("one", Framing::Length, 100));
        assert_eq!(client.reply().framing, Framing::None);
        let two = client.reply();
        assert_eq!((two.text(), two.framing), ("two", Framing::Chunked));
        assert_eq!(two.trailers, [("Sum".to_owned(), "1".to_owned())]);
        let three = client.reply();
        assert_eq!((three.text(), three.framing), ("three", Framing::Close));
        assert_eq!(three.version, "HTTP/1.0");
    }

    #[test]
    fn a_reply_to_head_has_no_body() {
        let (mut client, _backend) =
            client_of("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 204 No\r\n\r\n");
        assert_eq!(client.reply_to_head().header("content-length"), Some("5"));
        assert_eq!(client.reply().status, 204);
        assert!(client.is_closed());
    }

    #[test]
    fn other_protocols_are_an_error() {
        for (bytes, words) in [
            ("", "ended in the middle"),
            ("SSH-2.0\r\n\r\n", "not a status line"),
            ("HTTP/1.1 200 OK\nA: b\n\n", "LF alone"),
            ("HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", "no header field"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "ended in the middle"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "not a chunk size"),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", "longer than"),
        ] {
            let (mut client, _backend) = client_of(bytes);
            let error = client.try_reply().unwrap_err().to_string();
            assert!(error.contains(words), "{bytes:?}: {error}");
        }
    }
}
