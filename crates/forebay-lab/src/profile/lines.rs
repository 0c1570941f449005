//! Lines of a text from an untrusted source, limited in length.

use std::io::{self, BufRead};

/// Reads the next line into `line`, without its line end. Bytes after the first `limit` are
/// dropped. Returns false at the end of the text.
pub fn next_line(text: &mut impl BufRead, limit: usize, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let came = text.fill_buf()?;
        if came.is_empty() {
            return Ok(any);
        }
        any = true;
        let end = came.iter().position(|&byte| byte == b'\n');
        let part = &came[..end.unwrap_or(came.len())];
        line.extend_from_slice(&part[..part.len().min(limit - line.len())]);
        let taken = end.map_or(came.len(), |end| end + 1);
        text.consume(taken);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_or_cut_however_the_text_comes() {
        let text = b"ab\n\nabcdefghij\n\xff\xfelast";
        for capacity in 1..20 {
            let mut reader = io::BufReader::with_capacity(capacity, &text[..]);
            let (mut line, mut lines) = (Vec::new(), Vec::new());
            while next_line(&mut reader, 5, &mut line).unwrap() {
                lines.push(line.clone());
            }
            assert_eq!(lines, [&b"ab"[..], b"", b"abcde", b"\xff\xfelas"]);
        }
    }
}
