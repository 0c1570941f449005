//! Sends a single request, to check if a server is ready and its reply is correct.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::{
    AjpClient, AppServer, Ended, FastcgiClient, Http1, Http2, Http3, Malformed, MuxSession, Raw,
    Session, Sink, WebSocket,
};
use rustls::{ClientConnection, StreamOwned};

use crate::request::Requests;
use crate::tls::TlsClient;
use crate::tls::quic::{Datagrams, Verdict};
use crate::transport::Transport;
use crate::transport::resolve_tcp;
use crate::{Endpoint, Error, Protocol, Spec, TlsOptions, Url};

/// Reply to a single request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedReply {
    /// Status of the reply.
    pub status: u16,
    /// Header fields in their order. Invalid UTF-8 is replaced.
    pub headers: Vec<(String, String)>,
    /// The body, at most its first 1 MiB.
    pub body: Vec<u8>,
}

/// Reason why no reply arrived.
#[derive(Debug)]
pub enum FetchError {
    /// The request is invalid, or the host cannot be resolved.
    Request(Error),
    /// No connection to the server could be opened.
    Connect(io::Error),
    /// The connection was closed or broke before the reply was complete.
    Exchange(io::Error),
    /// The reply was not complete within this time.
    Timeout(Duration),
    /// The reply violated the protocol. The text describes the violation.
    Protocol(String),
}

/// Maximum number of body bytes that are kept.
const BODY_LIMIT: usize = 1024 * 1024;

/// Sends one GET request on a new connection and waits for the complete reply.
///
/// `timeout` limits the whole call, except for the resolution of the host name. If the body is
/// longer than 1 MiB, the call does not wait for the rest. The returned body is then incomplete.
pub fn fetch(
    url: &Url,
    timeout: Duration,
    headers: &[(String, String)],
) -> Result<FetchedReply, FetchError> {
    let spec = Spec { headers: headers.to_vec(), keepalive: false, ..Spec::new(url.clone()) };
    let requests = Requests::of(&spec).map_err(FetchError::Request)?;
    let deadline = Deadline { at: Instant::now() + timeout, timeout };
    let sink = Collected::default();
    if url.protocol() == Protocol::Http3 {
        return fetch_over_quic(url, &requests, &deadline);
    }
    let mut stream = connect(url, &deadline)?;
    let stream = stream.as_mut();
    match url.protocol() {
        Protocol::Http | Protocol::Https => exchange(
            stream,
            Http1::new(requests.http().map_err(FetchError::Request)?.first(), sink),
            &deadline,
        ),
        Protocol::Ws | Protocol::Wss => {
            let mut session = WebSocket::new(
                requests.websocket().map_err(FetchError::Request)?.first(),
                false,
                sink,
            );
            session.connect();
            exchange(stream, session, &deadline)
        }
        Protocol::H2c | Protocol::H2 | Protocol::Grpc | Protocol::Grpcs => {
            let request = requests.http2().map_err(FetchError::Request)?.first();
            let session = Http2::new(request, false, std::iter::once(sink));
            exchange_on_stream(stream, session, &deadline)
        }
        Protocol::Http3 => fetch_over_quic(url, &requests, &deadline),
        Protocol::Tcp => {
            let request = requests.raw().map_err(FetchError::Request)?.first();
            let session = Raw::new(request, spec.reply_end.clone(), false, sink);
            exchange(stream, session, &deadline)
        }
        Protocol::Ajp => exchange(
            stream,
            AjpClient::new(requests.ajp().map_err(FetchError::Request)?.first(), sink),
            &deadline,
        ),
        Protocol::Fastcgi => exchange(
            stream,
            FastcgiClient::new(requests.fastcgi().map_err(FetchError::Request)?.first(), sink),
            &deadline,
        ),
        Protocol::Scgi | Protocol::Uwsgi => exchange(
            stream,
            AppServer::new(requests.http().map_err(FetchError::Request)?.first(), sink),
            &deadline,
        ),
    }
}

struct Deadline {
    at: Instant,
    timeout: Duration,
}

/// Stream whose reads and writes have a time limit.
trait TimedStream: Read + Write {
    fn limit(&self, time: Duration) -> io::Result<()>;
}

#[derive(Default)]
struct Collected {
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

fn connect(url: &Url, deadline: &Deadline) -> Result<Box<dyn TimedStream>, FetchError> {
    if let Endpoint::Unix(path) = url.endpoint() {
        let stream = UnixStream::connect(path).map_err(FetchError::Connect)?;
        return Ok(Box::new(stream));
    }
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in resolve_tcp(url).map_err(FetchError::Request)? {
        match TcpStream::connect_timeout(&address, deadline.left()?) {
            Ok(stream) if url.protocol().is_tls() => return secured(url, stream, deadline),
            Ok(stream) => return Ok(Box::new(stream)),
            Err(error) => last = error,
        }
    }
    Err(FetchError::Connect(last))
}

/// Performs a TLS handshake. Fails if this machine does not trust the server's certificate.
fn secured(
    url: &Url,
    mut stream: TcpStream,
    deadline: &Deadline,
) -> Result<Box<dyn TimedStream>, FetchError> {
    let client = TlsClient::new(url, &TlsOptions::default()).map_err(FetchError::Request)?;
    let mut connection = client.connect().map_err(FetchError::Connect)?;
    while connection.is_handshaking() {
        stream.limit(deadline.left()?).map_err(FetchError::Exchange)?;
        connection.complete_io(&mut stream).map_err(|error| deadline.judge(error))?;
    }
    Ok(Box::new(StreamOwned::new(connection, stream)))
}

fn exchange(
    stream: &mut dyn TimedStream,
    mut session: impl Session<Sink = Collected>,
    deadline: &Deadline,
) -> Result<FetchedReply, FetchError> {
    stream.limit(deadline.left()?).map_err(FetchError::Exchange)?;
    // A server may reply and close the connection before it has read the whole request. So try to
    // read the reply even after a failed write. Report the error of the write only without a reply.
    session.start();
    let written = stream.write_all(session.output());
    session.wrote(session.output().len());
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        stream.limit(deadline.left()?).map_err(FetchError::Exchange)?;
        let n = match stream.read(&mut buffer) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(deadline.judge(written.err().unwrap_or(error))),
        };
        bytes.extend_from_slice(&buffer[..n]);
        let malformed = |error: Malformed| FetchError::Protocol(error.to_string());
        let receipt = session.input(&bytes).map_err(malformed)?;
        bytes.drain(..receipt.consumed);
        // An AJP container may have asked for more of the request's body, which is now in the
        // output. Ignore an error of the write, because the next read then fails, too.
        if !session.output().is_empty() {
            let _ = stream.write_all(session.output());
            session.wrote(session.output().len());
        }
        let answer = if n == 0 { session.closed() } else { receipt.answer };
        if answer.is_some() || session.sink().body.len() >= BODY_LIMIT {
            let status = session.status();
            let Collected { headers, body } = std::mem::take(session.sink());
            return Ok(FetchedReply { status, headers, body });
        }
        if n == 0 {
            let truncated =
                || io::Error::new(io::ErrorKind::UnexpectedEof, "closed before the reply");
            return Err(FetchError::Exchange(written.err().unwrap_or_else(truncated)));
        }
    }
}

/// Works as [`exchange`] does, but for a session with several streams.
fn exchange_on_stream(
    stream: &mut dyn TimedStream,
    mut session: impl MuxSession<Sink = Collected>,
    deadline: &Deadline,
) -> Result<FetchedReply, FetchError> {
    session.start(0, Instant::now());
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        stream.limit(deadline.left()?).map_err(FetchError::Exchange)?;
        // Ignore an error of the write. The next read returns a reply that has already arrived, or
        // fails, too.
        while !session.output().is_empty() {
            let written = match stream.write(session.output()) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => session.output().len(),
            };
            session.wrote(written, Instant::now());
        }
        let n = match stream.read(&mut buffer) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(deadline.judge(error)),
        };
        bytes.extend_from_slice(&buffer[..n]);
        let malformed = |error: Malformed| FetchError::Protocol(error.to_string());
        let receipt = session.input(&bytes, Instant::now()).map_err(malformed)?;
        bytes.drain(..receipt.consumed);
        if let Some(Ended { result: Err(error), .. }) = receipt.ended {
            return Err(FetchError::Protocol(error.to_string()));
        }
        if receipt.ended.is_some() || session.sink(0).body.len() >= BODY_LIMIT {
            let status = session.status(0);
            let Collected { headers, body } = std::mem::take(session.sink(0));
            return Ok(FetchedReply { status, headers, body });
        }
        if n == 0 {
            let truncated = io::Error::new(io::ErrorKind::UnexpectedEof, "closed before the reply");
            return Err(FetchError::Exchange(truncated));
        }
    }
}

/// Fetches over HTTP/3. Fails if this machine does not trust the server's certificate.
fn fetch_over_quic(
    url: &Url,
    requests: &Requests,
    deadline: &Deadline,
) -> Result<FetchedReply, FetchError> {
    let request = requests.http3().map_err(FetchError::Request)?.first();
    let client = TlsClient::new(url, &TlsOptions::default()).map_err(FetchError::Request)?;
    let mut last = FetchError::Connect(io::ErrorKind::NotFound.into());
    for address in resolve_tcp(url).map_err(FetchError::Request)? {
        let (config, verdict) = client.for_quic().map_err(FetchError::Request)?;
        let sink = std::iter::once(Collected::default());
        let mut session = Http3::new(request.clone(), false, sink, config);
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).map_err(FetchError::Connect)?;
        socket.connect(address).map_err(FetchError::Connect)?;
        let reply = exchange_datagrams(&socket, &mut session, &verdict, deadline);
        session.close(Instant::now());
        session.prepare(Instant::now());
        let _ = socket.send(session.output());
        match reply {
            // The host name may have several addresses, and the server may listen on only one of
            // them. So try the next address.
            Err(error @ FetchError::Connect(_)) => last = error,
            reply => return reply,
        }
    }
    Err(last)
}

/// Sends one request and returns the reply. Stops when at least `BODY_LIMIT` bytes of the body have
/// arrived, so the returned body may be incomplete.
fn exchange_datagrams(
    socket: &UdpSocket,
    session: &mut Http3<Collected>,
    verdict: &Arc<Verdict>,
    deadline: &Deadline,
) -> Result<FetchedReply, FetchError> {
    let mut buffer = [0; 64 * 1024];
    session.connect(Instant::now());
    loop {
        let is_connecting = session.is_connecting();
        let failed = |error| {
            if is_connecting { FetchError::Connect(error) } else { FetchError::Exchange(error) }
        };
        if let Some(end) = session.end() {
            return Err(failed(Datagrams::explain(end, verdict)));
        }
        if session.take_handshake().is_some() {
            session.start(0, Instant::now());
        }
        session.prepare(Instant::now());
        while !session.output().is_empty() {
            socket.send(session.output()).map_err(failed)?;
            session.wrote(session.output().len(), Instant::now());
        }
        let wait = session.timeout().map(|at| at.saturating_duration_since(Instant::now()));
        let wait = deadline.left()?.min(wait.unwrap_or(Duration::MAX));
        socket.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).map_err(failed)?;
        let n = match socket.recv(&mut buffer) {
            Ok(n) => n,
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => 0,
            Err(error) => return Err(failed(error)),
        };
        session.expire(Instant::now());
        session.set_datagram_size(n);
        let malformed = |error: Malformed| FetchError::Protocol(error.to_string());
        let receipt = session.input(&buffer[..n], Instant::now()).map_err(malformed)?;
        if let Some(Ended { result: Err(error), .. }) = receipt.ended {
            return Err(FetchError::Protocol(error.to_string()));
        }
        if receipt.ended.is_some() || session.sink(0).body.len() >= BODY_LIMIT {
            let status = session.status(0);
            let Collected { headers, body } = std::mem::take(session.sink(0));
            return Ok(FetchedReply { status, headers, body });
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Deadline {
    fn left(&self) -> Result<Duration, FetchError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(FetchError::Timeout(self.timeout)) } else { Ok(left) }
    }

    /// Converts an error of a read or write. If a time limit was exceeded, the result is a timeout.
    fn judge(&self, error: io::Error) -> FetchError {
        if is_timeout(&error) {
            FetchError::Timeout(self.timeout)
        } else {
            FetchError::Exchange(error)
        }
    }
}

impl Sink for Collected {
    fn begin(&mut self) {
        *self = Self::default();
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.headers.push((text(name), text(value)));
    }

    fn body(&mut self, piece: &[u8]) {
        let room = BODY_LIMIT - self.body.len();
        self.body.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

impl TimedStream for TcpStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl TimedStream for StreamOwned<ClientConnection, TcpStream> {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.sock.limit(time)
    }
}

impl TimedStream for UnixStream {
    fn limit(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Connect(error) => write!(f, "the connect failed: {error}"),
            Self::Exchange(error) => write!(f, "the connection broke: {error}"),
            Self::Timeout(timeout) => write!(f, "no complete reply within {timeout:?}"),
            Self::Protocol(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for FetchError {}
