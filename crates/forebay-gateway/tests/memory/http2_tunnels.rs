//! Tunnels in HTTP/2 streams, on both sides. They live as long as tunnels on separate connections,
//! and all data arrives before the end of a tunnel.

use std::time::Duration;

use forebay_wire::http2::{Cause, Config, ErrorCode, RequestPseudo};
use tokio::time::sleep;

use crate::http2_backend::{Http2Backend, proxied};
use crate::http2_client::Http2Client;
use crate::world::{World, in_memory};

/// Limits: 5 s for a write, a minute for an idle tunnel.
const TIMEOUTS: &str = "[server.timeouts]\nwrite = \"5s\"\ntunnel_idle = \"1m\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n";
const HTTP1: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\n\r\n";
/// Reply to the request of `Http2Client`.
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
/// Number of bytes that do not fit into a window.
const MANY: usize = 100_000;

/// Opens a tunnel over HTTP/2. Returns the client and the stream of the tunnel.
async fn connect(world: &World, config: Config) -> (Http2Client, u32) {
    let mut client = Http2Client::connect_with(world, config).await;
    let pseudo = RequestPseudo {
        method: b"CONNECT",
        scheme: b"http",
        authority: b"a",
        path: b"/chat",
        protocol: b"websocket",
    };
    let stream = client.ask_as(&pseudo, &[], false);
    client.flush();
    (client, stream)
}

#[test]
fn a_client_that_opens_no_window_keeps_its_tunnel_for_as_long_as_that_may_be_idle() {
    in_memory(&format!("{TIMEOUTS}{HTTP1}"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut client, stream) = connect(world, Config::default()).await;
        let (_, mut server) = client.during(backend.answer(SWITCH)).await;
        client.until(|client| client.so_far(stream).status == 200).await;
        client.holds_windows = true;
        server.send(vec![7; MANY]).await;
        client.until(|client| client.received == 65_535).await;
        let _ = tokio::time::timeout(Duration::from_secs(30), client.turn()).await;
        assert!(client.so_far(stream).reset.is_none());
        client.release();
        client.until(|client| client.received == MANY).await;
        // The wait for a window has a limit.
        client.holds_windows = true;
        server.send(vec![7; MANY]).await;
        let reply = tokio::time::timeout(Duration::from_secs(90), client.reply(stream)).await;
        assert_eq!(reply.unwrap().reset, Some(Cause::Peer(ErrorCode::CANCEL)));
    });
}

#[test]
fn a_client_that_reads_nothing_keeps_its_connection_while_there_are_tunnels_alone() {
    let wide = Config { stream_window: 1 << 20, connection_window: 1 << 20, ..Config::default() };
    let site =
        format!("{TIMEOUTS}[[site.route]]\npath = \"/a\"\nrespond = {{ body = \"a\" }}\n{HTTP1}");
    in_memory(&site, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut client, stream) = connect(world, wide.clone()).await;
        let (_, mut server) = client.during(backend.answer(SWITCH)).await;
        client.until(|client| client.so_far(stream).status == 200).await;
        client.link.limit_room(1_000);
        server.send(vec![7; MANY]).await;
        sleep(Duration::from_secs(30)).await;
        client.link.limit_room(64 << 10);
        client.until(|client| client.received == MANY).await;
        // A reply that the client does not read has its own limit.
        client.link.limit_room(1_000);
        server.send(vec![7; MANY]).await;
        sleep(Duration::from_secs(1)).await;
        client.get("/a");
        client.flush();
        sleep(Duration::from_secs(10)).await;
        assert!(client.link.is_finished(), "the connection is cut off");
    });
}

#[test]
fn a_backend_that_opens_no_window_keeps_its_tunnel_for_as_long_as_that_may_be_idle() {
    in_memory(&format!("{TIMEOUTS}{}", proxied("")), async |world| {
        let mut backend = Http2Backend::new(world);
        let mut client = world.client();
        client.send(UPGRADE).await;
        let mut served = backend.accept().await;
        served.until(|served| !served.asked.is_empty()).await;
        let id = *served.asked.keys().next().unwrap();
        served.head(id, 200, &[], false);
        served.flush();
        assert_eq!(client.any_reply(false).await.unwrap().status(), 101);
        served.holds_windows = true;
        client.send(vec![7; MANY]).await;
        served.until(|served| served.asked[&id].body.len() == 65_535).await;
        let _ = tokio::time::timeout(Duration::from_secs(30), served.turn()).await;
        assert!(!served.asked[&id].reset);
        served.release();
        served.until(|served| served.asked[&id].body.len() == MANY).await;
    });
}

#[test]
fn last_words_of_a_backend_that_takes_nothing_any_more_arrive() {
    in_memory(HTTP1, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut client, stream) = connect(world, Config::default()).await;
        let (_, mut server) = client.during(backend.answer(SWITCH)).await;
        client.until(|client| client.so_far(stream).status == 200).await;
        // The data of a side that leaves waits for the window while the client continues to send.
        client.holds_windows = true;
        server.send(vec![7; MANY]).await;
        client.until(|client| client.received == 65_535).await;
        drop(server);
        client.send_data(stream, b"more", false);
        client.flush();
        let _ = tokio::time::timeout(Duration::from_secs(1), client.turn()).await;
        client.release();
        let reply = client.reply(stream).await;
        assert_eq!((reply.body.len(), reply.is_whole), (MANY, true));
    });
}

#[test]
fn last_words_of_a_client_that_resets_its_stream_arrive() {
    in_memory(HTTP1, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut client, stream) = connect(world, Config::default()).await;
        let (_, mut server) = client.during(backend.answer(SWITCH)).await;
        client.until(|client| client.so_far(stream).status == 200).await;
        client.send_data(stream, b"last words", false);
        client.codec.reset(stream, ErrorCode::CANCEL, tokio::time::Instant::now().into_std());
        client.flush();
        let (rest, outcome) = server.rest().await;
        assert_eq!(rest, b"last words");
        assert!(outcome.is_err(), "no end is taken for a proper one");
    });
}

#[test]
fn a_websocket_ends_with_a_close_frame_before_its_connection_does() {
    const HELLO: &[u8] = b"\x81\x05hello";
    in_memory(HTTP1, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut client, stream) = connect(world, Config::default()).await;
        let (_, mut server) = client.during(backend.answer(SWITCH)).await;
        server.send(HELLO).await;
        client.until(|client| client.received == HELLO.len()).await;
        // An upgrade of Forebay stops the old process in this way, too.
        world.gateway.stop();
        client.until(|client| client.goaway == Some(ErrorCode::NO_ERROR)).await;
        // A message that is under way arrives whole.
        server.send(HELLO).await;
        let reply = client.reply(stream).await;
        assert_eq!(reply.body, [HELLO, HELLO, &[0x88, 2, 0x03, 0xe9]].concat());
        assert!(reply.is_whole, "{reply:?}");
        let (rest, _) = server.rest().await;
        assert_eq!(rest, b"");
    });
}
