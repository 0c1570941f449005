//! HTTP/3 clients that attack or that give no room, and the resources that they must not reach.

mod support;

use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use forebay_testkit::DEADLINE;
use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client as PlainClient;
use forebay_testkit::port::free_port;
use forebay_testkit::tls::{Authority, connect};

use quinn::{ReadError, ReadToEndError};
use support::echo::Echo;
use support::http3::{
    Client, End, HELLO, MESSAGE_ERROR, backend, code_of, config_of, connect_quic,
    connect_with_window, endpoint, exchange_bytes, exchange_raw, raw, run, site, site_after,
    still_serves, with,
};
use support::{pattern, serve};
use tokio::task::JoinSet;

const EXCESSIVE_LOAD: u64 = 0x107;

/// The number of times that a limit was reached, from /metrics.
fn limit(admin: SocketAddr, name: &str) -> u64 {
    let reply = PlainClient::connect(admin).get("/metrics");
    let name = format!("forebay_limit_reached_total{{limit=\"{name}\"}} ");
    let value = reply.text().lines().find_map(|line| line.strip_prefix(&name)).unwrap();
    value.parse().unwrap()
}

#[test]
fn trailers_right_behind_a_head_change_nothing_of_it() {
    let echo = Echo::start();
    let log = "[log]\naccess = \"access.log\"\n";
    let (forebay, authority) = site_after(log, Folder::new(), &echo.route());
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let head = || with("/good", &[("x-own", "1")]);
        let good = [head(), raw::headers(&[("x-late", "2")])].concat();
        let (came, end) = exchange_bytes(&client.quic, &good, true).await;
        assert!(matches!(end, End::Finished(1..)), "{end:?}");
        let text = String::from_utf8_lossy(&came).to_lowercase();
        assert!(text.contains("get /good http/1.1\r\n"), "{text}");
        assert!(text.contains("\r\nhost: localhost\r\n"), "{text}");
        assert!(text.contains("\r\nx-own: 1\r\n") && !text.contains("x-late"), "{text}");
        for (why, trailers) in [
            ("a pseudo-field", &[(":path", "/evil")][..]),
            (
                "all pseudo-fields",
                &[(":method", "PUT"), (":path", "/evil"), (":authority", "evil")],
            ),
            ("CR and LF in a value", &[("x-late", "a\r\n\r\nGET /evil HTTP/1.1")]),
            ("LF in a name", &[("x\nevil", "a")]),
            ("a length", &[("content-length", "5")]),
        ] {
            let bytes = [with("/bad", &[]), raw::headers(trailers)].concat();
            let end = exchange_raw(&client.quic, &bytes, true).await;
            assert_eq!(end, End::Reset(MESSAGE_ERROR), "{why}");
        }
        let third = [head(), raw::headers(&[("a", "b")]), raw::headers(&[("a", "b")])].concat();
        let end = exchange_raw(&client.quic, &third, true).await;
        assert_eq!(end, End::Closed(0x105), "a third section");
    });
    let folder = forebay.stop().1;
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert!(log.contains("\"GET /good HTTP/3.0\" 200 "), "{log}");
    assert!(!log.contains("evil") && !log.contains("/bad"), "{log}");
    assert_eq!(echo.whole(), 1);
}

/// Runs `abuse` on one connection until the server closes it. The server counts this once.
fn is_sent_away(abuse: impl AsyncFn(&quinn::Connection) -> bool) {
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let first = format!("[server]\nadmin = \"{admin}\"\n");
    let (forebay, authority) = site_after(&first, Folder::new(), HELLO);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        while abuse(&client.quic).await {}
        assert_eq!(code_of(&client.quic.closed().await), EXCESSIVE_LOAD);
    });
    assert_eq!(limit(admin, "http3_frames"), 1);
    let (exit, _) = forebay.stop();
    assert!(exit.output.contains("too many frames of no use"), "{}", exit.output);
}

#[test]
fn endless_resets_end_the_connection() {
    is_sent_away(async |quic| {
        let Ok((mut send, mut receive)) = quic.open_bi().await else { return false };
        let _ = send.write_all(&[1]).await;
        let _ = (send.reset(0x10cu32.into()), receive.stop(0x10cu32.into()));
        true
    });
}

#[test]
fn endless_forced_resets_end_the_connection() {
    let malformed = with("/", &[("connection", "close")]);
    is_sent_away(async |quic| {
        let mut replies = Vec::new();
        for _ in 0..50 {
            let Ok((mut send, receive)) = quic.open_bi().await else { return false };
            let _ = send.write_all(&malformed).await;
            let _ = send.finish();
            replies.push(receive);
        }
        for mut reply in replies {
            match reply.read_to_end(100).await {
                Err(ReadToEndError::Read(ReadError::Reset(code))) => {
                    assert_eq!(u64::from(code), MESSAGE_ERROR);
                }
                Err(ReadToEndError::Read(ReadError::ConnectionLost(_))) => return false,
                came => panic!("{came:?}"),
            }
        }
        true
    });
}

#[test]
fn endless_useless_frames_end_the_connection() {
    let head = raw::headers(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", "/"),
    ]);
    let request =
        [head, raw::frame(0, b"").repeat(100), raw::frame(0x21, b"").repeat(100)].concat();
    is_sent_away(async |quic| {
        let Ok((mut send, mut receive)) = quic.open_bi().await else { return false };
        let _ = send.write_all(&request).await;
        let _ = send.finish();
        receive.read_to_end(1000).await.is_ok()
    });
}

#[test]
fn endless_useless_streams_end_the_connection() {
    is_sent_away(async |quic| {
        let Ok(mut send) = quic.open_uni().await else { return false };
        let _ = send.write_all(&[0x21, 1, 2, 3]).await;
        let _ = send.finish();
        true
    });
}

#[test]
fn endless_heads_end_the_connection() {
    let mut begun = raw::frame(1, &[0; 30_000]);
    begun.truncate(29_000);
    let streams = std::cell::RefCell::default();
    is_sent_away(async |quic| {
        let Ok((mut send, receive)) = quic.open_bi().await else { return false };
        let is_sent = send.write_all(&begun).await.is_ok();
        let streams: &std::cell::RefCell<Vec<_>> = &streams;
        streams.borrow_mut().push((send, receive));
        assert!(streams.borrow().len() < 50, "nothing is done against it");
        is_sent
    });
}

#[test]
fn heads_that_are_too_large_together_are_refused_until_others_are_released() {
    const REJECTED: u64 = 0x10b;
    // The kernel accepts the connections to this backend, which never answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let first = format!("[server]\nadmin = \"{admin}\"\n");
    let to = format!("path = \"/silent\"\nproxy = \"http://{}\"", silent.local_addr().unwrap());
    let routes = format!("[[site.route]]\n{to}\n{HELLO}");
    let (forebay, authority) = site_after(&first, Folder::new(), &routes);
    let value: &'static str = "v".repeat(31_000).leak();
    let large = |path| with(path, &[("x-large", value)]);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        for _ in 0..2 {
            let mut streams = JoinSet::new();
            for _ in 0..40 {
                let (mut send, mut receive) = client.quic.open_bi().await.unwrap();
                // If this fails, the server has refused it, and the read below reports that.
                let _ = send.write_all(&large("/silent")).await;
                let _ = send.finish();
                // Only a few heads may be incomplete, so wait until this one has arrived.
                let _ = send.stopped().await;
                streams.spawn(async move { receive.read_chunk(1, true).await });
            }
            for _ in 0..7 {
                let Err(ReadError::Reset(code)) = streams.join_next().await.unwrap().unwrap()
                else {
                    panic!("a silent backend has answered");
                };
                assert_eq!(code.into_inner(), REJECTED);
            }
            // A small head still fits.
            still_serves(&client).await;
            // Cancel the other requests, which releases their heads.
            streams.shutdown().await;
            while exchange_raw(&client.quic, &large("/"), true).await == End::Reset(REJECTED) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        still_serves(&client).await;
    });
    assert!(limit(admin, "held_heads") >= 14);
    let (exit, _) = forebay.stop();
    assert!(exit.output.contains("head_size"), "{}", exit.output);
}

#[test]
fn a_get_with_data_is_refused_over_and_over() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let get = [with("/", &[]), raw::frame(0, b"x")].concat();
        for _ in 0..200 {
            let end = exchange_raw(&client.quic, &get, true).await;
            assert!(matches!(end, End::Finished(1..)), "400, as over HTTP/1.1: {end:?}");
        }
        still_serves(&client).await;
    });
}

#[test]
fn data_of_many_small_frames_reaches_a_backend_in_few_chunks() {
    const FRAMES: usize = 10_000;
    let (route, serving) = backend(|_, mut stream: BufReader<_>| {
        let mut body = Vec::new();
        while !body.ends_with(b"\r\n0\r\n\r\n") {
            let byte: &mut [u8] = &mut [0];
            stream.read_exact(byte).unwrap();
            body.extend_from_slice(byte);
        }
        stream.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        body
    });
    let (forebay, authority) = site(Folder::new(), &route);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let pseudo =
            [(":method", "POST"), (":scheme", "https"), (":authority", "a"), (":path", "/")];
        let post = [raw::headers(&pseudo), b"\0\x01x".repeat(FRAMES)].concat();
        let end = exchange_raw(&client.quic, &post, true).await;
        assert!(matches!(end, End::Finished(1..)), "{end:?}");
    });
    let body = serving.join().unwrap();
    assert_eq!(body.iter().filter(|&&byte| byte == b'x').count(), FRAMES);
    let lines = body.iter().filter(|&&byte| byte == b'\n').count();
    assert!(lines < FRAMES / 5, "{lines} lines");
}

#[test]
fn an_interim_head_arrives_though_the_client_gives_little_room_and_the_backend_is_silent() {
    const LONG: usize = 5_000;
    let (go, wait) = mpsc::channel::<()>();
    let (route, serving) = backend(move |_, mut stream: BufReader<_>| {
        let long = "{".repeat(LONG);
        write!(stream.get_mut(), "HTTP/1.1 103 Early Hints\r\nX-Long: {long}\r\n\r\n").unwrap();
        wait.recv().unwrap();
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";
        stream.get_mut().write_all(reply).unwrap();
    });
    let (forebay, authority) = site(Folder::new(), &route);
    run(async {
        let quic = connect_with_window(forebay.address, &authority, 300).await;
        let (mut send, mut receive) = quic.open_bi().await.unwrap();
        send.write_all(&with("/", &[])).await.unwrap();
        send.finish().unwrap();
        let mut came = Vec::new();
        while came.iter().filter(|&&byte| byte == b'{').count() < LONG {
            came.extend_from_slice(&receive.read_chunk(100, true).await.unwrap().unwrap().bytes);
        }
        go.send(()).unwrap();
        while let Some(chunk) = receive.read_chunk(100, true).await.unwrap() {
            came.extend_from_slice(&chunk.bytes);
        }
        assert!(came.ends_with(b"body"));
    });
    serving.join().unwrap();
    forebay.stop();
}

#[test]
fn a_request_ends_when_it_is_reset_though_some_of_it_was_not_read() {
    let (end, wait) = mpsc::channel::<()>();
    // The client reads nothing of the body, so the gateway stops reading at some point.
    let (route, serving) = backend(move |_, stream| {
        let _ = wait.recv();
        drop(stream);
    });
    let log = "[log]\naccess = \"access.log\"\n";
    let route = format!("{route}max_body = \"unlimited\"\n");
    let (forebay, authority) = site_after(log, Folder::new(), &route);
    let is_logged = || {
        let log = std::fs::read_to_string(forebay.folder.path().join("access.log"));
        log.is_ok_and(|log| log.contains("\"POST /unread HTTP/3.0\" 499 "))
    };
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let (mut send, _receive) = client.quic.open_bi().await.unwrap();
        let head = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/unread"),
        ];
        send.write_all(&raw::headers(&head)).await.unwrap();
        let data = raw::frame(0, &vec![7; 32 << 10]);
        // Writes until all buffers are full.
        let filling = async { while send.write_all(&data).await.is_ok() {} };
        assert!(tokio::time::timeout(DEADLINE / 10, filling).await.is_err());
        send.reset(0x10cu32.into()).unwrap();
        // The connection continues in a task of its own.
        let logged = async {
            while !is_logged() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, logged).await.expect("the request ends");
    });
    end.send(()).unwrap();
    serving.join().unwrap();
    forebay.stop();
}

/// The first byte of a Retry packet, next to four bits without meaning (RFC 9000 section 17.2.5).
const RETRY: u8 = 0xf0;

/// Returns the first datagram of a client, which does not reach the server.
async fn first_datagram(authority: &Authority) -> Vec<u8> {
    let trap = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (endpoint, to) = (endpoint(), trap.local_addr().unwrap());
    let _connecting = endpoint.connect_with(config_of(authority), to, "localhost").unwrap();
    let mut first = vec![0; 2000];
    let length = trap.recv(&mut first).await.unwrap();
    first.truncate(length);
    first
}

/// Returns the first byte of the reply to this datagram from another address, and the reply's
/// length.
fn reply_to_forged(first: &[u8], to: SocketAddr) -> (u8, usize) {
    let forged = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    forged.set_read_timeout(Some(DEADLINE)).unwrap();
    forged.send_to(first, to).unwrap();
    let mut reply = [0; 2000];
    let count = forged.recv(&mut reply).unwrap();
    (reply[0] & 0xf0, count)
}

#[test]
fn of_many_handshakes_at_once_each_further_client_shows_that_it_can_be_reached() {
    let (forebay, authority) =
        site_after("[server.timeouts]\nhead = \"60s\"\n", Folder::new(), HELLO);
    run(async {
        let mut trusted = 0;
        while reply_to_forged(&first_datagram(&authority).await, forebay.address).0 != RETRY {
            trusted += 1;
            assert!(trusted <= 2 * 64, "64 on each of two threads");
        }
        assert!(trusted >= 64, "{trusted}");
        still_serves(&Client::connect(forebay.address, &authority).await).await;
    });
    forebay.stop();
}

#[test]
fn addresses_that_were_made_up_use_up_no_connections() {
    let limits = "[server.limits]\nconnections_per_address = 1\n";
    let (forebay, authority) = site_after(limits, Folder::new(), HELLO);
    run(async {
        let first = first_datagram(&authority).await;
        for _ in 0..5 {
            // Each begins a handshake that its address does not finish.
            let first = first_datagram(&authority).await;
            assert_ne!(reply_to_forged(&first, forebay.address).0, RETRY);
        }
        let client = Client::connect(forebay.address, &authority).await;
        still_serves(&client).await;
        // The address has its connection now, so another one must first prove that it is there.
        for _ in 0..5 {
            let (kind, count) = reply_to_forged(&first, forebay.address);
            // Smaller than the request.
            assert!(kind == RETRY && count < 200, "{kind:x} {count}");
        }
        still_serves(&client).await;
    });
    forebay.stop();
}

#[test]
fn each_name_leads_to_the_site_that_it_leads_to_by_tls_over_tcp() {
    let folder = Folder::new();
    let mut configuration = String::new();
    let authority = Authority::new("of the test");
    for (name, more) in [("open.example", "http3 = true\n"), ("other.example", "")] {
        let identity = authority.issue(&[name]);
        folder.write(&format!("{name}.pem"), &identity.certificate);
        folder.write(&format!("{name}.key"), &identity.key);
        configuration += &format!(
            "[[site]]\nlisten = \"https://127.0.0.1:0\"\nhosts = [\"{name}\"]\n{more}\
             tls = {{ certificate = \"{name}.pem\", key = \"{name}.key\" }}\n\
             [[site.route]]\nrespond = \"{name}\"\n"
        );
    }
    let forebay = serve(folder, &configuration);
    run(async {
        let quic = connect_quic(forebay.address, "open.example", &authority).await.unwrap();
        for (host, status, found) in
            [("open.example", b"\x00\x00\xd9", true), ("other.example", b"\x00\x00\xff", false)]
        {
            let head = raw::headers(&[
                (":method", "GET"),
                (":scheme", "https"),
                (":authority", host),
                (":path", "/"),
            ]);
            let (came, end) = exchange_bytes(&quic, &head, true).await;
            assert!(matches!(end, End::Finished(1..)), "{host} {end:?}");
            let has_status = came.windows(3).any(|bytes| bytes == status);
            assert!(has_status, "{host} {came:x?}");
            let text = String::from_utf8_lossy(&came).into_owned();
            assert_eq!(text.ends_with("open.example"), found, "{text}");
            assert_eq!(text.contains("421 Misdirected Request"), !found, "{text}");
        }
        let refused = connect_quic(forebay.address, "other.example", &authority).await;
        assert!(refused.is_err(), "its site takes no HTTP/3");
    });
    let mut client = connect(forebay.address, "other.example", authority.client()).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: other.example\r\n\r\n");
    assert_eq!(client.reply().text(), "other.example");
    forebay.stop();
}

#[test]
fn nothing_is_taken_before_the_handshake_has_ended() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    run(async {
        let (endpoint, config) = (endpoint(), config_of(&authority));
        let again = || endpoint.connect_with(config.clone(), forebay.address, "localhost").unwrap();
        let first = again().await.unwrap();
        assert!(matches!(exchange_raw(&first, &with("/", &[]), true).await, End::Finished(1..)));
        // The ticket arrives, but does not allow early data.
        let second = again().into_0rtt().map(drop).unwrap_err().await.unwrap();
        assert!(matches!(exchange_raw(&second, &with("/", &[]), true).await, End::Finished(1..)));
    });
    forebay.stop();
}

#[test]
fn slow_heads_and_clients_that_take_nothing_end_alone() {
    let folder = Folder::new();
    folder.write("htdocs/big", pattern(4 << 20));
    let limits = "[server.timeouts]\nhead = \"3s\"\n";
    let big = "path = \"/big\"\nfiles = \"htdocs\"\ntimeouts = { write = \"1s\" }\n";
    let routes = format!("[[site.route]]\n{big}{HELLO}");
    let (forebay, authority) = site_after(limits, folder, &routes);
    run(async {
        let quic = connect_with_window(forebay.address, &authority, 1_000).await;
        // Keeps the connection in use meanwhile.
        let (mut send, mut receive) = quic.open_bi().await.unwrap();
        send.write_all(&with("/big", &[])).await.unwrap();
        send.finish().unwrap();
        let (came, end) = exchange_bytes(&quic, &[1], false).await;
        assert!(matches!(end, End::Finished(1..)), "{end:?}");
        assert!(String::from_utf8_lossy(&came).contains("408 "), "{came:x?}");
        assert_eq!(receive.received_reset().await.unwrap(), Some(0x10cu32.into()));
        let end = exchange_raw(&quic, &with("/", &[]), true).await;
        assert!(matches!(end, End::Finished(1..)), "{end:?}");
    });
    forebay.stop();
}
