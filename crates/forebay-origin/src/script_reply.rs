//! A script's output turned into a reply, as it comes.

use std::time::Duration;

use forebay_engine::{Fault, Length, Reply};
use forebay_wire::cgi::{ReplyHead, ReplyParser};
use forebay_wire::http1::{Known, Limits, Progress};

/// Output up to this many bytes is held back until the script ends or pauses, so that a short
/// reply gets a `Content-Length` and is written at once.
const HOLD: usize = 32 * 1024;

/// How long a script may pause before what it printed is sent on. Its last output and the word
/// that it has ended come a few microseconds apart.
pub const PAUSE: Duration = Duration::from_millis(1);

/// Makes a fault of what is wrong with the output.
pub type Blame = fn(u16, String) -> Fault;

/// How much a script may still print.
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

    /// Some bytes of output have come.
    pub fn take(&mut self, output: &[u8]) -> Result<(), Fault> {
        let left = self.left.checked_sub(output.len() as u64);
        self.left = left.ok_or_else(|| {
            let message = format!(
                "the script printed more than {} bytes, the max_output given for it, and was cut off",
                self.most
            );
            (self.blame)(502, message)
        })?;
        Ok(())
    }
}

/// The reply being made of one script's output.
pub struct ScriptReply {
    parser: ReplyParser,
    head: ReplyHead,
    output: Vec<u8>,
    stage: Stage,
    is_unflushed: bool,
    limit: OutputLimit,
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
            parser: ReplyParser::new(Limits::default()),
            head: ReplyHead::default(),
            output: Vec::with_capacity(8 * 1024),
            stage: Stage::Head,
            is_unflushed: false,
            limit,
        }
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
        self.is_unflushed = true;
        if self.stage == Stage::Streaming {
            return reply.push(output).await;
        }
        self.output.extend_from_slice(output);
        if self.stage == Stage::Head {
            self.parse()?;
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
                return Err((self.limit.blame)(502, self.describe("no end of header in")));
            }
            Stage::Held => {
                let length = (self.output.len() - self.head.len) as u64;
                self.start(Length::Known(length), reply).await?;
            }
            Stage::Streaming => {}
        }
        reply.finish().await
    }

    fn parse(&mut self) -> Result<(), Fault> {
        match self.parser.parse(&self.output, &mut self.head) {
            Ok(Progress::Complete(_)) => self.stage = Stage::Held,
            Ok(Progress::Partial) => {}
            Err(error) => {
                return Err((self.limit.blame)(502, self.describe(&format!("{error} in"))));
            }
        }
        Ok(())
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
            reply.redirect_internally(location.of(bytes));
            self.stage = Stage::Streaming;
            return Ok(());
        }
        reply.begin(head.status, head.reason.of(bytes));
        let mut has_date = false;
        for field in &head.fields {
            match field.known {
                Known::Status | Known::ContentLength => continue,
                known if known.is_hop_by_hop() => continue,
                Known::Date => has_date = true,
                _ => {}
            }
            let out = reply.field_lines();
            out.extend_from_slice(field.name.of(bytes));
            out.extend_from_slice(b": ");
            out.extend_from_slice(field.value.of(bytes));
            out.extend_from_slice(b"\r\n");
        }
        let length = match head.content_length {
            _ if matches!(head.status, 100..=199 | 204 | 304) => Length::None,
            Some(length) => Length::Known(length),
            None => length,
        };
        reply.end_head(length, has_date);
        self.stage = Stage::Streaming;
        let output = std::mem::take(&mut self.output);
        reply.push(&output[self.head.len..]).await
    }
}
