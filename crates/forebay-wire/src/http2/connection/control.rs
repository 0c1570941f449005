//! Frames that do not concern heads or data: SETTINGS, PING, WINDOW_UPDATE, RST_STREAM, priorities
//! and GOAWAY.

use std::time::{Duration, Instant};

use super::flow::LARGEST_WINDOW;
use super::streams::Half;
use super::{Cause, Connection, Event, Identifiers, Role, budget};
use crate::http2::Priority;
use crate::http2::error::{Abuse, ErrorCode, Http2Error, Rule};
use crate::http2::frame::{self, DEFAULT_FRAME, Frame, Settings, settings};

/// Payload of a PING frame that measures the round trip.
pub(super) const MEASURE: [u8; 8] = *b"measure\0";

/// Maximum number of stored PRIORITY_UPDATE frames for streams that do not exist yet.
const PRIORITIES: usize = 16;

type Found = Result<Option<Event>, Http2Error>;

impl Connection {
    /// Handles a frame that concerns neither heads nor data. Returns the event that the frame
    /// causes, if any. Returns an error if the frame breaks a rule.
    pub(super) fn control(&mut self, frame: Frame, now: Instant) -> Found {
        match frame {
            Frame::Settings(settings) => self.settings(settings, now),
            Frame::SettingsAck => self.settings_ack(now),
            Frame::Ping { payload, is_ack } => self.pinged(payload, is_ack, now),
            Frame::WindowUpdate { stream, increment } => {
                self.window_update(stream, increment, now).map(|()| None)
            }
            Frame::Reset { stream, code } => self.peer_reset(stream, code, now),
            Frame::Goaway { last, code, .. } => self.peer_goes_away(last, code, now),
            Frame::Priority => self.charge(budget::PRIORITY, Abuse::Priorities, now).map(|()| None),
            Frame::PriorityUpdate { stream, value } => self.priority_update(stream, value, now),
            Frame::PushPromise => Err(Http2Error::connection(Rule::Push)),
            _ => self.charge(budget::USELESS, Abuse::UselessFrames, now).map(|()| None),
        }
    }

    fn settings(&mut self, pairs: Settings, now: Instant) -> Found {
        let price = budget::SETTINGS + pairs.iter().count() as u32 * budget::SETTING;
        self.charge(price, Abuse::Settings, now)?;
        for (id, value) in pairs.iter() {
            self.setting(id, value)?;
        }
        frame::settings_ack(&mut self.out.bytes);
        Ok(Some(Event::Settings))
    }

    fn setting(&mut self, id: u16, value: u32) -> Result<(), Http2Error> {
        let bad = || Http2Error::connection(Rule::SettingValue);
        let is_client = self.role == Role::Client;
        match id {
            settings::HEADER_TABLE_SIZE => self.encoder.set_allowed(value as usize),
            // A server must not enable push (RFC 9113 section 6.5.2).
            settings::ENABLE_PUSH if value > u32::from(!is_client) => return Err(bad()),
            settings::MAX_CONCURRENT_STREAMS if is_client => self.peer.streams = value,
            settings::INITIAL_WINDOW_SIZE => self.initial_window(value)?,
            settings::MAX_FRAME_SIZE => {
                let size = value as usize;
                if !(DEFAULT_FRAME..1 << 24).contains(&size) {
                    return Err(bad());
                }
                self.peer.frame = size;
            }
            // A server cannot revoke this permission (RFC 8441 section 3).
            settings::ENABLE_CONNECT_PROTOCOL if is_client => {
                if value > 1 || value == 0 && self.peer.extended_connect {
                    return Err(bad());
                }
                self.peer.extended_connect = value == 1;
            }
            settings::ENABLE_CONNECT_PROTOCOL | settings::NO_RFC7540_PRIORITIES if value > 1 => {
                return Err(bad());
            }
            _ => {}
        }
        Ok(())
    }

    /// Applies a new SETTINGS_INITIAL_WINDOW_SIZE of the peer. Adds the difference between `value`
    /// and the old value to the send windows of all streams (section 6.9.2). Returns an error if a
    /// window becomes too large.
    fn initial_window(&mut self, value: u32) -> Result<(), Http2Error> {
        let overflow = Http2Error::connection(Rule::WindowOverflow);
        if i64::from(value) > LARGEST_WINDOW {
            return Err(overflow);
        }
        let change = i64::from(value) - i64::from(self.peer.window);
        self.peer.window = value;
        for stream in self.streams.iter_mut() {
            stream.send_window += change;
            if stream.send_window > LARGEST_WINDOW {
                return Err(overflow);
            }
            if stream.wants_to_send && stream.send_window > 0 && !stream.is_queued {
                stream.is_queued = true;
                self.queue.insert(stream.id, stream.priority);
            }
        }
        Ok(())
    }

    fn settings_ack(&mut self, now: Instant) -> Found {
        if self.peer.acknowledge() {
            return Ok(None);
        }
        self.charge(budget::USELESS, Abuse::Settings, now).map(|()| None)
    }

    fn pinged(&mut self, payload: [u8; 8], is_ack: bool, now: Instant) -> Found {
        if !is_ack {
            if !self.budget.spend_ping(now) {
                return Err(Http2Error::connection(Rule::Abuse(Abuse::Pings)));
            }
            frame::ping(&mut self.out.bytes, payload, true);
            return Ok(None);
        }
        if payload == MEASURE && self.round_trip.finish(now) {
            return Ok(None);
        }
        self.charge(budget::USELESS, Abuse::Pings, now).map(|()| None)
    }

    /// Adds the increment of WINDOW_UPDATE to a send window. Stream 0 is the connection. Returns an
    /// error if the increment is 0, if the window becomes too large, or if the stream is idle.
    fn window_update(&mut self, id: u32, inc: u32, now: Instant) -> Result<(), Http2Error> {
        if inc < budget::SMALL_UPDATE {
            self.charge(budget::WINDOW_UPDATE, Abuse::WindowUpdates, now)?;
        }
        if id == 0 {
            if inc == 0 {
                return Err(Http2Error::connection(Rule::WindowIncrement));
            }
            self.send_window += i64::from(inc);
            let fits = self.send_window <= LARGEST_WINDOW;
            return if fits { Ok(()) } else { Err(Http2Error::connection(Rule::WindowOverflow)) };
        }
        let Some(stream) = self.streams.get_mut(id) else {
            self.expect_opened(id)?;
            return self.charge(budget::WINDOW_UPDATE, Abuse::WindowUpdates, now);
        };
        if inc == 0 {
            return Err(Http2Error::stream(id, Rule::WindowIncrement));
        }
        stream.send_window += i64::from(inc);
        if stream.send_window > LARGEST_WINDOW {
            return Err(Http2Error::stream(id, Rule::WindowOverflow));
        }
        if stream.wants_to_send && stream.send_window > 0 && !stream.is_queued {
            stream.is_queued = true;
            self.queue.insert(id, stream.priority);
        }
        Ok(())
    }

    /// Returns an error if the stream is idle (RFC 9113 section 5.1).
    fn expect_opened(&self, id: u32) -> Result<(), Http2Error> {
        if self.identifiers.was_opened(id) {
            return Ok(());
        }
        Err(Http2Error::connection(Rule::IdleStream))
    }

    fn peer_reset(&mut self, id: u32, code: ErrorCode, now: Instant) -> Found {
        self.expect_opened(id)?;
        let stream = self.remove(id);
        let was_answered = stream.as_ref().is_none_or(|stream| stream.outgoing == Half::Ended);
        let price = if was_answered { budget::LATE_RESET } else { budget::RESET };
        if stream.is_none() {
            return self.charge(price, Abuse::Resets, now).map(|()| None);
        }
        self.update_window(now);
        // If a server resets our requests, we have little work. So only resets by clients have a
        // price.
        if self.role == Role::Server {
            self.charge(price, Abuse::Resets, now)?;
        }
        Ok(Some(Event::Reset { stream: id, cause: Cause::Peer(code) }))
    }

    fn peer_goes_away(&mut self, last: u32, code: ErrorCode, now: Instant) -> Found {
        self.charge(budget::USELESS, Abuse::UselessFrames, now)?;
        self.peer.is_draining = true;
        if self.role == Role::Client {
            let mut lost: Vec<u32> =
                self.streams.iter().map(|stream| stream.id).filter(|&id| id > last).collect();
            lost.sort_unstable();
            for id in lost {
                self.remove(id);
                self.events.push_back(Event::Reset { stream: id, cause: Cause::Unprocessed });
            }
            self.update_window(now);
        }
        // Report this event after the resets, so that the caller knows which streams remain. The
        // peer may have processed the requests of these streams. If the GOAWAY has an error code,
        // the caller must fail these requests.
        self.events.push_back(Event::Goaway { code });
        Ok(None)
    }

    fn priority_update(&mut self, id: u32, value: &[u8], now: Instant) -> Found {
        // A server must not send PRIORITY_UPDATE. A client must not name a stream of the server,
        // because no such stream exists without push.
        if self.role == Role::Client || id == 0 || !Identifiers::is_of_client(id) {
            return Err(Http2Error::connection(Rule::PriorityUpdate));
        }
        self.charge(budget::PRIORITY, Abuse::Priorities, now)?;
        let priority = Priority::parse(value);
        if self.identifiers.is_opened(id) {
            self.set_priority(id, priority);
            return Ok(None);
        }
        self.priorities.retain(|&(stream, _)| stream != id);
        if self.priorities.len() == PRIORITIES {
            self.priorities.pop_front();
        }
        self.priorities.push_back((id, priority));
        Ok(None)
    }
}

/// Time of our unanswered PING, and the fastest measured round trip.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    sent: Option<Instant>,
    fastest: Option<Duration>,
}

impl RoundTrip {
    /// Starts a measurement if none is active. Returns true if a measurement has started. The
    /// caller must then send a PING.
    pub fn start(&mut self, now: Instant) -> bool {
        let starts = self.sent.is_none();
        if starts {
            self.sent = Some(now);
        }
        starts
    }

    /// Ends the measurement. Returns false if no measurement was active.
    pub fn finish(&mut self, now: Instant) -> bool {
        let Some(sent) = self.sent.take() else { return false };
        let trip = now.saturating_duration_since(sent);
        self.fastest = Some(self.fastest.map_or(trip, |fastest| fastest.min(trip)));
        true
    }

    /// Returns the time at which the unanswered PING was sent, or `None` if every PING was
    /// answered.
    pub fn unanswered(&self) -> Option<Instant> {
        self.sent
    }

    #[inline]
    pub fn fastest(&self) -> Option<Duration> {
        self.fastest
    }
}
