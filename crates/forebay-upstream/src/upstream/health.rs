//! Health checks of backends. One thread checks all backends.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_conf as conf;
use forebay_net::log::ErrorLog;
use forebay_net::tls::{Alpn, ClientTls};
use forebay_wire::fields;
use forebay_wire::http1::{BodyDecoder, Http1Limits, ResponseHead, ResponseParser};
use forebay_wire::http2::{Cause, Config, Connection, ErrorCode, Event, RequestPseudo};
use forebay_wire::reply::{ReplyReader, ReplyStep};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{Endpoint, Group};

/// One backend to check.
pub struct HealthCheck {
    /// Group of the backend.
    pub group: Arc<Group>,
    /// Number of the backend in its group.
    pub index: usize,
    /// Address of the backend.
    pub endpoint: Endpoint,
    /// Name for messages.
    pub name: String,
    /// Value of `Host`.
    pub authority: String,
    /// True for HTTP/2 by prior knowledge.
    pub speaks_http2: bool,
    /// TLS settings, the host of the URL, and the HTTP versions to offer; `None` for plaintext.
    pub tls: Option<(Arc<ClientTls>, String, Alpn)>,
    /// PROXY header that the backend expects.
    pub send_proxy: Option<conf::ProxyHeader>,
    /// True if HTTP/1.1 replies with oddities count as failures.
    pub strict: bool,
    /// Request and interval of the check.
    pub health: conf::Health,
}

/// The thread that checks backends. It ends when `Checker` is dropped.
pub struct Checker {
    _stop: oneshot::Sender<()>,
}

impl Checker {
    /// Starts the thread. Returns `None`, and starts nothing, if there is nothing to check.
    pub fn start(checks: Vec<HealthCheck>, errors: &ErrorLog) -> io::Result<Option<Self>> {
        if checks.is_empty() {
            return Ok(None);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let errors = errors.clone();
        std::thread::Builder::new().name("health".into()).spawn(move || {
            runtime.block_on(async {
                for check in checks {
                    tokio::spawn(watch(check, errors.clone()));
                }
                let _ = stopped.await;
            });
        })?;
        Ok(Some(Self { _stop: stop }))
    }
}

/// Checks one backend at its interval, until the task is aborted. The backend becomes down after
/// `falls` failed checks in a row, and up again after `rises` successful checks in a row.
async fn watch(check: HealthCheck, errors: ErrorLog) {
    let HealthCheck { group, index, name, health, .. } = &check;
    let mut ticks = interval(health.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_well = group.is_well(*index);
    let mut in_a_row = 0;
    loop {
        ticks.tick().await;
        let answer = timeout(health.timeout, request(&check)).await;
        let answer = answer.unwrap_or_else(|_| Err(no_answer(health.timeout)));
        if answer.is_ok() == is_well {
            in_a_row = 0;
            continue;
        }
        in_a_row += 1;
        if in_a_row < if is_well { health.falls } else { health.rises } {
            continue;
        }
        in_a_row = 0;
        is_well = !is_well;
        group.set_well(*index, is_well);
        match answer {
            Ok(()) => errors.info(&format!("{name} is up again")),
            Err(reason) => errors.warn(&format!("{name} is down: {reason}")),
        }
    }
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

/// Performs one check. Returns the reason if the check fails.
async fn request(check: &HealthCheck) -> Result<(), String> {
    let text = |error: io::Error| error.to_string();
    let health = &check.health;
    let mut search = TextSearch::new(health.body.as_deref());
    let at_port = |mut address: SocketAddr| {
        address.set_port(health.port.unwrap_or(address.port()));
        address
    };
    if health.path.is_empty() {
        return connect(check, at_port).await.map_err(text);
    }
    let status = match &check.endpoint {
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path).await.map_err(text)?;
            secure(check, &mut search, stream).await?
        }
        Endpoint::Tcp(address) => {
            let stream = TcpStream::connect(at_port(*address)).await.map_err(text)?;
            secure(check, &mut search, stream).await?
        }
        Endpoint::Name(name) => {
            let addresses: Vec<_> =
                name.in_turn().map_err(text)?.into_iter().map(at_port).collect();
            let stream = TcpStream::connect(&addresses[..]).await.map_err(text)?;
            secure(check, &mut search, stream).await?
        }
    };
    if !health.statuses.contain(status) {
        return Err(format!("{} answered {status}", health.path));
    }
    if !search.has_found() {
        return Err(format!("the answer of {} does not contain the text of `body`", health.path));
    }
    Ok(())
}

/// Checks a backend of a `[[stream]]`: opens a connection and closes it.
async fn connect(
    check: &HealthCheck,
    at_port: impl Fn(SocketAddr) -> SocketAddr,
) -> io::Result<()> {
    let mut out = Vec::new();
    if let Some(version) = check.send_proxy {
        super::append_local_proxy_header(&mut out, version);
    }
    match &check.endpoint {
        Endpoint::Unix(path) => UnixStream::connect(path).await?.write_all(&out).await,
        Endpoint::Tcp(address) => {
            TcpStream::connect(at_port(*address)).await?.write_all(&out).await
        }
        Endpoint::Name(name) => {
            let addresses: Vec<_> = name.in_turn()?.into_iter().map(at_port).collect();
            TcpStream::connect(&addresses[..]).await?.write_all(&out).await
        }
    }
}

/// Sends the check's request over `stream`, after the handshake of TLS if the backend speaks TLS.
async fn secure<S: AsyncRead + AsyncWrite + Unpin>(
    check: &HealthCheck,
    search: &mut TextSearch<'_>,
    stream: S,
) -> Result<u16, String> {
    let Some((tls, host, alpn)) = &check.tls else {
        return request_over(check, search, stream, check.speaks_http2).await;
    };
    let stream = tls.connect(stream, host, *alpn).await.map_err(|error| format!("TLS: {error}"))?;
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    request_over(check, search, stream, is_http2).await
}

/// Sends the check's request over `stream`. Returns the status of the reply, or the reason of a
/// failure.
async fn request_over<S: AsyncRead + AsyncWrite + Unpin>(
    check: &HealthCheck,
    search: &mut TextSearch<'_>,
    stream: S,
    is_http2: bool,
) -> Result<u16, String> {
    let HealthCheck { authority, health, .. } = check;
    if is_http2 {
        let scheme = if check.tls.is_some() { "https" } else { "http" };
        return ask_http2(scheme, authority, &health.path, search, stream).await;
    }
    let request = check_request(&health.path, authority, check.send_proxy);
    ask_http1(&request, check.strict, search, stream).await
}

/// Search for a text in the first part of a body, which arrives in pieces.
struct TextSearch<'a> {
    text: &'a [u8],
    /// The end of the earlier pieces, shorter than the text.
    tail: Vec<u8>,
    read: usize,
    has_found: bool,
}

impl<'a> TextSearch<'a> {
    /// The longest part of a body that is searched, in bytes.
    const MOST: usize = 64 * 1024;

    /// Creates a search for `text`. If `text` is `None` or empty, the search is successful at once.
    fn new(text: Option<&'a str>) -> Self {
        let text = text.unwrap_or_default().as_bytes();
        Self { text, tail: Vec::new(), read: 0, has_found: text.is_empty() }
    }

    fn push(&mut self, data: &[u8]) {
        let data = &data[..data.len().min(Self::MOST - self.read)];
        self.read += data.len();
        self.tail.extend_from_slice(data);
        self.has_found |= memchr::memmem::find(&self.tail, self.text).is_some();
        let kept = self.tail.len().min(self.text.len().saturating_sub(1));
        self.tail.drain(..self.tail.len() - kept);
    }

    fn is_done(&self) -> bool {
        self.has_found || self.read == Self::MOST
    }

    fn has_found(&self) -> bool {
        self.has_found
    }
}

// Health check over HTTP/1.1, on its own connection.

/// Sends `request` and returns the reply's status, or the reason of a failure. Reads the reply's
/// body until `search` is done. If `strict` is false, accepts the oddities that are accepted in
/// replies to clients' requests.
async fn ask_http1<S: AsyncRead + AsyncWrite + Unpin>(
    request: &[u8],
    strict: bool,
    search: &mut TextSearch<'_>,
    mut stream: S,
) -> Result<u16, String> {
    stream.write_all(request).await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())?;
    let heads = ReplyReader::new(ResponseParser::new(Http1Limits::default(), false));
    let mut heads = heads.strict(strict);
    let mut head = ResponseHead::default();
    let mut bytes = Vec::new();
    loop {
        if read_http1(&mut stream, &mut bytes).await? == 0 {
            return Err("it closed the connection without an answer".into());
        }
        loop {
            let step = heads.read_mending(&mut bytes, &mut head);
            match step.map_err(|error| error.to_string())? {
                ReplyStep::Partial => break,
                ReplyStep::Interim(len) => drop(bytes.drain(..len)),
                ReplyStep::Final(len) => {
                    bytes.drain(..len);
                    let body = BodyDecoder::response(head.framing).lenient_unless(strict);
                    read_http1_body(body, bytes, search, stream).await?;
                    return Ok(head.status);
                }
            }
        }
    }
}

/// Reads the body, whose first bytes are in `bytes`, until `search` is done.
async fn read_http1_body<S: AsyncRead + Unpin>(
    mut decoder: BodyDecoder,
    mut bytes: Vec<u8>,
    search: &mut TextSearch<'_>,
    mut stream: S,
) -> Result<(), String> {
    while !search.is_done() {
        let step = decoder.decode(&bytes).map_err(|error| error.to_string())?;
        search.push(&bytes[step.data.clone()]);
        bytes.drain(..step.consumed);
        if step.done {
            break;
        }
        if step.consumed == 0 && read_http1(&mut stream, &mut bytes).await? == 0 {
            if decoder.ends_at_close() {
                break;
            }
            return Err("it closed the connection in the middle of its answer".into());
        }
    }
    Ok(())
}

async fn read_http1<S: AsyncRead + Unpin>(
    stream: &mut S,
    bytes: &mut Vec<u8>,
) -> Result<usize, String> {
    stream.read_buf(bytes).await.map_err(|error| error.to_string())
}

/// Returns the request for `path`, after the PROXY header that the backend expects.
fn check_request(path: &str, authority: &str, send_proxy: Option<conf::ProxyHeader>) -> Vec<u8> {
    let mut request = Vec::new();
    if let Some(version) = send_proxy {
        super::append_local_proxy_header(&mut request, version);
    }
    request.extend_from_slice(
        format!(
            "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: forebay (health check)\r\n\
             Connection: close\r\n\r\n"
        )
        .as_bytes(),
    );
    request
}

// Health check over HTTP/2, on its own connection.

/// Size of the input buffer, in bytes. It holds the largest frame that the codec takes whole.
const INBOX: usize = 32 * 1024;

/// Requests `path` and returns the reply's status, or the reason of a failure. Reads the reply's
/// body until `search` is done.
async fn ask_http2<S: AsyncRead + AsyncWrite + Unpin>(
    scheme: &str,
    authority: &str,
    path: &str,
    search: &mut TextSearch<'_>,
    mut stream: S,
) -> Result<u16, String> {
    let mut codec = Connection::client(Config::default());
    let request = RequestPseudo {
        method: b"GET",
        scheme: scheme.as_bytes(),
        authority: authority.as_bytes(),
        path: path.as_bytes(),
        protocol: b"",
    };
    let fields = fields::of_lines(b"user-agent: forebay (health check)\r\n");
    codec.send_request(&request, fields, true).map_err(|error| error.to_string())?;
    let (mut input, mut answer) = (Vec::new(), CheckReply::default());
    loop {
        write_out(&mut codec, &mut stream).await?;
        input.reserve(INBOX);
        match stream.read_buf(&mut input).await {
            Ok(0) => return Err("it closed the connection without an answer".into()),
            Ok(_) => {}
            Err(error) => return Err(error.to_string()),
        }
        take_in(&mut codec, &mut input, &mut answer, search)?;
        if let Some(status) = answer.status.filter(|_| answer.is_complete(search)) {
            codec.goaway(ErrorCode::NO_ERROR);
            // The answer is complete, so ignore a failure to send the GOAWAY.
            let _ = write_out(&mut codec, &mut stream).await;
            return Ok(status);
        }
    }
}

async fn write_out<S: AsyncWrite + Unpin>(
    codec: &mut Connection,
    stream: &mut S,
) -> Result<(), String> {
    let len = codec.output().len();
    stream.write_all(codec.output()).await.map_err(|error| error.to_string())?;
    codec.wrote(len);
    // TLS may hold a part back.
    stream.flush().await.map_err(|error| error.to_string())
}

/// A reply, as far as it has arrived.
#[derive(Default)]
struct CheckReply {
    status: Option<u16>,
    has_ended: bool,
}

impl CheckReply {
    fn is_complete(&self, search: &TextSearch<'_>) -> bool {
        self.status.is_some() && (self.has_ended || search.is_done())
    }
}

/// Decodes the input, up to the end of the reply.
fn take_in(
    codec: &mut Connection,
    input: &mut Vec<u8>,
    answer: &mut CheckReply,
    search: &mut TextSearch<'_>,
) -> Result<(), String> {
    let speaks_http1 = input.starts_with(b"HTTP/1.");
    let mut at = 0;
    while !answer.is_complete(search) {
        let step = codec.receive(&input[at..], Instant::now()).map_err(|error| {
            if speaks_http1 { "it speaks HTTP/1.1, not HTTP/2".into() } else { error.to_string() }
        })?;
        let before = at;
        at += step.consumed;
        match step.event {
            Some(Event::Head { head, end, .. }) => {
                answer.status = Some(head.status);
                answer.has_ended = end;
            }
            Some(Event::Data { stream, data, end }) => {
                codec.consume(stream, data.len(), Instant::now());
                search.push(&input[before + data.start..before + data.end]);
                answer.has_ended = end;
            }
            Some(Event::Trailers { .. }) => answer.has_ended = true,
            Some(Event::Reset { cause, .. }) => return Err(refusal(cause)),
            Some(_) => {}
            None => break,
        }
    }
    input.drain(..at);
    Ok(())
}

fn refusal(cause: Cause) -> String {
    match cause {
        Cause::Peer(code) => format!("it reset the stream ({code})"),
        Cause::Rule(rule) => rule.to_string(),
        Cause::Unprocessed => "it closed the connection (GOAWAY) before it took the request".into(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    /// Returns the result for a backend that answers with these pieces and then closes, and true if
    /// the text was found.
    async fn asked(pieces: &[&str], text: Option<&str>) -> (Result<u16, String>, bool) {
        let (ours, mut theirs) = tokio::io::duplex(16);
        let backend = async {
            let mut first = [0; 4];
            theirs.read_exact(&mut first).await.unwrap();
            for piece in pieces {
                // The check may have closed the connection.
                let _ = theirs.write_all(piece.as_bytes()).await;
                tokio::task::yield_now().await;
            }
            drop(theirs);
        };
        let mut search = TextSearch::new(text);
        let (status, ()) = tokio::join!(ask_http1(b"GET ", false, &mut search, ours), backend);
        (status, search.has_found())
    }

    #[tokio::test]
    async fn the_text_is_found_across_pieces_and_chunks() {
        let head = "HTTP/1.1 103 X\r\n\r\nHTTP/1.1 200 OK\r\n";
        let sized = [head, "Content-Length: 9\r\n\r\n", "all is w", "ell, etc."];
        assert_eq!(asked(&sized, Some("is w")).await, (Ok(200), true));
        assert_eq!(asked(&sized, Some("is we")).await, (Ok(200), true), "the length is 9");
        assert_eq!(asked(&sized, Some("etc")).await, (Ok(200), false), "after the body");
        assert_eq!(asked(&sized, None).await, (Ok(200), true), "no text is required");
        let chunked =
            [head, "Transfer-Encoding: chunked\r\n\r\n", "2\r\nO", "P\r\n1\r\nS\r\n0\r\n\r\n"];
        assert_eq!(asked(&chunked, Some("OPS")).await, (Ok(200), true));
        assert_eq!(asked(&chunked, Some("OPS!")).await, (Ok(200), false));
        assert_eq!(asked(&chunked, Some("1")).await, (Ok(200), false), "a length of a chunk");
        let until_close = ["HTTP/1.0 200 OK\r\n\r\nwe", "ll"];
        assert_eq!(asked(&until_close, Some("well")).await, (Ok(200), true));
        assert_eq!(asked(&until_close, Some("ill")).await, (Ok(200), false));
    }

    #[tokio::test]
    async fn a_body_that_is_cut_off_is_no_answer() {
        let cut = ["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall"];
        let (status, found) = asked(&cut, Some("well")).await;
        assert!(status.unwrap_err().contains("in the middle") && !found);
        assert_eq!(asked(&cut, Some("all")).await, (Ok(200), true), "the rest does not matter");
        assert!(asked(&["HTTP/1.1 200 OK\r\n"], None).await.0.is_err());
    }

    #[tokio::test]
    async fn only_the_first_part_of_a_long_body_is_read() {
        let long = "x".repeat(TextSearch::MOST);
        let pieces = ["HTTP/1.1 200 OK\r\n\r\n", &long, "well"];
        assert_eq!(asked(&pieces, Some("well")).await, (Ok(200), false));
        let pieces = ["HTTP/1.1 200 OK\r\n\r\n", &long[..TextSearch::MOST - 4], "well"];
        assert_eq!(asked(&pieces, Some("well")).await, (Ok(200), true));
    }

    const PREFACE: usize = 24;

    /// Returns a frame of stream `id`.
    fn frame(kind: u8, flags: u8, id: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, id];
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns the result for a backend that answers the first bytes with `reply` and then closes.
    async fn asked_http2(reply: Vec<u8>) -> Result<u16, String> {
        asked_for(None, reply).await.0
    }

    /// Like [`asked`]. Also returns true if the text was found.
    async fn asked_for(text: Option<&str>, reply: Vec<u8>) -> (Result<u16, String>, bool) {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let backend = async move |mut theirs: DuplexStream| {
            let mut first = vec![0; PREFACE + 9];
            theirs.read_exact(&mut first).await.unwrap();
            assert!(first.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
            theirs.write_all(&reply).await.unwrap();
            theirs.shutdown().await.unwrap();
            // Read on, so that later writes to the connection succeed.
            let _ = theirs.read_to_end(&mut first).await;
        };
        let mut search = TextSearch::new(text);
        let asking = ask_http2("http", "10.0.0.1", "/healthz", &mut search, ours);
        let status = tokio::join!(asking, backend(theirs)).0;
        (status, search.has_found())
    }

    #[tokio::test]
    async fn the_text_is_found_across_frames() {
        let settings = frame(4, 0, 0, b"");
        let head = frame(1, 4, 1, b"\x88");
        let (first, last) = (frame(0, 0, 1, b"we"), frame(0, 1, 1, b"ll"));
        let reply = [settings, head, first, last].concat();
        assert_eq!(asked_for(Some("well"), reply.clone()).await, (Ok(200), true));
        assert_eq!(asked_for(Some("welll"), reply).await, (Ok(200), false));
    }

    #[tokio::test]
    async fn the_status_is_that_of_the_final_reply() {
        let settings = frame(4, 0, 0, b"");
        // `:status: 103` as a literal, then the indexed `:status: 204`.
        let interim = frame(1, 4, 1, b"\x08\x03103");
        let reply = frame(1, 5, 1, b"\x89");
        assert_eq!(asked_http2([settings, interim, reply].concat()).await, Ok(204));
    }

    #[tokio::test]
    async fn invalid_answers_are_errors() {
        let settings = frame(4, 0, 0, b"");
        let error = asked_http2(settings.clone()).await.unwrap_err();
        assert_eq!(error, "it closed the connection without an answer");
        let reset = frame(3, 0, 1, &[0, 0, 0, 7]);
        let error = asked_http2([&settings[..], &reset].concat()).await.unwrap_err();
        assert_eq!(error, "it reset the stream (REFUSED_STREAM)");
        let goaway = frame(7, 0, 0, &[0; 8]);
        let error = asked_http2([&settings[..], &goaway].concat()).await.unwrap_err();
        assert!(error.contains("GOAWAY"), "{error}");
        let error = asked_http2(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await.unwrap_err();
        assert_eq!(error, "it speaks HTTP/1.1, not HTTP/2");
    }
}
