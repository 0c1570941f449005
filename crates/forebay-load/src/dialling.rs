//! Attempts to connect: addresses in turn, pauses after refusals, and when to give up.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::target::Dialled;
use crate::transport::{Progress, Transport};
use crate::worker::ThreadState;

/// Attempts to connect that failed in a row.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: u32,
    since: Option<Instant>,
    /// Which of the server's addresses is tried.
    attempt: usize,
}

/// What follows a failed attempt.
pub(crate) enum Next {
    /// The server's next address, at once. The attempt does not count as failed.
    Address,
    /// Another attempt, not before this instant.
    Attempt(Instant),
    /// The server is given up.
    Nothing,
}

/// Pause after the first failed attempt to connect; doubled with each in a row.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Pause where the backlog of a Unix socket is full.
pub(crate) const BACKLOG_PAUSE: Duration = Duration::from_millis(1);

/// So many failed attempts in a row give the server up while it was never reached.
const FIRST_ATTEMPTS: u32 = 3;

/// The peer has closed, or the connection broke.
pub(crate) const CLOSING: EventFlags =
    EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR);

/// What a connection watches for.
pub(crate) const WATCHED: EventFlags =
    EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

impl Refusals {
    /// Begins to connect, the socket being watched as connection `id`. `AGAIN`: the backlog of a
    /// Unix socket is full.
    pub fn dial(&self, id: usize, state: &ThreadState) -> Result<Dialled, Errno> {
        let dialled = state.target.dial(self.attempt)?;
        // Watching for room to write is for connects in progress only. On a Unix socket it would
        // bring an event for every read of the peer.
        let flags = if dialled.connected { WATCHED } else { WATCHED | EventFlags::OUT };
        let data = EventData::new_u64(id as u64);
        epoll::add(&state.epoll, &dialled.socket, data, flags)?;
        Ok(dialled)
    }

    /// A connection was made.
    pub fn accepted(&mut self, state: &ThreadState) {
        state.target.answered(self.attempt);
        *self = Self { attempt: self.attempt, ..Self::default() };
    }

    /// A connection could not be made.
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
            // A run by duration ends anyway, and the server may come back before.
            state.budget.limited() && now - since >= state.timeout
        } else {
            // Certificates and protocols stay what they are.
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

/// Goes on with the connection that an event was reported for: whether it can carry requests.
#[inline]
pub(crate) fn is_established<T: Transport>(
    transport: &mut T,
    id: usize,
    state: &mut ThreadState,
) -> io::Result<bool> {
    sockopt::socket_error(transport.socket())??;
    match transport.handshake()? {
        Progress::Established(handshake) => {
            if let Some(handshake) = handshake {
                state.tally.shook_hands(&handshake);
            }
            Ok(true)
        }
        Progress::Reads => Ok(false),
        Progress::Writes => {
            // Asks anew for an event, which comes at once if there is room by now.
            let data = EventData::new_u64(id as u64);
            epoll::modify(&state.epoll, transport.socket(), data, WATCHED | EventFlags::OUT)?;
            Ok(false)
        }
    }
}

fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
