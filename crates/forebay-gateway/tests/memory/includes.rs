//! `ssi`: the commands of pages, the rules for included parts, and the visitors that get these
//! parts.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::sleep;

use crate::application::Application;
use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};

/// Returns a directory with these files.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().unwrap();
    for (name, text) in files {
        write(root.path(), name, text);
    }
    root
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn pages(root: &TempDir) -> String {
    format!("[[site.route]]\nfiles = \"{}\"\nssi = true\n", root.path().display())
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

/// The text in place of a failed command.
const ERROR: &str = "[an error occurred while processing this directive]";

#[test]
fn commands_are_evaluated() {
    let root = tree(&[
        ("menu.html", "<b>menu</b>"),
        ("sub/part.html", "part of <!--#echo var=\"DOCUMENT_URI\" -->"),
        (
            "sub/page.html",
            "<!--#include file=\"part.html\" -->, <!--#include virtual=\"../menu.html\"-->",
        ),
        ("data.bin", "0123456789"),
    ]);
    let table = [
        ("a<!--#include virtual=\"/menu.html\" -->b", "a<b>menu</b>b".to_owned()),
        ("<!--#include file=\"sub/page.html\" -->", "part of /t.html, <b>menu</b>".to_owned()),
        ("<!--#echo var=\"QUERY_STRING\" -->", "q=&lt;b&gt;".to_owned()),
        ("<!--#echo encoding=\"none\" var=\"arg_q\" -->", "<b>".to_owned()),
        ("<!--#echo var=\"NOTHING\" -->", "(none)".to_owned()),
        ("<!--#echo var=\"nothing\" default=\"x\" -->", "x".to_owned()),
        (
            "<!--#set var=\"a\" value=\"x$QUERY_STRING\" --><!--#echo var=\"a\" -->",
            "xq=&lt;b&gt;".to_owned(),
        ),
        (
            "<!--#if expr=\"$QUERY_STRING = /^q=/\" -->yes<!--#else -->no<!--#endif -->",
            "yes".to_owned(),
        ),
        (
            "<!--#if expr=\"$X\" -->1<!--#if expr=\"$QUERY_STRING\" -->2<!--#endif -->\
             <!--#elif expr=\"!$X && ($QUERY_STRING != 'z')\" -->3<!--#else -->4<!--#endif -->5",
            "35".to_owned(),
        ),
        ("<!--#config sizefmt=\"bytes\" --><!--#fsize virtual=\"data.bin\" -->", "10".to_owned()),
        ("<!--#config timefmt=\"%Y\" --><!--#flastmod file=\"data.bin\" -->", "2001".to_owned()),
        (
            "<!--#config timefmt=\"%s\" --><!--#echo var=\"LAST_MODIFIED\" -->",
            "1000000000".to_owned(),
        ),
        ("<!--#config errmsg=\"oops\" --><!--#include virtual=\"/missing\" -->", "oops".to_owned()),
        ("<!--#exec cmd=\"id\" -->", ERROR.to_owned()),
        ("<!--#exec cgi=\"/x\" -->", ERROR.to_owned()),
        ("<!--#unknown -->x", format!("{ERROR}x")),
        ("<!--#include file=\"../menu.html\" -->", ERROR.to_owned()),
        ("<!--#include file=\"/menu.html\" -->", ERROR.to_owned()),
        ("<!--#include virtual=\"http://h/menu.html\" -->", ERROR.to_owned()),
        ("<!--#include virtual=\"/t.html?q=<b>\" -->", ERROR.to_owned()),
        ("<!--#if expr=\"(\" -->x<!--#endif -->y", format!("{ERROR}y")),
        ("<!--#if expr=\"x\" -->x", format!("x{ERROR}")),
        ("<!--#endif -->", ERROR.to_owned()),
        ("<!--#echo var=\"HTTP_AUTHORIZATION\" -->", "(none)".to_owned()),
    ];
    in_memory(&pages(&root), async |world| {
        let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let age = |name: &str| {
            let file = fs::File::options().write(true).open(root.path().join(name)).unwrap();
            file.set_modified(old).unwrap();
        };
        age("data.bin");
        for (number, (page, expected)) in table.into_iter().enumerate() {
            // A new name for each page, because Forebay looks for changes once a second.
            let name = if page.contains("/t.html") {
                "t.html".to_owned()
            } else {
                format!("t{number}.html")
            };
            write(root.path(), &name, page);
            age(&name);
            let target = format!("/{name}?q=%3Cb%3E");
            let reply = get(world, &target, "Authorization: Basic x\r\n").await;
            let expected = expected
                .replace("/t.html", &format!("/{name}"))
                .replace("q=&lt;b&gt;", "q=%3Cb%3E");
            assert_eq!(reply.text(), expected, "{page}");
            assert_eq!(reply.field("content-length"), Some(&*expected.len().to_string()));
            for name in ["etag", "last-modified", "accept-ranges"] {
                assert_eq!(reply.field(name), None, "{name} of {page}");
            }
            // A cache would show the failure after the included page works again.
            let has_failed = ["/missing", "/t.html?q"].iter().any(|part| page.contains(part));
            let control = has_failed.then_some("private, no-store");
            assert_eq!(reply.field("cache-control"), control, "{page}");
        }
    });
}

#[test]
fn includes_meet_the_rules_of_their_own_routes() {
    let root = tree(&[
        (
            "page.html",
            "[<!--#include virtual=\"/secret/x.txt\" -->][<!--#include file=\"link.txt\" -->]",
        ),
        (
            "dot.html",
            "[<!--#include file=\".hidden\" -->][<!--#include virtual=\"/%2e%2e/%2e%2e/etc/passwd\" -->]",
        ),
        ("secret/x.txt", "secret"),
        (".hidden", "hidden"),
    ]);
    std::os::unix::fs::symlink("/etc/passwd", root.path().join("link.txt")).unwrap();
    let dir = root.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/secret/*\"\ndeny = [\"10.1.2.3\"]\nfiles = \"{dir}/secret\"\n\
         [[site.route]]\nfiles = {{ root = \"{dir}\", follow_symlinks = \"never\" }}\nssi = true\n"
    );
    in_memory(&routes, async |world| {
        let from = async |client: &str, target: &str| {
            let mut client = world.client_from(client);
            client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            client.reply("GET").await
        };
        let reply = from("10.1.2.3:4000", "/page.html").await;
        assert_eq!(reply.text(), format!("[{ERROR}][{ERROR}]"));
        let reply = from("10.1.2.4:4000", "/page.html").await;
        assert_eq!(reply.text(), format!("[secret][{ERROR}]"));
        let reply = from("10.1.2.4:4000", "/dot.html").await;
        assert_eq!(reply.text(), format!("[{ERROR}][{ERROR}]"));
    });
}

#[test]
fn no_part_of_an_included_reply_but_its_body_reaches_the_client() {
    let root = tree(&[(
        "page.html",
        "<!--#include virtual=\"/app?a=1\" -->|<!--#include virtual=\"/app/redirect\" -->|\
         <!--#include virtual=\"/app/error\" -->|<!--#include virtual=\"/app/cut\" -->",
    )]);
    let routes = format!(
        "[[site.route]]\npaths = [\"/app\", \"/app/*\"]\nproxy = \"http://10.0.0.1:3000\"\ncache = true\ncompress = true\n{}",
        pages(&root)
    );
    in_memory(&routes, async |world| {
        let application = Application::start(world, |request, number| {
            let path = request.start.split(' ').nth(1).unwrap();
            for name in [
                "range",
                "if-modified-since",
                "if-none-match",
                "accept-encoding",
                "content-length",
                "content-type",
            ] {
                assert_eq!(request.field(name), None, "{name}");
            }
            assert!(request.start.starts_with("GET "), "{}", request.start);
            let body = format!("{number} <!--#echo var=\"QUERY_STRING\" -->");
            let length = body.len();
            let fields = "Set-Cookie: a=b\r\nX-Secret: x\r\nContent-Type: text/html\r\n";
            match path {
                "/app/redirect" => {
                    "HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n".into()
                }
                "/app/error" => {
                    format!("HTTP/1.1 500 No\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
                }
                "/app/cut" => {
                    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0{length}\r\n\r\n{body}")
                }
                _ => format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{body}"),
            }
        });
        let fields =
            "Range: bytes=0-1\r\nIf-None-Match: \"x\"\r\nAccept-Encoding: gzip\r\nCookie: c=d\r\n";
        let reply =
            get(world, "/page.html", fields.strip_prefix("Range: bytes=0-1\r\n").unwrap()).await;
        // Neither the application's text nor its fields have a meaning here.
        let app = "<!--#echo var=\"QUERY_STRING\" -->";
        assert_eq!(reply.text(), format!("1 {app}|{ERROR}|{ERROR}|4 {app}"));
        for name in ["set-cookie", "x-secret", "cache-status", "content-encoding"] {
            assert_eq!(reply.field(name), None, "{name}");
        }
        assert_eq!(reply.values("cache-control"), ["private, no-store"], "an include fails");
        assert_eq!(reply.values("content-type"), ["text/html"]);
        let seen = application.seen.borrow();
        assert!(seen.iter().all(|request| request.field("cookie") == Some("c=d")));
    });
}

#[test]
fn pages_of_a_backend_are_stored_before_their_evaluation() {
    let routes = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = true\nssi = true\n\
                  replace = { texts = { NAME = \"{header.X-Name}\" } }\ncompress = { min_size = \"10\" }\n";
    in_memory(routes, async |world| {
        let application = Application::start(world, |request, number| {
            let body = if request.start.contains("/part") {
                format!("part {number}")
            } else {
                let commands =
                    "<!--#echo var=\"HTTP_X_NAME\" --> NAME <!--#include virtual=\"/part\" -->";
                format!("{number} {commands}")
            };
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nCache-Control: max-age=60\r\nETag: \"a\"\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
        });
        for (name, escaped) in
            [("one", "one"), ("<b>", "&lt;b&gt;"), ("<!--#exec -->", "&lt;!--#exec --&gt;")]
        {
            let reply = get(world, "/page", &format!("X-Name: {name}\r\n")).await;
            assert_eq!(reply.text(), format!("1 {escaped} {escaped} part 2"));
            assert_eq!(reply.field("etag"), None);
            assert_eq!(reply.values("cache-control"), ["max-age=60", "private", "private"]);
        }
        let reply = get(world, "/page", "").await;
        assert_eq!(reply.text(), "1 (none)  part 2");
        assert_eq!(application.asked(), 2);
        let reply = get(world, "/page", "X-Name: one\r\nAccept-Encoding: gzip\r\n").await;
        assert_eq!(reply.field("content-encoding"), Some("gzip"));
        let head = world.ask("HEAD /page HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(
            (head.status(), head.field("content-length"), head.field("etag")),
            (200, None, None)
        );
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/page");
        assert_eq!(client.reply(stream).await.text(), "1 (none)  part 2");
        // The other host has stored replies of its own.
        assert_eq!(application.asked(), 2);
    });
}

#[test]
fn depth_number_and_size_of_includes_are_bounded() {
    let many = "<!--#include virtual=\"/x.txt\" -->".repeat(300);
    let large = "<!--#include virtual=\"/large.txt\" -->".repeat(5);
    let text = "x".repeat(30_000);
    let root = tree(&[
        ("loop.html", "a<!--#include virtual=\"/loop2.html\" -->"),
        ("loop2.html", "b<!--#include virtual=\"/loop.html\" -->"),
        ("deep.html", "d<!--#include virtual=\"/deep.html?x$QUERY_STRING\" -->"),
        (
            "deeper.html",
            "d<!--#set var=\"n\" value=\"${n}x\" --><!--#include virtual=\"/deeper.html?$n\" -->",
        ),
        ("many.html", &many),
        ("x.txt", "x"),
        ("large.html", &large),
        ("large.txt", &text),
        ("huge.html", &"y".repeat(200_000)),
        (
            "bomb.html",
            "<!--#set var=\"a\" value=\"xxxxxxxxxx\" --><!--#set var=\"a\" value=\"$a$a$a$a$a$a$a$a$a$a\" -->\
                       <!--#set var=\"a\" value=\"$a$a$a$a$a$a$a$a$a$a\" --><!--#set var=\"a\" value=\"$a$a$a$a$a$a$a$a$a$a\" -->\
                       <!--#set var=\"a\" value=\"$a$a$a$a$a$a$a$a$a$a\" --><!--#echo var=\"a\" -->",
        ),
    ]);
    let routes = pages(&root).replace("ssi = true", "ssi = { max_size = \"100k\" }");
    in_memory(&routes, async |world| {
        assert_eq!(get(world, "/loop.html", "").await.text(), format!("ab{ERROR}"));
        // The variable is the client's own query, so the second page would include itself.
        assert_eq!(get(world, "/deep.html", "").await.text(), format!("dd{ERROR}"));
        let deeper = get(world, "/deeper.html", "").await;
        assert_eq!(deeper.text(), format!("{}{ERROR}", "d".repeat(17)));
        let reply = get(world, "/many.html", "").await;
        assert_eq!(reply.text(), format!("{}{}", "x".repeat(256), ERROR.repeat(44)));
        let reply = get(world, "/large.html", "").await;
        assert_eq!(reply.text(), format!("{}{}", text.repeat(3), ERROR.repeat(2)));
        assert_eq!(get(world, "/huge.html", "").await.status(), 500);
        let bomb = get(world, "/bomb.html", "").await;
        assert!(bomb.status() == 200 && bomb.body.len() <= 64 * 1024, "{}", bomb.body.len());
        assert_eq!(get(world, "/x.txt", "").await.text(), "x");
    });
}

#[test]
fn no_range_shows_the_source_of_a_page() {
    let page = "<!--#if expr=\"$NO\" -->secret<!--#endif -->public";
    let root = tree(&[("page.html", page), ("text.txt", "0123456789")]);
    let dir = root.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/back/*\"\nproxy = \"http://10.0.0.1:3000\"\nssi = true\ncache = true\n\
         [[site.route]]\npath = \"/typed/*\"\nrewrite = \"/{{rest}}\"\nfiles = \"{dir}\"\nssi = true\n\
         set_headers = {{ Content-Type = \"text/html\" }}\n\
         [[site.route]]\nfiles = \"{dir}\"\nssi = {{ last_modified = true }}\n"
    );
    in_memory(&routes, async |world| {
        let _application = Application::start(world, move |request, _| {
            assert_eq!(request.field("range"), None);
            let length = page.len();
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nCache-Control: max-age=9\r\nContent-Length: {length}\r\n\r\n{page}"
            )
        });
        let range = "Range: bytes=0-30\r\n";
        for target in ["/page.html", "/back/x", "/back/x", "/typed/page.html"] {
            let reply = get(world, target, range).await;
            assert_eq!((reply.status(), reply.text()), (200, "public"), "{target}");
        }
        let part = get(world, "/text.txt", "Range: bytes=0-3\r\n").await;
        assert_eq!((part.status(), part.text()), (206, "0123"));
        // The media type is known only at the end of the head.
        assert_eq!(get(world, "/typed/text.txt", "Range: bytes=0-3\r\n").await.status(), 416);
        let first = get(world, "/page.html", "").await;
        let (tag, time) = (first.field("etag").unwrap(), first.field("last-modified").unwrap());
        assert!(tag.starts_with("W/"), "{tag}");
        for fields in
            [format!("If-None-Match: {tag}\r\n"), format!("If-Modified-Since: {time}\r\n")]
        {
            assert_eq!(get(world, "/page.html", &fields).await.status(), 304, "{fields}");
        }
        assert_eq!(get(world, "/typed/page.html", "If-None-Match: *\r\n").await.status(), 200);
    });
}

#[test]
fn replies_that_an_application_replaces_follow_the_new_route() {
    let root =
        tree(&[("page.html", "<!--#echo var=\"DOCUMENT_URI\" -->"), ("404.html", "<!--#exec -->")]);
    let dir = root.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/app/*\"\nproxy = \"http://10.0.0.1:3000\"\nssi = true\n\
         sendfile_root = \"{dir}\"\nintercept = true\nerror_pages = {{ 404 = \"{dir}/404.html\" }}\n{}",
        pages(&root)
    );
    let sent = format!("{dir}/page.html");
    in_memory(&routes, async |world| {
        let _application = Application::start(world, move |request, _| {
            let (status, field) = match request.start.split(' ').nth(1).unwrap() {
                "/app/file" => ("200 OK", format!("X-Sendfile: {sent}\r\n")),
                "/app/path" => ("200 OK", "X-Accel-Redirect: /page.html\r\n".into()),
                _ => ("404 Not Found", String::new()),
            };
            format!(
                "HTTP/1.1 {status}\r\n{field}Content-Type: text/html\r\nContent-Length: 1\r\n\r\nx"
            )
        });
        assert_eq!(get(world, "/app/file", "").await.text(), "<!--#echo var=\"DOCUMENT_URI\" -->");
        assert_eq!(get(world, "/app/path", "").await.text(), "<!--#echo var=\"DOCUMENT_URI\" -->");
        assert_eq!(get(world, "/app/none", "").await.text(), "<!--#exec -->");
        // The connection still works.
        assert_eq!(get(world, "/page.html", "").await.text(), "/page.html");
    });
}

#[test]
fn a_post_is_not_repeated_for_includes() {
    let routes = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\nssi = true\n";
    in_memory(routes, async |world| {
        let application = Application::start(world, |request, _| {
            let body = if request.start.starts_with("POST") {
                "<!--#include virtual=\"/part\" -->".to_owned()
            } else {
                format!("{} {}", request.start, request.body.len())
            };
            let length = body.len();
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n{body}"
            )
        });
        let request =
            "POST /form HTTP/1.1\r\nHost: h\r\nContent-Type: x/y\r\nContent-Length: 3\r\n\r\nabc";
        let reply = world.ask(request).await;
        assert_eq!(reply.text(), "GET /part HTTP/1.1 0");
        assert_eq!(application.asked(), 2);
    });
}

#[test]
fn a_client_that_leaves_ends_the_evaluation() {
    let root = tree(&[(
        "page.html",
        "<!--#include virtual=\"/app\" --><!--#include virtual=\"/app\" -->",
    )]);
    let routes = format!(
        "[[site.route]]\npath = \"/app\"\nproxy = \"http://10.0.0.1:3000\"\n{}",
        pages(&root)
    );
    in_memory(&routes, async |world| {
        let application = Application::slow(world, Duration::from_secs(5), |_, _| {
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".into()
        });
        let mut client = world.client();
        client.send("GET /page.html HTTP/1.1\r\nHost: h\r\n\r\n").await;
        sleep(Duration::from_secs(1)).await;
        drop(client);
        sleep(Duration::from_secs(20)).await;
        let asked = application.asked();
        assert!(asked <= 2, "{asked}");
    });
}

#[test]
fn pages_that_differ_between_visitors_are_private() {
    let include = |path: &str| format!("<!--#include virtual=\"{path}\" -->");
    let files = [
        ("cookie", "<!--#if expr=\"$cookie_a\" -->in<!--#else -->out<!--#endif -->".to_owned()),
        ("guarded", include("/guarded/x")),
        ("limited", include("/limited/x")),
        ("signed", include("/signed/x")),
        ("internal", include("/internal/x")),
        ("stale", include("/app/stale")),
        ("gzip", include("/app/gzip")),
        ("part", include("/app/part")),
    ];
    let root = TempDir::new().unwrap();
    for (name, text) in &files {
        write(root.path(), &format!("{name}.html"), text);
    }
    let secret = "x".repeat(32);
    let routes = format!(
        "[[site.route]]\npath = \"/guarded/*\"\ndeny = [\"10.1.2.3\"]\nrespond = \"secret\"\n\
         [[site.route]]\npath = \"/limited/*\"\nrate_limit = {{ rate = \"1/h\" }}\nrespond = \"first\"\n\
         [[site.route]]\npath = \"/signed/*\"\nsigned_url = {{ secret = \"{secret}\" }}\nrespond = \"signed\"\n\
         [[site.route]]\npath = \"/internal/*\"\ninternal = true\nrespond = \"inside\"\n\
         [[site.route]]\npath = \"/app/*\"\nproxy = \"http://10.0.0.1:3000\"\n{}\
         set_headers = {{ Cache-Control = \"max-age=60\", CDN-Cache-Control = \"max-age=60\" }}\n",
        pages(&root)
    );
    in_memory(&routes, async |world| {
        let _application = Application::start(world, |request, _| {
            let (status, field) = match request.start.split(' ').nth(1).unwrap() {
                "/app/stale" => ("200 OK", "Cache-Control: public, max-age=0"),
                "/app/gzip" => ("200 OK", "Content-Encoding: gzip"),
                _ => ("206 Partial Content", "Content-Range: bytes 0-0/9"),
            };
            format!("HTTP/1.1 {status}\r\n{field}\r\nContent-Length: 1\r\n\r\na")
        });
        for (name, text, control) in [
            ("cookie", "out", &["max-age=60", "private"][..]),
            ("guarded", "secret", &["max-age=0", "private"]),
            ("limited", "first", &["max-age=0", "private"]),
            ("limited", ERROR, &["max-age=60", "private, no-store"]),
            ("signed", ERROR, &["max-age=60", "private, no-store"]),
            ("internal", "inside", &["max-age=0"]),
            ("stale", "a", &["max-age=0", "private"]),
            ("gzip", ERROR, &["max-age=0", "private, no-store"]),
            ("part", ERROR, &["max-age=0", "private, no-store"]),
        ] {
            let reply = get(world, &format!("/{name}.html"), "").await;
            assert_eq!((reply.status(), reply.text()), (200, text), "{name}");
            assert_eq!(reply.values("cache-control"), control, "{name}");
            assert_eq!(reply.field("cdn-cache-control"), None, "{name}");
        }
        assert_eq!(get(world, "/internal/x", "").await.status(), 404);
    });
}

#[test]
fn a_page_lives_no_longer_than_its_includes() {
    let include = |path: &str| format!("<!--#include virtual=\"/app/{path}\" -->");
    let root = tree(&[
        ("long.html", &include("long")),
        ("short.html", &(include("long") + &include("short") + &include("long"))),
        ("aged.html", &include("aged")),
        ("cookie.html", &include("cookie")),
        ("nested.html", "<!--#include virtual=\"/short.html\" -->"),
        ("old.html", "<!--#include virtual=\"/old.txt\" -->"),
        ("old.txt", "old"),
        ("size.html", "<!--#fsize virtual=\"/app/short\" -->"),
        ("mended.html", "<!--#include virtual=\"/app/error\" onerror=\"/app/long\" -->"),
    ]);
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = fs::File::options().write(true).open(root.path().join("old.txt")).unwrap();
    file.set_modified(old).unwrap();
    let routes = format!(
        "[[site.route]]\npath = \"/app/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
         [[site.route]]\npath = \"/old.txt\"\nfiles = \"{}\"\n{}expires = \"1h\"\n",
        root.path().display(),
        pages(&root)
    );
    in_memory(&routes, async |world| {
        let _application = Application::start(world, |request, _| {
            let (status, control) = match request.start.split(' ').nth(1).unwrap() {
                "/app/long" => ("200 OK", "max-age=7200"),
                "/app/short" => ("200 OK", "public, max-age=9, s-maxage=99"),
                "/app/cookie" => ("200 OK", "max-age=7200\r\nSet-Cookie: a=b"),
                "/app/aged" => ("200 OK", "max-age=9\r\nAge: 4"),
                _ => ("500 No", "max-age=9"),
            };
            format!("HTTP/1.1 {status}\r\nCache-Control: {control}\r\nContent-Length: 1\r\n\r\na")
        });
        for (name, control) in [
            ("long", "max-age=3600"),
            ("short", "max-age=9"),
            ("aged", "max-age=5"),
            ("cookie", "max-age=3600, private"),
            ("nested", "max-age=9"),
            ("old", "max-age=3600"),
            ("size", "max-age=9"),
            ("mended", "max-age=3600, private, no-store"),
        ] {
            let reply = get(world, &format!("/{name}.html"), "").await;
            assert_eq!(reply.values("cache-control").join(", "), control, "{name}");
            assert_eq!(reply.field("expires").is_some(), control.contains("3600"), "{name}");
        }
    });
}
