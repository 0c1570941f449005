//! `request_headers`: the fields that each kind of origin gets, and what a client cannot do to
//! them.

use std::time::Duration;

use crate::http2_backend::{ADDRESS, Http2Backend};
use crate::http2_client::Http2Client;
use crate::world::{World, in_memory};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The rules of a route that many sites have.
const RULES: &str = "request_headers = { X-Real-IP = \"{client}\", X-Remote-User = \"{user}\", \
                     X-Old = \"\", X-Id = \"{query.id}\", X-Forwarded-Prefix = \"{prefix}\" }\n";

/// The fields with which a client tries to be someone else.
const FORGED: &str = "X-Real-IP: 9.9.9.9\r\nx-real-ip: 8.8.8.8\r\nX_Real_IP: 7.7.7.7\r\n\
                      X-Remote-User: admin\r\nX_Remote_User: admin\r\nX.Remote.User: admin\r\n\
                      X-Old: 1\r\nX_OLD: 2\r\nX-Forwarded-Prefix: /evil\r\nX-Keep: kept\r\n\
                      Connection: X-Real-IP, X-Forwarded-Prefix, X-Id\r\n";

fn asking(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: name\r\n{fields}\r\n")
}

#[test]
fn an_http_backend_gets_the_fields_of_the_rules_and_not_the_clients() {
    let route =
        format!("[[site.route]]\npath = \"/a/*\"\nproxy = \"http://10.0.0.1:3000\"\n{RULES}");
    in_memory(&route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = asking("/a/b?id=1%0d%0aX-Admin:%201", FORGED);
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        let fields: Vec<_> = asked.fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(
            fields,
            [
                ("host", "name"),
                ("x-keep", "kept"),
                ("x-forwarded-prefix", "/a"),
                ("x-id", "1%0D%0AX-Admin: 1"),
                ("x-real-ip", "192.0.2.7"),
                ("x-forwarded-for", "192.0.2.7"),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "name"),
                ("x-forwarded-port", "80"),
            ]
        );
    });
}

#[test]
fn rules_about_forwarding_fields_replace_those_of_forebay() {
    let rules = "request_headers = { X-Forwarded-For = \"{client}\", X-Forwarded-Proto = \"https\", \
                 X-Forwarded-Host = \"\", Forwarded = \"for={client}\" }\n";
    let site = "[[site]]\nlisten = \"127.0.0.1:80\"\ntrusted_proxies = [\"192.0.2.7\"]\n\
                forwarded = \"x-forwarded\"\n";
    let route = format!("{site}[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n{rules}");
    in_memory(&route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = asking("/", "X-Forwarded-For: 9.9.9.9, 5.5.5.5\r\nX-Forwarded-Host: h\r\n");
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert_eq!(asked.values("x-forwarded-for"), ["5.5.5.5"]);
        assert_eq!(asked.values("x-forwarded-proto"), ["https"]);
        assert_eq!(asked.values("x-forwarded-host"), Vec::<&str>::new());
        assert_eq!(asked.values("forwarded"), ["for=5.5.5.5"]);
    });
}

#[test]
fn a_field_is_added_to_the_clients_if_the_rule_says_so() {
    let rules = "request_headers = { X-Tag = { value = \"{method}\", add = true } }\n";
    let route = format!("[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n{rules}");
    in_memory(&route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = asking("/", "X-Tag: one\r\n");
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert_eq!(asked.values("x-tag"), ["one", "GET"]);
    });
}

#[test]
fn bodies_and_further_requests_on_the_connection_stay_whole() {
    let route =
        format!("[[site.route]]\npath = \"/a/*\"\nproxy = \"http://10.0.0.1:3000\"\n{RULES}");
    in_memory(&route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let mut client = world.client();
        let post = "POST /a/x?id=7 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
        client.send(format!("{}{}{post}", asking("/a/1?id=5", ""), asking("/a/2?id=6", ""))).await;
        let mut connection = backend.accept().await;
        for (start, id, body) in [
            ("GET /a/1?id=5 HTTP/1.1", "5", ""),
            ("GET /a/2?id=6 HTTP/1.1", "6", ""),
            ("POST /a/x?id=7 HTTP/1.1", "7", "abc"),
        ] {
            let asked = connection.request().await;
            assert_eq!((&*asked.start, asked.field("x-id"), asked.text()), (start, Some(id), body));
            connection.send(OK).await;
            assert_eq!(client.reply("GET").await.text(), "ok");
        }
    });
}

#[test]
fn an_http2_backend_and_an_http2_client_are_no_different() {
    let route = format!("[[site.route]]\npath = \"/a/*\"\nproxy = \"h2c://{ADDRESS}\"\n{RULES}");
    in_memory(&route, async |world| {
        let mut backend = Http2Backend::new(world);
        let mut client = Http2Client::connect(world).await;
        let fields = [("x-real-ip", "9.9.9.9"), ("x_remote_user", "admin"), ("x-keep", "kept")];
        let stream = client.ask("GET", "/a/b?id=5", &fields, true);
        let (asked, reply) = tokio::join!(backend.answer("ok"), client.reply(stream));
        assert_eq!(reply.text(), "ok");
        let named = |name: &str| {
            let fields = asked.fields.iter().filter(|(n, _)| n == name);
            fields.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(named("x-real-ip"), ["192.0.2.7"]);
        assert_eq!(named("x-id"), ["5"]);
        assert_eq!(named("x-keep"), ["kept"]);
        assert!(named("x-remote-user").is_empty() && named("x_remote_user").is_empty());
    });
}

/// Returns what an application of this protocol receives, as text.
async fn received(world: &World, fields: &str) -> String {
    let mut application = world.backend("10.0.0.1:9000");
    let mut client = world.client();
    client.send(asking("/a/b?id=5", fields)).await;
    let mut connection = application.accept().await;
    // The clock jumps when the gateway has sent everything.
    let quiet = Duration::from_secs(1);
    while let Ok(Ok(true)) = tokio::time::timeout(quiet, connection.more()).await {}
    String::from_utf8_lossy(connection.unread()).into_owned()
}

#[test]
fn applications_get_the_fields_as_variables() {
    for (protocol, keys) in [
        ("fastcgi", ", root = \"/nowhere\", scripts = \"*\""),
        ("scgi", ""),
        ("uwsgi", ""),
        ("ajp", ""),
    ] {
        let to = format!("{protocol} = {{ to = \"10.0.0.1:9000\"{keys} }}\n");
        let route = format!("[[site.route]]\npath = \"/a/*\"\n{to}{RULES}");
        in_memory(&route, async |world| {
            let text = received(world, FORGED).await;
            for wrong in ["9.9.9.9", "8.8.8.8", "7.7.7.7", "admin", "evil", "X_OLD", "HTTP_X_OLD"] {
                assert!(!text.contains(wrong), "{protocol}: {wrong} in {text:?}");
            }
            let names = match protocol {
                "ajp" => ["X-Real-IP", "X-Forwarded-Prefix", "X-Keep"],
                _ => ["HTTP_X_REAL_IP", "HTTP_X_FORWARDED_PREFIX", "HTTP_X_KEEP"],
            };
            for name in names {
                assert_eq!(text.matches(name).count(), 1, "{protocol}: {name} in {text:?}");
            }
        });
    }
}

#[test]
fn a_route_that_declines_leaves_the_clients_fields_to_the_next_one() {
    let root = tempfile::tempdir().unwrap();
    let route = format!(
        "[[site.route]]\nfallback = true\nfiles = \"{}\"\nrequest_headers = {{ X-A = \"1\" }}\n\
         [[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n",
        root.path().display()
    );
    in_memory(&route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let (asked, _) = world.pass(&mut backend, asking("/x", "X-A: client\r\n"), OK).await;
        assert_eq!(asked.values("x-a"), ["client"]);
    });
}

#[test]
fn the_log_has_the_fields_of_the_client() {
    let route = "[log]\naccess = \"stdout\"\nformat = \"%{User-Agent}i %U%q\"\n\
                 [[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\n\
                 proxy = \"http://10.0.0.1:3000\"\nrequest_headers = { User-Agent = \"gateway\" }\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = asking("/x?y", "User-Agent: browser\r\n");
        let (asked, _) = world.pass(&mut backend, request, OK).await;
        assert_eq!(asked.values("user-agent"), ["gateway"]);
        assert_eq!(world.gateway.access_lines(), ["browser /x?y"]);
    });
}
