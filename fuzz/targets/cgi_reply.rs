//! Heads of CGI replies: no panic, and the same outcome for any split of the bytes.
#![no_main]

use forebay_wire::cgi::{ReplyHead, ReplyParser};
use forebay_wire::http1::Progress;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut head = ReplyHead::default();
    let whole = ReplyParser::default().parse(data, &mut head);
    if let Ok(Progress::Complete(len)) = whole {
        assert!(len <= data.len() && (100..=999).contains(&head.status));
        let _ = head.is_local_redirect(data);
    }
    let whole = whole.map(|progress| (progress, format!("{head:?}")));
    let mut parser = ReplyParser::default();
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
