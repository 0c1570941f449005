//! All time limits, on a clock that jumps.

use std::time::Duration;

use tokio::time::{Instant, sleep};

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

/// Returns a server with `configuration`, followed by a site with `routes`.
fn with(configuration: &str, routes: &str) -> String {
    format!("{configuration}\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n{routes}")
}

/// Asserts that a wait ended at its deadline of `limit`: never early, and at most 300 ms late,
/// because ticks take 100 ms.
fn assert_took(since: Instant, limit: Duration) {
    let took = since.elapsed();
    assert!(took >= limit && took <= limit + Duration::from_millis(300), "{took:?}, not {limit:?}");
}

#[test]
fn a_head_that_does_not_end_in_time_is_answered_408_and_the_connection_closes() {
    in_memory(&with("[server.timeouts]\nhead = \"7s\"", FIXED), async |world| {
        let since = Instant::now();
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
        assert_eq!(client.reply("GET ").await.status(), 408);
        assert_took(since, Duration::from_secs(7));
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_head_that_comes_byte_by_byte_has_no_more_time_than_one_that_stops() {
    in_memory(&with("[server.timeouts]\nhead = \"3s\"", FIXED), async |world| {
        let since = Instant::now();
        let mut client = world.client();
        for byte in b"GET / HTTP/1.1\r\nHost: a" {
            client.send([*byte]).await;
            sleep(Duration::from_millis(200)).await;
            if since.elapsed() > Duration::from_secs(4) {
                break;
            }
        }
        assert_eq!(client.reply("GET ").await.status(), 408);
    });
}

#[test]
fn a_client_that_says_nothing_is_closed_without_a_word() {
    in_memory(&with("[server.timeouts]\nhead = \"5s\"", FIXED), async |world| {
        let since = Instant::now();
        assert!(world.client().is_closed().await);
        assert_took(since, Duration::from_secs(5));
    });
}

#[test]
fn time_limits_are_whole_however_long_there_was_no_connection() {
    in_memory(&with("[server.timeouts]\nhead = \"5s\"", FIXED), async |world| {
        for pause in [0, 30, 150, 25_000, 3_600_070] {
            sleep(Duration::from_millis(pause)).await;
            let since = Instant::now();
            assert!(world.client().is_closed().await);
            assert_took(since, Duration::from_secs(5));
        }
    });
}

#[test]
fn kept_connections_to_backends_are_closed_after_a_time_without_any_too() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for _ in 0..3 {
            let mut client = world.client();
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let (_, mut kept) =
                backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
            assert_eq!(client.reply("GET ").await.status(), 200);
            drop(client);
            let since = Instant::now();
            assert!(kept.is_closed().await);
            let took = since.elapsed().as_millis();
            assert!((60_000..61_000).contains(&took), "{took} ms");
            sleep(Duration::from_secs(3600)).await;
        }
    });
}

#[test]
fn a_kept_connection_closes_when_no_request_follows_in_time() {
    in_memory(&with("[server.timeouts]\nkeep_alive = \"20s\"", FIXED), async |world| {
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(client.reply("GET ").await.text(), "here");
        let since = Instant::now();
        assert!(client.is_closed().await);
        assert_took(since, Duration::from_secs(20));
    });
}

#[test]
fn a_backend_that_does_not_answer_in_time_costs_the_client_a_504() {
    in_memory(&with("[server.timeouts]\nreply_idle = \"30s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let since = Instant::now();
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut silent = backend.accept().await;
        silent.request().await;
        assert_eq!(client.reply("GET ").await.status(), 504);
        assert_took(since, Duration::from_secs(30));
        assert!(silent.is_closed().await, "a connection that was given up is closed");
    });
}

#[test]
fn a_backend_that_pauses_in_its_body_for_less_than_the_limit_is_waited_for() {
    in_memory(&with("[server.timeouts]\nreply_idle = \"10s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let (_, mut slow) = backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").await;
        for byte in b"bytes" {
            sleep(Duration::from_secs(9)).await;
            slow.send([*byte]).await;
        }
        assert_eq!(client.reply("GET ").await.text(), "bytes");
    });
}

#[test]
fn a_backend_that_nobody_answers_for_is_given_up_after_connect_timeout() {
    in_memory(&with("[server.timeouts]\nconnect = \"2s\"", PROXIED), async |world| {
        world.fall_silent("10.0.0.1:3000");
        let since = Instant::now();
        assert_eq!(world.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 504);
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(2300), "{took:?}");
    });
}

#[test]
fn a_client_that_takes_nothing_is_cut_off_after_the_write_limit() {
    in_memory(&with("[server.timeouts]\nwrite = \"15s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.link.limit_room(1000);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n";
        let (_, mut connection) = backend.answer(head).await;
        let since = Instant::now();
        connection.send(vec![b'x'; 10_000_000]).await;
        assert_took(since, Duration::from_secs(15));
        let (_, outcome) = client.rest().await;
        assert!(outcome.is_err(), "half a reply ends with a reset");
    });
}

#[test]
fn a_body_that_stops_coming_is_answered_408() {
    in_memory(&with("[server.timeouts]\nbody_idle = \"12s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").await;
        let since = Instant::now();
        let mut connection = backend.accept().await;
        assert_eq!(client.reply("POST ").await.status(), 408);
        assert_took(since, Duration::from_secs(12));
        connection.head().await.unwrap();
        assert_eq!(connection.rest().await.0, b"half", "the backend got no whole request");
    });
}

#[test]
fn a_body_that_comes_slowly_but_steadily_is_waited_for() {
    in_memory(&with("[server.timeouts]\nbody_idle = \"5s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n").await;
        for _ in 0..10 {
            sleep(Duration::from_secs(4)).await;
            client.send("b").await;
        }
        let (request, _connection) =
            backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(request.text(), "bbbbbbbbbb");
        assert_eq!(client.reply("POST ").await.status(), 200);
    });
}

#[test]
fn a_body_below_its_rate_is_ended_however_steadily_it_comes() {
    let limits = "[server.timeouts]\nbody_idle = \"5s\"\n[server.limits]\nbody_rate = \"100B\"";
    in_memory(&with(limits, PROXIED), async |world| {
        let _backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000\r\n\r\n").await;
        let dripping = async {
            for _ in 0..1000 {
                client.send("b").await;
                sleep(Duration::from_millis(500)).await;
                if client.link.is_finished() {
                    break;
                }
            }
        };
        let since = Instant::now();
        dripping.await;
        assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
        assert_eq!(client.reply("POST ").await.status(), 408);
    });
}

#[test]
fn the_reply_timeout_of_a_route_counts_for_it() {
    let route = "[[site.route]]\npath = \"/*\"\nproxy = { to = \"http://10.0.0.1:3000\", \
                 reply_timeout = \"3s\" }\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut silent = backend.accept().await;
        silent.request().await;
        let since = Instant::now();
        assert_eq!(client.reply("GET ").await.status(), 504);
        assert_took(since, Duration::from_secs(3));
    });
}

#[test]
fn the_connect_timeout_of_a_route_counts_for_it() {
    let route = "[[site.route]]\npath = \"/*\"\nproxy = { to = \"http://10.0.0.1:3000\", \
                 connect_timeout = \"3s\" }\n";
    in_memory(route, async |world| {
        world.fall_silent("10.0.0.1:3000");
        let since = Instant::now();
        assert_eq!(world.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 504);
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(3) && took < Duration::from_millis(3300), "{took:?}");
    });
}

#[test]
fn the_time_for_a_reply_begins_when_the_body_is_sent() {
    in_memory(&with("[server.timeouts]\nreply_idle = \"5s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n").await;
        for byte in b"body" {
            sleep(Duration::from_secs(4)).await;
            client.send([*byte]).await;
        }
        let mut connection = backend.accept().await;
        connection.request().await;
        sleep(Duration::from_secs(4)).await;
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(client.reply("POST ").await.status(), 200);
    });
}

#[test]
fn a_tunnel_that_carries_nothing_is_closed_after_tunnel_idle() {
    let own = PROXIED.replace(
        "proxy = \"http://10.0.0.1:3000\"",
        "proxy = { to = \"http://10.0.0.1:3000\", tunnel_idle = \"90s\" }",
    );
    assert_ne!(own, PROXIED);
    for (seconds, route) in [("90s", PROXIED), ("5s", &own)] {
        close_an_idle_tunnel(&with(
            &format!("[server.timeouts]\ntunnel_idle = \"{seconds}\""),
            route,
        ));
    }
}

/// Checks that a tunnel without data for 90 s is closed.
fn close_an_idle_tunnel(configuration: &str) {
    in_memory(configuration, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n").await;
        let switch = "HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
        let (_, mut server) = backend.answer(switch).await;
        assert_eq!(client.reply("GET ").await.status(), 101);
        // Data in one direction is enough to keep the tunnel open.
        for _ in 0..5 {
            sleep(Duration::from_secs(80)).await;
            server.send("tick\r\n").await;
            assert_eq!(client.line().await.unwrap(), "tick");
        }
        let since = Instant::now();
        assert!(client.is_closed().await);
        assert_took(since, Duration::from_secs(90));
    });
}

#[test]
fn a_request_that_waits_for_a_connection_is_given_up_after_connect_timeout() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("x.php"), "").unwrap();
    let root = root.path().display().to_string();
    let route = format!(
        "[[site.route]]\npath = \"/*\"\nfastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\", \
         max_connections = 1 }}\n"
    );
    in_memory(&with("[server.timeouts]\nconnect = \"2s\"", &route), async |world| {
        let mut backend = world.backend("10.0.0.1:9000");
        let get = "GET /x.php HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut first = world.client();
        first.send(get).await;
        let _busy = backend.accept().await;
        let since = Instant::now();
        assert_eq!(world.ask(get).await.status(), 503);
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(2300), "{took:?}");
    });
}

#[test]
fn a_fastcgi_application_that_is_silent_costs_a_504_after_reply_idle() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("x.php"), "").unwrap();
    let root = root.path().display().to_string();
    let to = "to = \"10.0.0.1:9000\"";
    let own = "reply_timeout = \"3s\"";
    for (action, seconds) in [
        (format!("fastcgi = {{ {to}, root = \"{root}\" }}"), 8),
        (format!("scgi = {{ {to} }}"), 8),
        (format!("uwsgi = {{ {to} }}"), 8),
        (format!("fastcgi = {{ {to}, root = \"{root}\", {own} }}"), 3),
        (format!("scgi = {{ {to}, {own} }}"), 3),
        (format!("uwsgi = {{ {to}, {own} }}"), 3),
    ] {
        let route = format!("[[site.route]]\npath = \"/*\"\n{action}\n");
        in_memory(&with("[server.timeouts]\nreply_idle = \"8s\"", &route), async |world| {
            let mut backend = world.backend("10.0.0.1:9000");
            let mut client = world.client();
            client.send("GET /x.php HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let _silent = backend.accept().await;
            let since = Instant::now();
            assert_eq!(client.reply("GET ").await.status(), 504, "{action}");
            assert_took(since, Duration::from_secs(seconds));
        });
    }
}

#[test]
fn an_idle_connection_to_a_backend_is_closed_after_a_minute() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let (_, mut kept) = backend.answer(ok).await;
        client.reply("GET ").await;
        let since = Instant::now();
        assert!(kept.is_closed().await);
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(59) && took < Duration::from_secs(62), "{took:?}");
    });
}

#[test]
fn a_proxy_header_that_does_not_come_ends_the_connection_after_head() {
    let site = "[server.timeouts]\nhead = \"6s\"\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n\
                proxy_protocol = true\n[[site.route]]\npath = \"/*\"\nrespond = \"here\"\n";
    in_memory(site, async |world| {
        let mut client = world.client();
        client.send("PROXY TCP4 ").await;
        let since = Instant::now();
        assert!(client.is_closed().await);
        assert_took(since, Duration::from_secs(6));
    });
}

#[test]
fn an_idle_connection_to_a_fastcgi_application_is_closed_after_two_seconds() {
    let route = "[[site.route]]\npath = \"/*\"\n\
                 fastcgi = { to = \"10.0.0.1:9000\", root = \"/nowhere\", scripts = \"*\" }\n";
    in_memory(route, async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut kept = application.accept().await;
        kept.more().await.unwrap();
        let reply = crate::fastcgi::stdout(1, "Content-Type: text/plain\r\n\r\nfine");
        kept.send([reply, crate::fastcgi::end(1)].concat()).await;
        assert_eq!(client.reply("GET ").await.text(), "fine");
        let since = Instant::now();
        kept.rest().await.1.unwrap();
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(4), "{took:?}");
    });
}

#[test]
fn the_timeouts_of_a_route_count_for_its_requests_alone() {
    let slow = "path = \"/slow\"\nproxy = \"http://10.0.0.1:3000\"\n\
                timeouts = { body_idle = \"40s\", write = \"50s\" }\n";
    let routes = format!("[[site.route]]\n{slow}{PROXIED}");
    let server = "[server.timeouts]\nbody_idle = \"5s\"\nwrite = \"6s\"";
    in_memory(&with(server, &routes), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (path, body, write) in [("/slow", 40, 50), ("/other", 5, 6)] {
            let mut client = world.client();
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
            client.send(head).await;
            let since = Instant::now();
            assert_eq!(client.reply("POST ").await.status(), 408);
            assert_took(since, Duration::from_secs(body));
            drop(backend.accept().await);
            // The route of an earlier request on the connection does not matter.
            for earlier in ["/slow", "/other"] {
                let mut client = world.client();
                client.send(format!("GET {earlier} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
                let none = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
                drop(backend.answer(none).await);
                assert_eq!(client.reply("GET ").await.status(), 200);
                client.link.limit_room(1000);
                client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).await;
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n";
                let (_, mut connection) = backend.answer(head).await;
                let since = Instant::now();
                connection.send(vec![b'x'; 10_000_000]).await;
                assert_took(since, Duration::from_secs(write));
                assert!(client.rest().await.1.is_err());
            }
        }
    });
}
