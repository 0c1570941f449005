//! ClientHello: no panic, and the same answer for any split of the bytes.
#![no_main]

use forebay_wire::client_hello::HelloReader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = HelloReader::default().read(data);
    let mut reader = HelloReader::default();
    for end in 0..=data.len() {
        match reader.read(&data[..end]) {
            Ok(None) => {}
            early => return assert_eq!(early, whole),
        }
    }
    assert_eq!(whole, Ok(None));
});
