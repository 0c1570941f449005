//! Requests whose clients leave: they run to their end, or end with their client (`on_abort`).

use std::time::Duration;

use forebay_wire::http2::ErrorCode;
use tokio::time::sleep;

use crate::ajp;
use crate::fastcgi::{end, stdout};
use crate::http2_client::Http2Client;
use crate::world::{Peer, World, in_memory};

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
/// Longer than any kernel or gateway would buffer, so that an unread reply would block.
const LARGE: usize = 4 << 20;

/// Protocols of backends, with the form of a route to 10.0.0.1:9000 and a complete reply.
fn kinds() -> Vec<(&'static str, String, Vec<u8>)> {
    let body = "x".repeat(LARGE);
    let script = format!("Content-Type: text/plain\r\n\r\n{body}");
    let records = script
        .as_bytes()
        .chunks(32 << 10)
        .flat_map(|part| stdout(1, std::str::from_utf8(part).unwrap()));
    let http = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n{body}");
    let to = "to = \"10.0.0.1:9000\"";
    vec![
        (
            "fastcgi",
            format!("fastcgi = {{ {to}, root = \"/nowhere\", scripts = \"*\" }}"),
            records.chain(end(1)).collect(),
        ),
        ("scgi", format!("scgi = {{ {to} }}"), script.clone().into_bytes()),
        ("uwsgi", format!("uwsgi = {{ {to} }}"), script.into_bytes()),
        ("ajp", "ajp = \"10.0.0.1:9000\"".into(), ajp::ok("done")),
        ("proxy", "proxy = \"http://10.0.0.1:9000\"".into(), http.into_bytes()),
    ]
}

fn route(form: &str, on_abort: &str) -> String {
    let key =
        if on_abort.is_empty() { String::new() } else { format!("on_abort = \"{on_abort}\"") };
    format!(
        "[log]\naccess = \"stdout\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\npath = \"/*\"\n{form}\n{key}\n"
    )
}

/// Waits for a request at the backend.
async fn requested(world: &World, client: &mut Peer, request: &str) -> Peer {
    let mut backend = world.backend("10.0.0.1:9000");
    client.send(request).await;
    let mut connection = backend.accept().await;
    connection.more().await.unwrap();
    connection
}

/// The way in which a client leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leave {
    /// Closes its sending side only.
    Finish,
    /// Closes the connection, or resets the stream.
    Drop,
}

/// Returns true if the backend could send its whole reply to a request of a client that has left.
async fn finishes(mut connection: Peer, reply: &[u8]) -> bool {
    let sent = async {
        connection.link.write(reply).await?;
        connection.link.finish();
        Ok::<_, std::io::Error>(())
    };
    sent.await.is_ok() && connection.rest().await.1.is_ok()
}

#[test]
fn a_request_runs_to_its_end_although_its_client_has_left() {
    for (kind, form, reply) in kinds() {
        // HTTP servers stop by default, as behind nginx and HAProxy.
        let on_abort = if kind == "proxy" { "finish" } else { "" };
        for request in [GET, POST] {
            in_memory(&route(&form, on_abort), async |world| {
                let mut client = world.client();
                let connection = requested(world, &mut client, request).await;
                drop(client);
                sleep(Duration::from_secs(5)).await;
                assert!(finishes(connection, &reply).await, "{kind} {request}");
                sleep(Duration::from_secs(1)).await;
                let lines = world.gateway.access_lines();
                // A short reply is sent later, when nobody sees that it is lost.
                let is_lost = lines[0].contains("\" 499 ") || reply.len() < LARGE;
                assert!(is_lost, "{kind}: {lines:?}");
            });
        }
        in_memory(&route(&form, on_abort), async |world| {
            let mut backend = world.backend("10.0.0.1:9000");
            let mut client = Http2Client::connect(world).await;
            let stream = client.get("/");
            let mut connection = client.during(backend.accept()).await;
            client.during(connection.more()).await.unwrap();
            client.codec.reset(stream, ErrorCode::CANCEL, std::time::Instant::now());
            client.during(sleep(Duration::from_secs(5))).await;
            assert!(client.during(finishes(connection, &reply)).await, "{kind}");
        });
    }
}

#[test]
fn a_request_ends_with_its_client_if_the_route_says_so() {
    for (kind, form, _) in kinds() {
        for (on_abort, leaves) in
            [("stop", Leave::Drop), ("stop", Leave::Finish), ("cancel", Leave::Drop)]
        {
            in_memory(&route(&form, on_abort), async |world| {
                let mut client = world.client();
                let mut connection = requested(world, &mut client, GET).await;
                let kept = match leaves {
                    Leave::Finish => {
                        client.link.finish();
                        Some(client)
                    }
                    Leave::Drop => {
                        drop(client);
                        None
                    }
                };
                let _ = connection.rest().await;
                let lines = world.gateway.access_lines();
                assert!(lines[0].contains("\" 499 "), "{kind} {on_abort}: {lines:?}");
                drop(kept);
            });
        }
    }
}

#[test]
fn a_client_that_closes_only_its_sending_side_gets_its_reply() {
    for (kind, form, reply) in kinds() {
        for on_abort in ["", "finish", "cancel"] {
            in_memory(&route(&form, on_abort), async |world| {
                let mut client = world.client();
                let connection = requested(world, &mut client, GET).await;
                client.link.finish();
                sleep(Duration::from_secs(5)).await;
                let answering = finishes(connection, &reply);
                let (finished, reply) = tokio::join!(answering, client.reply(GET));
                assert!(finished, "{kind} {on_abort}");
                assert_eq!(reply.status(), 200, "{kind} {on_abort}");
            });
        }
    }
}

#[test]
fn an_event_stream_ends_with_its_client_whatever_the_route_says() {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n";
    for leaves in [Leave::Finish, Leave::Drop] {
        let form = "proxy = \"http://10.0.0.1:9000\"";
        in_memory(&route(form, "finish"), async |world| {
            let mut client = world.client();
            let mut connection = requested(world, &mut client, GET).await;
            connection.send(head).await;
            client.head().await.unwrap();
            let kept = match leaves {
                Leave::Finish => {
                    client.link.finish();
                    Some(client)
                }
                Leave::Drop => {
                    drop(client);
                    None
                }
            };
            let _ = connection.rest().await;
            drop(kept);
        });
    }
}

#[test]
fn an_endless_reply_ends_some_time_after_its_client() {
    let form = "proxy = { to = \"http://10.0.0.1:9000\", reply_timeout = \"7s\" }";
    in_memory(&route(form, "finish"), async |world| {
        let mut client = world.client();
        let mut connection = requested(world, &mut client, GET).await;
        connection.send("HTTP/1.1 200 OK\r\n\r\n").await;
        drop(client);
        let mut pieces = 0;
        while connection.link.write(&[b'x'; 64 << 10]).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
            pieces += 1;
            assert!(pieces < 20, "it runs on for ever");
        }
        assert!(pieces > 5, "it has its time: {pieces}");
    });
}
