//! Response heads: no panic, and the same outcome for any split of the bytes.
#![no_main]

use forebay_wire::http1::{Http1Limits, Progress, ResponseHead, ResponseParser, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut head = ResponseHead::default();
    let whole = ResponseParser::new(Http1Limits::default(), false).parse(data, &mut head);
    if let Ok(Progress::Complete(len)) = whole {
        let mut out = Vec::new();
        encode::forward_response_fields(&mut out, &head, data, |_| false);
        assert!(out.len() <= len);
    }
    let whole = whole.map(|progress| (progress, format!("{head:?}")));
    let mut parser = ResponseParser::new(Http1Limits::default(), false);
    let mut pieces = Ok(Progress::Partial);
    for end in 0..=data.len() {
        pieces = parser.parse(&data[..end], &mut head);
        if pieces != Ok(Progress::Partial) {
            break;
        }
    }
    let pieces = pieces.map(|progress| (progress, format!("{head:?}")));
    if matches!(whole, Ok((Progress::Complete(_), _))) || pieces.is_err() {
        assert_eq!(whole, pieces);
    }
});
