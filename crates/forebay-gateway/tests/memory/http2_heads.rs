//! The memory of request heads over HTTP/2: a connection whose heads are too large together gets
//! REFUSED_STREAM.

use std::time::Instant;

use forebay_net::limit::Limit;
use forebay_wire::http2::{Cause, ErrorCode};

use crate::http2_client::Http2Client;
use crate::world::{Backend, Peer, World, in_memory};

const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Opens a stream whose head has `fields` fields of 4 kB.
fn ask(client: &mut Http2Client, fields: usize) -> u32 {
    let value = "v".repeat(3_900);
    let fields: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"][..fields]
        .iter()
        .map(|name| (*name, &value[..]))
        .collect();
    client.ask("GET", "/", &fields, true)
}

/// Opens 40 streams with heads of 31.7 kB. Returns the refused streams and the others.
async fn flood(client: &mut Http2Client) -> (Vec<u32>, Vec<u32>) {
    let streams: Vec<_> = (0..40).map(|_| ask(client, 8)).collect();
    client.until(|client| client.so_far(streams[39]).reset.is_some()).await;
    let (refused, others): (Vec<_>, Vec<_>) =
        streams.into_iter().partition(|&stream| client.so_far(stream).reset.is_some());
    for &stream in &refused {
        let cause = client.so_far(stream).reset;
        assert_eq!(cause, Some(Cause::Peer(ErrorCode::REFUSED_STREAM)));
    }
    assert_eq!((refused.len(), others.len()), (7, 33));
    (refused, others)
}

async fn requests(client: &mut Http2Client, backend: &mut Backend, count: usize) -> Vec<Peer> {
    let mut connections = Vec::new();
    for _ in 0..count {
        let mut connection = client.during(backend.accept()).await;
        client.during(connection.request()).await;
        connections.push(connection);
    }
    connections
}

async fn answer_all(client: &mut Http2Client, connections: &mut [Peer], streams: &[u32]) {
    for connection in connections {
        connection.send(EMPTY).await;
    }
    for &stream in streams {
        assert_eq!(client.reply(stream).await.status, 200);
    }
}

#[test]
fn large_heads_are_refused_and_the_other_streams_answered() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        let (_, others) = flood(&mut client).await;
        assert_eq!(world.gateway.reached(Limit::HeldHeads), 7);
        assert!(world.errors().iter().any(|line| line.contains("head_size")));
        let mut connections = requests(&mut client, &mut backend, others.len()).await;
        assert!(!backend.has_visitor(), "a refused request reaches no backend");
        answer_all(&mut client, &mut connections, &others).await;
        // The ended streams have released their heads.
        drop(connections);
        let (_, others) = flood(&mut client).await;
        let mut connections = requests(&mut client, &mut backend, others.len()).await;
        answer_all(&mut client, &mut connections, &others).await;
    });
}

#[test]
fn heads_of_cancelled_streams_are_released() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = Http2Client::connect(world).await;
        for _ in 0..5 {
            let (_, others) = flood(&mut client).await;
            let mut connections = requests(&mut client, &mut backend, others.len()).await;
            for stream in others {
                client.codec.reset(stream, ErrorCode::CANCEL, Instant::now());
            }
            // The gateway has abandoned a request when its connection to the backend ends.
            for connection in &mut connections {
                let _ = client.during(connection.rest()).await;
            }
        }
        let stream = ask(&mut client, 8);
        let mut connections = requests(&mut client, &mut backend, 1).await;
        answer_all(&mut client, &mut connections, &[stream]).await;
    });
}

/// Returns the number of refused requests of a client that opens 100 streams with such heads.
async fn refused_of_a_hundred(world: &World, backend: &mut Backend, fields: usize) -> usize {
    let mut client = Http2Client::connect(world).await;
    let streams: Vec<_> = (0..100).map(|_| ask(&mut client, fields)).collect();
    let mut connections = requests(&mut client, backend, 100).await;
    answer_all(&mut client, &mut connections, &streams).await;
    world.gateway.reached(Limit::HeldHeads) as usize
}

#[test]
fn ordinary_requests_are_never_refused() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for fields in [0, 1, 2] {
            assert_eq!(refused_of_a_hundred(world, &mut backend, fields).await, 0);
        }
    });
}
