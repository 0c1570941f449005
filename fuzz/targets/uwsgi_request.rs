//! The packet of a uwsgi request: no panic, and decoding returns the encoded values.
#![no_main]

use forebay_wire::cgi::Sink;
use forebay_wire::uwsgi::{Packet, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(Some(parsed)) = parse(data) else { return };
    let mut out = Vec::new();
    let mut packet = Packet::new(&mut out, parsed.modifier1, parsed.modifier2);
    for (name, value) in &parsed.variables {
        packet.variable(&data[name.clone()], &data[value.clone()]);
    }
    packet.finish().expect("it did fit");
    assert_eq!(out, data[..parsed.len]);
});
