//! The keys of `compress`, as the user types them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Size, Table};

/// The replies to compress, and the codings to use.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Compress {
    /// The content codings. The preferred coding comes first. Default: ["zstd", "br", "gzip"].
    pub algorithms: Option<At<Vec<At<Coding>>>>,
    /// The media types of replies to compress, such as "text/html", "text/*" or "*+json". Default:
    /// texts, JSON, XML, scripts, SVG, WebAssembly, icons and uncompressed fonts.
    pub types: Option<At<OneOrMany<String>>>,
    /// The length of the smallest reply to compress. Applies only to replies whose length is known
    /// in advance. Default: 512.
    pub min_size: Option<Size>,
    /// The compression level of each coding. Higher levels compress more and need more CPU time.
    pub levels: Option<At<Table<Levels>>>,
}

/// The compression level of each coding.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Levels {
    /// The level of gzip, from 1 to 9. Default: 5.
    pub gzip: Option<At<u32>>,
    /// The level of Brotli, from 0 to 6. Default: 4.
    pub br: Option<At<u32>>,
    /// The level of Zstandard, from 1 to 9. Default: 3.
    pub zstd: Option<At<u32>>,
}

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Coding {
    /// Zstandard.
    Zstd,
    /// Brotli.
    Br,
    /// Gzip.
    Gzip,
}
