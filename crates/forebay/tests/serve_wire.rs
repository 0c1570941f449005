//! Messages between a client and an HTTP backend other than requests and replies, and rare parts of
//! HTTP/1.1.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use forebay_testkit::stream::Address;
use support::{Forebay, site};

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\
    Connection: X-Hop\r\nX-Hop: 1\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn route_to(backend: &ScriptedBackend, keys: &str) -> String {
    format!("[[site.route]]\nproxy = \"http://127.0.0.1:{}\"\n{keys}", backend.port())
}

/// A backend that answers this many connections with these bytes.
fn answering(bytes: impl AsRef<[u8]>, connections: usize) -> ScriptedBackend {
    ScriptedBackend::tcp(vec![vec![ScriptStep::ReadHead, ScriptStep::send(bytes)]; connections])
}

/// Returns the reply of `backend` through Forebay, and through HAProxy if it is installed.
fn beside_haproxy(backend: &ScriptedBackend, request: &str) -> (Reply, Option<Reply>) {
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
fn a_client_that_must_upgrade_is_told_to_what() {
    let required = "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\n\
        Connection: Upgrade\r\nContent-Length: 0\r\n\r\n";
    let backend = answering(required, 2);
    let (ours, theirs) = beside_haproxy(&backend, "GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    for reply in [Some(&ours), theirs.as_ref()].into_iter().flatten() {
        assert_eq!((reply.status, reply.header("Upgrade")), (426, Some("websocket")));
    }
    assert_eq!(ours.header("Connection"), Some("upgrade"));
    // The field also passes from a script, but only with status 426.
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

fn with_file(keys: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("files/a", "0123456789");
    let files = format!("files = {{ root = \"files\"{keys} }}");
    site(folder, &format!("[[site.route]]\npath = \"/*\"\n{files}\n"))
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
