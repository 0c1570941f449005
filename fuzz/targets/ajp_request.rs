//! Packets of a web server over AJP: no panic, and the same result for any amount of input. A
//! decoded head is encoded and decoded again.
#![no_main]

use forebay_wire::ajp13::*;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(Some(found)) = parse_data(data, LEAST_PACKET) {
        assert!(found.range.end <= found.len && found.len <= data.len());
        assert_eq!(parse_data(&data[..found.len], LEAST_PACKET), Ok(Some(found)));
    }
    let mut head = RequestHead::default();
    let Ok(Some((incoming, len))) = parse_request(data, LEAST_PACKET, &mut head) else { return };
    let mut other = RequestHead::default();
    for end in 0..len {
        assert_eq!(parse_request(&data[..end], LEAST_PACKET, &mut other), Ok(None));
    }
    if incoming == Incoming::Ping {
        return;
    }
    let bytes = head.fields.bytes();
    let line = RequestLine {
        method: head.method.of(bytes),
        protocol: head.protocol.of(bytes),
        uri: head.uri.of(bytes),
        remote_addr: head.remote_addr.of(bytes),
        remote_host: head.remote_host.of(bytes),
        server_name: head.server_name.of(bytes),
        server_port: head.server_port,
        is_ssl: head.is_ssl,
    };
    let mut out = Vec::new();
    let mut forward = Forward::new(&mut out, &line);
    head.fields.iter().for_each(|field| forward.field(field.name, field.value));
    let mut attributes = forward.attributes();
    if let Some(query) = head.attribute(Attribute::QueryString) {
        attributes.attribute(Attribute::QueryString, query);
    }
    attributes.finish(MOST_PACKET).unwrap();
    let len = out.len();
    assert_eq!(
        parse_request(&out, MOST_PACKET, &mut other),
        Ok(Some((Incoming::Request, len)))
    );
    let again = other.fields.bytes();
    assert_eq!(other.method.of(again), head.method.of(bytes));
    assert_eq!(other.uri.of(again), head.uri.of(bytes));
    assert!(other.fields.iter().eq(head.fields.iter()));
    assert_eq!(other.attribute(Attribute::QueryString), head.attribute(Attribute::QueryString));
});
