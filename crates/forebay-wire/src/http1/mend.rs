//! Mends heads of replies that break a rule of RFC 9112 or RFC 3875 without any doubt about their
//! meaning.
//!
//! Servers that have stood behind a lenient proxy for twenty years end lines with LF, put a blank
//! before the colon or fold a line, and nobody noticed. Such a head is rewritten as its sender
//! should have written it, and only then parsed and passed on, so that neither the strict parsers
//! nor clients ever see an oddity. Strict parsers find the oddity, so usual heads cost nothing.
//!
//! A field that decides where the message ends is never touched: if its line has any oddity but
//! its line end, two readers may disagree about the end, and the reply is refused.

use std::borrow::Cow;

use super::HeadError;
use super::chars::{is_token, trim};

/// The syntax of a reply's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadSyntax {
    /// HTTP/1: the head begins with a status line.
    Http,
    /// CGI: the head has only fields. A line that is no field is refused, because it is probably
    /// the beginning of a document whose head is missing.
    Cgi,
}

/// Returns the position after the blank line that ends a head, with either line end. `None` before
/// the blank line has arrived. Lines that begin before `from` were examined by an earlier call.
pub(crate) fn head_end(bytes: &[u8], from: usize) -> Option<usize> {
    let from = from.min(bytes.len());
    memchr::memchr_iter(b'\n', &bytes[from..]).map(|at| from + at).find_map(|at| {
        match &bytes[at + 1..] {
            [b'\n', ..] => Some(at + 2),
            [b'\r', b'\n', ..] => Some(at + 3),
            _ => None,
        }
    })
}

/// Rewrites `lines`, the complete lines of a head or its beginning, without oddities. Fails if a
/// line has an oddity that leaves a doubt.
pub(crate) fn mend_head(lines: &[u8], syntax: HeadSyntax) -> Result<Vec<u8>, HeadError> {
    let mut out = Vec::with_capacity(lines.len() + 64);
    let mut length: Option<Vec<u8>> = None;
    // What a folded line continues.
    let mut last = Mended::Framing;
    for (number, line) in lines.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            out.extend_from_slice(b"\r\n");
            break;
        }
        if number == 0 && syntax == HeadSyntax::Http {
            mend_status_line(line, &mut out)?;
            continue;
        }
        if let [b' ' | b'\t', ..] = line {
            continue_line(line, last, &mut out)?;
            continue;
        }
        let start = out.len();
        last = mend_line(line, syntax, &mut out)?;
        if last == Mended::Framing
            && line.len() > 15
            && line[..15].eq_ignore_ascii_case(b"content-length:")
        {
            // A length that is repeated leaves no doubt.
            let value = trim(&line[15..]);
            if length.as_deref() == Some(value) {
                out.truncate(start);
            }
            length = Some(value.to_vec());
        }
    }
    Ok(out)
}

/// What [`mend_line`] has made of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mended {
    /// A field, with CRLF at its end.
    Field,
    /// A field that decides where the message ends.
    Framing,
    /// Nothing: the line is no field, and was left out.
    Nothing,
}

/// Appends `line`, which has no line end, as a field line.
pub(super) fn mend_line(
    line: &[u8],
    syntax: HeadSyntax,
    out: &mut Vec<u8>,
) -> Result<Mended, HeadError> {
    let colon = memchr::memchr(b':', line);
    let before_colon = &line[..colon.unwrap_or(line.len())];
    let name = trim(before_colon);
    if is_framing(name) {
        let is_odd = name.len() < before_colon.len() || line.iter().any(|&b| is_control(b));
        if is_odd || colon.is_none() {
            return Err(HeadError::FieldName);
        }
        out.extend_from_slice(line);
        out.extend_from_slice(b"\r\n");
        return Ok(Mended::Framing);
    }
    let Some(colon) = colon.filter(|_| is_token(name)) else {
        // nginx passes names on that no client accepts, and also ignores a second status line.
        let is_word =
            !before_colon.is_empty() && !before_colon.iter().any(|&b| b <= b' ' || b == 0x7f);
        let is_left_out = syntax == HeadSyntax::Http && (is_word || line.starts_with(b"HTTP/"));
        return if is_left_out { Ok(Mended::Nothing) } else { Err(HeadError::FieldName) };
    };
    out.extend_from_slice(name);
    out.push(b':');
    out.extend_from_slice(&without_controls(&line[colon + 1..])?);
    out.extend_from_slice(b"\r\n");
    Ok(Mended::Field)
}

/// Appends the folded `line` to the line at the end of `out`.
pub(super) fn continue_line(line: &[u8], last: Mended, out: &mut Vec<u8>) -> Result<(), HeadError> {
    match last {
        Mended::Framing => return Err(HeadError::ObsFold),
        Mended::Nothing => {}
        Mended::Field => {
            out.truncate(out.len() - 2);
            out.push(b' ');
            out.extend_from_slice(&without_controls(trim(line))?);
            out.extend_from_slice(b"\r\n");
        }
    }
    Ok(())
}

/// Rewrites the status line. nginx accepts any version, and any number of blanks before the status.
fn mend_status_line(line: &[u8], out: &mut Vec<u8>) -> Result<(), HeadError> {
    let rest = line.strip_prefix(b"HTTP/").ok_or(HeadError::StartLine)?;
    let blank = memchr::memchr(b' ', rest).ok_or(HeadError::StartLine)?;
    let (version, rest) = rest.split_at(blank);
    match version {
        [b'1', b'.', minor] if minor.is_ascii_digit() => out.extend_from_slice(&line[..8]),
        [b'2'..=b'9', b'.', minor] if minor.is_ascii_digit() => out.extend_from_slice(b"HTTP/1.1"),
        _ => return Err(HeadError::Version),
    }
    out.push(b' ');
    let (status, reason) = trim(rest).split_at_checked(3).ok_or(HeadError::StartLine)?;
    out.extend_from_slice(status);
    // IIS has statuses such as `403.1`.
    let reason = match reason {
        [b'.', sub @ ..] => &sub[memchr::memchr(b' ', sub).unwrap_or(sub.len())..],
        _ => reason,
    };
    out.extend_from_slice(&without_controls(reason)?);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Returns `value` with a space for each control byte. CR and NUL end a line or text for some
/// readers, so they are refused.
fn without_controls(value: &[u8]) -> Result<Cow<'_, [u8]>, HeadError> {
    if value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        return Err(HeadError::FieldValue);
    }
    if !value.iter().any(|&byte| is_control(byte)) {
        return Ok(Cow::Borrowed(value));
    }
    Ok(value.iter().map(|&byte| if is_control(byte) { b' ' } else { byte }).collect())
}

fn is_control(byte: u8) -> bool {
    byte != b'\t' && (byte < b' ' || byte == 0x7f)
}

/// Returns true if some reader may take `name` for `Content-Length` or `Transfer-Encoding`.
pub(super) fn is_framing(name: &[u8]) -> bool {
    let letters = || name.iter().filter(|byte| byte.is_ascii_alphanumeric());
    [&b"contentlength"[..], b"transferencoding"]
        .iter()
        .any(|framing| letters().map(u8::to_ascii_lowercase).eq(framing.iter().copied()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oddities_that_leave_no_doubt_are_rewritten() {
        use HeadSyntax::{Cgi, Http};
        for (syntax, odd, mended) in [
            (Http, "HTTP/1.1 200 OK\nA: b\n\n", "HTTP/1.1 200 OK\r\nA: b\r\n\r\n"),
            (Http, "HTTP/2.0   404  \n", "HTTP/1.1 404\r\n"),
            (Http, "HTTP/1.1 403.1 No\x01w\r\n", "HTTP/1.1 403 No w\r\n"),
            (
                Http,
                "HTTP/1.0 200 OK\r\nHTTP/1.0 200 OK\r\nA(b): c\r\n d\r\nno\r\n",
                "HTTP/1.0 200 OK\r\n",
            ),
            (Cgi, "A : b\x02c\n\td \n\n", "A: b c d\r\n\r\n"),
            (Cgi, "Content-Length: 1\ncontent-length: 1\n", "Content-Length: 1\r\n"),
        ] {
            let bytes = mend_head(odd.as_bytes(), syntax).unwrap();
            assert_eq!(String::from_utf8_lossy(&bytes), mended, "{odd:?}");
        }
    }

    #[test]
    fn oddities_that_leave_a_doubt_are_refused() {
        for line in [
            "Content-Length : 1",
            "Transfer-Encoding\t: chunked",
            "Content_Length : 1",
            "Content-Length: 1\x01",
            "Content-Length:\n 1",
            "Content-Length",
            "A: b\rc",
            "A: b\0c",
            "A b: c",
            "A\x01: c",
            "hello world",
            ": a",
        ] {
            let head = format!("HTTP/1.1 200 OK\r\n{line}\r\n");
            assert!(mend_head(head.as_bytes(), HeadSyntax::Http).is_err(), "{line:?}");
            assert!(mend_head(line.as_bytes(), HeadSyntax::Cgi).is_err(), "{line:?}");
        }
        for line in
            ["ICY 200 OK", "HTTP/1.1", "HTTP/1.1 20", "http/1.1 200 OK", "HTTP/1.1x 200", " A: b"]
        {
            assert!(mend_head(line.as_bytes(), HeadSyntax::Http).is_err(), "{line:?}");
        }
        assert!(mend_head(b"<p>Note: a\n", HeadSyntax::Cgi).is_err());
        assert!(mend_head(b" A: b\n", HeadSyntax::Cgi).is_err());
    }
}
