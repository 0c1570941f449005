//! Tests of HPACK: the examples of RFC 7541 appendix C, its rules, and round trips.

use forebay_wire::fields::{FieldRef, Fields};
use forebay_wire::http1::{KnownField, has_mark};
use forebay_wire::http2::hpack::{Decoded, Decoder, Encoder, Flaw, HpackError, ListLimits};
use proptest::prelude::*;

const LIMITS: ListLimits = ListLimits { size: 65_536, fields: 100 };

pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<String, HpackError> {
    let mut fields = Fields::new();
    let decoded = decoder.decode(block, LIMITS, &mut fields)?;
    assert_eq!(decoded, Decoded { size: decoded.size, ..Decoded::default() });
    Ok(lines(&fields))
}

fn lines(fields: &Fields) -> String {
    let line =
        |name: &[u8], value: &[u8]| format!("{}: {}\n", name.escape_ascii(), value.escape_ascii());
    fields.iter().map(|field| line(field.name, field.value)).collect()
}

#[test]
fn literals_of_appendix_c_2() {
    for (block, expected) in [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key: custom-header\n",
        ),
        ("040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path\n"),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", "password: secret\n"),
        ("82", ":method: GET\n"),
    ] {
        assert_eq!(decode(&mut Decoder::default(), &hex(block)).as_deref(), Ok(expected));
    }
}

#[test]
fn requests_of_appendix_c_3_and_c_4() {
    let first = ":method: GET\n:scheme: http\n:path: /\n:authority: www.example.com\n";
    let second = format!("{first}cache-control: no-cache\n");
    let third = ":method: GET\n:scheme: https\n:path: /index.html\n:authority: www.example.com\n\
                 custom-key: custom-value\n";
    for blocks in [
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ] {
        let mut decoder = Decoder::default();
        for (block, expected) in blocks.iter().zip([first, &second, third]) {
            assert_eq!(decode(&mut decoder, &hex(block)).as_deref(), Ok(expected));
        }
    }
}

#[test]
fn replies_of_appendix_c_5_and_c_6_evict_from_a_table_of_256_bytes() {
    let end = "location: https://www.example.com\n";
    let first =
        format!(":status: 302\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:21 GMT\n{end}");
    let second = first.replace("302", "307");
    let third = ":status: 200\ncache-control: private\ndate: Mon, 21 Oct 2013 20:13:22 GMT\n\
                 location: https://www.example.com\ncontent-encoding: gzip\n\
                 set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1\n";
    for blocks in [
        [
            "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 \
             2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 \
             6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d \
             54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 \
             5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e \
             3d31",
        ],
        [
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 \
             2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab \
             77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f \
             9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ],
    ] {
        let mut decoder = Decoder::default();
        // The examples of the appendix use a table of 256 bytes, which a setting announces. Here a
        // size update sets this limit.
        assert_eq!(decode(&mut decoder, &hex("3fe101")).as_deref(), Ok(""));
        for (block, expected) in blocks.iter().zip([&first[..], &second, third]) {
            assert_eq!(decode(&mut decoder, &hex(block)).as_deref(), Ok(expected));
        }
    }
}

#[test]
fn broken_blocks_are_refused() {
    for (block, error) in [
        ("80", HpackError::Index),
        ("be", HpackError::Index),
        ("ff ff ff ff ff 0f", HpackError::Integer),
        ("7f 80 01", HpackError::Index),
        ("00", HpackError::Truncated),
        ("00 05 61", HpackError::Truncated),
        ("40 01 61", HpackError::Truncated),
        ("ff", HpackError::Truncated),
        ("00 81 ff 00", HpackError::Padding),
        ("00 84 ff ff ff ff 00", HpackError::EndOfString),
        ("00 82 1f ff 00", HpackError::Padding),
        ("3f e2 1f", HpackError::TableSize),
        ("82 20", HpackError::TableUpdate),
        ("20 3f e1 1f 20", HpackError::TableUpdate),
    ] {
        let found = decode(&mut Decoder::default(), &hex(block)).map(drop);
        assert_eq!(found, Err(error), "{block}");
    }
}

#[test]
fn a_table_above_the_limit_must_be_reduced_first() {
    let mut decoder = Decoder::default();
    decoder.set_allowed(100);
    assert_eq!(decode(&mut decoder, &hex("82")), Err(HpackError::MissingUpdate));
    let mut decoder = Decoder::default();
    decoder.set_allowed(100);
    assert_eq!(decode(&mut decoder, &hex("20 3f 45 82")).as_deref(), Ok(":method: GET\n"));
    assert_eq!(decode(&mut decoder, &hex("82")).as_deref(), Ok(":method: GET\n"));
    assert_eq!(decode(&mut decoder, &hex("3f 46 82")), Err(HpackError::TableSize));
}

#[test]
fn a_list_above_the_limits_is_cut_and_the_table_goes_on() {
    // The block inserts "a: 1111", refers to it 1,000 times, then inserts "b: 2".
    let mut block = hex("40 0161 0431313131");
    block.extend([0xbe; 1_000]);
    block.extend(hex("40 0162 0132"));
    for (limits, kept) in [
        (ListLimits { size: 65_536, fields: 100 }, 100),
        (ListLimits { size: 370, fields: 100 }, 10),
        (ListLimits { size: 36, fields: 100 }, 0),
    ] {
        let mut decoder = Decoder::default();
        let mut fields = Fields::new();
        let decoded = decoder.decode(&block, limits, &mut fields).unwrap();
        assert!(decoded.too_large);
        assert_eq!(fields.len(), kept);
        assert!(fields.bytes().len() <= 500);
        assert_eq!(decode(&mut decoder, &hex("bebf")).as_deref(), Ok("b: 2\na: 1111\n"));
    }
}

#[test]
fn flaws_are_found_in_literals_and_in_what_the_table_remembers() {
    for (name, value, flaw) in [
        ("a", "b", Flaw::None),
        (":a", "b", Flaw::None),
        ("A", "b", Flaw::Name),
        ("a b", "b", Flaw::Name),
        ("", "b", Flaw::Name),
        (":", "b", Flaw::Name),
        ("a:", "b", Flaw::Name),
        ("a\r\nx", "b", Flaw::Name),
        ("\u{e9}", "b", Flaw::Name),
        ("a", "b\nc", Flaw::Value),
        ("a", "b\rc", Flaw::Value),
        ("a", "b\0c", Flaw::Value),
        ("a", "b\x7f", Flaw::Value),
        ("a", " b", Flaw::Value),
        ("a", "b\t", Flaw::Value),
        ("a", "\u{e9}", Flaw::None),
    ] {
        let mut block = vec![0x40, name.len() as u8];
        block.extend(name.as_bytes());
        block.push(value.len() as u8);
        block.extend(value.as_bytes());
        let mut decoder = Decoder::default();
        // The blocks contain the literal field, its index, and its indexed name with another value.
        for (block, flaw) in [
            (&block[..], flaw),
            (&[0xbe][..], flaw),
            (&hex("0f2f 0178")[..], if flaw == Flaw::Name { flaw } else { Flaw::None }),
        ] {
            let mut fields = Fields::new();
            let decoded = decoder.decode(block, LIMITS, &mut fields).unwrap();
            assert_eq!(decoded.flaw, flaw, "{name:?}: {value:?}");
        }
    }
}

#[test]
fn marks_are_found_in_literals_and_in_what_the_table_remembers() {
    for (name, has_mark) in [
        ("x_user", true),
        ("x.user", true),
        ("_", true),
        ("a~", true),
        ("x-user", false),
        ("x", false),
        // The name of a field of HTTP is known, and a pseudo-field is no field.
        ("content-type", false),
        (":protocol", false),
        (":a_b", false),
    ] {
        let literal = |first: u8| {
            let mut block = vec![first, name.len() as u8];
            block.extend(name.as_bytes());
            block.extend(b"\x01v");
            block
        };
        let mut decoder = Decoder::default();
        // The blocks contain the literal field without and with its entry in the table, its index,
        // its indexed name with another value, an unmarked field after it, and only that field.
        for (block, has_mark) in [
            (&literal(0x00)[..], has_mark),
            (&literal(0x40), has_mark),
            (&[0xbe], has_mark),
            (&hex("0f2f 0178"), has_mark),
            (&hex("be 4001 7801 79 be"), has_mark),
            (&hex("be"), false),
        ] {
            let decoded = decoder.decode(block, LIMITS, &mut Fields::new()).unwrap();
            assert_eq!(decoded.has_marks, has_mark, "{name:?}: {block:x?}");
        }
    }
}

proptest! {
    #[test]
    fn encoded_values_are_decoded_again(
        lists in prop::collection::vec(
            prop::collection::vec(("[a-z:_-]{1,12}|content-type|server|cookie", ".{0,40}|[0-9]{1,3}|fixed"), 0..12),
            1..12,
        ),
        sizes in prop::collection::vec(0usize..5_000, 0..4),
        shrink in any::<bool>(),
    ) {
        let mut encoder = Encoder::default();
        let mut decoder = Decoder::default();
        for (at, list) in lists.iter().enumerate() {
            if let Some(&size) = sizes.get(at) {
                encoder.set_allowed(size);
            }
            if shrink {
                encoder.shrink();
                decoder.shrink();
            }
            let mut block = Vec::new();
            let mut expected = Fields::new();
            encoder.begin(&mut block);
            // Each list is encoded twice, so that many fields repeat.
            for (name, value) in list.iter().chain(list) {
                encoder.pair(&mut block, name.as_bytes(), value.as_bytes());
                expected.push(name.as_bytes(), value.as_bytes());
            }
            let mut fields = Fields::new();
            let decoded = decoder.decode(&block, LIMITS, &mut fields).unwrap();
            prop_assert_eq!(lines(&fields), lines(&expected));
            let is_marked = |field: FieldRef| {
                field.known == KnownField::Other
                    && !field.name.starts_with(b":")
                    && has_mark(field.name)
            };
            prop_assert_eq!(decoded.has_marks, fields.iter().any(is_marked));
            let size: usize =
                fields.iter().map(|field| field.name.len() + field.value.len() + 32).sum();
            prop_assert_eq!(decoded.size, size);
        }
    }

    #[test]
    fn no_block_makes_the_decoder_panic_or_grow(
        blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..8)
    ) {
        let mut decoder = Decoder::default();
        for block in blocks {
            let mut fields = Fields::new();
            let limits = ListLimits { size: 400, fields: 10 };
            if decoder.decode(&block, limits, &mut fields).is_err() {
                break;
            }
            prop_assert!(fields.len() <= 10);
            prop_assert!(decoder.allocated() <= 16_384);
        }
    }
}
