//! Scripts that speak HTTP themselves, "non-parsed header" output (RFC 3875 section 5), and
//! application servers that answer in HTTP over another protocol.
//!
//! Their output is parsed all the same, so that the client gets a reply with sound framing and
//! never what a script may have printed behind it.

use forebay_engine::{Fault, Reply};
use forebay_wire::cgi::http_head;
use forebay_wire::http1::{
    BodyDecoder, Known, Limits, Progress, ResponseHead, ResponseParser, encode,
};

use crate::fields::end_head;
use crate::script_reply::OutputLimit;
use crate::upgrade;

/// Largest head, in bytes.
const HEAD: usize = 32 * 1024;

/// The reply being passed on from one script.
pub struct NphReply {
    to_head: bool,
    /// What messages call it.
    source: &'static str,
    /// Whether the client's connection ends with the reply.
    closes: bool,
    head: ResponseHead,
    /// Bytes of interim replies, which together have the room of one head.
    interim: usize,
    /// Output that was not passed on yet.
    output: Vec<u8>,
    /// Behind the head.
    body: Option<BodyDecoder>,
    is_unflushed: bool,
    limit: OutputLimit,
}

impl NphReply {
    /// Ready for the first byte of a script's output; `to_head` where the method was HEAD.
    pub fn new(to_head: bool, limit: OutputLimit) -> Self {
        Self::of(to_head, limit, "the output of an nph- script", true)
    }

    /// Ready for the first byte from an application server, which knows nothing of the client's
    /// connection.
    pub fn of_server(to_head: bool, limit: OutputLimit) -> Self {
        Self::of(to_head, limit, "the application's reply", false)
    }

    fn of(to_head: bool, limit: OutputLimit, source: &'static str, closes: bool) -> Self {
        Self {
            to_head,
            source,
            closes,
            head: ResponseHead::default(),
            interim: 0,
            output: Vec::with_capacity(8 * 1024),
            body: None,
            is_unflushed: false,
            limit,
        }
    }

    /// Whether the reply has told its own end and come to it.
    pub fn is_complete(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    /// Whether the head is whole.
    pub fn has_head(&self) -> bool {
        self.body.is_some()
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
            Some(_) => Err(self.limit.fault(format!("the end of {} is missing", self.source))),
        }
    }

    /// Takes a head off the output; `false` where it is not whole. Lines may end in a bare LF, as
    /// scripts print them.
    fn parse_head(&mut self) -> Result<bool, Fault> {
        let Some((head, end)) = http_head(&self.output) else {
            let too_large = self.output.len() > HEAD;
            return if too_large { Err(self.malformed("no end of header in")) } else { Ok(false) };
        };
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
            self.interim += self.output.len();
            if self.interim > HEAD {
                return Err(self.malformed("no end of interim replies in"));
            }
            self.output.clear();
        }
        self.output.extend_from_slice(&body);
        Ok(true)
    }

    fn begin(&mut self, reply: &mut Reply) {
        let head = &self.head;
        if self.closes {
            reply.close_after();
        }
        reply.begin(head.status, head.reason.of(&self.output));
        let is_length = |field: &forebay_wire::http1::Field| field.known == Known::ContentLength;
        encode::forward_response_fields(reply.field_lines(), head, &self.output, is_length);
        if head.status == 426 {
            upgrade::append_fields(reply.field_lines(), &head.fields, &self.output);
        }
        end_head(reply, head);
        self.body = Some(BodyDecoder::response(head.framing));
        self.output.drain(..self.head.len);
    }

    async fn pass_body(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        let Some(body) = &mut self.body else { return Ok(()) };
        let mut start = 0;
        loop {
            let step = body
                .decode(&self.output[start..])
                .map_err(|error| self.limit.fault(format!("{error} in {}", self.source)))?;
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
        self.limit.fault(format!("{what} {}, which starts with {start:?}", self.source))
    }
}
