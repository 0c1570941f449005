//! Buffers: replies for slow readers, and uploads for backends that take them whole.

use std::time::Duration;

use forebay_net::limit::Limit;
use tokio::time::{Instant, sleep};

use crate::world::{Peer, World, in_memory};

const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
/// Size of a reply in bytes: more than the gateway's memory links hold.
const LARGE: usize = 2 << 20;

/// Returns a route with these keys to a backend, on a server with these limits.
fn route(limits: &str, keys: &str) -> String {
    format!(
        "[server.limits]\n{limits}\n[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\n\
         proxy = \"http://10.0.0.1:3000\"\n{keys}\n"
    )
}

fn pattern() -> Vec<u8> {
    (0..LARGE).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Returns a client that sent a request and reads nothing, and the backend, which is sending a
/// reply.
async fn slow_reader(world: &World, fields: &str) -> (Peer, Peer) {
    let mut backend = world.backend("10.0.0.1:3000");
    let mut client = world.client();
    client.link.limit_room(1000);
    client.send(GET).await;
    let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {LARGE}\r\n\r\n");
    let (_, connection) = backend.answer(&head).await;
    (client, connection)
}

/// Sends the body to its end while the client reads nothing. Returns true if the gateway takes all
/// of it in time.
async fn is_taken(connection: &mut Peer) -> bool {
    let sending = connection.send(pattern());
    tokio::time::timeout(Duration::from_secs(10), sending).await.is_ok()
}

async fn assert_arrives(mut client: Peer) {
    client.link.limit_room(1 << 20);
    assert!(client.reply(GET).await.body == pattern(), "the reply arrives unchanged");
}

#[test]
fn a_slow_reader_holds_no_backend_where_its_reply_is_kept() {
    in_memory(&route("", "buffer = true"), async |world| {
        let (client, mut connection) = slow_reader(world, "").await;
        assert!(is_taken(&mut connection).await);
        assert_arrives(client).await;
    });
}

#[test]
fn a_reply_that_fits_in_memory_needs_no_file() {
    let limits = "buffer_memory = \"4MiB\"\nbuffer_file = 0";
    in_memory(&route(limits, "buffer = true"), async |world| {
        let (client, mut connection) = slow_reader(world, "").await;
        assert!(is_taken(&mut connection).await);
        assert_arrives(client).await;
    });
}

/// Asserts that the backend waits for the client, which gets everything in the end.
fn is_held_back(limits: &str, keys: &str, fields: &str) {
    in_memory(&route(limits, keys), async |world| {
        let (client, mut connection) = slow_reader(world, fields).await;
        let body = pattern();
        let sending = async {
            let since = Instant::now();
            connection.send(&body).await;
            since.elapsed()
        };
        let reading = async {
            sleep(Duration::from_secs(20)).await;
            assert_arrives(client).await;
        };
        let (took, ()) = tokio::join!(sending, reading);
        assert!(took >= Duration::from_secs(20), "{limits} {keys} {fields}: {took:?}");
    });
}

#[test]
fn a_full_buffer_holds_the_reply_back() {
    for limits in [
        "buffer_file = \"1MiB\"",
        "buffer_file = 0",
        "buffer_total = \"1MiB\"",
        "buffer_total = 0",
        "buffer_memory = 0\nbuffer_file = \"1MiB\"",
    ] {
        is_held_back(limits, "buffer = true", "");
    }
}

#[test]
fn a_proxied_reply_is_held_back_unless_the_route_keeps_it() {
    is_held_back("", "", "");
    is_held_back("", "buffer = false", "");
}

#[test]
fn unbuffered_replies_are_not_kept() {
    is_held_back("", "buffer = true", "X-Accel-Buffering: no\r\n");
    is_held_back("", "buffer = true", "Content-Type: text/event-stream\r\n");
}

#[test]
fn a_disk_that_takes_nothing_holds_the_reply_back_and_is_logged() {
    let directory = tempfile::tempdir().unwrap();
    let spool = directory.path().display().to_string();
    let limits = format!("buffer_memory = \"4KiB\"\n[server]\nspool_dir = \"{spool}\"");
    let text = route(&limits, "buffer = true");
    in_memory(&text, async |world| {
        std::fs::remove_dir_all(&spool).unwrap();
        let (client, mut connection) = slow_reader(world, "").await;
        let body = pattern();
        let reading = async {
            sleep(Duration::from_secs(20)).await;
            assert_arrives(client).await;
        };
        tokio::join!(connection.send(&body), reading);
        let errors = world.errors();
        let message = format!("cannot keep a reply for a slow client in {spool}");
        assert!(errors.iter().any(|error| error.contains(&message)), "{errors:?}");
        assert_eq!(world.gateway.reached(Limit::BufferFile), 0, "no limit of the configuration");
    });
}

#[test]
fn memory_of_all_buffered_replies_is_limited_and_freed() {
    in_memory(&route("buffer_total = \"3MiB\"", "buffer = true"), async |world| {
        for n in 0..5 {
            let (client, mut connection) = slow_reader(world, "").await;
            assert!(is_taken(&mut connection).await, "{n}");
            if n % 2 == 0 {
                assert_arrives(client).await;
            } else {
                // A buffered reply is dropped with its client.
                drop(client);
                sleep(Duration::from_secs(1)).await;
            }
        }
    });
}

#[test]
fn a_client_that_takes_nothing_of_what_is_kept_is_cut_off_after_the_write_limit() {
    let text = route("", "buffer = true") + "[server.timeouts]\nwrite = \"15s\"\n";
    in_memory(&text, async |world| {
        let (mut client, mut connection) = slow_reader(world, "").await;
        let since = Instant::now();
        assert!(is_taken(&mut connection).await);
        sleep(Duration::from_secs(14).saturating_sub(since.elapsed())).await;
        assert_eq!(world.gateway.connections(), 1);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(world.gateway.connections(), 0);
        assert!(client.rest().await.1.is_err(), "half a reply ends with a reset");
    });
}

#[test]
fn a_reader_that_keeps_up_with_its_reply_costs_no_buffer() {
    in_memory(&route("buffer_total = 0", "buffer = true"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for _ in 0..20 {
            assert_eq!(world.pass(&mut backend, GET, OK).await.1.text(), "ok");
        }
        assert_eq!(world.errors(), [""; 0]);
    });
}

#[test]
fn an_upload_is_taken_in_whole_before_a_backend_sees_it_where_the_route_says_so() {
    in_memory(&route("", "request_buffering = true"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut slow = world.client();
        slow.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\n\r\n").await;
        slow.send(vec![b'x'; 200_000]).await;
        let mut chunked = world.client();
        chunked.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        chunked.send("3\r\nabc\r\n").await;
        sleep(Duration::from_secs(5)).await;
        assert!(!backend.has_visitor());
        slow.send(vec![b'x'; 100_000]).await;
        let (asked, connection) = backend.answer(OK).await;
        assert!(asked.body == vec![b'x'; 300_000]);
        assert_eq!(slow.reply("").await.text(), "ok");
        drop(connection);
        chunked.send("0\r\n\r\n").await;
        let (asked, _connection) = backend.answer(OK).await;
        assert_eq!(asked.text(), "abc");
        let framing = (asked.field("content-length"), asked.field("transfer-encoding"));
        assert_eq!(framing, (Some("3"), None), "it is sent with its length");
        assert_eq!(chunked.reply("").await.text(), "ok");
    });
}

#[test]
fn an_upload_that_stops_before_it_is_whole_reaches_no_backend() {
    let text = route("", "request_buffering = true") + "[server.timeouts]\nbody_idle = \"12s\"\n";
    in_memory(&text, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        let since = Instant::now();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf").await;
        assert_eq!(client.reply("").await.status(), 408);
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(12) && took < Duration::from_millis(12300), "{took:?}");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nhalf").await;
        drop(client);
        sleep(Duration::from_secs(1)).await;
        assert!(!backend.has_visitor());
    });
}

#[test]
fn an_upload_goes_on_to_the_backend_as_it_comes_otherwise() {
    in_memory(&route("", ""), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8\r\n\r\nhalf").await;
        let mut connection = backend.accept().await;
        connection.head().await.unwrap();
        assert_eq!(connection.exactly(4).await.unwrap(), b"half");
        client.send("rest").await;
        assert_eq!(connection.exactly(4).await.unwrap(), b"rest");
    });
}

/// Returns the time that an SCGI application waits for a client that reads nothing for 20 s. Its
/// reply begins with `fields`; its route has `keys`.
fn application_waits(keys: &str, fields: &str) -> Duration {
    let route = format!("[[site.route]]\nscgi = {{ to = \"10.0.0.1:9000\" }}\n{keys}\n");
    let mut waits = None;
    in_memory(&route, async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        client.link.limit_room(1000);
        client.send(GET).await;
        let mut connection = application.accept().await;
        connection.more().await.unwrap();
        let sending = async {
            let since = Instant::now();
            connection.send(format!("Content-Length: {LARGE}\r\n{fields}\r\n")).await;
            connection.send(pattern()).await;
            since.elapsed()
        };
        let reading = async {
            sleep(Duration::from_secs(20)).await;
            assert_arrives(client).await;
        };
        waits = Some(tokio::join!(sending, reading).0);
    });
    waits.unwrap()
}

#[test]
fn the_reply_of_an_application_is_kept_unless_it_or_its_route_says_no() {
    let kept = application_waits("", "");
    assert!(kept < Duration::from_secs(1), "{kept:?}");
    for (keys, fields) in [
        ("buffer = false", ""),
        ("", "X-Accel-Buffering: no\r\n"),
        ("", "Content-Type: text/event-stream\r\n"),
    ] {
        let waits = application_waits(keys, fields);
        assert!(waits >= Duration::from_secs(20), "{keys} {fields}: {waits:?}");
    }
}

#[test]
fn an_error_page_on_a_buffered_route_reaches_a_client_that_reads_late() {
    let route = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\nbuffer = true\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.link.limit_room(500);
        client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        client.send("POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
        // This page nearly fills the link, so the page of the second request does not fit.
        let page = "x".repeat(380);
        let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: 380\r\n\r\n{page}");
        let (_, _kept) = backend.answer(&reply).await;
        let mut dying = backend.accept().await;
        dying.request().await;
        dying.link.reset();
        sleep(Duration::from_secs(1)).await;
        let first = client.reply("GET ").await;
        assert_eq!(first.text(), page);
        let soon = tokio::time::timeout(Duration::from_secs(5), client.reply("POST "));
        assert_eq!(soon.await.expect("it is not kept back").status(), 502);
    });
}
