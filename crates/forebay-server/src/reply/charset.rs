//! Adds the charset of a route to the `Content-Type` of texts without a charset.

/// Adds `charset` to the field `Content-Type` of `out[start..]`, if this field names a text type
/// without a charset.
pub(super) fn add(charset: &str, out: &mut Vec<u8>, start: usize) {
    let Some(end) = end_of_type(&out[start..]) else { return };
    let added = [b"; charset=", charset.as_bytes()].concat();
    out.splice(start + end..start + end, added);
}

/// Returns the end of the value of `Content-Type`, if this field occurs once and names a text
/// without a charset. Otherwise returns `None`.
fn end_of_type(lines: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-type:";
    let (mut at, mut found) = (0, None);
    for line in lines.split_inclusive(|&b| b == b'\n') {
        if line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)) {
            if found.is_some() {
                return None;
            }
            let end = at + line.trim_ascii_end().len();
            found = Some((&line[NAME.len()..], end));
        }
        at += line.len();
    }
    let (value, end) = found?;
    let mut parts = value.split(|&b| b == b';').map(|part| part.trim_ascii().to_ascii_lowercase());
    let kind = parts.next().unwrap_or_default();
    let has_charset = parts.any(|part| part.starts_with(b"charset"));
    (is_text(&kind) && !has_charset).then_some(end)
}

/// Returns true if `kind`, a media type, can have the parameter `charset`. Returns false for JSON,
/// which is always UTF-8 (RFC 8259).
fn is_text(kind: &[u8]) -> bool {
    const OTHERS: [&[u8]; 3] =
        [b"application/javascript", b"application/x-javascript", b"application/xml"];
    kind.starts_with(b"text/") && kind.len() > 5
        || OTHERS.contains(&kind)
        || kind.starts_with(b"application/") && kind.ends_with(b"+xml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_without_a_charset_get_one() {
        for (fields, changed) in [
            (
                "A: b\r\nContent-Type: text/html\r\n",
                "A: b\r\nContent-Type: text/html; charset=utf-8\r\n",
            ),
            ("content-type: TEXT/css ; a=b\r\n", "content-type: TEXT/css ; a=b; charset=utf-8\r\n"),
            (
                "Content-Type: application/rss+xml\r\n",
                "Content-Type: application/rss+xml; charset=utf-8\r\n",
            ),
            (
                "Content-Type: text/html; Charset=koi8-r\r\n",
                "Content-Type: text/html; Charset=koi8-r\r\n",
            ),
            ("Content-Type: image/svg+xml\r\n", "Content-Type: image/svg+xml\r\n"),
            ("Content-Type: application/json\r\n", "Content-Type: application/json\r\n"),
            ("Content-Type: text/\r\n", "Content-Type: text/\r\n"),
            ("Content-Type:\r\n", "Content-Type:\r\n"),
            ("X-Content-Type: text/html\r\n", "X-Content-Type: text/html\r\n"),
            (
                "Content-Type: text/a\r\nContent-Type: text/b\r\n",
                "Content-Type: text/a\r\nContent-Type: text/b\r\n",
            ),
            ("", ""),
        ] {
            let mut out = [b"HTTP/1.1 200 OK\r\n", fields.as_bytes()].concat();
            add("utf-8", &mut out, 17);
            assert_eq!(
                out[17..].escape_ascii().to_string(),
                changed.as_bytes().escape_ascii().to_string()
            );
        }
    }
}
