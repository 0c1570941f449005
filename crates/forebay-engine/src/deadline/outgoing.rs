//! What the sockets of one thread have to send at the end of its turn.
//!
//! Reading comes before writing. A small request or reply is copied here, and its task goes on
//! to wait for what comes next; when all tasks that were ready have run, one task sends
//! everything. Writes then follow each other closely and fewer of them wake a sleeping peer (4 to
//! 6 % less CPU for a proxied request), and no task is polled again only to write.
//!
//! What the kernel has no room for is written by a task of its own, within the time that the
//! socket gives its peer. Until then the socket writes nothing else (`Watched::has_rest`). Where
//! sending fails, the socket is shut down, so that its reader comes to know.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Waker};

use super::{Deadlines, Watched};

/// The largest write that is copied, in bytes: copying costs less than polling its task again.
const MOST: usize = 4 << 10;
/// How many bytes gather at the most before they are sent at once: as many stay in the cache.
const FULL: usize = 64 << 10;

/// The writes of one thread that wait for the end of its turn.
#[derive(Default)]
pub struct Outgoing {
    queue: RefCell<Queue>,
    /// The task that sends them; taken when it has been woken.
    sender: Cell<Option<Waker>>,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    writes: Vec<Write>,
}

/// What one socket sends: the bytes up to `end`, from where that before it ends.
struct Write {
    socket: Rc<Watched>,
    end: usize,
}

impl Outgoing {
    fn is_full_with(&self, data: &[u8]) -> bool {
        self.queue.borrow().bytes.len() + data.len() > FULL
    }

    /// Gives memory back; called when nothing waits to be sent, as with each tick.
    pub fn shrink(&self) {
        let mut queue = self.queue.borrow_mut();
        if queue.writes.is_empty() && queue.writes.capacity() > 1000 {
            queue.writes = Vec::new();
        }
    }

    fn push(&self, socket: &Rc<Watched>, data: &[u8]) {
        let mut queue = self.queue.borrow_mut();
        queue.bytes.extend_from_slice(data);
        let end = queue.bytes.len();
        match queue.writes.last_mut() {
            Some(last) if Rc::ptr_eq(&last.socket, socket) => last.end = end,
            _ => queue.writes.push(Write { socket: socket.clone(), end }),
        }
        socket.is_sending.set(true);
        drop(queue);
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }
}

impl Deadlines {
    /// Has `socket` send `data` at the end of the turn. `false`, and nothing done, where it is too
    /// large to be copied.
    pub(crate) fn send_soon(&self, socket: &Rc<Watched>, data: &[u8]) -> bool {
        if data.len() > MOST || data.is_empty() || socket.has_rest.get() {
            return false;
        }
        if self.outgoing.is_full_with(data) {
            self.send_outgoing();
        }
        self.outgoing.push(socket, data);
        true
    }

    /// Sends everything whenever there is something. To be polled by a task of its own.
    pub(crate) fn poll_send(&self, context: &Context<'_>) {
        self.send_outgoing();
        self.outgoing.sender.set(Some(context.waker().clone()));
    }

    /// Sends everything now.
    pub(crate) fn send_outgoing(&self) {
        if self.outgoing.queue.borrow().writes.is_empty() {
            return;
        }
        let mut queue = self.outgoing.queue.take();
        let mut begin = 0;
        for Write { socket, end } in queue.writes.drain(..) {
            self.send(socket, &queue.bytes[begin..end]);
            begin = end;
        }
        queue.bytes.clear();
        self.outgoing.queue.replace(queue);
    }

    /// Sends what `socket` has room for.
    fn send(&self, socket: Rc<Watched>, data: &[u8]) {
        match write_now(&socket, data) {
            Ok(sent) if sent == data.len() => socket.set_sent(),
            Ok(sent) => {
                socket.has_rest.set(true);
                socket.write_due.set(self.due(socket.write_limit.get()));
                tokio::task::spawn_local(send_rest(socket, data[sent..].into()));
            }
            Err(_) => socket.fail_sending(),
        }
    }
}

/// Sends the rest as the peer takes it.
async fn send_rest(socket: Rc<Watched>, mut rest: Vec<u8>) {
    while socket.io.writable().await.is_ok() {
        match write_now(&socket, &rest) {
            Ok(sent) if sent == rest.len() => return socket.set_sent(),
            Ok(sent) => drop(rest.drain(..sent)),
            Err(_) => break,
        }
    }
    socket.fail_sending();
}

/// Writes as much of `data` as there is room for; returns how many bytes.
fn write_now(socket: &Watched, data: &[u8]) -> io::Result<usize> {
    let mut sent = 0;
    while sent < data.len() {
        match socket.write(&[IoSlice::new(&data[sent..])]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => sent += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.io.forget_room();
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
