//! The end marker: bytes after a worker's output that end the request, on the same socket.
//!
//! A message on another socket would cost one more send, wait and receive. Such a message would
//! also not show at which byte the output of the next request begins.

use crate::control::{MARK, Mark, REPLY, Reply};
use memchr::memmem;

/// The result of a search for the end marker in output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum MarkerSearch {
    /// The bytes contain no part of an end marker.
    Nothing,
    /// An end marker may start at this index; the rest has not arrived yet.
    Start(usize),
    /// An end marker starts at this index. Its last `REPLY` bytes say how the script ended; `None`
    /// if these bytes are invalid.
    EndMarker(usize, Option<Reply>),
}

/// Length of an end marker in bytes.
pub(crate) const END_MARKER: usize = MARK + REPLY;

/// Finds the end marker of the request with this mark. Otherwise finds bytes at the end of `output`
/// that may be the start of the marker.
pub(crate) fn find(output: &[u8], mark: Mark) -> MarkerSearch {
    if let Some(at) = memmem::find(output, &mark.0) {
        return match output[at + MARK..].first_chunk() {
            Some(reply) => MarkerSearch::EndMarker(at, Reply::parse(*reply)),
            None => MarkerSearch::Start(at),
        };
    }
    let last = output.len().saturating_sub(MARK - 1);
    let start = (last..output.len()).find(|&at| mark.0.starts_with(&output[at..]));
    start.map_or(MarkerSearch::Nothing, MarkerSearch::Start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Then;

    #[test]
    fn an_end_marker_is_found_whole_and_in_parts() {
        let mark = Mark(*b"0123456789abcdef");
        let output = b"head0123body0123456789abcdefE\0\0\0next";
        for end in 0..=output.len() {
            let expected = match end {
                5..=8 => MarkerSearch::Start(4),
                13..32 => MarkerSearch::Start(12),
                32.. => MarkerSearch::EndMarker(12, Some(Reply::Ended(Then::Waits))),
                _ => MarkerSearch::Nothing,
            };
            assert_eq!(find(&output[..end], mark), expected, "{end} bytes");
        }
        let nonsense = b"0123456789abcdefX\0\0\0";
        assert_eq!(find(nonsense, mark), MarkerSearch::EndMarker(0, None));
    }

    #[test]
    fn marks_differ_and_begin_as_no_text_ends() {
        assert_ne!(Mark::new(), Mark::new());
        for text in ["data: 1\n\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "\u{ff}"] {
            assert_eq!(find(text.as_bytes(), Mark::new()), MarkerSearch::Nothing);
        }
    }
}
