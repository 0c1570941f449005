//! Upgraded connections through `forebay serve`: what becomes a tunnel, when, and how it ends.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::scripted::{Backend, Step};
use support::echo::Echo;
use support::{Forebay, pattern, serve, site};

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: y\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn proxy(port: u16) -> Forebay {
    with_server("", port)
}

fn with_server(keys: &str, port: u16) -> Forebay {
    let configuration = format!(
        "[server]\n{keys}\n[[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\nproxy = \"http://127.0.0.1:{port}\"\n"
    );
    serve(Folder::new(), &configuration)
}

/// Sends an upgrade and reads the 101.
fn upgraded(forebay: &Forebay) -> Client {
    let mut client = forebay.connect();
    client.send(UPGRADE);
    let reply = client.reply();
    assert_eq!(reply.status, 101);
    client
}

/// A backend that does with its one connection what the test says.
fn backend<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (u16, JoinHandle<T>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(forebay_testkit::DEADLINE)).unwrap();
        serve(stream)
    });
    (port, thread)
}

fn read_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    head
}

#[test]
fn both_sides_talk_once_the_backend_has_switched() {
    let backend = Backend::tcp([vec![
        Step::ReadHead,
        Step::send([SWITCHED, "behind the head"].concat()),
        Step::expect("early"),
        Step::send("pong"),
        Step::expect("late"),
        Step::ReadToEnd,
        Step::send("said after the client had finished"),
    ]]);
    let forebay = proxy(backend.port());
    let mut client = forebay.connect();
    client.send([UPGRADE, "early"].concat());
    let reply = client.reply();
    assert_eq!((reply.status, reply.reason.as_str()), (101, "Switching Protocols"));
    assert_eq!(reply.header("Upgrade"), Some("WebSocket"));
    assert_eq!(reply.header("Connection"), Some("upgrade"));
    assert_eq!(reply.header("Sec-WebSocket-Accept"), Some("y"));
    assert_eq!(reply.header("Content-Length").or(reply.header("Transfer-Encoding")), None);
    client.send("late");
    client.finish_sending();
    let rest = String::from_utf8(client.rest()).unwrap();
    assert_eq!(rest, "behind the headpongsaid after the client had finished");
    let received = String::from_utf8(backend.finish().remove(0).received).unwrap();
    assert!(received.contains("Connection: upgrade\r\nUpgrade: websocket\r\n"), "{received}");
    assert!(received.contains("Sec-WebSocket-Key: x\r\n"), "{received}");
    assert!(!received.contains("keep-alive"), "{received}");
    forebay.stop();
}

#[test]
fn nothing_reaches_the_backend_before_it_has_switched() {
    let (port, backend) = backend(|mut stream| {
        read_head(&mut stream);
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let early = stream.read(&mut [0; 100]);
        assert!(
            early.is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
        );
        stream.set_read_timeout(Some(forebay_testkit::DEADLINE)).unwrap();
        stream.write_all(SWITCHED.as_bytes()).unwrap();
        let mut data = [0; 11];
        stream.read_exact(&mut data).unwrap();
        assert_eq!(&data, b"too hastily");
    });
    let forebay = proxy(port);
    let mut client = forebay.connect();
    client.send([UPGRADE, "too "].concat());
    client.send("hastily");
    assert_eq!(client.reply().status, 101);
    backend.join().unwrap();
    assert!(client.is_closed());
}

#[test]
fn the_backend_may_finish_first() {
    let backend = Backend::tcp([vec![
        Step::ReadHead,
        Step::send(SWITCHED),
        Step::send("all"),
        Step::FinishSending,
        Step::expect("and still heard"),
        Step::ReadToEnd,
    ]]);
    let forebay = proxy(backend.port());
    let mut client = upgraded(&forebay);
    assert_eq!(client.rest(), b"all");
    client.send("and still heard");
    client.finish_sending();
    backend.finish();
}

#[test]
fn an_answer_other_than_101_is_an_ordinary_one() {
    let backend = Backend::tcp([
        vec![Step::ReadHead, Step::send(OK), Step::ReadToEnd],
        vec![Step::ReadHead, Step::send(OK), Step::ReadToEnd],
    ]);
    let forebay = proxy(backend.port());
    let mut client = forebay.connect();
    // What follows is another request, not data of a tunnel.
    client.send([UPGRADE, "GET /next HTTP/1.1\r\nHost: h\r\n\r\n"].concat());
    for _ in 0..2 {
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, "ok"));
        assert_eq!(reply.header("Upgrade"), None);
    }
    forebay.stop();
    let records = backend.finish();
    assert!(records[0].received.starts_with(b"GET /chat "), "a connection of its own");
    assert!(records[1].received.starts_with(b"GET /next "));
    assert!(!String::from_utf8_lossy(&records[1].received).contains("pgrade"));
}

#[test]
fn data_behind_a_refused_upgrade_is_read_as_a_request() {
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send(OK), Step::ReadToEnd]]);
    let forebay = proxy(backend.port());
    let mut client = forebay.connect();
    client.send([UPGRADE.as_bytes(), b"\x81\x05hello\r\n\r\n"].concat());
    assert_eq!(client.reply().status, 200);
    assert_eq!(client.reply().status, 400);
    assert!(client.is_closed());
    forebay.stop();
    backend.finish();
}

#[test]
fn an_upgrade_with_a_body_is_refused() {
    let echo = Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    for body in ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"] {
        let head = "POST / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: x\r\n";
        let mut client = forebay.connect();
        client.send([head, body].concat());
        let reply = client.reply();
        assert_eq!((reply.status, reply.header("Connection")), (400, Some("close")));
        assert!(client.is_closed());
    }
    assert_eq!(echo.connections(), 0);
}

#[test]
fn upgrades_that_nobody_should_tunnel_are_ignored() {
    let echo = Echo::start();
    let fixed = "[[site.route]]\npath = \"/fixed\"\nrespond = \"hello\"\n";
    let forebay = site(Folder::new(), &[fixed, &echo.route()].concat());
    let ask = |target: &str, fields: &str| {
        let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let reply = forebay.ask(head);
        assert_eq!(reply.status, 200);
        let text = reply.text().to_owned();
        assert!(!text.to_ascii_lowercase().contains("upgrade"), "{text}");
        text
    };
    // In a tunnel of HTTP requests would go past the routes.
    let h2c = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n";
    assert!(!ask("/", h2c).contains("HTTP2"));
    ask("/", "Connection: upgrade\r\nUpgrade: websocket, H2C\r\n");
    ask("/", "Connection: upgrade\r\nUpgrade: TLS/1.0\r\n");
    ask("/", "Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n");
    ask("/", "Connection: upgrade\r\n");
    ask("/", "Upgrade: websocket\r\n");
    assert_eq!(ask("/fixed", "Connection: upgrade\r\nUpgrade: websocket\r\n"), "hello");
}

#[test]
fn a_backend_that_switches_to_what_nobody_asked_for_is_at_fault() {
    let other = SWITCHED.replace("WebSocket\r", "h2c\r");
    let silent = "HTTP/1.1 101 Switching Protocols\r\n\r\n".to_owned();
    for switched in [other, silent] {
        let backend = Backend::tcp([vec![Step::ReadHead, Step::send(switched), Step::ReadToEnd]]);
        let forebay = proxy(backend.port());
        assert_eq!(forebay.ask(UPGRADE).status, 502);
        backend.finish();
    }
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send(SWITCHED), Step::ReadToEnd]]);
    let forebay = proxy(backend.port());
    assert_eq!(forebay.get("/").status, 502, "no upgrade was asked for at all");
    backend.finish();
}

#[test]
fn a_tunnel_that_carries_nothing_ends() {
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send(SWITCHED), Step::ReadToEnd]]);
    let forebay = with_server("timeouts = { tunnel_idle = \"300ms\" }", backend.port());
    let mut client = upgraded(&forebay);
    assert!(client.is_closed());
    backend.finish();
}

#[test]
fn one_direction_keeps_the_other_alive() {
    let mut steps = vec![Step::ReadHead, Step::send(SWITCHED)];
    for _ in 0..20 {
        steps.extend([Step::Pause(Duration::from_millis(100)), Step::send("tick")]);
    }
    steps.push(Step::expect("thanks"));
    let backend = Backend::tcp([steps]);
    let forebay = with_server("timeouts = { tunnel_idle = \"1s\" }", backend.port());
    let mut stream = upgraded(&forebay).into_stream();
    let mut ticks = [0; 80];
    stream.read_exact(&mut ticks).unwrap();
    stream.write_all(b"thanks").unwrap();
    backend.finish();
}

#[test]
fn a_tunnel_ends_soon_after_the_server_is_told_to_stop() {
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send(SWITCHED), Step::ReadToEnd]]);
    let forebay = with_server("grace = \"1h\"", backend.port());
    let mut client = upgraded(&forebay);
    forebay.stop();
    assert!(client.is_closed());
    backend.finish();
}

#[test]
fn a_connection_that_breaks_resets_the_other() {
    let backend =
        Backend::tcp([vec![Step::ReadHead, Step::send(SWITCHED), Step::Read(4), Step::Reset]]);
    let forebay = proxy(backend.port());
    let mut stream = upgraded(&forebay).into_stream();
    stream.write_all(b"ping").unwrap();
    let error = stream.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    backend.finish();
}

#[test]
fn much_is_carried_both_ways_at_once() {
    const MUCH: usize = 5_000_000;
    let (port, backend) = backend(|mut stream| {
        read_head(&mut stream);
        stream.write_all(SWITCHED.as_bytes()).unwrap();
        let mut buffer = [0; 8192];
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => break,
                count => stream.write_all(&buffer[..count]).unwrap(),
            }
        }
    });
    let forebay = proxy(port);
    let forebay_testkit::stream::Stream::Tcp(mut stream) = upgraded(&forebay).into_stream() else {
        panic!("a TCP connection")
    };
    let mut reader = stream.try_clone().unwrap();
    let reading = thread::spawn(move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        all
    });
    stream.write_all(&pattern(MUCH)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(reading.join().unwrap() == pattern(MUCH));
    backend.join().unwrap();
}

#[test]
fn a_tunnel_is_logged_when_it_ends() {
    let backend = Backend::tcp([vec![Step::ReadHead, Step::send([SWITCHED, "12345"].concat())]]);
    let configuration = format!(
        "[log]\naccess = \"access.log\"\nformat = \"%>s %U %B\"\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n",
        backend.port()
    );
    let forebay = serve(Folder::new(), &configuration);
    let mut client = upgraded(&forebay);
    client.finish_sending();
    assert_eq!(client.rest(), b"12345");
    backend.finish();
    let (_, folder) = forebay.stop();
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert_eq!(log, "101 /chat 5\n");
}
