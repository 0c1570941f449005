//! AJP listeners: the requests that origins receive, and the packets that web servers get back.

use std::time::Duration;

use tokio::time::sleep;

use crate::ajp_web_server::{
    Ask, DATA, GET, HEAD, HELLO, OK, PING, POST, PROXIED, Sent, ask, data, next, reply, site,
};
use crate::world::{Backend, World, in_memory};

#[test]
fn a_connection_carries_requests_and_pings_one_after_the_other() {
    in_memory(&site("", HELLO), async |world| {
        let mut peer = world.client();
        for seed in 0..20 {
            let bytes = [PING, &Ask::new(GET, "/").packet()].concat();
            peer.send_in_pieces(bytes, seed).await;
            assert_eq!(next(&mut peer).await, Some(Sent::Pong));
            let reply = reply(&mut peer, b"").await;
            assert_eq!((reply.status, &reply.body[..], reply.reuse), (200, &b"here"[..], true));
            assert_eq!(reply.field("content-length"), Some("4"));
            assert_eq!(reply.field("connection"), None);
        }
        peer.send(Ask::new(HEAD, "/").packet()).await;
        let reply = reply(&mut peer, b"").await;
        assert_eq!((reply.status, reply.body.len(), reply.reuse), (200, 0, true));
        assert_eq!(reply.field("content-length"), Some("4"));
    });
}

#[test]
fn a_backend_is_asked_for_what_the_web_server_was() {
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let fields = &[
            ("host", "a.example"),
            ("x-a", "1"),
            ("connection", "x-hop, upgrade"),
            ("x-hop", "1"),
            ("upgrade", "websocket"),
            ("expect", "100-continue"),
            ("x-forwarded-for", "6.6.6.6"),
        ];
        let mut ask = Ask::new(POST, "/a%20b").fields(fields).attribute(5, b"c=d");
        ask.is_ssl = true;
        let mut peer = world.client();
        peer.send(ask.packet()).await;
        let (asked, connection) = backend.answer(OK).await;
        assert_eq!(asked.start, "POST /a%20b?c=d HTTP/1.1");
        assert_eq!(asked.values("host"), ["a.example"]);
        assert_eq!(asked.field("x-a"), Some("1"));
        for name in ["x-hop", "upgrade", "expect", "connection"] {
            assert_eq!(asked.field(name), None, "{name}");
        }
        // Only the packet names the client's address.
        assert_eq!(asked.values("x-forwarded-for"), ["192.0.2.9"]);
        assert_eq!(asked.values("x-forwarded-proto"), ["https"]);
        assert_eq!(reply(&mut peer, b"").await.body, b"ok");
        drop(connection);
    });
}

#[test]
fn bodies_are_asked_for_as_the_backend_reads_and_arrive_exactly() {
    in_memory(&site("max_body = \"unlimited\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let body: Vec<u8> = (0..100_000).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut peer = world.client();
        for length in [0, 1, DATA - 1, DATA, DATA + 1, 3 * DATA, 100_000] {
            for is_known in [true, false] {
                let length_text = length.to_string();
                let fields = if is_known {
                    [("Host", "h"), ("Content-Length", &*length_text)]
                } else {
                    [("Host", "h"), ("Transfer-Encoding", "chunked")]
                };
                peer.send(Ask::new(POST, "/").fields(&fields).packet()).await;
                let mut rest = &body[..length];
                if is_known && length > 0 {
                    let (first, more) = rest.split_at(length.min(DATA));
                    peer.send(data(first)).await;
                    rest = more;
                }
                let echoing = async {
                    let mut connection = backend.accept().await;
                    let asked = connection.request().await;
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                    connection.send(head).await;
                    connection.send(&asked.body).await;
                    (asked, connection)
                };
                let (reply, (asked, connection)) = tokio::join!(reply(&mut peer, rest), echoing);
                assert_eq!((reply.status, reply.reuse), (200, true), "{length} {is_known}");
                assert!(asked.body == body[..length] && reply.body == body[..length]);
                assert_eq!(asked.field("transfer-encoding").is_some(), !is_known);
                // The next request uses a new connection.
                drop(connection);
                sleep(Duration::from_secs(1)).await;
            }
        }
    });
}

#[test]
fn an_answer_before_the_body_leaves_the_connection_in_order() {
    let early = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut peer = world.client();
        let fields = [("Host", "h"), ("Content-Length", "20000")];
        peer.send(Ask::new(POST, "/").fields(&fields).packet()).await;
        peer.send(data(&[b'a'; DATA])).await;
        let mut connection = backend.accept().await;
        connection.head().await.unwrap();
        // The gateway has requested the second packet, which is in transit when the answer arrives.
        assert_eq!(next(&mut peer).await, Some(Sent::WantsBody(DATA)));
        connection.send(early).await;
        let answer = reply(&mut peer, b"").await;
        assert_eq!((answer.status, &answer.body[..]), (403, &b"no"[..]));
        drop(connection);
        if answer.reuse {
            peer.send(data(&[b'b'; DATA])).await;
            peer.send(Ask::new(GET, "/next").packet()).await;
            let (asked, _connection) = backend.answer(OK).await;
            assert_eq!(asked.start, "GET /next HTTP/1.1");
            assert_eq!(reply(&mut peer, b"").await.body, b"ok");
        } else {
            assert!(peer.is_closed().await);
        }
    });
}

#[test]
fn replies_come_in_packets_of_the_size_that_was_agreed_on() {
    let large = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n";
    in_memory(&site("", large), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let body: Vec<u8> = (0..300_000).map(|n| (n * 3 + n / 253) as u8).collect();
        for length in [1, 1024, 1025, 8184, 8185, 16_368, 65_536, 300_000] {
            for is_known in [true, false] {
                let mut peer = world.client();
                peer.send(Ask::new(GET, "/").packet()).await;
                let answering = async {
                    let mut connection = backend.accept().await;
                    connection.request().await;
                    let head = if is_known {
                        format!("HTTP/1.1 200 Fine\r\nContent-Length: {length}\r\n\r\n")
                    } else {
                        "HTTP/1.1 200 Fine\r\n\r\n".to_owned()
                    };
                    connection.send(head).await;
                    connection.send(&body[..length]).await;
                    connection.link.finish();
                };
                let ((), reply) = tokio::join!(answering, reply(&mut peer, b""));
                assert!(reply.body == body[..length] && reply.reuse, "{length} {is_known}");
                assert_eq!(reply.field("transfer-encoding"), None);
            }
        }
    });
}

#[test]
fn interim_replies_are_dropped_and_statuses_without_body_have_none() {
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for status in [204, 304] {
            let mut peer = world.client();
            peer.send(Ask::new(GET, "/").packet()).await;
            let text = format!(
                "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 {status} X\r\nX-A: 1\r\n\r\n"
            );
            let _connection = backend.answer(&text).await;
            let reply = reply(&mut peer, b"").await;
            assert_eq!((reply.status, reply.body.len(), reply.reuse), (status, 0, true));
            assert_eq!(reply.field("x-a"), Some("1"));
        }
    });
}

#[test]
fn a_reply_that_is_cut_off_is_not_taken_for_a_whole_one() {
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut peer = world.client();
        peer.send(Ask::new(GET, "/").packet()).await;
        let part = "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n12345";
        let (_, connection) = backend.answer(part).await;
        connection.link.finish();
        let mut has_ended = false;
        while let Some(sent) = next(&mut peer).await {
            has_ended |= matches!(sent, Sent::End(_));
        }
        assert!(!has_ended, "without an end the web server knows");
    });
}

#[test]
fn a_head_that_fits_no_packet_costs_the_reply() {
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut peer = world.client();
        peer.send(Ask::new(GET, "/").packet()).await;
        let value = "v".repeat(9000);
        let text = format!("HTTP/1.1 200 OK\r\nX-A: {value}\r\nContent-Length: 2\r\n\r\nok");
        let _connection = backend.answer(&text).await;
        let reply = reply(&mut peer, b"").await;
        assert_eq!((reply.status, reply.reuse), (502, false));
        assert!(peer.is_closed().await);
        assert!(world.errors().iter().any(|line| line.contains("ajp_packet_size")));
    });
}

#[test]
fn a_reply_has_as_many_fields_as_over_other_protocols() {
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut peer = world.client();
        peer.send(Ask::new(GET, "/").packet()).await;
        let links = "Link: </a>\r\n".repeat(500);
        let text = format!("HTTP/1.1 200 OK\r\n{links}Content-Length: 2\r\n\r\nok");
        let _connection = backend.answer(&text).await;
        let reply = reply(&mut peer, b"").await;
        let links = reply.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("link"));
        assert_eq!((reply.status, links.count()), (200, 500));
    });
}

#[test]
fn the_secret_is_asked_for_before_anything_else() {
    let keys = "ajp_secret = \"s3cret\"";
    in_memory(&site(keys, HELLO), async |world| {
        let right = Ask::new(GET, "/").attribute(0x0c, b"s3cret");
        assert_eq!(ask(world, &right).await.status, 200);
        let wrong = [
            Ask::new(GET, "/"),
            Ask::new(GET, "/").attribute(0x0c, b"s3creT"),
            Ask::new(GET, "/").attribute(0x0c, b"s3cret "),
            Ask::new(GET, "/").attribute(0x0c, b""),
            Ask::new(GET, "/ \r\n").attribute(0x0c, b"wrong").fields(&[]),
        ];
        for (at, wrong) in wrong.iter().enumerate() {
            let mut peer = world.client();
            peer.send([wrong.packet(), right.packet()].concat()).await;
            let reply = reply(&mut peer, b"").await;
            let status = if at == 4 { 400 } else { 403 };
            assert_eq!((reply.status, reply.reuse), (status, false), "{at}");
            assert!(peer.is_closed().await, "nothing behind it is looked at");
        }
        assert!(world.errors().iter().any(|line| line.contains("ajp_secret")));
    });
}

/// Returns a script's variables from a FastCGI request.
async fn variables_of(world: &World, backend: &mut Backend, ask: &Ask<'_>) -> Vec<u8> {
    let mut peer = world.client();
    peer.send(ask.packet()).await;
    let mut connection = backend.accept().await;
    connection.exactly(16).await.unwrap();
    let header = connection.exactly(8).await.unwrap();
    assert_eq!(header[1], 4, "FCGI_PARAMS");
    connection.exactly(usize::from(u16::from_be_bytes([header[4], header[5]]))).await.unwrap()
}

#[test]
fn scripts_get_the_web_servers_facts_about_its_client() {
    let routes = "[[site.route]]\npath = \"/*\"\nfastcgi = { to = \"10.0.0.1:9000\", root = \"/srv/www\", scripts = \"*\" }\n";
    in_memory(&site("", routes), async |world| {
        let mut backend = world.backend("10.0.0.1:9000");
        let mut ask = Ask::new(GET, "/x.php")
            .attribute(3, b"me")
            .attribute(4, b"Digest")
            .attribute(6, b"node1")
            .attribute(7, b"-----BEGIN CERTIFICATE-----\nx\n")
            .attribute(8, b"TLS_AES_256_GCM_SHA384")
            .attribute(9, b"abcd")
            .named("AJP_REMOTE_PORT", "4711")
            .named("AJP_LOCAL_ADDR", "192.0.2.1")
            .named("AJP_SSL_PROTOCOL", "TLSv1.3")
            .named("JK_LB_ACTIVATION", "ACT")
            .named("LD_PRELOAD", "evil.so");
        ask.attributes.extend([0x0b, 1, 0]);
        for is_ssl in [true, false] {
            ask.is_ssl = is_ssl;
            let params = variables_of(world, &mut backend, &ask).await;
            let has = |name: &str, value: &str| {
                let mut pair = vec![name.len() as u8, value.len() as u8];
                pair.extend([name.as_bytes(), value.as_bytes()].concat());
                params.windows(pair.len()).any(|window| window == pair)
            };
            for (name, value) in [
                ("REMOTE_ADDR", "192.0.2.9"),
                ("REMOTE_PORT", "4711"),
                ("SERVER_ADDR", "192.0.2.1"),
                ("SERVER_PORT", "81"),
                ("REMOTE_USER", "me"),
                ("AUTH_TYPE", "Digest"),
                ("AJP_ROUTE", "node1"),
                ("JK_LB_ACTIVATION", "ACT"),
                ("REQUEST_SCHEME", if is_ssl { "https" } else { "http" }),
            ] {
                assert!(has(name, value), "{name} {}", String::from_utf8_lossy(&params));
            }
            for (name, value) in [
                ("HTTPS", "on"),
                ("SSL_CIPHER", "TLS_AES_256_GCM_SHA384"),
                ("SSL_CIPHER_USEKEYSIZE", "256"),
                ("SSL_SESSION_ID", "abcd"),
                ("SSL_PROTOCOL", "TLSv1.3"),
                ("SSL_CLIENT_CERT", "-----BEGIN CERTIFICATE-----\nx\n"),
            ] {
                assert_eq!(has(name, value), is_ssl, "{name}");
            }
            assert!(!params.windows(10).any(|window| window == b"LD_PRELOAD"));
        }
    });
}

#[test]
fn a_client_of_http_10_needs_no_host() {
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut peer = world.client();
        let bytes = Ask::new(GET, "/").fields(&[]).packet();
        let at = bytes.windows(8).position(|window| window == b"HTTP/1.1").unwrap();
        let bytes = [&bytes[..at], b"HTTP/1.0", &bytes[at + 8..]].concat();
        peer.send(bytes).await;
        let (asked, connection) = backend.answer("HTTP/1.1 200 OK\r\n\r\nall of it").await;
        assert_eq!(asked.field("host"), Some("front"));
        connection.link.finish();
        let reply = reply(&mut peer, b"").await;
        assert_eq!((&reply.body[..], reply.reuse), (&b"all of it"[..], true));
    });
}

#[test]
fn a_request_whose_web_server_leaves_is_given_up() {
    in_memory(&site("", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut peer = world.client();
        peer.send(Ask::new(GET, "/").packet()).await;
        let mut connection = backend.accept().await;
        connection.request().await;
        drop(peer);
        assert!(connection.is_closed().await);
    });
}

#[test]
fn a_connection_carries_no_more_requests_than_it_may_and_none_once_the_server_stops() {
    let server = "[server.limits]\nkeepalive_requests = 2\n";
    in_memory(&format!("{server}{}", site("", HELLO)), async |world| {
        let mut peer = world.client();
        for reuse in [true, false] {
            peer.send(Ask::new(GET, "/").packet()).await;
            assert_eq!(reply(&mut peer, b"").await.reuse, reuse);
        }
        assert!(peer.is_closed().await);
        let mut peer = world.client();
        peer.send(Ask::new(GET, "/").packet()).await;
        assert!(reply(&mut peer, b"").await.reuse);
        world.gateway.stop();
        assert!(peer.is_closed().await);
    });
}

#[test]
fn a_site_takes_http_and_ajp_on_listeners_of_their_own() {
    let both = "[[site]]\nlisten = [\"127.0.0.1:80\", \"ajp://127.0.0.1:8009\"]\n";
    in_memory(&format!("{both}{HELLO}"), async |world| {
        assert_eq!(world.ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.text(), "here");
        let mut peer = world.client_at(1);
        peer.send(Ask::new(GET, "/").packet()).await;
        assert_eq!(reply(&mut peer, b"").await.body, b"here");
    });
}
