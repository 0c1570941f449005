//! Upgrades with messages in the wrong order, wrong fields or at the wrong time.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::world::in_memory;

const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Accept: y\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn the_fields_of_an_upgrade_pass_both_ways() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send_in_pieces(UPGRADE, 3).await;
        let (asked, _server) = backend.answer(SWITCHED).await;
        assert_eq!(
            (asked.field("connection"), asked.field("upgrade")),
            (Some("upgrade"), Some("websocket"))
        );
        assert_eq!(asked.field("sec-websocket-key"), Some("x"));
        let reply = client.head().await.unwrap();
        assert_eq!(reply.start, "HTTP/1.1 101 Switching Protocols");
        assert_eq!(
            (reply.field("connection"), reply.field("upgrade")),
            (Some("upgrade"), Some("WebSocket"))
        );
        assert_eq!(reply.field("sec-websocket-accept"), Some("y"));
        assert_eq!(reply.field("content-length").or(reply.field("transfer-encoding")), None);
    });
}

#[test]
fn nothing_reaches_the_backend_before_it_has_switched() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send([UPGRADE, "too "].concat()).await;
        client.send("hastily").await;
        let mut server = backend.accept().await;
        server.head().await.unwrap();
        let early = tokio::time::timeout(Duration::from_secs(5), server.more()).await;
        assert!(early.is_err(), "nothing comes");
        server.send(SWITCHED).await;
        assert_eq!(server.exactly(11).await.unwrap(), b"too hastily");
        assert_eq!(client.head().await.unwrap().status(), 101);
    });
}

#[test]
fn the_backend_may_finish_first() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(UPGRADE).await;
        let (_, mut server) = backend.answer(&[SWITCHED, "all"].concat()).await;
        server.link.finish();
        assert_eq!(client.head().await.unwrap().status(), 101);
        let (rest, outcome) = client.rest().await;
        assert_eq!((&rest[..], outcome.is_ok()), (&b"all"[..], true));
        client.send("and still heard").await;
        client.link.finish();
        let (rest, outcome) = server.rest().await;
        assert_eq!((&rest[..], outcome.is_ok()), (&b"and still heard"[..], true));
    });
}

#[test]
fn a_client_that_reads_nothing_and_leaves_does_not_keep_the_backend() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(UPGRADE).await;
        let (_, mut server) = backend.answer(SWITCHED).await;
        assert_eq!(client.head().await.unwrap().status(), 101);
        // Both sides send, and read nothing, until neither can send more.
        let (most, limit) = (vec![b'x'; 8 << 20], Duration::from_secs(1));
        let sent =
            tokio::join!(timeout(limit, client.send(&most)), timeout(limit, server.send(&most)));
        assert!(sent.0.is_err() && sent.1.is_err());
        client.link.reset();
        // An application that echoes reads again only after its bytes were taken.
        timeout(limit, server.send(&most)).await.expect("the bytes are taken");
        let (rest, outcome) = timeout(limit, server.rest()).await.unwrap();
        assert!(!rest.is_empty() && outcome.is_err());
        drop(server);

        // A backend that never reads has ten seconds.
        let mut client = world.client();
        client.send(UPGRADE).await;
        let (_, mut server) = backend.answer(SWITCHED).await;
        assert_eq!(client.head().await.unwrap().status(), 101);
        let sent =
            tokio::join!(timeout(limit, client.send(&most)), timeout(limit, server.send(&most)));
        assert!(sent.0.is_err() && sent.1.is_err());
        client.link.reset();
        timeout(Duration::from_secs(11), server.link.closed()).await.expect("it is closed");
    });
}

#[test]
fn a_client_that_only_reads_nothing_may_send_for_longer() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(UPGRADE).await;
        let (_, mut server) = backend.answer(SWITCHED).await;
        assert_eq!(client.head().await.unwrap().status(), 101);
        client.link.stop_reading();
        server.send("nobody reads this").await;
        for _ in 0..5 {
            sleep(Duration::from_secs(8)).await;
            client.send("bytes").await;
            assert_eq!(server.exactly(5).await.unwrap(), b"bytes");
            server.send("nor this").await;
        }
        client.link.finish();
        assert_eq!(server.rest().await.0, b"");
    });
}

#[test]
fn a_request_may_follow_a_refused_upgrade() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send([UPGRADE, "GET /next HTTP/1.1\r\nHost: h\r\n\r\n"].concat()).await;
        let (_, mut first) = backend.answer(OK).await;
        assert_eq!(client.reply("").await.text(), "ok");
        assert!(first.is_closed().await, "a connection of its own");
        let (asked, _connection) = backend.answer(OK).await;
        assert_eq!(asked.start, "GET /next HTTP/1.1");
        assert_eq!((asked.field("upgrade"), asked.field("connection")), (None, None));
    });
}

#[test]
fn data_behind_a_refused_upgrade_is_read_as_a_request() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send([UPGRADE.as_bytes(), b"\x81\x05hello\r\n\r\n"].concat()).await;
        let (_, _connection) = backend.answer(OK).await;
        assert_eq!(client.reply("").await.status(), 200);
        assert_eq!(client.reply("").await.status(), 400);
        assert!(client.is_closed().await);
    });
}

#[test]
fn upgrades_that_nobody_should_tunnel_are_ignored() {
    let fixed = "[[site.route]]\npath = \"/fixed\"\nrespond = \"hello\"\n";
    in_memory(&[fixed, PROXIED].concat(), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for fields in [
            // In a tunnel of HTTP, requests would bypass the routes.
            "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
            "Connection: upgrade\r\nUpgrade: websocket, H2C\r\n",
            "Connection: upgrade\r\nUpgrade: TLS/1.0\r\n",
            "Connection: upgrade\r\nUpgrade: HTTP/2.0\r\n",
            "Connection: upgrade\r\n",
            "Upgrade: websocket\r\n",
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            let (asked, reply) = world.pass(&mut backend, request, OK).await;
            assert_eq!(reply.status(), 200, "{fields}");
            let asked = format!("{:?}", asked.fields).to_lowercase();
            assert!(!asked.contains("upgrade") && !asked.contains("http2"), "{fields}: {asked}");
        }
        let request = "GET /fixed HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\n\
                       Upgrade: websocket\r\n\r\n";
        assert_eq!(world.ask(request).await.text(), "hello");
    });
}

#[test]
fn a_backend_that_switches_to_what_nobody_asked_for_is_at_fault() {
    let other = SWITCHED.replace("WebSocket\r", "h2c\r");
    for (request, switched) in [
        (UPGRADE, &*other),
        (UPGRADE, "HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", SWITCHED),
    ] {
        in_memory(PROXIED, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let (_, reply) = world.pass(&mut backend, request, switched).await;
            assert_eq!(reply.status(), 502, "{switched}");
        });
    }
}

#[test]
fn a_tunnel_is_logged_when_it_ends() {
    let configuration = format!(
        "[log]\naccess = \"stdout\"\nformat = \"%>s %U %B\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
         {PROXIED}"
    );
    in_memory(&configuration, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(UPGRADE).await;
        let (_, server) = backend.answer(&[SWITCHED, "12345"].concat()).await;
        assert_eq!(client.head().await.unwrap().status(), 101);
        assert_eq!(client.exactly(5).await.unwrap(), b"12345");
        assert_eq!(world.gateway.access_lines(), [""; 0]);
        drop(server);
        client.link.finish();
        assert!(client.is_closed().await);
        sleep(Duration::from_secs(1)).await;
        let lines = world.gateway.access_lines();
        assert_eq!(lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>(), ["101 /chat 5"]);
    });
}
