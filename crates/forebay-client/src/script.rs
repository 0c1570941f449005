//! Reads the output of a script: the head of a CGI reply (RFC 3875 section 6), then the body.

use forebay_wire::cgi::{CgiError, ReplyHead, ReplyParser};
use forebay_wire::http1::Http1Limits;
use forebay_wire::reply::{ReplyError, ReplyReader, ReplyStep};

use crate::{Malformed, Sink};

/// Reader of the output of one script. The output may arrive in pieces of any size.
#[derive(Debug)]
pub struct ScriptReader {
    heads: ReplyReader<ReplyParser>,
    head: ReplyHead,
    /// Output that has arrived before the head is complete.
    pending: Vec<u8>,
    has_head: bool,
    body: u64,
}

impl ScriptReader {
    pub fn begin(&mut self) {
        self.heads = heads();
        self.pending.clear();
        self.has_head = false;
        self.body = 0;
    }

    /// Reads the next piece of output. Fails if the head is malformed.
    pub fn read(&mut self, output: &[u8], sink: &mut impl Sink) -> Result<(), Malformed> {
        if self.has_head {
            self.body += output.len() as u64;
            sink.body(output);
            return Ok(());
        }
        self.pending.extend_from_slice(output);
        let len = loop {
            match self.heads.read(&self.pending, &mut self.head).map_err(malformed)? {
                ReplyStep::Partial => return Ok(()),
                ReplyStep::Interim(len) => drop(self.pending.drain(..len)),
                ReplyStep::Final(len) => break len,
            }
        };
        self.has_head = true;
        for field in &self.head.fields {
            sink.field(field.name.of(&self.pending), field.value.of(&self.pending));
        }
        let body = &self.pending[len..];
        self.body = body.len() as u64;
        sink.body(body);
        Ok(())
    }

    /// Returns the status; 0 before the head is complete.
    pub fn status(&self) -> u16 {
        if self.has_head { self.head.status } else { 0 }
    }

    /// Returns the status of a complete reply. Call this at the end of the output. Fails if the
    /// head is not complete, or if the body is shorter than its Content-Length.
    pub fn end(&self) -> Result<u16, CgiError> {
        let is_short = self.head.content_length.is_some_and(|length| length > self.body);
        if self.has_head && !is_short { Ok(self.head.status) } else { Err(CgiError::Premature) }
    }
}

impl Default for ScriptReader {
    fn default() -> Self {
        let (head, pending) = (ReplyHead::default(), Vec::new());
        Self { heads: heads(), head, pending, has_head: false, body: 0 }
    }
}

fn heads() -> ReplyReader<ReplyParser> {
    ReplyReader::new(ReplyParser::new(Http1Limits::default()))
}

fn malformed(error: ReplyError<CgiError>) -> Malformed {
    match error {
        ReplyError::Head(error) => Malformed::Script(error),
        ReplyError::Interim => Malformed::Interim,
    }
}
