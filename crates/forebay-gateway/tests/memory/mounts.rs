//! The parts of a path that applications and backends receive: mount points, prefixes, repeated
//! slashes, and the client's own target.

use crate::world::{Backend, World, in_memory};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns the variables that an SCGI or FastCGI application receives, as `NAME=value|`. An SCGI
/// variable has two zero bytes, a FastCGI parameter none.
async fn variables(world: &World, backend: &mut Backend, target: &str) -> String {
    let mut client = world.client();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
    let mut connection = backend.accept().await;
    connection.more().await.unwrap();
    drop(client);
    let (bytes, _) = connection.rest().await;
    String::from_utf8_lossy(&bytes).replace('\0', "|")
}

fn site(keys: &str, routes: &str) -> String {
    format!("[[site]]\nlisten = [\"127.0.0.1:80\"]\n{keys}\n{routes}")
}

/// Asserts what an SCGI application at 10.0.0.1:9000 receives.
fn assert_parts(configuration: &str, cases: &[(&str, &str, &str)]) {
    in_memory(configuration, async |world| {
        let mut backend = world.backend("10.0.0.1:9000");
        for (target, script_name, path_info) in cases {
            let seen = variables(world, &mut backend, target).await;
            for (name, value) in [("SCRIPT_NAME", script_name), ("PATH_INFO", path_info)] {
                assert!(seen.contains(&format!("|{name}|{value}|")), "{target}: {name}\n{seen}");
            }
        }
    });
}

#[test]
fn a_mount_point_is_a_whole_number_of_segments() {
    let route =
        |mount: &str| format!("[[site.route]]\nscgi = {{ to = \"10.0.0.1:9000\"{mount} }}\n");
    assert_parts(&route(""), &[("/shop/x", "", "/shop/x")]);
    assert_parts(&route(", mount = \"\""), &[("/shop/x", "", "/shop/x")]);
    assert_parts(
        &route(", mount = \"/shop\""),
        &[
            ("/shop", "/shop", ""),
            ("/shop/", "/shop", "/"),
            ("/shop/a%20b?c", "/shop", "/a b"),
            ("/shop//a///b", "/shop", "//a///b"),
            ("//shop/a", "/shop", "/a"),
            ("/x/../shop/a", "/shop", "/a"),
            ("/shopping", "", "/shopping"),
        ],
    );
}

#[test]
fn fastcgi_applications_without_script_files_get_the_whole_path() {
    let route = "[[site.route]]\nfastcgi = { to = \"10.0.0.1:9000\", mount = \"/shop\" }\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:9000");
        for (target, name, info) in [
            ("/shop", "/shop", ""),
            ("/shop/admin.php/x", "/shop", "/admin.php/x"),
            ("/a/", "", "/a/"),
        ] {
            let seen = variables(world, &mut backend, target).await;
            assert!(seen.contains(&format!("SCRIPT_NAME{name}")), "{target}\n{seen}");
            assert!(seen.contains(&format!("PATH_INFO{info}")), "{target}\n{seen}");
            assert!(!seen.contains("SCRIPT_FILENAME") && !seen.contains("index.php"), "{seen}");
        }
    });
}

#[test]
fn the_request_uri_is_the_clients_own() {
    let route = "[[site.route]]\npath = \"/a/*\"\nscgi = { to = \"10.0.0.1:9000\" }\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:9000");
        for target in ["/a/b?c", "/a//b%20c", "/x/../a/./b?//", "/%61/b", "/a"] {
            let full = if target == "/a" { "/a/" } else { target };
            let seen = variables(world, &mut backend, full).await;
            assert!(seen.contains(&format!("|REQUEST_URI|{full}|")), "{full}\n{seen}");
        }
    });
}

const PROXY: &str = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n";

#[test]
fn repeated_slashes_reach_backends_on_request() {
    let targets = [
        ("/img/https://host/a//b?c//d", "/img/https://host/a//b?c//d", "/img/https:/host/a/b?c//d"),
        ("/a//../b", "/a/b", "/b"),
        ("//a/./b//", "//a/b//", "/a/b/"),
    ];
    for keeps in [true, false] {
        let keys = if keeps { "merge_slashes = false" } else { "" };
        in_memory(&site(keys, PROXY), async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            for (target, kept, merged) in targets {
                let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
                let (asked, _) = world.pass(&mut backend, &request, OK).await;
                let sent = if keeps { kept } else { merged };
                assert_eq!(asked.start, format!("GET {sent} HTTP/1.1"), "{target}");
            }
        });
    }
}

#[test]
fn a_kept_slash_takes_no_request_past_a_rule() {
    let gate = "[[site.route]]\npaths = [\"/admin\", \"/admin/*\"]\ndeny = \"all\"\n\
                proxy = \"http://10.0.0.1:3000\"\n";
    let script = "[[site.route]]\npath = \"/x/a.php\"\ndeny = \"all\"\n\
                  proxy = \"http://10.0.0.1:3000\"\n";
    let routes = format!("{gate}{script}{PROXY}");
    in_memory(&site("merge_slashes = false", &routes), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for target in [
            "/admin",
            "//admin",
            "//admin/x",
            "/admin//x",
            "/./admin/x",
            "/x//../../admin",
            "///admin",
            "/x//a.php",
            "//x/a.php/y",
            "/x//a.php/y",
            "/x//a.php//y",
        ] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            let status = world.ask(&request).await.status();
            assert!(matches!(status, 403 | 404), "{target}: {status}");
        }
        assert!(!backend.has_visitor());
        for target in ["/other//x", "//other", "/x//b.php/y"] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            let (asked, _) = world.pass(&mut backend, &request, OK).await;
            assert_eq!(asked.start, format!("GET {target} HTTP/1.1"));
        }
    });
}

#[test]
fn an_application_that_routes_by_the_request_uri_is_not_led_past_a_rule() {
    let scgi = "scgi = { to = \"10.0.0.1:9000\" }";
    let routes = format!(
        "[[site.route]]\npath = \"/admin/*\"\ndeny = \"all\"\n{scgi}\n[[site.route]]\n{scgi}\n"
    );
    in_memory(&routes, async |world| {
        let mut backend = world.backend("10.0.0.1:9000");
        for target in ["/admin/../x", "/admin/./../x", "//admin/../x", "/%61dmin/../x"] {
            let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(world.ask(&request).await.status(), 403, "{target}");
        }
        let seen = variables(world, &mut backend, "/y/../x").await;
        assert!(
            seen.contains("|REQUEST_URI|/y/../x|") && seen.contains("|PATH_INFO|/x|"),
            "{seen}"
        );
    });
}

const STRIPPED: &str = "[[site.route]]\npath = \"/dav/*\"\n\
    proxy = { to = \"http://10.0.0.1:3000\", strip_prefix = \"/dav\" }\n";

#[test]
fn a_backend_learns_the_prefix_that_it_does_not_see() {
    in_memory(&site("trusted_proxies = \"192.0.2.0/24\"", STRIPPED), async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (address, fields, prefix, port) in [
            ("203.0.113.1:9", "", "/dav", "80"),
            ("203.0.113.1:9", "X-Forwarded-Prefix: /evil\r\nX-Forwarded-Port: 1\r\n", "/dav", "80"),
            ("192.0.2.1:9", "X-Forwarded-Prefix: /outer/\r\n", "/outer/dav", "80"),
            ("192.0.2.1:9", "X-Forwarded-Port: 8443\r\n", "/dav", "8443"),
            ("192.0.2.1:9", "X-Forwarded-Host: a.example:81\r\n", "/dav", "81"),
        ] {
            let mut client = world.client_from(address);
            let request = format!("GET /dav/a HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            client.send(&request).await;
            let (asked, _connection) =
                backend.answer(&OK.replace("OK\r\n", "OK\r\nConnection: close\r\n")).await;
            assert_eq!(asked.start, "GET /a HTTP/1.1");
            assert_eq!(asked.values("x-forwarded-prefix"), [prefix], "{request}");
            assert_eq!(asked.values("x-forwarded-port"), [port], "{request}");
            assert_eq!(client.reply(&request).await.text(), "ok");
        }
    });
}

#[test]
fn the_destination_of_a_move_loses_the_prefix() {
    in_memory(STRIPPED, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = |destination: &str| {
            format!(
                "MOVE /dav/a HTTP/1.1\r\nHost: h\r\nDestination: {destination}\r\nDepth: 0\r\n\r\n"
            )
        };
        for (destination, sent) in [("http://h/dav/b", "http://h/b"), ("/dav/b%20c", "/b%20c")] {
            let (asked, _) = world.pass(&mut backend, &request(destination), OK).await;
            assert_eq!(asked.values("destination"), [sent]);
        }
        assert_eq!(world.ask(&request("http://h/elsewhere")).await.status(), 403);
        assert!(!backend.has_visitor());
        let get = request("/dav/b").replace("MOVE", "GET");
        let (asked, _) = world.pass(&mut backend, &get, OK).await;
        assert_eq!(asked.values("destination"), ["/dav/b"]);
    });
}

#[test]
fn a_gate_holds_for_the_destination_of_a_move() {
    let gate = |path: &str| {
        format!(
            "[[site.route]]\npath = \"{path}\"\ndeny = \"all\"\nproxy = \"http://10.0.0.1:3000\"\n"
        )
    };
    let open = "[[site.route]]\npath = \"/dav/*\"\nproxy = \"http://10.0.0.1:3000\"\n";
    let below = format!("{open}{}", gate("/other/*"));
    for (routes, protected) in
        [(format!("{}{open}", gate("/dav/private/*")), "dav/private"), (below, "other")]
    {
        in_memory(&routes, async |world| {
            let mut backend = world.backend("10.0.0.1:3000");
            let request = |method: &str, destination: &str| {
                format!("{method} /dav/a HTTP/1.1\r\nHost: h\r\nDestination: {destination}\r\n\r\n")
            };
            for destination in [
                format!("http://h/{protected}/b"),
                format!("http://elsewhere/{protected}/b"),
                format!("/{protected}/b"),
                format!("/{protected}//b"),
                format!("/%{:x}{}/b", protected.as_bytes()[0], &protected[1..]),
            ] {
                for method in ["MOVE", "COPY"] {
                    let status = world.ask(&request(method, &destination)).await.status();
                    assert_eq!(status, 403, "{method} {destination}");
                }
            }
            assert_eq!(world.ask(&request("MOVE", "/a%2fb")).await.status(), 403);
            assert_eq!(world.ask(&request("MOVE", "/../a")).await.status(), 400);
            for (method, destination) in [("MOVE", "http://h/dav/b"), ("PUT", "/dav/private/b")] {
                let (asked, _) = world.pass(&mut backend, &request(method, destination), OK).await;
                assert_eq!(asked.values("destination"), [destination]);
            }
        });
    }
}
