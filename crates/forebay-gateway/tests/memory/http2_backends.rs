//! HTTP/2 backends: requests share connections, and streams do not affect each other.

use std::time::Duration;

use forebay_wire::http2::{Config, ErrorCode};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::http2_backend::{ADDRESS, Http2Backend, Served, proxied};
use crate::http2_client::Http2Client;
use crate::world::{Message, Peer, World, in_memory};

pub const GET: &str = "GET /a?b HTTP/1.1\r\nHost: a.example\r\n\r\n";
pub const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
/// Length of a body, in bytes: more than windows and links hold together.
pub const LARGE: usize = 4 << 20;

pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Sends a request on a new connection in a new task.
pub fn ask(world: &World, request: &'static str) -> JoinHandle<std::io::Result<Message>> {
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
pub fn echo_paths(served: &mut Served, _: usize) {
    for (id, asked) in served.take_whole() {
        served.reply(id, asked.path);
    }
    served.flush();
}

pub fn with_streams(streams: u32) -> Config {
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
fn trailers_and_interim_replies_come_through() {
    in_memory(&proxied(""), async |world| {
        let backend = Http2Backend::new(world);
        backend.serve(Config::default(), |served, _| {
            for (id, asked) in served.take_whole() {
                assert_eq!(asked.field("te"), Some("trailers"));
                served.head(id, 103, &[("link", "</a.css>; rel=preload")], false);
                served.head(id, 200, &[("content-type", "application/grpc")], false);
                served.data(id, b"message", false);
                let trailers = [("grpc-status", "0"), ("content-length", "3"), ("host", "e")];
                served.trailers(id, &trailers);
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
