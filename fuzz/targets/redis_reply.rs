//! A reply of a Redis server: no panic, a length within the input, and no other reading of it when less
//! or more has come.
#![no_main]

use forebay_wire::resp::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(Some((value, length))) = parse(data, 65_536) else { return };
    assert!(length <= data.len());
    for end in 0..length {
        assert_eq!(parse(&data[..end], 65_536), Ok(None));
    }
    assert_eq!(parse(&data[..length], 65_536), Ok(Some((value, length))));
});
