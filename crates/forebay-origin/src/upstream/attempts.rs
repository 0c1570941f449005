//! What may be sent again: the one place that decides it, for backends, for the processes of
//! programs and for workers.
//!
//! What found no connection goes to the next backend, each once. A request that may have been acted
//! on is sent again if its method is idempotent, no byte of a reply came and its body is still in
//! the first buffer: once over a new connection where a kept one died, and once to the next
//! backend. Time that ran out is never spent twice.
//!
//! A request that crashed its process (any exit code but 0, any signal but SIGTERM, unasked) is
//! sent to no other: it might crash one after the other. The connection breaks before the
//! supervisor has the report, which is waited for: 1 s where /proc shows that the end has begun,
//! else 50 ms (`Life::has_crashed`).
//!
//! A request that may not be sent again uses a kept connection only if the backend has been seen to
//! leave connections open (one was used twice, or was open a second after its reply), else one that
//! has been idle for 0.2 s, or a new one. A close without a word is remembered for ten minutes. The
//! first POST to a backend that closes after each reply would otherwise be lost.

use std::time::Duration;

use forebay_engine::{Exchange, Fault, Retry};

/// Where the body of a request is that may have to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyAtHand {
    /// All of it has been read, and is kept.
    Whole,
    /// It is passed on as it comes: it can be sent again while all that was read is in the buffer.
    Streamed,
}

/// How often one backend may leave a request unprocessed: 0.5 s in all.
const MOST_UNPROCESSED: u32 = 7;

/// The attempts to have one request answered. A request that cannot have been acted on goes to as
/// many backends as there are. One that may have been is sent again if its method is idempotent (RFC
/// 9110 section 9.2.2), no byte of a reply came and its body is at hand: once to another backend, and
/// before that once over a new connection where a kept one died, which says little about its backend.
#[derive(Default)]
pub struct Attempts {
    unprocessed: u32,
    is_sent_anew: bool,
    is_resent: bool,
    last: Option<Fault>,
}

impl Attempts {
    /// Takes in why an attempt failed. The fault, where there may be no other attempt.
    pub fn failed(
        &mut self,
        fault: Fault,
        exchange: &mut Exchange,
        body: BodyAtHand,
    ) -> Result<(), Fault> {
        let goes_on = match fault.retry {
            Retry::Yes | Retry::Unprocessed => is_at_hand(exchange, body),
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
        // Once is enough, for a caller who knows of further backends, too.
        Err(if self.is_resent { fault.retry(Retry::No) } else { fault })
    }

    /// Whether the request, over which a kept connection died, may be sent over a new one.
    pub fn send_anew(&mut self, exchange: &mut Exchange, body: BodyAtHand) -> bool {
        let may = !self.is_sent_anew && may_repeat(exchange, body);
        self.is_sent_anew |= may;
        may
    }

    /// Whether a request that its backend left unprocessed may be sent to it again. The third time
    /// and later it waits before, as a backend that refuses has too much to do.
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

    /// Why the last attempt failed.
    pub fn last(self) -> Option<Fault> {
        self.last
    }
}

/// Whether a request that may have been acted on could be sent again.
fn may_repeat(exchange: &mut Exchange, body: BodyAtHand) -> bool {
    exchange.request.is_idempotent() && is_at_hand(exchange, body)
}

/// Whether all of the request is there to be sent once more, and none of a reply was.
pub fn is_at_hand(exchange: &mut Exchange, body: BodyAtHand) -> bool {
    !exchange.reply.has_begun() && (body == BodyAtHand::Whole || exchange.body.rewind())
}
