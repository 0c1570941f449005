//! Plack, its test suite, its middleware and frameworks on it: in Forebay's own workers, and in
//! servers of Plack as backends.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer;
use support::checkers::{Front, PLACK_SUITE, has_plack_suite};
use support::{Forebay, serve, site};

const PLACK: (&str, &str) = ("Plack::Test::Suite", "libplack-perl");

fn app(source: &str) -> Forebay {
    let folder = Folder::new();
    folder.write("app.psgi", source);
    folder.write("files/a.txt", "a file\n");
    folder.write("files/s/b.css", "b { }\n");
    folder.write("files/missing.txt", "a page for 404\n");
    serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"app\"\n\
         [app.app]\nkind = \"psgi\"\nfile = \"app.psgi\"\nworkers = 2\nenv = { WHERE = \"{tmp}\" }\n",
    )
}

fn pass_suite(forebay: &Forebay) {
    Front::of(forebay.address, "one server").pass_plack_suite();
}

#[test]
fn placks_test_suite_passes() {
    if !has_plack_suite() {
        return;
    }
    let forebay = app(PLACK_SUITE);
    pass_suite(&forebay);
    forebay.stop();
}

#[test]
fn placks_test_suite_passes_through_http_to_starlet() {
    if !has_plack_suite() {
        return;
    }
    let folder = Folder::new();
    let Some(starlet) = peer::starlet(&folder.write("app.psgi", PLACK_SUITE)) else { return };
    let forebay = site(
        folder,
        &format!(
            "merge_slashes = false\n[[site.route]]\npath = \"/*\"\n\
             proxy = {{ to = [\"http://127.0.0.1:{}\"], host = \"client\" }}\n",
            starlet.port()
        ),
    );
    pass_suite(&forebay);
    forebay.stop();
    starlet.stop();
}

#[test]
fn placks_test_suite_passes_through_fastcgi() {
    if !has_plack_suite() {
        return;
    }
    let folder = Folder::new();
    let Some(plack) = peer::plack_fastcgi(&folder.write("app.psgi", PLACK_SUITE)) else { return };
    let forebay = site(
        folder,
        &format!(
            "[[site.route]]\npath = \"/*\"\nfastcgi = {{ to = \"127.0.0.1:{}\", mount = \"\" }}\n",
            plack.port()
        ),
    );
    pass_suite(&forebay);
    forebay.stop();
    plack.stop();
}

#[test]
fn placks_test_suite_passes_through_scgi() {
    if !has_plack_suite() {
        return;
    }
    let folder = Folder::new();
    let Some(plack) = peer::plack_scgi(&folder.write("app.psgi", PLACK_SUITE)) else { return };
    let forebay = site(
        folder,
        &format!(
            "[[site.route]]\npath = \"/*\"\nscgi = {{ to = \"127.0.0.1:{}\" }}\n",
            plack.port()
        ),
    );
    pass_suite(&forebay);
    forebay.stop();
    plack.stop();
}

#[test]
fn middleware_and_applications_of_plack_run() {
    let modules = [
        PLACK,
        ("Plack::Middleware::Session", "libplack-middleware-session-perl"),
        ("Plack::Middleware::Deflater", "libplack-middleware-deflater-perl"),
    ];
    if !peer::perl_has(&modules) {
        return;
    }
    let mut forebay = app(include_str!("psgi/middleware.psgi"));
    for (target, status, body) in [
        ("/file/a.txt", 200, "a file\n"),
        ("/file/none", 404, "not found"),
        ("/file/../app.psgi", 404, "Not Found"),
        ("/static/s/b.css", 200, "b { }\n"),
        ("/static/other", 200, "hello world"),
        ("/length", 200, "hello world"),
        ("/md5", 200, "hello world"),
        ("/chunked", 200, "hello world"),
        ("/buffered", 200, "123"),
        ("/head", 200, "hello world"),
        ("/runtime", 200, "hello world"),
        ("/conditional", 200, "fresh"),
        ("/basic", 401, "Authorization required"),
        ("/error", 404, "a page for 404\n"),
        ("/exception", 403, "not for you"),
        ("/jsonp?callback=f", 200, "f({\"a\":1})"),
        ("/cascade", 200, "hello world"),
    ] {
        let reply = forebay.get(target);
        let got = (reply.status, reply.text().trim_start_matches("/**/"));
        assert_eq!(got, (status, body), "{target}: {}", forebay.output());
    }
    let listing = forebay.get("/directory/");
    assert!(listing.text().contains("a.txt"), "{}", listing.text());
    assert!(forebay.get("/trace").text().contains("traced"));
    let unchanged = "GET /conditional HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"x\"\r\n\r\n";
    assert_eq!(forebay.ask(unchanged).status, 304);
    let basic = "GET /basic HTTP/1.1\r\nHost: h\r\nAuthorization: Basic dXNlcjpzZWNyZXQ=\r\n\r\n";
    assert_eq!(forebay.ask(basic).text(), "user");
    let mut client = forebay.connect();
    client.send("HEAD /head HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().status, 200);
    client.send("GET /deflater HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n");
    let deflated = client.reply();
    assert_eq!(deflated.header("Content-Encoding"), Some("gzip"));
    assert!(deflated.body.starts_with(b"\x1f\x8b") && deflated.body.len() < 200);
    forebay.wait_for_output("logged GET /file/a.txt HTTP/1.1 200 7");
    uploads_arrive(&forebay);
    forebay.stop();
}

fn uploads_arrive(forebay: &Forebay) {
    let body = "--b\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nx y\r\n--b\r\n\
        Content-Disposition: form-data; name=\"file\"; filename=\"f.txt\"\r\n\
        Content-Type: text/plain\r\n\r\nuploaded\r\n--b--\r\n";
    let reply = forebay.ask(format!(
        "POST /upload HTTP/1.1\r\nHost: h\r\nContent-Type: multipart/form-data; boundary=b\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(reply.text(), "x y|f.txt|8|uploaded");
}

#[test]
fn mojolicious_lite_runs() {
    if !peer::perl_has(&[("Mojolicious", "libmojolicious-perl")]) {
        return;
    }
    frameworks_answer(
        include_str!("psgi/mojo.psgi"),
        &[
            ("/", 200, "Mojo at /x"),
            ("/hello/you%20%26%20me", 200, "Hello you &amp; me!\n"),
            ("/stream", 200, "one two"),
        ],
        "{\"got\":\"b c\",\"session\":1}",
    );
}

#[test]
fn dancer_runs() {
    if !peer::perl_has(&[("Dancer2", "libdancer2-perl")]) {
        return;
    }
    frameworks_answer(
        include_str!("psgi/dancer.psgi"),
        &[
            ("/", 200, "Dancer at http://localhost/x"),
            ("/hello/you", 200, "Hello you!"),
            ("/stream", 200, "one two"),
        ],
        "got b c",
    );
}

fn frameworks_answer(source: &str, pages: &[(&str, u16, &str)], form: &str) {
    let forebay = app(source);
    let mut client = forebay.connect();
    for &(target, status, body) in pages {
        let reply = client.get(target);
        assert_eq!((reply.status, reply.text()), (status, body), "{}", forebay.output());
    }
    assert_eq!(client.get("/none").status, 404);
    client.send(
        "POST /form HTTP/1.1\r\nHost: h\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: 5\r\n\r\na=b+c",
    );
    assert_eq!(client.reply().text(), form);
    forebay.stop();
}

/// Opens a WebSocket.
fn websocket(forebay: &Forebay, fields: &str) -> (Client, u16) {
    let mut client = forebay.connect();
    client.send(format!(
        "GET /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{fields}\r\n"
    ));
    let status = client.reply().status;
    (client, status)
}

const KEY: &str = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Sends a frame with the mask 0, and returns opcode and content of the next one.
fn frame(client: &mut Client, opcode: u8, data: &[u8]) -> (u8, Vec<u8>) {
    let length = u16::try_from(data.len()).unwrap().to_be_bytes();
    client.send([&[0x80 | opcode, 0xfe][..], &length, &[0; 4], data].concat());
    let head = client.bytes(2);
    let length = match head[1] {
        126 => u16::from_be_bytes(client.bytes(2).try_into().unwrap()).into(),
        length => usize::from(length),
    };
    (head[0], client.bytes(length))
}

#[test]
fn websockets_of_plack_work_over_psgix_io() {
    if !peer::has(&["libprotocol-websocket-perl"]) {
        return;
    }
    let mut forebay = app(include_str!("psgi/websocket.psgi"));
    let (mut first, status) = websocket(&forebay, KEY);
    assert_eq!(status, 101, "{}", forebay.output());
    let (opcode, hello) = frame(&mut first, 1, b"hello");
    let pid = String::from_utf8(hello).unwrap().replace(" hello", "");
    assert_eq!((opcode, pid.parse::<u32>().is_ok()), (0x81, true), "{pid}");
    assert_eq!(
        frame(&mut first, 1, "gr\u{fc}n".as_bytes()).1,
        format!("{pid} gr\u{fc}n").as_bytes()
    );
    assert_eq!(frame(&mut first, 9, b"ping"), (0x8a, b"ping".to_vec()));
    let large = vec![b'x'; 60_000];
    assert_eq!(frame(&mut first, 2, &large), (0x82, large));
    // Its worker is taken, and the other one serves everybody else.
    for _ in 0..4 {
        assert_ne!(forebay.get("/pid").text(), pid);
    }
    assert_eq!(forebay.get("/echo").status, 426);
    // Wrong handshakes, and frames that the module refuses, end alone.
    for fields in ["", "Sec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Key: x\r\n"] {
        let (_, status) = websocket(&forebay, fields);
        assert_eq!(status, 400, "{fields}");
    }
    for hostile in [
        &b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0x"[..],
        b"\x81\xff\0\0\0\0\x10\0\0\0\0\0\0\0x",
    ] {
        let (mut client, status) = websocket(&forebay, KEY);
        assert_eq!(status, 101);
        client.send(hostile);
        assert_eq!(client.rest(), b"");
        forebay.wait_for_output("a wrong frame");
    }
    // A client that leaves without a word gives its worker back.
    drop(first);
    forebay.wait_for_output("the client left");
    let (mut second, status) = websocket(&forebay, KEY);
    assert_eq!(status, 101);
    assert_eq!(frame(&mut second, 8, b"\x03\xe8"), (0x88, b"\x03\xe8".to_vec()));
    assert_eq!(second.rest(), b"");
    forebay.stop();
}

#[test]
fn websockets_of_mojolicious_work_in_its_own_server() {
    if !peer::has(&["libmojolicious-perl"]) {
        return;
    }
    let folder = Folder::new();
    folder.write(
        "app.pl",
        "use Mojolicious::Lite -signatures;\n\
         websocket '/echo' => sub ($c) { $c->on(message => sub ($c, $text) { $c->send(\"$text!\") }) };\n\
         get '/' => { text => 'page' };\napp->start;\n",
    );
    let forebay = serve(
        folder,
        "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\npath = \"/*\"\napp = \"app\"\n\
         [app.app]\nkind = \"command\"\nspeaks = \"http\"\nenv = { MOJO_MODE = \"production\" }\n\
         run = [\"perl\", \"app.pl\", \"daemon\", \"-l\", \"http://127.0.0.1:{port}\"]\n",
    );
    assert_eq!(forebay.get("/").text(), "page", "{}", forebay.output());
    // One process serves many WebSockets.
    let mut all: Vec<_> = (0..8).map(|_| websocket(&forebay, KEY)).collect();
    for (client, status) in &mut all {
        assert_eq!(*status, 101);
        assert_eq!(frame(client, 1, b"hello"), (0x81, b"hello!".to_vec()));
    }
    forebay.stop();
}
