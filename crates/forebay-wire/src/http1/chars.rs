//! Character classes of RFC 9110 section 5.6 and RFC 9112.

/// The lowest bit of each byte of a word.
const ONES: u64 = u64::MAX / 255;
/// The highest bit of each byte of a word.
const HIGH: u64 = ONES * 0x80;

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

/// Returns true if `name` contains a byte that is neither a letter, a digit nor a hyphen.
pub fn has_mark(name: &[u8]) -> bool {
    let Some(last) = name.last_chunk() else {
        return !name.iter().all(|&byte| is_plain(byte));
    };
    // The last chunk may overlap the previous one. Some bytes are then checked twice.
    let (chunks, _) = name.as_chunks();
    chunks.iter().chain([last]).any(|chunk| marks(chunk) != 0)
}

/// Returns the position of the first `byte` in `text`, or `None`. For short texts such as names,
/// this function takes fewer instructions than memchr.
#[inline(always)]
pub(crate) fn position(byte: u8, text: &[u8]) -> Option<usize> {
    let (chunks, rest) = text.as_chunks();
    for (at, chunk) in chunks.iter().enumerate() {
        let differences = u64::from_le_bytes(*chunk) ^ (ONES * u64::from(byte));
        // The lowest bit in `zeros` marks the first zero byte. Higher bits may be wrong, because
        // the subtraction borrows from the bytes after a zero byte.
        let zeros = differences.wrapping_sub(ONES) & !differences & HIGH;
        if zeros != 0 {
            return Some(at * 8 + zeros.trailing_zeros() as usize / 8);
        }
    }
    let in_rest = rest.iter().position(|&other| other == byte)?;
    Some(text.len() - rest.len() + in_rest)
}

/// Returns the position of the first control byte in `text`, or `None`.
#[inline(always)]
pub(super) fn first_control(text: &[u8]) -> Option<usize> {
    let is_clean =
        |chunk: &&[u8; 16]| !chunk.iter().fold(false, |bad, &b| bad | (b < 0x20) | (b == 0x7f));
    let skipped = text.as_chunks().0.iter().take_while(is_clean).count() * 16;
    let (chunks, rest) = text[skipped..].as_chunks();
    for (at, chunk) in chunks.iter().enumerate() {
        let word = u64::from_le_bytes(*chunk);
        let deletes = word ^ (ONES * 0x7f);
        // As in `position`, only the lowest bit is certain.
        let found = word.wrapping_sub(ONES * 0x20) & !word | deletes.wrapping_sub(ONES) & !deletes;
        if found & HIGH != 0 {
            return Some(skipped + at * 8 + (found & HIGH).trailing_zeros() as usize / 8);
        }
    }
    let in_rest = rest.iter().position(u8::is_ascii_control)?;
    Some(text.len() - rest.len() + in_rest)
}

/// Returns true if `byte` is a letter, a digit or a hyphen.
pub(super) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() | (byte == b'-')
}

/// Finds the bytes of `chunk` that are not plain (see [`is_plain`]). The highest bit of each such
/// byte is 1 in the returned word, and all other bits are 0. The first byte of `chunk` is the
/// lowest byte of the word.
///
/// The function checks the eight bytes in parallel, which takes a third of the instructions of a
/// loop. It first clears the highest bit of each byte, so that no addition carries into the next
/// byte. After the addition of `0x80 - n`, the highest bit of a byte is 1 if the byte is at least
/// `n`.
const fn marks(chunk: &[u8; 8]) -> u64 {
    let word = u64::from_le_bytes(*chunk);
    let ascii = word & !HIGH;
    let lower = ascii | (ONES * 0x20);
    let letters = (lower + ONES * (0x80 - b'a' as u64)) & !(lower + ONES * (0x7f - b'z' as u64));
    let digits = (ascii + ONES * (0x80 - b'0' as u64)) & !(ascii + ONES * (0x7f - b'9' as u64));
    let hyphens = !((ascii ^ (ONES * b'-' as u64)) + ONES * 0x7f);
    (!(letters | digits | hyphens) | word) & HIGH
}

/// Returns true if `bytes` is a valid field value: it contains no control byte except tab.
pub fn is_field_value(bytes: &[u8]) -> bool {
    are_all(bytes, is_value_byte)
}

/// Returns true if `is_good` is true for all `bytes`. Inputs of fewer than 16 bytes are filled up
/// with the letter `a`, so `is_good` must be true for `a`. If `is_good` has no branch, the compiler
/// uses vector instructions, which check 16 bytes at once.
fn are_all(bytes: &[u8], is_good: impl Fn(u8) -> bool) -> bool {
    let is_good = |chunk: &[u8; 16]| !chunk.iter().fold(false, |bad, &byte| bad | !is_good(byte));
    let mut short = [b'a'; 16];
    // The last chunk may overlap the previous one. Some bytes are then checked twice.
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
fn is_target_byte(byte: u8) -> bool {
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

/// Returns true if `a` equals `b`, ignoring ASCII case.
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
    fn every_byte_is_judged_at_every_place_of_a_name() {
        for byte in 0..=u8::MAX {
            for len in 1..=20 {
                for at in 0..len {
                    let mut text = vec![b'a'; len];
                    text[at] = byte;
                    let expected = (byte != b'a').then_some(at);
                    let found = position(byte, &text).filter(|_| byte != b'a');
                    assert_eq!(found, expected, "{byte:#x} at {at} of {len}");
                    assert_eq!(has_mark(&text), !is_plain(byte), "{byte:#x} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn each_of_eight_bytes_is_judged_alone() {
        let mut state = 1_u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let chunk = (state ^ (state >> 29)).to_le_bytes();
            let expected = chunk.map(|byte| if is_plain(byte) { 0 } else { 0x80 });
            assert_eq!(marks(&chunk).to_le_bytes(), expected, "{chunk:?}");
        }
    }

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
                let is_control = byte.is_ascii_control();
                assert_eq!(first_control(&value), is_control.then_some(place), "{what}");
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
