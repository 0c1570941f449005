//! Connects: addresses in turn, pauses after refusals, and the point of giving up.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::target::Dialled;
use crate::transport::{HandshakeProgress, Transport};
use crate::worker::ThreadState;

/// Failed attempts to connect since the last success.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: u32,
    since: Option<Instant>,
    /// Index of the server's address to try.
    attempt: usize,
}

/// Action after a failed attempt.
pub(crate) enum Next {
    /// Connect to the server's next address at once. The attempt does not count as failed.
    Address,
    /// Connect again, not before this instant.
    Attempt(Instant),
    /// Give up.
    Nothing,
}

/// Pause after the first failed attempt to connect. Each further failure in a row doubles the
/// pause.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Pause while the backlog of a Unix socket is full.
pub(crate) const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// Number of failed attempts in a row before giving up on a server that was never reached.
const FIRST_ATTEMPTS: u32 = 3;

/// Events that mean: the peer has closed, or the connection broke.
pub(crate) const CLOSING: EventFlags =
    EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// Events that a connection watches for.
pub(crate) const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

impl Refusals {
    /// Begins to connect, and watches the socket as connection `id`. `AGAIN` means that the backlog
    /// of a Unix socket is full.
    pub fn dial(&self, id: usize, state: &ThreadState) -> Result<Dialled, Errno> {
        let dialled = state.target.dial(self.attempt)?;
        // Only a connect in progress watches for writability. On a Unix socket, every read by the
        // peer would otherwise raise an event.
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

    /// Records a failed attempt and returns the next action.
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
            // A run by duration ends anyway, and the server may recover before that.
            state.budget.limited() && now - since >= state.timeout
        } else {
            // A retry does not change certificates or protocols.
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

/// Continues a connect after an event. Returns true if the connection can carry requests.
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
            // Re-arms the edge-triggered event, which is reported at once if the socket is writable
            // by now.
            let data = EventData::new_u64(id as u64);
            epoll::modify(&state.epoll, transport.socket(), data, WATCHED | EventFlags::OUT)?;
            Ok(false)
        }
    }
}

/// Returns the error of a connection that could not be used within `timeout`.
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
