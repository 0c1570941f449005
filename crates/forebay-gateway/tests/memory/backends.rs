//! Several backends: their order, and the cost of a failure.

use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

use crate::world::{Backend, World, in_memory};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";

fn proxied(keys: &str) -> String {
    format!(
        r#"
[[site.route]]
path = "/*"
  [site.route.proxy]
  to = ["http://10.0.0.1:3000", "http://10.0.0.2:3000"]
  {keys}
"#
    )
}

/// Answers every request with the text `name`, and keeps connections open.
fn serve(mut backend: Backend, name: &'static str) -> tokio::task::JoinHandle<()> {
    tokio::task::spawn_local(async move {
        loop {
            let mut connection = backend.accept().await;
            tokio::task::spawn_local(async move {
                while connection.more().await.unwrap_or(false) {
                    let request = connection.request().await;
                    let body = if request.start.starts_with("HEAD") { "" } else { name };
                    let length = name.len();
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
                    connection.send(head).await;
                }
            });
        }
    })
}

async fn names(world: &World, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    for _ in 0..count {
        names.push(world.ask(GET).await.text().to_owned());
    }
    names
}

#[test]
fn backends_take_turns() {
    in_memory(&proxied(""), async |world| {
        let _one = serve(world.backend("10.0.0.1:3000"), "one");
        let _two = serve(world.backend("10.0.0.2:3000"), "two");
        let names = names(world, 6).await;
        assert_eq!(names.iter().filter(|name| *name == "one").count(), 3, "{names:?}");
    });
}

#[test]
fn a_backend_that_refuses_connections_costs_no_request_and_is_left_out_for_fail_timeout() {
    in_memory(&proxied("fail_timeout = \"10s\""), async |world| {
        let _two = serve(world.backend("10.0.0.2:3000"), "two");
        assert_eq!(names(world, 20).await, vec!["two"; 20]);
        let errors = world.errors();
        let left_out = errors.iter().filter(|line| line.contains("left out")).count();
        assert_eq!(left_out, 1, "{errors:#?}");
        sleep(Duration::from_secs(11)).await;
        let _one = serve(world.backend("10.0.0.1:3000"), "one");
        assert!(names(world, 4).await.contains(&"one".to_owned()));
    });
}

#[test]
fn a_request_that_may_be_repeated_goes_to_the_next_backend_when_one_dies_over_it() {
    in_memory(&proxied(""), async |world| {
        let mut one = world.backend("10.0.0.1:3000");
        let _two = serve(world.backend("10.0.0.2:3000"), "two");
        let mut client = world.client();
        client.send(GET).await;
        let mut dying = one.accept().await;
        dying.request().await;
        dying.link.reset();
        assert_eq!(client.reply(GET).await.text(), "two");
    });
}

#[test]
fn a_request_that_may_not_be_repeated_is_sent_once() {
    in_memory(&proxied(""), async |world| {
        let mut one = world.backend("10.0.0.1:3000");
        let mut two = world.backend("10.0.0.2:3000");
        let mut client = world.client();
        client.send(POST).await;
        let mut dying = one.accept().await;
        assert_eq!(dying.request().await.text(), "body");
        dying.link.reset();
        assert_eq!(client.reply(POST).await.status(), 502);
        assert!(!two.has_visitor());
    });
}

#[test]
fn a_request_is_repeated_once_at_the_most() {
    in_memory(&proxied(""), async |world| {
        let (mut one, mut two) = (world.backend("10.0.0.1:3000"), world.backend("10.0.0.2:3000"));
        let mut client = world.client();
        client.send(GET).await;
        for backend in [&mut one, &mut two] {
            let mut dying = backend.accept().await;
            dying.request().await;
            dying.link.reset();
        }
        assert_eq!(client.reply(GET).await.status(), 502);
        assert!(!one.has_visitor() && !two.has_visitor());
    });
}

#[test]
fn a_kept_connection_that_died_unnoticed_costs_no_request() {
    in_memory(&proxied(""), async |world| {
        let mut one = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let (_, connection) = one.answer(OK).await;
        client.reply(GET).await;
        // The other backend is next but is not running, so the first one answers again.
        client.send(GET).await;
        let mut kept = connection;
        kept.request().await;
        kept.link.reset();
        let (_, _fresh) = one.answer(OK).await;
        assert_eq!(client.reply(GET).await.text(), "ok");
    });
}

#[test]
fn a_reply_that_is_cut_off_is_cut_off_for_the_client() {
    in_memory(&proxied(""), async |world| {
        let mut one = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send(GET).await;
        let reply = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of";
        let (_, connection) = one.answer(reply).await;
        assert_eq!(client.head().await.unwrap().status(), 200);
        drop(connection);
        let (_, outcome) = client.rest().await;
        assert!(outcome.is_err(), "a reset, so that nobody takes it for the whole");
    });
}

#[test]
fn with_every_backend_down_the_client_gets_a_502_and_soon_an_answer_again() {
    in_memory(&proxied(""), async |world| {
        assert_eq!(world.ask(GET).await.status(), 502);
        let _one = serve(world.backend("10.0.0.1:3000"), "one");
        sleep(Duration::from_secs(11)).await;
        assert_eq!(world.ask(GET).await.text(), "one");
    });
}

#[test]
fn a_backend_on_a_unix_socket_is_one_as_any_other() {
    let configuration = "[[site.route]]\npath = \"/*\"\nproxy = \"http://unix:/run/app.sock\"\n";
    let configuration = configuration.replace("http://unix:", "unix:");
    in_memory(&configuration, async |world| {
        let _app = serve(world.unix_backend("/run/app.sock"), "app");
        assert_eq!(world.ask(GET).await.text(), "app");
    });
}

#[test]
fn one_name_is_sent_once_and_hop_by_hop_fields_stay_behind() {
    in_memory(&proxied(""), async |world| {
        let mut one = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client
            .send(
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: x-hop, keep-alive\r\nX-Hop: 1\r\n\
                 X-End: 1\r\nX-End: 2\r\nKeep-Alive: 5\r\nTE: gzip\r\n\r\n",
            )
            .await;
        let (request, _connection) = one.answer(OK).await;
        assert_eq!(request.values("x-end"), ["1", "2"]);
        for name in ["x-hop", "keep-alive", "connection", "te"] {
            assert_eq!(request.field(name), None, "{name}");
        }
        assert_eq!(request.values("host"), ["a"]);
    });
}

/// Returns a FastCGI reply to request 1: a page and the end.
fn fastcgi_page() -> Vec<u8> {
    let page = b"Content-Type: text/plain\r\n\r\nfine";
    let mut reply = vec![1, 6, 0, 1, 0, page.len() as u8, 0, 0];
    reply.extend_from_slice(page);
    reply.extend_from_slice(&[1, 6, 0, 1, 0, 0, 0, 0, 1, 3, 0, 1, 0, 8, 0, 0]);
    reply.extend_from_slice(&[0; 8]);
    reply
}

/// Returns routes to two backends for each protocol with one request per connection, and the
/// backends' replies.
fn routes_to_two(root: &Path) -> Vec<(String, Vec<u8>)> {
    std::fs::write(root.join("x.php"), "").unwrap();
    let root = root.display();
    let route = |action: &str| format!("[[site.route]]\npath = \"/*\"\n{action}\n");
    let to = "to = [\"10.0.0.1:9000\", \"10.0.0.2:9000\"]";
    let page = b"Status: 200 OK\r\nContent-Type: text/plain\r\n\r\nfine".to_vec();
    vec![
        (route(&format!("fastcgi = {{ {to}, root = \"{root}\" }}")), fastcgi_page()),
        (route(&format!("scgi = {{ {to} }}")), page.clone()),
        (route(&format!("uwsgi = {{ {to} }}")), page),
    ]
}

/// Answers each connection once and closes it.
fn serve_once_each(mut backend: Backend, reply: Vec<u8>) -> tokio::task::JoinHandle<()> {
    tokio::task::spawn_local(async move {
        loop {
            let mut connection = backend.accept().await;
            connection.more().await.unwrap();
            connection.send(&reply).await;
            connection.link.finish();
            tokio::task::spawn_local(async move { connection.rest().await });
        }
    })
}

#[test]
fn a_dead_backend_of_any_protocol_is_left_out_after_its_first_failure() {
    let root = tempfile::tempdir().unwrap();
    for (route, reply) in routes_to_two(root.path()) {
        in_memory(&route, async |world| {
            let _two = serve_once_each(world.backend("10.0.0.2:9000"), reply);
            for _ in 0..20 {
                assert_eq!(
                    world.ask("GET /x.php HTTP/1.1\r\nHost: a\r\n\r\n").await.text(),
                    "fine"
                );
            }
            let errors = world.errors();
            assert_eq!(errors.len(), 1, "one attempt, not twenty: {errors:#?}");
            assert!(errors[0].contains("left out"), "{errors:#?}");
        });
    }
}

#[test]
fn a_backend_of_any_protocol_that_dies_over_a_request_costs_it_only_if_it_may_not_be_repeated() {
    let root = tempfile::tempdir().unwrap();
    for (route, reply) in routes_to_two(root.path()) {
        in_memory(&route, async |world| {
            let mut one = world.backend("10.0.0.1:9000");
            let _two = serve_once_each(world.backend("10.0.0.2:9000"), reply);
            for (method, status) in [("GET", 200), ("POST", 502)] {
                let request =
                    &format!("{method} /x.php HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
                let mut client = world.client();
                client.send(request).await;
                // The other backend may have the first turn.
                tokio::select! {
                    mut dying = one.accept() => {
                        dying.more().await.unwrap();
                        dying.link.reset();
                    }
                    reply = client.reply(request) => {
                        assert_eq!(reply.text(), "fine");
                        continue;
                    }
                }
                assert_eq!(client.reply(request).await.status(), status, "{route}");
                sleep(Duration::from_secs(11)).await;
            }
        });
    }
}

#[test]
fn a_backend_that_closes_a_kept_connection_and_a_new_one_costs_no_request_that_may_be_repeated() {
    let to = "[\"http://10.0.0.1:3000\", \"http://10.0.0.2:3000\"]";
    let route = format!("[[site.route]]\npath = \"/*\"\nproxy = {{ to = {to} }}\n");
    in_memory(&route, async |world| {
        let mut backends = [world.backend("10.0.0.1:3000"), world.backend("10.0.0.2:3000")];
        let mut kept = Vec::new();
        for backend in &mut backends {
            let answer = backend.answer("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine");
            let ((_, connection), reply) =
                tokio::join!(answer, world.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(reply.text(), "fine");
            kept.push(connection);
        }
        let dying = async {
            let mut first = kept.remove(0);
            first.request().await;
            first.link.reset();
            let mut anew = backends[0].accept().await;
            anew.request().await;
            anew.link.reset();
            kept[0].request().await;
            kept[0].send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother").await;
        };
        let asked = world.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let ((), reply) = tokio::join!(dying, asked);
        assert_eq!(reply.text(), "other");
    });
}
