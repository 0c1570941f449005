//! Backends that requests are passed to, whatever the protocol: which of them takes a request, over
//! which connection, and what a failure means.
//!
//! `group` chooses, `attempts` decides what may be sent again, `backend` has the connections,
//! `idle_connections` keeps them, `permits` limits them over all threads, `unanswered` knows the new
//! ones that may wait for a process, `announce` names the client in front, `health` asks backends how
//! they are, `tally` counts, `upload` sends bodies, `duplex` does so while the reply is read,
//! `multiplexed` has connections that requests share.

pub mod announce;
mod attempts;
mod backend;
mod duplex;
mod group;
mod health;
mod idle_connections;
mod multiplexed;
mod permits;
mod tally;
mod unanswered;
mod upload;

use std::rc::Rc;
use std::sync::Arc;

use forebay_engine::{Exchange, Fault, Limit, Retry, Side, Thread};

use attempts::is_at_hand;
pub use attempts::{Attempts, BodyAtHand};
pub use backend::{Backend, BackendOptions, Connection, Endpoint};
pub use duplex::send_and_read;
pub use group::{Balancing, Group};
pub use health::{Check, Checker};
pub use idle_connections::IdlePools;
pub use multiplexed::{Multiplexed, Readiness, SharedConnection};
pub use permits::Permits;
pub use tally::Tallies;
pub use unanswered::Unanswered;
pub use upload::{BodyEncoder, Outlet, Source, ToBackend, upload};

use group::{Turns, UnderWay, bit};
use tally::{Active, ThreadTally};

/// The backends of a route or an application, as one thread knows them.
pub struct Upstream {
    thread: Rc<Thread>,
    backends: Vec<Backend>,
    group: Arc<Group>,
    turns: Turns,
    tally: Rc<ThreadTally>,
}

/// One attempt to have a request answered by one backend.
pub struct Attempt<'a> {
    /// The backend.
    pub backend: &'a Backend,
    /// Its number.
    pub index: usize,
    group: &'a Group,
}

/// Counts a request as under way to a backend until it is dropped.
pub struct InFlight {
    _under_way: UnderWay,
    _active: Active,
}

/// Whether a connection has a past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// It was opened for this request.
    New,
    /// It has served a request before.
    Kept,
    /// It serves other requests meanwhile.
    Shared,
}

/// What passes requests on by one protocol.
pub trait Carrier {
    /// A connection, or a place on one.
    type Connection;
    /// What a request leaves behind that went well.
    type Outcome;

    /// A connection to the backend of `attempt`; one of its own for this request if `is_new`.
    async fn connect(
        &mut self,
        attempt: &Attempt<'_>,
        is_new: bool,
    ) -> Result<(Self::Connection, Past), Fault>;

    /// Sends the request and passes the reply on.
    async fn exchange(
        &mut self,
        attempt: &Attempt<'_>,
        connection: Self::Connection,
        exchange: &mut Exchange,
    ) -> Result<Self::Outcome, Fault>;

    /// Where the request's body is.
    fn body(&self) -> BodyAtHand;

    /// Whether the shared connection on which the last exchange failed had answered requests before.
    /// If not, that it ended is the backend's failure and not that of an old connection.
    fn was_proven(&self) -> bool {
        true
    }
}

impl Upstream {
    /// Passes requests to `backends`, chosen by `group`; it and `tallies` are shared by all threads.
    pub fn new(
        thread: Rc<Thread>,
        backends: Vec<Backend>,
        group: Arc<Group>,
        tallies: &Arc<Tallies>,
    ) -> Self {
        debug_assert!(backends.len() == group.len(), "the group is of these backends");
        Self { thread, backends, group, turns: Turns::default(), tally: tallies.join() }
    }

    /// How many backends there are.
    pub fn len(&self) -> usize {
        self.backends.len()
    }

    /// Sends a request to one backend after the other while it cannot have been acted on, or may be
    /// sent again: `wanted` first, if that is up. What is counted about it is returned, for a tunnel
    /// that goes on.
    pub async fn send<C: Carrier>(
        &self,
        carrier: &mut C,
        exchange: &mut Exchange,
        wanted: Option<usize>,
    ) -> Result<(C::Outcome, InFlight), Fault> {
        let mut attempts = Attempts::default();
        let mut tried = 0;
        while let Some(index) = self.group.pick(wanted, tried, &self.turns) {
            tried |= bit(index);
            let in_flight =
                InFlight { _under_way: self.group.enter(index), _active: self.tally.begin(index) };
            let attempt = Attempt { backend: &self.backends[index], index, group: &self.group };
            match self.attempt(&attempt, carrier, exchange, &mut attempts).await {
                Ok(outcome) => {
                    attempt.answered();
                    return Ok((outcome, in_flight));
                }
                Err(fault) => attempts.failed(fault, exchange, carrier.body())?,
            }
        }
        Err(attempts.last().unwrap_or_else(|| Fault::us(500, "a route without backends")))
    }

    /// A connection with a past may have died unnoticed: then once more over a new one, if the
    /// request may be sent again. So may one that the backend has left unprocessed.
    async fn attempt<C: Carrier>(
        &self,
        attempt: &Attempt<'_>,
        carrier: &mut C,
        exchange: &mut Exchange,
        attempts: &mut Attempts,
    ) -> Result<C::Outcome, Fault> {
        let (mut is_new, mut has_died) = (false, false);
        loop {
            let (connection, past) = self.connect(attempt, carrier, is_new).await?;
            let fault = match carrier.exchange(attempt, connection, exchange).await {
                Ok(outcome) => return Ok(outcome),
                Err(fault) => attempt.backend.judge(fault).await,
            };
            let may_retry = match (past, fault.retry) {
                (Past::Kept | Past::Shared, Retry::IfReused) if !has_died => {
                    has_died = true;
                    if past == Past::Kept {
                        attempt.backend.record_violation();
                    }
                    if !attempts.send_anew(exchange, carrier.body()) {
                        // The end of an old connection says nothing about the backend.
                        if !carrier.was_proven() {
                            self.count(attempt, &fault);
                        }
                        return Err(fault.retry(Retry::No));
                    }
                    true
                }
                (Past::Shared, Retry::Yes) => !is_new && is_at_hand(exchange, carrier.body()),
                (_, Retry::Unprocessed) => attempts.was_unprocessed(exchange, carrier.body()).await,
                _ => false,
            };
            if !may_retry {
                self.count(attempt, &fault);
                return Err(fault);
            }
            is_new = true;
        }
    }

    /// Nothing has been sent to a backend that cannot be reached: another may be tried.
    async fn connect<C: Carrier>(
        &self,
        attempt: &Attempt<'_>,
        carrier: &mut C,
        is_new: bool,
    ) -> Result<(C::Connection, Past), Fault> {
        carrier.connect(attempt, is_new).await.map_err(|fault| {
            self.count(attempt, &fault);
            if fault.side == Side::Backend { fault.retry(Retry::Yes) } else { fault }
        })
    }

    /// Counts a failure against the backend that is to blame. That all of the connections that it
    /// may have are busy is none, nor that it cancels a stream, as at the deadline of a gRPC call.
    fn count(&self, attempt: &Attempt<'_>, fault: &Fault) {
        let is_busy = fault.limit == Some(Limit::MaxConnections);
        if fault.side != Side::Backend || is_busy || fault.is_cancelled {
            return;
        }
        self.tally.failed(attempt.index);
        if self.group.failed(attempt.index) {
            let (name, time) = (attempt.backend.name(), self.group.recover_time());
            self.thread.errors.log(&format!("{name} is left out for {time:?}: {fault}"));
        }
    }
}

impl Attempt<'_> {
    /// The backend has answered: it is up.
    pub fn answered(&self) {
        self.group.succeeded(self.index);
    }
}
