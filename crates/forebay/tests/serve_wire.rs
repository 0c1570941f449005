//! What passes `forebay serve` between a client and an HTTP backend beside requests and replies, and
//! what of HTTP/1.1 few clients use.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::scripted::{Backend, Step};
use forebay_testkit::stream::Address;
use support::echo::Echo;
use support::{Forebay, site};

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\
    Connection: X-Hop\r\nX-Hop: 1\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn route_to(backend: &Backend, keys: &str) -> String {
    format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n{keys}", backend.port())
}

/// A backend that answers each of so many connections with these bytes.
fn answering(bytes: impl AsRef<[u8]>, connections: usize) -> Backend {
    Backend::tcp(vec![vec![Step::ReadHead, Step::send(bytes)]; connections])
}

/// The reply of `backend` by way of Forebay, and by way of HAProxy where that is installed.
fn beside_haproxy(backend: &Backend, request: &str) -> (Reply, Option<Reply>) {
    let forebay = site(Folder::new(), &route_to(backend, ""));
    let ours = forebay.ask(request);
    forebay.stop();
    let haproxy = peer::haproxy(&format!(
        "listen l\n bind 127.0.0.1:{{port}}\n server s 127.0.0.1:{}",
        backend.port()
    ));
    let theirs = haproxy.map(|haproxy| {
        let mut client = Client::connect(haproxy.address().clone());
        client.send(request);
        client.reply()
    });
    (ours, theirs)
}

#[test]
fn interim_replies_of_a_backend_pass() {
    let backend = answering([HINTS, OK].concat(), 2);
    let (ours, theirs) = beside_haproxy(&backend, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let link = |reply: &Reply| {
        let interim: Vec<_> = reply.interim.iter().map(|(status, _)| *status).collect();
        assert_eq!((reply.text(), &interim[..]), ("ok", &[103, 102][..]));
        let (_, headers) = &reply.interim[0];
        headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("Link")).cloned()
    };
    assert_eq!(link(&ours).unwrap().1, "</a.css>; rel=preload");
    assert_eq!(ours.interim[0].1.len(), 1, "{:?}: hop-by-hop fields stay here", ours.interim);
    if let Some(theirs) = theirs {
        assert_eq!(link(&ours).unwrap().1, link(&theirs).unwrap().1);
    }
}

#[test]
fn interim_replies_go_to_nobody_who_does_not_know_them() {
    let backend = answering([HINTS, OK].concat(), 1);
    let forebay = site(Folder::new(), &route_to(&backend, ""));
    let reply = forebay.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((reply.text(), reply.interim.len()), ("ok", 0));
}

#[test]
fn a_route_removes_fields_from_interim_replies_too() {
    let backend = answering([HINTS, OK].concat(), 1);
    let keys = "remove_headers = [\"link\"]\n";
    let forebay = site(Folder::new(), &route_to(&backend, keys));
    assert_eq!(forebay.get("/").interim, [(103, vec![]), (102, vec![])]);
}

#[test]
fn a_backend_that_ends_behind_an_interim_reply_is_a_bad_gateway() {
    for rest in ["", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "nonsense\r\n\r\n"] {
        let backend = answering([HINTS, rest].concat(), 1);
        let forebay = site(Folder::new(), &route_to(&backend, ""));
        let reply = forebay.get("/");
        assert_eq!((reply.status, reply.interim.len()), (502, 2), "{rest:?}");
    }
}

#[test]
fn interim_replies_are_counted() {
    for (count, status) in [(256, 200), (257, 502)] {
        let backend = answering(["HTTP/1.1 102 P\r\n\r\n".repeat(count).as_str(), OK].concat(), 1);
        let forebay = site(Folder::new(), &route_to(&backend, ""));
        let reply = forebay.get("/");
        assert_eq!((reply.status, reply.interim.len()), (status, 256), "{count}");
    }
}

#[test]
fn a_client_that_must_upgrade_is_told_to_what() {
    let required = "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nContent-Length: 0\r\n\r\n";
    let backend = answering(required, 2);
    let (ours, theirs) = beside_haproxy(&backend, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    for reply in [Some(&ours), theirs.as_ref()].into_iter().flatten() {
        assert_eq!((reply.status, reply.header("Upgrade")), (426, Some("websocket")));
    }
    assert_eq!(ours.header("Connection"), Some("upgrade"));
    // A script's reply, too; and no other reply of either.
    let folder = Folder::new();
    for status in [426, 200] {
        let script = format!("#!/bin/sh\nprintf 'Status: {status}\\nUpgrade: websocket\\n\\n'\n");
        folder.script(&format!("cgi/{status}"), &script);
    }
    let forebay = site(folder, "[[site.route]]\npath = \"/*\"\ncgi = \"cgi\"\n");
    assert_eq!(forebay.get("/426").header("Upgrade"), Some("websocket"));
    assert_eq!(forebay.get("/426").header("Connection"), Some("upgrade"));
    assert_eq!(forebay.get("/200").header("Upgrade"), None);
}

const WITH_TRAILERS: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
    2\r\nok\r\n0\r\nX-Sum: 1\r\nSet-Cookie: a=b\r\nWWW-Authenticate: Basic\r\n\
    X-Accel-Redirect: /x\r\nContent-Type: text/html\r\nX-Gone: 1\r\n\r\n";
const WANTS_TRAILERS: &str =
    "GET / HTTP/1.1\r\nHost: h\r\nTE: gzip, Trailers\r\nConnection: TE\r\n\r\n";

#[test]
fn trailers_of_a_backend_pass_to_those_who_take_them() {
    let backend = answering(WITH_TRAILERS, 2);
    let (ours, theirs) = beside_haproxy(&backend, WANTS_TRAILERS);
    assert_eq!((ours.text(), ours.header("Trailer")), ("ok", Some("X-Sum")));
    let sum = |reply: &Reply| {
        reply.trailers.iter().find(|(name, _)| name.eq_ignore_ascii_case("X-Sum")).cloned()
    };
    assert_eq!(sum(&ours).unwrap().1, "1");
    if let Some(theirs) = theirs {
        assert_eq!(sum(&theirs).unwrap().1, "1");
    }
    let names: Vec<_> = ours.trailers.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, ["X-Sum", "X-Gone"], "what frames, routes or authenticates is dropped");
    let received = backend.finish().remove(0).received;
    let received = String::from_utf8_lossy(&received).into_owned();
    assert!(received.contains("\r\nTE: trailers\r\nConnection: TE\r\n"), "{received}");
    assert!(!received.to_lowercase().contains("gzip"), "{received}");
}

#[test]
fn trailers_stay_where_nobody_takes_them() {
    for (version, te) in [("1.1", ""), ("1.1", "TE: gzip\r\n"), ("1.0", "TE: trailers\r\n")] {
        let backend = answering(WITH_TRAILERS, 1);
        let forebay = site(Folder::new(), &route_to(&backend, ""));
        let reply = forebay.ask(format!("GET / HTTP/{version}\r\nHost: h\r\n{te}\r\n"));
        assert_eq!((reply.text(), reply.header("Trailer")), ("ok", None));
        assert_eq!(reply.trailers, []);
        let received = backend.finish().remove(0).received;
        assert!(!String::from_utf8_lossy(&received).contains("TE:"));
    }
}

#[test]
fn a_route_removes_fields_from_trailers_too() {
    let backend = answering(WITH_TRAILERS, 1);
    let keys = "remove_headers = [\"x-gone\"]\n";
    let forebay = site(Folder::new(), &route_to(&backend, keys));
    let names: Vec<_> =
        forebay.ask(WANTS_TRAILERS).trailers.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["X-Sum"]);
}

#[test]
fn trailers_that_break_a_rule_cut_the_reply_off() {
    for trailer in ["Content-Length: 3\r\n", "a b\r\n", "A: b\r\n c\r\n", "A: \0\r\n"] {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let backend = Backend::tcp([vec![
            Step::ReadHead,
            Step::send(format!("{head}2\r\nok\r\n")),
            Step::send(format!("0\r\n{trailer}\r\n")),
        ]]);
        let forebay = site(Folder::new(), &route_to(&backend, ""));
        let mut client = forebay.connect();
        client.send(WANTS_TRAILERS);
        // A 502 where none of the reply had been written when the trailer came.
        let reply = client.try_reply();
        assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status == 502), "{trailer:?}");
    }
}

#[test]
fn a_target_without_path_has_the_path_slash() {
    let echo = Echo::start();
    let forebay = site(Folder::new(), &echo.route());
    for (target, path) in [("http://a?x=1", "/?x=1"), ("http://a:80?", "/?"), ("http://a", "/")] {
        let mut client = forebay.connect();
        // Pipelined, as the request behind must not be taken for a part of this one.
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(2));
        client.send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"));
        for method in ["GET", "GET", "POST"] {
            let reply = client.reply();
            let line = format!("{method} {path} HTTP/1.1\r\nHost: a");
            assert!(reply.text().starts_with(&line), "{target}: {}", reply.text());
            assert_eq!(reply.text().ends_with("hi"), method == "POST");
        }
    }
}

#[test]
fn a_higher_minor_version_is_answered_as_1_1() {
    let forebay = site(Folder::new(), "[[site.route]]\nrespond = \"hello\"\n");
    let mut client = forebay.connect();
    for minor in [2, 9, 1] {
        client.send(format!("GET / HTTP/1.{minor}\r\nHost: h\r\n\r\n"));
        let reply = client.reply();
        assert_eq!((&reply.version[..], reply.status, reply.text()), ("HTTP/1.1", 200, "hello"));
    }
    assert_eq!(forebay.ask("GET / HTTP/2.0\r\nHost: h\r\n\r\n").status, 505);
}

fn with_file(keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("files/a", "0123456789");
    let files = format!("files = {{ root = \"files\"{keys} }}");
    site(folder, &format!("[[site.route]]\npath = \"/*\"\n{files}\n"))
}

#[test]
fn several_lines_of_tags_are_one_list() {
    let forebay = with_file("");
    let etag = forebay.get("/a").header("ETag").unwrap().to_owned();
    let ask = |fields: &str| {
        forebay.ask(format!("GET /a HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n")).status
    };
    for (name, listed, other) in [("If-None-Match", 304, 200), ("If-Match", 200, 412)] {
        assert_eq!(ask(&format!("{name}: \"x\"\r\n{name}: {etag}")), listed);
        assert_eq!(ask(&format!("{name}: {etag}\r\n{name}: \"x\"")), listed);
        assert_eq!(ask(&format!("{name}: \"x\"\r\n{name}: \"y\"")), other);
    }
}

#[test]
fn as_many_ranges_are_sent_as_the_route_allows() {
    let ask = |address: Address, count: usize| {
        let ranges: Vec<_> = (0..count).map(|at| format!("{}-{}", at * 2, at * 2)).collect();
        let mut client = Client::connect(address);
        let ranges = ranges.join(",");
        client.send(format!("GET /a HTTP/1.1\r\nHost: h\r\nRange: bytes={ranges}\r\n\r\n"));
        client.reply()
    };
    for most in [1, 2, 5] {
        let ours = with_file(&format!(", max_ranges = {most}"));
        let conf = format!(
            "server {{ listen 127.0.0.1:{{port}}; max_ranges {most}; root {}/files; }}",
            ours.folder.path().display()
        );
        let nginx = peer::nginx(&conf);
        for count in 1..=5 {
            let status = ask(ours.address.into(), count).status;
            assert_eq!(status, if count <= most { 206 } else { 200 }, "{count} of {most}");
            if let Some(nginx) = &nginx {
                assert_eq!(ask(nginx.address().clone(), count).status, status, "{count} of {most}");
            }
        }
    }
    let none = with_file(", max_ranges = 0");
    let reply = ask(none.address.into(), 1);
    assert_eq!((reply.status, reply.header("Accept-Ranges")), (200, None));
    assert_eq!(with_file("").get("/a").header("Accept-Ranges"), Some("bytes"));
}
