//! HTTP/1.1 for clients: heads, framing, keep-alive, interim replies.

use std::time::Duration;

use tokio::time::sleep;

use crate::world::in_memory;

const FIXED: &str = r#"
[[site.route]]
path = "/*"
respond = "here"
"#;

const PROXIED: &str = r#"
[[site.route]]
path = "/*"
proxy = "http://10.0.0.1:3000"
"#;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn a_connection_is_kept_and_its_requests_are_answered_in_order() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut connection = backend.accept().await;
        for path in ["/1", "/2"] {
            assert_eq!(connection.request().await.start, format!("GET {path} HTTP/1.1"));
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{path}")).await;
            assert_eq!(client.reply("GET ").await.text(), path);
        }
    });
}

#[test]
fn a_head_in_pieces_is_the_same_as_a_whole_one() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = "POST /a%20b?c=d HTTP/1.1\r\nHost: a.example\r\nX-Field: value \r\n\
                       Content-Length: 11\r\n\r\nhello world";
        let mut whole = None;
        let mut connection = None;
        for seed in 0..20 {
            let mut client = world.client();
            client.send_in_pieces(request, seed).await;
            let mut used = match connection.take() {
                Some(used) => used,
                None => backend.accept().await,
            };
            let sent = used.request().await;
            assert_eq!(sent.text(), "hello world");
            used.send(OK).await;
            assert_eq!(client.reply("POST ").await.status(), 200);
            let seen = format!("{sent:?}");
            assert_eq!(*whole.get_or_insert(seen.clone()), seen, "seed {seed}");
            sleep(Duration::from_secs(2)).await;
            connection = Some(used);
        }
    });
}

#[test]
fn a_client_of_http_10_is_answered_and_closed() {
    in_memory(FIXED, async |world| {
        let mut client = world.client();
        client.send("GET / HTTP/1.0\r\n\r\n").await;
        let reply = client.reply("GET ").await;
        assert_eq!((reply.status(), reply.text()), (200, "here"));
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_client_of_http_10_that_asks_for_it_keeps_its_connection() {
    in_memory(FIXED, async |world| {
        let mut client = world.client();
        for _ in 0..2 {
            client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
            let reply = client.reply("GET ").await;
            assert_eq!(reply.field("connection"), Some("keep-alive"));
        }
    });
}

#[test]
fn a_malformed_head_gets_400_and_later_bytes_are_not_read() {
    let wrong = [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    ];
    in_memory(FIXED, async |world| {
        for head in wrong {
            let mut client = world.client();
            client.send(format!("{head}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")).await;
            assert_eq!(client.reply("GET ").await.status(), 400, "{head:?}");
            assert!(client.is_closed().await, "{head:?}");
        }
    });
}

#[test]
fn a_reply_of_unknown_length_is_chunked_for_11_and_closes_for_10() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for version in ["1.1", "1.0"] {
            let mut client = world.client();
            client.send(format!("GET / HTTP/{version}\r\nHost: a\r\n\r\n")).await;
            let (_, connection) = backend.answer("HTTP/1.1 200 OK\r\n\r\nall of it").await;
            connection.link.finish();
            let reply = client.reply("GET ").await;
            assert_eq!(reply.text(), "all of it");
            assert_eq!(reply.field("transfer-encoding").is_some(), version == "1.1");
        }
    });
}

#[test]
fn head_is_answered_without_a_body_and_the_connection_stays_usable() {
    in_memory(FIXED, async |world| {
        let mut client = world.client();
        for _ in 0..3 {
            client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let reply = client.reply("HEAD ").await;
            assert_eq!(reply.field("content-length"), Some("4"));
        }
    });
}

#[test]
fn expect_100_continue_is_answered_when_the_body_is_wanted_and_not_before() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
        client.send(head).await;
        assert_eq!(client.any_reply(false).await.unwrap().status(), 100);
        client.send("body").await;
        let (request, _connection) = backend.answer(OK).await;
        assert_eq!((request.text(), request.field("expect")), ("body", None));
        assert_eq!(client.reply("POST ").await.status(), 200);
    });
}

#[test]
fn a_request_that_is_refused_by_its_length_is_not_asked_to_continue() {
    let configuration = format!("{PROXIED}max_body = \"3B\"\n");
    in_memory(&configuration, async |world| {
        let mut client = world.client();
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
        client.send(head).await;
        assert_eq!(client.any_reply(false).await.unwrap().status(), 413);
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_client_that_closes_ends_the_request_at_the_backend() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut connection = backend.accept().await;
        connection.request().await;
        drop(client);
        assert!(connection.is_closed().await);
        assert_eq!(world.gateway.connections(), 0);
    });
}

#[test]
fn a_client_that_closes_its_side_behind_a_pipelined_request_gets_both_replies() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        client.link.finish();
        let (_, mut connection) = backend.answer(OK).await;
        assert_eq!(client.reply("GET ").await.text(), "ok");
        connection.request().await;
        connection.send(OK).await;
        assert_eq!(client.reply("GET ").await.text(), "ok");
    });
}

#[test]
fn stopping_answers_what_is_under_way_and_closes_what_is_idle() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut idle, mut busy) = (world.client(), world.client());
        idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        backend.answer(OK).await;
        assert_eq!(idle.reply("GET ").await.text(), "ok");
        busy.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut connection = backend.accept().await;
        connection.request().await;
        world.gateway.stop();
        assert!(idle.is_closed().await);
        connection.send(OK).await;
        let reply = busy.reply("GET ").await;
        assert_eq!((reply.text(), reply.field("connection")), ("ok", Some("close")));
        assert!(busy.is_closed().await);
    });
}

#[test]
fn a_new_connection_has_time_for_its_first_request_after_the_server_begins_to_stop() {
    in_memory(FIXED, async |world| {
        let (mut asks, mut rests) = (world.client(), world.client());
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        world.gateway.stop();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        asks.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let reply = asks.reply("GET ").await;
        assert_eq!((reply.text(), reply.field("connection")), ("here", Some("close")));
        assert!(asks.is_closed().await && rests.is_closed().await);
    });
}

#[test]
fn a_reload_holds_from_the_next_request_on_and_closes_no_connection() {
    in_memory(FIXED, async |world| {
        let mut client = world.client();
        for _ in 0..2 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert_eq!(client.reply("GET ").await.text(), "here");
            world.reload();
        }
    });
}
