//! AJP backends: the packets that a container receives, and the handling of replies that are
//! broken, cut off, early or in pieces.

use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet, spawn_local};
use tokio::time::{Instant, sleep};

use crate::world::{Backend, Message, Peer, World, in_memory};

const GET: &str = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";
/// Number of bytes that a container requests at a time: the maximum for a packet of 8192 bytes.
const DATA: usize = 8186;
const PING: &[u8] = b"\x12\x34\0\x01\x0a";
const PONG: &[u8] = b"AB\0\x01\x09";

fn route(keys: &str) -> String {
    route_to("\"10.0.0.1:8009\"", keys)
}

fn route_to(to: &str, keys: &str) -> String {
    format!("[[site.route]]\npath = \"/*\"\najp = {{ to = {to}{keys} }}\n")
}

/// Returns a packet from the container.
fn packet(payload: &[u8]) -> Vec<u8> {
    [&b"AB"[..], &(payload.len() as u16).to_be_bytes(), payload].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_be_bytes()[..], text.as_bytes(), b"\0"].concat()
}

pub fn head(status: u16, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut payload = [&b"\x04"[..], &status.to_be_bytes(), &text(&status.to_string())].concat();
    payload.extend((fields.len() as u16).to_be_bytes());
    for (name, value) in fields {
        payload.extend(text(name));
        payload.extend(text(value));
    }
    packet(&payload)
}

pub fn chunk(data: &[u8]) -> Vec<u8> {
    packet(&[&b"\x03"[..], &(data.len() as u16).to_be_bytes(), data, b"\0"].concat())
}

fn get_body(length: usize) -> Vec<u8> {
    packet(&[&b"\x06"[..], &(length as u16).to_be_bytes()].concat())
}

pub fn end(reuse: bool) -> Vec<u8> {
    packet(&[5, u8::from(reuse)])
}

/// Returns a complete reply with one piece of body.
pub fn ok(data: &str) -> Vec<u8> {
    let length = data.len().to_string();
    [head(200, &[("Content-Length", &length)]), chunk(data.as_bytes()), end(true)].concat()
}

/// Returns the payload of the gateway's next packet; `None` if the gateway has closed.
async fn next(connection: &mut Peer) -> Option<Vec<u8>> {
    let header = connection.exactly(4).await.ok()?;
    assert_eq!(header[..2], [0x12, 0x34]);
    connection.exactly(usize::from(u16::from_be_bytes([header[2], header[3]]))).await.ok()
}

/// Returns the bytes of the next data packet; none at the end.
async fn data(connection: &mut Peer) -> Vec<u8> {
    let payload = next(connection).await.expect("a data packet comes");
    let Some((length, data)) = payload.split_at_checked(2) else { return Vec::new() };
    assert_eq!(usize::from(u16::from_be_bytes([length[0], length[1]])), data.len());
    data.to_vec()
}

/// A request as a container reads it.
#[derive(Debug, Default)]
struct ForwardRequest {
    method: u8,
    /// Protocol, path, client address, client host, requested host.
    line: Vec<String>,
    port: u16,
    is_ssl: bool,
    /// Fields by name or number.
    fields: Vec<(String, String)>,
    attributes: Vec<(String, String)>,
}

impl ForwardRequest {
    async fn read(connection: &mut Peer) -> Self {
        Self::of(&next(connection).await.expect("a request comes"))
    }

    fn of(payload: &[u8]) -> Self {
        let mut rest = payload;
        let mut take = |n: usize| {
            let (taken, after) = rest.split_at(n);
            rest = after;
            taken.to_vec()
        };
        fn int(take: &mut impl FnMut(usize) -> Vec<u8>) -> u16 {
            let bytes = take(2);
            u16::from_be_bytes([bytes[0], bytes[1]])
        }
        fn text(take: &mut impl FnMut(usize) -> Vec<u8>) -> String {
            let length = int(take);
            if length >> 8 == 0xa0 {
                return format!("{length:04x}");
            }
            let bytes = take(usize::from(length));
            assert_eq!(take(1), [0]);
            String::from_utf8(bytes).unwrap()
        }
        assert_eq!(take(1), [2], "a request");
        let mut asked = Self { method: take(1)[0], ..Self::default() };
        asked.line = (0..5).map(|_| text(&mut take)).collect();
        asked.port = int(&mut take);
        asked.is_ssl = take(1) == [1];
        for _ in 0..int(&mut take) {
            let name = text(&mut take);
            asked.fields.push((name, text(&mut take)));
        }
        loop {
            let name = match take(1)[0] {
                0xff => break,
                0x0a => text(&mut take),
                code => format!("{code:02x}"),
            };
            asked.attributes.push((name, text(&mut take)));
        }
        assert!(rest.is_empty());
        asked
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut named = self.fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        let value = named.next().map(|(_, value)| value.as_str());
        assert!(named.next().is_none(), "{name} comes once");
        value
    }

    fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// Accepts a connection and reads a request from it.
async fn accept(container: &mut Backend) -> (Peer, ForwardRequest) {
    let mut connection = container.accept().await;
    let asked = ForwardRequest::read(&mut connection).await;
    (connection, asked)
}

fn post(length: usize, body: &[u8]) -> Vec<u8> {
    let head = format!("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// Returns the client's reply if the container sends these bytes in pieces and closes.
fn answered(reply: &[u8], seed: u64) -> std::io::Result<Message> {
    let mut answered = None;
    in_memory(&route(""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send(GET).await;
        let (mut connection, _) = accept(&mut container).await;
        let answering = async move {
            connection.send_in_pieces(reply, seed).await;
            connection.link.finish();
            let _ = connection.rest().await;
        };
        let ((), replied) = tokio::join!(answering, client.any_reply(false));
        answered = Some(replied);
        assert!(!container.has_visitor(), "asked once");
    });
    answered.unwrap()
}

#[test]
fn a_container_is_told_who_asks_for_what() {
    in_memory(&route(", secret = \"s3\""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client_from("192.0.2.9:4711");
        let request = "PATCH /a%20b/./c;p=1?q=%2F&r HTTP/1.1\r\nHost: Example.org:8443\r\n\
            User-Agent: test\r\nCookie: a=1\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
            Keep-Alive: 5\r\nX-Forwarded-For: 10.9.8.7\r\nX_Forwarded_For: 10.9.8.7\r\n\
            X_Other: 1\r\nProxy: evil\r\nX-A: 1\r\nAuthorization: Basic eA==\r\n\
            Content-Length: 0\r\n\r\n";
        client.send(request).await;
        let (mut connection, asked) = accept(&mut container).await;
        assert_eq!(asked.method, 0xff);
        let line = ["HTTP/1.1", "/a%20b/c;p=1", "192.0.2.9", "192.0.2.9", "Example.org"];
        assert_eq!(
            (&asked.line[..], asked.port, asked.is_ssl),
            (&line.map(String::from)[..], 80, false)
        );
        let fields = [
            ("a00b", "Example.org:8443"),
            ("a00e", "test"),
            ("a009", "a=1"),
            ("X-A", "1"),
            ("a005", "Basic eA=="),
            ("a008", "0"),
        ];
        assert_eq!(asked.fields, fields.map(|(name, value)| (name.into(), value.into())));
        let attributes = [
            ("0d", "PATCH"),
            ("0c", "s3"),
            ("05", "q=%2F&r"),
            ("AJP_REMOTE_PORT", "4711"),
            ("AJP_LOCAL_ADDR", "127.0.0.1"),
        ];
        assert_eq!(asked.attributes, attributes.map(|(name, value)| (name.into(), value.into())));
        connection.send(ok("done")).await;
        assert_eq!(client.reply(request).await.text(), "done");
    });
}

#[test]
fn a_user_that_was_let_in_is_told_and_the_password_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let line = "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n";
    std::fs::write(folder.path().join("users"), line).unwrap();
    let file = folder.path().join("users").display().to_string();
    let route = format!("{}basic_auth = {{ file = \"{file}\" }}\n", route(""));
    in_memory(&route, async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Basic bWU6cDpzcyB3\r\n\r\n").await;
        let (mut connection, asked) = accept(&mut container).await;
        assert_eq!((asked.attribute("03"), asked.attribute("04")), (Some("me"), Some("Basic")));
        assert_eq!((asked.field("a005"), asked.attribute("0c")), (None, None));
        connection.send(ok("in")).await;
        assert_eq!(client.reply("GET ").await.text(), "in");
    });
}

#[test]
fn a_container_may_send_as_many_fields_as_over_other_protocols() {
    in_memory(&route(""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        for (count, status) in [(1000, 200), (1001, 502)] {
            let mut client = world.client();
            client.send(GET).await;
            let (mut connection, _) = accept(&mut container).await;
            connection.send([head(200, &vec![("Link", "</a>"); count]), end(true)].concat()).await;
            let reply = client.reply("GET ").await;
            assert_eq!(reply.status(), status, "{count}");
        }
        assert!(world.errors().iter().any(|line| line.contains("reply_fields")));
    });
}

#[test]
fn bodies_come_in_the_packets_that_are_asked_for() {
    for length in [0, 1, 8184, 8185, 8186, 8187, 8188, 65_536] {
        in_memory(&route(""), async |world| {
            let mut container = world.backend("10.0.0.1:8009");
            let mut client = world.client();
            let body = pattern(length);
            let sent = post(length, &body);
            let asking = async {
                client.send(&sent).await;
                client.reply("POST ").await
            };
            let answering = async {
                let (mut connection, asked) = accept(&mut container).await;
                assert_eq!(asked.field("a008"), Some(&length.to_string()[..]));
                let mut got = Vec::new();
                if length > 0 {
                    got = data(&mut connection).await;
                    assert_eq!(got.len(), length.min(DATA), "unasked");
                }
                for asked in [3, 70, DATA].into_iter().chain(std::iter::repeat(DATA)) {
                    connection.send(get_body(asked)).await;
                    let piece = data(&mut connection).await;
                    assert_eq!(piece.len(), asked.min(length - got.len()));
                    got.extend(&piece);
                    if piece.is_empty() {
                        break;
                    }
                }
                assert!(got == body);
                connection.send(ok("got")).await;
                connection
            };
            let (_connection, reply) = tokio::join!(answering, asking);
            assert_eq!(reply.text(), "got", "{length}");
        });
    }
}

#[test]
fn of_a_body_of_unknown_length_nothing_is_sent_unasked() {
    in_memory(&route(""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        client.send("3\r\nabc\r\n").await;
        let (mut connection, asked) = accept(&mut container).await;
        assert_eq!(asked.field("transfer-encoding"), Some("chunked"));
        assert_eq!(asked.field("a008"), None);
        // Bytes are sent as they arrive, however few, and never more than requested.
        connection.send(get_body(2)).await;
        assert_eq!(data(&mut connection).await, b"ab");
        connection.send(get_body(DATA)).await;
        assert_eq!(data(&mut connection).await, b"c");
        connection.send(get_body(DATA)).await;
        // The container may answer while it waits for more.
        connection.send([head(200, &[]), chunk(b"so far"), chunk(b"")].concat()).await;
        assert!(client.head().await.unwrap().start.contains("200"));
        client.send("2\r\nde\r\n0\r\n\r\n").await;
        assert_eq!(data(&mut connection).await, b"de");
        for _ in 0..2 {
            connection.send(get_body(DATA)).await;
            assert_eq!(data(&mut connection).await, b"", "the end, as often as it is asked for");
        }
        connection.send([chunk(b"."), end(true)].concat()).await;
        assert_eq!(client.line().await.unwrap(), "6");
        assert_eq!(client.line().await.unwrap(), "so far");
        assert_eq!(client.line().await.unwrap(), "1");
    });
}

#[test]
fn packets_in_any_pieces_are_one_reply() {
    let whole = [
        chunk(b""),
        head(
            200,
            &[
                ("Content-Type", "text/plain"),
                ("X-A", "1"),
                ("Connection", "x-hop"),
                ("X-Hop", "1"),
            ],
        ),
        chunk(b""),
        chunk(b"abc"),
        chunk(&[b'x'; 8184]),
        end(true),
    ]
    .concat();
    for seed in 0..10 {
        let reply = answered(&whole, seed).unwrap();
        assert_eq!((reply.status(), &reply.start[..]), (200, "HTTP/1.1 200 OK"));
        assert_eq!((reply.field("x-a"), reply.field("x-hop")), (Some("1"), None));
        assert_eq!(reply.body.len(), 3 + 8184, "seed {seed}");
    }
}

#[test]
fn broken_replies_are_bad_gateways() {
    for broken in [
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        Vec::new(),
        end(true),
        end(false),
        chunk(b"no head"),
        head(100, &[]),
        head(99, &[]),
        head(200, &[("X", "a\r\nb")]),
        head(200, &[("X ", "a")]),
        head(200, &[("Content-Length", "1"), ("Content-Length", "2")]),
        head(200, &[("Content-Length", "+1")]),
        packet(b"\x07"),
        packet(b""),
        packet(b"\x04\0"),
        PONG.to_vec(),
        b"AB\xff\xff".to_vec(),
        get_body(1)[..5].to_vec(),
        [get_body(1), get_body(1)].concat(),
    ] {
        let reply = answered(&broken, 1);
        assert_eq!(reply.unwrap().status(), 502, "{}", broken.escape_ascii());
    }
}

#[test]
fn a_reply_of_another_length_than_was_told_is_cut() {
    let ten = head(200, &[("Content-Length", "10")]);
    for cut in [
        [ten.clone(), chunk(b"abc")].concat(),
        [ten.clone(), chunk(b"abc"), end(true)].concat(),
        [ten.clone(), chunk(b"abcdefghijklm"), end(true)].concat(),
        [ten.clone(), chunk(b"abc"), ten.clone()].concat(),
        [head(200, &[]), chunk(b"abc")].concat(),
        ten,
    ] {
        let reply = answered(&cut, 1);
        assert!(reply.map_or(true, |reply| reply.status() == 502), "{}", cut.escape_ascii());
    }
}

#[test]
fn replies_without_body_have_none_whatever_comes() {
    in_memory(&route(""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        let mut connection = None;
        for (method, status, length) in
            [("HEAD", 200, Some("5")), ("GET", 304, None), ("GET", 204, None)]
        {
            let request = format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n");
            client.send(&request).await;
            let connection = match &mut connection {
                None => connection.insert(container.accept().await),
                Some(connection) => connection,
            };
            ForwardRequest::read(connection).await;
            let reply =
                [head(status, &[("Content-Length", "5")]), chunk(b"hello"), end(true)].concat();
            connection.send(reply).await;
            let reply = client.reply(&request).await;
            assert_eq!((reply.status(), reply.field("content-length")), (status, length));
        }
    });
}

#[test]
fn a_connection_is_kept_where_the_container_says_so() {
    in_memory(&route(""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send(GET).await;
        let (mut connection, _) = accept(&mut container).await;
        connection.send(ok("one")).await;
        assert_eq!(client.reply(GET).await.text(), "one");
        client.send(GET).await;
        ForwardRequest::read(&mut connection).await;
        let last = [head(200, &[]), chunk(b"two"), end(false)].concat();
        connection.send(last).await;
        assert_eq!(client.reply(GET).await.text(), "two");
        assert!(connection.is_closed().await);
        client.send(GET).await;
        let (mut other, _) = accept(&mut container).await;
        other.send([ok("three"), b"behind".to_vec()].concat()).await;
        assert_eq!(client.reply(GET).await.text(), "three");
        assert!(other.is_closed().await, "bytes behind the end");
    });
}

#[test]
fn a_container_may_answer_before_it_has_read_the_body() {
    // First value: the container waits for a packet. Second: the connection is reusable.
    for (asks, is_kept) in [(false, true), (true, false)] {
        in_memory(&route(""), async |world| {
            let mut container = world.backend("10.0.0.1:8009");
            let mut client = world.client();
            client.send(post(20_000, &pattern(10_000))).await;
            let (mut connection, _) = accept(&mut container).await;
            assert_eq!(data(&mut connection).await.len(), DATA);
            if asks {
                connection.send(get_body(DATA)).await;
            }
            connection.send([head(403, &[("Content-Length", "0")]), end(true)].concat()).await;
            assert_eq!(client.reply("POST ").await.status(), 403);
            let mut second = world.client();
            second.send(GET).await;
            if is_kept {
                ForwardRequest::read(&mut connection).await;
                connection.send(ok("again")).await;
            } else {
                let (mut other, _) = accept(&mut container).await;
                assert!(connection.is_closed().await);
                other.send(ok("again")).await;
            }
            assert_eq!(second.reply(GET).await.text(), "again");
        });
    }
}

#[test]
fn a_slow_upload_takes_no_connection_before_its_first_packet() {
    in_memory(&route(""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send(post(9000, b"begin")).await;
        sleep(Duration::from_secs(20)).await;
        assert!(!container.has_visitor());
        client.send(pattern(8995)).await;
        let (mut connection, _) = accept(&mut container).await;
        assert_eq!(data(&mut connection).await.len(), DATA);
        connection.send(get_body(DATA)).await;
        assert_eq!(data(&mut connection).await.len(), 9000 - DATA);
        connection.send(ok("whole")).await;
        assert_eq!(client.reply("POST ").await.text(), "whole");
    });
}

#[test]
fn a_container_that_waits_for_a_slow_client_is_not_late() {
    in_memory(&route(", reply_timeout = \"5s\""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send(post(10_000, &pattern(9000))).await;
        let (mut connection, _) = accept(&mut container).await;
        data(&mut connection).await;
        connection.send(get_body(DATA)).await;
        sleep(Duration::from_secs(20)).await;
        client.send(pattern(1000)).await;
        assert_eq!(data(&mut connection).await.len(), 10_000 - DATA);
        let began = Instant::now();
        assert_eq!(client.reply("POST ").await.status(), 504);
        assert!(began.elapsed() >= Duration::from_secs(5));
    });
}

#[test]
fn pings_tell_whether_a_container_answers() {
    for ping in ["connect", "always"] {
        let to = "[\"10.0.0.1:8009\", \"10.0.0.2:8009\"]";
        let route = route_to(to, &format!(", ping = \"{ping}\", connect_timeout = \"3s\""));
        in_memory(&route, async |world| {
            let mut hung = world.backend("10.0.0.1:8009");
            let mut container = world.backend("10.0.0.2:8009");
            let request = post(3, b"abc");
            let mut client = world.client();
            client.send(&request).await;
            let mut waiting = hung.accept().await;
            assert_eq!(waiting.exactly(5).await.unwrap(), PING);
            let mut connection = container.accept().await;
            assert_eq!(connection.exactly(5).await.unwrap(), PING);
            assert!(waiting.is_closed().await, "and was sent no request");
            connection.send(PONG).await;
            ForwardRequest::read(&mut connection).await;
            assert_eq!(data(&mut connection).await, b"abc");
            connection.send(ok("pinged")).await;
            assert_eq!(client.reply("POST ").await.text(), "pinged");
            client.send(&request).await;
            if ping == "always" {
                // The kept connection no longer answers; a new one does.
                assert_eq!(connection.exactly(5).await.unwrap(), PING);
            }
            // Without a ping, a request that may be sent only once gets no recently used
            // connection.
            let mut other = container.accept().await;
            assert_eq!(other.exactly(5).await.unwrap(), PING);
            other.send(PONG).await;
            ForwardRequest::read(&mut other).await;
            assert_eq!(data(&mut other).await, b"abc");
            other.send(ok("again")).await;
            assert_eq!(client.reply("POST ").await.text(), "again");
        });
    }
}

#[test]
fn a_wrong_answer_to_a_ping_means_unavailable() {
    for wrong in [&b"HTTP/1.1 400 Bad\r\n"[..], &end(true), b"AB\0\x02\x09\0", b""] {
        in_memory(&route(", ping = \"connect\""), async |world| {
            let mut container = world.backend("10.0.0.1:8009");
            let mut client = world.client();
            client.send(GET).await;
            let mut connection = container.accept().await;
            connection.exactly(5).await.unwrap();
            connection.send(wrong).await;
            connection.link.finish();
            assert_eq!(client.reply(GET).await.status(), 503, "{}", wrong.escape_ascii());
        });
    }
}

#[test]
fn a_request_that_a_dying_connection_lost_goes_out_again_with_its_body() {
    in_memory(&route(""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send(GET).await;
        let (mut connection, _) = accept(&mut container).await;
        connection.send(ok("one")).await;
        client.reply(GET).await;
        sleep(Duration::from_secs(1)).await;
        // The body is larger than a packet. The container dies before it requests the rest.
        let body = pattern(9000);
        let put =
            [b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 9000\r\n\r\n", &body[..]].concat();
        client.send(&put).await;
        ForwardRequest::read(&mut connection).await;
        assert_eq!(data(&mut connection).await, body[..DATA]);
        drop(connection);
        let (mut other, _) = accept(&mut container).await;
        assert_eq!(data(&mut other).await, body[..DATA]);
        other.send(get_body(DATA)).await;
        assert_eq!(data(&mut other).await, body[DATA..]);
        other.send(ok("two")).await;
        assert_eq!(client.reply("PUT ").await.text(), "two");
    });
}

#[test]
fn a_session_stays_with_the_container_that_its_route_names() {
    let to = "[{ url = \"10.0.0.1:8009\", route = \"t1\" }, { url = \"10.0.0.2:8009\", route = \"t2\" }]";
    in_memory(&route_to(to, ""), async |world| {
        let mut containers = [world.backend("10.0.0.1:8009"), world.backend("10.0.0.2:8009")];
        for (target, cookie, index) in [
            ("/", "JSESSIONID=0AB.t2", 1),
            ("/", "JSESSIONID=0AB.t2", 1),
            ("/", "a=b; JSESSIONID=xyz.t1", 0),
            ("/x;jsessionid=0AB.t2?a", "", 1),
            ("/x;jsessionid=0AB.t1/y", "", 0),
        ] {
            let mut client = world.client();
            let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\nCookie: {cookie}\r\n\r\n");
            client.send(&request).await;
            let (mut connection, _) = accept(&mut containers[index]).await;
            connection.send([head(200, &[("Content-Length", "0")]), end(false)].concat()).await;
            let reply = client.reply(&request).await;
            assert_eq!((reply.status(), reply.field("set-cookie")), (200, None));
        }
    });
}

#[test]
fn a_head_that_does_not_fit_a_packet_is_refused_here() {
    let request = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "a".repeat(9000));
    in_memory(&route(""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        assert_eq!(world.ask(&request).await.status(), 431);
        assert!(!container.has_visitor());
    });
    in_memory(&route(", packet_size = \"16k\""), async |world| {
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send(&request).await;
        let (mut connection, _) = accept(&mut container).await;
        // A container's packets may be larger than the gateway's.
        let large = [head(200, &[]), chunk(&[b'x'; 60_000]), end(true)].concat();
        let answering = connection.send(large);
        let ((), reply) = tokio::join!(answering, client.reply(&request));
        assert_eq!(reply.body.len(), 60_000);
    });
}

/// Starts the container with this number, which answers each request with the number. Aborting
/// the task aborts all connections of the container.
fn numbered(world: &World, number: u8) -> JoinHandle<()> {
    let mut container = world.backend(&format!("10.0.0.{number}:8009"));
    spawn_local(async move {
        let mut connections = JoinSet::new();
        loop {
            let mut connection = container.accept().await;
            connections.spawn_local(async move {
                while connection.more().await.unwrap_or(false) {
                    ForwardRequest::read(&mut connection).await;
                    connection.send(ok(&number.to_string())).await;
                }
            });
        }
    })
}

#[test]
fn a_session_goes_to_the_container_that_its_own_redirects_to() {
    let to = "[{ url = \"10.0.0.1:8009\", route = \"t1\", redirect = \"t3\" }, \
              { url = \"10.0.0.2:8009\", route = \"t2\", distance = 1 }, \
              { url = \"10.0.0.3:8009\", route = \"t3\", activation = \"disabled\" }]";
    in_memory(&route_to(to, ", recover_time = \"5s\""), async |world| {
        let first = numbered(world, 1);
        let _others = (numbered(world, 2), numbered(world, 3));
        let visit = async |target: &str| {
            let reply = world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            reply.text().to_owned()
        };
        let answers = async || {
            [visit("/").await, visit("/;jsessionid=A.t1").await, visit("/;jsessionid=A.t2").await]
        };
        assert_eq!(answers().await, ["1", "1", "2"]);
        first.abort();
        assert!(first.await.is_err());
        assert_eq!(answers().await, ["2", "3", "2"]);
        let _back = numbered(world, 1);
        assert_eq!(answers().await, ["2", "3", "2"], "it is left alone");
        sleep(Duration::from_secs(6)).await;
        assert_eq!(answers().await, ["1", "1", "2"]);
    });
}

#[test]
fn containers_that_are_all_down_are_a_503() {
    in_memory(&route_to("[\"10.0.0.1:8009\", \"10.0.0.2:8009\"]", ""), async |world| {
        assert_eq!(world.ask(GET).await.status(), 503);
    });
    in_memory("[[site.route]]\najp = \"10.0.0.1:8009\"\n", async |world| {
        assert_eq!(world.ask(GET).await.status(), 503);
        // A request that a container has taken may have been processed.
        let mut container = world.backend("10.0.0.1:8009");
        let mut client = world.client();
        client.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        drop(accept(&mut container).await);
        assert_eq!(client.reply("").await.status(), 502);
    });
}

#[test]
fn a_wrong_secret_is_named_in_the_log() {
    for (reuse, is_named) in [(true, false), (false, true)] {
        in_memory(&route(""), async |world| {
            let mut container = world.backend("10.0.0.1:8009");
            let mut client = world.client();
            client.send(GET).await;
            let (mut connection, _) = accept(&mut container).await;
            connection.send([head(403, &[]), end(reuse)].concat()).await;
            assert_eq!(client.reply(GET).await.status(), 403);
            let errors = world.errors();
            let hint = "`secret` of the route is not that";
            assert_eq!(errors.iter().any(|error| error.contains(hint)), is_named, "{errors:?}");
        });
    }
}

#[test]
fn a_container_that_retires_is_told_so() {
    let to = "[{ url = \"10.0.0.1:8009\", route = \"one\", activation = \"disabled\" }, \
              { url = \"10.0.0.2:8009\", route = \"two\" }]";
    in_memory(&route_to(to, ""), async |world| {
        let mut containers = [world.backend("10.0.0.1:8009"), world.backend("10.0.0.2:8009")];
        for (number, cookie, activation) in
            [(0, "a.one", "DIS"), (1, "a.two", "ACT"), (1, "b", "ACT")]
        {
            let mut client = world.client();
            let fields = "Content-Length: 3\r\nConnection: close\r\n";
            let request = format!(
                "POST /x HTTP/1.1\r\nHost: h\r\nCookie: JSESSIONID={cookie}\r\n{fields}\r\nabc"
            );
            client.send(&request).await;
            let (mut connection, asked) = accept(&mut containers[number]).await;
            assert_eq!(asked.attribute("JK_LB_ACTIVATION"), Some(activation), "{cookie}");
            assert_eq!(data(&mut connection).await, b"abc");
            connection.send(ok("fine")).await;
            assert_eq!(client.reply(&request).await.text(), "fine");
        }
    });
}
