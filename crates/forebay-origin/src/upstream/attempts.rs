//! What may be sent again: the one place that decides it, for backends, for the processes of
//! programs and for workers.

use forebay_engine::{Exchange, Fault, Retry};

/// Where the body of a request is that may have to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyAtHand {
    /// All of it has been read, and is kept.
    Whole,
    /// It is passed on as it comes: it can be sent again while all that was read is in the buffer.
    Streamed,
}

/// The attempts to have one request answered. A request that cannot have been acted on goes to as
/// many backends as there are. One that may have been is sent again if its method is idempotent (RFC
/// 9110 section 9.2.2), no byte of a reply came and its body is at hand: once to another backend, and
/// before that once over a new connection where a kept one died, which says little about its backend.
#[derive(Default)]
pub struct Attempts {
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
            Retry::Yes => !exchange.reply.has_begun(),
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

    /// Why the last attempt failed.
    pub fn last(self) -> Option<Fault> {
        self.last
    }
}

/// Whether a request that may have been acted on could be sent again.
fn may_repeat(exchange: &mut Exchange, body: BodyAtHand) -> bool {
    exchange.request.is_idempotent()
        && !exchange.reply.has_begun()
        && (body == BodyAtHand::Whole || exchange.body.rewind())
}
