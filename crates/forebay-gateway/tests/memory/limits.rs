//! Limits of size and number: requests that exceed them, and requests that just fit.

use std::time::Duration;

use forebay_conf::{Action, Limits, Timeouts};
use forebay_net::limit::Limit;
use forebay_wire::http2::ErrorCode;

use tokio::time::{sleep, timeout};

use crate::http2_client::Http2Client;
use crate::world::{World, in_memory, parse};

const FIXED: &str = "[[site.route]]\npath = \"/*\"\nrespond = \"here\"\n";
const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns a server with `limits`, followed by a site with `routes`.
fn with(limits: &str, routes: &str) -> String {
    format!("[server.limits]\n{limits}\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n{routes}")
}

/// Returns a request with a head of `length` bytes.
fn request_of(length: usize) -> String {
    let rest = "GET / HTTP/1.1\r\nHost: a\r\nX-Pad: \r\n\r\n".len();
    format!("GET / HTTP/1.1\r\nHost: a\r\nX-Pad: {}\r\n\r\n", "x".repeat(length - rest))
}

#[test]
fn a_head_of_head_size_is_taken_and_a_longer_one_refused() {
    in_memory(&with("head_size = \"2KiB\"\ntarget = \"1KiB\"", FIXED), async |world| {
        assert_eq!(world.ask(&request_of(2047)).await.status(), 200);
        assert_eq!(world.ask(&request_of(2049)).await.status(), 431);
    });
}

#[test]
fn a_head_that_never_ends_is_refused_at_its_limit() {
    in_memory(&with("head_size = \"4KiB\"\ntarget = \"1KiB\"", FIXED), async |world| {
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
        client.send("X-Endless: y\r\n".repeat(1000)).await;
        assert_eq!(client.reply("GET ").await.status(), 431);
        assert!(client.is_closed().await);
    });
}

#[test]
fn as_many_fields_as_allowed_are_taken_and_one_more_refused() {
    in_memory(&with("fields = 5", FIXED), async |world| {
        let request = |fields: usize| {
            format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(fields - 1))
        };
        assert_eq!(world.ask(&request(5)).await.status(), 200);
        assert_eq!(world.ask(&request(6)).await.status(), 431);
    });
}

#[test]
fn a_target_that_is_too_long_is_414() {
    in_memory(&with("target = \"100B\"", FIXED), async |world| {
        let request =
            |length: usize| format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(length - 1));
        assert_eq!(world.ask(&request(100)).await.status(), 200);
        assert_eq!(world.ask(&request(101)).await.status(), 414);
    });
}

#[test]
fn a_body_of_max_body_is_taken_and_a_longer_one_refused_before_it_is_read() {
    in_memory(&with("max_body = \"10B\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = |length: usize| {
            let body = "b".repeat(length);
            format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}")
        };
        let mut client = world.client();
        client.send(request(10)).await;
        let (asked, _connection) = backend.answer(OK).await;
        assert_eq!(asked.body.len(), 10);
        assert_eq!(client.reply("POST ").await.status(), 200);
        assert_eq!(world.ask(&request(11)).await.status(), 413);
        assert!(!backend.has_visitor());
    });
}

#[test]
fn a_chunked_body_is_refused_where_it_passes_max_body() {
    in_memory(&with("max_body = \"10B\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        client.send("8\r\n12345678\r\n").await;
        let mut connection = backend.accept().await;
        connection.head().await.unwrap();
        client.send("8\r\n12345678\r\n").await;
        assert_eq!(client.reply("POST ").await.status(), 413);
        assert!(connection.rest().await.0.ends_with(b"12345678\r\n"), "and nothing of the rest");
    });
}

#[test]
fn the_max_body_of_a_route_counts_for_it() {
    let routes = format!(
        "[[site.route]]\npath = \"/large/*\"\nmax_body = \"1KiB\"\nproxy = \"http://10.0.0.1:3000\"\n{PROXIED}"
    );
    in_memory(&with("max_body = \"10B\"", &routes), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = |path: &str| {
            let body = "b".repeat(100);
            format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{body}")
        };
        assert_eq!(world.ask(&request("/small")).await.status(), 413);
        let mut client = world.client();
        client.send(request("/large/x")).await;
        let (asked, _connection) = backend.answer(OK).await;
        assert_eq!(asked.body.len(), 100);
        assert_eq!(client.reply("POST ").await.status(), 200);
    });
}

#[test]
fn get_with_a_body_is_refused_unless_get_body_allows_it() {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
    in_memory(FIXED, async |world| assert_eq!(world.ask(request).await.status(), 400));
    in_memory(&with("get_body = true", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(request).await;
        let (asked, _connection) = backend.answer(OK).await;
        assert_eq!(asked.text(), "body");
        assert_eq!(client.reply(request).await.status(), 200);
    });
}

#[test]
fn a_connection_closes_behind_its_last_request() {
    in_memory(&with("keepalive_requests = 3", FIXED), async |world| {
        let mut client = world.client();
        for last in [false, false, true] {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let reply = client.reply("GET ").await;
            assert_eq!(reply.field("connection") == Some("close"), last);
        }
        assert!(client.is_closed().await);
    });
}

#[test]
fn an_address_with_too_many_connections_is_refused_and_others_are_not() {
    in_memory(&with("connections_per_address = 2", FIXED), async |world| {
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let (mut one, mut two) = (world.client(), world.client());
        for client in [&mut one, &mut two] {
            client.send(get).await;
            assert_eq!(client.reply(get).await.status(), 200);
        }
        let (_, outcome) = world.client().rest().await;
        assert!(outcome.is_err(), "the third is reset");
        let mut other = world.client_from("192.0.2.8:4000");
        other.send(get).await;
        assert_eq!(other.reply(get).await.status(), 200);
        drop(one);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(world.ask(get).await.status(), 200);
    });
}

/// Opens connections from these addresses at the same time. Returns the number of those that serve
/// a request.
async fn served(world: &World, addresses: impl Iterator<Item = String>, request: &str) -> usize {
    let mut clients: Vec<_> = addresses.map(|address| world.client_from(&address)).collect();
    let mut count = 0;
    for client in &mut clients {
        client.send(request).await;
        count += usize::from(client.any_reply(false).await.is_ok());
    }
    count
}

#[test]
fn by_default_one_address_has_only_a_share_of_the_connections() {
    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    in_memory(&with("connections = 5600", FIXED), async |world| {
        let from = |address: &str, number| {
            let address = address.to_owned();
            (0..number).map(move |port| format!("{address}:{}", 1000 + port))
        };
        assert_eq!(served(world, from("203.0.113.1", 720), GET).await, 700);
        assert_eq!(world.gateway.reached(Limit::ConnectionsPerAddress), 20);
        let lines = world.errors();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("203.0.113.1, which has 700 already"), "{lines:?}");
        // The addresses of an IPv6 network count together.
        let network = (0..720).map(|host| format!("[2001:db8::{host:x}]:1000"));
        assert_eq!(served(world, network, GET).await, 700);
        for local in ["127.0.0.1", "10.1.1.1", "[::1]"] {
            assert_eq!(served(world, from(local, 720), GET).await, 720, "{local}");
        }
        assert_eq!(world.gateway.reached(Limit::ConnectionsPerAddress), 40);
    });
}

#[test]
fn a_trusted_proxy_may_have_any_number_of_connections() {
    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let site = format!("trusted_proxies = [\"203.0.113.0/24\"]\n{FIXED}");
    in_memory(&with("connections_per_address = 2", &site), async |world| {
        let proxy = (0..20).map(|port| format!("203.0.113.1:{}", 1000 + port));
        assert_eq!(served(world, proxy, GET).await, 20);
        let client = (0..20).map(|port| format!("203.0.114.1:{}", 1000 + port));
        assert_eq!(served(world, client, GET).await, 2);
        assert_eq!(world.gateway.reached(Limit::ConnectionsPerAddress), 18);
    });
}

#[test]
fn at_the_limit_idle_connections_make_room_then_half_heads_and_busy_ones_never() {
    in_memory(&with("connections = 4", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut busy = world.client();
        busy.send(get).await;
        let mut held = backend.accept().await;
        held.request().await;
        let mut half = world.client();
        half.send("GET / HT").await;
        let idle = Http2Client::connect(world).await;
        let mut silent = world.client();
        assert_eq!(world.gateway.connections(), 4);
        let mut newcomers = Vec::new();
        for _ in 0..3 {
            let mut client = world.client();
            client.send(get).await;
            let mut connection = backend.accept().await;
            connection.request().await;
            newcomers.push((client, connection));
        }
        let mut idle = idle;
        idle.end().await;
        assert_eq!(idle.goaway, Some(ErrorCode::NO_ERROR));
        assert!(silent.is_closed().await && half.is_closed().await);
        assert_eq!(world.gateway.reached(Limit::ClosedForOthers), 3);
        // All are busy: one more waits until one of them is done.
        let mut waiting = world.client();
        waiting.send(get).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!backend.has_visitor());
        held.send(OK).await;
        assert_eq!(busy.reply(get).await.text(), "ok");
        held.request().await;
        held.send(OK).await;
        assert_eq!(waiting.reply(get).await.text(), "ok");
        assert!(busy.is_closed().await, "it became idle");
        for (mut client, mut connection) in newcomers {
            connection.send(OK).await;
            assert_eq!(client.reply(get).await.text(), "ok");
        }
        let lines = world.errors();
        assert_eq!(lines.len(), 1, "one line in ten seconds: {lines:?}");
        assert!(lines[0].contains("the limit of 4 connections is reached: "), "{lines:?}");
    });
}

#[test]
fn an_address_with_too_many_connections_drives_nobody_out() {
    let limits = "connections = 3\nconnections_per_address = 2";
    in_memory(&with(limits, FIXED), async |world| {
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut other = world.client_from("192.0.2.8:4000");
        let mut own = [world.client(), world.client()];
        for client in own.iter_mut().chain([&mut other]) {
            client.send(get).await;
            assert_eq!(client.reply(get).await.status(), 200);
        }
        for _ in 0..5 {
            let (_, outcome) = world.client().rest().await;
            assert!(outcome.is_err(), "it is reset");
        }
        for client in own.iter_mut().chain([&mut other]) {
            client.send(get).await;
            assert_eq!(client.reply(get).await.status(), 200);
        }
        assert_eq!(world.gateway.reached(Limit::ClosedForOthers), 0);
    });
}

#[test]
fn a_backend_with_a_head_without_end_costs_a_502_and_little_memory() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut endless = backend.accept().await;
        endless.request().await;
        endless.send("HTTP/1.1 200 OK\r\n").await;
        endless.send("X-Endless: y\r\n".repeat(100_000)).await;
        assert_eq!(client.reply("GET ").await.status(), 502);
    });
}

#[test]
fn interim_replies_without_end_cost_a_502() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut endless = backend.accept().await;
        endless.request().await;
        endless.send("HTTP/1.1 102 Processing\r\n\r\n".repeat(100_000)).await;
        assert_eq!(client.reply("GET ").await.status(), 502);
    });
}

#[test]
fn no_more_idle_connections_to_a_backend_are_kept_than_keepalive_says() {
    let route = "[[site.route]]\npath = \"/*\"\n\
                 proxy = { to = \"http://10.0.0.1:3000\", keepalive = 2 }\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut clients: Vec<_> = (0..5).map(|_| world.client()).collect();
        let mut connections = Vec::new();
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            connections.push(backend.accept().await);
        }
        for (client, connection) in clients.iter_mut().zip(&mut connections) {
            connection.request().await;
            connection.send(OK).await;
            assert_eq!(client.reply("GET ").await.text(), "ok");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let kept = connections.iter().filter(|connection| !connection.link.is_finished()).count();
        assert_eq!(kept, 2);
    });
}

#[test]
fn stalled_uploads_share_buffer_total_and_more_get_503() {
    for action in [
        "scgi = { to = \"10.0.0.1:3000\" }",
        "uwsgi = { to = \"10.0.0.1:3000\" }",
        "fastcgi = { to = \"10.0.0.1:3000\", mount = \"/\" }",
        "proxy = { to = \"http://10.0.0.1:3000\" }\nrequest_buffering = true",
    ] {
        let routes = format!("[[site.route]]\npath = \"/*\"\n{action}\n");
        in_memory(&with("buffer_total = \"150KiB\"", &routes), async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n";
            let mut stalled = Vec::new();
            loop {
                let mut client = world.client();
                client.send(head).await;
                client.send(vec![b'x'; 40_000]).await;
                let reply = timeout(Duration::from_secs(1), client.reply("POST ")).await;
                let Ok(reply) = reply else {
                    stalled.push(client);
                    assert!(stalled.len() < 10, "{action}");
                    continue;
                };
                assert_eq!(reply.status(), 503, "{action}");
                break;
            }
            assert!(!stalled.is_empty() && !backend.has_visitor(), "{action}");
            assert_eq!(world.gateway.reached(Limit::BufferTotal), 1, "{action}");
            let errors = world.errors();
            assert!(errors.iter().any(|line| line.contains("buffer_total")), "{errors:?}");
            // What left gives its memory back.
            drop(stalled);
            sleep(Duration::from_secs(1)).await;
            let mut client = world.client();
            client.send(head).await;
            client.send(vec![b'x'; 60_000]).await;
            timeout(Duration::from_secs(1), backend.accept()).await.expect(action);
        });
    }
}

/// The page of the manual about limits.
const MANUAL: &str = include_str!("../../../../docs/src/operations/limits.md");

/// Returns the keys and defaults of the manual's table of what honest peers send.
fn table() -> Vec<(&'static str, &'static str)> {
    let rows = MANUAL.split("## What honest peers send").nth(1).unwrap();
    let rows = rows.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    let mut found = Vec::new();
    for row in rows {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let (keys, values) = (cells.next().unwrap(), cells.next().unwrap());
        let keys: Vec<_> = keys.split('`').skip(1).step_by(2).filter(|key| *key != "ajp").collect();
        let values: Vec<_> = values.split(", ").collect();
        for (at, key) in keys.iter().enumerate() {
            found.push((*key, values[at.min(values.len() - 1)]));
        }
    }
    found
}

#[test]
fn the_manual_names_the_defaults_of_the_code() {
    let (limits, times) = (Limits::default(), Timeouts::default());
    let size = |bytes: u64| match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    };
    let time = |time: Duration| match time.as_secs() {
        seconds @ 0..3600 => format!("{seconds} s"),
        seconds => format!("{} h", seconds / 3600),
    };
    let number = |number: usize| match number {
        1000.. => format!("{},{:03}", number / 1000, number % 1000),
        _ => number.to_string(),
    };
    let rows = table();
    assert!(rows.len() >= 15, "{rows:?}");
    for (key, value) in rows {
        let default = match key {
            "head_size" => size(limits.head_size as u64),
            "fields" => number(limits.fields),
            "target" => size(limits.target as u64),
            "max_body" => size(limits.max_body),
            "reply_head_size" => size(limits.reply_head_size as u64),
            "reply_fields" => number(limits.reply_fields),
            "packet_size" => size(packet_size()),
            "head" => time(times.head),
            "body_idle" => time(times.body_idle),
            "write" => time(times.write),
            "reply_idle" => time(times.reply_idle),
            "keep_alive" => time(times.keep_alive),
            "tunnel_idle" => time(times.tunnel_idle),
            "linger" => time(times.linger),
            "linger_size" => size(limits.linger_size),
            key => panic!("say where the default of {key} is"),
        };
        assert_eq!(value, default, "{key}");
    }
}

/// Returns the default of `packet_size` of a route to an AJP container.
fn packet_size() -> u64 {
    let plan = parse(&with("", "[[site.route]]\najp = \"10.0.0.1:3000\"\n"));
    let Action::Ajp(ajp) = &plan.sites[0].routes[0].action else { panic!("the route has ajp") };
    ajp.packet_size as u64
}

/// What a peer does to hit a limit.
enum Hit {
    /// A client sends this, and waits for the end.
    Client(String),
    /// As `Client`, and a backend answers with this. The client reads it, or does not.
    Backend(Reads, String),
    /// A client goes on sending pieces of this size after this pause, although it was answered.
    Endless(usize, Duration),
}

#[derive(PartialEq)]
enum Reads {
    All,
    Nothing,
}

#[test]
fn each_limit_of_the_manual_is_counted_and_logged_with_its_key() {
    let get = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let post =
        |length: usize| format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    let ok = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    let ajp = "[[site.route]]\npath = \"/*\"\najp = \"10.0.0.1:3000\"\n";
    let wide = |size: usize| format!("X-Wide: {}\r\n", "w".repeat(size));
    let cases = [
        ("head_size", Limit::HeadSize, FIXED, Hit::Client(get(&wide(40_000)))),
        ("fields", Limit::Fields, FIXED, Hit::Client(get(&"A: b\r\n".repeat(101)))),
        ("target", Limit::Target, FIXED, Hit::Client(get("").replace('/', &"/".repeat(9000)))),
        ("max_body", Limit::MaxBody, PROXIED, Hit::Client(post(20 << 20))),
        ("reply_head_size", Limit::ReplyHead, PROXIED, Hit::Backend(Reads::All, ok(&wide(70_000)))),
        (
            "reply_fields",
            Limit::ReplyHead,
            PROXIED,
            Hit::Backend(Reads::All, ok(&"A: b\r\n".repeat(1001))),
        ),
        ("packet_size", Limit::AjpPacket, ajp, Hit::Client(get(&wide(9000)))),
        ("head", Limit::Head, FIXED, Hit::Client("GET / HTTP/1.1\r\nHost: a\r\n".into())),
        ("body_idle", Limit::BodyIdle, PROXIED, Hit::Client(format!("{}x", post(10)))),
        ("reply_idle", Limit::ReplyIdle, PROXIED, Hit::Client(get(""))),
        (
            "write",
            Limit::Write,
            PROXIED,
            Hit::Backend(
                Reads::Nothing,
                ok("Content-Length: 9000000\r\n") + &"x".repeat(9_000_000),
            ),
        ),
        ("linger", Limit::Linger, FIXED, Hit::Endless(1, Duration::from_secs(1))),
        ("linger_size", Limit::Linger, FIXED, Hit::Endless(1 << 20, Duration::ZERO)),
    ];
    // The end of a connection on which nothing happens is no event.
    let quiet = ["keep_alive", "tunnel_idle"];
    for (key, _) in table() {
        let is_hit = cases.iter().any(|(name, ..)| *name == key);
        assert_ne!(is_hit, quiet.contains(&key), "{key}");
    }
    for (key, limit, routes, hit) in cases {
        in_memory(routes, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let mut client = world.client();
            match hit {
                Hit::Client(request) => {
                    client.send(request).await;
                    let _ = timeout(Duration::from_secs(200), client.rest()).await;
                }
                Hit::Endless(size, pause) => {
                    client.send(post(15 << 20)).await;
                    while client.link.write(&vec![b'x'; size]).await.is_ok() {
                        sleep(pause).await;
                    }
                }
                Hit::Backend(reads, reply) => {
                    client.send(get("")).await;
                    let mut connection = backend.accept().await;
                    connection.more().await.unwrap();
                    let answering = async move {
                        let _ = connection.link.write(reply.as_bytes()).await;
                    };
                    if reads == Reads::Nothing {
                        let _ = timeout(Duration::from_secs(200), answering).await;
                    } else {
                        let ((), _) = tokio::join!(answering, client.rest());
                    }
                }
            }
            assert_eq!(world.gateway.reached(limit), 1, "{key}");
            let errors = world.errors();
            assert!(errors.iter().any(|line| line.contains(key)), "{key}: {errors:?}");
        });
    }
}
