//! Retries that the status of a backend's reply causes.

use std::cell::Cell;
use std::rc::Rc;

use forebay_wire::http2::Config;
use tokio::task::{JoinHandle, spawn_local};

use crate::http2_backend::Http2Backend;
use crate::world::{World, in_memory};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Returns a route to backends 1 to 3 with this `retry`.
fn proxied(retry: &str) -> String {
    let to = [1, 2, 3].map(|number| format!("\"http://10.0.0.{number}:3000\"")).join(", ");
    format!("[[site.route]]\npath = \"/*\"\n[site.route.proxy]\nto = [{to}]\nretry = {retry}\n")
}

/// A backend that answers each request with its status, and its name and the request's body.
struct Scripted {
    asked: Rc<Cell<usize>>,
    served: JoinHandle<()>,
}

fn scripted(world: &World, number: u8, status: u16) -> Scripted {
    let mut backend = world.backend(&format!("10.0.0.{number}:3000"));
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    let served = spawn_local(async move {
        loop {
            let mut connection = backend.accept().await;
            let count = count.clone();
            spawn_local(async move {
                if connection.more().await.unwrap_or(false) {
                    let body = connection.request().await.body;
                    count.set(count.get() + 1);
                    let text = format!("{number}{}", String::from_utf8(body).unwrap());
                    let length = text.len();
                    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n");
                    connection.send(head + &text).await;
                }
            });
        }
    });
    Scripted { asked, served }
}

async fn ask(world: &World, request: &str) -> (u16, String) {
    let reply = world.ask(request).await;
    (reply.status(), reply.text().to_owned())
}

#[test]
fn a_query_is_resent_with_its_body() {
    in_memory(&proxied("{}"), async |world| {
        let (_a, _b) = (scripted(world, 1, 503), scripted(world, 2, 200));
        let _c = scripted(world, 3, 200);
        let request =
            |method| format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nwhere");
        assert_eq!(ask(world, &request("QUERY")).await, (200, "2where".into()));
        assert_eq!(ask(world, &request("POST")).await.0, 200, "the third one's turn");
        assert_eq!(ask(world, &request("POST")).await, (503, "1where".into()));
    });
}

#[test]
fn a_reply_with_a_chosen_status_is_replaced_by_that_of_another_backend() {
    in_memory(&proxied("{}"), async |world| {
        let (a, b) = (scripted(world, 1, 503), scripted(world, 2, 502));
        let _c = scripted(world, 3, 200);
        for _ in 0..3 {
            assert_eq!(ask(world, GET).await, (200, "3".into()));
        }
        assert_eq!((a.asked.get(), b.asked.get()), (3, 3), "no backend is left out for its status");
        assert_eq!(world.errors(), [""; 0]);
        assert!(world.status().backends.iter().all(|row| row.is_up && row.failures == 0));
    });
}

#[test]
fn without_retry_the_reply_is_passed_on() {
    in_memory(&proxied("{}").replace("retry = {}", ""), async |world| {
        let _served = [1, 2, 3].map(|number| scripted(world, number, 503));
        assert_eq!(ask(world, GET).await, (503, "1".into()));
    });
}

#[test]
fn the_last_reply_is_passed_on_whole() {
    in_memory(&proxied("{ attempts = 2 }"), async |world| {
        let all = [1, 2, 3].map(|number| scripted(world, number, 504));
        assert_eq!(ask(world, GET).await, (504, "2".into()), "two attempts");
        assert_eq!(all.map(|one| one.asked.get()), [1, 1, 0]);
    });
    in_memory(&proxied("{}"), async |world| {
        let _only = scripted(world, 1, 503);
        assert_eq!(ask(world, GET).await.0, 502, "the others refuse connections");
        for _ in 0..3 {
            assert_eq!(ask(world, GET).await, (503, "1".into()), "the others are down");
        }
    });
}

#[test]
fn only_allowed_methods_and_statuses_are_sent_twice() {
    let post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    let put = post.replace("POST", "PUT");
    in_memory(&proxied("{}"), async |world| {
        let _served = (scripted(world, 1, 503), scripted(world, 2, 500), scripted(world, 3, 200));
        assert_eq!(ask(world, post).await, (503, "1hi".into()));
        assert_eq!(ask(world, GET).await, (500, "2".into()));
    });
    in_memory(&proxied("{ methods = [\"PUT\"], statuses = \"5xx\" }"), async |world| {
        let _served = (scripted(world, 1, 503), scripted(world, 2, 500), scripted(world, 3, 200));
        assert_eq!(ask(world, &put).await, (200, "3hi".into()), "with its body");
        assert_eq!(ask(world, GET).await, (503, "1".into()));
    });
}

#[test]
fn a_body_that_is_no_longer_kept_is_not_sent_twice() {
    let put = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", 1 << 20);
    let request = put + &"x".repeat(1 << 20);
    for (buffering, status) in [("", 503), ("request_buffering = true\n", 200)] {
        let routes = proxied("{ methods = [\"PUT\"] }").replace(
            "[site.route.proxy]",
            &format!("max_body = \"2MiB\"\n{buffering}[site.route.proxy]"),
        );
        in_memory(&routes, async |world| {
            let _served = (scripted(world, 1, 503), scripted(world, 2, 200));
            let (got, text) = ask(world, &request).await;
            assert_eq!((got, text.len()), (status, (1 << 20) + 1), "{buffering}");
        });
    }
}

#[test]
fn the_budget_keeps_retries_from_multiplying_an_overload() {
    in_memory(&proxied("{ statuses = 503, budget = \"20%\" }"), async |world| {
        let all = [1, 2, 3].map(|number| scripted(world, number, 503));
        for _ in 0..200 {
            assert_eq!(ask(world, GET).await.0, 503);
        }
        let sent: usize = all.iter().map(|one| one.asked.get()).sum();
        assert_eq!(sent, 240, "200 requests and 20 % more");
        all[2].served.abort();
        let _works = scripted(world, 3, 200);
        let good = async || {
            let mut good = 0;
            for _ in 0..30 {
                good += usize::from(ask(world, GET).await.0 == 200);
            }
            good
        };
        let before = good().await;
        assert!(before < 15, "the budget is used up: {before} of 30");
        tokio::time::sleep(std::time::Duration::from_secs(11)).await;
        let after = good().await;
        assert!(after > before, "the budget is filled again: {after} of 30");
    });
}

#[test]
fn a_reply_over_http2_is_replaced_as_well() {
    let put = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    let routes =
        proxied("{ methods = [\"GET\", \"PUT\"] }").replace("http://10.0.0.1", "h2c://10.0.0.1");
    in_memory(&routes, async |world| {
        let connections = Http2Backend::new(world).serve(Config::default(), |served, _| {
            for (id, _) in served.take_whole() {
                served.head(id, 503, &[("content-length", "4")], false);
                served.data(id, b"lost", true);
            }
            served.flush();
        });
        let _next = (scripted(world, 2, 200), scripted(world, 3, 200));
        for _ in 0..3 {
            assert_eq!(ask(world, put).await.0, 200);
            assert_eq!(ask(world, GET).await.0, 200);
        }
        assert_eq!(connections.get(), 1, "the connection is kept");
    });
}
