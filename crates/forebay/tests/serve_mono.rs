//! `forebay serve` with fastcgi-mono-server4 and an ASP.NET handler.

mod support;

use std::thread;
use std::time::{Duration, Instant};

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer};
use forebay_testkit::stream::Address;
use support::{Forebay, chunked, pattern, site};

/// Sends a greeting, returns posted data, or sleeps first.
const HANDLER: &str = r#"<%@ WebHandler Language="C#" Class="Hello" %>
using System.Threading;
using System.Web;
public class Hello : IHttpHandler {
    public bool IsReusable { get { return true; } }
    public void ProcessRequest(HttpContext context) {
        int sleep;
        if (int.TryParse(context.Request.QueryString["sleep"], out sleep)) Thread.Sleep(sleep);
        context.Response.ContentType = "application/octet-stream";
        if (context.Request.HttpMethod == "POST") {
            var body = new byte[context.Request.InputStream.Length];
            context.Request.InputStream.Read(body, 0, body.Length);
            context.Response.AddHeader("X-Length", context.Request.ContentLength.ToString());
            context.Response.BinaryWrite(body);
        } else {
            context.Response.Write("hello " + context.Request.QueryString["n"]);
        }
    }
}
"#;

fn application() -> Folder {
    let folder = Folder::new();
    folder.write("hello.ashx", HANDLER);
    folder
}

fn address_of(mono: &Peer) -> String {
    match mono.address() {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

fn front_of(mono: &Peer, application: &Folder, keys: &str) -> Forebay {
    let to = address_of(mono);
    let root = application.path().display();
    let route = format!(
        "[[site.route]]\n\
         fastcgi = {{ to = \"{to}\", root = \"{root}\", index = \"index.aspx\"{keys} }}\n"
    );
    let forebay = site(Folder::new(), &route);
    // The first request waits for the compiler.
    assert_eq!(forebay.get("/hello.ashx?n=0").text(), "hello 0", "{}", forebay.output());
    forebay
}

/// Runs a check over kept and over separate connections, TCP and Unix.
fn over_all(check: impl Fn(&Forebay)) {
    let application = application();
    for start in [peer::mono_fastcgi, peer::mono_fastcgi_tcp] {
        let Some(mono) = start(&application, &[]) else { return };
        for keys in ["", ", keep_conn = false"] {
            let forebay = front_of(&mono, &application, keys);
            check(&forebay);
            forebay.stop();
        }
    }
}

#[test]
fn bodies_arrive_exactly() {
    let body = pattern(200_000);
    over_all(|forebay| {
        let mut client = forebay.connect();
        for length in [1, 46_000, 65_535, 65_536, 200_000] {
            client.send(format!(
                "POST /hello.ashx HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
            ));
            client.send(&body[..length]);
            let reply = client.reply();
            assert!(reply.body == body[..length], "{length}: {}", forebay.output());
            // The handler accepts no body whose length is not known before.
            client
                .send("POST /hello.ashx HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(chunked(&body[..length].chunks(10_007).collect::<Vec<_>>()));
            let reply = client.reply();
            assert!(reply.body == body[..length], "chunked {length}: {}", forebay.output());
            assert_eq!(reply.header("X-Length"), Some(&*length.to_string()));
        }
    });
}

#[test]
fn none_of_many_requests_fails() {
    over_all(|forebay| {
        // Mono 6.8 initializes its encodings without a lock, and then fails if several first
        // requests run at once. So the first one runs alone.
        let first = "GET /hello.ashx?n=first HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(ask(&mut forebay.connect(), first), "hello first");
        thread::scope(|scope| {
            for client in 0..4 {
                scope.spawn(move || {
                    let mut connection = forebay.connect();
                    for n in 0..50 {
                        let text = format!("{client}-{n}");
                        let get = format!("GET /hello.ashx?n={text} HTTP/1.1\r\nHost: h\r\n\r\n");
                        assert_eq!(ask(&mut connection, &get), format!("hello {text}"));
                        let length = text.len();
                        let post = format!(
                            "POST /hello.ashx HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{text}"
                        );
                        assert_eq!(ask(&mut connection, &post), text);
                    }
                });
            }
        });
    });
}

/// The server never frees the slot of a connection that the web server closes without a word.
#[test]
fn no_slot_is_lost_when_connections_close() {
    let application = application();
    for start in [peer::mono_fastcgi, peer::mono_fastcgi_tcp] {
        let Some(mono) = start(&application, &["/maxconns=4"]) else { return };
        // Each connection closes after its request, or when the client leaves.
        let routes = format!(
            "[[site.route]]\non_abort = \"stop\"\n\
             fastcgi = {{ to = \"@mono\", root = \"{}\", index = \"index.aspx\" }}\n\
             [upstream.mono]\nto = \"{}\"\nkeepalive = 0\n",
            application.path().display(),
            address_of(&mono),
        );
        let forebay = site(Folder::new(), &routes);
        for n in 0..20 {
            let reply = forebay.get(&format!("/hello.ashx?n={n}"));
            assert_eq!(reply.text(), format!("hello {n}"), "{}", forebay.output());
            let mut client = forebay.connect();
            client.send("GET /hello.ashx?sleep=200 HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        forebay.stop();
    }
}

/// Returns the text of the reply. Mono's threads fill a table of encodings without a lock, so a
/// lookup of UTF-8 sometimes fails. Such a reply is complete, and the request is sent again.
fn ask(connection: &mut Client, request: &str) -> String {
    for _ in 0..5 {
        connection.send(request);
        let reply = connection.reply();
        if !(reply.status >= 400 && reply.text().contains("No data is available for encoding")) {
            assert_eq!(reply.status, 200, "{}", reply.text());
            return reply.text().to_owned();
        }
    }
    panic!("Mono finds no encoding at all");
}

#[test]
fn a_kept_connection_does_not_wait_for_late_acknowledgements() {
    let application = application();
    let Some(mono) = peer::mono_fastcgi_tcp(&application, &[]) else { return };
    let forebay = front_of(&mono, &application, ", max_connections = 1");
    let mut client = forebay.connect();
    // Mono writes a reply in pieces and waits for an acknowledgement of each. Without a request for
    // acknowledgements, each takes 40 ms: more than 12 s for all requests, instead of 1 s.
    let mut is_fast = || {
        let start = Instant::now();
        for n in 0..300 {
            assert_eq!(client.get(&format!("/hello.ashx?n={n}")).text(), format!("hello {n}"));
        }
        start.elapsed() < Duration::from_secs(10)
    };
    // Other programs may use the machine.
    assert!((0..3).any(|_| is_fast()));
}
