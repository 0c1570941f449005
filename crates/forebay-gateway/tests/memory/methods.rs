//! `allow_methods` and `open_methods` of a route.

use crate::application::{Application, reply};
use crate::world::{Message, World, in_memory};

async fn ask(world: &World, method: &str, target: &str, fields: &str) -> Message {
    world.ask(&format!("{method} {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

#[test]
fn other_methods_get_405_with_those_that_are_allowed() {
    let routes = "[[site.route]]\npath = \"/a/*\"\nallow_methods = [\"GET\", \"POST\"]\nrespond = \"a\"\n\
                  [[site.route]]\nrespond = \"below\"\n";
    in_memory(routes, async |world| {
        for (method, status) in [
            ("GET", 200),
            ("HEAD", 200),
            ("POST", 200),
            ("PUT", 405),
            ("OPTIONS", 405),
            ("get", 405),
            ("X", 405),
        ] {
            let reply = ask(world, method, "/a/x", "").await;
            assert_eq!(reply.status(), status, "{method}");
            let allowed = (status == 405).then_some("GET, POST, HEAD");
            assert_eq!(reply.field("allow"), allowed, "{method}");
        }
        // Another spelling of the path does not lead around the rule.
        for target in ["/a//x", "/b/../a/x", "/%61/x", "/a/x;y", "/a/x?b"] {
            assert_eq!(ask(world, "DELETE", target, "").await.status(), 405, "{target}");
        }
        assert_eq!(ask(world, "DELETE", "/b", "").await.text(), "below");
        // A field cannot change the method.
        let fields = "X-HTTP-Method-Override: GET\r\n";
        assert_eq!(ask(world, "DELETE", "/a/x", fields).await.status(), 405);
    });
}

#[test]
fn a_field_replaces_no_method_by_one_that_a_rule_refuses() {
    let site = "[[site]]\nlisten = \"127.0.0.1:80\"\nunderscores_in_headers = true\n\
                [[site.route]]\npath = \"/allowed\"\nallow_methods = [\"GET\", \"POST\"]\nrespond = \"in\"\n\
                [[site.route]]\npath = \"/open\"\nopen_methods = [\"GET\", \"POST\"]\ndeny = \"all\"\n\
                respond = \"in\"\n[[site.route]]\nrespond = \"in\"\n";
    in_memory(site, async |world| {
        for name in [
            "X-HTTP-Method-Override",
            "x-http-method",
            "X-Method-Override",
            "X_HTTP_METHOD_OVERRIDE",
        ] {
            for (target, value, status) in [
                ("/allowed", "DELETE", 405),
                ("/allowed", "delete", 405),
                ("/allowed", "GET", 200),
                ("/open", "DELETE", 403),
                ("/open", "post", 200),
                ("/other", "DELETE", 200),
            ] {
                let reply = ask(world, "POST", target, &format!("{name}: {value}\r\n")).await;
                assert_eq!(reply.status(), status, "{target} {name}: {value}");
            }
        }
    });
}

#[test]
fn the_methods_of_a_script_hold_for_its_path_info() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.php"), "").unwrap();
    let root = folder.path().display();
    let routes = format!(
        "[[site.route]]\npath = \"/x.php\"\nallow_methods = \"POST\"\n\
         fastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\" }}\n\
         [[site.route]]\nsuffix = \".php\"\nfastcgi = {{ to = \"10.0.0.1:9000\", root = \"{root}\" }}\n"
    );
    in_memory(&routes, async |world| {
        for target in ["/x.php", "/x.php/y", "/./x.php/y"] {
            assert_eq!(ask(world, "GET", target, "").await.status(), 405, "{target}");
        }
    });
}

#[test]
fn open_methods_need_no_permission() {
    let routes = "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\npath = \"/*\"\nopen_methods = \"GET\"\n\
                  allow = \"10.0.0.0/8\"\nrate_limit = { rate = \"3/m\", burst = 2 }\nrespond = \"in\"\n";
    in_memory(routes, async |world| {
        for (method, status) in [("GET", 200), ("HEAD", 200), ("POST", 403), ("get", 403)] {
            assert_eq!(ask(world, method, "/", "").await.status(), status, "{method}");
        }
        // Rate limits apply to every method.
        assert_eq!(ask(world, "GET", "/", "").await.status(), 200);
        assert_eq!(ask(world, "GET", "/", "").await.status(), 429);
        let mut inside = world.client_from("10.1.1.1:4000");
        inside.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(inside.reply("").await.text(), "in");
    });
}

/// Sends a QUERY with this body.
async fn query(world: &World, target: &str, body: &str) -> Message {
    let fields =
        format!("Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    world.ask(&format!("QUERY {target} HTTP/1.1\r\nHost: h\r\n{fields}")).await
}

#[test]
fn get_in_a_rule_does_not_include_query() {
    let routes = "[[site.route]]\npath = \"/allowed\"\nallow_methods = \"GET\"\nrespond = \"in\"\n\
                  [[site.route]]\npath = \"/open\"\nopen_methods = \"GET\"\ndeny = \"all\"\nrespond = \"in\"\n\
                  [[site.route]]\nmethods = \"GET\"\nrespond = \"for GET\"\n\
                  [[site.route]]\nmethods = \"QUERY\"\nrespond = \"for QUERY\"\n";
    in_memory(routes, async |world| {
        assert_eq!(query(world, "/allowed", "q").await.status(), 405);
        assert_eq!(query(world, "/open", "q").await.status(), 403);
        assert_eq!(query(world, "/x", "q").await.text(), "for QUERY");
    });
}

#[test]
fn stored_replies_neither_answer_a_query_nor_are_removed_by_it() {
    let routes = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = {}\n";
    in_memory(routes, async |world| {
        let application = Application::start(world, |request, number| {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            reply("Cache-Control: max-age=60\r\n", &format!("{number} {body}"))
        });
        let first = ask(world, "GET", "/a", "").await.text().to_owned();
        for body in ["one", "two", "two"] {
            let answer = query(world, "/a", body).await;
            assert!(answer.text().ends_with(body), "{}", answer.text());
            assert_eq!(answer.field("cache-status"), Some("forebay; fwd=method"));
        }
        assert_eq!(application.asked(), 4);
        let again = ask(world, "GET", "/a", "").await;
        assert_eq!(again.text(), first);
        assert!(again.field("cache-status").unwrap().starts_with("forebay; hit"));
    });
}

#[test]
fn pages_of_other_origins_may_send_a_query_by_default() {
    let routes = "[[site.route]]\ncors = { origins = \"https://a.example\" }\nrespond = \"x\"\n";
    in_memory(routes, async |world| {
        let fields = "Origin: https://a.example\r\nAccess-Control-Request-Method: QUERY\r\n";
        let preflight = ask(world, "OPTIONS", "/", fields).await;
        let methods = preflight.field("access-control-allow-methods").unwrap();
        assert!(methods.split(", ").any(|method| method == "QUERY"), "{methods}");
    });
}
