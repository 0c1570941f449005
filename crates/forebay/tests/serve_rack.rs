//! `forebay serve` with Rack applications: the features of Rack, and Sinatra.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use rustix::process::{Pid, Signal, kill_process};
use support::{Forebay, check_start, is_alive, pattern, read_until, serve};

fn configuration(keys: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\nmax_body = \"64MiB\"\n\
         [[site.route]]\npaths = [\"/shop\", \"/shop/*\"]\napp = \"app\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"app\"\n\
         [app.app]\nkind = \"rack\"\nfile = \"config.ru\"\n{keys}\n"
    )
}

fn app(keys: &str) -> Option<Forebay> {
    peer::has(&["ruby", "ruby-rack"]).then(|| {
        let folder = Folder::new();
        folder.write("config.ru", include_str!("rack/config.ru"));
        serve(folder, &configuration(keys))
    })
}

#[test]
fn the_environment_and_responses_pass_rack_lint() {
    let Some(forebay) = app("workers = 1") else { return };
    let reply = forebay.ask("GET /env/a%20b//c?a=b HTTP/1.1\r\nHost: h\r\nX-Thing: 1\r\n\r\n");
    let expected = [
        "REQUEST_METHOD=\"GET\"",
        "SCRIPT_NAME=\"\"",
        "PATH_INFO=\"/env/a%20b//c\"",
        "QUERY_STRING=\"a=b\"",
        "REQUEST_URI=\"/env/a%20b//c?a=b\"",
        "SERVER_PROTOCOL=\"HTTP/1.1\"",
        "CONTENT_LENGTH=nil",
        "HTTP_X_THING=\"1\"",
        "rack.url_scheme=\"http\"",
        "rack.multithread=false",
        "rack.multiprocess=true",
    ];
    assert_eq!(reply.text().lines().collect::<Vec<_>>(), expected, "{}", forebay.output());
    let reply = forebay.get("/shop/env%20x/%2561");
    let parts = "SCRIPT_NAME=\"/shop\"\nPATH_INFO=\"/env%20x/%2561\"\n";
    assert!(reply.text().contains(parts), "{}", reply.text());
    let reply = forebay.get("/cookies");
    assert_eq!(reply.headers_named("Set-Cookie"), ["a=1", "b=2"]);
    let reply = forebay.get("/bytes");
    assert_eq!(reply.body, b"\xc3\xbc\xff");
    assert_eq!(reply.header("X-Text"), Some("\u{c3}\u{a9}"), "the bytes of é");
    assert_eq!(forebay.get("/pieces").text(), "abc");
    assert_eq!(forebay.get("/none").status, 204);
    assert_eq!(forebay.get("/file").text(), include_str!("rack/config.ru"));
    let mut client = forebay.connect();
    client.send("HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().status, 200);
    assert_eq!(client.get("/none").status, 204);
    forebay.stop();
}

#[test]
fn bodies_arrive_exactly() {
    let Some(forebay) = app("workers = 1") else { return };
    let mut client = forebay.connect();
    for length in [0, 1, 70_000, 3_000_000] {
        let body = pattern(length);
        let head = format!("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
        client.send([head.as_bytes(), &body].concat());
        assert_eq!(client.reply().body, body, "{length}");
    }
    client.send(
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert_eq!(client.reply().text(), "abc");
    forebay.stop();
}

#[test]
fn failures_are_clean() {
    let Some(mut forebay) = app("workers = 1") else { return };
    let pid = forebay.get("/pid").text().to_owned();
    for target in ["/boom", "/exit", "/break", "/end"] {
        assert_eq!(forebay.get(target).status, 500, "{target}");
    }
    for target in ["/late", "/short"] {
        assert!(forebay.try_get(target).is_err(), "{target}: a part is not complete");
    }
    assert_eq!(forebay.get("/fork").text(), "parent");
    assert_eq!(forebay.get("/child").text(), "parent");
    assert_eq!(forebay.get("/term").text(), "15", "SIGTERM ends a child, and not the process");
    assert_eq!(forebay.get("/pid").text(), pid);
    forebay.wait_for_output("an error of the application");
    forebay.wait_for_output("this is for the log");
    assert_eq!(forebay.get("/die").status, 502);
    assert!(eventually(|| forebay.get("/pid").status == 200));
    assert!(!is_alive(&pid));
    forebay.stop();
}

#[test]
fn objects_of_one_request_are_of_no_use_in_another() {
    let Some(forebay) = app("workers = 1") else { return };
    let mut client = forebay.connect();
    assert_eq!(client.get("/keep").text(), "kept");
    let reply = client.get("/misuse");
    assert_eq!((reply.text(), reply.interim.len()), ("done IOError", 0));
    assert_eq!(client.get("/keep").text(), "kept");
    // The host keeps environments. A change of a string in one does not reach the next request.
    for _ in 0..3 {
        assert_eq!(client.get("/change").text(), "/change!LOCALHOST");
    }
    forebay.stop();
}

#[test]
fn streams_hints_and_hijacks() {
    let Some(forebay) = app("workers = 1\nthreads = 2\nconnections = 8") else { return };
    let mut client = forebay.connect();
    let reply = client.get("/hints");
    assert_eq!((reply.text(), reply.interim.len()), ("hinted", 1));
    // Middleware has encoded the body, in an array.
    assert_eq!(client.get("/marks").text(), "abc");
    // The application writes the body after its call has returned.
    let mut waiting = forebay.connect();
    waiting.send("GET /partial HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(waiting.reply_to_head().status, 200);
    assert_eq!(client.get("/open").text(), "pushed");
    let mut upgraded = forebay.connect();
    upgraded
        .send("GET /upgrade HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
    let reply = upgraded.reply_to_head();
    assert_eq!((reply.status, reply.header("Upgrade")), (101, Some("echo")));
    let mut stream = BufReader::new(upgraded.into_stream());
    for _ in 0..3 {
        stream.get_mut().write_all(b"hello\n").unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line, "echo hello\n");
        assert_eq!(client.get("/env").status, 200, "the process has room for others");
    }
    assert_eq!(client.get("/upgrade").text(), "not now");
    forebay.stop();
    if let Some(forebay) = app("workers = 1\nenv = { STREAMS = \"1\" }") {
        assert_eq!(forebay.get("/x").text(), "one /x");
        assert_eq!(forebay.get("/y").text(), "one /y");
        forebay.stop();
    }
}

#[test]
fn threads_run_requests_at_once() {
    let Some(forebay) = app("workers = 1\nthreads = 4") else { return };
    let mut waiting: Vec<_> = (0..3).map(|_| forebay.connect()).collect();
    for client in &mut waiting {
        client.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    assert!(forebay.get("/env").text().contains("rack.multithread=true"));
    for _ in &waiting {
        assert_eq!(forebay.get("/open").text(), "pushed");
    }
    for client in &mut waiting {
        assert_eq!(client.reply().text(), "opened");
    }
    forebay.stop();
}

#[test]
fn a_thread_that_cannot_be_started_is_started_later() {
    // The only thread ends, and the first two attempts to replace it fail.
    let Some(mut forebay) = app("workers = 1\nthreads = 1") else { return };
    let pid = forebay.get("/pid").text().to_owned();
    assert_eq!(forebay.get("/limit").text(), "limited");
    assert_eq!(forebay.get("/end").status, 500);
    assert_eq!(forebay.get("/pid").text(), pid);
    forebay.wait_for_output("cannot start a thread: can't create Thread");
    forebay.stop();
    // One thread waits, so the next request needs a second one.
    let Some(forebay) = app("workers = 1\nthreads = 2") else { return };
    assert_eq!(forebay.get("/limit").text(), "limited");
    let mut waiting = forebay.connect();
    waiting.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(forebay.get("/open").text(), "pushed");
    assert_eq!(waiting.reply().text(), "opened");
    forebay.stop();
}

#[test]
fn a_process_that_is_killed_within_a_reply_costs_only_its_requests() {
    let Some(mut forebay) = app("workers = 1\nthreads = 3") else { return };
    let mut begun = forebay.connect();
    begun.send("GET /dribble HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut came = read_until(&mut begun, "begun");
    let mut waiting = forebay.connect();
    waiting.send("GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    let file = forebay.folder.path().join("held");
    let mut pid = String::new();
    assert!(eventually(|| {
        pid = fs::read_to_string(&file).unwrap_or_default();
        !pid.is_empty()
    }));
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    came.extend(begun.rest());
    assert!(!came.ends_with(b"0\r\n\r\n"), "{:?}", String::from_utf8_lossy(&came));
    assert_eq!(waiting.reply().status, 502);
    assert!(eventually(|| forebay.get("/pid").status == 200));
    forebay.wait_for_output("signal 9");
    forebay.stop();
}

#[test]
fn bytes_on_an_idle_connection_reach_nobody() {
    let Some(forebay) = app("workers = 1\nthreads = 2") else { return };
    let pid = forebay.get("/pid").text().to_owned();
    // From now on, Forebay has several connections to the process.
    let mut waiting = forebay.connect();
    waiting.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(forebay.get("/open").text(), "pushed");
    assert_eq!(waiting.reply().text(), "opened");
    let reply = forebay.get("/scribble");
    let written = reply.text().strip_prefix("written ").and_then(|count| count.parse::<u32>().ok());
    assert!(written.is_some_and(|count| count > 0), "{}: {}", reply.text(), forebay.output());
    for _ in 0..4 {
        assert_eq!(forebay.get("/pid").text(), pid);
    }
    forebay.stop();
}

#[test]
fn workers_are_replaced_under_load_without_a_failure() {
    let Some(forebay) = app("workers = 2\nthreads = 2\nmax_requests = 40") else { return };
    let (address, is_over) = (forebay.address, AtomicBool::new(false));
    let pids = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(address);
                while !is_over.load(Ordering::Relaxed) {
                    let reply = client.get("/pid");
                    assert_eq!(reply.status, 200);
                    pids.lock().unwrap().insert(reply.text().to_owned());
                }
            });
        }
        let are_replaced = eventually(|| pids.lock().unwrap().len() > 4);
        is_over.store(true, Ordering::Relaxed);
        assert!(are_replaced, "{}", forebay.output());
    });
    forebay.stop();
}

#[test]
fn an_application_that_does_not_load_is_a_failed_start() {
    if !peer::has(&["ruby", "ruby-rack"]) {
        return;
    }
    for (text, says) in [
        ("run nothing_there", "nothing_there"),
        ("run(", "syntax error"),
        ("require 'no_gem'", "no_gem"),
    ] {
        let folder = Folder::new();
        folder.write("config.ru", text);
        let exit = check_start(&folder, &configuration("workers = 1"));
        assert_ne!(exit.status.code(), Some(0), "{text}");
        assert!(exit.output.contains(says), "{text}: {}", exit.output);
    }
}

#[test]
fn sinatra_runs_where_it_is_mounted() {
    if !peer::has(&["ruby", "ruby-sinatra"]) {
        return;
    }
    let folder = Folder::new();
    folder.write(
        "config.ru",
        "require 'sinatra/base'\n\
         class Shop < Sinatra::Base\n\
           get('/') { redirect to('/items/a%20b') }\n\
           get('/items/:name') { \"item #{params['name']} #{url('/x')}\" }\n\
           post('/items') { status 201; request.body.read }\n\
         end\n\
         run Shop\n",
    );
    let forebay = serve(folder, &configuration("workers = 1"));
    for (start, base) in [("/shop", "/shop"), ("/", "")] {
        let reply = forebay.ask(format!("GET {start} HTTP/1.1\r\nHost: example.org\r\n\r\n"));
        let location = format!("http://example.org{base}/items/a%20b");
        assert_eq!((reply.status, reply.header("Location")), (302, Some(&*location)));
        let target = format!("{base}/items/a%20b");
        let reply = forebay.ask(format!("GET {target} HTTP/1.1\r\nHost: example.org\r\n\r\n"));
        assert_eq!(reply.text(), format!("item a b http://example.org{base}/x"));
    }
    let post = "POST /items HTTP/1.1\r\nHost: example.org\r\nContent-Length: 3\r\n\r\nabc";
    let reply = forebay.ask(post);
    assert_eq!((reply.status, reply.text()), (201, "abc"));
    forebay.stop();
}
