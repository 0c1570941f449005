//! `Range`: no panic, and few ranges that are within the file and do not overlap.
#![no_main]

use forebay_wire::range::{self, Ranges};
use libfuzzer_sys::fuzz_target;

/// Maximum number of ranges in one request.
const MOST: usize = 16;

fuzz_target!(|data: &[u8]| {
    let Some((length, value)) = data.split_first_chunk::<8>() else { return };
    // Small files are as frequent as large ones.
    let length = u64::from_le_bytes(*length) >> (length[0] % 64);
    let Ranges::Parts(mut parts) = range::parse(value, length, MOST) else { return };
    assert!(!parts.is_empty() && parts.len() <= MOST);
    parts.sort_by_key(|part| part.start);
    assert!(parts.iter().all(|part| part.length > 0));
    assert!(parts.iter().all(|part| part.start.checked_add(part.length).is_some_and(|end| end <= length)));
    assert!(parts.windows(2).all(|pair| pair[0].start + pair[0].length <= pair[1].start));
});
