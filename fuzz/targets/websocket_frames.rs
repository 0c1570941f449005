//! WebSocket frames of a server: no panic, and the same messages for any split of the bytes.
#![no_main]

use forebay_wire::websocket::{Decoder, FrameEvent, FrameError, DecodedPayload};
use libfuzzer_sys::fuzz_target;

/// Messages and number of other events, or the broken rule.
type Read = (Vec<Vec<u8>>, usize, Option<FrameError>);

fn read(data: &[u8], size: usize) -> Read {
    let mut decoder = Decoder::default();
    let (mut messages, mut others, mut current) = (Vec::new(), 0, Vec::new());
    let mut pending = Vec::new();
    for piece in data.chunks(size) {
        pending.extend_from_slice(piece);
        loop {
            let DecodedPayload { consumed, event } = match decoder.decode(&pending) {
                Ok(step) => step,
                Err(error) => return (messages, others, Some(error)),
            };
            match &event {
                Some(FrameEvent::Data { data, is_end }) => {
                    current.extend_from_slice(&pending[data.clone()]);
                    if *is_end {
                        messages.push(std::mem::take(&mut current));
                    }
                }
                Some(_) => others += 1,
                None => {}
            }
            pending.drain(..consumed);
            if event.is_none() {
                break;
            }
        }
    }
    (messages, others, None)
}

fuzz_target!(|data: &[u8]| {
    let whole = read(data, data.len().max(1));
    assert_eq!(read(data, 1), whole);
    assert_eq!(read(data, 3), whole);
});
