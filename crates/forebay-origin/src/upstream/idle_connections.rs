//! Connections that one thread keeps to a backend, and the wait for one where `max_connections` are
//! open.
//!
//! They belong to the backend (`IdlePools`): the routes of one thread share those to one address that
//! are kept alike (as many, as long, by the same protocol). Threads share none, but under
//! `max_connections` a waiting thread has others give one up.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Deadlines, Pool, Socket, Thread};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::time::Interval;

use super::backend::BackendOptions;
use super::permits::{ConnectionPermit, Grant, HolderId, Permits};
use super::unanswered::{Unanswered, Wait};

/// How often idle connections are looked at.
const PRUNING: Duration = Duration::from_millis(500);

/// The idle connections of one thread.
pub struct IdleConnections {
    pool: Pool<Option<ConnectionPermit>>,
    deadlines: Rc<Deadlines>,
    holder: HolderId,
    /// For requests that have been granted one and have not run since.
    ready: RefCell<VecDeque<(Socket, ConnectionPermit)>>,
    /// New connections to the backend.
    unanswered: Option<Arc<Unanswered>>,
}

/// What asks a holder of idle connections to give one up.
struct Nudges {
    /// Somebody waits for a permit.
    permits: Option<UnboundedReceiver<()>>,
    /// A new connection is overdue.
    unanswered: Option<UnboundedReceiver<()>>,
}

/// The idle connections that the routes of one thread share: those to one backend that are kept
/// alike.
#[derive(Default)]
pub struct IdlePools(RefCell<HashMap<PoolKey, Rc<IdleConnections>>>);

/// Which backend, how many idle connections, for how long, and whether it closes without a word.
type PoolKey = (String, Option<usize>, Duration, bool);

/// A request in the queue for a connection.
struct Queued<'a> {
    idle: &'a IdleConnections,
    receiver: oneshot::Receiver<Grant>,
}

impl IdleConnections {
    /// Those to a backend that is used so: shared where that may be.
    pub fn of(thread: &Rc<Thread>, how: &BackendOptions) -> Rc<Self> {
        match &how.pools {
            Some(pools) if how.keep != Some(0) => {
                let key = (how.name.clone(), how.keep, how.idle_time, how.violates_keep_alive);
                let mut pools = pools.0.borrow_mut();
                pools.entry(key).or_insert_with(|| Self::new(thread, how)).clone()
            }
            _ => Self::new(thread, how),
        }
    }

    /// None yet; looked after as long as somebody holds them.
    fn new(thread: &Rc<Thread>, how: &BackendOptions) -> Rc<Self> {
        let joined = how.permits.as_ref().map(|permits| permits.join());
        let (holder, nudges) = joined.unzip();
        let idle = Rc::new(Self {
            pool: Pool::new(how.keep, how.idle_time, thread.idle_room.clone()),
            deadlines: thread.deadlines.clone(),
            holder: holder.unwrap_or_default(),
            ready: RefCell::default(),
            unanswered: how.unanswered.clone(),
        });
        let keeps = |_: &&Arc<Unanswered>| how.keep != Some(0);
        let unanswered = idle.unanswered.as_ref().filter(keeps).map(|unanswered| unanswered.join());
        let nudges = Nudges { permits: nudges, unanswered };
        if how.violates_keep_alive {
            idle.pool.assume_violation();
        }
        let deadlines = thread.deadlines.clone();
        tokio::task::spawn_local(look_after(Rc::downgrade(&idle), deadlines, nudges));
        idle
    }

    /// An idle connection, and whether it has been idle for a while ([`Pool::take`]).
    pub fn take(&self) -> Option<(Socket, Option<ConnectionPermit>, bool)> {
        let (socket, permit, is_settled) = self.pool.take(&self.deadlines)?;
        if let Some(permit) = &permit {
            permit.set_busy();
        }
        Some((socket, permit, is_settled))
    }

    /// An idle connection that has been idle for a while. For backends without a limit.
    pub fn take_settled(&self) -> Option<(Socket, Option<ConnectionPermit>)> {
        self.pool.take_settled(&self.deadlines)
    }

    /// The connection of [`Grant::Ready`].
    fn take_ready(&self) -> Option<(Socket, ConnectionPermit)> {
        self.ready.borrow_mut().pop_front()
    }

    /// Waits in the queue for an open connection, or the right to open one. `None` when `limit` is
    /// over.
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

    /// Gives the connection to the request that waits longest for one, or keeps it.
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
        // Fails where the waiter has left: the connection closes, and its permit is passed on.
        let _ = waiter.sender.send(grant);
    }

    /// Passes on, or keeps, a connection whose request has left without taking it.
    fn put_back(&self) {
        if let Some((socket, permit)) = self.take_ready() {
            self.put(socket, Some(permit));
        }
    }

    /// A connection is about to be opened for a request.
    pub fn open(&self) -> Option<Wait> {
        self.unanswered.as_ref().map(Unanswered::open)
    }

    /// A request has come to a kept connection.
    pub fn reuse(&self) -> Option<Wait> {
        self.unanswered.as_ref().and_then(Unanswered::reuse)
    }

    /// As [`Unanswered::pop_overdue`].
    pub fn pop_overdue(&self) -> bool {
        self.unanswered.as_ref().is_some_and(|unanswered| unanswered.pop_overdue())
    }

    /// Closes idle connections for new ones that are overdue.
    fn close_for_overdue(&self) {
        let Some(unanswered) = &self.unanswered else { return };
        while unanswered.is_overdue()
            && let Some((socket, permit, _)) = self.take()
        {
            if !unanswered.pop_overdue() {
                return self.put(socket, permit);
            }
        }
    }

    /// As [`Pool::keeps_alive`].
    pub fn keeps_alive(&self) -> bool {
        self.pool.keeps_alive()
    }

    /// As [`Pool::record_violation`].
    pub fn record_violation(&self) {
        self.pool.record_violation();
    }

    /// As [`Pool::record_keeping`].
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

/// Closes connections that have been idle for too long, and gives them up to others.
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
            _ = next_look(&deadlines, &mut interval) => Why::Time,
            Some(()) = nudge(&mut nudges.permits) => Why::Permit,
            Some(()) = nudge(&mut nudges.unanswered) => Why::Overdue,
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

/// Where the thread rests it has no connection open, so that none is to be closed.
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
