//! `challenge`: browsers of new visitors solve a task before the route answers.

use std::fmt::Write as _;

use forebay_testkit::folder::Folder;
use sha2::{Digest, Sha256};

use crate::world::{Message, World, in_memory};

const WIKI: &str = "[[site.route]]\nrespond = \"wiki\"\nset_headers = { \"X-Wiki\" = \"1\" }\n";

/// A visitor with an address and a browser.
struct Visitor<'w> {
    world: &'w World,
    address: &'static str,
    agent: &'static str,
    host: &'static str,
}

impl Visitor<'_> {
    async fn send(&self, method: &str, target: &str, fields: &str) -> Message {
        let mut client = self.world.client_from(self.address);
        let Self { agent, host, .. } = self;
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\n{fields}\r\n"
        );
        client.send(&request).await;
        client.reply(&request).await
    }

    async fn get(&self, target: &str, cookie: &str) -> Message {
        self.send("GET", target, &format!("Cookie: {cookie}\r\n")).await
    }
}

fn visitor(world: &World) -> Visitor<'_> {
    Visitor { world, address: "192.0.2.7:4000", agent: "Mozilla/5.0", host: "h" }
}

fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before} in {text}"));
    rest.split_once(after).unwrap().0
}

fn task(page: &Message) -> &str {
    between(page.text(), "data-task=\"", "\"")
}

/// Does the work of the page's script.
fn solve(task: &str, bits: u32) -> String {
    let is_found = |answer: &String| {
        let hash = Sha256::digest(answer);
        u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]).leading_zeros() >= bits
    };
    (0..10_000_000_u32).map(|number| format!("{task}.{number}")).find(is_found).unwrap()
}

fn cookie(reply: &Message) -> String {
    reply.field("set-cookie").unwrap().split(';').next().unwrap().to_owned()
}

/// Solves the task of `/`, and returns the cookie.
async fn pass(visitor: &Visitor<'_>, bits: u32) -> String {
    let page = visitor.get("/", "").await;
    let answer = solve(task(&page), bits);
    cookie(&visitor.get(&format!("/?forebay-challenge={answer}"), "").await)
}

#[test]
fn a_visitor_works_once_and_then_passes() {
    in_memory(&format!("{WIKI}challenge = {{ difficulty = 8 }}\n"), async |world| {
        let visitor = visitor(world);
        let page = visitor.get("/w?a=1&b=%22", "").await;
        assert_eq!(page.status(), 200);
        assert_eq!(page.field("cache-control"), Some("no-store"));
        assert_eq!(page.field("x-wiki"), None, "the route's fields are for its own replies");
        assert!(page.field("content-security-policy").unwrap().contains("script-src 'sha256-"));
        assert_eq!(between(page.text(), "data-bits=\"", "\""), "8");
        let answer = solve(task(&page), 8);
        let target = format!("/w?a=1&b=%22&forebay-challenge={answer}");
        let solved = visitor.get(&target, "").await;
        assert_eq!((solved.status(), solved.field("location")), (303, Some("/w?a=1&b=%22")));
        let line = solved.field("set-cookie").unwrap();
        assert!(line.ends_with("; HttpOnly; SameSite=Lax"), "{line}");
        let cookie = cookie(&solved);
        let reply = visitor.get("/w?a=1&b=%22", &format!("a=b; {cookie}")).await;
        assert_eq!((reply.text(), reply.field("x-wiki")), ("wiki", Some("1")));
        for method in ["POST", "OPTIONS", "PROPFIND"] {
            let reply = visitor.send(method, "/w", &format!("Cookie: {cookie}\r\n")).await;
            assert_eq!(reply.text(), "wiki", "{method}");
        }
        let head = visitor.send("HEAD", "/", "").await;
        assert_eq!((head.status(), head.body.len()), (200, 0));
    });
}

#[test]
fn clients_in_exempt_networks_are_never_asked() {
    let folder = Folder::new();
    folder.write("bots.json", r#"{"prefixes": [{"ipv6Prefix": "2001:db8:4860::/48"}]}"#);
    let list = folder.path().join("bots.json");
    let routes =
        format!("{WIKI}challenge = {{ exempt = [\"192.0.3.0/24\", \"{}\"] }}\n", list.display());
    in_memory(&routes, async |world| {
        for (address, is_exempt) in [
            ("192.0.3.9:4000", true),
            ("[2001:db8:4860::7]:4000", true),
            ("192.0.2.7:4000", false),
            ("[2001:db8:4861::7]:4000", false),
        ] {
            let reply = Visitor { address, ..visitor(world) }.get("/", "").await;
            assert_eq!(reply.text() == "wiki", is_exempt, "{address}");
        }
    });
}

#[test]
fn answers_and_cookies_hold_for_one_client() {
    let routes = format!("{WIKI}challenge = {{ difficulty = 8 }}\n");
    in_memory(&routes, async |world| {
        let own = visitor(world);
        let page = own.get("/", "").await;
        let answer = format!("/?forebay-challenge={}", solve(task(&page), 8));
        let cookie = cookie(&own.get(&answer, "").await);
        // The answer may come again, but changes nothing.
        assert_eq!(own.get(&answer, "").await.status(), 303);
        let others = [
            Visitor { address: "192.0.3.7:4000", ..visitor(world) },
            Visitor { address: "[2001:db8::1]:4000", ..visitor(world) },
            Visitor { agent: "Mozilla/5.1", ..visitor(world) },
            Visitor { host: "other", ..visitor(world) },
        ];
        for other in others {
            let named = (other.address, other.agent, other.host);
            assert_ne!(other.get("/", &cookie).await.text(), "wiki", "{named:?}");
            let value = cookie.split_once('=').unwrap().1;
            let renamed = format!("forebay-visitor6={value}");
            assert_ne!(other.get("/", &renamed).await.text(), "wiki", "{named:?}");
            assert_eq!(other.get(&answer, "").await.status(), 200, "{named:?}");
        }
        let neighbour = Visitor { address: "192.0.2.200:4000", host: "H:80", ..visitor(world) };
        assert_eq!(neighbour.get("/", &cookie).await.text(), "wiki");
    });
}

#[test]
fn only_right_answers_count() {
    in_memory(&format!("{WIKI}challenge = {{ difficulty = 12 }}\n"), async |world| {
        let visitor = visitor(world);
        let page = visitor.get("/", "").await;
        let task = task(&page);
        let right = solve(task, 12);
        let (time, tag) = task.split_once('.').unwrap();
        let later = format!("{:x}.{tag}", u64::from_str_radix(time, 16).unwrap() + 1);
        let wrong: Vec<String> = vec![
            String::new(),
            ".".into(),
            "..".into(),
            task.into(),
            format!("{task}."),
            format!("{task}.x"),
            solve(&later, 12),
            solve(&format!("{time}.{}", "A".repeat(22)), 12),
            format!("{right}{}", "0".repeat(200)),
            format!("fffffffffffffffff.{tag}.1"),
            format!("-1.{tag}.1"),
            "%00%ff".into(),
            "x\u{7e}".into(),
        ];
        for answer in wrong {
            let reply = visitor.get(&format!("/?forebay-challenge={answer}"), "").await;
            assert_eq!(reply.status(), 200, "{answer}");
            assert_ne!(reply.text(), "wiki", "{answer}");
            assert!(reply.text().contains("data-bits=\"0\""), "the script must not try for ever");
        }
        let cookie = cookie(&visitor.get(&format!("/?forebay-challenge={right}"), "").await);
        let (name, value) = cookie.split_once('=').unwrap();
        let parts: Vec<&str> = value.split('.').collect();
        let [time, work, tag] = parts[..] else { panic!("{value}") };
        for forged in [
            format!("{name}={time}.b20.{tag}"),
            format!("{name}={time}.s{work}.{tag}"),
            format!("{name}=ffffffff.{work}.{tag}"),
            format!("{name}={time}.{work}."),
            format!("{name}={time}.{work}.{tag}A"),
            format!("{name}={task}.{tag}"),
            format!("{name}={right}"),
            format!("{name}="),
            name.to_owned(),
            format!("{name}={}", "x".repeat(5000)),
        ] {
            assert_ne!(visitor.get("/", &forged).await.text(), "wiki", "{forged}");
        }
        assert_eq!(visitor.get("/", &cookie).await.text(), "wiki");
    });
}

#[test]
fn a_harder_route_asks_again() {
    let routes = format!(
        "[[site.route]]\npath = \"/blame/*\"\nrespond = \"blame\"\nchallenge = {{ difficulty = 10, require_javascript = true }}\n\
         {WIKI}challenge = {{ difficulty = 6 }}\n"
    );
    in_memory(&routes, async |world| {
        let visitor = visitor(world);
        let cookie = pass(&visitor, 6).await;
        assert_eq!(visitor.get("/", &cookie).await.text(), "wiki");
        assert_ne!(visitor.get("/blame/x", &cookie).await.text(), "blame");
        let page = visitor.get("/blame/x", &cookie).await;
        assert!(!page.text().contains("http-equiv"), "{}", page.text());
        let answer = solve(task(&page), 10);
        let harder = visitor.get(&format!("/blame/x?forebay-challenge={answer}"), "").await;
        let harder = self::cookie(&harder);
        for target in ["/", "/blame/x"] {
            assert!(visitor.get(target, &harder).await.text().len() < 10, "{target}");
        }
    });
}

#[test]
fn without_scripts_a_visitor_waits() {
    let routes = format!("{WIKI}challenge = {{ difficulty = 30, delay = \"1s\" }}\n");
    in_memory(&routes, async |world| {
        let visitor = visitor(world);
        let page = visitor.get("/w?a=1", "").await;
        let text = page.text().to_owned();
        assert!(text.contains("content=\"2;url=?a=1&amp;forebay-challenge="), "{text}");
        let link = between(&text, "<a href=\"", "\"").replace("&amp;", "&");
        // The clock of the tasks is not that of the test, so ask until the second is over.
        let mut replies = 0;
        let cookie = loop {
            let reply = visitor.get(&format!("/w{link}"), "").await;
            if reply.status() == 303 {
                assert_eq!(reply.field("location"), Some("/w?a=1"));
                break cookie(&reply);
            }
            replies += 1;
            assert!(replies < 1_000_000);
            assert_ne!(reply.text(), "wiki");
        };
        assert!(replies > 0, "the link does not work at once");
        assert_eq!(visitor.get("/w?a=1", &cookie).await.text(), "wiki");
        let other = Visitor { address: "198.51.100.7:4000", ..visitor };
        assert_ne!(other.get(&format!("/w{link}"), &cookie).await.status(), 303);
    });
}

#[test]
fn some_paths_are_never_challenged() {
    let routes = format!(
        "{WIKI}challenge = {{ difficulty = 30 }}\n\
         [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"feeds\"\n{WIKI}challenge = {{ feeds = true }}\n"
    );
    in_memory(&routes, async |world| {
        let visitor = visitor(world);
        for (target, passes) in [
            ("/robots.txt", true),
            ("/robots.txt?x=y", true),
            ("/favicon.ico", true),
            ("/.well-known/acme-challenge/x", true),
            ("/.well-known/security.txt", true),
            ("/blog/index.rss", true),
            ("/blog/feed", true),
            ("/x/../robots.txt", true),
            ("/robots.txt/x", false),
            ("/x/robots.txt", false),
            ("/.well-known/../x", false),
            ("/.well-known/..;/x", false),
            ("/.well-known/x;/../../x", false),
            ("/.well-known/%2e%2e%5cx", false),
            ("/.well-known/..%3b/x", false),
            ("/x?a=.rss", false),
            ("/x%3f.rss", true),
            ("//.well-known/x", true),
        ] {
            let reply = visitor.get(target, "").await;
            let has_passed = reply.status() == 200 && reply.text() == "wiki";
            assert_eq!(has_passed, passes, "{target} {}", reply.status());
        }
        let feeds = Visitor { host: "feeds", ..visitor };
        assert_ne!(feeds.get("/blog/index.rss", "").await.text(), "wiki");
    });
}

#[test]
fn conditions_select_who_is_asked() {
    let routes = format!(
        "{WIKI}challenge = {{ when = {{ not = {{ header.Authorization = true }} }} }}\n\
         [[site]]\nlisten = \"127.0.0.1:80\"\nhosts = \"q\"\n{WIKI}challenge = {{ when = {{ query.action = \"blame\" }} }}\n"
    );
    in_memory(&routes, async |world| {
        let visitor = visitor(world);
        let api = visitor.send("POST", "/api", "Authorization: Bearer x\r\n").await;
        assert_eq!(api.text(), "wiki");
        assert_eq!(visitor.send("POST", "/api", "").await.status(), 403);
        let by_query = Visitor { host: "q", ..visitor };
        for (target, passes) in
            [("/?action=view", true), ("/?action=blame", false), ("/?%61ction=bl%61me", false)]
        {
            let reply = by_query.get(target, "").await;
            assert_eq!(reply.text() == "wiki", passes, "{target}");
        }
    });
}

#[test]
fn requests_that_show_no_page_are_refused() {
    in_memory(&format!("{WIKI}challenge = true\n"), async |world| {
        let visitor = visitor(world);
        for fields in [
            "Sec-Fetch-Mode: cors\r\n",
            "Sec-Fetch-Mode: no-cors\r\n",
            "Sec-Fetch-Mode: websocket\r\n",
            "Connection: upgrade\r\nUpgrade: websocket\r\n",
        ] {
            let reply = visitor.send("GET", "/", fields).await;
            assert_eq!((reply.status(), reply.field("set-cookie")), (403, None), "{fields}");
            assert_eq!(reply.field("cache-control"), Some("no-store"), "{fields}");
        }
        let page = visitor.send("GET", "/", "Sec-Fetch-Mode: navigate\r\n").await;
        assert_eq!(page.status(), 200);
        // A form is not lost: the browser sends it again when its page is reloaded.
        let form = visitor.send("POST", "/", "Sec-Fetch-Mode: navigate\r\n").await;
        assert_eq!(form.status(), 403);
        assert!(form.text().contains("reload it to send your data"), "{}", form.text());
    });
}

#[test]
fn an_answer_leads_back_to_this_site_only() {
    in_memory(&format!("{WIKI}challenge = {{ difficulty = 1 }}\n"), async |world| {
        let visitor = visitor(world);
        let page = visitor.get("/", "").await;
        let answer = solve(task(&page), 1);
        for (path, expected) in [
            ("//evil.example/x", "/evil.example/x"),
            ("/\\evil.example", "/evil.example"),
            ("/%5cevil.example", "/%5cevil.example"),
            ("/a//b", "/a//b"),
        ] {
            let reply = visitor.get(&format!("{path}?x&forebay-challenge={answer}&y"), "").await;
            if reply.status() == 303 {
                assert_eq!(reply.field("location"), Some(&*format!("{expected}?x&y")), "{path}");
            } else {
                assert!(matches!(reply.status(), 400 | 404), "{path} {}", reply.status());
            }
        }
        // What the client writes stays text.
        let mut target = "/?<script>&\"'`".to_owned();
        write!(target, "&x=</p>").unwrap();
        let page = visitor.get(&target, "").await;
        if page.status() == 200 {
            assert!(!page.text().contains("<script>&"), "{}", page.text());
            assert!(!page.text().contains("</p>&"), "{}", page.text());
        }
    });
}

#[test]
fn cookies_outlive_a_reload_and_secrets_divide_sites() {
    let secret = |byte: &str| format!("secret = \"{}\"", byte.repeat(32));
    let with = |keys: &str| format!("{WIKI}challenge = {{ difficulty = 4, {keys} }}\n");
    in_memory(&with(""), async |world| {
        let visitor = visitor(world);
        let cookie = pass(&visitor, 4).await;
        world.reload_as(&with("lifetime = \"8d\""));
        assert_eq!(visitor.get("/", &cookie).await.text(), "wiki");
        world.reload_as(&with(&secret("a")));
        assert_ne!(visitor.get("/", &cookie).await.text(), "wiki");
        let cookie = pass(&visitor, 4).await;
        world.reload_as(&with(&secret("b")));
        assert_ne!(visitor.get("/", &cookie).await.text(), "wiki");
        world.reload_as(&with(&secret("a")));
        assert_eq!(visitor.get("/", &cookie).await.text(), "wiki");
    });
}
