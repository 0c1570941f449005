//! Content codings, and the compression of replies.

/// The replies to compress, and the codings to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compress {
    /// The codings with their levels. The preferred coding comes first. Never empty.
    pub algorithms: Vec<Algorithm>,
    /// The media types of replies to compress. Never empty.
    pub types: Vec<MediaPattern>,
    /// The length in bytes of the smallest reply to compress. Applies only to replies whose length
    /// is known in advance. Default 512.
    pub min_size: u64,
}

/// A content coding and its compression level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// The coding.
    pub coding: ContentCoding,
    /// The compression level, within [`Algorithm::levels`] of the coding.
    pub level: u32,
}

impl Algorithm {
    /// Returns the default level of a coding. It is below the highest permitted level, because
    /// clients wait while replies are compressed.
    pub fn default_level(coding: ContentCoding) -> u32 {
        match coding {
            ContentCoding::Brotli => 4,
            ContentCoding::Zstandard => 3,
            ContentCoding::Gzip => 5,
        }
    }

    /// Returns the permitted levels of a coding. With higher levels, an encoder needs more than 4
    /// MB for each reply.
    pub fn levels(coding: ContentCoding) -> std::ops::RangeInclusive<u32> {
        match coding {
            ContentCoding::Brotli => 0..=6,
            ContentCoding::Zstandard | ContentCoding::Gzip => 1..=9,
        }
    }
}

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// Brotli (RFC 7932).
    Brotli,
    /// Zstandard (RFC 8878).
    Zstandard,
    /// gzip (RFC 1952).
    Gzip,
}

impl ContentCoding {
    /// All codings. The first coding compresses best.
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstandard, Self::Gzip];

    /// Returns the file name extension of this coding, without a dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zst",
            Self::Gzip => "gz",
        }
    }

    /// Returns the name of this coding in `Content-Encoding` and `Accept-Encoding`.
    pub fn coding(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zstd",
            Self::Gzip => "gzip",
        }
    }
}

/// A pattern of media types, in lower case: one media type, or all with a common start and end,
/// such as `text/*` and `*+json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaPattern {
    prefix: String,
    /// The text after the `*`. `None`: the pattern has no `*`.
    suffix: Option<String>,
}

impl MediaPattern {
    /// Parses a pattern. Returns `None` if the pattern can match no media type.
    pub fn parse(text: &str) -> Option<Self> {
        let text = if text == "*/*" { "*".to_owned() } else { text.to_ascii_lowercase() };
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&-^_.+/".contains(&b);
        let (prefix, suffix) = match text.split_once('*') {
            Some((prefix, suffix)) => (prefix, Some(suffix)),
            None => (&text[..], None),
        };
        let slashes = text.matches('/').count();
        let has_type = match suffix {
            Some(_) => slashes <= 1 && (slashes == 1 || prefix.is_empty()),
            None => slashes == 1 && !prefix.starts_with('/') && !prefix.ends_with('/'),
        };
        let is_valid = has_type && prefix.bytes().chain(suffix.unwrap_or("").bytes()).all(is_plain);
        is_valid.then(|| Self { prefix: prefix.to_owned(), suffix: suffix.map(str::to_owned) })
    }

    /// Returns true if the pattern matches a media type, which has no parameters. Case does not
    /// matter.
    pub fn matches(&self, media_type: &[u8]) -> bool {
        let (prefix, suffix) = (self.prefix.as_bytes(), self.suffix.as_deref());
        let Some(suffix) = suffix else { return media_type.eq_ignore_ascii_case(prefix) };
        let Some(rest) = media_type.len().checked_sub(suffix.len()) else { return false };
        rest >= prefix.len()
            && media_type[..prefix.len()].eq_ignore_ascii_case(prefix)
            && media_type[rest..].eq_ignore_ascii_case(suffix.as_bytes())
    }
}

/// The default codings. The preferred coding comes first.
pub(crate) const ALGORITHMS: [ContentCoding; 3] =
    [ContentCoding::Zstandard, ContentCoding::Brotli, ContentCoding::Gzip];

/// The default media types.
pub(crate) const TYPES: [&str; 15] = [
    "text/*",
    "*+json",
    "*+xml",
    "application/json",
    "application/javascript",
    "application/xml",
    "application/wasm",
    "application/x-javascript",
    "application/x-ndjson",
    "application/vnd.ms-fontobject",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/vnd.microsoft.icon",
    "image/x-icon",
];

/// The default length of the smallest reply to compress, in bytes. A shorter reply fits into one
/// packet, so compression gains nothing.
pub(crate) const MIN_SIZE: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_media_types() {
        for (pattern, media_type, expected) in [
            ("text/*", "text/html", true),
            ("text/*", "TEXT/Plain", true),
            ("text/*", "text", false),
            ("*+json", "application/ld+json", true),
            ("*+json", "application/json", false),
            ("application/*+xml", "application/rss+xml", true),
            ("application/*+xml", "image/svg+xml", false),
            ("*", "x/y", true),
            ("*/*", "x/y", true),
            ("Application/JSON", "application/json", true),
            ("application/json", "application/json2", false),
            ("a/aa*aa", "a/aaa", false),
        ] {
            let parsed = MediaPattern::parse(pattern).unwrap();
            assert_eq!(parsed.matches(media_type.as_bytes()), expected, "{pattern} {media_type}");
        }
        for wrong in ["", "text", "text*", "a/b/c", "a/*/c", "text/html; charset=utf-8", "*,*", "/"]
        {
            assert!(MediaPattern::parse(wrong).is_none(), "{wrong}");
        }
        assert!(TYPES.iter().all(|text| MediaPattern::parse(text).is_some()));
    }
}
