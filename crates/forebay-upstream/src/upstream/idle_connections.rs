//! Idle connections of one thread to a backend, and the wait for a connection if `max_connections`
//! is reached.
//!
//! The routes of a thread share idle connections with the same address, protocol and options
//! (`IdlePools`). With `max_connections`, a request that waits makes other threads give up an idle
//! connection.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use forebay_net::deadline::Deadlines;
use forebay_net::pool::Pool;
use forebay_net::socket::Socket;
use forebay_net::thread::Thread;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::time::Interval;

use super::pending_connections::{PendingConnection, PendingConnections};
use super::permits::{ConnectionPermit, Grant, HolderId, Permits};

/// Interval at which old idle connections are closed.
const PRUNING: Duration = Duration::from_millis(500);

/// The idle connections of one thread to one backend.
pub struct IdleConnections {
    pool: Pool<Option<ConnectionPermit>>,
    deadlines: Rc<Deadlines>,
    holder: HolderId,
    /// Connections that were granted to waiting requests. The tasks of these requests have not
    /// taken the connections yet.
    ready: RefCell<VecDeque<(Socket, ConnectionPermit)>>,
    /// New connections to the backend that have not received a reply yet.
    pending: Option<Arc<PendingConnections>>,
}

/// Messages that ask a thread's pool to give up an idle connection.
struct Nudges {
    /// Sent when a request waits for a permit.
    permits: Option<UnboundedReceiver<()>>,
    /// Sent when a new connection has waited too long for its first reply ([`PendingConnections`]).
    pending: Option<UnboundedReceiver<()>>,
}

/// Idle connections that the routes of one thread share, if backend and options match.
#[derive(Default)]
pub struct IdlePools(RefCell<HashMap<PoolKey, Rc<IdleConnections>>>);

/// Name of the backend, maximum number of idle connections, idle time, and
/// `IdleOptions::violates_keep_alive`.
type PoolKey = (String, Option<usize>, Duration, bool);

/// A request in the queue for a connection.
struct Queued<'a> {
    idle: &'a IdleConnections,
    receiver: oneshot::Receiver<Grant>,
}

/// Options of a pool.
pub struct IdleOptions<'a> {
    /// Name of the backend.
    pub name: &'a str,
    /// Maximum number of idle connections. With `None`, keeps as many as were in use at the same
    /// time.
    pub keep: Option<usize>,
    /// Idle limit of a connection.
    pub idle_time: Duration,
    /// True if the backend is known to close connections without notice.
    pub violates_keep_alive: bool,
    /// Limit of connections over all threads.
    pub permits: Option<&'a Arc<Permits>>,
    /// New connections of all threads that have not received a reply yet.
    pub pending: Option<&'a Arc<PendingConnections>>,
    /// Pools that routes share.
    pub pools: Option<&'a IdlePools>,
}

impl IdleConnections {
    /// Returns a pool with these options. If `how.pools` is given, routes with the same options get
    /// the same pool.
    pub fn of(thread: &Rc<Thread>, how: &IdleOptions<'_>) -> Rc<Self> {
        match how.pools {
            Some(pools) if how.keep != Some(0) => {
                let key = (how.name.to_owned(), how.keep, how.idle_time, how.violates_keep_alive);
                let mut pools = pools.0.borrow_mut();
                pools.entry(key).or_insert_with(|| Self::new(thread, how)).clone()
            }
            _ => Self::new(thread, how),
        }
    }

    /// Creates an empty pool, and the task that prunes the pool while it is in use.
    fn new(thread: &Rc<Thread>, how: &IdleOptions<'_>) -> Rc<Self> {
        let joined = how.permits.map(|permits| permits.join());
        let (holder, nudges) = joined.unzip();
        let idle = Rc::new(Self {
            pool: Pool::new(how.keep, how.idle_time, thread.idle_room.clone()),
            deadlines: thread.deadlines.clone(),
            holder: holder.unwrap_or_default(),
            ready: RefCell::default(),
            pending: how.pending.cloned(),
        });
        let keeps = |_: &&Arc<PendingConnections>| how.keep != Some(0);
        let pending = idle.pending.as_ref().filter(keeps).map(|pending| pending.join());
        let nudges = Nudges { permits: nudges, pending };
        if how.violates_keep_alive {
            idle.pool.assume_violation();
        }
        let deadlines = thread.deadlines.clone();
        tokio::task::spawn_local(look_after(Rc::downgrade(&idle), deadlines, nudges));
        idle
    }

    /// Takes an idle connection, or returns `None`. The boolean is true if the connection has been
    /// idle for a while ([`Pool::take`]).
    pub fn take(&self) -> Option<(Socket, Option<ConnectionPermit>, bool)> {
        let (socket, permit, is_settled) = self.pool.take(&self.deadlines)?;
        if let Some(permit) = &permit {
            permit.set_busy();
        }
        Some((socket, permit, is_settled))
    }

    /// Takes a connection that has been idle for a while, or returns `None`. Do not call this if
    /// connections to the backend are limited.
    pub fn take_settled(&self) -> Option<(Socket, Option<ConnectionPermit>)> {
        self.pool.take_settled(&self.deadlines)
    }

    /// Takes a connection that [`Grant::Ready`] has announced.
    fn take_ready(&self) -> Option<(Socket, ConnectionPermit)> {
        self.ready.borrow_mut().pop_front()
    }

    /// Waits in the queue for an idle connection, or for a permit to open a connection. In the
    /// second case, the returned socket is `None`. Returns `None` if the request gets neither
    /// within `limit`.
    pub async fn wait(
        &self,
        permits: &Arc<Permits>,
        limit: Duration,
    ) -> Option<(Option<Socket>, ConnectionPermit)> {
        let receiver = match permits.acquire(self.holder) {
            Ok(permit) => return Some((None, permit)),
            Err(receiver) => receiver,
        };
        let mut queued = Queued { idle: self, receiver };
        Some(match self.deadlines.timeout(limit, &mut queued.receiver).await.ok()?.ok()? {
            Grant::Open(permit) => (None, permit),
            Grant::Ready => {
                let (socket, permit) = self.take_ready()?;
                (Some(socket).filter(|socket| !socket.is_stale()), permit)
            }
            Grant::Reuse(stream, permit) => {
                let socket = Socket::attach(stream, &self.deadlines).ok();
                (socket.filter(|socket| socket.peek().is_none()), permit)
            }
        })
    }

    /// Gives the connection to the request that has waited longest. If no request waits, keeps the
    /// connection.
    pub fn put(&self, socket: Socket, permit: Option<ConnectionPermit>) {
        let Some(permit) = permit else { return self.pool.put(socket, None, &self.deadlines) };
        let Some(waiter) = permit.next_waiter() else {
            return self.pool.put(socket, Some(permit), &self.deadlines);
        };
        socket.unlimit_read();
        if waiter.holder == self.holder {
            self.ready.borrow_mut().push_back((socket, permit));
            if waiter.sender.send(Grant::Ready).is_err() {
                self.put_back();
            }
            return;
        }
        let grant = match socket.detach() {
            Ok(stream) => Grant::Reuse(stream, permit),
            Err(_) => Grant::Open(permit),
        };
        // If the request no longer waits, the send fails and drops the grant. This closes the
        // connection, and passes its permit to the next request.
        let _ = waiter.sender.send(grant);
    }

    /// Takes back a connection that was granted to a request, but this request no longer waits.
    /// Gives the connection to the next request. If no request waits, keeps the connection.
    fn put_back(&self) {
        if let Some((socket, permit)) = self.take_ready() {
            self.put(socket, Some(permit));
        }
    }

    /// Records that a connection is being opened for a request. Returns the measurement of the wait
    /// for the reply, or `None` if this backend's waits are not measured.
    pub fn open(&self) -> Option<PendingConnection> {
        self.pending.as_ref().map(PendingConnections::open)
    }

    /// Calls [`PendingConnections::pop_overdue`].
    pub fn pop_overdue(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.pop_overdue())
    }

    /// Closes an idle connection for each new connection that is overdue.
    fn close_for_overdue(&self) {
        let Some(pending) = &self.pending else { return };
        while pending.is_overdue()
            && let Some((socket, permit, _)) = self.take()
        {
            if !pending.pop_overdue() {
                return self.put(socket, permit);
            }
        }
    }

    /// Calls [`Pool::keeps_alive`].
    pub fn keeps_alive(&self) -> bool {
        self.pool.keeps_alive()
    }

    /// Calls [`Pool::record_violation`].
    pub fn record_violation(&self) {
        self.pool.record_violation();
    }

    /// Calls [`Pool::record_keeping`].
    pub fn record_keeping(&self) {
        self.pool.record_keeping();
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        if matches!(self.receiver.try_recv(), Ok(Grant::Ready)) {
            self.idle.put_back();
        }
    }
}

/// Closes connections that have been idle for too long. If a request waits for a permit, passes an
/// idle connection to that request. If a new connection is overdue (`pending_connections`), closes
/// an idle connection, so that the backend can serve the new one.
async fn look_after(idle: Weak<IdleConnections>, deadlines: Rc<Deadlines>, mut nudges: Nudges) {
    enum Why {
        Time,
        Permit,
        Overdue,
    }
    let mut interval = tokio::time::interval(PRUNING);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        let why = tokio::select! {
            () = next_look(&deadlines, &mut interval) => Why::Time,
            Some(()) = nudge(&mut nudges.permits) => Why::Permit,
            Some(()) = nudge(&mut nudges.pending) => Why::Overdue,
        };
        let Some(idle) = idle.upgrade() else { return };
        match why {
            Why::Time => idle.pool.prune(&idle.deadlines),
            Why::Overdue => idle.close_for_overdue(),
            Why::Permit => {
                if let Some((socket, permit, _)) = idle.take() {
                    idle.put(socket, permit);
                }
            }
        }
    }
}

/// Waits until the next pruning. Does not wake up while the thread's clock is stopped, because the
/// thread then has no connections.
async fn next_look(deadlines: &Deadlines, interval: &mut Interval) {
    deadlines.awake().await;
    interval.tick().await;
}

async fn nudge(nudges: &mut Option<UnboundedReceiver<()>>) -> Option<()> {
    match nudges {
        Some(nudges) => nudges.recv().await,
        None => std::future::pending().await,
    }
}
