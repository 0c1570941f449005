//! Tests of request and response heads: valid heads are accepted and invalid ones rejected. The
//! result does not depend on the pieces in which the bytes arrive.

use forebay_wire::http1::*;

fn request(bytes: &[u8]) -> Result<(RequestHead, Progress), HeadError> {
    let mut head = RequestHead::default();
    let progress = RequestParser::default().parse(bytes, &mut head)?;
    Ok((head, progress))
}

fn response(bytes: &[u8]) -> Result<(ResponseHead, Progress), HeadError> {
    let mut head = ResponseHead::default();
    let progress = ResponseParser::default().parse(bytes, &mut head)?;
    Ok((head, progress))
}

#[test]
fn a_request_is_parsed_into_spans() {
    let bytes = b"POST /a%20b?q=1 HTTP/1.1\r\nHost: example.org:80\r\nX-Empty:\r\n\
        Content-Length: \t5 \r\nConnection: keep-alive\r\n\r\nhello";
    let (head, progress) = request(bytes).unwrap();
    assert_eq!(progress, Progress::Complete(bytes.len() - 5));
    assert_eq!(head.method.of(bytes), b"POST");
    assert_eq!(head.path_and_query.of(bytes), b"/a%20b?q=1");
    assert_eq!(head.authority.unwrap().of(bytes), b"example.org:80");
    assert_eq!(head.framing, RequestFraming::Length(5));
    assert_eq!(head.value(KnownField::ContentLength, bytes), Some(&b"5"[..]));
    assert!(head.keep_alive && !head.expect_continue && !head.upgrade);
    assert_eq!(head.fields[1].name.of(bytes), b"X-Empty");
    assert!(head.fields[1].value.is_empty());
}

#[test]
fn a_higher_minor_version_is_read_as_1_1() {
    for minor in 1..=9 {
        let text = format!("GET / HTTP/1.{minor}\r\nHost: h\r\n\r\n");
        let (head, _) = request(text.as_bytes()).unwrap();
        assert_eq!((head.version, head.keep_alive), (Version::Http11, true), "{text}");
        let text = format!("HTTP/1.{minor} 200 OK\r\nContent-Length: 0\r\n\r\n");
        let (head, _) = response(text.as_bytes()).unwrap();
        assert_eq!((head.version, head.keep_alive), (Version::Http11, true), "{text}");
    }
    let without_host = b"GET / HTTP/1.2\r\n\r\n";
    assert_eq!(request(without_host).unwrap_err(), HeadError::Host);
}

#[test]
fn requests_that_break_a_rule_are_refused() {
    use HeadError::*;
    let with = |fields: &str| format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
    let cases: Vec<(String, HeadError)> = vec![
        ("GET / HTTP/1.1\nHost: h\r\n\r\n".into(), BareLineEnd),
        ("GET / HTTP/1.1\r\nHost: h\n\r\n".into(), BareLineEnd),
        ("GET / HTTP/1.1\r\nHost: h\r\n\n".into(), BareLineEnd),
        ("GET /\r\n\r\n".into(), StartLine),
        ("GET / HTTP/1.1 \r\nHost: h\r\n\r\n".into(), StartLine),
        ("GET  / HTTP/1.1\r\nHost: h\r\n\r\n".into(), Target),
        ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n".into(), Target),
        ("GET / HTTP/1\r\nHost: h\r\n\r\n".into(), StartLine),
        ("GET / HTTP/01.01\r\nHost: h\r\n\r\n".into(), StartLine),
        ("GET / http/1.1\r\nHost: h\r\n\r\n".into(), StartLine),
        ("PRI * HTTP/2.0\r\n\r\n".into(), Version),
        ("GET / HTTP/2.0\r\nHost: h\r\n\r\n".into(), Version),
        ("G(T / HTTP/1.1\r\nHost: h\r\n\r\n".into(), Method),
        (" GET / HTTP/1.1\r\nHost: h\r\n\r\n".into(), Method),
        ("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n".into(), Target),
        ("GET /\r/ HTTP/1.1\r\nHost: h\r\n\r\n".into(), Target),
        ("GET * HTTP/1.1\r\nHost: h\r\n\r\n".into(), Target),
        ("\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\n".into(), StartLine),
        ("GET / HTTP/1.1\r\n\r\n".into(), Host),
        (with("Host: h"), Host),
        ("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n".into(), Host),
        ("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n".into(), Host),
        (with(" folded"), ObsFold),
        (with("\tfolded"), ObsFold),
        (with(": v"), FieldName),
        (with("no-colon"), FieldName),
        (with("a : b"), FieldName),
        (with("a[b: c"), FieldName),
        (with("a: b\0c"), FieldValue),
        (with("a: b\rc"), FieldValue),
        (with("a: \x07"), FieldValue),
        (with("a: \x7f"), FieldValue),
        (with("Content-Length: "), ContentLength),
        (with("Content-Length: +5"), ContentLength),
        (with("Content-Length: -1"), ContentLength),
        (with("Content-Length: 0x5"), ContentLength),
        (with("Content-Length: 1 0"), ContentLength),
        (with("Content-Length: 5, 5"), ContentLength),
        (with("Content-Length: 5\r\nContent-Length: 5"), ContentLength),
        (with("Content-Length: 99999999999999999999"), ContentLength),
        (with("Transfer-Encoding: xchunked"), TransferEncoding),
        (with("Transfer-Encoding: "), TransferEncoding),
        (with("Transfer-Encoding: chunked, gzip"), TransferEncoding),
        (with("Transfer-Encoding: gzip, chunked"), TransferEncoding),
        (with("Transfer-Encoding: , chunked"), TransferEncoding),
        (with("Transfer-Encoding: chunked;a=b"), TransferEncoding),
        (with("Transfer-Encoding: \"chunked\""), TransferEncoding),
        (with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), TransferEncoding),
        (with("Transfer-Encoding: \x0bchunked"), FieldValue),
        (with("Transfer-Encoding : chunked"), FieldName),
        (with("Transfer-Encoding: chunked\r\nContent-Length: 5"), AmbiguousLength),
        (with("Content-Length: 5\r\nTransfer-Encoding: chunked"), AmbiguousLength),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".into(), TransferEncoding),
        (with("Expect: 200-ok"), Expect),
        (format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(9000)), TargetTooLong),
        (with(&format!("a: {}", "b".repeat(40_000))), TooLarge),
        (with(&"a: b\r\n".repeat(200)), TooLarge),
    ];
    for (raw, error) in cases {
        assert_eq!(request(raw.as_bytes()).err(), Some(error), "{:?}", &raw[..raw.len().min(90)]);
    }
}

#[test]
fn connections_are_kept_as_version_and_connection_say() {
    let kept = |line: &str| request(line.as_bytes()).unwrap().0.keep_alive;
    assert!(kept("GET / HTTP/1.1\r\nHost: h\r\n\r\n"));
    assert!(!kept("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n"));
    assert!(!kept("GET / HTTP/1.0\r\n\r\n"));
    assert!(kept("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n"));
    assert!(!kept("GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n"));
}

#[test]
fn an_absolute_target_overrides_host() {
    let bytes = b"GET http://a.example/x HTTP/1.1\r\nHost: b.example\r\n\r\n";
    let (head, _) = request(bytes).unwrap();
    assert_eq!(head.authority.unwrap().of(bytes), b"a.example");
    assert_eq!(head.path_and_query.of(bytes), b"/x");
}

#[test]
fn upgrade_needs_both_fields() {
    let raw = "GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert!(request(raw.as_bytes()).unwrap().0.upgrade);
    assert!(!request(raw.replace("Upgrade:", "X:").as_bytes()).unwrap().0.upgrade);
    assert!(!request(raw.replace("HTTP/1.1", "HTTP/1.0").as_bytes()).unwrap().0.upgrade);
}

#[test]
fn responses() {
    let (head, _) = response(b"HTTP/1.1 200\r\nContent-Length: 3\r\n\r\n").unwrap();
    assert_eq!((head.status, head.framing), (200, ResponseFraming::Length(3)));
    let bytes = b"HTTP/1.0 404 Not Here\r\n\r\n";
    let (head, _) = response(bytes).unwrap();
    assert_eq!(head.reason.of(bytes), b"Not Here");
    assert_eq!((head.framing, head.keep_alive), (ResponseFraming::Close, false));
    let (head, _) = response(b"HTTP/1.1 304 N\r\nContent-Length: 9\r\n\r\n").unwrap();
    assert_eq!((head.framing, head.content_length), (ResponseFraming::None, Some(9)));
    let mut head = ResponseHead::default();
    let raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    ResponseParser::new(Http1Limits::default(), true).parse(raw, &mut head).unwrap();
    assert_eq!(head.framing, ResponseFraming::None);
}

#[test]
fn responses_that_break_a_rule_are_refused() {
    use HeadError::*;
    for (raw, error) in [
        ("HTTP/1.1 20 OK\r\n\r\n", StartLine),
        ("HTTP/1.1 2000 OK\r\n\r\n", StartLine),
        ("HTTP/1.1  200 OK\r\n\r\n", StartLine),
        ("HTTP/1.1 099 OK\r\n\r\n", StartLine),
        ("HTTP/2.0 200 OK\r\n\r\n", Version),
        ("ICY 200 OK\r\n\r\n", StartLine),
        ("\0\r\n", StartLine),
        ("HTTP/1.1 200 O\0K\r\n\r\n", StartLine),
        ("HTTP/1.1 200 OK\n\n", BareLineEnd),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", ContentLength),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            AmbiguousLength,
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", TransferEncoding),
    ] {
        assert_eq!(response(raw.as_bytes()).err(), Some(error), "{raw:?}");
    }
}

#[test]
fn forwarding_drops_hop_by_hop_fields_and_those_that_connection_names() {
    let bytes = b"GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nConnection: x-secret, keep-alive\r\n\
        X-Secret: 1\r\nB: 2\r\nTE: trailers\r\nC: 3\r\nKeep-Alive: 3\r\n\r\n";
    let (head, _) = request(bytes).unwrap();
    let mut out = Vec::new();
    encode::forward_request_fields(&mut out, &head, bytes, |field| field.known == KnownField::Host);
    assert_eq!(String::from_utf8(out).unwrap(), "A: 1\r\nB: 2\r\nC: 3\r\n");
}

proptest::proptest! {
    #[test]
    fn splits_change_nothing(
        raw in proptest::sample::select(vec![
            "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n",
            "\r\nGET http://x/y HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
        ]),
        steps in proptest::collection::vec(1usize..20, 1..60),
    ) {
        let bytes = raw.as_bytes();
        let whole = request(bytes).map(|(head, progress)| (format!("{head:?}"), progress));
        let mut parser = RequestParser::default();
        let mut head = RequestHead::default();
        let mut end = 0;
        let mut outcome = Ok(Progress::Partial);
        for step in steps.iter().chain(std::iter::repeat(&1)) {
            end = (end + step).min(bytes.len());
            outcome = parser.parse(&bytes[..end], &mut head);
            if end == bytes.len() || outcome != Ok(Progress::Partial) {
                break;
            }
        }
        let pieces = outcome.map(|progress| (format!("{head:?}"), progress));
        proptest::prop_assert_eq!(pieces, whole);
    }

    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = request(&bytes);
        let _ = response(&bytes);
    }
}
