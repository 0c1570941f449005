//! HTTP/2 backends that take no more requests on a connection: their settings allow no streams, or
//! they send a GOAWAY with an error code. Requests move to another connection, or fail at once.

use std::time::Duration;

use forebay_wire::http2::{Config, ErrorCode, frame};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};

use crate::http2_backend::{ADDRESS, Http2Backend, Served, proxied};
use crate::world::{Message, World, in_memory};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";

/// Returns SETTINGS with MAX_CONCURRENT_STREAMS (3) = `streams`.
fn settings(streams: u8) -> [u8; 15] {
    [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, streams]
}

fn with_streams(streams: u32) -> Config {
    Config { streams, ..Config::default() }
}

/// Sends a request on a new connection in a new task.
fn ask(world: &World, request: &'static str) -> JoinHandle<std::io::Result<Message>> {
    let mut client = world.client();
    spawn_local(async move {
        client.send(request).await;
        client.any_reply(false).await
    })
}

fn answer(served: &mut Served, id: u32, text: &'static str) {
    served.reply(id, text);
    served.flush();
}

/// Accepts the next connection with settings that allow no streams. Refuses the request that was
/// sent before the settings.
async fn accept_refusing(backend: &mut Http2Backend) -> Served {
    let mut served = Served::over(backend.link().await, with_streams(9));
    let mut greeting = served.codec.output().to_vec();
    served.codec.wrote(greeting.len());
    let at = greeting.windows(6).position(|bytes| bytes == [0, 3, 0, 0, 0, 9]).unwrap();
    greeting[at + 5] = 0;
    served.raw(greeting);
    served.until(|served| !served.asked.is_empty()).await;
    let (id, _) = served.asked.pop_first().unwrap();
    served.reset(id, ErrorCode::REFUSED_STREAM);
    served.flush();
    served
}

#[test]
fn a_connection_that_allows_no_streams_any_more_is_replaced_by_another() {
    for keys in ["", "max_connections = 1"] {
        in_memory(&proxied(keys), async |world| {
            let mut backend = Http2Backend::new(world);
            let client = ask(world, GET);
            let mut served = backend.accept().await;
            let (id, _) = served.request().await;
            answer(&mut served, id, "old");
            assert_eq!(client.await.unwrap().unwrap().text(), "old");
            served.raw(settings(0));
            let begun = Instant::now();
            for request in [GET, POST] {
                let client = ask(world, request);
                let mut served = backend.accept().await;
                let (id, _) = served.request().await;
                answer(&mut served, id, "new");
                assert_eq!(client.await.unwrap().unwrap().text(), "new");
                served.raw(settings(0));
                while served.turn().await {}
                assert_eq!(served.goaway, Some(ErrorCode::NO_ERROR), "it is of no use");
            }
            assert!(begun.elapsed() < Duration::from_secs(1), "nothing was waited for");
        });
    }
}

#[test]
fn one_that_allows_no_streams_any_more_lets_those_under_way_finish() {
    in_memory(&proxied("max_connections = 1\nconnect_timeout = \"2s\""), async |world| {
        let mut backend = Http2Backend::new(world);
        let old = ask(world, GET);
        let mut served = backend.accept().await;
        let (id, _) = served.request().await;
        served.raw(settings(0));
        served.turn().await;
        // The limit is one connection, which is in use.
        let waiting = ask(world, GET);
        sleep(Duration::from_secs(1)).await;
        assert!(!backend.has_visitor());
        answer(&mut served, id, "old");
        assert_eq!(old.await.unwrap().unwrap().text(), "old");
        let mut fresh = backend.accept().await;
        let (id, _) = fresh.request().await;
        answer(&mut fresh, id, "new");
        assert_eq!(waiting.await.unwrap().unwrap().text(), "new");
    });
}

#[test]
fn a_new_connection_that_allows_no_streams_has_a_second_opinion_asked() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        for request in [GET, POST] {
            let begun = Instant::now();
            let client = ask(world, request);
            let _refusing = accept_refusing(&mut backend).await;
            let mut served = backend.accept().await;
            let (id, _) = served.request().await;
            answer(&mut served, id, "ok");
            assert_eq!(client.await.unwrap().unwrap().text(), "ok");
            assert!(begun.elapsed() < Duration::from_secs(1), "nothing was waited for");
            served.raw(settings(0));
            served.turn().await;
        }
    });
}

#[test]
fn a_backend_that_allows_no_streams_at_all_is_waited_for_as_long_as_connecting_may_take() {
    in_memory(&proxied("connect_timeout = \"2s\""), async |world| {
        let mut backend = Http2Backend::new(world);
        for round in 0..2 {
            let begun = Instant::now();
            let client = ask(world, GET);
            let _first = accept_refusing(&mut backend).await;
            let mut second = accept_refusing(&mut backend).await;
            if round == 0 {
                let reply = client.await.unwrap().unwrap();
                assert_eq!((reply.status(), reply.field("retry-after")), (503, Some("1")));
                assert!((2..3).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
                let errors = world.errors();
                let is_named = |line: &String| line.contains("MAX_CONCURRENT_STREAMS = 0");
                assert!(errors.iter().any(is_named), "{errors:#?}");
                continue;
            }
            // The backend changes its settings.
            sleep(Duration::from_secs(1)).await;
            assert!(!backend.has_visitor() && !client.is_finished());
            second.raw(settings(9));
            let (id, _) = second.request().await;
            answer(&mut second, id, "ok");
            assert_eq!(client.await.unwrap().unwrap().text(), "ok");
        }
    });
}

#[test]
fn a_backend_that_allows_no_streams_leaves_the_request_to_another_of_its_group() {
    let both = format!(
        "[[site.route]]\npath = \"/*\"\n[site.route.proxy]\n\
         to = [\"h2c://{ADDRESS}\", \"http://10.0.0.2:3000\"]\nconnect_timeout = \"2s\"\n"
    );
    in_memory(&both, async |world| {
        let mut backend = Http2Backend::new(world);
        spawn_local(async move {
            let mut kept = Vec::new();
            loop {
                kept.push(accept_refusing(&mut backend).await);
            }
        });
        let mut other = world.backend("10.0.0.2:3000");
        spawn_local(async move {
            loop {
                let _ = other.answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
            }
        });
        for _ in 0..4 {
            assert_eq!(ask(world, POST).await.unwrap().unwrap().text(), "ok");
        }
        let errors = world.errors();
        assert!(errors.iter().any(|line| line.contains("is left out")), "{errors:#?}");
    });
}

/// Returns a GOAWAY with INTERNAL_ERROR and this last stream. The connection stays open.
fn goaway(last: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::goaway(&mut bytes, last, ErrorCode::INTERNAL_ERROR, b"");
    bytes
}

#[test]
fn requests_that_wait_move_at_once_when_a_goaway_says_that_there_was_an_error() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let begun = Instant::now();
        let seen = ask(world, GET);
        let mut served = backend.accept().await;
        let (last, _) = served.request().await;
        // The backend has not processed streams above the last one, so even a POST moves.
        let unseen = ask(world, POST);
        served.until(|served| served.asked.len() == 1).await;
        served.raw(goaway(last));
        let mut fresh = backend.accept().await;
        for _ in 0..2 {
            let (id, _) = fresh.request().await;
            answer(&mut fresh, id, "ok");
        }
        assert_eq!(seen.await.unwrap().unwrap().text(), "ok");
        assert_eq!(unseen.await.unwrap().unwrap().text(), "ok");
        assert!(begun.elapsed() < Duration::from_secs(1), "nothing was waited for");
        while served.turn().await {}
        assert!(served.has_ended, "it is closed here where the backend does not");
    });
}

#[test]
fn requests_that_may_have_run_fail_and_begun_replies_continue() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let begun = Instant::now();
        let replied = ask(world, GET);
        let mut served = backend.accept().await;
        let (first, _) = served.request().await;
        served.head(first, 200, &[("content-length", "4")], false);
        served.data(first, b"go", false);
        served.flush();
        let unsafe_to_repeat = ask(world, POST);
        let (second, _) = served.request().await;
        served.raw(goaway(second));
        assert_eq!(unsafe_to_repeat.await.unwrap().unwrap().status(), 502);
        let errors = world.errors();
        assert!(errors.iter().any(|line| line.contains("INTERNAL_ERROR")), "{errors:#?}");
        served.data(first, b"on", true);
        served.flush();
        assert_eq!(replied.await.unwrap().unwrap().text(), "goon");
        assert!(begun.elapsed() < Duration::from_secs(1), "nothing was waited for");
    });
}
