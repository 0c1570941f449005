//! PROXY headers: no panic, and the same answer for any split of the bytes. A decoded header can be
//! encoded and decoded again.
#![no_main]

use forebay_wire::proxy_protocol::{Announced, LARGEST, decode, encode_v1, encode_v2};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = decode(data);
    for end in 0..data.len().min(300) {
        match decode(&data[..end]) {
            Ok(None) => {}
            early => assert_eq!(early, whole),
        }
    }
    let Ok(Some((announced, length))) = whole else { return };
    assert!(length <= data.len() && length <= LARGEST);
    let Announced::Client { source, destination } = announced else { return };
    let mapped = |address: std::net::SocketAddr| address.ip().to_canonical() != address.ip();
    if mapped(source) || mapped(destination) {
        return;
    }
    for encode in [encode_v1, encode_v2] {
        let mut bytes = Vec::new();
        encode(&mut bytes, source, destination);
        assert_eq!(decode(&bytes), Ok(Some((announced, bytes.len()))));
    }
});
