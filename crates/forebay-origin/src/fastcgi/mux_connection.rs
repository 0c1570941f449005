//! Requests that share a connection to an application which can tell them apart.
//!
//! One task reads and writes the connection; requests put records into its queue and take what was
//! read for them out of their state. FastCGI has no flow control: where a client is slow its request
//! is aborted at the limit on what may wait, so that the others go on. A connection that
//! carries one request alone is not read meanwhile, which holds the application back.
//!
//! A request that is left is aborted, and its number is not used again: fastcgi-mono-server4 ends a
//! request twice that is aborted just when it ends. A record for any other number that is not
//! running breaks the connection: nobody could say whose it is.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::{Fault, Retry, Socket, Thread};
use forebay_wire::fastcgi::{self, Decoder, Event, ProtocolStatus};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::stderr::Stderr;
use super::{FASTCGI_IDLE, INBOX};
use crate::upstream::{Connection, Outlet, SharedConnection};

/// How often a connection without requests is looked at.
const PRUNING: Duration = Duration::from_millis(500);
/// Bytes that wait to be written before requests have to.
const QUEUED: usize = 256 * 1024;
/// Requests that may be aborted on a connection before it takes no more.
const ABORTED: usize = 1024;

/// A connection that requests share.
pub struct MuxConnection {
    thread: Rc<Thread>,
    name: String,
    max_streams: Cell<usize>,
    max_buffered: usize,
    /// By number: what runs, and what was left and has not ended.
    requests: RefCell<HashMap<u16, Rc<RequestState>>>,
    /// The numbers of requests that were aborted.
    aborted: RefCell<HashSet<u16>>,
    last_id: Cell<u16>,
    /// Requests that somebody waits for.
    live: Cell<usize>,
    idle_since: Cell<Instant>,
    queue: RefCell<VecDeque<Vec<u8>>>,
    /// Bytes in the queue.
    queued: Cell<usize>,
    /// Something was written.
    written: Notify,
    /// There is something to write.
    wanted: Notify,
    /// A request has come, gone, or taken what there was.
    changed: Notify,
    /// Whoever waits for room on one of the thread's connections.
    room: Rc<Notify>,
    is_broken: Cell<bool>,
}

/// What was read for one request.
#[derive(Default)]
struct RequestState {
    output: RefCell<Vec<u8>>,
    end: Cell<Option<End>>,
    ready: Notify,
    stderr: Stderr,
    /// Nobody waits for it any more.
    is_left: Cell<bool>,
}

#[derive(Clone, Copy, Debug)]
enum End {
    Complete(ProtocolStatus),
    Lost,
    TooMuch,
}

impl MuxConnection {
    /// A connection of at most `max_streams` requests, each of which may have `max_buffered` bytes wait
    /// for its client. It is open once [`MuxConnection::run`] has a socket for it. `room` is told when it
    /// may have room again.
    pub fn new(
        thread: Rc<Thread>,
        name: String,
        (max_streams, max_buffered): (usize, usize),
        room: Rc<Notify>,
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
            room,
            is_broken: Cell::new(false),
        })
    }

    /// Reads and writes until the connection breaks or nobody needs it.
    pub async fn run(self: Rc<Self>, connection: Connection) {
        let socket = &connection.socket;
        let outcome = tokio::select! {
            outcome = self.read(socket) => outcome,
            outcome = self.write(socket) => outcome,
        };
        if let Err(reason) = outcome
            && self.live.get() > 0
        {
            self.thread.errors.log(&format!("{}: {reason}", self.name));
        }
        self.is_broken.set(true);
        for state in self.requests.borrow_mut().drain().map(|(_, state)| state) {
            state.finish(End::Lost);
        }
        self.written.notify_waiters();
        self.room.notify_one();
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
            // Those that wait for what came go first.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Whether nobody waits for it, and nobody will, or for long enough nobody did.
    fn is_retired(&self) -> bool {
        let is_idle = || self.idle_since.get().elapsed() > FASTCGI_IDLE;
        self.live.get() == 0 && (self.is_used_up() || is_idle())
    }

    /// Whether it takes no more requests, as so many were aborted.
    fn is_used_up(&self) -> bool {
        self.aborted.borrow().len() >= ABORTED
    }

    /// Gives one event to the request that it is for.
    fn take(&self, id: u16, event: Event, input: &[u8]) -> Result<(), String> {
        if matches!(event, Event::Values(_)) {
            return Ok(());
        }
        let Some(state) = self.requests.borrow().get(&id).cloned() else {
            return match self.aborted.borrow().contains(&id) {
                true => Ok(()),
                false => Err(format!("record for request {id}, which is not running")),
            };
        };
        match event {
            Event::Stdout(_) if state.is_left.get() => {}
            Event::Stdout(range) => {
                let mut output = state.output.borrow_mut();
                if output.len() + range.len() > self.max_buffered {
                    state.finish(End::TooMuch);
                    self.leave(id, &state);
                } else {
                    output.extend_from_slice(&input[range]);
                    state.ready.notify_one();
                }
            }
            Event::Stderr(_) if state.is_left.get() => {}
            Event::Stderr(range) => state.stderr.log(&self.thread, &self.name, &input[range]),
            Event::End { status, .. } => {
                self.requests.borrow_mut().remove(&id);
                self.room.notify_one();
                if !state.is_left.replace(true) {
                    self.count_out();
                }
                state.finish(End::Complete(status));
            }
            Event::Values(_) => {}
        }
        Ok(())
    }

    /// Whether the only request of the connection has enough to go on with.
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

    /// Nobody waits for this request any more; the application is told.
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
    type Stream = Stream;

    fn is_broken(&self) -> bool {
        self.is_broken.get()
    }

    fn begin(self: &Rc<Self>) -> Option<Stream> {
        let mut requests = self.requests.borrow_mut();
        // Numbers are used in turn, so that a late record for one that has ended is known as such.
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
        Some(Stream { connection: self.clone(), state, id, is_begun: Cell::new(false) })
    }
}

impl RequestState {
    /// Moves the output there is to `buffer`; whether there was any.
    fn hand_over(&self, buffer: &mut Vec<u8>) -> bool {
        let mut output = self.output.borrow_mut();
        buffer.append(&mut output);
        !buffer.is_empty()
    }

    /// The first end counts.
    fn finish(&self, end: End) {
        if self.end.get().is_none() {
            self.end.set(Some(end));
        }
        self.ready.notify_one();
    }
}

/// One request's place on a connection; dropping it early aborts the request.
pub struct Stream {
    connection: Rc<MuxConnection>,
    state: Rc<RequestState>,
    id: u16,
    is_begun: Cell<bool>,
}

/// What came for a request.
pub enum StreamEvent {
    /// Output was added to the buffer.
    Output,
    /// The application has ended the request.
    End(ProtocolStatus),
}

impl Stream {
    /// The number of the request.
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

    /// Waits for output, which is put into the empty `buffer`, or the end.
    pub async fn next(&self, buffer: &mut Vec<u8>) -> Result<StreamEvent, Fault> {
        loop {
            let end = self.state.end.get();
            if let Some(End::TooMuch) = end {
                return Err(Fault::us(
                    503,
                    format!(
                        "the client took its reply from {} too slowly for the max_buffered of the route",
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

    /// The application has too many requests: from now on the connection gets fewer.
    pub fn lower_limit(&self) {
        self.connection.max_streams.set(self.connection.requests.borrow().len().max(1));
    }

    fn lost(&self) -> Fault {
        let message =
            format!("the connection to {} broke before its reply ended", self.connection.name);
        Fault::backend(502, message).retry(Retry::IfReused)
    }
}

impl Outlet for Stream {
    async fn send(&self, pieces: [&[u8]; 3]) -> Result<(), Fault> {
        self.send(pieces.concat()).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.connection.is_broken.get() || self.state.is_left.get() {
            return;
        }
        if self.is_begun.get() {
            self.connection.leave(self.id, &self.state);
        } else {
            self.connection.requests.borrow_mut().remove(&self.id);
            self.connection.room.notify_one();
            self.state.is_left.set(true);
            self.connection.count_out();
        }
    }
}
