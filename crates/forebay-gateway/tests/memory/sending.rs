//! Small requests and replies that are sent at the end of a turn, if the link is full.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::world::in_memory;

const HERE: &str = "respond = \"here\"";
const PROXY: &str = "proxy = \"http://10.0.0.1:3000\"";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns a site with a write limit of 15 s and one route for all paths.
fn site(action: &str) -> String {
    let limit = "[server.timeouts]\nwrite = \"15s\"\n";
    let site = "[[site]]\nlisten = [\"127.0.0.1:80\"]\n";
    format!("{limit}{site}[[site.route]]\npath = \"/*\"\n{action}\n")
}

#[test]
fn replies_come_whole_and_in_order_when_there_is_room_at_last() {
    in_memory(&site(HERE), async |world| {
        let mut client = world.client();
        client.link.limit_room(10);
        client.send(format!("{GET}{GET}{}", GET.replace("GET", "POST"))).await;
        for _ in 0..3 {
            sleep(Duration::from_secs(5)).await;
            let reply = client.reply(GET).await;
            assert_eq!((reply.status(), reply.body.as_slice()), (200, &b"here"[..]));
        }
        client.send(GET).await;
        assert_eq!(client.reply(GET).await.status(), 200, "the connection is kept");
    });
}

#[test]
fn a_client_that_goes_on_asking_and_takes_nothing_is_cut_off_after_the_write_limit() {
    in_memory(&site(HERE), async |world| {
        let client = world.client();
        client.link.limit_room(10);
        let since = Instant::now();
        for _ in 0..10 {
            let _ = client.link.write(GET.as_bytes()).await;
            sleep(Duration::from_secs(5)).await;
            if world.gateway.connections() == 0 {
                break;
            }
        }
        assert!(since.elapsed() < Duration::from_secs(25), "{:?}", since.elapsed());
    });
}

#[test]
fn a_long_reply_behind_a_small_one_that_had_no_room_comes_when_there_is() {
    let routes = site(PROXY).replace("/*", "/backend");
    in_memory(&format!("{routes}[[site.route]]\n{HERE}\n"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.link.limit_room(10);
        client.send(format!("{GET}{}", GET.replace("GET /", "GET /backend"))).await;
        let long = [b'x'; 10_000];
        let reply = "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n";
        let (_, mut connection) = backend.answer(reply).await;
        connection.send(long).await;
        // Longer than a tick: then the gateway also waits for the client to leave.
        sleep(Duration::from_millis(300)).await;
        assert_eq!(client.reply(GET).await.body, b"here");
        assert_eq!(client.reply(GET).await.body, long);
    });
}

#[test]
fn a_client_that_does_not_take_a_small_reply_is_cut_off_after_the_write_limit() {
    in_memory(&site(HERE), async |world| {
        let client = world.client();
        client.link.limit_room(10);
        let since = Instant::now();
        client.link.write(GET.as_bytes()).await.unwrap();
        client.link.closed().await;
        let took = since.elapsed();
        assert!((15_000..15_300).contains(&took.as_millis()), "{took:?}");
        sleep(Duration::from_secs(1)).await;
        assert_eq!(world.gateway.connections(), 0);
    });
}

#[test]
fn a_reply_that_has_no_room_is_sent_whole_before_a_stopping_gateway_closes() {
    in_memory(&site(HERE), async |world| {
        let mut client = world.client();
        client.link.limit_room(10);
        client.send(GET).await;
        sleep(Duration::from_secs(1)).await;
        world.gateway.stop();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(client.reply(GET).await.body, b"here");
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_small_reply_that_closes_the_connection_is_whole_where_there_is_no_room() {
    in_memory(&site(HERE), async |world| {
        let mut client = world.client();
        client.link.limit_room(10);
        client.send(format!("{GET}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).await;
        sleep(Duration::from_secs(5)).await;
        assert_eq!(client.reply(GET).await.body, b"here");
        assert_eq!(client.reply(GET).await.body, b"here");
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_backend_with_little_room_gets_the_whole_request() {
    in_memory(&site(PROXY), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, mut connection) = backend.answer(OK).await;
        assert_eq!(client.reply(GET).await.body, b"ok");

        connection.link.limit_room(10);
        client.send(GET.replace("GET /", "GET /second")).await;
        sleep(Duration::from_secs(5)).await;
        let asked = connection.request().await;
        assert!(asked.start.starts_with("GET /second HTTP/1.1"), "{}", asked.start);
        connection.send(OK).await;
        assert_eq!(client.reply(GET).await.body, b"ok");
    });
}

#[test]
fn a_backend_that_takes_no_small_request_costs_a_504() {
    in_memory(&site(PROXY), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, connection) = backend.answer(OK).await;
        assert_eq!(client.reply(GET).await.body, b"ok");

        connection.link.limit_room(10);
        client.send(GET).await;
        assert_eq!(client.reply(GET).await.status(), 504);
    });
}

#[test]
fn a_kept_connection_that_died_unnoticed_costs_no_request() {
    in_memory(&site(PROXY), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        for _ in 0..2 {
            client.send(GET).await;
            let (_, connection) = backend.answer(OK).await;
            assert_eq!(client.reply(GET).await.body, b"ok");
            connection.link.reset();
        }
    });
}
