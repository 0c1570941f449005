//! `Forwarded`: no panic, and the same list from one field or from two that were split at a comma
//! outside of quotes.
#![no_main]

use forebay_wire::forwarded::decode;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut whole = Vec::new();
    let outcome = decode(data, &mut whole);
    let Some(at) = data.iter().position(|&byte| byte == b',') else { return };
    let mut parts = Vec::new();
    let left = decode(&data[..at], &mut parts);
    let right = decode(&data[at + 1..], &mut parts);
    if left.is_ok() && right.is_ok() {
        assert_eq!(outcome, Ok(()));
        assert_eq!(whole, parts);
    }
});
