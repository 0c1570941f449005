//! `forebay serve` with ASGI applications: with the host (`kind = "asgi"`), and `examples/asgi` in
//! uvicorn.

mod support;

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::process::Command;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::{Process, eventually};
use rustix::process::{Pid, Signal, kill_process};
use support::websocket::{BINARY, CLOSE, PING, PONG, Socket, TEXT, forbidden_frames, masked};
use support::{Forebay, check_start, chunked, pattern, read_until, serve, site};

/// Debian's Python, which finds the frameworks of Debian's packages.
const PYTHON: &str = "/usr/bin/python3";
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/asgi");
const APPLICATION: &str = include_str!("asgi/app.py");

fn folder() -> Option<Folder> {
    if !peer::has(&["python3"]) {
        return None;
    }
    let folder = Folder::new();
    folder.write("app/chat.py", APPLICATION);
    folder.write("no/uvloop.py", "raise ImportError\n");
    Some(folder)
}

fn configuration(keys: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/m/*\"\napp = \"chat\"\n\
         [[site.route]]\npath = \"/*\"\napp = \"chat\"\n[app.chat]\nkind = \"asgi\"\ndir = \"app\"\n\
         python = \"{PYTHON}\"\n{keys}\n"
    )
}

/// Keys for the event loop of uvloop, and for that of asyncio.
const LOOPS: [&str; 2] = ["", "lib = \"no\""];
const CHAT: &str = "module = \"chat:application\"";

fn app(keys: &str) -> Option<Forebay> {
    Some(serve(folder()?, &configuration(&format!("{CHAT}\n{keys}"))))
}

fn post(forebay: &Forebay, path: &str, body: &[u8]) -> Reply {
    let mut client = forebay.connect();
    client
        .send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len()));
    client.send(body);
    client.reply()
}

#[test]
fn requests_and_replies_are_as_asgi_specifies() {
    for keys in LOOPS {
        let Some(mut forebay) = app(keys) else { return };
        the_scope_describes_the_request(&forebay);
        bodies_pass_in_both_directions(&forebay);
        replies_are_framed(&forebay);
        extensions_work(&forebay);
        errors_of_the_application_are_logged(&mut forebay);
        let (exit, folder) = forebay.stop();
        assert!(exit.output.contains("startup"), "{}", exit.output);
        assert!(folder.path().join("app/ended").exists(), "the lifespan was shut down");
    }
}

fn the_scope_describes_the_request(forebay: &Forebay) {
    let reply = forebay.ask(
        "GET /m/scope/a%20b%C3%A9?x=y%20z HTTP/1.1\r\nHost: h\r\nX-Thing: 1\r\nCookie: a=1\r\n\
         X-Forwarded-For: 6.6.6.6\r\nX-Thing: 2\r\nConnection: keep-alive\r\n\r\n",
    );
    let port = forebay.address.port();
    assert_eq!(
        reply.text(),
        format!(
            "type='http'\nhttp_version='1.1'\nmethod='GET'\nscheme='http'\n\
             path='/m/scope/a b\u{e9}'\nraw_path=b'/m/scope/a%20b%C3%A9'\n\
             query_string=b'x=y%20z'\nroot_path='/m'\nserver=('127.0.0.1', {port})\n\
             asgi={{'version': '3.0', 'spec_version': '2.3'}}\nstate={{'word': 'from the startup'}}\n\
             client='127.0.0.1'\n['http.response.early_hint', 'http.response.trailers']\n\
             b'host': b'h'\nb'x-thing': b'1'\nb'cookie': b'a=1'\nb'x-thing': b'2'"
        ),
        "the state is a copy for each request, and a client cannot forge its address"
    );
    for _ in 0..2 {
        let reply = forebay.ask("GET /scope HTTP/1.0\r\n\r\n");
        assert!(reply.text().contains("http_version='1.0'"), "{}", reply.text());
        assert!(reply.text().contains("root_path=''\n"), "{}", reply.text());
        assert!(reply.text().contains("state={'word': 'from the startup'}"), "{}", reply.text());
    }
}

fn bodies_pass_in_both_directions(forebay: &Forebay) {
    let body = pattern(3_000_000);
    assert_eq!(post(forebay, "/echo", &body).body, body);
    assert_eq!(post(forebay, "/size", &body).text(), "3000000");
    // In chunks of many sizes, on one connection: the application finds the end of each body.
    let mut client = forebay.connect();
    for sizes in [&[1, 2, 3][..], &[70_000, 1, 65_536], &[]] {
        let pieces: Vec<Vec<u8>> = sizes.iter().map(|&size| pattern(size)).collect();
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        client.send("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&pieces));
        assert_eq!(client.reply().body, pieces.concat());
    }
    // A body that the application does not read is no part of the next request.
    for _ in 0..3 {
        assert_eq!(post(forebay, "/unread", &body[..200_000]).text(), "not read");
        assert_eq!(forebay.get("/one").text(), "one piece");
    }
    let mut client = forebay.connect();
    client.send(
        "POST /size HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
    );
    assert_eq!(client.interim_reply().0, 100);
    client.send("abc");
    assert_eq!(client.reply().text(), "3");
}

fn replies_are_framed(forebay: &Forebay) {
    for (path, status, length, body) in [
        ("/one", 200, Some("9"), "one piece"),
        ("/pieces", 201, None, "abc"),
        ("/none", 204, None, ""),
    ] {
        let reply = forebay.get(path);
        assert_eq!((reply.status, reply.header("Content-Length")), (status, length), "{path}");
        assert_eq!(reply.text(), body, "{path}");
    }
    assert_eq!(forebay.get("/pieces").headers_named("Set-Cookie").len(), 2);
    assert_eq!(forebay.get("/large").body.len(), 3_000_000);
    let mut client = forebay.connect();
    client.send("HEAD /one HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert_eq!(client.reply_to_head().header("Content-Length"), Some("9"));
    assert_eq!(client.rest(), b"");
}

fn extensions_work(forebay: &Forebay) {
    let mut client = forebay.connect();
    client.send("GET /early HTTP/1.1\r\nHost: h\r\n\r\n");
    let (status, headers) = client.interim_reply();
    assert_eq!(status, 103);
    assert_eq!(headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("link")).count(), 2);
    assert_eq!(client.reply().text(), "page");
    client
        .send("GET /trailers HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n");
    let text = String::from_utf8(client.rest()).unwrap();
    assert!(text.ends_with("4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n"), "{text}");
    assert_eq!(forebay.get("/trailers").text(), "body", "a client that wants no trailers");
}

fn errors_of_the_application_are_logged(forebay: &mut Forebay) {
    for (path, logged) in [
        ("/raise", "ValueError: before anything"),
        ("/nothing", "the application returned before its reply was complete"),
        ("/half", "the application returned before its reply was complete"),
        ("/short", "a body of 5 bytes, but a Content-Length of 10"),
        ("/long", "a body of 6 bytes, but a Content-Length of 4"),
        ("/text", "the body is <class 'str'>, not bytes"),
        ("/split", "a line break or a zero byte in a header field"),
        ("/twice", "http.response.start was sent twice"),
        ("/absent", "KeyError: 'do_absent'"),
        ("/exit", "SystemExit: 3"),
    ] {
        let reply = forebay.get(path);
        assert_eq!((reply.status, reply.text()), (500, "Internal Server Error\n"), "{path}");
        forebay.wait_for_output(logged);
    }
    assert!(forebay.try_get("/raiselater").is_err(), "a part must not be taken for the whole");
    forebay.wait_for_output("ValueError: in the middle");
    assert_eq!(forebay.get("/one").text(), "one piece", "the process has not ended");
}

#[test]
fn many_requests_at_once_in_one_process_stay_apart() {
    LOOPS.into_iter().for_each(run_many_at_once);
}

fn run_many_at_once(keys: &str) {
    let keys = format!("{keys}\non_abort = \"stop\"");
    let Some(forebay) = app(&keys) else { return };
    let pid = forebay.get("/pid").text().to_owned();
    // 50 requests that wait for each other, in one process.
    let mut clients: Vec<Client> = (0..50).map(|_| forebay.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /meet?50-{number} HTTP/1.1\r\nHost: h\r\n\r\n"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.reply().text(), format!("met 50-{number}"));
    }
    drop(clients);
    // A task that outlives its request cannot write into the reply of another.
    assert_eq!(forebay.get("/late").text(), "first");
    let reply = forebay.get("/use");
    assert_eq!(
        reply.text(),
        "'http.response.body' was sent after the reply was complete; http.disconnect"
    );
    assert_eq!(forebay.get("/background").text(), "answered");
    assert_eq!(forebay.get("/one").text(), "one piece");
    assert!(eventually(|| forebay.get("/waiting?background").text() == "done and refused"));
    // A long reply lets other requests run.
    assert_eq!(forebay.get("/many").text(), format!("{}others ran", ".".repeat(1000)));
    // The application learns that a client has left.
    let mut client = forebay.connect();
    client.send("GET /wait?a HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| forebay.get("/waiting?a").text() == "waits"));
    drop(client);
    assert!(eventually(|| forebay.get("/waiting?a").text() == "disconnected"));
    // An endless stream ends with its client.
    let mut client = forebay.connect();
    client.send("GET /endless?b HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| forebay.get("/waiting?b").text() == "streams"));
    drop(client);
    assert!(eventually(|| forebay.get("/waiting?b").text() == "ended"));
    a_slow_client_holds_the_application_back(&forebay);
    a_child_that_the_application_forks_reaches_nobody(&forebay);
    assert_eq!(forebay.get("/pid").text(), pid);
    forebay.stop();
}

fn a_slow_client_holds_the_application_back(forebay: &Forebay) {
    let mut client = forebay.connect();
    client.send("GET /much HTTP/1.1\r\nHost: h\r\n\r\n");
    client.bytes(100_000);
    let how_much = || forebay.get("/howmuch").text().parse::<u64>().unwrap();
    let mut last = 0;
    assert!(
        eventually(|| {
            let now = how_much();
            let stays = now > 0 && now == last;
            last = now;
            stays
        }),
        "the application goes on to send"
    );
    assert!(last < 100 << 20, "{last} bytes were sent to a client that does not read");
}

fn a_child_that_the_application_forks_reaches_nobody(forebay: &Forebay) {
    for _ in 0..3 {
        assert_eq!(forebay.get("/fork").text(), "parent");
        // The event loop has a pair of sockets of its own.
        assert_eq!(forebay.get("/childfds").text(), "2");
    }
    let pid = forebay.get("/pid").text().to_owned();
    assert_eq!(forebay.get("/term").text(), "15", "SIGTERM ends a child, and not the process");
    assert_eq!(forebay.get("/pid").text(), pid);
}

#[test]
fn a_killed_process_costs_its_requests_one_502_each() {
    let Some(mut forebay) = app("workers = 2") else { return };
    // Requests pass to the first process until the second one has started.
    let mut started = HashSet::new();
    assert!(eventually(|| {
        started.insert(forebay.get("/pid").text().to_owned());
        started.len() == 2
    }));
    let mut waiting: Vec<Client> = (0..6).map(|_| forebay.connect()).collect();
    for (number, client) in waiting.iter_mut().enumerate() {
        client
            .send(format!("POST /wait?{number} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"));
    }
    let pid_of = |number: usize| {
        let file = forebay.folder.path().join(format!("app/waits-{number}"));
        fs::read_to_string(file).ok()?.parse::<i32>().ok()
    };
    let mut pids = Vec::new();
    assert!(eventually(|| {
        pids = (0..6).filter_map(pid_of).collect();
        pids.len() == 6
    }));
    assert_eq!(pids.iter().collect::<HashSet<_>>().len(), 2, "the processes share the requests");
    // The other process is not affected.
    let (killed, other) = (pids[0], pids.iter().find(|&&pid| pid != pids[0]).copied().unwrap());
    let kill = |pid| kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    kill(killed);
    for (client, pid) in waiting.iter_mut().zip(&pids) {
        if *pid == killed {
            assert_eq!(client.reply().status, 502);
        }
    }
    forebay.wait_for_output("signal 9");
    assert_eq!(forebay.get("/one").text(), "one piece");
    kill(other);
    for (client, pid) in waiting.iter_mut().zip(&pids) {
        if *pid == other {
            assert_eq!(client.reply().status, 502);
        }
    }
    assert!(eventually(|| forebay.get("/one").text() == "one piece"));
    forebay.stop();
}

#[test]
fn a_killed_process_leaves_no_reply_that_looks_complete() {
    let Some(forebay) = app("workers = 1") else { return };
    let begin = |path: &str| {
        let mut client = forebay.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let came = read_until(&mut client, "begun");
        (client, came)
    };
    let begun = ["/dribble", "/dribble?1000"].map(begin);
    let pid = forebay.get("/pid").text().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    for (mut client, mut came) in begun {
        came.extend(client.rest());
        let came = String::from_utf8(came).unwrap();
        assert!(came.starts_with("HTTP/1.1 200 "), "{came}");
        assert!(!came.ends_with("0\r\n\r\n") && came.len() < 1000, "{came}");
    }
    assert!(eventually(|| forebay.get("/one").text() == "one piece"));
    forebay.stop();
}

#[test]
fn a_start_that_fails_says_why() {
    let Some(folder) = folder() else { return };
    let env = |how: &str| format!("{CHAT}\nenv = {{ STARTUP = \"{how}\" }}");
    for (keys, code, said) in [
        (env("fails"), 3, "no database today"),
        (env("raises"), 3, "KeyError: 'raised in the startup'"),
        ("module = \"chat:absent\"".into(), 3, "has no 'absent'"),
        ("module = \"chat:old\"".into(), 3, "as in ASGI 2"),
        ("module = \"chat:PLAIN\"".into(), 3, "cannot be called"),
        ("module = \"absent:app\"".into(), 2, "there is no module absent"),
    ] {
        let exit = check_start(&folder, &configuration(&keys));
        assert_eq!(exit.status.code(), Some(code), "{keys}\n{}", exit.output);
        assert!(exit.output.contains(said), "{keys}\n{}", exit.output);
    }
}

#[test]
fn an_application_without_lifespan_and_a_factory_start() {
    let Some(folder) = folder() else { return };
    let simple = "async def app(scope, receive, send):\n    assert scope['type'] == 'http'\n    \
         await send({'type': 'http.response.start', 'status': 200, 'headers': []})\n    \
         await send({'type': 'http.response.body', 'body': b'simple'})\n";
    folder.write("app/simple.py", simple);
    let other = "[[site]]\nlisten = \"127.0.0.1:0\"\nhosts = [\"s\"]\n[[site.route]]\npath = \"/*\"\n\
         app = \"simple\"\n[app.simple]\nkind = \"asgi\"\ndir = \"app\"\nmodule = \"simple:app\"\n";
    let keys = "module = \"chat:factory()\"\nenv = { PYTHONSAFEPATH = \"1\" }";
    let forebay = serve(
        folder,
        &format!("{}{other}", configuration(keys)).replacen(
            "[[site.route]]\npath = \"/m/*\"",
            "[[site.route]]\npath = \"/simple\"\napp = \"simple\"\n[[site.route]]\npath = \"/m/*\"",
            1,
        ),
    );
    assert_eq!(forebay.get("/one").text(), "one piece");
    assert_eq!(forebay.get("/simple").text(), "simple", "{}", forebay.output());
    let (exit, _) = forebay.stop();
    assert!(!exit.output.contains("AssertionError"), "{}", exit.output);
}

#[test]
fn websockets_pass_messages_in_both_directions() {
    LOOPS.into_iter().for_each(pass_messages);
}

#[test]
fn a_request_that_hangs_ends_no_process_whose_websockets_are_in_use() {
    let Some(forebay) = app("request_timeout = \"1s\"") else { return };
    let pid = forebay.get("/pid").text().to_owned();
    let mut socket = Socket::accepted(&forebay, "/echo");
    let mut hanging = forebay.connect();
    hanging.send("GET /wait HTTP/1.1\r\nHost: h\r\n\r\n");
    // For longer than the request may take.
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        socket.message(TEXT, b"here");
        assert_eq!(socket.read(), (TEXT, b"here".to_vec()));
    }
    assert_eq!(hanging.reply().status, 504);
    assert_eq!(forebay.get("/pid").text(), pid);
    socket.message(TEXT, b"still");
    assert_eq!(socket.read(), (TEXT, b"still".to_vec()));
    drop(socket);
    forebay.stop();
}

fn pass_messages(keys: &str) {
    let Some(forebay) = app(&format!("{keys}\nmax_message = \"1MiB\"")) else { return };
    let (mut socket, reply) =
        Socket::open(&forebay, "/m/echo", "Sec-WebSocket-Protocol: old, new\r\n");
    assert_eq!(reply.status, 101, "{}", forebay.output());
    assert_eq!(reply.header("Sec-WebSocket-Accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    assert_eq!(reply.header("Sec-WebSocket-Protocol"), Some("new"));
    assert_eq!(reply.header("X-Thing"), Some("1"));
    for size in [0, 1, 2, 3, 4, 125, 126, 127, 65_535, 65_536, 1 << 20] {
        let data = pattern(size);
        socket.message(BINARY, &data);
        assert!(socket.read() == (BINARY, data), "{size}");
    }
    socket.message(TEXT, "h\u{e9}llo \u{1f600}".as_bytes());
    assert_eq!(socket.read(), (TEXT, "h\u{e9}llo \u{1f600}".as_bytes().to_vec()));
    // A message in parts, with a ping between them, byte by byte.
    let parts =
        [masked(TEXT, b"one "), masked(0x80 | PING, b"p"), masked(0, b""), masked(0x80, b"two")];
    for byte in parts.concat() {
        socket.0.send([byte]);
    }
    assert_eq!(socket.read(), (PONG, b"p".to_vec()));
    assert_eq!(socket.read(), (TEXT, b"one two".to_vec()));
    socket.message(CLOSE, &[&4321u16.to_be_bytes()[..], b"done"].concat());
    socket.is_closed_with(4321);
    assert!(eventually(|| forebay.get("/waiting?ws").text() == "4321 done"));
    // A client that leaves without a close frame.
    drop(Socket::accepted(&forebay, "/echo"));
    assert!(eventually(|| forebay.get("/waiting?ws").text() == "1006 "));
    let mut socket = Socket::accepted(&forebay, "/m/scope?a=b");
    let text = String::from_utf8(socket.read().1).unwrap();
    assert_eq!(
        text,
        "['websocket', 'ws', '/m/scope', '/m', b'a=b', [], {'websocket.http.response': {}}]"
    );
    socket.is_closed_with(4001);
    websockets_are_refused_and_fail_cleanly(&forebay);
    forbidden_frames_close_the_websocket(&forebay);
    a_websocket_that_is_not_read_holds_its_client_back(&forebay);
    forebay.stop();
}

fn websockets_are_refused_and_fail_cleanly(forebay: &Forebay) {
    for (path, status, body) in [
        ("/refuse", 403, ""),
        ("/deny", 401, "not you"),
        ("/raise", 500, "Internal Server Error\n"),
        ("/absent", 500, "Internal Server Error\n"),
    ] {
        let (_, reply) = Socket::open(forebay, path, "");
        assert_eq!((reply.status, reply.text()), (status, body), "{path}");
    }
    Socket::accepted(forebay, "/return").is_closed_with(1000);
    Socket::accepted(forebay, "/raise?accepted").is_closed_with(1011);
    // A close frame cannot have this code.
    Socket::accepted(forebay, "/raise?code").is_closed_with(1011);
}

fn forbidden_frames_close_the_websocket(forebay: &Forebay) {
    for (name, bytes, code) in forbidden_frames(1 << 20) {
        let mut socket = Socket::accepted(forebay, "/echo");
        socket.0.send(bytes);
        let (opcode, data) = socket.read();
        assert_eq!((opcode, data.get(..2)), (CLOSE, Some(&u16::to_be_bytes(code)[..])), "{name}");
        assert_eq!(socket.0.rest(), b"", "{name}");
    }
}

fn a_websocket_that_is_not_read_holds_its_client_back(forebay: &Forebay) {
    let mut socket = Socket::accepted(forebay, "/slow");
    // More than the buffers of all sockets: a thread writes, and ends when the other side has read
    // it.
    let data = masked(0x80 | BINARY, &pattern(60_000));
    let mut writer = match socket.0.stream() {
        forebay_testkit::stream::TestStream::Tcp(stream) => stream.try_clone().unwrap(),
        _ => panic!("TCP"),
    };
    let (sent, counted) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        for number in 1..=500 {
            writer.write_all(&data).unwrap();
            sent.send(number).unwrap();
        }
    });
    let mut last = 0;
    assert!(eventually(|| {
        let before = last;
        last = counted.try_iter().last().unwrap_or(last);
        last > 0 && last == before
    }));
    assert!(last < 500, "all was taken although the application reads nothing");
    assert_eq!(forebay.get("/readslow").status, 200);
    thread.join().unwrap();
    socket.message(CLOSE, &1000u16.to_be_bytes());
    assert_eq!(socket.read().0, CLOSE);
    assert!(eventually(|| forebay.get("/waiting?slow").text() == "500"));
}

/// Serves one of the framework applications in `tests/asgi` at `/`, and at `/m`.
fn framework(name: &str, text: &str, callable: &str) -> Forebay {
    let folder = Folder::new();
    folder.write(&format!("app/{name}.py"), text);
    serve(folder, &configuration(&format!("module = \"{name}:{callable}\"\nworkers = 1")))
}

#[test]
fn fastapi_runs_unchanged() {
    if !peer::has(&["python3", "python3-fastapi"]) {
        return;
    }
    let forebay = framework("with_fastapi", include_str!("asgi/with_fastapi.py"), "app");
    assert_eq!(forebay.get("/items/7?q=x").text(), "{\"number\":7,\"q\":\"x\"}");
    assert_eq!(forebay.get("/items/seven").status, 422);
    assert_eq!(forebay.get("/docs").status, 200);
    let reply = post(&forebay, "/items", br#"{"name":"pike","price":1.5}"#);
    assert_eq!(reply.text(), "{\"name\":\"pike\",\"twice\":3.0}", "{}", forebay.output());
    assert_eq!(forebay.get("/events").text(), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
    assert_eq!(forebay.get("/later").text(), "\"soon\"");
    assert!(eventually(|| forebay.get("/log").text().contains("background")));
    let mut socket = Socket::accepted(&forebay, "/chat");
    socket.message(TEXT, b"ahoy");
    assert_eq!(socket.read(), (TEXT, br#"{"said": "ahoy"}"#.to_vec()));
    socket.message(CLOSE, &1001u16.to_be_bytes());
    socket.is_closed_with(1001);
    let log = "[\"started\",\"background\",\"gone 1001\"]";
    assert!(eventually(|| forebay.get("/log").text() == log), "{}", forebay.get("/log").text());
    forebay.stop();
}

#[test]
fn starlette_runs_unchanged() {
    if !peer::has(&["python3", "python3-starlette"]) {
        return;
    }
    let text = include_str!("asgi/with_starlette.py");
    let mut forebay = framework("with_starlette", text, "app");
    let reply = forebay
        .ask("POST /about?a=%C3%A9 HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(
        reply.text(),
        "{\"url\":\"http://shop.example/about?a=%C3%A9\",\"client\":\"127.0.0.1\",\
         \"far\":\"http://shop.example/inner/n\",\"body\":\"abc\",\"query\":{\"a\":\"\u{e9}\"}}"
    );
    assert_eq!(reply.header("X-Named"), Some("/about"));
    assert_eq!(forebay.get("/inner/x").text(), "inner x");
    assert_eq!(forebay.get("/inner/").status, 404);
    assert_eq!(forebay.get("/file").text(), text);
    let body = pattern(2_000_000);
    assert_eq!(post(&forebay, "/upload", &body).text(), "2000000");
    let mut client = forebay.connect();
    client.send("GET /file HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n");
    assert_eq!(client.reply().header("Content-Encoding"), Some("gzip"));
    client.send("GET /endless HTTP/1.1\r\nHost: h\r\n\r\n");
    client.bytes(100_000);
    drop(client);
    assert!(eventually(|| forebay.get("/gone").text() == "endless"));
    assert_eq!(forebay.get("/fails").status, 500);
    forebay.wait_for_output("ValueError: in starlette");
    let (mut socket, reply) = Socket::open(&forebay, "/echo", "Sec-WebSocket-Protocol: a\r\n");
    assert_eq!(reply.status, 101);
    socket.message(BINARY, b"\0\xff");
    assert_eq!(socket.read(), (BINARY, b"\0\xff".to_vec()));
    socket.is_closed_with(4002);
    forebay.stop();
}

#[test]
fn django_runs_unchanged() {
    if !peer::has(&["python3", "python3-django"]) {
        return;
    }
    let text = include_str!("asgi/with_django.py");
    let forebay = framework("with_django", text, "application");
    let reply = forebay.get("/about?x=1");
    assert_eq!(reply.text(), "http://localhost/about?x=1 /about /upload 127.0.0.1");
    let reply = forebay.get("/m/about");
    assert_eq!(reply.text(), "http://localhost/m/about /about /m/upload 127.0.0.1");
    assert_eq!(post(&forebay, "/upload", b"12345").text(), "5 bytes, file None");
    let part = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\n";
    let body = [part.as_bytes(), &pattern(300_000), b"\r\n--b--\r\n"].concat();
    let mut client = forebay.connect();
    client.send(format!(
        "POST /upload HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data; boundary=b\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    assert_eq!(client.reply().text(), "300000 bytes, file a.txt", "{}", forebay.output());
    assert_eq!(forebay.get("/stream").body.len(), 10 + 2 * 90 + 3 * 900 + 1000);
    assert_eq!(forebay.get("/absent").status, 404);
    forebay.stop();
}

#[test]
fn the_example_answers_on_the_host_and_on_uvicorn_alike() {
    if !peer::has(&["python3", "uvicorn"]) {
        return;
    }
    let folder = Folder::new();
    folder.write("app/app.py", fs::read(format!("{EXAMPLE}/app.py")).unwrap());
    let socket = folder.path().join("s");
    let mut command = Command::new(PYTHON);
    command.args(["-m", "uvicorn", "--proxy-headers", "--forwarded-allow-ips=*", "--app-dir"]);
    command.arg(folder.path().join("app")).arg("--uds").arg(&socket).arg("app:application");
    let mut uvicorn = Process::start(command);
    uvicorn.wait_until_listening(&socket);
    let routes = "[[site.route]]\npath = \"/*\"\nproxy = { to = [\"unix:{tmp}/s\"] }\n";
    answers(site(folder, routes));
    uvicorn.stop();
    let folder = Folder::new();
    folder.write("app/app.py", fs::read(format!("{EXAMPLE}/app.py")).unwrap());
    answers(serve(folder, &configuration("module = \"app:application\"")));
}

fn answers(forebay: Forebay) {
    let mut client = forebay.connect();
    assert_eq!(client.get("/hello").text(), "GET /hello from 127.0.0.1\n");
    client.send("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(client.reply().text(), "POST /x from 127.0.0.1\nbody");
    assert_eq!(client.get("/count").text(), "0\n1\n2\n");
    drop(client);
    forebay.stop();
}
