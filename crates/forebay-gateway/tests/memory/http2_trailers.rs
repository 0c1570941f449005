//! Trailers of requests: which reach an HTTP/2 backend, and which are refused.

use forebay_wire::http2::{Cause, Config, ErrorCode, RequestPseudo};

use crate::http2_backend::{Asked, Http2Backend, proxied};
use crate::http2_client::Http2Client;
use crate::world::{World, in_memory};

/// Answers each complete request with its trailers, one on each line.
fn echo_trailers(world: &World) {
    Http2Backend::new(world).serve(Config::default(), |served, _| {
        for (id, asked) in served.take_whole() {
            served.reply(id, lines(&asked));
        }
        served.flush();
    });
}

fn lines(asked: &Asked) -> String {
    let body = String::from_utf8(asked.body.clone()).unwrap();
    let announced = asked.field("trailer").unwrap_or("-");
    asked.trailers.iter().fold(format!("{announced}; {body}"), |all, (name, value)| {
        format!("{all}; {name}: {value}")
    })
}

#[test]
fn trailers_of_a_request_reach_a_backend_of_http2() {
    in_memory(&proxied(""), async |world| {
        echo_trailers(world);
        let mut client = Http2Client::connect(world).await;
        // Without a body, with one of unknown length, and with announced trailers.
        let stream = client.ask("POST", "/", &[], false);
        client.send_trailers(stream, &[("x-sum", "0"), ("x-more", "")]);
        assert_eq!(client.reply(stream).await.text(), "-; ; x-sum: 0; x-more: ");
        let stream = client.ask("POST", "/", &[], false);
        client.send_data(stream, b"body", false);
        client.send_trailers(stream, &[("x-sum", "4")]);
        assert_eq!(client.reply(stream).await.text(), "-; body; x-sum: 4");
        let fields = [("content-length", "4"), ("trailer", "x-sum")];
        let stream = client.ask("POST", "/", &fields, false);
        client.send_data(stream, b"body", false);
        client.flush();
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        client.send_trailers(stream, &[("x-sum", "4")]);
        assert_eq!(client.reply(stream).await.text(), "x-sum; body; x-sum: 4");
        // Announced trailers that do not follow.
        let stream = client.ask("POST", "/", &fields, false);
        client.send_data(stream, b"body", true);
        assert_eq!(client.reply(stream).await.text(), "x-sum; body");
    });
}

/// Returns a route to the server that buffers whole uploads before it forwards them.
fn buffered() -> String {
    let route = proxied("").replace("path = \"/*\"\n", "path = \"/*\"\nrequest_buffering = true\n");
    assert!(route.contains("request_buffering"));
    route
}

#[test]
fn trailers_of_chunks_and_of_a_body_that_was_kept_reach_it_too() {
    const CHUNKS: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
        Trailer: X-Sum\r\n{more}\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\nX-Sum: 4\r\nCookie: a\r\n\
        Traceparent: a\r\ntracestate: c\r\n\r\n";
    for route in [proxied(""), buffered()] {
        in_memory(&route, async |world| {
            echo_trailers(world);
            let mut client = world.client();
            client.send(CHUNKS.replace("{more}", "")).await;
            assert_eq!(client.reply("POST").await.text(), "X-Sum; body; x-sum: 4");
            // The connection stays usable. If `Connection` names fields, no trailers pass.
            client.send(CHUNKS.replace("{more}", "Connection: x-sum\r\n")).await;
            assert_eq!(client.reply("POST").await.text(), "-; body");
            let mut client = Http2Client::connect(world).await;
            let stream = client.ask("POST", "/", &[("trailer", "x-sum")], false);
            client.send_data(stream, b"body", false);
            client.send_trailers(
                stream,
                &[("x-sum", "4"), ("traceparent", "a"), ("tracestate", "b")],
            );
            assert_eq!(client.reply(stream).await.text(), "x-sum; body; x-sum: 4");
        });
    }
}

#[test]
fn trailers_that_nothing_announced_and_those_of_an_empty_body_reach_it_where_it_was_kept() {
    const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n";
    for route in [proxied(""), buffered()] {
        in_memory(&route, async |world| {
            echo_trailers(world);
            let mut client = world.client();
            for (chunks, echo) in [
                ("\r\n4\r\nbody\r\n0\r\nX-Sum: 4\r\n\r\n", "-; body; x-sum: 4"),
                ("\r\n0\r\nX-Sum: 0\r\n\r\n", "-; ; x-sum: 0"),
                ("Trailer: X-Sum\r\n\r\n0\r\nX-Sum: 0\r\n\r\n", "X-Sum; ; x-sum: 0"),
                ("Trailer: X-Sum\r\n\r\n0\r\n\r\n", "X-Sum; "),
                ("\r\n4\r\nbody\r\n0\r\n\r\n", "-; body"),
                ("\r\n0\r\n\r\n", "-; "),
            ] {
                client.send(format!("{HEAD}{chunks}")).await;
                assert_eq!(client.reply("POST").await.text(), echo, "{chunks}");
            }
            let mut client = Http2Client::connect(world).await;
            for (body, trailers, echo) in [
                (&b"body"[..], &[("x-sum", "4")][..], "-; body; x-sum: 4"),
                (b"", &[("x-sum", "0")], "-; ; x-sum: 0"),
                (b"body", &[], "-; body"),
                (b"", &[], "-; "),
            ] {
                let stream = client.ask("POST", "/", &[], false);
                client.send_data(stream, body, trailers.is_empty());
                if !trailers.is_empty() {
                    client.send_trailers(stream, trailers);
                }
                assert_eq!(client.reply(stream).await.text(), echo);
            }
        });
    }
}

#[test]
fn a_request_without_a_body_is_not_kept_waiting_for_trailers_that_it_announces() {
    for route in [proxied(""), buffered()] {
        in_memory(&route, async |world| {
            echo_trailers(world);
            let mut client = world.client();
            for request in [
                "GET / HTTP/1.1\r\nHost: a\r\nTrailer: X-Sum\r\n\r\n",
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nTrailer: X-Sum\r\n\r\n",
            ] {
                client.send(request).await;
                assert_eq!(client.reply(request).await.text(), "-; ", "{request}");
            }
            let mut client = Http2Client::connect(world).await;
            let stream = client.ask("GET", "/", &[("trailer", "x-sum")], true);
            assert_eq!(client.reply(stream).await.text(), "-; ");
        });
        // Bytes after a CONNECT are not a body, and have no trailers: none of them are processed.
        in_memory(&route, async |world| {
            let backend = Http2Backend::new(world);
            let mut client = world.client();
            client
                .send(
                    "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nTransfer-Encoding: chunked\r\n\
                     Trailer: X-Sum\r\n\r\n0\r\nX-Sum: 4\r\n\r\n",
                )
                .await;
            assert!((400..=501).contains(&client.reply("CONNECT").await.status()));
            let mut client = Http2Client::connect(world).await;
            let pseudo = RequestPseudo {
                method: b"CONNECT",
                authority: b"a:80",
                ..RequestPseudo::default()
            };
            let stream = client.ask_as(&pseudo, &[("trailer", "x-sum")], false);
            assert!((400..=501).contains(&client.reply(stream).await.status));
            assert!(!backend.has_visitor());
        });
    }
}

#[test]
fn trailers_without_end_are_refused_and_reach_nobody_where_bodies_are_kept() {
    let line = "X-Sum: 4\r\n".repeat(100);
    let long = format!("X-Sum: {}\r\n", "4".repeat(1_000));
    for lines in [&line, &long] {
        in_memory(&buffered(), async |world| {
            let backend = Http2Backend::new(world);
            let mut client = world.client();
            client
                .send(
                    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
                     Trailer: X-Sum\r\n\r\n4\r\nbody\r\n0\r\n",
                )
                .await;
            for _ in 0..40 {
                client.send(lines).await;
            }
            assert_eq!(client.reply("POST").await.status(), 400);
            assert!(client.rest().await.0.is_empty());
            assert!(!backend.has_visitor());
        });
    }
    // Over HTTP/2, trailers are one list, which is limited like a head.
    in_memory(&buffered(), async |world| {
        let backend = Http2Backend::new(world);
        let mut client = Http2Client::connect(world).await;
        let stream = client.ask("POST", "/", &[("trailer", "x-sum")], false);
        client.send_data(stream, b"body", false);
        client.send_trailers(stream, &[("x-sum", &"4".repeat(40_000))]);
        let reply = client.reply(stream).await;
        assert!(matches!(reply.reset, Some(Cause::Peer(_))), "{reply:?}");
        // Data beyond the announced length.
        let stream = client.ask("POST", "/", &[("trailer", "x"), ("content-length", "4")], false);
        client.send_data(stream, b"body and more", false);
        client.send_trailers(stream, &[("x", "4")]);
        let reply = client.reply(stream).await;
        assert!(matches!(reply.reset, Some(Cause::Peer(_))), "{reply:?}");
        assert!(!backend.has_visitor());
    });
}

#[test]
fn trailers_that_frame_route_authenticate_or_speak_for_the_client_are_dropped() {
    in_memory(&proxied(""), async |world| {
        echo_trailers(world);
        let mut client = Http2Client::connect(world).await;
        for name in [
            "authorization",
            "cookie",
            "content-type",
            "transfer_encoding",
            "x-forwarded-for",
            "x_forwarded_for",
            "x-real-ip",
            "x-original-url",
            "forwarded",
            "trailer",
            "te",
        ] {
            let stream = client.ask("POST", "/", &[], false);
            client.send_trailers(stream, &[(name, "trailers"), ("x-sum", "0")]);
            assert_eq!(client.reply(stream).await.text(), "-; ; x-sum: 0", "{name}");
        }
    });
}

#[test]
fn trailers_that_break_a_rule_reset_their_stream_and_reach_nobody() {
    let large = "a".repeat(40_000);
    let hostile: &[&[(&str, &str)]] = &[
        &[(":path", "/admin")],
        &[(":status", "200")],
        &[("x", "a\r\nb: c")],
        &[("x", "a\0")],
        &[("x\r\ny", "a")],
        &[("x y", "a")],
        &[("x:", "a")],
        &[("", "a")],
        &[("content-length", "4")],
        &[("x", &large)],
    ];
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let mut client = Http2Client::connect(world).await;
        let mut served = None;
        for trailers in hostile {
            let stream = client.ask("POST", "/", &[], false);
            client.send_data(stream, b"body", false);
            client.flush();
            if served.is_none() {
                served = Some(backend.accept().await);
            }
            let served = served.as_mut().unwrap();
            client.during(served.until(|served| !served.asked.is_empty())).await;
            client.send_trailers(stream, trailers);
            let reply = client.reply(stream).await;
            let name = trailers[0].0;
            assert!(matches!(reply.reset, Some(Cause::Peer(_))), "{name}: {reply:?}");
            served.until(|served| served.asked.values().any(|asked| asked.reset)).await;
            let asked = std::mem::take(&mut served.asked);
            assert!(asked.values().all(|asked| !asked.is_whole), "{name}: {asked:?}");
        }
        // Less than announced has arrived.
        let served = served.as_mut().unwrap();
        let fields = [("content-length", "9"), ("trailer", "x-sum")];
        let stream = client.ask("POST", "/", &fields, false);
        client.send_data(stream, b"body", false);
        client.send_trailers(stream, &[("x-sum", "4")]);
        let reply = client.reply(stream).await;
        assert_eq!(reply.reset, Some(Cause::Peer(ErrorCode::PROTOCOL_ERROR)));
        // The connection serves other requests.
        let stream = client.ask("POST", "/", &[], false);
        client.send_trailers(stream, &[("x-sum", "0")]);
        client.flush();
        let (id, asked) = client.during(served.request()).await;
        assert_eq!(lines(&asked), "-; ; x-sum: 0");
        served.reply(id, "fine");
        served.flush();
        assert_eq!(client.reply(stream).await.text(), "fine");
    });
}

#[test]
fn a_client_that_owes_announced_trailers_is_given_up_in_time() {
    in_memory(&proxied(""), async |world| {
        let mut backend = Http2Backend::new(world);
        let mut client = Http2Client::connect(world).await;
        let fields = [("content-length", "4"), ("trailer", "x-sum")];
        let stream = client.ask("POST", "/", &fields, false);
        client.send_data(stream, b"body", false);
        client.flush();
        let mut served = backend.accept().await;
        client.during(served.until(|served| !served.asked.is_empty())).await;
        let reply = client.reply(stream).await;
        assert_eq!(reply.status, 408);
        served.until(|served| served.asked.values().any(|asked| asked.reset)).await;
        assert!(served.asked.values().all(|asked| !asked.is_whole));
    });
}

#[test]
fn backends_of_http1_get_no_trailers_of_a_request() {
    let route = "[[site.route]]\npath = \"/*\"\nproxy = { to = \"http://10.0.0.1:3000\" }\n";
    in_memory(route, async |world| {
        let mut backend = world.backend("10.0.0.1:3000");
        let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
            Trailer: X-Sum\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 4\r\n\r\n";
        let reply = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let (asked, reply) = world.pass(&mut backend, request, reply).await;
        assert_eq!((asked.text(), asked.trailers.len(), reply.status()), ("body", 0, 200));
        assert_eq!(asked.field("trailer"), None);
    });
}
