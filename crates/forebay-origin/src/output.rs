//! What a script prints: a CGI reply, or that of a script which speaks HTTP itself.

use std::os::unix::ffi::OsStrExt;

use forebay_engine::{Fault, Reply, Request};

use crate::nph::NphReply;
use crate::script::Script;
use crate::script_reply::{OutputLimit, ScriptReply};

/// The reply being made of one script's output.
pub enum Output {
    /// With a CGI header in front.
    Parsed(ScriptReply),
    /// Whole HTTP (NPH).
    Raw(NphReply),
}

impl Output {
    /// Ready for the first byte; the name of the script tells which of the two it is.
    pub fn of(script: &Script, request: &Request, limit: OutputLimit) -> Self {
        let name = script.file.file_name().unwrap_or_default();
        if name.as_bytes().starts_with(b"nph-") {
            return Self::Raw(NphReply::new(request.method() == b"HEAD", limit));
        }
        Self::Parsed(ScriptReply::new(limit))
    }

    /// Whether the head is whole.
    pub fn has_head(&self) -> bool {
        match self {
            Self::Parsed(script) => script.has_head(),
            Self::Raw(nph) => nph.has_head(),
        }
    }

    /// Whether there is output that the client could already have.
    pub fn has_output(&self) -> bool {
        match self {
            Self::Parsed(script) => script.has_output(),
            Self::Raw(nph) => nph.has_output(),
        }
    }

    /// Takes output.
    pub async fn feed(&mut self, output: &[u8], reply: &mut Reply) -> Result<(), Fault> {
        match self {
            Self::Parsed(script) => script.feed(output, reply).await,
            Self::Raw(nph) => nph.feed(output, reply).await,
        }
    }

    /// The script pauses: what it printed goes to the client.
    pub async fn flush(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match self {
            Self::Parsed(script) => script.flush(reply).await,
            Self::Raw(nph) => nph.flush(reply).await,
        }
    }

    /// The script has ended.
    pub async fn finish(&mut self, reply: &mut Reply) -> Result<(), Fault> {
        match self {
            Self::Parsed(script) => script.finish(reply).await,
            Self::Raw(nph) => nph.finish(reply).await,
        }
    }
}
