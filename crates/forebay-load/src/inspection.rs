//! Inspects replies: counts the bytes of the body, and compares the reply with the check.

use forebay_client::Sink;
use memchr::memmem;

use crate::Check;
use crate::cookies::SharedJar;
use crate::grpc::{BadReply, GrpcReply, GrpcStatus};

/// Inspection of a reply. Always counts the bytes of the body. Also compares or keeps the content
/// of the reply if the load needs this.
#[derive(Debug, Default)]
pub(crate) struct Inspection {
    length: u64,
    /// Inspection of the content, or `None` if the load needs none. So most loads test only this
    /// field for each part of a reply.
    content: Option<Box<ContentInspection>>,
}

/// Inspection of the status, the fields and the body of a reply.
#[derive(Debug, Default)]
struct ContentInspection {
    status: Option<u16>,
    search: Option<Search>,
    /// First bytes of the body, for an error message. Only collected with a check or for a virtual
    /// user.
    beginning: Vec<u8>,
    /// Cookies of the connection, if they are kept.
    jar: Option<SharedJar>,
    /// Content of the reply to a step of a scenario.
    probe: Option<Box<Probe>>,
    /// Reader of the reply, for gRPC.
    grpc: Option<Box<GrpcReply>>,
}

/// Content of a reply: its fields and the beginning of its body. The size of both is limited,
/// because the server chooses it.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// Sum of the lengths of all fields.
    size: usize,
    body: Vec<u8>,
    wants_body: bool,
    is_cut: bool,
}

/// Maximum size of the fields and of the body that are kept of a reply.
const LARGEST_HEAD: usize = 64 << 10;
const LARGEST_BODY: usize = 1 << 20;

/// Maximum number of body bytes that an error message quotes.
const QUOTED: usize = 60;

/// Reason why a complete, well-formed reply does not pass the check.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mismatch {
    /// The status differs from this expected one.
    Status(u16),
    /// The body does not contain the expected text.
    Body,
    /// The call failed with this status.
    Grpc(GrpcStatus),
    /// The reply violates the rules of gRPC.
    NotGrpc(BadReply),
}

impl Inspection {
    /// Creates an inspection for a load without scenarios. Each reply is compared with `check`, and
    /// its cookies are stored in `jar`. `None` leaves out the comparison or the cookies.
    pub fn new(check: Option<&Check>, jar: Option<SharedJar>) -> Self {
        if check.is_none() && jar.is_none() {
            return Self::default();
        }
        let needle = check.and_then(|check| check.body_contains.as_deref());
        let status = check.map(|check| check.status);
        let search = needle.map(Search::new);
        Self::of(ContentInspection { status, search, jar, ..ContentInspection::default() })
    }

    /// Creates an inspection for a virtual user. Stores cookies in `jar`.
    pub fn for_user(jar: SharedJar) -> Self {
        let (probe, jar) = (Some(Box::default()), Some(jar));
        Self::of(ContentInspection { probe, jar, ..ContentInspection::default() })
    }

    fn of(content: ContentInspection) -> Self {
        Self { length: 0, content: Some(Box::new(content)) }
    }

    /// Makes the inspection also read the gRPC status and the messages of each reply.
    pub fn for_grpc(mut self) -> Self {
        self.content.get_or_insert_default().grpc = Some(Box::default());
        self
    }

    /// Keeps the fields of the next reply, and its body if `wants_body` is true. Does nothing on a
    /// connection without a virtual user.
    pub fn watch(&mut self, wants_body: bool) {
        if let Some(probe) = self.content.as_mut().and_then(|content| content.probe.as_mut()) {
            probe.clear();
            probe.wants_body = wants_body;
        }
    }

    /// Returns the content of the reply to a step of a scenario. Returns `None` without a virtual
    /// user.
    pub fn probe(&self) -> Option<&Probe> {
        self.content.as_ref()?.probe.as_deref()
    }

    /// Returns the reader of the gRPC reply. Returns `None` for other protocols.
    #[inline]
    pub fn grpc(&self) -> Option<&GrpcReply> {
        self.content.as_ref()?.grpc.as_deref()
    }

    /// Returns the number of body bytes of the reply.
    #[inline]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the start of the body as text, for an error message.
    pub fn quote(&self) -> String {
        let beginning = self.content.as_ref().map_or(&[][..], |content| &content.beginning[..]);
        if beginning.is_empty() {
            return "its body is empty".to_owned();
        }
        let more = if self.length > beginning.len() as u64 { "..." } else { "" };
        format!("its body begins \"{}{more}\"", beginning.escape_ascii())
    }

    /// Compares the reply with the check. Returns the first difference. Returns `None` if there is
    /// no difference or no check.
    #[inline]
    pub fn mismatch(&self, status: u16) -> Option<Mismatch> {
        self.content.as_ref()?.mismatch(status)
    }
}

impl Sink for Inspection {
    #[inline]
    fn begin(&mut self) {
        self.length = 0;
        if let Some(content) = &mut self.content {
            content.begin();
        }
    }

    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) {
        if let Some(content) = &mut self.content {
            content.field(name, value);
        }
    }

    #[inline]
    fn wants_fields(&self) -> bool {
        self.content.as_ref().is_some_and(|content| content.jar.is_some() || content.grpc.is_some())
    }

    fn trailer(&mut self, name: &[u8], value: &[u8]) {
        if let Some(grpc) = self.content.as_mut().and_then(|content| content.grpc.as_mut()) {
            grpc.trailer(name, value);
        }
    }

    #[inline]
    fn body(&mut self, piece: &[u8]) {
        self.length += piece.len() as u64;
        if let Some(content) = &mut self.content {
            content.body(piece);
        }
    }
}

impl ContentInspection {
    fn mismatch(&self, status: u16) -> Option<Mismatch> {
        match self.grpc.as_ref().map(|reply| reply.status(status)) {
            None | Some(Ok(GrpcStatus::OK)) => {}
            Some(Ok(failed)) => return Some(Mismatch::Grpc(failed)),
            Some(Err(why)) => return Some(Mismatch::NotGrpc(why)),
        }
        match self.status {
            Some(expected) if expected != status => Some(Mismatch::Status(expected)),
            _ if self.search.as_ref().is_none_or(Search::found) => None,
            _ => Some(Mismatch::Body),
        }
    }

    fn begin(&mut self) {
        self.beginning.clear();
        if let Some(grpc) = &mut self.grpc {
            grpc.begin();
        }
        if let Some(search) = &mut self.search {
            search.reset();
        }
        if let Some(probe) = &mut self.probe {
            probe.clear();
        }
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        if let Some(grpc) = &mut self.grpc {
            grpc.field(name, value);
        }
        if let Some(jar) = &self.jar
            && name.eq_ignore_ascii_case(b"set-cookie")
        {
            jar.store(value);
        }
        if let Some(probe) = &mut self.probe {
            probe.field(name, value);
        }
    }

    fn body(&mut self, piece: &[u8]) {
        if let Some(probe) = &mut self.probe {
            probe.add(piece);
        }
        if let Some(grpc) = &mut self.grpc {
            grpc.body(piece);
        }
        if (self.status.is_some() || self.probe.is_some()) && self.beginning.len() < QUOTED {
            let room = QUOTED - self.beginning.len();
            self.beginning.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        if let Some(search) = &mut self.search {
            search.feed(piece);
        }
    }
}

impl Probe {
    /// Returns the values of all fields with this name.
    pub fn fields<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let is_named = |(n, _): &&(Vec<u8>, Vec<u8>)| n.eq_ignore_ascii_case(name.as_bytes());
        self.fields.iter().filter(is_named).map(|(_, value)| value.as_slice())
    }

    /// Returns the beginning of the body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns true if only the beginning of the body was kept.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn clear(&mut self) {
        self.fields.clear();
        self.body.clear();
        (self.size, self.is_cut) = (0, false);
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.size += name.len() + value.len();
        if self.size <= LARGEST_HEAD {
            self.fields.push((name.to_vec(), value.to_vec()));
        }
    }

    fn add(&mut self, piece: &[u8]) {
        if !self.wants_body {
            return;
        }
        let room = LARGEST_BODY - self.body.len();
        self.is_cut |= piece.len() > room;
        self.body.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

/// Search for a byte sequence (the needle) in a body that arrives in pieces. The pieces are never
/// joined.
#[derive(Debug)]
pub(crate) struct Search {
    finder: memmem::Finder<'static>,
    /// Last bytes of the previous pieces: one byte fewer than the needle has.
    tail: Vec<u8>,
    found: bool,
}

impl Search {
    pub fn new(needle: &[u8]) -> Self {
        let finder = memmem::Finder::new(needle).into_owned();
        Self { found: needle.is_empty(), finder, tail: Vec::new() }
    }

    /// Prepares the search for a new body.
    pub fn reset(&mut self) {
        self.tail.clear();
        self.found = self.finder.needle().is_empty();
    }

    pub fn feed(&mut self, piece: &[u8]) {
        if self.found {
            return;
        }
        let keep = self.finder.needle().len() - 1;
        // A match that starts in an earlier piece ends within the first `keep` bytes of this piece.
        let border = piece.len().min(keep);
        self.tail.extend_from_slice(&piece[..border]);
        self.found = self.finder.find(&self.tail).is_some() || self.finder.find(piece).is_some();
        if piece.len() >= keep {
            self.tail.clear();
            self.tail.extend_from_slice(&piece[piece.len() - keep..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(keep));
        }
    }

    pub fn found(&self) -> bool {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(needle: &str, pieces: &[&str]) -> bool {
        let mut search = Search::new(needle.as_bytes());
        pieces.iter().for_each(|piece| search.feed(piece.as_bytes()));
        search.found()
    }

    #[test]
    fn found_however_the_body_is_cut() {
        let body = "xxHelHello, worldyy";
        for first in 0..body.len() {
            for second in first..body.len() {
                let pieces = [&body[..first], &body[first..second], &body[second..]];
                assert!(found("Hello, world", &pieces), "{pieces:?}");
                assert!(!found("Hello, World", &pieces), "{pieces:?}");
            }
        }
        let bytes: Vec<&str> = body.split("").collect();
        assert!(found("Hello, world", &bytes));
    }

    #[test]
    fn not_found_across_bodies() {
        let mut search = Search::new(b"ab");
        search.feed(b"a");
        search.reset();
        search.feed(b"b");
        assert!(!search.found());
    }

    #[test]
    fn the_empty_needle_is_everywhere() {
        assert!(found("", &[]));
    }
}
