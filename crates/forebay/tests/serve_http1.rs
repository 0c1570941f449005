//! The HTTP/1.1 front of `forebay serve`: framing, keep-alive, limits and time limits.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use forebay_testkit::corpus::{self, Reaction};
use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::echo::{Echo, body_of};
use support::{Forebay, chunked, pattern, serve, site};

const OK: &str = "[[site.route]]\nrespond = \"hello\"\n";

fn with_server(keys: &str, routes: &str) -> Forebay {
    serve(
        Folder::new(),
        &format!(
            "[log]\naccess = \"access.log\"\nformat = \"%>s %U %B\"\n[server]\n{keys}\n\
             [[site]]\nlisten = \"127.0.0.1:0\"\n{routes}"
        ),
    )
}

fn wait_for_log(forebay: &Forebay, line: &str) {
    let path = forebay.folder.path().join("access.log");
    let log = || std::fs::read_to_string(&path).unwrap_or_default();
    assert!(eventually(|| log().lines().any(|l| l.starts_with(line))), "{line}: {}", log());
}

#[test]
fn the_corpus_is_answered_as_it_asks() {
    let forebay = with_server("timeouts = { head = \"500ms\", body_idle = \"500ms\" }", OK);
    let mut wrong = Vec::new();
    for case in corpus::http11probe() {
        let outcome = probe(&forebay, &case.raw);
        if !case.accepts(outcome) || is_lenient(&case.id, outcome) {
            wrong.push(format!("{}: expected {}, got {outcome:?}", case.id, case.expected));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    forebay.stop();
}

#[test]
fn the_corpus_reaches_a_backend_only_where_it_is_right() {
    let echo = Echo::start();
    let timeouts = "timeouts = { head = \"500ms\", body_idle = \"500ms\" }";
    let forebay = with_server(timeouts, &echo.route());
    let mut wrong = Vec::new();
    for case in corpus::http11probe() {
        let before = echo.whole();
        let outcome = probe(&forebay, &case.raw);
        let passed = echo.whole() - before;
        let is_right = match outcome {
            Reaction::Status { code: 200, .. } => passed == 1 || case.raw.starts_with(b"OPTIONS *"),
            _ => passed == 0,
        };
        if !case.accepts(outcome) || is_lenient(&case.id, outcome) || !is_right {
            let expected = &case.expected;
            wrong.push(format!(
                "{}: expected {expected}, got {outcome:?}, {passed} passed",
                case.id
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    forebay.stop();
}

/// The corpus allows a bare line feed, and bytes above 127 in a target, with a warning. Forebay
/// refuses them.
fn is_lenient(id: &str, outcome: Reaction) -> bool {
    (id.contains("BARE-LF") || id == "MAL-URL-OVERLONG-UTF8")
        && !matches!(outcome, Reaction::Status { code: 400, .. })
}

fn probe(forebay: &Forebay, raw: &[u8]) -> Reaction {
    let mut client = forebay.connect();
    if client.try_send(raw).is_err() {
        return Reaction::Closed;
    }
    match client.try_reply() {
        Ok(reply) => {
            let closed =
                reply.header("Connection").is_some_and(|v| v.eq_ignore_ascii_case("close"));
            if closed {
                assert!(client.is_closed(), "nothing follows a reply that closes");
            }
            Reaction::Status { code: reply.status, closed }
        }
        Err(_) => Reaction::Closed,
    }
}

#[test]
fn a_connection_serves_until_somebody_closes_it() {
    let forebay = site(Folder::new(), OK);
    let mut client = forebay.connect();
    for _ in 0..20 {
        let reply = client.get("/");
        assert_eq!((reply.text(), reply.header("Connection")), ("hello", None));
    }
    client.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: foo, Close\r\n\r\n");
    let last = client.reply();
    assert_eq!((last.text(), last.header("Connection")), ("hello", Some("close")));
    assert!(client.is_closed());
}

#[test]
fn a_hundred_pipelined_requests_are_answered_in_order() {
    let echo = Echo::start();
    let routes =
        format!("[[site.route]]\npath = \"/fixed\"\nrespond = \"fixed\"\n{}", echo.route());
    let forebay = site(Folder::new(), &routes);
    let mut requests = Vec::new();
    for n in 0..100 {
        let body = pattern(n * 13);
        let request = match n % 4 {
            0 => format!("GET /{n} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes(),
            1 => b"GET /fixed HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(),
            2 => {
                let length = body.len();
                let head =
                    format!("POST /{n} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
                [head.as_bytes(), &body].concat()
            }
            _ => {
                let head =
                    format!("POST /{n} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
                [head.as_bytes(), &chunked(&[&body[..n], &body[n..]])].concat()
            }
        };
        requests.extend(request);
    }
    let mut client = forebay.connect();
    client.send(&requests);
    for n in 0..100 {
        let reply = client.reply();
        assert_eq!(reply.status, 200, "{n}");
        match n % 4 {
            1 => assert_eq!(reply.text(), "fixed"),
            kind => {
                let line = format!("{} /{n} HTTP/1.1\r\n", if kind == 0 { "GET" } else { "POST" });
                assert!(reply.body.starts_with(line.as_bytes()), "{n}");
                let body = if kind == 0 { Vec::new() } else { pattern(n * 13) };
                assert_eq!(body_of(&reply.body), body, "{n}");
            }
        }
    }
}

#[test]
fn requests_may_come_byte_by_byte() {
    let echo = Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    let body = pattern(600);
    let head = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let request = [head.as_bytes(), &chunked(&[&body[..1], &body[1..400], &body[400..]])].concat();
    let mut client = forebay.connect();
    for _ in 0..2 {
        for byte in &request {
            client.send([*byte]);
        }
        assert_eq!(body_of(&client.reply().body), body);
    }
}

#[test]
fn continue_is_sent_when_the_body_is_wanted() {
    let echo = Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    let mut client = forebay.connect();
    for _ in 0..2 {
        client.send(
            "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        );
        assert_eq!(client.interim_reply().0, 100);
        client.send("hello");
        let reply = client.reply();
        assert_eq!((reply.status, body_of(&reply.body)), (200, b"hello".to_vec()));
        assert!(!reply.text().to_ascii_lowercase().contains("expect"), "we answered it");
    }
    // A client that does not wait gets no interim reply, or one that it can skip.
    client
        .send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(body_of(&client.reply().body), b"ok");
    client
        .send("POST / HTTP/1.0\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok");
    let reply = client.reply();
    assert!(reply.interim.is_empty(), "HTTP/1.0 has no interim replies");
    assert_eq!(body_of(&reply.body), b"ok");
}

#[test]
fn a_body_of_get_is_refused_unless_allowed() {
    let echo = Echo::start();
    let get = "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    let head =
        "HEAD / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let refusing = site(Folder::new(), &echo.route());
    for (request, is_head) in [(get, false), (head, true)] {
        let mut client = refusing.connect();
        client.send(request);
        let reply = if is_head { client.reply_to_head() } else { client.reply() };
        assert_eq!((reply.status, reply.header("Connection")), (400, Some("close")));
        assert!(client.is_closed());
    }
    assert_eq!(echo.whole(), 0);

    let allowing = with_server("limits = { get_body = true }", &echo.route());
    let mut client = allowing.connect();
    client.send(head);
    assert_eq!(client.reply_to_head().status, 200);
    client.send(get);
    assert_eq!(client.reply().status, 200);
    assert_eq!(echo.whole(), 2);
}

#[test]
fn a_body_that_is_too_large_is_refused_without_reading() {
    let echo = Echo::start();
    let routes = format!("[[site.route]]\nmax_body = 100\nproxy = \"{}\"\n", echo.url());
    let forebay = site(Folder::new(), &routes);
    let mut client = forebay.connect();
    client
        .send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, reply.interim.len()), (413, 0));
    assert_eq!(reply.header("Connection"), Some("close"));
    client.finish_sending();
    assert!(client.is_closed());

    let mut client = forebay.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
    let _the_server_may_have_closed = client.try_send(&pattern(1_000_000));
    let reply = client.reply();
    assert_eq!(reply.status, 413);
    assert_eq!(echo.connections(), 0, "the backend was not asked");

    let mut client = forebay.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(chunked(&[&pattern(60), &pattern(60)]));
    assert_eq!(client.reply().status, 413);
    assert!(client.is_closed());
    assert_eq!(echo.whole(), 0);

    let request = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n".to_owned();
    assert_eq!(forebay.ask(request + &"x".repeat(100)).status, 200);
}

#[test]
fn heads_have_limits() {
    let limits = "limits = { head_size = \"4KiB\", fields = 10, target = 1000 }";
    let forebay = with_server(limits, OK);
    let ask = |target: usize, fields: &str| {
        let target = "x".repeat(target - 1);
        let reply = forebay.ask(format!("GET /{target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        (reply.status, reply.header("Connection").map(str::to_owned))
    };
    let close = Some("close".to_owned());
    assert_eq!(ask(1000, "").0, 200);
    assert_eq!(ask(1001, ""), (414, close.clone()));
    assert_eq!(ask(100_000, ""), (414, close.clone()));
    assert_eq!(ask(1, &"A: b\r\n".repeat(9)).0, 200);
    assert_eq!(ask(1, &"A: b\r\n".repeat(10)), (431, close.clone()));
    assert_eq!(ask(1, &format!("A: {}\r\n", "b".repeat(4000))).0, 200);
    assert_eq!(ask(1, &format!("A: {}\r\n", "b".repeat(4096))), (431, close.clone()));
    assert_eq!(ask(1, &format!("A: {}\r\n", "b".repeat(1_000_000))), (431, close));
}

#[test]
fn at_the_limit_the_connection_that_is_idle_for_longest_is_closed_for_a_new_one() {
    let forebay = with_server("limits = { connections = 2 }", OK);
    let mut first = forebay.connect();
    let mut second = forebay.connect();
    assert_eq!(first.get("/").status, 200);
    // A reply arrives before the server's thread notes that the connection is idle. Each request of
    // the second connection gives the thread of the first time to do so.
    for _ in 0..50 {
        assert_eq!(second.get("/").status, 200);
    }
    assert_eq!(forebay.connect().get("/").status, 200);
    assert!(first.is_closed());
    assert_eq!(second.get("/").status, 200);
}

#[test]
fn connections_of_one_address_have_a_limit() {
    let forebay = with_server("limits = { connections_per_address = 2 }", OK);
    let mut first = forebay.connect();
    let mut second = forebay.connect();
    assert_eq!((first.get("/").status, second.get("/").status), (200, 200));
    assert!(forebay.try_get("/").is_err());
    drop(second);
    let is_served = || forebay.try_get("/").is_ok_and(|reply| reply.status == 200);
    assert!(eventually(is_served), "a place is free again");
    assert_eq!(first.get("/").status, 200);
}

#[test]
fn a_client_that_does_not_read_is_given_up() {
    let folder = Folder::new();
    folder.write("htdocs/large", pattern(20_000_000));
    let configuration = "[log]\naccess = \"access.log\"\nformat = \"%>s %U %B\"\n\
        [server]\ntimeouts = { write = \"300ms\" }\n\
        [[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\nfiles = \"htdocs\"\n";
    let forebay = serve(folder, configuration);
    let mut client = forebay.connect();
    client.send("GET /large HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_for_log(&forebay, "200 /large");
    assert!(client.try_reply().is_err(), "the reply is cut");
    assert_eq!(forebay.get("/large").body.len(), 20_000_000, "others are served");
    forebay.stop();
}

#[test]
fn clients_that_go_away_harm_nobody() {
    let echo = Echo::start();
    let forebay = with_server("", &echo.route());
    let whole =
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for cut in 0..whole.len() {
        let mut stream = TcpStream::connect(forebay.address).unwrap();
        stream.write_all(&whole[..cut]).unwrap();
        if cut % 2 == 0 {
            stream.shutdown(Shutdown::Write).unwrap();
            let _answer_or_not = stream.read_to_end(&mut Vec::new());
        }
    }
    assert_eq!(forebay.get("/").status, 200);
    assert_eq!(echo.whole(), 1, "no cut request was taken for a whole one");
    let (exit, _) = forebay.stop();
    assert!(!exit.output.contains("panicked"), "{}", exit.output);
}

/// No site can have such a name, and applications use hosts as file names.
#[test]
fn hosts_with_an_empty_name_or_label_are_refused() {
    let forebay = with_server("", OK);
    for host in ["", ".", "..", "../../etc", "a..b", ".a", ":80"] {
        let reply = forebay.ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(reply.status, 400, "{host}");
    }
    for host in ["a.", "a.b:80", "xn--a_b", "[::1]"] {
        let reply = forebay.ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(reply.status, 200, "{host}");
    }
    assert_eq!(forebay.ask("GET / HTTP/1.0\r\n\r\n").status, 200);
    forebay.stop();
}
