//! Forms: no panic, and pairs that are parts of the form. Encoding and decoding again gives the
//! same pairs.
#![no_main]

use forebay_wire::forms::{Dialect, decode, encode, pairs, text};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for dialect in [Dialect::Whatwg, Dialect::Plack] {
        let mut written = Vec::new();
        let mut first = Vec::new();
        for pair in pairs(data, dialect) {
            assert!(!pair.name.contains(&b'=') && !pair.name.contains(&b'&'));
            let _ = (text(pair.name), text(pair.value));
            let (name, value) = (decode(pair.name).into_owned(), decode(pair.value).into_owned());
            assert!(name.len() <= pair.name.len() && value.len() <= pair.value.len());
            encode(&mut written, &name, &value);
            first.push((name, value));
        }
        assert!(first.len() <= data.len() + 1);
        let again: Vec<_> = pairs(&written, dialect)
            .map(|pair| (decode(pair.name).into_owned(), decode(pair.value).into_owned()))
            .collect();
        assert_eq!(first, again);
    }
});
