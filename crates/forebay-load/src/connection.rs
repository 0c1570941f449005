//! Connection of the load generator that carries one request at a time.

use std::time::{Duration, Instant};
use std::{fmt, io};

use forebay_client::{Answer, Malformed, Receipt, Session};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

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
use crate::{Error, Lifetime, clock};

/// Connection of the load generator. If its socket is closed, the next request opens a new one.
#[derive(Debug)]
pub(crate) struct LoadConnection<C: Session, T: Transport> {
    id: usize,
    session: C,
    /// Requests of the run, by their indices.
    requests: RequestSource<C::Request>,
    config: T::Config,
    phase: Phase,
    transport: Option<T>,
    /// Number of replies that the current socket has carried.
    replies: u64,
    /// Time at which the current socket was connected.
    since: Instant,
    /// Duration of the last exchange, which is at least a round trip of the network.
    last_exchange: Duration,
    exchange: Exchange,
    /// Received bytes that the session has not consumed yet.
    pending: Vec<u8>,
    /// Time of the next wake-up by the timer. Wake-ups before this time are obsolete.
    wake: Option<Instant>,
    refusals: Refusals,
    /// True if the connection rests after a request that could not be encoded.
    is_unsendable: bool,
    /// User of a scenario, whose requests the connection carries.
    user: Option<Box<VirtualUser>>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits until the next request is due.
    Resting,
    /// Waits until the connection and its handshake are complete, or until the backlog of a Unix
    /// socket has space.
    Connecting,
    /// Has a request to write or a reply to read.
    Exchanging,
    /// Has sent its last request of this turn.
    Done,
}

/// Request that the connection currently carries.
#[derive(Debug)]
struct Exchange {
    /// Index of the request.
    request: usize,
    /// Time at which the request was due. Its latency counts from this time.
    due: Instant,
    deadline: Instant,
    written: usize,
    /// True if at least one byte of the reply was received.
    answered: bool,
    /// True if the request was sent before, on a connection that the server had closed.
    is_retry: bool,
    write_error: Option<Errno>,
    /// Time at which the body is sent even without `100 Continue`.
    held_until: Option<Instant>,
    /// Time until which a reset may follow the end of the connection.
    reset_until: Option<Instant>,
}

/// Time for which a request with `Expect: 100-continue` waits for the server before it sends its
/// body. curl waits as long.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after a request that could not be encoded. Without the pause, a user who has only such
/// requests would occupy the thread.
pub(crate) const UNSENDABLE_PAUSE: Duration = Duration::from_millis(1);

/// First bytes of a TLS alert. A TLS server answers with an alert if the client sends plain text.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];
const SPEAKS_TLS: &str = "the server speaks TLS on this port: use https://";

/// Codes with which a WebSocket server closes a connection that it no longer needs: normal closure,
/// going away, no code, service restart.
const ORDERLY_CLOSES: [u16; 4] = [1000, 1001, 1005, 1012];

const CLOSED: &str = "the server closed";

/// Reason why a connection ended before a complete reply: the system's error, and a text for the
/// report.
pub(crate) struct Ending<'a>(pub Option<Errno>, pub &'a str);

impl<C: Session<Sink = Inspection>, T: Transport> Drive for LoadConnection<C, T> {
    #[inline]
    fn begin(&mut self, now: Instant, state: &mut ThreadState) {
        if matches!(self.phase, Phase::Connecting | Phase::Exchanging) {
            // The previous turn was cancelled while a request was active. Close the connection,
            // because the reply to that request may still arrive.
            self.close();
        }
        self.is_unsendable = false;
        self.drop_if_closed(state);
        let due = match self.user.as_ref().and_then(|user| user.due()) {
            Some(due) => due,
            None => state.pacer.first(now),
        };
        self.turn(due, now, now, state);
    }

    #[inline]
    fn ready(&mut self, flags: EventFlags, now: Instant, state: &mut ThreadState) {
        match self.phase {
            Phase::Connecting => self.connected(now, state),
            // Nothing is left to write, or a timer triggers the writes of a slow sender.
            Phase::Exchanging if self.written_all() || state.slow.send.is_some() => {}
            Phase::Exchanging => self.write(state),
            Phase::Resting | Phase::Done => return self.drop_if_closed(state),
        }
        if self.phase == Phase::Exchanging && flags.intersects(EventFlags::IN.union(CLOSING)) {
            self.read(flags.intersects(CLOSING), state);
        }
    }

    #[inline]
    fn go_on(&mut self, now: Instant, state: &mut ThreadState) {
        let due = self.next_due(now, state);
        self.turn(due, now, now, state);
    }

    fn retire(&mut self, _: Instant, state: &mut ThreadState) {
        if self.phase == Phase::Resting {
            self.wake = None;
            self.phase = Phase::Done;
            state.active -= 1;
        }
    }

    #[inline]
    fn woken(&mut self, now: Instant, state: &mut ThreadState) {
        if self.wake.is_none_or(|at| at > now) {
            return;
        }
        self.wake = None;
        match self.phase {
            Phase::Resting if std::mem::take(&mut self.is_unsendable) => self.go_on(now, state),
            Phase::Resting => self.start(now, state),
            Phase::Connecting if self.transport.is_none() => self.connect(now, state),
            Phase::Exchanging if self.exchange.reset_until.is_some_and(|at| now >= at) => {
                self.broken(Ending(None, CLOSED), state);
            }
            Phase::Exchanging => {
                if self.exchange.held_until.is_some_and(|at| now >= at) {
                    self.session.release_output();
                    self.write(state);
                } else if state.slow.is_used() {
                    self.go_slowly(state);
                }
            }
            _ => {}
        }
    }

    fn in_flight(&self) -> InFlight {
        match self.phase {
            Phase::Connecting | Phase::Exchanging => InFlight::one(self.exchange.due),
            Phase::Resting | Phase::Done => InFlight::default(),
        }
    }

    #[inline]
    fn check_deadline(&mut self, now: Instant, state: &mut ThreadState) {
        match self.phase {
            Phase::Connecting if now >= self.exchange.deadline => {
                self.refused(no_connection(self.transport.as_ref(), state.timeout), now, state);
            }
            Phase::Exchanging if now >= self.exchange.deadline => {
                let why = format!("no complete reply within {:?}", state.timeout);
                self.fail(Failure::Timeout, &why, state);
            }
            _ => {}
        }
    }
}

impl<C: Session<Sink = Inspection>, T: Transport> LoadConnection<C, T> {
    pub fn new(
        id: usize,
        session: C,
        requests: RequestSource<C::Request>,
        config: T::Config,
    ) -> Self {
        let now = clock::now();
        Self {
            id,
            session,
            requests,
            config,
            phase: Phase::Resting,
            transport: None,
            replies: 0,
            since: now,
            last_exchange: Duration::ZERO,
            exchange: Exchange::new(now, now),
            pending: Vec::new(),
            wake: None,
            refusals: Refusals::default(),
            is_unsendable: false,
            user: None,
        }
    }

    /// Sets the virtual user whose requests the connection carries. With `None`, the connection
    /// carries the requests of the mix.
    pub fn with_user(self, user: Option<VirtualUser>) -> Self {
        Self { user: user.map(Box::new), ..self }
    }

    /// Returns the due time of the next request after a reply or failure at `now`.
    #[inline]
    fn next_due(&mut self, now: Instant, state: &mut ThreadState) -> Instant {
        match &self.user {
            None => state.pacer.next(now),
            Some(user) => {
                user.due().unwrap_or_else(|| state.pacer.next_iteration(now, user.rests_until()))
            }
        }
    }

    fn is_iterating(&self) -> bool {
        self.user.as_ref().is_some_and(|user| user.due().is_some())
    }

    /// Prepares the next request. Returns false if the budget is empty.
    ///
    /// Without a virtual user, each request takes one unit of the budget. With a virtual user, each
    /// iteration takes one unit, and the user begins the iteration. The further steps of this
    /// iteration take nothing.
    #[inline]
    fn takes_step(&mut self, due: Instant, state: &mut ThreadState) -> bool {
        let Some(user) = &mut self.user else { return state.budget.take() };
        if user.due().is_none() {
            if !state.budget.take() {
                return false;
            }
            let mix = &mut state.mix;
            user.begin(due, || mix.next_scenario(), &mut state.values);
        }
        true
    }

    /// Passes the next request to the session. If the connection has a virtual user, this is the
    /// user's next step. Otherwise, it is the next request of the mix. Fails if the request cannot
    /// be encoded.
    #[inline(never)]
    fn select(&mut self, now: Instant, state: &mut ThreadState) -> Result<(), Error> {
        if let Some(user) = &mut self.user {
            let sink = self.session.sink();
            let (index, request) = user.request(&self.requests, &mut state.values, sink);
            self.exchange.request = index;
            self.session.set_request(&request?);
            return Ok(());
        }
        let next = state.mix.next(now);
        self.exchange.request = next.request;
        self.exchange.due = next.due.unwrap_or(self.exchange.due);
        let session = &mut self.session;
        let set = |request: &C::Request| session.set_request(request);
        self.requests.select(next.request, &mut state.values, set)
    }

    /// Takes the next request from the budget. The connection sends the request at `due`, but not
    /// before `earliest`, which is the end of the pause after a failed connect. In a ramp of
    /// connections, the request may also have to wait until this connection is active.
    ///
    /// If the budget is empty, ends the turn of the connection. A request that cannot be encoded
    /// counts as failed.
    #[inline]
    fn turn(&mut self, due: Instant, earliest: Instant, now: Instant, state: &mut ThreadState) {
        let due = match &state.active_times {
            Some(times) if !self.is_iterating() => {
                let active = times.next(self.id, due);
                if active > now.max(due) {
                    self.close();
                }
                active
            }
            _ => due,
        };
        if !self.takes_step(due, state) {
            self.phase = Phase::Done;
            state.active -= 1;
            return;
        }
        self.exchange.due = due;
        if (state.mix.is_mixed() || self.user.is_some())
            && let Err(error) = self.select(now, state)
        {
            self.count_failure(Failure::Write, &error, state);
            (self.phase, self.is_unsendable) = (Phase::Resting, true);
            return self.wake_at(now + UNSENDABLE_PAUSE, state);
        }
        let begin = self.exchange.due.max(earliest);
        if begin > now {
            self.phase = Phase::Resting;
            self.wake_at(begin, state);
        } else {
            self.start(now, state);
        }
    }

    // With `inline` alone, the compiler does not inline this function and `complete`. A request
    // then takes 854 instructions instead of 814.
    #[inline(always)]
    fn start(&mut self, now: Instant, state: &mut ThreadState) {
        let Exchange { request, due, .. } = self.exchange;
        self.exchange = Exchange { request, ..Exchange::new(due, now + state.timeout) };
        if let Some(user) = &mut self.user {
            user.start(&mut state.tally);
        }
        self.pending.clear();
        self.session.start();
        if self.transport.is_none() {
            return self.connect(now, state);
        }
        self.phase = Phase::Exchanging;
        self.write(state);
    }

    #[inline(never)]
    fn connect(&mut self, now: Instant, state: &mut ThreadState) {
        self.phase = Phase::Connecting;
        let Dialled { socket, connected } = match self.refusals.dial(self.id, state) {
            Ok(dialled) => dialled,
            Err(Errno::AGAIN) => return self.wake_at(now + BACKLOG_PAUSE, state),
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
            Ok(true) => self.established(state),
            Ok(false) => {}
            Err(error) => self.refused(error, now, state),
        }
    }

    fn established(&mut self, state: &mut ThreadState) {
        self.refusals.accepted(state);
        (self.replies, self.since) = (0, clock::now());
        self.session.connect();
        self.phase = Phase::Exchanging;
        self.write(state);
    }

    /// Handles a failed connect: tries the next address, tries again later, or gives up.
    #[cold]
    fn refused(&mut self, error: io::Error, now: Instant, state: &mut ThreadState) {
        self.close();
        let resume = match self.refusals.refused(&error, now, state) {
            Next::Address => return self.connect(now, state),
            Next::Nothing => {
                self.count_failure(Failure::Connect, &error, state);
                self.phase = Phase::Done;
                state.active -= 1;
                return;
            }
            Next::Attempt(resume) => resume,
        };
        self.count_failure(Failure::Connect, &error, state);
        let due = self.next_due(resume, state);
        self.turn(due, resume, now, state);
    }

    /// Transfers the next portion of a slow request or reply.
    #[cold]
    fn go_slowly(&mut self, state: &mut ThreadState) {
        if !self.written_all() {
            return self.write(state);
        }
        let Some(portion) = state.slow.reads() else { return };
        let Some(transport) = &mut self.transport else { return };
        match transport.recv_portion(&mut state.buffer, portion.bytes) {
            Ok(0) => {
                let ending = Ending::of_close(transport);
                return self.broken(ending, state);
            }
            Ok(n) => self.receive(n, false, state),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return self.broken(Ending(Some(errno), "the connection broke"), state),
        }
        self.wait_for_portion(state);
    }

    /// Sets the timer for the next portion of a slow request or reply.
    #[cold]
    fn wait_for_portion(&mut self, state: &mut ThreadState) {
        let all = self.written_all();
        let portion = if all { state.slow.reads() } else { state.slow.sends() };
        if let Some(portion) = portion.filter(|_| self.phase == Phase::Exchanging) {
            self.wake_at(clock::now() + portion.interval, state);
        }
    }

    #[inline]
    fn write(&mut self, state: &mut ThreadState) {
        if state.slow.is_used() {
            self.write_portion(state);
            self.wait_for_portion(state);
            return self.hold(state);
        }
        let Some(transport) = &mut self.transport else { return };
        while !self.session.output().is_empty() && self.exchange.write_error.is_none() {
            match transport.send(self.session.output()) {
                Ok(n) => {
                    if self.exchange.written == 0 && n > 0 && !self.exchange.is_retry {
                        state.tally.sent += 1;
                    }
                    self.exchange.written += n;
                    self.session.wrote(n);
                }
                Err(Errno::AGAIN) => return self.watch_writable(state),
                Err(Errno::INTR) => {}
                // A reply, such as a 413, may already have arrived. The event of the broken
                // connection causes a read, which finds the reply.
                Err(errno) => self.exchange.write_error = Some(errno),
            }
        }
        if self.session.holds_output() {
            self.hold(state);
        }
    }

    /// Sets the timer for a body that waits for `100 Continue`.
    #[cold]
    fn hold(&mut self, state: &mut ThreadState) {
        let is_held = self.session.holds_output() && self.written_all();
        if !is_held || self.exchange.held_until.is_some() {
            return;
        }
        let until = clock::now() + CONTINUE_TIMEOUT;
        self.exchange.held_until = Some(until);
        // A slow reader wakes up more often.
        if state.slow.reads().is_none() {
            self.wake_at(until, state);
        }
    }

    /// Writes a portion of a slow request, or the whole request of a slow reader.
    #[cold]
    fn write_portion(&mut self, state: &mut ThreadState) {
        let portion = state.slow.sends();
        loop {
            let Some(transport) = &mut self.transport else { return };
            let output = self.session.output();
            let limit = portion.map_or(output.len(), |portion| portion.bytes.min(output.len()));
            if limit == 0 || self.exchange.write_error.is_some() {
                return;
            }
            match transport.send(&output[..limit]) {
                Ok(n) => {
                    let is_first = self.exchange.written == 0 && !self.exchange.is_retry;
                    state.tally.sent += u64::from(is_first && n > 0);
                    self.exchange.written += n;
                    self.session.wrote(n);
                    if portion.is_some() {
                        return;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return self.watch_writable(state),
                Err(errno) => self.exchange.write_error = Some(errno),
            }
        }
    }

    /// Asks for an event when the socket is writable. The new event mask re-arms the edge-triggered
    /// event. If the socket is writable by now, the event comes at once.
    #[cold]
    fn watch_writable(&mut self, state: &mut ThreadState) {
        let Some(transport) = &self.transport else { return };
        let data = EventData::new_u64(self.id as u64);
        let flags = WATCHED | EventFlags::OUT;
        if let Err(errno) = epoll::modify(&state.epoll, transport.socket(), data, flags) {
            self.exchange.write_error = Some(errno);
        }
    }

    /// Reads until the socket is empty. If the server has closed the connection (`closing`), reads
    /// until the end of the connection. Without `closing`, does nothing for a slow reader.
    ///
    /// A read that does not fill the buffer has emptied the socket. The next read would only return
    /// EAGAIN, so it is skipped.
    #[inline]
    fn read(&mut self, closing: bool, state: &mut ThreadState) {
        // A slow reader reads when its timer fires. After the server has closed the connection, the
        // slow reader reads all remaining bytes at once.
        if state.slow.read.is_some() && !closing {
            return;
        }
        while self.phase == Phase::Exchanging {
            let Some(transport) = &mut self.transport else { return };
            match transport.recv(&mut state.buffer) {
                Ok(0) => {
                    let ending = Ending::of_close(transport);
                    return self.broken(ending, state);
                }
                Ok(n) => {
                    let emptied = transport.is_emptied(n, state.buffer.len()) && !closing;
                    self.receive(n, closing, state);
                    if emptied {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return self.broken(Ending(Some(errno), "the connection broke"), state);
                }
            }
        }
    }

    /// Processes the first `n` bytes of the thread's buffer, after the bytes in `pending`. If the
    /// reply is still incomplete, copies the bytes that the session has not consumed to `pending`.
    #[inline]
    fn receive(&mut self, n: usize, closing: bool, state: &mut ThreadState) {
        state.tally.bytes.read += n as u64;
        self.exchange.answered = true;
        let direct = self.pending.is_empty();
        if !direct {
            self.pending.extend_from_slice(&state.buffer[..n]);
        }
        let input = if direct { &state.buffer[..n] } else { &self.pending[..] };
        match self.session.input(input) {
            Err(_) if input.starts_with(&TLS_ALERT) => {
                self.fail(Failure::Protocol, &SPEAKS_TLS, state);
            }
            // After its close frame, a WebSocket server handles no further message.
            Err(Malformed::Closed(code))
                if ORDERLY_CLOSES.contains(&code)
                    && self.replies > 0
                    && self.session.sink().length() == 0 =>
            {
                self.resend(state);
            }
            Err(malformed) => self.fail(Failure::Protocol, &malformed, state),
            Ok(Receipt { consumed, answer: Some(_) }) if consumed < input.len() => {
                self.fail(Failure::Protocol, &Malformed::Surplus, state);
            }
            Ok(Receipt { answer: Some(answer), .. }) => {
                if self.session.has_late_output() {
                    self.write(state);
                }
                self.complete(answer, closing, state);
            }
            Ok(Receipt { consumed, .. }) => {
                if direct {
                    self.pending.extend_from_slice(&state.buffer[consumed..n]);
                } else {
                    self.pending.drain(..consumed);
                }
                // An AJP container may have asked for more of the request's body, which is now in
                // the session's output.
                if !self.written_all() {
                    self.write(state);
                }
            }
        }
    }

    #[inline(always)]
    fn complete(&mut self, answer: Answer, closing: bool, state: &mut ThreadState) {
        let now = clock::now();
        let latency = now.saturating_duration_since(self.exchange.due);
        let request = (&*state.target, self.exchange.request);
        let sink = self.session.sink();
        match &mut self.user {
            None => state.tally.judge(answer.status, sink, latency, request),
            Some(user) => {
                user.replied(answer.status, sink, StepTimes { now, latency }, &mut state.tally);
            }
        }
        if answer.status == 408 || !self.written_all() {
            self.count_closed(now, state);
        }
        self.replies += 1;
        self.last_exchange = now.saturating_duration_since(self.exchange.deadline - state.timeout);
        if closing || !answer.reusable || !self.written_all() || self.is_worn(now, state) {
            self.close();
        }
        self.phase = Phase::Resting;
        state.idle = Some((self.id, now));
    }

    /// Returns true if the connection has carried the maximum number of requests, or has reached
    /// the maximum age.
    #[inline]
    fn is_worn(&self, now: Instant, state: &ThreadState) -> bool {
        let Lifetime { requests, age } = state.lifetime;
        requests.is_some_and(|limit| self.replies >= limit)
            || age.is_some_and(|limit| now.saturating_duration_since(self.since) >= limit)
    }

    /// Handles the end of the connection. Completes a reply without a length, whose body ends with
    /// the connection. Resends the request if the connection was idle ([`Self::was_idle`]).
    /// Otherwise, the request fails.
    #[cold]
    fn broken(&mut self, ending: Ending<'_>, state: &mut ThreadState) {
        if self.exchange.answered {
            let is_cut_off = self.transport.as_ref().is_some_and(T::is_cut_off);
            return match self.session.closed() {
                Some(answer) if ending.0.is_none() && !is_cut_off => {
                    self.complete(answer, true, state);
                }
                _ if self.pending.starts_with(&TLS_ALERT) => {
                    self.fail(Failure::Protocol, &SPEAKS_TLS, state);
                }
                _ => self.fail(Failure::Read, &format!("{ending} in the middle of a reply"), state),
            };
        }
        if self.replies > 0 && self.was_idle(&ending, state) {
            return self.resend(state);
        }
        if self.may_be_reset(&ending, state) {
            let now = clock::now();
            let until = *self.exchange.reset_until.get_or_insert(now + self.last_exchange);
            if now < until {
                return self.wake_at(until, state);
            }
        }
        match self.exchange.write_error {
            Some(errno) => self.fail(Failure::Write, &io::Error::from(errno), state),
            None if self.replies > 0 => {
                let why = format!("{ending} without a reply, on a kept connection");
                self.fail(Failure::Read, &why, state);
            }
            None => self.fail(Failure::Read, &format!("{ending} without a reply"), state),
        }
    }

    /// Sends the request on a new connection.
    fn resend(&mut self, state: &mut ThreadState) {
        self.close();
        state.tally.resent += u64::from(self.exchange.written > 0);
        self.exchange.is_retry = self.exchange.written > 0;
        self.exchange.answered = false;
        self.exchange.written = 0;
        self.exchange.write_error = None;
        self.exchange.held_until = None;
        self.exchange.reset_until = None;
        self.pending.clear();
        self.session.start();
        self.connect(clock::now(), state);
    }

    /// Returns true if the server closed the connection without reading the whole request, so that
    /// the request can be sent on another connection. This is certain if no byte of the request was
    /// written. Otherwise, a reset must show that the server left bytes unread
    /// ([`Ending::leaves_bytes_unread`]), and the request must be idempotent.
    fn was_idle(&self, ending: &Ending<'_>, state: &ThreadState) -> bool {
        let Some(transport) = &self.transport else { return false };
        self.exchange.written == 0
            || ending.leaves_bytes_unread(transport) && state.mix.may_resend(self.exchange.request)
    }

    /// Returns true if the server has closed a kept connection, and may have closed it before the
    /// request arrived. The reset that shows this comes a round trip after the request.
    fn may_be_reset(&self, ending: &Ending<'_>, state: &ThreadState) -> bool {
        self.replies > 0
            && ending.0.is_none()
            && self.exchange.write_error.is_none()
            && state.mix.may_resend(self.exchange.request)
    }

    #[cold]
    fn fail(&mut self, failure: Failure, why: &dyn fmt::Display, state: &mut ThreadState) {
        self.count_failure(failure, why, state);
        self.close();
        let now = clock::now();
        if matches!(failure, Failure::Read | Failure::Write) {
            self.count_closed(now, state);
        }
        let due = self.next_due(now, state);
        self.turn(due, now, now, state);
    }

    /// Counts a slow exchange that the server ended.
    #[cold]
    fn count_closed(&self, now: Instant, state: &mut ThreadState) {
        if let Some(slow) = &mut state.tally.slow {
            let rest = self.exchange.deadline.saturating_duration_since(now);
            slow.closed.record(state.timeout.saturating_sub(rest));
        }
    }

    #[cold]
    fn count_failure(&mut self, failure: Failure, why: &dyn fmt::Display, state: &mut ThreadState) {
        state.tally.fail(failure, self.exchange.request, why);
        if let Some(user) = &mut self.user {
            user.failed(clock::now(), &mut state.tally);
        }
    }

    /// Closes an idle connection if it has input or has ended. Between requests, any input means
    /// that the server closes the connection, possibly after a 408 reply.
    #[cold]
    fn drop_if_closed(&mut self, state: &mut ThreadState) {
        let Some(transport) = &mut self.transport else { return };
        match transport.recv(&mut state.buffer) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.close(),
        }
    }

    /// Closes the socket. The kernel then also removes the socket from the epoll set.
    #[inline(never)]
    fn close(&mut self) {
        self.transport = None;
    }

    fn wake_at(&mut self, at: Instant, state: &mut ThreadState) {
        self.wake = Some(at);
        state.alarm.add(at, self.id);
    }

    #[inline]
    fn written_all(&self) -> bool {
        self.session.output().is_empty()
    }
}

impl Exchange {
    fn new(due: Instant, deadline: Instant) -> Self {
        Self {
            request: 0,
            due,
            deadline,
            written: 0,
            answered: false,
            is_retry: false,
            write_error: None,
            held_until: None,
            reset_until: None,
        }
    }
}

impl Ending<'_> {
    /// Returns true if the server closed the connection although it had not read everything that
    /// was sent. The kernel of the server reports this with a reset, instead of the end of the
    /// connection or after it. A process that has read everything and dies causes no reset.
    pub fn leaves_bytes_unread(&self, transport: &impl Transport) -> bool {
        match self.0 {
            Some(errno) => errno == Errno::CONNRESET,
            None => transport.has_refused_bytes(),
        }
    }
}

impl Ending<'static> {
    /// Returns the reason for a connection that the server has closed.
    pub fn of_close(transport: &impl Transport) -> Self {
        let is_cut_off = transport.is_cut_off();
        Self(None, if is_cut_off { "the server closed without close_notify" } else { CLOSED })
    }
}

impl fmt::Display for Ending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)?;
        match self.0 {
            Some(errno) => write!(f, " ({})", io::Error::from(errno)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};

    use forebay_client::Http1;

    use super::*;
    use crate::request::Requests;
    use crate::simulation::thread_state;
    use crate::transport::HandshakeProgress;
    use crate::{Spec, Stop, Url};

    /// What the server has done: bytes to receive, and whether it has closed and reset the
    /// connection.
    #[derive(Debug, Default)]
    struct Script {
        reply: Vec<u8>,
        is_closed: bool,
        is_reset: bool,
    }

    #[derive(Debug)]
    struct Scripted(OwnedFd, Arc<Mutex<Script>>);

    impl Transport for Scripted {
        type Config = Arc<Mutex<Script>>;

        fn new(socket: OwnedFd, script: &Self::Config) -> io::Result<Self> {
            *script.lock().unwrap() = Script::default();
            Ok(Self(socket, script.clone()))
        }

        fn socket(&self) -> &OwnedFd {
            &self.0
        }

        fn handshake(&mut self) -> io::Result<HandshakeProgress> {
            Ok(HandshakeProgress::Established(None))
        }

        fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
            Ok(bytes.len())
        }

        fn recv(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
            let mut script = self.1.lock().unwrap();
            let reply = std::mem::take(&mut script.reply);
            buffer[..reply.len()].copy_from_slice(&reply);
            if reply.is_empty() && !script.is_closed { Err(Errno::AGAIN) } else { Ok(reply.len()) }
        }

        fn is_emptied(&self, _: usize, _: usize) -> bool {
            true
        }

        fn has_refused_bytes(&self) -> bool {
            self.1.lock().unwrap().is_reset
        }
    }

    #[test]
    fn a_reset_may_follow_the_end_of_a_kept_connection_after_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let url = Url::parse(&format!("http+unix://{}:/", path.display())).unwrap();
        for (method, is_reset, counts) in
            [("GET", true, (1, 0)), ("GET", false, (0, 1)), ("POST", true, (0, 1))]
        {
            let spec = Spec {
                connections: 1,
                threads: 1,
                stop: Stop::Requests(3),
                method: method.to_owned(),
                ..Spec::new(url.clone())
            };
            let begin = Instant::now();
            clock::set(begin);
            let mut state = thread_state(&spec, begin);
            let requests = Requests::of(&spec).unwrap().http().unwrap();
            let session = Http1::new(requests.first(), Inspection::default());
            let script = Arc::new(Mutex::new(Script::default()));
            let requests = requests.for_connection(None);
            let mut connection =
                LoadConnection::<_, Scripted>::new(0, session, requests, script.clone());
            connection.begin(begin, &mut state);
            let replied = begin + Duration::from_millis(30);
            clock::set(replied);
            script.lock().unwrap().reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec();
            connection.ready(EventFlags::IN, replied, &mut state);
            state.idle = None;
            connection.go_on(replied, &mut state);
            script.lock().unwrap().is_closed = true;
            connection.ready(EventFlags::IN | CLOSING, replied, &mut state);
            if method == "GET" {
                assert_eq!((state.tally.resent, state.tally.failed), (0, 0), "waits for a reset");
                script.lock().unwrap().is_reset = is_reset;
                let later = replied + Duration::from_millis(30);
                clock::set(later);
                if is_reset {
                    connection.ready(CLOSING, later, &mut state);
                } else {
                    connection.woken(later, &mut state);
                }
            }
            let got = (state.tally.resent, state.tally.failed);
            assert_eq!((state.tally.completed, got), (1, counts), "{method} {is_reset}");
        }
    }
}
