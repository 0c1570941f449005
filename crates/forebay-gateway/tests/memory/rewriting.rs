//! `rewrite`, `fallback_to` with placeholders, and `redirect`: the paths that routes and
//! applications see, and the rules that a new path cannot evade.

use tempfile::TempDir;

use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

async fn get(world: &World, target: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: www.example:81\r\n\r\n")).await
}

/// Returns the request line that the backend gets.
async fn passed(world: &World, target: &str) -> String {
    let mut backend = world.backend("10.0.0.1:3000");
    let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
    world.pass(&mut backend, request, OK).await.0.start
}

#[test]
fn a_rewritten_path_is_matched_again() {
    let routes = "[[site.route]]\npath = \"/new/*\"\nrespond = \"new\"\n\
                  [[site.route]]\npath = \"/old/*\"\nrewrite = \"/new/{rest}\"\n\
                  [[site.route]]\npath = \"/older/*\"\nrewrite = \"/old/{rest}\"\n\
                  [[site.route]]\npath = \"/p/*\"\nrewrite = \"/q/{rest}?a={rest}\"\n\
                  [[site.route]]\npath = \"/d/*\"\nrewrite = \"/q/{rest}?\"\n\
                  [[site.route]]\npath = \"/u/*\"\nrewrite = \"/q?u={uri}\"\n\
                  [[site.route]]\npath = \"/q*\"\nproxy = \"http://10.0.0.1:3000\"\n\
                  [[site.route]]\npath = \"/*\"\nrewrite = \"/new/x\"\n";
    in_memory(routes, async |world| {
        for target in ["/old/a", "/older/a?b", "/anything", "/new/"] {
            assert_eq!(get(world, target).await.text(), "new", "{target}");
        }
        for (target, asked) in [
            ("/p/a%3fb%26c", "/q/a%3fb%26c?a=a%3fb%26c"),
            ("/p/a&b?c=d", "/q/a&b?a=a%26b&c=d"),
            ("/p/?", "/q/?a="),
            ("/d/a?b=c", "/q/a"),
            ("/u/a?b=c&d", "/q?u=/u/a%3Fb%3Dc%26d"),
            ("/p/%41%3b/a%20b", "/q/%41%3b/a%20b?a=%41%3b/a%20b"),
        ] {
            assert_eq!(passed(world, target).await, format!("GET {asked} HTTP/1.1"), "{target}");
        }
    });
}

#[test]
fn method_and_body_stay_and_the_log_has_the_clients_path() {
    let routes = "[log]\naccess = \"stdout\"\nformat = \"%r %U%q\"\n[[site]]\n\
                  listen = \"127.0.0.1:80\"\n\
                  [[site.route]]\npath = \"/a/*\"\nrewrite = \"/b/{rest}?x=1\"\n\
                  [[site.route]]\npath = \"/c/*\"\nrewrite = \"/d/{rest}?x=1\"\nmax_body = 5\n\
                  proxy = \"http://10.0.0.1:3000\"\n\
                  [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n";
    in_memory(routes, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (target, asked) in [("/a/1?y", "/b/1?x=1&y"), ("/c//1", "/d/1?x=1")] {
            let request =
                format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
            let (got, _) = world.pass(&mut backend, request, OK).await;
            assert_eq!((&*got.start, got.text()), (&*format!("POST {asked} HTTP/1.1"), "abc"));
        }
        let lines = world.gateway.access_lines();
        assert_eq!(lines, ["POST /a/1?y HTTP/1.1 /a/1?y", "POST /c//1 HTTP/1.1 /c/1"]);
    });
}

#[test]
fn a_connection_carries_further_requests_after_a_rewrite() {
    let routes = "[[site.route]]\npath = \"/a/*\"\nrewrite = \"/b/{rest}\"\n\
                  [[site.route]]\npath = \"/b/*\"\nrespond = \"b\"\n\
                  [[site.route]]\nrespond = \"other\"\n";
    in_memory(routes, async |world| {
        let mut client = world.client();
        let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        client.send([one("/a/1"), one("/x"), one("/a/2?z"), one("/b/")].concat()).await;
        for text in ["b", "other", "b", "b"] {
            assert_eq!(client.reply("GET").await.text(), text);
        }
        let mut client = Http2Client::connect(world).await;
        let (first, second) = (client.get("/a/1"), client.get("/x"));
        assert_eq!(client.reply(first).await.text(), "b");
        assert_eq!(client.reply(second).await.text(), "other");
    });
}

#[test]
fn rewrites_in_a_circle_end() {
    let one = |from: usize, to: usize| {
        format!("[[site.route]]\npath = \"/{from}\"\nrewrite = \"/{to}\"\n")
    };
    let circle = format!("{}{}", one(1, 2), one(2, 1));
    in_memory(&circle, async |world| {
        assert_eq!(get(world, "/1").await.status(), 404);
    });
    let long: String = (0..30).map(|at| one(at, at + 1)).collect();
    in_memory(&long, async |world| {
        assert_eq!(get(world, "/0").await.status(), 500);
        assert!(world.errors().iter().any(|error| error.contains("more than 10")));
    });
}

/// A site whose rules protect `/admin/`.
fn guarded(rewriting: &str) -> String {
    format!(
        "[[site.route]]\npath = \"/admin/*\"\nallow = [\"10.0.0.0/8\"]\n\
         proxy = \"http://10.0.0.1:3000\"\n\
         [[site.route]]\npath = \"/refused/*\"\nrespond = {{ status = 403, body = \"no\" }}\n\
         {rewriting}\n[[site.route]]\npath = \"/late/*\"\nallow = [\"10.0.0.0/8\"]\n\
         respond = \"late\"\n[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n"
    )
}

#[test]
fn a_rewritten_path_passes_the_gates_of_the_route_that_it_reaches() {
    for answer in ["", "proxy = \"http://10.0.0.1:3000\"\n"] {
        let rewriting =
            format!("[[site.route]]\npath = \"/x/*\"\nrewrite = \"/{{rest}}\"\n{answer}");
        in_memory(&guarded(&rewriting), async |world| {
            for target in [
                "/x/admin/a",
                "/x/%61dmin/a",
                "/x/admin%2e/../admin/a",
                "/x/refused/a",
                "/x/late/a",
            ] {
                assert_eq!(get(world, target).await.status(), 403, "{answer}{target}");
            }
            for (target, status) in [("/x/admin%2fa", 404), ("/x/..%2fadmin/a", 400)] {
                assert_eq!(get(world, target).await.status(), status, "{answer}{target}");
            }
            let asked = passed(world, "/x/open/a?b").await;
            assert_eq!(asked, "GET /open/a?b HTTP/1.1", "{answer}");
        });
    }
}

#[test]
fn an_encoded_slash_in_a_rewritten_path_evades_no_rule() {
    for answer in ["", "proxy = \"http://10.0.0.1:3000\"\n"] {
        let rewriting =
            format!("[[site.route]]\npath = \"/x/*\"\nrewrite = \"/{{rest}}\"\n{answer}");
        let site = format!(
            "[[site]]\nlisten = \"127.0.0.1:80\"\nencoded_slashes = \"pass\"\n{}",
            guarded(&rewriting)
        );
        in_memory(&site, async |world| {
            for target in ["/x/admin%2fa", "/x/open/..%2fadmin/a", "/x/refused%5ca"] {
                assert!(matches!(get(world, target).await.status(), 400 | 404), "{answer}{target}");
            }
            assert_eq!(passed(world, "/x/open%2fa").await, "GET /open%2fa HTTP/1.1", "{answer}");
        });
    }
}

#[test]
fn a_rewritten_path_passes_the_gate_of_its_own_route() {
    for answer in ["", "proxy = \"http://10.0.0.1:3000\"\n"] {
        let rewriting = format!(
            "[[site.route]]\npath = \"/x/*\"\nallow = [\"10.0.0.0/8\"]\nrewrite = \"/open/{{rest}}\"\n\
             {answer}"
        );
        in_memory(&guarded(&rewriting), async |world| {
            assert_eq!(get(world, "/x/a").await.status(), 403, "{answer}");
        });
    }
}

#[test]
fn rules_hold_for_the_script_that_a_rewritten_path_runs() {
    let root = folder(&[("admin.php", "secret")]);
    let routes = format!(
        "[[site.route]]\npath = \"/admin.php\"\nallow = [\"10.0.0.0/8\"]\nfiles = \"{root}\"\n\
         [[site.route]]\npath = \"/x/*\"\nrewrite = \"/{{rest}}\"\n\
         [[site.route]]\nsuffix = \".php\"\nfastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\" }}\n",
        root = root.path().display()
    );
    in_memory(&routes, async |world| {
        for target in ["/admin.php", "/x/admin.php", "/x/admin.php/info", "/x/admin%2Ephp/a"] {
            assert_eq!(get(world, target).await.status(), 403, "{target}");
        }
    });
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(root.path().join(name), text).unwrap();
    }
    root
}

#[test]
fn an_application_sees_the_query_of_fallback_to_and_the_uri_of_the_client() {
    let root = folder(&[("a.css", "css"), ("doku.php", "")]);
    let routes = format!(
        "[[site.route]]\npath = \"/*\"\nfallback_to = \"/doku.php?id={{rest}}\"\nfiles = \"{root}\"\n\
         [[site.route]]\npath = \"/doku.php\"\n\
         fastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\" }}\n",
        root = root.path().display()
    );
    in_memory(&routes, async |world| {
        assert_eq!(get(world, "/a.css").await.text(), "css");
        for (target, query) in [
            ("/wiki/start", "id=wiki/start"),
            ("/wiki/a%26b=c?do=edit", "id=wiki/a%26b%3Dc&do=edit"),
            ("/wiki/a&id=evil", "id=wiki/a%26id%3Devil"),
        ] {
            let mut application = world.backend("10.0.0.1:9000");
            let mut client = world.client();
            client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            let mut connection = application.accept().await;
            let quiet = std::time::Duration::from_secs(1);
            while let Ok(Ok(true)) = tokio::time::timeout(quiet, connection.more()).await {}
            let text = String::from_utf8_lossy(connection.unread()).into_owned();
            assert!(text.contains(&format!("QUERY_STRING{query}")), "{target}: {text:?}");
            assert!(text.contains(&format!("REQUEST_URI{target}")), "{target}: {text:?}");
            assert!(text.contains("SCRIPT_NAME/doku.php"), "{target}: {text:?}");
        }
    });
}

#[test]
fn redirects_keep_the_query_and_lead_to_no_host_of_the_client() {
    let to =
        |path: &str, to: &str| format!("[[site.route]]\npath = \"{path}\"\nredirect = \"{to}\"\n");
    let routes = [
        to("/old/*", "/new/{rest}"),
        to("/drop/*", "/new/{rest}?"),
        to("/own/*", "/new?id={rest}"),
        to("/root/*", "/{rest}"),
        to("/url/*", "{scheme}://{host}:8443{uri}"),
        to("/part/*", "https://other.example/{rest}#top"),
        to("/param/*", "/{query.to}"),
    ]
    .concat();
    in_memory(&routes, async |world| {
        for (target, location) in [
            ("/old/a?b=1", "/new/a?b=1"),
            ("/old/a%3Fb%23c%0d%0aX:y", "/new/a%3Fb%23c%0d%0aX:y"),
            ("/old/a?", "/new/a"),
            ("/drop/a?b=1", "/new/a"),
            ("/own/a&b?c", "/new?id=a%26b&c"),
            ("/root/%2e/evil.example", "/evil.example"),
            ("/root//evil.example/", "/evil.example/"),
            ("/root/%5cevil.example", "/%5cevil.example"),
            ("/url/a?b", "http://www.example:8443/url/a?b"),
            ("/part/a?b", "https://other.example/a?b#top"),
            ("/param/?to=//evil.example&q", "/evil.example?to=//evil.example&q"),
            ("/param/?to=%5cevil.example", "/%5Cevil.example?to=%5cevil.example"),
            ("/param/?to=%0d%0aSet-Cookie:a", "/%0D%0ASet-Cookie:a?to=%0d%0aSet-Cookie:a"),
        ] {
            let reply = get(world, target).await;
            if reply.status() == 404 && target.contains("%5c") {
                // The gateway refuses this encoded backslash, so there is no redirect.
                continue;
            }
            assert_eq!(reply.field("location"), Some(location), "{target}");
        }
    });
}

#[test]
fn status_444_closes_without_a_reply() {
    let routes = "[log]\naccess = \"stdout\"\nformat = \"%>s\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
                  [[site.route]]\npath = \"/close\"\nrespond = { status = 444 }\n\
                  [[site.route]]\nrespond = \"here\"\n";
    in_memory(routes, async |world| {
        let mut client = world.client();
        client.send("GET /close HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(client.is_closed().await);
        let mut client = Http2Client::connect(world).await;
        let (closed, other) = (client.get("/close"), client.get("/"));
        assert_eq!(client.reply(other).await.text(), "here");
        assert!(client.reply(closed).await.reset.is_some());
        assert_eq!(world.gateway.access_lines(), ["444", "444", "200"]);
    });
}

#[test]
fn dot_segments_before_a_rewrite_do_not_lead_past_a_rule() {
    let php = "fastcgi = { to = \"10.0.0.1:9000\", mount = \"\" }\n";
    let admin = format!("[[site.route]]\npath = \"/admin/*\"\ndeny = \"all\"\n{php}");
    let wiki = "[[site.route]]\npath = \"/wiki/*\"\nrewrite = \"/index.php?t={rest}\"\n";
    for routes in [
        format!("{admin}{wiki}{php}"),
        format!("{admin}{wiki}[[site.route]]\npath = \"/index.php\"\n{php}"),
    ] {
        in_memory(&routes, async |world| {
            let mut backend = world.backend("10.0.0.1:9000");
            for (target, status) in [
                ("/wiki/x", 502),
                ("/admin/../wiki/x", 403),
                ("/admin/x/../../wiki/x", 403),
                ("//admin/%2e%2e/wiki/x", 403),
            ] {
                let mut asking = std::pin::pin!(get(world, target));
                // The backend closes each connection, so 502 means that the request reached it.
                let reply = loop {
                    tokio::select! {
                        reply = &mut asking => break reply,
                        connection = backend.accept() => drop(connection),
                    }
                };
                assert_eq!(reply.status(), status, "{target}\n{routes}");
            }
        });
    }
}
