//! Integers with a prefix (RFC 7541 section 5.1).

use super::HpackError;

/// Maximum accepted integer. No index, length or table size needs a larger integer.
const LARGEST: u32 = (1 << 28) - 1;

/// Decodes an integer with a prefix of `bits` bits in the first byte of `input`, and advances
/// `input`.
#[inline]
pub(crate) fn decode(input: &mut &[u8], bits: u32) -> Result<usize, HpackError> {
    let (&first, rest) = input.split_first().ok_or(HpackError::Truncated)?;
    *input = rest;
    let prefix = (1u32 << bits) - 1;
    let value = u32::from(first) & prefix;
    if value == prefix { decode_rest(input, value) } else { Ok(value as usize) }
}

fn decode_rest(input: &mut &[u8], mut value: u32) -> Result<usize, HpackError> {
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = input.split_first().ok_or(HpackError::Truncated)?;
        *input = rest;
        value += u32::from(byte & 0x7f) << shift;
        if value > LARGEST {
            return Err(HpackError::Integer);
        }
        if byte & 0x80 == 0 {
            return Ok(value as usize);
        }
    }
    Err(HpackError::Integer)
}

/// Appends `value` with a prefix of `bits` bits. The upper bits of the first byte come from
/// `pattern`.
#[inline]
pub(crate) fn encode(out: &mut Vec<u8>, value: usize, bits: u32, pattern: u8) {
    let prefix = (1usize << bits) - 1;
    if value < prefix {
        out.push(pattern | value as u8);
    } else {
        out.push(pattern | prefix as u8);
        encode_rest(out, value - prefix);
    }
}

fn encode_rest(out: &mut Vec<u8>, mut rest: usize) {
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_appendix_c_1() {
        for (value, bits, bytes) in
            [(10, 5, &[10][..]), (1337, 5, &[31, 154, 10]), (42, 8, &[42]), (31, 5, &[31, 0])]
        {
            let mut out = Vec::new();
            encode(&mut out, value, bits, 0);
            assert_eq!(out, bytes);
            let mut input = &out[..];
            assert_eq!(decode(&mut input, bits), Ok(value));
            assert!(input.is_empty());
        }
    }

    #[test]
    fn integers_that_overflow_are_refused() {
        for bad in [
            &[0xff, 0xff, 0xff, 0xff, 0xff][..],
            &[0xff, 0x80, 0x80, 0x80, 0x80, 0x01],
            &[0xff, 0xff, 0xff, 0xff, 0x7f],
            &[0xff, 0x80, 0x80, 0x80, 0x80, 0x00],
        ] {
            assert_eq!(decode(&mut &bad[..], 7), Err(HpackError::Integer), "{bad:x?}");
        }
        for short in [&[][..], &[0xff], &[0xff, 0x80], &[0xff, 0xff, 0xff]] {
            assert_eq!(decode(&mut &short[..], 7), Err(HpackError::Truncated), "{short:x?}");
        }
    }
}
