//! Writes a reply: head, framing and body, with back-pressure from the client.

use std::rc::Rc;
use std::sync::Arc;

use forebay_conf::{BandwidthLimit, ErrorPages};
use forebay_net::fault::Fault;
use forebay_net::timing::Step;
use forebay_wire::http1::{RequestHead, Version, encode};
use forebay_wire::sendfile;

use crate::compress::{CompressedCopies, Compressor, Offer};
use crate::filter::BodyFilter;
use crate::part::HeadEnd;
use crate::stream::Stream;

mod body;
mod capture;
mod changes;
mod charset;
mod cookies;
mod cors;
mod filter;
mod grpc;
mod pace;
mod redirect;
mod rules;

pub use capture::{Captured, Keep, Recorder};
pub use changes::FieldChanges;
pub(crate) use cors::is_preflight;
use filter::PageStart;
pub(crate) use grpc::{is_call as is_grpc_call, is_head_of_grpc};
pub use redirect::InternalRedirect;
pub use rules::{Lifetimes, Rules, is_live_type, is_unbuffered_field};

/// Length of a reply's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// The body has this many bytes.
    Known(u64),
    /// Unknown until the end: chunked, or delimited by the connection's end with HTTP/1.0.
    Unknown,
    /// No body and no `Content-Length` (204, 304, 1xx).
    None,
}

/// The reply to one request.
// More than 20 fields: each reply writes most of them. Before you divide the struct, measure with
// `make instructions`.
pub struct Reply {
    stream: Option<Stream>,
    out: Vec<u8>,
    phase: ReplyPhase,
    /// True if a part of the reply has been written to the client.
    is_written: bool,
    framing: Framing,
    /// Status of the head in `out`.
    head_status: u16,
    /// True if `out` contains a head.
    has_head: bool,
    /// True if the head may contain fields that ask a gateway to send a file (`X-Accel-Redirect`,
    /// `X-Sendfile`).
    may_name_files: bool,
    /// True if the head may contain fields that ask for unbuffered delivery.
    may_be_immediate: bool,
    /// Start of the field lines in `out`, while the head is being written.
    fields: usize,
    /// Start of the collected body bytes in `out`. They become one chunk, regardless of the number
    /// of pieces.
    body_at: usize,
    rules: Option<Rc<Rules>>,
    /// Rules that were applied to the head and also apply to the trailers.
    applied: Option<Rc<Rules>>,
    redirect: Option<Box<InternalRedirect>>,
    /// Copies the origin's reply for a cache.
    capture: Option<Box<capture::Capture>>,
    /// Field lines from replies that an internal redirect has replaced.
    carried: Vec<u8>,
    /// Configured error pages.
    pages: Option<Rc<ErrorPages>>,
    /// True if `pages` also replace error replies of the origin.
    intercepts: bool,
    /// Filter of the route for the next head.
    next_filter: Option<Box<BodyFilter>>,
    /// Changes the body, from the end of the head on.
    filter: Option<Box<BodyFilter>>,
    /// Compression offer of the route for this request.
    offer: Option<Offer>,
    /// Compresses the body, from the end of the head on.
    compressor: Option<Box<Compressor>>,
    /// The compressed copy of a complete body, until [`Reply::push_whole`] sends it.
    compressed: Option<Arc<[u8]>>,
    to_head: bool,
    to_http10: bool,
    /// True if the client speaks gRPC and receives errors as a gRPC status.
    to_grpc: bool,
    keep_alive: bool,
    /// UDP port of HTTP/3 to announce to the client. 0 means none.
    http3_port: u16,
    /// True if data that the client does not accept at once is stored in the backlog.
    is_buffered: bool,
    status: u16,
    body_bytes: u64,
    /// Length of the final reply's head. While the head is being written, the start of the head in
    /// `out`.
    head_bytes: u32,
    /// Limits the speed of the body.
    pace: Option<Box<pace::Pace>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyPhase {
    Waiting,
    Head,
    Body,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// The reply has no body.
    None,
    /// This many body bytes remain.
    Length(u64),
    /// The protocol marks the end of the body.
    Open,
}

/// A complete body and its compressed copies.
type Whole<'a> = (&'a [u8], &'a CompressedCopies);

impl Reply {
    pub fn new(stream: &Stream) -> Self {
        Self {
            stream: Some(stream.clone()),
            out: Vec::new(),
            phase: ReplyPhase::Waiting,
            is_written: false,
            framing: Framing::None,
            head_status: 0,
            has_head: false,
            may_name_files: true,
            may_be_immediate: true,
            fields: 0,
            body_at: 0,
            rules: None,
            applied: None,
            redirect: None,
            capture: None,
            carried: Vec::new(),
            pages: None,
            intercepts: false,
            next_filter: None,
            filter: None,
            offer: None,
            compressor: None,
            compressed: None,
            to_head: false,
            to_http10: false,
            to_grpc: false,
            keep_alive: false,
            http3_port: 0,
            is_buffered: false,
            status: 0,
            body_bytes: 0,
            head_bytes: 0,
            pace: None,
        }
    }

    pub fn attach(&mut self, stream: &Stream) {
        self.stream = Some(stream.clone());
    }

    pub fn detach(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.thread().keep_buffer(std::mem::take(&mut self.out));
        }
        self.rules = None;
        self.applied = None;
        self.pages = None;
        (self.next_filter, self.filter) = (None, None);
        self.offer = None;
        self.compressor = None;
        self.capture = None;
        self.pace = None;
        self.to_grpc = false;
        self.carried = Vec::new();
        self.empty();
    }

    /// Prepares the reply to `head`.
    pub fn prepare(&mut self, head: &RequestHead, method: &[u8]) {
        self.empty();
        self.phase = ReplyPhase::Waiting;
        self.is_written = false;
        self.framing = Framing::None;
        self.is_buffered = false;
        self.to_head = method == b"HEAD";
        self.to_http10 = head.version == Version::Http10 && !self.stream().frames_bodies();
        self.keep_alive = head.keep_alive && !self.stream().thread().is_stopping();
        self.rules = None;
        self.applied = None;
        self.redirect = None;
        self.capture = None;
        (self.next_filter, self.filter) = (None, None);
        self.offer = None;
        self.compressor = None;
        self.compressed = None;
        self.pace = None;
        self.status = 0;
        self.body_bytes = 0;
        self.head_bytes = 0;
    }

    /// Prepares the refusal of a request whose head could not be parsed. `method` is empty if the
    /// method is malformed, too.
    pub(crate) fn prepare_refusal(&mut self, method: &[u8]) {
        self.prepare(&RequestHead::default(), method);
        self.keep_alive = false;
        self.http3_port = 0;
    }

    /// Discards the lines that [`Self::carry`] and internal redirects have stored, because these
    /// lines belong to the previous request.
    pub(crate) fn forget_carried(&mut self) {
        self.carried.clear();
    }

    /// Stores field lines for the final reply. `Set-Cookie` lines are always added. Other lines are
    /// omitted if the final reply has a field of the same name.
    pub fn carry(&mut self, lines: &[u8]) {
        self.carried.extend_from_slice(lines);
    }

    /// The media type that an application has given the file that answers in place of its reply. As
    /// in nginx, it takes precedence over a type that an origin would guess from the file's name:
    /// otherwise an upload that the application declares as text could become a page with scripts.
    pub fn carried_type(&self) -> Option<&[u8]> {
        if self.carried.is_empty() {
            return None;
        }
        let mut fields = forebay_wire::fields::of_lines(&self.carried);
        fields.find(|field| field.name.eq_ignore_ascii_case(b"content-type")).map(|f| f.value)
    }

    /// Sets the rules for the fields of the reply. With `None`, the fields stay as they are.
    pub fn set_rules(&mut self, rules: Option<Rc<Rules>>) {
        self.rules = rules;
    }

    /// Sets the error pages. If `intercepts`, the pages also replace error replies of the origin.
    pub(crate) fn set_pages(&mut self, pages: Option<Rc<ErrorPages>>, intercepts: bool) {
        self.intercepts = intercepts && pages.is_some();
        self.pages = pages;
    }

    /// Returns the error pages, or `None` if none are set.
    pub(crate) fn pages(&self) -> Option<Rc<ErrorPages>> {
        self.pages.clone()
    }

    /// Limits the speed of the body.
    pub(crate) fn limit_bandwidth(&mut self, limit: Option<BandwidthLimit>) {
        self.pace = limit.map(|limit| Box::new(pace::Pace::new(limit)));
    }

    pub(crate) fn set_offer(&mut self, offer: Option<Offer>) {
        self.offer = offer;
    }

    /// Lets the backlog store data that the client does not accept at once, so that a slow client
    /// does not block the origin. Replies that ask for unbuffered delivery are not stored.
    pub(crate) fn set_buffered(&mut self, is_buffered: bool) {
        self.is_buffered = is_buffered;
    }

    /// Starts the head. An empty `reason` selects the standard phrase.
    pub fn begin(&mut self, status: u16, reason: &[u8]) {
        debug_assert!(self.phase == ReplyPhase::Waiting, "one reply has one head");
        self.status = status;
        self.phase = ReplyPhase::Head;
        self.begin_head(status, reason);
    }

    fn begin_head(&mut self, status: u16, reason: &[u8]) {
        let stream = self.stream.as_ref().expect("a reply is written while its stream is attached");
        if self.out.capacity() == 0 {
            self.out = stream.thread().take_buffer();
        }
        self.head_bytes = self.out.len() as u32;
        stream.begin_head(&mut self.out, status, reason);
        (self.head_status, self.has_head) = (status, true);
        (self.may_name_files, self.may_be_immediate) = (true, true);
        self.fields = self.out.len();
    }

    fn end_head_as(&mut self, end: &HeadEnd) {
        let stream = self.stream.as_ref().expect("a reply is written while its stream is attached");
        stream.end_head(&mut self.out, end);
        self.body_at = self.out.len();
        self.head_bytes = (self.body_at as u32).saturating_sub(self.head_bytes);
    }

    /// Writes an interim reply (RFC 9110 section 15.2) with these field lines, each ending in CRLF.
    /// Call this before [`Self::begin`]. Writes nothing for 100, which the server itself sends, and
    /// nothing to HTTP/1.0 clients. Also writes nothing if no client waits for the reply.
    pub async fn inform(&mut self, status: u16, reason: &[u8], lines: &[u8]) -> Result<(), Fault> {
        debug_assert!(self.phase == ReplyPhase::Waiting, "interim replies come before the reply");
        let is_silent = self.capture.as_ref().is_some_and(|capture| capture.is_silent());
        if self.to_http10 || status == 100 || is_silent {
            return Ok(());
        }
        self.begin_head(status, reason);
        self.out.extend_from_slice(lines);
        if let Some(rules) = &self.rules {
            rules.remove_from(&mut self.out, self.fields);
        }
        sendfile::strip(&mut self.out, self.fields);
        self.end_head_as(&HeadEnd { is_chunked: false, keep_alive: true, to_http10: false });
        let written = self.flush().await;
        // An interim reply does not count as written, because the final reply can still be
        // abandoned.
        self.is_written = false;
        written
    }

    /// Returns true if the request's method is HEAD.
    pub fn is_to_head(&self) -> bool {
        self.to_head
    }

    /// Adds a field. The caller guarantees that name and value are valid.
    pub fn field(&mut self, name: &str, value: &[u8]) {
        encode::field(&mut self.out, name, value);
    }

    /// Ends and writes the head of a reply with status 101, whose fields name the new protocol. The
    /// connection then no longer speaks HTTP; see [`crate::exchange::Exchange::open_tunnel`].
    pub async fn switch(&mut self) -> Result<(), Fault> {
        debug_assert!(self.status == 101, "no other status switches protocols");
        self.rules = None;
        self.keep_alive = false;
        self.framing = Framing::None;
        sendfile::strip(&mut self.out, self.fields);
        self.end_head_as(&HeadEnd { is_chunked: false, keep_alive: true, to_http10: false });
        self.phase = ReplyPhase::Done;
        let written = self.flush().await;
        self.out = Vec::new();
        written?;
        self.drain().await
    }

    /// Sets the UDP port of HTTP/3 for the field `Alt-Svc`. An `Alt-Svc` of the origin takes
    /// precedence. Port 0 means that HTTP/3 is not offered.
    pub(crate) fn announce_http3(&mut self, port: u16) {
        self.http3_port = port;
    }

    /// Counts body bytes that a tunnel has sent to the client.
    pub(crate) fn count_body(&mut self, bytes: u64) {
        self.body_bytes += bytes;
    }

    /// Skips the search for file fields. The caller guarantees that no field so far asks a gateway
    /// to send a file.
    pub fn skip_sendfile_scan(&mut self) {
        self.may_name_files = false;
    }

    /// Records that the reply goes on for as long as the client stays; see [`is_live_type`].
    pub fn set_live(&mut self) {
        self.stream().set_live();
    }

    /// Returns true if the reply goes on for as long as the client stays.
    pub fn is_live(&self) -> bool {
        self.stream().is_live()
    }

    /// Skips the search for unbuffered fields. The caller guarantees that [`is_unbuffered_field`]
    /// returns false for all fields so far.
    pub fn allow_buffering(&mut self) {
        self.may_be_immediate = false;
    }

    /// Takes a buffer of the thread, so that the caller can build the reply there; see
    /// [`Thread::take_buffer`](forebay_net::thread::Thread::take_buffer).
    pub fn take_buffer(&self) -> Vec<u8> {
        self.stream().thread().take_buffer()
    }

    /// Returns a buffer of [`Self::take_buffer`] to the thread.
    pub fn keep_buffer(&self, buffer: Vec<u8>) {
        self.stream().thread().keep_buffer(buffer);
    }

    /// Returns the buffer of the head, to append several field lines at once.
    pub fn field_lines(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Ends the head. Set `has_date` if the fields so far include a `Date`.
    pub fn end_head(&mut self, length: Length, has_date: bool) {
        self.end_head_of(length, has_date, None);
    }

    /// Ends the head of a reply with a complete body that never changes. If the route compresses
    /// the reply, compresses the body now, so that the head has a length. `copies` stores the
    /// result. [`Self::push_whole`] sends the body.
    pub fn end_head_of_whole(&mut self, body: &[u8], copies: &CompressedCopies, has_date: bool) {
        self.end_head_of(Length::Known(body.len() as u64), has_date, Some((body, copies)));
    }

    fn end_head_of(&mut self, length: Length, has_date: bool, whole: Option<Whole<'_>>) {
        if self.capture_head(length) {
            return;
        }
        if self.intercepts
            && let Some(redirect) = self.page_instead()
        {
            return self.discard_for_redirect(redirect);
        }
        if self.is_buffered && self.may_be_immediate {
            self.is_buffered = !rules::has_unbuffered_field(&self.out[self.fields..]);
        }
        let rules = self.rules.take();
        let mut file = None;
        if self.may_name_files {
            // Read and remove the origin's file fields before the rules add fields of the route. A
            // file field of the route is meant for another gateway, between Forebay and the client.
            if rules.as_ref().is_some_and(|rules| rules.sends_files) {
                file = sendfile::named_file(&self.out[self.fields..]);
            }
            sendfile::strip(&mut self.out, self.fields);
        }
        if let Some(rules) = rules {
            rules.apply(&mut self.out, self.fields, (self.status, &self.carried));
            self.applied = Some(rules);
        }
        if let Some(place) = file {
            let fields = sendfile::lines_for_file(&self.out[self.fields..]);
            return self.discard_for_redirect(InternalRedirect::File { place, fields });
        }
        let length = match self.begin_page(length, has_date) {
            PageStart::No => length,
            PageStart::HeadOnly => Length::Unknown,
            PageStart::Collects => return,
        };
        rules::append_carried(&mut self.out, self.fields, (self.status, &self.carried));
        let length = self.begin_filter(length);
        let whole = whole.filter(|_| self.filter.is_none());
        let length = self.begin_compression(length, whole);
        let stream = self.stream.as_ref().expect("a reply is written while its stream is attached");
        stream.enter(Step::Reply);
        if let Some(steps) = stream.timer().value().filter(|_| stream.thread().reports_steps()) {
            encode::field(&mut self.out, "Server-Timing", steps.as_bytes());
        }
        if self.http3_port != 0 {
            rules::announce_http3(&mut self.out, self.fields, self.http3_port);
        }
        if !has_date {
            stream.thread().deadlines.clock.append_date(&mut self.out);
        }
        // The server may have begun to stop since the request arrived. The connection then closes
        // after this reply.
        self.keep_alive &= !stream.thread().is_stopping();
        self.framing = match length {
            Length::Known(length) => {
                encode::field_number(&mut self.out, "Content-Length", length);
                Framing::Length(length)
            }
            Length::Unknown => Framing::Open,
            Length::None => Framing::None,
        };
        if self.to_head {
            self.framing = Framing::None;
        }
        if self.framing == Framing::Open && self.to_http10 {
            // HTTP/1.0 has no chunks. So only the end of the connection marks the end of this body.
            self.keep_alive = false;
        }
        self.end_head_as(&HeadEnd {
            is_chunked: self.is_chunked(),
            keep_alive: self.keep_alive,
            to_http10: self.to_http10,
        });
        self.phase = ReplyPhase::Body;
    }

    /// Returns the redirect to the error page for the status of the origin's reply. Returns `None`
    /// if no page is configured for this status, or if the client speaks gRPC.
    fn page_instead(&self) -> Option<InternalRedirect> {
        let status = self.status;
        self.pages.as_ref()?.of(status).filter(|_| !self.to_grpc)?;
        Some(InternalRedirect::Page { status, fields: rules::of_error(&self.out[self.fields..]) })
    }

    /// Adapts the head if the route compresses this reply. Returns the length to announce: `length`
    /// if the body does not change. After compression, this is the compressed length, or `Unknown`
    /// for a streamed body.
    fn begin_compression(&mut self, length: Length, whole: Option<Whole<'_>>) -> Length {
        let Some(offer) = &self.offer else { return length };
        let announced = match length {
            Length::Known(length) => Some(length),
            Length::Unknown => None,
            Length::None if self.status == 304 => None,
            Length::None => return length,
        };
        let algorithm = offer.apply(&mut self.out, self.fields, self.status, announced);
        let Some(algorithm) = algorithm else { return length };
        if self.to_head {
            return Length::Unknown;
        }
        let compressor = || offer.compressor(algorithm, announced);
        if let Some((body, copies)) = whole
            && let Ok(copy) = compressor().whole(body, copies)
        {
            let length = copy.len() as u64;
            self.compressed = Some(copy);
            return Length::Known(length);
        }
        self.compressor = Some(Box::new(compressor()));
        Length::Unknown
    }

    /// Returns true if the body must be sent in chunks, because its length is unknown and the
    /// protocol has no frames.
    fn is_chunked(&self) -> bool {
        self.framing == Framing::Open && !self.to_http10
    }

    /// Replaces this reply by the site's answer to a GET for `target` (RFC 3875 section 6.2.2). A
    /// HEAD request remains HEAD. Further output of the origin is dropped.
    ///
    /// The answer also gets the field lines `carried`, without the fields that a rule of this route
    /// removes. A Set-Cookie line is always added. Each other line is added only if the answer has
    /// no field of the same name.
    pub fn redirect_internally(&mut self, target: &[u8], carried: &[u8]) {
        debug_assert!(self.phase == ReplyPhase::Waiting, "one reply has one head");
        let start = self.carried.len();
        self.carried.extend_from_slice(carried);
        if let Some(rules) = &self.rules {
            rules.apply_to_carried(&mut self.carried, start);
        }
        if let Some(capture) = &self.capture {
            capture.note_redirect(target);
        }
        self.discard_for_redirect(InternalRedirect::Route(target.to_vec()));
    }

    fn discard_for_redirect(&mut self, redirect: InternalRedirect) {
        self.redirect = Some(Box::new(redirect));
        // The cache of this origin must not record the new reply, which another origin sends.
        self.capture = None;
        // The filter of this route does not apply to the new reply. The route of the new reply sets
        // its own filter. A file that an application names is sent unchanged.
        self.next_filter = None;
        self.withhold();
    }

    /// Drops this reply and the rest of the origin's output.
    fn withhold(&mut self) {
        self.empty();
        (self.filter, self.compressor) = (None, None);
        self.framing = Framing::None;
        self.phase = ReplyPhase::Body;
    }

    /// Takes the redirect that replaces the reply, if there is one. A new reply can then begin.
    pub(crate) fn take_redirect(&mut self) -> Option<InternalRedirect> {
        let redirect = self.redirect.take()?;
        self.phase = ReplyPhase::Waiting;
        self.status = 0;
        Some(*redirect)
    }

    /// Sends a complete reply.
    pub async fn respond(
        &mut self,
        status: u16,
        content_type: &str,
        body: &[u8],
    ) -> Result<(), Fault> {
        self.begin(status, b"");
        self.field("Content-Type", content_type.as_bytes());
        self.end_head(Length::Known(body.len() as u64), false);
        self.push(body).await?;
        self.finish().await
    }

    /// Sends a small page that names the status, or the corresponding gRPC status.
    pub async fn respond_error(&mut self, status: u16) -> Result<(), Fault> {
        self.respond_error_with(status, b"").await
    }

    /// Sends the page of [`Self::respond_error`] with additional field lines.
    pub async fn respond_error_with(&mut self, status: u16, lines: &[u8]) -> Result<(), Fault> {
        if self.to_grpc {
            return self.respond_grpc_error(status, lines).await;
        }
        let reason = encode::reason_phrase(status);
        let page = format!(
            "<!DOCTYPE html>\n<title>{status} {reason}</title>\n<h1>{status} {reason}</h1>\n"
        );
        self.respond_page(status, "text/html; charset=utf-8", lines, page.as_bytes()).await
    }

    /// Sends a page for an error, with additional field lines.
    pub async fn respond_page(
        &mut self,
        status: u16,
        content_type: &str,
        lines: &[u8],
        page: &[u8],
    ) -> Result<(), Fault> {
        self.intercepts = false;
        self.next_filter = None;
        self.begin(status, b"");
        self.field("Content-Type", content_type.as_bytes());
        if matches!(status, 429 | 503) && !rules::has(lines, b"retry-after") {
            // After one second, a full queue usually has room, and a starting application is
            // usually ready.
            self.field("Retry-After", b"1");
        }
        self.out.extend_from_slice(lines);
        self.end_head(Length::Known(page.len() as u64), false);
        self.push(page).await?;
        self.finish().await
    }

    /// Abandons the reply, so that another reply can begin. Does nothing if a part of the reply has
    /// been written, unless an internal redirect replaces the reply.
    pub fn restart(&mut self) {
        if !self.is_written || self.redirect.take().is_some() {
            self.empty();
            (self.filter, self.compressor) = (None, None);
            self.framing = Framing::None;
            self.phase = ReplyPhase::Waiting;
            self.body_bytes = 0;
            self.restart_capture();
        }
    }

    /// Closes the connection after this reply.
    pub fn close_after(&mut self) {
        self.keep_alive = false;
    }

    /// Returns true if the reply must not be sent, because its status is 2xx and the client has
    /// requested a tunnel. The client would take such a reply for the start of the tunnel.
    fn refuses_tunnel(&self) -> bool {
        matches!(self.head_status, 200..=299) && self.stream().asks_for_tunnel()
    }

    /// Returns true if the head has been started.
    pub fn has_begun(&self) -> bool {
        self.phase != ReplyPhase::Waiting
    }

    /// Returns true if the reply is complete.
    pub fn is_done(&self) -> bool {
        self.phase == ReplyPhase::Done
    }

    pub fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// Sets the status for the log if no reply is sent.
    pub(crate) fn record_status(&mut self, status: u16) {
        self.status = status;
    }

    /// Returns the status of the reply. Returns 0 before the head is started.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Returns the number of body bytes written, without framing.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    /// Returns the number of bytes of head and body.
    pub fn bytes(&self) -> u64 {
        self.body_bytes + u64::from(self.head_bytes)
    }

    fn empty(&mut self) {
        self.out.clear();
        (self.body_at, self.has_head) = (0, false);
    }

    pub fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("a reply is written while its stream is attached")
    }
}
