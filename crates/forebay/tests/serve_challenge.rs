//! `challenge` with real browsers: Chromium with and without scripts, and the page's script in Node.
//! Its cookies and answers over HTTP/1.1, HTTP/2 and HTTP/3.

mod support;

use std::process::Command;

use forebay_testkit::chromium;
use forebay_testkit::folder::Folder;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use forebay_testkit::tls::{Authority, connect};
use http::Method;
use sha2::{Digest, Sha256};
use support::http3::{Client, SITE, reply_to, run, write_identity};
use support::{Forebay, serve, site};

/// A page of the site. Its title shows what of the address has arrived.
const PAGE: &str = "<!DOCTYPE html><title>?</title>\n\
    <script>document.title = 'wiki ' + location.search + location.hash</script>\n";

fn wiki(keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("files/page.html", PAGE);
    site(folder, &format!("[[site.route]]\nfiles = \"files\"\nchallenge = {{ {keys} }}\n"))
}

#[test]
fn chromium_solves_the_task_and_sees_the_page() {
    if !peer::has(&["chromium"]) {
        return;
    }
    let forebay = wiki("difficulty = 12");
    let url = format!("http://{}/page.html?a=1#b", forebay.address);
    let profile = forebay.folder.path().join("profile");
    let (title, console) = chromium::show(&profile, &url, 20_000, 1);
    assert_eq!(title, "wiki ?a=1#b", "{console:?} {}", forebay.output());
    assert_eq!(console, [""; 0]);
    forebay.stop();
}

/// Runs the script of a page without a browser, and prints where it leads.
const DRIVER: &str = "
const place = { getAttribute: name => process.env[name] };
globalThis.document = { getElementById: () => place };
Object.defineProperty(globalThis, 'navigator', { value: { cookieEnabled: true } });
globalThis.location = { search: '?a=1', hash: '', replace: url => console.log(url) };
(0, eval)(process.env.SCRIPT);
";

#[test]
fn the_script_of_the_page_finds_answers_that_count() {
    if !peer::has(&["nodejs"]) {
        return;
    }
    let forebay = wiki("difficulty = 14");
    for _ in 0..5 {
        let page = forebay.get("/page.html?a=1").text().to_owned();
        let between = |before: &str, after: &str| {
            page.split_once(before).unwrap().1.split_once(after).unwrap().0.to_owned()
        };
        let output = Command::new("node")
            .args(["-e", DRIVER])
            .env("data-task", between("data-task=\"", "\""))
            .env("data-bits", between("data-bits=\"", "\""))
            .env("SCRIPT", between("<script>", "</script>"))
            .output()
            .unwrap();
        let query = String::from_utf8(output.stdout).unwrap();
        let reply = forebay.get(&format!("/page.html{}", query.trim_end()));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(reply.status, 303, "{query} {errors}");
        assert_eq!(reply.header("Location"), Some("/page.html?a=1"));
    }
    forebay.stop();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
    Http3,
}

/// A client of the site, as the site sees it.
#[derive(Clone, Copy, Debug)]
struct Visitor {
    address: &'static str,
    agent: &'static str,
    host: &'static str,
}

const VISITOR: Visitor =
    Visitor { address: "192.0.2.7", agent: "Mozilla/5.0 Firefox/140.0", host: "localhost" };

struct Answer {
    status: u16,
    location: Option<String>,
    cookie: Option<String>,
    body: String,
}

struct Front {
    forebay: Forebay,
    authority: Authority,
}

impl Front {
    fn start(keys: &str) -> Self {
        let folder = Folder::new();
        let authority = Authority::new("of the test");
        write_identity(&folder, &authority.issue(&["localhost", "other.test"]));
        folder.write("ca.pem", &authority.pem);
        let site = format!(
            "{SITE}trusted_proxies = \"127.0.0.1\"\n\
             [[site.route]]\nrespond = \"wiki\"\nchallenge = {{ {keys} }}\n"
        );
        Self { forebay: serve(folder, &site), authority }
    }

    fn ask(&self, protocol: Protocol, visitor: Visitor, target: &str, cookie: &str) -> Answer {
        match protocol {
            Protocol::Http1 => self.ask_http1(visitor, target, cookie),
            Protocol::Http2 => self.ask_http2(visitor, target, cookie),
            Protocol::Http3 => self.ask_http3(visitor, target, cookie),
        }
    }

    fn ask_http1(&self, visitor: Visitor, target: &str, cookie: &str) -> Answer {
        let Visitor { address, agent, host } = visitor;
        let mut client =
            connect(self.forebay.address, "localhost", self.authority.client()).unwrap();
        client.send(format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\n\
             X-Forwarded-For: {address}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
        ));
        let reply = client.reply();
        let field = |name: &str| reply.header(name).map(str::to_owned);
        Answer {
            status: reply.status,
            location: field("Location"),
            cookie: field("Set-Cookie"),
            body: reply.text().to_owned(),
        }
    }

    fn ask_http2(&self, visitor: Visitor, target: &str, cookie: &str) -> Answer {
        let Visitor { address, agent, host } = visitor;
        let server = self.forebay.address;
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--include", "--http2", "--path-as-is", "--globoff"])
            .arg("--cacert")
            .arg(self.forebay.folder.path().join("ca.pem"))
            .args(["--connect-to", &format!("::{}:{}", server.ip(), server.port())])
            .args(["--user-agent", agent, "--header", &format!("X-Forwarded-For: {address}")])
            .args(["--header", &format!("Cookie: {cookie}")])
            .arg(format!("https://{host}{target}"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| {
            panic!("{target}: {}", String::from_utf8_lossy(&output.stderr));
        });
        assert!(head.starts_with("HTTP/2 "), "{head}");
        let field = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(": "));
            let mut found =
                lines.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
            found.next_back()
        };
        Answer {
            status: head[7..10].parse().unwrap(),
            location: field("location"),
            cookie: field("set-cookie"),
            body: body.to_owned(),
        }
    }

    fn ask_http3(&self, visitor: Visitor, target: &str, cookie: &str) -> Answer {
        let Visitor { address, agent, host } = visitor;
        run(async {
            let client = Client::connect(self.forebay.address, &self.authority).await;
            let request = http::Request::builder()
                .method(Method::GET)
                .uri(format!("https://{host}{target}"))
                .header("user-agent", agent)
                .header("x-forwarded-for", address)
                .header("cookie", cookie);
            let request = request.body(()).unwrap();
            let mut exchange = client.requests.clone().send_request(request).await.unwrap();
            exchange.finish().await.unwrap();
            let reply = reply_to(&mut exchange).await;
            let field =
                |name: &str| Some(reply.head.headers().get(name)?.to_str().unwrap().to_owned());
            Answer {
                status: reply.status(),
                location: field("location"),
                cookie: field("set-cookie"),
                body: reply.text().to_owned(),
            }
        })
    }

    /// Solves the task of a visitor. Returns the target that answers it, and the cookie.
    fn pass(&self, protocol: Protocol, visitor: Visitor) -> (String, String) {
        let page = self.ask(protocol, visitor, "/", "");
        let (_, rest) = page.body.split_once("data-task=\"").unwrap();
        let task = rest.split_once('"').unwrap().0;
        let is_found = |answer: &String| Sha256::digest(answer)[0] == 0;
        let answer =
            (0..100_000_u32).map(|number| format!("{task}.{number}")).find(is_found).unwrap();
        let target = format!("/?forebay-challenge={answer}");
        let solved = self.ask(protocol, visitor, &target, "");
        assert_eq!((solved.status, solved.location.as_deref()), (303, Some("/")), "{protocol:?}");
        let cookie = solved.cookie.unwrap();
        assert!(cookie.contains("; Secure"), "{cookie}");
        (target, cookie.split(';').next().unwrap().to_owned())
    }

    fn passes(&self, protocol: Protocol, visitor: Visitor, cookie: &str) -> bool {
        let answer = self.ask(protocol, visitor, "/", cookie);
        let passes = answer.body == "wiki";
        assert!(passes || [200, 403].contains(&answer.status), "{}", answer.status);
        passes
    }
}

#[test]
fn cookies_and_answers_hold_for_one_visitor_over_every_protocol() {
    if !peer::has(&["curl"]) {
        return;
    }
    let front = Front::start("difficulty = 8");
    let all = [Protocol::Http1, Protocol::Http2, Protocol::Http3];
    let passed = all.map(|protocol| front.pass(protocol, VISITOR));
    // Whose cookie it is, and who shows it.
    let shared = [
        ("the visitor", VISITOR, true),
        ("a neighbour", Visitor { address: "192.0.2.200", ..VISITOR }, true),
        ("another network", Visitor { address: "198.51.100.7", ..VISITOR }, false),
        ("another family", Visitor { address: "2001:db8::7", ..VISITOR }, false),
        ("the address as IPv6", Visitor { address: "2002:c000:207::1", ..VISITOR }, false),
        ("another browser", Visitor { agent: "Mozilla/5.0 Chrome/140.0", ..VISITOR }, false),
        ("a program", Visitor { agent: "curl/8.0", ..VISITOR }, false),
        ("another site", Visitor { host: "other.test", ..VISITOR }, false),
    ];
    let forge = |cookie: &str| {
        let (name, value) = cookie.split_once('=').unwrap();
        let parts: Vec<_> = value.split('.').collect();
        let [time, work, tag] = parts[..] else { panic!("{cookie}") };
        let later = u64::from_str_radix(time, 16).unwrap() + 86_400;
        let mut other_tag = tag.to_owned();
        let first = if tag.starts_with('A') { "B" } else { "A" };
        other_tag.replace_range(..1, first);
        [
            String::new(),
            format!("{name}="),
            format!("{name}={later:x}.{work}.{tag}"),
            format!("{name}={time}.b32.{tag}"),
            format!("{name}={time}.{work}.{other_tag}"),
            format!("{name}={time}.{work}."),
            format!("{name}={time}.{work}.{tag}."),
            format!("other={value}"),
            format!("{name}6={value}"),
            format!("{name}={}", "x".repeat(3000)),
        ]
    };
    for protocol in all {
        for (of, (target, cookie)) in all.iter().zip(&passed) {
            for (who, visitor, passes) in shared {
                let place = format!("{who} with the cookie of {of:?} over {protocol:?}");
                assert_eq!(front.passes(protocol, visitor, cookie), passes, "{place}");
                // Who repeats the answer gets the cookie that he has, and nobody else does.
                let repeated = front.ask(protocol, visitor, target, "");
                assert_eq!(repeated.cookie.is_some(), passes, "the answer: {place}");
            }
            // Among other cookies, also twice.
            let among = format!("a=b; {cookie}; c=\"d\"");
            assert!(front.passes(protocol, VISITOR, &among), "{of:?} over {protocol:?}");
        }
        for forged in forge(&passed[0].1) {
            assert!(!front.passes(protocol, VISITOR, &forged), "{forged} over {protocol:?}");
        }
    }
    front.forebay.stop();
}

#[test]
fn cookies_end_over_every_protocol() {
    if !peer::has(&["curl"]) {
        return;
    }
    let front = Front::start("difficulty = 8, lifetime = \"1s\"");
    for protocol in [Protocol::Http1, Protocol::Http2, Protocol::Http3] {
        let (_, cookie) = front.pass(protocol, VISITOR);
        assert!(eventually(|| !front.passes(protocol, VISITOR, &cookie)), "{protocol:?}");
    }
    front.forebay.stop();
}
