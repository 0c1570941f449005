//! The messages between Forebay and the hosts; `hosts/PROTOCOL.md` describes the protocol.

use std::fs::File;

use memchr::memmem;

/// Size of the two lengths before a request, in bytes: environment (4) and body (8). Both are
/// big-endian.
const LENGTHS: usize = 12;
/// Size in bytes of the `Mark` that follows the lengths.
pub(crate) const MARK: usize = 16;
/// Size of the head in bytes. The head precedes the environment of a request.
pub(crate) const HEAD: usize = LENGTHS + MARK;
/// Size of each message from a worker, in bytes.
pub(crate) const REPLY: usize = 4;

/// Maximum size of a request in a prefetch queue, in bytes. The hosts have buffers of this size.
/// The buffer of the queue's socket has space for two such requests.
pub(crate) const LARGEST: usize = 64 * 1024;

/// Random bytes that identify the end of a request's output. Output cannot contain them by chance,
/// and no script knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark(pub(crate) [u8; MARK]);

impl Mark {
    pub(crate) fn new() -> Mark {
        let mut rng = fastrand::Rng::new();
        let mut mark = [0; MARK];
        rng.fill(&mut mark);
        // A lease holds back output that may be the start of the mark. UTF-8 text never contains
        // the byte 0xff, so such text is never held back.
        mark[0] = 0xff;
        Mark(mark)
    }
}

/// The body of a request.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// The request has no body.
    Empty,
    /// The body is in memory.
    Bytes(&'a [u8]),
    /// The body is the beginning of a file, with this number of bytes. The read position of the
    /// file does not matter.
    File(&'a File, u64),
}

/// Returns the head of a request's message, which precedes the environment block. Returns `None` if
/// the block has 4 GiB or more.
pub(crate) fn head(env_length: usize, body_length: u64, mark: Mark) -> Option<[u8; HEAD]> {
    let mut head = [0; HEAD];
    head[..4].copy_from_slice(&u32::try_from(env_length).ok()?.to_be_bytes());
    head[4..LENGTHS].copy_from_slice(&body_length.to_be_bytes());
    head[LENGTHS..].copy_from_slice(&mark.0);
    Some(head)
}

/// Returns a request as a message for a worker's prefetch queue. Returns `None` if the request is
/// larger than [`LARGEST`], or if its body is a file.
pub(crate) fn message(block: &[u8], body: Body<'_>, mark: Mark) -> Option<Vec<u8>> {
    let (head, body) = parts(block, body, mark)?;
    Some([&head[..], block, body].concat())
}

/// Returns the two parts of a request's message that surround the environment block: the head and
/// the body. Returns `None` as [`message`] does.
pub(crate) fn parts<'a>(
    block: &[u8],
    body: Body<'a>,
    mark: Mark,
) -> Option<([u8; HEAD], &'a [u8])> {
    let body = match body {
        Body::Empty => &[][..],
        Body::Bytes(bytes) => bytes,
        Body::File(..) => return None,
    };
    let head = head(block.len(), body.len() as u64, mark)?;
    (HEAD + block.len() + body.len() <= LARGEST).then_some((head, body))
}

/// A message from a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The worker has started or cleaned up, and accepts requests.
    Ready,
    /// The worker has written output. The worker now waits for a request or cleans up, or continues
    /// a longer reply.
    Waiting,
    /// The script ended by itself.
    Ended(Then),
    /// The script failed, or could not be run, with this HTTP status.
    Failed { status: u16, then: Then },
    /// The script failed in the middle of a reply, so the reply must not be treated as complete.
    Aborted(Then),
}

/// The behaviour of a worker after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The worker waits for the next request.
    Waits,
    /// The worker ends.
    Ends,
    /// The worker stays busy until it reports that it is ready, or that it ends.
    CleansUp,
}

/// Flag in the message that ends a request: the worker found the request in its prefetch queue.
const WAS_PREFETCHED: u8 = 4;

/// Returns true if the worker found the request in its prefetch queue. `bytes` is the message with
/// which the worker has ended the request.
pub(crate) fn was_prefetched(bytes: [u8; REPLY]) -> bool {
    bytes[1] & WAS_PREFETCHED != 0
}

impl Reply {
    /// Parses a message. Returns `None` if the bytes are invalid.
    pub(crate) fn parse(bytes: [u8; REPLY]) -> Option<Reply> {
        let then = match bytes[1] & !WAS_PREFETCHED {
            0 => Then::Waits,
            1 => Then::Ends,
            2 => Then::CleansUp,
            _ => return None,
        };
        let number = u16::from_be_bytes([bytes[2], bytes[3]]);
        match bytes[0] {
            b'R' if then == Then::Waits && number == 0 => Some(Reply::Ready),
            b'W' if bytes[1] == 0 && number == 0 => Some(Reply::Waiting),
            b'E' if number == 0 => Some(Reply::Ended(then)),
            b'S' if (400..600).contains(&number) => Some(Reply::Failed { status: number, then }),
            b'A' if number == 0 => Some(Reply::Aborted(then)),
            _ => None,
        }
    }

    /// Returns true for the messages that a worker may send after a cleanup: "I am ready" and "I
    /// end".
    pub(crate) fn is_of_cleanup(self) -> bool {
        matches!(self, Reply::Ready | Reply::Ended(Then::Ends))
    }
}

// The end marker: bytes after a worker's output that end the request, on the same socket.
//
// A message on another socket would cost one more send, wait and receive. Such a message would
// also not show at which byte the output of the next request begins.

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
pub(crate) fn find_end_marker(output: &[u8], mark: Mark) -> MarkerSearch {
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

    #[test]
    fn a_request_head_has_both_lengths() {
        let head = head(258, 5, Mark([7; MARK])).unwrap();
        assert_eq!(head[..LENGTHS], [0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!(head[LENGTHS..], [7; MARK]);
    }

    #[test]
    fn replies_are_read_and_anything_else_refused() {
        assert_eq!(Reply::parse(*b"R\0\0\0"), Some(Reply::Ready));
        assert_eq!(Reply::parse(*b"W\0\0\0"), Some(Reply::Waiting));
        assert_eq!(Reply::parse(*b"E\x01\0\0"), Some(Reply::Ended(Then::Ends)));
        assert_eq!(
            Reply::parse(*b"S\0\x01\x94"),
            Some(Reply::Failed { status: 404, then: Then::Waits })
        );
        assert_eq!(Reply::parse(*b"A\x02\0\0"), Some(Reply::Aborted(Then::CleansUp)));
        assert!(was_prefetched(*b"E\x05\0\0") && !was_prefetched(*b"E\x01\0\0"));
        assert_eq!(Reply::parse(*b"E\x05\0\0"), Some(Reply::Ended(Then::Ends)));
        for bad in [
            b"X\0\0\0",
            b"E\x03\0\0",
            b"R\x02\0\0",
            b"A\0\0\x01",
            b"E\0\0\x01",
            b"S\0\0\0",
            b"S\0\xff\xff",
            b"R\x01\0\0",
        ] {
            assert_eq!(Reply::parse(*bad), None);
        }
    }

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
            assert_eq!(find_end_marker(&output[..end], mark), expected, "{end} bytes");
        }
        let nonsense = b"0123456789abcdefX\0\0\0";
        assert_eq!(find_end_marker(nonsense, mark), MarkerSearch::EndMarker(0, None));
    }

    #[test]
    fn marks_differ_and_begin_as_no_text_ends() {
        assert_ne!(Mark::new(), Mark::new());
        for text in ["data: 1\n\n", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "\u{ff}"] {
            assert_eq!(find_end_marker(text.as_bytes(), Mark::new()), MarkerSearch::Nothing);
        }
    }
}
