//! Scripts that speak HTTP themselves: "non-parsed header" output (RFC 3875 section 5).
//!
//! Their output is parsed all the same, so that the client gets a reply with sound framing and never
//! what a script may have printed behind it.

use forebay_engine::{Fault, Length, Reply};
use forebay_wire::http1::{
    BodyDecoder, Known, Limits, Progress, ResponseFraming, ResponseHead, ResponseParser, encode,
};

use crate::script_reply::OutputLimit;

/// Largest head, in bytes.
const HEAD: usize = 32 * 1024;

/// The reply being passed on from one script.
pub struct NphReply {
    to_head: bool,
    head: ResponseHead,
    /// Output that was not passed on yet.
    output: Vec<u8>,
    /// Behind the head.
    body: Option<BodyDecoder>,
    is_unflushed: bool,
    limit: OutputLimit,
}

impl NphReply {
    /// Ready for the first byte of output; `to_head` where the method was HEAD.
    pub fn new(to_head: bool, limit: OutputLimit) -> Self {
        let (head, output) = (ResponseHead::default(), Vec::with_capacity(8 * 1024));
        Self { to_head, head, output, body: None, is_unflushed: false, limit }
    }

    /// Whether there is output that the client could already have.
    pub fn has_output(&self) -> bool {
        self.is_unflushed && self.body.is_some()
    }

    /// Takes output.
    pub async fn feed(&mut self, output: &[u8], reply: &mut Reply) -> Result<(), Fault> {
        self.limit.take(output)?;
        self.output.extend_from_slice(output);
        self.is_unflushed = true;
        while self.body.is_none() {
            if !self.parse_head()? {
                return Ok(());
            }
            if self.head.status >= 200 {
                self.begin(reply);
            }
        }
        self.pass_body(reply).await
    }

    /// The script pauses: what it printed goes to the client.
    pub async fn flush(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        self.is_unflushed = false;
        reply.flush().await
    }

    /// The script has ended.
    pub async fn finish(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match &self.body {
            None => Err(self.malformed("no end of header in")),
            Some(body) if body.is_done() || body.ends_at_close() => reply.finish().await,
            Some(_) => Err(Fault::app(502, "the script ended in the middle of its reply")),
        }
    }

    /// Takes a head off the output; `false` where it is not whole. Lines may end in a bare LF, as
    /// scripts print them.
    fn parse_head(&mut self) -> Result<bool, Fault> {
        let Some(end) = head_end(&self.output) else {
            let too_large = self.output.len() > HEAD;
            return if too_large { Err(self.malformed("no end of header in")) } else { Ok(false) };
        };
        let mut head = Vec::with_capacity(end + 64);
        for line in self.output[..end].split_inclusive(|&b| b == b'\n') {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            head.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
            head.extend_from_slice(b"\r\n");
        }
        let limits = Limits { head: 2 * HEAD, ..Limits::default() };
        match ResponseParser::new(limits, self.to_head).parse(&head, &mut self.head) {
            Ok(Progress::Complete(len)) if len == head.len() && self.head.status != 101 => {}
            Ok(_) => return Err(self.malformed("no HTTP reply in")),
            Err(error) => return Err(self.malformed(&format!("{error} in"))),
        }
        let body = self.output.split_off(end);
        // The spans of the head refer to these bytes until the reply has begun.
        self.output = head;
        if self.head.status < 200 {
            self.output.clear();
        }
        self.output.extend_from_slice(&body);
        Ok(true)
    }

    fn begin(&mut self, reply: &mut Reply) {
        let head = &self.head;
        reply.close_after();
        reply.begin(head.status, head.reason.of(&self.output));
        let is_length = |field: &forebay_wire::http1::Field| field.known == Known::ContentLength;
        encode::forward_response_fields(reply.field_lines(), head, &self.output, is_length);
        let length = match (head.framing, head.content_length) {
            (ResponseFraming::Length(length), _) => Length::Known(length),
            (ResponseFraming::Chunked | ResponseFraming::Close, _) => Length::Unknown,
            (ResponseFraming::None, Some(length)) if !matches!(head.status, 204 | 304) => {
                Length::Known(length)
            }
            (ResponseFraming::None, _) => Length::None,
        };
        let has_date = head.fields.iter().any(|field| field.known == Known::Date);
        reply.end_head(length, has_date);
        self.body = Some(BodyDecoder::response(head.framing));
        self.output.drain(..self.head.len);
    }

    async fn pass_body(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        let Some(body) = &mut self.body else { return Ok(()) };
        let mut start = 0;
        loop {
            let step = body
                .decode(&self.output[start..])
                .map_err(|error| Fault::app(502, format!("{error} in a script's reply")))?;
            reply.push(&self.output[start + step.data.start..start + step.data.end]).await?;
            start += step.consumed;
            if step.done {
                // What comes behind the reply is nobody's.
                start = self.output.len();
            }
            if step.consumed == 0 || start == self.output.len() {
                break;
            }
        }
        self.output.drain(..start);
        Ok(())
    }

    fn malformed(&self, what: &str) -> Fault {
        let start = String::from_utf8_lossy(&self.output[..self.output.len().min(200)]);
        let message = format!("{what} the output of an nph- script, which starts with {start:?}");
        Fault::app(502, message)
    }
}

/// Where the blank line ends that ends the head.
fn head_end(output: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b'\n', output).find_map(|at| match &output[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}
