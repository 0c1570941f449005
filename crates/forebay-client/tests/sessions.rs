//! Tests that replies of each protocol give identical results if they are read whole, byte by byte
//! or in pieces. Also tests that malformed replies are detected.

use std::sync::Arc;
use std::time::Instant;

use forebay_client::{
    AjpClient, AppServer, Ended, FastcgiClient, FastcgiMux, Gateway, Http1, Http2, Http2Request,
    HttpRequest, Malformed, MuxSession, Session, Sink, StreamError, WebSocket, WebSocketRequest,
    ajp_request, fastcgi_request,
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
    HttpRequest { bytes: bytes.into(), to_head: false, keepalive: true, expects: None }
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
    Http1::new(request(b"GET / HTTP/1.1\r\n\r\n"), Collected::default())
}

fn fastcgi() -> FastcgiClient<Collected> {
    let http = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    let request = fastcgi_request(http, &Gateway::default(), true).unwrap();
    FastcgiClient::new(request.into(), Collected::default())
}

fn app_server() -> AppServer<Collected> {
    AppServer::new(request(b"request"), Collected::default())
}

fn ajp(body: &str) -> AjpClient<Collected> {
    let length = body.len();
    let http = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}");
    let request = ajp_request(http.as_bytes(), &Gateway::default(), true).unwrap();
    AjpClient::new(Arc::new(request), Collected::default())
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
fn read_mux(
    session: &mut impl MuxSession<Sink = Collected>,
    bytes: &[u8],
    size: usize,
) -> Vec<(usize, String)> {
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

/// Answer of a FastCGI application that takes this many requests at once.
fn values(most: &str) -> Vec<u8> {
    let pair = |name: &str, value: &str| {
        [&[name.len() as u8, value.len() as u8], name.as_bytes(), value.as_bytes()].concat()
    };
    let pairs = [pair("FCGI_MPXS_CONNS", "1"), pair("FCGI_MAX_REQS", most)].concat();
    [&[1, 10, 0, 0, 0, pairs.len() as u8, 0, 0], &pairs[..]].concat()
}

/// Encodes a FastCGI record for request `id`, with padding.
fn record_for(id: u8, kind: u8, content: &[u8]) -> Vec<u8> {
    [&[1, kind, 0, id, 0, content.len() as u8, 3, 0], content, b"pad"].concat()
}

/// Creates a session of FastCGI for this many exchanges, whose application has answered.
fn fastcgi_mux(streams: usize) -> FastcgiMux<Collected> {
    let http = b"GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let request = fastcgi_request(http, &Gateway::default(), true).unwrap();
    let mut session = FastcgiMux::new(request.into(), (0..streams).map(|_| Collected::default()));
    session.connect(Instant::now());
    assert!(session.is_connecting() && session.capacity() == 0);
    assert_eq!(session.output()[..2], [1, 9], "FCGI_GET_VALUES");
    session.wrote(session.output().len(), Instant::now());
    assert_eq!(read_mux(&mut session, &values("100"), 7), []);
    assert!(!session.is_connecting() && session.take_handshake().is_some());
    // The application may close the connection after its answer, so requests need another
    // connection.
    assert!(session.capacity() == 0 && session.is_finished());
    session.close(Instant::now());
    session.connect(Instant::now());
    assert!(!session.is_connecting() && session.output().is_empty());
    session
}

#[test]
fn requests_on_a_fastcgi_connection_end_in_any_order_and_fail_alone() {
    let mut bytes = record_for(3, 6, b"Status: 404 No\r\nContent-Ty");
    bytes.extend(record_for(1, 6, b"Status: 20"));
    bytes.extend(record_for(3, 6, b"pe: a/b\r\n\r\nthr"));
    bytes.extend(record_for(2, 7, b"complaint"));
    bytes.extend(record_for(1, 6, b"1 Made\r\n\r\none"));
    bytes.extend(record_for(3, 6, b"ee"));
    // A reply with a malformed head. The session aborts the request and ignores the rest of the
    // reply.
    bytes.extend(record_for(2, 6, b"no head\r\n\r\n"));
    bytes.extend(record_for(2, 6, b"Status: 200\r\n\r\n"));
    bytes.extend(record_for(3, 3, END));
    bytes.extend(record_for(2, 3, END));
    bytes.extend(record_for(4, 3, &[0, 0, 0, 0, 1, 0, 0, 0]));
    bytes.extend(record_for(1, 3, END));
    for size in [1, 2, 7, 1000] {
        let mut session = fastcgi_mux(4);
        assert_eq!(session.capacity(), 4);
        assert!((0..4).all(|exchange| session.start(exchange, Instant::now())));
        session.wrote(session.output().len(), Instant::now());
        assert_eq!(session.capacity(), 0);
        let mut ended = read_mux(&mut session, &bytes, size);
        assert!(ended.remove(0).1.contains("reply of the script is malformed"));
        assert_eq!(session.output()[..4], [1, 2, 0, 2], "FCGI_ABORT_REQUEST for request 2");
        assert!(ended.remove(1).1.contains("refused a second request"));
        assert_eq!(ended, [(2, "404 three".into()), (0, "201 one".into())]);
        assert_eq!(session.capacity(), 4);
        assert!(session.start(0, Instant::now()));
        assert_eq!(session.output()[8..12], [1, 1, 0, 5], "a new ID");
    }
}

#[test]
fn records_for_unknown_requests_break_a_shared_fastcgi_connection() {
    let error = |bytes: &[u8]| {
        let mut session = fastcgi_mux(2);
        assert!(session.start(0, Instant::now()));
        let mut at = 0;
        loop {
            match session.input(&bytes[at..], Instant::now()) {
                Ok(receipt) if receipt.ended.is_some() => at += receipt.consumed,
                Ok(_) => return String::new(),
                Err(error) => return error.to_string(),
            }
        }
    };
    let unknown = "record for request 2, which is not running";
    assert!(error(&record_for(2, 6, b"x")).ends_with(unknown));
    let reply = [record_for(1, 6, b"A: b\r\n\r\n"), record_for(1, 3, END)].concat();
    assert_eq!(error(&reply), "");
    let twice = [reply, record_for(1, 3, END)].concat();
    assert!(error(&twice).ends_with("record for request 1, which is not running"));
    assert!(error(&record_for(0, 6, b"x")).ends_with("request 0, which is not running"));
    assert!(error(&record_for(1, 3, b"short")).ends_with("END_REQUEST of 5 bytes"));
    assert!(error(b"HTTP/1.1 400 Bad").contains("FastCGI version 72"));
    // A second answer about the capabilities changes nothing.
    assert_eq!(error(&values("7")), "");
}

#[test]
fn a_fastcgi_application_must_confirm_that_it_multiplexes() {
    let answer = |bytes: &[u8]| {
        let sinks = (0..8).map(|_| Collected::default());
        let mut session = FastcgiMux::new(b"request"[..].into(), sinks);
        session.connect(Instant::now());
        let result = session.input(bytes, Instant::now()).map_err(|error| error.to_string());
        session.connect(Instant::now());
        result.map(|_| session.capacity())
    };
    assert_eq!(answer(&values("100")), Ok(8));
    assert_eq!(answer(&values("3")), Ok(3), "FCGI_MAX_REQS");
    assert_eq!((answer(&values("0")), answer(&values("many"))), (Ok(1), Ok(8)));
    assert_eq!(answer(&values("3")[..20]), Ok(0), "a part of the answer");
    let not = |bytes: &[u8]| answer(bytes).unwrap_err();
    assert!(not(&record_with_id_0(b"\x0f\x01FCGI_MPXS_CONNS0")).contains("is not 1"));
    assert!(not(&record_with_id_0(b"\x01\x01ab")).contains("is not 1"));
    assert!(not(&record_with_id_0(b"\x0f\x7fFCGI")).contains("FCGI_GET_VALUES is malformed"));
    assert!(not(&record_for(1, 6, b"x")).contains("which is not running"));
}

fn record_with_id_0(content: &[u8]) -> Vec<u8> {
    [&[1, 10, 0, 0, 0, content.len() as u8, 0, 0], content].concat()
}

#[test]
fn after_many_aborted_requests_a_fastcgi_connection_is_replaced() {
    let mut session = fastcgi_mux(2);
    for _ in 0..1024 {
        assert!(session.start(1, Instant::now()));
        session.cancel(1, Instant::now());
        session.wrote(session.output().len(), Instant::now());
    }
    assert!(session.capacity() == 0 && session.is_finished());
    session.connect(Instant::now());
    assert!(session.capacity() == 2 && !session.is_finished());
}

#[test]
fn pings_of_a_server_that_reads_nothing_take_no_memory() {
    let request = WebSocketRequest::new(b"GET / HTTP/1.1\r\n\r\n"[..].into(), b"hello");
    let mut session = WebSocket::new(request, true, Collected::default());
    session.connect();
    session.start();
    session.wrote(session.output().len());
    let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    assert_eq!(session.input(head).unwrap().consumed, head.len());
    let message = session.output().to_vec();
    for number in 0..1000_u32 {
        let ping = [&[0x89, 4][..], &number.to_be_bytes()].concat();
        assert_eq!(session.input(&ping).unwrap().consumed, ping.len());
    }
    // The message, and the answer to the last ping. Its payload is masked after 6 bytes.
    assert!(session.output().starts_with(&message));
    let pong = &session.output()[message.len()..];
    assert_eq!(pong.len(), 10);
    let unmasked: Vec<u8> =
        pong[6..].iter().zip(&pong[2..6]).map(|(byte, mask)| byte ^ mask).collect();
    assert_eq!(unmasked, 999_u32.to_be_bytes());
    // A pong whose first byte was written stays.
    session.wrote(message.len() + 1);
    session.input(b"\x89\0").unwrap();
    assert_eq!(session.output().len(), 9 + 6);
}
