//! Tests of requests, as a listener reads them from a connection. Each row of a table contains
//! bytes, the expected messages and the expected end. Each row is read as a whole, in single bytes
//! and in random divisions.
//!
//! A message is `METHOD path version keep|close {Name: value; ...} body`.

use crate::reading::{End, check, requests};
use End::{Body, Clean, Head, Partial};
use forebay_wire::http1::HeadError::*;
use forebay_wire::http1::HttpError::{
    ChunkEnd, ChunkExtension, ChunkSize, ForbiddenTrailer, Trailer,
};

/// Name, bytes, expected messages, expected end.
type Row = (&'static str, &'static [u8], &'static [&'static str], End);

#[test]
fn start_lines() {
    run(START_LINES);
}

#[test]
fn targets() {
    run(TARGETS);
}

#[test]
fn hosts() {
    run(HOSTS);
}

#[test]
fn field_lines() {
    run(FIELD_LINES);
}

#[test]
fn lengths() {
    run(LENGTHS);
}

#[test]
fn chunked_bodies() {
    run(CHUNKED);
}

#[test]
fn connections_and_pipelines() {
    run(PIPELINES);
}

#[test]
fn too_large_input_is_refused_in_any_pieces() {
    let host = "GET / HTTP/1.1\r\nHost: h\r\n";
    for (name, bytes, error) in [
        ("target", format!("GET /{}", "a".repeat(9_000)), TargetTooLong),
        ("method", "A".repeat(9_000), TargetTooLong),
        ("value", format!("{host}A: {}", "b".repeat(33_000)), TooLarge),
        ("name", format!("{host}{}", "A".repeat(33_000)), TooLarge),
        ("count", format!("{host}{}", "A: b\r\n".repeat(100)), TooLarge),
        (
            "head",
            format!("{host}{}\r\n", format!("A: {}\r\n", "b".repeat(900)).repeat(40)),
            TooLarge,
        ),
    ] {
        assert_eq!(requests(&[bytes.as_bytes()]), (vec![], Head(error)), "{name}");
        let pieces: Vec<&[u8]> = bytes.as_bytes().chunks(977).collect();
        assert_eq!(requests(&pieces), (vec![], Head(error)), "{name} in pieces");
    }
}

fn run(rows: &[Row]) {
    for (name, bytes, expected, end) in rows {
        let expected = expected.iter().map(|&line| line.to_owned()).collect();
        check(name, bytes, &(expected, *end), requests);
    }
}

#[rustfmt::skip]
const START_LINES: &[Row] = &[
    ("plain", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", &["GET / 1.1 keep {Host: h}"], Clean),
    ("1.0 needs no Host", b"GET / HTTP/1.0\r\n\r\n", &["GET / 1.0 close {}"], Clean),
    ("any token is a method", b"M-SEARCH /s HTTP/1.0\r\n\r\n", &["M-SEARCH /s 1.0 close {}"], Clean),
    ("marks in a method", b"!#$%&'*+-.^_`|~9 / HTTP/1.0\r\n\r\n", &["!#$%&\\'*+-.^_`|~9 / 1.0 close {}"], Clean),
    ("lower case is another method", b"get / HTTP/1.0\r\n\r\n", &["get / 1.0 close {}"], Clean),
    ("one empty line before", b"\r\nGET / HTTP/1.0\r\n\r\n", &["GET / 1.0 close {}"], Clean),
    ("two empty lines before", b"\r\n\r\nGET / HTTP/1.0\r\n\r\n", &["GET / 1.0 close {}"], Clean),
    ("three are too many", b"\r\n\r\n\r\nGET / HTTP/1.0\r\n\r\n", &[], Head(StartLine)),
    ("bare LF before", b"\nGET / HTTP/1.0\r\n\r\n", &[], Head(BareLineEnd)),
    ("bare CR before", b"\rGET / HTTP/1.0\r\n\r\n", &[], Head(Method)),
    ("nothing", b"", &[], Clean),
    ("part of a method", b"GE", &[], Partial),
    ("part of a version", b"GET / HTTP/1.", &[], Partial),
    ("CR without its LF yet", b"GET / HTTP/1.0\r\n\r", &[], Partial),
    ("space before the method", b" GET / HTTP/1.0\r\n\r\n", &[], Head(Method)),
    ("no method", b"/ HTTP/1.0\r\n\r\n", &[], Head(Method)),
    ("colon in the method", b"GET: / HTTP/1.0\r\n\r\n", &[], Head(Method)),
    ("NUL in the method", b"GE\0T / HTTP/1.0\r\n\r\n", &[], Head(Method)),
    ("NUL behind the method", b"GET\0 / HTTP/1.0\r\n\r\n", &[], Head(Method)),
    ("letter above ASCII in the method", b"GET\xc3\x9f / HTTP/1.0\r\n\r\n", &[], Head(Method)),
    ("tabs for spaces", b"GET\t/\tHTTP/1.0\r\n\r\n", &[], Head(StartLine)),
    ("tab behind the method", b"GET\t/ HTTP/1.0\r\n\r\n", &[], Head(Method)),
    ("CR for spaces", b"GET\r/\rHTTP/1.0\r\n\r\n", &[], Head(StartLine)),
    ("LF for spaces", b"GET\n/\nHTTP/1.0\r\n\r\n", &[], Head(BareLineEnd)),
    ("vertical tab for space", b"GET /\x0bHTTP/1.0\r\n\r\n", &[], Head(StartLine)),
    ("two spaces before the target", b"GET  / HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("two spaces before the version", b"GET /  HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("space behind the version", b"GET / HTTP/1.0 \r\n\r\n", &[], Head(StartLine)),
    ("tab behind the version", b"GET / HTTP/1.0\t\r\n\r\n", &[], Head(StartLine)),
    ("CR behind the version", b"GET / HTTP/1.0\r\r\n\r\n", &[], Head(StartLine)),
    ("a second version", b"GET / HTTP/1.0 HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("no version", b"GET /\r\n\r\n", &[], Head(StartLine)),
    ("no target", b"GET HTTP/1.1\r\n\r\n", &[], Head(StartLine)),
    ("method alone", b"GET\r\n\r\n", &[], Head(StartLine)),
    ("HTTP/0.9 in words", b"GET / HTTP/0.9\r\n\r\n", &[], Head(Version)),
    ("HTTP/2.0", b"GET / HTTP/2.0\r\n\r\n", &[], Head(Version)),
    ("preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[], Head(Version)),
    ("version without dot", b"GET / HTTP/11\r\n\r\n", &[], Head(StartLine)),
    ("version of more digits", b"GET / HTTP/1.10\r\n\r\n", &[], Head(StartLine)),
    ("version of endless digits", b"GET / HTTP/1111111111111111111111.1\r\n\r\n", &[], Head(StartLine)),
    ("version in lower case", b"GET / http/1.1\r\n\r\n", &[], Head(StartLine)),
    ("version of letters", b"GET / HTTP/1.x\r\n\r\n", &[], Head(StartLine)),
    ("comma for the dot", b"GET / HTTP/1,1\r\n\r\n", &[], Head(StartLine)),
    ("another protocol", b"PUT / RTSP/1.0\r\n\r\n", &[], Head(StartLine)),
    ("almost HTTP", b"GET / IHTTP/1.0\r\n\r\n", &[], Head(StartLine)),
    ("HTTP misspelt", b"GET / HTP/1.1\r\n\r\n", &[], Head(StartLine)),
    ("bare LF", b"GET / HTTP/1.0\n\r\n", &[], Head(BareLineEnd)),
    ("TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", &[], Head(BareLineEnd)),
];

#[rustfmt::skip]
const TARGETS: &[Row] = &[
    ("query", b"GET /a?b=c&d HTTP/1.0\r\n\r\n", &["GET /a?b=c&d 1.0 close {}"], Clean),
    ("more question marks", b"GET /a??b?c HTTP/1.0\r\n\r\n", &["GET /a??b?c 1.0 close {}"], Clean),
    ("parameters of a segment", b"GET /a;p=1?q HTTP/1.0\r\n\r\n", &["GET /a;p=1?q 1.0 close {}"], Clean),
    ("colons and at signs", b"GET /:@a/b:c HTTP/1.0\r\n\r\n", &["GET /:@a/b:c 1.0 close {}"], Clean),
    ("slashes stay", b"GET ///a//b HTTP/1.0\r\n\r\n", &["GET ///a//b 1.0 close {}"], Clean),
    ("slashes and then a name are a path", b"GET //evil.example/x HTTP/1.0\r\n\r\n", &["GET //evil.example/x 1.0 close {}"], Clean),
    ("dots stay", b"GET /a/../b HTTP/1.0\r\n\r\n", &["GET /a/../b 1.0 close {}"], Clean),
    ("escapes stay", b"GET /%41%2f%00?%zz HTTP/1.0\r\n\r\n", &["GET /%41%2f%00?%zz 1.0 close {}"], Clean),
    ("brackets", b"GET /[6:2]/{a}|b HTTP/1.0\r\n\r\n", &["GET /[6:2]/{a}|b 1.0 close {}"], Clean),
    ("quotes and angles", b"GET /\"a\"?<b>=`c` HTTP/1.0\r\n\r\n", &["GET /\\\"a\\\"?<b>=`c` 1.0 close {}"], Clean),
    ("backslash", b"GET /a\\b^c HTTP/1.0\r\n\r\n", &["GET /a\\\\b^c 1.0 close {}"], Clean),
    ("UTF-8", b"GET /\xc3\xa9 HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("overlong UTF-8", b"GET /\xc0\xaf HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("not UTF-8", b"GET /\xff HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("fragment", b"GET /a#b HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("space", b"GET /a b HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("tab", b"GET /a\tb HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("NUL", b"GET /a\0b HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("control byte", b"GET /a\x1fb HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("DEL", b"GET /a\x7fb HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("CR", b"GET /a\rb HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("LF", b"GET /a\nb HTTP/1.0\r\n\r\n", &[], Head(BareLineEnd)),
    ("a line in it", b"GET /a\r\nX: HTTP/1.0\r\n\r\n", &[], Head(StartLine)),
    ("relative", b"GET a/b HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("relative with dots", b"GET ../b HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("query alone", b"GET ?a HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("escape alone", b"GET %2f HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("digits", b"GET 12345 HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("comma", b"GET , HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("asterisk for GET", b"GET * HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("asterisk for OPTIONS", b"OPTIONS * HTTP/1.0\r\n\r\n", &["OPTIONS * 1.0 close {}"], Clean),
    ("asterisk and more", b"OPTIONS */a HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("absolute", b"GET http://h/a?b HTTP/1.0\r\n\r\n", &["GET /a?b 1.0 close {}"], Clean),
    ("absolute without path", b"GET http://h:81 HTTP/1.0\r\n\r\n", &["GET  1.0 close {}"], Clean),
    ("absolute, scheme in capitals", b"GET HTTPS://h/ HTTP/1.0\r\n\r\n", &["GET / 1.0 close {}"], Clean),
    ("absolute, address of version 6", b"GET http://[::1]:8080/a HTTP/1.0\r\n\r\n", &["GET /a 1.0 close {}"], Clean),
    ("absolute with user", b"GET http://u:p@h/ HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("absolute without host", b"GET http:///a HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("absolute with a query alone", b"GET http://h?a HTTP/1.0\r\n\r\n", &["GET ?a 1.0 close {}"], Clean),
    ("absolute, bad host", b"GET http://a]b/ HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("absolute, bad port", b"GET http://h:70000/ HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("another scheme", b"GET ftp://h/a HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("a scheme of one letter", b"PUT s://]u/: HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("scheme without slashes", b"GET http:a HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("javascript", b"GET javascript:x HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("authority for GET", b"GET h:443 HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("authority for CONNECT", b"CONNECT h:443 HTTP/1.0\r\n\r\n", &["CONNECT  1.0 close {}"], Clean),
    ("authority of version 6", b"CONNECT [::1]:443 HTTP/1.0\r\n\r\n", &["CONNECT  1.0 close {}"], Clean),
    ("CONNECT without port", b"CONNECT h HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("CONNECT with an empty port", b"CONNECT h: HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("CONNECT to a path", b"CONNECT /a HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("CONNECT to a URL", b"CONNECT http://h:1/ HTTP/1.0\r\n\r\n", &[], Head(Target)),
    ("CONNECT with user", b"CONNECT u@h:1 HTTP/1.0\r\n\r\n", &[], Head(Target)),
];

#[rustfmt::skip]
const HOSTS: &[Row] = &[
    ("empty", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", &[], Head(Host)),
    ("a dot", b"GET / HTTP/1.1\r\nHost: .\r\n\r\n", &[], Head(Host)),
    ("dots alone", b"GET / HTTP/1.1\r\nHost: ..\r\n\r\n", &[], Head(Host)),
    ("an empty label", b"GET / HTTP/1.1\r\nHost: a..b\r\n\r\n", &[], Head(Host)),
    ("a dot at its end", b"GET / HTTP/1.1\r\nHost: a.b.\r\n\r\n", &["GET / 1.1 keep {Host: a.b.}"], Clean),
    ("with port", b"GET / HTTP/1.1\r\nHost: a.b:80\r\n\r\n", &["GET / 1.1 keep {Host: a.b:80}"], Clean),
    ("with underscore", b"GET / HTTP/1.1\r\nHost: a_b\r\n\r\n", &["GET / 1.1 keep {Host: a_b}"], Clean),
    ("with an equals sign", b"GET / HTTP/1.1\r\nHost: 0.0.0.0=5000\r\n\r\n", &["GET / 1.1 keep {Host: 0.0.0.0=5000}"], Clean),
    ("with an escape", b"GET / HTTP/1.1\r\nHost: %C3%B1\r\n\r\n", &["GET / 1.1 keep {Host: %C3%B1}"], Clean),
    ("padded", b"GET / HTTP/1.1\r\nHost: \th \t\r\n\r\n", &["GET / 1.1 keep {Host: h}"], Clean),
    ("missing in 1.1", b"GET / HTTP/1.1\r\n\r\n", &[], Head(Host)),
    ("missing in 1.1, absolute target", b"GET http://h/ HTTP/1.1\r\n\r\n", &[], Head(Host)),
    ("twice", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", &[], Head(Host)),
    ("twice the same", b"GET / HTTP/1.1\r\nHost: a\r\nhOST: a\r\n\r\n", &[], Head(Host)),
    ("twice in 1.0", b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", &[], Head(Host)),
    ("with a query", b"GET / HTTP/1.1\r\nHost: h?q=1\r\n\r\n", &[], Head(Host)),
    ("with a path", b"GET / HTTP/1.1\r\nHost: h/a\r\n\r\n", &[], Head(Host)),
    ("with a scheme", b"GET / HTTP/1.1\r\nHost: http://h\r\n\r\n", &[], Head(Host)),
    ("with user", b"GET / HTTP/1.1\r\nHost: u@h\r\n\r\n", &[], Head(Host)),
    ("of two words", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", &[], Head(Host)),
    ("above ASCII", b"GET / HTTP/1.1\r\nHost: \xc3\xb1\r\n\r\n", &[], Head(Host)),
    ("port of letters", b"GET / HTTP/1.1\r\nHost: h:http\r\n\r\n", &[], Head(Host)),
    ("port above 65535", b"GET / HTTP/1.1\r\nHost: h:65536\r\n\r\n", &[], Head(Host)),
    ("port alone", b"GET / HTTP/1.1\r\nHost: :80\r\n\r\n", &[], Head(Host)),
    ("bracket left open", b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", &[], Head(Host)),
    ("brackets around a name", b"GET / HTTP/1.1\r\nHost: [h]\r\n\r\n", &[], Head(Host)),
    ("backslash", b"GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n", &[], Head(Host)),
];

#[rustfmt::skip]
const FIELD_LINES: &[Row] = &[
    ("any token is a name", b"GET / HTTP/1.0\r\na!#$%&'*+.^_`|~0: v\r\n\r\n", &["GET / 1.0 close {a!#$%&\\'*+.^_`|~0: v}"], Clean),
    ("no space behind the colon", b"GET / HTTP/1.0\r\nA:b\r\n\r\n", &["GET / 1.0 close {A: b}"], Clean),
    ("colons in the value", b"GET / HTTP/1.0\r\nA::b:c\r\n\r\n", &["GET / 1.0 close {A: :b:c}"], Clean),
    ("empty value", b"GET / HTTP/1.0\r\nA:\r\nB: \t \r\n\r\n", &["GET / 1.0 close {A: ; B: }"], Clean),
    ("padding goes, inner tabs stay", b"GET / HTTP/1.0\r\nA: \t b\t c \t\r\n\r\n", &["GET / 1.0 close {A: b\\t c}"], Clean),
    ("bytes above ASCII in a value", b"GET / HTTP/1.0\r\nA: caf\xc3\xa9\xff\r\n\r\n", &["GET / 1.0 close {A: caf\\xc3\\xa9\\xff}"], Clean),
    ("the same name again", b"GET / HTTP/1.0\r\nA: 1\r\na: 2\r\n\r\n", &["GET / 1.0 close {A: 1; a: 2}"], Clean),
    ("not a framing name", b"GET / HTTP/1.0\r\nContent-Length-X: 9\r\n\r\n", &["GET / 1.0 close {Content-Length-X: 9}"], Clean),
    ("no colon", b"GET / HTTP/1.0\r\nA\r\n\r\n", &[], Head(FieldName)),
    ("no colon, then a folded line", b"GET / HTTP/1.0\r\nA\r\n : b\r\n\r\n", &[], Head(FieldName)),
    ("no name", b"GET / HTTP/1.0\r\n: b\r\n\r\n", &[], Head(FieldName)),
    ("space before the colon", b"GET / HTTP/1.0\r\nA : b\r\n\r\n", &[], Head(FieldName)),
    ("tab before the colon", b"GET / HTTP/1.0\r\nA\t: b\r\n\r\n", &[], Head(FieldName)),
    ("space in the name", b"GET / HTTP/1.0\r\nA B: c\r\n\r\n", &[], Head(FieldName)),
    ("at sign in the name", b"GET / HTTP/1.0\r\nA@: b\r\n\r\n", &[], Head(FieldName)),
    ("slash in the name", b"GET / HTTP/1.0\r\nA/B: c\r\n\r\n", &[], Head(FieldName)),
    ("quoted name", b"GET / HTTP/1.0\r\n\"A\": b\r\n\r\n", &[], Head(FieldName)),
    ("NUL in the name", b"GET / HTTP/1.0\r\nA\0: b\r\n\r\n", &[], Head(FieldName)),
    ("CR in the name", b"GET / HTTP/1.0\r\nA\rB: c\r\n\r\n", &[], Head(FieldName)),
    ("letter above ASCII in the name", b"GET / HTTP/1.0\r\nA\xc3\x9f: b\r\n\r\n", &[], Head(FieldName)),
    ("NUL in the value", b"GET / HTTP/1.0\r\nA: b\0c\r\n\r\n", &[], Head(FieldValue)),
    ("bell in the value", b"GET / HTTP/1.0\r\nA: b\x07c\r\n\r\n", &[], Head(FieldValue)),
    ("DEL in the value", b"GET / HTTP/1.0\r\nA: b\x7f\r\n\r\n", &[], Head(FieldValue)),
    ("escape sequence in the value", b"GET / HTTP/1.0\r\nA: \x1b[1m\r\n\r\n", &[], Head(FieldValue)),
    ("CR in the value", b"GET / HTTP/1.0\r\nA: 1\rB: 2\r\n\r\n", &[], Head(FieldValue)),
    ("CR before the line end", b"GET / HTTP/1.0\r\nA: 1\r\r\n\r\n", &[], Head(FieldValue)),
    ("CR as an empty value", b"GET / HTTP/1.0\r\nA:\rTransfer-Encoding: chunked\r\n\r\n", &[], Head(FieldValue)),
    ("LF for a line end", b"GET / HTTP/1.0\r\nA: 1\nContent-Length: 9\r\n\r\n", &[], Head(BareLineEnd)),
    ("LF for the blank line", b"GET / HTTP/1.0\r\nA: 1\r\n\n", &[], Head(BareLineEnd)),
    ("CR for the blank line", b"GET / HTTP/1.0\r\nA: 1\r\n\rZGET /b HTTP/1.0\r\n\r\n", &[], Head(FieldName)),
    ("folded", b"GET / HTTP/1.0\r\nA: 1\r\n 2\r\n\r\n", &[], Head(ObsFold)),
    ("folded with a tab", b"GET / HTTP/1.0\r\nA: 1\r\n\t2\r\n\r\n", &[], Head(ObsFold)),
    ("folded, nothing but space", b"GET / HTTP/1.0\r\nA: 1\r\n \r\n\r\n", &[], Head(ObsFold)),
    ("folded from the start", b"GET / HTTP/1.0\r\nA:\r\n 1\r\n\r\n", &[], Head(ObsFold)),
    ("space before the first name", b"GET / HTTP/1.0\r\n A: 1\r\n\r\n", &[], Head(ObsFold)),
    ("a length behind a space", b"POST / HTTP/1.0\r\nA: b\r\n Content-Length: 38\r\n\r\n", &[], Head(ObsFold)),
    ("a length in disguise", b"POST / HTTP/1.0\r\nContent_Length: 5\r\n\r\nhello", &[], Head(FieldName)),
    ("both, one in disguise", b"POST / HTTP/1.0\r\nContent-Length: 5\r\nTransfer_Encoding: chunked\r\n\r\nhello", &[], Head(FieldName)),
    ("a coding in disguise", b"POST / HTTP/1.0\r\nTransfer.Encoding: chunked\r\n\r\n", &[], Head(FieldName)),
    ("expects something else", b"GET / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n", &[], Head(Expect)),
    ("1.0 may expect anything", b"GET / HTTP/1.0\r\nExpect: tea\r\n\r\n", &["GET / 1.0 close {Expect: tea}"], Clean),
];

#[rustfmt::skip]
const LENGTHS: &[Row] = &[
    ("a body", b"PUT / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", &["PUT / 1.0 close {Content-Length: 3} abc"], Clean),
    ("leading zeros", b"PUT / HTTP/1.0\r\nContent-Length: 003\r\n\r\nabc", &["PUT / 1.0 close {Content-Length: 003} abc"], Clean),
    ("name in odd case", b"PUT / HTTP/1.0\r\ncOnTeNt-LeNgTh:3\r\n\r\nabc", &["PUT / 1.0 close {cOnTeNt-LeNgTh: 3} abc"], Clean),
    ("padded", b"PUT / HTTP/1.0\r\nContent-Length: \t3 \r\n\r\nabc", &["PUT / 1.0 close {Content-Length: 3} abc"], Clean),
    ("none", b"PUT / HTTP/1.0\r\nContent-Length: 0\r\n\r\n", &["PUT / 1.0 close {Content-Length: 0}"], Clean),
    ("a body of GET", b"GET / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", &[], Head(GetBody)),
    ("a chunked body of HEAD", b"HEAD / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[], Head(GetBody)),
    ("a body of GET of no length", b"GET / HTTP/1.0\r\nContent-Length: 0\r\n\r\n", &["GET / 1.0 close {Content-Length: 0}"], Clean),
    ("a body of what is not quite GET", b"get / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", &["get / 1.0 close {Content-Length: 3} abc"], Clean),
    ("a body of OPTIONS", b"OPTIONS / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc", &["OPTIONS / 1.0 close {Content-Length: 3} abc"], Clean),
    ("a body that looks like a request", b"PUT / HTTP/1.0\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.0\r\n\r\n", &["PUT / 1.0 close {Content-Length: 18} GET / HTTP/1.0\\r\\n\\r\\n"], Clean),
    ("less than said", b"PUT / HTTP/1.0\r\nContent-Length: 4\r\n\r\nabc", &[], Partial),
    ("more than said", b"PUT / HTTP/1.0\r\nContent-Length: 2\r\n\r\nabc", &["PUT / 1.0 close {Content-Length: 2} ab"], Partial),
    ("the largest", b"PUT / HTTP/1.0\r\nContent-Length: 9223372036854775807\r\n\r\na", &[], Partial),
    ("one above the largest", b"PUT / HTTP/1.0\r\nContent-Length: 9223372036854775808\r\n\r\n", &[], Head(ContentLength)),
    ("64 bits and one", b"PUT / HTTP/1.0\r\nContent-Length: 18446744073709551617\r\n\r\n", &[], Head(ContentLength)),
    ("negative", b"PUT / HTTP/1.0\r\nContent-Length: -1\r\n\r\n", &[], Head(ContentLength)),
    ("negative zero", b"PUT / HTTP/1.0\r\nContent-Length: -0\r\n\r\n", &[], Head(ContentLength)),
    ("plus sign", b"PUT / HTTP/1.0\r\nContent-Length: +3\r\n\r\nabc", &[], Head(ContentLength)),
    ("underscore", b"PUT / HTTP/1.0\r\nContent-Length: 0_3\r\n\r\nabc", &[], Head(ContentLength)),
    ("hexadecimal", b"PUT / HTTP/1.0\r\nContent-Length: 0x3\r\n\r\nabc", &[], Head(ContentLength)),
    ("exponent", b"PUT / HTTP/1.0\r\nContent-Length: 1e2\r\n\r\n", &[], Head(ContentLength)),
    ("fraction", b"PUT / HTTP/1.0\r\nContent-Length: 3.0\r\n\r\nabc", &[], Head(ContentLength)),
    ("digits of another script", b"PUT / HTTP/1.0\r\nContent-Length: \xd9\xa3\r\n\r\nabc", &[], Head(ContentLength)),
    ("two numbers", b"PUT / HTTP/1.0\r\nContent-Length: 3 1\r\n\r\nabc", &[], Head(ContentLength)),
    ("words", b"PUT / HTTP/1.0\r\nContent-Length: three\r\n\r\nabc", &[], Head(ContentLength)),
    ("quoted", b"PUT / HTTP/1.0\r\nContent-Length: \"3\"\r\n\r\nabc", &[], Head(ContentLength)),
    ("empty", b"PUT / HTTP/1.0\r\nContent-Length:\r\n\r\n", &[], Head(ContentLength)),
    ("list of the same", b"PUT / HTTP/1.0\r\nContent-Length: 3, 3\r\n\r\nabc", &[], Head(ContentLength)),
    ("list that begins with a comma", b"PUT / HTTP/1.0\r\nContent-Length: ,3\r\n\r\nabc", &[], Head(ContentLength)),
    ("twice", b"PUT / HTTP/1.0\r\nContent-Length: 3\r\nContent-Length: 2\r\n\r\nabc", &[], Head(ContentLength)),
    ("twice the same", b"PUT / HTTP/1.0\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", &[], Head(ContentLength)),
    ("one good, one bad", b"PUT / HTTP/1.0\r\nContent-Length: 3\r\nContent-Length: x\r\n\r\nabc", &[], Head(ContentLength)),
    ("with chunked", b"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[], Head(AmbiguousLength)),
    ("chunked with it", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", &[], Head(AmbiguousLength)),
    ("none, with chunked", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", &[], Head(AmbiguousLength)),
    ("with identity", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc", &[], Head(TransferEncoding)),
    ("with an empty coding", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc", &[], Head(TransferEncoding)),
];

#[rustfmt::skip]
const CHUNKED: &[Row] = &[
    ("chunks", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", &["PUT / 1.1 keep {Host: h; Transfer-Encoding: chunked} hello world"], Clean),
    ("coding in odd case", b"PUT / HTTP/1.1\r\nHost: h\r\nTRANSFER-encoding:\tChUnKeD \r\n\r\n0\r\n\r\n", &["PUT / 1.1 keep {Host: h; TRANSFER-encoding: ChUnKeD}"], Clean),
    ("large and small digits", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", &["PUT / 1.1 keep {Host: h; Transfer-Encoding: chunked} 01234567890123456789"], Clean),
    ("leading zeros", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0003\r\nabc\r\n000\r\n\r\n", &["PUT / 1.1 keep {Host: h; Transfer-Encoding: chunked} abc"], Clean),
    ("line ends in the payload", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n\r\n0\r\n\r\n\r\n0\r\n\r\n", &["PUT / 1.1 keep {Host: h; Transfer-Encoding: chunked} \\r\\n0\\r\\n\\r\\n"], Clean),
    ("extensions", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a;b=c;d=\"e; \\\"f\\\\\"\r\nabc\r\n0;last\r\n\r\n", &["PUT / 1.1 keep {Host: h; Transfer-Encoding: chunked} abc"], Clean),
    ("trailer", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nVary: *\r\nX:\r\n\r\n", &["PUT / 1.1 keep {Host: h; Transfer-Encoding: chunked} abc"], Clean),
    ("the next request", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /b HTTP/1.0\r\n\r\n", &["PUT / 1.1 keep {Host: h; Transfer-Encoding: chunked}", "GET /b 1.0 close {}"], Clean),
    ("no last chunk", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", &[], Partial),
    ("no end of the trailer", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", &[], Partial),
    ("in 1.0", b"PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("unknown coding", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: doves\r\n\r\n", &[], Head(TransferEncoding)),
    ("coding without chunked", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", &[], Head(TransferEncoding)),
    ("coding before chunked", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("coding behind chunked", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("identity on its own line", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunked, then identity", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunked twice", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunked twice in a list", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunkedchunked", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunkedchunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunked and an empty element", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunked with a parameter", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("vertical tab before chunked", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", &[], Head(FieldValue)),
    ("no-break space before chunked", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \xa0chunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunked on a folded line", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", &[], Head(ObsFold)),
    ("no size", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkSize)),
    ("space before the size", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkSize)),
    ("space behind the size", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("space behind the last size", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0 \r\n\r\n", &[], Body(ChunkExtension)),
    ("minus", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkSize)),
    ("plus", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkSize)),
    ("prefix of C", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("underscore", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0_3\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("no digit", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\ng\r\n", &[], Body(ChunkSize)),
    ("too large", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1000000000000000\r\n", &[], Body(ChunkSize)),
    ("LF for the line end of a size", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", &[], Body(ChunkSize)),
    ("LF behind a chunk", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n", &[], Body(ChunkEnd)),
    ("nothing behind a chunk", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc0\r\n\r\n", &[], Body(ChunkEnd)),
    ("a chunk longer than said", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkEnd)),
    ("CR and something behind a chunk", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\rX0\r\n\r\n", &[], Body(ChunkEnd)),
    ("no semicolon before an extension", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3 a\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("no size before an extension", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n;a=b\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkSize)),
    ("no name of an extension", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("space in an extension", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3; a\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("quote left open", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("CR in an extension", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\rc\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("CR in a quoted extension", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"\r\"\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("LF in an extension", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkSize)),
    ("trailer with a length", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 9\r\n\r\n", &[], Body(ForbiddenTrailer)),
    ("trailer with a coding", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", &[], Body(ForbiddenTrailer)),
    ("trailer with a host", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: g\r\n\r\n", &[], Body(ForbiddenTrailer)),
    ("trailer folded", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n c\r\n\r\n", &[], Body(Trailer)),
    ("trailer that ends in LF", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n", &[], Body(Trailer)),
    ("a request for a trailer", b"PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nGET /b HTTP/1.0\r\n\r\n", &[], Body(Trailer)),
];

#[rustfmt::skip]
const PIPELINES: &[Row] = &[
    ("two", b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n", &["GET /a 1.1 keep {Host: h}", "GET /b 1.1 keep {Host: h}"], Clean),
    ("three with bodies", b"PUT /a HTTP/1.0\r\nContent-Length: 1\r\n\r\naPUT /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nb\r\n0\r\n\r\nPUT /c HTTP/1.0\r\nContent-Length: 1\r\n\r\nc", &["PUT /a 1.0 close {Content-Length: 1} a", "PUT /b 1.1 keep {Host: h; Transfer-Encoding: chunked} b", "PUT /c 1.0 close {Content-Length: 1} c"], Clean),
    ("an empty line between", b"GET /a HTTP/1.0\r\n\r\n\r\nGET /b HTTP/1.0\r\n\r\n", &["GET /a 1.0 close {}", "GET /b 1.0 close {}"], Clean),
    ("a bad second", b"GET /a HTTP/1.0\r\n\r\nG@T /b HTTP/1.0\r\n\r\n", &["GET /a 1.0 close {}"], Head(Method)),
    ("half a second", b"GET /a HTTP/1.0\r\n\r\nGET /b", &["GET /a 1.0 close {}"], Partial),
    ("close", b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", &["GET / 1.1 close {Host: h; Connection: close}"], Clean),
    ("close in odd case", b"GET / HTTP/1.1\r\nHost: h\r\nConnection: ClOsE\r\n\r\n", &["GET / 1.1 close {Host: h; Connection: ClOsE}"], Clean),
    ("close in a list", b"GET / HTTP/1.1\r\nHost: h\r\nConnection: a,\tclose ,b\r\n\r\n", &["GET / 1.1 close {Host: h; Connection: a,\\tclose ,b}"], Clean),
    ("close on a second line", b"GET / HTTP/1.1\r\nHost: h\r\nConnection: a\r\nConnection: close\r\n\r\n", &["GET / 1.1 close {Host: h; Connection: a; Connection: close}"], Clean),
    ("close wins over keep-alive", b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close, keep-alive\r\n\r\n", &["GET / 1.1 close {Host: h; Connection: close, keep-alive}"], Clean),
    ("closed is not close", b"GET / HTTP/1.1\r\nHost: h\r\nConnection: closed\r\n\r\n", &["GET / 1.1 keep {Host: h; Connection: closed}"], Clean),
    ("quoted is not close", b"GET / HTTP/1.1\r\nHost: h\r\nConnection: \"close\"\r\n\r\n", &["GET / 1.1 keep {Host: h; Connection: \\\"close\\\"}"], Clean),
    ("keep-alive in 1.0", b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", &["GET / 1.0 keep {Connection: Keep-Alive}"], Clean),
    ("Proxy-Connection is nothing", b"GET / HTTP/1.0\r\nProxy-Connection: keep-alive\r\n\r\n", &["GET / 1.0 close {Proxy-Connection: keep-alive}"], Clean),
    ("an upgrade", b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", &["GET / 1.1 keep {Host: h; Connection: Upgrade; Upgrade: websocket}"], Clean),
];
