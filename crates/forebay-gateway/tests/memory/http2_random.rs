//! The `h2` crate as a backend that treats each stream differently.

use std::time::Duration;

use forebay_net::memory::{Destination, Link};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::http2_backend::{ADDRESS, proxied};
use crate::world::{World, in_memory};

/// Copies bytes between a gateway connection and a tokio stream.
fn carry(link: Link, stream: DuplexStream) {
    let link = std::rc::Rc::new(link);
    let (mut reader, mut writer) = split(stream);
    let from = link.clone();
    spawn_local(async move {
        let mut bytes = Vec::new();
        while matches!(from.read(&mut bytes).await, Ok(1..)) {
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
            bytes.clear();
        }
    });
    spawn_local(async move {
        let mut bytes = vec![0; 4096];
        while let Ok(n @ 1..) = reader.read(&mut bytes).await {
            if link.write(&bytes[..n]).await.is_err() {
                return;
            }
        }
        link.finish();
    });
}

/// Serves connections with the `h2` crate. `seed` determines limits and behaviour.
fn serve(world: &World, seed: u64) {
    let mut links = world.gateway.network().listen(Destination::Tcp(ADDRESS.parse().unwrap()));
    spawn_local(async move {
        let mut random = fastrand::Rng::with_seed(seed);
        while let Some(link) = links.recv().await {
            let (near, far) = duplex(random.usize(64..20_000));
            carry(link, near);
            let random = random.fork();
            spawn_local(serve_connection(far, random));
        }
    });
}

async fn serve_connection(stream: DuplexStream, mut random: fastrand::Rng) {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(random.u32(1..20))
        .initial_window_size(random.u32(1..100_000))
        .initial_connection_window_size(random.u32(65_535..200_000))
        .max_frame_size(16_384 + random.u32(0..10_000));
    let Ok(mut connection) = builder.handshake::<_, bytes::Bytes>(stream).await else { return };
    let mut left = random.usize(1..60);
    while let Some(accepted) = connection.accept().await {
        let Ok((request, reply)) = accepted else { return };
        spawn_local(answer(request, reply, random.fork()));
        left -= 1;
        if left == 0 {
            connection.graceful_shutdown();
            left = usize::MAX;
        }
    }
}

/// Refuses the stream, or sends its body back, with pauses.
async fn answer(
    request: http::Request<h2::RecvStream>,
    mut reply: h2::server::SendResponse<bytes::Bytes>,
    mut random: fastrand::Rng,
) {
    if random.u8(..10) == 0 {
        return reply.send_reset(h2::Reason::REFUSED_STREAM);
    }
    sleep(Duration::from_millis(random.u64(..20))).await;
    let mut body = request.into_body();
    let head = http::Response::builder().status(200).header("x-a", "b").body(()).unwrap();
    let mut sending = reply.send_response(head, false).unwrap();
    while let Some(Ok(data)) = body.data().await {
        sleep(Duration::from_millis(random.u64(..3))).await;
        // The window opens late, so that it limits the body.
        let _ = body.flow_control().release_capacity(data.len());
        if sending.send_data(data, false).is_err() {
            return;
        }
    }
    if random.bool() {
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        let _ = sending.send_trailers(trailers);
    } else {
        let _ = sending.send_data(bytes::Bytes::new(), true);
    }
}

#[test]
fn every_schedule_gives_each_request_its_own_body() {
    for seed in 0..24 {
        in_memory(&proxied(""), async |world| {
            serve(world, seed);
            let mut random = fastrand::Rng::with_seed(seed);
            let mut asking = Vec::new();
            for number in 0..60_u8 {
                let mut client = world.client();
                // If more than this was sent before a refusal, the request cannot be resent.
                let length = random.usize(..8_000);
                let body = vec![number; length];
                let before = Duration::from_millis(random.u64(..100));
                asking.push(spawn_local(async move {
                    sleep(before).await;
                    let head =
                        format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
                    client.send([head.as_bytes(), &body].concat()).await;
                    let reply = client.any_reply(false).await.unwrap();
                    assert_eq!(reply.status(), 200);
                    assert!(reply.body == body, "its own body");
                }));
            }
            for asking in asking {
                asking.await.unwrap();
            }
            assert!(world.errors().is_empty(), "{:#?}", world.errors());
        });
    }
}
