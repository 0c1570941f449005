//! Options of `bench` for raw bytes.

use forebay_load::ReplyEnd;

/// Parses the end of a reply: a number of bytes, `text:END` or `close`. In END, `\\n`, `\\r`,
/// `\\t`, `\\0` and `\\xHH` are bytes.
pub fn reply_end(text: &str) -> Result<ReplyEnd, String> {
    if text == "close" {
        return Ok(ReplyEnd::Close);
    }
    if let Some(end) = text.strip_prefix("text:") {
        let bytes = unescape(end)?;
        return if bytes.is_empty() {
            Err("write the last bytes of a reply after text:".to_owned())
        } else {
            Ok(ReplyEnd::Pattern(bytes))
        };
    }
    match super::number::count::<u64>(text) {
        Ok(length) if length > 0 => Ok(ReplyEnd::Length(length)),
        _ => Err("write a number of bytes above 0, text:END or close".to_owned()),
    }
}

fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let escape = &rest[at + 1..];
        let (byte, length) = match escape.as_bytes().first() {
            Some(b'n') => (b'\n', 1),
            Some(b'r') => (b'\r', 1),
            Some(b't') => (b'\t', 1),
            Some(b'0') => (0, 1),
            Some(b'\\') => (b'\\', 1),
            Some(b'x') => {
                let digits = escape.get(1..3).filter(|digits| !digits.starts_with('+'));
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                (byte.ok_or("write two hexadecimal digits after \\x")?, 3)
            }
            _ => return Err("after \\, write n, r, t, 0, xHH or another \\".to_owned()),
        };
        out.push(byte);
        rest = &escape[length..];
    }
    out.extend_from_slice(rest.as_bytes());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_reply_is_read() {
        assert_eq!(reply_end("close"), Ok(ReplyEnd::Close));
        assert_eq!(reply_end("2k"), Ok(ReplyEnd::Length(2000)));
        let pattern = ReplyEnd::Pattern(b"a\r\n\xff\\".to_vec());
        assert_eq!(reply_end(r"text:a\r\n\xff\\"), Ok(pattern));
        for wrong in ["", "0", "-1", "text:", "text:\\", "text:\\x+1", "text:\\xé", "end"] {
            assert!(reply_end(wrong).is_err(), "{wrong}");
        }
    }
}
