//! Heads of "non-parsed header" output (RFC 3875 section 5): HTTP, as scripts print it.

/// Takes the head off `output`: with CRLF at the end of each line, where scripts may print LF, and
/// its length in `output`, blank line included. `None` while the blank line has not come.
///
/// The head is not checked: that is for [`ResponseParser`](crate::http1::ResponseParser).
pub fn http_head(output: &[u8]) -> Option<(Vec<u8>, usize)> {
    let end = head_end(output)?;
    let mut head = Vec::with_capacity(end + 64);
    for line in output[..end].split_inclusive(|&b| b == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        head.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
        head.extend_from_slice(b"\r\n");
    }
    Some((head, end))
}

/// Where the blank line ends that ends the head.
fn head_end(output: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', output).find_map(|at| match &output[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_are_mended() {
        for (output, head, length) in [
            ("HTTP/1.0 200 OK\n\nbody", "HTTP/1.0 200 OK\r\n\r\n", 17),
            ("HTTP/1.0 200 OK\r\nA: b\n\r\n", "HTTP/1.0 200 OK\r\nA: b\r\n\r\n", 24),
            ("\n\n", "\r\n\r\n", 2),
        ] {
            assert_eq!(http_head(output.as_bytes()), Some((head.as_bytes().to_vec(), length)));
        }
        for output in ["", "\n", "HTTP/1.0 200 OK\n", "HTTP/1.0 200 OK\nA: b\n\r"] {
            assert_eq!(http_head(output.as_bytes()), None, "{output:?}");
        }
    }
}
