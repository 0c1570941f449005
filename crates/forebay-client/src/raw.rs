//! Client of any protocol over TCP or a Unix socket. Each exchange sends fixed bytes, and reads
//! until the end of the reply, which the caller defines ([`ReplyEnd`]).

use std::sync::Arc;

use memchr::memmem::Finder;

use crate::{Answer, Malformed, Receipt, Session, Sink};

/// End of a reply on a raw connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEnd {
    /// The server closes the connection.
    Close,
    /// This number of bytes has arrived.
    Length(u64),
    /// The first bytes have arrived, of which this number counts at most: one read of a buffer. The
    /// connection is then closed.
    UpTo(u64),
    /// These bytes have arrived. The list is not empty.
    Pattern(Vec<u8>),
}

/// Connection on which each exchange sends fixed bytes and reads a reply.
#[derive(Debug)]
pub struct Raw<S> {
    request: Arc<[u8]>,
    written: usize,
    end: ReplyEnd,
    /// Searches the pattern of `end`.
    finder: Finder<'static>,
    /// Last bytes of the reply, because the pattern may begin in them. Always shorter than the
    /// pattern.
    tail: Vec<u8>,
    received: u64,
    keepalive: bool,
    sink: S,
}

impl<S: Sink> Raw<S> {
    /// Creates a session whose exchanges send `request`. Without `keepalive`, the connection closes
    /// after the end of the reply, even if further bytes have arrived.
    pub fn new(request: Arc<[u8]>, end: ReplyEnd, keepalive: bool, sink: S) -> Self {
        let pattern = if let ReplyEnd::Pattern(bytes) = &end { &bytes[..] } else { &[] };
        let finder = Finder::new(pattern).into_owned();
        Self { request, written: 0, end, finder, tail: Vec::new(), received: 0, keepalive, sink }
    }

    /// Returns the number of `bytes` up to the end of the pattern. Returns `None` if the pattern
    /// has not arrived completely.
    fn find_pattern(&mut self, bytes: &[u8]) -> Option<usize> {
        let length = self.finder.needle().len();
        // The pattern may begin in the last bytes before this input (`tail`), so search these bytes
        // together with the first new bytes.
        let before = self.tail.len();
        self.tail.extend_from_slice(&bytes[..bytes.len().min(length - 1)]);
        if let Some(at) = self.finder.find(&self.tail) {
            return Some(at + length - before);
        }
        if let Some(at) = self.finder.find(bytes) {
            return Some(at + length);
        }
        if bytes.len() >= length {
            self.tail.clear();
            self.tail.extend_from_slice(&bytes[bytes.len() - (length - 1)..]);
        } else {
            let surplus = self.tail.len().saturating_sub(length - 1);
            self.tail.drain(..surplus);
        }
        None
    }

    /// True if the connection ends with the reply.
    fn closes(&self) -> bool {
        matches!(self.end, ReplyEnd::Close | ReplyEnd::UpTo(_))
    }

    fn answer(&self) -> Answer {
        Answer { status: 0, reusable: self.keepalive && !self.closes() }
    }
}

impl<S: Sink> Session for Raw<S> {
    type Sink = S;
    type Request = Arc<[u8]>;

    fn set_request(&mut self, request: &Arc<[u8]>) {
        self.request = request.clone();
    }

    fn start(&mut self) {
        (self.written, self.received) = (0, 0);
        self.tail.clear();
        self.sink.begin();
    }

    fn output(&self) -> &[u8] {
        &self.request[self.written..]
    }

    fn wrote(&mut self, n: usize) {
        self.written += n;
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed> {
        let end = match self.end {
            ReplyEnd::Close => None,
            ReplyEnd::Length(length) => {
                let rest = length - self.received;
                (rest <= bytes.len() as u64).then_some(rest as usize)
            }
            ReplyEnd::UpTo(most) => Some(bytes.len().min(most as usize)),
            ReplyEnd::Pattern(_) => self.find_pattern(bytes),
        };
        // Without keep-alive, the connection closes now, so all bytes count as consumed.
        let is_kept = self.keepalive && !self.closes();
        let consumed = end.filter(|_| is_kept).unwrap_or(bytes.len());
        self.received += consumed as u64;
        self.sink.body(&bytes[..end.unwrap_or(consumed)]);
        Ok(Receipt { consumed, answer: end.map(|_| self.answer()) })
    }

    fn closed(&mut self) -> Option<Answer> {
        (self.end == ReplyEnd::Close).then(|| self.answer())
    }

    /// Returns 0, because raw replies have no status.
    fn status(&self) -> u16 {
        0
    }

    fn sink(&mut self) -> &mut S {
        &mut self.sink
    }
}
