//! A worker as the gateway holds it (its sockets), and what everybody may see of it.

use crate::control::{REPLY, Reply};
use crate::link::{Link, Noise, Output};
use crate::prefetch::PrefetchQueue;
use forebay_process::descendants::{Usage, usage_of};
use forebay_process::{Child, keep_process, kept_processor};
use rustix::process::Pid;
use std::io;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The longest start of an environment block that is kept to show the current request.
const KEPT_OF_REQUEST: usize = 16 * 1024;

/// A worker that is idle or leased. To drop it is to end it: the process sees its control socket
/// close and exits.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<WorkerShared>,
    pub(crate) control: Link,
    pub(crate) output: Output,
    /// A second message that came with the last one.
    unheard: Option<[u8; REPLY]>,
    /// What was received behind the end of the last request: output of the one that runs now.
    pub(crate) carryover: Vec<u8>,
    /// It is to run on the processor of the thread that uses it.
    pub(crate) is_near: bool,
    /// The one processor that it may run on; `None`: on all that were found.
    pub(crate) processor: Option<usize>,
}

impl Worker {
    /// One that no thread has used yet.
    pub(crate) fn new(shared: Arc<WorkerShared>, control: Link, output: Output) -> Worker {
        let carryover = Vec::new();
        let (unheard, processor) = (None, None);
        Worker { shared, control, output, unheard, carryover, is_near: false, processor }
    }

    /// Registers the sockets with the runtime of the calling thread; and says what has come while
    /// the worker was idle.
    pub(crate) fn settle(mut self) -> io::Result<(Worker, Option<Noise>)> {
        let moved = !self.is_at_home(std::thread::current().id());
        if moved {
            self.control = self.control.moved_here()?;
        }
        self.follow_thread();
        let noise = match self.carryover.is_empty() {
            true => self.control_noise(moved).or_else(|| self.output.noise()),
            false => Some(Noise::Bytes),
        };
        Ok((self, noise))
    }

    /// What the worker says, [`Reply::Waiting`] among it.
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
                // A stream socket gives all that it has: room left over means that it is empty.
                self.control.forget_readiness();
                Heard::of(&bytes[..read])
            }
        }
    }

    /// Waits for what the worker says, as [`Worker::hear`]. An error means that the runtime is gone.
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

    /// What it has said although nothing was asked. Without `look`, no system call unless the runtime
    /// has noticed something.
    fn control_noise(&mut self, look: bool) -> Option<Noise> {
        if !look && self.unheard.is_none() && !self.control.is_noticed() {
            return None;
        }
        loop {
            match self.hear() {
                Heard::Nothing => return None,
                // Behind a request whose output was looked for before.
                Heard::Said(Reply::Waiting) => {}
                Heard::Said(_) | Heard::Nonsense(..) => return Some(Noise::Bytes),
                Heard::Closed { .. } => return Some(Noise::HungUp),
            }
        }
    }

    /// Has the process run where the calling thread does, if it is to be near. What cannot be
    /// changed stays: the worker may be another user's, or have ended.
    fn follow_thread(&mut self) {
        let wanted = kept_processor().filter(|_| self.is_near);
        if self.processor != wanted {
            let _ = keep_process(self.shared.pid, wanted);
            self.processor = wanted;
        }
    }

    pub(crate) fn is_at_home(&self, thread: ThreadId) -> bool {
        self.control.is_at_home(thread)
    }
}

/// What comes of listening to a worker.
#[derive(Debug)]
pub(crate) enum Heard {
    Nothing,
    Said(Reply),
    /// These bytes, so many of them.
    Nonsense([u8; REPLY], usize),
    /// It has closed the socket; whether it had not read all that lay there.
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

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Its interpreter is being started.
    Starting,
    /// It waits for a request.
    Idle,
    /// It runs a request.
    Busy,
    /// Its control socket was closed, or it was killed: it is about to end.
    Ending,
}

/// A worker at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Process id.
    pub pid: u32,
    /// What it does.
    pub state: WorkerState,
    /// Requests it was given since its start.
    pub requests: u64,
    /// Time since its start.
    pub age: Duration,
    /// Resident memory in bytes; 0 if it cannot be read.
    pub rss: u64,
    /// CPU time since its start, with that of what it has started and waited for.
    pub cpu: Duration,
    /// Requests that lay in its prefetch queue when it was done with the one before.
    pub prefetched: u64,
    /// Method and target of the request it runs.
    pub current_request: Option<String>,
}

/// Why a worker was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Killed {
    RequestTimeout,
    /// The client left, or the gateway gave the reply up.
    LeaseDropped,
    /// It wrote while it had no request.
    WroteWhileIdle,
    BrokeProtocol,
    DidNotStart,
    Shutdown,
}

/// What a worker has done in a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// How often it went to sleep.
    pub(crate) sleeps: u64,
    /// How many requests it found in its prefetch queue, for which it need not have slept.
    pub(crate) prefetched: u64,
}

/// What is known of one worker process, shared by pool, lease and supervisor.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    /// Counts workers of this application; process ids may come again.
    pub(crate) id: u64,
    pub(crate) pid: Pid,
    child: Child,
    pub(crate) started: Instant,
    pub(crate) prefetch: PrefetchQueue,
    /// Another request may be put into the prefetch queue, behind the one that runs.
    pub(crate) open: AtomicBool,
    /// Replaced after this many requests.
    pub(crate) limit: u64,
    pub(crate) requests: AtomicU64,
    /// It is given no further request.
    pub(crate) retired: AtomicBool,
    /// The supervisor was sent `Replace` for it: it has had `limit` requests.
    pub(crate) reported: AtomicBool,
    /// Its request has become a tunnel, which may last for as long as it carries something.
    pub(crate) tunnels: AtomicBool,
    state: AtomicU8,
    /// When the state began, in microseconds since `started`.
    since: AtomicU64,
    /// How often it had gone to sleep when that was last looked at.
    sleeps: AtomicU64,
    /// How many of its requests lay in the prefetch queue when it was done with the one before; and
    /// how many had when that was last looked at.
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

    /// Counts a request and keeps what names it.
    pub(crate) fn begin_request(&self, env_block: &[u8]) {
        let mut request = self.request.lock().unwrap_or_else(PoisonError::into_inner);
        request.clear();
        request.extend_from_slice(&env_block[..env_block.len().min(KEPT_OF_REQUEST)]);
        drop(request);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.enter(WorkerState::Busy);
    }

    /// Takes in how often it has slept in its life; what it has done since the last time.
    pub(crate) fn window(&self, sleeps: u64) -> Window {
        let before = self.sleeps.swap(sleeps, Ordering::Relaxed);
        let prefetched = self.prefetched.load(Ordering::Relaxed);
        let prefetched_before = self.prefetched_before.swap(prefetched, Ordering::Relaxed);
        Window { sleeps: sleeps.saturating_sub(before), prefetched: prefetched - prefetched_before }
    }

    /// Counts a request that it has found in its prefetch queue.
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

    /// When its state began.
    pub(crate) fn since(&self) -> Instant {
        self.started + Duration::from_micros(self.since.load(Ordering::Relaxed))
    }

    /// What its process uses.
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

    /// Ends the worker's process group at once, unless the process is gone. The first reason stays.
    pub(crate) fn kill(&self, why: Killed) {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        self.retired.store(true, Ordering::Relaxed);
        life.killed.get_or_insert(why);
        if !life.reaped {
            // Not reaped, so the number is still this process's.
            self.child.kill_group();
        }
    }

    pub(crate) fn killed(&self) -> Option<Killed> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner).killed
    }

    /// Reaps the process if it has ended. What is left in its process group is killed if it was
    /// killed itself, or ended badly, or if `sweep` says so.
    pub(crate) fn reap(&self, sweep: bool) -> io::Result<Option<ExitStatus>> {
        let mut life = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ended) = self.child.ended()? else { return Ok(None) };
        if sweep || ended.code() != Some(0) {
            // Not reaped yet, so the number is still this group's.
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
    /// Of a worker that a test plays itself: there is no process, so no signal is sent.
    pub(crate) fn without_process(id: u64, prefetch: PrefetchQueue, limit: u64) -> WorkerShared {
        let shared = WorkerShared::new(id, Pid::from_raw(i32::MAX).unwrap(), prefetch, limit);
        shared.life.lock().unwrap().reaped = true;
        shared
    }

    /// The test's worker has ended like this.
    pub(crate) fn report_end(&self, status: ExitStatus) {
        self.exit.send_replace(Some(status));
    }
}

/// Method and target from an environment block.
fn request_line(env_block: &[u8]) -> String {
    let fields: Vec<&[u8]> = env_block.split(|&byte| byte == 0).collect();
    let value = |name: &str| {
        let pair = fields.chunks_exact(2).find(|pair| pair[0] == name.as_bytes())?;
        Some(String::from_utf8_lossy(pair[1]).into_owned())
    };
    let target = value("REQUEST_URI").or_else(|| value("SCRIPT_FILENAME")).unwrap_or_default();
    format!("{} {target}", value("REQUEST_METHOD").unwrap_or_default())
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
