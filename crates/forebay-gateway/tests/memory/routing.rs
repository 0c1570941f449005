//! Selection of routes, fixed replies, header rules and the access log.

use std::path::Path;

use crate::world::{World, in_memory};

const HOSTILE: &str = "GET /a%22b\"?x=\\\"y HTTP/1.1\r\nHost: h\r\nUser-Agent: \"x\\\" \u{e9}\t\
                       10\r\nReferer: http://r/\r\n\r\n";

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")
}

fn respond(matcher: &str, body: &str) -> String {
    format!("[[site.route]]\n{matcher}\nrespond = \"{body}\"\n")
}

fn routes(root: &Path) -> String {
    std::fs::create_dir_all(root.join("x")).unwrap();
    std::fs::write(root.join("x/y.txt"), "file").unwrap();
    let root = root.display();
    [
        respond("path = \"/exact\"", "exact"),
        respond("methods = [\"POST\"]", "post"),
        respond("path = \"/a/*\"\nsuffix = \".php\"", "php below a"),
        respond("suffix = [\".php\", \".phtml\"]", "php"),
        respond("paths = [\"/a/*\", \"/b\"]", "a or b"),
        format!("[[site.route]]\npath = \"/files/*\"\nfiles = \"{root}/x\"\n"),
        format!("[[site.route]]\nsuffix = \".txt\"\nfiles = \"{root}\"\n"),
    ]
    .concat()
}

#[test]
fn the_first_route_that_matches_answers() {
    let root = tempfile::tempdir().unwrap();
    in_memory(&routes(root.path()), async |world| {
        for (target, body) in [
            ("/exact", "exact"),
            ("/exact?q", "exact"),
            ("/%65xact", "exact"),
            ("/x/../exact", "exact"),
            ("/a/x.php", "php below a"),
            ("/x.php", "php"),
            ("/x.phtml?y.html", "php"),
            ("/a/", "a or b"),
            ("/b", "a or b"),
            ("/files/y.txt", "file"),
            ("/x/y.txt", "file"),
            ("/a/%ff", "a or b"),
        ] {
            assert_eq!(world.ask(&get(target)).await.text(), body, "{target}");
        }
        let post = "POST /x.php HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(world.ask(post).await.text(), "post");
    });
}

#[test]
fn a_path_without_a_route_is_404() {
    let root = tempfile::tempdir().unwrap();
    in_memory(&routes(root.path()), async |world| {
        for target in ["/exact/", "/ab", "/", "/EXACT", "/%ff", "/x.PHP"] {
            assert_eq!(world.ask(&get(target)).await.status(), 404, "{target}");
        }
    });
}

#[test]
fn the_site_is_chosen_by_host() {
    let site = |hosts: &str, body: &str| {
        format!(
            "[[site]]\nlisten = \"127.0.0.1:80\"\n{hosts}\n[[site.route]]\nrespond = \"{body}\"\n"
        )
    };
    let configuration = [
        site("hosts = [\"example.org\", \"www.example.org\"]", "named"),
        site("hosts = \"*.example.org\"", "wild"),
        site("hosts = \"*.deep.example.org\"", "deep"),
        site("", "any"),
    ]
    .concat();
    in_memory(&configuration, async |world| {
        for (host, body) in [
            ("example.org", "named"),
            ("EXAMPLE.org:8080", "named"),
            ("example.org.", "named"),
            ("www.example.org", "named"),
            ("a.example.org", "wild"),
            ("a.deep.example.org", "deep"),
            ("xexample.org", "any"),
            ("127.0.0.1", "any"),
            ("[::1]:80", "any"),
        ] {
            let reply = world.ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            assert_eq!(reply.text(), body, "{host}");
        }
        let absolute = "GET http://example.org/ HTTP/1.1\r\nHost: other\r\n\r\n";
        assert_eq!(world.ask(absolute).await.text(), "named", "the target's host counts");
        assert_eq!(world.ask("GET / HTTP/1.0\r\n\r\n").await.text(), "any");
    });
}

/// No site can have such a name, and applications derive file names from host names.
#[test]
fn hosts_with_an_empty_name_or_label_are_refused() {
    in_memory(&respond("", "hello"), async |world| {
        for host in ["", ".", "..", "../../etc", "a..b", ".a", ":80"] {
            let reply = world.ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            assert_eq!(reply.status(), 400, "{host}");
        }
        for host in ["a.", "a.b:80", "xn--a_b", "[::1]"] {
            let reply = world.ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            assert_eq!(reply.status(), 200, "{host}");
        }
        assert_eq!(world.ask("GET / HTTP/1.0\r\n\r\n").await.status(), 200);
    });
}

#[test]
fn a_site_answers_only_where_it_listens() {
    let site = |port: u16| {
        format!("[[site]]\nlisten = \"127.0.0.1:{port}\"\n[[site.route]]\nrespond = \"{port}\"\n")
    };
    in_memory(&[site(80), site(81)].concat(), async |world| {
        for (listener, text) in [(0, "80"), (1, "81")] {
            let mut client = world.client_at(listener);
            client.send(get("/")).await;
            assert_eq!(client.reply("GET ").await.text(), text);
        }
    });
}

#[test]
fn a_fixed_reply_has_its_status_body_and_type() {
    let routes = "[[site.route]]\npath = \"/gone\"\n\
                  respond = { status = 410, body = \"<p>gone\", content_type = \"text/html\" }\n\
                  [[site.route]]\npath = \"/empty\"\nrespond = { status = 204 }\n";
    in_memory(routes, async |world| {
        let mut client = world.client();
        client.send(get("/gone")).await;
        let gone = client.reply("GET ").await;
        assert_eq!((gone.status(), gone.text()), (410, "<p>gone"));
        assert_eq!(gone.field("content-type"), Some("text/html"));
        client.send(get("/empty")).await;
        let empty = client.reply("GET ").await;
        assert_eq!((empty.status(), empty.field("content-length")), (204, None));
    });
}

#[test]
fn a_redirection_is_temporary_unless_it_has_a_status() {
    let routes = "[[site.route]]\npath = \"/old\"\nredirect = \"https://example.org/new\"\n\
                  [[site.route]]\npath = \"/moved\"\nredirect = { to = \"/there\", status = 308 }\n";
    in_memory(routes, async |world| {
        for (target, status, location) in
            [("/old", 302, "https://example.org/new"), ("/moved?x", 308, "/there?x")]
        {
            let reply = world.ask(&get(target)).await;
            assert_eq!((reply.status(), reply.field("location")), (status, Some(location)));
        }
    });
}

#[test]
fn reply_headers_are_set_and_removed_but_in_errors_only_removed() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "a").unwrap();
    let root = root.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/*\"\nfiles = \"{root}\"\nexpires = \"1h\"\n\
         set_headers = {{ X-Frame-Options = \"DENY\", content-type = \"text/x-own\" }}\n\
         remove_headers = [\"ETag\", \"last-modified\"]\n"
    );
    in_memory(&routes, async |world| {
        let reply = world.ask(&get("/a.txt")).await;
        assert_eq!(reply.text(), "a");
        assert_eq!(reply.values("content-type"), ["text/x-own"]);
        assert_eq!(reply.values("x-frame-options"), ["DENY"]);
        assert_eq!((reply.field("etag"), reply.field("last-modified")), (None, None));
        let missing = world.ask(&get("/b.txt")).await;
        assert_eq!(missing.status(), 404);
        assert_eq!(missing.field("x-frame-options"), None);
    });
}

#[test]
fn expires_is_for_what_was_found() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.txt"), "a").unwrap();
    let root = root.path().display();
    let route = format!("[[site.route]]\npath = \"/*\"\nfiles = \"{root}\"\nexpires = \"1h\"\n");
    in_memory(&route, async |world| {
        let reply = world.ask(&get("/a.txt")).await;
        assert_eq!(reply.values("cache-control"), ["max-age=3600"]);
        assert_eq!(reply.values("expires").len(), 1);
        let missing = world.ask(&get("/b.txt")).await;
        assert_eq!(missing.status(), 404);
        assert_eq!((missing.field("expires"), missing.field("cache-control")), (None, None));
    });
}

/// Returns a site that logs in this format.
fn logged(format: &str) -> String {
    format!(
        "[log]\naccess = \"stdout\"\nformat = '{format}'\n\
         [[site]]\nlisten = \"127.0.0.1:80\"\n\
         [[site.route]]\npath = \"/quiet\"\nlog = false\nrespond = \"q\"\n\
         [[site.route]]\nrespond = \"hello\"\n"
    )
}

/// Returns the log lines of these requests.
async fn lines(world: &World, requests: &[&[u8]]) -> Vec<String> {
    for request in requests {
        let mut client = world.client();
        client.send(request).await;
        client.reply("").await;
        drop(client);
        tokio::task::yield_now().await;
    }
    world.gateway.access_lines().iter().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn common_lines_leave_out_what_a_quiet_route_answers() {
    in_memory(&logged("common"), async |world| {
        let old = b"POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n";
        let asked = [get("/a?b"), get("/quiet")];
        let got = lines(world, &[asked[0].as_bytes(), asked[1].as_bytes(), old]).await;
        assert!(got[0].starts_with("192.0.2.7 - - ["), "{got:?}");
        assert!(got[0].ends_with("] \"GET /a?b HTTP/1.1\" 200 5"), "{got:?}");
        assert!(got[1].ends_with("] \"POST / HTTP/1.0\" 200 5"), "{got:?}");
        assert_eq!(got.len(), 2, "{got:?}");
    });
}

#[test]
fn combined_lines_escape_what_clients_send() {
    in_memory(&logged("combined"), async |world| {
        let got = lines(world, &[HOSTILE.as_bytes(), get("/").as_bytes()]).await;
        let end = "\"GET /a%22b\\\"?x=\\\\\\\"y HTTP/1.1\" 200 5 \"http://r/\" \
                   \"\\\"x\\\\\\\" \\xc3\\xa9\\x0910\"";
        assert!(got[0].ends_with(end), "{got:?}");
        assert!(got[1].ends_with("200 5 \"-\" \"-\""), "{got:?}");
    });
}

#[test]
fn a_pattern_is_filled_in() {
    in_memory(&logged("%m|%U|%q|%>s|%b|%{X-Id}i|%H|%v|100%%|%p"), async |world| {
        let request = b"GET /a%20b?c=d HTTP/1.1\r\nHost: name:1\r\nX-Id: 7\r\n\r\n";
        let got = lines(world, &[request]).await;
        assert_eq!(got, ["GET|/a b|?c=d|200|5|7|HTTP/1.1|name:1|100%|80"]);
    });
}

#[test]
fn refused_requests_are_logged() {
    in_memory(&logged("%>s \"%r\""), async |world| {
        let got = lines(
            world,
            &[
                b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
                b"nonsense\"\r\n\r\n",
                get("/%zz").as_bytes(),
            ],
        )
        .await;
        assert!(got[0].starts_with("400 \"GET / HTTP/1.1"), "{got:?}");
        assert!(got[1].starts_with("400 \""), "{got:?}");
        assert!(got[2].starts_with("400 \"GET /%zz HTTP/1.1"), "{got:?}");
        assert_eq!(got.len(), 3, "{got:?}");
    });
}

#[test]
fn a_higher_minor_version_is_answered_as_1_1_and_a_higher_major_one_refused() {
    in_memory(&respond("", "hello"), async |world| {
        let mut client = world.client();
        for minor in [2, 9, 1] {
            client.send(format!("GET / HTTP/1.{minor}\r\nHost: h\r\n\r\n")).await;
            let reply = client.reply("GET ").await;
            assert_eq!((&*reply.start, reply.text()), ("HTTP/1.1 200 OK", "hello"));
        }
        assert_eq!(world.ask("GET / HTTP/2.0\r\nHost: h\r\n\r\n").await.status(), 505);
    });
}

#[test]
fn other_protocols_get_an_immediate_answer() {
    in_memory(&respond("", "hello"), async |world| {
        let since = tokio::time::Instant::now();
        // The client sends the first bytes of a TLS connection, and then waits for an answer.
        let mut client = world.client();
        client.send([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]).await;
        let reply = client.reply("").await;
        assert_eq!((reply.status(), reply.field("connection")), (400, Some("close")));
        assert!(since.elapsed().is_zero(), "the clock did not move");
    });
}
