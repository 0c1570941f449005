//! Records of a FastCGI reply, or of several: no panic, and the same events for any split of the
//! bytes.
#![no_main]

use forebay_wire::fastcgi::{Decoder, RecordEvent, FastcgiError, ProtocolStatus, pairs};
use libfuzzer_sys::fuzz_target;

type Seen = (Vec<u8>, Vec<u8>, Option<(u32, ProtocolStatus)>, bool);

fn read(mut decoder: Decoder, data: &[u8], step: usize) -> Result<Seen, FastcgiError> {
    let mut seen = (Vec::new(), Vec::new(), None, false);
    let (mut start, mut end) = (0, 0);
    while end < data.len() {
        end = (end + step).min(data.len());
        loop {
            let found = decoder.decode(&data[start..end])?;
            let input = &data[start..end];
            match &found.event {
                Some(RecordEvent::Stdout(range)) => seen.0.extend_from_slice(&input[range.clone()]),
                Some(RecordEvent::Stderr(range)) => seen.1.extend_from_slice(&input[range.clone()]),
                Some(RecordEvent::End { app_status, status }) => seen.2 = Some((*app_status, *status)),
                Some(RecordEvent::Values(range)) => drop(pairs(&input[range.clone()])),
                None => {}
            }
            start += found.consumed;
            if found.event.is_none() {
                break;
            }
        }
    }
    seen.3 = decoder.is_done();
    Ok(seen)
}

fuzz_target!(|data: &[u8]| {
    for decoder in [Decoder::new(1), Decoder::multiplexed()] {
        let whole = read(decoder.clone(), data, data.len().max(1));
        for step in [1, 3, 8] {
            assert_eq!(whole, read(decoder.clone(), data, step));
        }
    }
});
