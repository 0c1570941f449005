//! `bandwidth_limit`: replies are not faster than the limit, over each protocol.

use std::time::Duration;

use tokio::time::Instant;

use crate::application::{Application, reply};
use crate::http2_client::Http2Client;
use crate::world::in_memory;

/// Bytes of the replies. At 10,000 bytes per second, they take at least 9 s.
const LENGTH: usize = 100_000;

fn seconds(since: Instant) -> u64 {
    since.elapsed().as_secs()
}

#[test]
fn files_and_replies_of_backends_are_sent_at_the_rate() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.bin"), vec![b'x'; LENGTH]).unwrap();
    std::fs::write(folder.path().join("empty.bin"), "").unwrap();
    let routes = format!(
        "[[site.route]]\npath = \"/app\"\nproxy = \"http://10.0.0.1:3000\"\nbandwidth_limit = \
         \"10000\"\n[[site.route]]\npath = \"/after\"\nproxy = \"http://10.0.0.1:3000\"\n\
         bandwidth_limit = {{ rate = 10000, after = 50000 }}\n[[site.route]]\npath = \"/free\"\n\
         proxy = \"http://10.0.0.1:3000\"\n[[site.route]]\nfiles = \"{}\"\nbandwidth_limit = \
         \"10000\"\n",
        folder.path().display()
    );
    in_memory(&routes, async |world| {
        let text = "x".repeat(LENGTH);
        let chunked = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{LENGTH:x}\r\n{text}\r\n0\r\n\r\n"
        );
        let _application = Application::start(world, move |request, _| match &*request.start {
            "GET /app?chunked HTTP/1.1" => chunked.clone(),
            _ => reply("", &text),
        });
        for (target, expected) in [
            ("/app", 9..=11),
            ("/app?chunked", 9..=11),
            ("/after", 4..=6),
            ("/free", 0..=0),
            ("/a.bin", 9..=11),
        ] {
            let began = Instant::now();
            let got = world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            assert_eq!(got.body.len(), LENGTH, "{target}");
            assert!(expected.contains(&seconds(began)), "{target}: {:?}", began.elapsed());
        }
        for target in ["/empty.bin", "/missing.bin"] {
            let began = Instant::now();
            let mut client = world.client();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            client.reply("GET").await;
            // The connection serves another request.
            client.send("HEAD /a.bin HTTP/1.1\r\nHost: h\r\n\r\n").await;
            assert_eq!(client.reply("HEAD ").await.status(), 200);
            assert!(began.elapsed() < Duration::from_secs(2), "{target}");
        }
        let mut client = Http2Client::connect(world).await;
        let began = Instant::now();
        let streams = ["/app", "/a.bin"].map(|target| client.get(target));
        let free = client.get("/free");
        assert_eq!(client.reply(free).await.body.len(), LENGTH);
        assert!(seconds(began) < 2, "another stream is not delayed: {:?}", began.elapsed());
        for stream in streams {
            assert_eq!(client.reply(stream).await.body.len(), LENGTH);
        }
        assert!((9..=11).contains(&seconds(began)), "{:?}", began.elapsed());
    });
}

#[test]
fn a_client_that_leaves_ends_the_reply() {
    let routes = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\nbandwidth_limit = \"1\"\n";
    in_memory(routes, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let (_, mut connection) = backend.answer(&reply("", &"x".repeat(60_000))).await;
        client.head().await.unwrap();
        drop(client);
        assert!(connection.is_closed().await);
    });
}
