//! Bodies in both directions: framing, back-pressure, early replies and cut-off bodies.

use std::time::Duration;

use tokio::time::sleep;

use crate::world::in_memory;

const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn a_chunked_request_body_arrives_whole_whatever_its_pieces() {
    in_memory(PROXIED, async |world| {
        for seed in 0..20 {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
                           5\r\nhello\r\n1;x=y\r\n \r\n5\r\nworld\r\n0\r\n\r\n";
            client.send_in_pieces(request, seed).await;
            let (asked, _connection) = backend.answer(OK).await;
            assert_eq!(asked.text(), "hello world", "seed {seed}");
            assert_eq!(client.reply("POST ").await.status(), 200);
        }
    });
}

#[test]
fn a_wrong_chunk_is_no_end_of_the_body() {
    for wrong in ["x\r\n", "5\r\nhelloX\r\n", "5 \r\nhello\r\n", "0x5\r\nhello\r\n", "-1\r\n\r\n"] {
        in_memory(PROXIED, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await;
            client.send(wrong).await;
            client.send("0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert_eq!(client.reply("POST ").await.status(), 400, "{wrong:?}");
            assert!(client.is_closed().await);
            if backend.has_visitor() {
                let sent = backend.accept().await.rest().await.0;
                let text = String::from_utf8_lossy(&sent).into_owned();
                assert!(!text.contains("smuggled") && !text.ends_with("0\r\n\r\n"), "{text}");
            }
        });
    }
}

#[test]
fn a_client_that_leaves_in_its_body_leaves_no_whole_request_at_the_backend() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").await;
        let mut connection = backend.accept().await;
        connection.head().await.unwrap();
        drop(client);
        let (sent, _) = connection.rest().await;
        assert_eq!(sent, b"half");
    });
}

#[test]
fn a_backend_may_answer_before_it_has_read_the_body() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nfirst").await;
        let mut connection = backend.accept().await;
        connection.head().await.unwrap();
        let early = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
        connection.send(early).await;
        assert_eq!(client.reply("POST ").await.status(), 403);
    });
}

#[test]
fn a_slow_client_holds_the_backend_back_and_gets_everything() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.link.limit_room(2000);
        client.send(GET).await;
        let mut connection = backend.accept().await;
        connection.request().await;
        let body: Vec<u8> = (0..500_000_u32).map(|n| n as u8).collect();
        let sending = tokio::task::spawn_local({
            let body = body.clone();
            async move {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n").await;
                connection.send(&body).await;
                connection
            }
        });
        sleep(Duration::from_secs(5)).await;
        assert!(!sending.is_finished(), "half a megabyte does not fit into buffers");
        let reply = client.reply(GET).await;
        assert!(reply.body == body);
    });
}

#[test]
fn a_slow_backend_holds_the_client_back_and_gets_everything() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        let body: Vec<u8> = (0..500_000_u32).map(|n| n as u8).collect();
        let uploading = tokio::task::spawn_local({
            let body = body.clone();
            async move {
                client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n").await;
                client.send(&body).await;
                client
            }
        });
        let mut connection = backend.accept().await;
        sleep(Duration::from_secs(5)).await;
        assert!(!uploading.is_finished(), "half a megabyte does not fit into buffers");
        let request = connection.request().await;
        assert!(request.body == body);
        connection.send(OK).await;
        assert_eq!(uploading.await.unwrap().reply("POST ").await.status(), 200);
    });
}

#[test]
fn replies_in_any_framing_and_any_pieces_arrive_whole() {
    let replies = [
        "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    ];
    in_memory(PROXIED, async |world| {
        for (reply, seed) in replies.into_iter().flat_map(|reply| (0..20).map(move |s| (reply, s)))
        {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send(GET).await;
            let mut connection = backend.accept().await;
            connection.request().await;
            connection.send_in_pieces(reply, seed).await;
            assert_eq!(client.reply(GET).await.text(), "hello world", "seed {seed}");
        }
    });
}

#[test]
fn a_broken_reply_is_a_502_or_a_reset_and_never_a_whole_reply() {
    let before_the_head = [
        "",
        "HTTP/1.1",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nhello",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ];
    let behind_it = [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
    ];
    in_memory(PROXIED, async |world| {
        for (reply, has_head) in before_the_head
            .into_iter()
            .map(|reply| (reply, false))
            .chain(behind_it.into_iter().map(|reply| (reply, true)))
        {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
            let (_, connection) = backend.answer(reply).await;
            connection.link.finish();
            match client.any_reply(false).await {
                Ok(reply) => assert_eq!(reply.status(), 502, "{reply:?}"),
                Err(_) => assert!(has_head, "{reply:?}"),
            }
        }
    });
}

#[test]
fn bytes_behind_a_reply_end_its_connection_and_reach_nobody() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, _surplus) = backend.answer(&format!("{OK}HTTP/1.1 200 OK\r\n\r\n")).await;
        assert_eq!(client.reply(GET).await.text(), "ok");
        client.send(GET).await;
        let other = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother";
        let (_, _connection) = backend.answer(other).await;
        assert_eq!(client.reply(GET).await.text(), "other");
    });
}

#[test]
fn statuses_without_a_body_have_none_and_keep_the_connection() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, mut connection) = backend.answer("HTTP/1.1 204 No Content\r\n\r\n").await;
        let reply = client.reply(GET).await;
        assert_eq!((reply.status(), reply.field("content-length")), (204, None));
        client.send(GET).await;
        connection.request().await;
        connection
            .send("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 7\r\n\r\n")
            .await;
        let reply = client.reply(GET).await;
        assert_eq!((reply.status(), reply.field("etag")), (304, Some("\"x\"")));
        client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        connection.request().await;
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n").await;
        assert_eq!(client.reply("HEAD ").await.field("content-length"), Some("7"));
        client.send(GET).await;
        connection.request().await;
        connection.send(OK).await;
        assert_eq!(client.reply(GET).await.text(), "ok");
    });
}

#[test]
fn early_hints_and_other_interim_replies_pass_and_100_does_not() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let hints =
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";
        let (_, _connection) = backend.answer(&format!("{hints}{OK}")).await;
        let interim = client.any_reply(false).await.unwrap();
        assert_eq!((interim.status(), interim.field("link")), (103, Some("</a.css>")));
        assert_eq!(client.reply(GET).await.text(), "ok");
    });
}

#[test]
fn a_client_of_http_10_is_spared_interim_replies() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.0\r\nHost: a\r\n\r\n").await;
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";
        let (_, _connection) = backend.answer(&format!("{hints}{OK}")).await;
        assert_eq!(client.any_reply(false).await.unwrap().status(), 200);
    });
}

#[test]
fn trailers_reach_a_client_that_takes_them_and_no_other() {
    let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                 2\r\nok\r\n0\r\nX-Sum: 7\r\nSet-Cookie: a=b\r\n\r\n";
    in_memory(PROXIED, async |world| {
        for takes in [true, false] {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            let te = if takes { "TE: trailers\r\nConnection: TE\r\n" } else { "" };
            client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{te}\r\n")).await;
            let (asked, _connection) = backend.answer(reply).await;
            assert_eq!(asked.field("te"), takes.then_some("trailers"));
            let got = client.reply(GET).await;
            assert_eq!(got.text(), "ok");
            let expected = takes.then(|| ("x-sum".to_owned(), "7".to_owned()));
            assert_eq!(got.trailers, Vec::from_iter(expected));
        }
    });
}
