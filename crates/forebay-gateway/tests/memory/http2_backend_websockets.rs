//! WebSockets to HTTP/2 backends (RFC 8441).

use forebay_wire::http2::{Config, ErrorCode, RequestPseudo};

use crate::http2_backend::{Http2Backend, proxied};
use crate::http2_backends::{GET, ask};
use crate::http2_client::Http2Client;
use crate::world::in_memory;

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// The server role of the codec offers extended CONNECT by default.
#[test]
fn a_websocket_goes_on_as_an_extended_connect() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let mut client = world.client();
        client.send(UPGRADE).await;
        let mut served = backend.accept().await;
        served.until(|served| !served.asked.is_empty()).await;
        let (&id, asked) = served.asked.iter().next().unwrap();
        assert_eq!(
            (&*asked.method, &*asked.protocol, &*asked.path),
            ("CONNECT", "websocket", "/chat")
        );
        assert_eq!(asked.field("sec-websocket-version"), Some("13"));
        assert_eq!(asked.field("sec-websocket-key"), None);
        served.head(id, 200, &[("sec-websocket-protocol", "chat")], false);
        served.flush();
        let reply = client.any_reply(false).await.unwrap();
        assert_eq!((reply.status(), reply.field("upgrade")), (101, Some("websocket")));
        // The example of RFC 6455 section 1.3.
        assert_eq!(reply.field("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(reply.field("sec-websocket-protocol"), Some("chat"));
        for round in 1..=3 {
            client.send("up").await;
            served.until(|served| served.asked[&id].body.len() == 2 * round).await;
            served.data(id, b"down\r\n", false);
            served.flush();
            assert_eq!(client.line().await.unwrap(), "down");
        }
        // Other requests share the connection at this time.
        let get = ask(world, GET);
        let (other, _) = served.request().await;
        served.reply(other, "ok");
        served.flush();
        assert_eq!(get.await.unwrap().unwrap().text(), "ok");
        client.link.finish();
        served.until(|served| served.asked[&id].is_whole).await;
        served.data(id, b"bye", true);
        served.flush();
        assert_eq!(client.rest().await.0, b"bye");
    });
}

#[test]
fn a_websocket_by_http2_goes_on_as_one_and_a_reset_ends_both_sides() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let mut client = Http2Client::connect(world).await;
        let pseudo = RequestPseudo {
            method: b"CONNECT",
            scheme: b"http",
            authority: b"a.example",
            path: b"/chat",
            protocol: b"websocket",
        };
        let stream = client.ask_as(&pseudo, &[("sec-websocket-version", "13")], false);
        client.flush();
        let mut served = client.during(backend.accept()).await;
        client.during(served.until(|served| !served.asked.is_empty())).await;
        let id = *served.asked.keys().next().unwrap();
        served.head(id, 200, &[], false);
        served.flush();
        client.until(|client| client.so_far(stream).status == 200).await;
        client.send_data(stream, b"up", false);
        client.flush();
        client.during(served.until(|served| served.asked[&id].body == b"up")).await;
        served.reset(id, ErrorCode::CANCEL);
        served.flush();
        assert!(client.reply(stream).await.reset.is_some());
    });
}

#[test]
fn a_backend_without_extended_connect_gets_no_websocket() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let mut config = Config::default();
        config.head.extended_connect = false;
        let client = ask(world, UPGRADE);
        let mut served = backend.accept_with(config).await;
        served.turn().await;
        let reply = client.await.unwrap().unwrap();
        assert_eq!(reply.status(), 501);
        let errors = world.errors();
        assert!(errors.iter().any(|line| line.contains("ENABLE_CONNECT_PROTOCOL")), "{errors:#?}");
        let get = ask(world, GET);
        let (id, _) = served.request().await;
        served.reply(id, "ok");
        served.flush();
        assert_eq!(get.await.unwrap().unwrap().text(), "ok", "it is not left out for that");
    });
}

#[test]
fn a_websocket_waits_for_settings_no_longer_than_for_a_connection() {
    in_memory(&proxied("connect_timeout = \"2s\"\n"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(UPGRADE).await;
        // A server that accepts the connection and sends nothing.
        let silent = backend.accept().await;
        let reply = client.any_reply(false).await.unwrap();
        assert_eq!(reply.status(), 504);
        drop(silent);
    });
}
