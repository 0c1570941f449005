//! Rules for resending a request, for backends, for processes of programs and for workers.
//!
//! If no connection can be opened, the request goes to the next backend, and to each backend at
//! most once. A request that a backend may have processed is resent only under three conditions:
//! its method is idempotent, no byte of a reply has arrived, and Forebay still has all bytes of the
//! body that it read. Forebay resends such a request at most twice: over a new connection if a kept
//! connection died, and to another backend. After a timeout, it does not resend the request.
//!
//! With `retry`, a reply with a chosen status is dropped, and the request goes to another backend
//! (`ReplyHead::make_way`). The budget of the group limits such retries (`group/budget.rs`).
//!
//! A request that crashed its process is not resent. A crash is any exit code but 0, and any signal
//! but SIGTERM, unless the supervisor ended the process. The connection breaks before Forebay knows
//! the exit code, so Forebay waits a moment for this code (`Life::has_crashed`).
//!
//! A backend may close a connection after each reply without notice. A request that may not be
//! resent, such as a POST, would fail on such a connection. So this request uses a kept connection
//! only if the backend is known to keep connections open: one connection was used twice, or was
//! still open a second after its reply. Otherwise, the request takes a connection that has been
//! idle for 0.2 s, or a new one. Forebay remembers for ten minutes that a backend closed a
//! connection without notice.

use std::time::Duration;

use forebay_net::fault::{Fault, Retry};
use forebay_server::exchange::Exchange;

/// Availability of a request's body for another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyAtHand {
    /// Forebay has read the whole body and keeps it.
    Whole,
    /// The body is streamed. It can be resent while the buffer still holds everything that was
    /// read.
    Streamed,
}

/// Number of times that backends may leave one request unprocessed. The pauses before the next
/// attempts add up to 0.25 s.
const MOST_UNPROCESSED: u32 = 7;

/// State of the attempts at one request.
#[derive(Default)]
pub struct Attempts {
    unprocessed: u32,
    is_sent_anew: bool,
    is_resent: bool,
    last: Option<Fault>,
}

impl Attempts {
    /// Records a failed attempt. Returns an error with the fault if no other attempt may follow.
    pub fn failed(
        &mut self,
        fault: Fault,
        exchange: &mut Exchange,
        body: BodyAtHand,
    ) -> Result<(), Fault> {
        let goes_on = match fault.retry {
            Retry::Yes | Retry::Unprocessed | Retry::OtherBackend => is_at_hand(exchange, body),
            Retry::IfReused => {
                let may = !self.is_resent && may_repeat(exchange, body);
                self.is_resent |= may;
                may
            }
            Retry::No => false,
        };
        if goes_on {
            self.last = Some(fault);
            return Ok(());
        }
        // A request that was resent once must not be resent again by the caller.
        Err(if self.is_resent { fault.retry(Retry::No) } else { fault })
    }

    /// Returns true if the request may be resent over a new connection, because a kept or shared
    /// connection has failed. Returns true only once for each request.
    pub fn send_anew(&mut self, exchange: &mut Exchange, body: BodyAtHand) -> bool {
        let may = !self.is_sent_anew && may_repeat(exchange, body);
        self.is_sent_anew |= may;
        may
    }

    /// Returns true if the request may be sent again after a backend left it unprocessed. If this
    /// has happened at least three times, waits first, because the backend is probably overloaded.
    pub async fn was_unprocessed(&mut self, exchange: &mut Exchange, body: BodyAtHand) -> bool {
        self.unprocessed += 1;
        if self.unprocessed > MOST_UNPROCESSED || !is_at_hand(exchange, body) {
            return false;
        }
        if self.unprocessed > 2 {
            tokio::time::sleep(Duration::from_millis(1 << self.unprocessed)).await;
        }
        true
    }

    /// Returns the fault of the last attempt, or `None` if no attempt failed.
    pub fn last(self) -> Option<Fault> {
        self.last
    }
}

/// Returns true if the request may be resent even if a backend has processed it: the request is
/// idempotent, and [`is_at_hand`] returns true.
fn may_repeat(exchange: &mut Exchange, body: BodyAtHand) -> bool {
    exchange.request.is_idempotent() && is_at_hand(exchange, body)
}

/// Returns true if the request can be sent again: its whole body is stored, and no reply to the
/// client has begun. Goes back to the start of a streamed body.
pub fn is_at_hand(exchange: &mut Exchange, body: BodyAtHand) -> bool {
    !exchange.reply.has_begun() && (body == BodyAtHand::Whole || exchange.body.rewind())
}
