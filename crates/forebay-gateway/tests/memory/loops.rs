//! Routes whose requests come back to them.

use std::future::Future;
use std::time::Duration;

use forebay_net::memory::{Destination, Link};
use tokio::task::spawn_local;
use tokio::time::Instant;

use crate::application::{Application, reply};
use crate::world::{World, in_memory};

/// Runs `test`, and connects the gateway's connections to 127.0.0.1:80 with its first listener.
async fn connected<T>(world: &World, test: impl Future<Output = T>) -> T {
    let mut links =
        world.gateway.network().listen(Destination::Tcp("127.0.0.1:80".parse().unwrap()));
    let connect = async {
        while let Some(link) = links.recv().await {
            let own = world.gateway.connect(0, "127.0.0.1:4000".parse().unwrap());
            spawn_local(async move { tokio::join!(copy(&link, &own), copy(&own, &link)) });
        }
    };
    tokio::select! {
        outcome = test => outcome,
        () = connect => panic!("the gateway is there as long as the test"),
    }
}

async fn copy(from: &Link, to: &Link) {
    let mut bytes = Vec::new();
    while from.read(&mut bytes).await.is_ok_and(|read| read > 0) {
        if to.write(&bytes).await.is_err() {
            return;
        }
        bytes.clear();
    }
    to.finish();
}

fn get(fields: &str) -> String {
    format!("GET /a HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
}

#[test]
fn a_loop_ends_with_an_error() {
    for route in [
        "proxy = \"http://127.0.0.1:80\"",
        // Requests that come back must not wait for the reply to themselves.
        "proxy = \"http://127.0.0.1:80\"\ncache = true",
        "proxy = { to = \"http://127.0.0.1:80\", http_version = \"2\" }",
        "respond = \"in\"\nforward_auth = { to = \"http://127.0.0.1:80/auth\" }",
    ] {
        in_memory(&format!("[[site.route]]\n{route}\n"), async |world| {
            connected(world, async {
                for fields in ["", "Forebay-Hops: x\r\n", "Connection: Forebay-Hops\r\n"] {
                    let since = Instant::now();
                    let reply = world.ask(&get(fields)).await;
                    assert_eq!(reply.status(), 508, "{route} {fields}");
                    assert!(since.elapsed() < Duration::from_secs(1), "{route} {fields}");
                }
            })
            .await;
            let errors = world.errors();
            assert!(errors.iter().any(|line| line.contains("508 a loop")), "{errors:?}");
        });
    }
}

#[test]
fn requests_between_sites_of_one_server_pass() {
    let sites = "[[site]]\nlisten = \"127.0.0.1:80\"\nhosts = [\"a\"]\n[[site.route]]\n\
                 proxy = { to = \"http://127.0.0.1:80\", host = \"backend\" }\n\
                 [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = [\"127.0.0.1\"]\n[[site.route]]\n\
                 proxy = \"http://10.0.0.1:3000\"\n";
    in_memory(sites, async |world| {
        let application = Application::start(world, |_, _| reply("", "page"));
        connected(world, async {
            let request = get("Forebay-Hops: 3\r\nforebay-hops: 2\r\n").replace(": h", ": a");
            assert_eq!(world.ask(&request).await.text(), "page");
        })
        .await;
        assert_eq!(application.seen.borrow()[0].values("forebay-hops"), ["4"]);
    });
}
