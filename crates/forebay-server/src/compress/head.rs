//! Decides if a reply may be compressed, and adapts its head.

use forebay_conf::{ContentCoding, MediaPattern};
use forebay_wire::http1::{encode, list_has};

/// Fields that describe the uncompressed reply and are wrong for the compressed reply (RFC 9110
/// section 14.3, RFC 9530, RFC 2616 section 14.15).
const DROPPED: [&[u8]; 5] =
    [b"accept-ranges", b"content-digest", b"content-md5", b"digest", b"repr-digest"];

/// Returns true if a reply with these field lines may be compressed. The media type must be in
/// `types`. The reply must be neither encoded, nor partial, nor marked `no-transform`.
pub fn is_eligible(lines: &[u8], types: &[MediaPattern]) -> bool {
    let mut media_type = None;
    for (name, value) in fields(lines) {
        let is_encoded = is(name, b"content-encoding") || is(name, b"content-range");
        if is_encoded || is(name, b"cache-control") && list_has(value, b"no-transform") {
            return false;
        }
        if is(name, b"content-type") {
            media_type = value.split(|&b| b == b';').next().map(<[u8]>::trim_ascii);
        }
    }
    media_type.is_some_and(|media_type| types.iter().any(|pattern| pattern.matches(media_type)))
}

/// Returns true if a request for the whole document of this partial reply may get a compressed
/// reply. The media type must be in `types`. The type `multipart/byteranges` also counts, because
/// it hides the document's own type.
pub fn is_part_of(lines: &[u8], types: &[MediaPattern]) -> bool {
    fields(lines).filter(|(name, _)| is(name, b"content-type")).any(|(_, value)| {
        let media_type = value.split(|&b| b == b';').next().unwrap_or_default().trim_ascii();
        media_type.eq_ignore_ascii_case(b"multipart/byteranges")
            || types.iter().any(|pattern| pattern.matches(media_type))
    })
}

/// Changes to the head of a reply that may be compressed.
pub struct Changes {
    /// The coding to name in the head. `None` if the body is not compressed.
    pub coding: Option<ContentCoding>,
}

impl Changes {
    /// Adds `Vary: Accept-Encoding` to the field lines of `out` from `start` on. If the body is
    /// compressed, also sets `Content-Encoding`, weakens `ETag`, and removes the fields in
    /// `DROPPED`.
    pub fn apply(&self, out: &mut Vec<u8>, start: usize) {
        let varies = fields(&out[start..]).any(|(name, value)| {
            is(name, b"vary") && (list_has(value, b"accept-encoding") || list_has(value, b"*"))
        });
        if !varies {
            encode::field(out, "Vary", b"Accept-Encoding");
        }
        let Some(coding) = self.coding else { return };
        let lines = out.split_off(start);
        for line in lines.split_inclusive(|&b| b == b'\n') {
            let (name, value) = split(line);
            if DROPPED.iter().any(|dropped| is(name, dropped)) {
                continue;
            }
            if is(name, b"etag") && value.starts_with(b"\"") {
                // Weaken a strong tag: it identifies exact bytes, and compression changes them (RFC
                // 9110 section 8.8.3).
                encode::field(out, "ETag", &[b"W/", value].concat());
            } else {
                out.extend_from_slice(line);
            }
        }
        encode::field(out, "Content-Encoding", coding.coding().as_bytes());
    }
}

fn fields(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    lines.split_inclusive(|&b| b == b'\n').map(split)
}

fn split(line: &[u8]) -> (&[u8], &[u8]) {
    let colon = memchr::memchr(b':', line).unwrap_or(line.len());
    (&line[..colon], line.get(colon + 1..).unwrap_or_default().trim_ascii())
}

fn is(name: &[u8], expected: &[u8]) -> bool {
    name.eq_ignore_ascii_case(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types() -> Vec<MediaPattern> {
        ["text/*", "*+json"].iter().filter_map(|text| MediaPattern::parse(text)).collect()
    }

    #[test]
    fn replies_that_may_be_compressed() {
        for (lines, expected) in [
            ("Content-Type: text/html; charset=utf-8\r\n", true),
            ("content-type: Application/LD+JSON\r\nX: y\r\n", true),
            ("Content-Type: image/png\r\n", false),
            ("", false),
            ("Content-Type: text/html\r\nContent-Encoding: br\r\n", false),
            ("Content-Type: text/html\r\nContent-Range: bytes 0-1/2\r\n", false),
            ("Content-Type: text/html\r\nCache-Control: private, No-Transform\r\n", false),
            ("Content-Type: text/html\r\nCache-Control: max-age=1\r\n", true),
        ] {
            assert_eq!(is_eligible(lines.as_bytes(), &types()), expected, "{lines}");
        }
    }

    #[test]
    fn the_head_describes_the_encoded_body() {
        for (lines, coding, expected) in [
            (
                "ETag: \"a\"\r\nAccept-Ranges: bytes\r\nContent-MD5: x\r\nX: y\r\n",
                Some(ContentCoding::Gzip),
                "ETag: W/\"a\"\r\nX: y\r\nVary: Accept-Encoding\r\nContent-Encoding: gzip\r\n",
            ),
            (
                "ETag: W/\"a\"\r\nVary: *\r\n",
                Some(ContentCoding::Brotli),
                "ETag: W/\"a\"\r\nVary: *\r\nContent-Encoding: br\r\n",
            ),
            ("ETag: \"a\"\r\n", None, "ETag: \"a\"\r\nVary: Accept-Encoding\r\n"),
            ("Vary: Cookie, accept-encoding\r\n", None, "Vary: Cookie, accept-encoding\r\n"),
            ("Vary: Cookie\r\n", None, "Vary: Cookie\r\nVary: Accept-Encoding\r\n"),
        ] {
            let mut out = lines.as_bytes().to_vec();
            Changes { coding }.apply(&mut out, 0);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }
}
