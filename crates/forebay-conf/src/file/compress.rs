//! `compress` as typed.

use schemars::JsonSchema;
use serde::Deserialize;

use super::shape::{At, OneOrMany, Size, Table};

/// Which replies are compressed as they are sent, and how.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Compress {
    /// Codings that are offered, the preferred first. Default: ["zstd", "br", "gzip"].
    pub algorithms: Option<At<Vec<At<Coding>>>>,
    /// Media types of replies to compress, such as "text/html", "text/*" or "*+json". Default:
    /// texts, JSON, XML, scripts, SVG, WebAssembly, icons and fonts that are not compressed already.
    pub types: Option<At<OneOrMany<String>>>,
    /// Replies whose length is known to be smaller are left as they are. Default: 512.
    pub min_size: Option<Size>,
    /// How hard each coding tries.
    pub levels: Option<At<Table<Levels>>>,
}

/// How hard each coding tries.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Levels {
    /// 1 to 9. Default: 5.
    pub gzip: Option<At<u32>>,
    /// 0 to 6. Default: 4.
    pub br: Option<At<u32>>,
    /// 1 to 9. Default: 3.
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
