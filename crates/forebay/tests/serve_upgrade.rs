//! Upgraded connections through `forebay serve`: the requests that become tunnels, and the end of a
//! tunnel.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use support::{Forebay, http3, pattern, serve};

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: y\r\n\r\n";
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

/// A backend that runs a function with its one connection.
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
    let backend = ScriptedBackend::tcp([vec![
        ScriptStep::ReadHead,
        ScriptStep::send([SWITCHED, "behind the head"].concat()),
        ScriptStep::expect("early"),
        ScriptStep::send("pong"),
        ScriptStep::expect("late"),
        ScriptStep::ReadToEnd,
        ScriptStep::send("said after the client had finished"),
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
fn a_tunnel_ends_soon_after_the_server_is_told_to_stop() {
    let backend = ScriptedBackend::tcp([vec![
        ScriptStep::ReadHead,
        ScriptStep::send(SWITCHED),
        ScriptStep::ReadToEnd,
    ]]);
    let forebay = with_server("grace = \"1h\"", backend.port());
    let mut client = upgraded(&forebay);
    forebay.stop();
    // A close frame with the code 1001, because the server goes away.
    assert_eq!(client.rest(), [0x88, 2, 0x03, 0xe9]);
    backend.finish();
}

#[test]
fn a_connection_that_breaks_resets_the_other() {
    let backend = ScriptedBackend::tcp([vec![
        ScriptStep::ReadHead,
        ScriptStep::send(SWITCHED),
        ScriptStep::Read(4),
        ScriptStep::Reset,
    ]]);
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
    let forebay_testkit::stream::TestStream::Tcp(mut stream) = upgraded(&forebay).into_stream()
    else {
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

/// HEADERS of an extended CONNECT (RFC 9220).
fn extended_connect(path: &'static str) -> Vec<u8> {
    http3::raw::headers(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", path),
    ])
}

#[test]
fn scripts_and_applications_make_no_tunnel_of_an_extended_connect() {
    const CGI: &str = "Content-Type: text/plain\\n\\nhello";
    let folder = Folder::new();
    folder.script("cgi/plain", format!("#!/bin/sh\nprintf '{CGI}'\n"));
    folder.script("bin/a.pl", format!("#!/usr/bin/perl\nprint \"{CGI}\";\n"));
    folder.script("bin/a.py", format!("#!/usr/bin/python3\nprint(\"{CGI}\")\n"));
    folder.write("app.psgi", "sub { [200, ['Content-Type' => 'text/plain'], ['hello']] };\n");
    folder.write("files/a.txt", "hello");
    let routes = "[[site.route]]\npath = \"/cgi/*\"\ncgi = { dir = \"cgi\" }\n\
         [[site.route]]\npath = \"/bin/*\"\napp = \"bin\"\n\
         [[site.route]]\npath = \"/psgi\"\napp = \"psgi\"\n\
         [[site.route]]\npath = \"/files/*\"\nfiles = \"files\"\n\
         [app.bin]\nkind = \"cgi-bin\"\ndir = \"bin\"\n\
         [app.psgi]\nkind = \"psgi\"\nfile = \"app.psgi\"\nworkers = 1\n";
    let log = "[log]\naccess = \"stdout\"\nformat = \"%>s %U\"\n";
    let (mut forebay, authority) = http3::site_after(log, folder, routes);
    let paths = ["/cgi/plain", "/bin/a.pl", "/bin/a.py", "/psgi", "/files/a.txt"];
    http3::run(async {
        let client = http3::Client::connect(forebay.address, &authority).await;
        for path in paths {
            let head = extended_connect(path);
            let (came, end) = http3::exchange_bytes(&client.quic, &head, false).await;
            assert!(matches!(end, http3::End::Finished(_)), "{path}: {end:?}");
            let page = String::from_utf8_lossy(&came);
            assert!(page.contains("<h1>501 Not Implemented</h1>"), "{path}: {page}");
            assert!(!page.contains("hello"), "{path}: {page}");
        }
    });
    for path in paths {
        forebay.wait_for_output(&format!("501 {path}"));
    }
    let output = forebay.output();
    assert!(!output.contains("200 /"), "{output}");
    forebay.stop();
}
