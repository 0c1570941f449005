//! HTTP/1.1 client (RFC 9112).

use std::sync::Arc;

use forebay_wire::http1::{BodyDecoder, HeadError, Http1Limits, ResponseHead, ResponseParser};
use forebay_wire::reply::{ReplyError, ReplyReader as Heads, ReplyStep};

use crate::{Answer, Malformed, Receipt, Session, Sink};

/// Complete request of HTTP/1.1, SCGI or uwsgi.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// Head and body.
    pub bytes: Arc<[u8]>,
    /// True if the method is HEAD.
    pub to_head: bool,
    /// False if the connection is not used again after the reply, for example because the request
    /// has `Connection: close`.
    pub keepalive: bool,
    /// Length of the head, if the body waits for `100 Continue`.
    pub expects: Option<usize>,
}

/// HTTP/1.1 connection.
#[derive(Debug)]
pub struct Http1<S> {
    request: HttpRequest,
    written: usize,
    /// End of the bytes that may be written now: that of the head while the body waits for `100
    /// Continue`, else that of the request.
    end: usize,
    reader: ReplyReader,
    sink: S,
}

/// Incremental reader of HTTP/1.1 replies that follow each other on one connection.
#[derive(Debug)]
pub struct ReplyReader {
    heads: Heads<ResponseParser>,
    head: ResponseHead,
    body: Option<BodyDecoder>,
    to_head: bool,
    /// The bytes from which `head` was parsed. If the next head has the same bytes, the parser is
    /// skipped. A server under load sends identical heads until `Date` changes. The comparison
    /// takes a tenth of the time of the parsing. Without the comparison, parsing takes a third of
    /// the client's own CPU time.
    seen: Vec<u8>,
    is_fresh: bool,
    has_continued: bool,
}

impl<S: Sink> Http1<S> {
    /// Creates a session that sends `request` in each exchange.
    pub fn new(request: HttpRequest, sink: S) -> Self {
        let reader = ReplyReader::new(request.to_head);
        Self { request, written: 0, end: 0, reader, sink }
    }

    fn answer(&self, reusable: bool) -> Answer {
        let ResponseHead { status, keep_alive, .. } = self.reader.head;
        // If the reply came before the whole request was sent, the server may wait for the rest.
        let reusable = reusable && self.written == self.request.bytes.len();
        Answer { status, reusable: reusable && self.request.keepalive && keep_alive }
    }
}

impl<S: Sink> Session for Http1<S> {
    type Sink = S;
    type Request = HttpRequest;

    fn set_request(&mut self, request: &HttpRequest) {
        self.request = request.clone();
        self.reader.set_to_head(request.to_head);
    }

    fn start(&mut self) {
        self.written = 0;
        self.end = self.request.expects.unwrap_or(self.request.bytes.len());
        self.reader.begin();
        self.sink.begin();
    }

    fn output(&self) -> &[u8] {
        &self.request.bytes[self.written..self.end]
    }

    fn wrote(&mut self, n: usize) {
        self.written += n;
    }

    fn holds_output(&self) -> bool {
        self.end < self.request.bytes.len()
    }

    fn release_output(&mut self) {
        self.end = self.request.bytes.len();
    }

    fn input(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed> {
        let (consumed, is_complete) = self.reader.read(bytes, &mut self.sink)?;
        // After a final reply, the body is not sent.
        if self.reader.has_continued && self.reader.status() == 0 {
            self.release_output();
        }
        Ok(Receipt { consumed, answer: is_complete.then(|| self.answer(true)) })
    }

    fn closed(&mut self) -> Option<Answer> {
        self.reader.ends_at_close().then(|| self.answer(false))
    }

    fn status(&self) -> u16 {
        self.reader.status()
    }

    fn sink(&mut self) -> &mut S {
        &mut self.sink
    }
}

impl ReplyReader {
    /// Creates a reader of replies. `to_head` is true if the method of the request is HEAD.
    pub fn new(to_head: bool) -> Self {
        Self {
            heads: Heads::new(ResponseParser::new(Http1Limits::default(), to_head)),
            head: ResponseHead::default(),
            body: None,
            to_head,
            seen: Vec::new(),
            is_fresh: true,
            has_continued: false,
        }
    }

    /// Sets `to_head` for the following replies. If `to_head` changes, the reader parses the next
    /// head even if its bytes equal those of the last head, because a reply to HEAD has no body.
    pub fn set_to_head(&mut self, to_head: bool) {
        if self.to_head != to_head {
            self.to_head = to_head;
            self.seen.clear();
        }
    }

    /// Prepares for the next reply.
    pub fn begin(&mut self) {
        self.heads = Heads::new(ResponseParser::new(Http1Limits::default(), self.to_head));
        self.body = None;
        self.is_fresh = true;
        self.has_continued = false;
    }

    /// Reads from `bytes`, which begin with the first unconsumed byte. Returns the number of bytes
    /// that this call has consumed. The second value is true if the reply is complete. Fails if the
    /// reply violates HTTP/1.1.
    pub fn read(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<(usize, bool), Malformed> {
        let mut at = 0;
        if self.is_fresh && !self.seen.is_empty() && bytes.starts_with(&self.seen) {
            at = self.seen.len();
            self.final_head(bytes, sink);
        }
        self.is_fresh = false;
        while self.body.is_none() {
            // `seen` must be the text of `head`. The parser overwrites `head` now, so clear `seen`.
            self.seen.clear();
            let step = self.heads.read(&bytes[at..], &mut self.head);
            match step.map_err(malformed)? {
                ReplyStep::Partial => return Ok((at, false)),
                ReplyStep::Interim(len) => {
                    self.has_continued |= self.head.status == 100;
                    at += len;
                }
                ReplyStep::Final(_) if self.head.status == 101 => return Err(Malformed::Upgrade),
                ReplyStep::Final(len) => {
                    self.seen.extend_from_slice(&bytes[at..at + len]);
                    self.final_head(&bytes[at..at + len], sink);
                    at += len;
                }
            }
        }
        let Some(body) = &mut self.body else { return Ok((at, false)) };
        loop {
            let step = body.decode(&bytes[at..]).map_err(Malformed::Body)?;
            if !step.data.is_empty() {
                sink.body(&bytes[at..][step.data.clone()]);
            }
            at += step.consumed;
            if step.done || step.data.is_empty() {
                return Ok((at, step.done));
            }
        }
    }

    /// Returns the status of the reply; 0 before the head is complete.
    pub fn status(&self) -> u16 {
        if self.body.is_some() { self.head.status } else { 0 }
    }

    /// Returns true if the server may end the reply now by a close of the connection.
    pub fn ends_at_close(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::ends_at_close)
    }

    fn final_head(&mut self, bytes: &[u8], sink: &mut impl Sink) {
        if sink.wants_fields() {
            for field in &self.head.fields {
                sink.field(field.name.of(bytes), field.value.of(bytes));
            }
        }
        self.body = Some(BodyDecoder::response(self.head.framing));
    }
}

pub(crate) fn malformed(error: ReplyError<HeadError>) -> Malformed {
    match error {
        ReplyError::Head(error) => Malformed::Head(error),
        ReplyError::Interim => Malformed::Interim,
    }
}
