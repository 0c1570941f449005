//! Converts received bytes to events, depending on the states of streams and connection (RFC 9113
//! sections 5.1, 6.1, 6.2, 6.10 and 8.1).

use std::time::Instant;

use super::streams::{Half, RequestKind};
use super::{
    Cause, Connection, DataFrame, Event, Identifiers, Inbound, Reading, ReceivedEvent, Role,
    Stream, budget,
};
use crate::http2::error::{Abuse, HeadRule, Http2Error, Rule, Scope};
use crate::http2::frame::{DEFAULT_FRAME, Frame, HEADER_LEN, Header, Kind, PREFACE, flags};
use crate::http2::hpack::Decoded;
use crate::http2::{Head, Priority};

/// Maximum number of CONTINUATION frames of one block.
const FRAGMENTS: usize = 16;

type Found = Result<Option<Event>, Http2Error>;

impl Connection {
    /// Processes `input`, which starts with the first unconsumed byte. The caller repeats the call
    /// until no event is returned, then continues with more input.
    ///
    /// A frame other than DATA is processed only when it is complete, so the caller's buffer must
    /// hold at least 16,393 bytes. A returned error ends the connection, and the output then
    /// contains a GOAWAY with its code.
    pub fn receive(&mut self, input: &[u8], now: Instant) -> Result<ReceivedEvent, Http2Error> {
        let mut at = 0;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(ReceivedEvent { consumed: at, event: Some(event) });
            }
            if !self.can_receive() {
                return Ok(ReceivedEvent { consumed: at, event: None });
            }
            let (consumed, found) = self.next(&input[at..], now);
            match found {
                Ok(Some(Event::Data { stream, data, end })) => {
                    let data = data.start + at..data.end + at;
                    let event = Some(Event::Data { stream, data, end });
                    return Ok(ReceivedEvent { consumed: at + consumed, event });
                }
                Ok(None) if consumed == 0 && self.events.is_empty() => {
                    self.heads.free_large();
                    return Ok(ReceivedEvent { consumed: at, event: None });
                }
                Ok(None) => {}
                Ok(event) => return Ok(ReceivedEvent { consumed: at + consumed, event }),
                Err(error) => self.fail(error, now)?,
            }
            at += consumed;
        }
    }

    /// Resets the stream that the error concerns, and adds an event for the caller. Returns an
    /// error that ends the connection if `error` concerns the connection, or if the peer's budget
    /// is too small.
    fn fail(&mut self, error: Http2Error, now: Instant) -> Result<(), Http2Error> {
        let Scope::Stream(id) = error.scope else {
            self.reading = Reading::Failed;
            let last = self.identifiers.last_accepted();
            let last = if self.role == Role::Server { last } else { 0 };
            crate::http2::frame::goaway(&mut self.out.bytes, last, error.rule.code(), b"");
            return Err(error);
        };
        let was_announced = self.streams.get(id).is_some();
        self.reset_with(id, error.rule.code());
        self.update_window(now);
        let stream = id;
        self.events.push_back(if was_announced {
            Event::Reset { stream, cause: Cause::Rule(error.rule) }
        } else {
            Event::Refused { stream, rule: error.rule }
        });
        let abuse = match error.rule {
            Rule::TooManyStreams | Rule::HeldHeads => Abuse::RefusedStreams,
            _ => Abuse::ProvokedResets,
        };
        let charged = self.charge(budget::RESET, abuse, now);
        charged.or_else(|error| self.fail(error, now))
    }

    /// Processes the next part of `input`. Returns the number of consumed bytes.
    fn next(&mut self, input: &[u8], now: Instant) -> (usize, Found) {
        match self.reading {
            Reading::Failed => (input.len(), Ok(None)),
            Reading::Preface => self.preface(input),
            Reading::Data(data) => self.data(data, input, now),
            Reading::FirstFrame | Reading::Frames => self.frame(input, now),
        }
    }

    fn preface(&mut self, input: &[u8]) -> (usize, Found) {
        let received = input.len().min(PREFACE.len());
        if input[..received] != PREFACE[..received] {
            return (0, Err(Http2Error::connection(Rule::Preface)));
        }
        if received < PREFACE.len() {
            return (0, Ok(None));
        }
        self.reading = Reading::FirstFrame;
        (received, Ok(None))
    }

    pub(super) fn frame(&mut self, input: &[u8], now: Instant) -> (usize, Found) {
        let Some(header) = Header::decode(input) else { return (0, Ok(None)) };
        if let Err(error) = self.expect(&header) {
            return (0, Err(error));
        }
        if header.kind == Kind::Data {
            return self.begin_data(&header, &input[HEADER_LEN..], now);
        }
        let end = HEADER_LEN + header.len;
        let Some(payload) = input.get(HEADER_LEN..end) else { return (0, Ok(None)) };
        self.reading = Reading::Frames;
        let found = header.frame(payload).and_then(|frame| self.take(frame, now));
        (end, found)
    }

    /// Checks the header of a frame: returns an error if such a frame is not allowed now.
    fn expect(&self, header: &Header) -> Result<(), Http2Error> {
        if matches!(self.reading, Reading::FirstFrame)
            && (header.kind != Kind::Settings || header.has(flags::ACK))
        {
            return Err(Http2Error::connection(Rule::FirstFrame));
        }
        header.check(DEFAULT_FRAME)?;
        let continues = header.kind == Kind::Continuation;
        match self.fragments.open() {
            Some(block) if !continues || block.stream != header.stream => {
                Err(Http2Error::connection(Rule::ContinuationExpected))
            }
            None if continues => Err(Http2Error::connection(Rule::ContinuationUnexpected)),
            _ => Ok(()),
        }
    }

    fn take(&mut self, frame: Frame, now: Instant) -> Found {
        match frame {
            Frame::Headers { stream, block, end_stream, end_headers: true } => {
                self.head(stream, block, end_stream, now)
            }
            Frame::Headers { stream, block, end_stream, end_headers: false } => {
                self.fragments.begin(stream, end_stream, block);
                Ok(None)
            }
            Frame::Continuation { block, end_headers, .. } => {
                self.continuation(block, end_headers, now)
            }
            other => self.control(other, now),
        }
    }

    /// Adds a CONTINUATION frame to the open header block. If `is_last` is true, processes the
    /// block. Returns an error if the block has too many frames or bytes, or if the peer's budget
    /// is too small.
    fn continuation(&mut self, fragment: &[u8], is_last: bool, now: Instant) -> Found {
        let Some(open) = self.fragments.count() else { return Ok(None) };
        if open.frames > FRAGMENTS || self.fragments.len() + fragment.len() > self.largest_block() {
            return Err(Http2Error::connection(Rule::Abuse(Abuse::Continuation)));
        }
        if fragment.len() < budget::SMALL_FRAGMENT && !is_last {
            self.charge(budget::CONTINUATION, Abuse::Continuation, now)?;
        }
        self.fragments.extend(fragment);
        if !is_last {
            return Ok(None);
        }
        let block = self.fragments.finish();
        let found = self.head(open.stream, &block, open.end_stream, now);
        self.fragments.recycle(block);
        found
    }

    /// Returns the maximum size of an encoded block. A block whose decoded fields are within their
    /// limits is always smaller. The reason is that encoders use the Huffman code only for strings
    /// that become shorter. The result is at least the size of two frames.
    fn largest_block(&self) -> usize {
        (self.config.list.size * 2).max(DEFAULT_FRAME * 2)
    }

    /// Processes a complete header block.
    fn head(&mut self, stream: u32, block: &[u8], end: bool, now: Instant) -> Found {
        let mut head = self.heads.take();
        let decoded = self.decoder.decode(block, self.config.list, &mut head.fields);
        let decoded = decoded.map_err(|e| Http2Error::connection(Rule::Compression(e)))?;
        if decoded.too_large {
            self.charge(budget::HEADER_LIST, Abuse::HeaderLists, now)?;
        }
        let incoming = self.streams.get(stream).map(|stream| stream.incoming);
        match (incoming, self.role) {
            (Some(Half::Head), _) => self.reply(stream, head, decoded, end),
            (Some(Half::Body), _) => self.trailers(stream, head, decoded, end),
            (Some(Half::Ended), _) => Err(Http2Error::stream(stream, Rule::ClosedStream)),
            (None, Role::Server) if !self.identifiers.is_opened(stream) => {
                self.request(stream, head, decoded, end)
            }
            (None, role) => {
                self.recycle(head);
                let is_new = role == Role::Server && !self.past.was_closed(stream);
                match self.frame_without_stream(stream) {
                    // The client skipped this identifier, so the stream was never open.
                    Err(_) if is_new => Err(Http2Error::connection(Rule::StreamId)),
                    found => found,
                }
            }
        }
    }

    /// Handles DATA or HEADERS for a stream that does not exist. Ignores the frame if we have reset
    /// the stream, or rejected it after our GOAWAY. Otherwise returns an error.
    fn frame_without_stream(&self, id: u32) -> Found {
        if !self.identifiers.was_opened(id) {
            return Err(Http2Error::connection(Rule::IdleStream));
        }
        if self.past.was_reset(id) || !self.identifiers.accepts(id) {
            return Ok(None);
        }
        Err(Http2Error::connection(Rule::ClosedStream))
    }

    /// Opens a stream for a decoded request, as server. Returns the event for the request, or no
    /// event if the stream is above the limit of our GOAWAY. Returns an error if the request breaks
    /// a rule.
    fn request(&mut self, id: u32, mut head: Box<Head>, decoded: Decoded, end: bool) -> Found {
        if !Identifiers::is_of_client(id) {
            return Err(Http2Error::connection(Rule::StreamId));
        }
        if !self.identifiers.open(id) {
            self.recycle(head);
            return Ok(None);
        }
        let checked = head.finish_request(decoded, &self.config.head);
        if self.streams.active() >= self.config.streams {
            self.recycle(head);
            return Err(Http2Error::stream(id, Rule::TooManyStreams));
        }
        let refused = match checked {
            Ok(()) => None,
            Err(rule) if rule.status().is_some() => Some(rule),
            Err(rule) => {
                self.recycle(head);
                return Err(Http2Error::stream(id, Rule::Head(rule)));
            }
        };
        let mut stream =
            Stream::new(id, Inbound::new(self.config.stream_window), self.peer.window.into());
        stream.incoming = if end { Half::Ended } else { Half::Body };
        stream.body_left = head.content_length;
        stream.priority = self.priority_of(id).unwrap_or(head.priority);
        stream.discards = refused.is_some();
        if end && head.content_length.is_some_and(|length| length > 0) {
            self.recycle(head);
            return Err(Http2Error::stream(id, Rule::ContentLength));
        }
        if refused.is_none() && !self.heads.held.hold(&mut head) {
            self.recycle(head);
            return Err(Http2Error::stream(id, Rule::HeldHeads));
        }
        head.priority = stream.priority;
        self.streams.insert(stream);
        Ok(Some(match refused {
            Some(rule) => Event::Unacceptable { stream: id, head, rule, end },
            None => Event::Head { stream: id, head, end },
        }))
    }

    /// Removes and returns the priority that a PRIORITY_UPDATE frame set before the request
    /// arrived. Returns `None` if there was no such frame.
    fn priority_of(&mut self, id: u32) -> Option<Priority> {
        let place = self.priorities.iter().position(|&(stream, _)| stream == id)?;
        self.priorities.remove(place).map(|(_, priority)| priority)
    }

    /// Handles a decoded reply head, as client. Returns the event for an interim or a final reply.
    /// Returns an error if the head breaks a rule.
    fn reply(&mut self, id: u32, mut head: Box<Head>, decoded: Decoded, end: bool) -> Found {
        let error = |rule| Err(Http2Error::stream(id, rule));
        if let Err(rule) = head.finish_reply(decoded) {
            self.recycle(head);
            return error(Rule::Head(rule));
        }
        let Some(stream) = self.streams.get_mut(id) else { return Ok(None) };
        if head.status < 200 {
            if end {
                return error(Rule::Head(HeadRule::Status));
            }
            return Ok(Some(Event::Interim { stream: id, head }));
        }
        let is_tunnel = stream.request == RequestKind::Connect && head.status < 300;
        stream.without_body =
            stream.request == RequestKind::Head || matches!(head.status, 204 | 304);
        if !stream.without_body && !is_tunnel {
            stream.body_left = head.content_length;
        }
        stream.incoming = Half::Body;
        if end {
            if stream.body_left.is_some_and(|left| left > 0) {
                return error(Rule::ContentLength);
            }
            stream.incoming = Half::Ended;
            self.ended(id);
        }
        Ok(Some(Event::Head { stream: id, head, end }))
    }

    /// Handles decoded trailers, which end the peer's side of the stream. Returns an error if the
    /// trailers break a rule or a limit, or if the body is too short.
    fn trailers(&mut self, id: u32, mut head: Box<Head>, decoded: Decoded, end: bool) -> Found {
        let checked = match self.role {
            _ if !end => Err(HeadRule::TrailersEnd),
            Role::Server => head.finish_trailers(decoded),
            Role::Client => head.finish_reply_trailers(decoded),
        };
        if let Err(rule) = checked {
            self.recycle(head);
            return Err(Http2Error::stream(id, Rule::Head(rule)));
        }
        let Some(stream) = self.streams.get_mut(id) else { return Ok(None) };
        if stream.body_left.is_some_and(|left| left > 0) {
            self.recycle(head);
            return Err(Http2Error::stream(id, Rule::ContentLength));
        }
        let discards = stream.discards;
        if !discards && !self.heads.held.hold_trailers(&head) {
            self.recycle(head);
            return Err(Http2Error::stream(id, Rule::HeldTrailers));
        }
        stream.incoming = Half::Ended;
        self.ended(id);
        if discards {
            self.recycle(head);
            return Ok(None);
        }
        Ok(Some(Event::Trailers { stream: id, head }))
    }
}

/// Stream, end flag and frame count of an incomplete block.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenBlock {
    pub stream: u32,
    pub end_stream: bool,
    /// Number of CONTINUATION frames so far.
    pub frames: usize,
}

/// The received part of a header block.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    bytes: Vec<u8>,
    open: Option<OpenBlock>,
}

impl Fragments {
    #[inline]
    pub fn open(&self) -> Option<OpenBlock> {
        self.open
    }

    /// Begins a block with the fragment of a HEADERS frame.
    pub fn begin(&mut self, stream: u32, end_stream: bool, fragment: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(fragment);
        self.open = Some(OpenBlock { stream, end_stream, frames: 0 });
    }

    /// Counts a CONTINUATION frame. Returns the open block, or `None` if no block is open.
    pub fn count(&mut self) -> Option<OpenBlock> {
        let open = self.open.as_mut()?;
        open.frames += 1;
        Some(*open)
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn extend(&mut self, fragment: &[u8]) {
        self.bytes.extend_from_slice(fragment);
    }

    /// Ends the block, and returns its bytes. The caller gives the memory back with
    /// [`Self::recycle`].
    pub fn finish(&mut self) -> Vec<u8> {
        self.open = None;
        std::mem::take(&mut self.bytes)
    }

    pub fn recycle(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.bytes = bytes;
    }

    pub fn shrink(&mut self) {
        if self.open.is_none() {
            self.bytes = Vec::new();
        }
    }

    pub fn allocated(&self) -> usize {
        self.bytes.capacity()
    }
}

// DATA frames, whose payload is processed as it arrives (RFC 9113 section 6.1).

impl Connection {
    /// Reads the header of a DATA frame and the length of its padding. Returns the number of bytes
    /// that were read. The number is 0 if the length of the padding has not arrived. Also returns
    /// an error if the frame is not allowed.
    pub(super) fn begin_data(
        &mut self,
        header: &Header,
        rest: &[u8],
        now: Instant,
    ) -> (usize, Found) {
        let (len, stream) = (header.len as u32, header.stream);
        let (mut used, mut padding) = (HEADER_LEN, 0);
        if header.has(flags::PADDED) {
            let Some(&byte) = rest.first() else { return (0, Ok(None)) };
            used += 1;
            padding = u32::from(byte) + 1;
            if padding > len {
                return (0, Err(Http2Error::connection(Rule::Padding)));
            }
        }
        if !self.inbound.reserve(len) {
            return (0, Err(Http2Error::connection(Rule::WindowExceeded)));
        }
        self.inbound.pass(padding);
        let end = header.has(flags::END_STREAM);
        let left = len - padding;
        // `padding` includes the length byte, which has been read.
        let data = DataFrame { stream, left, padding: padding.saturating_sub(1), end };
        self.reading = Reading::Data(data);
        let checked = self.check_data(data, padding, now);
        (used, checked.map(|()| None))
    }

    /// Checks that the stream may receive a DATA frame with this header, and reserves the size of
    /// the frame in the stream's window. Returns an error if the frame is not allowed.
    fn check_data(
        &mut self,
        frame: DataFrame,
        padding: u32,
        now: Instant,
    ) -> Result<(), Http2Error> {
        let DataFrame { stream: id, left: data, end, .. } = frame;
        if data > 0 {
            self.budget.allow_ping();
        } else if !end {
            self.charge(budget::EMPTY_DATA, Abuse::EmptyData, now)?;
        }
        let Some(stream) = self.streams.get_mut(id) else {
            return self.frame_without_stream(id).map(drop);
        };
        let error = |rule| Err(Http2Error::stream(id, rule));
        match stream.incoming {
            Half::Head => return error(Rule::UnexpectedData),
            Half::Ended => return error(Rule::ClosedStream),
            Half::Body => {}
        }
        if !stream.inbound.reserve(data + padding) {
            return error(Rule::WindowExceeded);
        }
        stream.inbound.pass(padding);
        if stream.without_body && data > 0 {
            return error(Rule::UnexpectedData);
        }
        if let Some(left) = &mut stream.body_left {
            match left.checked_sub(data.into()) {
                Some(0) => *left = 0,
                Some(more) if !end => *left = more,
                _ => return error(Rule::ContentLength),
            }
        }
        Ok(())
    }

    /// Processes the part of a DATA frame's payload that has arrived. Returns the number of
    /// processed bytes, and an event for the data.
    pub(super) fn data(
        &mut self,
        mut frame: DataFrame,
        input: &[u8],
        now: Instant,
    ) -> (usize, Found) {
        let id = frame.stream;
        let is_open = self.streams.get(id).is_some_and(|s| s.incoming == Half::Body);
        if frame.left == 0 && !(frame.end && is_open) {
            return self.skip_padding(frame, input, now);
        }
        let len = input.len().min(frame.left as usize);
        if len == 0 && frame.left > 0 {
            return (0, Ok(None));
        }
        frame.left -= len as u32;
        self.reading = Reading::Data(frame);
        let end = frame.end && frame.left == 0;
        let Some(stream) = self.streams.get_mut(id).filter(|s| s.incoming == Half::Body) else {
            self.inbound.pass(len as u32);
            self.update_window(now);
            return (len, Ok(None));
        };
        self.inbound.arrive(len as u32);
        stream.inbound.arrive(len as u32);
        let discards = stream.discards;
        if end {
            stream.incoming = Half::Ended;
        }
        if discards {
            self.consume(id, len, now);
        }
        if end {
            self.ended(id);
        }
        if discards && len == 0 {
            // No event refers to the input, so the padding can be skipped immediately.
            return self.skip_padding(frame, input, now);
        }
        let event = Event::Data { stream: id, data: 0..len, end };
        (len, Ok((!discards).then_some(event)))
    }

    fn skip_padding(&mut self, mut frame: DataFrame, input: &[u8], now: Instant) -> (usize, Found) {
        let len = input.len().min(frame.padding as usize);
        frame.padding -= len as u32;
        let is_done = frame.padding == 0;
        self.reading = if is_done { Reading::Frames } else { Reading::Data(frame) };
        if is_done {
            self.update_window(now);
        }
        if is_done && len == 0 {
            return self.frame(input, now);
        }
        (len, Ok(None))
    }
}
