//! One connection of the load: connect, ask, read the reply, ask again.

use std::fmt;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::conversation::{Answer, Conversation, Malformed, Mismatch, Receipt};
use crate::tally::Failure;
use crate::target::Dialled;
use crate::worker::Desk;

/// One connection of the load. It outlives its sockets: a closed one is replaced.
#[derive(Debug)]
pub(crate) struct Connection<C> {
    id: usize,
    conversation: C,
    phase: Phase,
    socket: Option<OwnedFd>,
    /// Whether the socket has carried a reply before.
    used: bool,
    exchange: Exchange,
    /// Bytes of the reply that are received but not consumed.
    spill: Vec<u8>,
    /// When to be woken; earlier wakes are leftovers.
    wake: Option<Instant>,
    refusals: Refusals,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for its next request to be due.
    Resting,
    /// Waits for the socket to be connected, or for room in the server's backlog.
    Connecting,
    /// Has a request to write or a reply to read.
    Exchanging,
    /// Has no more requests.
    Done,
}

/// The request at hand.
#[derive(Debug)]
struct Exchange {
    /// From when its latency counts.
    due: Instant,
    deadline: Instant,
    written: usize,
    /// Some byte of the reply was received.
    answered: bool,
    /// It was sent before, on a connection that the server had closed.
    again: bool,
    write_error: Option<Errno>,
}

/// Attempts to connect that failed in a row.
#[derive(Debug, Default)]
struct Refusals {
    count: u32,
    since: Option<Instant>,
    /// Which of the server's addresses is tried.
    attempt: usize,
}

/// Why no complete reply came.
struct Ending(Option<Errno>, &'static str);

/// Pause after the first failed attempt to connect; doubled with each in a row.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Pause where the backlog of a Unix socket is full.
const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// So many failed attempts in a row give the server up while it was never reached.
const FIRST_ATTEMPTS: u32 = 3;

const CLOSING: EventFlags = EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);
const WATCHED: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

impl<C: Conversation> Connection<C> {
    pub fn new(id: usize, conversation: C) -> Self {
        let now = Instant::now();
        Self {
            id,
            conversation,
            phase: Phase::Resting,
            socket: None,
            used: false,
            exchange: Exchange::new(now, now),
            spill: Vec::new(),
            wake: None,
            refusals: Refusals::default(),
        }
    }

    /// Begins with the first request.
    pub fn begin(&mut self, now: Instant, desk: &mut Desk) {
        let due = desk.pacer.first(now);
        self.turn(due, now, now, desk);
    }

    /// Handles what epoll reported for the socket.
    pub fn ready(&mut self, flags: EventFlags, now: Instant, desk: &mut Desk) {
        match self.phase {
            Phase::Connecting => self.connected(now, desk),
            Phase::Exchanging if self.written_all() => {}
            Phase::Exchanging => self.write(desk),
            Phase::Resting | Phase::Done => return self.drop_if_closed(desk),
        }
        if self.phase == Phase::Exchanging && flags.intersects(EventFlags::IN.union(CLOSING)) {
            self.read(flags.intersects(CLOSING), desk);
        }
    }

    /// Takes up the next request, the reply to the last one having come.
    pub fn go_on(&mut self, now: Instant, desk: &mut Desk) {
        let due = desk.pacer.next(now);
        self.turn(due, now, now, desk);
    }

    /// Handles the wake-up that was ordered, if it is not a leftover of an earlier order.
    pub fn woken(&mut self, now: Instant, desk: &mut Desk) {
        if self.wake.is_none_or(|at| at > now) {
            return;
        }
        self.wake = None;
        match self.phase {
            Phase::Resting => self.start(now, desk),
            Phase::Connecting if self.socket.is_none() => self.connect(now, desk),
            _ => {}
        }
    }

    /// Fails the request at hand if its time is up.
    pub fn check_deadline(&mut self, now: Instant, desk: &mut Desk) {
        match self.phase {
            Phase::Connecting if now >= self.exchange.deadline => {
                self.refused(Errno::TIMEDOUT, now, desk);
            }
            Phase::Exchanging if now >= self.exchange.deadline => {
                let why = format!("no complete reply within {:?}", desk.timeout);
                self.fail(Failure::Timeout, &why, desk);
            }
            _ => {}
        }
    }

    /// Takes up the next request, due at `due`, not before `earliest`.
    fn turn(&mut self, due: Instant, earliest: Instant, now: Instant, desk: &mut Desk) {
        if !desk.tickets.take() {
            self.phase = Phase::Done;
            desk.active -= 1;
            return;
        }
        self.exchange.due = due;
        let begin = due.max(earliest);
        if begin > now {
            self.phase = Phase::Resting;
            self.wake_at(begin, desk);
        } else {
            self.start(now, desk);
        }
    }

    fn start(&mut self, now: Instant, desk: &mut Desk) {
        self.exchange = Exchange::new(self.exchange.due, now + desk.timeout);
        self.spill.clear();
        self.conversation.begin();
        if self.socket.is_none() {
            return self.connect(now, desk);
        }
        self.phase = Phase::Exchanging;
        self.write(desk);
    }

    fn connect(&mut self, now: Instant, desk: &mut Desk) {
        self.phase = Phase::Connecting;
        let Dialled { socket, connected } = match desk.target.dial(self.refusals.attempt) {
            Ok(dialled) => dialled,
            Err(Errno::AGAIN) => return self.wake_at(now + BACKLOG_PAUSE, desk),
            Err(errno) => return self.refused(errno, now, desk),
        };
        // Watching for room to write is for connects in progress only. On a Unix socket it would
        // bring an event for every read of the peer.
        let flags = if connected { WATCHED } else { WATCHED | EventFlags::OUT };
        if let Err(errno) =
            epoll::add(&desk.epoll, &socket, EventData::new_u64(self.id as u64), flags)
        {
            return self.refused(errno, now, desk);
        }
        self.socket = Some(socket);
        if connected {
            self.established(desk);
        }
    }

    fn connected(&mut self, now: Instant, desk: &mut Desk) {
        let Some(socket) = &self.socket else { return };
        match sockopt::socket_error(socket) {
            Ok(Ok(())) => self.established(desk),
            Ok(Err(errno)) | Err(errno) => self.refused(errno, now, desk),
        }
    }

    fn established(&mut self, desk: &mut Desk) {
        desk.target.answered(self.refusals.attempt);
        self.refusals = Refusals { attempt: self.refusals.attempt, ..Refusals::default() };
        self.used = false;
        self.phase = Phase::Exchanging;
        self.write(desk);
    }

    /// A connection could not be made: tries the next address, a little later, or not again.
    fn refused(&mut self, errno: Errno, now: Instant, desk: &mut Desk) {
        self.close();
        if desk.target.has_more(self.refusals.attempt) {
            self.refusals.attempt += 1;
            return self.connect(now, desk);
        }
        self.refusals.attempt = 0;
        self.refusals.count += 1;
        desk.last_refusal = Some(errno);
        desk.tally.fail(Failure::Connect, &std::io::Error::from(errno));
        let since = *self.refusals.since.get_or_insert(now);
        let given_up = match desk.target.reached() {
            false => errno == Errno::TIMEDOUT || self.refusals.count >= FIRST_ATTEMPTS,
            // A run by duration ends anyway, and the server may come back before.
            true => desk.tickets.limited() && now - since >= desk.timeout,
        };
        if given_up {
            self.phase = Phase::Done;
            desk.gave_up = true;
            desk.active -= 1;
            return;
        }
        let doubled = PAUSE.saturating_mul(1 << (self.refusals.count - 1).min(16));
        let resume = now + doubled.min(PAUSE_LIMIT);
        let due = desk.pacer.next(resume);
        self.turn(due, resume, now, desk);
    }

    fn write(&mut self, desk: &mut Desk) {
        let Some(socket) = &self.socket else { return };
        let request = self.conversation.request();
        while self.exchange.written < request.len() && self.exchange.write_error.is_none() {
            match send(socket, &request[self.exchange.written..], SendFlags::NOSIGNAL) {
                Ok(n) => {
                    if self.exchange.written == 0 && n > 0 && !self.exchange.again {
                        desk.tally.sent += 1;
                    }
                    self.exchange.written += n;
                }
                Err(Errno::AGAIN) => {
                    // Asks anew for an event, which comes at once if there is room by now.
                    let data = EventData::new_u64(self.id as u64);
                    let flags = WATCHED | EventFlags::OUT;
                    if let Err(errno) = epoll::modify(&desk.epoll, socket, data, flags) {
                        self.exchange.write_error = Some(errno);
                    }
                    return;
                }
                Err(Errno::INTR) => {}
                // The reply may be there already, a 413 for instance; the event of the broken
                // connection leads to reading it.
                Err(errno) => self.exchange.write_error = Some(errno),
            }
        }
    }

    /// Reads until there is no more; with `closing`, until the end. A read that did not fill the
    /// buffer has emptied the socket, so the one that would say so is left out.
    fn read(&mut self, closing: bool, desk: &mut Desk) {
        while self.phase == Phase::Exchanging {
            let Some(socket) = &self.socket else { return };
            match recv(socket, &mut desk.buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => return self.broken(Ending(None, "the server closed"), desk),
                Ok((n, _)) => {
                    let emptied = n < desk.buffer.len() && !closing;
                    self.receive(n, closing, desk);
                    if emptied {
                        return;
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return self.broken(Ending(Some(errno), "the connection broke"), desk);
                }
            }
        }
    }

    /// Takes in the first `n` bytes of the desk's buffer. They are copied only if they do not
    /// complete a reply.
    fn receive(&mut self, n: usize, closing: bool, desk: &mut Desk) {
        desk.tally.bytes.read += n as u64;
        self.exchange.answered = true;
        let direct = self.spill.is_empty();
        if !direct {
            self.spill.extend_from_slice(&desk.buffer[..n]);
        }
        let input = if direct { &desk.buffer[..n] } else { &self.spill[..] };
        match self.conversation.receive(input) {
            Err(malformed) => self.fail(Failure::Protocol, &malformed, desk),
            Ok(Receipt { consumed, answer: Some(_) }) if consumed < input.len() => {
                self.fail(Failure::Protocol, &Malformed::Surplus, desk);
            }
            Ok(Receipt { answer: Some(answer), .. }) => self.complete(answer, closing, desk),
            Ok(Receipt { consumed, .. }) if direct => {
                self.spill.extend_from_slice(&desk.buffer[consumed..n]);
            }
            Ok(Receipt { consumed, .. }) => {
                self.spill.drain(..consumed);
            }
        }
    }

    fn complete(&mut self, answer: Answer, closing: bool, desk: &mut Desk) {
        let now = Instant::now();
        desk.tally.reply(answer);
        let (status, length) = (answer.status, answer.body);
        match answer.mismatch {
            None => desk.tally.complete(now.saturating_duration_since(self.exchange.due)),
            Some(Mismatch::Status(expected)) => {
                let why = format_args!("a reply has status {status}, not {expected}");
                desk.tally.fail(Failure::Check, &why);
            }
            Some(Mismatch::Body) => {
                let body = format_args!("its body of {length} bytes lacks the expected text");
                let why = format_args!("a reply has status {status}, but {body}");
                desk.tally.fail(Failure::Check, &why);
            }
        }
        self.used = true;
        if closing || !answer.reusable || !self.written_all() {
            self.close();
        }
        self.phase = Phase::Resting;
        desk.free = Some((self.id, now));
    }

    /// The connection ended: the reply's right end, a kept-alive connection that the server had
    /// given up before the request came, or a failure.
    fn broken(&mut self, ending: Ending, desk: &mut Desk) {
        if self.exchange.answered {
            return match self.conversation.closed() {
                Some(answer) if ending.0.is_none() => self.complete(answer, true, desk),
                _ => self.fail(Failure::Read, &format!("{ending} in the middle of a reply"), desk),
            };
        }
        if self.used {
            self.close();
            desk.tally.resent += u64::from(self.exchange.written > 0);
            self.exchange.again = self.exchange.written > 0;
            self.exchange.written = 0;
            self.exchange.write_error = None;
            self.conversation.begin();
            return self.connect(Instant::now(), desk);
        }
        match self.exchange.write_error {
            Some(errno) => self.fail(Failure::Write, &std::io::Error::from(errno), desk),
            None => self.fail(Failure::Read, &format!("{ending} without a reply"), desk),
        }
    }

    fn fail(&mut self, failure: Failure, why: &dyn fmt::Display, desk: &mut Desk) {
        desk.tally.fail(failure, why);
        self.close();
        let now = Instant::now();
        let due = desk.pacer.next(now);
        self.turn(due, now, now, desk);
    }

    /// Between requests: whatever comes is the server's end of the connection (or a 408 before it).
    fn drop_if_closed(&mut self, desk: &mut Desk) {
        let Some(socket) = &self.socket else { return };
        match recv(socket, &mut desk.buffer[..], RecvFlags::empty()) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.close(),
        }
    }

    /// Closing takes the socket out of the epoll set.
    fn close(&mut self) {
        self.socket = None;
    }

    fn wake_at(&mut self, at: Instant, desk: &mut Desk) {
        self.wake = Some(at);
        desk.alarm.add(at, self.id);
    }

    fn written_all(&self) -> bool {
        self.exchange.written == self.conversation.request().len()
    }
}

impl Exchange {
    fn new(due: Instant, deadline: Instant) -> Self {
        Self { due, deadline, written: 0, answered: false, again: false, write_error: None }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)?;
        match self.0 {
            Some(errno) => write!(f, " ({})", std::io::Error::from(errno)),
            None => Ok(()),
        }
    }
}
