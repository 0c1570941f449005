//! Tests that replies of each protocol give identical results if they are read whole, byte by byte
//! or in pieces. Also tests that malformed replies are detected.

use std::sync::Arc;
use std::time::Instant;

use forebay_client::{
    AjpClient, AppServer, Ended, FastcgiClient, Gateway, Http1, Http2, Http2Request, HttpRequest,
    Malformed, MuxSession, Session, Sink, StreamError, ajp_request,
};

#[derive(Debug, Default, PartialEq)]
struct Collected {
    fields: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Sink for Collected {
    fn begin(&mut self) {
        *self = Self::default();
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.fields.push((text(name), text(value)));
    }

    fn body(&mut self, piece: &[u8]) {
        self.body.extend_from_slice(piece);
    }
}

fn request(bytes: &[u8]) -> HttpRequest {
    HttpRequest { bytes: bytes.into(), to_head: false }
}

/// Status, body, and true if the connection may be used again. `None` if the reply did not end.
type Read = Result<Option<(u16, Vec<u8>, bool)>, String>;

/// Reads `reply` in pieces of `size`, then closes the connection.
fn read(session: &mut impl Session<Sink = Collected>, reply: &[u8], size: usize) -> Read {
    session.start();
    let length = session.output().len();
    session.wrote(length);
    assert!(session.output().is_empty());
    let mut pending = Vec::new();
    for piece in reply.chunks(size) {
        pending.extend_from_slice(piece);
        let receipt = session.input(&pending).map_err(|error: Malformed| error.to_string())?;
        pending.drain(..receipt.consumed);
        if let Some(answer) = receipt.answer {
            let body = std::mem::take(&mut session.sink().body);
            return Ok(Some((answer.status, body, answer.reusable)));
        }
    }
    let answer = session.closed();
    let body = std::mem::take(&mut session.sink().body);
    Ok(answer.map(|answer| (answer.status, body, answer.reusable)))
}

/// Calls [`read`] with pieces of several sizes, which must give identical results.
fn read_any(mut session: impl Session<Sink = Collected>, reply: &[u8]) -> Read {
    let whole = read(&mut session, reply, usize::MAX >> 1);
    for size in [1, 2, 3, 7, 13] {
        assert_eq!(read(&mut session, reply, size), whole, "in pieces of {size}");
    }
    whole
}

fn http1() -> Http1<Collected> {
    Http1::new(request(b"GET / HTTP/1.1\r\n\r\n"), true, Collected::default())
}

fn fastcgi() -> FastcgiClient<Collected> {
    FastcgiClient::new(b"request"[..].into(), true, Collected::default())
}

fn app_server() -> AppServer<Collected> {
    AppServer::new(request(b"request"), Collected::default())
}

fn ajp(body: &str) -> AjpClient<Collected> {
    let length = body.len();
    let http = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}");
    let request = ajp_request(http.as_bytes(), &Gateway::default()).unwrap();
    AjpClient::new(Arc::new(request), true, Collected::default())
}

/// Encodes an AJP packet from a servlet container.
fn packet(payload: &[u8]) -> Vec<u8> {
    [b"AB\0", &[payload.len() as u8][..], payload].concat()
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut record = vec![1, kind, 0, 1, 0, content.len() as u8, 0, 0];
    record.extend_from_slice(content);
    record
}

const END: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn http_replies_end_by_length_by_chunks_and_with_the_connection() {
    let ended = |reply: &str| read_any(http1(), reply.as_bytes()).unwrap();
    let body = b"hello".to_vec();
    let by_length = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(ended(by_length), Some((200, body.clone(), true)));
    let chunked = "HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    assert_eq!(ended(chunked), Some((404, body.clone(), true)));
    assert_eq!(ended("HTTP/1.1 200 OK\r\n\r\nhello"), Some((200, body, false)));
    assert_eq!(ended("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"), None);
}

#[test]
fn an_ajp_reply_ends_with_its_last_packet_which_says_whether_the_connection_stays() {
    let head = packet(b"\x04\0\xc9\0\x04Made\0\0\x01\xa0\x03\0\x015\0");
    let body = packet(b"\x03\0\x05hello\0");
    for reuse in [0, 1] {
        let reply = [&head[..], &body, &packet(b"\x03\0\0\0"), &packet(&[5, reuse])].concat();
        let ended = read_any(ajp(""), &reply).unwrap();
        assert_eq!(ended, Some((201, b"hello".to_vec(), reuse == 1)));
    }
    assert_eq!(read_any(ajp(""), &[&head[..], &body].concat()), Ok(None));
    for broken in [
        [&head[..], &packet(b"\x05\x01")].concat(),
        [&head[..], &body, &body, &packet(b"\x05\x01")].concat(),
        packet(b"\x05\x01"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
    ] {
        read_any(ajp(""), &broken).unwrap_err();
    }
}

#[test]
fn a_servlet_container_is_sent_the_packets_that_it_asks_for() {
    let mut session = ajp(&"x".repeat(8186 + 10));
    for _ in 0..2 {
        session.start();
        let first = session.output().to_vec();
        assert!(first.ends_with(&[b'x'; 8186]) && first[..2] == [0x12, 0x34]);
        session.wrote(first.len());
        for (asked, sent) in [(4, 4), (8186, 6), (8186, 0)] {
            let asks = packet(&[&b"\x06"[..], &u16::to_be_bytes(asked)].concat());
            assert_eq!(session.input(&asks).unwrap().consumed, asks.len());
            let end = b"\x12\x34\0\0".to_vec();
            let data = [&[0x12, 0x34, 0, sent + 2, 0, sent], &vec![b'x'; sent.into()][..]].concat();
            assert_eq!(session.output(), if sent == 0 { end } else { data });
            session.wrote(session.output().len());
            assert!(session.output().is_empty());
        }
    }
}

#[test]
fn a_fastcgi_reply_is_what_the_script_prints_between_its_records() {
    let mut reply = record(6, b"Status: 201 Made\r\nConte");
    reply.extend(record(7, b"words for the log"));
    reply.extend(record(6, b"nt-Type: text/plain\r\n\r\nhe"));
    reply.extend(record(6, b"llo"));
    reply.extend(record(6, b""));
    reply.extend(record(3, END));
    assert_eq!(read_any(fastcgi(), &reply).unwrap(), Some((201, b"hello".to_vec(), true)));
}

#[test]
fn a_fastcgi_reply_that_is_cut_off_or_refused_is_no_reply() {
    let cut = record(6, b"Content-Type: text/plain\r\n\r\nhello");
    assert_eq!(read_any(fastcgi(), &cut).unwrap(), None);
    assert!(read_any(fastcgi(), &record(3, END)).is_err(), "without a head");
    let overloaded = record(3, &[0, 0, 0, 0, 2, 0, 0, 0]);
    assert!(read_any(fastcgi(), &overloaded).unwrap_err().contains("overloaded"));
    assert!(read_any(fastcgi(), b"HTTP/1.1 400 Bad Request\r\n\r\n").is_err());
}

#[test]
fn applications_of_scgi_and_uwsgi_may_answer_with_http_or_as_scripts_do() {
    let ended = |reply: &str| read_any(app_server(), reply.as_bytes()).unwrap();
    let body = b"hello".to_vec();
    let http = "HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\nhello";
    assert_eq!(ended(http), Some((200, body.clone(), false)));
    let script = "Status: 500 Oh\r\nContent-Type: a/b\r\n\r\nhello";
    assert_eq!(ended(script), Some((500, body.clone(), false)));
    assert_eq!(ended("Content-Type: a/b\r\nContent-Length: 9\r\n\r\nhello"), None);
    assert_eq!(ended("Content-Type: a/b\r\n"), None);
    assert_eq!(ended("HTT"), None);
    assert_eq!(ended(""), None);
}

fn http2(streams: usize) -> Http2<Collected> {
    let request = b"GET /x HTTP/1.1\r\nHost: a.example\r\nX-Y: z\r\n\r\n";
    let request = Arc::new(Http2Request::of(request, false).unwrap());
    Http2::new(request, true, (0..streams).map(|_| Collected::default()))
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
    frame.extend_from_slice(payload);
    frame
}

/// Reads `bytes` in pieces of `size`. Returns the exchanges that ended, with their status and body.
fn read_mux(session: &mut Http2<Collected>, bytes: &[u8], size: usize) -> Vec<(usize, String)> {
    let (mut pending, mut all) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(size) {
        pending.extend_from_slice(piece);
        loop {
            let receipt = session.input(&pending, Instant::now()).unwrap();
            pending.drain(..receipt.consumed);
            let Some(Ended { exchange, result }) = receipt.ended else { break };
            let body = String::from_utf8(std::mem::take(&mut session.sink(exchange).body)).unwrap();
            all.push(match result {
                Ok(answer) => (exchange, format!("{} {body}", answer.status)),
                Err(error) => (exchange, error.to_string()),
            });
        }
    }
    all
}

#[test]
fn streams_of_http2_end_in_any_order_and_fail_alone() {
    let mut bytes = frame(4, 0, 0, &[]);
    bytes.extend(frame(1, 4, 5, &[0x88]));
    bytes.extend(frame(1, 4, 1, &[0x8d]));
    bytes.extend(frame(0, 0, 5, b"fi"));
    bytes.extend(frame(3, 0, 3, &[0, 0, 0, 7]));
    bytes.extend(frame(0, 1, 5, b"ve"));
    bytes.extend(frame(0, 1, 1, b"one"));
    for size in [1, 2, 7, usize::MAX >> 1] {
        let mut session = http2(3);
        session.connect(Instant::now());
        assert_eq!(session.capacity(), 1, "before the settings");
        assert_eq!(read_mux(&mut session, &bytes[..9], size), []);
        assert_eq!(session.capacity(), 3);
        assert!((0..3).all(|exchange| session.start(exchange, Instant::now())));
        assert_eq!(session.capacity(), 0);
        let ended = read_mux(&mut session, &bytes[9..], size);
        let refused = StreamError::Refused.to_string();
        let expected = [(1, refused), (2, "200 five".into()), (0, "404 one".into())];
        assert_eq!(ended, expected, "in pieces of {size}");
        assert_eq!(session.capacity(), 3);
    }
}

#[test]
fn an_http2_server_that_goes_away_leaves_what_it_did_not_take() {
    let mut session = http2(2);
    read_mux(&mut session, &frame(4, 0, 0, &[]), 100);
    assert!((0..2).all(|exchange| session.start(exchange, Instant::now())));
    let mut bytes = frame(7, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    bytes.extend(frame(1, 5, 1, &[0x88]));
    let ended = read_mux(&mut session, &bytes, 100);
    assert_eq!(ended, [(1, StreamError::Unprocessed.to_string()), (0, "200 ".into())]);
    assert!(session.is_finished() && session.capacity() == 0);
    assert_eq!(session.farewell().as_deref(), Some("GOAWAY, NO_ERROR"));
    session.connect(Instant::now());
    assert!(!session.is_finished() && session.capacity() == 1);
}

#[test]
fn other_protocols_differ_from_malformed_http2() {
    let error = |bytes: &[u8]| http2(1).input(bytes, Instant::now()).unwrap_err().to_string();
    assert!(error(b"HTTP/1.1 400 Bad Request\r\n\r\n").contains("speaks HTTP/1.1"));
    assert!(error(&frame(6, 0, 0, b"ping....")).contains("first frame is not SETTINGS"));
}
