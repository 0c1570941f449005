//! Fields, paths and framing between HTTP backends and clients.

use crate::world::{World, in_memory};

const PROXIED: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn with_site(keys: &str, routes: &str) -> String {
    format!("[[site]]\nlisten = [\"127.0.0.1:80\"]\n{keys}\n{routes}")
}

/// Returns the request line that the backend receives for this target.
async fn passed(world: &World, backend: &mut crate::world::Backend, target: &str) -> String {
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    world.pass(backend, request, OK).await.0.start
}

#[test]
fn fields_of_one_hop_stay_on_it_and_claims_about_the_client_are_replaced() {
    in_memory(PROXIED, async |world| {
        let request = "GET /a?b HTTP/1.1\r\nHost: name:81\r\nConnection: X-Drop, keep-alive, close\r\n\
             X-Drop: 1\r\nx-drop: 2\r\nX-Keep: 3\r\nKeep-Alive: timeout=5\r\nTE: gzip\r\n\
             Trailer: X\r\nUpgrade: h2c\r\nProxy-Connection: close\r\nProxy: http://evil/\r\n\
             X-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: evil\r\n\
             X-Real-IP: 9.9.9.9\r\nForwarded: for=9.9.9.9\r\nx-forwarded-for: 8.8.8.8\r\n\r\n";
        let mut backend = world.backend("10.0.0.1:3000");
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert_eq!(asked.start, "GET /a?b HTTP/1.1");
        let fields: Vec<_> = asked.fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(
            fields,
            [
                ("host", "name:81"),
                ("x-keep", "3"),
                ("x-forwarded-for", "192.0.2.7"),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "name:81"),
                ("x-forwarded-port", "81"),
            ]
        );
    });
}

#[test]
fn only_the_configuration_lets_a_field_of_a_trusted_proxy_name_another_url() {
    let passes = "request_headers = { X-Original-URL = \"{header.X-Original-URL}\" }";
    for (keys, expected) in [("", &[][..]), (passes, &["/admin"])] {
        let site = with_site(
            "trusted_proxies = \"192.0.2.0/24\"",
            &PROXIED.replace("proxy", &format!("{keys}\nproxy")),
        );
        in_memory(&site, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let request = "GET /a HTTP/1.1\r\nHost: h\r\nX-Original-URL: /admin\r\n\
                           X-Rewrite-URL: /a\r\n\r\n";
            let (asked, _) = world.pass(&mut backend, request, OK).await;
            assert_eq!(asked.values("x-original-url"), expected);
            assert_eq!(asked.values("x-rewrite-url"), ["/a"]);
        });
    }
}

#[test]
fn fields_of_one_hop_in_a_reply_stay_on_it() {
    in_memory(PROXIED, async |world| {
        let reply = "HTTP/1.1 200 OK\r\nConnection: X-Drop, close\r\nX-Drop: 1\r\nKeep-Alive: timeout=5\r\n\
             X-Keep: 2\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\
             Content-Length: 2\r\n\r\nok";
        let mut backend = world.backend("10.0.0.1:3000");
        let (_, reply) = world.pass(&mut backend, GET, reply).await;
        assert_eq!(reply.values("set-cookie"), ["a", "b"]);
        assert_eq!(reply.field("x-keep"), Some("2"));
        for gone in ["connection", "x-drop", "keep-alive", "proxy-connection", "upgrade"] {
            assert_eq!(reply.field(gone), None, "{gone}");
        }
    });
}

#[test]
fn fields_for_the_gateway_reach_no_client() {
    in_memory(PROXIED, async |world| {
        let reply = "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /secret/a\r\nX-Accel-Buffering: no\r\n\
                     x-sendfile: /srv/secret/a\r\nX-Accelerate: 1\r\nContent-Length: 2\r\n\r\nhi";
        let mut backend = world.backend("10.0.0.1:3000");
        let (_, reply) = world.pass(&mut backend, GET, reply).await;
        assert_eq!(reply.text(), "hi");
        for name in ["x-accel-redirect", "x-accel-buffering", "x-sendfile"] {
            assert_eq!(reply.field(name), None, "{name}");
        }
        assert_eq!(reply.field("x-accelerate"), Some("1"));
    });
}

#[test]
fn a_prefix_is_stripped_however_the_rest_is_written() {
    let route = "[[site.route]]\npath = \"/app/*\"\n\
                 proxy = { to = \"http://10.0.0.1:3000\", strip_prefix = \"/app\" }\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (target, expected) in [
            ("/app/x?y", "/x?y"),
            ("/app/", "/"),
            ("/app/%2e%2e%252fz", "/%2e%2e%252fz"),
            ("/app//x", "/x"),
        ] {
            let line = format!("GET {expected} HTTP/1.1");
            assert_eq!(passed(world, &mut backend, target).await, line, "{target}");
        }
    });
}

#[test]
fn the_host_of_an_absolute_target_counts() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = "GET http://a.example/x?y HTTP/1.1\r\nHost: b.example\r\n\r\n";
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert_eq!(asked.start, "GET /x?y HTTP/1.1");
        assert_eq!(asked.values("host"), ["a.example"]);
        assert!(!format!("{asked:?}").contains("b.example"), "{asked:?}");
        let line = passed(world, &mut backend, "http://a.example").await;
        assert_eq!(line, "GET / HTTP/1.1");
    });
}

#[test]
fn a_target_without_path_has_the_path_slash() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let line = passed(world, &mut backend, "http://a?x=1").await;
        assert_eq!(line, "GET /?x=1 HTTP/1.1");
    });
}

#[test]
fn options_of_the_server_as_a_whole_are_answered_by_it() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        assert_eq!(world.ask("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n").await.status(), 200);
        assert!(!backend.has_visitor());
    });
}

/// The actions that pass paths on, each to 10.0.0.1:3000.
const PASSING: [&str; 6] = [
    "proxy = \"http://10.0.0.1:3000\"",
    "ajp = \"10.0.0.1:3000\"",
    "fastcgi = { to = \"10.0.0.1:3000\", mount = \"/\" }",
    "fastcgi = { to = \"10.0.0.1:3000\", root = \"/x\", scripts = \"*\" }",
    "scgi = { to = \"10.0.0.1:3000\" }",
    "uwsgi = { to = \"10.0.0.1:3000\" }",
];

/// Rules, each about the paths below /admin/.
const RULES: [&str; 8] = [
    "deny = \"0.0.0.0/0\"\nproxy = \"http://10.0.0.1:3001\"",
    "allow = \"10.0.0.0/8\"\nproxy = \"http://10.0.0.1:3001\"",
    "forward_auth = \"http://10.0.0.1:3002/\"\nproxy = \"http://10.0.0.1:3001\"",
    "respond = { status = 403 }",
    "redirect = \"/login\"",
    "internal = true\nproxy = \"http://10.0.0.1:3001\"",
    "rate_limit = { rate = \"1/m\" }\nproxy = \"http://10.0.0.1:3001\"",
    "max_body = 1\nproxy = \"http://10.0.0.1:3001\"",
];

const DISGUISES: [&str; 4] = ["%2F", "%2f", "%5C", "\\"];

#[test]
fn encoded_slashes_pass_where_they_avoid_no_rule() {
    for action in PASSING {
        for rule in [""].iter().chain(&RULES) {
            let rule = match *rule {
                "" => String::new(),
                rule => format!("[[site.route]]\npath = \"/admin/*\"\n{rule}\n"),
            };
            let routes = format!("{rule}[[site.route]]\npath = \"/*\"\n{action}\n");
            in_memory(&routes, async |world| {
                let mut backend = world.backend("10.0.0.1:3000");
                for slash in DISGUISES {
                    let mut client = world.client();
                    let what = format!("{slash} {routes}");
                    client.send(format!("GET /open{slash}x HTTP/1.1\r\nHost: a\r\n\r\n")).await;
                    let mut connection = backend.accept().await;
                    connection.more().await.unwrap();
                    let sent = String::from_utf8_lossy(connection.unread()).into_owned();
                    assert!(sent.contains(&format!("/open{slash}x")), "{what}: {sent:?}");
                    if !rule.is_empty() {
                        let request = format!("GET /admin{slash}x HTTP/1.1\r\nHost: a\r\n\r\n");
                        assert_eq!(world.ask(&request).await.status(), 404, "{what}");
                        assert!(!backend.has_visitor(), "{what}");
                    }
                }
            });
        }
    }
}

#[test]
fn encoded_slashes_pass_no_gate_that_judges_paths() {
    let gate = "forward_auth = \"http://10.0.0.1:3002/\"";
    let on_the_route =
        format!("[[site.route]]\npath = \"/*\"\n{gate}\nproxy = \"http://10.0.0.1:3000\"\n");
    // The gate protects `/run.php/x` under the name `/run.php`.
    let by_name =
        format!("[[site.route]]\npath = \"/run.php\"\n{gate}\nrespond = \"x\"\n{PROXIED}");
    let refused = "[[site]]\nlisten = \"127.0.0.1:80\"\nencoded_slashes = \"refuse\"\n";
    for (routes, target) in [
        (on_the_route.clone(), "/a%2Fb"),
        (by_name, "/run.php/a%2Fb"),
        (format!("{refused}{PROXIED}"), "/a%2Fb"),
        ("[[site.route]]\npath = \"/*\"\nfiles = \"/usr\"\n".to_owned(), "/a%2Fb"),
    ] {
        in_memory(&routes, async |world| {
            let (mut backend, mut judge) =
                (world.backend("10.0.0.1:3000"), world.backend("10.0.0.1:3002"));
            let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(world.ask(&request).await.status(), 404, "{routes}");
            assert!(!backend.has_visitor() && !judge.has_visitor(), "{routes}");
        });
    }
    in_memory(&with_site("encoded_slashes = \"pass\"", &on_the_route), async |world| {
        let (mut backend, mut judge) =
            (world.backend("10.0.0.1:3000"), world.backend("10.0.0.1:3002"));
        let mut client = world.client();
        client.send("GET /a%2Fb HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let (asked, _) = judge.answer("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(asked.field("x-forwarded-uri"), Some("/a%2Fb"));
        let (asked, _) = backend.answer(OK).await;
        assert_eq!(asked.start, "GET /a%2Fb HTTP/1.1");
    });
}

#[test]
fn encoded_slashes_stay_behind_prefixes_and_rewrites() {
    let routes = "[[site.route]]\npath = \"/app/*\"\n\
                  proxy = { to = \"http://10.0.0.1:3000\", strip_prefix = \"/app\" }\n\
                  [[site.route]]\npath = \"/old/*\"\nrewrite = \"/new/{rest}\"\n";
    in_memory(&format!("{routes}{PROXIED}"), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (target, sent) in [
            ("/app/a%2Fb", "/a%2Fb"),
            ("/old/a%2Fb", "/new/a%2Fb"),
            ("/repos/group%2Fname/files?x=%2F", "/repos/group%2Fname/files?x=%2F"),
        ] {
            let line = passed(world, &mut backend, target).await;
            assert_eq!(line, format!("GET {sent} HTTP/1.1"));
        }
        for target in ["/app%2Fa", "/old%2Fa", "/a/..%2Fapp/b", "/app/..%2F..%2Fb"] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            let status = world.ask(&request).await.status();
            assert!(matches!(status, 400 | 404), "{target}: {status}");
        }
        assert!(!backend.has_visitor());
    });
}

#[test]
fn a_backend_is_sent_the_path_that_was_matched() {
    let api = "[[site.route]]\npath = \"/api/*\"\n\
               proxy = { to = \"http://10.0.0.1:3000\", strip_prefix = \"/api\" }\n";
    let routes = format!("{api}{PROXIED}");
    in_memory(&with_site("encoded_slashes = \"pass\"", &routes), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (target, sent) in [
            ("/a%20b/%c3%a9?x=//../y", "/a%20b/%c3%a9?x=//../y"),
            ("/%252e%252e%252fx", "/%252e%252e%252fx"),
            ("/a%2Fb%5cc", "/a%2Fb%5cc"),
            ("//host/a", "/host/a"),
            ("/a//b/./%7Ec/%2e%2E/d?q", "/a/b/d?q"),
            ("/a/..", "/"),
            ("http://h//a", "/a"),
            ("/%61pi/%61", "/%61"),
            ("/x/../api//b", "/b"),
        ] {
            let line = format!("GET {sent} HTTP/1.1");
            assert_eq!(passed(world, &mut backend, target).await, line, "{target}");
        }
    });
}

#[test]
fn a_head_whose_path_was_cleaned_keeps_its_body_and_the_requests_behind_it() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        let requests = "POST //a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc\
                        GET /b/../c HTTP/1.1\r\nHost: h\r\n\r\nGET /d HTTP/1.1\r\nHost: h\r\n\r\n";
        client.send_in_pieces(requests, 7).await;
        for (line, body) in [("POST /a", "abc"), ("GET /c", ""), ("GET /d", "")] {
            let close = OK.replace("Content-Length", "Connection: close\r\nContent-Length");
            let (asked, _) = backend.answer(&close).await;
            assert_eq!((asked.start.as_str(), asked.text()), (&*format!("{line} HTTP/1.1"), body));
            assert_eq!(client.reply("").await.text(), "ok");
        }
    });
}

#[test]
fn a_slash_in_disguise_takes_no_request_past_a_route() {
    let denied = "[[site.route]]\npath = \"/admin/*\"\nrespond = { status = 403 }\n";
    let routes = format!("{denied}{PROXIED}");
    in_memory(&with_site("encoded_slashes = \"pass\"", &routes), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for target in ["/admin%2fx", "/%61dmin/x", "//admin//x", "/x/../admin/x", "/x%2f../admin/x"]
        {
            let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            let status = world.ask(&request).await.status();
            assert!(matches!(status, 400 | 403 | 404), "{target}: {status}");
        }
        assert!(!backend.has_visitor());
    });
}

#[test]
fn replies_of_old_and_terse_backends_are_passed_on() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (sent, start, text) in [
            (
                "HTTP/1.1 200 Fine\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n\
                 0\r\nT: u\r\n\r\n",
                "HTTP/1.1 200 Fine",
                "abcde",
            ),
            ("HTTP/1.1 200 OK\r\n\r\nuntil the end", "HTTP/1.1 200 OK", "until the end"),
            ("HTTP/1.0 200 OK\r\n\r\nold", "HTTP/1.1 200 OK", "old"),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\nold",
                "HTTP/1.1 200 OK",
                "old",
            ),
        ] {
            let (_, reply) = world.pass(&mut backend, GET, sent).await;
            assert_eq!((&*reply.start, reply.text()), (start, text), "{sent:?}");
            let is_chunked = reply.field("transfer-encoding") == Some("chunked");
            assert_eq!(is_chunked, !sent.contains("Content-Length"), "{sent:?}");
        }
        let not_modified = "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n";
        let (_, reply) = world.pass(&mut backend, GET, not_modified).await;
        assert_eq!((reply.status(), reply.field("etag")), (304, Some("\"x\"")));
        let (_, reply) =
            world.pass(&mut backend, GET, "HTTP/1.1 404\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(reply.status(), 404);
    });
}

/// Returns bytes with a long period.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn large_replies_arrive_exactly() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let large = pattern(1_000_000);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", large.len());
        let (_, reply) = world.pass(&mut backend, GET, [head.as_bytes(), &large].concat()).await;
        assert!(reply.body == large);
        let head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        let (_, reply) = world.pass(&mut backend, GET, [head.as_bytes(), &large].concat()).await;
        assert!(reply.body == large);
    });
}

#[test]
fn uploads_arrive_exactly_in_their_framing() {
    in_memory(PROXIED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let body = pattern(1_000_000);
        let length = body.len();
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
        let (asked, _) = world.pass(&mut backend, [head.as_bytes(), &body].concat(), OK).await;
        assert!(asked.body == body);
        assert_eq!(asked.field("content-length"), Some(&*length.to_string()));
        let mut request =
            b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for piece in body.chunks(33_333) {
            request.extend(format!("{:x}\r\n", piece.len()).as_bytes());
            request.extend(piece);
            request.extend(b"\r\n");
        }
        request.extend(b"0\r\n\r\n");
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert!(asked.body == body);
        assert_eq!(asked.field("content-length"), None);
    });
}
