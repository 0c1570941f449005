//! Heads of "non-parsed header" output (RFC 3875 section 5). A script with such output writes a
//! complete HTTP reply.

use crate::http1::{HeadError, Http1Limits, Progress, ResponseHead, ResponseParser};

/// Head of non-parsed header output.
#[derive(Clone, Debug, Default)]
pub struct NphHead {
    /// The head. Its spans are ranges of `bytes`.
    pub head: ResponseHead,
    /// The head with CRLF at the end of each line.
    pub bytes: Vec<u8>,
}

/// Parser of the head of non-parsed header output.
#[derive(Clone, Copy, Debug)]
pub struct NphParser {
    limits: Http1Limits,
    to_head: bool,
}

impl NphParser {
    /// Creates a parser of the reply to a request. `to_head` is true if the request's method was
    /// HEAD.
    pub fn new(limits: Http1Limits, to_head: bool) -> Self {
        Self { limits, to_head }
    }

    /// Parses a head. `output` is all output since the end of the previous head.
    pub fn parse(self, output: &[u8], head: &mut NphHead) -> Result<Progress, HeadError> {
        let Some((bytes, end)) = http_head(output) else {
            let is_full = output.len() > self.limits.head;
            return if is_full { Err(HeadError::TooLarge) } else { Ok(Progress::Partial) };
        };
        // The conversion of LF to CRLF can double the size at most.
        let limits = Http1Limits { head: 2 * self.limits.head, ..self.limits };
        head.bytes = bytes;
        match ResponseParser::new(limits, self.to_head).parse(&head.bytes, &mut head.head)? {
            Progress::Complete(len) if len == head.bytes.len() => Ok(Progress::Complete(end)),
            _ => Err(HeadError::StartLine),
        }
    }
}

/// Converts the head of `output` to lines that end with CRLF, because scripts may end lines with
/// LF. Returns the head and its length in `output`, including the blank line. Returns `None` before
/// the blank line has arrived.
///
/// The head is not validated here, but by [`ResponseParser`].
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

/// Returns the position after the blank line that ends the head, or `None` if the blank line has
/// not arrived yet.
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
