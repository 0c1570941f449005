//! Replies of backends that break a rule of their protocol: what leaves no doubt about the reply's
//! meaning and end is mended before a client sees it, unless `strict` is set. All else is refused.

use crate::fastcgi::{end, stdout};
use crate::world::{Message, World, in_memory};

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nConnection: TE\r\n\r\n";

/// The field `A` that clients get, or `None` if the reply is refused.
type Passed = Option<&'static str>;

/// Oddities in the field lines of a head, in every protocol with textual heads.
const FIELDS: &[(&str, Passed)] = &[
    ("A: b\n", Some("b")),
    ("A: b\u{1}c\r\n", Some("b c")),
    ("A: b\u{7f}\r\n", Some("b")),
    ("A : b\r\n", Some("b")),
    ("A \t : b\n", Some("b")),
    ("A: b\r\n c\r\n\td\r\n", Some("b c d")),
    ("A:\r\n b\r\n", Some("b")),
    ("Content-Length: 2\r\nContent-Length: 2\r\nA: b\r\n", Some("b")),
    ("A: b\0c\r\n", None),
    ("A: b\rc\r\n", None),
    ("A b: c\r\n", None),
    ("A\u{1}: c\r\n", None),
    (": c\r\n", None),
    ("hello world\r\n", None),
    ("Content-Length : 2\r\n", None),
    ("Content-Length\t: 2\r\n", None),
    ("Content-Length:\r\n 2\r\n", None),
    ("Content-Length: 2\r\n 3\r\n", None),
    ("Content-Length: 2\u{1}\r\n", None),
    ("Content-Length: 2\r\nContent-Length: 3\r\n", None),
    ("Content-Length: +2\r\n", None),
];

/// Further oddities in field lines of HTTP.
const HTTP_FIELDS: &[(&str, Passed)] = &[
    ("HTTP/1.1 200 OK\r\nA: b\r\n", Some("b")),
    ("A(x): c\r\n folded\r\nA: b\r\n", Some("b")),
    ("\u{fc}: c\r\nhello\r\nA: b\r\n", Some("b")),
    ("Transfer-Encoding : chunked\r\n", None),
    ("Transfer-Encoding:\r\n chunked\r\n", None),
    ("Transfer-Encoding: chunked\u{1}\r\n", None),
    ("Transfer-Encoding: identity\r\nContent-Length: 2\r\n", None),
    ("Transfer-Encoding: chunked\nContent-Length: 2\n", None),
    ("Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n", None),
];

/// Oddities in status lines.
const STATUS_LINES: &[(&str, bool)] = &[
    ("HTTP/1.1 200 OK\n", true),
    ("HTTP/1.1   200 OK\r\n", true),
    ("HTTP/1.1 200 O\u{1}K\r\n", true),
    ("HTTP/1.1 200.1 OK\r\n", true),
    ("HTTP/2.0 200 OK\r\n", true),
    ("HTTP/1.1 20 OK\r\n", false),
    ("HTTP/1.1 200OK\r\n", false),
    ("HTTP/1.1 200 O\0K\r\n", false),
    ("http/1.1 200 OK\r\n", false),
    ("ICY 200 OK\r\n", false),
    ("\r\nHTTP/1.1 200 OK\r\n", false),
];

/// Oddities in chunked bodies whose content is `ok`, with the trailer `A` that clients get.
const CHUNKS: &[(&str, Passed)] = &[
    ("2 \r\nok\r\n0 \r\n\r\n", Some("")),
    ("2      \r\nok\r\n0\t\r\n\r\n", Some("")),
    ("2 ; a = b\r\nok\r\n0;\u{1}(@)\r\n\r\n", Some("")),
    ("2\nok\n0\n\n", Some("")),
    ("00000000000000000002\r\nok\r\n0000\r\n\r\n", Some("")),
    ("2\r\nok\r\n0\r\nA: b\n\n", Some("b")),
    ("2\r\nok\r\n0\r\nA : b\u{1}c\r\n\td\r\n\r\n", Some("b c d")),
    ("2\r\nok\r\n0\r\nA(x): c\r\n folded\r\nhello world\r\nA: b\r\n\r\n", Some("b")),
    ("2\r\nok\r\n0\r\nContent-Length : 9\r\n folded\r\n\r\n", Some("")),
    (" 2\r\nok\r\n0\r\n\r\n", None),
    ("0x2\r\nok\r\n0\r\n\r\n", None),
    ("2x\r\nok\r\n0\r\n\r\n", None),
    ("2;\rx\r\nok\r\n0\r\n\r\n", None),
    ("2\rok\r\n0\r\n\r\n", None),
    ("-2\r\nok\r\n0\r\n\r\n", None),
    ("\r\n2\r\nok\r\n0\r\n\r\n", None),
    ("2\r\nok \r\n0\r\n\r\n", None),
    ("2\r\nok0\r\n\r\n", None),
    ("10000000000000002\r\nok\r\n0\r\n\r\n", None),
];

fn proxy(strict: bool) -> String {
    format!(
        "[[site.route]]\npath = \"/*\"\nproxy = {{ to = \"http://10.0.0.1:9000\", strict = {strict} }}\n"
    )
}

/// Sends `bytes` as the backend's whole output, in pieces of `size`. Returns what the client gets,
/// or `None` if its reply is cut off.
async fn reply(world: &World, bytes: &[u8], size: usize) -> Option<Message> {
    let mut backend = world.backend("10.0.0.1:9000");
    let mut client = world.client();
    client.send(REQUEST).await;
    let mut connection = backend.accept().await;
    connection.more().await.unwrap();
    let answering = async move {
        for piece in bytes.chunks(size) {
            let _ = connection.link.write(piece).await;
            tokio::task::yield_now().await;
        }
        connection.link.finish();
        let _ = connection.rest().await;
    };
    let ((), reply) = tokio::join!(answering, client.any_reply(false));
    reply.ok()
}

/// Checks what becomes of a backend's output, however it arrives. With `passed`, the content is
/// `ok`.
fn check(route: &str, bytes: &[u8], passed: Passed) {
    for size in [1, 5, 10_000] {
        in_memory(route, async |world| {
            let what = format!("{:?} {route}", String::from_utf8_lossy(bytes));
            let reply = reply(world, bytes, size).await;
            match passed {
                Some(a) => {
                    let reply = reply.unwrap_or_else(|| panic!("{what}: {:?}", world.errors()));
                    assert_eq!((reply.status(), reply.text()), (200, "ok"), "{what}");
                    let fields = reply.fields.iter().chain(&reply.trailers);
                    let all: Vec<_> = fields.clone().filter(|(name, _)| name == "a").collect();
                    let values = all.iter().map(|(_, value)| value.as_str());
                    assert_eq!(values.collect::<String>(), a, "{what}");
                    let is_clean = |text: &str| !text.chars().any(|letter| letter < ' ');
                    assert!(is_clean(&reply.start), "{what}");
                    assert!(fields.clone().all(|(_, value)| is_clean(value)), "{what}");
                    let odd = fields.clone().any(|(name, _)| name.contains(['(', '\u{fc}', ' ']));
                    assert!(!odd, "{what}");
                }
                None => {
                    let status = reply.map(|reply| reply.status());
                    assert!(status.is_none_or(|status| status == 502), "{what}: {status:?}");
                }
            }
        });
    }
}

#[test]
fn odd_http_heads_are_mended_or_refused() {
    for strict in [false, true] {
        let unless_strict = |passed: Passed| passed.filter(|_| !strict);
        for (lines, passed) in FIELDS.iter().chain(HTTP_FIELDS) {
            let bytes = format!("HTTP/1.1 200 OK\r\n{lines}\r\nok");
            check(&proxy(strict), &latin(&bytes), unless_strict(*passed));
        }
        for (line, passes) in STATUS_LINES {
            let bytes = format!("{line}Content-Length: 2\r\nA: b\r\n\r\nok");
            check(&proxy(strict), &latin(&bytes), unless_strict(passes.then_some("b")));
        }
        for end in ["\n", "\r\n"] {
            let bytes = format!(
                "HTTP/1.1 103 Early{end}A : x{end}{end}HTTP/1.1 200 OK{end}A: b{end}{end}ok"
            );
            let mut reader = String::new();
            in_memory(&proxy(strict), async |world| {
                if let Some(reply) = reply(world, bytes.as_bytes(), 3).await {
                    reader = format!("{} {}", reply.status(), reply.text());
                }
            });
            assert!(reader.starts_with(if strict { "502" } else { "103" }), "{reader}");
        }
        check(&proxy(strict), b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nok", Some("b"));
    }
}

#[test]
fn odd_chunks_and_trailers_are_mended_or_refused() {
    for strict in [false, true] {
        for (body, passed) in CHUNKS {
            let bytes = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
            check(&proxy(strict), &latin(&bytes), passed.filter(|_| !strict));
        }
    }
}

#[test]
fn odd_heads_of_scripts_and_applications_are_mended_or_refused() {
    let route = |form: &str| format!("[[site.route]]\npath = \"/*\"\n{form}\n");
    let fastcgi = route("fastcgi = { to = \"10.0.0.1:9000\", root = \"/x\", scripts = \"*\" }");
    let servers =
        ["scgi", "uwsgi"].map(|kind| route(&format!("{kind} = {{ to = \"10.0.0.1:9000\" }}")));
    for (lines, passed) in FIELDS {
        let script = format!("Content-Type: text/plain\r\n{lines}\r\nok");
        check(&fastcgi, &[stdout(1, &script), end(1)].concat(), *passed);
        for server in &servers {
            check(server, &latin(&script), *passed);
            check(server, &latin(&format!("HTTP/1.0 200 OK\r\n{lines}\r\nok")), *passed);
        }
    }
    // A document without a head is never taken for one.
    for document in ["<p>Note: x\n\nok", "hello\n\nok", "A(x): b\n\nok"] {
        for route in servers.iter().chain([&fastcgi]) {
            let bytes = if route == &fastcgi {
                [stdout(1, document), end(1)].concat()
            } else {
                document.as_bytes().to_vec()
            };
            check(route, &bytes, None);
        }
    }
}

/// The bytes of a text in Latin-1.
fn latin(text: &str) -> Vec<u8> {
    text.chars().map(|letter| letter as u8).collect()
}
