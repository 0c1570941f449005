//! `cache`: URLs that Forebay rewrites, and purges by URL.

use forebay_admin::{Purge, Purged};

use crate::application::{Application, reply};
use crate::world::{Message, World, in_memory};

async fn get(world: &World, target: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await
}

/// Returns true if a stored reply answers a request for `target`.
async fn is_hit(world: &World, target: &str) -> bool {
    let reply = get(world, target).await;
    reply.field("cache-status").unwrap().starts_with("forebay; hit")
}

fn purge(world: &World, url: &str) -> usize {
    let what = Purged::Url(url.as_bytes().to_vec());
    world.purge(&Purge { what, is_soft: false }).unwrap()
}

fn route(cache: &str) -> String {
    format!("[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = {cache}\n")
}

fn numbered(world: &World) -> Application {
    let fields = "Cache-Control: max-age=60\r\n";
    Application::start(world, move |_, number| reply(fields, &number.to_string()))
}

#[test]
fn a_rewritten_url_and_its_target_have_replies_of_their_own() {
    let rewrites = "[[site.route]]\npath = \"/old/*\"\nrewrite = \"/index.php?p={rest}\"\n\
                    [[site.route]]\npath = \"/other/*\"\nrewrite = \"/index.php?p={rest}\"\n";
    for key in ["", ", key = \"{host}{path}{query.p}\"", ", key = \"{uri}\""] {
        let routes = format!("{rewrites}{}", route(&format!("{{ valid = \"1h\"{key} }}")));
        in_memory(&routes, async |world| {
            let _application = numbered(world);
            let urls = ["/old/z", "/index.php?p=z", "/other/z", "/old/../index.php?p=z"];
            for url in urls {
                assert!(!is_hit(world, url).await, "{key}: {url}");
            }
            for url in urls {
                assert!(is_hit(world, url).await, "{key}: {url}");
            }
            // A purge by the URL of the client removes the reply for it.
            assert_eq!(purge(world, "http://h/old/z"), 1, "{key}");
            assert!(!is_hit(world, "/old/z").await, "{key}");
            assert!(is_hit(world, "/other/z").await, "{key}");
            // An unsafe request for the URL removes the reply, too.
            let post = "POST /other/z HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
            world.ask(post).await;
            assert!(!is_hit(world, "/other/z").await, "{key}");
            assert!(is_hit(world, "/old/z").await, "{key}");
        });
    }
}

#[test]
fn a_purge_by_url_finds_the_replies_of_all_urls_with_the_same_key() {
    let key = "{host}{path}{query.page}{cookie.lang}";
    in_memory(&route(&format!("{{ key = \"{key}\" }}")), async |world| {
        let _application = numbered(world);
        get(world, "/a?page=1&utm=x").await;
        get(world, "/a?page=2&utm=x").await;
        get(world, "/b?page=1&utm=x").await;
        world.ask("GET /a?page=1 HTTP/1.1\r\nHost: h\r\nCookie: lang=de\r\n\r\n").await;
        assert!(is_hit(world, "/a?page=1").await);
        for url in
            ["http://h/a?page=3", "http://h/a", "http://i/a?page=1", "http://h/a?page=1&page=1"]
        {
            assert_eq!(purge(world, url), 0, "{url}");
        }
        assert!(is_hit(world, "/a?page=1").await);
        // The reply for another cookie has the same URL.
        assert_eq!(purge(world, "HTTP://H/a?page=1"), 2);
        for (target, is_kept) in [("/a?page=1", false), ("/a?page=2", true), ("/b?page=1", true)] {
            assert_eq!(is_hit(world, target).await, is_kept, "{target}");
        }
    });
}

#[test]
fn a_purge_by_a_url_without_a_scheme_is_for_both() {
    in_memory(&route("true"), async |world| {
        let _application = numbered(world);
        get(world, "/a?b").await;
        assert_eq!(purge(world, "https://h/a?b"), 0);
        assert_eq!(purge(world, "//h/a?b"), 1);
        assert!(!is_hit(world, "/a?b").await);
        let what = Purged::Prefix(b"//h/".to_vec());
        assert_eq!(world.purge(&Purge { what, is_soft: false }), Some(1));
        // Bytes that no URL contains.
        for url in
            ["", "/", "//", "http://", "http://h/a\r\nHost: x\r\n\r\n", "http://h\0/a", "://"]
        {
            assert_eq!(purge(world, url), 0, "{url:?}");
        }
    });
}
