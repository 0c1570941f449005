//! HTTP/2 backends: requests share connections, and streams do not affect each other.

use std::time::Duration;

use forebay_wire::http2::{Cause, Config, ErrorCode, RequestPseudo, frame};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::http2_backend::{ADDRESS, Http2Backend, Served, proxied};
use crate::http2_client::Http2Client;
use crate::world::{Message, Peer, World, in_memory};

const GET: &str = "GET /a?b HTTP/1.1\r\nHost: a.example\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
/// Length of a body, in bytes: more than windows and links hold together.
const LARGE: usize = 4 << 20;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Sends a request on a new connection in a new task.
fn ask(world: &World, request: &'static str) -> JoinHandle<std::io::Result<Message>> {
    let mut client: Peer = world.client();
    spawn_local(async move {
        client.send(request).await;
        loop {
            let reply = client.any_reply(request.starts_with("HEAD ")).await?;
            if reply.status() >= 200 {
                return Ok(reply);
            }
        }
    })
}

/// Answers each complete request with its path.
fn echo_paths(served: &mut Served, _: usize) {
    for (id, asked) in served.take_whole() {
        served.reply(id, asked.path);
    }
    served.flush();
}

fn with_streams(streams: u32) -> Config {
    Config { streams, ..Config::default() }
}

#[test]
fn a_request_goes_out_as_a_stream_and_its_reply_comes_back() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let client = ask(world, GET);
        let mut served = backend.accept().await;
        let (id, asked) = served.request().await;
        assert_eq!(
            (&*asked.method, &*asked.scheme, &*asked.authority, &*asked.path),
            ("GET", "http", "a.example", "/a?b")
        );
        assert_eq!(asked.field("x-forwarded-for"), Some("192.0.2.7"));
        assert_eq!(asked.field("x-forwarded-proto"), Some("http"));
        assert!(asked.field("connection").is_none() && asked.field("te").is_none());
        served.head(id, 200, &[("x-a", "b"), ("content-length", "2")], false);
        served.data(id, b"ok", true);
        served.flush();
        let reply = client.await.unwrap().unwrap();
        assert_eq!((reply.status(), reply.text(), reply.field("x-a")), (200, "ok", Some("b")));
        // The next request shares the connection; it has a body, and HEAD has a length.
        let client = ask(world, POST);
        let (id, asked) = served.request().await;
        assert_eq!(
            (id, &asked.body[..], asked.field("content-length")),
            (3, &b"body"[..], Some("4"))
        );
        served.head(id, 204, &[], true);
        served.flush();
        assert_eq!(client.await.unwrap().unwrap().status(), 204);
        let client = ask(world, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (id, asked) = served.request().await;
        assert_eq!(asked.method, "HEAD");
        served.head(id, 200, &[("content-length", "7")], true);
        served.flush();
        assert_eq!(client.await.unwrap().unwrap().field("content-length"), Some("7"));
        // A head that ends the stream without a length has an empty body.
        let client = ask(world, GET);
        let (id, _) = served.request().await;
        served.head(id, 404, &[], true);
        served.flush();
        let reply = client.await.unwrap().unwrap();
        assert_eq!((reply.status(), reply.field("content-length")), (404, Some("0")));
        assert!(!backend.has_visitor(), "all of them shared one connection");
    });
}

#[test]
fn hundreds_of_requests_share_connections_as_the_settings_allow() {
    in_memory(&proxied(""), async |world| {
        let backend = Http2Backend::new(world);
        let count = backend.serve(with_streams(10), echo_paths);
        for _ in 0..20 {
            let clients: Vec<_> = (0..10).map(|_| ask(world, GET)).collect();
            for client in clients {
                assert_eq!(client.await.unwrap().unwrap().text(), "/a?b");
            }
        }
        assert_eq!(count.get(), 1, "ten at once fit in one");
    });
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let clients: Vec<_> = (0..25).map(|_| ask(world, GET)).collect();
        let mut connections = Vec::new();
        for streams in [10, 10, 5] {
            let mut served = backend.accept_with(with_streams(10)).await;
            served.until(|served| served.asked.len() == streams).await;
            connections.push(served);
        }
        for served in &mut connections {
            echo_paths(served, 0);
        }
        for client in clients {
            assert_eq!(client.await.unwrap().unwrap().status(), 200);
        }
    });
}

#[test]
fn a_limit_on_streams_that_falls_holds_at_once() {
    in_memory(&proxied("connect_timeout = \"2s\""), async |world| {
        let mut backend = Http2Backend::new(world);
        let first = ask(world, GET);
        let mut served = backend.accept_with(with_streams(10)).await;
        let (id, _) = served.request().await;
        // SETTINGS with MAX_CONCURRENT_STREAMS (3) = 1.
        served.raw([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1]);
        served.turn().await;
        let second = ask(world, GET);
        let mut other = backend.accept_with(with_streams(1)).await;
        let (other_id, _) = other.request().await;
        other.reply(other_id, "second");
        served.reply(id, "first");
        other.flush();
        served.flush();
        assert_eq!(first.await.unwrap().unwrap().text(), "first");
        assert_eq!(second.await.unwrap().unwrap().text(), "second");
    });
}

/// Returns a route over HTTP/2, and one over HTTP/1.1 to the same server.
fn limited_to(most: usize) -> String {
    let limit = format!("max_connections = {most}\nconnect_timeout = \"2s\"\n");
    let http1 = format!(
        "[[site.route]]\npath = \"/http1\"\n[site.route.proxy]\nto = \"http://{ADDRESS}\"\n"
    );
    format!("{http1}{limit}{}", proxied(&limit))
}

#[test]
fn a_thread_always_gets_one_connection_and_no_more_than_the_limit_allows() {
    in_memory(&limited_to(1), async |world| {
        let mut backend = Http2Backend::new(world);
        let other = ask(world, "GET /http1 HTTP/1.1\r\nHost: a\r\n\r\n");
        let http1 = backend.link().await;
        let first = ask(world, GET);
        let mut served = backend.accept_with(with_streams(1)).await;
        let (id, _) = served.request().await;
        // Requests without room wait, and the open connection answers all of them in the end.
        let waiting: Vec<_> = (0..3).map(|_| ask(world, GET)).collect();
        sleep(Duration::from_secs(1)).await;
        assert!(!backend.has_visitor());
        served.reply(id, "first");
        served.flush();
        assert_eq!(first.await.unwrap().unwrap().text(), "first");
        for _ in 0..3 {
            let (id, _) = served.request().await;
            served.reply(id, "next");
            served.flush();
        }
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap().unwrap().text(), "next");
        }
        // After the time limit, the request fails.
        let first = ask(world, GET);
        let (id, _) = served.request().await;
        assert_eq!(ask(world, GET).await.unwrap().unwrap().status(), 503);
        served.reply(id, "first");
        served.flush();
        first.await.unwrap().unwrap();
        http1.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        assert_eq!(other.await.unwrap().unwrap().text(), "ok");
    });
}

#[test]
fn an_idle_connection_is_closed_for_who_waits_for_its_permit() {
    const HTTP1: &str = "GET /http1 HTTP/1.1\r\nHost: a\r\n\r\n";
    const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    in_memory(&limited_to(1), async |world| {
        let mut backend = Http2Backend::new(world);
        let first = ask(world, GET);
        let mut served = backend.accept().await;
        let (id, _) = served.request().await;
        // A request that waits for the permit gets it after the current use.
        let waiting = ask(world, HTTP1);
        sleep(Duration::from_secs(1)).await;
        assert!(!backend.has_visitor() && !waiting.is_finished());
        served.reply(id, "first");
        served.flush();
        assert_eq!(first.await.unwrap().unwrap().text(), "first");
        while served.turn().await {}
        assert!(served.goaway == Some(ErrorCode::NO_ERROR), "{:?}", served.goaway);
        let http1 = backend.link().await;
        http1.write(REPLY).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().text(), "ok");
    });
    let limited = limited_to(2);
    in_memory(&limited, async |world| {
        let (mut backend, other) = (Http2Backend::new(world), world.another_thread(&limited));
        let mut others = Http2Backend::new(&other);
        let first = ask(&other, GET);
        let mut idle = others.accept().await;
        let (id, _) = idle.request().await;
        idle.reply(id, "first");
        idle.flush();
        assert_eq!(first.await.unwrap().unwrap().text(), "first");
        // A connection that has been idle for a while is closed at once.
        sleep(Duration::from_secs(1)).await;
        let second = ask(world, GET);
        let mut served = backend.accept_with(with_streams(1)).await;
        let (id, _) = served.request().await;
        let third = ask(world, GET);
        let (mut further, ()) = tokio::join!(backend.accept_with(with_streams(1)), async {
            while idle.turn().await {}
        });
        assert!(idle.goaway == Some(ErrorCode::NO_ERROR), "{:?}", idle.goaway);
        let (further_id, _) = further.request().await;
        // Both connections are in use, within the limit. The other thread has none and gets one.
        let fourth = ask(&other, GET);
        let mut beyond = others.accept().await;
        let (beyond_id, _) = beyond.request().await;
        for (served, id) in
            [(&mut served, id), (&mut further, further_id), (&mut beyond, beyond_id)]
        {
            served.reply(id, "ok");
            served.flush();
        }
        for asking in [second, third, fourth] {
            assert_eq!(asking.await.unwrap().unwrap().text(), "ok");
        }
    });
}

#[test]
fn a_connection_whose_thread_has_requests_waiting_is_not_closed_for_them() {
    in_memory(&limited_to(1), async |world| {
        let backend = Http2Backend::new(world);
        let count = backend.serve(with_streams(1), |served, _| {
            for (id, _) in served.take_whole() {
                served.reply(id, "ok");
            }
            served.flush();
        });
        let mut client = Http2Client::connect(world).await;
        let streams = [(); 20].map(|()| client.ask("GET", "/", &[], true));
        for stream in streams {
            assert_eq!(client.reply(stream).await.text(), "ok");
        }
        assert_eq!(count.get(), 1);
    });
}

#[test]
fn waiting_requests_take_room_that_becomes_free_during_a_connect() {
    in_memory(&proxied("connect_timeout = \"20s\""), async |world| {
        let mut backend = Http2Backend::new(world);
        let first = ask(world, GET);
        let mut served = backend.accept_with(with_streams(1)).await;
        let (id, _) = served.request().await;
        world.fall_silent(ADDRESS);
        let connecting = ask(world, GET);
        sleep(Duration::from_secs(1)).await;
        let behind = ask(world, POST);
        sleep(Duration::from_secs(1)).await;
        served.reply(id, "first");
        let (id, asked) = served.request().await;
        assert_eq!(asked.method, "POST");
        served.reply(id, "behind");
        served.flush();
        assert_eq!(first.await.unwrap().unwrap().text(), "first");
        assert_eq!(behind.await.unwrap().unwrap().text(), "behind");
        assert!(!connecting.is_finished());
    });
}

#[test]
fn streams_that_are_refused_go_again_and_no_client_sees_an_error() {
    for request in [GET, POST] {
        in_memory(&proxied(""), async |world| {
            let backend = Http2Backend::new(world);
            let config = Config { streams: 50, ..Config::default() };
            let count = backend.serve(config, |served, _| {
                for (id, _) in served.take_whole() {
                    match (id / 2) % 10 {
                        3 => served.reset(id, ErrorCode::REFUSED_STREAM),
                        _ => served.reply(id, "ok"),
                    }
                }
                served.flush();
            });
            for _ in 0..10 {
                let clients: Vec<_> = (0..40).map(|_| ask(world, request)).collect();
                for client in clients {
                    assert_eq!(client.await.unwrap().unwrap().text(), "ok");
                }
            }
            assert_eq!(count.get(), 1);
        });
    }
}

#[test]
fn one_that_refuses_everything_is_asked_a_few_times_and_then_the_next() {
    let both = "[[site.route]]\npath = \"/*\"\nproxy = { to = [\"h2c://10.0.0.1:3000\", \
                \"http://10.0.0.2:3000\"] }\n";
    in_memory(both, async |world| {
        let refused = std::rc::Rc::new(std::cell::Cell::new(0));
        let counted = refused.clone();
        Http2Backend::new(world).serve(Config::default(), move |served, _| {
            for (id, _) in served.take_whole() {
                counted.set(counted.get() + 1);
                served.reset(id, ErrorCode::REFUSED_STREAM);
            }
            served.flush();
        });
        let mut other = world.backend("10.0.0.2:3000");
        spawn_local(async move {
            loop {
                let _ = other.answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        });
        for _ in 0..2 {
            assert_eq!(ask(world, POST).await.unwrap().unwrap().text(), "ok");
        }
        assert_eq!(refused.get(), 8);
    });
    in_memory(&proxied(""), async |world| {
        Http2Backend::new(world).serve(Config::default(), |served, _| {
            for (id, _) in served.take_whole() {
                served.reset(id, ErrorCode::REFUSED_STREAM);
            }
            served.flush();
        });
        assert_eq!(ask(world, GET).await.unwrap().unwrap().status(), 503);
        let errors = world.errors();
        assert!(errors.iter().any(|line| line.contains("REFUSED_STREAM")), "{errors:#?}");
    });
}

/// Returns a GOAWAY with this last stream.
fn goaway(last: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::goaway(&mut bytes, last, ErrorCode::NO_ERROR, b"");
    bytes
}

#[test]
fn a_goaway_under_load_loses_nothing() {
    for request in [GET, POST] {
        in_memory(&proxied(""), async |world| {
            let backend = Http2Backend::new(world);
            let count = backend.serve(with_streams(100), |served, _| {
                let asked = served.take_whole();
                // Streams above the last one get no reply.
                let is_going = asked.iter().any(|(id, _)| *id >= 181);
                for (id, _) in asked.into_iter().filter(|(id, _)| *id <= 179) {
                    served.reply(id, "ok");
                }
                served.flush();
                if is_going {
                    served.raw(goaway(179));
                }
            });
            let mut asked = 0;
            for _ in 0..20 {
                let clients: Vec<_> = (0..50).map(|_| ask(world, request)).collect();
                for client in clients {
                    assert_eq!(client.await.unwrap().unwrap().text(), "ok");
                    asked += 1;
                }
            }
            // Each connection answers 90 streams before its GOAWAY.
            assert!((asked / 90..=asked / 90 + 2).contains(&count.get()), "{}", count.get());
        });
    }
}

#[test]
fn a_graceful_end_lets_those_under_way_finish_on_the_old_connection() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let old = ask(world, GET);
        let mut served = backend.accept().await;
        let (id, _) = served.request().await;
        served.raw(goaway(0x7fff_ffff));
        served.codec.ping(tokio::time::Instant::now().into_std());
        served.until(|served| served.codec.unanswered_ping().is_none()).await;
        let new = ask(world, GET);
        let mut fresh = backend.accept().await;
        let (fresh_id, _) = fresh.request().await;
        fresh.reply(fresh_id, "new");
        fresh.flush();
        assert_eq!(new.await.unwrap().unwrap().text(), "new");
        served.reply(id, "old");
        served.flush();
        assert_eq!(old.await.unwrap().unwrap().text(), "old");
        while served.turn().await {}
        assert_eq!(served.goaway, Some(ErrorCode::NO_ERROR), "and then it is closed");
    });
}

#[test]
fn one_that_dies_costs_what_may_not_be_repeated_and_nothing_else() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let (get, post) = (ask(world, GET), ask(world, POST));
        let mut served = backend.accept().await;
        served
            .until(|served| served.asked.values().filter(|asked| asked.is_whole).count() == 2)
            .await;
        let begun = ask(world, GET);
        let (id, ()) = loop {
            served.turn().await;
            if let Some(found) =
                served.asked.iter().max_by_key(|(id, _)| **id).filter(|(id, _)| **id > 3)
            {
                break (*found.0, ());
            }
        };
        served.head(id, 200, &[("content-length", "10")], false);
        served.data(id, b"half", false);
        served.flush();
        sleep(Duration::from_millis(1)).await;
        drop(served);
        backend.serve(Config::default(), echo_paths);
        assert_eq!(get.await.unwrap().unwrap().text(), "/a?b");
        assert_eq!(post.await.unwrap().unwrap().status(), 502);
        assert!(begun.await.unwrap().is_err(), "half a reply does not look whole");
        assert_eq!(ask(world, POST).await.unwrap().unwrap().status(), 200);
    });
}

#[test]
fn a_reply_that_is_reset_is_cut_off_for_http1_and_reset_for_http2() {
    in_memory(&proxied(""), async |world| {
        let backend = Http2Backend::new(world);
        backend.serve(Config::default(), |served, _| {
            for (id, asked) in served.take_whole() {
                if asked.path == "/at-once" {
                    served.reset(id, ErrorCode::INTERNAL_ERROR);
                    continue;
                }
                // More than the server gathers before a write.
                served.head(id, 200, &[], false);
                served.data(id, &pattern(60_000), false);
                served.flush();
                served.reset(id, ErrorCode::INTERNAL_ERROR);
            }
            served.flush();
        });
        assert!(ask(world, GET).await.unwrap().is_err());
        let at_once =
            ask(world, "GET /at-once HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap().unwrap();
        assert_eq!(at_once.status(), 502);
        let errors = world.errors();
        assert!(errors.iter().any(|line| line.contains("INTERNAL_ERROR")), "{errors:#?}");
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/a");
        let reply = client.reply(stream).await;
        assert_eq!(reply.reset, Some(Cause::Peer(ErrorCode::INTERNAL_ERROR)));
        assert!(!reply.is_whole);
    });
}

#[test]
fn trailers_and_interim_replies_come_through() {
    in_memory(&proxied(""), async |world| {
        let backend = Http2Backend::new(world);
        backend.serve(Config::default(), |served, _| {
            for (id, asked) in served.take_whole() {
                assert_eq!(asked.field("te"), Some("trailers"));
                served.head(id, 103, &[("link", "</a.css>; rel=preload")], false);
                served.head(id, 200, &[("content-type", "application/grpc")], false);
                served.data(id, b"message", false);
                served.trailers(id, &[("grpc-status", "0")]);
            }
            served.flush();
        });
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\r\n").await;
        let interim = client.any_reply(false).await.unwrap();
        assert_eq!((interim.status(), interim.field("link")), (103, Some("</a.css>; rel=preload")));
        let reply = client.any_reply(false).await.unwrap();
        assert_eq!(reply.text(), "message");
        assert_eq!(reply.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("POST", "/", &[("te", "trailers")], true);
        let reply = client.reply(stream).await;
        assert_eq!((reply.text(), reply.interim.len()), ("message", 1));
        assert_eq!(reply.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
    });
}

#[test]
fn both_directions_flow_at_once() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("POST", "/", &[("te", "trailers")], false);
        client.flush();
        let mut served = backend.accept().await;
        client.during(served.until(|served| !served.asked.is_empty())).await;
        let id = *served.asked.keys().next().unwrap();
        served.head(id, 200, &[], false);
        served.flush();
        client.until(|client| client.so_far(stream).status == 200).await;
        for round in 1..=10 {
            client.send_data(stream, b"ping", false);
            client.flush();
            client.during(served.until(|served| served.asked[&id].body.len() == 4 * round)).await;
            served.data(id, b"pong", false);
            served.flush();
            client.until(|client| client.so_far(stream).body.len() == 4 * round).await;
        }
        client.send_data(stream, b"", true);
        client.flush();
        client.during(served.until(|served| served.asked[&id].is_whole)).await;
        served.trailers(id, &[("grpc-status", "0")]);
        served.flush();
        let reply = client.reply(stream).await;
        assert_eq!((reply.body.len(), reply.trailers.len()), (40, 1));
    });
}

#[test]
fn a_client_that_leaves_cancels_only_its_own_stream() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let stays = ask(world, GET);
        let mut leaves = world.client();
        leaves.send(GET).await;
        let mut served = backend.accept().await;
        served.until(|served| served.asked.len() == 2).await;
        drop(leaves);
        served.until(|served| served.asked.values().any(|asked| asked.reset)).await;
        let left = served.asked.iter().find(|(_, asked)| !asked.reset).map(|(id, _)| *id).unwrap();
        served.reply(left, "ok");
        served.flush();
        assert_eq!(stays.await.unwrap().unwrap().text(), "ok");
        // An aborted upload ends its stream.
        let mut uploads = world.client();
        uploads.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nsome").await;
        served.until(|served| served.asked.values().any(|asked| asked.body == b"some")).await;
        let id = *served.asked.keys().max().unwrap();
        drop(uploads);
        served.until(|served| served.asked[&id].reset).await;
        assert!(served.goaway.is_none());
    });
}

#[test]
fn a_client_that_reads_slowly_holds_back_its_own_stream_alone() {
    in_memory(&proxied(""), async |world| {
        let backend = Http2Backend::new(world);
        let count = backend.serve(Config::default(), |served, _| {
            for (id, asked) in served.take_whole() {
                let body = if asked.path == "/large" { pattern(LARGE) } else { b"ok".to_vec() };
                served.reply(id, body);
            }
            served.flush();
        });
        let mut slow = Vec::new();
        for _ in 0..30 {
            let mut client = world.client();
            client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
            slow.push(client);
        }
        sleep(Duration::from_secs(5)).await;
        for _ in 0..50 {
            assert_eq!(ask(world, GET).await.unwrap().unwrap().text(), "ok");
        }
        for client in &mut slow {
            assert_eq!(client.any_reply(false).await.unwrap().body, pattern(LARGE));
        }
        assert_eq!(count.get(), 1);
    });
}

#[test]
fn a_backend_that_opens_no_window_holds_up_its_own_streams_and_not_for_ever() {
    let timeouts = "[server.timeouts]\nwrite = \"5s\"\n";
    let site = format!("{timeouts}[[site]]\nlisten = \"127.0.0.1:80\"\n{}", proxied(""));
    in_memory(&site, async |world| {
        let mut backend = Http2Backend::new(world);
        let mut uploads = world.client();
        let length = 1 << 20;
        uploads
            .send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"))
            .await;
        let mut served = backend.accept().await;
        served.holds_windows = true;
        served.until(|served| !served.asked.is_empty()).await;
        let sending = spawn_local(async move {
            uploads.send(pattern(length)).await;
            uploads.any_reply(false).await
        });
        served.until(|served| served.asked[&1].body.len() == 65_535).await;
        // Data may have to wait, but requests may not.
        let get = ask(world, GET);
        let (id, _) = served.request().await;
        served.reply(id, "ok");
        served.flush();
        assert_eq!(get.await.unwrap().unwrap().text(), "ok");
        served.until(|served| served.asked[&1].reset).await;
        assert_eq!(sending.await.unwrap().unwrap().status(), 504);
    });
}

#[test]
fn large_bodies_go_both_ways_through_windows_that_grow() {
    in_memory(&proxied(""), async |world| {
        let backend = Http2Backend::new(world);
        backend.serve(Config::default(), |served, _| {
            for (id, asked) in served.take_whole() {
                served.reply(id, asked.body);
            }
            served.flush();
        });
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("POST", "/", &[], false);
        client.send_body(stream, pattern(LARGE));
        let reply = client.reply(stream).await;
        assert!(reply.body == pattern(LARGE));
        let mut client = world.client();
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(head).await;
        for chunk in pattern(LARGE / 4).chunks(5_000) {
            client.send(format!("{:x}\r\n", chunk.len())).await;
            client.send(chunk).await;
            client.send("\r\n").await;
        }
        client.send("0\r\n\r\n").await;
        assert!(client.any_reply(false).await.unwrap().body == pattern(LARGE / 4));
    });
}

#[test]
fn a_reply_that_never_comes_ends_after_its_time_and_a_dead_connection_with_it() {
    in_memory(&proxied("reply_timeout = \"3s\""), async |world| {
        let mut backend = Http2Backend::new(world);
        let first = ask(world, GET);
        let mut served = backend.accept().await;
        served.request().await;
        let (reply, ()) = tokio::join!(first, served.until(|served| served.asked.contains_key(&1)));
        assert_eq!(reply.unwrap().unwrap().status(), 504);
        // The server answers the PING that follows: it is alive and gets requests again.
        served.codec.ping(tokio::time::Instant::now().into_std());
        served.until(|served| served.codec.unanswered_ping().is_none()).await;
        sleep(Duration::from_millis(300)).await;
        let second = ask(world, GET);
        let (id, _) = served.request().await;
        served.reply(id, "ok");
        served.flush();
        assert_eq!(second.await.unwrap().unwrap().text(), "ok");
        // From now on the server does not read.
        assert_eq!(ask(world, GET).await.unwrap().unwrap().status(), 504);
        let next = ask(world, GET);
        let mut fresh = backend.accept().await;
        let (id, _) = fresh.request().await;
        fresh.reply(id, "fresh");
        fresh.flush();
        assert_eq!(next.await.unwrap().unwrap().text(), "fresh");
        sleep(Duration::from_secs(10)).await;
        while served.turn().await {}
        assert!(served.has_ended, "nobody answers there: it is closed");
    });
}

#[test]
fn idle_connections_are_closed_with_a_goaway() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let client = ask(world, GET);
        let mut served = backend.accept().await;
        let (id, _) = served.request().await;
        served.reply(id, "ok");
        served.flush();
        client.await.unwrap().unwrap();
        while served.turn().await {}
        assert_eq!(served.goaway, Some(ErrorCode::NO_ERROR));
    });
}

#[test]
fn a_protocol_error_is_a_502_with_the_reason_in_the_log() {
    let bomb = {
        // One large entry of the dynamic table, and many references to it.
        let mut block = vec![0x88, 0x40, 1, b'a', 0x7f, 0x80 | (3_000_usize - 127) as u8, 0x16];
        block.extend([b'x'; 3_000]);
        block.extend([0xbe; 10_000]);
        let mut bytes = vec![0, (block.len() >> 8) as u8, block.len() as u8, 1, 5, 0, 0, 0, 1];
        bytes.extend(block);
        bytes
    };
    let cases: [(&str, Vec<u8>); 9] = [
        ("not HTTP/2", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("first frame", vec![0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ("a push", [SETTINGS, &[0, 0, 4, 5, 4, 0, 0, 0, 1, 0, 0, 0, 2]].concat()),
        ("an idle stream", [SETTINGS, &[0, 0, 1, 1, 5, 0, 0, 0, 9, 0x88]].concat()),
        ("a table index", [SETTINGS, &[0, 0, 1, 1, 5, 0, 0, 0, 1, 0xff]].concat()),
        ("no status", [SETTINGS, &[0, 0, 0, 1, 5, 0, 0, 0, 1]].concat()),
        ("status 101", [SETTINGS, &[0, 0, 5, 1, 5, 0, 0, 0, 1, 8, 3, b'1', b'0', b'1']].concat()),
        ("an overflow", [SETTINGS, &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff]].concat()),
        ("a bomb", [SETTINGS, &bomb].concat()),
    ];
    for (name, bytes) in cases {
        in_memory(&proxied(""), async |world| {
            let mut backend = Http2Backend::new(world);
            let client = ask(world, POST);
            let link = backend.link().await;
            let mut read = Vec::new();
            link.read(&mut read).await.unwrap();
            link.write(&bytes).await.unwrap();
            let reply = client.await.unwrap().unwrap();
            assert_eq!(reply.status(), 502, "{name}");
            let errors = world.errors();
            assert!(
                errors.iter().any(|line| line.contains("10.0.0.1:3000")),
                "{name}: {errors:#?}"
            );
        });
    }
}

/// SETTINGS without any values.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

#[test]
fn floods_cost_their_own_request_and_not_the_gateway() {
    let one = |frame: &[u8], count: usize| frame.repeat(count);
    let cases: [(&str, Vec<u8>); 5] = [
        ("settings", one(&[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0xff, 0xff], 5_000)),
        ("pings", one(&[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], 5_000)),
        ("goaways", one(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], 5_000)),
        ("interim replies", one(&[0, 0, 5, 1, 4, 0, 0, 0, 1, 8, 3, b'1', b'0', b'3'], 5_000)),
        ("empty data", {
            let head: &[u8] = &[0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88];
            [head, &one(&[0, 0, 0, 0, 0, 0, 0, 0, 1], 5_000)].concat()
        }),
    ];
    for (name, bytes) in cases {
        in_memory(&proxied(""), async |world| {
            let mut backend = Http2Backend::new(world);
            let client = ask(world, POST);
            let link = std::rc::Rc::new(backend.link().await);
            let writing = link.clone();
            let writer = spawn_local(async move {
                let _ = writing.write(SETTINGS).await;
                let _ = writing.write(&bytes).await;
            });
            let reader = spawn_local(async move {
                let mut read = Vec::new();
                while matches!(link.read(&mut read).await, Ok(1..)) {
                    read.clear();
                }
            });
            let reply = client.await.unwrap();
            assert!(
                reply.as_ref().map_or(true, |reply| reply.status() == 502),
                "{name}: {reply:?}"
            );
            writer.abort();
            reader.abort();
            backend.serve(Config::default(), echo_paths);
            sleep(Duration::from_millis(1)).await;
            assert_eq!(ask(world, GET).await.unwrap().unwrap().status(), 200, "{name}");
        });
    }
}

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
