//! Sending half of a connection: it writes frames as far as windows and priorities allow.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use super::flow::Inbound;
use super::streams::{Half, RequestKind, Stall};
use super::{Connection, Reading, Role, Stream, budget};
use crate::fields::FieldRef;
use crate::http2::Priority;
use crate::http2::error::ErrorCode;
use crate::http2::frame::{self, HEADER_LEN, Kind, flags};

/// Number of bytes that end a stall: a stream that has sent them no longer counts as waiting for a
/// window.
const STALL_PROGRESS: usize = 4_096;

/// Maximum number of bytes that an incremental stream sends in one turn while other streams wait.
const TURN: usize = frame::DEFAULT_FRAME;

/// Pseudo-fields of a request. Empty values are omitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestPseudo<'a> {
    /// `:method`.
    pub method: &'a [u8],
    /// `:scheme`; empty for CONNECT.
    pub scheme: &'a [u8],
    /// `:authority`.
    pub authority: &'a [u8],
    /// `:path`; empty for CONNECT.
    pub path: &'a [u8],
    /// `:protocol` of an extended CONNECT.
    pub protocol: &'a [u8],
}

/// Reason why a head, data or trailers were not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The stream no longer exists, or our side of the stream has ended.
    Closed,
    /// The peer allows no more streams now.
    Busy,
    /// The connection accepts no more streams: one side has sent GOAWAY, or all identifiers are
    /// used.
    Exhausted,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "stream closed",
            Self::Busy => "no more streams at once",
            Self::Exhausted => "connection takes no more streams",
        })
    }
}

impl std::error::Error for SendError {}

/// Numbers of bytes that a stream may send. The output and the other streams limit `room`, and flow
/// control limits `window`.
#[derive(Clone, Copy)]
struct Allowance {
    room: usize,
    window: usize,
}

impl Connection {
    /// Returns the number of streams that we may open now as client.
    pub fn available(&self) -> usize {
        if self.is_exhausted() {
            return 0;
        }
        self.peer.streams.saturating_sub(self.streams.active()).min(self.identifiers.left())
            as usize
    }

    /// Returns true if the peer's settings allow no stream at all. Only a client calls this.
    pub fn allows_no_streams(&self) -> bool {
        self.peer.streams == 0
    }

    /// Returns true if we can open no more requests, now or later. This is always true for a
    /// server.
    pub fn is_exhausted(&self) -> bool {
        let goes_on = !self.is_going_away() && self.role == Role::Client;
        !goes_on || self.identifiers.left() == 0 || matches!(self.reading, Reading::Failed)
    }

    /// Opens a stream with a request (client). Returns the identifier of the stream, or an error if
    /// we may not open a stream now. Fields that only HTTP/1.1 has are omitted. Names may contain
    /// upper case, which is converted.
    pub fn send_request<'a>(
        &mut self,
        request: &RequestPseudo,
        fields: impl IntoIterator<Item = FieldRef<'a>>,
        end: bool,
    ) -> Result<u32, SendError> {
        if self.available() == 0 {
            let is_busy = self.streams.active() >= self.peer.streams && !self.peer.is_draining;
            return Err(if is_busy { SendError::Busy } else { SendError::Exhausted });
        }
        let id = self.identifiers.open_next();
        let inbound = Inbound::new(self.config.stream_window);
        let mut stream = Stream::new(id, inbound, self.peer.window.into());
        stream.outgoing = if end { Half::Ended } else { Half::Body };
        stream.request = match request.method {
            b"HEAD" => RequestKind::Head,
            b"CONNECT" => RequestKind::Connect,
            _ => RequestKind::Ordinary,
        };
        self.streams.insert(stream);
        let start = self.begin_block();
        for (name, value) in [
            (&b":method"[..], request.method),
            (b":scheme", request.scheme),
            (b":authority", request.authority),
            (b":path", request.path),
            (b":protocol", request.protocol),
        ] {
            if !value.is_empty() {
                self.encoder.pair(&mut self.out.bytes, name, value);
            }
        }
        self.finish_block(start, id, fields, end);
        Ok(id)
    }

    /// Sends the head of a reply. Any number of interim heads (status below 200) may precede it.
    /// `end` has no effect for an interim head. Returns an error if the final head was sent, or if
    /// the stream is unknown.
    pub fn send_reply<'a>(
        &mut self,
        id: u32,
        status: u16,
        fields: impl IntoIterator<Item = FieldRef<'a>>,
        end: bool,
    ) -> Result<(), SendError> {
        let stream = self.streams.get_mut(id).filter(|stream| stream.outgoing == Half::Head);
        let stream = stream.ok_or(SendError::Closed)?;
        let end = end && status >= 200;
        if status >= 200 {
            stream.outgoing = if end { Half::Ended } else { Half::Body };
        }
        let start = self.begin_block();
        self.encoder.status(&mut self.out.bytes, status);
        self.finish_block(start, id, fields, end);
        if end {
            self.ended(id);
        }
        Ok(())
    }

    /// Sends trailers, which end our side of the stream. [`Self::send_data`] must have accepted all
    /// data before. Returns an error if our side of the stream has ended, if the head was not sent,
    /// or if the stream is unknown.
    pub fn send_trailers<'a>(
        &mut self,
        id: u32,
        fields: impl IntoIterator<Item = FieldRef<'a>>,
    ) -> Result<(), SendError> {
        let stream = self.streams.get_mut(id).filter(|stream| stream.outgoing == Half::Body);
        stream.ok_or(SendError::Closed)?.outgoing = Half::Ended;
        let start = self.begin_block();
        self.finish_block(start, id, fields, true);
        self.ended(id);
        Ok(())
    }

    /// Sends as much of `data` as possible now. Returns the number of accepted bytes. `end` takes
    /// effect only if all data was accepted. If data remains, [`Self::poll_writable`] returns the
    /// stream when it may continue. Returns an error if the stream cannot send data.
    pub fn send_data(
        &mut self,
        id: u32,
        data: &[u8],
        end: bool,
        now: Instant,
    ) -> Result<usize, SendError> {
        let allowance = self.allowance(id)?;
        let taken = data.len().min(allowance.room).min(allowance.window);
        let is_last = end && taken == data.len();
        let largest = self.peer.frame.min(frame::DEFAULT_FRAME);
        if taken > 0 || is_last {
            write_data(&mut self.out.bytes, id, &data[..taken], is_last, largest);
        }
        self.sent_data(id, taken, data.len() - taken, is_last, allowance, now);
        Ok(taken)
    }

    /// Sends at most one frame, with data that `fill` writes directly to the output. `fill` returns
    /// the number of bytes that it wrote. `left` is the number of bytes that remain until our side
    /// of the stream ends.
    ///
    /// If nothing may be sent now, the function does not call `fill`, and [`Self::poll_writable`]
    /// returns the stream later. If `fill` writes nothing, the stream does not wait, and the caller
    /// calls this function again when it has data. Returns an error if the stream cannot send data.
    pub fn fill_data(
        &mut self,
        id: u32,
        left: usize,
        now: Instant,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<usize, SendError> {
        let allowance = self.allowance(id)?;
        let largest = self.peer.frame.min(frame::DEFAULT_FRAME);
        let space = left.min(allowance.room).min(allowance.window).min(largest);
        let start = self.out.bytes.len();
        let mut taken = 0;
        if space > 0 {
            self.out.bytes.resize(start + HEADER_LEN + space, 0);
            taken = fill(&mut self.out.bytes[start + HEADER_LEN..]).min(space);
        }
        let is_last = taken == left;
        if taken > 0 || is_last {
            self.out.bytes.resize(start + HEADER_LEN + taken, 0);
            let bits = if is_last { flags::END_STREAM } else { 0 };
            frame::set_header(&mut self.out.bytes[start..], taken, Kind::Data, bits, id);
        } else {
            self.out.bytes.truncate(start);
        }
        if space > 0 && taken == 0 {
            if let Some(stream) = self.streams.get_mut(id) {
                stream.wants_to_send = false;
                stream.stall = None;
            }
            return Ok(0);
        }
        self.sent_data(id, taken, left - taken, is_last, allowance, now);
        Ok(taken)
    }

    /// Counts `taken` bytes of data that were added to the output. A stream with more data then
    /// waits for its turn in the queue. If its window is used up, the stream waits for a window
    /// update.
    fn sent_data(
        &mut self,
        id: u32,
        taken: usize,
        left: usize,
        is_last: bool,
        allowance: Allowance,
        now: Instant,
    ) {
        if taken > 0 || is_last {
            self.budget.earn(budget::DATA_SENT);
        }
        if taken > 0 {
            self.budget.allow_ping();
        }
        self.send_window -= taken as i64;
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.send_window -= taken as i64;
        stream.wants_to_send = left > 0;
        let waits_for_window = stream.wants_to_send && allowance.window <= allowance.room;
        stream.track_stall(taken, waits_for_window && taken == allowance.window, now);
        if stream.wants_to_send && stream.send_window > 0 {
            stream.is_queued = true;
            self.queue.insert(id, stream.priority);
        }
        if is_last {
            stream.outgoing = Half::Ended;
            self.ended(id);
        }
    }

    /// Returns the numbers of bytes that the output and the windows allow a stream to send now.
    /// Removes the stream from the queue. Returns an error if the stream cannot send data.
    fn allowance(&mut self, id: u32) -> Result<Allowance, SendError> {
        // If `poll_writable` has returned this stream, the stream may send even if other streams
        // have tried to send in the meantime.
        let has_turn = self.queue.use_turn(id);
        let output = self.out.len();
        let stream = self.streams.get_mut(id).filter(|stream| stream.outgoing == Half::Body);
        let stream = stream.ok_or(SendError::Closed)?;
        if stream.is_queued {
            stream.is_queued = false;
            self.queue.remove(id, stream.priority);
        }
        let mut room = self.config.output.saturating_sub(output);
        if !has_turn && self.queue.goes_before(stream.priority) {
            room = 0;
        } else if !self.queue.is_empty() && stream.priority.incremental {
            room = room.min(TURN);
        }
        let window = stream.send_window.min(self.send_window).max(0) as usize;
        Ok(Allowance { room, window })
    }

    /// Returns the next stream that may continue with [`Self::send_data`], or `None` if no stream
    /// may continue now. Only streams whose data was not accepted completely are returned. The call
    /// removes the stream from the queue, and the caller decides what to send.
    pub fn poll_writable(&mut self) -> Option<u32> {
        let output = self.out.len();
        if self.send_window <= 0 || output >= self.config.output {
            return None;
        }
        while let Some(id) = self.queue.pop() {
            let Some(stream) = self.streams.get_mut(id) else { continue };
            stream.is_queued = false;
            // A SETTINGS frame may have reduced the window to zero since the stream was queued.
            if stream.send_window > 0 {
                self.queue.give_turn(id);
                return Some(id);
            }
        }
        None
    }

    /// Frees `len` bytes of a stream's receive window, because the caller has processed this much
    /// data.
    pub fn consume(&mut self, id: u32, len: usize, now: Instant) {
        let active = self.streams.active();
        let Some(stream) = self.streams.get_mut(id) else { return };
        // If the caller counts too much, the excess must not affect the connection's window.
        let len = stream.inbound.held().min(len as u32);
        stream.inbound.consume(len);
        self.inbound.consume(len);
        if stream.incoming != Half::Ended {
            let (limit, shared) =
                (self.config.stream_window_limit, self.config.shared_window_limit);
            let others = self.lent - stream.inbound.beyond(limit);
            let share = (shared / active.max(1)).min(shared.saturating_sub(others));
            let update = stream.inbound.update(now, self.round_trip.fastest(), limit + share);
            self.lent = others + stream.inbound.beyond(limit);
            if let Some(increment) = update {
                frame::window_update(&mut self.out.bytes, id, increment);
                self.measure(now);
            }
        }
        self.update_window(now);
        self.close_if_done(id);
    }

    /// Discards the data of a stream. Present and future data is consumed immediately, and causes
    /// no events.
    pub fn discard(&mut self, id: u32, now: Instant) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        stream.discards = true;
        let held = stream.inbound.held() as usize;
        self.consume(id, held, now);
    }

    /// Ends a stream immediately. If both sides have already ended the stream, only discards its
    /// data. Does nothing if the stream does not exist.
    ///
    /// The caller passes `CANCEL` if it no longer needs the stream. It passes `NO_ERROR` after a
    /// complete reply, if the rest of the request is not needed. It passes `INTERNAL_ERROR` if it
    /// cannot complete a reply.
    pub fn reset(&mut self, id: u32, code: ErrorCode, now: Instant) {
        let Some(stream) = self.streams.get(id) else { return };
        if stream.is_closed() {
            self.discard(id, now);
            return;
        }
        self.reset_with(id, code);
        self.update_window(now);
    }

    /// Changes the priority of a stream.
    pub fn set_priority(&mut self, id: u32, priority: Priority) {
        let Some(stream) = self.streams.get_mut(id) else { return };
        if stream.is_queued {
            self.queue.remove(id, stream.priority);
            self.queue.insert(id, priority);
        }
        stream.priority = priority;
    }

    /// Asks the peer to open no more streams. Streams that the peer opens before it reads the
    /// GOAWAY are still accepted. The caller then calls [`Self::goaway`] after a round trip.
    pub fn announce_goaway(&mut self) {
        frame::goaway(&mut self.out.bytes, 0x7fff_ffff, ErrorCode::NO_ERROR, b"");
    }

    /// Sends GOAWAY. New streams are no longer accepted, but open streams continue.
    pub fn goaway(&mut self, code: ErrorCode) {
        let last = if self.role == Role::Server { self.identifiers.last_accepted() } else { 0 };
        self.identifiers.limit();
        frame::goaway(&mut self.out.bytes, last, code, b"");
    }

    fn begin_block(&mut self) -> usize {
        let start = self.out.bytes.len();
        self.out.bytes.extend_from_slice(&[0; HEADER_LEN]);
        self.encoder.begin(&mut self.out.bytes);
        start
    }

    fn finish_block<'a>(
        &mut self,
        start: usize,
        id: u32,
        fields: impl IntoIterator<Item = FieldRef<'a>>,
        end: bool,
    ) {
        for field in fields {
            if !field.is_http1_only() {
                self.encoder.field(&mut self.out.bytes, field);
            }
        }
        frame::finish_block(&mut self.out.bytes, start, id, end, self.peer.frame);
    }
}

fn write_data(out: &mut Vec<u8>, id: u32, data: &[u8], end: bool, largest: usize) {
    let mut rest = data;
    loop {
        let (piece, behind) = rest.split_at(rest.len().min(largest));
        rest = behind;
        let is_last = rest.is_empty();
        let bits = if end && is_last { flags::END_STREAM } else { 0 };
        frame::header(out, piece.len(), Kind::Data, bits, id);
        out.extend_from_slice(piece);
        if is_last {
            return;
        }
    }
}

impl Stream {
    /// Updates the time since which the stream waits for a window. `sent` is the number of bytes
    /// sent now. `waits` is true if the window permits no more.
    fn track_stall(&mut self, sent: usize, waits: bool, now: Instant) {
        if !self.wants_to_send {
            self.stall = None;
            return;
        }
        if let Some(stall) = &mut self.stall {
            stall.sent += sent;
        }
        if self.stall.is_some_and(|stall| stall.sent >= STALL_PROGRESS) {
            self.stall = None;
        }
        if waits && self.stall.is_none() {
            self.stall = Some(Stall { since: now, sent: 0 });
        }
    }
}

/// Frames for the peer. The caller has written a part of them.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Frames are appended to this buffer.
    pub bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that the caller has written.
    written: usize,
}

impl Output {
    #[inline]
    pub fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// Counts `len` more bytes as written by the caller. If more than half of `bytes` is written,
    /// frees the space of the written bytes.
    pub fn wrote(&mut self, len: usize) {
        self.written = self.written.saturating_add(len).min(self.bytes.len());
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        } else if self.written > self.bytes.len() / 2 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    pub fn shrink(&mut self) {
        self.bytes.drain(..self.written);
        self.written = 0;
        self.bytes.shrink_to_fit();
    }
}

// Order in which streams may send data (RFC 9218 section 10).

const URGENCIES: usize = 8;

/// Streams that have data to send, by urgency. Among streams of equal urgency, those that are not
/// incremental come first, in the order of their identifiers. Incremental streams follow and send
/// alternately.
#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    waiting: [VecDeque<(u32, bool)>; URGENCIES],
    len: usize,
    /// The stream that `give_turn` has named, if it has not sent since. This stream may send even
    /// if other streams were queued in the meantime. Zero means that there is no such stream.
    turn: u32,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn insert(&mut self, stream: u32, priority: Priority) {
        let waiting = &mut self.waiting[usize::from(priority.urgency) % URGENCIES];
        let place = if priority.incremental {
            waiting.len()
        } else {
            waiting.partition_point(|&(other, incremental)| !incremental && other < stream)
        };
        waiting.insert(place, (stream, priority.incremental));
        self.len += 1;
    }

    pub fn remove(&mut self, stream: u32, priority: Priority) {
        let waiting = &mut self.waiting[usize::from(priority.urgency) % URGENCIES];
        if let Some(place) = waiting.iter().position(|&(other, _)| other == stream) {
            waiting.remove(place);
            self.len -= 1;
        }
    }

    pub fn pop(&mut self) -> Option<u32> {
        let (stream, _) = self.waiting.iter_mut().find_map(VecDeque::pop_front)?;
        self.len -= 1;
        Some(stream)
    }

    /// Permits `stream` to send next. The permission remains valid if other streams are inserted
    /// before `stream` sends.
    #[inline]
    pub fn give_turn(&mut self, stream: u32) {
        self.turn = stream;
    }

    /// Returns true if [`Self::give_turn`] has permitted this stream to send next. The permission
    /// is then used up.
    #[inline]
    pub fn use_turn(&mut self, stream: u32) -> bool {
        let has_turn = self.turn == stream;
        if has_turn {
            self.turn = 0;
        }
        has_turn
    }

    /// Returns true if a waiting stream is as urgent as `priority` or more urgent. Smaller numbers
    /// are more urgent.
    pub fn goes_before(&self, priority: Priority) -> bool {
        let more_urgent = &self.waiting[..=usize::from(priority.urgency) % URGENCIES];
        self.len > 0 && more_urgent.iter().any(|waiting| !waiting.is_empty())
    }

    pub fn shrink(&mut self) {
        self.waiting.iter_mut().for_each(VecDeque::shrink_to_fit);
    }

    pub fn allocated(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.capacity() * size_of::<(u32, bool)>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_streams_go_first_whole_ones_in_order_and_parts_in_turns() {
        let mut queue = Queue::default();
        let priority = |urgency, incremental| Priority { urgency, incremental };
        for (stream, urgency, incremental) in [
            (9, 3, true),
            (7, 3, false),
            (5, 3, false),
            (11, 3, true),
            (13, 0, true),
            (1, 7, false),
        ] {
            queue.insert(stream, priority(urgency, incremental));
        }
        assert!(queue.goes_before(priority(0, false)));
        queue.remove(1, priority(7, false));
        let mut order = Vec::new();
        while let Some(stream) = queue.pop() {
            order.push(stream);
            if stream == 9 && order.len() < 6 {
                queue.insert(9, priority(3, true));
            }
        }
        assert_eq!(order, [13, 5, 7, 9, 11, 9]);
        assert!(queue.is_empty() && !queue.goes_before(priority(7, false)));
    }
}
