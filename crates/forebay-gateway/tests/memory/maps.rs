//! `[map.NAME]`: values by a text of the request, for placeholders.

use crate::world::{Message, World, in_memory};

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

const MAPS: &str = "[map.origin]\nfrom = \"{header.Origin}\"\n\"https://a\" = \"exact\"\n\
    \"https://*\" = \"start\"\n\"*.example.org\" = \"end\"\n\"https://*.example.org\" = \"both {host}\"\n\
    \"~^http://(x+)$\" = \"first\"\n\"~x\" = \"second\"\n\"~*UPPER\" = \"any case\"\n\"\" = \"empty\"\n\
    \"drop\" = \"\"\ndefault = \"other\"\n\
    [map.who]\nfrom = \"{user}{query.u}\"\n\"a\" = \"one\"\n\"~^[^a]\" = \"{query.u}\"\n\
    [map.place]\nfrom = \"{query.p}\"\nt = \"a?b&c d\"\nh = \"<i>\"\n\
    [[site]]\nlisten = \"127.0.0.1:80\"\n";

#[test]
fn texts_precede_globs_and_globs_precede_expressions() {
    let route = "[[site.route]]\nrespond = \"x\"\nset_headers = { X-A = \"{map.origin}\" }\n";
    in_memory(&format!("{MAPS}{route}"), async |world| {
        for (origin, value) in [
            ("https://a", Some("exact")),
            ("https://b", Some("start")),
            ("x.example.org", Some("end")),
            ("https://x.example.org", Some("both h")),
            // The beginning and the end of a pattern do not overlap.
            ("https://.example.org", Some("both h")),
            ("http://xxx", Some("first")),
            ("http://y/x", Some("second")),
            ("upper", Some("any case")),
            ("HTTPS://A", Some("other")),
            ("", Some("empty")),
            ("drop", None),
            ("\u{e9}", Some("other")),
        ] {
            let reply = get(world, "/", &format!("Origin: {origin}\r\n")).await;
            assert_eq!(reply.field("x-a"), value, "{origin}");
        }
        assert_eq!(get(world, "/", "").await.field("x-a"), Some("empty"));
    });
}

#[test]
fn values_are_escaped_for_their_place() {
    let routes = "[[site.route]]\npath = \"/field\"\nrespond = \"x\"\nset_headers = { X-A = \"{map.who}\" }\n\
                  [[site.route]]\npath = \"/to/*\"\nredirect = \"/x/{map.place}?q={map.place}&r={map.who}\"\n\
                  [[site.route]]\npath = \"/again\"\nrewrite = \"/seen/{map.place}\"\n\
                  [[site.route]]\npath = \"/seen/*\"\nrespond = \"x\"\nset_headers = { X-Path = \"{path}\" }\n";
    in_memory(&format!("{MAPS}{routes}"), async |world| {
        let reply = get(world, "/field?u=b%0d%0aSet-Cookie:%20c", "").await;
        assert_eq!(reply.field("x-a"), Some("b%0D%0ASet-Cookie: c"));
        assert_eq!(reply.field("set-cookie"), None);
        let reply = get(world, "/to/x?p=t&u=%26s=1", "").await;
        let to = reply.field("location").unwrap();
        let to = to.strip_prefix("http://h").unwrap_or(to);
        assert!(to.starts_with("/x/a%3Fb&c%20d?q=a%3Fb%26c%20d&r=%26s%3D1"), "{to}");
        let reply = get(world, "/again?p=t", "").await;
        assert_eq!(reply.field("x-path"), Some("/seen/a%3Fb&c%20d"));
        assert_eq!(get(world, "/again?p=../../x", "").await.status(), 200);
    });
}

#[test]
fn a_limit_by_user_through_a_map_waits_for_the_user() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n").unwrap();
    let users = users.display();
    let route = format!(
        "[map.class]\nfrom = \"{{user}}\"\nme = \"limited\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n\
         [[site.route]]\nrespond = \"in\"\nbasic_auth = {{ file = \"{users}\" }}\n\
         rate_limit = {{ rate = \"1/m\", key = \"{{map.class}}\" }}\n"
    );
    in_memory(&route, async |world| {
        let right = "Authorization: Basic bWU6cDpzcyB3\r\n";
        for _ in 0..3 {
            assert_eq!(get(world, "/", "").await.status(), 401);
        }
        assert_eq!(get(world, "/", right).await.status(), 200);
        assert_eq!(get(world, "/", right).await.status(), 429);
        assert_eq!(get(world, "/", "").await.status(), 401);
    });
}

#[test]
fn all_spellings_of_a_path_and_a_host_have_one_value() {
    let route = "[map.kind]\nfrom = \"{path}\"\n\"/login page\" = \"strict\"\n\"/r/*\" = \"rest\"\n\
                 [map.place]\nfrom = \"{host}\"\n\"Admin.Example\" = \"inside\"\n\
                 [[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nrespond = \"x\"\n\
                 set_headers = { X-Kind = \"{map.kind}\", X-Place = \"{map.place}\" }\n";
    in_memory(route, async |world| {
        for target in ["/login%20page", "/%6cogin%20page", "/x/../login%20page"] {
            assert_eq!(get(world, target, "").await.field("x-kind"), Some("strict"), "{target}");
        }
        assert_eq!(get(world, "/%72/x", "").await.field("x-kind"), Some("rest"));
        for host in ["admin.example", "ADMIN.example:80"] {
            let reply = world.ask(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
            assert_eq!(reply.field("x-place"), Some("inside"), "{host}");
        }
    });
}

#[test]
fn a_limit_by_client_through_a_map_counts_networks() {
    let route = "[map.class]\nfrom = \"{header.X-Key}\"\nfree = \"\"\ndefault = \"{client}\"\n\
                 [[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nrespond = \"in\"\n\
                 rate_limit = { rate = \"1/h\", key = \"{map.class}\" }\n";
    in_memory(route, async |world| {
        for (client, fields, status) in [
            ("[2001:db8::1]:4000", "", 200),
            ("[2001:db8::2]:4000", "", 429),
            ("[2001:db8::2]:4000", "X-Key: free\r\n", 200),
            ("[2001:db8:0:1::1]:4000", "", 200),
        ] {
            let mut peer = world.client_from(client);
            let request = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            peer.send(&request).await;
            assert_eq!(peer.reply(&request).await.status(), status, "{client} {fields}");
        }
    });
}
