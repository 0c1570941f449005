//! Character classes of RFC 9110 section 5.6 and RFC 9112.

/// Class of a letter, a digit or a hyphen in [`CLASSES`].
const PLAIN: u8 = 1;
/// Class of any other `tchar` in [`CLASSES`].
pub(super) const MARK: u8 = 2;

/// Classes of bytes in a name: [`PLAIN`], [`MARK`], or 0 for bytes that are no `tchar`.
pub(super) const CLASSES: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let is_plain = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'-';
        table[byte] = if is_plain { PLAIN } else { MARK * TOKEN[byte] as u8 };
        byte += 1;
    }
    table
};

/// True for each `tchar` of RFC 9110 section 5.6.2.
pub(crate) const TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(byte as u8,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_'
            | b'`' | b'|' | b'~' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z');
        byte += 1;
    }
    table
};

pub(crate) fn is_tchar(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// Returns true if `bytes` is a token: at least one `tchar`.
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&b| is_tchar(b))
}

/// Returns true if `bytes` is a valid field value: it contains no control byte except tab.
pub fn is_field_value(bytes: &[u8]) -> bool {
    are_all(bytes, is_value_byte)
}

/// Returns true if `is_good` is true for all `bytes`. `is_good` must be true for `a`, which fills
/// up short inputs. If `is_good` has no branch, the compiler uses vector instructions, which check
/// 16 bytes at once.
pub(super) fn are_all(bytes: &[u8], is_good: impl Fn(u8) -> bool) -> bool {
    let is_good = |chunk: &[u8; 16]| !chunk.iter().fold(false, |bad, &byte| bad | !is_good(byte));
    let mut short = [b'a'; 16];
    // The last chunk may overlap the previous one.
    let last = bytes.last_chunk().unwrap_or_else(|| {
        short[..bytes.len()].copy_from_slice(bytes);
        &short
    });
    let (chunks, _) = bytes.as_chunks();
    chunks.iter().all(&is_good) && is_good(last)
}

fn is_value_byte(byte: u8) -> bool {
    (byte == b'\t') | ((byte >= 0x20) & (byte != 0x7f))
}

/// Returns true if a request target may contain `byte`. Bytes above 127 must be percent-encoded
/// (RFC 3986 section 2), because servers interpret overlong or broken UTF-8 differently.
pub(super) fn is_target_byte(byte: u8) -> bool {
    (byte > 0x20) & (byte < 0x7f) & (byte != b'#')
}

/// Returns true if a request target may contain all of `bytes`.
pub(crate) fn is_target(bytes: &[u8]) -> bool {
    are_all(bytes, is_target_byte)
}

/// Returns true if `bytes` contains an upper-case letter.
pub(crate) fn has_upper_case(bytes: &[u8]) -> bool {
    !are_all(bytes, |byte| !byte.is_ascii_uppercase())
}

/// Compares bytes and ignores ASCII case.
pub fn eq_ignore_case(a: &[u8], b: &[u8]) -> bool {
    a.eq_ignore_ascii_case(b)
}

/// Returns `bytes` without leading and trailing spaces and tabs.
pub(super) fn trim(bytes: &[u8]) -> &[u8] {
    let is_space = |b: &u8| *b == b' ' || *b == b'\t';
    let start = bytes.iter().position(|b| !is_space(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !is_space(b)).map_or(start, |i| i + 1);
    &bytes[start..end]
}

/// Returns true if the comma-separated list `value` contains `token`. Ignores case.
pub fn list_has(value: &[u8], token: &[u8]) -> bool {
    value.split(|&b| b == b',').any(|element| trim(element).eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_judged_alike_at_every_place_of_any_length() {
        for length in [1, 7, 8, 15, 16, 17, 40] {
            for (place, byte) in
                (0..length).flat_map(|place| (0..=255).map(move |byte| (place, byte)))
            {
                let mut value = vec![b'z'; length];
                value[place] = byte;
                let what = format!("byte {byte:#x} at {place} of {length}");
                let is_allowed = byte == b'\t' || (byte >= 0x20 && byte != 0x7f);
                assert_eq!(is_field_value(&value), is_allowed, "{what}");
                assert_eq!(is_target(&value), is_target_byte(byte), "{what}");
                assert_eq!(has_upper_case(&value), byte.is_ascii_uppercase(), "{what}");
            }
        }
        assert!(is_field_value(b"") && is_target(b"") && !has_upper_case(b""));
    }

    #[test]
    fn list_elements_are_trimmed_and_compared_without_case() {
        assert!(list_has(b"keep-alive, Upgrade", b"upgrade"));
        assert!(list_has(b"\tclose ,x", b"close"));
        assert!(!list_has(b"closed", b"close"));
    }
}
