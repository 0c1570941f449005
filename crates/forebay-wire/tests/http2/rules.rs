//! Tests of the reactions to violations that RFC 9113 requires. The cases are those of conformance
//! suites for servers, by section.

use super::drive::*;

/// Required reaction to the bytes that follow preface and SETTINGS: a GOAWAY or a reset of stream 1
/// with this code, or none.
#[derive(Debug)]
enum Must {
    Goaway(u32),
    Reset(u32),
    Go,
}
use Must::*;

const PROTOCOL: u32 = 1;
const FLOW: u32 = 3;
const CLOSED: u32 = 5;
const SIZE: u32 = 6;
const REFUSED: u32 = 7;
const COMPRESSION: u32 = 9;

fn check(section: &str, raw: &Raw, must: Must) {
    let seen = serve(raw);
    let resets: Vec<_> = seen.sent.iter().filter(|line| line.starts_with("reset")).collect();
    let fits = match must {
        Goaway(code) => seen.error.is_some() && seen.goaway() == Some(&code.to_string()),
        Reset(code) => {
            let expected = format!(" {code}");
            seen.error.is_none() && resets.len() == 1 && resets[0].ends_with(&expected)
        }
        Go => seen.error.is_none() && seen.sent.is_empty(),
    };
    assert!(fits, "{section}: {must:?}, but {seen:?}");
}

fn start() -> Raw {
    Raw::client()
}

fn opened() -> Raw {
    start().head(1, POST, false)
}

fn half_closed() -> Raw {
    start().head(1, POST, true)
}

#[test]
fn preface_and_first_frame() {
    check("3.4 preface", &start(), Go);
    check("3.4 wrong preface", &Raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\n".to_vec()), Goaway(PROTOCOL));
    check("3.4 HTTP/1.1", &Raw(b"GET / HTTP/1.1\r\n".to_vec()), Goaway(PROTOCOL));
    let preface = Raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec());
    check("3.4 no SETTINGS", &preface.clone().frame(PING, 0, 0, &[0; 8]), Goaway(PROTOCOL));
    check("3.4 acknowledgement", &preface.frame(SETTINGS, ACK, 0, b""), Goaway(PROTOCOL));
}

#[test]
fn frame_format_and_size() {
    check("4.1 unknown type", &start().frame(0x16, 0, 0, &[0; 8]), Go);
    check("4.1 undefined flags", &start().frame(PING, 0x16, 0, &[0; 8]), Go);
    check("4.1 reserved bit", &start().frame(PING, 0, 0x8000_0000, &[0; 8]), Go);
    check("4.2 DATA of 2^14", &opened().data(1, &[0; 16_384], true), Go);
    check("4.2 large DATA", &opened().data(1, &[0; 16_385], true), Goaway(SIZE));
    check("4.2 large HEADERS", &start().frame(HEADERS, 5, 1, &[0; 16_385]), Goaway(SIZE));
}

#[test]
fn header_compression() {
    check("4.3 bad block", &start().frame(HEADERS, 5, 1, &[0x80]), Goaway(COMPRESSION));
    let open = start().frame(HEADERS, 1, 1, &block(GET));
    check("4.3 PRIORITY in block", &open.clone().frame(PRIORITY, 0, 1, &[0; 5]), Goaway(PROTOCOL));
    check("4.3 other stream", &open.clone().frame(HEADERS, 5, 3, &block(GET)), Goaway(PROTOCOL));
    check("4.3 unknown in block", &open.clone().frame(0x16, 0, 0, b""), Goaway(PROTOCOL));
    check("4.3 continued", &open.frame(CONTINUATION, END_HEADERS, 1, b""), Go);
    check("7541 2.3.3 index", &start().frame(HEADERS, 5, 1, &[0xc6]), Goaway(COMPRESSION));
    let late = [&block(GET)[..], &[0x20]].concat();
    check("7541 4.2 late update", &start().frame(HEADERS, 5, 1, &late), Goaway(COMPRESSION));
    check(
        "7541 6.3 large update",
        &start().frame(HEADERS, 5, 1, &[0x3f, 0xe2, 0x1f]),
        Goaway(COMPRESSION),
    );
    // The padding of these Huffman strings is longer than seven bits, or consists of zeros. The
    // last string contains the end of string.
    for value in [&[0x82, 0x1f, 0xff][..], &[0x81, 0x18], &[0x84, 0xff, 0xff, 0xff, 0xff]] {
        let bad = [&[0, 1, b'a'], value].concat();
        check("7541 5.2", &start().frame(HEADERS, 5, 1, &bad), Goaway(COMPRESSION));
    }
}

#[test]
fn idle_streams() {
    check("5.1 DATA", &start().data(1, b"x", true), Goaway(PROTOCOL));
    check("5.1 RST_STREAM", &start().u32(RESET, 1, 8), Goaway(PROTOCOL));
    check("5.1 WINDOW_UPDATE", &start().u32(WINDOW_UPDATE, 1, 100), Goaway(PROTOCOL));
    check("5.1 CONTINUATION", &start().frame(CONTINUATION, 4, 1, b""), Goaway(PROTOCOL));
    check("5.1 PRIORITY", &start().frame(PRIORITY, 0, 1, &[0; 5]), Go);
}

#[test]
fn half_closed_and_closed_streams() {
    check("5.1 DATA", &half_closed().data(1, b"x", true), Reset(CLOSED));
    check("5.1 HEADERS", &half_closed().head(1, POST, true), Reset(CLOSED));
    check("5.1 CONTINUATION", &half_closed().frame(CONTINUATION, 4, 1, b""), Goaway(PROTOCOL));
    check("5.1 WINDOW_UPDATE", &half_closed().u32(WINDOW_UPDATE, 1, 100), Go);
    check("5.1 RST_STREAM", &half_closed().u32(RESET, 1, 8), Go);
    let reset = opened().u32(RESET, 1, 8);
    check("5.1 DATA", &reset.clone().data(1, b"x", true), Goaway(CLOSED));
    check("5.1 HEADERS", &reset.clone().head(1, POST, true), Goaway(CLOSED));
    check("5.1 CONTINUATION", &reset.clone().frame(CONTINUATION, 4, 1, b""), Goaway(PROTOCOL));
    check("5.1 PRIORITY", &reset.clone().frame(PRIORITY, 0, 1, &[0; 5]), Go);
    check("5.1 WINDOW_UPDATE", &reset.clone().u32(WINDOW_UPDATE, 1, 100), Go);
    check("5.1 RST_STREAM", &reset.u32(RESET, 1, 8), Go);
}

#[test]
fn frames_after_our_own_reset_are_dropped() {
    // The path is malformed, so the stream is reset. Its body and trailers still arrive.
    let bad = &[(":method", "POST"), (":scheme", "http"), (":path", "x"), (":authority", "h")];
    let raw = start()
        .head(1, bad, false)
        .data(1, b"body", false)
        .u32(WINDOW_UPDATE, 1, 10)
        .head(1, &[("a", "b")], true)
        .head(3, GET, true);
    let seen = serve(&raw);
    assert_eq!(seen.sent, ["reset 1 1"]);
    assert_eq!(seen.events[1..], ["1 refused Head(Path)", "3 head GET http h /; host=h end"]);
}

#[test]
fn stream_identifiers_and_concurrency() {
    check("5.1.1 even", &start().head(2, GET, true), Goaway(PROTOCOL));
    check("5.1.1 smaller", &start().head(5, GET, true).head(3, GET, true), Goaway(PROTOCOL));
    let mut raw = start();
    for at in 0..129 {
        raw = raw.head(1 + 2 * at, POST, false);
    }
    check("5.1.2 too many", &raw, Reset(REFUSED));
}

#[test]
fn dependencies() {
    let own = [&[0, 0, 0, 1, 255][..], &block(GET)].concat();
    check("5.3.1 HEADERS", &start().frame(HEADERS, 0x25, 1, &own), Goaway(PROTOCOL));
    check("5.3.1 PRIORITY", &start().frame(PRIORITY, 0, 3, &[0, 0, 0, 3, 9]), Goaway(PROTOCOL));
    let other = [&[0x80, 0, 0, 3, 255][..], &block(GET)].concat();
    check("5.3 HEADERS", &start().frame(HEADERS, 0x25, 1, &other), Go);
}

#[test]
fn data_frames() {
    check("6.1 stream 0", &start().data(0, b"x", true), Goaway(PROTOCOL));
    let padded = |payload: &[u8]| opened().frame(DATA, PADDED | END_STREAM, 1, payload);
    check("6.1 padding", &padded(&[4, b'a', 0, 0, 0, 0]), Go);
    check("6.1 padding alone", &padded(&[2, 0, 0]), Go);
    check("6.1 too much padding", &padded(&[6, b'a', 0, 0, 0, 0]), Goaway(PROTOCOL));
    check("6.1 no padding length", &padded(b""), Goaway(SIZE));
    let seen = serve(&padded(&[2, b'a', b'b', 0, 0]).head(3, GET, true));
    assert_eq!(seen.events[2..], ["1 data ab end", "3 head GET http h /; host=h end"]);
}

#[test]
fn headers_priority_reset() {
    check("6.2 stream 0", &start().head(0, GET, true), Goaway(PROTOCOL));
    let padded = [&[200][..], &block(GET)].concat();
    check("6.2 padding", &start().frame(HEADERS, 0xd, 1, &padded), Goaway(PROTOCOL));
    check("6.3 stream 0", &start().frame(PRIORITY, 0, 0, &[0; 5]), Goaway(PROTOCOL));
    check("6.3 length", &start().frame(PRIORITY, 0, 1, &[0; 4]), Goaway(SIZE));
    check("6.4 stream 0", &start().u32(RESET, 0, 8), Goaway(PROTOCOL));
    check("6.4 length", &opened().frame(RESET, 0, 1, &[0; 3]), Goaway(SIZE));
}

#[test]
fn settings_and_push() {
    check("6.5 acknowledgement", &start().frame(SETTINGS, ACK, 0, &[0; 6]), Goaway(SIZE));
    check("6.5 stream", &start().frame(SETTINGS, 0, 1, b""), Goaway(PROTOCOL));
    check("6.5 length", &start().frame(SETTINGS, 0, 0, &[0; 3]), Goaway(SIZE));
    check("6.5.2 push", &start().setting(2, 2), Goaway(PROTOCOL));
    check("6.5.2 push on", &start().setting(2, 1), Go);
    check("6.5.2 window", &start().setting(4, 1 << 31), Goaway(FLOW));
    check("6.5.2 small frames", &start().setting(5, 16_383), Goaway(PROTOCOL));
    check("6.5.2 large frames", &start().setting(5, 1 << 24), Goaway(PROTOCOL));
    check("6.5.2 unknown", &start().setting(0xaa, 1 << 24), Go);
    check("8441 3", &start().setting(8, 2), Goaway(PROTOCOL));
    check("6.6 push", &opened().frame(PUSH_PROMISE, 4, 1, &[0; 4]), Goaway(PROTOCOL));
}

#[test]
fn ping_goaway_and_windows() {
    check("6.7 ping", &start().frame(PING, 0, 0, b"12345678"), Go);
    check("6.7 acknowledgement", &start().frame(PING, ACK, 0, b"12345678"), Go);
    check("6.7 stream", &start().frame(PING, 0, 1, &[0; 8]), Goaway(PROTOCOL));
    check("6.7 length", &start().frame(PING, 0, 0, &[0; 6]), Goaway(SIZE));
    check("6.8 stream", &start().frame(GOAWAY, 0, 1, &[0; 8]), Goaway(PROTOCOL));
    check("6.9 zero", &start().u32(WINDOW_UPDATE, 0, 0), Goaway(PROTOCOL));
    check("6.9 zero of a stream", &opened().u32(WINDOW_UPDATE, 1, 0), Reset(PROTOCOL));
    check("6.9 length", &start().frame(WINDOW_UPDATE, 0, 0, &[0; 3]), Goaway(SIZE));
    let most = 0x7fff_ffff;
    check("6.9.1 overflow", &start().u32(WINDOW_UPDATE, 0, most), Goaway(FLOW));
    check("6.9.1 overflow of a stream", &opened().u32(WINDOW_UPDATE, 1, most), Reset(FLOW));
    let grown = opened().u32(WINDOW_UPDATE, 1, most - 65_535);
    check("6.9.2 overflow by setting", &grown.setting(4, 65_536), Goaway(FLOW));
    let mut full = opened();
    for _ in 0..4 {
        full = full.data(1, &[0; 16_384], false);
    }
    // 65,535 bytes fit into the window, but 65,536 do not.
    check("6.9.1 exceeded", &full, Reset(FLOW));
}

#[test]
fn messages() {
    check("8.1 no END_STREAM", &opened().head(1, &[("a", "b")], false), Reset(PROTOCOL));
    check("8.1 pseudo-field", &opened().head(1, &[(":method", "GET")], true), Reset(PROTOCOL));
    check("8.1 trailers", &opened().head(1, &[("a", "b")], true), Go);
    let long = |length: &'static str| {
        let fields = [POST, &[("content-length", length)]].concat();
        move |end: bool| start().head(1, &fields, end)
    };
    check("8.1.1 length", &long("3")(false).data(1, b"abc", true), Go);
    check("8.1.1 more", &long("2")(false).data(1, b"abc", true), Reset(PROTOCOL));
    check("8.1.1 less", &long("4")(false).data(1, b"abc", true), Reset(PROTOCOL));
    check(
        "8.1.1 several",
        &long("4")(false).data(1, b"ab", false).data(1, b"c", true),
        Reset(PROTOCOL),
    );
    check("8.1.1 none", &long("4")(true), Reset(PROTOCOL));
    check("8.1.1 zero", &long("0")(true), Go);
    check(
        "8.1.1 trailers",
        &long("4")(false).data(1, b"abc", false).head(1, &[], true),
        Reset(PROTOCOL),
    );
    check("9218 stream 0", &start().u32(PRIORITY_UPDATE, 0, 0), Goaway(PROTOCOL));
    check("9218 even", &start().u32(PRIORITY_UPDATE, 0, 2), Goaway(PROTOCOL));
    check("9218 idle", &start().u32(PRIORITY_UPDATE, 0, 9), Go);
}
