//! Parser of name-value pairs (section 3.4).

use std::ops::Range;

/// Returns the names and values in the content of a complete stream or record, as ranges of
/// `content`. Returns `None` if a length exceeds the content.
pub fn pairs(content: &[u8]) -> Option<Vec<(Range<usize>, Range<usize>)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < content.len() {
        let name = length(content, &mut at)?;
        let value = length(content, &mut at)?;
        let middle = at.checked_add(name)?;
        let end = middle.checked_add(value).filter(|&end| end <= content.len())?;
        found.push((at..middle, middle..end));
        at = end;
    }
    Some(found)
}

/// Reads a length of one byte, or of four bytes if the first bit is set, and moves `at` after it.
/// Returns `None` if the content ends too early.
fn length(content: &[u8], at: &mut usize) -> Option<usize> {
    let first = *content.get(*at)?;
    if first < 128 {
        *at += 1;
        return Some(first.into());
    }
    let bytes: [u8; 4] = content.get(*at..*at + 4)?.try_into().ok()?;
    *at += 4;
    usize::try_from(u32::from_be_bytes(bytes) & !(1 << 31)).ok()
}
