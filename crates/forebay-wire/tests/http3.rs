//! Tests of HTTP/3: streams in pieces of any size, field sections that are encoded and decoded
//! again, and malformed bytes.

use forebay_wire::fields::{FieldRef, Fields};
use forebay_wire::http1::{KnownField, RequestHead, Version};
use forebay_wire::http2::budget::{EMPTY_DATA, USELESS};
use forebay_wire::http2::hpack::{Decoded, Flaw, HpackError, ListLimits};
use forebay_wire::http2::{Head, HeadLimits, HeadRule, RequestPseudo};
use forebay_wire::http3::{
    ErrorCode, HeadError, Http3Error, ReplyDecoder, ReplyEvent, RequestDecoder, RequestEvent,
    UniDecoder, UniKind, client_opening, data_header, goaway, head, opening, qpack, read_head,
    read_trailers, request, trailers,
};
use proptest::prelude::*;

const LIMITS: ListLimits = ListLimits { size: 4096, fields: 20 };
const RULES: HeadLimits = HeadLimits { target: 1000, get_body: false, extended_connect: true };

/// Returns a field section of literals. It uses neither the Huffman code nor the static table.
fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in fields {
        assert!(name.len() < 127 && value.len() < 127);
        if name.len() < 7 {
            out.push(0x20 | name.len() as u8);
        } else {
            out.extend_from_slice(&[0x27, name.len() as u8 - 7]);
        }
        out.extend_from_slice(name.as_bytes());
        out.push(value.len() as u8);
        out.extend_from_slice(value.as_bytes());
    }
    out
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![kind, 0x40 | (payload.len() >> 8) as u8, payload.len() as u8];
    out.extend_from_slice(payload);
    out
}

fn post(length: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "example.org"),
        (":path", "/a?b"),
        ("content-length", length),
    ];
    frame(1, &section(&fields))
}

/// Result of a stream that was decoded in pieces: its sections, its joined data, its price and its
/// error.
#[derive(Debug, Default, PartialEq)]
struct Made {
    sections: Vec<Vec<u8>>,
    data: Vec<u8>,
    is_too_large: bool,
    price: u32,
    error: Option<Http3Error>,
}

fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, content: Option<u64>) -> Made {
    let mut decoder = RequestDecoder::new(2000);
    let mut made = Made::default();
    for piece in pieces {
        let mut at = 0;
        loop {
            let decoded = decoder.decode(&piece[at..]);
            made.price += decoder.take_price();
            let step = match decoded {
                Ok(step) => step,
                Err(error) => {
                    made.error = Some(error);
                    return made;
                }
            };
            match step.event {
                None => {
                    assert_eq!(at + step.consumed, piece.len());
                    break;
                }
                Some(RequestEvent::Section) => {
                    made.sections.push(decoder.take_section());
                    if made.sections.len() == 1 {
                        decoder.expect_content(content);
                    }
                }
                Some(RequestEvent::TooLarge) => {
                    made.is_too_large = true;
                    return made;
                }
                Some(RequestEvent::Data(data)) => {
                    made.data.extend_from_slice(&piece[at + data.start..at + data.end]);
                }
            }
            at += step.consumed;
        }
    }
    made.error = decoder.end().err();
    made
}

#[test]
fn a_request_is_the_same_in_any_pieces() {
    let bytes = [
        frame(0x21, b"unknown"),
        post("8"),
        frame(0, b"12"),
        frame(0, b""),
        frame(0x40 - 1, b""),
        frame(0, b"345678"),
        frame(1, &section(&[("x-sum", "7")])),
        frame(0x21, b""),
    ]
    .concat();
    let whole = feed([&bytes[..]], Some(8));
    assert_eq!((whole.sections.len(), &whole.data[..], whole.error), (2, &b"12345678"[..], None));
    assert_eq!(whole.price, 3 * USELESS + EMPTY_DATA);
    assert_eq!(feed(bytes.chunks(1), Some(8)), whole);
    for at in 0..bytes.len() {
        let (first, second) = bytes.split_at(at);
        assert_eq!(feed([first, second], Some(8)), whole, "{at}");
    }
}

#[test]
fn streams_that_break_a_rule_are_refused_alike_in_any_pieces() {
    let head = || post("3");
    for (bytes, content, code) in [
        (frame(0, b"x"), None, ErrorCode::FRAME_UNEXPECTED),
        ([head(), frame(4, b"")].concat(), None, ErrorCode::FRAME_UNEXPECTED),
        ([head(), frame(2, b"")].concat(), None, ErrorCode::FRAME_UNEXPECTED),
        ([head(), frame(1, b"ab"), frame(0, b"x")].concat(), None, ErrorCode::FRAME_UNEXPECTED),
        ([head(), frame(1, b"ab"), frame(1, b"ab")].concat(), None, ErrorCode::FRAME_UNEXPECTED),
        ([head(), frame(0, b"1234")].concat(), Some(3), ErrorCode::MESSAGE_ERROR),
        ([head(), frame(0, b"12")].concat(), Some(3), ErrorCode::MESSAGE_ERROR),
        ([head(), frame(1, b"ab")].concat(), Some(3), ErrorCode::MESSAGE_ERROR),
        ([head(), frame(1, &[0; 2001])].concat(), None, ErrorCode::MESSAGE_ERROR),
        ([head(), vec![0, 5, 1]].concat(), None, ErrorCode::FRAME_ERROR),
        ([head(), vec![0]].concat(), None, ErrorCode::FRAME_ERROR),
        (vec![], None, ErrorCode::REQUEST_INCOMPLETE),
        (frame(0x21, b"x"), None, ErrorCode::REQUEST_INCOMPLETE),
        (vec![0x21, 0x80, 0, 0x40, 1], None, ErrorCode::EXCESSIVE_LOAD),
    ] {
        let whole = feed([&bytes[..]], content);
        assert_eq!(whole.error.map(|error| error.code), Some(code), "{bytes:x?}");
        assert_eq!(feed(bytes.chunks(1), content).error, whole.error);
    }
}

#[test]
fn useless_frames_cost_as_much_before_an_error() {
    let bytes = [post("3"), frame(0, b"").repeat(50), frame(0, b"1234")].concat();
    let whole = feed([&bytes[..]], Some(3));
    assert_eq!((whole.price, whole.error.is_some()), (50 * EMPTY_DATA, true));
    assert_eq!(feed(bytes.chunks(1), Some(3)), whole);
}

#[test]
fn a_head_above_the_limit_is_not_gathered() {
    let made = feed([&[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..]], None);
    assert!(made.is_too_large && made.sections.is_empty());
}

#[test]
fn heads_go_through_the_checks_of_http_2() {
    let read = |fields: &[(&str, &str)]| {
        let mut head = Head::default();
        read_head(&section(fields), LIMITS, &RULES, &mut head).map(|()| head)
    };
    let get = [(":method", "GET"), (":scheme", "https"), (":authority", "a.org"), (":path", "/x")];
    let with = |field| read(&[&get[..], &[field]].concat()).map(drop);
    let head = read(&get).unwrap();
    let (mut bytes, mut written) = (Vec::new(), RequestHead::default());
    head.write_http1(Version::Http3, true, b"", &mut bytes, &mut written);
    assert_eq!(bytes, b"GET /x HTTP/3.0\r\nhost: a.org\r\n\r\n");
    assert_eq!(written.version, Version::Http3);
    for (field, rule) in [
        (("connection", "close"), HeadRule::ConnectionField),
        (("te", "gzip"), HeadRule::Te),
        (("X-A", "b"), HeadRule::FieldName),
        (("x-a", "b\r\nc: d"), HeadRule::FieldValue),
        (("x-a", "b\0"), HeadRule::FieldValue),
        ((":path", "/y"), HeadRule::PseudoField),
        (("host", "b.org"), HeadRule::Authority),
        (("content-length", "01x"), HeadRule::ContentLength),
    ] {
        assert_eq!(with(field), Err(HeadError::Rule(rule)), "{field:?}");
    }
    assert_eq!(with(("te", "trailers")), Ok(()));
    let many: Vec<_> = get.into_iter().chain([("x-a", "b"); 30]).collect();
    assert_eq!(read(&many).map(drop), Err(HeadError::Rule(HeadRule::TooLarge)));
    let mut head = Head::default();
    assert!(read_trailers(&section(&[("x-sum", "7")]), LIMITS, &mut head).is_ok());
    let error = read_trailers(&section(&[(":path", "/")]), LIMITS, &mut head).unwrap_err();
    assert!(!error.ends_connection);
}

#[test]
fn sections_that_need_a_dynamic_table_end_the_connection() {
    for bytes in [
        &[][..],
        &[0],
        &[1, 0],
        &[0, 0x80],
        &[0, 0, 0x80],
        &[0, 0, 0x10],
        &[0, 0, 0x40, 0],
        &[0, 0, 0x00, 0],
        &[0, 0, 0xff, 0x40],
        &[0, 0, 0x51],
        &[0, 0, 0x23, b'a'],
        &[0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
    ] {
        let mut head = Head::default();
        let Err(HeadError::Http3(error)) = read_head(bytes, LIMITS, &RULES, &mut head) else {
            panic!("{bytes:x?} is decoded");
        };
        assert_eq!(error.code, ErrorCode::QPACK_DECOMPRESSION_FAILED, "{bytes:x?}");
        assert!(error.ends_connection);
    }
}

#[test]
fn a_section_of_rfc_9204_appendix_b_1() {
    // This is a literal with a name of the static table: `:path` is `/index.html`.
    let bytes = b"\x00\x00\x51\x0b/index.html";
    let mut fields = Fields::new();
    let decoded = qpack::decode(bytes, LIMITS, &mut fields).unwrap();
    assert_eq!(decoded, Decoded { size: decoded.size, ..Decoded::default() });
    let field = fields.iter().next().unwrap();
    assert_eq!((field.name, field.value), (&b":path"[..], &b"/index.html"[..]));
}

#[test]
fn encoded_replies_are_short_and_readable() {
    let lines = b"Content-Type: text/html; charset=utf-8\r\nConnection: close\r\nUpgrade: x\r\n\
        Transfer-Encoding: chunked\r\nX-Own: a value of some length\r\n";
    let mut out = Vec::new();
    head(&mut out, 200, forebay_wire::fields::of_lines(lines));
    assert_eq!(out[..6], [1, out.len() as u8 - 2, 0, 0, 0xc0 | 25, 0xc0 | 52]);
    let mut fields = Fields::new();
    qpack::decode(&out[2..], LIMITS, &mut fields).unwrap();
    let read: Vec<_> = fields.iter().map(|field| (field.name, field.value)).collect();
    assert_eq!(read.len(), 3);
    assert_eq!(read[2], (&b"x-own"[..], &b"a value of some length"[..]));
    out.clear();
    trailers(&mut out, forebay_wire::fields::of_lines(b"X-Sum: 7\r\n"));
    assert_eq!(&out[..4], [1, out.len() as u8 - 2, 0, 0]);
    out.clear();
    data_header(&mut out, 70_000);
    assert_eq!(out, [0, 0x80, 1, 0x11, 0x70]);
}

/// Decodes the stream of a reply in pieces. Returns its events with their contents, and the error.
fn read_reply<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    to_head: bool,
) -> (Vec<String>, Option<ErrorCode>) {
    let mut decoder = ReplyDecoder::new(LIMITS, to_head);
    let (mut events, mut body, mut head) = (Vec::new(), String::new(), Head::default());
    for piece in pieces {
        let mut at = 0;
        loop {
            let step = match decoder.decode(&piece[at..], &mut head) {
                Ok(step) => step,
                Err(error) => return (events, Some(error.code)),
            };
            let names = || head.fields.iter().map(|field| field.name.escape_ascii().to_string());
            match step.event {
                None => break,
                Some(ReplyEvent::Interim) => events.push(format!("interim {}", head.status)),
                Some(ReplyEvent::Head) => {
                    let names = names().collect::<Vec<_>>().join(",");
                    events.push(format!("head {} {names}", head.status));
                }
                Some(ReplyEvent::Trailers) => {
                    events.push(format!("trailers {}", names().collect::<String>()));
                }
                Some(ReplyEvent::Data(data)) => {
                    let data = &piece[at + data.start..at + data.end];
                    body += &String::from_utf8_lossy(data);
                }
            }
            at += step.consumed;
        }
    }
    events.push(body);
    (events, decoder.end().err().map(|error| error.code))
}

#[test]
fn a_reply_is_the_same_in_any_pieces() {
    let mut bytes = frame(1, &section(&[(":status", "103"), ("link", "x")]));
    bytes.extend(frame(0x21, b"unknown"));
    head(&mut bytes, 200, forebay_wire::fields::of_lines(b"Content-Length: 5\r\nServer: a\r\n"));
    bytes.extend([frame(0, b"he"), frame(0, b""), frame(0, b"llo")].concat());
    trailers(&mut bytes, forebay_wire::fields::of_lines(b"X-Sum: 7\r\n"));
    let expected = ["interim 103", "head 200 content-length,server", "trailers x-sum", "hello"];
    let whole = read_reply([&bytes[..]], false);
    assert_eq!(whole, (expected.map(str::to_owned).to_vec(), None));
    assert_eq!(read_reply(bytes.chunks(1), false), whole);
    for at in 0..bytes.len() {
        let (first, second) = bytes.split_at(at);
        assert_eq!(read_reply([first, second], false), whole, "{at}");
    }
}

#[test]
fn replies_that_break_a_rule_are_refused_alike_in_any_pieces() {
    let head =
        |status, length| frame(1, &section(&[(":status", status), ("content-length", length)]));
    let [ok, cut, empty] = [("200", "3"), ("204", "0"), ("304", "9")].map(|(s, l)| head(s, l));
    let (data, large) = (frame(0, b"abc"), frame(1, &[0; 5000]));
    let upgrade = frame(1, &section(&[(":status", "101")]));
    let request = frame(1, &section(&[(":status", "200"), (":path", "/")]));
    for (frames, to_head, code) in [
        (vec![&ok, &data], false, None),
        (vec![&ok], true, None),
        (vec![&empty], false, None),
        (vec![&ok, &data], true, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![&empty, &data], false, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![&cut, &data], false, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![&ok], false, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![&ok, &data, &data], false, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![&upgrade], false, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![&request], false, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![&large], false, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![], false, Some(ErrorCode::MESSAGE_ERROR)),
        (vec![&data], false, Some(ErrorCode::FRAME_UNEXPECTED)),
        // The frame is a PUSH_PROMISE, although the client allows no pushes.
        (vec![&ok, &frame(5, b"x")], false, Some(ErrorCode::FRAME_UNEXPECTED)),
        (vec![&frame(1, &[1, 0])], false, Some(ErrorCode::QPACK_DECOMPRESSION_FAILED)),
    ] {
        let bytes: Vec<u8> = frames.into_iter().flatten().copied().collect();
        assert_eq!(read_reply([&bytes[..]], to_head).1, code, "{bytes:x?}");
        assert_eq!(read_reply(bytes.chunks(1), to_head).1, code, "{bytes:x?}");
    }
}

#[test]
fn a_request_of_a_client_is_short_and_a_server_reads_it() {
    let pseudo = RequestPseudo {
        method: b"GET",
        scheme: b"https",
        authority: b"a.org",
        path: b"/",
        protocol: b"",
    };
    let lines = b"Accept: */*\r\nConnection: close\r\n";
    let mut out = Vec::new();
    request(&mut out, &pseudo, forebay_wire::fields::of_lines(lines));
    // The method, the scheme, the path and `accept` are entries of the static table.
    let mut expected = vec![1, 13, 0, 0, 0xc0 | 17, 0xc0 | 23, 0x50, 5];
    expected.extend_from_slice(b"a.org");
    expected.extend_from_slice(&[0xc0 | 1, 0xc0 | 29]);
    assert_eq!(out, expected);
    let mut head = Head::default();
    read_head(&out[2..], LIMITS, &RULES, &mut head).unwrap();
    let (mut bytes, mut written) = (Vec::new(), RequestHead::default());
    head.write_http1(Version::Http3, true, b"", &mut bytes, &mut written);
    assert_eq!(bytes, b"GET / HTTP/3.0\r\naccept: */*\r\nhost: a.org\r\n\r\n");
}

fn uni(bytes: &[u8]) -> Result<(UniDecoder, u32), Http3Error> {
    decode_uni(bytes, UniDecoder::default())
}

fn decode_uni(bytes: &[u8], new: UniDecoder) -> Result<(UniDecoder, u32), Http3Error> {
    let mut decoder = new.clone();
    let mut price = 0;
    for byte in bytes.chunks(1) {
        price += decoder.receive(byte)?;
    }
    let mut whole = new;
    assert_eq!(whole.receive(bytes), Ok(price));
    assert_eq!(whole.kind(), decoder.kind());
    Ok((decoder, price))
}

#[test]
fn the_server_opens_with_a_control_stream() {
    let mut bytes = Vec::new();
    opening(&mut bytes, 32_768);
    goaway(&mut bytes, None);
    goaway(&mut bytes, Some(400));
    let (decoder, price) = uni(&bytes).unwrap();
    assert_eq!((decoder.kind(), price), (Some(UniKind::Control), 2 * USELESS));
    assert_eq!(decoder.end().unwrap_err().code, ErrorCode::CLOSED_CRITICAL_STREAM);
}

#[test]
fn a_client_reads_what_servers_send_and_servers_read_a_client() {
    let mut bytes = Vec::new();
    client_opening(&mut bytes, 4096);
    assert!(uni(&bytes).unwrap().0.has_settings());
    bytes.clear();
    opening(&mut bytes, 32_768);
    goaway(&mut bytes, Some(8));
    let server = |bytes: &[u8]| decode_uni(bytes, UniDecoder::of_server());
    let (decoder, _) = server(&bytes).unwrap();
    assert_eq!((decoder.has_settings(), decoder.goaway()), (true, Some(8)));
    assert_eq!(server(&[2, 0x20]).unwrap().0.kind(), Some(UniKind::Encoder));
    for (bytes, code) in [
        (&[1][..], ErrorCode::ID_ERROR),
        (&[0, 4, 0, 3, 1, 0], ErrorCode::ID_ERROR),
        // The value of this GOAWAY is not the identifier of a client's stream.
        (&[0, 4, 0, 7, 1, 5], ErrorCode::ID_ERROR),
        (&[0, 4, 0, 13, 1, 3], ErrorCode::FRAME_UNEXPECTED),
        (&[0, 4, 0, 0x80, 0x0f, 0x07, 0x00, 1, 0], ErrorCode::FRAME_UNEXPECTED),
        (&[0, 7, 1, 0], ErrorCode::MISSING_SETTINGS),
        (&[2, 0x3f, 0x45], ErrorCode::QPACK_ENCODER_STREAM_ERROR),
    ] {
        assert_eq!(server(bytes).err().map(|error| error.code), Some(code), "{bytes:x?}");
    }
}

#[test]
fn streams_one_way_keep_to_their_rules() {
    assert_eq!(uni(&[0x21, 1, 2, 3]).unwrap().0.kind(), Some(UniKind::Unknown));
    assert_eq!(uni(&[0x40]).unwrap().0.kind(), None);
    assert_eq!(uni(&[0x40, 0x03, 0x44]).unwrap().0.kind(), Some(UniKind::Decoder));
    assert_eq!(uni(&[2, 0x20]).unwrap().0.kind(), Some(UniKind::Encoder));
    // The streams contain a MAX_PUSH_ID that increases, a GOAWAY that decreases, and stream
    // cancellations, one with a large number.
    for bytes in [
        &[0, 4, 0, 13, 1, 3, 13, 1, 3, 13, 1, 7][..],
        &[0, 4, 0, 7, 1, 8, 7, 1, 8, 7, 1, 4],
        &[3, 0x40, 0x7e, 0x7f, 0x00, 0x7f, 0xff, 0xff, 0x7f, 0x41],
    ] {
        assert!(uni(bytes).is_ok(), "{bytes:x?}");
    }
    let endless = [&[3, 0x7f][..], &[0x80; 12]].concat();
    for (bytes, code) in [
        (&[0, 4, 0, 13, 1, 3, 13, 1, 2][..], ErrorCode::ID_ERROR),
        (&[0, 4, 0, 7, 1, 4, 7, 1, 8], ErrorCode::ID_ERROR),
        // The streams contain insert count increments of 0 and 1, and a section acknowledgement.
        (&[3, 0x00], ErrorCode::QPACK_DECODER_STREAM_ERROR),
        (&[3, 0x40, 0x01], ErrorCode::QPACK_DECODER_STREAM_ERROR),
        (&[3, 0x80], ErrorCode::QPACK_DECODER_STREAM_ERROR),
        (&endless, ErrorCode::QPACK_DECODER_STREAM_ERROR),
        (&[1][..], ErrorCode::STREAM_CREATION_ERROR),
        (&[0, 7, 1, 0], ErrorCode::MISSING_SETTINGS),
        (&[0, 4, 0, 4, 0], ErrorCode::FRAME_UNEXPECTED),
        (&[0, 4, 0, 0, 0], ErrorCode::FRAME_UNEXPECTED),
        (&[0, 4, 0, 2, 0], ErrorCode::FRAME_UNEXPECTED),
        (&[0, 4, 4, 6, 1, 6, 1], ErrorCode::SETTINGS_ERROR),
        (&[0, 4, 2, 4, 1], ErrorCode::SETTINGS_ERROR),
        (&[0, 4, 1, 6], ErrorCode::FRAME_ERROR),
        (&[0, 4, 0x80, 1, 0, 0], ErrorCode::EXCESSIVE_LOAD),
        (&[0, 4, 0, 7, 0], ErrorCode::FRAME_ERROR),
        (&[0, 4, 0, 7, 2, 1, 1], ErrorCode::FRAME_ERROR),
        (&[0, 4, 0, 3, 1, 0], ErrorCode::ID_ERROR),
        (&[2, 0x3f, 0x45], ErrorCode::QPACK_ENCODER_STREAM_ERROR),
    ] {
        assert_eq!(uni(bytes).err().map(|error| error.code), Some(code), "{bytes:x?}");
    }
}

proptest! {
    #[test]
    fn fields_come_back_as_they_went_in(
        pairs in prop::collection::vec(("[a-z][a-z0-9-]{0,20}", "[!-~]{0,60}"), 0..15),
        status in 100u16..1000,
    ) {
        let mut out = Vec::new();
        qpack::begin(&mut out);
        qpack::status(&mut out, status);
        for (name, value) in &pairs {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            let known = KnownField::of(name);
            qpack::field(&mut out, FieldRef { name, value, known, sensitive: false });
        }
        let mut fields = Fields::new();
        let decoded = qpack::decode(&out, LIMITS, &mut fields).unwrap();
        prop_assert_eq!(decoded.flaw, Flaw::None);
        let read: Vec<_> = fields.iter().skip(1).map(|field| (field.name, field.value)).collect();
        let expected: Vec<_> =
            pairs.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
        let whole = feed([&bytes[..]], None);
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        prop_assert_eq!(&feed([first, second], None), &whole);
        let mut fields = Fields::new();
        let decoded: Result<_, HpackError> = qpack::decode(&bytes, LIMITS, &mut fields);
        prop_assert!(decoded.is_err() || fields.len() <= LIMITS.fields);
        let _ = UniDecoder::default().receive(&bytes);
    }
}
