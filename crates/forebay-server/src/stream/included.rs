//! The stream of a request that a page makes with server-side includes. Its reply stays in memory,
//! and no part of it reaches the client.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::SystemTime;

use forebay_net::head::Request;

use super::Stream;
use crate::part::{Accepted, Part, SharedState};

/// Maximum number of variables that a page and its includes set.
const MOST_VARIABLES: usize = 256;
/// Maximum total length of the names and values of these variables in bytes.
const MOST_BYTES: usize = 256 * 1024;

/// The state of a document. All pages that the document includes share this state.
pub struct IncludeState {
    /// The request of the document that the client asked for.
    pub document: Request,
    /// Time of the last change of that document.
    pub modified: Option<SystemTime>,
    /// Number of requests so far.
    pub requests: Cell<usize>,
    /// True if the document depends on more than its URL.
    pub is_private: Cell<bool>,
    /// True if no cache may store the document.
    pub is_uncacheable: Cell<bool>,
    /// The shortest lifetime in seconds of the included replies so far.
    pub lifetime: Cell<Option<u64>>,
    variables: RefCell<Vec<(String, Vec<u8>)>>,
}

impl IncludeState {
    /// Creates the state of a document.
    pub fn new(document: Request, modified: Option<SystemTime>) -> Self {
        Self {
            document,
            modified,
            requests: Cell::new(0),
            is_private: Cell::new(false),
            is_uncacheable: Cell::new(false),
            lifetime: Cell::new(None),
            variables: RefCell::default(),
        }
    }

    /// Sets a variable. Returns false if there are too many variables, or if the variables have too
    /// many bytes.
    pub fn set(&self, name: &str, value: Vec<u8>) -> bool {
        let mut variables = self.variables.borrow_mut();
        variables.retain(|(other, _)| other != name);
        let bytes: usize = variables.iter().map(|(name, value)| name.len() + value.len()).sum();
        let fits =
            variables.len() < MOST_VARIABLES && bytes + name.len() + value.len() <= MOST_BYTES;
        if fits {
            variables.push((name.to_owned(), value));
        }
        fits
    }

    /// Returns the value of a variable, or `None` if it is not set.
    pub fn variable(&self, name: &str) -> Option<Vec<u8>> {
        let variables = self.variables.borrow();
        variables.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
    }

    /// Returns the names of all variables.
    pub fn names(&self) -> Vec<String> {
        self.variables.borrow().iter().map(|(name, _)| name.clone()).collect()
    }
}

/// A reply in memory.
#[derive(Debug, Default)]
pub struct IncludedReply {
    /// Status of the reply. 0 if there is no reply.
    pub status: u16,
    /// Field lines.
    pub lines: Vec<u8>,
    /// Body.
    pub body: Vec<u8>,
    /// True if the body has arrived completely.
    pub is_complete: bool,
}

/// A request that a page makes.
pub struct Included {
    /// The stream of the page.
    pub parent: Stream,
    /// Copy of the client's connection.
    pub accepted: Accepted,
    pub(crate) shared: SharedState,
    /// State of the document.
    pub state: Rc<IncludeState>,
    /// Targets of this request and of all pages that include it.
    pub chain: Vec<Vec<u8>>,
    /// True if the including page needs only the head of the reply. If the reply is an SSI page, it
    /// is then not evaluated.
    pub is_probe: bool,
    most: usize,
    reply: RefCell<IncludedReply>,
}

impl Included {
    /// Creates the stream of a request whose reply has at most `most` bytes.
    pub fn new(
        parent: &Stream,
        state: Rc<IncludeState>,
        chain: Vec<Vec<u8>>,
        (most, is_probe): (usize, bool),
    ) -> Self {
        let Accepted { thread, peer, local, listener, tls } = parent.accepted();
        let accepted = Accepted {
            thread: thread.clone(),
            peer: *peer,
            local: *local,
            listener: *listener,
            tls: tls.clone(),
        };
        let (parent, shared) = (parent.clone(), SharedState::default());
        let reply = RefCell::default();
        Self { parent, accepted, shared, state, chain, is_probe, most, reply }
    }

    /// Takes the reply.
    pub fn take_reply(&self) -> IncludedReply {
        self.reply.take()
    }

    pub(super) fn write(&self, part: &Part<'_>) -> io::Result<()> {
        let (head, body) = part.gathered.split_at(part.body_at);
        if part.has_head {
            let mut reply = self.reply.borrow_mut();
            (reply.status, reply.is_complete) = (part.status, false);
            reply.lines = head[part.fields_at..].to_vec();
            reply.body.clear();
        }
        self.append(body)?;
        self.append(part.data)?;
        self.reply.borrow_mut().is_complete |= part.last.is_some();
        Ok(())
    }

    pub(super) fn append(&self, data: &[u8]) -> io::Result<()> {
        let mut reply = self.reply.borrow_mut();
        if reply.body.len() + data.len() > self.most {
            return Err(too_large());
        }
        reply.body.extend_from_slice(data);
        Ok(())
    }

    pub(super) fn send_file(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        ends: bool,
    ) -> io::Result<()> {
        let mut reply = self.reply.borrow_mut();
        let at = reply.body.len();
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > self.most.saturating_sub(at) {
            return Err(too_large());
        }
        reply.body.resize(at + length, 0);
        let file = File::from(file.try_clone_to_owned()?);
        file.read_exact_at(&mut reply.body[at..], offset)?;
        reply.is_complete |= ends;
        Ok(())
    }
}

fn too_large() -> io::Error {
    io::Error::other("an included reply is too large")
}
