//! `forebay serve` with Tomcat as AJP backend.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Reply;
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::tls::{Authority, connect};
use rustls::version::TLS13;
use support::{Forebay, chunked, pattern, serve, site};

/// Prints the facts that a page knows about its request. An error page accepts any method.
const FACTS: &str = r#"<%@ page isErrorPage="true" session="false" contentType="text/plain" trimDirectiveWhitespaces="true" %>
method=<%= request.getMethod() %>
uri=<%= request.getRequestURI() %>
query=<%= request.getQueryString() %>
scheme=<%= request.getScheme() %>,<%= request.isSecure() %>
client=<%= request.getRemoteAddr() %>,<%= request.getRemotePort() %>
user=<%= request.getRemoteUser() %>,<%= request.getAuthType() %>
server=<%= request.getServerName() %>,<%= request.getServerPort() %>,<%= request.getLocalPort() %>
x=<%= request.getHeader("X-A") == null ? -1 : request.getHeader("X-A").length() %>
cipher=<%= request.getAttribute("jakarta.servlet.request.cipher_suite") %>,<%= request.getAttribute("jakarta.servlet.request.key_size") %>
hop=<%= request.getHeader("X-Hop") %>,<%= request.getHeader("X_B") %>,<%= request.getHeader("Expect") %>
"#;

/// Answers with the request's body.
const ECHO: &str = r#"<%@ page isErrorPage="true" session="false" contentType="application/octet-stream" trimDirectiveWhitespaces="true" %><%
response.setHeader("X-Length", String.valueOf(request.getContentLengthLong()));
java.io.OutputStream to = response.getOutputStream();
java.io.InputStream from = request.getInputStream();
byte[] piece = new byte[5000];
for (int n; (n = from.read(piece)) > 0; ) to.write(piece, 0, n);
to.flush();
out.clear();
out = pageContext.pushBody();
%>"#;

/// Answers without reading the body.
const EARLY: &str = r#"<%@ page isErrorPage="true" session="false" contentType="text/plain" trimDirectiveWhitespaces="true" %><% response.setStatus(403); %>no"#;

/// Counts the requests of a session, and names the server that answers.
const SESSION: &str = r#"<%@ page contentType="text/plain" trimDirectiveWhitespaces="true" %><%
Integer count = (Integer) session.getAttribute("count");
session.setAttribute("count", count == null ? 1 : count + 1);
%><%= session.getId().replaceAll(".*[.]", "") %>,<%= session.getAttribute("count") %>"#;

/// Sends a reply of the requested size in pieces.
const LARGE: &str = r#"<%@ page session="false" contentType="application/octet-stream" trimDirectiveWhitespaces="true" %><%
byte[] piece = new byte[32768];
java.io.OutputStream to = response.getOutputStream();
for (int n = Integer.parseInt(request.getParameter("pieces")); n > 0; n--) to.write(piece);
out.clear();
out = pageContext.pushBody();
%>"#;

const PAGES: [(&str, &str); 5] = [
    ("facts.jsp", FACTS),
    ("echo.jsp", ECHO),
    ("early.jsp", EARLY),
    ("session.jsp", SESSION),
    ("large.jsp", LARGE),
];

const CONNECTOR: &str = "secret=\"s3cret\" tomcatAuthentication=\"false\"";

/// Starts Forebay with a route to these Tomcats, and additional lines.
fn front_of(tomcats: &[&Peer], keys: &str, lines: &str) -> Forebay {
    let of = |(at, tomcat): (usize, &&Peer)| {
        format!("{{ url = \"127.0.0.1:{}\", route = \"t{}\" }}", tomcat.port(), at + 1)
    };
    let to: Vec<_> = tomcats.iter().enumerate().map(of).collect();
    let route = format!(
        "trusted_proxies = \"127.0.0.1\"\n[[site.route]]\npath = \"/*\"\n\
         ajp = {{ to = [{}]{keys} }}\n{lines}\n",
        to.join(", ")
    );
    site(Folder::new(), &route)
}

#[test]
fn tomcat_is_asked_over_ajp() {
    let Some(tomcat) = peer::tomcat(&PAGES, CONNECTOR, "t1") else { return };
    let secret = ", secret = \"s3cret\"";
    for keys in ["", ", ping = \"always\""] {
        let forebay = front_of(&[&tomcat], &format!("{secret}{keys}"), "");
        facts_arrive(&forebay);
        bodies_arrive_exactly(&forebay);
        an_early_answer_leaves_the_connection_in_order(&forebay);
        large_replies_arrive(&forebay);
        let (exit, _) = forebay.stop();
        assert!(exit.status.success(), "{}", exit.output);
    }
    tls_is_told(&tomcat);
    users_are_told(&tomcat);
    for (keys, status) in [("", 403), (", secret = \"wrong\"", 403), (secret, 200)] {
        let forebay = front_of(&[&tomcat], keys, "");
        for _ in 0..3 {
            assert_eq!(forebay.get("/facts.jsp").status, status, "{keys}");
        }
    }
}

fn facts_arrive(forebay: &Forebay) {
    let mut client = forebay.connect();
    let port = client.local_addr().port();
    client.send(
        "PATCH /facts.jsp?a=%20b HTTP/1.1\r\nHost: example.org:81\r\nX-A: 12\r\nX_B: 1\r\n\
         Connection: X-Hop\r\nX-Hop: 1\r\nContent-Length: 0\r\n\r\n",
    );
    let reply = client.reply();
    assert_eq!(reply.status, 200, "{}", forebay.output());
    let listens = forebay.address.port();
    for line in [
        "method=PATCH",
        "uri=/facts.jsp",
        "query=a=%20b",
        "scheme=http,false",
        &format!("client=127.0.0.1,{port}"),
        "user=null,null",
        &format!("server=example.org,81,{listens}"),
        "x=2",
        "cipher=null,null",
        "hop=null,null,null",
    ] {
        assert!(reply.text().lines().any(|l| l == line), "{line}: {}", reply.text());
    }
    client.send(
        "GET /facts.jsp HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.1\r\n\
         X-Forwarded-Proto: https\r\n\r\n",
    );
    let reply = client.reply();
    for line in ["method=GET", "query=null", "scheme=https,true", "client=192.0.2.1,0"] {
        assert!(reply.text().lines().any(|l| l == line), "{line}: {}", reply.text());
    }
    // As large as a packet allows, and larger.
    let ask = |length: usize| {
        let value = "v".repeat(length);
        forebay.ask(format!("GET /facts.jsp HTTP/1.1\r\nHost: h\r\nX-A: {value}\r\n\r\n"))
    };
    assert!(ask(7900).text().lines().any(|line| line == "x=7900"));
    assert_eq!(ask(8192).status, 431);
    assert_eq!(forebay.get("/absent").status, 404);
}

fn bodies_arrive_exactly(forebay: &Forebay) {
    let body = pattern(300_000);
    let mut client = forebay.connect();
    for length in [0, 1, 8184, 8185, 8186, 8187, 8188, 65_536, 300_000] {
        for method in ["POST", "PUT", "PATCH"] {
            client.send(format!(
                "{method} /echo.jsp HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
            ));
            client.send(&body[..length]);
            let reply = client.reply();
            let told = reply.header("X-Length").map(str::to_owned);
            assert_eq!((reply.status, told), (200, Some(length.to_string())), "{method}");
            assert!(reply.body == body[..length], "{method} of {length} bytes");
        }
        let pieces: Vec<_> = body[..length].chunks(7777).collect();
        client.send("POST /echo.jsp HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunked(&pieces));
        let reply = client.reply();
        assert_eq!((reply.status, reply.header("X-Length")), (200, Some("-1")));
        assert!(reply.body == body[..length], "{length} bytes in chunks");
    }
    client.send(
        "POST /echo.jsp HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
    );
    assert_eq!(client.interim_reply().0, 100);
    client.send("abc");
    assert_eq!(client.reply().text(), "abc");
}

fn an_early_answer_leaves_the_connection_in_order(forebay: &Forebay) {
    for length in [1, 9000, 100_000] {
        let mut client = forebay.connect();
        client.send(format!(
            "POST /early.jsp HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
        ));
        client.send(pattern(length));
        assert_eq!(client.reply().status, 403);
        let reply =
            forebay.ask("POST /echo.jsp HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(reply.text(), "abc");
    }
}

fn large_replies_arrive(forebay: &Forebay) {
    let reply = forebay.get("/large.jsp?pieces=300");
    assert_eq!((reply.status, reply.body.len()), (200, 300 * 32_768));
    let mut client = forebay.connect();
    client.send("HEAD /facts.jsp HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(client.reply_to_head().status, 200);
    assert_eq!(client.get("/facts.jsp").status, 200);
}

fn tls_is_told(tomcat: &Peer) {
    let (folder, authority) = (Folder::new(), Authority::new("of the test"));
    let identity = authority.issue(&["localhost"]);
    folder.write("cert.pem", &identity.certificate);
    folder.write("key.pem", &identity.key);
    let forebay = serve(
        folder,
        &format!(
            "[[site]]\nlisten = \"https://127.0.0.1:0\"\n\
             tls = {{ certificate = \"cert.pem\", key = \"key.pem\" }}\n[[site.route]]\n\
             ajp = {{ to = \"127.0.0.1:{}\", secret = \"s3cret\" }}\n",
            tomcat.port()
        ),
    );
    let mut config = authority.client_of(None, &[&TLS13]);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut client = connect(forebay.address, "localhost", config).unwrap();
    client.send("GET /facts.jsp HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let text = client.reply().text().to_owned();
    assert!(text.contains("scheme=https,true\n"), "{text}");
    let cipher = text.lines().find_map(|line| line.strip_prefix("cipher=TLS_")).expect(&text);
    assert!(cipher.ends_with(",128") || cipher.ends_with(",256"), "{text}");
}

fn users_are_told(tomcat: &Peer) {
    let folder = Folder::new();
    let users = folder.write("users", "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n");
    let auth = format!("basic_auth = {{ file = \"{}\" }}", users.display());
    let forebay = front_of(&[tomcat], ", secret = \"s3cret\"", &auth);
    assert_eq!(forebay.get("/facts.jsp").status, 401);
    let reply = forebay
        .ask("GET /facts.jsp HTTP/1.1\r\nHost: h\r\nAuthorization: Basic bWU6cDpzcyB3\r\n\r\n");
    assert!(reply.text().contains("user=me,Basic\n"), "{}", reply.text());
}

/// Asks until `done` returns true. Several virtual machines that start at the same time are slow.
fn in_time(mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !done() {
        assert!(Instant::now() < until, "it never was");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Requests a page of a session by its cookie. Returns the server that answered, and its count.
fn visit(forebay: &Forebay, cookie: &str) -> (Reply, String) {
    let reply = forebay.ask(format!(
        "GET /session.jsp HTTP/1.1\r\nHost: h\r\nCookie: JSESSIONID={cookie}\r\n\r\n"
    ));
    let text = reply.text().to_owned();
    (reply, text)
}

/// Returns the session that a reply begins.
fn session_of(reply: &Reply) -> String {
    let cookie = reply.header("Set-Cookie").expect("a session begins");
    let (_, rest) = cookie.split_once("JSESSIONID=").unwrap();
    rest.split(';').next().unwrap().to_owned()
}

#[test]
fn a_tomcat_that_is_killed_takes_only_what_it_had_under_way() {
    let tomcat = |route: &str| peer::tomcat(&PAGES, CONNECTOR, route);
    let Some(first) = tomcat("t1") else { return };
    let second = tomcat("t2").expect("the first is there");
    let keys = ", secret = \"s3cret\", fail_timeout = \"1s\"";
    let forebay = front_of(&[&first, &second], keys, "");
    let mut sessions: Vec<_> = (0..4).map(|_| session_of(&visit(&forebay, "none").0)).collect();
    sessions.sort_by_key(|session| session.ends_with("t2"));
    assert!(sessions[0].ends_with(".t1") && sessions[3].ends_with(".t2"), "{sessions:?}");
    let (on_first, on_second) = (sessions[0].clone(), sessions[3].clone());
    for count in 2..5 {
        assert_eq!(visit(&forebay, &on_first).1, format!("t1,{count}"));
        assert_eq!(visit(&forebay, &on_second).1, format!("t2,{count}"));
    }

    const CLIENTS: usize = 4;
    let (answered, failed, has_ended) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let load = |client: usize| {
        for n in 0.. {
            if has_ended.load(Ordering::Relaxed) {
                return;
            }
            let length = 1 + (client * 1000 + n * 37) % 20_000;
            let target = format!("/facts.jsp?{client}-{n}-{length}");
            match forebay.try_get(&target) {
                Ok(reply) if reply.status == 200 => {
                    assert!(reply.text().contains(&format!("query={client}-{n}-{length}\n")));
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Ok(reply) => {
                    assert_eq!(reply.status, 502, "{}", forebay.output());
                    failed.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
            }
        }
    };
    let wait_for = |more: usize| {
        let wanted = answered.load(Ordering::Relaxed) + more;
        in_time(|| answered.load(Ordering::Relaxed) >= wanted);
    };
    let address = first.address().clone();
    let first = thread::scope(|scope| {
        (0..CLIENTS).for_each(|client| drop(scope.spawn(move || load(client))));
        wait_for(100);
        let folder = peer::kill(first);
        wait_for(100);
        // The session moves to the other server, which does not know it.
        let (reply, text) = visit(&forebay, &on_first);
        assert_eq!((text.as_str(), session_of(&reply).ends_with(".t2")), ("t2,1", true));
        assert_eq!(visit(&forebay, &on_second).1, "t2,5");
        let first = peer::restart_tomcat(folder, &address);
        wait_for(100);
        has_ended.store(true, Ordering::Relaxed);
        first
    });
    let failed = failed.into_inner();
    assert!(failed <= CLIENTS, "{failed} failed: {}", forebay.output());
    // The server gets requests again after it has been excluded long enough.
    in_time(|| session_of(&visit(&forebay, "none").0).ends_with(".t1"));
    drop((first, second));
}
