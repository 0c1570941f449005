//! Opens connections: tries all addresses of the server, pauses after failed attempts, and gives up
//! at last.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::transport::{Dialled, HandshakeProgress, Transport};
use crate::worker::ThreadState;

/// The failed attempts to connect since the last success: their number, and the time of the first.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: u32,
    since: Option<Instant>,
    /// Index of the server's address for the next attempt.
    attempt: usize,
}

/// The action that follows a failed attempt to connect.
pub(crate) enum Next {
    /// Connects to the server's next address at once. The attempt does not count as failed.
    Address,
    /// Connects again, but not before this instant.
    Attempt(Instant),
    /// Gives up: this connection makes no further attempt.
    Nothing,
}

/// Pause after the first failed attempt to connect. Each further failed attempt in a row doubles
/// the pause, up to `PAUSE_LIMIT`.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Pause before the next attempt while the backlog of a Unix socket is full.
pub(crate) const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// If no connection has ever reached the server, a connection gives up after this many failed
/// attempts in a row.
const FIRST_ATTEMPTS: u32 = 3;

/// Events which report that the server has closed the connection, or that the connection is broken.
pub(crate) const CLOSING: EventFlags =
    EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// Events that an established connection waits for.
pub(crate) const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

impl Refusals {
    /// Starts to connect, and registers the socket with epoll as connection `id`. The error `AGAIN`
    /// means that the backlog of a Unix socket is full.
    pub fn dial(&self, id: usize, state: &ThreadState) -> Result<Dialled, Errno> {
        let dialled = state.target.dial(self.attempt)?;
        // Watch for writability only until the connect has succeeded. Later, every read by the
        // server would make a Unix socket writable and so cause an event.
        let flags = if dialled.connected { WATCHED } else { WATCHED | EventFlags::OUT };
        let data = EventData::new_u64(id as u64);
        epoll::add(&state.epoll, &dialled.socket, data, flags)?;
        Ok(dialled)
    }

    /// Records a successful connect.
    pub fn accepted(&mut self, state: &ThreadState) {
        state.target.answered(self.attempt);
        *self = Self { attempt: self.attempt, ..Self::default() };
    }

    /// Records a failed attempt to connect. Returns the next action of the connection.
    pub fn refused(&mut self, error: &io::Error, now: Instant, state: &mut ThreadState) -> Next {
        if state.target.has_more(self.attempt) {
            self.attempt += 1;
            return Next::Address;
        }
        self.attempt = 0;
        self.count += 1;
        state.last_refusal = Some(copy_of(error));
        let since = *self.since.get_or_insert(now);
        let given_up = if state.target.reached() {
            // The server has answered before, so it may recover. A run with a time limit retries
            // until this limit. A run of n requests has no time limit, so it gives up after
            // `timeout`.
            state.budget.limited() && now - since >= state.timeout
        } else {
            // A failed handshake is final, because the server's certificate and protocols do not
            // change.
            let is_final =
                matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::InvalidData);
            is_final || self.count >= FIRST_ATTEMPTS
        };
        if given_up {
            state.gave_up = true;
            return Next::Nothing;
        }
        let doubled = PAUSE.saturating_mul(1 << (self.count - 1).min(16));
        Next::Attempt(now + doubled.min(PAUSE_LIMIT))
    }
}

/// Continues a connect and handshake after an event. Returns true if the connection can carry
/// requests, and false if it must wait for another event. Fails if the connect or the handshake
/// failed.
#[inline]
pub(crate) fn is_established<T: Transport>(
    transport: &mut T,
    id: usize,
    state: &mut ThreadState,
) -> io::Result<bool> {
    sockopt::socket_error(transport.socket())??;
    match transport.handshake()? {
        HandshakeProgress::Established(handshake) => {
            if let Some(handshake) = handshake {
                state.tally.shook_hands(&handshake);
            }
            Ok(true)
        }
        HandshakeProgress::Reads => Ok(false),
        HandshakeProgress::Writes => {
            // The new event mask re-arms the edge-triggered event. If the socket is writable by
            // now, the event comes at once.
            let data = EventData::new_u64(id as u64);
            epoll::modify(&state.epoll, transport.socket(), data, WATCHED | EventFlags::OUT)?;
            Ok(false)
        }
    }
}

/// Returns the error of a connection that was not ready for requests within `timeout`.
pub(crate) fn no_connection<T: Transport>(transport: Option<&T>, timeout: Duration) -> io::Error {
    if transport.is_some_and(T::is_handshaking) {
        let why = format!("the server accepted the connection and did not answer for {timeout:?}");
        return io::Error::new(io::ErrorKind::TimedOut, why);
    }
    Errno::TIMEDOUT.into()
}

fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
