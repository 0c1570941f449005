//! HPACK, the compression of heads (RFC 7541).
//!
//! [`Decoder`] reads header blocks into an arena of [`Fields`](crate::fields::Fields), and
//! [`Encoder`] writes them. Each contains the dynamic table of its direction, so a connection needs
//! one of each. Every received block must be decoded, even if its stream was reset.

mod decoder;
mod encoder;
pub(crate) mod huffman;
pub(crate) mod integer;
mod static_table;
mod table;

use std::fmt;

pub use decoder::{Decoded, Decoder, ListLimits};
pub(crate) use decoder::{List, Literal, is_name, is_value, string};
pub use encoder::Encoder;
pub(crate) use encoder::{HUFFMAN_FROM, is_secret};
pub use table::Flaw;

/// Rule of RFC 7541 that a header block violated. Each violation ends the connection, because the
/// tables of the two sides differ from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// Integer above 2^28-1, or of more than five bytes.
    Integer,
    /// Index zero, or an index without an entry.
    Index,
    /// Size update above the announced limit.
    TableSize,
    /// Size update after a field, or a third one.
    TableUpdate,
    /// The table must shrink to the announced limit, but the block does not start with that update.
    MissingUpdate,
    /// Huffman padding of eight bits or more, or with a zero bit.
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

/// Size that an entry of the dynamic table counts in addition to its name and value (section 4.1).
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// Size of a dynamic table until a setting changes it.
pub const DEFAULT_TABLE: usize = 4_096;
