//! The head of an SCGI request: no panic, ranges within the input, and the same result for any
//! amount of input.
#![no_main]

use forebay_wire::scgi::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(Some(parsed)) = parse(data, 65_536) else { return };
    for (name, value) in &parsed.variables {
        assert!(!data[name.clone()].contains(&0) && !data[value.clone()].contains(&0));
    }
    for end in 0..parsed.len {
        assert_eq!(parse(&data[..end], 65_536), Ok(None));
    }
    assert_eq!(parse(&data[..parsed.len], 65_536).unwrap(), Some(parsed));
});
