//! Every time limit, on a clock that jumps.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::world::converse;

const FIXED: &str = r#"
[[site.route]]
path = "/*"
respond = "here"
"#;

const PROXIED: &str = r#"
[[site.route]]
path = "/*"
proxy = "http://10.0.0.1:3000"
"#;

/// `configuration` of the server in front of a site with `routes`.
fn with(configuration: &str, routes: &str) -> String {
    format!("{configuration}\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n{routes}")
}

/// That a deadline of `limit` ends something: a tick of 100 ms early at no time, two ticks late at
/// most.
fn assert_took(since: Instant, limit: Duration) {
    let took = since.elapsed();
    assert!(took >= limit && took <= limit + Duration::from_millis(300), "{took:?}, not {limit:?}");
}

#[test]
fn a_head_that_does_not_end_in_time_is_answered_408_and_the_connection_closes() {
    converse(&with("[server.timeouts]\nhead = \"7s\"", FIXED), async |world| {
        let since = Instant::now();
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n").await;
        assert_eq!(client.reply("GET ").await.status(), 408);
        assert_took(since, Duration::from_secs(7));
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_head_that_comes_byte_by_byte_has_no_more_time_than_one_that_stops() {
    converse(&with("[server.timeouts]\nhead = \"3s\"", FIXED), async |world| {
        let since = Instant::now();
        let mut client = world.client();
        for byte in b"GET / HTTP/1.1\r\nHost: a" {
            client.send([*byte]).await;
            sleep(Duration::from_millis(200)).await;
            if since.elapsed() > Duration::from_secs(4) {
                break;
            }
        }
        assert_eq!(client.reply("GET ").await.status(), 408);
    });
}

#[test]
fn a_client_that_says_nothing_is_closed_without_a_word() {
    converse(&with("[server.timeouts]\nhead = \"5s\"", FIXED), async |world| {
        let since = Instant::now();
        assert!(world.client().is_closed().await);
        assert_took(since, Duration::from_secs(5));
    });
}

#[test]
fn a_kept_connection_closes_when_no_request_follows_in_time() {
    converse(&with("[server.timeouts]\nkeep_alive = \"20s\"", FIXED), async |world| {
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(client.reply("GET ").await.text(), "here");
        let since = Instant::now();
        assert!(client.is_closed().await);
        assert_took(since, Duration::from_secs(20));
    });
}

#[test]
fn a_backend_that_does_not_answer_in_time_costs_the_client_a_504() {
    converse(&with("[server.timeouts]\nreply_idle = \"30s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let since = Instant::now();
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let mut silent = backend.accept().await;
        silent.request().await;
        assert_eq!(client.reply("GET ").await.status(), 504);
        assert_took(since, Duration::from_secs(30));
        assert!(silent.is_closed().await, "a connection that was given up is closed");
    });
}

#[test]
fn a_backend_that_pauses_in_its_body_for_less_than_the_limit_is_waited_for() {
    converse(&with("[server.timeouts]\nreply_idle = \"10s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let (_, mut slow) = backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").await;
        for byte in b"bytes" {
            sleep(Duration::from_secs(9)).await;
            slow.send([*byte]).await;
        }
        assert_eq!(client.reply("GET ").await.text(), "bytes");
    });
}

#[test]
fn a_backend_that_nobody_answers_for_is_given_up_after_connect_timeout() {
    converse(&with("[server.timeouts]\nconnect = \"2s\"", PROXIED), async |world| {
        world.fall_silent("10.0.0.1:3000");
        let since = Instant::now();
        assert_eq!(world.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await.status(), 504);
        let took = since.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(2300), "{took:?}");
    });
}

#[test]
fn a_client_that_takes_nothing_is_cut_off_after_the_write_limit() {
    converse(&with("[server.timeouts]\nwrite = \"15s\"", PROXIED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.link.limit_room(1000);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n";
        let (_, mut connection) = backend.answer(head).await;
        let since = Instant::now();
        connection.send(vec![b'x'; 10_000_000]).await;
        assert_took(since, Duration::from_secs(15));
        let (_, outcome) = client.rest().await;
        assert!(outcome.is_err(), "half a reply ends with a reset");
    });
}
