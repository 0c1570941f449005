//! FastCGI, SCGI and uwsgi applications: the requests that they receive, and the handling of
//! replies that are broken, cut off or in pieces.

use std::time::Duration;

use tokio::time::sleep;

use crate::fastcgi::{end, end_with, record, stdout};
use crate::world::{Message, in_memory};

const GET: &str = "GET /x HTTP/1.1\r\nHost: h\r\n\r\n";

/// Returns a route to an application of this protocol at 10.0.0.1:9000. Any path is a script.
fn route(protocol: &str, keys: &str) -> String {
    let root = if protocol == "fastcgi" { ", root = \"/nowhere\", scripts = \"*\"" } else { "" };
    format!(
        "[[site.route]]\npath = \"/*\"\n{protocol} = {{ to = \"10.0.0.1:9000\"{root}{keys} }}\n"
    )
}

/// Returns the client's reply and the logged errors if the application sends these bytes in pieces
/// and closes.
fn answered(route: &str, reply: &[u8], seed: u64) -> (std::io::Result<Message>, Vec<String>) {
    let mut answered = None;
    in_memory(route, async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        client.send(GET).await;
        let mut connection = application.accept().await;
        connection.more().await.unwrap();
        let answering = async move {
            connection.send_in_pieces(reply, seed).await;
            connection.link.finish();
            let _ = connection.rest().await;
        };
        let ((), replied) = tokio::join!(answering, client.any_reply(false));
        answered = Some((replied, world.errors()));
        assert!(!application.has_visitor(), "asked once");
    });
    answered.unwrap()
}

fn has(errors: &[String], part: &str) -> bool {
    errors.iter().any(|error| error.contains(part))
}

#[test]
fn records_in_any_pieces_are_one_reply() {
    let whole = [
        stdout(1, "Content-Type: text/plain\r\n\r\nabc"),
        record(7, 1, b"a warn"),
        record(7, 1, b"ing\n\nand its end"),
        stdout(1, "def"),
        stdout(1, ""),
        end(1),
    ]
    .concat();
    for seed in 0..20 {
        let (reply, errors) = answered(&route("fastcgi", ""), &whole, seed);
        assert_eq!(reply.unwrap().text(), "abcdef", "seed {seed}");
        assert_eq!(errors, ["10.0.0.1:9000: a warning", "10.0.0.1:9000: and its end"]);
    }
}

#[test]
fn broken_fastcgi_replies_are_bad_gateways() {
    for broken in [
        b"nonsense nonsense nonsense".to_vec(),
        Vec::new(),
        stdout(1, "Content-Type: text/plain\r\n"),
        [stdout(1, "Content-Type: text/plain\r\n"), end(1)].concat(),
        [stdout(1, "no header\r\n\r\n"), end(1)].concat(),
        [stdout(1, "Status: 99\r\n\r\n"), end(1)].concat(),
        end(1),
        end_with(1, 1),
        [stdout(2, "Content-Type: text/plain\r\n\r\nanother's"), end(2)].concat(),
    ] {
        let (reply, _) = answered(&route("fastcgi", ""), &broken, 1);
        assert_eq!(reply.unwrap().status(), 502, "{}", broken.escape_ascii());
    }
}

#[test]
fn a_fastcgi_application_that_is_overloaded_is_unavailable() {
    let (reply, _) = answered(&route("fastcgi", ""), &end_with(1, 2), 1);
    assert_eq!(reply.unwrap().status(), 503);
}

#[test]
fn a_fastcgi_reply_that_breaks_off_is_cut() {
    let head = "Content-Type: text/plain\r\nContent-Length: 10\r\n\r\n";
    for cut in [
        stdout(1, &format!("{head}abc")),
        [stdout(1, &format!("{head}abc")), end(1)].concat(),
        stdout(1, "Content-Type: text/plain\r\n\r\nabc"),
        [stdout(1, &format!("{head}abcdefghijklm")), end(1)].concat(),
    ] {
        let (reply, _) = answered(&route("fastcgi", ""), &cut, 1);
        assert!(reply.map_or(true, |reply| reply.status() == 502), "{}", cut.escape_ascii());
    }
}

#[test]
fn a_reply_beyond_max_output_is_refused() {
    let text = format!("Content-Type: text/plain\r\n\r\n{}", "x".repeat(100));
    for (protocol, sent) in [
        ("fastcgi", [stdout(1, &text), end(1)].concat()),
        ("scgi", text.clone().into_bytes()),
        ("uwsgi", text.clone().into_bytes()),
    ] {
        let (reply, errors) = answered(&route(protocol, ", max_output = 50"), &sent, 1);
        assert!(reply.map_or(true, |reply| reply.status() == 502), "{protocol}");
        assert!(has(&errors, "max_output"), "{protocol}: {errors:?}");
        let (reply, _) = answered(&route(protocol, ", max_output = 500"), &sent, 1);
        assert_eq!(reply.unwrap().body.len(), 100, "{protocol}");
    }
}

#[test]
fn replies_as_of_scripts_and_as_of_servers_are_taken() {
    for protocol in ["scgi", "uwsgi"] {
        for (sent, status, text) in [
            ("Status: 404 No\r\n\r\nnot here", 404, "not here"),
            ("Content-Type: text/plain\n\nhello", 200, "hello"),
            ("HTTP/1.1 200 OK\r\n\r\nhello", 200, "hello"),
            ("HTTP/1.0 404 No\r\nContent-Length: 3\r\n\r\nabc", 404, "abc"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                200,
                "abc",
            ),
        ] {
            for seed in 0..5 {
                let (reply, _) = answered(&route(protocol, ""), sent.as_bytes(), seed);
                let reply = reply.unwrap();
                assert_eq!((reply.status(), reply.text()), (status, text), "{protocol}: {sent}");
            }
        }
    }
}

#[test]
fn interim_replies_pass_whatever_form_they_come_in() {
    let http = "HTTP/1.1 103 Early\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\n\r\nlate";
    let printed = "Status: 103 Early\nLink: </a.css>\n\nStatus: 200 OK\n\nlate";
    for (protocol, sent) in [
        ("scgi", http.into()),
        ("uwsgi", printed.into()),
        ("fastcgi", [stdout(1, printed), end(1)].concat()),
    ] {
        let sent: Vec<u8> = sent;
        in_memory(&route(protocol, ""), async |world| {
            let mut backend = world.backend("10.0.0.1:9000");
            let mut client = world.client();
            client.send("GET /x HTTP/1.1\r\nHost: h\r\n\r\n").await;
            let mut connection = backend.accept().await;
            connection.more().await.unwrap();
            connection.send(sent).await;
            connection.link.finish();
            let interim = client.any_reply(false).await.unwrap();
            assert_eq!((interim.status(), interim.field("link")), (103, Some("</a.css>")));
            assert_eq!(client.any_reply(false).await.unwrap().text(), "late", "{protocol}");
        });
    }
}

#[test]
fn bad_replies_are_bad_gateways() {
    for protocol in ["scgi", "uwsgi"] {
        for sent in [
            "",
            "H",
            "HTTP/1.1",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/9 what\r\n\r\n",
            "no header\n\n",
            "Status: x\n\n",
            "Content-Type: text/plain\n",
            "HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        ] {
            let (reply, _) = answered(&route(protocol, ""), sent.as_bytes(), 1);
            assert_eq!(reply.unwrap().status(), 502, "{protocol}: {sent}");
        }
    }
}

#[test]
fn half_a_reply_is_not_taken_for_a_whole_one() {
    for sent in [
        "Content-Length: 100\n\nabc",
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let (reply, _) = answered(&route("uwsgi", ""), sent.as_bytes(), 1);
        assert!(reply.map_or(true, |reply| reply.status() == 502), "{sent:?}");
    }
}

#[test]
fn the_first_variable_of_scgi_is_content_length_and_params_replace_fields() {
    let keys = ", params = { A = \"b\", HTTP_HOST = \"x\" }";
    in_memory(&route("scgi", keys), async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let mut client = world.client();
        client.send("POST /p%20q?r HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello").await;
        let mut connection = application.accept().await;
        let mut length = Vec::new();
        while length.last() != Some(&b':') {
            length.extend(connection.exactly(1).await.unwrap());
        }
        let length: usize =
            std::str::from_utf8(&length[..length.len() - 1]).unwrap().parse().unwrap();
        let variables = String::from_utf8(connection.exactly(length).await.unwrap()).unwrap();
        assert_eq!(connection.exactly(6).await.unwrap(), b",hello");
        assert!(variables.starts_with("CONTENT_LENGTH\x005\0SCGI\x001\0"), "{variables:?}");
        for pair in ["HTTP_HOST\0x\0", "\0A\0b\0", "REQUEST_METHOD\0POST\0", "PATH_INFO\0/p q\0"] {
            assert!(variables.contains(pair), "{pair:?}: {variables:?}");
        }
        assert!(variables.contains("QUERY_STRING\0r\0"), "{variables:?}");
        assert_eq!(variables.matches("HTTP_HOST").count(), 1, "{variables:?}");
        connection.send("Status: 200 OK\r\n\r\nok").await;
        drop(connection);
        assert_eq!(client.reply("POST ").await.text(), "ok");
    });
}

#[test]
fn variables_that_uwsgi_has_no_room_for_are_refused() {
    let configuration = format!(
        "[server.limits]\nhead_size = \"128k\"\n[[site]]\nlisten = \"127.0.0.1:80\"\n{}",
        route("uwsgi", "")
    );
    in_memory(&configuration, async |world| {
        let mut application = world.backend("10.0.0.1:9000");
        let value = "v".repeat(65_535);
        let reply = world.ask(&format!("GET / HTTP/1.1\r\nHost: h\r\nX-A: {value}\r\n\r\n")).await;
        assert_eq!(reply.status(), 431);
        assert!(!application.has_visitor());
    });
}

#[test]
fn an_application_that_is_not_there_is_a_bad_gateway_and_named_in_the_log() {
    for protocol in ["fastcgi", "scgi", "uwsgi"] {
        let route = route(protocol, "").replace("10.0.0.1:9000", "unix:/no/socket");
        in_memory(&route, async |world| {
            assert_eq!(world.ask(GET).await.status(), 502, "{protocol}");
            let errors = world.errors();
            assert!(has(&errors, "/no/socket"), "{protocol}: {errors:?}");
        });
    }
}

#[test]
fn a_request_beyond_max_connections_waits_for_the_one_before() {
    for (protocol, first, second) in [
        ("scgi", b"A: b\n\nfirst".to_vec(), b"A: b\n\nsecond".to_vec()),
        (
            "fastcgi",
            [stdout(1, "A: b\n\nfirst"), end(1)].concat(),
            [stdout(1, "A: b\n\nsecond"), end(1)].concat(),
        ),
    ] {
        in_memory(&route(protocol, ", max_connections = 1"), async |world| {
            let mut application = world.backend("10.0.0.1:9000");
            let (mut one, mut two) = (world.client(), world.client());
            one.send(GET).await;
            let mut connection = application.accept().await;
            connection.more().await.unwrap();
            two.send(GET).await;
            sleep(Duration::from_secs(5)).await;
            assert!(!application.has_visitor(), "{protocol}");
            connection.send(&first).await;
            drop(connection);
            assert_eq!(one.reply(GET).await.text(), "first", "{protocol}");
            let mut connection = application.accept().await;
            connection.more().await.unwrap();
            connection.send(&second).await;
            drop(connection);
            assert_eq!(two.reply(GET).await.text(), "second", "{protocol}");
        });
    }
}
