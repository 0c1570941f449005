//! Interim replies and trailers: which pass, to whom, and which are refused.

use std::time::Duration;

use tokio::time::timeout;

use crate::world::{Message, in_memory};

const ROUTE: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nConnection: X\r\n\
    X: 1\r\nKeep-Alive: 1\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n";

/// Returns all replies to `GET` if the backend sends `reply`: interim replies and the last.
fn replies(route: &str, reply: &str) -> Vec<Message> {
    let mut replies = Vec::new();
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, connection) = backend.answer(reply).await;
        drop(connection);
        loop {
            let reply = client.any_reply(false).await.unwrap();
            let is_last = reply.status() >= 200;
            replies.push(reply);
            if is_last {
                return;
            }
        }
    });
    replies
}

#[test]
fn interim_replies_of_a_backend_pass_without_the_fields_of_their_hop() {
    let replies = replies(ROUTE, &[HINTS, OK].concat());
    let statuses: Vec<_> = replies.iter().map(Message::status).collect();
    assert_eq!(statuses, [103, 102, 200]);
    let link = ("link".to_owned(), "</a.css>; rel=preload".to_owned());
    assert_eq!(replies[0].fields, [link]);
    assert_eq!((replies[2].text(), replies[2].field("link")), ("ok", None));
}

#[test]
fn a_route_removes_fields_from_interim_replies_too() {
    let route = format!("{ROUTE}remove_headers = [\"link\"]\n");
    let replies = replies(&route, &[HINTS, OK].concat());
    let fields: Vec<_> = replies[..2].iter().map(|reply| reply.fields.len()).collect();
    assert_eq!(fields, [0, 0]);
}

#[test]
fn a_backend_that_ends_behind_an_interim_reply_is_a_bad_gateway() {
    for rest in ["", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "nonsense\r\n\r\n"] {
        let replies = replies(ROUTE, &[HINTS, rest].concat());
        let statuses: Vec<_> = replies.iter().map(Message::status).collect();
        assert_eq!(statuses, [103, 102, 502], "{rest:?}");
    }
}

#[test]
fn interim_replies_are_counted() {
    for (count, status) in [(256, 200), (257, 502)] {
        let replies =
            replies(ROUTE, &["HTTP/1.1 102 P\r\n\r\n".repeat(count).as_str(), OK].concat());
        assert_eq!(replies.len(), 257, "{count}");
        assert_eq!(replies[256].status(), status, "{count}");
    }
}

#[test]
fn a_client_that_must_upgrade_is_answered_with_to_what() {
    let required = "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nContent-Length: 0\r\n\r\n";
    let replies = replies(ROUTE, required);
    assert_eq!((replies[0].status(), replies[0].field("upgrade")), (426, Some("websocket")));
    assert_eq!(replies[0].field("connection"), Some("upgrade"));
}

const WITH_TRAILERS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
    2\r\nok\r\n0\r\nX-Sum: 1\r\nSet-Cookie: a=b\r\nWWW-Authenticate: Basic\r\n\
    X-Accel-Redirect: /x\r\nContent-Type: text/html\r\nX-Gone: 1\r\n\r\n";
const WANTS_TRAILERS: &str =
    "GET / HTTP/1.1\r\nHost: h\r\nTE: gzip, Trailers\r\nConnection: TE\r\n\r\n";

/// Returns the backend's request for `request`, which it answers with trailers, and the client's
/// reply.
fn with_trailers(route: &str, request: &str) -> (Message, Message) {
    let mut both = None;
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        both = Some(world.pass(&mut backend, request, WITH_TRAILERS).await);
    });
    both.unwrap()
}

fn names(reply: &Message) -> Vec<&str> {
    reply.trailers.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn trailers_that_frame_route_or_authenticate_are_dropped() {
    let (asked, reply) = with_trailers(ROUTE, WANTS_TRAILERS);
    assert_eq!((reply.text(), reply.field("trailer")), ("ok", Some("X-Sum")));
    assert_eq!(names(&reply), ["x-sum", "x-gone"]);
    assert_eq!((asked.field("te"), asked.field("connection")), (Some("trailers"), Some("TE")));
}

#[test]
fn trailers_stay_where_nobody_takes_them() {
    for (version, te) in [("1.1", ""), ("1.1", "TE: gzip\r\n"), ("1.0", "TE: trailers\r\n")] {
        let request = format!("GET / HTTP/{version}\r\nHost: h\r\n{te}\r\n");
        let (asked, reply) = with_trailers(ROUTE, &request);
        assert_eq!((reply.text(), reply.field("trailer")), ("ok", None), "{request:?}");
        assert_eq!(names(&reply), [""; 0], "{request:?}");
        assert_eq!(asked.field("te"), None, "{request:?}");
    }
}

#[test]
fn a_route_removes_fields_from_trailers_too() {
    let route = format!("{ROUTE}remove_headers = [\"x-gone\"]\n");
    let (_, reply) = with_trailers(&route, WANTS_TRAILERS);
    assert_eq!(names(&reply), ["x-sum"]);
}

#[test]
fn trailers_about_the_framing_of_a_reply_are_dropped_and_its_connection_is_closed() {
    for trailer in ["Content-Length: 3", "Transfer-Encoding: chunked", "Host: e", "X-Other: 1"] {
        in_memory(ROUTE, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let reply = format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2\r\nok\r\n0\r\nX-Sum: 1\r\n{trailer}\r\n\r\n"
            );
            let mut client = world.client();
            client.send(WANTS_TRAILERS).await;
            let _connection = backend.answer(&reply).await;
            let reply = client.reply("GET").await;
            assert_eq!((reply.status(), reply.text()), (200, "ok"));
            let is_other = trailer.starts_with("X-Other");
            let expected: &[&str] = if is_other { &["x-sum", "x-other"] } else { &["x-sum"] };
            assert_eq!(names(&reply), expected, "{trailer}");
            client.send(WANTS_TRAILERS).await;
            let is_new = timeout(Duration::from_secs(1), backend.accept()).await.is_ok();
            assert_eq!(is_new, !is_other, "{trailer}");
        });
    }
}

#[test]
fn trailers_that_break_a_rule_cut_a_strict_reply_off() {
    let to = "{ to = \"http://10.0.0.1:3000\", strict = true }";
    let strict = ROUTE.replace("\"http://10.0.0.1:3000\"", to);
    for trailer in ["a b\r\n", "A: b\r\n c\r\n", "A: \0\r\n"] {
        in_memory(&strict, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send(WANTS_TRAILERS).await;
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n";
            let (_, mut connection) = backend.answer(head).await;
            assert_eq!(client.head().await.unwrap().status(), 200);
            assert_eq!(client.exactly(7).await.unwrap(), b"2\r\nok\r\n");
            connection.send(format!("0\r\n{trailer}\r\n")).await;
            let (rest, outcome) = client.rest().await;
            assert!(outcome.is_err() || rest.is_empty(), "{trailer:?}: {rest:?}");
        });
    }
}

/// Returns the payload of a chunked body, and the number of its chunks.
fn decode(mut body: &[u8]) -> (Vec<u8>, usize) {
    let (mut payload, mut chunks) = (Vec::new(), 0);
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").expect("a whole size line");
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        assert!(!body[..end].starts_with(b"0") || size == 0, "sizes are in their shortest form");
        if size == 0 {
            assert_eq!(&body[end..], b"\r\n\r\n");
            return (payload, chunks);
        }
        payload.extend_from_slice(&body[end + 2..end + 2 + size]);
        assert_eq!(&body[end + 2 + size..end + 4 + size], b"\r\n");
        body = &body[end + 4 + size..];
        chunks += 1;
    }
}

/// Number of one-byte chunks in a body.
const CHUNKS: usize = 50_000;

fn in_single_bytes() -> (Vec<u8>, Vec<u8>) {
    let payload: Vec<u8> = (0..CHUNKS).map(|at| (at * 31 + at / 251) as u8).collect();
    let mut chunked = Vec::new();
    for byte in &payload {
        chunked.extend_from_slice(&[b'1', b'\r', b'\n', *byte, b'\r', b'\n']);
    }
    chunked.extend(b"0\r\n\r\n");
    (payload, chunked)
}

/// Returns the part after the first empty line.
fn body_of(message: &[u8]) -> &[u8] {
    let at = message.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
    &message[at + 4..]
}

#[test]
fn an_upload_in_tiny_chunks_reaches_the_backend_in_large_ones() {
    let (payload, chunked) = in_single_bytes();
    in_memory(ROUTE, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        let receiving = async {
            let connection = backend.accept().await;
            let mut received = Vec::new();
            while !received.ends_with(b"\r\n0\r\n\r\n") {
                assert!(connection.link.read(&mut received).await.unwrap() > 0);
            }
            connection.link.write(OK.as_bytes()).await.unwrap();
            received
        };
        let asking = async {
            client.send([head.as_bytes(), &chunked].concat()).await;
            client.reply(head).await
        };
        let (received, reply) = tokio::join!(receiving, asking);
        assert_eq!(reply.text(), "ok");
        let (received, chunks) = decode(body_of(&received));
        assert!(received == payload, "the payload is changed");
        assert!(chunks < CHUNKS / 100, "{chunks} chunks for {CHUNKS}");
    });
}

#[test]
fn a_reply_in_tiny_chunks_reaches_the_client_in_large_ones() {
    let (payload, chunked) = in_single_bytes();
    in_memory(ROUTE, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await;
        let mut connection = backend.accept().await;
        connection.request().await;
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let sending = connection.send([head.as_bytes(), &chunked].concat());
        let ((), (received, outcome)) = tokio::join!(sending, client.rest());
        outcome.unwrap();
        let (received, chunks) = decode(body_of(&received));
        assert!(received == payload, "the payload is changed");
        assert!(chunks < CHUNKS / 100, "{chunks} chunks for {CHUNKS}");
    });
}
