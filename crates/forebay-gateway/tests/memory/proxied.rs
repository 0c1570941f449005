//! HTTP backends, mostly faulty ones: the client gets a complete reply or a clean error, never a
//! mixture.

use std::time::Duration;

use tokio::time::sleep;

use crate::world::{Message, Peer, World, in_memory};

const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn with(configuration: &str) -> String {
    format!("{configuration}\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n{PROXIED}")
}

/// Returns the client's reply to `request` if a backend answers with `bytes` and closes.
fn answered(request: &str, bytes: impl AsRef<[u8]>) -> std::io::Result<Message> {
    let mut replied = None;
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        replied = Some(world.try_pass(&mut backend, request, bytes).await.1);
        assert!(!backend.has_visitor(), "asked once");
    });
    replied.unwrap()
}

#[test]
fn garbage_is_a_bad_gateway() {
    for garbage in [
        "",
        "nonsense\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
    ] {
        let reply = answered(GET, garbage).unwrap();
        assert_eq!(reply.status(), 502, "{garbage:?}");
        assert_eq!(reply.field("content-length"), Some(&*reply.body.len().to_string()));
        assert_eq!(reply.field("a"), None);
    }
}

#[test]
fn a_reply_with_too_long_a_field_or_too_many_is_a_bad_gateway() {
    let endless = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(100_000));
    assert_eq!(answered(GET, endless).unwrap().status(), 502);
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(1001));
    assert_eq!(answered(GET, many).unwrap().status(), 502);
}

#[test]
fn a_chunked_reply_cut_short_is_cut_short() {
    for cut in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsh",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n0\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzzz\r\n",
    ] {
        // An HTTP/1.0 client can distinguish an end from a cut only by how the connection ends.
        for request in [GET, "GET / HTTP/1.0\r\nHost: a\r\n\r\n"] {
            let reply = answered(request, cut);
            assert!(reply.map_or(true, |reply| reply.status() == 502), "{request:?} {cut:?}");
        }
    }
}

#[test]
fn a_head_whose_body_never_begins_is_a_bad_gateway() {
    // Nothing was sent yet, so the client can get the error.
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    assert_eq!(answered(GET, head).unwrap().status(), 502);
}

#[test]
fn a_head_waits_for_the_body_that_it_announces() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, mut slow) = backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n").await;
        sleep(Duration::from_millis(20)).await;
        assert!(!client.link.has_input(), "the head waits");
        slow.send("0123456789").await;
        let reply = client.reply(GET).await;
        assert_eq!((reply.status(), reply.text()), (200, "0123456789"));
    });
}

#[test]
fn a_body_in_the_reply_to_head_is_nobodys_reply() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        for reply in [
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nevil\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\nevil",
        ] {
            let head = "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n";
            client.send(head).await;
            let (_, mut spoiled) = backend.answer(reply).await;
            let replied = client.reply(head).await;
            let length = reply.contains("Length").then_some("4");
            assert_eq!(replied.field("content-length"), length, "{reply:?}");
            assert!(spoiled.is_closed().await, "{reply:?}");
            client.send(GET).await;
            let (_, fresh) = backend.answer(OK).await;
            assert_eq!(client.reply(GET).await.text(), "ok", "{reply:?}");
            drop(fresh);
        }
    });
}

#[test]
fn a_status_without_body_that_has_one_ends_its_connection() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let reply = "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nevil";
        let (_, mut spoiled) = backend.answer(reply).await;
        let empty = client.reply(GET).await;
        assert_eq!((empty.status(), empty.field("content-length")), (204, None));
        assert!(spoiled.is_closed().await);
        client.send(GET).await;
        let (_, _fresh) = backend.answer(OK).await;
        assert_eq!(client.reply(GET).await.text(), "ok");
    });
}

#[test]
fn bytes_that_come_late_spoil_a_kept_connection() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, mut kept) = backend.answer(OK).await;
        assert_eq!(client.reply(GET).await.text(), "ok");
        sleep(Duration::from_millis(50)).await;
        kept.send("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil").await;
        sleep(Duration::from_millis(300)).await;
        client.send(GET).await;
        let (_, _fresh) = backend.answer(OK).await;
        assert_eq!(client.reply(GET).await.text(), "ok");
    });
}

#[test]
fn an_early_reply_ends_an_upload() {
    let early =
        "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig";
    for (framing, piece) in [
        ("Content-Length: 10000000", vec![b'x'; 100_000]),
        ("Transfer-Encoding: chunked", [&b"186a0\r\n"[..], &[b'x'; 100_000], b"\r\n"].concat()),
    ] {
        in_memory(PROXIED, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n")).await;
            client.send(&piece[..1000]).await;
            let mut connection = backend.accept().await;
            connection.head().await.unwrap();
            connection.send(early).await;
            connection.link.finish();
            client.send(&piece[1000..]).await;
            for _ in 0..50 {
                client.send(&piece).await;
            }
            let reply = client.reply("POST ").await;
            assert_eq!((reply.status(), reply.text()), (413, "big"), "{framing}");
        });
    }
}

/// Answers one request on a connection with the text `ok`.
async fn serve(connection: &mut Peer) -> Message {
    let request = connection.request().await;
    connection.send(OK).await;
    request
}

#[test]
fn kept_connections_are_used_again() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut client, mut other) = (world.client(), world.client());
        client.send(GET).await;
        let mut kept = backend.accept().await;
        serve(&mut kept).await;
        client.reply(GET).await;
        for _ in 0..25 {
            for client in [&mut client, &mut other] {
                client.send(GET).await;
                serve(&mut kept).await;
                assert_eq!(client.reply(GET).await.text(), "ok");
            }
        }
        assert!(!backend.has_visitor());
    });
}

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn uploads_to_a_backend_that_closes_after_every_reply_arrive() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        for n in 0..100 {
            // The backend closes just when the next request is sent, which must not be repeated.
            client.send(POST.replace("/ ", &format!("/{n} "))).await;
            let (asked, connection) = backend.answer(OK).await;
            assert_eq!((asked.start, asked.body), (format!("POST /{n} HTTP/1.1"), b"hello".into()));
            assert_eq!(client.reply(POST).await.status(), 200, "{n}");
            drop(connection);
        }
        assert!(!backend.has_visitor(), "nothing was sent twice");
    });
}

#[test]
fn uploads_use_kept_connections_once_the_backend_was_seen_to_keep_them() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let mut kept = backend.accept().await;
        serve(&mut kept).await;
        client.reply(GET).await;
        client.send(GET).await;
        serve(&mut kept).await;
        client.reply(GET).await;
        for _ in 0..20 {
            client.send(POST).await;
            assert_eq!(serve(&mut kept).await.text(), "hello");
            assert_eq!(client.reply(POST).await.status(), 200);
        }
        assert!(!backend.has_visitor());
    });
}

/// Returns a client and a kept connection of a backend that is known to keep connections.
async fn with_kept(world: &World, backend: &mut crate::world::Backend) -> (Peer, Peer) {
    let mut client = world.client();
    client.send(GET).await;
    let mut kept = backend.accept().await;
    serve(&mut kept).await;
    client.reply(GET).await;
    client.send(GET).await;
    serve(&mut kept).await;
    client.reply(GET).await;
    (client, kept)
}

#[test]
fn a_request_over_a_stale_connection_is_sent_once_more_and_not_twice() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut client, mut kept) = with_kept(world, &mut backend).await;
        client.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(kept.request().await.start, "GET /2 HTTP/1.1");
        drop(kept);
        let mut second = backend.accept().await;
        assert_eq!(second.request().await.start, "GET /2 HTTP/1.1");
        drop(second);
        assert_eq!(client.reply(GET).await.status(), 502);
        assert!(!backend.has_visitor());
    });
}

#[test]
fn unrepeatable_requests_are_not_repeated_on_a_stale_connection() {
    for request in [
        "POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        "POST /2 HTTP/1.1\r\nHost: h\r\n\r\n",
        "PATCH /2 HTTP/1.1\r\nHost: h\r\n\r\n",
        "POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok",
        "POST /2 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ] {
        in_memory(PROXIED, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let (mut client, mut kept) = with_kept(world, &mut backend).await;
            client.send(request).await;
            kept.request().await;
            drop(kept);
            assert_eq!(client.reply(request).await.status(), 502, "{request}");
            assert!(!backend.has_visitor(), "{request}");
        });
    }
}

#[test]
fn a_reply_that_began_is_not_asked_for_again() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (mut client, mut kept) = with_kept(world, &mut backend).await;
        client.send(GET).await;
        kept.request().await;
        kept.send("HTTP/1.1 2").await;
        drop(kept);
        assert_eq!(client.reply(GET).await.status(), 502);
        assert!(!backend.has_visitor());
    });
}

#[test]
fn a_backend_that_stops_in_its_reply_is_cut_off_after_reply_idle_and_named_in_the_log() {
    in_memory(&with("[server.timeouts]\nreply_idle = \"3s\""), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut silent = backend.accept().await;
        silent.request().await;
        assert_eq!(client.reply(GET).await.status(), 504);
        let errors = world.errors();
        assert!(
            errors.iter().any(|e| e.contains("504") && e.contains("10.0.0.1:3000")),
            "{errors:?}"
        );
        client.send(GET).await;
        let half = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab";
        let (_, _stopped) = backend.answer(half).await;
        assert!(client.any_reply(false).await.is_err(), "cut in the middle");
    });
}

#[test]
fn a_client_that_reads_slowly_is_no_silence_of_the_backend() {
    const LENGTH: usize = 2 << 20;
    in_memory(&with("[server.timeouts]\nreply_idle = \"2s\""), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let mut connection = backend.accept().await;
        connection.request().await;
        let answering = async {
            connection.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n")).await;
            connection.send(vec![b'x'; LENGTH]).await;
        };
        let reading = async {
            sleep(Duration::from_secs(30)).await;
            client.reply(GET).await
        };
        let ((), reply) = tokio::join!(answering, reading);
        assert_eq!((reply.status(), reply.body.len()), (200, LENGTH));
    });
}

#[test]
fn a_backend_that_is_not_there_is_a_bad_gateway_and_the_connection_goes_on() {
    let route = "[[site.route]]\npath = \"/unix\"\nproxy = \"unix:/no/socket\"\n".to_owned();
    in_memory(&(route + PROXIED), async |world| {
        let mut client = world.client();
        for (request, name) in [
            (GET, "10.0.0.1:3000"),
            (POST, "10.0.0.1:3000"),
            ("GET /unix HTTP/1.1\r\nHost: a\r\n\r\n", "/no/socket"),
        ] {
            client.send(request).await;
            let reply = client.reply(request).await;
            assert_eq!((reply.status(), reply.field("connection")), (502, None), "{request}");
            let errors = world.errors();
            assert!(errors.iter().any(|error| error.contains(name)), "{errors:?}");
        }
    });
}

#[test]
fn replies_reach_the_client_as_they_arrive() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        let mut connection = backend.accept().await;
        connection.head().await.unwrap();
        let one = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n";
        connection.send(one).await;
        assert_eq!(client.head().await.unwrap().field("transfer-encoding"), Some("chunked"));
        assert_eq!(client.exactly(8).await.unwrap(), b"3\r\none\r\n");
        client.send("3\r\ngo!\r\n").await;
        assert_eq!(connection.exactly(8).await.unwrap(), b"3\r\ngo!\r\n");
        client.send("0\r\n\r\n").await;
        assert_eq!(connection.exactly(5).await.unwrap(), b"0\r\n\r\n");
        connection.send("3\r\ntwo\r\n0\r\n\r\n").await;
        assert_eq!(client.exactly(13).await.unwrap(), b"3\r\ntwo\r\n0\r\n\r\n");
    });
}

#[test]
fn the_backend_is_left_when_the_client_has_gone() {
    for begun in [false, true] {
        in_memory(PROXIED, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send(GET).await;
            let mut connection = backend.accept().await;
            connection.request().await;
            if begun {
                connection.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").await;
                client.head().await.unwrap();
            }
            let since = tokio::time::Instant::now();
            drop(client);
            connection.rest().await.1.unwrap();
            assert!(since.elapsed() < Duration::from_secs(1), "long before its own time limit");
        });
    }
}

#[test]
fn pipelined_bytes_behind_a_request_do_not_end_it() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        client.send(GET).await;
        client.link.finish();
        let mut connection = backend.accept().await;
        connection.request().await;
        sleep(Duration::from_millis(100)).await;
        connection.send(OK).await;
        serve(&mut connection).await;
        assert_eq!(client.reply(GET).await.text(), "ok");
        assert_eq!(client.reply(GET).await.text(), "ok");
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_method_with_content_says_that_it_has_none() {
    let route = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        for (method, length) in [
            ("POST", Some("0")),
            ("PUT", Some("0")),
            ("PATCH", Some("0")),
            ("GET", None),
            ("DELETE", None),
        ] {
            let request = format!("{method} / HTTP/1.1\r\nHost: h\r\n\r\n");
            let (asked, got) = world.pass(&mut backend, request, ok).await;
            assert_eq!((asked.field("content-length"), got.text()), (length, "ok"), "{method}");
        }
    });
}
