//! Packets of a container over AJP: no panic, and the same events for any split of the bytes.
#![no_main]

use forebay_wire::ajp13::*;
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Default, PartialEq)]
struct Seen {
    head: Option<(u16, Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>)>,
    body: Vec<u8>,
    wanted: Vec<usize>,
    flushes: usize,
    end: Option<bool>,
    left: usize,
}

fn read(data: &[u8], step: usize) -> Result<Seen, AjpError> {
    let (mut decoder, mut head) = (ReplyDecoder::new(LEAST_PACKET), ReplyHead::default());
    let mut seen = Seen::default();
    let (mut start, mut end) = (0, 0);
    while end < data.len() {
        end = (end + step).min(data.len());
        loop {
            let input = &data[start..end];
            let found = decoder.decode(input, &mut head)?;
            match found.event {
                None => break,
                Some(PacketEvent::Head) => {
                    let fields = head.fields.iter();
                    let fields = fields.map(|f| (f.name.to_vec(), f.value.to_vec())).collect();
                    seen.head = Some((head.status, head.reason().to_vec(), fields));
                }
                Some(PacketEvent::Body(range)) => seen.body.extend_from_slice(&input[range]),
                Some(PacketEvent::Flush) => seen.flushes += 1,
                Some(PacketEvent::WantsBody(length)) => seen.wanted.push(length),
                Some(PacketEvent::End { reuse }) => seen.end = Some(reuse),
            }
            start += found.consumed;
        }
    }
    seen.left = data.len() - start;
    Ok(seen)
}

fuzz_target!(|data: &[u8]| {
    let _ = parse_pong(data);
    let whole = read(data, data.len().max(1));
    for step in [1, 3, 8] {
        assert_eq!(whole, read(data, step));
    }
});
