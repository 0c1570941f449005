//! Access to routes, and redirects that keep parts of the request.

use forebay_net::limit::Limit;
use tempfile::TempDir;

use crate::world::{Message, World, in_memory};

/// A file with the user `me`, whose password is `p:ss w`, hashed by `openssl passwd -apr1`.
fn users() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let line = "# users\n\nme:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n";
    std::fs::write(folder.path().join("users"), line).unwrap();
    folder
}

const RIGHT: &str = "Authorization: Basic bWU6cDpzcyB3\r\n";

fn guarded(folder: &TempDir, action: &str) -> String {
    let file = folder.path().join("users").display().to_string();
    format!(
        "[log]\naccess = \"stdout\"\nformat = \"%u %>s\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
         [[site.route]]\n{action}\nbasic_auth = {{ file = \"{file}\", realm = 'a \"realm\"' }}\n"
    )
}

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: Example.org\r\n{fields}\r\n")).await
}

#[test]
fn clients_are_let_in_by_address_and_deny_goes_first() {
    let route = "[[site]]\nlisten = \"127.0.0.1:80\"\ntrusted_proxies = \"192.0.2.7\"\n\
        [[site.route]]\nrespond = \"in\"\n\
        allow = [\"10.0.0.0/8\", \"192.0.2.7\", \"2001:db8::/32\"]\ndeny = [\"10.0.0.5\"]\n";
    in_memory(route, async |world| {
        for (client, status) in [
            ("10.1.2.3", 200),
            ("10.0.0.5", 403),
            ("192.0.2.1", 403),
            ("192.0.2.7", 200),
            ("2001:db8::1", 200),
            ("2001:db9::1", 403),
        ] {
            let reply = get(world, "/", &format!("X-Forwarded-For: {client}\r\n")).await;
            assert_eq!(reply.status(), status, "{client}");
        }
    });
}

#[test]
fn denied_clients_reach_no_route_below() {
    let routes = "[[site.route]]\npath = \"/a\"\nrespond = \"in\"\ndeny = \"192.0.2.0/24\"\n\
                  [[site.route]]\nrespond = \"other\"\n";
    in_memory(routes, async |world| {
        assert_eq!(get(world, "/a", "").await.status(), 403);
        assert_eq!(get(world, "/b", "").await.text(), "other");
        let mut other = world.client_from("203.0.113.1:4000");
        other.send("GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(other.reply("").await.text(), "in");
    });
}

#[test]
fn only_the_right_password_lets_a_user_in() {
    let folder = users();
    in_memory(&guarded(&folder, "respond = \"in\""), async |world| {
        for fields in [
            "",
            "Authorization: Basic\r\n",
            "Authorization: Basic !\r\n",
            "Authorization: x\r\n",
            // These encode `me:p:ss`, `me:`, `nobody:p:ss w` and `:p:ss w`.
            "Authorization: Basic bWU6cDpzcw==\r\n",
            "Authorization: Basic bWU6\r\n",
            "Authorization: Basic bm9ib2R5OnA6c3Mgdw==\r\n",
            "Authorization: Basic OnA6c3Mgdw==\r\n",
        ] {
            // The gateway remembers the right password, but must still refuse a wrong one.
            assert_eq!(get(world, "/", RIGHT).await.text(), "in");
            let reply = get(world, "/", fields).await;
            let challenge = reply.field("www-authenticate").unwrap_or_default();
            assert_eq!(reply.status(), 401, "{fields}");
            assert!(challenge.starts_with("Basic realm=\"a "), "{fields}: {challenge}");
        }
    });
}

#[test]
fn only_the_named_users_of_a_file_are_let_in() {
    let folder = users();
    let file = folder.path().join("users").display().to_string();
    let route = |path: &str, keys: &str| {
        format!(
            "[[site.route]]\npath = \"{path}\"\nrespond = \"in\"\n\
             basic_auth = {{ file = \"{file}\"{keys} }}\n"
        )
    };
    let site = [
        route("/me", ", users = [\"ann\", \"me\"]"),
        route("/other", ", users = \"ME\""),
        route("/all", ""),
    ];
    in_memory(&site.concat(), async |world| {
        // The digest of the right password is known after the first request.
        for (target, status) in [("/all", 200), ("/other", 401), ("/me", 200), ("/other", 401)] {
            assert_eq!(get(world, target, RIGHT).await.status(), status, "{target}");
        }
    });
}

#[test]
fn a_password_that_waits_too_long_to_be_checked_is_counted() {
    let folder = users();
    in_memory(&guarded(&folder, "respond = \"in\""), async |world| {
        let held = world.check_other_passwords().await;
        let reply = get(world, "/", RIGHT).await;
        assert_eq!((reply.status(), reply.field("retry-after")), (503, Some("1")));
        assert_eq!(world.gateway.reached(Limit::PasswordChecks), 1);
        assert_eq!(get(world, "/", "").await.status(), 401, "nothing is to be checked");
        drop(held);
        assert_eq!(get(world, "/", RIGHT).await.text(), "in");
        let held = world.check_other_passwords().await;
        assert_eq!(get(world, "/", RIGHT).await.text(), "in", "it is remembered");
        drop(held);
        assert_eq!(world.gateway.reached(Limit::PasswordChecks), 1);
    });
}

#[test]
fn a_right_password_is_remembered_for_all_routes_and_threads() {
    let folder = users();
    let file = folder.path().join("users").display().to_string();
    let route = |path: &str| {
        format!(
            "[[site.route]]\npath = \"{path}\"\nrespond = \"in\"\nbasic_auth = {{ file = \"{file}\" }}\n"
        )
    };
    let routes = format!("{}{}", route("/a"), route("/b"));
    in_memory(&routes, async |world| {
        let other = world.another_thread(&routes);
        assert_eq!(get(world, "/a", RIGHT).await.text(), "in");
        let _held = world.check_other_passwords().await;
        for (world, path) in [(world, "/a"), (world, "/b"), (&other, "/a"), (&other, "/b")] {
            assert_eq!(get(world, path, RIGHT).await.text(), "in", "{path}");
        }
        assert_eq!(world.gateway.reached(Limit::PasswordChecks), 0);
    });
}

#[test]
fn a_client_has_its_share_of_the_queue_and_leaves_others_theirs() {
    let folder = users();
    in_memory(&guarded(&folder, "respond = \"in\""), async |world| {
        let held = world.check_other_passwords().await;
        let wrong = "GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Basic bWU6cDpzcw==\r\n\r\n";
        let mut clients = Vec::new();
        for _ in 0..64 {
            let mut client = world.client_from("203.0.113.1:4000");
            client.send(wrong).await;
            clients.push(client);
        }
        let mut more = world.client_from("203.0.113.1:4001");
        more.send(wrong).await;
        let reply = more.reply("").await;
        assert_eq!((reply.status(), reply.field("retry-after")), (429, Some("1")));
        assert_eq!(world.gateway.reached(Limit::PasswordChecks), 1);
        let mut other = world.client_from("203.0.113.2:4000");
        other.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{RIGHT}\r\n")).await;
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        drop(held);
        assert_eq!(other.reply("").await.text(), "in");
        for client in &mut clients {
            assert_eq!(client.reply("").await.status(), 401);
        }
    });
}

#[test]
fn http_backends_get_the_credentials_and_the_log_has_the_user() {
    let folder = users();
    in_memory(&guarded(&folder, "proxy = \"http://10.0.0.1:3000\""), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{RIGHT}\r\n");
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let (asked, _) = world.pass(&mut backend, request, ok).await;
        assert_eq!(asked.field("authorization"), Some("Basic bWU6cDpzcyB3"));
        assert_eq!(get(world, "/", "").await.status(), 401);
        assert!(!backend.has_visitor());
        tokio::task::yield_now().await;
        let lines = world.gateway.access_lines();
        let lines: Vec<_> = lines.iter().map(|line| line.trim_end()).collect();
        assert_eq!(lines, ["me 200", "- 401"]);
    });
}

#[test]
fn applications_know_the_user_and_not_the_password() {
    let folder = users();
    for protocol in ["scgi", "uwsgi"] {
        let action = format!("{protocol} = {{ to = \"10.0.0.1:9000\" }}");
        in_memory(&guarded(&folder, &action), async |world| {
            let mut application = world.backend("10.0.0.1:9000");
            let mut client = world.client();
            client.send(format!("GET / HTTP/1.1\r\nHost: h\r\n{RIGHT}\r\n")).await;
            let mut connection = application.accept().await;
            connection.link.limit_room(1 << 20);
            connection.more().await.unwrap();
            drop(client);
            let asked = String::from_utf8_lossy(&connection.rest().await.0).into_owned();
            let between = |name: &str| {
                let rest = asked.split_once(name)?.1.trim_start_matches(|c: char| c.is_control());
                Some(rest.split(|c: char| c.is_control()).next().unwrap().to_owned())
            };
            assert_eq!(between("REMOTE_USER").as_deref(), Some("me"), "{protocol}: {asked:?}");
            assert_eq!(between("AUTH_TYPE").as_deref(), Some("Basic"), "{protocol}: {asked:?}");
            assert!(!asked.contains("bWU6"), "{protocol}: {asked:?}");
        });
    }
}

/// Returns the redirect targets of requests for these targets of Example.org.
fn redirected(to: &str, path: &str, cases: &[(&str, Option<&str>)]) {
    let route = format!("[[site.route]]\npath = \"{path}\"\nredirect = \"{to}\"\n");
    in_memory(&route, async |world| {
        for (target, expected) in cases {
            let reply = get(world, target, "").await;
            assert_eq!(reply.field("location"), *expected, "{to}: {target}");
        }
    });
}

#[test]
fn redirections_keep_what_was_asked() {
    redirected(
        "https://{host}{uri}",
        "/*",
        &[
            ("/", Some("https://Example.org/")),
            ("/a%20b/%c3%a9?x=y&z", Some("https://Example.org/a%20b/%c3%a9?x=y&z")),
            ("//evil.example/..//a?b", Some("https://Example.org/a?b")),
            ("/a%0d%0aX:y", Some("https://Example.org/a%0d%0aX:y")),
            ("http://other.example/x?y", Some("https://other.example/x?y")),
        ],
    );
    redirected(
        "https://new.example:8443/base/{rest}?from={path}&{query}",
        "/old/*",
        &[
            ("/old/a/b?c=d", Some("https://new.example:8443/base/a/b?from=/old/a/b&c=d")),
            ("/%6fld/%61", Some("https://new.example:8443/base/%61?from=/%6fld/%61&")),
            ("/x", None),
        ],
    );
}

#[test]
fn no_redirection_that_keeps_a_path_leads_to_another_host() {
    redirected(
        "/{rest}",
        "/old*",
        &[("/old//evil.example", Some("/evil.example")), ("/olda", Some("/a"))],
    );
    redirected("{path}", "/*", &[("//evil.example", Some("/evil.example"))]);
}

#[test]
fn a_redirection_goes_to_no_host_that_is_none() {
    in_memory("[[site.route]]\nredirect = \"https://{host}{uri}\"\n", async |world| {
        for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a;b=c\r\n\r\n"] {
            let reply = world.ask(request).await;
            assert_eq!((reply.status(), reply.field("location")), (400, None), "{request}");
        }
        let reply = world.ask("GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n").await;
        assert_eq!(reply.field("location"), Some("https://[::1]/"));
    });
}
