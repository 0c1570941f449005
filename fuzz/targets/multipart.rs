//! Forms in parts: no panic, ranges within the input, the same parts for any split of the bytes,
//! and never more buffered than the limit.
#![no_main]

use forebay_wire::multipart::{Boundary, FormDecoder, Event, FormLimits, MultipartError, plain};
use libfuzzer_sys::fuzz_target;

const LIMITS: FormLimits = FormLimits { parts: 8, head: 256, content: 512 };

/// Field name, file name, type and content of each part.
type Parts = Vec<[Vec<u8>; 4]>;

fn read(boundary: &Boundary, data: &[u8], step: usize) -> Result<Parts, MultipartError> {
    let mut decoder = FormDecoder::new(boundary, LIMITS);
    let mut parts = Parts::new();
    let (mut start, mut end) = (0, 0);
    while end < data.len() && !decoder.is_done() {
        end = (end + step).min(data.len());
        loop {
            let shown = &data[start..end];
            let found = decoder.decode(shown)?;
            start += found.consumed;
            match found.event {
                Event::More | Event::End => break,
                Event::Part(part) => {
                    let text = |span: forebay_wire::Span| plain(span.of(shown)).into_owned();
                    let [file, kind] =
                        [part.filename, part.content_type].map(|span| span.map(text).unwrap_or_default());
                    parts.push([text(part.name), file, kind, Vec::new()]);
                }
                Event::Content(range) => {
                    assert!(!range.is_empty() && range.end <= found.consumed);
                    parts.last_mut().expect("a part has begun")[3].extend_from_slice(&shown[range]);
                }
                Event::PartEnd => {}
            }
        }
        assert!(decoder.is_done() || end - start <= LIMITS.head + 80);
    }
    decoder.finish()?;
    Ok(parts)
}

fuzz_target!(|data: &[u8]| {
    let _ = Boundary::of(data);
    let boundary = Boundary::new(b"B").expect("a letter is a boundary");
    let whole = read(&boundary, data, data.len().max(1));
    for step in [1, 2, 7] {
        assert_eq!(read(&boundary, data, step), whole);
    }
    for [_, _, _, content] in whole.iter().flatten() {
        assert!(!content.windows(5).any(|window| window == b"\r\n--B"));
    }
});
