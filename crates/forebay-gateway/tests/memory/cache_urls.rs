//! `cache`: URLs that Forebay rewrites, and purges by URL.

use forebay_admin::{Purge, Purged};
use tokio::task::spawn_local;

use crate::application::{Application, reply};
use crate::fastcgi::{Connection, end, stdout};
use crate::world::{Message, World, in_memory};

async fn get(world: &World, target: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await
}

/// Returns true if a stored reply answers a request for `target`.
async fn is_hit(world: &World, target: &str) -> bool {
    let reply = get(world, target).await;
    reply.field("cache-status").unwrap().starts_with("forebay; hit")
}

async fn post(world: &World, target: &str) {
    let post = format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(world.ask(&post).await.status(), 200, "{target}");
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
            post(world, "/other/z").await;
            assert!(!is_hit(world, "/other/z").await, "{key}");
        });
    }
}

#[test]
fn a_key_with_rest_and_query_distinguishes_queries_that_a_rewrite_replaces() {
    let rewrite = "[[site.route]]\npath = \"/old/*\"\nrewrite = \"/page/{rest}?fixed=1\"\n";
    let cached = route("{ valid = \"1h\", key = \"{rest}{query}\" }");
    let cached = cached.replace("route]]\n", "route]]\npath = \"/page/*\"\n");
    in_memory(&format!("{rewrite}{cached}"), async |world| {
        let _application = numbered(world);
        assert!(!is_hit(world, "/old/z?a=1").await);
        assert!(is_hit(world, "/old/z?a=1").await);
        assert!(!is_hit(world, "/old/z?a=2").await, "REQUEST_URI has another query");
    });
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
        for prefix in ["//H/", "HTTP://H/a"] {
            get(world, "/a?b").await;
            for (prefix, count) in [("//h/A", 0), ("https://h/", 0), (prefix, 1)] {
                let what = Purged::Prefix(prefix.into());
                assert_eq!(world.purge(&Purge { what, is_soft: false }), Some(count), "{prefix}");
            }
        }
        // Bytes that no URL contains.
        for url in
            ["", "/", "//", "http://", "http://h/a\r\nHost: x\r\n\r\n", "http://h\0/a", "://"]
        {
            assert_eq!(purge(world, url), 0, "{url:?}");
        }
    });
}

#[test]
fn a_change_removes_replies_that_a_fallback_gave() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().display();
    for cache in ["true", "{ key = \"{host}{path}{query}\" }", "{ key = \"{rest}{query.a}\" }"] {
        let routes = format!(
            "[[site.route]]\nsuffix = \".php\"\nproxy = \"http://10.0.0.1:3000\"\ncache = {cache}\n\
         [[site.route]]\nfiles = \"{root}\"\nfallback_to = \"/index.php\"\n"
        );
        in_memory(&routes, async |world| {
            let _application = Application::start(world, |request, number| {
                let start = request.start.strip_prefix("POST /comment.php?");
                match start.and_then(|rest| rest.split_once(' ')) {
                    Some((changed, _)) => reply(&format!("Location: {changed}\r\n"), ""),
                    None => reply("Cache-Control: max-age=60\r\n", &number.to_string()),
                }
            });
            for target in ["/post-1/", "/post-1/?a=b", "/x/../post-1/"] {
                for changed in [&format!("/comment.php?{target}"), target] {
                    assert!(!is_hit(world, target).await, "{target}");
                    assert!(is_hit(world, target).await, "{target}");
                    post(world, "/comment.php?/other").await;
                    assert!(is_hit(world, target).await, "{target}");
                    post(world, changed).await;
                }
                assert!(!is_hit(world, target).await, "{target}");
            }
        });
    }
}

#[test]
fn a_change_removes_replies_that_an_index_script_gave() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["index.php", "comment.php"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let root = folder.path().display();
    let routes = format!(
        "[[site.route]]\nsuffix = \".php\"\ncache = true\n\
         fastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\" }}\n\
         [[site.route]]\nfiles = \"{root}\"\n"
    );
    in_memory(&routes, async |world| {
        let mut scripts = world.backend("10.0.0.1:9000");
        spawn_local(async move {
            loop {
                let mut connection = Connection::accept(&mut scripts).await;
                while let Some(asked) = connection.asked().await {
                    let text = "Cache-Control: max-age=60\nContent-Location: /?a\n\n";
                    connection.send([stdout(asked.id, text), end(asked.id)].concat()).await;
                }
            }
        });
        for target in ["/?a", "/?b"] {
            assert!(!is_hit(world, target).await, "{target}");
            assert!(is_hit(world, target).await, "{target}");
        }
        post(world, "/comment.php").await;
        assert!(!is_hit(world, "/?a").await);
        assert!(is_hit(world, "/?b").await);
    });
}

/// The application gets only the target of the document over HTTP, so a client cannot choose what
/// others get.
#[test]
fn pages_share_the_documents_that_they_include_over_http() {
    let routes = format!("{}ssi = true\n", route("true"));
    in_memory(&routes, async |world| {
        let application = Application::start(world, |request, number| {
            let fields = "Cache-Control: max-age=60\r\nContent-Type: text/html\r\n";
            if request.start.contains("/part") {
                return reply(fields, &number.to_string());
            }
            reply(fields, "<!--#include virtual=\"/part?x\" -->")
        });
        assert_eq!(get(world, "/page?evil").await.text(), "2");
        assert_eq!(get(world, "/page?evil").await.text(), "2");
        for asked in &application.seen.borrow()[1..] {
            let lines = format!("{} {:?}", asked.start, asked.fields);
            assert!(asked.start.contains("/part") && !lines.contains("evil"), "{lines}");
        }
        assert_eq!(get(world, "/page").await.text(), "2");
        assert_eq!(get(world, "/part?x").await.text(), "2");
        assert_eq!(purge(world, "http://h/"), 0);
        assert_eq!(purge(world, "http://h/part?x"), 1);
        assert_eq!(get(world, "/page").await.text(), "4");
        post(world, "/part?x").await;
        assert_eq!(get(world, "/page?evil").await.text(), "6");
        assert_eq!(get(world, "/page").await.text(), "6");
    });
}

#[test]
fn pages_share_no_documents_if_a_trusted_proxy_names_their_urls() {
    let site = "[[site]]\nlisten = \"127.0.0.1:80\"\ntrusted_proxies = \"192.0.2.0/24\"\n";
    let routes = format!("{site}{}ssi = true\n", route("true"));
    in_memory(&routes, async |world| {
        let _application = Application::start(world, |request, _| {
            let fields = "Cache-Control: max-age=60\r\nContent-Type: text/html\r\n";
            if request.start.contains("/part") {
                return reply(fields, &format!("{:?}", request.fields));
            }
            reply(fields, "<!--#include virtual=\"/part?x\" -->")
        });
        let evil = "GET /page?evil HTTP/1.1\r\nHost: h\r\nX-Original-URI: /page?evil\r\n\r\n";
        world.ask(evil).await;
        for target in ["/page", "/part?x"] {
            let reply = get(world, target).await;
            assert!(!reply.text().contains("evil"), "{target}: {}", reply.text());
        }
    });
}
