//! `forebay serve` with real HTTP/2 servers.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::port;
use forebay_testkit::tls::Authority;
use support::{Forebay, pattern, site};

fn proxied(to: &str, keys: &str) -> String {
    format!("[[site.route]]\npath = \"/*\"\n[site.route.proxy]\nto = \"{to}\"\n{keys}\n")
}

fn by_h2c(peer: &Peer) -> Forebay {
    site(Folder::new(), &proxied(&format!("h2c://127.0.0.1:{}", peer.port()), ""))
}

const PAGES: [(&str, &str); 4] = [
    (
        "ok.jsp",
        r#"<%@ page session="false" trimDirectiveWhitespaces="true" %>ok <%= request.getProtocol() %>"#,
    ),
    (
        "slow.jsp",
        r#"<%@ page session="false" trimDirectiveWhitespaces="true" %><% Thread.sleep(3000); %>slow"#,
    ),
    (
        "large.jsp",
        r#"<%@ page session="false" trimDirectiveWhitespaces="true" %><%
byte[] piece = new byte[65536];
long left = Long.parseLong(request.getParameter("mb")) << 20;
response.setContentLengthLong(left);
for (; left > 0; left -= piece.length) response.getOutputStream().write(piece);
%>"#,
    ),
    (
        "count.jsp",
        r#"<%@ page session="false" trimDirectiveWhitespaces="true" %><%
byte[] piece = new byte[Integer.parseInt(request.getParameter("piece"))];
long sum = 0;
for (int n; (n = request.getInputStream().read(piece)) > 0; ) sum += n;
%><%= sum %>"#,
    ),
];

/// Returns the established connections to this port from the kernel's list.
fn connections_to(port: u16) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (remote, established) = (format!(":{port:04X}"), "01");
    let is_one = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|address| address.ends_with(&remote))
            && fields.next() == Some(established)
    };
    table.lines().filter(is_one).map(str::to_owned).collect()
}

fn threads_of(forebay: &Forebay) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", forebay.process.id())).unwrap().count()
}

#[test]
fn tomcat_serves_slow_requests_large_bodies_and_many_requests_by_http2() {
    let Some(tomcat) = peer::tomcat_http2(
        &PAGES,
        "maxConcurrentStreams=\"200\" maxConcurrentStreamExecution=\"200\"",
    ) else {
        return;
    };
    let forebay = support::serve(
        Folder::new(),
        &format!(
            "[server]\nthreads = 1\n[[site]]\nlisten = \"127.0.0.1:0\"\n{}",
            proxied(&format!("h2c://127.0.0.1:{}", tomcat.port()), "")
        ),
    );
    assert_eq!(forebay.get("/ok.jsp").text(), "ok HTTP/2.0");
    let (before, first) = (threads_of(&forebay), connections_to(tomcat.port()));
    thread::scope(|scope| {
        let slow: Vec<_> =
            (0..170).map(|_| scope.spawn(|| forebay.get("/slow.jsp").text().to_owned())).collect();
        // All are active if the last one gets its answer after the others have arrived.
        let deadline = Instant::now() + Duration::from_secs(60);
        assert_eq!(forebay.get("/ok.jsp").status, 200);
        let now = connections_to(tomcat.port());
        // One connection as a rule. A burst may find that the first one is closing.
        assert!((1..=2).contains(&now.len()), "they share: {now:#?}, first {first:#?}");
        assert_eq!(threads_of(&forebay), before);
        for slow in slow {
            assert_eq!(slow.join().unwrap(), "slow");
        }
        assert!(Instant::now() < deadline, "they were not asked one by one");
    });
    assert_eq!(forebay.get("/large.jsp?mb=64").body.len(), 64 << 20);
    // If an application reads small amounts, Tomcat opens its windows in small steps.
    for (length, piece) in [(3_000_000, 65_536), (300_000, 100)] {
        let head = format!(
            "POST /count.jsp?piece={piece} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        );
        let reply = forebay.ask([head.as_bytes(), &pattern(length)].concat());
        assert_eq!((reply.status, reply.text()), (200, length.to_string().as_str()));
    }
    let mut client = forebay.connect();
    for _ in 0..3_000 {
        assert_eq!(client.get("/ok.jsp").status, 200);
    }
    assert!(!forebay.output().contains("GOAWAY") && !forebay.output().contains("CALM"));
    assert!(connections_to(tomcat.port()).len() <= 2, "none was opened anew");
    forebay.stop();
}

/// Serves these routes over TLS, with a certificate of `ca.pem` for localhost.
fn over_tls(routes: &str) -> Forebay {
    let folder = Folder::new();
    let authority = Authority::new("of the test");
    let identity = authority.issue(&["localhost"]);
    folder.write("ca.pem", &authority.pem);
    folder.write("cert.pem", identity.certificate);
    folder.write("key.pem", identity.key);
    support::serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"https://127.0.0.1:0\"\n\
             tls = {{ certificate = \"cert.pem\", key = \"key.pem\" }}\n{routes}"
        ),
    )
}

/// Serves a route to this server over TLS.
fn by_tls(peer: &Peer) -> Forebay {
    over_tls(&proxied(&format!("h2c://127.0.0.1:{}", peer.port()), ""))
}

/// Runs the client of `scripts/go/routeguide` with this port. Returns its output.
fn routeguide(command: &str, port: u16, authorities: Option<&Path>, rest: &[&str]) -> String {
    let program = peer::built_from_go("routeguide").expect("its server runs");
    let mut client = Command::new(program);
    client.arg(command);
    if let Some(authorities) = authorities {
        client.arg("-ca").arg(authorities);
    }
    let output = client.arg(format!("127.0.0.1:{port}")).args(rest).output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Makes every kind of call, with 20,000 messages in each direction that streams.
fn stream_20_000_messages(forebay: &Forebay) {
    let authorities = forebay.folder.path().join("ca.pem");
    let authorities = Some(&*authorities).filter(|path| path.exists());
    let said = routeguide("call", forebay.address.port(), authorities, &[]);
    assert!(said.contains("all calls went well"), "{said}{}", forebay.output());
    let output = forebay.output();
    assert!(!output.contains("CALM") && !output.contains("502"), "{output}");
}

#[test]
fn grpc_go_streams_20_000_messages_each_way_through_front_and_backend() {
    let Some(mut server) = peer::routeguide() else { return };
    for forebay in [by_h2c(&server), by_tls(&server)] {
        stream_20_000_messages(&forebay);
        forebay.stop();
        // Only RST_STREAM shows that a client without a deadline has given up a call.
        let process = server.process();
        let ended = "a call that waits ends: context canceled";
        process.wait_until("cancelled", |process| process.output().contains(ended)).unwrap();
    }
}

/// Returns routes to a program that speaks h2c and gets calls unchanged.
fn commanded() -> Option<String> {
    let program = peer::built_from_go("routeguide")?;
    Some(format!(
        "[[site.route]]\napp = \"guide\"\n[app.guide]\nkind = \"command\"\nspeaks = \"h2c\"\n\
         run = [\"{}\", \"serve\", \"{{port}}\"]\n",
        program.display()
    ))
}

#[test]
fn grpc_go_streams_20_000_messages_each_way_to_a_program_that_forebay_runs() {
    let Some(routes) = commanded() else { return };
    for forebay in [site(Folder::new(), &routes), over_tls(&routes)] {
        stream_20_000_messages(&forebay);
        forebay.stop();
    }
}

/// The same client and server with nginx, which shows that both work.
#[test]
fn grpc_go_streams_20_000_messages_each_way_through_nginx() {
    let Some(server) = peer::routeguide() else { return };
    let conf = format!(
        "server {{ listen 127.0.0.1:{{port}} http2; client_max_body_size 0; \
         location / {{ grpc_pass grpc://127.0.0.1:{}; }} }}",
        server.port()
    );
    let Some(nginx) = peer::nginx(&conf) else { return };
    let said = routeguide("call", nginx.port(), None, &[]);
    assert!(said.contains("all calls went well"), "{said}");
}

/// nginx's recipe has the same codes: a location for each error, which adds `grpc-status`.
#[test]
fn grpc_go_gets_errors_of_the_gateway_as_status() {
    let Some(server) = peer::routeguide() else { return };
    let gone = port::free_port();
    let routes = format!(
        "[[site.route]]\npath = \"/gone.Service/*\"\nproxy = \"h2c://127.0.0.1:{gone}\"\n\
         [[site.route]]\npath = \"/denied.Service/*\"\ndeny = [\"127.0.0.1\"]\nrespond = \"in\"\n\
         [[site.route]]\npath = \"/users.Service/*\"\nbasic_auth = {{ file = \"users\" }}\nrespond = \"in\"\n\
         [[site.route]]\npath = \"/small.Service/*\"\nmax_body = 1\nrequest_buffering = true\nproxy = \"h2c://127.0.0.1:{gone}\"\n\
         [[site.route]]\npath = \"/closed.Service/*\"\nrespond = {{ status = 503 }}\n\
         [[site.route]]\npath = \"/routeguide.RouteGuide/*\"\nproxy = \"h2c://127.0.0.1:{}\"\n",
        server.port()
    );
    let folder = Folder::new();
    folder.write("users", "");
    let forebay = site(folder, &routes);
    let methods = [
        ("/routeguide.RouteGuide/GetFeature", "OK: "),
        ("/routeguide.RouteGuide/NoMethod", "Unimplemented: unknown method"),
        ("/gone.Service/Call", "Unavailable: 502 Bad Gateway"),
        ("/denied.Service/Call", "PermissionDenied: 403 Forbidden"),
        ("/users.Service/Call", "Unauthenticated: 401 Unauthorized"),
        ("/small.Service/Call", "ResourceExhausted: 413 "),
        ("/closed.Service/Call", "Unavailable: 503 Service Unavailable"),
        ("/none.Service/Call", "Unimplemented: 404 Not Found"),
    ];
    let paths = methods.map(|(path, _)| path);
    let said = routeguide("code", forebay.address.port(), None, &paths);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), methods.len(), "{said}{}", forebay.output());
    for (line, (path, expected)) in lines.iter().zip(methods) {
        assert!(line.starts_with(expected), "{path}: {line}");
    }
    forebay.stop();
}

#[test]
fn every_kind_of_grpc_call_goes_through() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc/peer.py");
    let Some(server) = peer::grpc(&script) else { return };
    for (forebay, has_tls) in [(by_h2c(&server), false), (by_tls(&server), true)] {
        let mut client = Command::new("/usr/bin/python3");
        client.arg(&script).args(["call", &forebay.address.port().to_string()]);
        if has_tls {
            client.arg(forebay.folder.path().join("ca.pem"));
        }
        let output = client.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("all calls went well"), "{said}{errors}{}", forebay.output());
        forebay.stop();
    }
}

#[test]
fn grpcurl_gets_messages_and_errors_in_cleartext_and_by_tls() {
    let Some(grpcurl) = peer::built_from_go("grpcurl") else { return };
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/grpc");
    let Some(server) = peer::grpc(&protos.join("peer.py")) else { return };
    for (forebay, has_tls) in [(by_h2c(&server), false), (by_tls(&server), true)] {
        let call = |method: &str, messages: &str| {
            let mut command = Command::new(&grpcurl);
            command.args(["-max-time", "30", "-proto", "peer.proto", "-import-path"]).arg(&protos);
            if has_tls {
                command.args(["-authority", "localhost", "-cacert"]);
                command.arg(forebay.folder.path().join("ca.pem"));
            } else {
                command.arg("-plaintext");
            }
            let address = format!("127.0.0.1:{}", forebay.address.port());
            let output = command.args(["-d", messages, &address, method]).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8(said).unwrap();
            (output.status.success(), said.split_whitespace().collect::<String>())
        };
        assert_eq!(
            call("test.Peer/Echo", r#"{"text":"one"}"#),
            (true, r#"{"text":"one"}"#.to_owned())
        );
        let three = r#"{"text":"1"}{"text":"2"}{"text":"3"}"#;
        assert_eq!(call("test.Peer/Back", three), (true, three.to_owned()));
        let (is_well, said) = call("test.Peer/Fail", "{}");
        assert!(!is_well && said.contains("Code:NotFound"), "{said}");
        assert!(said.contains("Message:nothere"), "{said}");
        forebay.stop();
    }
}

#[test]
fn a_program_that_speaks_h2c_is_started_and_asked() {
    let Some(nghttpd) = peer::installed("nghttpd") else { return };
    let folder = Folder::new();
    folder.write("docs/page.html", "from a program");
    let forebay = support::serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\napp = \"docs\"\n[app.docs]\n\
             kind = \"command\"\nspeaks = \"h2c\"\nrun = [\"{}\", \"--no-tls\", \
             \"--address=127.0.0.1\", \"-d\", \"docs\", \"{{port}}\"]\n",
            nghttpd.to_string_lossy()
        ),
    );
    for _ in 0..20 {
        let reply = forebay.get("/page.html");
        assert_eq!((reply.status, reply.text()), (200, "from a program"));
    }
    forebay.stop();
}

#[test]
fn a_server_that_speaks_http2_alone_is_asked_how_it_is() {
    let conf = "server { listen 127.0.0.1:{port} http2; root {tmp}; location / { default_type text/plain; } }";
    let Some(nginx) = peer::nginx(conf) else { return };
    nginx.folder().write("hello", "hello");
    let keys = "health = { path = \"/well\", interval = \"20ms\", rises = 1, falls = 1 }";
    let to = format!("h2c://127.0.0.1:{}", nginx.port());
    let mut forebay = site(Folder::new(), &proxied(&to, keys));
    forebay.wait_for_output("is down: /well answered 404");
    nginx.folder().write("well", "");
    forebay.wait_for_output("is up again");
    assert_eq!(forebay.get("/hello").text(), "hello");
    forebay.stop();
    nginx.stop();
}

#[test]
fn health_checks_verify_servers_as_requests_do() {
    let authority = Authority::new("of the backend");
    let backend = |names: &[&str]| {
        let folder = Folder::new();
        let identity = authority.issue(names);
        folder.write("cert.pem", &identity.certificate);
        folder.write("key.pem", &identity.key);
        folder.write("files/well", "all is well");
        support::serve(
            folder,
            "[[site]]\nlisten = \"https://127.0.0.1:0\"\n\
             tls = { certificate = \"cert.pem\", key = \"key.pem\" }\n\
             [[site.route]]\nfiles = \"files\"\n",
        )
    };
    let stranger = backend(&["other.example"]);
    let known = backend(&["backend.example"]);
    for version in ["1.1", "2", "auto"] {
        let folder = Folder::new();
        folder.write("ca.pem", &authority.pem);
        let mut forebay = support::serve(
            folder,
            &format!(
                "[[site]]\nlisten = \"127.0.0.1:0\"\n[[site.route]]\nproxy = \"@b\"\n[upstream.b]\n\
                 to = [\"https://{}\", \"https://{}\"]\nhttp_version = \"{version}\"\n\
                 tls = {{ ca = \"ca.pem\", server_name = \"backend.example\" }}\n\
                 health = {{ path = \"/well\", body = \"is well\", interval = \"20ms\", falls = 1 }}\n",
                known.address, stranger.address
            ),
        );
        forebay.wait_for_output(&format!("{} is down: TLS: ", stranger.address));
        forebay.wait_for_output("it is for other names");
        for _ in 0..4 {
            assert_eq!(forebay.get("/well").text(), "all is well", "{version}");
        }
        let output = forebay.output();
        assert!(!output.contains(&format!("{} is down", known.address)), "{output}");
        forebay.stop();
    }
    stranger.stop();
    known.stop();
}

/// An HTTP/2 server that answers one request on each connection, and then allows no more streams on
/// it. Connections stay open.
fn backend_that_allows_one_stream_a_connection() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the process of the test.
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || answer_one_stream(stream));
        }
    });
    port
}

fn answer_one_stream(mut stream: TcpStream) -> Option<()> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    /// MAX_CONCURRENT_STREAMS (3) = 0.
    const NO_STREAMS: [u8; 15] = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0];
    stream.read_exact(&mut [0; 24]).ok()?;
    stream.write_all(&SETTINGS).ok()?;
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).ok()?;
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).ok()?;
        match (header[3], header[4]) {
            // HEADERS: `:status` 204, which ends the stream.
            (1, _) => {
                let head = [&[0, 0, 1, 1, 5][..], &header[5..], &[0x89]].concat();
                stream.write_all(&[&head[..], &NO_STREAMS].concat()).ok()?;
            }
            // SETTINGS and PING, which need an acknowledgement.
            (4, 0) => stream.write_all(&[0, 0, 0, 4, 1, 0, 0, 0, 0]).ok()?,
            (6, 0) => {
                stream.write_all(&[&[0, 0, 8, 6, 1, 0, 0, 0, 0][..], &payload].concat()).ok()?;
            }
            _ => {}
        }
    }
}

#[test]
fn a_backend_that_allows_no_streams_any_more_is_asked_over_another_connection_as_by_haproxy() {
    const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let port = backend_that_allows_one_stream_a_connection();
    let server = "[server]\nthreads = 1\n[[site]]\nlisten = \"127.0.0.1:0\"\n";
    let route = proxied(&format!("h2c://127.0.0.1:{port}"), "");
    let forebay = support::serve(Folder::new(), &[server, &route].concat());
    let haproxy = peer::haproxy(&format!(
        "listen l\n bind 127.0.0.1:{{port}}\n server s 127.0.0.1:{port} proto h2"
    ));
    let theirs = haproxy.as_ref().map(|haproxy| haproxy.address().clone());
    for address in [Some(forebay.address.into()), theirs].into_iter().flatten() {
        let mut client = Client::connect(address);
        for _ in 0..5 {
            client.send(REQUEST);
            assert_eq!(client.reply().status, 204, "{}", forebay.output());
        }
    }
    forebay.stop();
}
