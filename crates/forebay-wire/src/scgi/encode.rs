//! Encoder of request heads.

use crate::cgi::Sink;
use crate::http1::encode::decimal;

/// Encoder that appends variables as a netstring. [`Head::finish`] completes the netstring with its
/// length.
///
/// `CONTENT_LENGTH` and `SCGI` are written first, as the specification requires. Later variables
/// with these names are skipped, because a name may occur only once.
#[derive(Debug)]
pub struct Head<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Head<'a> {
    /// Starts the head of a request at the end of `out`. The body of the request has
    /// `content_length` bytes.
    pub fn new(out: &'a mut Vec<u8>, content_length: u64) -> Self {
        let start = out.len();
        out.extend_from_slice(b"CONTENT_LENGTH\0");
        decimal(out, content_length);
        out.extend_from_slice(b"\0SCGI\x001\0");
        Self { out, start }
    }

    /// Completes the netstring. The body must follow.
    pub fn finish(self) {
        let mut length = Vec::with_capacity(8);
        decimal(&mut length, (self.out.len() - self.start) as u64);
        length.push(b':');
        self.out.splice(self.start..self.start, length);
        self.out.push(b',');
    }
}

impl Sink for Head<'_> {
    fn variable(&mut self, name: &[u8], value: &[u8]) {
        if matches!(name, b"CONTENT_LENGTH" | b"SCGI") {
            return;
        }
        for part in [name, value] {
            self.out.extend_from_slice(part);
            self.out.push(0);
        }
    }
}
