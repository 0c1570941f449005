//! Connection of the load generator that carries several requests at once.
//!
//! Each stream works like a whole connection in `connection.rs`. A free stream takes a request,
//! waits until the request is due, and starts it when the session has capacity. After the complete
//! reply, the stream is free again. A request may outlive its connection: if no server has
//! processed the request, it waits for the next connection.

mod session;
mod streams;

use std::time::Instant;
use std::{fmt, io};

use forebay_client::{Ended, Malformed, MuxSession, StreamError};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::connection::{Ending, UNSENDABLE_PAUSE};
use crate::dialling::{
    BACKLOG_PAUSE, CLOSING, Next, Refusals, WATCHED, is_established, no_connection,
};
use crate::inspection::Inspection;
use crate::tally::Failure;
use crate::template::RequestSource;
use crate::transport::Dialled;
use crate::transport::Transport;
use crate::virtual_user::{StepTimes, VirtualUser};
use crate::worker::{Drive, InFlight, ThreadState};
use crate::{Error, clock};
use streams::{MuxStream, MuxStreamState, Streams};

/// Connection of the load generator, with its streams. When its socket is closed, the connection
/// opens a new one.
#[derive(Debug)]
pub(crate) struct MuxConnection<C: MuxSession, T: Transport> {
    id: usize,
    session: C,
    /// Requests of the run, by their indices.
    requests: RequestSource<C::Request>,
    config: T::Config,
    phase: Phase,
    transport: Option<T>,
    /// True if the current socket has carried a reply.
    used: bool,
    /// Number of reads that returned bytes. Each request stores this number when it starts. If the
    /// number is unchanged later, no bytes have arrived since the start.
    reads: u64,
    write_error: Option<Errno>,
    /// True if input is left unread because the session has too much output.
    is_blocked: bool,
    /// True if a request has timed out and nothing was received since it started. No further
    /// request starts on this connection until bytes arrive.
    is_silent: bool,
    /// Received bytes that the session has not consumed yet.
    pending: Vec<u8>,
    streams: Streams,
    /// Number of requests that were started, but without any byte written yet.
    unwritten: u64,
    /// After a failed connect, the earliest time of the next attempt.
    resume: Option<Instant>,
    /// Time of the next wake-up by the timer for the session.
    wake: Option<Instant>,
    refusals: Refusals,
    /// Users of scenarios, one for each stream; empty without scenarios.
    users: Vec<VirtualUser>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No connection exists, and none is needed.
    Closed,
    /// Waits for the end of the connect and handshake, or for space in the backlog of a Unix
    /// socket.
    Connecting,
    Open,
    /// The connection sends no more requests in this turn. The socket may still be open.
    Done,
}

impl<C: MuxSession<Sink = Inspection>, T: Transport> Drive for MuxConnection<C, T> {
    fn begin(&mut self, now: Instant, state: &mut ThreadState) {
        self.streams.all.iter_mut().for_each(|stream| stream.begun = false);
        // The worker has removed all wake-ups of the previous turn, so none is set.
        self.wake = None;
        if self.transport.is_some() {
            // First handle input that arrived between the turns, such as a GOAWAY or the end of the
            // connection.
            self.phase = Phase::Open;
            self.read(false, state);
        } else {
            self.phase = Phase::Closed;
            self.advance(now, state);
        }
    }

    fn ready(&mut self, flags: EventFlags, now: Instant, state: &mut ThreadState) {
        match self.phase {
            Phase::Connecting if self.is_shaking_hands() => {
                self.write(now, state);
                self.read(flags.intersects(CLOSING), state);
            }
            Phase::Connecting => {
                self.connected(now, state);
                // The server may already have sent bytes, for example directly after the TLS
                // handshake. No further event reports them, so read them now.
                let has_begun = self.phase == Phase::Open || self.is_shaking_hands();
                if has_begun && flags.intersects(EventFlags::IN.union(CLOSING)) {
                    self.read(flags.intersects(CLOSING), state);
                }
            }
            Phase::Open => {
                self.write(now, state);
                if flags.intersects(EventFlags::IN.union(CLOSING)) || self.is_blocked {
                    self.read(flags.intersects(CLOSING), state);
                } else {
                    self.advance(now, state);
                }
            }
            Phase::Closed | Phase::Done => {}
        }
    }

    fn go_on(&mut self, now: Instant, state: &mut ThreadState) {
        self.advance(now, state);
    }

    fn retire(&mut self, now: Instant, state: &mut ThreadState) {
        self.streams.end_resting();
        self.advance(now, state);
    }

    fn woken(&mut self, now: Instant, state: &mut ThreadState) {
        if self.phase == Phase::Connecting && self.transport.is_none() {
            self.connect(now, state);
        }
        self.expire(now, state);
        self.streams.end_rest(now, now + state.timeout);
        self.advance(now, state);
    }

    fn in_flight(&self) -> InFlight {
        let is_active = |stream: &&MuxStream| {
            matches!(stream.state, MuxStreamState::Waiting | MuxStreamState::UnderWay)
        };
        let active = self.streams.all.iter().filter(is_active);
        active.fold(InFlight::default(), |sum, stream| sum.and(InFlight::one(stream.due)))
    }

    fn check_deadline(&mut self, now: Instant, state: &mut ThreadState) {
        let Streams { waiting, under_way, .. } = &self.streams;
        if self.phase == Phase::Done || waiting.is_empty() && *under_way == 0 {
            return;
        }
        if self.write_error.is_some() && (self.phase == Phase::Open || self.is_shaking_hands()) {
            // A UDP socket reports an error only once. If the failed write got the error, no event
            // follows. So read now, to handle the end of the connection.
            self.read(true, state);
        }
        let mut failed = false;
        for stream in 0..self.streams.all.len() {
            let MuxStream { state: at, until, reads, .. } = self.streams.all[stream];
            if now < until || !matches!(at, MuxStreamState::Waiting | MuxStreamState::UnderWay) {
                continue;
            }
            if self.phase == Phase::Connecting {
                let error = if self.is_shaking_hands() {
                    T::no_handshake(state.timeout)
                } else {
                    no_connection(self.transport.as_ref(), state.timeout)
                };
                return self.refused(error, now, state);
            }
            if at == MuxStreamState::UnderWay {
                self.session.cancel(stream, now);
            }
            let why = format!("no complete reply within {:?}", state.timeout);
            self.fail_stream(stream, Failure::Timeout, &why, state);
            self.is_silent |= at == MuxStreamState::Waiting || reads == self.reads;
            failed = true;
        }
        if failed {
            self.advance(now, state);
        }
    }
}

impl<C: MuxSession<Sink = Inspection>, T: Transport> MuxConnection<C, T> {
    pub fn new(
        id: usize,
        session: C,
        requests: RequestSource<C::Request>,
        streams: usize,
        config: T::Config,
    ) -> Self {
        Self {
            id,
            session,
            requests,
            config,
            phase: Phase::Closed,
            transport: None,
            used: false,
            reads: 0,
            write_error: None,
            is_blocked: false,
            is_silent: false,
            pending: Vec::new(),
            streams: Streams::new(streams, clock::now()),
            unwritten: 0,
            resume: None,
            wake: None,
            refusals: Refusals::default(),
            users: Vec::new(),
        }
    }

    /// Sets the virtual users, one for each stream.
    pub fn with_users(mut self, users: Vec<VirtualUser>) -> Self {
        self.users = users;
        self
    }

    /// Returns the position in `idle` of the stream that takes the next request. A stream whose
    /// user has an unfinished iteration comes first. Returns `None` if no stream is idle.
    fn next_idle(&self) -> Option<usize> {
        let idle = &self.streams.idle;
        let is_iterating =
            |stream: &usize| self.users.get(*stream).is_some_and(|u| u.due().is_some());
        let last = idle.len().checked_sub(1)?;
        if self.users.is_empty() {
            return Some(last);
        }
        Some(idle.iter().rposition(is_iterating).unwrap_or(last))
    }

    /// Passes the next request of the stream to the session. With scenarios, this is the next step
    /// of the stream's user. Otherwise, it is the next request of the mix. Fails if the request
    /// cannot be encoded.
    fn select(
        &mut self,
        stream: usize,
        now: Instant,
        state: &mut ThreadState,
    ) -> Result<(), Error> {
        if let Some(user) = self.users.get_mut(stream) {
            if user.due().is_none() {
                let mix = &mut state.mix;
                let due = self.streams.all[stream].due;
                user.begin(due, || mix.next_scenario(), &mut state.values);
            }
            let sink = self.session.sink(stream);
            let (index, request) = user.request(&self.requests, &mut state.values, sink);
            self.streams.all[stream].request = index;
            self.session.set_request(stream, &request?);
            return Ok(());
        }
        let next = state.mix.next(now);
        let request = &mut self.streams.all[stream];
        request.request = next.request;
        request.due = next.due.unwrap_or(request.due);
        let session = &mut self.session;
        let set = |request: &C::Request| session.set_request(stream, request);
        self.requests.select(next.request, &mut state.values, set)
    }

    /// Handles a request that cannot be encoded: counts it as failed. The stream becomes idle after
    /// `UNSENDABLE_PAUSE`.
    fn unsendable(&mut self, stream: usize, why: &Error, now: Instant, state: &mut ThreadState) {
        self.count_failure(stream, Failure::Write, why, state);
        self.streams.all[stream].is_unsendable = true;
        self.streams.rest(stream, now + UNSENDABLE_PAUSE);
        state.alarm.add(now + UNSENDABLE_PAUSE, self.id);
    }

    /// Counts a failed request and frees its stream.
    fn fail_stream(
        &mut self,
        stream: usize,
        failure: Failure,
        why: &dyn fmt::Display,
        state: &mut ThreadState,
    ) {
        self.count_failure(stream, failure, why, state);
        self.streams.release(stream);
    }

    fn count_failure(
        &mut self,
        stream: usize,
        failure: Failure,
        why: &dyn fmt::Display,
        state: &mut ThreadState,
    ) {
        state.tally.fail(failure, self.streams.all[stream].request, why);
        if let Some(user) = self.users.get_mut(stream) {
            user.failed(clock::now(), &mut state.tally);
        }
    }

    /// Does everything that is possible now: takes requests, connects, starts waiting requests, and
    /// writes. Closes the connection if it can carry no more requests, or if the current stage of a
    /// ramp does not use it. If no requests are left, ends the turn of the connection
    /// (`Phase::Done`).
    fn advance(&mut self, now: Instant, state: &mut ThreadState) {
        while self.phase != Phase::Done {
            let is_given_up = self.is_silent && self.streams.under_way == 0;
            if self.phase == Phase::Open && (is_given_up || self.session.is_finished()) {
                self.close();
            }
            self.take_up(now, state);
            if self.phase == Phase::Open && self.is_inactive(now, state) {
                self.close();
            }
            if self.streams.is_idle() {
                // An open connection stays open for the next turn.
                if self.phase == Phase::Open {
                    self.write(now, state);
                } else {
                    self.close();
                }
                self.phase = Phase::Done;
                state.active -= 1;
                return;
            }
            match self.phase {
                Phase::Closed if !self.streams.waiting.is_empty() => {
                    return self.connect(now, state);
                }
                Phase::Open => {}
                _ => return,
            }
            self.start_waiting(now, state);
            let is_written = self.write(now, state);
            // The write may have given the session capacity for more requests.
            if !is_written || self.streams.waiting.is_empty() || self.capacity() == 0 {
                return;
            }
        }
    }

    /// Returns true if the current stage of a ramp does not use this connection. Always returns
    /// false while a request of the connection or a step of a user is due.
    fn is_inactive(&self, now: Instant, state: &ThreadState) -> bool {
        let Streams { waiting, under_way, .. } = &self.streams;
        let times = state.active_times.as_ref().filter(|_| waiting.is_empty() && *under_way == 0);
        let is_iterating =
            || self.users.iter().any(|user| user.due().is_some_and(|due| due <= now));
        times.is_some_and(|times| times.next(self.id, now) > now && !is_iterating())
    }

    /// Returns the number of requests that may start on this connection now.
    fn capacity(&self) -> usize {
        if self.is_silent { 0 } else { self.session.capacity() }
    }

    /// Takes as many requests as the connection can start now. If all streams are idle, takes one
    /// request even if none can start. If the server never permits this request, the timeout of the
    /// request ends the connection.
    fn take_up(&mut self, now: Instant, state: &mut ThreadState) {
        let room = if self.phase == Phase::Open { self.capacity() } else { 1 };
        let earliest = self.resume.unwrap_or(now).max(now);
        while self.streams.claims() < room || self.streams.is_idle() {
            let Some(position) = self.next_idle() else { return };
            let stream = self.streams.idle[position];
            let step_due = self.users.get(stream).and_then(VirtualUser::due);
            if step_due.is_none() && !state.budget.take() {
                return;
            }
            self.streams.idle.remove(position);
            let begun = std::mem::replace(&mut self.streams.all[stream].begun, true);
            let due = match (step_due, self.users.get(stream)) {
                (Some(due), _) => due,
                (None, Some(user)) if begun => {
                    state.pacer.next_iteration(earliest, user.rests_until())
                }
                _ if begun => state.pacer.next(earliest),
                _ => state.pacer.first(earliest),
            };
            let due = match &state.active_times {
                Some(times) if step_due.is_none() => times.next(self.id, due),
                _ => due,
            };
            let request = &mut self.streams.all[stream];
            (request.due, request.is_retry) = (due, false);
            if (state.mix.is_mixed() || !self.users.is_empty())
                && let Err(error) = self.select(stream, now, state)
            {
                self.unsendable(stream, &error, now, state);
                continue;
            }
            let begin = self.streams.all[stream].due.max(earliest);
            if begin > now {
                self.streams.rest(stream, begin);
                state.alarm.add(begin, self.id);
            } else {
                self.streams.wait(stream, now + state.timeout);
            }
        }
    }

    fn start_waiting(&mut self, now: Instant, state: &mut ThreadState) {
        while self.capacity() > 0
            && let Some(stream) = self.streams.waiting.pop_front()
        {
            if !self.session.start(stream, now) {
                self.streams.waiting.push_front(stream);
                return;
            }
            if let Some(user) = self.users.get_mut(stream) {
                user.start(&mut state.tally);
            }
            self.streams.under_way += 1;
            let request = &mut self.streams.all[stream];
            (request.state, request.reads) = (MuxStreamState::UnderWay, self.reads);
            self.unwritten += u64::from(!request.is_retry);
        }
    }

    fn connect(&mut self, now: Instant, state: &mut ThreadState) {
        self.phase = Phase::Connecting;
        let Dialled { socket, connected } = match self.refusals.dial(self.id, state) {
            Ok(dialled) => dialled,
            Err(Errno::AGAIN) => return state.alarm.add(now + BACKLOG_PAUSE, self.id),
            Err(errno) => return self.refused(errno.into(), now, state),
        };
        match T::new(socket, &self.config) {
            Ok(transport) => self.transport = Some(transport),
            Err(error) => return self.refused(error, now, state),
        }
        if connected {
            self.connected(now, state);
        }
    }

    fn connected(&mut self, now: Instant, state: &mut ThreadState) {
        let Some(transport) = &mut self.transport else { return };
        match is_established(transport, self.id, state) {
            Ok(true) => self.begin_session(now, state),
            Ok(false) => {}
            Err(error) => self.refused(error, now, state),
        }
    }

    fn established(&mut self, now: Instant, state: &mut ThreadState) {
        self.refusals.accepted(state);
        self.resume = None;
        self.phase = Phase::Open;
        self.advance(now, state);
    }

    /// Handles a failed connect: tries the next address, or fails the requests that waited for the
    /// connection.
    fn refused(&mut self, error: io::Error, now: Instant, state: &mut ThreadState) {
        self.close();
        let next = self.refusals.refused(&error, now, state);
        if let Next::Address = next {
            return self.connect(now, state);
        }
        while let Some(&stream) = self.streams.waiting.front() {
            self.fail_stream(stream, Failure::Connect, &error, state);
        }
        match next {
            Next::Attempt(resume) => {
                self.resume = Some(resume);
                self.advance(now, state);
            }
            Next::Address | Next::Nothing => {
                self.phase = Phase::Done;
                state.active -= 1;
            }
        }
    }

    /// Writes until the output is empty. Returns false after an error, or if the socket does not
    /// accept everything.
    fn write(&mut self, now: Instant, state: &mut ThreadState) -> bool {
        let Some(transport) = &mut self.transport else { return false };
        self.session.prepare(now);
        while !self.session.output().is_empty() && self.write_error.is_none() {
            match transport.send(self.session.output()) {
                Ok(n) => {
                    state.tally.sent += std::mem::take(&mut self.unwritten);
                    self.session.wrote(n, now);
                }
                Err(Errno::AGAIN) => {
                    // The new event mask re-arms the edge-triggered event. If the socket is
                    // writable by now, the event comes at once.
                    let data = EventData::new_u64(self.id as u64);
                    let flags = WATCHED | EventFlags::OUT;
                    if let Err(errno) = epoll::modify(&state.epoll, transport.socket(), data, flags)
                    {
                        self.write_error = Some(errno);
                    }
                    return false;
                }
                Err(Errno::INTR) => {}
                // Replies may already have arrived. The event of the broken connection causes a
                // read, which finds them.
                Err(errno) => self.write_error = Some(errno),
            }
        }
        self.set_wake(state);
        self.write_error.is_none()
    }

    /// Reads until the socket is empty. A read that does not fill the buffer has emptied the
    /// socket. If the server has closed the connection (`closing`), reads until the end of the
    /// connection instead.
    fn read(&mut self, closing: bool, state: &mut ThreadState) {
        let mut now = clock::now();
        if std::mem::take(&mut self.is_blocked)
            && let Err(malformed) = self.receive(0, now, state)
        {
            return self.broken(&malformed, now, state);
        }
        loop {
            if !self.session.takes_input() && !self.write(now, state) {
                // The session takes no input while its output is unwritten. An event reports when
                // the socket is writable, and the read then continues.
                self.is_blocked = true;
                break;
            }
            let Some(transport) = &mut self.transport else { return };
            let received = transport.recv(&mut state.buffer);
            self.session.set_datagram_size(transport.datagram_size());
            now = clock::now();
            match received {
                Ok(0) => {
                    let ending = Ending::of_close(transport);
                    return self.lost(ending, now, state);
                }
                Ok(n) => {
                    let emptied = transport.is_emptied(n, state.buffer.len()) && !closing;
                    self.reads += 1;
                    self.is_silent = false;
                    state.tally.bytes.read += n as u64;
                    if let Err(malformed) = self.receive(n, now, state) {
                        return self.broken(&malformed, now, state);
                    }
                    // A FastCGI connection that has asked FCGI_GET_VALUES carries no requests,
                    // because many applications close such a connection after their answer. The
                    // answer therefore finishes the session, and requests use a new connection.
                    let is_answered = self.phase == Phase::Connecting && self.session.is_finished();
                    if emptied || is_answered {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let ending = Ending(Some(errno), "the connection broke");
                    return self.lost(ending, now, state);
                }
            }
        }
        self.received(now, state);
    }

    /// Processes the first `n` bytes of the thread's buffer, after the pending bytes. Bytes that
    /// the session does not consume are copied, and become pending.
    fn receive(
        &mut self,
        n: usize,
        now: Instant,
        state: &mut ThreadState,
    ) -> Result<(), Malformed> {
        let direct = self.pending.is_empty();
        if !direct {
            self.pending.extend_from_slice(&state.buffer[..n]);
        }
        let mut at = 0;
        loop {
            let input = if direct { &state.buffer[at..n] } else { &self.pending[at..] };
            let receipt = self.session.input(input, now)?;
            at += receipt.consumed;
            match receipt.ended {
                Some(ended) => self.ended(ended, now, state),
                None => break,
            }
        }
        if direct {
            self.pending.extend_from_slice(&state.buffer[at..n]);
        } else {
            self.pending.drain(..at);
        }
        Ok(())
    }

    /// Handles the end of one request. Counts a reply, or a failure that leaves the connection
    /// open. If the server has not processed the request, queues it again.
    fn ended(&mut self, ended: Ended, now: Instant, state: &mut ThreadState) {
        let stream = ended.exchange;
        let request = self.streams.all[stream].request;
        match ended.result {
            Ok(answer) => {
                let due = self.streams.all[stream].due;
                let latency = now.saturating_duration_since(due);
                let sink = self.session.sink(stream);
                match self.users.get_mut(stream) {
                    None => {
                        state.tally.judge(answer.status, sink, latency, (&*state.target, request));
                    }
                    Some(user) => {
                        let times = StepTimes { now, latency };
                        user.replied(answer.status, sink, times, &mut state.tally);
                    }
                }
                self.used = true;
            }
            // A second retry requires that this connection has carried a reply. Otherwise a server
            // that never replies would cause endless retries.
            Err(StreamError::Unprocessed) if self.used || !self.streams.all[stream].is_retry => {
                return self.retry(stream, state);
            }
            Err(error @ StreamError::Malformed(_)) => {
                return self.fail_stream(stream, Failure::Protocol, &error, state);
            }
            Err(error) => return self.fail_stream(stream, Failure::Read, &error, state),
        }
        self.streams.release(stream);
    }

    /// Queues an active request, so that it is sent again.
    fn retry(&mut self, stream: usize, state: &mut ThreadState) {
        let until = self.streams.all[stream].until;
        self.streams.under_way -= 1;
        self.streams.all[stream].is_retry = true;
        self.streams.wait(stream, until);
        state.tally.resent += 1;
    }

    /// Handles a protocol violation by the server. All active requests fail. During the connect,
    /// the violation counts as a failed connect.
    fn broken(&mut self, malformed: &Malformed, now: Instant, state: &mut ThreadState) {
        // The session's output reports the reason to the server, for example with a GOAWAY frame.
        self.write(now, state);
        if self.phase == Phase::Connecting {
            let error = io::Error::new(io::ErrorKind::InvalidData, malformed.to_string());
            return self.refused(error, now, state);
        }
        self.fail_all(Failure::Protocol, malformed, state);
        self.close();
        self.advance(now, state);
    }

    /// Handles the end of the connection. Each active request fails, unless the server closed the
    /// connection before it read the request ([`Self::was_idle`]). In this case, the request is
    /// sent again, but only once.
    fn lost(&mut self, ending: Ending<'_>, now: Instant, state: &mut ThreadState) {
        if self.phase == Phase::Connecting {
            let Ending(errno, what) = ending;
            let error = errno.map_or_else(|| io::Error::other(what), io::Error::from);
            return self.refused(error, now, state);
        }
        if self.was_idle(&ending, state) {
            for stream in 0..self.streams.all.len() {
                let MuxStream { state: at, is_retry, .. } = self.streams.all[stream];
                if at == MuxStreamState::UnderWay && !is_retry {
                    self.retry(stream, state);
                }
            }
        }
        let why = if let Some(farewell) = self.session.farewell() {
            format!("{ending} ({farewell}) before the reply was complete")
        } else if self.session.end().is_none() && !self.session.is_settled() {
            format!("{ending} before its SETTINGS: does it speak HTTP/2 with prior knowledge?")
        } else {
            format!("{ending} before the reply was complete")
        };
        match self.write_error {
            Some(errno) => {
                let why = format!("{} ({why})", io::Error::from(errno));
                self.fail_all(Failure::Write, &why, state);
            }
            None => self.fail_all(Failure::Read, &why, state),
        }
        self.close();
        self.advance(now, state);
    }

    /// Returns true if the server closed this connection before it read the active requests, so
    /// that they can be sent on another connection. All of these conditions must hold:
    ///
    /// - The connection has carried a reply.
    /// - Every active request started after the server's last bytes, and may be sent twice.
    /// - A write failed, the session ended in an orderly way, or the server left bytes unread.
    fn was_idle(&self, ending: &Ending<'_>, state: &ThreadState) -> bool {
        let Some(transport) = &self.transport else { return false };
        // If the session has ended, the last counted read may have contained only this end. Such a
        // read does not prove that the server still handled requests, so do not count it.
        let (reads, is_orderly) = match self.session.end() {
            Some(end) => (self.reads.saturating_sub(1), Some(end.is_orderly)),
            None => (self.reads, None),
        };
        let is_late = |stream: &MuxStream| {
            let may_resend = state.mix.may_resend(stream.request);
            stream.state != MuxStreamState::UnderWay || stream.reads >= reads && may_resend
        };
        let is_refused = self.write_error.is_some()
            || is_orderly.unwrap_or_else(|| ending.leaves_bytes_unread(transport));
        self.used && is_refused && self.streams.all.iter().all(is_late)
    }

    fn fail_all(&mut self, failure: Failure, why: &dyn fmt::Display, state: &mut ThreadState) {
        for stream in 0..self.streams.all.len() {
            if self.streams.all[stream].state == MuxStreamState::UnderWay {
                self.fail_stream(stream, failure, why, state);
            }
        }
    }
}

impl<C: MuxSession, T: Transport> MuxConnection<C, T> {
    /// Closes the socket. The kernel then also removes the socket from the epoll set.
    fn close(&mut self) {
        if let Some(transport) = &mut self.transport {
            // A QUIC server learns only from the session's last message that the connection ends.
            let now = clock::now();
            self.session.close(now);
            if T::IS_DATAGRAM {
                self.session.prepare(now);
                let _ = transport.send(self.session.output());
            }
        }
        self.transport = None;
        self.wake = None;
        self.phase = Phase::Closed;
        self.unwritten = 0;
    }
}

impl<C: MuxSession, T: Transport> Drop for MuxConnection<C, T> {
    fn drop(&mut self) {
        self.close();
    }
}
