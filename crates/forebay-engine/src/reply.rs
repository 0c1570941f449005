//! Writing a reply: head, framing and body, with back-pressure from the client.

use std::rc::Rc;

use forebay_wire::http1::{RequestHead, Version, encode};
use forebay_wire::sendfile;

use crate::compress::{CompressedCopies, Compressor, Offer};
use crate::fault::Fault;
use crate::stream::{HeadEnd, Stream};
use crate::timing::Step;

mod body;
mod grpc;
mod redirect;
mod rules;

pub(crate) use grpc::{is_call as is_grpc_call, is_head_of_grpc};
pub use redirect::InternalRedirect;
pub use rules::{Rules, goes_out_at_once};

/// How long a reply's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// This many bytes.
    Known(u64),
    /// Until its end: chunked, or by closing for HTTP/1.0.
    Unknown,
    /// There is none, and no `Content-Length` (204, 304, 1xx).
    None,
}

/// The reply to one request.
pub struct Reply {
    stream: Option<Stream>,
    out: Vec<u8>,
    phase: Phase,
    /// Whether any of it has been written to the client.
    is_written: bool,
    framing: Framing,
    /// The status of the head in `out`.
    head_status: u16,
    /// Whether a head is in `out`.
    has_head: bool,
    /// Whether its fields may ask a gateway to send a file.
    may_name_files: bool,
    /// Whether they may have the reply sent as it comes.
    may_be_immediate: bool,
    /// Where the field lines start in `out`, while the head is being written.
    fields: usize,
    /// Where the body bytes that have gathered start in `out`. They become one chunk, however many
    /// pieces they came in.
    body_at: usize,
    rules: Option<Rc<Rules>>,
    /// The rules of a head that has ended, which trailers have to follow.
    applied: Option<Rc<Rules>>,
    redirect: Option<Box<InternalRedirect>>,
    /// Field lines that are left of the replies that an internal redirect has replaced.
    carried: Vec<u8>,
    /// How the route compresses replies to this request.
    offer: Option<Offer>,
    /// Compresses the body, from the end of the head on.
    compressor: Option<Box<Compressor>>,
    /// The compressed copy of a body that is all there, until [`Reply::push_whole`] sends it.
    compressed: Option<Rc<[u8]>>,
    to_head: bool,
    to_http10: bool,
    /// The client speaks gRPC: errors are sent as its status.
    to_grpc: bool,
    keep_alive: bool,
    /// The port where the client may come by HTTP/3; 0: it is told of none.
    http3_port: u16,
    /// Whether what the client does not take is kept for it.
    is_buffered: bool,
    status: u16,
    body_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Head,
    Body,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// There is no body.
    None,
    /// So many bytes are left of it.
    Length(u64),
    /// Until its end, as the protocol marks that.
    Open,
}

/// A body that is all there, and its compressed copies.
type Whole<'a> = (&'a [u8], &'a CompressedCopies);

impl Reply {
    pub(crate) fn new(stream: &Stream) -> Self {
        Self {
            stream: Some(stream.clone()),
            out: Vec::new(),
            phase: Phase::Waiting,
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
            carried: Vec::new(),
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
        }
    }

    pub(crate) fn attach(&mut self, stream: &Stream) {
        self.stream = Some(stream.clone());
    }

    pub(crate) fn detach(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.thread().keep_buffer(std::mem::take(&mut self.out));
        }
        self.rules = None;
        self.applied = None;
        self.offer = None;
        self.compressor = None;
        self.to_grpc = false;
        self.carried = Vec::new();
        self.empty();
    }

    /// Makes ready to answer `head`.
    pub(crate) fn prepare(&mut self, head: &RequestHead, method: &[u8]) {
        self.empty();
        self.phase = Phase::Waiting;
        self.is_written = false;
        self.framing = Framing::None;
        self.is_buffered = false;
        self.to_head = method == b"HEAD";
        self.to_http10 = head.version == Version::Http10 && !self.stream().frames_bodies();
        self.keep_alive = head.keep_alive && !self.stream().thread().is_stopping();
        self.rules = None;
        self.applied = None;
        self.redirect = None;
        self.offer = None;
        self.compressor = None;
        self.compressed = None;
        self.status = 0;
        self.body_bytes = 0;
    }

    /// Makes ready to refuse a request whose head could not be read; `method` is empty where not
    /// even that could.
    pub(crate) fn prepare_refusal(&mut self, method: &[u8]) {
        self.prepare(&RequestHead::default(), method);
        self.keep_alive = false;
        self.http3_port = 0;
    }

    /// Forgets what replaced replies to the request before have left.
    pub(crate) fn forget_carried(&mut self) {
        self.carried.clear();
    }

    pub(crate) fn set_rules(&mut self, rules: Option<Rc<Rules>>) {
        self.rules = rules;
    }

    pub(crate) fn set_offer(&mut self, offer: Option<Offer>) {
        self.offer = offer;
    }

    /// Whether what the client does not take at once is kept for it, so that a slow client holds up
    /// nothing that makes the reply; not for what is to be sent as it comes.
    pub(crate) fn set_buffered(&mut self, is_buffered: bool) {
        self.is_buffered = is_buffered;
    }

    /// Starts the head. An empty `reason` stands for the usual one.
    pub fn begin(&mut self, status: u16, reason: &[u8]) {
        debug_assert!(self.phase == Phase::Waiting, "one reply has one head");
        self.status = status;
        self.phase = Phase::Head;
        self.begin_head(status, reason);
    }

    fn begin_head(&mut self, status: u16, reason: &[u8]) {
        let stream = self.stream.as_ref().expect("a reply is written while its stream is attached");
        if self.out.capacity() == 0 {
            self.out = stream.thread().take_buffer();
        }
        stream.begin_head(&mut self.out, status, reason);
        (self.head_status, self.has_head) = (status, true);
        (self.may_name_files, self.may_be_immediate) = (true, true);
        self.fields = self.out.len();
    }

    fn end_head_as(&mut self, end: &HeadEnd) {
        let stream = self.stream.as_ref().expect("a reply is written while its stream is attached");
        stream.end_head(&mut self.out, end);
        self.body_at = self.out.len();
    }

    /// Writes an interim reply (RFC 9110 section 15.2) with these field lines, each ending in CRLF,
    /// to a client that knows of such; the reply has yet to begin. A 100 is the engine's own.
    pub async fn inform(&mut self, status: u16, reason: &[u8], lines: &[u8]) -> Result<(), Fault> {
        debug_assert!(self.phase == Phase::Waiting, "interim replies come before the reply");
        if self.to_http10 || status == 100 {
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
        // The reply itself can still be given up.
        self.is_written = false;
        written
    }

    /// Whether it answers HEAD.
    pub fn is_to_head(&self) -> bool {
        self.to_head
    }

    /// Adds a field. The caller vouches for name and value being valid.
    pub fn field(&mut self, name: &str, value: &[u8]) {
        encode::field(&mut self.out, name, value);
    }

    /// Ends the head of a 101, whose fields name the protocol from now on, and writes it.
    /// The connection is no longer one of HTTP; see [`crate::Exchange::open_tunnel`].
    pub async fn switch(&mut self) -> Result<(), Fault> {
        debug_assert!(self.status == 101, "no other status switches protocols");
        self.rules = None;
        self.keep_alive = false;
        self.framing = Framing::None;
        sendfile::strip(&mut self.out, self.fields);
        self.end_head_as(&HeadEnd { is_chunked: false, keep_alive: true, to_http10: false });
        self.phase = Phase::Done;
        let written = self.flush().await;
        self.out = Vec::new();
        written?;
        self.drain().await
    }

    /// The client may come by HTTP/3 at this port; told so unless the reply names alternatives itself. 0:
    /// it may not.
    pub(crate) fn announce_http3(&mut self, port: u16) {
        self.http3_port = port;
    }

    /// Counts bytes sent by other means as body.
    pub(crate) fn count_body(&mut self, bytes: u64) {
        self.body_bytes += bytes;
    }

    /// The origin vouches for the fields so far: none asks a gateway to send a file, so they need not
    /// be looked through for that.
    pub fn name_no_files(&mut self) {
        self.may_name_files = false;
    }

    /// The origin vouches for the fields so far: [`goes_out_at_once`] is true of none.
    pub fn allow_buffering(&mut self) {
        self.may_be_immediate = false;
    }

    /// A buffer of the thread's, for what is to become the reply: see [`crate::Thread::take_buffer`].
    pub fn take_buffer(&self) -> Vec<u8> {
        self.stream().thread().take_buffer()
    }

    /// Takes a buffer of [`Self::take_buffer`] back.
    pub fn keep_buffer(&self, buffer: Vec<u8>) {
        self.stream().thread().keep_buffer(buffer);
    }

    /// Where field lines can be appended many at once.
    pub fn field_lines(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Ends the head. `has_date` where the fields so far hold a `Date`.
    pub fn end_head(&mut self, length: Length, has_date: bool) {
        self.end_head_of(length, has_date, None);
    }

    /// As [`Self::end_head`], for a body that is all there and stays the same. Where the route
    /// compresses, it is compressed now, so that the head has a length, and `copies` keeps the
    /// result. [`Self::push_whole`] sends the body.
    pub fn end_head_of_whole(&mut self, body: &[u8], copies: &CompressedCopies) {
        self.end_head_of(Length::Known(body.len() as u64), false, Some((body, copies)));
    }

    fn end_head_of(&mut self, length: Length, has_date: bool, whole: Option<Whole<'_>>) {
        if self.is_buffered && self.may_be_immediate {
            self.is_buffered = !rules::go_out_at_once(&self.out[self.fields..]);
        }
        let rules = self.rules.take();
        let sends_files = rules.as_ref().is_some_and(|rules| rules.sends_files);
        if !sends_files && self.may_name_files {
            // First, as what the route itself sets may be meant for a gateway in front.
            sendfile::strip(&mut self.out, self.fields);
        }
        if let Some(rules) = rules {
            rules.apply(&mut self.out, self.fields, self.status);
            self.applied = Some(rules);
        }
        if sends_files {
            if let Some(redirect) = InternalRedirect::to_file(&self.out[self.fields..]) {
                return self.discard_for_redirect(redirect);
            }
            sendfile::strip(&mut self.out, self.fields);
        }
        rules::append_carried(&mut self.out, self.fields, &self.carried);
        let length = self.begin_compression(length, whole);
        let stream = self.stream.as_ref().expect("a reply is written while its stream is attached");
        stream.enter(Step::Reply);
        if let Some(steps) = stream.timer().value() {
            encode::field(&mut self.out, "Server-Timing", steps.as_bytes());
        }
        if self.http3_port != 0 {
            rules::announce_http3(&mut self.out, self.fields, self.http3_port);
        }
        if !has_date {
            stream.thread().deadlines.clock.append_date(&mut self.out);
        }
        // The server may have begun to stop since the request came.
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
            // The connection's end is that of the body.
            self.keep_alive = false;
        }
        self.end_head_as(&HeadEnd {
            is_chunked: self.is_chunked(),
            keep_alive: self.keep_alive,
            to_http10: self.to_http10,
        });
        self.phase = Phase::Body;
    }

    /// Changes the head where the route compresses such replies; how long the body then is.
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

    /// Whether the body is chunked, where the protocol has no frames of its own.
    fn is_chunked(&self) -> bool {
        self.framing == Framing::Open && !self.to_http10
    }

    /// In place of this reply, `target` of the same site is answered as if the client had requested
    /// it (RFC 3875 section 6.2.2). What the origin still writes is dropped.
    ///
    /// The client gets the field lines `carried` with the answer, except those of which the answer has
    /// its own.
    pub fn redirect_internally(&mut self, target: &[u8], carried: &[u8]) {
        debug_assert!(self.phase == Phase::Waiting, "one reply has one head");
        let start = self.carried.len();
        self.carried.extend_from_slice(carried);
        if let Some(rules) = &self.rules {
            rules.remove_from(&mut self.carried, start);
        }
        self.discard_for_redirect(InternalRedirect::Route(target.to_vec()));
    }

    /// In place of this reply, the request is routed anew by `path`, which is normal; its method,
    /// target and body, which must not have been touched, stay.
    pub fn reroute(&mut self, path: Vec<u8>) {
        debug_assert!(self.phase == Phase::Waiting, "one reply has one head");
        self.discard_for_redirect(InternalRedirect::Path(path));
    }

    fn discard_for_redirect(&mut self, redirect: InternalRedirect) {
        self.empty();
        self.redirect = Some(Box::new(redirect));
        self.compressor = None;
        self.framing = Framing::None;
        self.phase = Phase::Body;
    }

    /// What to answer with in place of the reply that was given; the reply can begin again.
    pub(crate) fn take_redirect(&mut self) -> Option<InternalRedirect> {
        let redirect = self.redirect.take()?;
        self.phase = Phase::Waiting;
        self.status = 0;
        Some(*redirect)
    }

    /// A whole reply at once.
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

    /// A small page that names the status, or the status of gRPC for it.
    pub async fn respond_error(&mut self, status: u16) -> Result<(), Fault> {
        self.respond_error_with(status, b"").await
    }

    /// As [`Self::respond_error`], with these field lines.
    pub async fn respond_error_with(&mut self, status: u16, lines: &[u8]) -> Result<(), Fault> {
        if self.to_grpc {
            return self.respond_grpc_error(status, lines).await;
        }
        let reason = encode::reason_phrase(status);
        let page = format!(
            "<!DOCTYPE html>\n<title>{status} {reason}</title>\n<h1>{status} {reason}</h1>\n"
        );
        self.begin(status, b"");
        self.field("Content-Type", b"text/html; charset=utf-8");
        if matches!(status, 429 | 503) {
            // What is full or being started is another thing in a second.
            self.field("Retry-After", b"1");
        }
        self.out.extend_from_slice(lines);
        self.end_head(Length::Known(page.len() as u64), false);
        self.push(page.as_bytes()).await?;
        self.finish().await
    }

    /// Gives up a reply of which nothing has been written yet.
    pub fn restart(&mut self) {
        if !self.is_written || self.redirect.take().is_some() {
            self.empty();
            self.compressor = None;
            self.framing = Framing::None;
            self.phase = Phase::Waiting;
            self.body_bytes = 0;
        }
    }

    /// The connection closes after this reply.
    pub fn close_after(&mut self) {
        self.keep_alive = false;
    }

    /// Returns true if the head in `out` is a 2xx for a client that takes it for the start of a tunnel.
    fn refuses_tunnel(&self) -> bool {
        matches!(self.head_status, 200..=299) && self.stream().asks_for_tunnel()
    }

    /// Whether the head has been begun.
    pub fn has_begun(&self) -> bool {
        self.phase != Phase::Waiting
    }

    /// Whether the reply is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    pub(crate) fn keeps_alive(&self) -> bool {
        self.keep_alive
    }

    /// Sets the status to log where none is sent.
    pub(crate) fn record_status(&mut self, status: u16) {
        self.status = status;
    }

    /// The status sent; 0 before there is one.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Bytes of body written, without framing.
    pub fn body_bytes(&self) -> u64 {
        self.body_bytes
    }

    fn empty(&mut self) {
        self.out.clear();
        (self.body_at, self.has_head) = (0, false);
    }

    pub(crate) fn stream(&self) -> &Stream {
        self.stream.as_ref().expect("a reply is written while its stream is attached")
    }
}
