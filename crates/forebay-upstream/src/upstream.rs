//! Selects the backend and the connection for a request, in any protocol, and interprets failures.
//!
//! `group` selects the backend, and `attempts` decides if a failed request is resent. `backend`
//! opens connections, `idle_connections` keeps them, `permits` limits them over all threads.
//! `pending_connections` tracks new connections that may wait for a process of the backend.
//! `health` checks backends, `tally` counts requests. `upload` sends bodies, also while the reply is
//! read. `multiplexed` manages connections that requests share. `names` resolves the names of
//! backends.

mod attempts;
mod backend;
mod crawlers;
mod group;
mod health;
mod idle_connections;
mod multiplexed;
mod names;
mod pending_connections;
mod permits;
mod tally;
mod upload;

pub use attempts::{Attempts, BodyAtHand};
pub use backend::{Backend, BackendConnection, BackendOptions};
pub use crawlers::Crawlers;
pub(crate) use group::stable_hash;
pub use group::{Balancing, Group};
pub use health::{Checker, HealthCheck};
pub use idle_connections::IdlePools;
pub use multiplexed::{Multiplexed, Readiness, SharedConnection};
pub use names::{Endpoint, Name, Names, wait_for_names};
pub use pending_connections::PendingConnections;
pub use permits::Permits;
pub use tally::Tallies;
pub use upload::{BodyEncoder, Outlet, Source, ToBackend, send_and_read, upload};

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use forebay_conf::{ProxyHeader, Template};
use forebay_net::fault::{Fault, Retry, Side};
use forebay_net::head::Request;
use forebay_net::limit::Limit;
use forebay_net::template::Escape;
use forebay_net::thread::Thread;
use forebay_server::exchange::Exchange;
use forebay_wire::ClientAddress;
use forebay_wire::proxy_protocol::{encode_local_v1, encode_local_v2, encode_v1, encode_v2};
use tokio::net::UdpSocket;

use attempts::is_at_hand;
use group::{Begun, Set, Turns, UnderWay, bit};
use tally::{Active, ThreadTally};

/// The backends of a route or an application, with the state of one thread.
pub struct Upstream {
    thread: Rc<Thread>,
    backends: Vec<Backend>,
    group: Arc<Group>,
    turns: Turns,
    tally: Rc<ThreadTally>,
    /// Template of the text whose hash selects the backend.
    hash_key: Option<Template>,
}

/// One attempt to send a request to one backend. The struct is small, because it is a part of each
/// request's future. This future must fit into a block of 4 KiB
/// (`forebay-net/src/sys/recycled.rs`).
pub struct Attempt<'a> {
    /// The backend.
    pub backend: &'a Backend,
    /// Number of the backend. A [`Set`] has at most 64 backends, so `u8` is enough.
    number: u8,
    group: &'a Group,
    /// The backends that have got the request, including this one.
    tried: Set,
    /// Time at which the attempt began, until the backend replies. `None` if it is not needed.
    begun: Cell<Begun>,
}

/// Counts a request as active at a backend until dropped.
pub struct InFlight {
    _under_way: UnderWay,
    _active: Active,
}

/// Previous use of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionOrigin {
    /// Opened for this request.
    New,
    /// The connection was kept after an earlier request.
    Kept,
    /// Shared with other requests.
    Shared,
}

/// Carries one request to backends in one protocol.
pub trait Carrier {
    /// A connection, or a stream of a connection.
    type Connection;
    /// Result of a successful exchange.
    type Outcome;

    /// Returns a connection to the backend of `attempt`. If `is_new` is true, the connection is
    /// new.
    async fn connect(
        &mut self,
        attempt: &Attempt<'_>,
        is_new: bool,
    ) -> Result<(Self::Connection, ConnectionOrigin), Fault>;

    /// Sends the request and passes the reply on.
    async fn exchange(
        &mut self,
        attempt: &Attempt<'_>,
        connection: Self::Connection,
        exchange: &mut Exchange,
    ) -> Result<Self::Outcome, Fault>;

    /// Returns how much of the request's body is available for another attempt.
    fn body(&self) -> BodyAtHand;

    /// Returns true if the shared connection of the last exchange had carried replies before it
    /// failed. Returns false for a connection without replies. The failure of such a connection
    /// counts as a failure of the backend.
    fn was_proven(&self) -> bool {
        true
    }
}

impl Upstream {
    /// Creates an upstream for `backends`. `group` selects among them; all threads share `group`
    /// and `tallies`.
    pub fn new(
        thread: Rc<Thread>,
        backends: Vec<Backend>,
        group: Arc<Group>,
        tallies: &Arc<Tallies>,
    ) -> Self {
        debug_assert!(backends.len() == group.len(), "the group is of these backends");
        let (turns, tally) = (Turns::default(), tallies.join());
        Self { thread, backends, group, turns, tally, hash_key: None }
    }

    /// Makes the group select the backend by the hash of the text of `hash_key`, if given.
    pub fn hashed_by(self, hash_key: Option<Template>) -> Self {
        Self { hash_key, ..self }
    }

    /// Returns the number of backends.
    pub(crate) fn len(&self) -> usize {
        self.backends.len()
    }

    /// Sends a request to the backend `wanted` if this backend is up, else to the backend that the
    /// group selects. After a failure, tries further backends if the failed backend cannot have
    /// processed the request, or if the request may be resent. Also returns a guard. The request
    /// counts as active until the guard is dropped, for example at the end of a tunnel.
    pub(crate) async fn send<C: Carrier>(
        &self,
        carrier: &mut C,
        exchange: &mut Exchange,
        wanted: Option<usize>,
    ) -> Result<(C::Outcome, InFlight), Fault> {
        let mut attempts = Attempts::default();
        let mut tried = 0;
        let key = self.hash_key.as_ref().map(|template| {
            let mut key = Vec::new();
            exchange.request.fill(template, Escape::Field, &mut key);
            stable_hash(&key)
        });
        self.group.count_request();
        while let Some(index) = self.group.pick((wanted, key), tried, &self.turns) {
            tried |= bit(index);
            let in_flight =
                InFlight { _under_way: self.group.enter(index), _active: self.tally.begin(index) };
            let (backend, group) = (&self.backends[index], &*self.group);
            let begun = Cell::new(group.begin_timing());
            let attempt = Attempt { backend, number: index as u8, group, tried, begun };
            exchange.request.upstream = Some(attempt.backend.shared_name());
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

    /// Sends a request to one backend. Resends the request over a new connection if the backend has
    /// not processed it. Also resends an idempotent request once if a kept or shared connection has
    /// failed.
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
                Err(fault) => attempt.backend.classify_failure(fault).await,
            };
            let may_retry = match (past, fault.retry) {
                (ConnectionOrigin::Kept | ConnectionOrigin::Shared, Retry::IfReused)
                    if !has_died =>
                {
                    has_died = true;
                    if past == ConnectionOrigin::Kept {
                        attempt.backend.record_violation();
                    }
                    if !attempts.send_anew(exchange, carrier.body()) {
                        // A backend may close a connection after a reply at any time. Only the end
                        // of a connection without replies is a failure.
                        if !carrier.was_proven() {
                            self.count(attempt, &fault);
                        }
                        return Err(fault.retry(Retry::No));
                    }
                    true
                }
                (ConnectionOrigin::Shared, Retry::Yes) => {
                    !is_new && is_at_hand(exchange, carrier.body())
                }
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

    /// Connects to a backend. If the backend is at fault for a failure, the fault allows another
    /// attempt, because no part of the request was sent.
    async fn connect<C: Carrier>(
        &self,
        attempt: &Attempt<'_>,
        carrier: &mut C,
        is_new: bool,
    ) -> Result<(C::Connection, ConnectionOrigin), Fault> {
        carrier.connect(attempt, is_new).await.map_err(|fault| {
            self.count(attempt, &fault);
            if fault.side == Side::Backend { fault.retry(Retry::Yes) } else { fault }
        })
    }

    /// Counts a failure of the backend, which may exclude the backend. Three kinds of failures do
    /// not count:
    ///
    /// - All permitted connections are busy.
    /// - The backend cancels a stream, for example at a gRPC call's deadline.
    /// - The backend has sent a status after which another backend should answer. If these statuses
    ///   counted, clients could exclude all backends with a URL that always fails.
    fn count(&self, attempt: &Attempt<'_>, fault: &Fault) {
        let is_busy = fault.limit == Some(Limit::MaxConnections);
        let is_replaced = fault.retry == Retry::OtherBackend;
        if fault.side != Side::Backend || is_busy || fault.is_cancelled || is_replaced {
            return;
        }
        self.tally.failed(attempt.index());
        if self.group.failed(attempt.index()) {
            let (name, time) = (attempt.backend.name(), self.group.recover_time());
            self.thread.errors.warn(&format!("{name} is left out for {time:?}: {fault}"));
        }
    }
}

impl Attempt<'_> {
    /// Records that the backend has answered: it is up.
    pub fn answered(&self) {
        if let Some(begun) = self.begun.take() {
            self.group.record_time(self.index(), begun);
        }
        self.group.succeeded(self.index());
    }

    /// Returns the number of the backend.
    pub fn index(&self) -> usize {
        self.number.into()
    }

    /// Returns true if another backend should get `request`, because this backend has answered with
    /// `status`. In this case, takes a retry from the group's budget.
    pub fn takes_retry(&self, status: u16, request: &Request) -> bool {
        self.group.takes_retry(status, request.method(), self.tried)
    }
}

// Opens a connection to a backend for one client of a `[[stream]]`.

/// A connection to a backend for one client.
pub(crate) struct Opened<'a> {
    /// The backend.
    pub backend: &'a Backend,
    /// The connection, after `greeting` was written.
    pub connection: BackendConnection,
    /// Counts the client as active.
    pub in_flight: InFlight,
}

impl Upstream {
    /// Opens a connection to the backend that the group selects, and writes `greeting`. After a
    /// failure of a backend, tries the other backends, because no byte of the client was sent yet.
    /// `key`, if given, is a hash that selects the backend.
    pub(crate) async fn open(
        &self,
        key: Option<u64>,
        greeting: &[u8],
    ) -> Result<Opened<'_>, Fault> {
        let (mut tried, mut last) = (0, None);
        while let Some(index) = self.group.pick((None, key), tried, &self.turns) {
            tried |= bit(index);
            let in_flight =
                InFlight { _under_way: self.group.enter(index), _active: self.tally.begin(index) };
            let (backend, group) = (&self.backends[index], &*self.group);
            let begun = Cell::new(group.begin_timing());
            let attempt = Attempt { backend, number: index as u8, tried, group, begun };
            match greet(attempt.backend, greeting).await {
                Ok(connection) => {
                    attempt.answered();
                    return Ok(Opened { backend: attempt.backend, connection, in_flight });
                }
                Err(fault) if fault.side != Side::Backend => return Err(fault),
                Err(fault) => {
                    self.count(&attempt, &fault);
                    last = Some(fault);
                }
            }
        }
        Err(last.unwrap_or_else(|| Fault::us(500, "a stream without backends")))
    }
}

impl Upstream {
    /// Opens a UDP socket to the backend that the group selects. After a failure of a backend,
    /// tries the other backends. Also returns the backend's number, and a guard that counts the
    /// client as active.
    pub(crate) async fn open_datagrams(
        &self,
        key: Option<u64>,
    ) -> Result<(UdpSocket, usize, InFlight), Fault> {
        let (mut tried, mut last) = (0, None);
        while let Some(index) = self.group.pick((None, key), tried, &self.turns) {
            tried |= bit(index);
            let in_flight =
                InFlight { _under_way: self.group.enter(index), _active: self.tally.begin(index) };
            match self.backends[index].open_datagrams().await {
                Ok(socket) => return Ok((socket, index, in_flight)),
                Err(fault) if fault.side != Side::Backend => return Err(fault),
                Err(fault) => {
                    self.count_datagrams(index, &fault);
                    last = Some(fault);
                }
            }
        }
        Err(last.unwrap_or_else(|| Fault::us(500, "a stream without backends")))
    }

    /// Returns the name of a backend for the log.
    pub(crate) fn shared_name(&self, index: usize) -> Rc<str> {
        self.backends[index].shared_name()
    }

    /// Records that a backend has sent a datagram: it is up.
    pub(crate) fn datagrams_answered(&self, index: usize) {
        self.group.succeeded(index);
    }

    /// Counts a failure of a backend over UDP.
    pub(crate) fn datagrams_failed(&self, index: usize, error: &io::Error) {
        self.count_datagrams(index, &self.backends[index].refused_datagrams(error));
    }

    fn count_datagrams(&self, index: usize, fault: &Fault) {
        let (backend, group) = (&self.backends[index], &*self.group);
        let begun = Cell::new(None);
        let attempt = Attempt { backend, number: index as u8, tried: 0, group, begun };
        self.count(&attempt, fault);
    }
}

async fn greet(backend: &Backend, greeting: &[u8]) -> Result<BackendConnection, Fault> {
    let connection = backend.connect(true).await?;
    // In some protocols, the backend sends nothing first. So do not measure the wait for its first
    // byte.
    connection.forget_wait();
    if !greeting.is_empty() {
        let written = connection.socket.write_all(greeting).await;
        written.map_err(|error| backend.lost(&error))?;
    }
    Ok(connection)
}

// The PROXY header before the first request of a connection. The header applies to the whole
// connection. So a route that sends PROXY headers never reuses a connection for another client.
//
// One write sends the header and the request's head. The header of a health check names no client
// (`LOCAL`, or `UNKNOWN` in version 1).

/// Appends the header with the client's address and the server's address on the client's
/// connection. For a client without an IP address, the header names no client.
pub fn append_proxy_header(
    out: &mut Vec<u8>,
    version: ProxyHeader,
    client: ClientAddress,
    server: SocketAddr,
) {
    let ClientAddress::Ip(client) = client else { return append_local_proxy_header(out, version) };
    match version {
        ProxyHeader::V1 => encode_v1(out, client, server),
        ProxyHeader::V2 => encode_v2(out, client, server),
    }
}

/// Appends the header of a connection that Forebay opens for itself.
fn append_local_proxy_header(out: &mut Vec<u8>, version: ProxyHeader) {
    match version {
        ProxyHeader::V1 => encode_local_v1(out),
        ProxyHeader::V2 => encode_local_v2(out),
    }
}
