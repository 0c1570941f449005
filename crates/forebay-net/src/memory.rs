//! Connections in memory within one thread, for tests without sockets and delays.
//!
//! A [`Link`] is one end of a bidirectional byte stream that behaves like a TCP connection. Each
//! direction holds a limited number of bytes and ends separately. Closing a link with unread bytes
//! resets the connection. Backends listen for such connections on a [`Network`]. A test runs the
//! client, the server (`MemoryGateway` of `forebay-server`), an origin and the backend in one
//! thread. If tokio's clock is paused, time jumps to the next deadline when all of them wait.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::io::Errno;
use rustix::net::Shutdown;
use tokio::sync::mpsc;

/// Default number of unread bytes that a link holds per direction.
const ROOM: usize = 64 * 1024;

/// One end of a connection in memory. Dropping the link closes the connection, with a reset if
/// bytes are unread or [`Link::reset`] was called.
pub struct Link {
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
    resets: Cell<bool>,
}

/// One direction of a connection.
struct Pipe {
    bytes: RefCell<VecDeque<u8>>,
    room: Cell<usize>,
    /// True if the writer has finished.
    is_finished: Cell<bool>,
    /// True if the connection was reset or the reader was dropped.
    is_broken: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl Pipe {
    fn new() -> Rc<Self> {
        Rc::new(Self {
            bytes: RefCell::default(),
            room: Cell::new(ROOM),
            is_finished: Cell::new(false),
            is_broken: Cell::new(false),
            waiting: RefCell::default(),
        })
    }

    fn wake(&self) {
        let mut waiting = self.waiting.take();
        waiting.drain(..).for_each(Waker::wake);
        // Put the empty list back to reuse its memory. But if a woken task already waits again, the
        // task has added its waker to a new list, which must stay.
        let mut current = self.waiting.borrow_mut();
        if current.is_empty() {
            *current = waiting;
        }
    }

    fn wait(&self, context: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }

    fn has_ended(&self) -> bool {
        self.is_finished.get() || self.is_broken.get()
    }

    fn is_readable(&self) -> bool {
        !self.bytes.borrow().is_empty() || self.has_ended()
    }

    fn is_writable(&self) -> bool {
        self.bytes.borrow().len() < self.room.get() || self.has_ended()
    }
}

impl Link {
    /// Creates a connection and returns its two ends.
    pub fn pair() -> (Self, Self) {
        let (there, back) = (Pipe::new(), Pipe::new());
        let end = |incoming: &Rc<Pipe>, outgoing: &Rc<Pipe>| Self {
            incoming: incoming.clone(),
            outgoing: outgoing.clone(),
            resets: Cell::new(false),
        };
        (end(&there, &back), end(&back, &there))
    }

    /// Limits the number of unread bytes from the other end to `bytes`.
    pub fn limit_room(&self, bytes: usize) {
        self.incoming.room.set(bytes);
        self.incoming.wake();
    }

    /// Waits for bytes and reads them. Returns 0 if the other end has finished, and an error after
    /// a reset.
    pub async fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        poll_fn(|context| self.poll_readable(context)).await;
        self.append_to(buffer, ROOM)
    }

    /// Writes all of `data`. Waits while the other end has too many unread bytes. Returns an error
    /// if the other end no longer reads.
    pub async fn write(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            match self.try_write(data) {
                Ok(n) => data = &data[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll_fn(|context| self.poll_writable(context)).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends the sending direction. The other end may continue to send.
    pub fn finish(&self) {
        self.shut_down(Shutdown::Write);
    }

    /// Ends the receiving direction: writes of the other end fail, but its reads do not.
    pub fn stop_reading(&self) {
        self.shut_down(Shutdown::Read);
    }

    /// Closes the connection with a reset.
    pub fn reset(self) {
        self.resets.set(true);
    }

    /// Returns true if the other end has closed or reset the connection or has finished sending.
    pub fn is_finished(&self) -> bool {
        self.incoming.has_ended()
    }

    /// Returns true if the other end has reset or dropped the connection, so that it reads nothing
    /// any more.
    pub fn is_reset(&self) -> bool {
        self.incoming.is_broken.get() || self.outgoing.is_broken.get()
    }

    /// Returns true if unread bytes have arrived.
    pub fn has_input(&self) -> bool {
        self.peek() == Some(true)
    }

    /// Waits until the other end has closed or reset the connection or has finished sending.
    pub async fn closed(&self) {
        poll_fn(|context| {
            if self.incoming.has_ended() {
                return Poll::Ready(());
            }
            self.incoming.wait(context);
            Poll::Pending
        })
        .await;
    }

    pub fn poll_readable(&self, context: &Context<'_>) -> Poll<()> {
        if self.incoming.is_readable() {
            return Poll::Ready(());
        }
        self.incoming.wait(context);
        Poll::Pending
    }

    pub fn poll_writable(&self, context: &Context<'_>) -> Poll<()> {
        if self.outgoing.is_writable() {
            return Poll::Ready(());
        }
        self.outgoing.wait(context);
        Poll::Pending
    }

    /// Returns `Some(true)` if bytes have arrived, `Some(false)` at the end of the input or after
    /// an error, else `None`.
    pub fn peek(&self) -> Option<bool> {
        let has_bytes = !self.incoming.bytes.borrow().is_empty();
        (has_bytes || self.incoming.has_ended()).then_some(has_bytes)
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut at = 0;
        self.take(buffer.len(), |piece| {
            buffer[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        })
    }

    /// Appends up to `most` received bytes to `buffer`. Returns the number of bytes, or 0 at the
    /// end. Fails with `WouldBlock` if no bytes have arrived, and with `ConnectionReset` after a
    /// reset.
    pub(crate) fn append_to(&self, buffer: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        self.take(most, |piece| buffer.extend_from_slice(piece))
    }

    /// Passes up to `most` received bytes to `give`, in two pieces. Returns the number of bytes, or
    /// 0 at the end. Fails with `WouldBlock` if no bytes have arrived, and with `ConnectionReset`
    /// after a reset.
    fn take(&self, most: usize, mut give: impl FnMut(&[u8])) -> io::Result<usize> {
        let mut bytes = self.incoming.bytes.borrow_mut();
        let n = bytes.len().min(most);
        if n > 0 {
            let (front, back) = bytes.as_slices();
            let split = front.len().min(n);
            give(&front[..split]);
            give(&back[..n - split]);
            bytes.drain(..n);
            drop(bytes);
            self.incoming.wake();
            return Ok(n);
        }
        match (self.incoming.is_broken.get(), self.incoming.is_finished.get()) {
            (true, _) => Err(ErrorKind::ConnectionReset.into()),
            (false, true) => Ok(0),
            (false, false) => Err(ErrorKind::WouldBlock.into()),
        }
    }

    pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        if self.outgoing.has_ended() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let mut bytes = self.outgoing.bytes.borrow_mut();
        let n = data.len().min(self.outgoing.room.get().saturating_sub(bytes.len()));
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        bytes.extend(&data[..n]);
        drop(bytes);
        self.outgoing.wake();
        Ok(n)
    }

    pub(crate) fn shut_down(&self, how: Shutdown) {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.incoming.is_finished.set(true);
            self.incoming.wake();
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.outgoing.is_finished.set(true);
            self.outgoing.wake();
        }
    }

    pub(crate) fn reset_when_closed(&self) {
        self.resets.set(true);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // As in the kernel, closing with unread bytes resets the connection.
        if self.resets.get() || !self.incoming.bytes.borrow().is_empty() {
            self.outgoing.is_broken.set(true);
        }
        self.outgoing.is_finished.set(true);
        self.incoming.is_broken.set(true);
        self.outgoing.wake();
        self.incoming.wake();
    }
}

/// Address of a backend in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    /// Simulates TCP.
    Tcp(SocketAddr),
    /// Simulates a Unix socket.
    Unix(PathBuf),
}

/// Backends in memory by address. Connections to other addresses are refused.
#[derive(Default)]
pub struct Network {
    listeners: RefCell<HashMap<Destination, Option<mpsc::UnboundedSender<Link>>>>,
    /// Maximum number of connections, if limited, and the connections opened since the limit was
    /// set.
    limit: RefCell<Option<(usize, Vec<Rc<Pipe>>)>>,
}

impl Network {
    /// Listens at `destination`, until the returned receiver is dropped.
    pub fn listen(&self, destination: Destination) -> mpsc::UnboundedReceiver<Link> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.listeners.borrow_mut().insert(destination, Some(sender));
        receiver
    }

    /// Leaves further attempts to connect to `destination` unanswered.
    pub fn fall_silent(&self, destination: Destination) {
        self.listeners.borrow_mut().insert(destination, None);
    }

    /// Limits the number of connections that are opened after this call and are open at the same
    /// time. Above the limit, [`Self::connect`] fails as if the process had no free descriptor.
    pub fn limit_connections(&self, most: usize) {
        *self.limit.borrow_mut() = Some((most, Vec::new()));
    }

    /// Connects to the listener at `destination`. Returns an error if there is no listener, or if
    /// the limit of connections is reached. Never completes after [`Self::fall_silent`].
    pub async fn connect(&self, destination: &Destination) -> io::Result<Link> {
        let listener = self.listeners.borrow().get(destination).cloned();
        let Some(listener) = listener else { return Err(ErrorKind::ConnectionRefused.into()) };
        let Some(listener) = listener else { return std::future::pending().await };
        let (ours, theirs) = Link::pair();
        if let Some((most, open)) = &mut *self.limit.borrow_mut() {
            open.retain(|pipe| !pipe.is_finished.get());
            if open.len() >= *most {
                return Err(Errno::MFILE.into());
            }
            open.push(ours.outgoing.clone());
        }
        listener.send(theirs).map_err(|_| ErrorKind::ConnectionRefused)?;
        Ok(ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_can_be_read_before_an_end_or_a_reset() {
        let (near, far) = Link::pair();
        assert_eq!(near.try_write(b"abc").unwrap(), 3);
        near.reset();
        let mut buffer = [0; 8];
        assert_eq!(far.try_read(&mut buffer).unwrap(), 3);
        assert_eq!(far.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(far.try_write(b"d").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn closing_with_unread_bytes_resets_and_without_them_ends() {
        let (near, far) = Link::pair();
        drop(near);
        assert_eq!(far.try_read(&mut [0; 8]).unwrap(), 0);
        let (near, far) = Link::pair();
        assert_eq!(far.try_write(b"unread").unwrap(), 6);
        drop(near);
        let error = far.try_read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_direction_takes_no_more_than_it_has_room_for() {
        let (near, far) = Link::pair();
        far.limit_room(4);
        assert_eq!(near.try_write(b"abcdef").unwrap(), 4);
        assert_eq!(near.try_write(b"ef").unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(far.try_read(&mut [0; 3]).unwrap(), 3);
        assert_eq!(near.try_write(b"ef").unwrap(), 2);
    }
}
