//! Connections of one thread to a backend that requests share, by whatever protocol: found, opened
//! where those there are have no room, and waited for.
//!
//! Requests without a place queue, first come, first served. The first of the queue alone looks for
//! room; it leaves the queue as soon as it has found some or opens a connection, so that the next one
//! looks meanwhile. One request at a time opens a connection. Under `max_connections` a thread with a
//! connection waits for the right to another one; a thread without any may always have one, as its
//! requests cannot go over those of other threads (Envoy's limit is of this kind, too).

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use forebay_engine::{Fault, Limit};
use tokio::sync::Notify;

use super::Backend;

/// A connection that several requests share.
pub trait SharedConnection {
    /// The place of one request on it.
    type Stream;

    /// A place for one more request, if there is room.
    fn begin(self: &Rc<Self>) -> Option<Self::Stream>;

    /// Whether it takes no more requests, now or later.
    fn is_broken(&self) -> bool;

    /// Returns what the backend has said about its room.
    fn readiness(&self) -> Readiness {
        Readiness::Known
    }
}

/// The room on a connection, as far as the backend has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The backend has yet to say how much there is, as it would have to on another connection.
    Unknown,
    /// The backend has said that there is none, and has never said otherwise.
    Refusing,
    /// There is some, or requests have taken it all.
    Known,
}

/// The number of connections that may refuse all requests: the second one is a second opinion. If the
/// backend refuses on both, requests wait until it changes its mind.
const MOST_REFUSING: usize = 2;

/// The connections of one thread to one backend.
pub struct Multiplexed<C> {
    /// Their tasks and streams hold them, so that one is closed as soon as it has ended.
    open: RefCell<Vec<Weak<C>>>,
    /// Held by the first of the queue.
    queue: tokio::sync::Mutex<()>,
    /// A request opens a connection.
    is_opening: Cell<bool>,
    /// There may be room, or the right to open a connection: whoever is first in the queue looks.
    room: Rc<Notify>,
    /// Connections at once: other threads need connections, too.
    most: usize,
}

impl<C: SharedConnection> Multiplexed<C> {
    /// At most `most` connections, none yet.
    pub fn new(most: usize) -> Self {
        Self {
            open: RefCell::default(),
            queue: tokio::sync::Mutex::default(),
            is_opening: Cell::new(false),
            room: Rc::default(),
            most,
        }
    }

    /// What connections tell when they have room again, or are no more.
    pub fn room(&self) -> &Rc<Notify> {
        &self.room
    }

    /// The connections that take requests.
    pub fn connections(&self) -> Vec<Rc<C>> {
        self.open.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// A place on a connection that is open. The one opened first is filled first, so that surplus
    /// connections age out.
    pub fn find(&self) -> Option<C::Stream> {
        let is_live = |open: &Weak<C>| open.upgrade().is_some_and(|open| !open.is_broken());
        let mut open = self.open.borrow_mut();
        open.retain(is_live);
        open.iter().find_map(|connection| connection.upgrade()?.begin())
    }

    /// Has later requests find this connection.
    pub fn add(&self, connection: &Rc<C>) {
        self.open.borrow_mut().push(Rc::downgrade(connection));
    }

    /// A place that `find` finds, now or later, or that `open` makes, by the right that `acquire`
    /// gets. `acquire` is told whether the thread has no connection yet.
    ///
    /// # Errors
    /// Those of `acquire` and `open`; that the backend is busy where there is no place and no right
    /// within the time that connecting to it may take.
    pub async fn wait_for<T, R>(
        &self,
        backend: &Backend,
        find: impl Fn() -> Option<T>,
        acquire: impl AsyncFn(bool) -> Result<R, Fault>,
        open: impl AsyncFnOnce(R) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if let Ok(_first) = self.queue.try_lock()
            && let Some(found) = find()
        {
            return Ok(found);
        }
        let (limit, is_connecting) = (backend.connect_timeout(), Cell::new(false));
        let found_or_opened = async {
            match self.find_or_acquire(find, acquire).await? {
                Turn::Found(found) => Ok(found),
                Turn::Open(right, _opening) => {
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

    /// Queues until `find` gives something or this request has the right to open a connection.
    async fn find_or_acquire<T, R>(
        &self,
        find: impl Fn() -> Option<T>,
        acquire: impl AsyncFn(bool) -> Result<R, Fault>,
    ) -> Result<Turn<'_, C, T, R>, Fault> {
        let _first = self.queue.lock().await;
        loop {
            if let Some(found) = find() {
                return Ok(Turn::Found(found));
            }
            if !self.may_open() {
                self.room.notified().await;
                continue;
            }
            let is_alone = self.live().is_empty();
            tokio::select! {
                biased;
                right = acquire(is_alone) => {
                    let right = right?;
                    self.is_opening.set(true);
                    return Ok(Turn::Open(right, Opening(self)));
                }
                found = self.find_later(&find, is_alone) => if let Some(found) = found {
                    return Ok(Turn::Found(found));
                },
            }
        }
    }

    /// What `find` gives once there is room; nothing once the thread has lost its last connection or
    /// got its first, which changes what it has a right to.
    async fn find_later<T>(&self, find: impl Fn() -> Option<T>, is_alone: bool) -> Option<T> {
        loop {
            self.room.notified().await;
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

/// How a request that found no room goes on.
enum Turn<'a, C, T, R> {
    /// There was room after all.
    Found(T),
    /// It opens a connection by this right.
    Open(R, Opening<'a, C>),
}

/// A request opens a connection; when this is dropped another one may.
struct Opening<'a, C>(&'a Multiplexed<C>);

impl<C> Drop for Opening<'_, C> {
    fn drop(&mut self) {
        self.0.is_opening.set(false);
        self.0.room.notify_one();
    }
}
