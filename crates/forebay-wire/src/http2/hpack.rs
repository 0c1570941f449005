//! HPACK: the compression of heads in HTTP/2 (RFC 7541).
//!
//! [`Decoder`] reads header blocks into [`Fields`](crate::fields::Fields), and [`Encoder`] writes
//! them. Each contains the dynamic table of one direction, so a connection needs one decoder and
//! one encoder. Every received block must be decoded, even if its stream was reset.

mod decoder;
mod encoder;
pub(crate) mod huffman;
mod table;

pub use decoder::{Decoded, Decoder, ListLimits};
pub(crate) use decoder::{List, Literal, is_marked, is_name, is_value, string};
pub use encoder::Encoder;
pub(crate) use encoder::{HUFFMAN_FROM, is_secret};
pub use table::Flaw;

use std::fmt;

/// Rule of RFC 7541 that a header block violated. Each violation ends the connection, because from
/// then on the dynamic tables of the two sides differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// Integer above 2^28-1, or with more than five bytes.
    Integer,
    /// Index zero, or an index without an entry.
    Index,
    /// Table size update above the announced limit.
    TableSize,
    /// Table size update after a field, or a third update in one block.
    TableUpdate,
    /// The block does not start with a table size update, although the table must shrink to the
    /// announced limit.
    MissingUpdate,
    /// Huffman padding of eight bits or more, or padding with a zero bit.
    Padding,
    /// End-of-string symbol within a string.
    EndOfString,
}

impl fmt::Display for HpackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "header block ends within a field",
            Self::Integer => "HPACK integer too large",
            Self::Index => "HPACK index without entry",
            Self::TableSize => "HPACK table larger than allowed",
            Self::TableUpdate => "HPACK table size update out of place",
            Self::MissingUpdate => "HPACK table not reduced as the settings require",
            Self::Padding => "malformed Huffman padding",
            Self::EndOfString => "end of string within a Huffman string",
        })
    }
}

impl std::error::Error for HpackError {}

/// Number of bytes that an entry of the dynamic table counts in addition to its name and value
/// (section 4.1).
const ENTRY_OVERHEAD: usize = 32;

/// Maximum size of a dynamic table in bytes, until SETTINGS_HEADER_TABLE_SIZE changes it.
pub const DEFAULT_TABLE: usize = 4_096;

// Integers with a prefix (RFC 7541 section 5.1).

/// Maximum accepted integer. No index, length or table size needs a larger integer.
const MAX_INTEGER: u32 = (1 << 28) - 1;

/// Decodes an integer with a prefix of `bits` bits in the first byte of `input`, and advances
/// `input`.
#[inline]
pub(crate) fn decode_integer(input: &mut &[u8], bits: u32) -> Result<usize, HpackError> {
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
        if value > MAX_INTEGER {
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
pub(crate) fn encode_integer(out: &mut Vec<u8>, value: usize, bits: u32, pattern: u8) {
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
            encode_integer(&mut out, value, bits, 0);
            assert_eq!(out, bytes);
            let mut input = &out[..];
            assert_eq!(decode_integer(&mut input, bits), Ok(value));
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
            assert_eq!(decode_integer(&mut &bad[..], 7), Err(HpackError::Integer), "{bad:x?}");
        }
        for short in [&[][..], &[0xff], &[0xff, 0x80], &[0xff, 0xff, 0xff]] {
            assert_eq!(
                decode_integer(&mut &short[..], 7),
                Err(HpackError::Truncated),
                "{short:x?}"
            );
        }
    }
}
