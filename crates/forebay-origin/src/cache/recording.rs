//! Decides if replies of the origin are stored.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_conf as conf;
use forebay_net::head::Request;
use forebay_net::thread::Thread;
use forebay_server::reply::{Keep, Length, Recorder};
use forebay_wire::caching::{Circumstances, Freshness, Refusal, ReplyControl, ReplyTimes};
use forebay_wire::fields::of_lines;
use forebay_wire::http1::encode;
use forebay_wire::sendfile;

use super::disk::{Disk, Spill};
use super::large::LargeBody;
use super::resource::Unstorable;
use super::store::{Arriving, Lead};
use super::stored::{Arrival, Stored, wall_clock};

/// Decision about a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The reply confirms the stored one.
    Confirmed,
    /// The origin has failed, and the stored reply may be used.
    Failed,
    /// The reply is not stored.
    Refused,
    /// The reply is stored.
    Stores,
}

/// Recorder of a reply that may be stored.
pub struct Recording {
    settings: Rc<conf::Cache>,
    circumstances: Circumstances,
    /// True if the request has conditions. The client then gets an answer from the stored reply.
    has_conditions: bool,
    stale: Option<Arc<Stored>>,
    /// True if the stale reply may be used when the origin fails.
    on_error: bool,
    /// While this value exists, the reply may be stored, and other requests may wait for it.
    lead: RefCell<Option<Lead>>,
    /// Maximum size of a body in memory, in bytes.
    most: usize,
    /// Memory of the body while it arrives.
    arriving: Arriving,
    /// Writes the body to disk if it is too large for the memory; `None` if the disk takes no such
    /// bodies.
    large: Option<Box<LargeBody>>,
    asked: u64,
    /// Number of the request, for [`Stored::number`].
    number: u64,
    judged: RefCell<Option<(Verdict, ReplyControl, Freshness)>>,
}

impl Recording {
    /// Creates the recorder of the reply to a request that is sent now.
    pub fn new(
        settings: &Rc<conf::Cache>,
        circumstances: Circumstances,
        has_conditions: bool,
        (stale, on_error): (Option<Arc<Stored>>, bool),
        (lead, most): (Lead, usize),
    ) -> Self {
        let (arriving, number) = (lead.arriving(), lead.number());
        let is_larger = |disk: &Disk| settings.max_size as u64 > disk.in_memory();
        let disk = lead.disk().filter(|(disk, _)| is_larger(disk));
        let large = disk.map(|disk| Box::new(LargeBody::new(disk, settings.max_size)));
        Self {
            settings: settings.clone(),
            circumstances,
            has_conditions,
            stale,
            on_error,
            lead: RefCell::new(Some(lead)),
            arriving,
            large,
            most,
            asked: wall_clock(),
            number,
            judged: RefCell::new(None),
        }
    }

    /// Returns the decision about the reply; `None` if no head has arrived.
    pub fn verdict(&self) -> Option<Verdict> {
        self.judged.borrow().as_ref().map(|(verdict, ..)| *verdict)
    }

    /// Takes the lead. Returns `None` if the lead was already taken, so that no requests wait.
    pub fn take_lead(&self) -> Option<Lead> {
        self.lead.borrow_mut().take()
    }

    /// Records that the origin has answered, or has failed. Requests that waited for this reply and
    /// cannot use it then ask the origin together.
    pub fn note_answer(&self) {
        if let Some(lead) = &*self.lead.borrow() {
            lead.note_answer();
        }
    }

    /// Takes the body that was written to disk, or `None` if there is no such body.
    pub fn take_spill(&self) -> Option<Spill> {
        self.large.as_ref()?.take()
    }

    /// Ends the wait of other requests for this reply, so that these requests ask the origin
    /// themselves. If `why` is given, further requests ask the origin at once during the next ten
    /// seconds. For [`Unstorable::User`], this applies only to requests that name a user. Does
    /// nothing if [`Self::take_lead`] was called before.
    fn end_lead(&self, why: Option<Unstorable>) {
        let Some((lead, why)) = self.take_lead().zip(why) else { return };
        if why != Unstorable::User {
            // If a stale reply is stored, waiting requests would otherwise ask the origin one after
            // another.
            lead.let_others_pass();
        }
        lead.pass(why);
    }

    /// Returns the reply to store.
    pub fn stored(&self, status: u16, lines: &[u8], request: &Request, body: Vec<u8>) -> Stored {
        let judged = self.judged.borrow_mut().take();
        let (control, freshness) =
            judged.map(|(_, control, freshness)| (control, freshness)).unwrap_or_default();
        let arrival = Arrival { status, lines, control, freshness };
        Stored { number: self.number, ..Stored::new(&arrival, request, body) }
    }

    /// Returns the reply `stale` after a 304 has confirmed it, with the field lines `lines`. If
    /// these lines forbid storage, the second value is the reason. For example, a 304 may set a
    /// cookie, or contain `private`.
    pub fn confirmed(
        &self,
        stale: &Stored,
        lines: Vec<u8>,
        request: &Request,
    ) -> (Stored, Option<Refusal>) {
        let (control, freshness) = self.freshness(stale.status, &lines);
        let reply = (stale.status, &lines[..]);
        let refusal = Refusal::of(&control, reply, &freshness, self.circumstances);
        let arrival = Arrival { status: stale.status, lines: &[], control, freshness };
        let confirmed = stale.confirmed(&arrival, lines, request);
        (Stored { number: self.number, ..confirmed }, refusal)
    }

    fn freshness(&self, status: u16, lines: &[u8]) -> (ReplyControl, Freshness) {
        let control = ReplyControl::of_lines(lines);
        let times = ReplyTimes { asked: self.asked, arrived: wall_clock() };
        let default = self.settings.valid.map(|valid| valid.as_secs());
        let freshness = Freshness::of(&control, (status, lines), times, default);
        (control, freshness)
    }

    /// Begins to write a body to disk that is too large for the memory, and lets waiting requests
    /// ask the origin. Returns false if the length is unknown, or if the disk does not take the
    /// body.
    fn begin_large(&self, length: Length) -> bool {
        let Length::Known(length) = length else { return false };
        let has_begun = self.large.as_ref().is_some_and(|large| large.begin(length));
        if has_begun {
            self.let_others_pass();
        }
        has_begun
    }

    /// Ends the wait of other requests for this reply. The reply is nevertheless stored when it is
    /// complete.
    fn let_others_pass(&self) {
        if let Some(lead) = &*self.lead.borrow() {
            lead.let_others_pass();
        }
    }

    /// Returns true if the body is too large for the memory, and if the disk takes it only at the
    /// next request for the same resource.
    fn is_first_of_large(&self) -> bool {
        self.large.as_ref().is_some_and(|large| large.is_first())
    }

    /// Returns the reason why a reply with this status is not stored. If `refusal` is `None`, the
    /// body could not be stored. Returns `None` if only the disk has refused the body, because it
    /// takes large bodies only at the second request.
    fn why(&self, status: u16, refusal: Option<Refusal>) -> Option<Unstorable> {
        if let Some(refusal) = refusal {
            return Some(unstorable(status, refusal));
        }
        (!self.is_first_of_large()).then_some(Unstorable::Reply)
    }

    fn keep(&self, verdict: Verdict, length: Length) -> Keep {
        match verdict {
            Verdict::Confirmed | Verdict::Failed => Keep::Drop,
            Verdict::Refused => Keep::No,
            Verdict::Stores if self.large.as_ref().is_some_and(|large| large.has_begun()) => {
                Keep::Spill
            }
            // `Instead` buffers the whole body before the client gets the answer. A body of unknown
            // length may become too large for this, so `Copy` sends it while it arrives.
            Verdict::Stores if self.has_conditions && length != Length::Unknown => {
                Keep::Instead(self.most)
            }
            Verdict::Stores => Keep::Copy(self.most),
        }
    }
}

impl Recorder for Recording {
    fn decide(&self, status: u16, lines: &[u8], length: Length) -> Keep {
        let (control, freshness) = self.freshness(status, lines);
        let is_too_long = matches!(length, Length::Known(n) if n > self.most as u64);
        // Discard the body of an earlier attempt, if there was one.
        drop(self.take_spill());
        let has_failed = matches!(status, 500 | 502 | 503 | 504);
        let verdict = if status == 304 && self.stale.is_some() {
            Verdict::Confirmed
        } else if has_failed && self.on_error {
            Verdict::Failed
        } else {
            let reply = (status, lines);
            let refusal = Refusal::of(&control, reply, &freshness, self.circumstances);
            let is_refused = refusal.is_some() || is_too_long && !self.begin_large(length);
            if is_refused {
                // The reply may be endless, so other requests must not wait for its end.
                self.end_lead(self.why(status, refusal));
                Verdict::Refused
            } else {
                Verdict::Stores
            }
        };
        *self.judged.borrow_mut() = Some((verdict, control, freshness));
        self.keep(verdict, length)
    }

    fn append_fields(&self, lines: &mut Vec<u8>) {
        let why = if self.stale.is_some() { "stale" } else { "miss" };
        let stores = if self.verdict() == Some(Verdict::Stores) { "; stored" } else { "" };
        encode::field(lines, "Cache-Status", format!("forebay; fwd={why}{stores}").as_bytes());
    }

    fn reserve(&self, bytes: usize) -> bool {
        self.arriving.reserve(bytes)
    }

    fn spill(&self, bytes: &[u8]) -> bool {
        let Some(large) = &self.large else { return false };
        let had_begun = large.has_begun();
        let is_stored = large.push(bytes);
        if is_stored && !had_begun {
            // The rest of the body arrives only as fast as this client reads, so other requests
            // must not wait for its end.
            self.let_others_pass();
        }
        is_stored
    }

    fn give_up(&self) {
        drop(self.take_spill());
        self.end_lead(self.why(200, None));
    }
}

/// Returns the reason why a reply with this status is not stored. The reason decides which later
/// requests ask the origin at once.
pub fn unstorable(status: u16, refusal: Refusal) -> Unstorable {
    match refusal {
        Refusal::Personal | Refusal::Authorized => Unstorable::User,
        _ if status >= 500 => Unstorable::Error,
        _ => Unstorable::Reply,
    }
}

/// Adds `Date` if it is missing, because a stored reply needs it (RFC 9110 section 6.6.1). Removes
/// fields that only the gateway reads, such as `X-Sendfile`.
pub fn complete(lines: &mut Vec<u8>, thread: &Thread) {
    sendfile::strip(lines, 0);
    if !of_lines(lines).any(|field| field.name.eq_ignore_ascii_case(b"date")) {
        thread.deadlines.clock.append_date(lines);
    }
}
