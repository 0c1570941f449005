//! HTTP/2 backends that refuse streams, end, break the protocol or never answer.

use std::time::Duration;

use forebay_wire::http2::{Cause, Config, ErrorCode, frame};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::http2_backend::{Http2Backend, proxied};
use crate::http2_backends::{GET, POST, ask, echo_paths, pattern, with_streams};
use crate::http2_client::Http2Client;
use crate::world::in_memory;

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
