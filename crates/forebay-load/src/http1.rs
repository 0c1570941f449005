//! HTTP/1.1 (RFC 9112), the client's side.

use std::sync::Arc;

use forebay_wire::http1::{
    BodyDecoder, Limits, Progress, ResponseHead, ResponseParser, is_field_value, is_token,
};

use crate::conversation::{Answer, Conversation, Malformed, Mismatch, Receipt};
use crate::search::Search;
use crate::{Error, Spec};

/// An HTTP/1.1 conversation.
#[derive(Debug)]
pub(crate) struct Http1 {
    request: Arc<[u8]>,
    keepalive: bool,
    reader: ReplyReader,
    inspection: Inspection,
}

/// Reads one reply from bytes as they come.
#[derive(Debug)]
pub(crate) struct ReplyReader {
    parser: ResponseParser,
    head: ResponseHead,
    body: Option<BodyDecoder>,
    head_request: bool,
    interim: u32,
    /// The bytes that `head` was parsed from. Servers under load send the same head for as long as
    /// `Date` stays the same, and what a head says depends on its bytes alone: comparing them costs
    /// a tenth of parsing, which was a third of the client's own time.
    seen: Vec<u8>,
    fresh: bool,
}

/// Takes the parts of a reply as they are read.
pub(crate) trait Sink {
    /// The final head; its spans are offsets into `bytes`.
    fn head(&mut self, head: &ResponseHead, bytes: &[u8]);
    /// The next piece of the body.
    fn body(&mut self, piece: &[u8]);
}

/// Counts the payload, and looks at it where a check asks for that.
#[derive(Debug)]
struct Inspection {
    length: u64,
    status: Option<u16>,
    search: Option<Search>,
}

/// A server may announce its work in 1xx replies; more than this many is abuse.
const INTERIM_LIMIT: u32 = 16;

/// Fields that the load generator writes by itself, and what to use instead.
const OWN_FIELDS: [(&str, &str); 3] = [
    ("content-length", "it is computed from the body"),
    ("transfer-encoding", "the body is sent with its length"),
    ("expect", "100-continue is not available"),
];

/// The bytes of the request that `spec` describes.
pub(crate) fn request_bytes(spec: &Spec) -> Result<Vec<u8>, Error> {
    if !is_token(spec.method.as_bytes()) || spec.method == "CONNECT" {
        return Err(Error::Invalid(format!("{:?} is not a method that can be sent", spec.method)));
    }
    let mut bytes = format!("{} {} HTTP/1.1\r\n", spec.method, spec.url.target()).into_bytes();
    let given = |name: &str| spec.headers.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
    let mut field = |name: &str, value: &str| {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    };
    if !given("host") {
        field("Host", spec.url.host());
    }
    if !given("user-agent") {
        field("User-Agent", concat!("forebay/", env!("CARGO_PKG_VERSION")));
    }
    for (name, value) in &spec.headers {
        check_field(name, value)?;
        field(name, value);
    }
    if !spec.keepalive && !given("connection") {
        field("Connection", "close");
    }
    if !spec.body.is_empty() || matches!(spec.method.as_str(), "POST" | "PUT" | "PATCH") {
        field("Content-Length", &spec.body.len().to_string());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(&spec.body);
    Ok(bytes)
}

fn check_field(name: &str, value: &str) -> Result<(), Error> {
    if !is_token(name.as_bytes()) || !is_field_value(value.as_bytes()) {
        return Err(Error::Invalid(format!("\"{name}: {value}\" is not a header field")));
    }
    match OWN_FIELDS.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)) {
        Some((_, why)) => Err(Error::Invalid(format!("leave out the field {name}: {why}"))),
        None => Ok(()),
    }
}

impl Http1 {
    /// A conversation that sends `request`, the [`request_bytes`] of `spec`.
    pub fn new(spec: &Spec, request: Arc<[u8]>) -> Self {
        let needle = spec.check.as_ref().and_then(|check| check.body_contains.as_deref());
        let inspection = Inspection {
            length: 0,
            status: spec.check.as_ref().map(|check| check.status),
            search: needle.map(Search::new),
        };
        let reader = ReplyReader::new(spec.method == "HEAD");
        Self { request, keepalive: spec.keepalive, reader, inspection }
    }

    fn answer(&self, reusable: bool) -> Answer {
        let ResponseHead { status, keep_alive, .. } = self.reader.head;
        Answer {
            status,
            body: self.inspection.length,
            reusable: reusable && self.keepalive && keep_alive,
            mismatch: self.inspection.mismatch(status),
        }
    }
}

impl Conversation for Http1 {
    fn request(&self) -> &[u8] {
        &self.request
    }

    fn begin(&mut self) {
        self.reader.begin();
        self.inspection.length = 0;
        if let Some(search) = &mut self.inspection.search {
            search.reset();
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Receipt, Malformed> {
        let (consumed, complete) = self.reader.read(bytes, &mut self.inspection)?;
        Ok(Receipt { consumed, answer: complete.then(|| self.answer(true)) })
    }

    fn closed(&mut self) -> Option<Answer> {
        self.reader.ends_at_close().then(|| self.answer(false))
    }
}

impl Inspection {
    fn mismatch(&self, status: u16) -> Option<Mismatch> {
        match self.status {
            Some(expected) if expected != status => Some(Mismatch::Status(expected)),
            _ if self.search.as_ref().is_none_or(Search::found) => None,
            _ => Some(Mismatch::Body),
        }
    }
}

impl Sink for Inspection {
    fn head(&mut self, _: &ResponseHead, _: &[u8]) {}

    fn body(&mut self, piece: &[u8]) {
        self.length += piece.len() as u64;
        if let Some(search) = &mut self.search {
            search.feed(piece);
        }
    }
}

impl ReplyReader {
    /// A reader of replies to one kind of request; `head_request` where its method is HEAD.
    pub fn new(head_request: bool) -> Self {
        let parser = ResponseParser::new(Limits::default(), head_request);
        Self {
            parser,
            head: ResponseHead::default(),
            body: None,
            head_request,
            interim: 0,
            seen: Vec::new(),
            fresh: true,
        }
    }

    /// Prepares for the next reply.
    pub fn begin(&mut self) {
        self.parser = ResponseParser::new(Limits::default(), self.head_request);
        self.body = None;
        self.interim = 0;
        self.fresh = true;
    }

    /// Reads on in `bytes`, which are those not yet consumed: how many are consumed now, and whether
    /// the reply is complete.
    pub fn read(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<(usize, bool), Malformed> {
        let mut at = 0;
        if self.fresh && !self.seen.is_empty() && bytes.starts_with(&self.seen) {
            at = self.seen.len();
            self.final_head(bytes, sink);
        }
        self.fresh = false;
        while self.body.is_none() {
            // From here on `head` is another one's, or half of one.
            self.seen.clear();
            match self.parser.parse(&bytes[at..], &mut self.head).map_err(Malformed::Head)? {
                Progress::Partial => return Ok((at, false)),
                Progress::Complete(len) => {
                    self.head_read(&bytes[at..at + len], sink)?;
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

    /// The status of the reply whose head was read last.
    pub fn status(&self) -> u16 {
        self.head.status
    }

    /// Whether the connection closing now is the end of the reply.
    pub fn ends_at_close(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::ends_at_close)
    }

    fn head_read(&mut self, bytes: &[u8], sink: &mut impl Sink) -> Result<(), Malformed> {
        match self.head.status {
            101 => return Err(Malformed::Upgrade),
            ..200 => {
                self.interim += 1;
                if self.interim > INTERIM_LIMIT {
                    return Err(Malformed::Interim);
                }
                self.parser = ResponseParser::new(Limits::default(), self.head_request);
            }
            _ => {
                self.seen.extend_from_slice(bytes);
                self.final_head(bytes, sink);
            }
        }
        Ok(())
    }

    fn final_head(&mut self, bytes: &[u8], sink: &mut impl Sink) {
        sink.head(&self.head, bytes);
        self.body = Some(BodyDecoder::response(self.head.framing));
    }
}
