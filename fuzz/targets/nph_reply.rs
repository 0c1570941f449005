//! Heads that are mended before they are parsed: no panic, lines with CRLF, and an outcome that does
//! not depend on the pieces in which the head arrives.
#![no_main]

use forebay_wire::http1::{Http1Limits, ResponseHead, ResponseParser};
use forebay_wire::reply::{ReplyReader, ReplyStep};
use libfuzzer_sys::fuzz_target;

fn read(data: &[u8], piece: usize) -> Option<(Vec<u8>, usize)> {
    let mut reader = ReplyReader::new(ResponseParser::new(Http1Limits::default(), false));
    let (mut bytes, mut head) = (Vec::new(), ResponseHead::default());
    for piece in data.chunks(piece) {
        bytes.extend_from_slice(piece);
        loop {
            match reader.read_mending(&mut bytes, &mut head).ok()? {
                ReplyStep::Partial => break,
                ReplyStep::Interim(len) => drop(bytes.drain(..len)),
                ReplyStep::Final(len) => return Some((bytes[..len].to_vec(), head.fields.len())),
            }
        }
    }
    None
}

fuzz_target!(|data: &[u8]| {
    let whole = read(data, data.len().max(1));
    assert_eq!(whole, read(data, 1));
    if let Some((head, _)) = whole {
        assert!(head.ends_with(b"\r\n\r\n"));
        assert!((0..head.len()).all(|at| head[at] != b'\n' || at > 0 && head[at - 1] == b'\r'));
    }
});
