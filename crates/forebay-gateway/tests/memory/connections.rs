//! Client connections: when they stay open, when they close, and the log lines for client errors.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::world::in_memory;

const FIXED: &str = "[[site.route]]\npath = \"/*\"\nrespond = \"hello\"\n";
const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

fn with(configuration: &str, routes: &str) -> String {
    format!("{configuration}\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n{routes}")
}

#[test]
fn a_connection_serves_until_the_client_asks_for_its_end() {
    in_memory(FIXED, async |world| {
        let mut client = world.client();
        for _ in 0..20 {
            client.send(GET).await;
            let reply = client.reply(GET).await;
            assert_eq!((reply.text(), reply.field("connection")), ("hello", None));
        }
        client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: foo, Close\r\n\r\n").await;
        let last = client.reply(GET).await;
        assert_eq!((last.text(), last.field("connection")), ("hello", Some("close")));
        assert!(client.is_closed().await);
    });
}

#[test]
fn keep_alive_can_be_off() {
    in_memory(&with("[server.timeouts]\nkeep_alive = \"0s\"", FIXED), async |world| {
        let since = Instant::now();
        let mut client = world.client();
        client.send(GET).await;
        let reply = client.reply(GET).await;
        assert_eq!((reply.text(), reply.field("connection")), ("hello", Some("close")));
        assert!(client.is_closed().await);
        assert!(since.elapsed() < Duration::from_secs(1));
    });
}

#[test]
fn a_body_that_stops_coming_in_any_framing_is_given_up_and_logged_with_its_limit() {
    for framing in ["Content-Length: 10", "Transfer-Encoding: chunked"] {
        in_memory(&with("[server.timeouts]\nbody_idle = \"3s\"", PROXIED), async |world| {
            let _backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            client.send(format!("POST / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n3\r\nabc")).await;
            let reply = client.reply("").await;
            assert_eq!((reply.status(), reply.field("connection")), (408, Some("close")));
            assert!(client.is_closed().await);
            let errors = world.errors();
            assert!(
                errors.iter().any(|error| error.contains("body_idle")),
                "{framing}: {errors:?}"
            );
        });
    }
}

#[test]
fn a_body_that_is_too_large_is_logged_with_its_limit() {
    let route = "[[site.route]]\nmax_body = 100\nrespond = \"hello\"\n";
    let chunked = format!(
        "POST /chunked HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n{}",
        "x".repeat(101)
    );
    for request in ["POST /known HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n", &chunked] {
        in_memory(route, async |world| {
            assert_eq!(world.ask(request).await.status(), 413);
            let target = request.split(' ').nth(1).unwrap();
            let message = format!(
                "413 the request body is larger than the max_body of 100 bytes: POST {target}, \
                 from 192.0.2.7"
            );
            let errors = world.errors();
            assert!(errors.iter().any(|error| error.contains(&message)), "{errors:?}");
        });
    }
}

#[test]
fn a_refusal_waits_for_its_client_a_moment_and_no_longer() {
    in_memory(&with("[server.limits]\nmax_body = \"10B\"", FIXED), async |world| {
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n").await;
        let since = Instant::now();
        assert_eq!(client.reply("").await.status(), 413);
        // The gateway reads the client's data for a while, so that no reset reaches the client
        // before the reply.
        for _ in 0..400 {
            client.send("more").await;
            sleep(Duration::from_millis(100)).await;
            if world.gateway.connections() == 0 {
                break;
            }
        }
        let took = since.elapsed();
        // `linger` of [server.timeouts].
        assert!(took >= Duration::from_secs(29) && took < Duration::from_secs(32), "{took:?}");
    });
}

#[test]
fn targets_without_a_path_in_a_row_are_requests_of_their_own() {
    for (target, path) in [("http://a?x=1", "/?x=1"), ("http://a:80?", "/?"), ("http://a", "/")] {
        in_memory(PROXIED, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            let get = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(2);
            let post = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
            client.send(get + &post).await;
            for (method, body) in [("GET", ""), ("GET", ""), ("POST", "hi")] {
                let close = OK.replace("Content", "Connection: close\r\nContent");
                let (asked, _) = backend.answer(&close).await;
                let start = format!("{method} {path} HTTP/1.1");
                assert_eq!((&*asked.start, asked.text()), (&*start, body), "{target}");
                assert_eq!(client.reply("").await.text(), "ok");
            }
        });
    }
}

#[test]
fn clients_that_go_away_anywhere_harm_nobody() {
    let whole =
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    in_memory(PROXIED, async |world| {
        for cut in 0..whole.len() {
            for finishes in [false, true] {
                let mut backend = world.backend("10.0.0.1:3000");
                let mut client = world.client();
                client.send(&whole[..cut]).await;
                tokio::task::yield_now().await;
                if finishes {
                    client.link.finish();
                    sleep(Duration::from_millis(10)).await;
                }
                drop(client);
                sleep(Duration::from_secs(3)).await;
                assert_eq!(world.gateway.connections(), 0, "{cut}");
                while backend.has_visitor() {
                    let sent = backend.accept().await.rest().await.0;
                    assert!(!sent.ends_with(b"0\r\n\r\n"), "{cut} was taken for a whole request");
                }
            }
        }
        let mut backend = world.backend("10.0.0.1:3000");
        let (asked, reply) = world.pass(&mut backend, whole, OK).await;
        assert_eq!((asked.text(), reply.text()), ("hello", "ok"));
    });
}

#[test]
fn the_steps_of_a_request_are_timed_where_the_server_says_so() {
    for (keys, is_timed) in [("[server]\ntiming = true", true), ("", false)] {
        in_memory(&with(keys, PROXIED), async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let (_, reply) = world.pass(&mut backend, GET, OK).await;
            let timing = reply.field("server-timing");
            assert_eq!(timing.is_some(), is_timed, "{timing:?}");
            assert!(timing.is_none_or(|timing| timing.contains("dur=")), "{timing:?}");
        });
    }
}

#[test]
fn a_stop_lets_a_reply_under_way_end_and_says_so_to_its_client() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let mut connection = backend.accept().await;
        connection.request().await;
        world.gateway.stop();
        sleep(Duration::from_secs(20)).await;
        connection.send(OK).await;
        let reply = client.reply(GET).await;
        assert_eq!((reply.text(), reply.field("connection")), ("ok", Some("close")));
        assert!(client.is_closed().await);
    });
}
