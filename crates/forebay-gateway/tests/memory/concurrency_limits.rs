//! `concurrency_limit`: requests with the same key that run at once.

use forebay_net::limit::Limit;

use crate::world::in_memory;

const BACKEND: &str = "10.0.0.1:81";
const REPLY: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx";

fn route(keys: &str) -> String {
    format!("[[site.route]]\nproxy = \"http://{BACKEND}\"\nconcurrency_limit = {keys}\n")
}

#[test]
fn a_client_has_its_number_of_requests_at_once() {
    in_memory(&route("{ max = 2 }"), async |world| {
        let mut backend = world.backend(BACKEND);
        let request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let (mut one, mut two) = (world.client(), world.client());
        one.send(request).await;
        let mut first = backend.accept().await;
        first.request().await;
        two.send(request).await;
        let mut second = backend.accept().await;
        second.request().await;
        for _ in 0..3 {
            assert_eq!(world.ask(request).await.status(), 429);
        }
        assert_eq!(world.gateway.reached(Limit::ConcurrencyLimit), 3);
        let mut other = world.client_from("192.0.2.8:4000");
        other.send(request).await;
        let mut third = backend.accept().await;
        third.request().await;
        // A kept connection counts only while a request runs.
        first.send(REPLY).await;
        assert_eq!(one.reply(request).await.status(), 200);
        assert_eq!(world.pass(&mut backend, request, REPLY).await.1.status(), 200);
        // A client that leaves gives its place back.
        drop(two);
        let _ = second.rest().await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        one.send(request).await;
        let mut again = backend.accept().await;
        again.request().await;
        assert_eq!(world.pass(&mut backend, request, REPLY).await.1.status(), 200);
        for backend in [&mut again, &mut third] {
            backend.send(REPLY).await;
        }
        assert_eq!(one.reply(request).await.status(), 200);
        assert_eq!(other.reply(request).await.status(), 200);
    });
}

#[test]
fn the_key_says_what_counts_together() {
    in_memory(&route("[{ max = 1, key = \"{query.q}\" }, { max = 50 }]"), async |world| {
        let mut backend = world.backend(BACKEND);
        let ask = |query: &str| format!("GET /?{query} HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut one = world.client();
        one.send(ask("q=a")).await;
        let mut first = backend.accept().await;
        first.request().await;
        for query in ["q=a", "q=b&q=a", "q=%61", "x&q=a"] {
            assert_eq!(world.ask(&ask(query)).await.status(), 429, "{query}");
        }
        for query in ["q=b", "q=", ""] {
            let (_, reply) = world.pass(&mut backend, ask(query), REPLY).await;
            assert_eq!(reply.status(), 200, "{query}");
        }
        first.send(REPLY).await;
        assert_eq!(one.reply("").await.status(), 200);
    });
}

#[test]
fn counts_survive_a_reload() {
    in_memory(&route("{ max = 1 }"), async |world| {
        let mut backend = world.backend(BACKEND);
        let request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        let mut one = world.client();
        one.send(request).await;
        let mut first = backend.accept().await;
        first.request().await;
        world.reload_as(&route("{ max = 1 }"));
        assert_eq!(world.ask(request).await.status(), 429);
        first.send(REPLY).await;
        assert_eq!(one.reply(request).await.status(), 200);
        let (_, reply) = world.pass(&mut backend, request, REPLY).await;
        assert_eq!(reply.status(), 200);
    });
}
