//! `forebay serve` with HTTP backends, most of them broken. The client gets a complete reply or a
//! clear error, and never a mixed one.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Reply;
use forebay_testkit::peer;
use forebay_testkit::port::{free_port, listener};
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use forebay_testkit::tls::Authority;
use socket2::{Domain, SockAddr, Socket, Type};
use support::echo::{Echo, body_of};
use support::{Forebay, chunked, pattern, serve, site};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn route_to(backend: &ScriptedBackend) -> String {
    format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", backend.port())
}

/// One thread, so that the next request uses the kept connection.
fn in_front_of(backend: &ScriptedBackend) -> Forebay {
    with_server("threads = 1", backend)
}

fn with_server(keys: &str, backend: &ScriptedBackend) -> Forebay {
    let configuration =
        format!("[server]\n{keys}\n[[site]]\nlisten = \"127.0.0.1:0\"\n{}", route_to(backend));
    support::serve_file(Folder::new(), &configuration)
}

/// Returns the reply to GET if the backend sends these bytes and closes.
fn reply_to(bytes: impl AsRef<[u8]>) -> Result<Reply, std::io::Error> {
    let backend = ScriptedBackend::tcp([vec![ScriptStep::ReadHead, ScriptStep::send(bytes)]]);
    let forebay = in_front_of(&backend);
    let reply = forebay.try_get("/");
    let (exit, _) = forebay.stop();
    assert!(!exit.output.contains("panicked"), "{}", exit.output);
    reply
}

/// A protocol, as a server speaks it that writes a reply in pieces.
struct Pieces {
    route: &'static str,
    /// True if the server closes after a reply, as those of SCGI and uwsgi do.
    closes: bool,
    /// Returns the length of the first whole request, or 0.
    is_whole: fn(&[u8]) -> usize,
    /// The pieces of the reply to this request, the `n`th of its connection.
    reply: fn(&[u8], u32) -> Vec<Vec<u8>>,
}

/// A reply in more pieces than a kernel acknowledges at once on each new connection.
fn many_pieces(first_line: &str) -> Vec<Vec<u8>> {
    let head = format!("{first_line}\r\nContent-Length: 60\r\n\r\n");
    let mut pieces = vec![head.into_bytes()];
    pieces.extend("ok".repeat(30).bytes().map(|byte| vec![byte]));
    pieces
}

fn whole_head(asked: &[u8]) -> usize {
    asked.windows(4).position(|end| end == b"\r\n\r\n").map_or(0, |at| at + 4)
}

const IN_PIECES: [Pieces; 7] = [
    Pieces {
        route: "proxy = \"http://127.0.0.1:PORT\"",
        closes: false,
        is_whole: whole_head,
        reply: |_, _| {
            ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "o", "k"].map(Vec::from).to_vec()
        },
    },
    Pieces {
        route: "proxy = { to = \"https://127.0.0.1:PORT\", tls = { verify = false } }",
        closes: false,
        is_whole: whole_head,
        reply: |_, _| {
            ["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "o", "k"].map(Vec::from).to_vec()
        },
    },
    Pieces {
        route: "scgi = { to = \"127.0.0.1:PORT\" }",
        closes: true,
        // A netstring; the requests have no body.
        is_whole: |asked| {
            let colon = asked.iter().position(|&b| b == b':').unwrap_or(asked.len());
            let length = std::str::from_utf8(&asked[..colon]).unwrap().parse().unwrap_or(0);
            let whole = colon + 1 + length + 1;
            if asked.len() < whole { 0 } else { whole }
        },
        reply: |_, _| many_pieces("Status: 200 OK"),
    },
    Pieces {
        route: "uwsgi = { to = \"127.0.0.1:PORT\" }",
        closes: true,
        is_whole: |asked| match asked {
            [_, low, high, ..] => {
                let length = 4 + usize::from(u16::from_le_bytes([*low, *high]));
                if asked.len() < length { 0 } else { length }
            }
            _ => 0,
        },
        reply: |_, _| many_pieces("HTTP/1.1 200 OK"),
    },
    Pieces {
        route: "fastcgi = { to = \"127.0.0.1:PORT\", root = \"/srv/none\", scripts = \"*\" }",
        closes: false,
        is_whole: |asked| {
            let end = [1, 5, 0, 1, 0, 0, 0, 0];
            asked.windows(8).position(|at| at == end).map_or(0, |at| at + 8)
        },
        reply: |_, _| {
            ["Content-Type: text/plain\n\n", "ok", ""]
                .map(|text| {
                    let kind = if text.is_empty() { 3 } else { 6 };
                    let content = if text.is_empty() { &[0; 8] } else { text.as_bytes() };
                    [&[1, kind, 0, 1, 0, content.len() as u8, 0, 0], content].concat()
                })
                .to_vec()
        },
    },
    Pieces {
        route: "ajp = { to = \"127.0.0.1:PORT\" }",
        closes: false,
        is_whole: |asked| match asked {
            [0x12, 0x34, high, low, ..] => {
                let length = 4 + usize::from(u16::from_be_bytes([*high, *low]));
                if asked.len() < length { 0 } else { length }
            }
            _ => 0,
        },
        reply: |_, _| {
            ["\x04\0\u{68}\0\0\0\0\0", "\x03\0\x02ok\0", "\x05\x01"]
                .map(|text| {
                    let mut packet = [&b"AB\0"[..], &[text.len() as u8], text.as_bytes()].concat();
                    if packet[4] == 4 {
                        packet[6] = 200;
                    }
                    packet
                })
                .to_vec()
        },
    },
    Pieces {
        route: "proxy = \"h2c://127.0.0.1:PORT\"",
        closes: false,
        // The preface, then frames up to the end of the head.
        is_whole: |asked| {
            let mut at = if asked.starts_with(b"PRI") { 24 } else { 0 };
            while let Some(header) = asked.get(at..at + 9) {
                at += 9 + usize::from(u16::from_be_bytes([header[1], header[2]]));
                if header[3] == 1 {
                    return if asked.len() < at { 0 } else { at };
                }
            }
            0
        },
        reply: |asked, n| {
            let id = (2 * n + 1).to_be_bytes();
            let frame = |kind: u8, flags: u8, content: &[u8]| {
                let length = content.len() as u8;
                [&[0, 0, length, kind, flags, id[0], id[1], id[2], id[3]], content].concat()
            };
            let settings: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0];
            let first = if asked.starts_with(b"PRI") { settings } else { b"" };
            vec![[first, &frame(1, 4, &[0x88])].concat(), frame(0, 0, b"o"), frame(0, 1, b"k")]
        },
    },
];

/// Answers the requests of one connection.
fn write_in_pieces(mut stream: impl Read + Write, protocol: &Pieces) {
    let (mut asked, mut n) = (Vec::new(), 0);
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        asked.extend_from_slice(&buffer[..read]);
        let length = (protocol.is_whole)(&asked);
        if length == 0 {
            continue;
        }
        for piece in (protocol.reply)(&asked, n) {
            // With TLS, each piece is a record.
            let _gone = stream.write_all(&piece).and_then(|()| stream.flush());
        }
        if protocol.closes {
            break;
        }
        asked.drain(..length);
        n += 1;
    }
}

/// The server's kernel holds a small piece back until the one before is acknowledged (Nagle's
/// algorithm), which a kernel delays by 40 ms.
#[test]
fn a_reply_in_pieces_does_not_wait_for_late_acknowledgements() {
    for protocol in &IN_PIECES {
        let (listener, address) = listener();
        let tls = protocol.route.contains("https").then(|| {
            let server = Authority::new("Forebay").issue(&["127.0.0.1"]).server();
            std::sync::Arc::new(server)
        });
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let tls = tls.clone();
                std::thread::spawn(move || match tls {
                    Some(tls) => {
                        let connection = rustls::ServerConnection::new(tls).unwrap();
                        write_in_pieces(rustls::StreamOwned::new(connection, stream), protocol);
                    }
                    None => write_in_pieces(stream, protocol),
                });
            }
        });
        let route = protocol.route.replace("PORT", &address.port().to_string());
        let forebay = site(Folder::new(), &format!("[[site.route]]\n{route}\n"));
        let mut client = forebay.connect();
        // With late acknowledgements, this takes more than 12 s.
        let mut is_fast = || {
            let start = Instant::now();
            for _ in 0..300 {
                let reply = client.get("/");
                let body = if protocol.closes { "ok".repeat(30) } else { "ok".to_owned() };
                assert_eq!((reply.status, reply.text()), (200, &*body), "{route}");
            }
            start.elapsed() < Duration::from_secs(10)
        };
        // Other programs may use the machine.
        assert!((0..3).any(|_| is_fast()), "{route}");
        forebay.stop();
    }
}

#[test]
fn a_backend_that_closes_after_every_reply_loses_nothing() {
    for per_connection in [1, 100] {
        let echo = Echo::closing_after(per_connection);
        let forebay = site(Folder::new(), &echo.route());
        std::thread::scope(|scope| {
            for client in 0..4 {
                let forebay = &forebay;
                scope.spawn(move || {
                    let mut connection = forebay.connect();
                    for n in 0..100 {
                        let reply = connection.get(&format!("/{client}/{n}"));
                        assert_eq!(reply.status, 200, "{}", forebay.output());
                        let line = format!("GET /{client}/{n} HTTP/1.1\r\n");
                        assert!(reply.text().starts_with(&line), "{}", reply.text());
                    }
                });
            }
        });
        forebay.stop();
    }
}

#[test]
fn uploads_to_a_backend_that_closes_after_every_reply_arrive() {
    let echo = Echo::closing_after(1);
    let forebay = site(Folder::new(), &echo.route());
    let mut client = forebay.connect();
    for n in 0..100 {
        // The backend closes exactly when the next request is sent, and this request must not be
        // repeated.
        client.send(format!("POST /{n} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{n}: {}", forebay.output());
        assert_eq!(body_of(&reply.body), b"hello");
    }
    assert_eq!(echo.whole(), 100, "nothing was sent twice");
}

#[test]
fn a_reply_cut_short_is_cut_short() {
    for cut in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsh",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzzz\r\n",
    ] {
        match reply_to(cut) {
            Ok(reply) => assert_eq!(reply.status, 502, "{cut:?}"),
            Err(error) => {
                let kind = error.kind();
                use std::io::ErrorKind::{ConnectionReset, UnexpectedEof};
                assert!(matches!(kind, ConnectionReset | UnexpectedEof), "{cut:?}: {error}");
            }
        }
    }
    // For an HTTP/1.0 client, only the kind of the connection's end distinguishes a complete reply
    // from a cut-off one.
    let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n";
    let backend = ScriptedBackend::tcp([vec![ScriptStep::ReadHead, ScriptStep::send(reply)]]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    client.send("GET / HTTP/1.0\r\nHost: h\r\n\r\n");
    let outcome = client.try_reply();
    assert!(outcome.as_ref().map_or(true, |reply| reply.status == 502), "{outcome:?}");
}

#[test]
fn an_early_reply_ends_an_upload() {
    let early =
        "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
    for framing in ["Content-Length: 10000000", "Transfer-Encoding: chunked"] {
        let backend = ScriptedBackend::tcp([vec![
            ScriptStep::ReadHead,
            ScriptStep::send(early),
            ScriptStep::FinishSending,
        ]]);
        let forebay = in_front_of(&backend);
        let mut client = forebay.connect();
        client.send(format!("POST / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n"));
        for piece in chunked(&[&pattern(5_000_000), &pattern(4_900_000)]).chunks(100_000) {
            if client.try_send(piece).is_err() {
                break;
            }
        }
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (413, "big"), "{framing}");
        forebay.stop();
    }
}

#[test]
fn a_backend_that_is_not_there_is_a_bad_gateway() {
    let to = format!("http://127.0.0.1:{}", free_port());
    let mut forebay = site(Folder::new(), &format!("[[site.route]]\nproxy = \"{to}\"\n"));
    let mut client = forebay.connect();
    let reply = client.get("/");
    assert_eq!((reply.status, reply.header("Connection")), (502, None));
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(client.reply().status, 502);
    assert_eq!(client.get("/").status, 502, "the connection goes on");
    forebay.wait_for_output(&to["http://".len()..]);

    let folder = Folder::new();
    let forebay = site(folder, "[[site.route]]\nproxy = \"unix:{tmp}/no-socket\"\n");
    assert_eq!(forebay.get("/").status, 502);
}

#[test]
fn a_backend_that_does_not_accept_in_time_is_a_gateway_timeout() {
    // A queue for one request, which is occupied.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let _taken = TcpStream::connect(address).unwrap();
    let timeouts = "[server]\ntimeouts = { connect = \"300ms\" }\n";
    let configuration = format!(
        "{timeouts}[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nproxy = \"http://{address}\"\n"
    );
    let forebay = serve(Folder::new(), &configuration);
    assert_eq!(forebay.get("/").status, 504);
}

#[test]
fn a_full_queue_of_a_unix_socket_is_waited_for() {
    let folder = Folder::new();
    let path = folder.path().join("socket");
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let taken = UnixStream::connect(&path).unwrap();
    let forebay = site(folder, "[[site.route]]\nproxy = \"unix:{tmp}/socket\"\n");
    std::thread::scope(|scope| {
        let reply = scope.spawn(|| forebay.get("/"));
        drop(taken);
        let listener = UnixListener::from(OwnedFd::from(socket));
        let (first, _) = listener.accept().unwrap();
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        let _request = second.read(&mut [0; 1024]).unwrap();
        second.write_all(OK.as_bytes()).unwrap();
        assert_eq!(reply.join().unwrap().text(), "ok");
    });
}

/// A kept connection that ends after the next request has arrived on it.
fn dying_on_second() -> Vec<ScriptStep> {
    vec![ScriptStep::ReadHead, ScriptStep::send(OK), ScriptStep::ReadHead]
}

#[test]
fn a_request_over_a_stale_connection_is_sent_once_more() {
    let backend =
        ScriptedBackend::tcp([dying_on_second(), vec![ScriptStep::ReadHead, ScriptStep::send(OK)]]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    assert_eq!(client.get("/1").text(), "ok");
    assert_eq!(client.get("/2").text(), "ok");
    drop(forebay);
    let records = backend.finish();
    assert!(records[0].received.windows(6).any(|w| w == b"GET /2"));
    assert!(records[1].received.starts_with(b"GET /2 "));
}

#[test]
fn uploads_arrive_exactly() {
    let echo = Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    let body = pattern(1_000_000);
    let mut client = forebay.connect();
    client.send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len()));
    client.send(&body);
    assert!(body_of(&client.reply().body) == body);
    client.send("PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(chunked(&body.chunks(33_333).collect::<Vec<_>>()));
    let reply = client.reply();
    assert!(body_of(&reply.body) == body);
    assert!(!reply.body.windows(15).any(|w| w.eq_ignore_ascii_case(b"content-length:")));
}

#[test]
fn the_backend_is_left_when_the_client_has_gone() {
    for begun in [false, true] {
        let (arrived, has_arrived) = mpsc::channel();
        let mut steps = vec![ScriptStep::ReadHead, ScriptStep::Signal(arrived)];
        if begun {
            steps.push(ScriptStep::send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"));
        }
        steps.push(ScriptStep::ReadToEnd);
        let backend = ScriptedBackend::tcp([steps]);
        let forebay = with_server("threads = 1\n[defaults]\non_abort = \"stop\"", &backend);
        let mut client = forebay.connect();
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        // If the client leaves earlier than this, no backend connection is used.
        has_arrived.recv_timeout(DEADLINE).expect("the request reaches the backend");
        if begun {
            client.reply_to_head();
        }
        drop(client);
        // Ends only when Forebay closes the connection, long before its own time limit.
        let records = backend.records();
        assert_eq!(records[0].failure, None, "{begun}");
        forebay.stop();
    }
}

#[test]
fn nginx_as_a_backend() {
    let folder = Folder::new();
    let content = pattern(300_000);
    folder.write("large", &content);
    folder.write("small", "small");
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}}; root {};\n\
         location /redirect {{ return 302 /x; }}\n location /413 {{ client_max_body_size 10; }} }}",
        folder.path().display()
    );
    let Some(nginx) = peer::nginx(&conf) else { return };
    let routes = format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", nginx.port());
    let forebay = site(Folder::new(), &routes);
    let mut client = forebay.connect();
    for _ in 0..20 {
        assert_eq!(client.get("/small").text(), "small");
        assert!(client.get("/large").body == content);
    }
    let etag = client.get("/small").header("ETag").unwrap().to_owned();
    client.send(format!("GET /small HTTP/1.1\r\nHost: h\r\nIf-None-Match: {etag}\r\n\r\n"));
    assert_eq!(client.reply().status, 304);
    client.send("GET /large HTTP/1.1\r\nHost: h\r\nRange: bytes=5-9\r\n\r\n");
    let part = client.reply();
    assert_eq!((part.status, &part.body[..]), (206, &content[5..10]));
    client.send("HEAD /large HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().header("Content-Length"), Some("300000"));
    assert_eq!(client.get("/redirect").status, 302);
    client.send("POST /413 HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
    let _it_may_have_answered = client.try_send(&pattern(1_000_000));
    assert_eq!(client.reply().status, 413);
    nginx.stop();
    assert_eq!(forebay.get("/small").status, 502);
}
