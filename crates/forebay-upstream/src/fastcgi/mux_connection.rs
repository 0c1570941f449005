//! A connection that several requests share, for applications that multiplex.
//!
//! One task reads and writes the connection. Requests add records to its queue and take their input
//! from their state. FastCGI has no flow control: if a client is slow and too much of its reply
//! waits, its request is aborted, so that the others continue. If a connection carries one request
//! alone, Forebay stops reading instead, which slows the application down.
//!
//! An abandoned request is aborted, and its number is not reused: fastcgi-mono-server4 ends a
//! request twice if it is aborted just when it ends. A record for a request that is neither running
//! nor aborted breaks the connection, because no request can take the record.

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

use super::stderr::Stderr;
use super::{FASTCGI_IDLE, INBOX};
use crate::upstream::{BackendConnection, Outlet, SharedConnection};

/// Interval of idle checks.
const PRUNING: Duration = Duration::from_millis(500);
/// Bytes in the queue above which requests wait.
const QUEUED: usize = 256 * 1024;
/// Number of aborted requests after which a connection takes no more.
const ABORTED: usize = 1024;

/// A connection that requests share.
pub struct MuxConnection {
    thread: Rc<Thread>,
    name: String,
    max_streams: Cell<usize>,
    max_buffered: usize,
    /// By number: running requests, and abandoned ones that have not ended.
    requests: RefCell<HashMap<u16, Rc<RequestState>>>,
    /// Numbers of aborted requests.
    aborted: RefCell<HashSet<u16>>,
    last_id: Cell<u16>,
    /// Number of requests that still have a reader.
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
    /// Wakes requests that wait for room on one of the thread's connections.
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
    /// True if the request was abandoned.
    is_left: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Complete(ProtocolStatus),
    Lost,
    TooMuch,
}

impl MuxConnection {
    /// Creates a connection for at most `max_streams` requests, each with at most `max_buffered`
    /// bytes that wait for its client. [`MuxConnection::run`] opens it with a socket. It
    /// notifies `capacity_changed` when it may have room again.
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
            tokio::select! {
                read = socket.read(&mut inbox) => match read {
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
            if self.live.get() > 0 {
                socket.acknowledge();
            }
            // Requests that wait for this input run first.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Returns true if the connection is used up or idle for too long, and has no requests.
    fn is_retired(&self) -> bool {
        let is_idle = || self.idle_since.get().elapsed() > FASTCGI_IDLE;
        self.live.get() == 0 && (self.is_used_up() || is_idle())
    }

    /// Returns true if the connection takes no more requests because too many were aborted.
    fn is_used_up(&self) -> bool {
        self.aborted.borrow().len() >= ABORTED
    }

    /// Passes one event to its request.
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

    /// Returns true if the only request of the connection has enough output that waits for its
    /// client.
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
        // Numbers are used in turn, so that a late record of an ended request has no other owner.
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
    /// Moves the output to `buffer`. Returns true if there was any.
    fn hand_over(&self, buffer: &mut Vec<u8>) -> bool {
        let mut output = self.output.borrow_mut();
        buffer.append(&mut output);
        !buffer.is_empty()
    }

    /// Ends the request. Only the first end counts.
    fn finish(&self, end: End) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        self.ready.notify_one();
    }
}

/// A request's share of a connection. Dropping it early aborts the request.
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

    /// Sends whole records, once there is room in the queue.
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

    /// Waits for output, which it moves to the empty `buffer`, or for the end.
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

    /// Lowers the connection's limit of requests: the application has too many.
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
