//! `cache_dir`: replies on disk answer like those in memory, also after a restart.

use std::time::{Duration, Instant};

use forebay_admin::{DiskRow, Purge, Purged};

use crate::application::{Application, reply};
use crate::world::{Message, World, in_memory};

/// A server whose replies of more than 64 KiB are only on disk.
fn configuration(dir: &tempfile::TempDir) -> String {
    format!(
        "[server]\ncache_memory = \"1MiB\"\ncache_dir = \"{}\"\ncache_disk = \"16MiB\"\n[[site]]\n\
         listen = [\"127.0.0.1:80\"]\n[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n\
         cache = {{ max_size = \"1MiB\" }}\n",
        dir.path().join("cache").display()
    )
}

fn disk(world: &World) -> DiskRow {
    world.status().cache.expect("a route uses the store").disk.expect("there is a directory")
}

/// Waits for the thread that writes to the disk. The clock of the test stands still meanwhile.
fn until(world: &World, condition: impl Fn(DiskRow) -> bool) {
    let start = Instant::now();
    while !condition(disk(world)) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", disk(world));
        std::thread::yield_now();
    }
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

/// Runs `test` with the store below `dir`.
fn run(dir: &tempfile::TempDir, test: impl AsyncFnOnce(&World)) {
    in_memory(&configuration(dir), async |world| {
        until(world, |disk| disk.state == "ready");
        test(world).await;
    });
}

#[test]
fn the_second_request_puts_a_reply_on_disk_where_it_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let answer = |request: &Message, number: usize| {
        let language = request.field("accept-language").unwrap_or("none");
        let fields = "Cache-Control: max-age=100\r\nVary: Accept-Language\r\n";
        reply(fields, &format!("{number} {} {language}", request.start))
    };
    let mut texts = Vec::new();
    run(&dir, async |world| {
        let application = Application::start(world, answer);
        for (target, language) in [("/a", "de"), ("/a", "fr"), ("/b", "de"), ("/once", "de")] {
            let fields = format!("Accept-Language: {language}\r\n");
            let first = get(world, target, &fields).await;
            if target != "/once" {
                assert_eq!(get(world, target, &fields).await.body, first.body);
                texts.push((target, fields, first.text().to_owned()));
            }
        }
        assert_eq!(application.asked(), 4);
        until(world, |disk| disk.written == 3);
    });
    run(&dir, async |world| {
        let application = Application::start(world, answer);
        for (target, fields, text) in &texts {
            let stored = get(world, target, fields).await;
            assert_eq!(stored.text(), text);
            assert!(stored.field("cache-status").unwrap().starts_with("forebay; hit; ttl="));
            assert_eq!(get(world, target, fields).await.text(), text);
        }
        assert_eq!((application.asked(), disk(world).hits), (0, 3), "then they are in memory");
        get(world, "/a", "Accept-Language: it\r\n").await;
        get(world, "/once", "Accept-Language: de\r\n").await;
        assert_eq!(application.asked(), 2);
        // A change removes all variants, also after the next restart.
        world.ask("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        let purge = |url: &str| Purge { what: Purged::Url(url.into()), is_soft: false };
        assert_eq!(world.purge(&purge("http://h/b")), Some(1));
        until(world, |disk| disk.replies == 0);
    });
    run(&dir, async |world| {
        let application = Application::start(world, answer);
        for (target, fields, _) in &texts {
            get(world, target, fields).await;
        }
        assert_eq!(application.asked(), 3);
    });
}

#[test]
fn a_reply_that_is_too_large_for_the_memory_is_sent_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let page: String = (0..40_000).map(|number| format!("{number:05}")).collect();
    let answer = {
        let page = page.clone();
        move |request: &Message, _: usize| {
            let fields = "Cache-Control: max-age=10\r\nETag: \"a\"\r\n";
            if request.field("if-none-match") == Some("\"a\"") {
                return format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n");
            }
            if request.start.contains("/chunked") {
                let head = format!("HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n");
                return format!("{head}\r\n{:x}\r\n{page}\r\n0\r\n\r\n", page.len());
            }
            reply(fields, &page)
        }
    };
    run(&dir, async |world| {
        let application = Application::start(world, answer.clone());
        for target in ["/", "/chunked"] {
            for asked in [1, 1, 0] {
                let whole = get(world, target, "").await;
                assert!(whole.text() == page, "{} bytes", whole.body.len());
                assert_eq!(application.asked(), asked, "{target}");
            }
            let part = get(world, target, "Range: bytes=100001-100009\r\n").await;
            assert_eq!((part.status(), part.text()), (206, &page[100_001..100_010]));
            let head = world.ask(&format!("HEAD {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            assert_eq!((head.status(), head.field("content-length")), (200, Some("200000")));
            assert_eq!(get(world, target, "If-None-Match: \"a\"\r\n").await.status(), 304);
            assert_eq!(application.asked(), 0);
        }
        // The origin confirms the reply, whose body stays on disk.
        let purge = Purge { what: Purged::Prefix(b"http://h/".to_vec()), is_soft: true };
        assert_eq!(world.purge(&purge), Some(2));
        for asked in [1, 0] {
            assert!(get(world, "/", "").await.text() == page);
            assert_eq!(application.asked(), asked);
        }
        let confirmed = get(world, "/chunked", "").await;
        assert!(confirmed.field("cache-status").unwrap().contains("fwd-status=304"));
        assert_eq!((application.asked(), disk(world).replies), (1, 2));
    });
    run(&dir, async |world| {
        let application = Application::start(world, answer);
        assert!(get(world, "/", "").await.text() == page);
        assert_eq!(application.asked(), 1, "the purge counts after a restart, too");
        assert!(get(world, "/", "").await.text() == page);
        assert_eq!(application.asked(), 0);
        // A file that changed is not sent.
        for part in std::fs::read_dir(dir.path().join("cache")).unwrap() {
            let part = part.unwrap().path();
            for file in
                part.is_dir().then(|| std::fs::read_dir(part).unwrap()).into_iter().flatten()
            {
                let file = std::fs::OpenOptions::new().write(true).open(file.unwrap().path());
                std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), b"?", 100_000).unwrap();
            }
        }
        assert!(get(world, "/", "").await.text() == page);
        assert_eq!((application.asked(), disk(world).broken), (1, 1));
    });
}

/// When a resource begins to send `Vary`, its earlier reply without `Vary` answers no request.
#[test]
fn a_large_reply_replaces_the_one_with_another_vary() {
    let dir = tempfile::tempdir().unwrap();
    let page = |language: &str| " ".repeat(100_000) + language;
    run(&dir, async |world| {
        let application = Application::start(world, move |request, number| {
            let language = request.field("accept-language").unwrap_or("none");
            let vary = if number > 2 { "Vary: Accept-Language\r\n" } else { "" };
            let fields = "Cache-Control: max-age=10\r\n";
            reply(&format!("{fields}{vary}"), &page(language))
        });
        let ask = async |language: &str| {
            let reply = get(world, "/", &format!("Accept-Language: {language}\r\n")).await;
            (reply.text().trim_start().to_owned(), application.seen.borrow().len())
        };
        assert_eq!(ask("de").await, ("de".to_owned(), 1));
        assert_eq!(ask("de").await, ("de".to_owned(), 2));
        until(world, |disk| disk.replies == 1);
        // Entries on disk age by the wall clock, so end their lifetime.
        let purge = Purge { what: Purged::Prefix(b"http://h/".to_vec()), is_soft: true };
        assert_eq!(world.purge(&purge), Some(1));
        assert_eq!(ask("de").await, ("de".to_owned(), 3));
        tokio::time::sleep(Duration::from_secs(1)).await;
        until(world, |disk| disk.written == 2);
        assert_eq!(disk(world).replies, 1, "the reply without Vary is gone");
        assert_eq!(ask("fr").await, ("fr".to_owned(), 4));
        assert_eq!(ask("de").await, ("de".to_owned(), 4));
    });
}

#[test]
fn an_unfinished_large_reply_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    run(&dir, async |world| {
        let application = Application::start(world, |request, number| {
            let half = "x".repeat(100_000);
            if request.start.contains("/cut") && number < 3 {
                let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nConnection: close\r\n";
                return format!("{head}Content-Length: 200000\r\n\r\n{half}");
            }
            reply("Cache-Control: max-age=60\r\n", &half)
        });
        let mut client = world.client();
        client.send("GET /cut HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let _ = tokio::time::timeout(Duration::from_secs(100), client.rest()).await;
        let mut client = world.client();
        client.send("GET /cut HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let _ = tokio::time::timeout(Duration::from_secs(100), client.rest()).await;
        assert_eq!((disk(world).replies, disk(world).bytes), (0, 0));
        let asked = application.asked();
        assert!(asked >= 2, "{asked}");
    });
}

#[test]
fn a_slow_download_of_a_large_reply_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let page = "x".repeat(900_000);
    run(&dir, async |world| {
        let answer = page.clone();
        let application = Application::start(world, move |request, _| {
            let fields = "Cache-Control: max-age=100\r\n";
            if request.start.contains("/chunked") {
                let head = format!("HTTP/1.1 200 OK\r\n{fields}Transfer-Encoding: chunked\r\n");
                return format!("{head}\r\n{:x}\r\n{answer}\r\n0\r\n\r\n", answer.len());
            }
            reply(fields, &answer)
        });
        // The start of a body of unknown length may fit into memory, so that reply has a backlog.
        for (target, asked) in [("/", 5), ("/chunked", 2)] {
            // Only the second request puts the reply on disk.
            get(world, target, "").await;
            let mut slow = world.client();
            slow.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            slow.head().await.unwrap();
            let began = tokio::time::Instant::now();
            for _ in 0..3 {
                let whole = get(world, target, "").await;
                assert_eq!(whole.body.len(), page.len());
            }
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
            assert_eq!(application.asked(), asked, "{target}");
            drop(slow);
        }
    });
}

#[test]
fn a_change_after_a_restart_removes_the_replies_for_rewritten_urls() {
    let dir = tempfile::tempdir().unwrap();
    let rewrites = "[[site.route]]\npath = \"/old/*\"\nrewrite = \"/index.php?p={rest}\"\n\
                    [[site.route]]\npath = \"/other/*\"\nrewrite = \"/index.php?p={rest}\"\n";
    let text = configuration(&dir).replace("[[site.route]]", &format!("{rewrites}[[site.route]]"));
    let answer = |request: &Message, _: usize| {
        let fields = "Cache-Control: max-age=100\r\nVary: Accept-Language\r\n";
        reply(if request.start.starts_with("POST") { "Location: /old/b\r\n" } else { fields }, "x")
    };
    let targets = ["/old/a", "/other/a", "/index.php?p=a", "/old/b", "/old/c"];
    let asked = async |world: &World, application: &Application| {
        for target in targets {
            get(world, target, "Accept-Language: de\r\n").await;
        }
        application.asked()
    };
    in_memory(&text, async |world| {
        until(world, |disk| disk.state == "ready");
        let application = Application::start(world, answer);
        get(world, "/old/a", "Accept-Language: fr\r\n").await;
        assert_eq!(asked(world, &application).await, 6);
        get(world, "/old/a", "Accept-Language: fr\r\n").await;
        assert_eq!(asked(world, &application).await, 0);
        until(world, |disk| disk.written == 6);
    });
    in_memory(&text, async |world| {
        until(world, |disk| disk.state == "ready");
        let application = Application::start(world, answer);
        assert_eq!(disk(world).replies, 6);
        world.ask("POST /other/a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        application.asked();
        assert_eq!(disk(world).replies, 1);
        let purge = |url: &str| Purge { what: Purged::Url(url.into()), is_soft: false };
        assert_eq!(world.purge(&purge("http://h/index.php?p=d")), Some(0));
        assert_eq!(world.purge(&purge("http://h/index.php?p=c")), Some(1));
        assert_eq!(asked(world, &application).await, 5);
    });
}
