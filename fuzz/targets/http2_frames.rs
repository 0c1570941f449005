//! HTTP/2 frames: no panic, and the same frames for any split of the bytes.
#![no_main]

use forebay_wire::http2::frame::{Frame, decode};
use libfuzzer_sys::fuzz_target;

const LARGEST: usize = 1_024;

/// Returns the frames, and the error that ended them.
fn read(data: &[u8], step: usize) -> (Vec<String>, Option<String>) {
    let mut frames = Vec::new();
    let (mut start, mut end) = (0, 0);
    loop {
        match decode(&data[start..end], LARGEST) {
            Ok(Some((frame, len))) => {
                if let Frame::Settings(settings) = frame {
                    assert!(settings.iter().count() <= LARGEST / 6);
                }
                frames.push(format!("{frame:?}"));
                start += len;
            }
            Ok(None) if end == data.len() => return (frames, None),
            Ok(None) => end = (end + step).min(data.len()),
            Err(error) => return (frames, Some(error.to_string())),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let whole = read(data, data.len().max(1));
    for step in [1, 3, 10] {
        assert_eq!(whole, read(data, step));
    }
});
