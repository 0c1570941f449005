//! Tests of responses, as a proxy or a load generator reads them from a backend. Each row of a
//! table contains the method of the request, bytes, the expected messages and the expected end.
//! Each row is read as a whole, in single bytes and in random divisions. Then the connection
//! closes.
//!
//! A message is `status reason version keep|close {Name: value; ...} body`.

use crate::reading::{End, check, responses};
use End::{Body, Clean, Head, Partial};
use forebay_wire::http1::HeadError::*;
use forebay_wire::http1::HttpError::{ChunkEnd, ChunkExtension, ChunkSize, Trailer};

/// Name, method of the request, bytes, expected messages, expected end.
type Row = (&'static str, &'static str, &'static [u8], &'static [&'static str], End);

#[test]
fn status_lines() {
    run(STATUS_LINES);
}

#[test]
fn field_lines() {
    run(FIELD_LINES);
}

#[test]
fn framing() {
    run(FRAMING);
}

#[test]
fn connections() {
    run(CONNECTIONS);
}

fn run(rows: &[Row]) {
    for (name, method, bytes, expected, end) in rows {
        let expected = expected.iter().map(|&line| line.to_owned()).collect();
        check(name, bytes, &(expected, *end), |pieces| responses(method, pieces));
    }
}

#[rustfmt::skip]
const STATUS_LINES: &[Row] = &[
    ("plain", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", &["200 OK 1.1 keep {Content-Length: 0}"], Clean),
    ("empty reason", "GET", b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", &["200  1.1 keep {Content-Length: 0}"], Clean),
    ("neither reason nor space", "GET", b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", &["200  1.1 keep {Content-Length: 0}"], Clean),
    ("reason of words", "GET", b"HTTP/1.1 404 Not  here!\r\nContent-Length: 0\r\n\r\n", &["404 Not  here! 1.1 keep {Content-Length: 0}"], Clean),
    ("reason above ASCII", "GET", b"HTTP/1.1 500 Oops\xe9\r\nContent-Length: 0\r\n\r\n", &["500 Oops\\xe9 1.1 keep {Content-Length: 0}"], Clean),
    ("tab in the reason", "GET", b"HTTP/1.1 200 O\tK\r\nContent-Length: 0\r\n\r\n", &["200 O\\tK 1.1 keep {Content-Length: 0}"], Clean),
    ("space before the reason", "GET", b"HTTP/1.1 200  OK\r\nContent-Length: 0\r\n\r\n", &["200  OK 1.1 keep {Content-Length: 0}"], Clean),
    ("an unknown status", "GET", b"HTTP/1.1 799 X\r\nContent-Length: 0\r\n\r\n", &["799 X 1.1 keep {Content-Length: 0}"], Clean),
    ("no field", "GET", b"HTTP/1.0 200 OK\r\n\r\nall", &["200 OK 1.0 close {} all"], Clean),
    ("incomplete version", "GET", b"HTTP/1", &[], Partial),
    ("incomplete status", "GET", b"HTTP/1.1 20", &[], Partial),
    ("NUL in the reason", "GET", b"HTTP/1.1 200 O\0K\r\n\r\n", &[], Head(StartLine)),
    ("CR in the reason", "GET", b"HTTP/1.1 200 O\rK\r\n\r\n", &[], Head(StartLine)),
    ("CR for the space", "GET", b"HTTP/1.1 200\rOK\r\n\r\n", &[], Head(StartLine)),
    ("tab before the status", "GET", b"HTTP/1.1\t200 OK\r\n\r\n", &[], Head(StartLine)),
    ("two spaces before the status", "GET", b"HTTP/1.1  200 OK\r\n\r\n", &[], Head(StartLine)),
    ("reason runs into the status", "GET", b"HTTP/1.1 200OK\r\n\r\n", &[], Head(StartLine)),
    ("one digit", "GET", b"HTTP/1.1 2 OK\r\n\r\n", &[], Head(StartLine)),
    ("two digits", "GET", b"HTTP/1.1 20 OK\r\n\r\n", &[], Head(StartLine)),
    ("four digits", "GET", b"HTTP/1.1 2000 OK\r\n\r\n", &[], Head(StartLine)),
    ("below 100", "GET", b"HTTP/1.1 099 OK\r\n\r\n", &[], Head(StartLine)),
    ("negative", "GET", b"HTTP/1.1 -20 OK\r\n\r\n", &[], Head(StartLine)),
    ("letters in the status", "GET", b"HTTP/1.1 2o0 OK\r\n\r\n", &[], Head(StartLine)),
    ("space in the status", "GET", b"HTTP/1.1 2 0 OK\r\n\r\n", &[], Head(StartLine)),
    ("no status", "GET", b"HTTP/1.1\r\n\r\n", &[], Head(StartLine)),
    ("HTTP misspelt", "GET", b"HTP/1.1 200 OK\r\n\r\n", &[], Head(StartLine)),
    ("lower case", "GET", b"http/1.1 200 OK\r\n\r\n", &[], Head(StartLine)),
    ("another protocol", "GET", b"ICY 200 OK\r\n\r\n", &[], Head(StartLine)),
    ("version 0.9", "GET", b"HTTP/0.9 200 OK\r\n\r\n", &[], Head(Version)),
    ("version 2.0", "GET", b"HTTP/2.0 200 OK\r\n\r\n", &[], Head(Version)),
    ("more digits before the dot", "GET", b"HTTP/01.1 200 OK\r\n\r\n", &[], Head(StartLine)),
    ("more digits behind the dot", "GET", b"HTTP/1.01 200 OK\r\n\r\n", &[], Head(StartLine)),
    ("a page without head", "GET", b"<html>\r\n</html>\r\n", &[], Head(StartLine)),
    ("an empty line first", "GET", b"\r\nHTTP/1.1 200 OK\r\n\r\n", &[], Head(StartLine)),
    ("LF for a line end", "GET", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n", &[], Head(BareLineEnd)),
];

#[rustfmt::skip]
const FIELD_LINES: &[Row] = &[
    ("underscore in a name", "GET", b"HTTP/1.1 204 N\r\nA_b: c\r\n\r\n", &["204 N 1.1 keep {A_b: c}"], Clean),
    ("repeated", "GET", b"HTTP/1.1 204 N\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n", &["204 N 1.1 keep {Set-Cookie: a; Set-Cookie: b}"], Clean),
    ("above ASCII", "GET", b"HTTP/1.1 204 N\r\nA: \xe9\r\n\r\n", &["204 N 1.1 keep {A: \\xe9}"], Clean),
    ("empty", "GET", b"HTTP/1.1 204 N\r\nA:\r\n\r\n", &["204 N 1.1 keep {A: }"], Clean),
    ("incomplete", "GET", b"HTTP/1.1 200 OK\r\nServer: a\r\n", &[], Partial),
    ("no colon", "GET", b"HTTP/1.1 200 OK\r\nA\r\n\r\n", &[], Head(FieldName)),
    ("no name", "GET", b"HTTP/1.1 200 OK\r\n: a\r\n\r\n", &[], Head(FieldName)),
    ("space before the colon", "GET", b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n", &[], Head(FieldName)),
    ("space in a name", "GET", b"HTTP/1.1 200 OK\r\nA B: c\r\n\r\n", &[], Head(FieldName)),
    ("NUL in a name", "GET", b"HTTP/1.1 200 OK\r\nA\0: b\r\n\r\n", &[], Head(FieldName)),
    ("byte above ASCII before the colon", "GET", b"HTTP/1.1 200 OK\r\nA\xff: b\r\n\r\n", &[], Head(FieldName)),
    ("NUL in a value", "GET", b"HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n", &[], Head(FieldValue)),
    ("control byte in a value", "GET", b"HTTP/1.1 200 OK\r\nA: b\x01c\r\n\r\n", &[], Head(FieldValue)),
    ("CR in a value", "GET", b"HTTP/1.1 200 OK\r\nA: 1\rB: 2\r\n\r\n", &[], Head(FieldValue)),
    ("LF for a line end", "GET", b"HTTP/1.1 200 OK\r\nA: 1\nB: 2\r\n\r\n", &[], Head(BareLineEnd)),
    ("folded", "GET", b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", &[], Head(ObsFold)),
    ("folded, nothing but space", "GET", b"HTTP/1.1 200 OK\r\nA: b\r\n  \r\n\r\n", &[], Head(ObsFold)),
    ("space before the first name", "GET", b"HTTP/1.1 200 OK\r\n A: b\r\n\r\n", &[], Head(ObsFold)),
];

#[rustfmt::skip]
const FRAMING: &[Row] = &[
    ("length", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", &["200 OK 1.1 keep {Content-Length: 3} abc"], Clean),
    ("length to HEAD", "HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", &["200 OK 1.1 keep {Content-Length: 3}"], Clean),
    ("chunked to HEAD", "HEAD", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &["200 OK 1.1 keep {Transfer-Encoding: chunked}"], Clean),
    ("nothing to HEAD", "HEAD", b"HTTP/1.1 200 OK\r\n\r\n", &["200 OK 1.1 keep {}"], Clean),
    ("length too short", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc", &["200 OK 1.1 keep {Content-Length: 2} ab"], Partial),
    ("cut off", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", &[], Partial),
    ("until close", "GET", b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", &["200 OK 1.1 close {} HTTP/1.1 200 OK\\r\\n\\r\\n"], Clean),
    ("until close, whatever is said", "GET", b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nabc", &["200 OK 1.0 close {Connection: keep-alive} abc"], Clean),
    ("chunked", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b; c\"\r\nabc\r\n0\r\nA: b\r\n\r\n", &["200 OK 1.1 keep {Transfer-Encoding: chunked} abc"], Clean),
    ("chunked, then the next", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 204 N\r\n\r\n", &["200 OK 1.1 keep {Transfer-Encoding: chunked}", "204 N 1.1 keep {}"], Clean),
    ("chunked, cut off", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", &[], Partial),
    ("like a length, but not it", "GET", b"HTTP/1.1 200 OK\r\nContent-Length-X: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &["200 OK 1.1 keep {Content-Length-X: 9; Transfer-Encoding: chunked}"], Clean),
    ("204", "GET", b"HTTP/1.1 204 N\r\n\r\nHTTP/1.1 204 N\r\n\r\n", &["204 N 1.1 keep {}", "204 N 1.1 keep {}"], Clean),
    ("204 of no length", "GET", b"HTTP/1.1 204 N\r\nContent-Length: 0\r\n\r\n", &["204 N 1.1 keep {Content-Length: 0}"], Clean),
    ("204 with a length is not followed", "GET", b"HTTP/1.1 204 N\r\nContent-Length: 3\r\n\r\n", &["204 N 1.1 close {Content-Length: 3}"], Clean),
    ("204 and chunked is not followed", "GET", b"HTTP/1.1 204 N\r\nTransfer-Encoding: chunked\r\n\r\n", &["204 N 1.1 close {Transfer-Encoding: chunked}"], Clean),
    ("304 with a length", "GET", b"HTTP/1.1 304 N\r\nContent-Length: 9\r\n\r\n", &["304 N 1.1 keep {Content-Length: 9}"], Clean),
    ("304 and chunked is not followed", "GET", b"HTTP/1.1 304 N\r\nTransfer-Encoding: chunked\r\n\r\n", &["304 N 1.1 close {Transfer-Encoding: chunked}"], Clean),
    ("interim, then final", "GET", b"HTTP/1.1 103 Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", &["103 Hints 1.1 keep {Link: a}", "200 OK 1.1 keep {Content-Length: 1} a"], Clean),
    ("interim with a length", "GET", b"HTTP/1.1 100 C\r\nContent-Length: 3\r\n\r\nabc", &[], Head(ContentLength)),
    ("interim of no length", "GET", b"HTTP/1.1 100 C\r\nContent-Length: 0\r\n\r\n", &["100 C 1.1 keep {Content-Length: 0}"], Clean),
    ("upgrade and chunked", "GET", b"HTTP/1.1 101 S\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("length twice", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", &[], Head(ContentLength)),
    ("length in a list", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 3, 3\r\n\r\nabc", &[], Head(ContentLength)),
    ("negative length", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\nabc", &[], Head(ContentLength)),
    ("empty length", "GET", b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", &[], Head(ContentLength)),
    ("length too large", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", &[], Head(ContentLength)),
    ("bad length to HEAD", "HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", &[], Head(ContentLength)),
    ("length and chunked", "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[], Head(AmbiguousLength)),
    ("empty coding", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\nContent-Length: 3\r\n\r\nabc", &[], Head(TransferEncoding)),
    ("coding behind chunked", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, deflate\r\n\r\nabc", &[], Head(TransferEncoding)),
    ("identity behind chunked", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunkedchunked", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunkedchunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunked in 1.0", "GET", b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[], Head(TransferEncoding)),
    ("chunked on a folded line", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n  abc\r\n\r\n0\r\n\r\n", &[], Head(ObsFold)),
    ("space behind a size", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3  \r\nabc\r\n0\r\n\r\n", &[], Body(ChunkExtension)),
    ("no semicolon before an extension", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3 a\r\nabc\r\n", &[], Body(ChunkExtension)),
    ("no extension behind a semicolon", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;\r\nabc\r\n", &[], Body(ChunkExtension)),
    ("a size of no digit", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nabcdefg\r\n", &[], Body(ChunkExtension)),
    ("a page in place of chunks", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n<html>", &[], Body(ChunkSize)),
    ("a chunk longer than said", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", &[], Body(ChunkEnd)),
    ("a trailer that frames", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 1\r\n\r\n", &["200 OK 1.1 keep {Transfer-Encoding: chunked}"], Clean),
    ("a trailer that is folded", "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n c\r\n\r\n", &[], Body(Trailer)),
];

#[rustfmt::skip]
const CONNECTIONS: &[Row] = &[
    ("close", "GET", b"HTTP/1.1 204 N\r\nConnection: close\r\n\r\n", &["204 N 1.1 close {Connection: close}"], Clean),
    ("close in a list", "GET", b"HTTP/1.1 204 N\r\nConnection: a , CLOSE\r\n\r\n", &["204 N 1.1 close {Connection: a , CLOSE}"], Clean),
    ("1.0", "GET", b"HTTP/1.0 204 N\r\n\r\n", &["204 N 1.0 close {}"], Clean),
    ("1.0 kept", "GET", b"HTTP/1.0 204 N\r\nConnection: keep-alive\r\n\r\n", &["204 N 1.0 keep {Connection: keep-alive}"], Clean),
    ("Proxy-Connection is nothing", "GET", b"HTTP/1.1 204 N\r\nProxy-Connection: close\r\n\r\n", &["204 N 1.1 keep {Proxy-Connection: close}"], Clean),
    ("upgrade", "GET", b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n", &["101 S 1.1 keep {Connection: upgrade; Upgrade: a}"], Clean),
    ("upgrade named beside a body", "GET", b"HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: a\r\nContent-Length: 1\r\n\r\na", &["200 OK 1.1 keep {Connection: upgrade; Upgrade: a; Content-Length: 1} a"], Clean),
];
