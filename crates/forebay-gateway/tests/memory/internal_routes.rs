//! `internal` routes: only internal redirects lead to them.

use crate::application::{Application, reply};
use crate::fastcgi::{Connection, end, stdout};
use crate::world::{Message, World, in_memory};

async fn get(world: &World, target: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await
}

/// Routes to a backend that may choose `/protected/*`, whose files are in this directory.
fn routes(root: &std::path::Path) -> String {
    let root = root.display();
    format!(
        "[[site.route]]\npath = \"/protected/*\"\ninternal = true\nfiles = \"{root}\"\n\
         set_headers = {{ X-Kind = \"file\" }}\n\
         [[site.route]]\npath = \"/open/*\"\nrespond = \"open\"\n\
         [[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\ninternal_redirects = true\n\
"
    )
}

#[test]
fn clients_get_404_in_every_spelling() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.txt"), "secret").unwrap();
    in_memory(&routes(folder.path()), async |world| {
        for target in [
            "/protected/a.txt",
            "//protected//a.txt",
            "/protected/%61.txt",
            "/%70rotected/a.txt",
            "/x/../protected/a.txt",
            "/protected%2fa.txt",
            "/protected%5Ca.txt",
            "/protected/a.txt?x=/y",
            "/protected;x/a.txt",
            "/;x/protected/a.txt",
            "http://h/protected/a.txt",
        ] {
            let reply = get(world, target).await;
            assert_eq!(reply.status(), 404, "{target}");
            assert!(!reply.text().contains("secret"), "{target}");
        }
    });
}

#[test]
fn a_backend_chooses_an_internal_route() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a b.txt"), "secret").unwrap();
    in_memory(&routes(folder.path()), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let asked = "GET /download HTTP/1.1\r\nHost: h\r\n\r\n";
        let reply = |to: &str| {
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Accel-Redirect: {to}\r\n\
                 Content-Disposition: attachment\r\nETag: \"x\"\r\nSet-Cookie: a=b\r\n\r\nno"
            )
        };
        let (_, sent) = world.pass(&mut backend, asked, reply("/protected/a%20b.txt")).await;
        assert_eq!((sent.status(), sent.text()), (200, "secret"));
        assert_eq!(sent.field("content-disposition"), Some("attachment"));
        assert_eq!(sent.field("set-cookie"), Some("a=b"));
        assert_eq!(sent.field("x-kind"), Some("file"));
        assert_ne!(sent.field("etag"), Some("\"x\""));
        assert_eq!(sent.field("x-accel-redirect"), None);
        // A reply leads to no other route, and not out of the directory.
        for to in [
            "/open/x",
            "/other",
            "/protected/../open/x",
            "protected/a%20b.txt",
            "http://h/protected/a",
        ] {
            let (_, sent) = world.pass(&mut backend, asked, reply(to)).await;
            assert_eq!(sent.status(), 502, "{to}");
        }
        let (_, sent) = world.pass(&mut backend, asked, reply("/protected/%2e%2e/x")).await;
        assert_eq!(sent.status(), 502);
        let (_, sent) = world.pass(&mut backend, asked, reply("/protected/missing")).await;
        assert_eq!(sent.status(), 404);
    });
}

#[test]
fn rewrites_and_fallbacks_lead_to_internal_routes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.txt"), "x").unwrap();
    let root = folder.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/in/*\"\ninternal = true\nrespond = \"inside\"\n\
         [[site.route]]\npath = \"/self/*\"\ninternal = true\nrewrite = \"/x.txt\"\nfiles = \"{root}\"\n\
         [[site.route]]\npath = \"/again/*\"\nrewrite = \"/in/{{rest}}\"\n\
         [[site.route]]\npath = \"/files/*\"\nfiles = \"{root}\"\nfallback_to = \"/in/x\"\n\
         [[site.route]]\npath = \"/query/*\"\nfiles = \"{root}\"\nfallback_to = \"/in/x?a=b\"\n"
    );
    in_memory(&routes, async |world| {
        for (target, status, text) in [
            ("/in/x", 404, ""),
            // The rewrite of the route itself does not open it.
            ("/self/x", 404, ""),
            ("/again/x", 200, "inside"),
            ("/files/x.txt", 200, "x"),
            ("/files/missing", 200, "inside"),
            ("/query/missing", 200, "inside"),
        ] {
            let reply = get(world, target).await;
            assert_eq!(reply.status(), status, "{target}");
            assert!(status == 404 || reply.text() == text, "{target}: {}", reply.text());
        }
        // An internal redirect of one request opens nothing for the next one.
        let mut client = world.client();
        for (target, status) in
            [("/again/x", 200), ("/in/x", 404), ("/files/missing", 200), ("/in/x", 404)]
        {
            let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            client.send(&request).await;
            assert_eq!(client.reply(&request).await.status(), status, "{target}");
        }
    });
}

#[test]
fn index_files_lead_to_internal_routes_and_other_rules_hold_for_them() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("php")).unwrap();
    std::fs::create_dir(folder.path().join("closed")).unwrap();
    for name in ["index.html", "php/index.php", "closed/index.html"] {
        std::fs::write(folder.path().join(name), "index").unwrap();
    }
    let root = folder.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/closed/index.html\"\ninternal = true\nallow = [\"10.0.0.0/8\"]\n\
         files = \"{root}/closed\"\n\
         [[site.route]]\npath = \"/index.html\"\ninternal = true\nfiles = \"{root}\"\n\
         [[site.route]]\nsuffix = \".php\"\ninternal = true\n\
         fastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\" }}\n\
         [[site.route]]\npath = \"/*\"\nfiles = {{ root = \"{root}\", index = [\"index.html\", \"index.php\"] }}\n"
    );
    in_memory(&routes, async |world| {
        for (target, status) in [
            ("/", 200),
            ("/index.html", 404),
            // No application listens.
            ("/php/", 502),
            ("/php/index.php", 404),
            ("/php/index.php/", 404),
            ("/php/x.php", 404),
            ("/closed/", 403),
            ("/closed/index.html", 404),
        ] {
            assert_eq!(get(world, target).await.status(), status, "{target}");
        }
    });
}

#[test]
fn a_change_that_an_internal_redirect_answers_removes_stored_replies() {
    let site = "[[site.route]]\npath = \"/in/*\"\ninternal = true\nproxy = \"http://10.0.0.1:3000\"\n\
                cache = true\n\
                [[site.route]]\npath = \"/new/*\"\nrewrite = \"/{rest}\"\nwhen = { method = \"POST\" }\n\
                [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ninternal_redirects = true\n\
                cache = true\n";
    in_memory(site, async |world| {
        let _application = Application::start(world, |request, number| {
            let to_cache = |text: &str| reply("Cache-Control: max-age=60\r\n", text);
            let redirect = reply("X-Accel-Redirect: /in/a\r\n", "");
            match &*request.start {
                "POST /a HTTP/1.1" | "GET /redirect HTTP/1.1" => redirect,
                _ => to_cache(&number.to_string()),
            }
        });
        let post = |target: &str| {
            format!("POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
        };
        for changed in ["/a", "/new/a"] {
            let mut before = Vec::new();
            for target in ["/a", "/redirect", "/new/a", "/b"] {
                let stored = get(world, target).await.text().to_owned();
                assert_eq!(get(world, target).await.text(), stored, "{target}");
                before.push(stored);
            }
            let answer = world.ask(&post(changed)).await;
            assert!(answer.status() == 200 && answer.text() != before[1], "from before: {changed}");
            let next = world.ask(&post(changed)).await;
            assert!(next.status() == 200 && next.text() != answer.text(), "stored: {changed}");
            assert_ne!(get(world, "/a").await.text(), before[0], "{changed}");
            // The change names /in/a, which has answered this URL.
            assert_ne!(get(world, "/redirect").await.text(), before[1], "{changed}");
            let is_changed = get(world, "/new/a").await.text() != before[2];
            assert_eq!(is_changed, changed == "/new/a", "{changed}");
            assert_eq!(get(world, "/b").await.text(), before[3], "{changed}");
        }
    });
}

#[test]
fn a_change_that_a_local_redirect_of_a_script_answers_removes_stored_replies() {
    let site = "[[site.route]]\nwhen = { method = \"POST\" }\n\
                fastcgi = { to = \"10.0.0.1:9000\", root = \"/srv/www\", scripts = \"*\" }\n\
                [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = true\n";
    in_memory(site, async |world| {
        let _application = Application::start(world, |_, number| {
            reply("Cache-Control: max-age=60\r\n", &number.to_string())
        });
        let (first, list) = (get(world, "/a").await, get(world, "/list").await);
        let mut script = world.backend("10.0.0.1:9000");
        let answering = async {
            let mut connection = Connection::accept(&mut script).await;
            let asked = connection.asked().await.expect("the request arrives");
            connection
                .send([stdout(asked.id, "Location: /list\n\n"), end(asked.id)].concat())
                .await;
        };
        let post = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n";
        let (answer, ()) = tokio::join!(world.ask(post), answering);
        assert_eq!((answer.status(), answer.text()), (200, "3"), "{}", list.text());
        assert_ne!(get(world, "/a").await.text(), first.text());
    });
}

/// The routes of an application that names files by `X-Accel-Redirect`: by an internal route, and
/// below `sendfile_root`.
fn naming_routes(root: &std::path::Path) -> [String; 2] {
    let root = root.display();
    let to = "proxy = \"http://10.0.0.1:3000\"";
    [
        format!(
            "[[site.route]]\npath = \"/files/*\"\ninternal = true\nfiles = \"{root}\"\n\
             [[site.route]]\n{to}\ninternal_redirects = true\n"
        ),
        format!("[[site.route]]\n{to}\nsendfile_root = \"{root}\"\n"),
    ]
}

#[test]
fn a_named_file_keeps_what_the_application_said_of_it() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("files")).unwrap();
    for dir in [folder.path().to_owned(), folder.path().join("files")] {
        std::fs::write(dir.join("page.html"), "<script>").unwrap();
    }
    const FIELDS: [(&str, &str); 6] = [
        ("Content-Type", "text/plain"),
        ("Content-Disposition", "attachment"),
        ("Accept-Ranges", "none"),
        ("Set-Cookie", "a=b"),
        ("Cache-Control", "private"),
        ("Expires", "Thu, 01 Jan 1970 00:00:00 GMT"),
    ];
    let fields: String =
        FIELDS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    for routes in naming_routes(folder.path()) {
        in_memory(&routes, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let named = |name: &str| {
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Accel-Redirect: /files/{name}\r\n\
                     {fields}ETag: \"x\"\r\nContent-MD5: x\r\nContent-Encoding: gzip\r\n\r\nno"
                )
            };
            for range in ["", "Range: bytes=0-2\r\n"] {
                let asked = format!("GET /x HTTP/1.1\r\nHost: h\r\n{range}\r\n");
                let (_, sent) = world.pass(&mut backend, &asked, named("page.html")).await;
                assert_eq!(sent.status(), if range.is_empty() { 200 } else { 206 });
                for (name, value) in FIELDS {
                    assert_eq!(
                        sent.values(&name.to_ascii_lowercase()),
                        [value],
                        "{name} {range}{routes}"
                    );
                }
                assert_ne!(sent.field("etag"), Some("\"x\""));
                assert_eq!(sent.field("content-md5").or(sent.field("content-encoding")), None);
            }
            // The parts of a reply with several ranges have the type, too.
            let asked = "GET /x HTTP/1.1\r\nHost: h\r\nRange: bytes=0-1,4-5\r\n\r\n";
            let (_, sent) = world.pass(&mut backend, asked, named("page.html")).await;
            assert!(sent.field("content-type").unwrap().starts_with("multipart/byteranges"));
            let text = sent.text();
            assert!(text.contains("text/plain") && !text.contains("text/html"), "{text}");
            // An error page is not the file.
            let asked = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";
            let (_, sent) = world.pass(&mut backend, asked, named("missing")).await;
            assert_eq!((sent.status(), sent.values("set-cookie")), (404, vec!["a=b"]));
            assert_eq!(sent.field("content-disposition").or(sent.field("cache-control")), None);
            assert!(sent.field("content-type").unwrap().starts_with("text/html"));
        });
    }
}

#[test]
fn an_internal_backend_says_the_type_itself() {
    let routes = "[[site.route]]\npath = \"/store/*\"\ninternal = true\n\
                  proxy = \"http://10.0.0.2:3000\"\n\
                  [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ninternal_redirects = true\n";
    in_memory(routes, async |world| {
        let _application = Application::start(world, |_, _| {
            reply("X-Accel-Redirect: /store/a\r\nContent-Type: text/html\r\n", "")
        });
        let mut store = world.backend("10.0.0.2:3000");
        for (own, expected) in [("Content-Type: image/png\r\n", "image/png"), ("", "text/html")] {
            let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n{own}\r\nx");
            let asked = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";
            let (_, sent) = world.pass(&mut store, asked, reply).await;
            assert_eq!(sent.values("content-type"), [expected]);
        }
    });
}

#[test]
fn names_without_an_encoding_are_found() {
    const NAMES: [&str; 5] = ["a b.txt", "\u{fc}.txt", "100% #1.txt", "plain.txt", "a&b;c.txt"];
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("files")).unwrap();
    for name in NAMES {
        std::fs::write(folder.path().join(name), name).unwrap();
        std::fs::write(folder.path().join("files").join(name), name).unwrap();
    }
    for routes in naming_routes(folder.path()) {
        in_memory(&routes, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let asked = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";
            for name in NAMES {
                let reply = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Accel-Redirect: /files/{name}\r\n\r\n"
                );
                let (_, sent) = world.pass(&mut backend, asked, reply).await;
                assert_eq!((sent.status(), sent.text()), (200, name), "{routes}");
            }
        });
    }
}

#[test]
fn a_local_redirect_leads_to_internal_routes_only_with_the_key() {
    for (key, status) in [("", 502), ("internal_redirects = true\n", 200)] {
        for kind in ["scgi", "uwsgi", "fastcgi"] {
            let more =
                if kind == "fastcgi" { ", root = \"/no/such\", scripts = \"*\"" } else { "" };
            let routes = format!(
                "[[site.route]]\npath = \"/in/*\"\ninternal = true\nrespond = \"inside\"\n\
                 [[site.route]]\npath = \"/open/*\"\nrespond = \"open\"\n\
                 [[site.route]]\npath = \"/rewritten/*\"\nrewrite = \"/script\"\n\
                 [[site.route]]\n{kind} = {{ to = \"10.0.0.1:9000\"{more} }}\n{key}"
            );
            in_memory(&routes, async |world| {
                let (mut script, mut kept) = (world.backend("10.0.0.1:9000"), None);
                for (asked, location, expected) in [
                    ("/script", "/in/a", status),
                    ("/script", "/%69n/a", status),
                    ("/script", "/x/../in/a", status),
                    // The rewrite makes the request internal, but not what the script says.
                    ("/rewritten/a", "/in/a", status),
                    ("/script", "/open/a b", 200),
                ] {
                    let output = format!("Location: {location}\n\n");
                    let answering = async {
                        if kind == "fastcgi" {
                            if kept.is_none() {
                                kept = Some(Connection::accept(&mut script).await);
                            }
                            let connection = kept.as_mut().unwrap();
                            let asked = connection.asked().await.expect("the request arrives");
                            let output = [stdout(asked.id, &output), end(asked.id)].concat();
                            return connection.send(output).await;
                        }
                        let mut connection = script.accept().await;
                        connection.more().await.unwrap();
                        connection.send(&output).await;
                    };
                    let (answer, ()) = tokio::join!(get(world, asked), answering);
                    assert_eq!(answer.status(), expected, "{kind} {key}{asked} {location}");
                }
            });
        }
    }
}

#[test]
fn a_file_field_that_the_route_sets_reaches_the_client() {
    let folder = tempfile::tempdir().unwrap();
    for routes in naming_routes(folder.path()) {
        let routes = format!("{routes}set_headers = {{ X-Accel-Buffering = \"no\" }}\n");
        in_memory(&routes, async |world| {
            let _application =
                Application::start(world, |_, _| reply("X-Accel-Expires: 5\r\n", "x"));
            let sent = get(world, "/x").await;
            assert_eq!(sent.field("x-accel-buffering"), Some("no"));
            assert_eq!(sent.field("x-accel-expires"), None);
        });
    }
}
