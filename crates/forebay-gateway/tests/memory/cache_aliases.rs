//! `cache`: changes and purges of resources that clients reach by several URLs.

use forebay_admin::{Purge, Purged};
use tokio::task::spawn_local;

use crate::application::{Application, reply};
use crate::fastcgi::{Connection, end, stdout};
use crate::world::{Message, World, in_memory};

async fn get_from(world: &World, host: &str, target: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await
}

/// Asks for each target, and returns those that a stored reply answers.
async fn stored<'t>(world: &World, host: &str, targets: &[&'t str]) -> Vec<&'t str> {
    let mut found = Vec::new();
    for target in targets {
        let reply = get_from(world, host, target).await;
        if reply.field("cache-status").unwrap().starts_with("forebay; hit") {
            found.push(*target);
        }
    }
    found
}

async fn post(world: &World, host: &str, target: &str) {
    let post = format!("POST {target} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(world.ask(&post).await.status(), 200, "{target}");
}

fn purge(world: &World, url: &str) -> usize {
    let what = Purged::Url(url.as_bytes().to_vec());
    world.purge(&Purge { what, is_soft: false }).unwrap()
}

/// Routes of a site whose application gets a parameter instead of a path.
fn rewriting(cache: &str) -> String {
    let route =
        |path: &str, to: &str| format!("[[site.route]]\npath = \"{path}\"\nrewrite = \"{to}\"\n");
    format!(
        "{}{}[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = {cache}\n",
        route("/old/*", "/index.php?p={rest}"),
        route("/other/*", "/index.php?p={rest}"),
    )
}

/// Starts an application whose replies to POST name the target after `to=` in `Location`.
fn application(world: &World) -> Application {
    Application::start(world, |request, number| {
        let target = request.start.split(' ').nth(1).unwrap();
        match (request.start.starts_with("POST"), target.split_once("to=")) {
            (true, Some((_, to))) => reply(&format!("Location: {to}\r\n"), ""),
            (true, None) => reply("", ""),
            _ => reply("Cache-Control: max-age=60\r\n", &number.to_string()),
        }
    })
}

#[test]
fn a_change_of_a_rewritten_target_removes_the_replies_for_all_urls() {
    let urls = ["/old/z", "/index.php?p=z", "/other/z", "/old/../index.php?p=z"];
    for key in ["", ", key = \"{host}{path}{query.p}\"", ", key = \"{uri}\""] {
        in_memory(&rewriting(&format!("{{ valid = \"1h\"{key} }}")), async |world| {
            let _application = application(world);
            assert!(stored(world, "h", &["/old/y", "/index.php?p=y"]).await.is_empty());
            for change in ["/index.php?p=z", "/other/z", "/comment?to=/index.php?p=z"] {
                stored(world, "h", &urls).await;
                assert_eq!(stored(world, "h", &urls).await, urls, "{key}");
                post(world, "h", change).await;
                assert!(stored(world, "h", &urls).await.is_empty(), "{key}: {change}");
            }
            // The application may not know the target, and names the URL of its clients.
            post(world, "h", "/comment?to=/old/z").await;
            assert_eq!(stored(world, "h", &urls).await, urls[1..], "{key}");
            assert_eq!(purge(world, "http://h/index.php?p=z"), 4, "{key}");
            assert!(stored(world, "h", &urls).await.is_empty(), "{key}");
            let others = ["/old/y", "/index.php?p=y"];
            assert_eq!(stored(world, "h", &others).await, others, "{key}");
        });
    }
}

#[test]
fn a_change_on_one_host_leaves_the_replies_of_other_hosts() {
    let site = "[[site]]\nlisten = [\"127.0.0.1:80\"]\nhosts = [\"*.example.org\"]\n";
    let [a, b] = ["a.example.org", "b.example.org"];
    for (key, is_shared) in
        [("", false), (", key = \"{map.tenant}{uri}\"", false), (", key = \"{uri}\"", true)]
    {
        let map = "[map.tenant]\nfrom = \"{host}\"\ndefault = \"x\"\n\
                   \"a.example.org\" = \"a\"\n\"b.example.org\" = \"b\"\n";
        let routes = rewriting(&format!("{{ valid = \"1h\"{key} }}"));
        in_memory(&format!("{map}{site}{routes}"), async |world| {
            let _application = application(world);
            let urls = ["/old/z", "/other/z"];
            for host in [a, b] {
                stored(world, host, &urls).await;
                assert_eq!(stored(world, host, &urls).await, urls);
            }
            for change in
                ["/old/z", "/index.php?p=z", "/c?to=/old/z", "/c?to=//b.example.org/old/z"]
            {
                post(world, a, change).await;
                let left = stored(world, b, &urls).await;
                if !is_shared {
                    assert_eq!(left, urls, "{key}: {change}");
                }
                stored(world, a, &urls).await;
            }
            assert_eq!(purge(world, "http://a.example.org/index.php?p=z"), 2, "{key}");
            let left = stored(world, b, &urls).await;
            assert_eq!(left.is_empty(), is_shared, "{key}");
        });
    }
}

/// A change removes few replies, so that a client cannot empty the store with one request.
#[test]
fn a_change_of_a_front_controller_leaves_the_pages() {
    let routes = "[[site.route]]\npath = \"/pages/*\"\nrewrite = \"/index.php\"\n\
                  [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = true\n";
    in_memory(routes, async |world| {
        let _application = application(world);
        let pages: Vec<_> = (0..260).map(|number| format!("/pages/{number}")).collect();
        let pages: Vec<_> = pages.iter().map(|page| &**page).collect();
        stored(world, "h", &pages[..200]).await;
        post(world, "h", "/index.php").await;
        assert!(stored(world, "h", &pages).await.is_empty(), "few pages are removed");
        post(world, "h", "/index.php").await;
        post(world, "h", "/pages/7").await;
        post(world, "h", "/comment?to=/pages/8").await;
        let left = stored(world, "h", &pages).await;
        let expected: Vec<_> =
            pages.iter().copied().filter(|page| !["/pages/7", "/pages/8"].contains(page)).collect();
        assert_eq!(left, expected);
        assert_eq!(purge(world, "http://h/index.php"), 260, "a purge removes all");
    });
}

#[test]
fn a_change_removes_what_internal_redirects_have_answered() {
    let routes = "[[site.route]]\npath = \"/internal/*\"\ninternal = true\ncache = true\n\
                  proxy = \"http://10.0.0.1:3000\"\n\
                  [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ninternal_redirects = true\n";
    in_memory(routes, async |world| {
        let _application = Application::start(world, |request, number| match &*request.start {
            "GET /docs/1 HTTP/1.1" => reply("X-Accel-Redirect: /internal/1\r\n", ""),
            "GET /docs/2 HTTP/1.1" => reply("X-Accel-Redirect: /internal/2\r\n", ""),
            "GET /copy/1 HTTP/1.1" => reply("X-Accel-Redirect: /internal/1\r\n", ""),
            start if start.starts_with("POST /accel") => {
                reply("X-Accel-Redirect: /internal/1\r\n", "")
            }
            start if start.starts_with("POST") => reply("", ""),
            _ => reply("Cache-Control: max-age=60\r\n", &number.to_string()),
        });
        let urls = ["/docs/1", "/docs/2", "/copy/1"];
        assert!(stored(world, "h", &urls).await.is_empty());
        assert_eq!(stored(world, "h", &urls).await, urls);
        post(world, "h", "/docs/1").await;
        assert_eq!(stored(world, "h", &urls).await, ["/docs/2", "/copy/1"]);
        post(world, "h", "/accel").await;
        assert_eq!(stored(world, "h", &urls).await, ["/docs/2"]);
        assert_eq!(purge(world, "http://h/docs/2"), 1);
        assert_eq!(stored(world, "h", &urls).await, ["/docs/1", "/copy/1"]);
        // The POST that was redirected has an answer of its own.
        assert_eq!(purge(world, "http://h/internal/1"), 3);
    });
}

/// Scripts get the URL of the page in REQUEST_URI, so each page has its own copy.
#[test]
fn a_change_removes_all_copies_of_an_included_document() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("part.php"), "").unwrap();
    let root = folder.path().display();
    let routes = format!(
        "[[site.route]]\nsuffix = \".php\"\ncache = true\n\
         fastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\" }}\n\
         [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\nssi = true\ncache = true\n"
    );
    in_memory(&routes, async |world| {
        let mut scripts = world.backend("10.0.0.1:9000");
        spawn_local(async move {
            let mut number = 0;
            loop {
                let mut connection = Connection::accept(&mut scripts).await;
                while let Some(asked) = connection.asked().await {
                    number += 1;
                    let text = format!("Cache-Control: max-age=60\n\n{number}");
                    connection.send([stdout(asked.id, &text), end(asked.id)].concat()).await;
                }
            }
        });
        let _application = Application::start(world, |_, _| {
            let fields = "Cache-Control: max-age=60\r\nContent-Type: text/html\r\n";
            reply(fields, "<!--#include virtual=\"/part.php?x\" -->")
        });
        let text = async |page: &str| get_from(world, "h", page).await.text().to_owned();
        let pages = ["/page", "/page?a", "/page?b"];
        let mut before = Vec::new();
        for page in pages {
            before.push(text(page).await);
            assert_eq!(text(page).await, *before.last().unwrap());
        }
        assert_eq!(before, ["1", "2", "3"]);
        post(world, "h", "/part.php?x").await;
        for (page, before) in pages.into_iter().zip(&mut before) {
            let now = text(page).await;
            assert_ne!(now, *before, "{page}");
            *before = now;
        }
        // A change of a page also outdates its own copies.
        post(world, "h", "/page?a").await;
        assert_eq!(text("/page").await, before[0]);
        assert_eq!(text("/page?b").await, before[2]);
        assert_ne!(text("/page?a").await, before[1]);
        assert_eq!(purge(world, "http://h/part.php?x"), 3);
    });
}

#[test]
fn a_purge_finds_the_keys_that_parts_of_a_path_give() {
    let regex = "path_regex = '^/(?:a|b)/(?<id>\\d+)$'\n";
    for (condition, key) in [
        (regex, "{id}"),
        (regex, "{id}{cookie.lang}"),
        ("path = [\"/a/*\", \"/b/*\"]\n", "{rest}"),
        ("path = [\"/a/*\", \"/b/*\"]\n", "{map.number}"),
    ] {
        let map = "[map.number]\nfrom = \"{rest}\"\ndefault = \"{rest}\"\n";
        let site = format!(
            "{map}[[site]]\nlisten = [\"127.0.0.1:80\"]\n[[site.route]]\n{condition}\
             proxy = \"http://10.0.0.1:3000\"\ncache = {{ valid = \"1h\", key = \"{key}\" }}\n\
             [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = true\n"
        );
        in_memory(&site, async |world| {
            let _application = application(world);
            let urls = ["/a/1", "/a/2", "/a/x/y", "/"];
            stored(world, "h", &urls).await;
            assert_eq!(stored(world, "h", &urls).await, urls, "{key}");
            for url in ["/a", "/c/1", "/a/3", "/1", "/b"] {
                assert_eq!(purge(world, &format!("http://h{url}")), 0, "{key}: {url}");
            }
            assert_eq!(purge(world, "http://h/a/2"), 1, "{key}");
            assert_eq!(stored(world, "h", &urls).await, ["/a/1", "/a/x/y", "/"], "{key}");
            // This URL has the reply of another one.
            assert_eq!(stored(world, "h", &["/b/1"]).await, ["/b/1"], "{key}");
            assert_eq!(purge(world, "http://h/b/1"), 1, "{key}");
            assert_eq!(stored(world, "h", &urls).await, ["/a/2", "/a/x/y", "/"], "{key}");
        });
    }
}

#[test]
fn replies_say_why_a_request_did_not_use_the_store() {
    let routes = "[[site.route]]\npath = \"/plain\"\nproxy = \"http://10.0.0.1:3000\"\n\
                  [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = true\n";
    in_memory(routes, async |world| {
        let _application = Application::start(world, |request, _| {
            let is_private = request.start.contains("/private");
            reply(if is_private { "Cache-Control: private\r\n" } else { "" }, "x")
        });
        let body = "Content-Length: 1\r\n";
        for (method, target, fields, body, status) in [
            ("GET", "/", "Connection: X-A\r\nX-A: 1\r\n", "", Some("forebay; fwd=bypass")),
            ("POST", "/", body, "x", Some("forebay; fwd=method")),
            ("OPTIONS", "/", "", "", Some("forebay; fwd=method")),
            ("GET", "/private", "", "", Some("forebay; fwd=miss")),
            ("GET", "/private", "", "", Some("forebay; fwd=miss")),
            ("GET", "/", "Range: bytes=0-0\r\n", "", Some("forebay; fwd=miss")),
            ("POST", "/plain", body, "x", None),
            ("GET", "/plain", "", "", None),
        ] {
            let request = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}");
            let reply = world.ask(&request).await;
            assert_eq!(reply.status(), 200, "{method} {target} {fields}");
            assert_eq!(reply.field("cache-status"), status, "{method} {target} {fields}");
        }
    });
}
