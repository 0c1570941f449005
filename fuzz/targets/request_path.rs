//! Request paths: no panic, and cleaning a clean path changes nothing.
#![no_main]

use forebay_wire::path::normalize;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut clean = Vec::new();
    if normalize(data, &mut clean).is_err() {
        return;
    }
    assert!(clean.starts_with(b"/") && !clean.contains(&0));
    for segment in clean.split(|&b| b == b'/') {
        assert!(segment != b"." && segment != b"..");
    }
    assert!(!clean.windows(2).any(|pair| pair == b"//"));
});
