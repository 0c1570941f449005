//! Bodies to and from HTTP/2 backends: no stream holds up another one.

use std::time::Duration;

use forebay_wire::http2::Config;
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::http2_backend::{Http2Backend, proxied};
use crate::http2_backends::{GET, LARGE, ask, pattern};
use crate::http2_client::Http2Client;
use crate::world::in_memory;

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
