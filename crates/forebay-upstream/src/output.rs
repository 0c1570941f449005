//! Output of scripts and applications: a CGI reply or HTTP.
//!
//! Complete HTTP comes from "non-parsed header" scripts (RFC 3875 section 5), and from application
//! servers that answer over SCGI or uwsgi. Forebay parses it instead of copying it. So the client gets
//! a reply with correct framing, without bytes that a script prints after the reply.

use std::os::unix::ffi::OsStrExt;

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::reply::Reply;
use forebay_wire::http1::{
    BodyDecoder, HeadError, KnownField, ResponseHead, ResponseParser, encode,
};
use forebay_wire::reply::{ReplyError, ReplyReader, ReplyStep};

use crate::fields::{end_head, inform, note_live};
use crate::script::Script;
use crate::script_reply::{OutputLimit, ScriptReply};
use crate::upgrade;

/// A reply that is built from the output of one script or application.
pub enum Output {
    /// A CGI header, then the body.
    Parsed(ScriptReply),
    /// Complete HTTP.
    Raw(NphReply),
    /// The form is not known yet. The first bytes of the output show it.
    Undecided(Undecided),
}

/// The beginning of the output of an application server. SCGI requires a CGI header, and uwsgi
/// requires HTTP. Some servers send the form of the other protocol.
pub struct Undecided {
    start: Vec<u8>,
    to_head: bool,
    limit: OutputLimit,
}

/// Beginning of an HTTP reply.
const HTTP: &[u8] = b"HTTP/";

impl Output {
    /// Creates the output of a script. If the name of the script begins with `nph-`, the output is
    /// complete HTTP.
    pub fn of(script: &Script, request: &Request, limit: OutputLimit) -> Self {
        let name = script.file.file_name().unwrap_or_default();
        if name.as_bytes().starts_with(b"nph-") {
            return Self::Raw(NphReply::new(request.method() == b"HEAD", limit));
        }
        Self::Parsed(ScriptReply::new(limit))
    }

    /// Creates the output of an application server. The first bytes of the output decide between
    /// complete HTTP and a CGI header.
    pub fn of_server(request: &Request, limit: OutputLimit) -> Self {
        let to_head = request.method() == b"HEAD";
        Self::Undecided(Undecided { start: Vec::new(), to_head, limit })
    }

    /// Returns true if no byte of the final reply has arrived. For complete HTTP, always returns
    /// false.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Parsed(script) => script.is_empty(),
            Self::Raw(_) => false,
            Self::Undecided(undecided) => undecided.start.is_empty(),
        }
    }

    /// Returns true if the head is complete.
    pub fn has_head(&self) -> bool {
        match self {
            Self::Parsed(script) => script.has_head(),
            Self::Raw(http) => http.has_head(),
            Self::Undecided(_) => false,
        }
    }

    /// Returns true if there is output that was not sent to the client yet.
    pub fn has_output(&self) -> bool {
        match self {
            Self::Parsed(script) => script.has_output(),
            Self::Raw(http) => http.has_output(),
            Self::Undecided(_) => false,
        }
    }

    /// Returns true if the reply has a length or chunks, and is complete.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Parsed(script) => script.is_complete(),
            Self::Raw(http) => http.is_complete(),
            Self::Undecided(_) => false,
        }
    }

    /// Processes the next piece of output.
    pub async fn feed(&mut self, output: &[u8], reply: &mut Reply) -> Result<(), Fault> {
        let mut start = Vec::new();
        if let Self::Undecided(undecided) = self {
            undecided.start.extend_from_slice(output);
            if HTTP.starts_with(&undecided.start) && undecided.start.len() < HTTP.len() {
                return Ok(());
            }
            start = self.decide();
        }
        let output = if start.is_empty() { output } else { &start };
        match self {
            Self::Parsed(script) => script.feed(output, reply).await,
            Self::Raw(http) => http.feed(output, reply).await,
            Self::Undecided(_) => Ok(()),
        }
    }

    /// Sends the output so far to the client, so that the client need not wait for the next output.
    pub async fn flush(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match self {
            Self::Parsed(script) => script.flush(reply).await,
            Self::Raw(http) => http.flush(reply).await,
            Self::Undecided(_) => Ok(()),
        }
    }

    /// Ends the reply, because the output has ended.
    pub async fn finish(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        if let Self::Undecided(_) = self {
            let start = self.decide();
            self.feed(&start, reply).await?;
        }
        match self {
            Self::Parsed(script) => script.finish(reply).await,
            Self::Raw(http) => http.finish(reply).await,
            Self::Undecided(_) => Ok(()),
        }
    }

    /// Decides between HTTP and a CGI header. Returns the beginning of the output, which the caller
    /// must feed again.
    fn decide(&mut self) -> Vec<u8> {
        let Self::Undecided(Undecided { start, to_head, limit }) = self else { return Vec::new() };
        let start = std::mem::take(start);
        *self = if start.starts_with(HTTP) {
            Self::Raw(NphReply::of_server(*to_head, *limit))
        } else {
            Self::Parsed(ScriptReply::new(*limit))
        };
        start
    }
}

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
