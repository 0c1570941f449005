//! Output of scripts and applications: a CGI reply or HTTP.

use std::os::unix::ffi::OsStrExt;

use forebay_net::fault::Fault;
use forebay_net::head::Request;
use forebay_server::reply::Reply;

use crate::nph::NphReply;
use crate::script::Script;
use crate::script_reply::{OutputLimit, ScriptReply};

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
