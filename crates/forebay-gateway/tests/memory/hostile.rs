//! Hostile values in the keys of a route: no value of a client forges a field, a line of a log or
//! another host, and no expression takes more than its share of time and memory.
//!
//! Other files of this folder attack one key each, such as `tokens.rs`, `signed_urls.rs`,
//! `includes.rs` and `request_fields.rs`.

use crate::application::{Application, reply};
use crate::http2_client::Http2Client;
use crate::world::{Message, World, in_memory};

/// Ends of paths that browsers or proxies may read as another host, or as the end of a line.
const PLACES: [&str; 12] = [
    "//evil.example",
    "///evil.example/",
    "/%2fevil.example",
    "%2f%2fevil.example",
    "/%5cevil.example",
    "%5c%5cevil.example",
    "%09//evil.example",
    "@evil.example/",
    ".evil.example/",
    ":80@evil.example/",
    "%0d%0aLocation:%20//evil.example",
    "%00//evil.example",
];

async fn get(world: &World, target: &str, fields: &str) -> Message {
    world.ask(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).await
}

/// Returns true if Forebay accepts a site with this route.
fn is_accepted(route: &str) -> bool {
    let site = format!("[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\n{route}\n");
    forebay_conf::parse(&site, "site.toml", std::path::Path::new("/")).is_ok()
}

#[test]
fn captures_lead_to_no_other_host() {
    let route = |name: &str, to: &str| {
        format!("[[site.route]]\npath_regex = '^/{name}(?<to>.*)$'\nredirect = \"{to}\"\n")
    };
    let routes = [
        route("path", "/{to}"),
        route("own", "{scheme}://{host}/{to}"),
        route("query", "/x?to={to}"),
        route("twice", "/{to}/{to}"),
        "[[site.route]]\npath = \"/rest*\"\nredirect = \"/{rest}\"\n".to_owned(),
        "[[site.route]]\nrespond = { status = 404 }\n".to_owned(),
    ]
    .concat();
    in_memory(&routes, async |world| {
        for place in PLACES {
            for name in ["path", "own", "query", "twice", "rest"] {
                let answer = get(world, &format!("/{name}{place}"), "").await;
                let [location] = answer.values("location")[..] else {
                    assert!(matches!(answer.status(), 400 | 404), "{name}{place}");
                    continue;
                };
                let path = location.strip_prefix("http://h/").unwrap_or(&location[1..]);
                assert!(location.starts_with('/') || path.len() < location.len() - 1, "{location}");
                let is_host = location.starts_with('/') && path.starts_with(['/', '\\']);
                assert!(!is_host, "{name}{place}: {location}");
                assert!(location.bytes().all(|b| b.is_ascii_graphic()), "{name}: {location}");
            }
        }
    });
}

#[test]
fn no_target_lets_a_client_choose_the_host() {
    let regex = "path_regex = '^/(?<to>.*)$'\n";
    for to in [
        "{to}",
        "//{to}",
        "https://{to}/",
        "https://example.org{to}",
        "{scheme}://{host}{to}",
        "{query.to}",
        "https://{query.to}",
        "https://example.org{query.to}",
        "{header.Referer}",
        "https://{header.X-Host}/",
        "{cookie.to}",
        "/\\{to}",
    ] {
        assert!(!is_accepted(&format!("{regex}redirect = '{to}'")), "{to}");
    }
    assert!(is_accepted(&format!("{regex}redirect = 'https://example.org/{{to}}'")));
    for to in ["{to}", "http://a/{to}", "{query.to}"] {
        assert!(!is_accepted(&format!("{regex}rewrite = '{to}'\nrespond = 'x'")), "{to}");
    }
}

#[test]
fn captures_end_no_line_of_a_reply() {
    let routes = "[[site.route]]\npath_regex = '^/a(?<to>.*)$'\nrespond = \"x\"\n\
                  set_headers = { X-To = \"{to}\" }\n\
                  add_headers = { Link = \"<{to}>\", Set-Cookie = \"q={query.q}; Path=/\" }\n";
    in_memory(routes, async |world| {
        let target = "/a%0d%0aX-Evil:1%0a%0d?q=1%0d%0aX-Evil:2%00";
        let answer = get(world, target, "").await;
        let mut client = Http2Client::connect(world).await;
        let stream = client.get(target);
        let other = client.reply(stream).await;
        assert_eq!((answer.field("x-evil"), other.field("x-evil")), (None, None));
        for name in ["x-to", "link", "set-cookie"] {
            let values = answer.values(name);
            assert!(values.len() == 1 && values[0].contains("%0D%0A"), "{name}: {values:?}");
            assert!(!values[0].bytes().any(|b| b.is_ascii_control()), "{name}: {values:?}");
            assert_eq!(other.field(name), Some(values[0]), "{name}");
        }
    });
}

#[test]
fn captures_of_a_rewrite_go_around_no_rule() {
    let routes = "[[site.route]]\npath = \"/admin/*\"\nrespond = \"admin\"\nallow = \"10.0.0.0/8\"\n\
                  [[site.route]]\npath_regex = '^/r(?<to>.*)$'\nrewrite = \"/pub/{to}\"\n\
                  [[site.route]]\npath = \"/pub/*\"\nproxy = \"http://10.0.0.1:3000\"\n\
                  [[site.route]]\npath = \"/*\"\nrespond = \"other\"\n";
    in_memory(routes, async |world| {
        let application = Application::start(world, |request, _| reply("", &request.start));
        for to in [
            "/../admin/x",
            "/%2e%2e/admin/x",
            "/..%2fadmin/x",
            "/%2e%2e%2fadmin%2fx",
            "/..%5cadmin%5cx",
            "/x/..;/..;/admin/x",
            "/%252e%252e/admin/x",
            "%0d%0aGET%20/admin/x%20HTTP/1.1%0d%0a%0d%0a",
        ] {
            let answer = get(world, &format!("/r{to}"), "").await;
            assert_ne!(answer.text(), "admin", "{to}");
            // The backend gets one request, and no path that leads out of `/pub/`.
            for asked in application.seen.borrow_mut().drain(..) {
                assert!(asked.start.starts_with("GET /pub/"), "{to}: {}", asked.start);
                let start = asked.start.to_ascii_lowercase();
                assert!(!start.contains("/../") && !start.contains("/%2e%2e/"), "{to}: {start}");
            }
        }
    });
}

#[test]
fn a_line_of_the_log_is_one_line() {
    let site = "[log]\naccess = \"stdout\"\n\
                format = \"%{query.q}x|%{header.X-A}x|%{cookie.c}x|%U|\\\"%{User-Agent}i\\\"\"\n\
                [[site]]\nlisten = \"127.0.0.1:80\"\n\
                [[site.route]]\npath = \"/json*\"\nrespond = \"x\"\n\
                log = { access = \"/tmp/json\", format = \"json\" }\n\
                [[site.route]]\nrespond = \"x\"\n";
    let fields = "X-A: a\"\tb\\\r\nCookie: c=\"x\\\"y\"\r\nUser-Agent: \"}{\\\"forged\\\":1\r\n\
                  Referer: </script>\u{2028}\r\n";
    in_memory(site, async |world| {
        let _ = world.gateway.access_lines();
        for target in ["/%0d%0aforged%1b%5b2J", "/json%0d%0aforged%1b%5b2J%22"] {
            let target = format!("{target}?q=1%0d%0aforged%22%00%7f%1b");
            get(world, &target, fields).await;
            let lines = world.gateway.access_lines();
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(!lines[0].chars().any(char::is_control), "{lines:?}");
            if target.starts_with("/json") {
                let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
                assert!(line.is_object() && line.get("forged").is_none(), "{line}");
            } else {
                // Only the format itself writes a plain quotation mark.
                let quotes = lines[0].replace("\\\"", "").matches('"').count();
                assert_eq!(quotes, 2, "{lines:?}");
            }
        }
    });
}

#[test]
fn long_and_strange_keys_of_a_limit_are_counted_apart() {
    let routes = "[[site.route]]\nrespond = \"x\"\n\
                  rate_limit = { rate = \"1/h\", burst = 0, key = \"{header.X-Key}{query.k}\" }\n";
    in_memory(routes, async |world| {
        let long = "k".repeat(6000);
        for key in [format!("{long}a"), format!("{long}b"), "\u{e9}".to_owned(), "{client}".into()]
        {
            let fields = format!("X-Key: {key}\r\n");
            for status in [200, 429, 429] {
                assert_eq!(get(world, "/", &fields).await.status(), status, "{key:.20}");
            }
        }
        for (target, status) in [("/?k=%00", 200), ("/?k=%00", 429), ("/?k=%0d%0a", 200)] {
            assert_eq!(get(world, target, "").await.status(), status, "{target}");
        }
    });
}

#[test]
fn a_value_in_the_key_of_a_cache_changes_only_its_own_reply() {
    let routes = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n\
                  cache = { key = \"{path} {cookie.lang}\", private_cookies = [\"session\"] }\n";
    in_memory(routes, async |world| {
        let _application = Application::start(world, |request, _| {
            let cookie = request.field("cookie").unwrap_or("none").to_owned();
            reply("Cache-Control: max-age=60\r\n", &cookie)
        });
        for (target, cookie, text) in [
            ("/a", "lang=evil", "lang=evil"),
            ("/a", "lang=en", "lang=en"),
            ("/a", "lang=en; other=evil", "lang=en"),
            ("/a%20en", "lang=", "lang="),
            // The first cookie of a name counts, for the key and for every application.
            ("/b", "lang=en; lang=evil", "lang=en; lang=evil"),
            ("/b", "lang=evil", "lang=evil"),
        ] {
            let answer = get(world, target, &format!("Cookie: {cookie}\r\n")).await;
            assert_eq!(answer.text(), text, "{target} {cookie}");
        }
        assert_eq!(get(world, "/a", "Cookie: lang=en\r\n").await.text(), "lang=en");
    });
}

#[test]
fn an_answer_with_forged_lines_permits_nothing() {
    let routes = "[[site.route]]\nproxy = \"http://10.0.0.1:3000\"\n\
                  forward_auth = { to = \"http://10.0.0.2:9091/\", copy = [\"Remote-User\"] }\n";
    for value in ["ann\r\n X-Role: admin", "ann\u{1}", "ann\rX-Role: admin", "ann\0root"] {
        in_memory(routes, async |world| {
            let application = Application::start(world, |_, _| reply("", "page"));
            let line = format!("Remote-User: {value}\r\n");
            let _auth = Application::at(world, "10.0.0.2:9091", std::time::Duration::ZERO, {
                move |_, _| reply(&line, "")
            });
            let status = get(world, "/", "Remote-User: root\r\n").await.status();
            assert!(status >= 500, "{value:?}: {status}");
            assert_eq!(application.asked(), 0, "{value:?}");
        });
    }
}

#[test]
fn expressions_that_explode_are_refused_and_others_take_linear_time() {
    let bomb = "(a{1000}){1000}";
    for route in [
        format!("path_regex = '{bomb}'"),
        format!("when = {{ header = {{ X = '~{bomb}' }} }}"),
        format!("when = {{ not = {{ query = {{ x = '~*{bomb}' }} }} }}"),
        format!("path_regex = '{}'", "(".repeat(10_000)),
        format!("path_regex = '{}'", "a".repeat(1 << 20)),
    ] {
        assert!(!is_accepted(&format!("{route}\nrespond = \"x\"")), "{route:.60}");
    }
    let map = format!("[map.x]\nfrom = \"{{path}}\"\n'~{bomb}' = \"x\"\n");
    let route = "[[site]]\nlisten = \"127.0.0.1:80\"\n[[site.route]]\nrespond = \"{map.x}\"\n";
    assert!(forebay_conf::parse(&format!("{map}{route}"), "x", std::path::Path::new("/")).is_err());
    let nested = "^(([a-z])+.)+[A-Z]([a-z])+$";
    let routes = format!(
        "[map.x]\nfrom = \"{{header.X}}\"\n'~{nested}' = \"x\"\ndefault = \"none\"\n\
         [[site]]\nlisten = \"127.0.0.1:80\"\n\
         [[site.route]]\nwhen = {{ header = {{ X = '~{nested}' }} }}\nrespond = \"yes\"\n\
         [[site.route]]\nrespond = \"no\"\nset_headers = {{ X-Map = \"{{map.x}}\" }}\n"
    );
    in_memory(&routes, async |world| {
        let answer = get(world, "/", &format!("X: {}!\r\n", "a".repeat(6000))).await;
        assert_eq!((answer.text(), answer.field("x-map")), ("no", Some("none")));
    });
}
