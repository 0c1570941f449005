//! `forebay serve` with PAGI applications (`kind = "pagi"`): requests, event streams and WebSockets as
//! the specification of version 0.3 has them.

mod support;

use std::io::Write;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::{Client, Reply};
use forebay_testkit::peer;
use forebay_testkit::process::eventually;
use rustix::process::{Pid, Signal, kill_process};
use support::websocket::{BINARY, CLOSE, PING, PONG, Socket, TEXT, forbidden_frames, masked};
use support::{Forebay, check_start, chunked, pattern, read_until, serve};

fn folder() -> Option<Folder> {
    if !peer::has(&["libfuture-asyncawait-perl", "libio-async-perl"]) {
        return None;
    }
    let folder = Folder::new();
    folder.write("app/app.pl", include_str!("pagi/app.pl"));
    folder.write("app/file.bin", pattern(300_000));
    folder.write("app/large.bin", pattern(8_000_000));
    Some(folder)
}

fn configuration(keys: &str) -> String {
    format!(
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/m/*\"\napp = \"a\"\n\
         [[site.route]]\napp = \"a\"\n[app.a]\nkind = \"pagi\"\ndir = \"app\"\nfile = \"app/app.pl\"\n\
         {keys}\n"
    )
}

fn app(keys: &str) -> Option<Forebay> {
    Some(serve(folder()?, &configuration(keys)))
}

fn post(forebay: &Forebay, path: &str, body: &[u8]) -> Reply {
    let mut client = forebay.connect();
    client
        .send(format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len()));
    client.send(body);
    client.reply()
}

fn seen(forebay: &Forebay, name: &str) -> String {
    forebay.get(&format!("/seen?{name}")).text().to_owned()
}

#[test]
fn requests_and_replies_are_as_pagi_specifies() {
    let Some(mut forebay) = app("") else { return };
    the_scope_describes_the_request(&forebay);
    bodies_pass_in_both_directions(&forebay);
    replies_are_framed(&forebay);
    files_are_sent_by_the_host(&forebay);
    errors_of_the_application_are_logged(&mut forebay);
    let (exit, folder) = forebay.stop();
    assert!(
        folder.path().join("app/ended").exists(),
        "the lifespan was shut down: {}",
        exit.output
    );
}

fn the_scope_describes_the_request(forebay: &Forebay) {
    let reply = forebay.ask(
        "GET /m/scope/a%20b%C3%A9?x=y%20z HTTP/1.1\r\nHost: h\r\nX-Thing: 1\r\nCookie: a=1\r\n\
         X-Forwarded-For: 6.6.6.6\r\nX-Thing: 2\r\nCookie: b=2\r\nConnection: keep-alive\r\n\r\n",
    );
    let port = forebay.address.port();
    assert_eq!(
        reply.text(),
        format!(
            "type=http\nhttp_version=1.1\nmethod=GET\nscheme=http\npath=/m/scope/a b\u{e9}\n\
             raw_path=/m/scope/a%20b%C3%A9\nquery_string=x=y%20z\nroot_path=/m\n\
             server=127.0.0.1 {port}\nclient=127.0.0.1\npagi=0.3\nword=from the startup\n\
             extensions=fullflush\nhost: h\nx-thing: 1\ncookie: a=1; b=2\nx-thing: 2"
        ),
        "one cookie field, and a client cannot forge its address"
    );
    for _ in 0..2 {
        let reply = forebay.ask("GET /scope/%ff HTTP/1.0\r\n\r\n");
        for part in
            ["http_version=1.0", "root_path=\n", "word=from the startup", "path=/scope/\u{ff}"]
        {
            assert!(reply.text().contains(part), "{part}: {}", reply.text());
        }
    }
}

fn bodies_pass_in_both_directions(forebay: &Forebay) {
    let body = pattern(3_000_000);
    assert_eq!(post(forebay, "/echo", &body).body, body);
    assert_eq!(post(forebay, "/size", &body).text(), "3000000");
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
}

fn replies_are_framed(forebay: &Forebay) {
    for (path, status, length, body) in [
        ("/one", 200, Some("9"), "one piece"),
        ("/pieces", 201, None, "abc"),
        ("/none", 204, None, ""),
        ("/flush", 200, None, "begun and ended"),
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
    let mut client = forebay.connect();
    client
        .send("GET /trailers HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n");
    let text = String::from_utf8(client.rest()).unwrap();
    assert!(text.ends_with("4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n"), "{text}");
}

fn files_are_sent_by_the_host(forebay: &Forebay) {
    let file = pattern(300_000);
    let reply = forebay.get("/file");
    assert_eq!((reply.header("Content-Length"), &reply.body), (Some("300000"), &file));
    assert_eq!(forebay.get("/file?offset=10&length=70000").body, file[10..70_010]);
    assert_eq!(forebay.get("/file?offset=299999&length=70000").body, file[299_999..]);
    assert_eq!(forebay.get("/file?offset=400000").body, b"");
    assert_eq!(forebay.get("/handle").body, file[1..]);
}

fn errors_of_the_application_are_logged(forebay: &mut Forebay) {
    for (path, logged) in [
        ("/die?a=b", "warn forebay: [a "),
        ("/die?a=b", "GET /die: the application failed: before anything"),
        ("/list", "an event is a hash with the key `type`"),
        ("/untyped", "an event is a hash with the key `type`"),
        ("/nothing", "it returned before its reply was complete"),
        ("/plain", "the application returned no Future"),
        ("/half", "it returned before its reply was complete"),
        ("/short", "a body of 5 bytes, but a Content-Length of 10"),
        ("/long", "a body of 6 bytes, but a Content-Length of 4"),
        ("/wide", "the body has characters above 255: encode it"),
        ("/split", "a line break or a zero byte in a header field"),
        ("/name", "the name of a header has other characters than a token"),
        ("/twice", "the reply was started twice"),
        ("/event", "'http.nonsense' is no event that can be sent here"),
        ("/both", "only one of body, file and fh may be given"),
        ("/absent", "cannot open no-such-file"),
        ("/unknown", "no http unknown"),
    ] {
        let reply = forebay.get(path);
        assert_eq!((reply.status, reply.text()), (500, "Internal Server Error\n"), "{path}");
        forebay.wait_for_output(logged);
    }
    assert!(forebay.try_get("/dielater").is_err(), "a part must not be taken for the whole");
    forebay.wait_for_output("in the middle");
    for how in ["file", "handle", "cancelled"] {
        let path = format!("/overtaken?{how}");
        assert!(forebay.try_get(&path).is_err(), "{how}: a part must not be taken for the whole");
        forebay.wait_for_output("GET /overtaken: the application failed: a body while a file");
    }
    assert_eq!(forebay.get("/backstop").status, 500);
    assert_eq!(seen(forebay, "backstop"), "server_error");
    assert_eq!(forebay.get("/one").text(), "one piece", "the process has not ended");
}

#[test]
fn many_requests_at_once_in_one_process_stay_apart() {
    let Some(forebay) = app("on_abort = \"stop\"") else { return };
    let pid = forebay.get("/pid").text().to_owned();
    let mut clients: Vec<Client> = (0..50).map(|_| forebay.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(format!("GET /meet?50-{number} HTTP/1.1\r\nHost: h\r\n\r\n"));
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.reply().text(), format!("met 50-{number}"));
    }
    drop(clients);
    assert_eq!(forebay.get("/many").text(), format!("{}others ran", ".".repeat(1000)));
    assert_eq!(forebay.get("/state").text(), "state");
    let complete = "0 0 complete 1 1 http.disconnect";
    assert!(
        eventually(|| seen(&forebay, "complete") == complete),
        "{}",
        seen(&forebay, "complete")
    );
    // The application learns that a client has left.
    let mut client = forebay.connect();
    client.send("GET /wait?a HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| seen(&forebay, "a") == "waits"));
    drop(client);
    let left = "waits, client_closed, http.disconnect, connected no, started 0";
    assert!(eventually(|| seen(&forebay, "a") == left), "{}", seen(&forebay, "a"));
    assert_eq!(seen(&forebay, "a-callback"), "on_disconnect client_closed");
    let mut client = forebay.connect();
    client.send("GET /endless?b HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| seen(&forebay, "b") == "streams"));
    drop(client);
    assert!(eventually(|| seen(&forebay, "b") == "ended"));
    a_slow_client_holds_the_application_back(&forebay);
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
    let water = || {
        let text = forebay.get("/water").text().to_owned();
        let numbers: Vec<u64> = text.split(' ').map(|part| part.parse().unwrap()).collect();
        (numbers[0], numbers[1])
    };
    let (high, _) = water();
    assert!(high > 0, "on_high_water was called");
    client.bytes(8 << 20);
    assert!(eventually(|| water().1 > 0), "on_drain was called");
}

#[test]
fn event_streams_have_a_scope_of_their_own() {
    let Some(mut forebay) = app("") else { return };
    let ask = |path: &str, method: &str, body: &str| {
        forebay.ask(format!(
            "{method} {path} HTTP/1.1\r\nHost: h\r\nAccept: text/html, text/event-stream;q=0.9\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    let text = "event: tick\nid: \u{e9}\nretry: 5\ndata: a\ndata: b\n\n:quiet\n\n:loud\n\n";
    for path in ["/ticks", "/ticks?return"] {
        let reply = ask(path, "POST", "sent");
        assert_eq!(reply.text(), format!("{text}data: POST sent\n\n"), "{path}");
        assert_eq!(reply.header("Content-Type"), Some("text/event-stream"));
        assert_eq!(reply.header("Cache-Control"), Some("no-cache"));
        assert_eq!(reply.header("X-Thing"), Some("1"));
    }
    let closed = "refused: 'sse.send' was sent after the reply was complete";
    assert!(
        eventually(|| seen(&forebay, "closed").trim_end() == closed),
        "{}",
        seen(&forebay, "closed")
    );
    let reply = ask("/decline", "GET", "");
    assert_eq!((reply.status, reply.text(), reply.header("X-Why")), (401, "not you", Some("no")));
    assert_eq!(ask("/die", "GET", "").status, 500);
    assert_eq!(ask("/early", "GET", "").status, 500);
    let mut client = forebay.connect();
    client.send("GET /forge HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n");
    let came = String::from_utf8(client.rest()).unwrap();
    assert!(!came.contains("forged") && !came.ends_with("0\r\n\r\n"), "{came}");
    forebay.wait_for_output("a line break in `id`");
    // A silent stream is kept open by comments, and hears of its client.
    let mut client = forebay.connect();
    client.send("GET /keepalive HTTP/1.1\r\nHost: h\r\nAccept: text/event-stream\r\n\r\n");
    for _ in 0..2 {
        read_until(&mut client, ":still here\n\n");
    }
    drop(client);
    assert!(eventually(|| seen(&forebay, "keepalive") == "sse.disconnect client_closed"));
    forebay.stop();
}

#[test]
fn websockets_pass_messages_in_both_directions() {
    let Some(forebay) = app("max_message = \"1MiB\"") else { return };
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
    let parts =
        [masked(TEXT, b"one "), masked(0x80 | PING, b"p"), masked(0, b""), masked(0x80, b"two")];
    for byte in parts.concat() {
        socket.0.send([byte]);
    }
    assert_eq!(socket.read(), (PONG, b"p".to_vec()));
    assert_eq!(socket.read(), (TEXT, b"one two".to_vec()));
    socket.message(CLOSE, &[&4321u16.to_be_bytes()[..], b"done"].concat());
    socket.is_closed_with(4321);
    assert!(eventually(|| seen(&forebay, "ws") == "4321 done"));
    drop(Socket::accepted(&forebay, "/echo"));
    assert!(eventually(|| seen(&forebay, "ws") == "1006 client_closed"));
    let mut socket = Socket::accepted(&forebay, "/m/scope?a=b");
    let text = String::from_utf8(socket.read().1).unwrap();
    let wanted = "websocket ws /m/scope /m a=b none fullflush websocket.http.response \u{263a}";
    assert_eq!(text, wanted);
    socket.is_closed_with(4001);
    for (path, status, body) in [
        ("/refuse", 403, ""),
        ("/deny", 401, "not you"),
        ("/die", 500, "Internal Server Error\n"),
        ("/unknown", 500, "Internal Server Error\n"),
    ] {
        let (_, reply) = Socket::open(&forebay, path, "");
        assert_eq!((reply.status, reply.text()), (status, body), "{path}");
    }
    Socket::accepted(&forebay, "/return").is_closed_with(1000);
    Socket::accepted(&forebay, "/die?accepted").is_closed_with(1011);
    Socket::accepted(&forebay, "/die?code").is_closed_with(1011);
    for (name, bytes, code) in forbidden_frames(1 << 20) {
        let mut socket = Socket::accepted(&forebay, "/echo");
        socket.0.send(bytes);
        let (opcode, data) = socket.read();
        assert_eq!((opcode, data.get(..2)), (CLOSE, Some(&u16::to_be_bytes(code)[..])), "{name}");
        socket.0.try_send(&masked(0x80 | CLOSE, &data)).ok();
        assert_eq!(socket.0.rest(), b"", "{name}");
    }
    a_websocket_that_is_not_read_holds_its_client_back(&forebay);
    // A client that answers no ping.
    let mut socket = Socket::accepted(&forebay, "/keepalive");
    assert_eq!(socket.read(), (PING, vec![]));
    assert!(eventually(|| seen(&forebay, "keepalive") == "1006 keepalive_timeout"));
    forebay.stop();
}

fn a_websocket_that_is_not_read_holds_its_client_back(forebay: &Forebay) {
    let mut socket = Socket::accepted(forebay, "/slow");
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
    assert!(eventually(|| seen(forebay, "slow") == "500"));
}

#[test]
fn a_killed_process_is_replaced() {
    let Some(mut forebay) = app("") else { return };
    let mut client = forebay.connect();
    client.send("GET /wait?x HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(eventually(|| seen(&forebay, "x") == "waits"));
    let pid = forebay.get("/pid").text().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert_eq!(client.reply().status, 502);
    forebay.wait_for_output("signal 9");
    assert!(eventually(|| forebay.get("/one").text() == "one piece"));
    forebay.stop();
}

#[test]
fn requests_and_websockets_end_before_the_process_does() {
    let Some(forebay) = app("") else { return };
    let mut client = forebay.connect();
    client.send("GET /flush HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut socket = Socket::accepted(&forebay, "/echo");
    assert_eq!(client.reply().text(), "begun and ended");
    let stopped = std::thread::spawn(move || forebay.stop());
    // The gateway closes tunnels itself at its end: 1001, or the host's 1012 comes first.
    let (opcode, data) = socket.read();
    assert_eq!(opcode, CLOSE, "{data:?}");
    socket.message(CLOSE, &data);
    let (_, folder) = stopped.join().unwrap();
    assert!(folder.path().join("app/ended").exists());
}

#[test]
fn a_start_that_fails_says_why() {
    let Some(folder) = folder() else { return };
    folder.write("app/other.pl", "use strict;\nuse warnings;\nmy $x = $undeclared;\n");
    folder.write("app/seven.pl", "7;\n");
    let env = |how: &str| configuration(&format!("env = {{ STARTUP = \"{how}\" }}"));
    let file = |name: &str| configuration("").replace("app/app.pl", name);
    for (text, said) in [
        (env("fails"), "refused its startup (lifespan): no database today"),
        (file("app/other.pl"), "Global symbol \"$undeclared\""),
        (file("app/seven.pl"), "no PAGI application"),
    ] {
        let exit = check_start(&folder, &text);
        assert_eq!(exit.status.code(), Some(3), "{text}\n{}", exit.output);
        assert!(exit.output.contains(said), "{said}\n{}", exit.output);
    }
    // An application that declines the lifespan starts.
    for how in ["raises", "returns"] {
        let exit = check_start(&folder, &env(how));
        assert_eq!(exit.status.code(), Some(0), "{how}\n{}", exit.output);
    }
}
