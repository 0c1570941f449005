//! Parts of a connection whose session itself has a handshake, time limits and an end, as in
//! HTTP/3.

use std::time::Instant;

use forebay_client::MuxSession;

use super::{MuxConnection, Phase};
use crate::connection::Ending;
use crate::inspection::Inspection;
use crate::transport::{Handshake, Transport};
use crate::worker::ThreadState;

impl<C: MuxSession<Sink = Inspection>, T: Transport> MuxConnection<C, T> {
    pub(super) fn begin_session(&mut self, now: Instant, state: &mut ThreadState) {
        self.session.connect(now);
        self.pending.clear();
        (self.used, self.reads, self.is_blocked, self.is_silent) = (false, 0, false, false);
        self.write_error = None;
        if self.session.is_connecting() {
            self.continue_handshake(now, state);
        } else {
            self.established(now, state);
        }
    }

    /// Returns true if the connection waits for the handshake of its session.
    pub(super) fn is_shaking_hands(&self) -> bool {
        self.phase == Phase::Connecting && self.transport.is_some() && self.session.is_connecting()
    }

    /// Continues the handshake of the session after input or a time limit.
    pub(super) fn continue_handshake(&mut self, now: Instant, state: &mut ThreadState) {
        if let Some(end) = self.session.end() {
            let error = T::explain(end, &self.config);
            return self.refused(error, now, state);
        }
        self.write(now, state);
        if let Some(time) = self.session.take_handshake() {
            let is_resumed = T::is_resumed(&self.config);
            state.tally.shook_hands(&Handshake { is_resumed, time });
            self.established(now, state);
        }
    }

    /// Orders a wake-up for the session, unless an earlier one is ordered. The session postpones
    /// most of its time limits before they expire.
    pub(super) fn set_wake(&mut self, state: &mut ThreadState) {
        if let Some(at) = self.session.timeout()
            && self.wake.is_none_or(|wake| at < wake)
        {
            self.wake = Some(at);
            state.alarm.add(at, self.id);
        }
    }

    /// Lets the session do what is due by now.
    pub(super) fn expire(&mut self, now: Instant, state: &mut ThreadState) {
        if self.wake.is_none_or(|at| at > now) {
            return;
        }
        self.wake = None;
        if self.transport.is_none() || !matches!(self.phase, Phase::Connecting | Phase::Open) {
            return;
        }
        self.session.expire(now);
        if let Err(malformed) = self.receive(0, now, state) {
            return self.broken(&malformed, now, state);
        }
        self.received(now, state);
    }

    /// Continues after input.
    pub(super) fn received(&mut self, now: Instant, state: &mut ThreadState) {
        if self.phase == Phase::Connecting {
            return self.continue_handshake(now, state);
        }
        match self.session.end().cloned() {
            Some(end) => self.lost(Ending(None, &end.reason), now, state),
            None => self.advance(now, state),
        }
    }
}
