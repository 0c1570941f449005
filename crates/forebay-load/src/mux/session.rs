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

    /// Returns true if the socket is connected, but the session has not completed its own
    /// handshake.
    pub(super) fn is_shaking_hands(&self) -> bool {
        self.phase == Phase::Connecting && self.transport.is_some() && self.session.is_connecting()
    }

    /// Continues the session's own handshake after input or a time limit. Starts requests if the
    /// handshake is complete. A failed handshake counts as a failed connect.
    fn continue_handshake(&mut self, now: Instant, state: &mut ThreadState) {
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

    /// Makes the timer wake the connection at the session's next time limit. Does nothing if an
    /// earlier wake-up is set. If the session postpones its time limit, the wake-up comes too early
    /// and has no effect.
    pub(super) fn set_wake(&mut self, state: &mut ThreadState) {
        if let Some(at) = self.session.timeout()
            && self.wake.is_none_or(|wake| at < wake)
        {
            self.wake = Some(at);
            state.alarm.add(at, self.id);
        }
    }

    /// If the wake-up that [`Self::set_wake`] has ordered is due, passes the time to the session.
    /// The session may then have output, or may have ended.
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

    /// Continues after input or a time limit of the session. Continues the handshake if it is not
    /// complete. Otherwise, continues the requests, or handles the end of the session.
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use forebay_client::FastcgiMux;
    use rustix::event::epoll::EventFlags;
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::request::Requests;
    use crate::simulation::thread_state;
    use crate::transport::Plain;
    use crate::worker::Drive;
    use crate::{Spec, Stop, Url};

    #[test]
    fn bytes_that_arrive_before_the_first_question_are_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = Url::parse(&format!("fcgi://{}/", listener.local_addr().unwrap())).unwrap();
        let spec = Spec { connections: 1, streams: 2, stop: Stop::Requests(1), ..Spec::new(url) };
        let now = Instant::now();
        let mut state = thread_state(&spec, now);
        let requests = Requests::of(&spec).unwrap().fastcgi().unwrap();
        let sinks = (0..2).map(|_| Inspection::new(None, None));
        let session = FastcgiMux::new(requests.first(), sinks);
        let mut connection = MuxConnection::<_, Plain>::new(0, session, requests, 2, ());
        connection.begin(now, &mut state);
        assert!(!connection.is_shaking_hands(), "the client has not asked yet");
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let socket = connection.transport.as_ref().unwrap().socket();
        poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
        // A single event reports the connect and the bytes.
        connection.ready(EventFlags::IN | EventFlags::OUT, now, &mut state);
        let why = state.last_refusal.expect("an error of the server").to_string();
        assert!(why.contains("not valid FastCGI"), "{why}");
    }
}
