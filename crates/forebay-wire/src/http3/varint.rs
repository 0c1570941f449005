//! Variable-length integers of QUIC (RFC 9000 section 16).

/// Largest integer that can be encoded.
pub const LARGEST: u64 = (1 << 62) - 1;

/// Decodes the integer at the start of `input`, and advances `input`. Returns `None` if the integer
/// is truncated.
pub fn decode(input: &mut &[u8]) -> Option<u64> {
    let first = *input.first()?;
    let length = 1usize << (first >> 6);
    let (bytes, rest) = input.split_at_checked(length)?;
    *input = rest;
    let value = u64::from(first & 0x3f);
    Some(bytes[1..].iter().fold(value, |value, &byte| value << 8 | u64::from(byte)))
}

/// Appends `value` in as few bytes as possible. `value` must be at most [`LARGEST`].
pub fn encode(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x3f => out.push(value as u8),
        0x40..=0x3fff => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..=0x3fff_ffff => {
            out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes());
        }
        _ => out.extend_from_slice(&(value.min(LARGEST) | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_rfc_9000_appendix_a_1() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(decode(&mut &*bytes), Some(value));
            let mut out = Vec::new();
            encode(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(decode(&mut &bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(decode(&mut &[0x40, 0x25][..]), Some(37));
    }

    #[test]
    fn integers_come_back_as_they_went_in() {
        for shift in 0..62 {
            for value in [(1u64 << shift) - 1, 1 << shift, LARGEST] {
                let mut out = vec![];
                encode(&mut out, value);
                out.push(9);
                let mut input = &out[..];
                assert_eq!(decode(&mut input), Some(value));
                assert_eq!(input, [9]);
            }
        }
    }
}
