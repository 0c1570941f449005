//! HPACK: the compression of heads in HTTP/2 (RFC 7541).
//!
//! [`Decoder`] reads header blocks into [`Fields`](crate::fields::Fields), and [`Encoder`] writes
//! them. Each contains the dynamic table of one direction, so a connection needs one decoder and
//! one encoder. Every received block must be decoded, even if its stream was reset.

mod decoder;
mod encoder;
pub(crate) mod huffman;
pub(crate) mod integer;
mod static_table;
mod table;

use std::fmt;

pub use decoder::{Decoded, Decoder, ListLimits};
pub(crate) use decoder::{List, Literal, is_marked, is_name, is_value, string};
pub use encoder::Encoder;
pub(crate) use encoder::{HUFFMAN_FROM, is_secret};
pub use table::Flaw;

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
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// Maximum size of a dynamic table in bytes, until SETTINGS_HEADER_TABLE_SIZE changes it.
pub const DEFAULT_TABLE: usize = 4_096;
