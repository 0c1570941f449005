//! `forward_auth` and `satisfy`: another server decides, and nobody gets around it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::spawn_local;

use crate::application::{Application, reply};
use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};
use crate::{ajp, fastcgi};

const ROUTES: &str = "[[site.route]]\npath = \"/open\"\nproxy = \"http://10.0.0.1:3000\"\n\
    [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n\
    [site.route.forward_auth]\nto = \"http://10.0.0.2:9091/verify?x=1\"\n\
    copy = [\"Remote-User\", \"X-Groups\"]\nuser = \"Remote-User\"\n";

/// Starts a server that decides by the cookie `user`.
fn start_auth(world: &World) -> Application {
    Application::at(world, "10.0.0.2:9091", Duration::ZERO, |request, _| {
        match request.field("cookie") {
            Some("user=ann") => {
                "HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\nRemote-User: ann\r\nX-Groups: a\r\n\
                 X-Groups: b\r\nX-Other: 1\r\nSet-Cookie: user=ann; Max-Age=60\r\n\r\nhello"
            }
            Some("user=bob") => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nRemote-User: bob\r\n\r\n",
            Some("user=eve") => {
                "HTTP/1.1 302 Found\r\nLocation: http://10.0.0.2:9091/login?rd=/a\r\n\
                 Set-Cookie: state=1\r\nX-Accel-Redirect: /secret\r\nContent-Length: 2\r\n\r\nno"
            }
            _ => {
                "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nContent-Length: 5\r\n\r\nlogin"
            }
        }
        .to_owned()
    })
}

fn start_application(world: &World) -> Application {
    Application::start(world, |_, _| reply("", "page"))
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

#[test]
fn a_permitted_request_gets_the_fields_of_the_answer() {
    in_memory(ROUTES, async |world| {
        let (auth, application) = (start_auth(world), start_application(world));
        let spoofed = "Cookie: user=ann\r\nRemote-User: root\r\nremote_user: root\r\n\
                       X-GROUPS: admin\r\nConnection: Remote-User, X-Forwarded-Uri\r\n\
                       X-Forwarded-Uri: /open\r\nX-Forwarded-Method: GET\r\nRange: bytes=0-1\r\n\
                       If-None-Match: *\r\nContent-Length: 4\r\n";
        let request = format!("POST /a/../b%20c?d=e HTTP/1.1\r\nHost: h\r\n{spoofed}\r\nbody");
        let reply = world.ask(&request).await;
        assert_eq!((reply.status(), reply.text()), (200, "page"));
        assert_eq!(reply.values("set-cookie"), ["user=ann; Max-Age=60"]);
        let asked = &auth.seen.borrow()[0];
        assert_eq!(asked.start, "GET /verify?x=1 HTTP/1.1");
        for (name, values) in [
            ("host", &["10.0.0.2:9091"][..]),
            ("x-forwarded-method", &["POST"]),
            ("x-forwarded-uri", &["/b%20c?d=e"]),
            ("x-forwarded-host", &["h"]),
            ("x-forwarded-proto", &["http"]),
            ("x-forwarded-for", &["192.0.2.7"]),
            ("cookie", &["user=ann"]),
            ("range", &[]),
            ("if-none-match", &[]),
            ("content-length", &[]),
        ] {
            assert_eq!(asked.values(name), values, "{name}");
        }
        let passed = &application.seen.borrow()[0];
        assert_eq!(passed.start, "POST /b%20c?d=e HTTP/1.1");
        assert_eq!(passed.body, b"body");
        for (name, values) in [
            ("remote-user", &["ann"][..]),
            ("remote_user", &[]),
            ("x-groups", &["a, b"]),
            ("x-other", &[]),
            ("range", &["bytes=0-1"]),
        ] {
            assert_eq!(passed.values(name), values, "{name}");
        }
    });
}

#[test]
fn a_missing_field_of_the_answer_removes_the_clients_own() {
    in_memory(ROUTES, async |world| {
        let (_auth, application) = (start_auth(world), start_application(world));
        get(world, "/", "Cookie: user=bob\r\nX-Groups: admin\r\n").await;
        let passed = &application.seen.borrow()[0];
        assert_eq!(passed.field("remote-user"), Some("bob"));
        assert_eq!(passed.field("x-groups"), None);
    });
}

#[test]
fn any_other_answer_goes_to_the_client() {
    in_memory(ROUTES, async |world| {
        let (_auth, application) = (start_auth(world), start_application(world));
        let refused = get(world, "/", "").await;
        assert_eq!((refused.status(), refused.text()), (401, "login"));
        assert_eq!(refused.field("www-authenticate"), Some("Bearer"));
        let moved = get(world, "/", "Cookie: user=eve\r\n").await;
        assert_eq!((moved.status(), moved.text()), (302, "no"));
        assert_eq!(moved.field("location"), Some("http://10.0.0.2:9091/login?rd=/a"));
        assert_eq!(moved.field("set-cookie"), Some("state=1"));
        assert_eq!(moved.field("x-accel-redirect"), None);
        let mut client = world.client();
        client.send("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        let head = client.reply("HEAD ").await;
        assert_eq!((head.status(), head.field("content-length")), (401, Some("5")));
        // The connection serves further requests, even after one with an unread body.
        client.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc").await;
        assert_eq!(client.reply("PUT").await.status(), 401);
        client.send("GET /open HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(client.reply("GET").await.text(), "page");
        assert_eq!(application.asked(), 1);
        let mut client = Http2Client::connect(world).await;
        let refused = client.get("/");
        assert_eq!(client.reply(refused).await.status, 401);
        let permitted = client.ask("GET", "/", &[("cookie", "user=ann")], true);
        assert_eq!(client.reply(permitted).await.text(), "page");
    });
}

#[test]
fn an_error_page_may_replace_the_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("login.html");
    std::fs::write(&page, "log in").unwrap();
    let keys = format!(
        "error_pages = {{ 401 = \"{}\" }}\nintercept = true\n[site.route.forward",
        page.display()
    );
    let routes = ROUTES.replace("[site.route.forward", &keys);
    in_memory(&routes, async |world| {
        let (_auth, application) = (start_auth(world), start_application(world));
        let refused = get(world, "/", "").await;
        assert_eq!((refused.status(), refused.text()), (401, "log in"));
        assert_eq!(refused.field("www-authenticate"), Some("Bearer"));
        assert_eq!(get(world, "/", "Cookie: user=ann\r\n").await.text(), "page");
        assert_eq!(application.asked(), 1);
    });
}

#[test]
fn a_destination_is_decided_by_its_own_path() {
    in_memory(ROUTES, async |world| {
        let _application = start_application(world);
        let auth = Application::at(world, "10.0.0.2:9091", Duration::ZERO, |request, _| {
            let uri = request.field("x-forwarded-uri").unwrap();
            let status = if uri.starts_with("/secret") { "403 No" } else { "200 OK" };
            format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
        });
        for (target, destination, status) in [
            ("/a", "http://h/b", 200),
            ("/a", "/secret/x", 403),
            ("/secret/x", "/a", 403),
            ("/open", "/secret/x", 403),
        ] {
            let fields = format!("Host: h\r\nDestination: {destination}\r\n");
            let request = format!("MOVE {target} HTTP/1.1\r\n{fields}\r\n");
            assert_eq!(world.ask(&request).await.status(), status, "{target} {destination}");
        }
        let uris: Vec<_> = auth
            .seen
            .borrow()
            .iter()
            .map(|r| r.field("x-forwarded-uri").unwrap().to_owned())
            .collect();
        assert_eq!(uris[..2], ["/b", "/a"]);
    });
}

#[test]
fn an_upgrade_is_decided_before_the_tunnel() {
    in_memory(ROUTES, async |world| {
        let auth = start_auth(world);
        let _application = Application::start(world, |request, _| {
            assert_eq!(request.field("upgrade"), Some("websocket"));
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                .into()
        });
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
        assert_eq!(get(world, "/", upgrade).await.status(), 401);
        assert_eq!(auth.seen.borrow()[0].field("upgrade"), None);
        let mut client = world.client();
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: user=ann\r\n{upgrade}\r\n");
        client.send(&request).await;
        assert_eq!(client.reply(&request).await.status(), 101);
    });
}

#[test]
fn no_failure_of_the_server_lets_a_request_pass() {
    in_memory(ROUTES, async |world| {
        let application = start_application(world);
        assert_eq!(get(world, "/", "").await.status(), 502, "nobody listens");
        let large = format!("HTTP/1.1 403 No\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
        let long =
            format!("HTTP/1.1 403 No\r\nContent-Length: 300000\r\n\r\n{}", "x".repeat(300_000));
        let answers = [
            String::new(),
            "nonsense\r\n\r\n".into(),
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".into(),
            "HTTP/1.1 304 Not Modified\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".into(),
            "HTTP/1.1 200 OK\r\nRemote-User: a\nX-Evil: 1\r\nContent-Length: 0\r\n\r\n".into(),
            "HTTP/1.1 200 OK\r\nRemote-User: a\0b\r\nContent-Length: 0\r\n\r\n".into(),
            large,
            long,
        ];
        for answer in answers {
            let shown: String = answer.chars().take(60).collect();
            let text = answer.clone();
            let mut server = world.backend("10.0.0.2:9091");
            let serving = tokio::task::spawn_local(async move {
                loop {
                    let mut connection = server.accept().await;
                    if connection.head().await.is_ok() {
                        connection.send(&text).await;
                    }
                }
            });
            let status = get(world, "/", "Cookie: user=ann\r\n").await.status();
            assert!(matches!(status, 502 | 504), "{status} after {shown:?}");
            serving.abort();
        }
        world.fall_silent("10.0.0.2:9091");
        let status = get(world, "/", "").await.status();
        assert!(matches!(status, 502 | 504), "{status}");
        assert_eq!(application.asked(), 0);
    });
}

#[test]
fn a_slow_server_is_given_up_after_its_timeout() {
    let routes = ROUTES.replace("user =", "timeout = \"2s\"\nuser =");
    in_memory(&routes, async |world| {
        let hour = Duration::from_secs(3600);
        let _auth = Application::at(world, "10.0.0.2:9091", hour, |_, _| String::new());
        let application = start_application(world);
        let started = tokio::time::Instant::now();
        assert_eq!(get(world, "/", "").await.status(), 504);
        assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
        assert_eq!(application.asked(), 0);
    });
}

#[test]
fn replies_to_permitted_requests_are_not_stored_for_others() {
    let routes = format!("{ROUTES}[site.route.cache]\nvalid = \"1h\"\n");
    in_memory(&routes, async |world| {
        let (_auth, application) = (start_auth(world), start_application(world));
        for _ in 0..2 {
            get(world, "/", "Cookie: user=ann\r\n").await;
        }
        assert_eq!(application.asked(), 2);
        assert_eq!(get(world, "/", "").await.status(), 401);
    });
}

#[test]
fn one_rule_is_enough_if_any_satisfies() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n").unwrap();
    let right = "Authorization: Basic bWU6cDpzcyB3\r\n";
    let password = format!("basic_auth = {{ file = \"{}\" }}\n", users.display());
    let forward = "forward_auth = \"http://10.0.0.2:9091/verify\"\n";
    let (here, elsewhere) = ("allow = \"192.0.2.0/24\"\n", "allow = \"10.0.0.0/8\"\n");
    for (rules, fields, status) in [
        (format!("{here}{password}"), "", 200),
        (format!("{elsewhere}{password}"), "", 401),
        (format!("{elsewhere}{password}"), right, 200),
        (format!("{elsewhere}{forward}"), "", 401),
        (format!("{elsewhere}{forward}"), "Cookie: user=ann\r\n", 200),
        (format!("{here}{forward}"), "", 200),
        (format!("{password}{forward}"), "", 401),
        (format!("{password}{forward}"), right, 200),
        (format!("{password}{forward}"), "Cookie: user=bob\r\n", 200),
        (format!("deny = \"192.0.2.7\"\n{password}"), "", 401),
    ] {
        let route = format!("[[site.route]]\nrespond = \"in\"\nsatisfy = \"any\"\n{rules}");
        in_memory(&route, async |world| {
            let _auth = start_auth(world);
            assert_eq!(get(world, "/", fields).await.status(), status, "{rules} {fields}");
        });
        let all = route.replace("satisfy = \"any\"\n", "");
        in_memory(&all, async |world| {
            let _auth = start_auth(world);
            let both = format!("{right}Cookie: user=ann\r\n");
            let status = get(world, "/", &both).await.status();
            assert_eq!(status == 200, !rules.contains("10.0.0.0") && !rules.contains("deny"));
        });
    }
}

#[test]
fn fields_of_the_answer_get_other_names() {
    let routes = ROUTES.replace(
        "copy = [\"Remote-User\", \"X-Groups\"]",
        "copy = { X-User = \"Remote-User\", X-All-Groups = \"X-Groups\" }",
    );
    in_memory(&routes, async |world| {
        let (_auth, application) = (start_auth(world), start_application(world));
        let spoofed = "Cookie: user=ann\r\nX-User: root\r\nx_user: root\r\nX-ALL-GROUPS: admin\r\n";
        assert_eq!(get(world, "/a", spoofed).await.text(), "page");
        let seen = &application.seen.borrow()[0];
        assert_eq!(seen.values("x-user"), ["ann"]);
        assert_eq!(seen.values("x_user"), [""; 0]);
        assert_eq!(seen.values("x-all-groups"), ["a, b"]);
        assert_eq!(seen.field("remote-user"), None);
    });
}

#[test]
fn the_question_has_the_fields_of_the_configuration() {
    let routes = ROUTES.replace(
        "to = \"http://10.0.0.2",
        "host = \"client\"\n\
         request_headers = { X-Original-URI = \"{uri}\", X-Original-Method = \"{method}\", \
         X-Forwarded-Uri = \"/fixed\", Remote-User = \"\" }\nto = \"http://10.0.0.2",
    );
    in_memory(&routes, async |world| {
        let (auth, application) = (start_auth(world), start_application(world));
        let forged = "Cookie: user=ann\r\nX-Original-URI: /open\r\nx_original_uri: /open\r\n\
                      X-Original-Method: HEAD\r\nX-Forwarded-Uri: /open\r\nRemote_User: root\r\n";
        assert_eq!(get(world, "/a/../b?c=d", forged).await.status(), 200);
        let asked = &auth.seen.borrow()[0];
        for (name, values) in [
            ("host", &["h"][..]),
            ("x-original-uri", &["/b?c=d"]),
            ("x_original_uri", &[]),
            ("x-original-method", &["GET"]),
            ("x-forwarded-uri", &["/fixed"]),
            ("remote_user", &[]),
        ] {
            assert_eq!(asked.values(name), values, "{name}");
        }
        assert_eq!(application.seen.borrow()[0].values("x-forwarded-uri"), [""; 0]);
    });
}

#[test]
fn no_field_of_the_client_describes_the_request_or_its_user_to_the_server() {
    const FORGED: &str = "X-Original-URI: /open\r\nX-Original-URL: http://h/open\r\n\
        x_original_uri: /open\r\nX-Original-Method: HEAD\r\nX-Original-Host: evil\r\n\
        X-Rewrite-URL: /open\r\nX-Forwarded-Uri: /open\r\nX-Forwarded-Method: HEAD\r\n\
        X-Forwarded-User: root\r\nX-Forwarded-Groups: root\r\nX-Forwarded-Host: evil\r\n\
        X-Auth-Request-Redirect: //evil\r\nX-Auth-Request-User: root\r\nRemote-User: root\r\n\
        Remote-Groups: root\r\nREMOTE_EMAIL: root\r\nX-Remote-User: root\r\n\
        X-authentik-username: root\r\nX-WEBAUTH-USER: root\r\nX-Groups: root\r\n\
        X-HTTP-Method-Override: HEAD\r\nX-Real-IP: 10.0.0.1\r\nForwarded: for=10.0.0.1\r\n";
    let trusted = "[[site]]\nlisten = \"127.0.0.1:80\"\ntrusted_proxies = \"198.51.100.0/24\"\n";
    in_memory(&format!("{trusted}{ROUTES}"), async |world| {
        let (auth, _application) = (start_auth(world), start_application(world));
        let fields = format!("{FORGED}Cookie: user=ann\r\nAuthorization: Bearer t\r\nX-Own: 1\r\n");
        assert_eq!(get(world, "/secret?a", &fields).await.status(), 200);
        let asked = auth.seen.borrow_mut().pop().unwrap();
        for forged in ["root", "evil", "open", "HEAD", "\"10.0.0.1\""] {
            assert!(!format!("{asked:?}").contains(forged), "{forged}: {asked:?}");
        }
        for (name, values) in [
            ("x-original-uri", &["/secret?a"][..]),
            ("x-original-method", &["GET"]),
            ("x-forwarded-uri", &["/secret?a"]),
            ("x-forwarded-method", &["GET"]),
            ("cookie", &["user=ann"]),
            ("authorization", &["Bearer t"]),
            ("x-own", &["1"]),
        ] {
            assert_eq!(asked.values(name), values, "{name}");
        }
        // A trusted proxy may name the user, but not another path.
        let mut proxy = world.client_from("198.51.100.1:4000");
        let request = "GET /secret HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.1\r\n\
             X-Remote-User: bob\r\nX-Original-URI: /open\r\nCookie: user=ann\r\n\r\n";
        proxy.send(request).await;
        assert_eq!(proxy.reply(request).await.status(), 200);
        let asked = auth.seen.borrow_mut().pop().unwrap();
        assert_eq!(asked.values("x-original-uri"), ["/secret"]);
        assert_eq!(asked.values("x-remote-user"), ["bob"]);
    });
}

/// Starts a server of `protocol` that decides by the cookie `user`. Returns what it was asked.
fn start_other(world: &World, protocol: &'static str) -> Rc<RefCell<Vec<String>>> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (mut server, asked) = (world.backend("10.0.0.2:9091"), seen.clone());
    spawn_local(async move {
        loop {
            let mut connection = server.accept().await;
            if connection.more().await.is_err() {
                continue;
            }
            let request = String::from_utf8_lossy(connection.unread()).replace('\0', "|");
            let is_ann = request.contains("user=ann");
            let cgi = match &*request {
                _ if is_ann => "Status: 204\r\nRemote-User: ann\r\nSet-Cookie: a=1\r\n\r\n",
                eve if eve.contains("user=eve") => "Location: /open\r\n\r\n",
                odd if odd.contains("user=odd") => "Status: 204\r\nRemote-User : ann\r\n\r\n",
                _ => "Status: 401\r\nContent-Type: text/plain\r\n\r\nlogin",
            };
            asked.borrow_mut().push(request);
            let reply = match protocol {
                "fastcgi" => [fastcgi::stdout(1, cgi), fastcgi::end(1)].concat(),
                "ajp" if is_ann => {
                    let fields = [("Remote-User", "ann"), ("Set-Cookie", "a=1")];
                    [ajp::head(204, &fields), ajp::end(false)].concat()
                }
                "ajp" => {
                    let head = ajp::head(401, &[("Content-Length", "5")]);
                    [head, ajp::chunk(b"login"), ajp::end(false)].concat()
                }
                _ => cgi.as_bytes().to_vec(),
            };
            connection.send(reply).await;
        }
    });
    seen
}

#[test]
fn a_server_of_any_protocol_decides() {
    const FORGED: &str = "X-Original-URI: /evil\r\nX-Forwarded-User: root\r\nRemote-User: root\r\n\
        X-Forwarded-Uri: /evil\r\nX-Forwarded-Groups: root\r\nX-Groups: root\r\nProxy: root\r\n";
    for protocol in ["fastcgi", "scgi", "uwsgi", "ajp"] {
        let mount = match protocol {
            "ajp" => "",
            _ => ", mount = \"/verify\", params = { REALM = \"shop\" }",
        };
        let routes = format!(
            "[[site.route]]\npath = \"/open\"\nproxy = \"http://10.0.0.1:3000\"\n\
             [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n[site.route.forward_auth]\n\
             {protocol} = {{ to = \"10.0.0.2:9091\"{mount} }}\npath = \"/verify/x?y=1\"\n\
             copy = [\"Remote-User\", \"X-Groups\"]\n"
        );
        in_memory(&routes, async |world| {
            let (asked, application) = (start_other(world, protocol), start_application(world));
            let fields = format!("{FORGED}Cookie: user=ann\r\nContent-Length: 2\r\n");
            let request = format!("POST /a/../b?c=d HTTP/1.1\r\nHost: h\r\n{fields}\r\nno");
            let permitted = world.ask(&request).await;
            assert_eq!((permitted.status(), permitted.text()), (200, "page"), "{protocol}");
            assert_eq!(permitted.values("set-cookie"), ["a=1"]);
            {
                let passed = &application.seen.borrow()[0];
                assert_eq!((&*passed.start, &*passed.body), ("POST /b?c=d HTTP/1.1", &b"no"[..]));
                assert_eq!(passed.values("remote-user"), ["ann"]);
                assert_eq!(passed.values("x-groups"), [""; 0]);
            }
            let told = asked.borrow_mut().pop().unwrap();
            assert!(!told.contains("evil") && !told.contains("root"), "{protocol}: {told}");
            assert!(told.contains("/b?c=d") && told.contains("y=1"), "{protocol}: {told}");
            assert!(told.contains("192.0.2.7") && told.contains("http"), "{protocol}: {told}");
            assert!(told.contains("/verify") && told.contains("/x"), "{protocol}: {told}");
            assert_eq!(told.contains("shop"), protocol != "ajp", "{protocol}: {told}");
            let refused = get(world, "/b", "").await;
            assert_eq!((refused.status(), refused.text()), (401, "login"), "{protocol}");
            // Neither a redirect within this server nor an odd answer is a permission.
            for user in ["eve", "odd"] {
                let refused = get(world, "/b", &format!("Cookie: user={user}\r\n")).await;
                assert!(refused.status() >= 400, "{protocol}, {user}: {refused:?}");
            }
            assert_eq!(application.asked(), 1, "{protocol}");
        });
    }
}

#[test]
fn parameters_of_the_question_describe_the_request_of_the_client() {
    for protocol in ["fastcgi", "scgi", "uwsgi"] {
        let routes = format!(
            "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n[site.route.forward_auth]\n\
             {protocol} = {{ to = \"10.0.0.2:9091\", mount = \"\", \
             params = {{ REALM = \"shop\", FIXED = \"kept\" }} }}\npath = \"/auth\"\n\
             copy = \"X-Groups\"\nparams = {{ REQUEST_METHOD = \"{{method}}\", \
             REQUEST_URI = \"{{uri}}\", REALM = \"{{host}}{{requested_port}}\", \
             GROUPS = \"{{header.X-Groups}}\" }}\n"
        );
        in_memory(&routes, async |world| {
            let (asked, application) = (start_other(world, protocol), start_application(world));
            let request = "POST /a/../b?c=d HTTP/1.1\r\nHost: h:81\r\nX-Groups: root\r\n\
                           Cookie: user=ann\r\nContent-Length: 2\r\n\r\nno";
            assert_eq!(world.ask(request).await.status(), 200, "{protocol}");
            let told = asked.borrow_mut().pop().unwrap();
            let told = told.replace(|c: char| c == '|' || c.is_control(), "");
            for wanted in [
                "REQUEST_METHODPOST",
                "REQUEST_URI/b?c=d",
                "REALMh:81",
                "FIXEDkept",
                "PATH_INFO/auth",
            ] {
                assert!(told.contains(wanted), "{protocol}, {wanted}: {told}");
            }
            for unwanted in ["REQUEST_METHODGET", "REQUEST_URI/auth", "REALMshop", "root"] {
                assert!(!told.contains(unwanted), "{protocol}, {unwanted}: {told}");
            }
            assert_eq!(application.asked(), 1, "{protocol}");
        });
    }
}

#[test]
fn a_script_that_decides_and_is_missing_opens_no_other_route() {
    let routes = "[[site.route]]\npath = \"/a\"\nfallback = true\n\
        fastcgi = { to = \"10.0.0.3:9000\", root = \"/nowhere\", scripts = \"*\" }\n\
        forward_auth = { fastcgi = { to = \"10.0.0.2:9091\", root = \"/nowhere\" }, path = \"/x.txt\" }\n\
        [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n";
    in_memory(routes, async |world| {
        let application = start_application(world);
        assert!(get(world, "/a", "").await.status() >= 400);
        assert_eq!(application.asked(), 0);
    });
}
