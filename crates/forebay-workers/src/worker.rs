//! A worker: its sockets, which one thread uses at a time, and its state, which all threads may
//! read.

use std::io;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use forebay_process::descendants::{Usage, usage_of};
use forebay_process::{Child, keep_process, kept_processor};
use rustix::process::Pid;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::control::{REPLY, Reply};
use crate::link::{Link, Noise, Output};
use crate::prefetch::PrefetchQueue;

/// Maximum number of bytes of an environment block that are kept, to show the current request in
/// the status.
const KEPT_OF_REQUEST: usize = 16 * 1024;

/// A worker that is idle or leased. Dropping this value closes the control socket, and the process
/// then exits.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<WorkerShared>,
    pub(crate) control: Link,
    pub(crate) output: Output,
    /// A second message that arrived together with the previous one.
    unheard: Option<[u8; REPLY]>,
    /// Bytes that arrived together with the end of the previous request. These bytes are output of
    /// the current request.
    pub(crate) carryover: Vec<u8>,
    /// True if the worker has to run on the processor of the thread that uses the worker.
    pub(crate) is_pinned: bool,
    /// The only processor on which the process may run; `None` for all processors.
    pub(crate) processor: Option<usize>,
}

impl Worker {
    /// Returns a worker that no thread has used yet.
    pub(crate) fn new(shared: Arc<WorkerShared>, control: Link, output: Output) -> Worker {
        let carryover = Vec::new();
        let (unheard, processor) = (None, None);
        Worker { shared, control, output, unheard, carryover, is_pinned: false, processor }
    }

    /// Registers the sockets with the runtime of the calling thread. An idle worker must send
    /// nothing. The second value is the kind of input that arrived in spite of this, or `None` if
    /// no input arrived. Fails if the sockets cannot be registered.
    pub(crate) fn settle(mut self) -> io::Result<(Worker, Option<Noise>)> {
        let moved = !self.is_at_home(std::thread::current().id());
        if moved {
            self.output.stop_watching();
            self.control = self.control.moved_here()?;
        }
        self.follow_thread();
        let noise = if self.carryover.is_empty() {
            self.control_noise(moved).or_else(|| self.output.noise())
        } else {
            Some(Noise::Bytes)
        };
        Ok((self, noise))
    }

    /// Reads the next message of the worker. Does not skip [`Reply::Waiting`], which most callers
    /// ignore.
    pub(crate) fn hear(&mut self) -> Heard {
        if let Some(message) = self.unheard.take() {
            return Heard::of(&message);
        }
        let mut bytes = [0; 2 * REPLY];
        match self.control.receive(&mut bytes[..]) {
            Ok(None) => Heard::Nothing,
            Ok(Some(0)) => Heard::Closed { unread: false },
            Err(_) => Heard::Closed { unread: true },
            Ok(Some(read)) if read == bytes.len() => {
                let (first, second) = bytes.split_at(REPLY);
                self.unheard = second.first_chunk().copied();
                Heard::of(first)
            }
            Ok(Some(read)) => {
                // A stream socket returns all bytes that it has. A read that does not fill `bytes`
                // has therefore emptied the socket.
                self.control.forget_readiness();
                Heard::of(&bytes[..read])
            }
        }
    }

    /// Waits for the next message, as in [`Worker::hear`]. An error means that the runtime has
    /// ended.
    pub(crate) async fn heard(&mut self) -> io::Result<Heard> {
        loop {
            match self.hear() {
                Heard::Nothing => {
                    std::future::poll_fn(|context| self.control.poll_readable(context)).await?;
                }
                heard => return Ok(heard),
            }
        }
    }

    /// Returns the kind of input that the worker sent without a request. Returns `None` if there is
    /// no such input. If `look` is false and the runtime has reported no readiness, makes no system
    /// call.
    fn control_noise(&mut self, look: bool) -> Option<Noise> {
        if !look && self.unheard.is_none() && !self.control.is_noticed() {
            return None;
        }
        loop {
            match self.hear() {
                Heard::Nothing => return None,
                // The worker sent this message after an earlier request, whose output was already
                // read.
                Heard::Said(Reply::Waiting) => {}
                Heard::Said(_) | Heard::Nonsense(..) => return Some(Noise::Bytes),
                Heard::Closed { .. } => return Some(Noise::HungUp),
            }
        }
    }

    /// Restricts a pinned worker to the calling thread's processor, and lets any other worker run
    /// on all processors. Ignores errors, because the worker may belong to another user or have
    /// ended.
    fn follow_thread(&mut self) {
        let wanted = kept_processor().filter(|_| self.is_pinned);
        if self.processor != wanted {
            let _ = keep_process(self.shared.pid, wanted);
            self.processor = wanted;
        }
    }

    pub(crate) fn is_at_home(&self, thread: ThreadId) -> bool {
        self.control.is_at_home(thread)
    }
}

/// The result of reading from a worker's control socket.
#[derive(Debug)]
pub(crate) enum Heard {
    Nothing,
    Said(Reply),
    /// Contains bytes that are no valid message, and their number.
    Nonsense([u8; REPLY], usize),
    /// The worker has closed the socket. The field `unread` is true if the worker had not read all
    /// bytes in the socket.
    Closed {
        unread: bool,
    },
}

impl Heard {
    fn of(bytes: &[u8]) -> Heard {
        let mut message = [0; REPLY];
        let len = bytes.len().min(REPLY);
        message[..len].copy_from_slice(&bytes[..len]);
        match Reply::parse(message).filter(|_| bytes.len() == REPLY) {
            Some(reply) => Heard::Said(reply),
            None => Heard::Nonsense(message, len),
        }
    }
}

/// The state of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// The interpreter of the worker starts.
    Starting,
    /// The worker waits for a request.
    Idle,
    /// The worker runs a request.
    Busy,
    /// The control socket was closed, or the worker was killed. The worker ends soon.
    Ending,
}

/// The status of a worker at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Process id.
    pub pid: u32,
    /// State of the worker.
    pub state: WorkerState,
    /// Number of requests since the start of the worker.
    pub requests: u64,
    /// Time since the start of the worker.
    pub age: Duration,
    /// Resident memory in bytes; 0 if it cannot be read.
    pub rss: u64,
    /// CPU time since the start of the worker, including the children that it has waited for.
    pub cpu: Duration,
    /// Number of requests that were already in the prefetch queue when the worker finished the
    /// previous request.
    pub prefetched: u64,
    /// Method and target of the current request.
    pub current_request: Option<String>,
}

/// The reason why a worker was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Killed {
    RequestTimeout,
    /// The client disconnected, or the gateway dropped the reply.
    LeaseDropped,
    /// The worker wrote while it had no request.
    WroteWhileIdle,
    BrokeProtocol,
    DidNotStart,
    Shutdown,
}

/// Activity of a worker in a period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Number of times that the worker went to sleep.
    pub(crate) sleeps: u64,
    /// Number of requests that the worker found in its prefetch queue, so that it did not have to
    /// sleep before them.
    pub(crate) prefetched: u64,
}

/// Facts about one worker process, shared by pool, lease and supervisor.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    /// Number of this worker in its application. Unlike a process id, it is never reused.
    pub(crate) id: u64,
    pub(crate) pid: Pid,
    child: Child,
    pub(crate) started: Instant,
    pub(crate) prefetch: PrefetchQueue,
    /// True if requests may be put into the prefetch queue, to run after the current request.
    pub(crate) open: AtomicBool,
    /// The worker is replaced after this many requests.
    pub(crate) limit: u64,
    pub(crate) requests: AtomicU64,
    /// True if the worker gets no further request.
    pub(crate) retired: AtomicBool,
    /// True if the supervisor was sent `Replace` for this worker, after `limit` requests.
    pub(crate) reported: AtomicBool,
    /// True if the worker's request has become a tunnel, which has no time limit.
    pub(crate) tunnels: AtomicBool,
    state: AtomicU8,
    /// Start of the current state, in microseconds since `started`.
    since: AtomicU64,
    /// Number of sleeps at the end of the last window.
    sleeps: AtomicU64,
    /// Number of requests that were in the prefetch queue when the worker finished the previous
    /// one. `prefetched_before` is this number at the end of the last window.
    prefetched: AtomicU64,
    prefetched_before: AtomicU64,
    request: Mutex<Vec<u8>>,
    life: Mutex<Life>,
    exit: watch::Sender<Option<ExitStatus>>,
}

#[derive(Debug, Default)]
struct Life {
    reaped: bool,
    killed: Option<Killed>,
}

impl WorkerShared {
    pub(crate) fn new(
        id: u64,
        child: impl Into<Child>,
        prefetch: PrefetchQueue,
        limit: u64,
    ) -> WorkerShared {
        let child = child.into();
        WorkerShared {
            id,
            pid: child.pid(),
            child,
            started: Instant::now(),
            prefetch,
            open: AtomicBool::new(false),
            limit,
            requests: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            reported: AtomicBool::new(false),
            tunnels: AtomicBool::new(false),
            state: AtomicU8::new(WorkerState::Starting as u8),
            since: AtomicU64::new(0),
            sleeps: AtomicU64::new(0),
            prefetched: AtomicU64::new(0),
            prefetched_before: AtomicU64::new(0),
            request: Mutex::new(Vec::new()),
            life: Mutex::new(Life::default()),
            exit: watch::Sender::new(None),
        }
    }

    pub(crate) fn enter(&self, state: WorkerState) {
        self.since.store(self.started.elapsed().as_micros() as u64, Ordering::Relaxed);
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Counts a request and keeps the start of its environment.
    pub(crate) fn begin_request(&self, env_block: &[u8]) {
        let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        request.clear();
        request.extend_from_slice(&env_block[..env_block.len().min(KEPT_OF_REQUEST)]);
        drop(request);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.enter(WorkerState::Busy);
    }

    /// Returns the number of sleeps, and of requests from the prefetch queue, since the last call.
    /// `sleeps` is the number of sleeps of the process since its start.
    pub(crate) fn window(&self, sleeps: u64) -> Window {
        let before = self.sleeps.swap(sleeps, Ordering::Relaxed);
        let prefetched = self.prefetched.load(Ordering::Relaxed);
        let prefetched_before = self.prefetched_before.swap(prefetched, Ordering::Relaxed);
        Window { sleeps: sleeps.saturating_sub(before), prefetched: prefetched - prefetched_before }
    }

    /// Counts a request that the worker has found in its prefetch queue.
    pub(crate) fn count_prefetched(&self) {
        self.prefetched.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn state(&self) -> WorkerState {
        match self.state.load(Ordering::Relaxed) {
            0 => WorkerState::Starting,
            1 => WorkerState::Idle,
            2 => WorkerState::Busy,
            _ => WorkerState::Ending,
        }
    }

    /// Returns the time at which the current state began.
    pub(crate) fn since(&self) -> Instant {
        self.started + Duration::from_micros(self.since.load(Ordering::Relaxed))
    }

    /// Returns the memory and CPU time of the process.
    pub(crate) fn usage(&self) -> Usage {
        usage_of(self.pid.as_raw_pid())
    }

    pub(crate) fn status(&self) -> WorkerStatus {
        let state = self.state();
        let request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        let Usage { rss, cpu } = self.usage();
        WorkerStatus {
            pid: self.pid.as_raw_nonzero().get() as u32,
            state,
            requests: self.requests.load(Ordering::Relaxed),
            age: self.started.elapsed(),
            rss,
            cpu,
            prefetched: self.prefetched.load(Ordering::Relaxed),
            current_request: (state == WorkerState::Busy).then(|| request_line(&request)),
        }
    }

    /// Kills the worker's process group. Kills nothing if the process was reaped. If called more
    /// than once, keeps the first reason.
    pub(crate) fn kill(&self, why: Killed) {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        self.retired.store(true, Ordering::Relaxed);
        life.killed.get_or_insert(why);
        if !life.reaped {
            // The process is not reaped yet, so no other process has its id.
            self.child.kill_group();
        }
    }

    /// Asks the worker's process group to end, with SIGTERM. The worker gets no further request.
    pub(crate) fn terminate(&self) {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        self.retired.store(true, Ordering::Relaxed);
        life.killed.get_or_insert(Killed::LeaseDropped);
        if !life.reaped {
            self.child.terminate_group();
        }
    }

    pub(crate) fn killed(&self) -> Option<Killed> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner).killed
    }

    /// Reaps the process if it has ended, and returns its exit status. Returns `None` if it still
    /// runs. Kills the rest of its process group if `sweep` is true, or if the exit code of the
    /// process is not 0.
    pub(crate) fn reap(&self, sweep: bool) -> io::Result<Option<ExitStatus>> {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ended) = self.child.ended()? else { return Ok(None) };
        if sweep || ended.code() != Some(0) {
            // The process is not reaped yet, so its id still belongs to this group.
            self.child.kill_group();
        }
        let status = self.child.reap()?;
        life.reaped = status.is_some();
        self.exit.send_replace(status);
        Ok(status)
    }

    /// Waits until the process has been reaped.
    pub(crate) async fn exited(&self) -> ExitStatus {
        let mut exit = self.exit.subscribe();
        let status = exit.wait_for(Option::is_some).await;
        status.ok().and_then(|status| *status).expect("the sender lives as long as self")
    }
}

#[cfg(test)]
impl WorkerShared {
    /// Returns the state of a simulated worker. The worker has no process, so it gets no signals.
    pub(crate) fn without_process(id: u64, prefetch: PrefetchQueue, limit: u64) -> WorkerShared {
        let shared = WorkerShared::new(id, Pid::from_raw(i32::MAX).unwrap(), prefetch, limit);
        shared.life.lock().unwrap().reaped = true;
        shared
    }

    /// Reports that the test's worker has ended with this status.
    pub(crate) fn report_end(&self, status: ExitStatus) {
        self.exit.send_replace(Some(status));
    }
}

/// Returns method and target from an environment block.
fn request_line(env_block: &[u8]) -> String {
    let fields: Vec<&[u8]> = env_block.split(|&byte| byte == 0).collect();
    let value = |name: &str| {
        let pair = fields.chunks_exact(2).find(|pair| pair[0] == name.as_bytes())?;
        Some(String::from_utf8_lossy(pair[1]).into_owned())
    };
    let target = value("REQUEST_URI").or_else(|| value("SCRIPT_FILENAME")).unwrap_or_default();
    format!("{} {target}", value("REQUEST_METHOD").unwrap_or_default())
}

/// The state of an application at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// The processes, the oldest first.
    pub workers: Vec<WorkerStatus>,
    /// Requests that wait for a process.
    pub waiting: usize,
    /// Processes started so far, including the first ones.
    pub starts: u64,
    /// Processes that crashed. A crash is an end that was not requested.
    pub crashes: u64,
    /// Set if processes end right after their start. Contains the reason and their last output.
    pub crash_loop: Option<String>,
    /// A message about a configured setting that this machine does not support.
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_line_is_found_whatever_the_order() {
        let block = b"QUERY_STRING\0\0REQUEST_URI\0/a?b\0REQUEST_METHOD\0POST\0";
        assert_eq!(request_line(block), "POST /a?b");
        assert_eq!(request_line(b"SCRIPT_FILENAME\0/x.pl\0cut"), " /x.pl");
    }
}
