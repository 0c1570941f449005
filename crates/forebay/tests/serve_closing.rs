//! Ends of connections: GOAWAY and the `close_notify` of TLS for every cause. At the limit on
//! connections, idle ones end to admit others.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use forebay_testkit::stream::{Address, TestStream};
use forebay_testkit::tls::{Authority, connect};
use rustix::process::Signal;

use support::http3::{self, code_of, run, still_serves};
use support::{Forebay, serve, serve_file};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// All time limits that end a connection.
const SHORT: &str = "[server]\ntimeouts = { head = \"500ms\", keep_alive = \"500ms\", body_idle = \"500ms\", \
                     write = \"500ms\" }\n";
/// With one thread, connections are accepted in order.
const LONG: &str = "[server]\nthreads = 1\ntimeouts = { head = \"500s\", keep_alive = \"500s\" }\n";

/// A site over TLS and in cleartext.
fn site(first: &str) -> (Forebay, Authority) {
    let (folder, authority) = (Folder::new(), Authority::new("of the test"));
    let identity = authority.issue(&["localhost"]);
    folder.write("cert.pem", identity.certificate);
    folder.write("key.pem", identity.key);
    folder.write("htdocs/large", vec![b'x'; 1 << 20]);
    let site = "[[site]]\nlisten = \"https://127.0.0.1:0\"\n\
                tls = { certificate = \"cert.pem\", key = \"key.pem\" }\n\
                [[site.route]]\npath = \"/cat\"\ncgi = { program = \"/bin/cat\" }\n\
                [[site.route]]\npath = \"/large\"\nfiles = \"htdocs\"\n\
                [[site.route]]\nrespond = \"hello\"\n";
    let configuration = format!("{first}{site}");
    let start = if first.starts_with(LONG) { serve_file } else { serve };
    (start(folder, &configuration), authority)
}

fn over_tls(address: std::net::SocketAddr, authority: &Authority, protocol: &str) -> Client {
    let mut config = authority.client();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    connect(address, "localhost", Arc::new(config)).unwrap()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A request over https to `localhost`, without Huffman coding. The method is one of HPACK's static table.
fn request(method: u8, path: &str, flags: u8) -> Vec<u8> {
    let mut block = vec![method, 0x87];
    for (index, value) in [(0x04, path), (0x01, "localhost")] {
        block.extend([index, value.len() as u8]);
        block.extend_from_slice(value.as_bytes());
    }
    frame(HEADERS, END_HEADERS | flags, 1, &block)
}

const GET: u8 = 0x82;
const POST: u8 = 0x83;

/// The first bytes of an HTTP/2 client, whose window for each stream has this many bytes.
fn opening(window: u32) -> Vec<u8> {
    let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
    [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat()
}

/// Returns the kinds of the frames until the end of the connection, and the kind of end.
fn frames(client: &mut Client) -> (Vec<u8>, std::io::Result<usize>) {
    let mut bytes = Vec::new();
    let end = client.stream().read_to_end(&mut bytes);
    let (mut kinds, mut rest) = (Vec::new(), &bytes[..]);
    while let Some((head, payload)) = rest.split_first_chunk::<9>() {
        kinds.push(head[3]);
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        rest = &payload[length.min(payload.len())..];
    }
    (kinds, end)
}

/// Reads up to the end of the reply.
fn until_hello(client: &mut Client) {
    let mut came = Vec::new();
    while !came.ends_with(b"hello") {
        let mut buffer = [0; 1000];
        let n = client.stream().read(&mut buffer).unwrap();
        assert!(n > 0, "{came:?}");
        came.extend_from_slice(&buffer[..n]);
    }
}

/// Without `close_notify` the end is an error of kind `UnexpectedEof`.
fn ends_well(client: &mut Client, case: &str) {
    let (kinds, end) = frames(client);
    assert!(kinds.contains(&GOAWAY), "{case}: frames {kinds:?}");
    end.unwrap_or_else(|error| panic!("{case}: {error}"));
}

/// Each exceeded time limit, and the bytes that a client sends for it.
fn overdue() -> [(&'static str, Vec<u8>); 5] {
    const LARGE: u32 = 65535;
    let head = request(GET, "/", END_STREAM);
    [
        ("no request", opening(LARGE)),
        ("half a head", [&opening(LARGE)[..], &head[..head.len() - 3]].concat()),
        ("kept", [opening(LARGE), head.clone()].concat()),
        ("no body", [opening(LARGE), request(POST, "/cat", 0)].concat()),
        ("no window", [opening(0), request(GET, "/large", END_STREAM)].concat()),
    ]
}

#[test]
fn http2_over_tls_ends_with_goaway_whichever_time_limit_passes() {
    let (forebay, authority) = site(SHORT);
    for (case, sent) in overdue() {
        let mut client = over_tls(forebay.address, &authority, "h2");
        client.send(sent);
        ends_well(&mut client, case);
    }
    forebay.stop();
    let root = Folder::new();
    let identity = authority.issue(&["localhost"]);
    let certificate = root.write("cert.pem", identity.certificate);
    let key = root.write("key.pem", identity.key);
    let Some(nginx) = peer::nginx(&format!(
        "server {{ listen 127.0.0.1:{{port}} ssl http2; keepalive_timeout 1s; \
         ssl_certificate {}; ssl_certificate_key {}; location / {{ return 200 hello; }} }}",
        certificate.display(),
        key.display()
    )) else {
        return;
    };
    let Address::Tcp(address) = nginx.address() else { panic!("it listens at a port") };
    let mut client = over_tls(*address, &authority, "h2");
    client.send(overdue()[2].1.clone());
    assert!(frames(&mut client).0.contains(&GOAWAY), "nginx sends it, too");
}

#[test]
fn idle_connections_over_tls_end_well_when_the_server_stops() {
    let (mut forebay, authority) = site(LONG);
    let mut clients: Vec<_> =
        (0..17).map(|_| over_tls(forebay.address, &authority, "h2")).collect();
    for client in &mut clients {
        client.send(&overdue()[2].1);
        until_hello(client);
    }
    let mut http1: Vec<_> =
        (0..5).map(|_| over_tls(forebay.address, &authority, "http/1.1")).collect();
    for client in &mut http1 {
        assert_eq!(client.get("/").text(), "hello");
    }
    let silent = over_tls(forebay.address, &authority, "http/1.1");
    forebay.signal(Signal::TERM);
    for client in &mut clients {
        ends_well(client, "idle");
    }
    for client in http1.iter_mut().chain([&mut { silent }]) {
        let mut rest = Vec::new();
        client.stream().read_to_end(&mut rest).expect("close_notify");
        assert!(rest.is_empty());
    }
    forebay.stop();
}

#[test]
fn http1_over_tls_ends_with_close_notify_whichever_time_limit_passes() {
    let (forebay, authority) = site(SHORT);
    for (sent, begin) in [
        ("", ""),
        ("GET / HT", "HTTP/1.1 408 "),
        ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 200 "),
        ("POST /cat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc", "HTTP/1.1 408 "),
    ] {
        let mut client = over_tls(forebay.address, &authority, "http/1.1");
        client.send(sent);
        let mut came = Vec::new();
        client.stream().read_to_end(&mut came).unwrap_or_else(|error| panic!("{sent:?}: {error}"));
        assert!(came.starts_with(begin.as_bytes()), "{sent:?}: {}", String::from_utf8_lossy(&came));
    }
    forebay.stop();
}

/// Returns the kinds of the frames on the server's control stream, until the end of the connection.
async fn control_frames(mut control: quinn::RecvStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Some(chunk)) = control.read_chunk(usize::MAX, true).await {
        bytes.extend_from_slice(&chunk.bytes);
    }
    // The type of the stream, then frames whose kind and length have one byte each.
    let (mut kinds, mut rest) = (Vec::new(), &bytes[1..]);
    while let [kind, length, payload @ ..] = rest {
        kinds.push(*kind);
        rest = payload.get(usize::from(*length)..).unwrap_or_default();
    }
    kinds
}

#[test]
fn http3_ends_with_goaway_and_a_close_whichever_time_limit_passes() {
    let (forebay, authority) = http3::site_after(SHORT, Folder::new(), http3::HELLO);
    run(async {
        for asks in [false, true] {
            let quic = http3::connect_quic(forebay.address, "localhost", &authority).await.unwrap();
            let asking = async {
                if asks {
                    let got = http3::exchange_raw(&quic, &http3::with("/", &[]), true).await;
                    assert!(matches!(got, http3::End::Finished(_)), "{got:?}");
                }
            };
            let control = quic.accept_uni().await.unwrap();
            let (kinds, ()) = tokio::join!(control_frames(control), asking);
            assert!(kinds.contains(&GOAWAY), "{kinds:?}");
            assert_eq!(code_of(&quic.closed().await), 0x100);
        }
    });
    forebay.stop();
}

/// A server whose limit is two connections.
fn crowded(first: &str) -> (Forebay, Authority) {
    site(&format!("{first}[server.limits]\nconnections = 2\n"))
}

#[test]
fn at_the_limit_the_connection_that_is_idle_for_longest_makes_room_and_the_log_says_so() {
    let (mut forebay, authority) = crowded(LONG);
    let mut first = over_tls(forebay.address, &authority, "http/1.1");
    assert_eq!(first.get("/").text(), "hello");
    let mut second = over_tls(forebay.address, &authority, "h2");
    second.send(&overdue()[2].1);
    until_hello(&mut second);
    let mut third = over_tls(forebay.address, &authority, "http/1.1");
    assert_eq!(third.get("/").text(), "hello");
    let mut rest = Vec::new();
    first.stream().read_to_end(&mut rest).expect("close_notify");
    let mut fourth = over_tls(forebay.address, &authority, "http/1.1");
    assert_eq!(fourth.get("/").text(), "hello");
    ends_well(&mut second, "idle for longest");
    assert_eq!(third.get("/").text(), "hello", "it is the youngest but one");
    forebay.wait_for_output("the limit of 2 connections is reached: ");
    forebay.wait_for_output("raise `connections` in [server.limits]");
    let (exit, _) = forebay.stop();
    assert_eq!(exit.output.matches("is reached: ").count(), 1, "{}", exit.output);
}

#[test]
fn many_newcomers_are_admitted_past_idle_connections_of_all_threads() {
    let (forebay, authority) = site("[server.limits]\nconnections = 40\n");
    let mut idle: Vec<_> =
        (0..40).map(|_| over_tls(forebay.address, &authority, "http/1.1")).collect();
    let mut newcomers: Vec<_> = (0..40)
        .map(|_| {
            let mut client = over_tls(forebay.address, &authority, "http/1.1");
            assert_eq!(client.get("/").text(), "hello");
            client
        })
        .collect();
    let is_open = |client: &mut Client| {
        client.stream().set_patience(Duration::from_millis(1)).unwrap();
        let end = client.stream().read(&mut [0; 1]);
        matches!(end, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    };
    let open = idle.iter_mut().map(is_open).filter(|is_open| *is_open);
    assert_eq!(open.count(), 0, "those that were there first are closed first");
    assert_eq!(newcomers[39].get("/").text(), "hello");
    forebay.stop();
}

#[test]
fn a_connection_with_a_request_under_way_is_never_closed_for_others() {
    let (mut forebay, authority) = crowded(LONG);
    let head = "POST /cat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 24\r\n\r\n";
    let mut busy: Vec<_> =
        (0..2).map(|_| over_tls(forebay.address, &authority, "http/1.1")).collect();
    for client in &mut busy {
        client.send(head);
        client.send("Content-Type: a");
    }
    // This connection has no place, so there is no handshake.
    let mut waiting = std::net::TcpStream::connect(forebay.address).unwrap();
    waiting.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    forebay.wait_for_output("all of them have requests under way, and new ones wait");
    for client in &mut busy {
        client.send("\n\nbody ab");
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (200, "body ab"));
    }
    // One of them is idle now.
    let mut answer = Vec::new();
    waiting.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400 "));
    forebay.stop();
}

#[test]
fn half_handshakes_make_room_and_an_address_with_too_many_connections_drives_nobody_out() {
    let limits = "[server.limits]\nconnections = 3\nconnections_per_address = 3\n";
    let (forebay, authority) = site(&format!("{LONG}{limits}"));
    let halves: Vec<_> = (0..3)
        .map(|_| {
            let mut half = std::net::TcpStream::connect(forebay.address).unwrap();
            half.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
            half
        })
        .collect();
    assert!(connect(forebay.address, "localhost", authority.client()).is_err(), "it has three");
    drop(halves);
    let served = || {
        let mut config = authority.client();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        connect(forebay.address, "localhost", config)
            .is_ok_and(|mut client| client.get("/").text() == "hello")
    };
    assert!(eventually(served));
    forebay.stop();
    let (forebay, authority) = crowded(LONG);
    let halves: Vec<_> = (0..2)
        .map(|_| {
            let mut half = std::net::TcpStream::connect(forebay.address).unwrap();
            half.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
            half
        })
        .collect();
    let mut client = over_tls(forebay.address, &authority, "http/1.1");
    assert_eq!(client.get("/").text(), "hello");
    drop(halves);
    forebay.stop();
}

#[test]
fn idle_connections_of_http3_make_room_too() {
    let limits = format!("{LONG}[server.limits]\nconnections = 2\n");
    let (forebay, authority) = http3::site_after(&limits, Folder::new(), http3::HELLO);
    run(async {
        let first = http3::connect_quic(forebay.address, "localhost", &authority).await.unwrap();
        // The server has finished the handshake, so this connection is idle before the second one.
        let control = first.accept_uni().await.unwrap();
        let second = http3::Client::connect(forebay.address, &authority).await;
        still_serves(&second).await;
        let third = http3::Client::connect(forebay.address, &authority).await;
        still_serves(&third).await;
        assert!(control_frames(control).await.contains(&GOAWAY));
        assert_eq!(code_of(&first.closed().await), 0x100);
        still_serves(&second).await;
    });
    forebay.stop();
}

#[test]
fn without_tls_the_end_is_the_same() {
    let (folder, route) = (Folder::new(), "[[site.route]]\nrespond = \"hello\"\n");
    let site = format!("{SHORT}[[site]]\nlisten = \"127.0.0.1:0\"\n{route}");
    let forebay = serve(folder, &site);
    for (_, sent) in &overdue()[..3] {
        let mut client = Client::over(
            TestStream::connect(&forebay.address.into(), forebay_testkit::DEADLINE).unwrap(),
        );
        client.send(sent);
        ends_well(&mut client, "in cleartext");
    }
    forebay.stop();
}
