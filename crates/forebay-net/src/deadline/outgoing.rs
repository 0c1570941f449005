//! Queues small writes of one thread, and sends them after all its ready tasks have run.
//!
//! Reading has priority over writing. A task copies a small request or reply to the queue, and
//! continues with its next wait. When all ready tasks have run, one task sends the queue. The
//! writes then wake a sleeping peer less often, so a proxied request needs 4 to 6 % less CPU time.
//!
//! If the kernel's buffer is full, a separate task writes the rest within the socket's time limit.
//! Until the rest is written, nothing else is written to the socket (`Watched::has_rest`). A failed
//! write shuts down the socket, so that its reader notices.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Waker};

use super::{Deadlines, Watched};

/// Maximum size in bytes of a write that is copied to the queue.
// Up to this size, copying costs less than polling the task again.
const MOST: usize = 4 << 10;
/// Maximum bytes in the queue. If a write would exceed this, the queue is sent first.
// A queue of this size stays in the CPU cache.
const FULL: usize = 64 << 10;

/// The queue of one thread.
#[derive(Default)]
pub struct Outgoing {
    queue: RefCell<Queue>,
    /// Waker of the sending task. `None` after the task was woken.
    sender: Cell<Option<Waker>>,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    writes: Vec<Write>,
}

/// A queued write of one socket. Its bytes are between the end of the previous write and `end`.
struct Write {
    socket: Rc<Watched>,
    end: usize,
}

impl Outgoing {
    fn is_full_with(&self, data: &[u8]) -> bool {
        self.queue.borrow().bytes.len() + data.len() > FULL
    }

    /// Releases memory if nothing waits to be sent. Called at each tick.
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
    /// Queues `data` for `socket`. Returns false and queues nothing if `data` is empty or too
    /// large, or if the rest of an earlier write is unsent.
    pub fn send_soon(&self, socket: &Rc<Watched>, data: &[u8]) -> bool {
        if data.len() > MOST || data.is_empty() || socket.has_rest.get() {
            return false;
        }
        if self.outgoing.is_full_with(data) {
            self.send_outgoing();
        }
        self.outgoing.push(socket, data);
        true
    }

    /// Sends the queue. Registers the calling task, so that the next queued write wakes it. Poll
    /// this in a separate task.
    pub fn poll_send(&self, context: &Context<'_>) {
        self.send_outgoing();
        self.outgoing.sender.set(Some(context.waker().clone()));
    }

    /// Sends the queue now.
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

    /// Sends as many bytes as `socket` has room for. A new task sends the rest. If the write fails,
    /// shuts down the socket.
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

/// Sends the rest of a write as the peer accepts it.
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

/// Writes as much of `data` as the send buffer accepts. Returns the number of written bytes, or 0
/// if the buffer is full.
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
