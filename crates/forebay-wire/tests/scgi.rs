//! Tests of SCGI heads: an encoded head is decoded again, and invalid heads are rejected.

use forebay_wire::cgi::Sink;
use forebay_wire::scgi::*;

fn written(content_length: u64, pairs: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut head = Head::new(&mut out, content_length);
    for (name, value) in pairs {
        head.variable(name.as_bytes(), value.as_bytes());
    }
    head.finish();
    out
}

#[test]
fn the_example_of_the_specification() {
    let pairs = [("REQUEST_METHOD", "POST"), ("REQUEST_URI", "/deepthought")];
    let expected = b"70:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0\
        REQUEST_URI\0/deepthought\0,";
    assert_eq!(written(27, &pairs), expected);
}

#[test]
fn initial_frames_are_not_repeated() {
    let out = written(3, &[("SCGI", "2"), ("A", ""), ("CONTENT_LENGTH", "4")]);
    assert_eq!(out, b"27:CONTENT_LENGTH\x003\0SCGI\x001\0A\0\0,");
}

#[test]
fn a_head_is_whole_when_its_comma_has_come() {
    let mut out = written(5, &[("A", "b"), ("EMPTY", "")]);
    let len = out.len();
    out.extend_from_slice(b"hello");
    for end in 0..len {
        assert_eq!(parse(&out[..end], 1000), Ok(None), "{end}");
    }
    let parsed = parse(&out, 1000).unwrap().unwrap();
    assert_eq!((parsed.len, parsed.content_length), (len, 5));
    let text = |range: &std::ops::Range<usize>| std::str::from_utf8(&out[range.clone()]).unwrap();
    let pairs: Vec<_> = parsed.variables.iter().map(|(n, v)| (text(n), text(v))).collect();
    assert_eq!(pairs, [("CONTENT_LENGTH", "5"), ("SCGI", "1"), ("A", "b"), ("EMPTY", "")]);
}

#[test]
fn rule_violations_are_refused() {
    for (raw, error) in [
        (&b"GET / HTTP/1.1\r\n"[..], ScgiError::Length),
        (b":,", ScgiError::Length),
        (b"024:", ScgiError::Length),
        (b"99999999999", ScgiError::Length),
        (b"1001:", ScgiError::TooLarge(1000)),
        (b"9999999999:", ScgiError::TooLarge(1000)),
        (b"0:,", ScgiError::ContentLength),
        (b"24:CONTENT_LENGTH\x003\0SCGI\x001\0;", ScgiError::Comma),
        (b"3:a\0b,", ScgiError::Pairs),
        (b"2:a\0,", ScgiError::Pairs),
        (b"3:\0b\0,", ScgiError::Pairs),
        (b"24:SCGI\x001\0CONTENT_LENGTH\x003\0,", ScgiError::ContentLength),
        (b"25:CONTENT_LENGTH\0+3\0SCGI\x001\0,", ScgiError::ContentLength),
        (b"24:CONTENT_LENGTH\x003\0SCGI\x002\0,", ScgiError::Version),
        (b"31:CONTENT_LENGTH\x003\0SCGI\x001\0SCGI\x001\0,", ScgiError::Repeated),
    ] {
        assert_eq!(parse(raw, 1000), Err(error), "{:?}", String::from_utf8_lossy(raw));
    }
}

proptest::proptest! {
    #[test]
    fn nothing_panics(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
        let _ = parse(&bytes, 200);
        let mut netstring = format!("{}:", bytes.len()).into_bytes();
        netstring.extend(bytes);
        netstring.push(b',');
        let _ = parse(&netstring, 1000);
    }
}
