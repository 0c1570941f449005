//! Tests of request and reply heads (RFC 9113 section 8). They also run the cases of Http11Probe,
//! translated to pseudo-fields.

use forebay_testkit::corpus::http11probe;
use forebay_wire::fields::Fields;
use forebay_wire::http2::{Config, Connection, RequestPseudo};

use super::drive::*;

/// Returns the event that a request causes, without its stream.
fn request(fields: &[(&str, &str)]) -> String {
    let seen = serve(&Raw::client().head(1, fields, false));
    assert_eq!(seen.error, None);
    seen.events[1].strip_prefix("1 ").unwrap().to_owned()
}

fn with(more: &[(&'static str, &'static str)]) -> String {
    request(&[POST, more].concat())
}

/// Returns the event of a POST in which the pseudo-field `name` has another value. If `value` is
/// empty, the pseudo-field is omitted.
fn otherwise(name: &'static str, value: &'static str) -> String {
    let others = POST.iter().copied().filter(|field| field.0 != name);
    let one = (!value.is_empty()).then_some((name, value));
    request(&one.into_iter().chain(others).collect::<Vec<_>>())
}

#[test]
fn requests_that_are_taken() {
    assert_eq!(with(&[]), "head POST http h /; host=h");
    assert_eq!(with(&[("host", "H")]), "head POST http h /; host=H");
    assert_eq!(with(&[("te", "trailers")]), "head POST http h /; te=trailers; host=h");
    assert_eq!(
        with(&[("cookie", "a=1"), ("x", ""), ("cookie", "b=2"), ("cookie", "c=3")]),
        "head POST http h /; cookie=a=1; b=2; c=3; x=; host=h"
    );
    assert_eq!(otherwise(":path", "/a?b=c"), "head POST http h /a?b=c; host=h");
    assert_eq!(
        request(&[(":method", "OPTIONS"), (":scheme", "https"), (":path", "*"), ("host", "h:1")]),
        "head OPTIONS https h:1 *; host=h:1"
    );
    assert_eq!(request(&[(":method", "CONNECT"), (":authority", "h:1")]), "head CONNECT  h:1 ");
    let websocket = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "h"),
    ];
    assert_eq!(request(&websocket), "head CONNECT https h /chat websocket; host=h");
}

#[test]
fn requests_that_are_malformed() {
    for (rule, fields) in [
        ("FieldName", &[("A", "b")][..]),
        ("FieldName", &[("a b", "c")]),
        ("FieldName", &[("a:", "c")]),
        ("FieldName", &[("", "c")]),
        ("FieldName", &[("a\r\nb", "c")]),
        ("FieldName", &[("content_length", "5")]),
        ("FieldName", &[("transfer.encoding", "chunked")]),
        ("FieldValue", &[("a", "b\r\nc: d")]),
        ("FieldValue", &[("a", "b\0")]),
        ("FieldValue", &[("a", " b")]),
        ("FieldValue", &[("a", "b ")]),
        ("PseudoField", &[(":unknown", "b")]),
        ("PseudoField", &[(":status", "200")]),
        ("PseudoField", &[(":method", "POST")]),
        ("PseudoField", &[("a", "b"), (":path", "/")]),
        ("ConnectionField", &[("connection", "close")]),
        ("ConnectionField", &[("keep-alive", "5")]),
        ("ConnectionField", &[("proxy-connection", "close")]),
        ("ConnectionField", &[("transfer-encoding", "chunked")]),
        ("ConnectionField", &[("upgrade", "websocket")]),
        ("Te", &[("te", "gzip")]),
        ("Te", &[("te", "trailers, deflate")]),
        ("ContentLength", &[("content-length", "5"), ("content-length", "5")]),
        ("ContentLength", &[("content-length", "+5")]),
        ("ContentLength", &[("content-length", "5, 5")]),
        ("ContentLength", &[("content-length", "")]),
        ("ContentLength", &[("content-length", "99999999999999999999")]),
        ("Authority", &[("host", "other")]),
        ("Authority", &[("host", "h"), ("host", "h")]),
        ("Protocol", &[(":protocol", "websocket")]),
    ] {
        // A pseudo-field must precede all other fields.
        let (pseudo, others): (Vec<_>, Vec<_>) =
            fields.iter().copied().partition(|field| field.0.starts_with(':') && fields.len() == 1);
        let fields = [&pseudo[..], POST, &others].concat();
        assert_eq!(request(&fields), format!("refused Head({rule})"), "{fields:?}");
    }
    for (rule, name, values) in [
        ("Method", ":method", &["GE T", "GET\tx", "G/T"][..]),
        ("PseudoField", ":method", &[""]),
        ("Scheme", ":scheme", &["ht tp", "1http", "http:"]),
        ("PseudoField", ":scheme", &[""]),
        ("Path", ":path", &["x", "*", "/a b", "/a#b", "http://h/", "/a\u{7f}"]),
        ("PseudoField", ":path", &[""]),
        ("Authority", ":authority", &["", "u@h", "h/x", "a b", "h:99999"]),
        ("FieldValue", ":path", &["/\r\nx", "/\0", "/ "]),
    ] {
        for value in values {
            let found = otherwise(name, value);
            let expected = format!("refused Head({rule})");
            // A control byte makes any value invalid, so `FieldValue` is also correct.
            let fits = found == expected || found == "refused Head(FieldValue)";
            assert!(fits, "{name}: {value:?}: {found}");
        }
    }
    for fields in [
        &[(":method", "CONNECT"), (":authority", "h:1"), (":path", "/")][..],
        &[(":method", "CONNECT"), (":authority", "h:1"), (":scheme", "http")],
        &[(":method", "CONNECT"), (":authority", "h")],
        &[(":method", "CONNECT"), ("host", "h:1")],
        &[(":method", "CONNECT"), (":protocol", "x"), (":authority", "h"), (":path", "/")],
        &[(":method", "GET"), (":scheme", "http"), (":path", "/")],
    ] {
        assert!(request(fields).starts_with("refused Head("), "{fields:?}");
    }
}

#[test]
fn an_empty_pseudo_field_is_not_a_missing_one() {
    for (name, rule) in [
        (":path", "Path"),
        (":scheme", "Scheme"),
        (":authority", "Authority"),
        (":method", "Method"),
    ] {
        let fields: Vec<_> =
            POST.iter().map(|field| if field.0 == name { (name, "") } else { *field }).collect();
        assert_eq!(request(&fields), format!("refused Head({rule})"));
    }
}

#[test]
fn requests_that_are_answered_without_being_served() {
    let path = format!("/{}", "a".repeat(8 * 1024));
    let long = [(":method", "GET"), (":scheme", "http"), (":path", &path), (":authority", "h")];
    assert_eq!(request(&long), "unacceptable TargetTooLong");
    assert_eq!(with(&[("expect", "200-ok")]), "unacceptable Expect");
    assert!(with(&[("x", "y"); 100]).starts_with("head "), "pseudo-fields do not count");
    assert_eq!(with(&[("x", "y"); 101]), "unacceptable TooLarge");
    let refused = [POST, &[("expect", "200-ok")]].concat();
    let seen = serve(&Raw::client().head(1, &refused, false).data(1, b"", true).head(3, GET, true));
    let next = seen.events.iter().any(|line| line.starts_with("3"));
    assert!(next, "what is behind an empty end waits for nothing: {seen:?}");
    let value = "v".repeat(16_000);
    let large = [POST, &[("x", &value), ("y", &value), ("z", &value)]].concat();
    let block = block(&large);
    let mut raw = Raw::client().frame(HEADERS, 0, 1, &block[..16_000]);
    raw = raw.frame(CONTINUATION, 0, 1, &block[16_000..32_000]);
    raw = raw.frame(CONTINUATION, END_HEADERS, 1, &block[32_000..]);
    let seen = serve(&raw.data(1, b"body", true).head(3, GET, true));
    assert_eq!(seen.events[1..], ["1 unacceptable TooLarge", "3 head GET http h /; host=h end"]);
}

#[test]
fn get_has_no_body_unless_it_may() {
    let with_length = [GET, &[("content-length", "4")]].concat();
    assert_eq!(request(&with_length), "unacceptable GetBody");
    // The codec accepts a body without `content-length`, because the server rejects it with a
    // status.
    let raw = Raw::client().head(1, GET, false).data(1, b"body", true);
    assert_eq!(serve(&raw).events[2], "1 data body end");
    let empty = Raw::client().head(1, GET, false).data(1, b"", true);
    assert_eq!(serve(&empty).events[2], "1 data  end");
    let mut config = Config::default();
    config.head.get_body = true;
    let raw = Raw::client().head(1, &with_length, false).data(1, b"body", true);
    let seen = drive(&raw, || Connection::server(config.clone()));
    assert_eq!(seen.events[2], "1 data body end");
}

#[test]
fn an_extended_connect_that_was_not_offered_is_refused() {
    let mut config = Config::default();
    config.head.extended_connect = false;
    let fields = [&[(":method", "CONNECT"), (":protocol", "websocket")], &POST[1..]].concat();
    let seen = drive(&Raw::client().head(1, &fields, false), || Connection::server(config.clone()));
    assert_eq!(seen.events[1], "1 refused Head(Protocol)");
}

/// Returns the behaviour of a client that has sent a request with `method`. The client reads the
/// bytes that follow the server's SETTINGS.
fn replies(method: &[u8], raw: &Raw) -> Seen {
    drive(raw, || {
        let mut connection = Connection::client(Config::default());
        let request =
            RequestPseudo { method, scheme: b"http", authority: b"h", path: b"/", protocol: b"" };
        connection.send_request(&request, &Fields::new(), true).unwrap();
        connection
    })
}

#[test]
fn replies_with_interim_ones_trailers_and_without_body() {
    let start = Raw::server();
    let seen = replies(
        b"GET",
        &start
            .clone()
            .head(1, &[(":status", "103"), ("link", "</a>")], false)
            .head(1, &[(":status", "100")], false)
            .head(1, &[(":status", "200"), ("content-length", "2")], false)
            .data(1, b"ab", false)
            .head(1, &[("grpc-status", "0")], true),
    );
    assert_eq!(
        seen.events[1..],
        [
            "1 interim 103; link=</a>",
            "1 interim 100",
            "1 head 200; content-length=2",
            "1 data ab",
            "1 trailers grpc-status=0"
        ]
    );
    let empty = [(":status", "200"), ("content-length", "9")];
    let seen = replies(b"HEAD", &start.clone().head(1, &empty, true));
    assert_eq!(seen.events[1], "1 head 200; content-length=9 end");
    let seen =
        replies(b"GET", &start.head(1, &[(":status", "304"), ("content-length", "9")], true));
    assert_eq!(seen.events[1], "1 head 304; content-length=9 end");
}

#[test]
fn replies_that_are_malformed() {
    for (cause, fields) in [
        ("Head(Status)", &[(":status", "20")][..]),
        ("Head(Status)", &[(":status", "2000")]),
        ("Head(Status)", &[(":status", "20x")]),
        ("Head(Status)", &[(":status", "101")]),
        ("Head(PseudoField)", &[("a", "b")]),
        ("Head(PseudoField)", &[(":status", "200"), (":path", "/")]),
        ("Head(PseudoField)", &[(":status", "200"), (":status", "200")]),
        ("Head(ConnectionField)", &[(":status", "200"), ("connection", "close")]),
        ("Head(FieldName)", &[(":status", "200"), ("Server", "x")]),
        ("Head(FieldValue)", &[(":status", "200"), ("a", "b\r\nc")]),
        ("Head(ContentLength)", &[(":status", "200"), ("content-length", "-1")]),
        ("Head(ContentLength)", &[(":status", "103"), ("content-length", "1")]),
    ] {
        let seen = replies(b"GET", &Raw::server().head(1, fields, false));
        assert_eq!(seen.events[1], format!("1 reset Rule({cause})"), "{fields:?}");
        assert_eq!(seen.sent, ["reset 1 1"]);
    }
    for (cause, raw) in [
        ("UnexpectedData", Raw::server().data(1, b"x", true)),
        ("Head(Status)", Raw::server().head(1, &[(":status", "100")], true)),
        (
            "ContentLength",
            Raw::server().head(1, &[(":status", "200"), ("content-length", "9")], true),
        ),
    ] {
        assert_eq!(replies(b"GET", &raw).events[1], format!("1 reset Rule({cause})"));
    }
    let body = Raw::server().head(1, &[(":status", "200")], false).data(1, b"x", true);
    assert_eq!(replies(b"HEAD", &body).events[2], "1 reset Rule(UnexpectedData)");
    for raw in [
        Raw::server().head(3, &[(":status", "200")], true),
        Raw::server().head(2, &[(":status", "200")], true),
        Raw::server().frame(PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82]),
        Raw::server().setting(2, 1),
        Raw::server().u32(PRIORITY_UPDATE, 0, 1),
        Raw::server().setting(8, 1).setting(8, 0),
    ] {
        assert_eq!(replies(b"GET", &raw).goaway(), Some("1"));
    }
}

/// Translates a case to the form in which an HTTP/2 client would send it. The request line becomes
/// pseudo-fields, field names become lower case, and `Host` becomes `:authority`. Returns `None`
/// for a case about a feature that HTTP/2 does not have, such as line ends.
fn translated(raw: &[u8]) -> Option<Raw> {
    let text: String = raw.iter().map(|&byte| byte as char).collect();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.splitn(3, ' ');
    let (method, path) = (first.next()?, first.next()?);
    let mut fields = vec![(":method".to_owned(), method.to_owned())];
    if method == "CONNECT" {
        fields.push((":authority".into(), path.into()));
    } else {
        fields.push((":scheme".into(), "http".into()));
        fields.push((":path".into(), path.into()));
    }
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let value = value.trim_matches(' ').to_owned();
        fields.push((name.to_ascii_lowercase(), value));
    }
    let fields: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let raw = Raw::client().head(1, &fields, body.is_empty());
    Some(if body.is_empty() { raw } else { raw.data(1, body.as_bytes(), true) })
}

#[test]
fn cases_of_http11probe_are_refused_as_pseudo_fields_too() {
    let mut refused = Vec::new();
    let mut taken = Vec::new();
    for case in http11probe() {
        let Some(raw) = translated(&case.raw) else { continue };
        let seen = serve(&raw);
        let is_refused = seen.error.is_some()
            || seen.events.iter().any(|event| {
                event.contains(" refused ")
                    || event.contains(" reset ")
                    || event.contains("unacceptable")
            });
        if is_refused { &mut refused } else { &mut taken }.push(case.id.clone());
        let must_refuse = case.expected.starts_with("400") && !case.expected.contains('2');
        // Chunks, versions and a target without a version exist only in HTTP/1.1.
        let is_of_http1 =
            ["VERSION", "CHUNK", "HTTP09", "CONNECT"].iter().any(|part| case.id.contains(part));
        assert!(is_refused || !must_refuse || is_of_http1, "{}: {:?}", case.id, seen);
    }
    assert!(refused.len() > 40, "refused {refused:?}, taken {taken:?}");
    assert!(taken.contains(&"COMP-BASELINE".to_owned()));
}
