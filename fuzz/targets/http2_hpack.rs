//! HPACK: no panic, bounded memory, and decoded fields that can be encoded and decoded again.
#![no_main]

use forebay_wire::fields::Fields;
use forebay_wire::http2::hpack::{Decoder, Encoder, ListLimits};
use libfuzzer_sys::fuzz_target;

const LIMITS: ListLimits = ListLimits { size: 2_048, fields: 40 };

fn lines(fields: &Fields) -> Vec<(Vec<u8>, Vec<u8>)> {
    fields.iter().map(|field| (field.name.to_vec(), field.value.to_vec())).collect()
}

/// The fields that count: no pseudo-fields, and all pieces of a cookie as one.
fn counted(fields: &Fields) -> usize {
    let is_cookie = |name: &[u8]| name == b"cookie";
    let others = fields.iter().filter(|it| !it.name.starts_with(b":") && !is_cookie(it.name));
    others.count() + usize::from(fields.iter().any(|it| is_cookie(it.name)))
}

fuzz_target!(|data: &[u8]| {
    let (mut decoder, mut encoder, mut again) = Default::default();
    let (mut fields, mut block) = (Fields::new(), Vec::new());
    // Blocks of one connection, each after its length.
    let mut rest = data;
    while let Some((&len, behind)) = rest.split_first() {
        let (input, behind) = behind.split_at(behind.len().min(len.into()));
        rest = behind;
        fields.clear();
        if Decoder::decode(&mut decoder, input, LIMITS, &mut fields).is_err() {
            return;
        }
        assert!(counted(&fields) <= LIMITS.fields && decoder.allocated() <= 16_384);
        block.clear();
        Encoder::begin(&mut encoder, &mut block);
        for field in fields.iter() {
            encoder.field(&mut block, field);
        }
        let mut expected = lines(&fields);
        expected.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
        fields.clear();
        Decoder::decode(&mut again, &block, LIMITS, &mut fields).expect("our own block");
        assert_eq!(lines(&fields), expected);
        if len % 16 == 0 {
            encoder.set_allowed(usize::from(len) * 16);
            encoder.shrink();
            decoder.shrink();
        }
    }
});
