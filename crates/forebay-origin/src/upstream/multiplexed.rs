//! Connections of one thread to a backend that requests share, by whatever protocol: found, opened
//! where those there are have no room, and waited for.
//!
//! One request at a time opens a connection; those behind it wait for it and for room on the open
//! ones, whichever comes first. Who gets a place has the next one look, so that one notice of room
//! serves as many as there is room for. Under `max_connections` a thread with a connection waits
//! for the right to another one; a thread without any may always have one, as its requests cannot
//! go over those of other threads (Envoy's limit is of this kind, too).

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use forebay_engine::{Fault, Limit};
use tokio::sync::{MutexGuard, Notify};

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
    /// A request in the queue has been told of room and found none: whose turn it is to open a
    /// connection looks whether it may now.
    turn: Notify,
    /// Connections at once: other threads need connections, too.
    most: usize,
}

impl<C: SharedConnection> Multiplexed<C> {
    /// At most `most` connections, none yet.
    pub fn new(most: usize) -> Self {
        let (open, opening) = (RefCell::default(), tokio::sync::Mutex::default());
        Self { open, opening, room: Rc::default(), turn: Notify::new(), most }
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
        if let Some(found) = find() {
            return Ok(found);
        }
        let (limit, is_connecting) = (backend.connect_timeout(), Cell::new(false));
        let found_or_opened = async {
            let found = match self.find_or_queue(&find, acquire).await? {
                Turn::Found(found) => found,
                Turn::Open(right, _opening) => {
                    is_connecting.set(true);
                    open(right).await?
                }
            };
            // Where there was room for one there may be for others.
            self.room.notify_one();
            Ok(found)
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

    /// Waits until `find` gives something, or it is this request's turn to open a connection.
    async fn find_or_queue<T, R>(
        &self,
        find: impl Fn() -> Option<T>,
        acquire: impl AsyncFn(bool) -> Result<R, Fault>,
    ) -> Result<Turn<'_, T, R>, Fault> {
        let opening = tokio::select! {
            biased;
            opening = self.opening.lock() => opening,
            Some(found) = self.find_later(&find, || self.pass_on()) => return Ok(Turn::Found(found)),
        };
        loop {
            // Another request may have opened one meanwhile.
            if let Some(found) = find() {
                return Ok(Turn::Found(found));
            }
            if !self.may_open() {
                tokio::select! {
                    () = self.room.notified() => {}
                    () = self.turn.notified() => {}
                }
                continue;
            }
            let is_first = self.live().is_empty();
            // One whose thread has lost its connections need not wait for others any more.
            let is_over = || self.live().is_empty() != is_first;
            tokio::select! {
                biased;
                right = acquire(is_first) => return Ok(Turn::Open(right?, opening)),
                found = self.find_later(&find, is_over) => if let Some(found) = found {
                    return Ok(Turn::Found(found));
                },
                () = self.until_over(is_over) => {}
            }
        }
    }

    /// A notice that was of no use in the queue goes to whose turn it is.
    fn pass_on(&self) -> bool {
        self.turn.notify_one();
        false
    }

    /// Waits for a notice of no use in the queue after which it `is_over`.
    async fn until_over(&self, is_over: impl Fn() -> bool) {
        loop {
            self.turn.notified().await;
            if is_over() {
                return;
            }
        }
    }

    /// What `find` gives once there may be room; nothing once `is_over`.
    async fn find_later<T>(
        &self,
        find: impl Fn() -> Option<T>,
        is_over: impl Fn() -> bool,
    ) -> Option<T> {
        loop {
            self.room.notified().await;
            match find() {
                None if is_over() => return None,
                None => {}
                found => return found,
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
        live.len() < self.most && !live.iter().any(|live| live.is_to_be_waited_for())
    }
}

/// How a request that found no room goes on.
enum Turn<'a, T, R> {
    /// There was room after all.
    Found(T),
    /// It opens a connection by this right; no other request does so meanwhile.
    Open(R, MutexGuard<'a, ()>),
}
