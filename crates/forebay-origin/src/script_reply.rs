//! A script's output turned into a reply, as it comes.
//!
//! Output is held for a moment (up to 32 KiB, or 1 ms of silence), so that a short reply gets a
//! `Content-Length`, HTTP/1.0 clients keep their connection, and one write is enough. Slow output
//! is streamed.

use std::time::Duration;

use forebay_engine::{Fault, Length, Limit, Reply, goes_out_at_once};
use forebay_wire::Span;
use forebay_wire::cgi::{ReplyHead, ReplyParser};
use forebay_wire::http1::{Field, KnownField, Limits};
use forebay_wire::reply::{ReplyReader, ReplyStep};
use forebay_wire::sendfile;

use crate::upgrade;

/// Output up to this many bytes is held back until the script ends or pauses, so that a short
/// reply gets a `Content-Length` and is written at once.
const HOLD: usize = 32 * 1024;

/// Room for as many fields as few scripts write more of.
const USUAL_FIELDS: usize = 16;

/// How long a script may pause before what it printed is sent on. Its last output and the word
/// that it has ended come a few microseconds apart.
pub const PAUSE: Duration = Duration::from_millis(1);

/// Makes a fault of what is wrong with the output.
pub type Blame = fn(u16, String) -> Fault;

/// How much a script may still print.
#[derive(Clone, Copy)]
pub struct OutputLimit {
    most: u64,
    left: u64,
    blame: Blame,
}

impl OutputLimit {
    /// At most this many bytes; `blame` names who is at fault if they are more.
    pub fn new(most: u64, blame: Blame) -> Self {
        Self { most, left: most, blame }
    }

    /// A bad reply, with the blame where it belongs.
    pub fn fault(&self, message: String) -> Fault {
        (self.blame)(502, message)
    }

    /// Some bytes of output have come.
    pub fn take(&mut self, output: &[u8]) -> Result<(), Fault> {
        let left = self.left.checked_sub(output.len() as u64);
        self.left = left.ok_or_else(|| {
            let message = format!(
                "the script printed more than {} bytes, the max_output given for it, and was cut off",
                self.most
            );
            (self.blame)(502, message).limited_by(Limit::MaxOutput)
        })?;
        Ok(())
    }
}

/// The reply being made of one script's output.
pub struct ScriptReply {
    heads: ReplyReader<ReplyParser>,
    head: ReplyHead,
    output: Vec<u8>,
    stage: Stage,
    is_unflushed: bool,
    /// It goes out as it comes.
    is_immediate: bool,
    limit: OutputLimit,
    /// Bytes of output so far.
    len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The head is not whole.
    Head,
    /// The head is whole and body may be there, all still in `output`.
    Held,
    /// The reply has begun.
    Streaming,
}

impl ScriptReply {
    /// Ready for the first byte of output; who `limit` blames is at fault if it is malformed, too.
    pub fn new(limit: OutputLimit) -> Self {
        Self {
            heads: ReplyReader::new(ReplyParser::new(Limits::default())),
            head: ReplyHead { fields: Vec::with_capacity(USUAL_FIELDS), ..ReplyHead::default() },
            output: Vec::new(),
            stage: Stage::Head,
            is_unflushed: false,
            is_immediate: false,
            limit,
            len: 0,
        }
    }

    /// Whether all of the `Content-Length` that the script wrote has come.
    pub fn is_complete(&self) -> bool {
        let body = self.len.saturating_sub(self.head.len as u64);
        self.has_head() && self.head.content_length.is_some_and(|length| body >= length)
    }

    /// Whether nothing has come yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the head is whole.
    pub fn has_head(&self) -> bool {
        self.stage != Stage::Head
    }

    /// Whether there is output that the client could already have.
    pub fn has_output(&self) -> bool {
        self.stage == Stage::Held || self.stage == Stage::Streaming && self.is_unflushed
    }

    /// Takes output.
    pub async fn feed(&mut self, output: &[u8], reply: &mut Reply) -> Result<(), Fault> {
        self.limit.take(output)?;
        self.len += output.len() as u64;
        self.is_unflushed = true;
        if self.stage == Stage::Streaming {
            if self.is_immediate {
                return reply.send(output).await;
            }
            return reply.push(output).await;
        }
        if self.output.capacity() == 0 {
            self.output = reply.take_buffer();
        }
        self.output.extend_from_slice(output);
        while self.stage == Stage::Head {
            let step = self.heads.read(&self.output, &mut self.head);
            match step.map_err(|error| self.limit.fault(self.describe(&format!("{error} in"))))? {
                ReplyStep::Partial => return Ok(()),
                ReplyStep::Interim(end) => {
                    self.inform(reply).await?;
                    self.output.drain(..end);
                    self.len -= end as u64;
                }
                ReplyStep::Final(_) => {
                    self.stage = Stage::Held;
                    self.is_immediate = self.head.fields.iter().any(|field| {
                        let (name, value) =
                            (field.name.of(&self.output), field.value.of(&self.output));
                        goes_out_at_once(field.known, name, value)
                    });
                }
            }
        }
        if self.is_immediate {
            return self.flush(reply).await;
        }
        if self.stage == Stage::Held && self.output.len() > HOLD {
            self.start(Length::Unknown, reply).await?;
        }
        Ok(())
    }

    /// The script pauses: what it printed goes to the client.
    pub async fn flush(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        if self.stage == Stage::Held {
            self.start(Length::Unknown, reply).await?;
        }
        if self.stage == Stage::Streaming {
            self.is_unflushed = false;
            reply.flush().await?;
        }
        Ok(())
    }

    /// The script has ended.
    pub async fn finish(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match self.stage {
            Stage::Head => {
                return Err(self.limit.fault(self.describe("no end of header in")));
            }
            Stage::Held => {
                let length = (self.output.len() - self.head.len) as u64;
                // What answers HEAD without a body says nothing about the body of a GET.
                let is_known = length > 0 || !reply.is_to_head();
                let length = if is_known { Length::Known(length) } else { Length::Unknown };
                self.start(length, reply).await?;
            }
            Stage::Streaming => {}
        }
        reply.finish().await
    }

    /// Passes an interim reply on.
    async fn inform(&self, reply: &mut Reply) -> Result<(), Fault> {
        let (head, bytes) = (&self.head, &self.output);
        let mut lines = Vec::with_capacity(head.len);
        for field in head.fields.iter().filter(|field| is_passed(field.known)) {
            append_line(&mut lines, field, bytes);
        }
        reply.inform(head.status, head.reason.of(bytes), &lines).await
    }

    fn describe(&self, what: &str) -> String {
        if self.output.is_empty() {
            return "the script printed nothing".into();
        }
        let start = String::from_utf8_lossy(&self.output[..self.output.len().min(200)]);
        format!("{what} the script's output, which starts with {start:?}")
    }

    /// Begins the reply and passes on the body held back. `length` is what is known of it; the
    /// script's own `Content-Length` goes before that.
    async fn start(&mut self, length: Length, reply: &mut Reply) -> Result<(), Fault> {
        let (head, bytes) = (&self.head, &self.output);
        if let Some(location) = head.location.filter(|_| head.is_local_redirect(bytes)) {
            let mut carried = Vec::new();
            for field in head.fields.iter().filter(|field| outlives_document(field, bytes)) {
                append_line(&mut carried, field, bytes);
            }
            reply.redirect_internally(location.of(bytes), &carried);
            self.stage = Stage::Streaming;
            return Ok(());
        }
        reply.begin(head.status, head.reason.of(bytes));
        let (mut has_date, mut names_files) = (false, false);
        for field in &head.fields {
            if is_passed(field.known) {
                has_date |= field.known == KnownField::Date;
                names_files |= field.known == KnownField::Other
                    && sendfile::is_for_gateway(field.name.of(bytes));
                append_line(reply.field_lines(), field, bytes);
            }
        }
        if head.status == 426 {
            upgrade::append_fields(reply.field_lines(), &head.fields, bytes);
        }
        if !names_files {
            reply.name_no_files();
        }
        if !self.is_immediate {
            reply.allow_buffering();
        }
        let length = match head.content_length {
            _ if matches!(head.status, 204 | 304) => Length::None,
            Some(length) => Length::Known(length),
            None => length,
        };
        reply.end_head(length, has_date);
        self.stage = Stage::Streaming;
        let output = std::mem::take(&mut self.output);
        let pushed = reply.push(&output[self.head.len..]).await;
        reply.keep_buffer(output);
        pushed
    }
}

/// Returns true for a field that is kept when another document is sent (as Apache does): for cookies, and
/// all others that do not describe the document or instruct the gateway.
fn outlives_document(field: &Field, bytes: &[u8]) -> bool {
    let name = field.name.of(bytes);
    let is_about = |other: &&[u8]| name.eq_ignore_ascii_case(other);
    let is_of_document = [&b"location"[..], b"date", b"etag", b"last-modified", b"accept-ranges"]
        .iter()
        .any(is_about)
        || name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"content-"));
    is_passed(field.known) && !is_of_document && !sendfile::is_for_gateway(name)
}

fn is_passed(known: KnownField) -> bool {
    !matches!(known, KnownField::Status | KnownField::ContentLength) && !known.is_hop_by_hop()
}

fn append_line(out: &mut Vec<u8>, field: &Field, bytes: &[u8]) {
    let Field { name, value, .. } = field;
    match (Span { start: name.end, end: value.start }).of(bytes) {
        // As most write it: one copy.
        b": " => out.extend_from_slice((Span { start: name.start, end: value.end }).of(bytes)),
        _ => {
            out.extend_from_slice(name.of(bytes));
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.of(bytes));
        }
    }
    out.extend_from_slice(b"\r\n");
}
