//! A connection that several requests share, for applications that multiplex.
//!
//! One task reads and writes the connection. Requests add records to the connection's queue and
//! take the application's output from their `RequestState`. FastCGI has no flow control. If a
//! client is slow and too much of its reply waits, Forebay aborts the request, so that the other
//! requests continue. If a connection carries only one request, Forebay stops reading instead, so
//! that the application waits.
//!
//! If a client disconnects, Forebay aborts its request, and does not reuse the request's number.
//! The reason is that fastcgi-mono-server4 ends a request twice if the abort arrives just when the
//! request ends. Forebay closes the connection if a record has the number of a request that is
//! neither running nor aborted.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use forebay_net::fault::{Fault, Retry};
use forebay_net::socket::Socket;
use forebay_net::thread::Thread;
use forebay_wire::fastcgi::{self, Decoder, ProtocolStatus, RecordEvent};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{FASTCGI_IDLE, INBOX, Stderr};
use crate::upstream::{BackendConnection, Outlet, SharedConnection};

/// Interval at which a connection checks if it has been idle for too long.
const PRUNING: Duration = Duration::from_millis(500);
/// Bytes in the queue above which requests wait before they add more.
const QUEUED: usize = 256 * 1024;
/// Number of aborted requests after which a connection takes no further requests.
const ABORTED: usize = 1024;

/// A FastCGI connection to an application, which carries several requests at once.
pub struct MuxConnection {
    thread: Rc<Thread>,
    name: String,
    max_streams: Cell<usize>,
    max_buffered: usize,
    /// Running requests by number. Abandoned requests stay here until the application ends them.
    requests: RefCell<HashMap<u16, Rc<RequestState>>>,
    /// Numbers of aborted requests.
    aborted: RefCell<HashSet<u16>>,
    last_id: Cell<u16>,
    /// Number of requests that have neither ended nor been abandoned.
    live: Cell<usize>,
    idle_since: Cell<Instant>,
    queue: RefCell<VecDeque<Vec<u8>>>,
    /// Bytes in the queue.
    queued: Cell<usize>,
    /// Signals that records were written.
    written: Notify,
    /// Signals that there is something to write.
    wanted: Notify,
    /// Signals that a request has begun or ended, or that its output was taken.
    changed: Notify,
    /// Wakes requests that wait until one of the thread's connections can take another request.
    capacity_changed: Rc<Notify>,
    is_broken: Cell<bool>,
}

/// Received output of one request.
#[derive(Default)]
struct RequestState {
    output: RefCell<Vec<u8>>,
    end: Cell<Option<End>>,
    ready: Notify,
    stderr: Stderr,
    /// True if the request has ended, or if Forebay has abandoned it.
    is_left: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Complete(ProtocolStatus),
    Lost,
    TooMuch,
}

impl MuxConnection {
    /// Creates a connection for at most `max_streams` requests. The connection buffers at most
    /// `max_buffered` bytes of a reply that its client has not read. [`MuxConnection::run`] then
    /// serves the connection over a socket. Notifies `capacity_changed` when the connection may be
    /// able to take another request.
    pub fn new(
        thread: Rc<Thread>,
        name: String,
        (max_streams, max_buffered): (usize, usize),
        capacity_changed: Rc<Notify>,
    ) -> Rc<Self> {
        Rc::new(Self {
            thread,
            name,
            max_streams: Cell::new(max_streams),
            max_buffered,
            requests: RefCell::default(),
            aborted: RefCell::default(),
            last_id: Cell::new(0),
            live: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            queue: RefCell::default(),
            queued: Cell::new(0),
            written: Notify::new(),
            wanted: Notify::new(),
            changed: Notify::new(),
            capacity_changed,
            is_broken: Cell::new(false),
        })
    }

    /// Reads and writes until the connection breaks or is no longer needed.
    pub async fn run(self: Rc<Self>, connection: BackendConnection) {
        let socket = &connection.socket;
        let outcome = tokio::select! {
            outcome = self.read(socket) => outcome,
            outcome = self.write(socket) => outcome,
        };
        if let Err(reason) = outcome
            && self.live.get() > 0
        {
            self.thread.errors.warn(&format!("{}: {reason}", self.name));
        }
        self.is_broken.set(true);
        for state in self.requests.borrow_mut().drain().map(|(_, state)| state) {
            state.finish(End::Lost);
        }
        self.written.notify_waiters();
        self.capacity_changed.notify_one();
    }

    async fn read(&self, socket: &Socket) -> Result<(), String> {
        let (mut decoder, mut inbox) = (Decoder::multiplexed(), Vec::with_capacity(INBOX));
        let mut pruning = tokio::time::interval(PRUNING);
        while !self.is_retired() {
            while self.is_held_back() {
                self.changed.notified().await;
            }
            if inbox.len() == inbox.capacity() {
                inbox.reserve(INBOX);
            }
            let read = async {
                match self.live.get() {
                    0 => socket.read(&mut inbox).await,
                    _ => socket.read_rest(&mut inbox).await,
                }
            };
            tokio::select! {
                read = read => match read {
                    Ok(0) => return Err("it closed the connection".into()),
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                },
                _ = pruning.tick() => continue,
            }
            let mut start = 0;
            loop {
                let step = decoder.decode(&inbox[start..]).map_err(|error| error.to_string())?;
                let Some(event) = step.event else {
                    start += step.consumed;
                    break;
                };
                self.take(step.id, event, &inbox[start..])?;
                start += step.consumed;
            }
            inbox.drain(..start);
            // Let the requests that wait for this input run before the next read.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Returns true if the connection has no requests, and is used up or has been idle for too
    /// long.
    fn is_retired(&self) -> bool {
        let is_idle = || self.idle_since.get().elapsed() > FASTCGI_IDLE;
        self.live.get() == 0 && (self.is_used_up() || is_idle())
    }

    /// Returns true if the connection takes no more requests because too many of its requests were
    /// aborted.
    fn is_used_up(&self) -> bool {
        self.aborted.borrow().len() >= ABORTED
    }

    /// Passes an event to request `id`. Aborts the request if its output exceeds `max_buffered`.
    /// Drops events of aborted requests. Fails if the connection has never had a request `id`, or
    /// if that request has ended.
    fn take(&self, id: u16, event: RecordEvent, input: &[u8]) -> Result<(), String> {
        if matches!(event, RecordEvent::Values(_)) {
            return Ok(());
        }
        let Some(state) = self.requests.borrow().get(&id).cloned() else {
            return if self.aborted.borrow().contains(&id) {
                Ok(())
            } else {
                Err(format!("record for request {id}, which is not running"))
            };
        };
        match event {
            RecordEvent::Stdout(_) if state.is_left.get() => {}
            RecordEvent::Stdout(range) => {
                let mut output = state.output.borrow_mut();
                if output.len() + range.len() > self.max_buffered {
                    state.finish(End::TooMuch);
                    self.leave(id, &state);
                } else {
                    output.extend_from_slice(&input[range]);
                    state.ready.notify_one();
                }
            }
            RecordEvent::Stderr(_) if state.is_left.get() => {}
            RecordEvent::Stderr(range) => state.stderr.log(&self.thread, &self.name, &input[range]),
            RecordEvent::End { status, .. } => {
                self.requests.borrow_mut().remove(&id);
                self.capacity_changed.notify_one();
                if !state.is_left.replace(true) {
                    self.count_out();
                }
                state.finish(End::Complete(status));
            }
            RecordEvent::Values(_) => {}
        }
        Ok(())
    }

    /// Returns true if reading must pause. This is the case if the connection has only one request,
    /// and more than `max_buffered / 2` bytes of its output wait for the client.
    fn is_held_back(&self) -> bool {
        let has_enough = |state: &Rc<RequestState>| {
            !state.is_left.get() && state.output.borrow().len() > self.max_buffered / 2
        };
        self.live.get() == 1 && self.requests.borrow().values().any(has_enough)
    }

    async fn write(&self, socket: &Socket) -> Result<(), String> {
        loop {
            let Some(bytes) = self.queue.borrow_mut().pop_front() else {
                self.wanted.notified().await;
                continue;
            };
            let written = socket.write_all(&bytes).await;
            written.map_err(|error| format!("cannot write: {error}"))?;
            self.queued.set(self.queued.get() - bytes.len());
            self.written.notify_waiters();
        }
    }

    fn put(&self, bytes: Vec<u8>) {
        self.queued.set(self.queued.get() + bytes.len());
        self.queue.borrow_mut().push_back(bytes);
        self.wanted.notify_one();
    }

    /// Abandons a request, and aborts it at the application.
    fn leave(&self, id: u16, state: &RequestState) {
        if state.is_left.replace(true) {
            return;
        }
        let mut abort = Vec::with_capacity(fastcgi::HEADER);
        fastcgi::abort(&mut abort, id);
        self.aborted.borrow_mut().insert(id);
        self.put(abort);
        self.count_out();
    }

    fn count_out(&self) {
        self.live.set(self.live.get() - 1);
        self.idle_since.set(Instant::now());
        self.changed.notify_one();
    }
}

impl SharedConnection for MuxConnection {
    type Stream = RequestStream;

    fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    fn begin(self: &Rc<Self>) -> Option<RequestStream> {
        let mut requests = self.requests.borrow_mut();
        // Use the numbers in ascending order. A late record of an ended request then does not reach
        // a new request.
        let aborted = self.aborted.borrow();
        let free = |id: &u16| *id != 0 && !requests.contains_key(id) && !aborted.contains(id);
        let is_full = requests.len() >= self.max_streams.get() || self.is_used_up();
        if is_full || self.is_broken.get() {
            return None;
        }
        let last = self.last_id.get();
        let id = (1..=u16::MAX).map(|n| last.wrapping_add(n)).find(free)?;
        self.last_id.set(id);
        let state = Rc::<RequestState>::default();
        requests.insert(id, state.clone());
        self.live.set(self.live.get() + 1);
        self.changed.notify_one();
        Some(RequestStream { connection: self.clone(), state, id, is_begun: Cell::new(false) })
    }
}

impl RequestState {
    /// Moves the output to `buffer`. Returns true if `buffer` then has output.
    fn hand_over(&self, buffer: &mut Vec<u8>) -> bool {
        let mut output = self.output.borrow_mut();
        buffer.append(&mut output);
        !buffer.is_empty()
    }

    /// Ends the request. A second call does not change the recorded end.
    fn finish(&self, end: End) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        self.ready.notify_one();
    }
}

/// A request on a shared connection. Dropping this value before the reply's end aborts the request.
pub struct RequestStream {
    connection: Rc<MuxConnection>,
    state: Rc<RequestState>,
    id: u16,
    is_begun: Cell<bool>,
}

/// A received part of a reply.
pub enum StreamEvent {
    /// Output was added to the buffer.
    Output,
    /// The application has ended the request.
    End(ProtocolStatus),
}

impl RequestStream {
    /// Returns the number of the request.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Waits until the queue has room, and adds whole records to it.
    pub async fn send(&self, records: Vec<u8>) -> Result<(), Fault> {
        while self.connection.queued.get() > QUEUED && !self.connection.is_broken.get() {
            self.connection.written.notified().await;
        }
        if self.connection.is_broken.get() {
            return Err(self.lost());
        }
        self.is_begun.set(true);
        self.connection.put(records);
        Ok(())
    }

    /// Waits for output or for the end. Moves output to `buffer`, which must be empty. Fails if the
    /// client reads too slowly, or if the connection breaks.
    pub async fn next(&self, buffer: &mut Vec<u8>) -> Result<StreamEvent, Fault> {
        loop {
            let end = self.state.end.get();
            if let Some(End::TooMuch) = end {
                return Err(Fault::us(
                    503,
                    format!(
                        "the client read its reply from {} too slowly for the max_buffered of the route",
                        self.connection.name
                    ),
                ));
            }
            if self.state.hand_over(buffer) {
                self.connection.changed.notify_one();
                return Ok(StreamEvent::Output);
            }
            match end {
                Some(End::Complete(status)) => return Ok(StreamEvent::End(status)),
                Some(_) => return Err(self.lost()),
                None => self.state.ready.notified().await,
            }
        }
    }

    /// Lowers the connection's limit to the present number of requests, because the application is
    /// overloaded.
    pub fn lower_limit(&self) {
        self.connection.max_streams.set(self.connection.requests.borrow().len().max(1));
    }

    fn lost(&self) -> Fault {
        let message =
            format!("the connection to {} broke before its reply ended", self.connection.name);
        Fault::backend(502, message).retry(Retry::IfReused)
    }
}

impl Outlet for RequestStream {
    async fn send(&self, pieces: [&[u8]; 3]) -> Result<(), Fault> {
        self.send(pieces.concat()).await
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        if self.connection.is_broken.get() || self.state.is_left.get() {
            return;
        }
        if self.is_begun.get() {
            self.connection.leave(self.id, &self.state);
        } else {
            self.connection.requests.borrow_mut().remove(&self.id);
            self.connection.capacity_changed.notify_one();
            self.state.is_left.set(true);
            self.connection.count_out();
        }
    }
}
