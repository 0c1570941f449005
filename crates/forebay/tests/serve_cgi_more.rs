//! `forebay serve` with scripts: NPH, internal redirects, limits on output, and FastCGI
//! applications that send output before they read.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::scripted::{ScriptStep, ScriptedBackend};
use support::{Forebay, serve, site};

fn cgi(scripts: &[(&str, &str)], routes: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "a file");
    for (name, body) in scripts {
        folder.script(&format!("cgi/{name}"), format!("#!/bin/sh\n{body}\n"));
    }
    let files = "[[site.route]]\npath = \"/files/*\"\nfiles = \"htdocs\"\n";
    site(folder, &format!("{files}{routes}"))
}

const ROUTE: &str = "[[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n";

#[test]
fn nph_scripts_speak_http_themselves() {
    let scripts = [
        (
            "nph-close",
            "printf 'HTTP/1.0 203 Mine\\nX-A: b\\nConnection: keep-alive\\n\\nuntil the end'",
        ),
        (
            "nph-length",
            "printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\n\\r\\nabcHTTP/1.1 200 OK'",
        ),
        (
            "nph-chunks",
            "printf 'HTTP/1.1 201 Made\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'
            printf '3\\r\\nabc\\r\\n'; sleep 0.05; printf '2\\r\\nde\\r\\n0\\r\\n\\r\\n'",
        ),
        ("nph-none", "printf 'HTTP/1.1 204 No Content\\r\\n\\r\\nrubbish'"),
        ("nph-interim", "printf 'HTTP/1.1 103 Early Hints\\nA: b\\n\\nHTTP/1.1 200 OK\\n\\nlate'"),
    ];
    let forebay = cgi(&scripts, ROUTE);
    for (name, status, body) in [
        ("close", 203, "until the end"),
        ("length", 200, "abc"),
        ("chunks", 201, "abcde"),
        ("none", 204, ""),
        ("interim", 200, "late"),
    ] {
        let mut client = forebay.connect();
        client.send(format!("GET /cgi/nph-{name} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let reply = client.reply();
        assert_eq!((reply.status, reply.text()), (status, body), "{name}");
        assert_eq!(reply.interim.len(), usize::from(name == "interim"), "{name}");
        assert_eq!(reply.headers_named("Connection"), ["close"], "{name}");
        assert!(client.is_closed(), "{name}");
    }
    let reply = forebay.get("/cgi/nph-close");
    assert_eq!(reply.header("X-A"), Some("b"));
    forebay.stop();
}

#[test]
fn nph_output_may_come_byte_by_byte() {
    let whole = [
        ("length", "HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\n\\r\\nabc", "abc"),
        ("bare", "HTTP/1.0 200 OK\\nX: y\\n\\nabc\\n\\n", "abc\n\n"),
        (
            "chunks",
            "HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n\
            a;x=y\\r\\n0123456789\\r\\n1\\r\\n!\\r\\n0\\r\\nT: r\\r\\n\\r\\n",
            "0123456789!",
        ),
    ];
    let folder = Folder::new();
    for (name, output, _) in whole {
        let script = format!(
            "#!/usr/bin/perl\n$| = 1; for (split //, \"{output}\") {{ print; select undef, undef, undef, 0.0005 }}\n"
        );
        folder.script(&format!("cgi/nph-{name}"), script);
    }
    let forebay = site(folder, ROUTE);
    for (name, _, body) in whole {
        let reply = forebay.get(&format!("/cgi/nph-{name}"));
        assert_eq!((reply.status, reply.text()), (200, body), "{name}");
    }
}

#[test]
fn nph_output_that_is_no_http_is_a_502() {
    let scripts = [
        ("nph-plain", "echo Content-Type: text/plain; echo; echo x"),
        ("nph-empty", ":"),
        ("nph-switch", "printf 'HTTP/1.1 101 Switching\\r\\n\\r\\n'"),
        (
            "nph-both",
            "printf 'HTTP/1.1 200 OK\\nContent-Length: 1\\nTransfer-Encoding: chunked\\n\\nx'",
        ),
        ("nph-short", "printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\nabc'"),
    ];
    let forebay = cgi(&scripts, ROUTE);
    for name in ["plain", "empty", "switch", "both"] {
        assert_eq!(forebay.get(&format!("/cgi/nph-{name}")).status, 502, "{name}");
    }
    let mut client = forebay.connect();
    client.send("GET /cgi/nph-short HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(client.try_reply().is_err() || client.is_closed(), "never taken for a whole reply");
    forebay.stop();
}

#[test]
fn a_local_location_is_answered_within_the_site() {
    let scripts = [
        ("to-file", "echo 'Location: /files/a.txt?x#y'; echo"),
        ("to-script", "cat >/dev/null; echo 'Location: /cgi/show/more?q=%41'; echo; echo unused"),
        (
            "show",
            "echo Content-Type: text/plain; echo; cat
            echo \"$REQUEST_METHOD $PATH_INFO $QUERY_STRING [$CONTENT_LENGTH$CONTENT_TYPE]\"",
        ),
        ("abroad", "echo 'Location: http://example.org/x'; echo"),
        ("other-host", "echo 'Location: //example.org/x'; echo"),
        ("with-status", "echo 'Status: 303'; echo 'Location: /files/a.txt'; echo"),
    ];
    let mut forebay = cgi(&scripts, ROUTE);
    let mut client = forebay.connect();
    let file = client.get("/cgi/to-file");
    assert_eq!((file.status, file.text(), file.header("Location")), (200, "a file", None));
    client.send(
        "POST /cgi/to-script HTTP/1.1\r\nHost: h\r\nContent-Type: a/b\r\nContent-Length: 3\r\n\r\nabc\
         GET /files/a.txt HTTP/1.1\r\nHost: h\r\n\r\n",
    );
    assert_eq!(client.reply().text(), "GET /more q=%41 []\n");
    assert_eq!(client.reply().text(), "a file", "what was pipelined behind it is served");
    client.send(
        "GET /cgi/to-file HTTP/1.1\r\nHost: h\r\n\r\nGET /cgi/show HTTP/1.1\r\nHost: h\r\n\r\n",
    );
    assert_eq!(client.reply().text(), "a file");
    assert_eq!(client.reply().text(), "GET   []\n");
    for (name, status, location) in [
        ("abroad", 302, "http://example.org/x"),
        ("other-host", 302, "//example.org/x"),
        ("with-status", 303, "/files/a.txt"),
    ] {
        let reply = client.get(&format!("/cgi/{name}"));
        assert_eq!((reply.status, reply.header("Location")), (status, Some(location)), "{name}");
    }
    client.send("HEAD /cgi/to-file HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().header("Content-Length"), Some("6"));
    assert_eq!(client.get("/files/a.txt").text(), "a file");
    forebay.wait_for_output("serving");
}

#[test]
fn internal_redirects_end() {
    let scripts = [
        ("loop", "echo \"Location: /cgi/loop?$QUERY_STRING.\"; echo"),
        ("space", "echo 'Location: /files/a.txt HTTP/1.1'; echo"),
        ("above", "echo 'Location: /../a'; echo"),
        ("nowhere", "echo 'Location: /nowhere'; echo"),
    ];
    let mut forebay = cgi(&scripts, ROUTE);
    let mut client = forebay.connect();
    for (name, status) in [("loop", 500), ("space", 404), ("above", 502), ("nowhere", 404)] {
        assert_eq!(client.get(&format!("/cgi/{name}")).status, status, "{name}");
    }
    assert_eq!(client.get("/files/a.txt").text(), "a file");
    forebay.wait_for_output("more than 10 internal redirects");
}

#[test]
fn output_beyond_the_limit_is_cut_off_and_told() {
    let scripts = [
        ("small", "printf 'Content-Type: a/b\\n\\n12345'"),
        ("large", "printf 'Content-Type: a/b\\n\\n%3000d' 1"),
        ("endless", "printf 'Content-Type: a/b\\n\\nstart'; sleep 0.05; exec cat /dev/zero"),
        ("nph-large", "printf 'HTTP/1.1 200 OK\\n\\n'; sleep 0.05; exec cat /dev/zero"),
    ];
    let route =
        "[[site.route]]\npath = \"/cgi/*\"\ncgi = { dir = \"cgi\", max_output = \"2KiB\" }\n";
    let mut forebay = cgi(&scripts, route);
    assert_eq!(forebay.get("/cgi/small").text(), "12345");
    assert_eq!(forebay.get("/cgi/large").status, 502);
    for name in ["endless", "nph-large"] {
        let mut client = forebay.connect();
        client.send(format!("GET /cgi/{name} HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert!(client.try_reply().is_err(), "{name}: a reply that was cut is not whole");
    }
    forebay.wait_for_output("more than 2048 bytes, the max_output");
    forebay.stop();
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut record = vec![1, kind, 0, 1];
    record.extend_from_slice(&(content.len() as u16).to_be_bytes());
    record.extend_from_slice(&[0, 0]);
    record.extend_from_slice(content);
    record
}

/// Returns STDOUT records with this content, their end, and END_REQUEST.
fn fastcgi_reply(content: &[u8]) -> Vec<u8> {
    let pieces = content.chunks(60_000).flat_map(|piece| record(6, piece));
    pieces.chain(record(6, b"")).chain(record(3, &[0; 8])).collect()
}

fn fastcgi(backend: &ScriptedBackend, more: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("htdocs/x.php", "");
    folder.write("htdocs/a.txt", "a file");
    let routes = format!(
        "[[site.route]]\nsuffix = \".php\"\nsendfile_root = \"htdocs\"\n\
         fastcgi = {{ to = \"127.0.0.1:{}\", root = \"htdocs\"{more} }}\n\
         [[site.route]]\nfiles = \"htdocs\"\n",
        backend.port()
    );
    site(folder, &routes)
}

fn post(length: usize) -> Vec<u8> {
    let head = format!("POST /x.php HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    [head.into_bytes(), vec![b'x'; length]].concat()
}

#[test]
fn an_application_may_print_all_before_it_reads() {
    let body = vec![b'y'; 8 << 20];
    let page = [&b"Content-Type: a/b\n\n"[..], &body].concat();
    let whole = fastcgi_reply(&page);
    // All records but the last are sent while nothing is read.
    let (first, last) = whole.split_at(whole.len() - 16);
    let talk = vec![
        ScriptStep::send(first),
        ScriptStep::Read(8 << 20),
        ScriptStep::send(last),
        ScriptStep::ReadToEnd,
    ];
    let backend = ScriptedBackend::tcp([talk]);
    let forebay = fastcgi(&backend, ", keep_conn = false");
    let reply = forebay.ask(post(9 << 20));
    assert_eq!(reply.status, 200);
    assert_eq!(reply.body.len(), body.len());
    assert_eq!(forebay.get("/a.txt").text(), "a file");
}

#[test]
fn an_application_may_answer_without_reading() {
    let talk = vec![ScriptStep::send(fastcgi_reply(b"Status: 403\n\nno")), ScriptStep::Read(1)];
    let backend = ScriptedBackend::tcp([talk]);
    let forebay = fastcgi(&backend, "");
    let reply = forebay.ask(post(9 << 20));
    assert_eq!((reply.status, reply.text()), (403, "no"));
}

#[test]
fn fastcgi_redirects_and_has_files_sent() {
    let talk =
        |head: &str| vec![ScriptStep::send(fastcgi_reply(head.as_bytes())), ScriptStep::Read(1)];
    let backend = ScriptedBackend::tcp([
        talk("Location: /a.txt\n\n"),
        talk("X-Accel-Redirect: /a.txt\nContent-Type: text/x-own\n\nunused"),
        talk("Location: http://example.org/\n\n"),
    ]);
    let forebay = fastcgi(&backend, ", keep_conn = false");
    assert_eq!(forebay.ask(post(3)).text(), "a file");
    let sent = forebay.get("/x.php");
    assert_eq!((sent.text(), sent.header("Content-Type")), ("a file", Some("text/x-own")));
    let abroad = forebay.get("/x.php");
    assert_eq!((abroad.status, abroad.header("Location")), (302, Some("http://example.org/")));
    backend.finish();
}

#[test]
fn applications_redirect_have_files_sent_and_fall_back() {
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "a file");
    folder.script("scripts/go.pl", "print \"Location: /files/a.txt\\n\\n\";\n");
    folder.script("scripts/large.pl", "print \"A: b\\n\\n\", 'x' x 5000;\n");
    folder.script("scripts/send.pl", "print \"X-Sendfile: a.txt\\nContent-Type: a/b\\n\\n\";\n");
    let configuration = "
        [[site]]
        listen = \"127.0.0.1:0\"
        [[site.route]]
        path = \"/files/*\"
        files = \"htdocs\"
        [[site.route]]
        fallback = true
        sendfile_root = \"htdocs\"
        app = \"scripts\"
        [[site.route]]
        respond = \"neither\"
        [app.scripts]
        kind = \"perl-cgi\"
        dir = \"scripts\"
        workers = 1
        max_output = 1000
    ";
    let forebay = serve(folder, configuration);
    let mut client = forebay.connect();
    for _ in 0..3 {
        assert_eq!(client.get("/go.pl").text(), "a file");
        let sent = client.get("/send.pl");
        assert_eq!((sent.text(), sent.header("Content-Type")), ("a file", Some("a/b")));
        assert_eq!(client.get("/other.pl").text(), "neither");
        assert_eq!(client.get("/large.pl").status, 502);
    }
    forebay.stop();
}

/// A head and some text, which are sent before the script is killed.
const CUT: &str = "print \"Content-Type: text/plain\\n\\nhalf\"";

#[test]
fn output_of_a_killed_script_is_sent_but_incomplete() {
    let perl = |after: &str| format!("#!/usr/bin/perl\n$| = 1;\n{after}\nkill KILL => $$;\n");
    let python = |after: &str| {
        format!(
            "#!/usr/bin/python3\nimport os, sys\n{after}\nsys.stdout.flush()\nos.kill(os.getpid(), 9)\n"
        )
    };
    let folder = Folder::new();
    let printed = "print(\"Content-Type: text/plain\\n\\nhalf\", end=\"\")";
    let whole = "Content-Type: text/plain\\nContent-Length: 5\\n\\nwhole";
    for (name, script) in [
        ("half.pl", perl(&format!("{CUT};"))),
        ("whole.pl", perl(&format!("print \"{whole}\";"))),
        ("none.pl", perl("")),
        ("half.py", python(printed)),
        ("whole.py", python(&format!("print(\"{whole}\", end=\"\")"))),
        ("none.py", python("")),
    ] {
        folder.script(&format!("cgi/{name}"), script);
    }
    let conf = format!(
        "ScriptAlias /apache/ {}/\n<Directory />\nRequire all granted\n</Directory>\n",
        folder.path().join("cgi").display()
    );
    let apache = peer::apache(&["alias", "cgi"], &conf);
    let mut text = ROUTE.to_owned();
    let mut ways = vec![("/cgi".to_owned(), ".pl"), ("/cgi".to_owned(), ".py")];
    for (kind, mode, ending) in [
        ("perl", "registry", ".pl"),
        ("perl", "registry-prefork", ".pl"),
        ("perl", "perlrun", ".pl"),
        ("perl", "fork", ".pl"),
        ("perl", "cgi", ".pl"),
        ("python", "fresh", ".py"),
        ("python", "fork", ".py"),
    ] {
        let name = format!("{kind}-{mode}");
        text += &format!("[[site.route]]\npath = \"/{name}/*\"\napp = \"{name}\"\n");
        ways.push((format!("/{name}"), ending));
    }
    for (way, _) in &ways[2..] {
        let (kind, mode) = way[1..].split_once('-').unwrap();
        text += &format!(
            "[app.{kind}-{mode}]\nkind = \"{kind}-cgi\"\ndir = \"cgi\"\nmode = \"{mode}\"\nworkers = 1\n"
        );
    }
    let forebay = site(folder, &text);
    for (way, ending) in &ways {
        if *ending == ".py" && !peer::has(&["python3"]) {
            continue;
        }
        let none = forebay.get(&format!("{way}/none{ending}"));
        assert_eq!(none.status, 502, "{way}: {}", forebay.output());
        let whole = forebay.get(&format!("{way}/whole{ending}"));
        assert_eq!((whole.status, whole.text()), (200, "whole"), "{way} {}", forebay.output());
        let mut client = forebay.connect();
        client.send(format!("GET {way}/half{ending} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let bytes = String::from_utf8(client.rest()).unwrap();
        assert!(bytes.starts_with("HTTP/1.1 200 OK\r\n"), "{way}: {bytes}");
        assert!(bytes.ends_with("\r\n\r\n4\r\nhalf\r\n"), "{way}: no last chunk follows: {bytes}");
    }
    if let Some(apache) = apache {
        // Apache sends the output as a complete reply.
        let half = Client::connect(apache.address()).get("/apache/half.pl");
        assert_eq!((half.status, half.text()), (200, "half"));
        assert_eq!(Client::connect(apache.address()).get("/apache/none.pl").status, 500);
        apache.stop();
    }
    forebay.stop();
}
