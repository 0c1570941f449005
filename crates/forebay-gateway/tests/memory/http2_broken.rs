//! HTTP/2 connections to backends that break: the effects on the backend and on the requests.

use std::time::Duration;

use forebay_wire::http2::{Config, ErrorCode, frame};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::http2_backend::{Http2Backend, proxied};
use crate::world::{World, in_memory};

const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";
/// Routes to an HTTP/2 server and an HTTP/1.1 server.
const BOTH: &str = "[[site.route]]\npath = \"/*\"\nproxy = { to = [\"h2c://10.0.0.1:3000\", \
                    \"http://10.0.0.2:3000\"] }\n";

/// Lets the HTTP/1.1 server answer.
fn serve_other(world: &World) {
    let mut other = world.backend("10.0.0.2:3000");
    spawn_local(async move {
        loop {
            let _ = other.answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
        }
    });
}

/// Returns the statuses of `count` requests, one after the other.
async fn statuses(world: &World, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(world.ask(POST).await.status());
    }
    statuses
}

#[test]
fn one_that_drops_new_connections_is_left_out_and_no_request_is_sent_twice() {
    in_memory(BOTH, async |world| {
        let mut backend = Http2Backend::new(world);
        serve_other(world);
        let served = spawn_local(async move {
            loop {
                let mut served = backend.accept().await;
                served.request().await;
            }
        });
        assert_eq!(statuses(world, 6).await, [502, 200, 200, 200, 200, 200]);
        let errors = world.errors();
        assert!(errors.iter().any(|line| line.contains("10.0.0.1:3000 is left out")), "{errors:?}");
        served.abort();
    });
}

#[test]
fn one_that_has_answered_is_not_left_out_for_the_end_of_its_connection() {
    in_memory(BOTH, async |world| {
        let mut backend = Http2Backend::new(world);
        serve_other(world);
        spawn_local(async move {
            // Each connection answers one request.
            loop {
                let mut served = backend.accept().await;
                let (id, _) = served.request().await;
                served.reply(id, "first");
                served.flush();
                served.request().await;
            }
        });
        assert_eq!(statuses(world, 6).await, [200, 200, 502, 200, 200, 200]);
    });
}

#[test]
fn unsent_requests_of_any_method_move_to_another_connection() {
    in_memory(BOTH, async |world| {
        let mut backend = Http2Backend::new(world);
        serve_other(world);
        spawn_local(async move {
            loop {
                drop(backend.link().await);
            }
        });
        assert_eq!(statuses(world, 4).await, [200; 4]);
    });
}

#[test]
fn a_reply_that_came_before_the_connection_broke_counts() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let (mut client, mut uploads) = (world.client(), world.client());
        client.send(POST).await;
        let mut served = backend.accept().await;
        let (id, _) = served.request().await;
        uploads.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsome").await;
        served.until(|served| !served.asked.is_empty()).await;
        served.reply(id, "kept");
        let mut bytes = served.codec.output().to_vec();
        frame::goaway(&mut bytes, id, ErrorCode::NO_ERROR, b"");
        // The gateway writes to the connection after the backend has closed it.
        uploads.send("again").await;
        served.link.write(&bytes).await.unwrap();
        drop(served);
        let reply = client.any_reply(false).await.unwrap();
        assert_eq!((reply.status(), reply.text()), (200, "kept"));
    });
}

#[test]
fn one_that_takes_nothing_is_given_up_with_504() {
    let timeouts = "[server.timeouts]\nwrite = \"5s\"\n";
    let site = format!("{timeouts}[[site]]\nlisten = \"127.0.0.1:80\"\n{}", proxied(""));
    in_memory(&site, async |world| {
        let mut backend = Http2Backend::new(world);
        let wide =
            Config { stream_window: 1 << 20, connection_window: 1 << 20, ..Config::default() };
        let (mut client, mut uploads) = (world.client(), world.client());
        client.send(POST).await;
        let mut served = backend.accept_with(wide).await;
        served.request().await;
        let length = 500_000;
        uploads
            .send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"))
            .await;
        served.until(|served| !served.asked.is_empty()).await;
        let sending = spawn_local(async move {
            uploads.send(vec![7; length]).await;
            uploads.any_reply(false).await
        });
        sleep(Duration::from_secs(10)).await;
        assert_eq!(client.any_reply(false).await.unwrap().status(), 504);
        assert_eq!(sending.await.unwrap().unwrap().status(), 504);
        drop(served);
    });
}
