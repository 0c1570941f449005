//! Tests of uwsgi packets: an encoded packet is decoded again, and a packet is never longer than
//! its length field says.

use forebay_wire::cgi::Sink;
use forebay_wire::uwsgi::*;

fn written(pairs: &[(&[u8], &[u8])]) -> Result<Vec<u8>, UwsgiError> {
    let mut out = b"before".to_vec();
    let mut packet = Packet::new(&mut out, 5, 1);
    for (name, value) in pairs {
        packet.variable(name, value);
    }
    let outcome = packet.finish();
    let packet = out.split_off(6);
    assert_eq!(out, b"before");
    assert!(outcome.is_ok() || packet.is_empty(), "nothing is left of what is too long");
    outcome.map(|()| packet)
}

#[test]
fn a_packet_is_read_as_it_was_written() {
    let out = written(&[(b"A", b"bc"), (b"EMPTY", b"")]).unwrap();
    assert_eq!(out, b"\x05\x10\0\x01\x01\0A\x02\0bc\x05\0EMPTY\0\0");
    for end in 0..out.len() {
        assert_eq!(parse(&out[..end]), Ok(None), "{end}");
    }
    let with_body = [&out[..], b"body"].concat();
    let parsed = parse(&with_body).unwrap().unwrap();
    assert_eq!((parsed.modifier1, parsed.modifier2, parsed.len), (5, 1, out.len()));
    let text = |range: &std::ops::Range<usize>| std::str::from_utf8(&out[range.clone()]).unwrap();
    let pairs: Vec<_> = parsed.variables.iter().map(|(n, v)| (text(n), text(v))).collect();
    assert_eq!(pairs, [("A", "bc"), ("EMPTY", "")]);
}

#[test]
fn variables_fill_a_packet_and_not_a_byte_more() {
    let value = vec![b'v'; MOST - 5];
    let out = written(&[(b"A", &value)]).unwrap();
    assert_eq!(parse(&out).unwrap().unwrap().len, HEADER + MOST);
    let value = vec![b'v'; MOST - 4];
    assert_eq!(written(&[(b"A", &value)]), Err(UwsgiError::TooLarge(65_536)));
    // If these lengths wrapped at 16 bits, they would be small.
    let value = vec![b'v'; 65_536];
    assert_eq!(written(&[(b"A", &value)]), Err(UwsgiError::TooLarge(65_541)));
    let half = vec![b'v'; 40_000];
    let outcome = written(&[(b"A", &half), (b"B", &half)]);
    assert_eq!(outcome, Err(UwsgiError::TooLarge(80_010)));
}

#[test]
fn lengths_that_lie_are_refused() {
    for (raw, error) in [
        (&b"\0\x01\0\0\x01"[..], UwsgiError::Truncated),
        (b"\0\x03\0\0\x01\0A", UwsgiError::Truncated),
        (b"\0\x05\0\0\x01\0A\x01\0", UwsgiError::Truncated),
        (b"\0\x05\0\0\xff\xffA\0\0", UwsgiError::Truncated),
        (b"\0\x04\0\0\0\0\0\0", UwsgiError::Name),
    ] {
        assert_eq!(parse(raw), Err(error), "{raw:?}");
    }
    assert_eq!(parse(b"\0\0\0\0rest").unwrap().unwrap().len, 4);
}

proptest::proptest! {
    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = parse(&bytes);
        let length = (bytes.len() as u16).to_le_bytes();
        let packet = [&[0, length[0], length[1], 0], &bytes[..]].concat();
        let _ = parse(&packet);
    }
}
