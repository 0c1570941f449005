//! Content codings, and the compression of replies as they are sent.

/// Which replies are compressed as they are sent, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compress {
    /// Codings that are offered, the preferred first; each with its level. Never empty.
    pub algorithms: Vec<Algorithm>,
    /// Media types of replies that are worth it. Never empty.
    pub types: Vec<MediaPattern>,
    /// Replies whose length is known to be smaller, in bytes, are left as they are. Default 512.
    pub min_size: u64,
}

/// A content coding and how hard its encoder tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Algorithm {
    /// The coding.
    pub coding: ContentCoding,
    /// Within [`Algorithm::levels`] of the coding.
    pub level: u32,
}

impl Algorithm {
    /// The level of a coding that a file does not name: a low one, as replies are compressed while clients wait.
    pub fn default_level(coding: ContentCoding) -> u32 {
        match coding {
            ContentCoding::Brotli => 4,
            ContentCoding::Zstandard => 3,
            ContentCoding::Gzip => 5,
        }
    }

    /// The levels of a coding. Beyond them an encoder takes more than 4 MB for each reply.
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
    /// All of them, the densest first.
    pub const ALL: [Self; 3] = [Self::Brotli, Self::Zstandard, Self::Gzip];

    /// The end of the name of a file with this coding, without its dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zst",
            Self::Gzip => "gz",
        }
    }

    /// Its name in `Content-Encoding` and `Accept-Encoding`.
    pub fn coding(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Zstandard => "zstd",
            Self::Gzip => "gzip",
        }
    }
}

/// A media type, or those that begin and end alike: `text/*`, `*+json`. In lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaPattern {
    prefix: String,
    /// What follows a `*`.
    suffix: Option<String>,
}

impl MediaPattern {
    /// The pattern that `text` is; `None` where it can match no media type.
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

    /// Whether it matches a media type, without parameters, in any case.
    pub fn matches(&self, media_type: &[u8]) -> bool {
        let (prefix, suffix) = (self.prefix.as_bytes(), self.suffix.as_deref());
        let Some(suffix) = suffix else { return media_type.eq_ignore_ascii_case(prefix) };
        let Some(rest) = media_type.len().checked_sub(suffix.len()) else { return false };
        rest >= prefix.len()
            && media_type[..prefix.len()].eq_ignore_ascii_case(prefix)
            && media_type[rest..].eq_ignore_ascii_case(suffix.as_bytes())
    }
}

/// The codings that are offered unless a file says otherwise, the preferred first.
pub(crate) const ALGORITHMS: [ContentCoding; 3] =
    [ContentCoding::Zstandard, ContentCoding::Brotli, ContentCoding::Gzip];

/// Media types that are worth compressing unless a file says otherwise.
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

/// The least length unless a file says otherwise, in bytes: what fits one packet is not worth it.
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
