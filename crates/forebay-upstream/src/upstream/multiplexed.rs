//! Shared connections of one thread to a backend, for any protocol: finds a connection that can
//! take another request, opens a new connection, or waits.
//!
//! Requests that find no stream wait in a queue, in order of arrival. Only the first request in the
//! queue looks for a stream. When this request has found a stream or starts to open a connection,
//! it leaves the queue, and the next request can look. Only one request at a time opens a
//! connection.
//!
//! With `max_connections`, a thread may always open its first connection, because its requests
//! cannot use other threads' connections. Envoy's limit has the same exception.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use forebay_net::fault::Fault;
use forebay_net::limit::Limit;
use tokio::sync::Notify;

use super::Backend;

/// A connection that several requests share.
pub trait SharedConnection {
    /// Stream of one request.
    type Stream;

    /// Returns a stream for another request, if the connection can take it now.
    fn begin(self: &Rc<Self>) -> Option<Self::Stream>;

    /// Returns true if the connection takes no further requests, now or later.
    fn is_broken(&self) -> bool;

    /// Returns the state of the backend's limit on requests; see [`Readiness`].
    fn readiness(&self) -> Readiness {
        Readiness::Known
    }
}

/// Knowledge about the number of requests that the backend allows on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The backend has not sent the number yet. Another connection would have to wait for the
    /// number, too.
    Unknown,
    /// The backend allows no requests, and has never allowed any.
    Refusing,
    /// The backend allows requests, even if no further one is possible now.
    Known,
}

/// Maximum number of connections that may refuse all requests at the same time.
// A second connection verifies that the backend refuses all requests. If both refuse, requests wait
// until the backend changes its settings.
const MOST_REFUSING: usize = 2;

/// The connections of one thread to one backend.
pub struct Multiplexed<C> {
    /// Open connections. Only their tasks and streams own them, so a connection closes when both
    /// have ended.
    open: RefCell<Vec<Weak<C>>>,
    /// Lock that the first request in the queue holds.
    queue: tokio::sync::Mutex<()>,
    /// True while a request opens a connection.
    is_opening: Cell<bool>,
    /// Wakes the first request in the queue. That request may then find a stream or open a
    /// connection.
    capacity_changed: Rc<Notify>,
    /// Maximum number of connections of this thread, so that other threads get some, too.
    most: usize,
    /// Version of the backend's addresses when the connections were opened.
    generation: Cell<u64>,
}

impl<C: SharedConnection> Multiplexed<C> {
    /// Creates an empty set of at most `most` connections.
    pub fn new(most: usize) -> Self {
        Self {
            open: RefCell::default(),
            queue: tokio::sync::Mutex::default(),
            is_opening: Cell::new(false),
            capacity_changed: Rc::default(),
            most,
            generation: Cell::new(0),
        }
    }

    /// Returns the signal that a connection may take another request, or has closed.
    pub fn capacity_changed(&self) -> &Rc<Notify> {
        &self.capacity_changed
    }

    /// Returns the open connections.
    pub fn connections(&self) -> Vec<Rc<C>> {
        self.open.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns a stream on an open connection, or `None` if no connection can take another request.
    /// Uses the oldest connection first, so that unneeded connections become idle and close.
    pub fn find(&self) -> Option<C::Stream> {
        let is_live = |open: &Weak<C>| open.upgrade().is_some_and(|open| !open.is_broken());
        let mut open = self.open.borrow_mut();
        open.retain(is_live);
        open.iter().find_map(|connection| connection.upgrade()?.begin())
    }

    /// Adds a connection for later requests.
    pub fn add(&self, connection: &Rc<C>) {
        self.open.borrow_mut().push(Rc::downgrade(connection));
    }

    /// Returns a stream. Waits until `find` returns one, or until `acquire` returns a permit to
    /// open a connection. In the second case, passes the permit to `open`, and returns its result.
    /// The argument of `acquire` is true if the thread has no connection.
    ///
    /// # Errors
    /// Returns the errors of `acquire` and `open`. Returns the fault of a busy backend if neither a
    /// stream nor a permit is available within the connect timeout. Also fails if `open` does not
    /// end within this time.
    pub async fn wait_for<T, R>(
        &self,
        backend: &Backend,
        find: impl Fn() -> Option<T>,
        acquire: impl AsyncFn(bool) -> Result<R, Fault>,
        open: impl AsyncFnOnce(R) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if backend.has_moved(&self.generation) {
            // Requests on connections to former addresses continue. Later requests use new
            // connections.
            self.open.borrow_mut().clear();
        }
        if let Ok(_first) = self.queue.try_lock()
            && let Some(found) = find()
        {
            return Ok(found);
        }
        let (limit, is_connecting) = (backend.connect_timeout(), Cell::new(false));
        let found_or_opened = async {
            match self.find_or_acquire(find, acquire).await? {
                NextStep::Found(found) => Ok(found),
                NextStep::Open(right, _opening) => {
                    is_connecting.set(true);
                    open(right).await
                }
            }
        };
        match tokio::time::timeout(limit, found_or_opened).await {
            Ok(outcome) => outcome,
            Err(_) if !is_connecting.get() => Err(backend.busy()),
            Err(_) => {
                let message = format!("cannot connect to {} within {limit:?}", backend.name());
                Err(Fault::backend(504, message).limited_by(Limit::Connect))
            }
        }
    }

    /// Waits in the queue until `find` succeeds or this request may open a connection.
    async fn find_or_acquire<T, R>(
        &self,
        find: impl Fn() -> Option<T>,
        acquire: impl AsyncFn(bool) -> Result<R, Fault>,
    ) -> Result<NextStep<'_, C, T, R>, Fault> {
        let _first = self.queue.lock().await;
        loop {
            if let Some(found) = find() {
                return Ok(NextStep::Found(found));
            }
            if !self.may_open() {
                self.capacity_changed.notified().await;
                continue;
            }
            let is_alone = self.live().is_empty();
            tokio::select! {
                biased;
                right = acquire(is_alone) => {
                    let right = right?;
                    self.is_opening.set(true);
                    return Ok(NextStep::Open(right, Opening(self)));
                }
                found = self.find_later(&find, is_alone) => if let Some(found) = found {
                    return Ok(NextStep::Found(found));
                },
            }
        }
    }

    /// Returns the result of `find` when it succeeds. `is_alone` is true if the thread had no
    /// connections when the wait began. Returns `None` as soon as `is_alone` is no longer correct.
    /// The caller must then ask for a permit again, because `max_connections` does not limit a
    /// thread's first connection.
    async fn find_later<T>(&self, find: impl Fn() -> Option<T>, is_alone: bool) -> Option<T> {
        loop {
            self.capacity_changed.notified().await;
            let found = find();
            if found.is_some() || self.live().is_empty() != is_alone {
                return found;
            }
        }
    }

    fn live(&self) -> Vec<Rc<C>> {
        let mut live = self.connections();
        live.retain(|connection| !connection.is_broken());
        live
    }

    fn may_open(&self) -> bool {
        let live = self.live();
        let count = |readiness| live.iter().filter(|live| live.readiness() == readiness).count();
        !self.is_opening.get()
            && live.len() < self.most
            && count(Readiness::Unknown) == 0
            && count(Readiness::Refusing) < MOST_REFUSING
    }
}

/// Next step of a request that found no stream at first.
enum NextStep<'a, C, T, R> {
    /// A stream was found after all.
    Found(T),
    /// The request opens a connection with this permit.
    Open(R, Opening<'a, C>),
}

/// Marks that a request opens a connection. After the drop, another request may open one.
struct Opening<'a, C>(&'a Multiplexed<C>);

impl<C> Drop for Opening<'_, C> {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
        self.0.capacity_changed.notify_one();
    }
}
