//! Replies of "non-parsed header" scripts (RFC 3875 section 5), which print complete HTTP, and of
//! application servers that answer with HTTP over SCGI or uwsgi.
//!
//! Forebay parses this output instead of copying it. So the client gets a reply with correct
//! framing, without bytes that a script prints after the reply.

use forebay_net::fault::Fault;
use forebay_server::reply::Reply;
use forebay_wire::http1::{
    BodyDecoder, HeadError, KnownField, ResponseHead, ResponseParser, encode,
};
use forebay_wire::reply::{ReplyError, ReplyReader, ReplyStep};

use crate::fields::{end_head, inform, note_live};
use crate::script_reply::OutputLimit;
use crate::upgrade;

/// The reply of an nph- script, or of an application server that answers with HTTP.
pub struct NphReply {
    /// Name for messages.
    source: &'static str,
    /// True if the client's connection ends with the reply.
    closes: bool,
    heads: ReplyReader<ResponseParser>,
    /// Its spans are ranges of `output`.
    head: ResponseHead,
    /// Output that was not sent to the client yet.
    output: Vec<u8>,
    /// Decoder of the body. `None` until the head is complete.
    body: Option<BodyDecoder>,
    is_unflushed: bool,
    limit: OutputLimit,
}

impl NphReply {
    /// Creates the reply from a script's output. `to_head` is true for the method HEAD.
    pub fn new(to_head: bool, limit: OutputLimit) -> Self {
        Self::of(to_head, limit, "the output of an nph- script", true)
    }

    /// Creates the reply from the output of an application server. Unlike after an nph- script, the
    /// client's connection may stay open after the reply.
    pub fn of_server(to_head: bool, limit: OutputLimit) -> Self {
        Self::of(to_head, limit, "the application's reply", false)
    }

    fn of(to_head: bool, limit: OutputLimit, source: &'static str, closes: bool) -> Self {
        Self {
            source,
            closes,
            heads: ReplyReader::new(ResponseParser::new(limit.heads, to_head))
                .strict(limit.is_strict),
            head: ResponseHead::default(),
            output: Vec::with_capacity(8 * 1024),
            body: None,
            is_unflushed: false,
            limit,
        }
    }

    /// Returns true if the reply has a length or chunks, and is complete.
    pub fn is_complete(&self) -> bool {
        self.body.as_ref().is_some_and(BodyDecoder::is_done)
    }

    /// Returns true if the head is complete.
    pub fn has_head(&self) -> bool {
        self.body.is_some()
    }

    /// Returns true if there is output that was not sent yet.
    pub fn has_output(&self) -> bool {
        self.is_unflushed && self.body.is_some()
    }

    /// Processes the next piece of output.
    pub async fn feed(&mut self, output: &[u8], reply: &mut Reply) -> Result<(), Fault> {
        self.limit.take(output)?;
        self.output.extend_from_slice(output);
        self.is_unflushed = true;
        while self.body.is_none() {
            let step = self.heads.read_mending(&mut self.output, &mut self.head);
            match step.map_err(|error| self.malformed(what_is_wrong(error)))? {
                ReplyStep::Partial => return Ok(()),
                ReplyStep::Interim(end) => {
                    inform(reply, &self.head, &self.output).await?;
                    self.output.drain(..end);
                }
                ReplyStep::Final(_) if self.head.status == 101 => {
                    return Err(self.malformed("a protocol switch in"));
                }
                ReplyStep::Final(end) => {
                    self.begin(reply);
                    self.output.drain(..end);
                }
            }
        }
        self.pass_body(reply).await
    }

    /// Sends the output so far to the client, because the script has printed nothing for a while.
    pub async fn flush(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        self.is_unflushed = false;
        reply.flush().await
    }

    /// Ends the reply, because the script has ended.
    pub async fn finish(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match &self.body {
            None => Err(self.malformed("no end of header in")),
            Some(body) if body.is_done() || body.ends_at_close() => reply.finish().await,
            Some(_) => Err(self.limit.fault(format!("the end of {} is missing", self.source))),
        }
    }

    fn begin(&mut self, reply: &mut Reply) {
        let (head, bytes) = (&self.head, &self.output);
        if self.closes {
            reply.close_after();
        }
        reply.begin(head.status, head.reason.of(bytes));
        note_live(reply, &head.fields, bytes);
        let is_length =
            |field: &forebay_wire::http1::Field| field.known == KnownField::ContentLength;
        encode::forward_response_fields(reply.field_lines(), head, bytes, is_length);
        if head.status == 426 {
            upgrade::append_fields(reply.field_lines(), &head.fields, bytes);
        }
        end_head(reply, head);
        self.body = Some(BodyDecoder::response(head.framing).lenient_unless(self.limit.is_strict));
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
                // Discard bytes after the end of the reply.
                start = self.output.len();
            }
            if step.consumed == 0 || start == self.output.len() {
                break;
            }
        }
        self.output.drain(..start);
        Ok(())
    }

    fn malformed(&self, what: impl AsRef<str>) -> Fault {
        let what = what.as_ref();
        let start = String::from_utf8_lossy(&self.output[..self.output.len().min(200)]);
        self.limit.fault(format!("{what} {}, which starts with {start:?}", self.source))
    }
}

fn what_is_wrong(error: ReplyError<HeadError>) -> String {
    match error {
        ReplyError::Head(HeadError::TooLarge) => "no end of header in".to_owned(),
        error => format!("{error} in"),
    }
}
