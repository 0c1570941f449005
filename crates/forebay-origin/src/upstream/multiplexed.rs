//! Connections of one thread to a backend that requests share, by whatever protocol: found, opened
//! where those there are have no room, and waited for.

use std::cell::RefCell;
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

    /// Whether it has no room yet, and another connection would not have any either.
    fn is_to_be_waited_for(&self) -> bool {
        false
    }
}

/// The connections of one thread to one backend.
pub struct Multiplexed<C> {
    /// Their tasks and streams hold them, so that one is closed as soon as it has ended.
    open: RefCell<Vec<Weak<C>>>,
    /// Whoever opens a connection, since many requests may find none at the same time. Those that
    /// wait for it are the queue.
    opening: tokio::sync::Mutex<()>,
    /// A connection has room again, or is no more.
    room: Rc<Notify>,
    /// Connections at once: other threads need connections, too.
    most: usize,
}

impl<C: SharedConnection> Multiplexed<C> {
    /// At most `most` connections, none yet.
    pub fn new(most: usize) -> Self {
        let (open, opening) = (RefCell::default(), tokio::sync::Mutex::default());
        Self { open, opening, room: Rc::default(), most }
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

    /// What `find` gives, at once or as soon as it gives something, or else what `open` makes:
    /// within the time that connecting to `backend` may take.
    pub async fn wait_for<T>(
        &self,
        backend: &Backend,
        find: impl Fn() -> Option<T>,
        open: impl AsyncFnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if let Some(found) = find() {
            return Ok(found);
        }
        let limit = backend.connect_timeout();
        match tokio::time::timeout(limit, self.find_or_open(find, open)).await {
            Ok(outcome) => outcome,
            Err(_) if !self.may_open() => Err(backend.busy()),
            Err(_) => {
                let message = format!("cannot connect to {} within {limit:?}", backend.name());
                Err(Fault::backend(504, message).limited_by(Limit::Connect))
            }
        }
    }

    async fn find_or_open<T>(
        &self,
        find: impl Fn() -> Option<T>,
        open: impl AsyncFnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let _opening = self.opening.lock().await;
        loop {
            // Another request may have opened one meanwhile.
            if let Some(found) = find() {
                return Ok(found);
            }
            if self.may_open() {
                return open().await;
            }
            self.room.notified().await;
        }
    }

    fn may_open(&self) -> bool {
        let mut live = self.connections();
        live.retain(|connection| !connection.is_broken());
        live.len() < self.most && !live.iter().any(|live| live.is_to_be_waited_for())
    }
}
