//! `set_headers`, `add_headers` and `remove_headers`: which replies get them, and the values of
//! their placeholders.

use crate::http2_client::Http2Client;
use crate::world::in_memory;

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: www.example:80\r\n{fields}\r\n")
}

fn replying(status: &str, fields: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n{fields}\r\nok")
}

const RULES: &str = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
    set_headers = { X-Frame-Options = \"DENY\", X-Always = { value = \"yes\", always = true }, \
    X-Two = { value = [\"1\", \"2\"] } }\nadd_headers = { Vary = \"X-A\" }\n\
    remove_headers = [\"X-Powered-By\"]\n";

#[test]
fn a_field_can_be_set_only_if_it_is_missing() {
    let rules = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
        set_headers = { Cache-Control = { value = \"max-age=60\", if_missing = true }, \
        X-Two = { value = [\"1\", \"{host}\"], if_missing = true }, \
        X-Always = { value = \"yes\", if_missing = true, always = true } }\n";
    in_memory(rules, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (_, reply) = world.pass(&mut backend, get("/", ""), replying("200 OK", "")).await;
        assert_eq!(reply.values("cache-control"), ["max-age=60"]);
        assert_eq!(reply.values("x-two"), ["1", "www.example"]);
        assert_eq!(reply.values("x-always"), ["yes"]);
        let own = "cache-control: no-store\r\nX-Two: 0\r\nX-Always: own\r\n";
        let (_, reply) = world.pass(&mut backend, get("/", ""), replying("200 OK", own)).await;
        assert_eq!(reply.values("cache-control"), ["no-store"]);
        assert_eq!(reply.values("x-two"), ["0"]);
        assert_eq!(reply.values("x-always"), ["own"]);
        let (_, reply) =
            world.pass(&mut backend, get("/", ""), replying("404 Not Found", "")).await;
        assert_eq!(reply.values("cache-control"), [""; 0]);
        assert_eq!(reply.values("x-always"), ["yes"]);
    });
}

#[test]
fn lifetimes_depend_on_the_media_type() {
    let rules = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
        expires = { default = \"1m\", types = { \"text/*\" = \"2m\", \"text/html\" = \"0s\" } }\n";
    in_memory(rules, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        for (kind, wanted) in [
            ("Content-Type: text/html; charset=utf-8\r\n", "max-age=0"),
            ("content-type: TEXT/CSS\r\n", "max-age=120"),
            ("Content-Type: image/png\r\n", "max-age=60"),
            ("", "max-age=60"),
        ] {
            let (_, reply) = world.pass(&mut backend, get("/", ""), replying("200 OK", kind)).await;
            assert_eq!(reply.values("cache-control"), [wanted], "{kind}");
        }
    });
}

#[test]
fn cookies_get_the_attributes_that_they_lack() {
    let rules = "[[site.route]]\npath = \"/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
        cookies = { secure = true, http_only = true, same_site = \"lax\" }\n";
    in_memory(rules, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let own = "Set-Cookie: a=1\r\nSet-Cookie: b=2; SameSite=None\r\n";
        for status in ["200 OK", "404 Not Found"] {
            let (_, reply) = world.pass(&mut backend, get("/", ""), replying(status, own)).await;
            let all = "; Secure; HttpOnly; SameSite=Lax";
            assert_eq!(reply.values("set-cookie"), [format!("a=1{all}"), format!("b=2{all}")]);
        }
    });
}

#[test]
fn errors_of_the_origin_stay_as_they_are_unless_always_says_otherwise() {
    in_memory(RULES, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let own = "X-Frame-Options: own\r\nX-Two: 0\r\nVary: own\r\nX-Powered-By: PHP\r\n";
        for status in ["200 OK", "201 Created", "302 Found", "206 Partial Content"] {
            let (_, reply) = world.pass(&mut backend, get("/", ""), replying(status, own)).await;
            assert_eq!(reply.values("x-frame-options"), ["DENY"], "{status}");
            assert_eq!(reply.values("x-always"), ["yes"], "{status}");
            assert_eq!(reply.values("x-two"), ["1", "2"], "{status}");
            assert_eq!(reply.values("vary"), ["own", "X-A"], "{status}");
            assert_eq!(reply.field("x-powered-by"), None, "{status}");
        }
        for status in ["400 Bad Request", "404 Not Found", "500 Internal Server Error"] {
            let (_, reply) = world.pass(&mut backend, get("/", ""), replying(status, own)).await;
            assert_eq!(reply.values("x-frame-options"), ["own"], "{status}");
            assert_eq!(reply.values("x-always"), ["yes"], "{status}");
            assert_eq!(reply.values("x-two"), ["0"], "{status}");
            assert_eq!(reply.values("vary"), ["own"], "{status}");
            assert_eq!(reply.field("x-powered-by"), None, "{status}");
        }
    });
}

#[test]
fn always_of_a_route_holds_for_all_its_fields() {
    let route = "[[site.route]]\npath = \"/*\"\nrespond = { status = 404, body = \"none\" }\n\
                 always = true\nset_headers = { X-A = \"1\", X-B = { value = \"2\", always = false } }\n\
                 add_headers = { X-C = \"3\" }\n";
    in_memory(route, async |world| {
        let reply = world.ask(&get("/", "")).await;
        assert_eq!(reply.status(), 404);
        let named = |name| reply.field(name);
        assert_eq!((named("x-a"), named("x-b"), named("x-c")), (Some("1"), None, Some("3")));
    });
}

#[test]
fn values_of_the_request_are_filled_in_and_end_no_line() {
    let route = "[[site.route]]\npath = \"/a/*\"\nrespond = \"x\"\n[site.route.set_headers]\n\
                 X-Host = \"{host} {scheme} {method}\"\nX-Rest = \"{rest}\"\nX-Q = \"{query.q}\"\n\
                 X-None = \"{user}\"\nX-Request-Id = \"{request_id}\"\n\
                 Report-To = '{\"group\":\"default\"}'\n";
    in_memory(route, async |world| {
        let reply = world.ask(&get("/a/%0d%0aX-Evil:1?q=%0d%0a%0d%0a<b>", "")).await;
        assert_eq!(reply.field("x-host"), Some("www.example http GET"));
        assert_eq!(reply.field("x-rest"), Some("%0d%0aX-Evil:1"));
        assert_eq!(reply.field("x-q"), Some("%0D%0A%0D%0A<b>"));
        assert_eq!(reply.field("x-none"), None);
        assert_eq!(reply.field("report-to"), Some("{\"group\":\"default\"}"));
        assert_eq!(reply.field("x-evil"), None);
        assert_eq!(reply.field("x-request-id").map(str::len), Some(32));
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/a/b?q=%0d%0aa:%20b");
        let reply = client.reply(stream).await;
        assert_eq!(reply.field("x-q"), Some("%0D%0Aa: b"));
        assert_eq!(reply.field("x-rest"), Some("b"));
    });
}

#[test]
fn the_backend_and_the_client_get_the_same_request_id() {
    let site = "[[site]]\nlisten = \"127.0.0.1:80\"\ntrusted_proxies = [\"198.51.100.1\"]\n";
    let route = format!(
        "{site}[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n\
         request_headers = {{ X-Request-Id = \"{{request_id}}\" }}\n\
         set_headers = {{ X-Request-Id = {{ value = \"{{request_id}}\", always = true }} }}\n"
    );
    in_memory(&route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = get("/", "X-Request-Id: forged\r\n");
        let mut seen = Vec::new();
        for status in ["200 OK", "500 Internal Server Error"] {
            let (asked, reply) = world.pass(&mut backend, &request, replying(status, "")).await;
            assert_eq!(asked.values("x-request-id"), reply.values("x-request-id"));
            let id = reply.field("x-request-id").unwrap().to_owned();
            assert!(id.len() == 32 && !seen.contains(&id), "{id}");
            seen.push(id);
        }
        let mut client = world.client_from("198.51.100.1:5000");
        client.send(&request).await;
        let (asked, _connection) = backend.answer(&replying("200 OK", "")).await;
        assert_eq!(asked.values("x-request-id"), ["forged"]);
        assert_eq!(client.reply("GET").await.values("x-request-id"), ["forged"]);
    });
}

#[test]
fn the_user_is_known_after_the_password() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("users");
    std::fs::write(&file, "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n").unwrap();
    let route = format!(
        "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\nbasic_auth = {{ file = \"{}\" }}\n\
         request_headers = {{ X-Remote-User = \"{{user}}\", Authorization = \"Bearer x\" }}\n\
         set_headers = {{ X-User = \"{{user}}\" }}\n",
        file.display()
    );
    in_memory(&route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = get("/", "Authorization: Basic bWU6cDpzcyB3\r\nX-Remote-User: admin\r\n");
        let (asked, reply) = world.pass(&mut backend, request, replying("200 OK", "")).await;
        assert_eq!(asked.values("x-remote-user"), ["me"]);
        assert_eq!(asked.values("authorization"), ["Bearer x"]);
        assert_eq!(reply.field("x-user"), Some("me"));
    });
}
