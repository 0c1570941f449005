//! `mirror`: another server gets copies of requests, and no client notices.

use std::time::Duration;

use crate::application::{Application, reply};
use crate::http2_client::Http2Client;
use crate::world::{World, in_memory};

const MIRROR: &str = "10.0.0.2:9000";

/// Returns a route to the application, with these settings of its mirror.
fn routes(settings: &str) -> String {
    format!(
        "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\nmirror = {{ to = \
         \"http://{MIRROR}\"{settings} }}\n"
    )
}

/// Starts a mirror that answers with an error, which no client may see.
fn start_mirror(world: &World) -> Application {
    Application::at(world, MIRROR, Duration::ZERO, |_, _| {
        "HTTP/1.1 500 Broken\r\nContent-Length: 5\r\nSet-Cookie: x=1\r\n\r\noops\n".to_owned()
    })
}

fn start_application(world: &World) -> Application {
    Application::start(world, |_, _| reply("", "page"))
}

/// Waits until the numbers of answered, failed, timed out, dropped and too large copies are these.
async fn until_counts(world: &World, wanted: [u64; 5]) {
    for _ in 0..1000 {
        let counts = world.status().mirrors[0].counts;
        let found =
            [counts.answered, counts.failed, counts.timed_out, counts.dropped, counts.too_large];
        if found == wanted && counts.active == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{:?}", world.status().mirrors);
}

#[test]
fn a_copy_has_the_request_without_credentials() {
    in_memory(&routes(""), async |world| {
        let (mirror, application) = (start_mirror(world), start_application(world));
        let fields = "Authorization: Basic eA==\r\nCookie: a=b\r\nProxy-Authorization: x\r\n\
                      X-Own: 1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n";
        let request = format!("PUT /a%20b?c=d HTTP/1.1\r\nHost: h\r\n{fields}\r\nbody");
        let mut client = world.client();
        client.send(&request).await;
        let mut answer = client.reply("PUT").await;
        while answer.status() == 100 {
            answer = client.reply("PUT").await;
        }
        assert_eq!((answer.status(), answer.text()), (200, "page"));
        assert_eq!(answer.values("set-cookie"), <[&str; 0]>::default());
        until_counts(world, [1, 0, 0, 0, 0]).await;
        let seen = mirror.seen.borrow();
        let copy = &seen[0];
        assert_eq!((&*copy.start, &copy.body[..]), ("PUT /a%20b?c=d HTTP/1.1", &b"body"[..]));
        for (name, values) in [
            ("host", &["h"][..]),
            ("x-own", &["1"]),
            ("x-forwarded-for", &["192.0.2.7"]),
            ("content-length", &["4"]),
            ("authorization", &[]),
            ("proxy-authorization", &[]),
            ("cookie", &[]),
            ("expect", &[]),
        ] {
            assert_eq!(copy.values(name), values, "{name}");
        }
        assert_eq!(copy.field("forebay-mirror").unwrap().len(), 32);
        let passed = &application.seen.borrow()[0];
        assert_eq!(passed.field("cookie"), Some("a=b"));
        assert_eq!(passed.field("forebay-mirror"), None);
    });
}

#[test]
fn credentials_and_the_backends_host_are_sent_if_the_configuration_says_so() {
    let routes = routes(", credentials = true, host = \"backend\"");
    in_memory(&routes, async |world| {
        let (mirror, _application) = (start_mirror(world), start_application(world));
        let request = "GET / HTTP/1.1\r\nHost: h\r\nCookie: a=b\r\n\r\n";
        assert_eq!(world.ask(request).await.text(), "page");
        until_counts(world, [1, 0, 0, 0, 0]).await;
        let copy = &mirror.seen.borrow()[0];
        assert_eq!((copy.field("cookie"), copy.field("host")), (Some("a=b"), Some(MIRROR)));
    });
}

#[test]
fn bodies_are_copied_up_to_a_limit_in_every_framing() {
    in_memory(&routes(", max_body = 10"), async |world| {
        let (mirror, application) = (start_mirror(world), start_application(world));
        let post = "POST / HTTP/1.1\r\nHost: h\r\n";
        let chunked =
            format!("{post}Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
        assert_eq!(world.ask(&chunked).await.text(), "page");
        until_counts(world, [1, 0, 0, 0, 0]).await;
        let large = format!("{post}Content-Length: 11\r\n\r\n01234567890");
        assert_eq!(world.ask(&large).await.text(), "page");
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("POST", "/two", &[("content-length", "10")], false);
        client.send_body(stream, b"0123456789");
        client.reply(stream).await;
        until_counts(world, [2, 0, 0, 0, 1]).await;
        let bodies: Vec<_> = mirror.seen.borrow().iter().map(|copy| copy.body.clone()).collect();
        assert_eq!(bodies, [b"abcdefg".to_vec(), b"0123456789".to_vec()]);
        assert_eq!(application.asked(), 3);
    });
}

#[test]
fn every_kind_of_answer_is_mirrored_but_no_refused_request() {
    let mirror = format!("mirror = \"http://{MIRROR}\"\n");
    let routes = format!(
        "[[site.route]]\npath = \"/fixed\"\nrespond = \"fixed\"\n{mirror}[[site.route]]\npath = \
         \"/denied\"\ndeny = \"all\"\nrespond = \"x\"\n{mirror}[[site.route]]\npath = \
         \"/moved\"\nredirect = \"/\"\n{mirror}[[site.route]]\ncache = true\n\
         proxy = \"http://10.0.0.1:3000\"\n{mirror}"
    );
    in_memory(&routes, async |world| {
        let mirror = start_mirror(world);
        let _application =
            Application::start(world, |_, _| reply("Cache-Control: max-age=60\r\n", "page"));
        let get = async |target: &str| {
            world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await.status()
        };
        assert_eq!(get("/fixed").await, 200);
        assert_eq!(get("/moved").await, 302);
        assert_eq!(get("/denied").await, 403);
        // The second reply comes from the store.
        assert_eq!((get("/a").await, get("/a").await), (200, 200));
        let post = "POST /fixed HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(world.ask(post).await.text(), "fixed");
        for _ in 0..100 {
            if mirror.seen.borrow().len() == 5 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let copies: Vec<_> = mirror.seen.borrow().iter().map(|copy| copy.start.clone()).collect();
        assert_eq!(copies.len(), 5, "{copies:?}");
        assert!(!copies.iter().any(|copy| copy.contains("/denied")), "{copies:?}");
        assert_eq!(mirror.seen.borrow()[4].body, b"hello");
    });
}

#[test]
fn a_mirror_that_never_answers_delays_nobody() {
    in_memory(&routes(", timeout = \"2s\", max_requests = 2"), async |world| {
        let mut mirror = world.backend(MIRROR);
        let application = start_application(world);
        let began = tokio::time::Instant::now();
        // HTTP/1.0 clients wait for the end of the connection.
        for _ in 0..5 {
            let mut client = world.client();
            client.send("GET / HTTP/1.0\r\n\r\n").await;
            assert_eq!(client.reply("GET").await.text(), "page");
            assert_eq!(client.rest().await.0, b"");
        }
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        let (first, second) = (mirror.accept().await, mirror.accept().await);
        until_counts(world, [0, 0, 2, 3, 0]).await;
        assert_eq!(application.asked(), 5);
        drop((first, second));
    });
}

#[test]
fn mirrors_that_refuse_break_off_or_flood_are_survived() {
    in_memory(&routes(""), async |world| {
        let _application = start_application(world);
        let request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(world.ask(request).await.text(), "page");
        until_counts(world, [0, 1, 0, 0, 0]).await;
        let mut mirror = world.backend(MIRROR);
        assert_eq!(world.ask(request).await.text(), "page");
        drop(mirror.accept().await);
        until_counts(world, [0, 2, 0, 0, 0]).await;
        for (bad, answered) in
            [("SSH-2.0-x\r\n\r\n", 0), ("HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", 0)]
        {
            let failed = world.status().mirrors[0].counts.failed;
            assert_eq!(world.ask(request).await.text(), "page");
            let (_, connection) = mirror.answer(bad).await;
            until_counts(world, [answered, failed + 1, 0, 0, 0]).await;
            drop(connection);
        }
        assert_eq!(world.ask(request).await.text(), "page");
        let (_, flood) =
            mirror.answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        let chunk = format!("{:x}\r\n{}\r\n", 10_000, "x".repeat(10_000));
        let mut sent = 0;
        while flood.link.write(chunk.as_bytes()).await.is_ok() {
            sent += chunk.len();
            assert!(sent < 4_000_000, "the flood ends");
        }
        until_counts(world, [1, 4, 0, 0, 0]).await;
    });
}

#[test]
fn copies_never_loop() {
    // The test sends the token of a copy back to the server, as a mirror does if it is a route of
    // the same server.
    in_memory(&routes(""), async |world| {
        let _application = start_application(world);
        let mut mirror = world.backend(MIRROR);
        let request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(world.ask(request).await.text(), "page");
        let (copy, _connection) = mirror.answer("HTTP/1.1 204 No Content\r\n\r\n").await;
        let token = copy.field("forebay-mirror").unwrap();
        let looped =
            |value: &str| format!("GET / HTTP/1.1\r\nHost: h\r\nForebay-Mirror: {value}\r\n\r\n");
        world.ask(&looped(token)).await;
        world.ask(&looped(&format!("other, {token}"))).await;
        until_counts(world, [1, 0, 0, 0, 0]).await;
        // A client cannot make up a token.
        world.ask(&looped("00000000000000000000000000000000")).await;
        until_counts(world, [1, 0, 1, 0, 0]).await;
    });
}

#[test]
fn a_percentage_selects_requests_and_a_reload_keeps_the_counters() {
    in_memory(&routes(", percent = 25"), async |world| {
        let (mirror, application) = (start_mirror(world), start_application(world));
        let mut client = world.client();
        for _ in 0..1000 {
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            assert_eq!(client.reply("GET").await.text(), "page");
        }
        assert_eq!(application.asked(), 1000);
        let copies = mirror.asked();
        // The range is seven standard deviations on each side of the mean.
        assert!((150..350).contains(&copies), "{copies}");
        until_counts(world, [copies as u64, 0, 0, 0, 0]).await;
        world.reload_as(&routes(""));
        until_counts(world, [copies as u64, 0, 0, 0, 0]).await;
    });
}

#[test]
fn upgrades_are_not_copied() {
    in_memory(&routes(""), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        client
            .send("GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await;
        let mut connection = backend.accept().await;
        connection.request().await;
        connection
            .send("HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await;
        assert_eq!(client.any_reply(false).await.unwrap().status(), 101);
        until_counts(world, [0; 5]).await;
    });
}
