//! HPACK, the compression of heads (RFC 7541).
//!
//! [`Decoder`] reads header blocks into an arena of [`Fields`](crate::fields::Fields); [`Encoder`]
//! writes them. Each keeps the dynamic table of its direction, so one of each belongs to a
//! connection, and every block that comes must be decoded, wanted or not.

mod decoder;
mod encoder;
pub(crate) mod huffman;
pub(crate) mod integer;
mod static_table;
mod table;

use std::fmt;

pub use decoder::{Decoded, Decoder, Flaw, ListLimits};
pub(crate) use decoder::{List, Literal, is_name, is_value, string};
pub use encoder::Encoder;
pub(crate) use encoder::{HUFFMAN_FROM, is_secret};

/// The rule of RFC 7541 that a header block broke. Each ends the connection, because the tables of
/// the two sides no longer agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field.
    Truncated,
    /// An integer above 2^28-1, or of more than five bytes.
    Integer,
    /// Index zero, or one that neither table has.
    Index,
    /// A size update above the limit that was advertised.
    TableSize,
    /// A size update behind a field, or a third one.
    TableUpdate,
    /// The table must shrink to the limit that was advertised, and the block does not begin with
    /// that update.
    MissingUpdate,
    /// Huffman padding of eight bits or more, or not all ones.
    Padding,
    /// The end-of-string symbol within a string.
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
            Self::MissingUpdate => "HPACK table not reduced as the settings ask",
            Self::Padding => "malformed Huffman padding",
            Self::EndOfString => "end of string within a Huffman string",
        })
    }
}

impl std::error::Error for HpackError {}

/// What an entry of the dynamic table counts beyond its name and value (section 4.1).
pub(crate) const ENTRY_OVERHEAD: usize = 32;

/// Size of a dynamic table until a setting says otherwise.
pub const DEFAULT_TABLE: usize = 4_096;
