//! `forebay serve` with PSGI applications: the features of PSGI.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Command;
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use support::{Forebay, chunked, is_alive, pattern, serve};

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("app.psgi", include_str!("psgi/app.psgi"));
    folder
}

fn configuration(keys: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/shop/*\"\napp = \"app\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"app\"\n\
         [app.app]\nkind = \"psgi\"\nfile = \"app.psgi\"\nenv = {{ WHERE = \"{{tmp}}\" }}\n{keys}\n"
    )
}

fn app(keys: &str) -> Forebay {
    serve(folder(), &configuration(keys))
}

/// Makes a named pipe in the folder of the application.
fn pipe(forebay: &Forebay, name: &str) -> std::path::PathBuf {
    let path = forebay.folder.path().join(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

#[test]
fn the_application_is_loaded_once() {
    let forebay = app("workers = 1");
    for n in 1..=20 {
        assert_eq!(forebay.get("/calls").text(), format!("loaded 1, called {n}"));
    }
    let pid = forebay.get("/pid").text().to_owned();
    forebay.stop();
    assert!(!is_alive(&pid));
}

#[test]
fn the_environment_is_that_of_psgi_1_1() {
    let forebay = app("workers = 1");
    let text = |reply: forebay_testkit::http::Reply| reply.text().to_owned();
    let root = text(
        forebay
            .ask("GET /env?a=b%20c HTTP/1.1\r\nHost: example.org:81\r\nX-A: 1\r\nX-A: 2\r\n\r\n"),
    );
    for line in [
        "REQUEST_METHOD=GET",
        "SCRIPT_NAME=",
        "PATH_INFO=/env",
        "QUERY_STRING=a=b%20c",
        "REQUEST_URI=/env?a=b%20c",
        "SERVER_NAME=example.org",
        "SERVER_PROTOCOL=HTTP/1.1",
        "HTTP_HOST=example.org:81",
        "HTTP_X_A=1, 2",
        "REMOTE_ADDR=127.0.0.1",
        "version 1 1",
        "psgi.url_scheme=http",
        "psgi.multithread=",
        "psgi.multiprocess=1",
        "psgi.run_once=",
        "psgi.nonblocking=",
        "psgi.streaming=1",
        "psgix.input.buffered=1",
        "psgix.harakiri=1",
        "psgix.cleanup=1",
    ] {
        assert!(root.lines().any(|had| had == line), "{line}\n{root}");
    }
    for name in ["CONTENT_LENGTH=", "CONTENT_TYPE=", "HTTP_CONTENT_LENGTH="] {
        assert!(!root.lines().any(|line| line.starts_with(name)), "{name}\n{root}");
    }
    let below = text(forebay.get("/shop/env"));
    assert!(below.contains("\nSCRIPT_NAME=/shop\n"), "{below}");
    assert!(below.contains("\nPATH_INFO=/env\n"), "{below}");
    forebay.stop();
}

#[test]
fn an_environment_that_differs_a_little_is_the_requests_whatever_was_done_to_the_last() {
    let folder = Folder::new();
    folder.write(
        "app.psgi",
        "sub { my $env = shift;\n\
         my $text = join ',', map { \"$_=$env->{$_}\" } grep { /^HTTP_[XYZ]$|^spoiled$/ } sort keys %$env;\n\
         $_ = 'spoiled' for grep { !ref } values %$env;\n\
         delete $env->{HTTP_X}; $env->{spoiled} = 1; [200, [], [$text]] }\n",
    );
    let forebay = serve(folder, &configuration("workers = 1"));
    // On one connection, so that the ports are equal.
    let mut client = forebay.connect();
    for [x, y, body] in [
        ["a", "b", ""],
        ["a", "b", ""],
        ["c", "b", ""],
        ["longer", "b", ""],
        ["", "b", ""],
        ["d", "b", "HTTP_X\0e\0"],
        ["d", "other", ""],
        ["d", "b", ""],
        ["d,HTTP_Y=x", "b", ""],
        ["e", "f", ""],
        ["e", "f", ""],
    ] {
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nX: {x}\r\nY: {y}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(client.reply().text(), format!("HTTP_X={x},HTTP_Y={y}"));
    }
}

#[test]
fn bodies_arrive_exactly_and_can_be_read_again() {
    let forebay = app("workers = 1");
    let body = pattern(2_500_000);
    let mut client = forebay.connect();
    for length in [0, 1, 60_000, 65_536, 1_048_576, 1_048_577, 2_500_000] {
        client.send(format!("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"));
        client.send(&body[..length]);
        assert!(client.reply().body == body[..length], "{length}");
        client.send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&body[..length].chunks(9_001).collect::<Vec<_>>()));
        let reply = client.reply();
        assert_eq!(reply.header("X-Length"), Some(length.to_string().as_str()));
        assert!(reply.body == body[..length], "chunked {length}");
    }
    assert_eq!(client.get("/echo").body, b"");
    forebay.stop();
}

#[test]
fn responses_of_every_form_arrive() {
    let mut forebay = app("workers = 1");
    let big = pattern(300_000);
    forebay.folder.write("small", "one\ntwo\n");
    forebay.folder.write("empty", "");
    forebay.folder.write("big", &big);
    let mut client = forebay.connect();
    let reply = client.get("/pieces");
    assert_eq!(reply.text(), "abbbbbbbbbb\n");
    assert_eq!(reply.headers_named("X-Two"), ["a", "b"]);
    for size in [0, 1, 32_000, 65_400, 65_535, 65_536, 70_000, 1_000_000] {
        let reply = client.get(&format!("/size?{size}"));
        assert_eq!(reply.body.len(), size);
        assert_eq!(reply.header("Content-Length"), Some(size.to_string().as_str()));
    }
    for (target, body) in [
        ("/file?small", &b"one\ntwo\n"[..]),
        ("/file?empty", b""),
        ("/file?big", &big),
        ("/rest-of-file?small", b"two\n"),
        ("/utf8-file", b"caf\xe9"),
        ("/lines", b"one\ntwo\n"),
        ("/delayed", b"later"),
        ("/unclosed", b"all"),
        ("/chunked", b"abcde"),
        ("/latin1", b"caf\xe9"),
        ("/print", b"ok"),
        ("/twice", b"once"),
        ("/die-after", b"all"),
        ("/fork", b"parent"),
        ("/fork-big", "p".repeat(100_000).as_bytes()),
        ("/fork-stream", b"parent"),
    ] {
        let reply = client.get(target);
        assert_eq!(reply.status, 200, "{target}");
        assert!(reply.body == body, "{target}: {:?}", String::from_utf8_lossy(&reply.body));
    }
    let reply = client.get("/fields");
    assert_eq!((reply.status, reply.header("Status"), reply.text()), (200, None, "ok"));
    assert_eq!((reply.header("X-Empty"), reply.header("X-Undef")), (Some(""), Some("")));
    for word in ["lines closed", "printed", "by a child", "a second response", "too late"] {
        forebay.wait_for_output(word);
    }
    forebay.stop();
}

#[test]
fn head_and_bodiless_statuses_have_no_body() {
    let forebay = app("workers = 1");
    let mut client = forebay.connect();
    for (target, length) in
        [("/size?5", Some("5")), ("/size?100000", Some("100000")), ("/status?200", None)]
    {
        client.send(format!("HEAD {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let reply = client.reply_to_head();
        assert_eq!((reply.status, reply.header("Content-Length")), (200, length), "{target}");
    }
    for status in [204, 304, 404, 599] {
        let reply = client.get(&format!("/status?{status}"));
        assert_eq!((reply.status, &reply.body[..]), (status, &b""[..]));
        let has_length = reply.header("Content-Length").is_some();
        assert_eq!(has_length, !matches!(status, 204 | 304), "{status}");
        assert_eq!(reply.header("Transfer-Encoding"), None);
    }
    forebay.stop();
}

#[test]
fn a_stream_arrives_as_it_is_written_and_ends_when_it_is_closed() {
    let forebay = app("workers = 1");
    let (go, end) = (pipe(&forebay, "go"), pipe(&forebay, "end"));
    let mut client = forebay.connect();
    client.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n");
    client.reply_to_head();
    assert_eq!(client.bytes(8), b"3\r\none\r\n");
    fs::write(&go, "\n").unwrap();
    assert_eq!(client.bytes(13), b"3\r\ntwo\r\n0\r\n\r\n");
    // The reply has ended, but the application has not.
    client.send("GET /delayed HTTP/1.1\r\nHost: h\r\n\r\n");
    fs::write(&end, "\n").unwrap();
    assert_eq!(client.reply().text(), "later");
    forebay.stop();
}

#[test]
fn early_hints_reach_clients_that_know_them() {
    let forebay = app("workers = 1");
    let mut client = forebay.connect();
    for _ in 0..2 {
        let reply = client.get("/hints");
        assert_eq!(reply.text(), "hinted");
        let [(103, hints)] = &reply.interim[..] else { panic!("{:?}", reply.interim) };
        assert_eq!(hints.len(), 2, "{hints:?}");
    }
    let old = forebay.ask("GET /hints HTTP/1.0\r\n\r\n");
    assert_eq!((old.text(), old.interim.len()), ("hinted", 0));
    forebay.stop();
}

const UPGRADE: &str =
    "GET /upgrade HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";

#[test]
fn a_connection_can_be_taken_over() {
    let forebay = app("workers = 1\nrequest_timeout = \"2s\"\nqueue_timeout = \"4s\"");
    for leaves_first in [false, true] {
        let mut client = forebay.connect();
        let target = if leaves_first { "/upgrade?bytes" } else { "/upgrade" };
        client.send(UPGRADE.replace("/upgrade", target));
        let reply = client.reply_to_head();
        assert_eq!((reply.status, reply.header("Upgrade")), (101, Some("echo")));
        let mut stream = BufReader::new(client.into_stream());
        let mut read_line = |text: &str| {
            let mut line = String::new();
            stream.get_mut().write_all(text.as_bytes()).unwrap();
            stream.read_line(&mut line).unwrap();
            line
        };
        let pid = reply.header("X-Pid").unwrap();
        assert_eq!(read_line("one\n"), "echo one\n");
        if !leaves_first {
            // Longer than a request may take: another request waits for the worker in vain.
            assert_eq!(forebay.get("/pid").status, 503);
            assert_eq!(read_line("two\n"), "echo two\n");
        }
        if leaves_first {
            drop(stream);
        } else {
            assert_eq!(read_line("bye"), "gone");
        }
        assert!(eventually(|| !is_alive(pid)));
    }
    assert!(eventually(|| forebay.get("/size?1").status == 200));
    forebay.stop();
}

#[test]
fn an_offer_to_upgrade_can_be_declined() {
    let forebay = app("workers = 1");
    let mut client = forebay.connect();
    let pid = client.get("/pid").text().to_owned();
    assert_eq!(client.get("/upgrade").status, 426);
    client.send(UPGRADE.replace("/upgrade", "/upgrade?decline"));
    assert_eq!(client.reply().text(), "not now");
    assert_eq!(client.get("/pid").text(), pid);
    forebay.stop();
}

#[test]
fn many_requests_at_once_that_clean_up_are_answered() {
    let forebay = app("workers = 1\nqueue_timeout = \"5s\"");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = forebay.connect();
                for _ in 0..150 {
                    assert_eq!(client.get("/clean").text(), "clean");
                }
            });
        }
    });
    forebay.stop();
}

#[test]
fn cleanup_runs_behind_the_reply() {
    let mut forebay = app("workers = 1");
    let go = pipe(&forebay, "go");
    let mut client = forebay.connect();
    let pid = client.get("/cleanup").text().to_owned();
    // The worker is busy, and another request waits for it.
    client.send("GET /pid HTTP/1.1\r\nHost: h\r\n\r\n");
    fs::OpenOptions::new().write(true).open(go).unwrap().write_all(b"\n").unwrap();
    assert_eq!(client.reply().text(), pid);
    forebay.wait_for_output("cleaned up");
    forebay.stop();
}

#[test]
fn harakiri_ends_the_worker_behind_the_reply() {
    let forebay = app("workers = 1");
    let mut client = forebay.connect();
    for target in ["/harakiri", "/late-harakiri"] {
        let first = client.get(target).text().to_owned();
        let second = client.get(target).text().to_owned();
        assert_ne!(first, second, "{target}");
        assert!(eventually(|| !is_alive(&first)));
    }
    assert_eq!(client.get("/size?1").status, 200);
    forebay.stop();
}

#[test]
fn failures_are_clean() {
    let mut forebay = app("workers = 1");
    for (target, status, word) in [
        ("/die", 500, "for a reason"),
        ("/die-object", 500, "HASH(0x"),
        ("/wide", 500, "wide character"),
        ("/break", 500, "a line break in a header field"),
        ("/nothing", 500, "no PSGI response but undef"),
        ("/silent", 500, "did not call the responder"),
        ("/status?20", 500, "the status '20'"),
        ("/exit", 502, "exit code 3"),
        ("/kill", 502, "signal 9"),
        ("/size?1", 200, ""),
        ("/none", 404, ""),
    ] {
        let reply = forebay.get(target);
        assert_eq!(reply.status, status, "{target}: {}", forebay.output());
        assert_eq!(reply.header("X-Injected"), None);
        forebay.wait_for_output(word);
    }
    for target in ["/die-in-stream", "/wide-stream"] {
        let mut client = forebay.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let reply = client.try_reply();
        // Half a reply is either no reply, or visibly cut off.
        assert!(reply.is_err() || reply.is_ok_and(|reply| reply.status == 500), "{target}");
    }
    forebay.wait_for_output("half way");
    forebay.stop();
}

#[test]
fn an_application_that_does_not_load_is_a_failed_start() {
    for (text, word) in [
        ("this is no perl(;", "syntax error"),
        ("die \"not today\\n\";", "not today"),
        ("use No::Such::Module; sub {}", "No/Such/Module.pm"),
        ("42", "no PSGI application"),
        ("0", "no PSGI application"),
    ] {
        let folder = Folder::new();
        folder.write("app.psgi", text);
        let exit = support::check_start(&folder, &configuration(""));
        assert_eq!(exit.status.code(), Some(3), "{text}: {}", exit.output);
        assert!(exit.output.contains(word), "{text}: {}", exit.output);
    }
}

#[test]
fn a_worker_killed_under_load_costs_at_most_its_request() {
    let forebay = app("workers = 2");
    let failed: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let forebay = &forebay;
                scope.spawn(move || {
                    let mut connection = forebay.connect();
                    let statuses = (0..100).map(|_| connection.get("/size?5000").status);
                    let failed: Vec<_> = statuses.filter(|&status| status != 200).collect();
                    assert!(failed.iter().all(|&status| status == 502), "{failed:?}");
                    failed.len()
                })
            })
            .collect();
        for _ in 0..5 {
            let pid = forebay.get("/pid");
            if pid.status == 200 {
                assert!(Command::new("kill").args(["-9", pid.text()]).status().is_ok());
            }
        }
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    assert!(failed <= 5, "{failed}: {}", forebay.output());
    assert!(eventually(|| forebay.get("/size?1").status == 200));
    forebay.stop();
}

#[test]
fn repeated_slashes_and_escapes_reach_the_application() {
    let forebay = app("workers = 1");
    for (target, got) in [
        ("/shop//x", "/shop //x"),
        ("/shop/a//b%2cc", "/shop /a//b,c"),
        ("//shop/x", "/shop /x"),
        ("/a/..//shop//x", "/shop /x"),
        ("//a///b", " //a///b"),
        ("/a%252c", " /a%2c"),
    ] {
        assert_eq!(forebay.get(target).text(), got, "{target}");
    }
    forebay.stop();
}
