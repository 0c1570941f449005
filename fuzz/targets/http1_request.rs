//! Request heads: no panic, and the same outcome for any split of the bytes.
#![no_main]

use forebay_wire::http1::{Progress, RequestHead, RequestParser};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut head = RequestHead::default();
    let whole = RequestParser::default().parse(data, &mut head);
    let whole = whole.map(|progress| (progress, format!("{head:?}")));
    let mut parser = RequestParser::default();
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
