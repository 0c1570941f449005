//! `forebay serve` as AJP backend of Apache: mod_jk and mod_proxy_ajp.

mod support;

use forebay_testkit::folder::Folder;
use forebay_testkit::http::Client;
use forebay_testkit::peer::{self, Peer};
use support::echo::{Echo, body_of};
use support::{Forebay, chunked, pattern, serve};

/// Prints the request's body.
const ECHO: &str = "#!/bin/sh\n\
    printf 'Content-Type: application/octet-stream\\r\\nX-Length: %s\\r\\n\\r\\n' \"$CONTENT_LENGTH\"\n\
    exec cat\n";

const ENV: &str = "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n'\nexec env\n";

/// A worker that prints the body backwards, so it has to read all of it.
const WORKER: &str = "#!/usr/bin/perl\nbinmode STDIN; binmode STDOUT; local $/;\n\
    my $body = <STDIN> // '';\n\
    print \"Content-Type: text/plain\\n\\n\", scalar reverse($body);\n";

/// The module of Apache that sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Module {
    Jk,
    ProxyAjp,
}

/// Serves all kinds of origins over AJP, with this `ajp_secret` and packet size.
fn origins(echo: &Echo, secret: &str, packet_size: usize) -> (Forebay, u16) {
    let folder = Folder::new();
    folder.script("cgi/echo", ECHO);
    folder.script("cgi/env", ENV);
    folder.script("perl/reverse.pl", WORKER);
    folder.write("files/large", pattern(5_000_000));
    folder.write("files/small", "small");
    folder.write("files/empty", "");
    let forebay = serve(
        folder,
        &format!(
            "[server.limits]\nmax_body = \"unlimited\"\nhead_size = \"64KiB\"\n\
             [app.perl]\nkind = \"perl-cgi\"\ndir = \"perl\"\nworkers = 1\n\
             [[site]]\nlisten = [\"127.0.0.1:0\", \"ajp://127.0.0.1:0\"]\n\
             ajp_secret = \"{secret}\"\najp_packet_size = {packet_size}\n\
             [[site.route]]\npath = \"/cgi/*\"\ncgi = \"cgi\"\n\
             [[site.route]]\npath = \"/perl/*\"\napp = \"perl\"\n\
             [[site.route]]\npath = \"/files/*\"\nfiles = \"files\"\n\
             [[site.route]]\npath = \"/echo\"\nproxy = \"{}\"\n",
            echo.url()
        ),
    );
    let output = forebay.output();
    let (_, rest) = output.split_once("ajp://127.0.0.1:").expect("it takes AJP");
    let port = rest.lines().next().unwrap().parse().unwrap();
    (forebay, port)
}

/// Starts Apache, which passes all requests on to `port`.
fn apache(module: Module, port: u16, secret: &str, packet_size: usize) -> Option<Peer> {
    if !peer::has(&["apache2", "libapache2-mod-jk"]) {
        return None;
    }
    let secret = match (module, secret) {
        (_, "") => String::new(),
        (Module::Jk, secret) => format!("JkWorkerProperty worker.f.secret={secret}\n"),
        (Module::ProxyAjp, secret) => format!(" secret={secret}"),
    };
    match module {
        Module::Jk => peer::apache(
            &["jk"],
            &format!(
                "MaxKeepAliveRequests 0\nJkLogFile /dev/stderr\nJkLogLevel error\nJkShmFile {{tmp}}/shm\n\
                 JkWorkerProperty worker.list=f\nJkWorkerProperty worker.f.type=ajp13\n\
                 JkWorkerProperty worker.f.host=127.0.0.1\nJkWorkerProperty worker.f.port={port}\n\
                 JkWorkerProperty worker.f.ping_mode=A\n\
                 JkWorkerProperty worker.f.max_packet_size={packet_size}\n{secret}\
                 JkMount /* f\n"
            ),
        ),
        Module::ProxyAjp => peer::apache(
            &["proxy", "proxy_ajp"],
            &format!(
                "MaxKeepAliveRequests 0\nProxyIOBufferSize {packet_size}\n\
                 ProxyPass / ajp://127.0.0.1:{port}/ ping=10{secret}\n"
            ),
        ),
    }
}

fn client(apache: &Peer) -> Client {
    Client::connect(apache.address().clone())
}

#[test]
fn mod_jk_and_mod_proxy_ajp_drive_every_origin() {
    let echo = Echo::start();
    for (module, packet_size) in [
        (Module::Jk, 8192),
        (Module::ProxyAjp, 8192),
        (Module::Jk, 65_536),
        (Module::ProxyAjp, 65_536),
    ] {
        let (forebay, port) = origins(&echo, "s3cret", packet_size);
        let Some(apache) = apache(module, port, "s3cret", packet_size) else { return };
        files_arrive(&apache);
        bodies_arrive_both_ways(module, &apache);
        the_request_is_the_clients(&apache);
        an_early_answer_leaves_the_connection_in_order(&apache);
        let (exit, _) = forebay.stop();
        assert!(exit.status.success(), "{}", exit.output);
        assert!(!exit.output.contains("AJP:"), "{}", exit.output);
    }
}

fn files_arrive(apache: &Peer) {
    let mut client = client(apache);
    for (name, length) in [("large", 5_000_000), ("small", 5), ("empty", 0)] {
        for _ in 0..2 {
            let reply = client.get(&format!("/files/{name}"));
            assert_eq!((reply.status, reply.body.len()), (200, length), "{name}");
        }
        client.send(format!("HEAD /files/{name} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let reply = client.reply_to_head();
        assert_eq!((reply.status, reply.header("ETag").is_some()), (200, true));
    }
    assert!(client.get("/files/large").body == pattern(5_000_000));
    client.send("GET /files/large HTTP/1.1\r\nHost: h\r\nRange: bytes=8180-24600\r\n\r\n");
    let reply = client.reply();
    assert_eq!(reply.status, 206);
    assert!(reply.body == pattern(5_000_000)[8180..=24_600]);
    let tag = client.get("/files/small").header("ETag").unwrap().to_owned();
    client.send(format!("GET /files/small HTTP/1.1\r\nHost: h\r\nIf-None-Match: {tag}\r\n\r\n"));
    assert_eq!(client.reply().status, 304);
    assert_eq!(client.get("/files/absent").status, 404);
}

fn bodies_arrive_both_ways(module: Module, apache: &Peer) {
    let body = pattern(3_000_000);
    let mut client = client(apache);
    for length in [0, 1, 8184, 8185, 8186, 8187, 8188, 65_536, 3_000_000] {
        let sent = &body[..length];
        for path in ["/cgi/echo", "/perl/reverse.pl", "/echo"] {
            for method in ["POST", "PUT", "PATCH"] {
                client.send(format!(
                    "{method} {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
                ));
                client.send(sent);
                assert_echoed(&client.reply(), path, sent);
            }
            client.send(format!(
                "POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            ));
            client.send(chunked(&sent.chunks(7777).collect::<Vec<_>>()));
            let reply = client.reply();
            assert_echoed(&reply, path, sent);
        }
    }
    client.send(
        "POST /cgi/echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
    );
    assert_eq!(client.interim_reply().0, 100, "{module:?}");
    client.send("abc");
    assert_eq!(client.reply().text(), "abc");
}

fn assert_echoed(reply: &forebay_testkit::http::Reply, path: &str, sent: &[u8]) {
    let length = sent.len();
    assert_eq!(reply.status, 200, "{path} {length}");
    let arrived = match path {
        "/perl/reverse.pl" => reply.body.iter().rev().copied().collect(),
        "/echo" => body_of(&reply.body),
        _ => reply.body.clone(),
    };
    assert!(arrived == sent, "{path}: {} of {length} bytes", arrived.len());
}

fn the_request_is_the_clients(apache: &Peer) {
    let mut client = client(apache);
    let port = client.local_addr().port();
    client.send(
        "GET /cgi/env/a%20b?c=%20d HTTP/1.1\r\nHost: example.org:81\r\nX-A: 12\r\nX_B: 1\r\n\
         Cookie: a=b\r\nReferer: http://r/\r\nX-Forwarded-For: 6.6.6.6\r\nUpgrade: websocket\r\n\
         Connection: upgrade\r\n\r\n",
    );
    let reply = client.reply();
    for line in [
        "REQUEST_METHOD=GET",
        "PATH_INFO=/a b",
        "QUERY_STRING=c=%20d",
        "HTTP_HOST=example.org:81",
        "HTTP_X_A=12",
        "HTTP_COOKIE=a=b",
        "HTTP_REFERER=http://r/",
        "SERVER_NAME=example.org",
        "SERVER_PROTOCOL=HTTP/1.1",
        "REMOTE_ADDR=127.0.0.1",
        &format!("REMOTE_PORT={port}"),
        "REQUEST_SCHEME=http",
    ] {
        assert!(reply.text().lines().any(|l| l == line), "{line}: {}", reply.text());
    }
    assert!(!reply.text().contains("6.6.6.6"), "{}", reply.text());
    // A head near the size of a packet.
    let value = "v".repeat(6000);
    client.send(format!("GET /echo HTTP/1.1\r\nHost: h\r\nX-A: {value}\r\n\r\n"));
    assert!(client.reply().text().contains(&value));
    let mut old = self::client(apache);
    old.send("GET /cgi/env HTTP/1.0\r\n\r\n");
    let reply = old.reply();
    assert!(reply.text().contains("SERVER_PROTOCOL=HTTP/1.0\n"), "{}", reply.text());
}

fn an_early_answer_leaves_the_connection_in_order(apache: &Peer) {
    for length in [1, 9000, 70_000] {
        let mut client = client(apache);
        client.send(format!(
            "POST /files/absent HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n"
        ));
        client.send(pattern(length));
        assert!(matches!(client.reply().status, 404 | 405), "{length}");
        let mut next = self::client(apache);
        next.send("POST /cgi/echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
        assert_eq!(next.reply().text(), "abc");
    }
}

#[test]
fn peers_without_the_secret_are_refused() {
    let echo = Echo::start();
    let (forebay, port) = origins(&echo, "s3cret", 8192);
    for module in [Module::Jk, Module::ProxyAjp] {
        for (secret, status) in [("", 403), ("wrong", 403), ("s3cret", 200)] {
            let Some(apache) = apache(module, port, secret, 8192) else { return };
            for _ in 0..3 {
                let reply = client(&apache).get("/files/small");
                assert_eq!(reply.status, status, "{module:?} {secret}: {}", forebay.output());
            }
        }
    }
    assert!(forebay.output().contains("`ajp_secret`"), "{}", forebay.output());
}
