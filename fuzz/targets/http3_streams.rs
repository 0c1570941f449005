//! HTTP/3: no panic, bounded memory, and the same result from a whole stream and byte by byte.
#![no_main]

use forebay_wire::fields::Fields;
use forebay_wire::http2::Head;
use forebay_wire::http2::HeadLimits;
use forebay_wire::http2::hpack::ListLimits;
use forebay_wire::http3::{
    ReplyDecoder, ReplyEvent, RequestEvent, RequestDecoder, UniDecoder, qpack, read_head,
};
use libfuzzer_sys::fuzz_target;

const LIMITS: ListLimits = ListLimits { size: 2_048, fields: 40 };
const RULES: HeadLimits = HeadLimits { target: 1_000, get_body: false, extended_connect: true };

/// Sections, data, and true if the stream ended well.
fn read(pieces: &mut dyn Iterator<Item = &[u8]>) -> (Vec<Vec<u8>>, Vec<u8>, bool) {
    let mut decoder = RequestDecoder::new(1_000);
    let (mut sections, mut data) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut rest = piece;
        loop {
            let Ok(step) = decoder.decode(rest) else { return (sections, data, false) };
            match step.event {
                Some(RequestEvent::Section) => sections.push(decoder.take_section()),
                Some(RequestEvent::TooLarge) => return (sections, data, false),
                Some(RequestEvent::Data(range)) => data.extend_from_slice(&rest[range]),
                None => break,
            }
            rest = &rest[step.consumed..];
        }
    }
    let ended = decoder.end().is_ok();
    (sections, data, ended)
}

/// Number of events of a reply, its data, and true if it ended well.
fn read_reply(pieces: &mut dyn Iterator<Item = &[u8]>) -> (usize, Vec<u8>, bool) {
    let mut decoder = ReplyDecoder::new(LIMITS, false);
    let (mut events, mut data, mut head) = (0, Vec::new(), Head::default());
    for piece in pieces {
        let mut rest = piece;
        loop {
            let Ok(step) = decoder.decode(rest, &mut head) else { return (events, data, false) };
            match step.event {
                Some(ReplyEvent::Data(range)) => data.extend_from_slice(&rest[range]),
                Some(_) => events += 1,
                None => break,
            }
            rest = &rest[step.consumed..];
        }
    }
    let ended = decoder.end().is_ok();
    (events, data, ended)
}

fuzz_target!(|data: &[u8]| {
    let whole = read(&mut std::iter::once(data));
    assert_eq!(read(&mut data.chunks(1)), whole);
    let mut head = Head::default();
    for section in &whole.0 {
        assert!(section.len() <= 1_000);
        let _ = read_head(section, LIMITS, &RULES, &mut head);
    }
    let mut fields = Fields::new();
    if qpack::decode(data, LIMITS, &mut fields).is_ok() {
        // Pseudo-fields do not count, and all pieces of a cookie count as one.
        let is_cookie = |name: &[u8]| name == b"cookie";
        let others = fields.iter().filter(|it| !it.name.starts_with(b":") && !is_cookie(it.name));
        let cookies = usize::from(fields.iter().any(|it| is_cookie(it.name)));
        assert!(others.count() + cookies <= LIMITS.fields);
    }
    assert_eq!(read_reply(&mut data.chunks(1)), read_reply(&mut std::iter::once(data)));
    let _ = UniDecoder::default().receive(data);
    let _ = UniDecoder::of_server().receive(data);
});
