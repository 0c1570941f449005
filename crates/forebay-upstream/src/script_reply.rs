//! Converts a script's output into a reply while the output arrives.
//!
//! Forebay holds the first output until the script ends, prints nothing for 1 ms, or has printed
//! more than 32 KiB. So a short reply gets a `Content-Length`, and needs only one write. With the
//! length, an HTTP/1.0 client can keep its connection. Forebay streams all other output.

use std::time::Duration;

use forebay_net::fault::Fault;
use forebay_net::limit::Limit;
use forebay_net::thread::Thread;
use forebay_server::reply::{Length, Reply, is_unbuffered_field};
use forebay_wire::Span;
use forebay_wire::cgi::{CgiError, ReplyHead, ReplyParser};
use forebay_wire::http1::{Field, Http1Limits, KnownField};
use forebay_wire::reply::{ReplyError, ReplyReader, ReplyStep};
use forebay_wire::sendfile;

use crate::fields::note_live;
use crate::upgrade;

/// Maximum number of bytes that are held until the script ends or pauses. A short reply then gets a
/// `Content-Length` and needs one write.
const HOLD: usize = 32 * 1024;

/// Initial capacity for header fields. Few scripts write more.
const USUAL_FIELDS: usize = 16;

/// Forebay sends held output when the script has printed nothing for this time.
// A script that ends after its last output does so within microseconds, and the reply then gets a
// `Content-Length`.
pub const PAUSE: Duration = Duration::from_millis(1);

/// Function that creates a fault for invalid output and names the side at fault.
pub type Blame = fn(u16, String) -> Fault;

/// Remaining bytes that a script may print.
#[derive(Clone, Copy)]
pub struct OutputLimit {
    most: u64,
    left: u64,
    blame: Blame,
    /// Limits of the reply's head.
    pub heads: Http1Limits,
    /// True if heads with oddities are refused, even if their meaning is certain.
    pub is_strict: bool,
}

impl OutputLimit {
    /// Creates a limit of `most` bytes. `blame` names the side at fault if there are more.
    pub fn new(most: u64, blame: Blame, thread: &Thread) -> Self {
        Self { most, left: most, blame, heads: thread.settings().reply_limits(), is_strict: false }
    }

    /// Sets whether heads with oddities are refused.
    pub fn strict(self, is_strict: bool) -> Self {
        Self { is_strict, ..self }
    }

    /// Returns the fault of a malformed or too large head.
    pub fn head_fault(&self, message: String, is_too_large: bool) -> Fault {
        head_fault(self.blame, message, is_too_large)
    }

    /// Returns the fault of an invalid reply.
    pub fn fault(&self, message: String) -> Fault {
        (self.blame)(502, message)
    }

    /// Subtracts the length of `output` from the limit. Fails if the limit is exceeded.
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

/// Returns the fault of a malformed or too large head of a reply.
pub fn head_fault(blame: Blame, message: String, is_too_large: bool) -> Fault {
    if !is_too_large {
        return blame(502, message);
    }
    let keys = "; raise reply_head_size or reply_fields of [server.limits]";
    blame(502, message + keys).limited_by(Limit::ReplyHead)
}

/// A reply that is built from the output of one script.
pub struct ScriptReply {
    heads: ReplyReader<ReplyParser>,
    head: ReplyHead,
    output: Vec<u8>,
    stage: Stage,
    is_unflushed: bool,
    /// True if output is sent as it arrives.
    is_immediate: bool,
    limit: OutputLimit,
    /// Number of output bytes so far, without interim heads (1xx).
    len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The head is incomplete.
    Head,
    /// The head is complete. The head, and the first body bytes if there are any, are still in
    /// `output`.
    Held,
    /// The reply has begun.
    Streaming,
}

impl ScriptReply {
    /// Creates an empty reply. `limit` bounds the script's output, and creates the fault for
    /// malformed or excessive output.
    pub fn new(limit: OutputLimit) -> Self {
        Self {
            heads: ReplyReader::new(ReplyParser::new(limit.heads)).strict(limit.is_strict),
            head: ReplyHead { fields: Vec::with_capacity(USUAL_FIELDS), ..ReplyHead::default() },
            output: Vec::new(),
            stage: Stage::Head,
            is_unflushed: false,
            is_immediate: false,
            limit,
            len: 0,
        }
    }

    /// Returns true if as many bytes of the body have arrived as the script's `Content-Length` says.
    pub fn is_complete(&self) -> bool {
        let body = self.len.saturating_sub(self.head.len as u64);
        self.has_head() && self.head.content_length.is_some_and(|length| body >= length)
    }

    /// Returns true if nothing of the final reply has arrived.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the head is complete.
    pub fn has_head(&self) -> bool {
        self.stage != Stage::Head
    }

    /// Returns true if there is output that was not sent yet.
    pub fn has_output(&self) -> bool {
        self.stage == Stage::Held || self.stage == Stage::Streaming && self.is_unflushed
    }

    /// Processes the next piece of output.
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
            let step = self.heads.read_mending(&mut self.output, &mut self.head);
            self.len = self.output.len() as u64;
            let step = step.map_err(|error| {
                let is_too_large = error == ReplyError::Head(CgiError::TooLarge);
                self.limit.head_fault(self.describe(&format!("{error} in")), is_too_large)
            })?;
            match step {
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
                        is_unbuffered_field(field.known, name, value)
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

    /// Sends the output so far to the client, because the script has printed nothing for a while.
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

    /// Ends the reply, because the script has ended.
    pub async fn finish(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match self.stage {
            Stage::Head => {
                return Err(self.limit.fault(self.describe("no end of header in")));
            }
            Stage::Held => {
                let length = (self.output.len() - self.head.len) as u64;
                // A script may answer HEAD without a body. So the length of the body for GET is
                // unknown.
                let is_known = length > 0 || !reply.is_to_head();
                let length = if is_known { Length::Known(length) } else { Length::Unknown };
                self.start(length, reply).await?;
            }
            Stage::Streaming => {}
        }
        reply.finish().await
    }

    /// Sends an interim reply to the client.
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

    /// Begins the reply, and sends the body bytes that were held back until now. The script's own
    /// `Content-Length` takes precedence over `length`. For a local redirect, drops the body, and
    /// requests an internal redirect to the script's `Location`.
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
        note_live(reply, &head.fields, bytes);
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
            reply.skip_sendfile_scan();
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

/// Returns true if a field of a local redirect is kept for the new document, as in Apache. Fields
/// that describe the old document or instruct the gateway are dropped.
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
        // The script separates name and value by `: `, so copy both at once.
        b": " => out.extend_from_slice((Span { start: name.start, end: value.end }).of(bytes)),
        _ => {
            out.extend_from_slice(name.of(bytes));
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.of(bytes));
        }
    }
    out.extend_from_slice(b"\r\n");
}
