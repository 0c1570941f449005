//! The Huffman code of RFC 7541 appendix B.
//!
//! The code is canonical: codes of one length are consecutive, in the order of their symbols, and
//! longer codes follow shorter ones. The list of lengths in appendix B therefore determines the
//! code, which is computed at compile time.

use super::HpackError;

/// Length of the code of each octet, in bits. The code of the end-of-string symbol has 30 bits.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, //
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, //
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, //
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, //
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, //
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, //
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, //
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, //
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, //
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, //
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, //
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, //
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, //
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, //
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, //
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, //
];

/// Maximum length of a code in bits, for octets and the end of string.
const LONGEST: usize = 30;

/// Number of bits that index [`SHORT`]. Codes of at most ten bits exist for 79 symbols, which
/// include nearly all characters of URLs and common values.
const SHORT_BITS: u32 = 10;

struct Code {
    /// Symbols in the order of their codes. The last symbol, 256, is the end of string.
    symbols: [u16; 257],
    /// Position in `symbols` of the first code of each length.
    place: [u16; LONGEST + 2],
    /// First code of each length.
    first: [u32; LONGEST + 2],
}

static CODE: Code = canonical();

/// Computes the tables of the canonical Huffman code from [`LENGTHS`].
const fn canonical() -> Code {
    let mut code = Code { symbols: [256; 257], place: [0; 32], first: [0; 32] };
    let (mut length, mut placed, mut next) = (1, 0, 0);
    while length <= LONGEST + 1 {
        next <<= 1;
        code.place[length] = placed;
        code.first[length] = next;
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == length {
                code.symbols[placed as usize] = symbol as u16;
                placed += 1;
                next += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    code
}

/// The code of each octet.
static CODES: [u32; 256] = {
    let code = canonical();
    let mut codes = [0; 256];
    let mut at = 0;
    while at < 256 {
        let symbol = code.symbols[at] as usize;
        let length = LENGTHS[symbol] as usize;
        codes[symbol] = code.first[length] + (at as u32 - code.place[length] as u32);
        at += 1;
    }
    codes
};

/// Table that is indexed with the next ten bits of the input. The upper byte is the length of the
/// first code in these bits, and the lower byte is its octet. An element is zero if the first code
/// is longer than ten bits.
static SHORT: [u16; 1 << SHORT_BITS] = {
    let code = canonical();
    let mut table = [0; 1 << SHORT_BITS];
    let mut at = 0;
    while at < 256 {
        let symbol = code.symbols[at] as usize;
        let length = LENGTHS[symbol] as u32;
        if length <= SHORT_BITS {
            let bits =
                code.first[length as usize] + (at as u32 - code.place[length as usize] as u32);
            let free = SHORT_BITS - length;
            let mut rest = 0;
            while rest < 1 << free {
                table[((bits << free) | rest) as usize] = (length << 8) as u16 | symbol as u16;
                rest += 1;
            }
        }
        at += 1;
    }
    table
};

/// Decodes `input` and appends the result. The padding must be fewer than eight bits, all of them
/// ones (section 5.2). An encoded end of string is an error.
pub(crate) fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let start = out.len();
    // The shortest code has five bits, so `input` contains at most this many symbols.
    out.resize(start + input.len() * 8 / 5, 0);
    let written = decode_into(input, &mut out[start..])?;
    out.truncate(start + written);
    Ok(())
}

fn decode_into(mut input: &[u8], out: &mut [u8]) -> Result<usize, HpackError> {
    // The upper `valid` bits of `window` are input that is not decoded yet.
    let (mut window, mut valid) = (0u64, 0u32);
    let mut written = 0;
    loop {
        if let Some(word) = input.first_chunk::<8>() {
            // Fill `window` from the word. Only whole bytes count as valid. The next pass of the
            // loop reads the other bits again.
            window |= u64::from_be_bytes(*word) >> valid;
            let taken = (63 - valid) / 8;
            valid += taken * 8;
            input = &input[taken as usize..];
        } else {
            while valid <= 56
                && let Some((&byte, rest)) = input.split_first()
            {
                window |= u64::from(byte) << (56 - valid);
                valid += 8;
                input = rest;
            }
            if valid < LONGEST as u32 {
                return finish(window, valid, out, written);
            }
        }
        // At least 30 bits are valid here. This is enough for any code, or for at least three short
        // codes.
        let before = valid;
        while valid >= SHORT_BITS {
            let short = SHORT[(window >> (64 - SHORT_BITS)) as usize];
            if short == 0 {
                break;
            }
            let (length, symbol) = split(short);
            out[written] = symbol;
            written += 1;
            window <<= length;
            valid -= length;
        }
        if valid == before {
            let (length, symbol) = long(window)?;
            out[written] = symbol;
            written += 1;
            window <<= length;
            valid -= length;
        }
        // Clear the bits after the valid ones, because the next pass of the loop reads them again.
        window &= !(u64::MAX >> valid);
    }
}

/// Decodes the last symbols of a string from its last bits, which are fewer than 30. Returns the
/// number of symbols of the whole string. Returns an error if the padding is invalid.
fn finish(
    mut window: u64,
    mut valid: u32,
    out: &mut [u8],
    mut written: usize,
) -> Result<usize, HpackError> {
    loop {
        // `valid` is less than 30, so the shift cannot overflow.
        let padded = window | u64::MAX >> valid;
        // No code of fewer than eight bits consists only of ones, so the remaining bits are
        // padding.
        if valid < 8 && padded == u64::MAX {
            return Ok(written);
        }
        let short = SHORT[(padded >> (64 - SHORT_BITS)) as usize];
        let found = if short == 0 { long(padded).ok() } else { Some(split(short)) };
        match found {
            Some((length, symbol)) if length <= valid => {
                out[written] = symbol;
                written += 1;
                window <<= length;
                valid -= length;
            }
            _ => return Err(HpackError::Padding),
        }
    }
}

fn split(short: u16) -> (u32, u8) {
    (u32::from(short >> 8), short as u8)
}

/// Decodes a code of more than ten bits at the top of `window`. Returns the length of the code, and
/// the symbol.
fn long(window: u64) -> Result<(u32, u8), HpackError> {
    let bits = (window >> 32) as u32;
    for length in SHORT_BITS as usize + 1..=LONGEST {
        let code = bits >> (32 - length);
        let count = u32::from(CODE.place[length + 1] - CODE.place[length]);
        let offset = code.wrapping_sub(CODE.first[length]);
        if offset < count {
            let symbol = CODE.symbols[CODE.place[length] as usize + offset as usize];
            return Ok((length as u32, symbol as u8));
        }
    }
    Err(HpackError::EndOfString)
}

/// Returns the length in bytes of `input` after encoding.
pub(crate) fn encoded_len(input: &[u8]) -> usize {
    let bits: usize = input.iter().map(|&byte| LENGTHS[byte as usize] as usize).sum();
    bits.div_ceil(8)
}

/// Encodes `input` and appends the result, padded with ones.
pub(crate) fn encode(input: &[u8], out: &mut Vec<u8>) {
    let (mut window, mut valid) = (0u64, 0u32);
    for &byte in input {
        let length = u32::from(LENGTHS[byte as usize]);
        window = window << length | u64::from(CODES[byte as usize]);
        valid += length;
        if valid >= 32 {
            valid -= 32;
            out.extend_from_slice(&((window >> valid) as u32).to_be_bytes());
        }
    }
    let padding = (8 - valid % 8) % 8;
    window = window << padding | ((1 << padding) - 1);
    valid += padding;
    let bytes = (window << (64 - valid.max(1))).to_be_bytes();
    out.extend_from_slice(&bytes[..valid as usize / 8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(input: &[u8]) -> Result<Vec<u8>, HpackError> {
        let mut out = b"before".to_vec();
        decode(input, &mut out).map(|()| out.split_off(6))
    }

    #[test]
    fn codes_are_those_of_the_appendix() {
        // Samples of each group in appendix B.
        for (symbol, code, length) in [
            (b'0', 0x0, 5),
            (b't', 0x9, 5),
            (b' ', 0x14, 6),
            (b':', 0x5c, 7),
            (b'&', 0xf8, 8),
            (b'!', 0x3f8, 10),
            (b'+', 0x7fb, 11),
            (b'#', 0xffa, 12),
            (0, 0x1ff8, 13),
            (b'{', 0x7ffe, 15),
            (b'\\', 0x7fff0, 19),
            (249, 0xffffffe, 28),
            (22, 0x3ffffffe, 30),
        ] {
            assert_eq!((CODES[symbol as usize], LENGTHS[symbol as usize]), (code, length));
        }
        assert_eq!(CODE.symbols[256], 256);
    }

    #[test]
    fn every_octet_survives_alone_and_among_others() {
        for a in 0..=255u8 {
            for b in [0, b'a', b'0', b'%', 22, 200, 249, 255] {
                for text in [vec![a], vec![a, b], vec![b, a, b], [a, b].repeat(40)] {
                    let mut coded = Vec::new();
                    encode(&text, &mut coded);
                    assert_eq!(coded.len(), encoded_len(&text));
                    assert_eq!(decoded(&coded), Ok(text));
                }
            }
        }
        assert_eq!(decoded(b""), Ok(vec![]));
    }

    #[test]
    fn padding_is_fewer_than_eight_ones() {
        // The code of "0" is 00000, so three bits of padding follow.
        assert_eq!(decoded(&[0b0000_0111]), Ok(b"0".to_vec()));
        for bad in [&[0b0000_0110][..], &[0b0000_0111, 0xff], &[0xff], &[0b0000_0011]] {
            assert_eq!(decoded(bad), Err(HpackError::Padding), "{bad:x?}");
        }
        for bad in [&[0xff, 0xff, 0xff, 0xff][..], &[0xff; 9]] {
            let error = decoded(bad).unwrap_err();
            assert!(matches!(error, HpackError::EndOfString | HpackError::Padding), "{bad:x?}");
        }
    }
}
