//! HTTP/3: requests of all kinds over QUIC, clients that break the rules, and connections during
//! changes of the configuration and the server's stop.

mod support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use forebay_testkit::folder::Folder;
use forebay_testkit::process::eventually;
use forebay_testkit::tls::{Authority, connect};
use h3::error::{Code, StreamError};
use http::Method;
use rustix::process::Signal;

use support::echo::Echo;
use support::http3::{
    Client, End, HELLO, MESSAGE_ERROR, SITE, backend, code_of, connect_quic, exchange_raw, raw,
    reply_to, run, site, site_after, still_serves, with, write_identity,
};
use support::{Forebay, pattern, proc, serve};

#[test]
fn files_are_served_and_the_log_says_by_what() {
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "a file");
    folder.write("htdocs/empty", "");
    let log = "[log]\naccess = \"access.log\"\n";
    let (forebay, authority) = site_after(log, folder, "[[site.route]]\nfiles = \"htdocs\"\n");
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let reply = client.get("/a.txt").await;
        assert_eq!((reply.status(), reply.text()), (200, "a file"));
        assert!(reply.head.headers().contains_key("etag"));
        assert!(!reply.head.headers().contains_key("alt-svc"), "it is there already");
        let reply = client.ask(Method::HEAD, "/a.txt").await;
        assert_eq!((reply.status(), reply.text()), (200, ""));
        assert_eq!(reply.head.headers()["content-length"], "6");
        let reply = client.get("/empty").await;
        assert_eq!((reply.status(), reply.text()), (200, ""));
        assert_eq!(client.get("/none").await.status(), 404);
        let range = client.request(Method::GET, "/a.txt").header("range", "bytes=2-5");
        let request = range.body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.finish().await.unwrap();
        let reply = reply_to(&mut exchange).await;
        assert_eq!((reply.status(), reply.text()), (206, "file"));
    });
    let (_, folder) = forebay.stop();
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert!(log.contains("\"GET /a.txt HTTP/3.0\" 200 6 "), "{log}");
    assert!(log.contains("\"HEAD /a.txt HTTP/3.0\" 200 "), "{log}");
    assert!(log.contains("\"GET /none HTTP/3.0\" 404 "), "{log}");
}

#[test]
fn bodies_go_through_a_proxy_both_ways() {
    let echo = Echo::start();
    let (forebay, authority) = site(Folder::new(), &echo.route());
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let body = pattern(300_000);
        let reply = client.post("/x?y", &body).await;
        assert_eq!(reply.status(), 200);
        let head = reply.body.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&reply.body[..head]).to_lowercase();
        assert!(head.starts_with("post /x?y http/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nx-forwarded-proto: https"), "{head}");
        // The body is chunked, because nobody has announced its length.
        assert!(head.contains("\r\ntransfer-encoding: chunked"), "{head}");
        let request = client.request(Method::POST, "/").header("content-length", body.len());
        let request = request.body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.send_data(Bytes::from(body.clone())).await.unwrap();
        exchange.finish().await.unwrap();
        let reply = reply_to(&mut exchange).await;
        assert!(reply.body.ends_with(&body));
    });
    forebay.stop();
}

#[test]
fn scripts_are_told_what_the_client_speaks() {
    let folder = Folder::new();
    folder.script(
        "show",
        "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\n%s %s %s ' \"$HTTPS\" \"$SERVER_PROTOCOL\" \
         \"$SSL_PROTOCOL\"\ncat\n",
    );
    let (forebay, authority) = site(folder, "[[site.route]]\ncgi = { program = \"{tmp}/show\" }\n");
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let reply = client.post("/", b"form").await;
        assert_eq!((reply.status(), reply.text()), (200, "on HTTP/3.0 TLSv1.3 form"));
    });
    forebay.stop();
}

#[test]
fn a_large_file_arrives_whole() {
    let folder = Folder::new();
    let big = pattern(64 << 20);
    folder.write("htdocs/big", &big);
    let (forebay, authority) = site(folder, "[[site.route]]\nfiles = \"htdocs\"\n");
    let id = forebay.process.id();
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        assert_eq!(client.get("/none").await.status(), 404);
        let before = proc::resident(id);
        let reply = client.get("/big").await;
        assert!(reply.body == big);
        let grown = proc::resident(id).saturating_sub(before);
        assert!(grown < 24 << 20, "{grown} bytes more");
    });
    forebay.stop();
}

#[test]
fn a_large_upload_waits_for_a_slow_backend() {
    const SIZE: usize = 48 << 20;
    let sent = Arc::new(AtomicUsize::new(0));
    let seen = sent.clone();
    let (route, serving) = backend(move |_, mut stream| {
        let (mut received, mut ahead) = (0, 0);
        let mut buffer = vec![0; 8192];
        while received < SIZE {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0);
            received += count;
            ahead = ahead.max(seen.load(Ordering::SeqCst).saturating_sub(received));
        }
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
        stream.get_mut().write_all(reply).unwrap();
        ahead
    });
    let route = format!("{route}max_body = \"unlimited\"\n");
    let (forebay, authority) = site(Folder::new(), &route);
    let id = forebay.process.id();
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let request = client.request(Method::POST, "/").header("content-length", SIZE);
        let request = request.body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        let before = proc::resident(id);
        let piece = Bytes::from(vec![7; 64 << 10]);
        for _ in 0..SIZE / piece.len() {
            exchange.send_data(piece.clone()).await.unwrap();
            sent.fetch_add(piece.len(), Ordering::SeqCst);
        }
        exchange.finish().await.unwrap();
        assert_eq!(reply_to(&mut exchange).await.text(), "done");
        let grown = proc::resident(id).saturating_sub(before);
        assert!(grown < 24 << 20, "{grown} bytes more");
    });
    // These bytes are in buffers of the client, the gateway and the kernel.
    let ahead = serving.join().unwrap();
    assert!(ahead < 24 << 20, "{ahead} bytes ahead");
    forebay.stop();
}

#[test]
fn trailers_of_a_backend_pass() {
    let (route, serving) = backend(|head, mut stream| {
        let reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                     5\r\nhello\r\n0\r\nX-Sum: 42\r\n\r\n";
        stream.get_mut().write_all(reply.as_bytes()).unwrap();
        head
    });
    let (forebay, authority) = site(Folder::new(), &route);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let request = client.request(Method::GET, "/").header("te", "trailers").body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.finish().await.unwrap();
        assert_eq!(reply_to(&mut exchange).await.text(), "hello");
        let trailers = exchange.recv_trailers().await.unwrap().unwrap();
        assert_eq!(trailers["x-sum"], "42");
    });
    let head = serving.join().unwrap().to_lowercase();
    assert!(head.contains("\r\nte: trailers\r\n"), "{head}");
    forebay.stop();
}

#[test]
fn trailers_of_a_request_are_no_part_of_its_body() {
    let echo = Echo::start();
    let (forebay, authority) = site(Folder::new(), &echo.route());
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let request = client.request(Method::POST, "/").body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.send_data(Bytes::from_static(b"upwards")).await.unwrap();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-mark", "7".parse().unwrap());
        exchange.send_trailers(trailers).await.unwrap();
        exchange.finish().await.unwrap();
        let reply = reply_to(&mut exchange).await;
        assert!(reply.text().ends_with("\r\n\r\n7\r\nupwards\r\n0\r\n\r\n"), "{}", reply.text());
        // A content-length in trailers is an error.
        let head = raw::headers(&[
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/"),
        ]);
        let bytes = [head, raw::frame(0, b"x"), raw::headers(&[("content-length", "9")])].concat();
        let end = exchange_raw(&client.quic, &bytes, true).await;
        assert_eq!(end, End::Reset(MESSAGE_ERROR));
    });
    forebay.stop();
}

#[test]
fn interim_replies_come_first() {
    let (route, serving) = backend(|_, mut stream| {
        let reply = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n\
                     HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        stream.get_mut().write_all(reply.as_bytes()).unwrap();
    });
    let (forebay, authority) = site(Folder::new(), &route);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let request = client.request(Method::GET, "/").body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.finish().await.unwrap();
        // The library of the client returns any reply unchanged.
        let hints = exchange.recv_response().await.unwrap();
        assert_eq!(
            (hints.status().as_u16(), &hints.headers()["link"]),
            (103, &"</a.css>".parse().unwrap())
        );
        assert_eq!(reply_to(&mut exchange).await.text(), "ok");
    });
    serving.join().unwrap();
    forebay.stop();
}

#[test]
fn many_requests_go_at_once() {
    let folder = Folder::new();
    let body = pattern(100_000);
    folder.write("htdocs/a", &body);
    let (forebay, authority) = site(folder, "[[site.route]]\nfiles = \"htdocs\"\n");
    run(async {
        let client = Arc::new(Client::connect(forebay.address, &authority).await);
        // More than may be open at the same time.
        let asked: Vec<_> = (0..300)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.get("/a").await })
            })
            .collect();
        for reply in asked {
            let reply = reply.await.unwrap();
            assert!(reply.status() == 200 && reply.body == body);
        }
    });
    forebay.stop();
}

#[test]
fn a_backend_is_let_go_when_the_client_resets_its_stream() {
    let (route, serving) = backend(|_, mut stream| {
        let begin = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegin";
        stream.get_mut().write_all(begin.as_bytes()).unwrap();
        // The client sends nothing more; this ends when the gateway closes the connection.
        stream.read(&mut [0; 100]).map_or(0, |count| count)
    });
    let route = route.replace("[[site.route]]\n", "[[site.route]]\npath = \"/slow\"\n");
    let (forebay, authority) = site(Folder::new(), &format!("{route}{HELLO}"));
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let request = client.request(Method::GET, "/slow").body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.finish().await.unwrap();
        assert_eq!(exchange.recv_response().await.unwrap().status().as_u16(), 200);
        exchange.stop_sending(Code::H3_REQUEST_CANCELLED);
        let ended = tokio::task::spawn_blocking(|| serving.join().unwrap()).await.unwrap();
        assert_eq!(ended, 0);
        still_serves(&client).await;
    });
    forebay.stop();
}

#[test]
fn a_backend_is_let_go_when_an_upload_is_reset() {
    let (came, arrived) = std::sync::mpsc::channel();
    let (route, serving) = backend(move |_, mut stream| {
        let mut all = vec![0];
        stream.read_exact(&mut all).unwrap();
        came.send(()).unwrap();
        let _ = stream.read_to_end(&mut all);
        all
    });
    let route = route.replace("[[site.route]]\n", "[[site.route]]\npath = \"/slow\"\n");
    let (forebay, authority) = site(Folder::new(), &format!("{route}{HELLO}"));
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let request = client.request(Method::POST, "/slow").body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.send_data(Bytes::from_static(b"some of it")).await.unwrap();
        tokio::task::spawn_blocking(move || arrived.recv().unwrap()).await.unwrap();
        exchange.stop_stream(Code::H3_REQUEST_CANCELLED);
        let all = tokio::task::spawn_blocking(|| serving.join().unwrap()).await.unwrap();
        // The end of a cut-off body differs from the end of a complete one.
        assert!(!all.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&all));
        still_serves(&client).await;
    });
    forebay.stop();
}

#[test]
fn on_abort_says_what_follows_a_reset_stream() {
    let folder = Folder::new();
    let path = folder.path().to_owned();
    let mut routes = String::new();
    let kinds = [("finish", true), ("cancel", false), ("stop", false)];
    for (on_abort, _) in kinds {
        let text = format!(
            "#!/bin/sh\ntrap 'echo > DIR/stopped-{on_abort}; exit 1' TERM\necho > DIR/begun-{on_abort}\n\
             for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done\necho > DIR/done-{on_abort}\n\
             printf 'Content-Type: text/plain\\n\\nok'\n"
        );
        folder.script(on_abort, text.replace("DIR", path.to_str().unwrap()));
        routes += &format!(
            "[[site.route]]\npath = \"/{on_abort}\"\non_abort = \"{on_abort}\"\n\
             cgi = {{ program = \"{{tmp}}/{on_abort}\" }}\n"
        );
    }
    let (forebay, authority) = site(folder, &format!("{routes}{HELLO}"));
    let exists = |name: String| {
        let file = path.join(name);
        tokio::task::spawn_blocking(move || eventually(|| file.exists()))
    };
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        for (on_abort, finishes) in kinds {
            let target = format!("/{on_abort}");
            let request = client.request(Method::POST, &target).body(()).unwrap();
            let mut exchange = client.requests.clone().send_request(request).await.unwrap();
            exchange.finish().await.unwrap();
            let begun = exists(format!("begun-{on_abort}")).await.unwrap();
            assert!(begun, "{on_abort}: {}", forebay.output());
            exchange.stop_sending(Code::H3_REQUEST_CANCELLED);
            still_serves(&client).await;
            let end = if finishes { "done" } else { "stopped" };
            let ended = exists(format!("{end}-{on_abort}")).await.unwrap();
            assert!(ended, "{on_abort}: {}", forebay.output());
        }
    });
    forebay.stop();
}

#[test]
fn the_status_of_a_refused_upload_reaches_the_client() {
    let echo = Echo::start();
    let closed = echo.route().replace(
        "[[site.route]]\n",
        "[[site.route]]\npath = \"/closed\"\nallow = \"192.0.2.0/24\"\n",
    );
    let small = echo
        .route()
        .replace("[[site.route]]\n", "[[site.route]]\npath = \"/small\"\nmax_body = \"1KiB\"\n");
    let (forebay, authority) = site(Folder::new(), &format!("{closed}{small}{HELLO}"));
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        for (target, status) in [("/small", 413), ("/closed", 403), ("/", 200)] {
            for announced in [true, false] {
                let size = 3 << 20;
                let mut request = client.request(Method::POST, target);
                if announced {
                    request = request.header("content-length", size);
                }
                let request = request.body(()).unwrap();
                let mut exchange = client.requests.clone().send_request(request).await.unwrap();
                // As a library that sends the whole body before it reads the reply, unless the
                // server asks for no more of it. The crate `h3` must not end a stream that was
                // stopped: it would close the connection.
                let mut is_stopped = false;
                for piece in pattern(size).chunks(100_000) {
                    let sent = exchange.send_data(Bytes::copy_from_slice(piece)).await;
                    if let Err(error) = sent {
                        let is_no_error = matches!(
                            error,
                            StreamError::RemoteTerminate { code: Code::H3_NO_ERROR, .. }
                        );
                        assert!(is_no_error, "{target} {announced}: {error}");
                        is_stopped = true;
                        break;
                    }
                }
                if !is_stopped {
                    exchange.finish().await.unwrap();
                }
                let reply = reply_to(&mut exchange).await;
                assert_eq!(reply.status(), status, "{target} {announced}");
            }
        }
        still_serves(&client).await;
    });
    forebay.stop();
}

#[test]
fn heads_that_break_a_rule_are_refused() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let good = exchange_raw(&client.quic, &with("/", &[]), true).await;
        assert!(matches!(good, End::Finished(1..)), "{good:?}");
        for (why, bytes) in [
            ("connection", with("/", &[("connection", "close")])),
            ("keep-alive", with("/", &[("keep-alive", "1")])),
            ("proxy-connection", with("/", &[("proxy-connection", "close")])),
            ("transfer-encoding", with("/", &[("transfer-encoding", "chunked")])),
            ("upgrade", with("/", &[("upgrade", "h2c")])),
            ("upper case", with("/", &[("X-Upper", "a")])),
            ("te", with("/", &[("te", "gzip")])),
            ("CR in a value", with("/", &[("x-a", "a\rb")])),
            ("LF in a value", with("/", &[("x-a", "a\nb")])),
            ("NUL in a value", with("/", &[("x-a", "a\0b")])),
            ("space around a value", with("/", &[("x-a", " a")])),
            ("a name with a space", with("/", &[("x a", "a")])),
            ("an empty name", with("/", &[("", "a")])),
            ("two lengths", with("/", &[("content-length", "1"), ("content-length", "1")])),
            ("a signed length", with("/", &[("content-length", "+1")])),
            ("a pseudo-field behind a field", with("/", &[("x-a", "b"), (":path", "/x")])),
            ("a pseudo-field twice", with("/", &[(":path", "/x")])),
            ("an unknown pseudo-field", with("/", &[(":x", "y")])),
            ("a status", with("/", &[(":status", "200")])),
            ("another host", with("/", &[("host", "other")])),
            (
                "no method",
                raw::headers(&[(":scheme", "https"), (":authority", "a"), (":path", "/")]),
            ),
            (
                "no path",
                raw::headers(&[(":method", "GET"), (":scheme", "https"), (":authority", "a")]),
            ),
            ("no scheme", raw::headers(&[(":method", "GET"), (":authority", "a"), (":path", "/")])),
            ("no host", raw::headers(&[(":method", "GET"), (":scheme", "https"), (":path", "/")])),
        ] {
            let end = exchange_raw(&client.quic, &bytes, true).await;
            assert_eq!(end, End::Reset(MESSAGE_ERROR), "{why}");
        }
        let long = "x".repeat(40_000);
        let large = raw::headers(&[(":method", "GET"), ("x-long", &long)]);
        let end = exchange_raw(&client.quic, &large, true).await;
        assert!(matches!(end, End::Finished(1..)), "431: {end:?}");
        let with_body = with("/", &[("content-length", "5")]);
        let end = exchange_raw(&client.quic, &with_body, true).await;
        assert!(matches!(end, End::Finished(1..)), "400, as over HTTP/1.1: {end:?}");
        for data in ["body", ""] {
            let bytes = [with("/", &[]), raw::frame(0, data.as_bytes())].concat();
            let end = exchange_raw(&client.quic, &bytes, true).await;
            assert!(matches!(end, End::Finished(1..)), "a GET with {data:?} is answered: {end:?}");
        }
        still_serves(&client).await;
    });
    let (exit, _) = forebay.stop();
    assert!(!exit.output.contains("panicked"), "{}", exit.output);
}

#[test]
fn data_has_to_be_as_long_as_the_head_says() {
    let echo = Echo::start();
    let (forebay, authority) = site(Folder::new(), &echo.route());
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let post = |length| {
            raw::headers(&[
                (":method", "POST"),
                (":scheme", "https"),
                (":authority", "localhost"),
                (":path", "/"),
                ("content-length", length),
            ])
        };
        for (why, length, data) in [("more", "5", &b"123456"[..]), ("less", "5", b"1234")] {
            let bytes = [post(length), raw::frame(0, data)].concat();
            let end = exchange_raw(&client.quic, &bytes, true).await;
            assert_eq!(end, End::Reset(MESSAGE_ERROR), "{why}");
        }
        let bytes =
            [post("5"), raw::frame(0, b"12"), raw::frame(0x21, b"?"), raw::frame(0, b"345")];
        let end = exchange_raw(&client.quic, &bytes.concat(), true).await;
        assert!(matches!(end, End::Finished(1..)), "{end:?}");
    });
    forebay.stop();
}

#[test]
fn frames_that_break_a_rule_of_the_connection_end_it() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    let connect =
        || async { connect_quic(forebay.address, "localhost", &authority).await.unwrap() };
    run(async {
        for (why, bytes, code) in [
            ("DATA first", raw::frame(0, b"x"), 0x105),
            ("SETTINGS on a request", raw::frame(4, b""), 0x105),
            ("a frame of HTTP/2", raw::frame(6, b"12345678"), 0x105),
            ("a frame cut short", raw::headers(&[(":method", "GET")])[..9].to_vec(), 0x106),
            ("an entry that there is not", raw::frame(1, &[0, 0, 0xff, 0x40]), 0x200),
            ("the dynamic table", raw::frame(1, &[0, 0, 0x80]), 0x200),
            ("an insert that never came", raw::frame(1, &[2, 0, 0x80]), 0x200),
            ("an unknown frame without end", raw::frame(0x21, &vec![0; 20_000]), 0x107),
        ] {
            let end = exchange_raw(&connect().await, &bytes, true).await;
            assert_eq!(end, End::Closed(code), "{why}");
        }
        for (why, bytes, ends, code) in [
            ("a push", &[1][..], false, 0x103),
            ("a control stream without settings", &[0, 7, 1, 0], false, 0x10a),
            ("a control stream that ends", &[0, 4, 0], true, 0x104),
            ("settings twice", &[0, 4, 0, 4, 0], false, 0x105),
            ("a setting twice", &[0, 4, 4, 6, 1, 6, 2], false, 0x109),
            ("a setting of HTTP/2", &[0, 4, 2, 2, 1], false, 0x109),
            ("settings cut short", &[0, 4, 1, 6], false, 0x106),
            ("HEADERS on control", &[0, 4, 0, 1, 0], false, 0x105),
            ("an entry for the table", &[2, 0x3f, 0x45], false, 0x201),
        ] {
            let quic = connect().await;
            let mut send = quic.open_uni().await.unwrap();
            send.write_all(bytes).await.unwrap();
            if ends {
                send.finish().unwrap();
            }
            let error = quic.closed().await;
            assert_eq!(code_of(&error), code, "{why}");
        }
        // A second control stream.
        let quic = connect().await;
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut send = quic.open_uni().await.unwrap();
            send.write_all(&[0, 4, 0]).await.unwrap();
            streams.push(send);
        }
        assert_eq!(code_of(&quic.closed().await), 0x103);
        // Unknown streams are not read and do no harm.
        let quic = connect().await;
        let mut send = quic.open_uni().await.unwrap();
        send.write_all(&[0x21, 1, 2, 3]).await.unwrap();
        let end = exchange_raw(&quic, &with("/", &[]), true).await;
        assert!(matches!(end, End::Finished(1..)), "{end:?}");
    });
    forebay.stop();
}

/// Returns the Alt-Svc fields of a reply over HTTP/1.1 or HTTP/2.
fn alternatives(forebay: &Forebay, authority: &Authority, target: &str) -> Vec<String> {
    let mut client = connect(forebay.address, "localhost", authority.client()).unwrap();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let reply = client.reply();
    reply.headers_named("alt-svc").into_iter().map(str::to_owned).collect()
}

#[test]
fn other_protocols_tell_of_it_where_it_is_on() {
    let routes = format!(
        "[[site.route]]\npath = \"/own\"\nrespond = \"x\"\n\
         set_headers = {{ Alt-Svc = \"clear\" }}\n\
         [[site.route]]\npath = \"/none\"\nfiles = \"htdocs\"\nfallback = true\n{HELLO}"
    );
    let folder = Folder::new();
    folder.write("htdocs/a", "");
    let (forebay, authority) = site(folder, &routes);
    let told = format!("h3=\":{}\"; ma=86400", forebay.address.port());
    assert_eq!(alternatives(&forebay, &authority, "/"), [&*told]);
    assert_eq!(alternatives(&forebay, &authority, "/none"), [&*told], "by the route below");
    assert_eq!(alternatives(&forebay, &authority, "/own"), ["clear"]);
    let folder = forebay.stop().1;
    let off = SITE.replace("http3 = true\n", "");
    let forebay = serve(folder, &format!("{off}{routes}"));
    assert!(alternatives(&forebay, &authority, "/").is_empty());
    forebay.stop();
}

#[test]
fn a_reload_shows_another_certificate_and_turns_it_off() {
    let (mut forebay, old) = site(Folder::new(), HELLO);
    let new = Authority::new("another");
    const RELOADED: &str = "serving by the configuration as it is now";
    run(async {
        let client = Client::connect(forebay.address, &old).await;
        still_serves(&client).await;
        write_identity(&forebay.folder, &new.issue(&["localhost"]));
        forebay.signal(Signal::HUP);
        forebay.wait_for_output(RELOADED);
        // The connection continues.
        still_serves(&client).await;
        still_serves(&Client::connect(forebay.address, &new).await).await;
        assert!(connect_quic(forebay.address, "localhost", &old).await.is_err());
        let off = SITE.replace("http3 = true\n", "");
        support::write_configuration(&forebay.folder, &format!("{off}{HELLO}"));
        forebay.signal(Signal::HUP);
        let twice = |forebay: &Forebay| forebay.output().matches(RELOADED).count() == 2;
        assert!(eventually(|| twice(&forebay)));
        // Existing clients get GOAWAY.
        let error = client.quic.closed().await;
        assert_eq!(code_of(&error), 0x100);
        assert!(alternatives(&forebay, &new, "/").is_empty());
    });
    forebay.stop();
}

#[test]
fn a_reload_turns_it_on() {
    let authority = Authority::new("of the test");
    let folder = Folder::new();
    write_identity(&folder, &authority.issue(&["localhost"]));
    let off = SITE.replace("http3 = true\n", "");
    let mut forebay = serve(folder, &format!("{off}{HELLO}"));
    support::write_configuration(&forebay.folder, &format!("{SITE}{HELLO}"));
    forebay.signal(Signal::HUP);
    forebay.wait_for_output("serving by the configuration as it is now");
    run(async { still_serves(&Client::connect(forebay.address, &authority).await).await });
    assert_eq!(alternatives(&forebay, &authority, "/").len(), 1);
    forebay.stop();
}

#[test]
fn requests_under_way_are_answered_when_the_server_stops() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (came, arrived) = std::sync::mpsc::channel::<()>();
    let (route, serving) = backend(move |_, mut stream| {
        came.send(()).unwrap();
        wait.recv().unwrap();
        let reply = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole";
        stream.get_mut().write_all(reply.as_bytes()).unwrap();
    });
    let (mut forebay, authority) = site(Folder::new(), &route);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let request = client.request(Method::GET, "/").body(()).unwrap();
        let mut exchange = client.requests.clone().send_request(request).await.unwrap();
        exchange.finish().await.unwrap();
        tokio::task::spawn_blocking(move || arrived.recv().unwrap()).await.unwrap();
        forebay.signal(Signal::TERM);
        assert!(eventually(|| TcpStream::connect(forebay.address).is_err()), "it stops");
        go.send(()).unwrap();
        assert_eq!(reply_to(&mut exchange).await.text(), "whole");
        assert_eq!(code_of(&client.quic.closed().await), 0x100);
    });
    serving.join().unwrap();
    forebay.stop();
}

#[test]
fn idle_connections_do_not_hold_up_the_end() {
    let (mut forebay, authority) = site(Folder::new(), HELLO);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        still_serves(&client).await;
        forebay.signal(Signal::TERM);
        assert_eq!(code_of(&client.quic.closed().await), 0x100);
    });
    forebay.stop();
}

#[test]
fn a_connection_carries_as_many_requests_as_it_may() {
    let limits = "[server.limits]\nkeepalive_requests = 3\n";
    let (forebay, authority) = site_after(limits, Folder::new(), HELLO);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        for _ in 0..3 {
            still_serves(&client).await;
        }
        assert_eq!(code_of(&client.quic.closed().await), 0x100);
    });
    forebay.stop();
}

#[test]
fn an_address_has_as_many_connections_as_it_may() {
    let limits = "[server.limits]\nconnections_per_address = 2\n";
    let (forebay, authority) = site_after(limits, Folder::new(), HELLO);
    run(async {
        let first = Client::connect(forebay.address, &authority).await;
        let second = Client::connect(forebay.address, &authority).await;
        // The server counts a connection only after its side of the handshake.
        still_serves(&first).await;
        still_serves(&second).await;
        assert!(connect_quic(forebay.address, "localhost", &authority).await.is_err());
        drop(first);
        still_serves(&second).await;
    });
    forebay.stop();
}

/// Runs `forebay bench --http3` on `path`. Returns the requests that it counted, as JSON.
fn bench(forebay: &Forebay, path: &str, options: &[&str]) -> serde_json::Value {
    let url = format!("https://localhost:{}{path}", forebay.address.port());
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"))
        .args(["bench", &url, "--http3", "-t", "2", "--json", "-"])
        .args(options)
        .output()
        .unwrap();
    // On a busy machine, an open loop may miss its rate, and a short run may complete no request.
    // Both count as failures of the run. The caller checks the requests.
    let is_timed = options.contains(&"-r") || options.contains(&"-d");
    let may_fail = is_timed && output.status.code() == Some(1);
    assert!(output.status.success() || may_fail, "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["protocol"], "h3");
    json["requests"].clone()
}

#[test]
fn the_log_counts_the_requests_that_bench_counts() {
    let folder = Folder::new();
    folder.write("htdocs/a.txt", "a file");
    folder.write("htdocs/large", "0123456789".repeat(100_000));
    let log = "[log]\naccess = \"access.log\"\n";
    let routes = "[[site.route]]\nfiles = \"htdocs\"\n";
    let (forebay, authority) = site_after(log, folder, routes);
    forebay.folder.write("ca.pem", &authority.pem);
    let ca = forebay.folder.path().join("ca.pem");
    let ca = ["--ca", ca.to_str().unwrap()];
    let mut sent = 0;
    for (path, options) in [
        ("/a.txt", "-n 300 -c 3 --streams 8"),
        ("/a.txt", "-n 100 -c 2 -r 500 --streams 4"),
        ("/a.txt", "-n 30 -c 2 --no-keepalive --tls-resume"),
        ("/large", "-n 10 -c 2 --streams 2"),
        ("/a.txt", "-n 10 -c 1 -X HEAD"),
    ] {
        let options: Vec<_> = options.split(' ').chain(ca).collect();
        let requests = bench(&forebay, path, &options);
        assert_eq!((&requests["failed"], &requests["resent"]), (&0.into(), &0.into()));
        assert_eq!(requests["sent"], requests["completed"], "{requests}");
        sent += requests["sent"].as_u64().unwrap();
    }
    let requests = bench(&forebay, "/a.txt", &[&["-d", "300ms", "-c", "4"][..], &ca].concat());
    let [completed, more] = ["completed", "sent"].map(|name| requests[name].as_u64().unwrap());
    let (_, folder) = forebay.stop();
    let log = std::fs::read_to_string(folder.path().join("access.log")).unwrap();
    let logged = log.matches(" HTTP/3.0\" 200 ").count() as u64;
    // Requests that are active at the end may not reach the server before the connection closes.
    assert!((sent + completed..=sent + more).contains(&logged), "{logged} {sent} {requests}");
    assert_eq!(log.matches("/a.txt").count() + log.matches("/large").count(), log.lines().count());
}

#[test]
fn a_client_may_change_its_address() {
    let (forebay, authority) = site(Folder::new(), HELLO);
    run(async {
        let endpoint = support::http3::endpoint();
        let client = Client::connect_from(&endpoint, forebay.address, &authority).await;
        // Another address may by chance lead to the socket of another thread.
        for _ in 0..10 {
            let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            endpoint.rebind(socket).unwrap();
            still_serves(&client).await;
        }
    });
    forebay.stop();
}

#[test]
fn websockets_pass() {
    let (route, serving) = backend(|head, mut stream| {
        let reply = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                     Upgrade: websocket\r\n\r\nfirst";
        stream.get_mut().write_all(reply.as_bytes()).unwrap();
        let mut said = [0; 5];
        stream.read_exact(&mut said).unwrap();
        stream.get_mut().write_all(&said).unwrap();
        // Reads until the client has finished.
        stream.read_to_end(&mut Vec::new()).unwrap();
        head
    });
    let (forebay, authority) = site(Folder::new(), &route);
    run(async {
        let client = Client::connect(forebay.address, &authority).await;
        let head = raw::headers(&[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/chat"),
        ]);
        let (mut send, mut receive) = client.quic.open_bi().await.unwrap();
        send.write_all(&head).await.unwrap();
        let mut came = Vec::new();
        while !came.ends_with(b"first") {
            came.extend_from_slice(&receive.read_chunk(1000, true).await.unwrap().unwrap().bytes);
        }
        // HEADERS that begin with `:status` 200.
        assert_eq!((came[0], &came[2..5]), (1, &[0, 0, 0xd9][..]), "{came:x?}");
        send.write_all(&raw::frame(0, b"hello")).await.unwrap();
        while !came.ends_with(b"hello") {
            came.extend_from_slice(&receive.read_chunk(1000, true).await.unwrap().unwrap().bytes);
        }
        send.finish().unwrap();
        assert!(receive.read_chunk(1000, true).await.unwrap().is_none());
    });
    let head = serving.join().unwrap().to_lowercase();
    assert!(head.starts_with("get /chat http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nupgrade: websocket\r\n"), "{head}");
    forebay.stop();
}
