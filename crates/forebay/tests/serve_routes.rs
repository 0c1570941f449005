//! `forebay serve`: which route takes a request, fixed replies, header rules and the access log.

mod support;

use std::fs;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use rustix::process::Signal;
use support::{Forebay, serve, serve_arguments, site, write_configuration};

fn respond(matcher: &str, body: &str) -> String {
    format!("[[site.route]]\n{matcher}\nrespond = \"{body}\"\n")
}

#[test]
fn the_first_route_that_matches_answers() {
    let folder = Folder::new();
    folder.write("htdocs/x/y.txt", "file");
    let routes = [
        respond("path = \"/exact\"", "exact"),
        respond("methods = [\"POST\"]", "post"),
        respond("path = \"/a/*\"\nsuffix = \".php\"", "php below a"),
        respond("suffix = [\".php\", \".phtml\"]", "php"),
        respond("paths = [\"/a/*\", \"/b\"]", "a or b"),
        "[[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs/x\"\n".into(),
        "[[site.route]]\nsuffix = \".txt\"\nfiles = \"htdocs\"\n".into(),
    ]
    .concat();
    let forebay = site(folder, &routes);
    for (target, body) in [
        ("/exact", "exact"),
        ("/exact?q", "exact"),
        ("/%65xact", "exact"),
        ("/x/../exact", "exact"),
        ("/a/x.php", "php below a"),
        ("/x.php", "php"),
        ("/x.phtml?y.html", "php"),
        ("/a/", "a or b"),
        ("/b", "a or b"),
        ("/files/y.txt", "file"),
        ("/x/y.txt", "file"),
        ("/a/%ff", "a or b"),
    ] {
        assert_eq!(forebay.get(target).text(), body, "{target}");
    }
    assert_eq!(forebay.ask("POST /x.php HTTP/1.1\r\nHost: h\r\n\r\n").text(), "post");
    for target in ["/exact/", "/ab", "/", "/EXACT", "/%ff", "/x.PHP"] {
        assert_eq!(forebay.get(target).status, 404, "{target}");
    }
    forebay.stop();
}

#[test]
fn the_site_is_chosen_by_host() {
    let site = |hosts: &str, body: &str| {
        format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n{hosts}\n[[site.route]]\nrespond = \"{body}\"\n"
        )
    };
    let configuration = [
        site("hosts = [\"example.org\", \"www.example.org\"]", "named"),
        site("hosts = \"*.example.org\"", "wild"),
        site("hosts = \"*.deep.example.org\"", "deep"),
        site("", "any"),
    ]
    .concat();
    let forebay = serve(Folder::new(), &configuration);
    for (host, body) in [
        ("example.org", "named"),
        ("EXAMPLE.org:8080", "named"),
        ("example.org.", "named"),
        ("www.example.org", "named"),
        ("a.example.org", "wild"),
        ("a.deep.example.org", "deep"),
        ("xexample.org", "any"),
        ("127.0.0.1", "any"),
        ("[::1]:80", "any"),
    ] {
        let reply = forebay.ask(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(reply.text(), body, "{host}");
    }
    let absolute = "GET http://example.org/ HTTP/1.1\r\nHost: other\r\n\r\n";
    assert_eq!(forebay.ask(absolute).text(), "named", "the target's host counts");
    assert_eq!(forebay.ask("GET / HTTP/1.0\r\n\r\n").text(), "any");
}

#[test]
fn fixed_replies_and_redirections() {
    let routes = "
        [[site.route]]
        path = \"/gone\"
        respond = { status = 410, body = \"<p>gone\", content_type = \"text/html\" }
        [[site.route]]
        path = \"/empty\"
        respond = { status = 204 }
        [[site.route]]
        path = \"/old\"
        redirect = \"https://example.org/new\"
        [[site.route]]
        path = \"/moved\"
        redirect = { to = \"/there\", status = 308 }
    ";
    let forebay = site(Folder::new(), routes);
    let mut client = forebay.connect();
    let gone = client.get("/gone");
    assert_eq!((gone.status, gone.text()), (410, "<p>gone"));
    assert_eq!(gone.header("Content-Type"), Some("text/html"));
    let empty = client.get("/empty");
    assert_eq!((empty.status, empty.header("Content-Length")), (204, None));
    let old = client.get("/old");
    assert_eq!((old.status, old.header("Location")), (302, Some("https://example.org/new")));
    let moved = client.get("/moved");
    assert_eq!((moved.status, moved.header("Location")), (308, Some("/there")));
}

#[test]
fn reply_headers_are_set_and_removed() {
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "a");
    let routes = "
        [[site.route]]
        path = \"/*\"
        files = \"htdocs\"
        expires = \"1h\"
        set_headers = { X-Frame-Options = \"DENY\", content-type = \"text/x-own\" }
        remove_headers = [\"ETag\", \"last-modified\"]
    ";
    let forebay = site(folder, routes);
    let reply = forebay.get("/a.txt");
    assert_eq!(reply.text(), "a");
    assert_eq!(reply.headers_named("Content-Type"), ["text/x-own"]);
    assert_eq!(reply.headers_named("X-Frame-Options"), ["DENY"]);
    assert_eq!((reply.header("ETag"), reply.header("Last-Modified")), (None, None));
    assert_eq!(reply.headers_named("Cache-Control"), ["max-age=3600"]);
    assert_eq!(reply.headers_named("Expires").len(), 1);
    let missing = forebay.get("/b.txt");
    assert_eq!((missing.status, missing.header("Expires")), (404, None));
    assert_eq!(missing.header("X-Frame-Options"), Some("DENY"), "errors obey the rules, too");
}

fn logged(format: &str) -> Forebay {
    let configuration = format!(
        "[log]\naccess = \"access.log\"\nformat = '{format}'\n\
         [[site]]\nlisten = \"127.0.0.1:0\"\n\
         [[site.route]]\npath = \"/quiet\"\nlog = false\nrespond = \"q\"\n\
         [[site.route]]\nrespond = \"hello\"\n"
    );
    let folder = Folder::new();
    let file = write_configuration(&folder, &configuration);
    // One thread, as each hands over its lines in its own time.
    serve_arguments(folder, &["--threads", "1", file.to_str().unwrap()])
}

fn lines(forebay: &Forebay, name: &str, count: usize) -> Vec<String> {
    let path = forebay.folder.path().join(name);
    let read = || fs::read_to_string(&path).unwrap_or_default();
    assert!(eventually(|| read().lines().count() >= count), "{}", read());
    read().lines().map(str::to_owned).collect()
}

const HOSTILE: &str = "GET /a%22b\"?x=\\\"y HTTP/1.1\r\nHost: h\r\nUser-Agent: \"x\\\" \u{e9}\t\
                       10\r\nReferer: http://r/\r\n\r\n";

#[test]
fn common_and_combined_lines() {
    let forebay = logged("common");
    forebay.get("/a?b");
    forebay.get("/quiet");
    forebay.ask("POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
    let got = lines(&forebay, "access.log", 2);
    assert!(got[0].starts_with("127.0.0.1 - - ["), "{got:?}");
    assert!(got[0].ends_with("] \"GET /a?b HTTP/1.1\" 200 5"), "{got:?}");
    assert!(got[1].ends_with("] \"POST / HTTP/1.0\" 200 5"), "{got:?}");
    assert_eq!(got.len(), 2, "{got:?}");

    let forebay = logged("combined");
    forebay.ask(HOSTILE);
    forebay.get("/");
    let got = lines(&forebay, "access.log", 2);
    let end = "\"GET /a%22b\\\"?x=\\\\\\\"y HTTP/1.1\" 200 5 \"http://r/\" \
               \"\\\"x\\\\\\\" \\xc3\\xa9\\x0910\"";
    assert!(got[0].ends_with(end), "{got:?}");
    assert!(got[1].ends_with("200 5 \"-\" \"-\""), "{got:?}");
}

#[test]
fn json_lines_are_json() {
    let forebay = logged("json");
    forebay.ask(HOSTILE);
    forebay.ask(b"GET /\xff\x80 HTTP/1.1\r\nHost: h\r\nUser-Agent: \xff\"\r\n\r\n");
    for line in lines(&forebay, "access.log", 2) {
        let value: serde_json::Value = serde_json::from_str(&line).expect("each line is JSON");
        assert_eq!((&value["status"], &value["method"]), (&200.into(), &"GET".into()), "{line}");
        assert_eq!((&value["body_bytes"], &value["host"]), (&5.into(), &"h".into()), "{line}");
        assert!(value["duration_us"].is_u64(), "{line}");
    }
}

#[test]
fn a_pattern_is_filled_in() {
    let forebay = logged("%m|%U|%q|%>s|%b|%{X-Id}i|%H|%v|100%%|%p");
    forebay.ask("GET /a%20b?c=d HTTP/1.1\r\nHost: name:1\r\nX-Id: 7\r\n\r\n");
    let got = lines(&forebay, "access.log", 1);
    let port = forebay.address.port();
    assert_eq!(got[0], format!("GET|/a b|?c=d|200|5|7|HTTP/1.1|name:1|100%|{port}"));
}

#[test]
fn refused_requests_are_logged() {
    let forebay = logged("%>s \"%r\"");
    forebay.ask("GET / HTTP/1.1\r\nBad Header: x\r\n\r\n");
    forebay.ask("nonsense\"\r\n\r\n");
    forebay.get("/%zz");
    let got = lines(&forebay, "access.log", 3);
    assert!(got[0].starts_with("400 \"GET / HTTP/1.1"), "{got:?}");
    assert!(got[1].starts_with("400 \""), "{got:?}");
    assert!(got[2].starts_with("400 \"GET /%zz HTTP/1.1"), "{got:?}");
    assert_eq!(got.len(), 3, "{got:?}");
}

#[test]
fn a_log_is_opened_anew_after_rotation() {
    let mut forebay = logged("%U");
    forebay.get("/first");
    lines(&forebay, "access.log", 1);
    let folder = forebay.folder.path().to_owned();
    fs::rename(folder.join("access.log"), folder.join("access.log.1")).unwrap();
    forebay.signal(Signal::USR1);
    assert!(eventually(|| folder.join("access.log").exists()));
    forebay.get("/second");
    assert_eq!(lines(&forebay, "access.log", 1), ["/second"]);
    assert_eq!(lines(&forebay, "access.log.1", 1), ["/first"]);
    forebay.get("/last");
    let (_, folder) = forebay.stop();
    let text = fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert_eq!(text, "/second\n/last\n", "what was logged last is written before the end");
}
