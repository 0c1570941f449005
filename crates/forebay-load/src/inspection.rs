//! Inspects replies: counts the bytes of the body, and compares the reply with the check.

use forebay_client::Sink;

use crate::Check;
use crate::cookies::SharedJar;
use crate::search::Search;

/// Inspection of a reply: counts the bytes of the body, and searches them if a check requires that.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    length: u64,
    status: Option<u16>,
    search: Option<Search>,
    /// First bytes of the body, for an error message. Only collected with a check.
    beginning: Vec<u8>,
    /// Cookies of the connection, if they are kept.
    jar: Option<SharedJar>,
}

/// Maximum number of body bytes that an error message quotes.
const QUOTED: usize = 60;

/// Reason why a complete, well-formed reply does not pass the check.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mismatch {
    /// The status is not this expected one.
    Status(u16),
    /// The body does not contain the expected text.
    Body,
}

impl Inspection {
    /// Creates an inspection for `check`. Stores cookies in `jar`.
    pub fn new(check: Option<&Check>, jar: Option<SharedJar>) -> Self {
        let needle = check.and_then(|check| check.body_contains.as_deref());
        let status = check.map(|check| check.status);
        Self { length: 0, status, search: needle.map(Search::new), beginning: Vec::new(), jar }
    }

    /// Returns the number of body bytes of the reply.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the start of the body as text, for an error message.
    pub fn quote(&self) -> String {
        if self.beginning.is_empty() {
            return "its body is empty".to_owned();
        }
        let more = if self.length > self.beginning.len() as u64 { "..." } else { "" };
        format!("its body begins \"{}{more}\"", self.beginning.escape_ascii())
    }

    /// Compares the reply with the check. Returns the first difference, if there is one.
    pub fn mismatch(&self, status: u16) -> Option<Mismatch> {
        match self.status {
            Some(expected) if expected != status => Some(Mismatch::Status(expected)),
            _ if self.search.as_ref().is_none_or(Search::found) => None,
            _ => Some(Mismatch::Body),
        }
    }
}

impl Sink for Inspection {
    fn begin(&mut self) {
        self.length = 0;
        self.beginning.clear();
        if let Some(search) = &mut self.search {
            search.reset();
        }
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        if let Some(jar) = &self.jar
            && name.eq_ignore_ascii_case(b"set-cookie")
        {
            jar.store(value);
        }
    }

    fn wants_fields(&self) -> bool {
        self.jar.is_some()
    }

    fn body(&mut self, piece: &[u8]) {
        self.length += piece.len() as u64;
        if self.status.is_some() && self.beginning.len() < QUOTED {
            let room = QUOTED - self.beginning.len();
            self.beginning.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        if let Some(search) = &mut self.search {
            search.feed(piece);
        }
    }
}
