//! Upgrades: only the 101 that the client requested begins a tunnel.

use std::time::Duration;

use tokio::time::sleep;

use crate::world::in_memory;

const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const ASK: &str =
    "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCH: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn bytes_pass_both_ways_until_both_sides_have_finished() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(ASK).await;
        let (asked, mut server) = backend.answer(SWITCH).await;
        assert_eq!(asked.field("upgrade"), Some("websocket"));
        assert_eq!(client.reply(ASK).await.status(), 101);
        for n in 0..10 {
            client.send(format!("up {n}\r\n")).await;
            assert_eq!(server.line().await.unwrap(), format!("up {n}"));
            server.send(format!("down {n}\r\n")).await;
            assert_eq!(client.line().await.unwrap(), format!("down {n}"));
        }
        client.link.finish();
        assert!(server.is_closed().await);
        server.send("last words\r\n").await;
        assert_eq!(client.line().await.unwrap(), "last words");
        drop(server);
        assert!(client.is_closed().await);
    });
}

#[test]
fn bytes_after_either_head_belong_to_the_tunnel() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(format!("{ASK}early up\r\n")).await;
        let (_, mut server) = backend.answer(&format!("{SWITCH}early down\r\n")).await;
        assert_eq!(client.reply(ASK).await.status(), 101);
        assert_eq!(client.line().await.unwrap(), "early down");
        assert_eq!(server.line().await.unwrap(), "early up");
    });
}

#[test]
fn another_answer_than_101_is_an_ordinary_reply() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(ASK).await;
        let (_, _connection) = backend.answer(OK).await;
        assert_eq!(client.reply(ASK).await.text(), "ok");
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let (_, _connection) = backend.answer(OK).await;
        assert_eq!(client.reply("GET ").await.text(), "ok");
    });
}

#[test]
fn a_101_to_another_protocol_than_asked_for_is_a_502() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(ASK).await;
        let (_, _connection) = backend.answer(&SWITCH.replace("websocket", "other")).await;
        assert_eq!(client.reply(ASK).await.status(), 502);
    });
}

#[test]
fn an_upgrade_to_http2_or_tls_stays_behind() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for protocol in ["h2c", "TLS/1.0"] {
            let mut client = world.client();
            client.send(ASK.replace("websocket", protocol)).await;
            let (asked, connection) = backend.answer(OK).await;
            assert_eq!(asked.field("upgrade"), None, "{protocol}");
            assert_eq!(client.reply(ASK).await.text(), "ok");
            drop(connection);
        }
    });
}

#[test]
fn a_side_that_breaks_resets_the_other() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(ASK).await;
        let (_, server) = backend.answer(SWITCH).await;
        client.reply(ASK).await;
        server.link.reset();
        let (_, outcome) = client.rest().await;
        assert!(outcome.is_err());
    });
}

#[test]
fn a_stop_ends_quiet_tunnels_and_lets_busy_ones_go_on() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        // These are not WebSockets, because those get a close frame.
        let [ask, switch] = &[ASK, SWITCH].map(|head| head.replace("websocket", "raw"));
        let (mut quiet, mut busy) = (world.client(), world.client());
        quiet.send(ask).await;
        let (_, _idle) = backend.answer(switch).await;
        quiet.reply(ask).await;
        busy.send(ask).await;
        let (_, mut server) = backend.answer(switch).await;
        busy.reply(ask).await;
        world.gateway.stop();
        for n in 0..10 {
            sleep(Duration::from_millis(500)).await;
            server.send(format!("{n}\r\n")).await;
            assert_eq!(busy.line().await.unwrap(), n.to_string());
        }
        let closed = tokio::time::timeout(Duration::from_secs(1), quiet.rest()).await;
        assert!(closed.is_ok(), "silence ends the other one");
    });
}

#[test]
fn no_close_frame_follows_the_end_of_a_websocket() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(ASK).await;
        let (_, server) = backend.answer(SWITCH).await;
        client.reply(ASK).await;
        server.link.finish();
        world.gateway.stop();
        let (rest, _) = client.rest().await;
        assert_eq!(rest, b"");
    });
}
