//! Message bodies: no panic, and the same payload for any split of the bytes.
#![no_main]

use forebay_wire::http1::{BodyDecoder, HttpError, RequestFraming, ResponseFraming};
use libfuzzer_sys::fuzz_target;

/// Payload, number of bytes used and whether the body ended.
fn decode(mut decoder: BodyDecoder, data: &[u8], step: usize) -> Result<(Vec<u8>, usize, bool), HttpError> {
    let mut payload = Vec::new();
    let (mut start, mut end) = (0, 0);
    while end < data.len() {
        end = (end + step).min(data.len());
        loop {
            let found = decoder.decode(&data[start..end])?;
            payload.extend_from_slice(&data[start..end][found.data.clone()]);
            start += found.consumed;
            if found.done {
                return Ok((payload, start, true));
            }
            if found.consumed == 0 && found.data.is_empty() {
                break;
            }
        }
    }
    Ok((payload, start, decoder.is_done()))
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    let decoder = match kind % 4 {
        0 => BodyDecoder::request(RequestFraming::Length(u64::from(kind))),
        1 => BodyDecoder::response(ResponseFraming::Close),
        _ => BodyDecoder::request(RequestFraming::Chunked),
    };
    let whole = decode(decoder.clone(), data, data.len().max(1));
    for step in [1, 2, 7] {
        let pieces = decode(decoder.clone(), data, step);
        // With pieces, an error may be found before more payload arrives. The verdict is the same.
        assert_eq!(whole.is_err(), pieces.is_err());
        if let (Ok(whole), Ok(pieces)) = (&whole, &pieces) {
            assert_eq!(whole, pieces);
        }
    }
});
