//! The `Destination` of WebDAV's MOVE and COPY: a client may write only to URLs to which it may also
//! send a PUT.

use std::time::Duration;

use crate::application::Application;
use crate::world::{World, in_memory};

const OK: &str = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok";

/// A route to the backend that performs MOVE and COPY.
const OPEN: &str = "[[site.route]]\npath = \"/dav/*\"\nproxy = \"http://10.0.0.1:3000\"\n";

/// Returns a route for `/private/*` with these keys, which comes before [`OPEN`].
fn private(keys: &str) -> String {
    format!("[[site.route]]\npath = \"/private/*\"\n{keys}\n")
}

fn proxied(keys: &str) -> String {
    private(&format!("{keys}\nproxy = \"http://10.0.0.1:3000\""))
}

fn copy(method: &str, source: &str, destination: &str, fields: &str) -> String {
    format!("{method} {source} HTTP/1.1\r\nHost: h\r\nDestination: {destination}\r\n{fields}\r\n")
}

/// Asserts that the gateway refuses a MOVE and a COPY to `/private/b` with this status.
async fn assert_refused(world: &World, destination: &str, fields: &str, status: u16) {
    let mut backend = world.backend("10.0.0.1:3000");
    for method in ["MOVE", "COPY"] {
        let reply = world.ask(&copy(method, "/dav/a", destination, fields)).await;
        assert_eq!(reply.status(), status, "{method} {destination} {fields}");
        assert!(!backend.has_visitor(), "{method} {destination} {fields}");
    }
}

async fn assert_passed(world: &World, destination: &str, fields: &str) {
    let mut backend = world.backend("10.0.0.1:3000");
    for method in ["MOVE", "COPY"] {
        let request = copy(method, "/dav/a", destination, fields);
        let (asked, reply) = world.pass(&mut backend, &request, OK).await;
        assert_eq!(asked.values("destination"), [destination], "{request}");
        assert_eq!(reply.status(), 201, "{request}");
    }
}

#[test]
fn each_rule_of_a_destination_holds_for_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("users"), "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n")
        .unwrap();
    let users = folder.path().join("users").display().to_string();
    let root = folder.path().display().to_string();
    let in_office = "when = { client = \"10.0.0.0/8\" }";
    for (routes, status) in [
        (proxied("deny = \"all\""), 403),
        (proxied("methods = \"PUT\"\ndeny = \"all\""), 403),
        (proxied("methods = [\"MOVE\", \"COPY\"]\ndeny = \"all\""), 403),
        (proxied("when = { method = \"PUT\" }\ndeny = \"all\""), 403),
        (proxied("when = { method = [\"MOVE\", \"COPY\"] }\ndeny = \"all\""), 403),
        (proxied("allow_methods = [\"GET\", \"MOVE\", \"COPY\"]"), 403),
        (proxied("open_methods = [\"MOVE\", \"COPY\"]\ndeny = \"all\""), 403),
        (proxied("when = { header.X-Open = false }\ndeny = \"all\""), 403),
        // The client does not meet the conditions of the first route.
        (format!("{}{}", proxied(in_office), proxied("deny = \"all\"")), 403),
        (format!("{}{}", proxied("when = { cookie.a = \"1\" }"), proxied("deny = \"all\"")), 403),
        // The first route may decline.
        (
            format!(
                "{}{}",
                private(&format!("files = \"{root}\"\nfallback = true")),
                proxied("deny = \"all\"")
            ),
            403,
        ),
        (
            format!(
                "{}[[site.route]]\npath = \"/index.php\"\ndeny = \"all\"\n\
                 proxy = \"http://10.0.0.1:3000\"\n",
                private(&format!("files = \"{root}\"\nfallback_to = \"/index.php\""))
            ),
            403,
        ),
        (proxied(&format!("basic_auth = {{ file = \"{users}\", realm = \"r\" }}")), 401),
        (proxied("internal = true"), 404),
        (proxied("signed_url = { secret = \"0123456789abcdef0123456789abcdef\" }"), 403),
        (proxied("rewrite = \"/dav/b\""), 403),
        (private("rewrite = \"/dav/b\""), 403),
        (private("respond = \"no\""), 403),
        (private("redirect = \"/dav/\""), 403),
        (private(&format!("files = \"{root}\"")), 403),
        (String::new(), 403),
    ] {
        in_memory(&format!("{routes}{OPEN}"), async |world| {
            for destination in ["/private/b", "http://h/private/b", "https://H:443/%70rivate/b?x"] {
                assert_refused(world, destination, "", status).await;
            }
            assert_passed(world, "http://h/dav/b", "").await;
        });
    }
}

#[test]
fn a_copy_passes_if_a_put_would() {
    for keys in [
        "",
        "allow_methods = [\"PUT\"]",
        "methods = [\"GET\", \"PUT\"]",
        "when = { header.X-Open = \"1\" }",
        "allow = [\"192.0.2.0/24\"]",
    ] {
        in_memory(&format!("{}{OPEN}", proxied(keys)), async |world| {
            assert_passed(world, "http://h/private/b", "X-Open: 1\r\n").await;
        });
    }
}

#[test]
fn the_route_of_a_copy_must_also_permit_a_put() {
    for (keys, status) in [
        ("allow_methods = [\"GET\", \"MOVE\", \"COPY\"]", 403),
        ("methods = [\"GET\", \"MOVE\", \"COPY\"]", 403),
        ("open_methods = [\"MOVE\", \"COPY\"]\ndeny = \"all\"", 403),
        ("when = { method = [\"MOVE\", \"COPY\"] }", 403),
    ] {
        let route = OPEN.replace("proxy", &format!("{keys}\nproxy"));
        in_memory(&route, async |world| assert_refused(world, "/dav/b", "", status).await);
    }
}

#[test]
fn conditions_of_a_destination_are_tested_with_its_own_query() {
    let open = proxied("when = { query.key = \"a\" }\nallow = \"all\"");
    let routes = format!("{open}{}{OPEN}", proxied("deny = \"all\""));
    in_memory(&routes, async |world| {
        assert_passed(world, "/private/b?key=a", "").await;
        assert_refused(world, "/private/b?key=b", "", 403).await;
        // Applications may read the second value.
        assert_refused(world, "/private/b?key=a&key=b", "", 404).await;
        let mut backend = world.backend("10.0.0.1:3000");
        let request = copy("COPY", "/dav/a?key=a", "/private/b", "");
        assert_eq!(world.ask(&request).await.status(), 403);
        assert!(!backend.has_visitor());
    });
}

#[test]
fn a_rewritten_request_reaches_no_internal_destination() {
    let routes = "[[site.route]]\npath = \"/w/*\"\nrewrite = \"/dav/a\"\n".to_owned()
        + &proxied("internal = true")
        + OPEN;
    in_memory(&routes, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let reply = world.ask(&copy("MOVE", "/w/a", "/private/b", "")).await;
        assert_eq!(reply.status(), 404);
        assert!(!backend.has_visitor());
        let request = copy("MOVE", "/w/a", "/dav/b", "");
        assert_eq!(world.pass(&mut backend, &request, OK).await.1.status(), 201);
    });
}

#[test]
fn a_destination_of_another_site_or_in_an_unusual_form_is_refused() {
    let site = |host: &str, key: &str| {
        format!("[[site]]\nlisten = \"127.0.0.1:80\"\n{key}\nhosts = [\"{host}\"]\n{OPEN}")
    };
    let proxies = "trusted_proxies = \"192.0.2.0/24\"";
    let sites = format!("{}{}", site("h", proxies), site("*.example.org", ""));
    in_memory(&sites, async |world| {
        for (destination, status) in [
            ("http://shop.example.org/dav/b", 502),
            ("http://SHOP.example.org.:8080/dav/b", 502),
            ("//h/dav/b", 400),
            ("http://h\\dav/b", 400),
            ("http://user@h/dav/b", 400),
            ("/dav/b#c", 400),
            ("/private/../dav/b", 400),
            ("/dav/%2e%2e/private/b", 400),
            ("dav/b", 400),
            ("/private%2fb", 403),
            ("/dav/b\r\nDestination: /dav/c", 400),
        ] {
            assert_refused(world, destination, "", status).await;
        }
        assert_passed(world, "http://h:8080/dav/b", "").await;
        assert_passed(world, "http://unknown/dav/b", "").await;
        let forwarded = "X-Forwarded-Host: shop.example.org\r\n";
        assert_passed(world, "https://shop.example.org/dav/b", forwarded).await;
    });
}

#[test]
fn the_server_of_a_destination_decides_about_a_put() {
    let routes = proxied("forward_auth = { to = \"http://10.0.0.2:9091/\" }");
    in_memory(&format!("{routes}{OPEN}"), async |world| {
        let auth = Application::at(world, "10.0.0.2:9091", Duration::ZERO, |request, _| {
            let is_put = request.field("x-forwarded-method") == Some("PUT");
            let status = if is_put { "403 No" } else { "200 OK" };
            format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n")
        });
        assert_refused(world, "http://h/private/b?c", "", 403).await;
        let seen = auth.seen.borrow();
        assert!(seen.iter().all(|asked| asked.field("x-forwarded-uri") == Some("/private/b?c")));
    });
}

#[test]
fn a_method_in_a_field_and_a_method_in_lower_case_move_too() {
    let routes = proxied("deny = \"all\"") + OPEN;
    in_memory(&routes, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (method, fields) in [
            ("POST", "X-HTTP-Method-Override: MOVE\r\nContent-Length: 0\r\n"),
            ("PUT", "X-Method-Override: copy\r\nContent-Length: 0\r\n"),
            ("move", ""),
            ("Copy", ""),
        ] {
            let request = copy(method, "/dav/a", "/private/b", fields);
            assert_eq!(world.ask(&request).await.status(), 403, "{request}");
            assert!(!backend.has_visitor(), "{request}");
            let request = copy(method, "/dav/a", "/dav/b", fields);
            assert_eq!(world.pass(&mut backend, &request, OK).await.1.status(), 201, "{request}");
        }
    });
}
