//! `cache`: who gets stored replies, and who never does.

use std::time::Duration;

use tokio::time::sleep;

use crate::application::{Application, reply};
use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};

/// Returns a reply with this `Cache-Control`, whose body is the number of the request.
pub fn numbered(control: &'static str) -> impl Fn(&Message, usize) -> String {
    move |_, number| reply(&format!("Cache-Control: {control}\r\n"), &number.to_string())
}

pub fn route(cache: &str) -> String {
    format!("[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\ncache = {cache}\n")
}

pub async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

#[test]
fn a_fresh_reply_answers_until_its_lifetime_ends() {
    in_memory(&route("true"), async |world| {
        let application = Application::start(world, numbered("max-age=10"));
        let first = get(world, "/a?b", "").await;
        assert_eq!((first.text(), first.field("age")), ("1", None));
        assert_eq!(first.field("cache-status"), Some("forebay; fwd=miss; stored"));
        sleep(Duration::from_secs(3)).await;
        let second = get(world, "/a?b", "").await;
        assert_eq!((second.text(), second.field("age")), ("1", Some("3")));
        assert_eq!(second.field("cache-status"), Some("forebay; hit; ttl=7"));
        assert_eq!(second.field("date"), first.field("date"));
        assert_eq!(second.values("date").len(), 1);
        for (target, fields) in [("/a?c", ""), ("/a", ""), ("/A?b", "")] {
            assert_ne!(get(world, target, fields).await.text(), "1", "{target}");
        }
        sleep(Duration::from_secs(7)).await;
        assert_eq!(get(world, "/a?b", "").await.text(), "5");
        assert_eq!(application.asked(), 5);
        let mut client = Http2Client::connect(world).await;
        let stream = client.get("/http2");
        assert_eq!(client.reply(stream).await.text(), "1");
        let stream = client.get("/http2");
        assert_eq!(client.reply(stream).await.text(), "1");
    });
}

#[test]
fn requests_for_head_parts_and_conditions_use_the_stored_reply() {
    in_memory(&route("true"), async |world| {
        let fields = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n\
                      Last-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\nContent-Type: text/x\r\n";
        let application = Application::start(world, |_, _| reply(fields, "0123456789"));
        assert_eq!(get(world, "/", "").await.text(), "0123456789");
        let head = world.ask("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!((head.status(), head.field("content-length")), (200, Some("10")));
        let part = get(world, "/", "Range: bytes=2-4\r\n").await;
        assert_eq!((part.status(), part.text()), (206, "234"));
        assert_eq!(part.field("content-range"), Some("bytes 2-4/10"));
        for (fields, status) in [
            ("Range: bytes=20-\r\n", 416),
            ("Range: bytes=2-4\r\nIf-Range: \"b\"\r\n", 200),
            ("Range: bytes=0-1,4-5\r\n", 200),
            ("If-None-Match: \"x\", W/\"a\"\r\n", 304),
            ("If-None-Match: \"x\"\r\n", 200),
            ("If-Modified-Since: Sun, 09 Sep 2001 01:46:40 GMT\r\n", 304),
            ("If-Modified-Since: Sun, 09 Sep 2001 01:46:39 GMT\r\n", 200),
            ("If-Match: \"x\"\r\n", 412),
        ] {
            let reply = get(world, "/", fields).await;
            assert_eq!(reply.status(), status, "{fields}");
            if status == 304 {
                assert_eq!(reply.field("etag"), Some("\"a\""));
                assert_eq!(reply.field("content-type"), None);
            }
        }
        assert_eq!(application.asked(), 1);
        // If the first request for a resource has a condition, the gateway fetches and stores the
        // whole reply.
        let first = get(world, "/other", "If-None-Match: \"a\"\r\n").await;
        assert_eq!(first.status(), 304);
        assert_eq!(application.seen.borrow()[0].field("if-none-match"), None);
        assert_eq!(get(world, "/other", "").await.text(), "0123456789");
        assert_eq!(application.asked(), 1);
    });
}

#[test]
fn a_stale_reply_is_confirmed_or_replaced() {
    in_memory(&route("true"), async |world| {
        let application =
            Application::start(world, |request, number| match request.field("if-none-match") {
                Some("\"a\"") if number == 2 => "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\
                     Cache-Control: max-age=20\r\nX-New: 1\r\nContent-Length: 0\r\n\r\n"
                    .into(),
                _ => reply("Cache-Control: max-age=10\r\nETag: \"a\"\r\nX-Old: 1\r\n", "text"),
            });
        get(world, "/", "").await;
        sleep(Duration::from_secs(11)).await;
        let confirmed = get(world, "/", "").await;
        assert_eq!((confirmed.status(), confirmed.text()), (200, "text"));
        assert_eq!((confirmed.field("x-new"), confirmed.field("x-old")), (Some("1"), Some("1")));
        assert_eq!(confirmed.values("cache-control"), ["max-age=20"]);
        sleep(Duration::from_secs(15)).await;
        assert_eq!(get(world, "/", "").await.field("age"), Some("15"));
        assert_eq!(application.asked(), 2);
        sleep(Duration::from_secs(10)).await;
        let replaced = get(world, "/", "If-None-Match: \"mine\"\r\n").await;
        assert_eq!((replaced.status(), replaced.field("x-new")), (200, None));
        assert_eq!(application.seen.borrow()[0].values("if-none-match"), ["\"a\""]);
    });
}

/// The public tests of caches expect this.
#[test]
fn a_304_with_another_etag_refreshes_the_stored_reply_but_not_its_etag() {
    in_memory(&route("true"), async |world| {
        let application = Application::start(world, |_, number| match number {
            1 => reply("Cache-Control: max-age=0\r\nETag: \"a\"\r\n", "text"),
            _ => "HTTP/1.1 304 Not Modified\r\nETag: \"b\"\r\nCache-Control: max-age=60\r\n\r\n"
                .into(),
        });
        for _ in 0..3 {
            let stored = get(world, "/", "").await;
            assert_eq!((stored.text(), stored.field("etag")), ("text", Some("\"a\"")));
        }
        assert_eq!(application.asked(), 2);
    });
}

/// Asserts that a 304 is for one client, for example because it sets a cookie. `then` are the field
/// lines of each 304. If `is_removed` is true, the first 304 also removes the stored reply.
fn confirmed_for_one(then: &'static str, is_removed: bool) {
    in_memory(&route("{ stale_while_revalidate = \"1h\" }"), async |world| {
        let application = Application::start(world, move |request, number| {
            match request.field("if-none-match") {
                Some("\"a\"") => {
                    let then = then.replace("NUMBER", &number.to_string());
                    format!("HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n{then}\r\n")
                }
                _ => reply(
                    "Cache-Control: max-age=10, stale-while-revalidate=0\r\nETag: \"a\"\r\n",
                    "text",
                ),
            }
        });
        get(world, "/", "").await;
        for number in 2..5 {
            sleep(Duration::from_secs(11)).await;
            let own = get(world, "/", "").await;
            assert_eq!(own.text(), "text");
            assert_eq!(application.seen.borrow().len(), number, "{then}");
            if then.contains("NUMBER") {
                let expected = format!("s={number}");
                assert_eq!(own.values("set-cookie"), [expected], "no other client's cookie");
            }
            if is_removed {
                return assert_eq!(get(world, "/", "").await.field("age"), None, "{then}");
            }
        }
    });
}

#[test]
fn a_confirmation_for_one_client_is_not_stored() {
    confirmed_for_one("Cache-Control: max-age=100\r\nSet-Cookie: s=NUMBER\r\n", false);
    confirmed_for_one("Cache-Control: private, max-age=100\r\n", true);
    confirmed_for_one("Cache-Control: no-store\r\n", true);
    confirmed_for_one("Cache-Control: max-age=100\r\nVary: *\r\n", true);
}

#[test]
fn a_confirmation_may_change_the_variants() {
    in_memory(&route("true"), async |world| {
        let application = Application::start(world, |request, _| {
            let language = request.field("accept-language").unwrap_or("none");
            let fields = format!("Cache-Control: max-age=10\r\nETag: \"{language}\"\r\n");
            if request.field("if-none-match") == Some("\"de\"") && language == "de" {
                let fields = format!("{fields}Vary: Accept-Language\r\n");
                return format!("HTTP/1.1 304 Not Modified\r\n{fields}\r\n");
            }
            let vary = if language == "fr" { "Vary: Accept-Language\r\n" } else { "" };
            reply(&format!("{fields}{vary}"), language)
        });
        get(world, "/", "Accept-Language: de\r\n").await;
        sleep(Duration::from_secs(11)).await;
        for (language, asked) in [("de", 2), ("fr", 1), ("de", 0)] {
            let fields = format!("Accept-Language: {language}\r\n");
            assert_eq!(get(world, "/", &fields).await.text(), language);
            assert_eq!(application.asked(), asked, "{language}");
        }
    });
}

#[test]
fn a_thousand_clients_cause_one_request() {
    in_memory(&route("true"), async |world| {
        let second = Duration::from_secs(1);
        let application = Application::slow(world, second, numbered("max-age=10"));
        let mut clients = Vec::new();
        for _ in 0..1000 {
            let mut client = world.client();
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            clients.push(client);
        }
        for client in &mut clients {
            assert_eq!(client.reply("GET").await.text(), "1");
        }
        assert_eq!(application.asked(), 1);
    });
}

#[test]
fn clients_do_not_wait_for_a_reply_that_is_not_for_them() {
    in_memory(&route("true"), async |world| {
        let second = Duration::from_secs(1);
        let application = Application::slow(world, second, numbered("private, max-age=10"));
        let started = tokio::time::Instant::now();
        get(world, "/", "").await;
        let mut clients = Vec::new();
        for _ in 0..5 {
            let mut client = world.client();
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            clients.push(client);
        }
        let mut texts = Vec::new();
        for client in &mut clients {
            texts.push(client.reply("GET").await.text().to_owned());
        }
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 5, "each has its own");
        assert!(started.elapsed() < 3 * second, "all at once: {:?}", started.elapsed());
        assert_eq!(application.asked(), 6);
    });
}

/// A reply is stored, but each client needs an answer of its own.
#[test]
fn clients_do_not_wait_in_turn_for_confirmations_that_are_not_for_them() {
    let answers = [
        "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nSet-Cookie: s=1\r\n\r\n".to_owned(),
        reply("Cache-Control: max-age=10\r\nETag: \"b\"\r\nSet-Cookie: s=1\r\n", "other"),
    ];
    for answer in answers {
        in_memory(&route("true"), async |world| {
            let second = Duration::from_secs(1);
            let application = Application::slow(world, second, move |_, number| match number {
                1 => reply("Cache-Control: max-age=10\r\nETag: \"a\"\r\n", "text"),
                2 => answer.clone(),
                _ => reply("Cache-Control: max-age=10\r\nSet-Cookie: s=1\r\n", "own"),
            });
            get(world, "/", "").await;
            sleep(Duration::from_secs(11)).await;
            let started = tokio::time::Instant::now();
            let mut clients = Vec::new();
            for _ in 0..5 {
                let mut client = world.client();
                client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
                clients.push(client);
            }
            for client in &mut clients {
                assert_eq!(client.reply("GET").await.values("set-cookie"), ["s=1"]);
            }
            assert!(started.elapsed() < 3 * second, "at once: {:?}", started.elapsed());
            assert_eq!(application.asked(), 6);
        });
    }
}

#[test]
fn a_failed_or_abandoned_request_does_not_fail_those_that_wait() {
    in_memory(&route("true"), async |world| {
        let second = Duration::from_secs(1);
        let application = Application::slow(world, second, |_, number| match number {
            1 => String::new(),
            _ => reply("Cache-Control: max-age=10\r\n", &number.to_string()),
        });
        let mut clients = Vec::new();
        for _ in 0..4 {
            let mut client = world.client();
            client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
            client.reply("POST").await;
            client.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
            clients.push(client);
        }
        application.asked();
        drop(clients.remove(0));
        for client in &mut clients {
            assert_eq!(client.reply("GET").await.status(), 200);
        }
        assert!(application.asked() <= 3);
    });
}

#[test]
fn stale_replies_are_used_while_a_new_one_is_fetched_and_on_errors() {
    let cache = "{ stale_while_revalidate = \"10s\", stale_if_error = \"60s\" }";
    in_memory(&route(cache), async |world| {
        let application = Application::start(world, |_, number| match number {
            3 => "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".into(),
            // The request is sent once more, over a new connection.
            4 | 5 => String::new(),
            _ => reply("Cache-Control: max-age=10\r\n", &number.to_string()),
        });
        assert_eq!(get(world, "/", "").await.text(), "1");
        sleep(Duration::from_secs(15)).await;
        let stale = get(world, "/", "If-None-Match: \"mine\"\r\nRange: bytes=0-0\r\n").await;
        assert_eq!((stale.status(), stale.text()), (206, "1"));
        assert_eq!(stale.field("cache-status"), Some("forebay; hit; ttl=-5; detail=stale"));
        sleep(Duration::from_secs(1)).await;
        world.ask("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(get(world, "/", "").await.text(), "2", "fetched meanwhile");
        assert_eq!(application.seen.borrow()[1].field("range"), None);
        for _ in 0..2 {
            sleep(Duration::from_secs(25)).await;
            assert_eq!(get(world, "/", "").await.text(), "2", "the origin fails");
        }
        assert_eq!(application.asked(), 5);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(get(world, "/", "").await.text(), "1", "asked again");
    });
}

#[test]
fn replies_for_one_visitor_are_not_stored() {
    let server = "[server.limits]\nget_body = true\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n";
    in_memory(&format!("{server}{}", route("{ valid = \"1m\" }")), async |world| {
        let application = Application::start(world, |request, number| {
            let target = request.start.split(' ').nth(1).unwrap();
            let fields = match target {
                "/cookie" => "Set-Cookie: id=1\r\n",
                "/private" => "Cache-Control: private\r\n",
                "/no-store" => "Cache-Control: no-store\r\n",
                "/quote" => "Cache-Control: max-age=60, foo=\"a, private\r\nETag: \"a\"\r\n",
                "/cdn" => "Cache-Control: private\r\nCDN-Cache-Control: max-age=60\r\n",
                "/cdn-private" => "Cache-Control: public\r\nCDN-Cache-Control: private\r\n",
                "/accel-private" => "Cache-Control: private\r\nX-Accel-Expires: 60\r\n",
                "/vary" => "Vary: *\r\n",
                "/accel" => "X-Accel-Expires: 0\r\n",
                "/said" => "Cache-Control: max-age=60\r\n",
                "/public" => "Cache-Control: public, max-age=60\r\n",
                _ => "",
            };
            reply(fields, &number.to_string())
        });
        for (target, fields, is_stored) in [
            ("/plain", "", true),
            ("/cookie", "", false),
            ("/private", "", false),
            ("/no-store", "", false),
            ("/quote", "", false),
            ("/cdn", "", true),
            ("/cdn-private", "", false),
            ("/accel-private", "", false),
            ("/vary", "", false),
            ("/accel", "", false),
            ("/session", "Cookie: session=1\r\n", false),
            ("/said", "Cookie: session=1\r\n", true),
            ("/user", "Authorization: Basic YTpi\r\n", false),
            ("/said?user", "Authorization: Basic YTpi\r\n", false),
            ("/public", "Authorization: Basic YTpi\r\n", true),
            ("/part", "Range: bytes=0-0\r\n", false),
            ("/fat", "Content-Length: 1\r\n", false),
        ] {
            application.asked();
            for _ in 0..2 {
                let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
                let body = if target == "/fat" { "x" } else { "" };
                world.ask(&format!("{request}{body}")).await;
            }
            let expected = if is_stored { 1 } else { 2 };
            assert_eq!(application.asked(), expected, "{target}");
        }
        // What was stored for others does not reach a visitor with a session or a password.
        assert_eq!(get(world, "/plain", "").await.text(), "1");
        for fields in ["Cookie: session=1\r\n", "Authorization: Basic YTpi\r\n"] {
            application.asked();
            get(world, "/plain", fields).await;
            assert_eq!(application.asked(), 1, "{fields}");
        }
    });
}

#[test]
fn only_named_cookies_are_private() {
    let cache = "{ valid = \"1m\", private_cookies = [\"wp_*\", \"id\"] }";
    in_memory(&route(cache), async |world| {
        let application = Application::start(world, |_, number| reply("", &number.to_string()));
        get(world, "/", "").await;
        for (cookies, asked) in [
            ("_ga=1; x=2", 0),
            ("_ga=1; wp_user=2", 1),
            ("id=3", 1),
            ("idx=3", 0),
            ("id-x=3; wp=1; wpuser=1", 0),
            // PHP and ASP.NET take these for a private name.
            ("wp.user=1", 1),
            ("a=1; wp%5fuser=1", 1),
            ("wp[user=1", 1),
            ("WP_user=1", 1),
            ("i%64=3", 1),
            ("id[]=3", 1),
            ("%2569d=3", 1),
            ("a=1,id=3", 1),
            ("id", 1),
        ] {
            application.asked();
            get(world, "/", &format!("Cookie: {cookies}\r\n")).await;
            assert_eq!(application.asked(), asked, "{cookies}");
        }
    });
}

#[test]
fn changes_invalidate_what_they_change() {
    in_memory(&route("true"), async |world| {
        let application = Application::start(world, |request, number| {
            let method = request.start.split(' ').next().unwrap();
            match method {
                "GET" => reply("Cache-Control: max-age=60\r\n", &number.to_string()),
                "DELETE" => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".into(),
                _ => reply("Location: http://H/b\r\nContent-Location: //evil/c\r\n", ""),
            }
        });
        let all = async |world: &World| {
            let mut texts = Vec::new();
            for target in ["/a", "/b", "/c"] {
                texts.push(get(world, target, "").await.text().to_owned());
            }
            texts
        };
        let before = all(world).await;
        world.ask("DELETE /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(all(world).await, before, "it failed");
        world.ask("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        let after = all(world).await;
        assert!(after[0] != before[0] && after[1] != before[1], "{before:?} {after:?}");
        assert_eq!(after[2], before[2], "another host");
        application.asked();
    });
}

#[test]
fn a_change_over_one_route_removes_the_replies_of_the_others() {
    let routes = format!(
        "[[site.route]]\nwhen = {{ method = [\"POST\", \"DELETE\"] }}\nproxy = \"http://10.0.0.1:3000\"\n\
         [[site.route]]\nwhen = {{ method = \"PUT\" }}\nproxy = \"http://10.0.0.1:3000\"\ncache = true\n\
         [[site.route]]\nwhen = {{ method = \"PATCH\" }}\nrespond = \"no change\"\n\
         [[site.route]]\npath = \"/b\"\nproxy = \"http://10.0.0.1:3000\"\n\
         cache = {{ key = \"{{scheme}}{{host}}{{path}}{{header.X-Kind}}\" }}\n{}",
        route("true")
    );
    in_memory(&routes, async |world| {
        let _application = Application::start(world, |request, number| {
            let method = request.start.split(' ').next().unwrap();
            match method {
                "GET" => reply("Cache-Control: max-age=60\r\n", &number.to_string()),
                "DELETE" => "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".into(),
                _ => reply("Location: /b\r\n", ""),
            }
        });
        let all = async |world: &World| {
            let mut texts = Vec::new();
            for target in ["/a", "/b", "/c"] {
                texts.push(get(world, target, "").await.text().to_owned());
            }
            texts
        };
        for (method, changes) in
            [("DELETE", false), ("PATCH", false), ("POST", true), ("PUT", true)]
        {
            let before = all(world).await;
            world
                .ask(&format!("{method} /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"))
                .await;
            let after = all(world).await;
            assert_eq!(after[0] != before[0], changes, "{method} /a: {before:?} {after:?}");
            assert_eq!(
                after[1] != before[1],
                changes,
                "{method} with Location: {before:?} {after:?}"
            );
            assert_eq!(after[2], before[2], "another path");
        }
        // Another host has replies of its own.
        let before = all(world).await;
        world.ask("POST /a HTTP/1.1\r\nHost: other\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(all(world).await, before);
    });
}

#[test]
fn a_reply_from_before_a_change_is_not_stored() {
    in_memory(&route("true"), async |world| {
        let application = Application::slow(world, Duration::from_secs(1), |request, number| {
            if request.start.starts_with("GET") {
                reply("Cache-Control: max-age=60\r\n", &number.to_string())
            } else {
                reply("", "")
            }
        });
        let mut reader = world.client();
        reader.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        sleep(Duration::from_millis(500)).await;
        // The change ends before the reader's reply, which shows the state before it.
        let mut writer = world.client();
        writer.send("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(reader.reply("GET").await.text(), "1");
        writer.reply("PUT").await;
        assert_eq!(get(world, "/", "").await.text(), "3");
        assert_eq!(application.asked(), 3);
    });
}

#[test]
fn clients_cannot_poison_what_others_get() {
    in_memory(&route("{ valid = \"1m\" }"), async |world| {
        let application = Application::start(world, |request, number| {
            let names = [
                "x-forwarded-host",
                "x-host",
                "x-original-url",
                "x-rewrite-url",
                "x-http-method-override",
                "x-forwarded-scheme",
            ];
            let seen: Vec<_> = names.iter().filter_map(|name| request.field(name)).collect();
            let is_evil = seen.iter().any(|value| value.contains("evil"));
            let text = if is_evil { "evil".to_owned() } else { number.to_string() };
            match request.field("x-bad") {
                Some("400") => "HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n".into(),
                Some("405") => {
                    "HTTP/1.1 405 No\r\nLast-Modified: Sun, 09 Sep 2001 01:46:40 GMT\r\n\
                                Content-Length: 0\r\n\r\n"
                        .into()
                }
                _ => reply("", &text),
            }
        });
        for (number, fields) in [
            "X-Forwarded-Host: evil\r\n",
            "X-Host: evil\r\n",
            "X-Original-URL: /evil\r\n",
            "X-Rewrite-URL: /evil\r\n",
            "X-HTTP-Method-Override: evil\r\n",
            "X-Forwarded-Scheme: evil\r\n",
            "X-Bad: 400\r\n",
            "X-Bad: 405\r\n",
        ]
        .iter()
        .enumerate()
        {
            let target = format!("/{number}");
            get(world, &target, fields).await;
            let next = get(world, &target, "").await;
            assert_eq!(next.status(), 200, "{fields}");
            assert_ne!(next.text(), "evil", "{fields}");
        }
        // A port in Host may appear in links.
        application.asked();
        for host in ["h", "h:1337", "H"] {
            world.ask(&format!("GET /port HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        }
        assert_eq!(application.asked(), 2);
        // Parameters after `;`, and escapes, are part of the key.
        for target in ["/x", "/x;.css", "/x%2f..%2fy", "/x?utm=1", "/x?utm=1;y=2"] {
            get(world, target, "").await;
        }
        assert!(application.asked() >= 4);
        let head = world.ask("HEAD /head HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert_eq!(head.status(), 200);
        assert!(!get(world, "/head", "").await.text().is_empty(), "HEAD is not stored for GET");
    });
}

#[test]
fn a_client_that_does_not_read_keeps_nobody_waiting() {
    in_memory(&route("true"), async |world| {
        let page = "x".repeat(800_000);
        let application =
            Application::start(world, move |_, _| reply("Cache-Control: max-age=60\r\n", &page));
        let mut slow = world.client();
        slow.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        sleep(Duration::from_millis(100)).await;
        let started = tokio::time::Instant::now();
        assert_eq!(get(world, "/", "").await.text().len(), 800_000);
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
        assert_eq!(application.asked(), 1);
        assert_eq!(slow.reply("GET").await.text().len(), 800_000);
    });
}

#[test]
fn bodies_on_their_way_take_no_more_memory_than_the_store() {
    let server = "[server]\ncache_memory = \"1MiB\"\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n";
    in_memory(&format!("{server}{}", route("true")), async |world| {
        let half = "x".repeat(30_000);
        let application = Application::start(world, move |request, _| {
            if request.start.contains("/slow") {
                // The second half does not come.
                let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n";
                format!("{head}Content-Length: 60000\r\n\r\n{half}")
            } else {
                reply("Cache-Control: max-age=60\r\n", &half)
            }
        });
        let mut slow = Vec::new();
        for number in 0..20 {
            let mut client = world.client();
            client.send(&format!("GET /slow{number} HTTP/1.1\r\nHost: h\r\n\r\n")).await;
            slow.push(client);
        }
        sleep(Duration::from_millis(100)).await;
        application.asked();
        for asked in [1, 1] {
            get(world, "/", "").await;
            assert_eq!(application.asked(), asked, "there is no room for a copy");
        }
        drop(slow);
        sleep(Duration::from_secs(11)).await;
        for asked in [1, 0] {
            get(world, "/", "").await;
            assert_eq!(application.asked(), asked);
        }
    });
}

#[test]
fn a_stored_reply_is_compressed_for_each_client_as_it_accepts() {
    let routes = format!("{}compress = true\n", route("true"));
    in_memory(&routes, async |world| {
        let page = "a page that repeats itself. ".repeat(100);
        let whole = page.clone();
        let application = Application::start(world, move |request, _| {
            assert_eq!(request.field("range"), None);
            let fields = "Cache-Control: max-age=60\r\nContent-Type: text/html\r\nETag: \"a\"\r\n";
            reply(fields, &page)
        });
        let plain = get(world, "/", "").await;
        assert_eq!((plain.text(), plain.field("content-encoding")), (&*whole, None));
        let mut bodies = Vec::new();
        for _ in 0..2 {
            let zipped = get(world, "/", "Accept-Encoding: gzip\r\n").await;
            assert_eq!(zipped.field("content-encoding"), Some("gzip"));
            assert_eq!(zipped.field("etag"), Some("W/\"a\""));
            assert!(zipped.field("content-length").is_some(), "it is compressed as a whole");
            assert!(zipped.body.len() < whole.len() / 2 && !zipped.body.is_empty());
            bodies.push(zipped.body);
        }
        assert_eq!(bodies[0], bodies[1]);
        let other = get(world, "/", "Accept-Encoding: br\r\n").await;
        assert_eq!(other.field("content-encoding"), Some("br"));
        let fields = "Accept-Encoding: gzip\r\nIf-None-Match: W/\"a\"\r\n";
        assert_eq!(get(world, "/", fields).await.status(), 304);
        let part = get(world, "/", "Accept-Encoding: gzip\r\nRange: bytes=0-5\r\n").await;
        assert_eq!((part.status(), part.text()), (206, "a page"));
        assert_eq!(application.asked(), 1);
    });
}

#[test]
fn replies_that_are_cut_off_or_too_large_are_not_stored() {
    in_memory(&route("{ valid = \"1m\", max_size = \"1KiB\" }"), async |world| {
        let application = Application::start(world, |request, _| {
            let large = "x".repeat(2000);
            match request.start.split(' ').nth(1).unwrap() {
                "/large" => reply("", &large),
                "/chunks" => format!(
                    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n{large}\r\n0\r\n\r\n"
                ),
                "/small" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                             2\r\nok\r\n0\r\nX-Trailer: 1\r\n\r\n"
                    .into(),
                _ => String::new(),
            }
        });
        for (target, asked) in [("/large", 2), ("/chunks", 2), ("/small", 1)] {
            application.asked();
            for _ in 0..2 {
                let reply = get(world, target, "").await;
                assert_eq!(reply.text().len(), if asked == 1 { 2 } else { 2000 }, "{target}");
            }
            assert_eq!(application.asked(), asked, "{target}");
        }
        let conditional = get(world, "/large", "If-None-Match: \"a\"\r\n").await;
        assert_eq!(conditional.text().len(), 2000);
        drop(application);
        // The connection ends within the body.
        let mut backend = world.backend("10.0.0.1:3000");
        let answering = async {
            for _ in 0..2 {
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
                drop(backend.answer(head).await);
            }
        };
        let asking = async {
            let mut client = world.client();
            client.send("GET /cut HTTP/1.1\r\nHost: h\r\n\r\n").await;
            assert!(client.any_reply(false).await.is_err());
            let mut client = world.client();
            client.send("GET /cut HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"a\"\r\n\r\n").await;
            assert_eq!(client.any_reply(false).await.unwrap().status(), 502);
        };
        tokio::join!(answering, asking);
    });
}

#[test]
fn a_reload_keeps_replies_of_routes_that_did_not_change() {
    in_memory(&route("true"), async |world| {
        let application = Application::start(world, numbered("max-age=60"));
        get(world, "/", "").await;
        world.reload_as(&format!("\n{}", route("true")));
        assert_eq!(get(world, "/", "").await.text(), "1");
        world.reload_as(&route("{ valid = \"1s\" }"));
        assert_eq!(get(world, "/", "").await.text(), "2");
        assert_eq!(application.asked(), 2);
    });
}

#[test]
fn the_memory_is_bounded() {
    let server = "[server]\ncache_memory = \"1MiB\"\n[[site]]\nlisten = [\"127.0.0.1:80\"]\n";
    in_memory(&format!("{server}{}", route("true")), async |world| {
        let page = "x".repeat(10_000);
        let _application =
            Application::start(world, move |_, _| reply("Cache-Control: max-age=60\r\n", &page));
        for number in 0..1000 {
            get(world, &format!("/{number}"), "").await;
        }
        let status = world.status().cache.expect("a route uses the store");
        assert!(status.bytes <= 1024 * 1024, "{status:?}");
        assert!(status.replies > 20, "{status:?}");
    });
}
