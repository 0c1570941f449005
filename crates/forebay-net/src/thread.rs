//! State that the connections of one thread share.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use forebay_conf::{Level, Limits, Timeouts};
use forebay_wire::http1;
use rustix::io::Errno;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use super::sys;
use crate::counters::Counters;
use crate::deadline::Deadlines;
use crate::free_list::{FreeList, FreeLists};
use crate::head::{Request, RequestTrace};
use crate::limit::Limit;
use crate::log::{AccessLog, ConnectionEntry, ErrorLog, LogEntry};
use crate::memory::{Destination, Network};
use crate::pool::IdleRoom;
use crate::pressure::Oldest;
use crate::socket::{BUFFER, Socket};
use crate::sys::recycled::Blocks;
use crate::timing::Steps;

/// Settings of a thread that a reload may change.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time limits.
    pub timeouts: Timeouts,
    /// Limits on sizes and numbers.
    pub limits: Limits,
    /// True if the steps of each request are timed.
    pub timing: bool,
    /// True if somebody reads the times of requests, even without an access log.
    pub is_timed: bool,
    /// `Host` names that the admin listener accepts, in lower case.
    pub admin_hosts: Vec<String>,
    /// Token that a client of the admin listener needs to restart applications.
    pub admin_token: Option<String>,
    /// Directory for spooled bodies. `None` means the system's temporary directory.
    pub spool_dir: Option<PathBuf>,
}

impl Settings {
    /// Returns the directory for spooled bodies.
    pub fn spool_dir(&self) -> PathBuf {
        self.spool_dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Returns the limits on the head of a message.
    pub fn head_limits(&self) -> http1::Http1Limits {
        let Limits { head_size, fields, target, get_body, .. } = self.limits;
        http1::Http1Limits { head: head_size, fields, target, get_body }
    }

    /// Returns the limits of the heads that backends and applications send.
    pub fn reply_limits(&self) -> http1::Http1Limits {
        http1::Http1Limits::of_replies(self.limits.reply_head_size, self.limits.reply_fields)
    }
}

/// Measurements of each request.
#[derive(Clone, Copy)]
struct Measured {
    /// True if the steps are timed, for any purpose.
    steps: bool,
    /// True if timed steps are counted, and sent in `Server-Timing`.
    reports_steps: bool,
    /// True if requests may be traced.
    traces: bool,
    /// True if durations are measured even without an access log.
    is_timed: bool,
}

impl Measured {
    fn of(settings: &Settings, log: &AccessLog) -> Self {
        let steps = settings.timing || log.needs_steps();
        let (is_timed, traces) = (settings.is_timed, log.tracer().is_some());
        Self { steps, reports_steps: settings.timing, traces, is_timed }
    }
}

/// The context of one serving thread. All tasks of the thread share it.
pub struct Thread {
    settings: RefCell<Rc<Settings>>,
    /// The error log.
    pub errors: ErrorLog,
    /// The deadlines of this thread's sockets.
    pub deadlines: Rc<Deadlines>,
    log: RefCell<AccessLog>,
    pub counters: Arc<Counters>,
    pub load: Arc<crate::listen::Loads>,
    pub index: usize,
    measured: Cell<Measured>,
    last_warning: Cell<u64>,
    stopping: Cell<bool>,
    ending: Cell<bool>,
    /// Notified when the thread begins to stop or to end, or its sites change.
    pub changed: Notify,
    /// The single permit for the costly step of a TLS handshake.
    handshakes: Semaphore,
    /// Network of the backends, if the backends are in memory (tests).
    pub network: Option<Rc<Network>>,
    free_lists: FreeLists,
    buffers: Rc<FreeList<Vec<u8>>>,
    /// Memory for the futures of requests.
    pub blocks: Rc<Blocks>,
    /// Limit on idle connections to backends.
    pub idle_room: Rc<IdleRoom>,
}

/// Permit for the costly step of one handshake.
pub struct HandshakePermit<'a>(Option<SemaphorePermit<'a>>);

impl HandshakePermit<'_> {
    /// Lets other tasks of the thread run, then releases the permit for the next handshake.
    pub async fn end(self) {
        tokio::task::yield_now().await;
        drop(self.0);
    }
}

impl Thread {
    pub fn new(
        settings: Settings,
        errors: ErrorLog,
        log: AccessLog,
        load: Arc<crate::listen::Loads>,
        index: usize,
        counters: Arc<Counters>,
    ) -> Self {
        let measured = Cell::new(Measured::of(&settings, &log));
        let idle_room = IdleRoom::of_descriptors(load.threads());
        let free_lists = FreeLists::default();
        let (buffers, blocks) = (free_lists.add(), free_lists.add());
        Self {
            settings: RefCell::new(Rc::new(settings)),
            errors,
            deadlines: Rc::default(),
            log: RefCell::new(log),
            counters,
            load,
            index,
            measured,
            last_warning: Cell::new(0),
            stopping: Cell::new(false),
            ending: Cell::new(false),
            changed: Notify::new(),
            handshakes: Semaphore::new(1),
            network: None,
            free_lists,
            buffers,
            blocks,
            idle_room,
        }
    }

    /// Returns the current settings, which a reload may change.
    pub fn settings(&self) -> Rc<Settings> {
        self.settings.borrow().clone()
    }

    /// Replaces the settings and the access logs.
    pub fn adopt_settings(&self, settings: Settings, log: AccessLog) {
        self.measured.set(Measured::of(&settings, &log));
        *self.settings.borrow_mut() = Rc::new(settings);
        self.log.borrow_mut().replace(log);
    }

    /// Returns the seconds since 1970, as of the last tick.
    pub fn second(&self) -> u64 {
        self.deadlines.clock.second()
    }

    /// Connects to a TCP address. If no descriptor is free, closes idle connections to backends and
    /// retries once.
    pub async fn connect_tcp(&self, address: SocketAddr) -> io::Result<Socket> {
        self.make_room(async || match &self.network {
            None => Socket::connect_tcp(address, &self.deadlines).await,
            Some(network) => self.connect_memory(network, Destination::Tcp(address)).await,
        })
        .await
    }

    /// Connects to a Unix socket. Frees descriptors as [`Thread::connect_tcp`] does.
    pub async fn connect_unix(&self, path: &Path) -> io::Result<Socket> {
        self.make_room(async || match &self.network {
            None => Socket::connect_unix(path, &self.deadlines).await,
            Some(network) => self.connect_memory(network, Destination::Unix(path.into())).await,
        })
        .await
    }

    /// Calls `connect`. If no descriptor was free and idle connections could be closed, calls
    /// `connect` once more.
    async fn make_room(&self, connect: impl AsyncFn() -> io::Result<Socket>) -> io::Result<Socket> {
        let mut has_freed = false;
        let outcome = loop {
            match connect().await {
                Err(error) if !has_freed && self.frees_descriptors(&error) => has_freed = true,
                outcome => break outcome,
            }
        };
        if has_freed {
            self.warn_freed();
        }
        outcome
    }

    /// Closes idle connections to backends if `error` means that descriptors have run out. Returns
    /// true if at least one connection was closed.
    ///
    /// The caller must first use the freed descriptor, and then call [`Thread::warn_freed`]. In the
    /// other order, the log thread could take the descriptor, because it opens the time zone file.
    pub fn frees_descriptors(&self, error: &io::Error) -> bool {
        let errno = Errno::from_io_error(error);
        matches!(errno, Some(Errno::MFILE | Errno::NFILE)) && self.idle_room.close_some()
    }

    /// Logs that idle connections were closed.
    pub fn warn_freed(&self) {
        self.log_limited(
            Level::Warn,
            "too many open files: idle connections to backends are closed for others; raise the \
             limit on open files (ulimit -n, LimitNOFILE of systemd)",
        );
    }

    async fn connect_memory(&self, network: &Network, to: Destination) -> io::Result<Socket> {
        Ok(Socket::memory(network.connect(&to).await?, &self.deadlines))
    }

    /// Waits until no other handshake of the thread performs its costly step.
    pub async fn handshake_turn(&self) -> HandshakePermit<'_> {
        HandshakePermit(self.handshakes.acquire().await.ok())
    }

    /// Returns true if the server stops, so that replies should close their connections.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Returns true if the steps of each request are timed.
    pub fn is_timing(&self) -> bool {
        self.measured.get().steps
    }

    /// Returns true if requests may be traced.
    pub fn is_tracing(&self) -> bool {
        self.measured.get().traces
    }

    /// Begins the trace of a request, if it is to be recorded.
    #[cold]
    pub fn begin_trace(&self, request: &mut Request) {
        request.trace = self.log.borrow().tracer().and_then(|tracer| tracer.begin(request));
    }

    /// Exports the spans of a finished request.
    pub fn end_trace(&self, trace: &RequestTrace, entry: &LogEntry<'_>, steps: &Steps) {
        if let Some(tracer) = self.log.borrow().tracer() {
            tracer.end(trace, entry, steps);
        }
    }

    /// Returns true if timed steps are counted, and sent in `Server-Timing`.
    pub fn reports_steps(&self) -> bool {
        self.measured.get().reports_steps
    }

    /// Logs a message that clients can cause at will. The thread logs at most one such message per
    /// second.
    pub fn log_limited(&self, level: Level, line: &str) {
        if self.may_log_limited(level) {
            self.errors.log(level, line);
        }
    }

    /// Like [`Thread::log_limited`], but builds the message only if it is logged.
    pub fn log_limited_with(&self, level: Level, line: impl FnOnce() -> String) {
        if self.may_log_limited(level) {
            self.errors.log(level, &line());
        }
    }

    /// Returns true if a limited message may be logged now. No other limited message may then be
    /// logged in the same second.
    fn may_log_limited(&self, level: Level) -> bool {
        let now = self.second();
        self.errors.is_logged(level) && self.last_warning.replace(now) != now
    }

    /// Returns the current time as the start time of a request, if durations are measured.
    pub fn start(&self) -> Option<Instant> {
        (self.measured.get().is_timed || self.log.borrow().is_on()).then(Instant::now)
    }

    /// Writes a line to the access log with this number.
    pub fn log_request(&self, number: usize, entry: &LogEntry<'_>) {
        self.log.borrow().record(number, entry);
    }

    /// Writes the line of a finished connection of a `[[stream]]` to the access log with this
    /// number.
    pub fn log_connection(&self, number: usize, entry: &ConnectionEntry<'_>) {
        self.log.borrow().record_connection(number, entry);
    }

    /// Ends the connections of `[[stream]]` listeners, because the grace period is over.
    pub fn end(&self) {
        self.ending.set(true);
        self.changed.notify_waiters();
    }

    /// Waits for [`Self::end`].
    pub async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.ending.get() {
                return;
            }
            changed.await;
        }
    }

    pub fn stop(&self) {
        self.stopping.set(true);
        self.changed.notify_waiters();
        self.deadlines.close_idle();
    }

    /// Works as [`Self::stop`], but lets idle connections of clients carry one more request. Closes
    /// idle connections to backends, because a backend with few processes, such as php-fpm, serves
    /// only as many connections, and the successor needs them.
    pub fn leave(&self) {
        self.idle_room.close();
        self.deadlines.set_patient();
        self.stop();
    }

    /// Closes the connection that has been idle longest, or asks its thread to close it. Returns
    /// false if no such connection is known.
    pub fn close_for_another(&self) -> bool {
        let pressure = &self.load.pressure;
        pressure.publish(self.index, self.deadlines.oldest());
        match pressure.oldest(|thread| self.load.connections(thread) > 0) {
            Oldest::On(thread) if thread != self.index => {
                self.load.ask_for_room(thread);
                true
            }
            Oldest::On(_) => self.close_oldest(),
            Oldest::Unknown => false,
            Oldest::Nowhere => {
                pressure.set_stuck();
                false
            }
        }
    }

    /// Closes the connection of this thread that has been idle longest. Returns false if no
    /// connection may be closed.
    pub fn close_oldest(&self) -> bool {
        let is_closed = self.deadlines.evict();
        if is_closed {
            self.counters.count_limit(Limit::ClosedForOthers);
            self.load.pressure.count_closed();
        }
        self.load.pressure.publish(self.index, self.deadlines.oldest());
        is_closed
    }

    /// Returns free memory to the system after a burst of connections.
    fn give_memory_back(&self, freed: usize) {
        let load = &self.load;
        let is_over = load.heap.is_over(load.all_connections(), freed);
        // A gateway in memory shares its process with tests, so it returns no memory. Use a thread
        // for blocking work, because returning 100 MB takes milliseconds.
        if is_over && self.network.is_none() {
            tokio::task::spawn_blocking(sys::trim_heap);
        }
    }

    fn watch_pressure(&self) {
        let pressure = &self.load.pressure;
        if self.load.is_crowded() {
            pressure.publish(self.index, self.deadlines.oldest());
        } else {
            pressure.forget(self.index);
        }
        if let Some(line) = pressure.line(self.load.most()) {
            self.errors.warn(&line);
        }
    }

    pub fn tick(&self) {
        self.deadlines.tick();
        self.watch_pressure();
        self.load.heap.see(self.load.all_connections());
        if let Some(freed) = self.free_lists.tick() {
            self.deadlines.shrink();
            self.give_memory_back(freed);
        }
        self.hand_over_log();
    }

    /// Returns true if ticks have no work until a connection arrives.
    pub fn is_idle(&self) -> bool {
        // Check the number of connections, because `deadlines` does not contain QUIC connections.
        self.load.connections(self.index) == 0
            && self.deadlines.is_empty()
            && self.free_lists.are_empty()
            && !self.load.heap.was_used()
            && self.log.borrow().is_empty()
    }

    /// Passes the collected log lines to the writer.
    pub fn hand_over_log(&self) {
        self.log.borrow().hand_over();
    }

    /// Creates a list of reusable objects of this thread.
    pub fn free_list<T: 'static>(&self) -> Rc<FreeList<T>> {
        self.free_lists.add()
    }

    /// Takes an empty buffer of about 16 KiB. Return it with [`Self::keep_buffer`].
    ///
    /// Take a buffer only when there are bytes to store. The most recently used buffer is then in
    /// the CPU cache.
    pub fn take_buffer(&self) -> Vec<u8> {
        self.buffers.take().unwrap_or_else(|| Vec::with_capacity(BUFFER))
    }

    /// Returns a buffer of [`Self::take_buffer`] to the thread.
    pub fn keep_buffer(&self, mut buffer: Vec<u8>) {
        if (BUFFER..=4 * BUFFER).contains(&buffer.capacity()) {
            buffer.clear();
            self.buffers.give(buffer);
        }
    }
}
