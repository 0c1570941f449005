//! `forebay serve` in front of HTTP backends, most of them bad ones: the client gets a whole reply
//! or a clean error, and never a mixed one.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::Duration;

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Framing, Reply};
use forebay_testkit::peer;
use forebay_testkit::port::free_port;
use forebay_testkit::process::eventually;
use forebay_testkit::scripted::{Backend, Step};
use socket2::{Domain, SockAddr, Socket, Type};
use support::echo::{Echo, body_of};
use support::{Forebay, chunked, pattern, serve, site};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn route_to(backend: &Backend) -> String {
    format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n", backend.port())
}

/// One thread, so that a connection that is kept is the one that is used next.
fn in_front_of(backend: &Backend) -> Forebay {
    with_server("threads = 1", backend)
}

fn with_server(keys: &str, backend: &Backend) -> Forebay {
    let configuration =
        format!("[server]\n{keys}\n[[site]]\nlisten = \"127.0.0.1:0\"\n{}", route_to(backend));
    support::serve_file(Folder::new(), &configuration)
}

/// The reply to GET of a backend that sends these bytes and closes.
fn reply_to(bytes: impl AsRef<[u8]>) -> Result<Reply, std::io::Error> {
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send(bytes)]]);
    let forebay = in_front_of(&backend);
    let reply = forebay.try_get("/");
    let (exit, _) = forebay.stop();
    assert!(!exit.output.contains("panicked"), "{}", exit.output);
    reply
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
        // The close comes just when the next request goes out, which may not be repeated.
        client.send(format!("POST /{n} HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"));
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{n}: {}", forebay.output());
        assert_eq!(body_of(&reply.body), b"hello");
    }
    assert_eq!(echo.whole(), 100, "nothing was sent twice");
}

#[test]
fn uploads_use_kept_connections_once_the_backend_was_seen_to_keep_them() {
    let echo = Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    let mut client = forebay.connect();
    let mut post = || {
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(client.reply().status, 200);
    };
    post();
    // Uploads alone are enough to find out, as connections are looked at from time to time.
    let settles = || {
        let before = echo.connections();
        (0..20).for_each(|_| post());
        echo.connections() == before
    };
    assert!(eventually(settles));
}

#[test]
fn kept_connections_are_used_again() {
    let echo = Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    let mut client = forebay.connect();
    for n in 0..50 {
        assert_eq!(client.get("/").header("X-Request"), Some((n + 1).to_string().as_str()));
    }
    assert_eq!(echo.connections(), 1);
}

#[test]
fn garbage_is_a_bad_gateway() {
    for garbage in [
        "",
        "nonsense\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
    ] {
        let reply = reply_to(garbage).unwrap();
        assert_eq!((reply.status, reply.framing), (502, Framing::Length), "{garbage:?}");
        assert_eq!(reply.header("A"), None);
    }
    let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(100_000));
    assert_eq!(reply_to(endless).unwrap().status, 502);
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(1000));
    assert_eq!(reply_to(many).unwrap().status, 502);
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
    // An HTTP/1.0 client can tell the end from a cut only by how the connection ends.
    let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n";
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send(reply)]]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    client.send("GET / HTTP/1.0\r\nHost: h\r\n\r\n");
    let outcome = client.try_reply();
    assert!(outcome.as_ref().map_or(true, |reply| reply.status == 502), "{outcome:?}");
}

#[test]
fn a_head_waits_for_the_body_that_it_announces() {
    // Nothing has been sent yet, so the client can be told what happened.
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    assert_eq!(reply_to(head).unwrap().status, 502);
    let backend = Backend::tcp([vec![
        Step::ReadHead,
        Step::send(head),
        Step::Pause(Duration::from_millis(20)),
        Step::send("0123456789"),
    ]]);
    let forebay = in_front_of(&backend);
    let reply = forebay.connect().get("/");
    assert_eq!((reply.status, reply.body.as_slice()), (200, &b"0123456789"[..]));
}

#[test]
fn what_follows_a_reply_is_nobodys_reply() {
    let backend = Backend::tcp([
        vec![
            Step::ReadHead,
            Step::send(format!("{OK}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")),
        ],
        vec![Step::ReadHead, Step::send(OK)],
        vec![
            Step::ReadHead,
            Step::send("HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil"),
        ],
        vec![Step::ReadHead, Step::send(OK)],
        vec![Step::ReadHead, Step::send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")],
        vec![Step::ReadHead, Step::send(OK)],
    ]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    assert_eq!(client.get("/").text(), "ok");
    assert_eq!(client.get("/").text(), "ok");
    let empty = client.get("/");
    assert_eq!((empty.status, empty.header("Content-Length")), (204, None));
    assert_eq!(client.get("/").text(), "ok");
    client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().header("Content-Length"), Some("4"));
    assert_eq!(client.get("/").text(), "ok", "a body in the reply to HEAD is dropped");
    drop(forebay);
    backend.finish();
}

#[test]
fn bytes_that_come_late_spoil_a_kept_connection() {
    let late = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let backend = Backend::tcp([
        vec![
            Step::ReadHead,
            Step::send(OK),
            Step::Pause(Duration::from_millis(50)),
            Step::send(late),
            Step::ReadToEnd,
        ],
        vec![Step::ReadHead, Step::send(OK)],
    ]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    assert_eq!(client.get("/").text(), "ok");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(client.get("/").text(), "ok");
}

#[test]
fn an_early_reply_ends_an_upload() {
    let early =
        "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
    for framing in ["Content-Length: 10000000", "Transfer-Encoding: chunked"] {
        let backend = Backend::tcp([vec![Step::ReadHead, Step::send(early), Step::FinishSending]]);
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
fn interim_replies_do_not_confuse() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let reply = reply_to(format!("{interim}{OK}")).unwrap();
    assert_eq!((reply.status, reply.text()), (200, "ok"));
    assert_eq!(reply.header("Link"), None);
}

#[test]
fn replies_of_every_framing_are_passed_on() {
    let reply = reply_to(
        "HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: u\r\n\r\n",
    );
    let reply = reply.unwrap();
    assert_eq!((reply.text(), reply.framing, &*reply.reason), ("abcde", Framing::Chunked, "Fine"));
    let reply = reply_to("HTTP/1.1 200 OK\r\n\r\nuntil the end").unwrap();
    assert_eq!((reply.text(), reply.framing), ("until the end", Framing::Chunked));
    let reply = reply_to("HTTP/1.0 200 OK\r\n\r\nold").unwrap();
    assert_eq!((reply.text(), &*reply.version), ("old", "HTTP/1.1"));
    let reply =
        reply_to("HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nold");
    assert_eq!(reply.unwrap().text(), "old");
    let reply = reply_to("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n").unwrap();
    assert_eq!((reply.status, reply.header("ETag")), (304, Some("\"x\"")));
    let reply = reply_to("HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert_eq!(reply.status, 404);
    let large = pattern(3_000_000);
    let mut bytes =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", large.len()).into_bytes();
    bytes.extend_from_slice(&large);
    assert_eq!(reply_to(bytes).unwrap().body, large);

    let backend = Backend::tcp([vec![
        Step::ReadHead,
        Step::SendByteByByte(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".into(),
        ),
    ]]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    client.send("GET / HTTP/1.0\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.text(), reply.framing), ("abc", Framing::Close));
}

#[test]
fn a_backend_that_says_nothing_is_a_gateway_timeout() {
    let backend = Backend::tcp([
        vec![Step::ReadHead, Step::ReadToEnd],
        vec![
            Step::ReadHead,
            Step::send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"),
            Step::ReadToEnd,
        ],
    ]);
    let mut forebay = with_server("threads = 1\ntimeouts = { reply_idle = \"300ms\" }", &backend);
    let reply = forebay.get("/slow");
    assert_eq!(reply.status, 504);
    forebay.wait_for_output("504");
    assert!(forebay.output().contains(&backend.port().to_string()), "{}", forebay.output());
    assert!(forebay.try_get("/").is_err(), "cut in the middle");
    drop(forebay);
    backend.finish();
}

#[test]
fn the_time_for_a_reply_begins_when_the_body_is_sent() {
    let backend = Backend::tcp([vec![
        Step::ReadHead,
        Step::expect("6\r\nslowly\r\n0\r\n\r\n"),
        Step::send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"),
    ]]);
    let forebay = with_server("threads = 1\ntimeouts = { reply_idle = \"2s\" }", &backend);
    let mut client = forebay.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    std::thread::sleep(Duration::from_secs(3));
    client.send("6\r\nslowly\r\n0\r\n\r\n");
    assert_eq!(client.reply().status, 200);
}

#[test]
fn a_client_that_reads_slowly_is_no_silence_of_the_backend() {
    const LENGTH: usize = 8 << 20;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    let body = vec![b'x'; LENGTH];
    let backend =
        Backend::unix([vec![Step::ReadHead, Step::send([head.as_bytes(), &body].concat())]]);
    let path = backend.path().display();
    let configuration = format!(
        "[server]\ntimeouts = {{ reply_idle = \"2s\" }}\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\nproxy = \"unix:{path}\"\n"
    );
    let forebay = support::serve_file(Folder::new(), &configuration);
    let mut client = forebay.connect();
    client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    std::thread::sleep(Duration::from_secs(3));
    let reply = client.reply();
    assert_eq!((reply.status, reply.body.len()), (200, LENGTH));
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
    // A queue for one, which is taken.
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

#[test]
fn one_of_two_backends_may_be_dead() {
    let echo = Echo::start();
    let dead = free_port();
    let routes = format!(
        "[[site.route]]\nproxy = {{ to = [\"http://127.0.0.1:{dead}\", \"{}\"] }}\n",
        echo.url()
    );
    let forebay = site(Folder::new(), &routes);
    let mut client = forebay.connect();
    for _ in 0..10 {
        assert_eq!(client.get("/").status, 200);
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(body_of(&client.reply().body), b"ok");
    }
}

/// A kept connection that dies when the next request has come over it.
fn dying_on_second() -> Vec<Step> {
    vec![Step::ReadHead, Step::send(OK), Step::ReadHead]
}

#[test]
fn a_request_over_a_stale_connection_is_sent_once_more() {
    let backend = Backend::tcp([dying_on_second(), vec![Step::ReadHead, Step::send(OK)]]);
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
fn once_more_is_not_twice_more() {
    let dies = vec![Step::ReadHead];
    let backend = Backend::tcp([dying_on_second(), dies.clone(), dies]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    assert_eq!(client.get("/1").text(), "ok");
    assert_eq!(client.get("/2").status, 502);
    drop(forebay);
    assert_eq!(backend.records()[2].failure.as_deref(), Some("nobody connected"));
}

#[test]
fn what_may_not_be_repeated_is_not() {
    for request in [
        "POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        "POST /2 HTTP/1.1\r\nHost: h\r\n\r\n",
        "PATCH /2 HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok",
        "POST /2 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ] {
        let dying = [vec![Step::ReadHead, Step::send(OK)], dying_on_second()].concat();
        let backend = Backend::tcp([dying, vec![Step::ReadHead, Step::send(OK)]]);
        let forebay = in_front_of(&backend);
        let mut client = forebay.connect();
        // The backend is seen to keep connections.
        assert_eq!(client.get("/1").text(), "ok");
        assert_eq!(client.get("/1").text(), "ok");
        client.send(request);
        assert_eq!(client.reply().status, 502, "{request}");
        drop(forebay);
        assert_eq!(backend.records()[1].failure.as_deref(), Some("nobody connected"), "{request}");
    }
}

#[test]
fn a_reply_that_began_is_not_asked_for_again() {
    let backend = Backend::tcp([
        vec![Step::ReadHead, Step::send(OK), Step::ReadHead, Step::send("HTTP/1.1 2")],
        vec![Step::ReadHead, Step::send(OK)],
    ]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    assert_eq!(client.get("/1").text(), "ok");
    assert_eq!(client.get("/2").status, 502);
}

#[test]
fn fields_of_one_hop_stay_on_it() {
    let echo = Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    let reply = forebay.ask(
        "GET /a?b HTTP/1.1\r\nHost: name:81\r\nConnection: X-Drop, keep-alive, close\r\nX-Drop: 1\r\n\
         x-drop: 2\r\nX-Keep: 3\r\nKeep-Alive: timeout=5\r\nTE: gzip\r\nTrailer: X\r\n\
         Upgrade: h2c\r\nProxy-Connection: close\r\nProxy: http://evil/\r\nX-Forwarded-For: 9.9.9.9\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\nX-Real-IP: 9.9.9.9\r\n\
         Forwarded: for=9.9.9.9\r\nx-forwarded-for: 8.8.8.8\r\n\r\n",
    );
    let request = reply.text().to_ascii_lowercase();
    for gone in [
        "x-drop",
        "keep-alive",
        "\r\nte:",
        "\r\ntrailer:",
        "upgrade",
        "proxy",
        "9.9.9.9",
        "8.8.8.8",
        "evil",
        "connection:",
        "https",
    ] {
        assert!(!request.contains(gone), "{gone}: {request}");
    }
    for kept in [
        "get /a?b http/1.1\r\n",
        "\r\nhost: name:81\r\n",
        "\r\nx-keep: 3\r\n",
        "\r\nx-forwarded-for: 127.0.0.1\r\n",
        "\r\nx-forwarded-proto: http\r\n",
        "\r\nx-forwarded-host: name:81\r\n",
    ] {
        assert!(request.contains(kept), "{kept}: {request}");
    }

    let reply = reply_to(
        "HTTP/1.1 200 OK\r\nConnection: X-Drop, close\r\nX-Drop: 1\r\nKeep-Alive: timeout=5\r\n\
         X-Keep: 2\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\
         Content-Length: 2\r\n\r\nok",
    )
    .unwrap();
    assert_eq!(reply.headers_named("Set-Cookie"), ["a", "b"]);
    assert_eq!(reply.header("X-Keep"), Some("2"));
    for gone in ["Connection", "X-Drop", "Keep-Alive", "Proxy-Connection", "Upgrade"] {
        assert_eq!(reply.header(gone), None, "{gone}");
    }
}

#[test]
fn a_trusted_proxy_is_believed() {
    let echo = Echo::start();
    let configuration = format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\ntrusted_proxies = [\"127.0.0.0/8\", \"10.0.0.1\"]\n{}",
        echo.route()
    );
    let forebay = serve(Folder::new(), &configuration);
    let reply = forebay.ask(
        "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 9.9.9.9, 10.0.0.1\r\n\
         X-Forwarded-Proto: https\r\n\r\n",
    );
    let request = reply.text().to_ascii_lowercase();
    assert!(request.contains("\r\nx-forwarded-for: 9.9.9.9, 10.0.0.1, 127.0.0.1\r\n"), "{request}");
    assert!(request.contains("\r\nx-forwarded-proto: https\r\n"), "{request}");
}

#[test]
fn a_prefix_can_be_stripped() {
    let echo = Echo::start();
    let routes = format!(
        "[[site.route]]\npath = \"/app/*\"\nproxy = {{ to = \"{}\", strip_prefix = \"/app\" }}\n",
        echo.url()
    );
    let forebay = site(Folder::new(), &routes);
    for (target, passed) in [
        ("/app/x?y", "/x?y"),
        ("/app/", "/"),
        ("/app/%2e%2e%252fz", "/%2e%2e%252fz"),
        ("/app//x", "/x"),
    ] {
        let reply = forebay.get(target);
        let line = format!("GET {passed} HTTP/1.1\r\n");
        assert!(reply.text().starts_with(&line), "{target}: {}", reply.text());
    }
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
fn what_a_backend_says_reaches_the_client_as_it_comes() {
    let backend = Backend::tcp([vec![
        Step::ReadHead,
        Step::send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"),
        // Goes on only when told to, by what the client sends after it has got the first piece.
        Step::expect("3\r\ngo!\r\n"),
        Step::send("3\r\ntwo\r\n0\r\n\r\n"),
    ]]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    let head = client.reply_to_head();
    assert_eq!(head.header("Transfer-Encoding"), Some("chunked"));
    assert_eq!(client.bytes(8), b"3\r\none\r\n");
    client.send("3\r\ngo!\r\n");
    assert_eq!(client.bytes(13), b"3\r\ntwo\r\n0\r\n\r\n");
}

#[test]
fn the_backend_is_left_when_the_client_has_gone() {
    for begun in [false, true] {
        let (arrived, has_arrived) = mpsc::channel();
        let mut steps = vec![Step::ReadHead, Step::Tell(arrived)];
        if begun {
            steps.push(Step::send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"));
        }
        steps.push(Step::ReadToEnd);
        let backend = Backend::tcp([steps]);
        let forebay = in_front_of(&backend);
        let mut client = forebay.connect();
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        // A client that leaves earlier than this costs no connection to the backend at all.
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
fn pipelined_bytes_behind_a_request_do_not_end_it() {
    let backend = Backend::tcp([vec![
        Step::ReadHead,
        Step::Pause(Duration::from_millis(100)),
        Step::send(OK),
        Step::ReadHead,
        Step::send(OK),
    ]]);
    let forebay = in_front_of(&backend);
    let mut client = forebay.connect();
    client.send("GET /1 HTTP/1.1\r\nHost: h\r\n\r\n");
    client.send("GET /2 HTTP/1.1\r\nHost: h\r\n\r\n");
    client.finish_sending();
    assert_eq!(client.reply().text(), "ok");
    assert_eq!(client.reply().text(), "ok");
    assert!(client.is_closed());
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
