//! Heads of scripts that speak HTTP themselves: no panic, lines with CRLF, and an end that does not
//! depend on later bytes.
#![no_main]

use forebay_wire::cgi::http_head;
use forebay_wire::http1::{Http1Limits, Progress, ResponseHead, ResponseParser};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = http_head(data);
    let pieces = (0..=data.len()).find_map(|end| http_head(&data[..end]));
    assert_eq!(whole, pieces);
    let Some((head, end)) = whole else { return };
    assert!(end <= data.len() && head.ends_with(b"\r\n\r\n"));
    let mut parsed = ResponseHead::default();
    let parsing = ResponseParser::new(Http1Limits::default(), false).parse(&head, &mut parsed);
    if let Ok(Progress::Complete(len)) = parsing {
        assert!(len <= head.len());
    }
});
