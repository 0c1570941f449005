//! DATA frames, whose payload is processed as it arrives (RFC 9113 section 6.1).

use std::time::Instant;

use super::budget;
use super::streams::Half;
use super::{Connection, DataFrame, Event, Reading};
use crate::http2::error::{Abuse, Http2Error, Rule};
use crate::http2::frame::{HEADER_LEN, Header, flags};

type Found = Result<Option<Event>, Http2Error>;

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
