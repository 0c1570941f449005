//! The thread that starts the workers of one application, watches them and replaces them.
//!
//! One thread starts them all, because the kernel kills a worker when the thread that started it
//! ends. It takes no part in a request: the gateway's threads pass workers among themselves
//! through the [`Pool`] and tell the supervisor only what needs a process started or ended.

use crate::backoff::Backoff;
use crate::control::{REPLY, Reply};
use crate::error::{Exit, StartError};
use crate::link::Link;
use crate::pool::Pool;
use crate::process::{self, Process};
use crate::spec::{AppSpec, Kind, Workers};
use crate::stderr::{Log, Stderr};
use crate::sys;
use crate::worker::{Facts, Killed, Worker, WorkerState};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

/// A worker that has not said that it is ready by then is killed.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// A worker that was told to end and has not by then is killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// A worker that ends sooner than this, without a request, counts as a failed start.
const EARLY: Duration = Duration::from_secs(1);
/// How often memory is looked at.
const MEMORY_INTERVAL: Duration = Duration::from_secs(1);

/// What the gateway's threads tell the supervisor.
pub(crate) enum Command {
    /// A request waits and there may be more workers.
    RequestWaits,
    /// This worker has run as many requests as it may.
    Replace(u64),
    /// End everything.
    Shutdown { grace: Duration, done: oneshot::Sender<()> },
}

/// Starts the thread, and returns when the first worker is ready.
pub(crate) fn start(
    spec: AppSpec,
    pool: Arc<Pool>,
    log: Log,
) -> Result<(mpsc::UnboundedSender<Command>, JoinHandle<()>), StartError> {
    check(&spec)?;
    let fault = |error: io::Error| StartError(format!("app {}: {error}", spec.name));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(fault)?;
    let (commands, inbox) = mpsc::unbounded_channel();
    let (first, first_ready) = std::sync::mpsc::channel();
    let name = spec.name.clone();
    let thread = std::thread::Builder::new()
        .name(format!("app {name}"))
        .spawn(move || {
            let supervisor = Supervisor::new(spec, pool, log, first);
            LocalSet::new().block_on(&runtime, supervisor.run(inbox));
        })
        .map_err(|error| StartError(format!("app {name}: cannot start a thread: {error}")))?;
    match first_ready.recv() {
        Ok(Ok(())) => Ok((commands, thread)),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => Err(StartError(format!("app {name}: the supervisor thread ended"))),
    }
}

fn check(spec: &AppSpec) -> Result<(), StartError> {
    let Kind::PerlCgi { dir, .. } = &spec.kind;
    if !dir.is_dir() {
        return Err(StartError(format!(
            "app {}: {} is no directory; set dir to the one with the scripts",
            spec.name,
            dir.display()
        )));
    }
    if spec.workers.max == 0 || spec.workers.min > spec.workers.max {
        return Err(StartError(format!(
            "app {}: workers {} to {}: the maximum must be at least 1 and not below the minimum",
            spec.name, spec.workers.min, spec.workers.max
        )));
    }
    Ok(())
}

struct Supervisor {
    spec: Rc<AppSpec>,
    pool: Arc<Pool>,
    log: Log,
    /// To be told when the first worker is ready.
    first: Option<std::sync::mpsc::Sender<Result<(), StartError>>>,
    events: mpsc::UnboundedSender<Event>,
    event_inbox: mpsc::UnboundedReceiver<Event>,
    entries: HashMap<u64, Entry>,
    last_id: u64,
    backoff: Backoff,
    /// No start before this.
    not_before: Option<Instant>,
    closing: Option<Closing>,
}

struct Entry {
    facts: Arc<Facts>,
    stderr: Rc<Stderr>,
    /// The worker that ends when this one is ready.
    replaces: Option<u64>,
}

struct Closing {
    until: Instant,
    done: Vec<oneshot::Sender<()>>,
}

enum Event {
    Ready(Worker),
    /// The process has ended and was reaped.
    Ended(u64, ExitStatus),
}

impl Supervisor {
    fn new(
        spec: AppSpec,
        pool: Arc<Pool>,
        log: Log,
        first: std::sync::mpsc::Sender<Result<(), StartError>>,
    ) -> Supervisor {
        let (events, event_inbox) = mpsc::unbounded_channel();
        Supervisor {
            spec: Rc::new(spec),
            pool,
            log,
            first: Some(first),
            events,
            event_inbox,
            entries: HashMap::new(),
            last_id: 0,
            backoff: Backoff::default(),
            not_before: None,
            closing: None,
        }
    }

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        let mut orphaned = false;
        self.start_worker(None);
        loop {
            if self.closing.is_some() && self.entries.is_empty() {
                break;
            }
            let wake = tokio::time::Instant::from_std(self.next_check());
            tokio::select! {
                command = inbox.recv(), if !orphaned => match command {
                    Some(command) => self.obey(command),
                    None => {
                        orphaned = true;
                        self.pool.close();
                        self.close(Duration::ZERO);
                    }
                },
                event = self.event_inbox.recv() => match event {
                    Some(Event::Ready(worker)) => self.ready(worker),
                    Some(Event::Ended(id, status)) => self.ended(id, status),
                    None => break,
                },
                () = tokio::time::sleep_until(wake) => {}
            }
            self.look_after();
        }
        for done in self.closing.into_iter().flat_map(|closing| closing.done) {
            let _ = done.send(());
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::RequestWaits => {}
            Command::Replace(id) => {
                if self.entries.contains_key(&id) && self.closing.is_none() {
                    self.start_worker(Some(id));
                }
            }
            Command::Shutdown { grace, done } => {
                self.close(grace);
                if let Some(closing) = &mut self.closing {
                    closing.done.push(done);
                }
            }
        }
    }

    fn close(&mut self, grace: Duration) {
        self.closing.get_or_insert(Closing { until: Instant::now() + grace, done: Vec::new() });
        for entry in self.entries.values() {
            // No request, so nothing to wait for; the others end when they give their sockets up.
            if entry.facts.state() == WorkerState::Starting {
                entry.facts.kill(Killed::Shutdown);
            }
        }
    }

    fn start_worker(&mut self, replaces: Option<u64>) {
        let started = process::start(&self.spec).and_then(|process| self.adopt(process, replaces));
        if let Err(error) = started {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => " (install perl, or add its directory to PATH)",
                _ => "",
            };
            self.start_failed(&format!("cannot start perl: {error}{hint}"), "");
        }
    }

    /// Watches a process that has been started.
    fn adopt(&mut self, process: Process, replaces: Option<u64>) -> io::Result<()> {
        let Process { child, pid, pidfd, control, output, stderr } = process;
        self.last_id += 1;
        let limit = self.spec.max_requests.map_or(u64::MAX, with_jitter);
        let facts = Arc::new(Facts::new(self.last_id, pid, limit));
        let prefix = format!("[{} {}]", self.spec.name, pid.as_raw_nonzero());
        let stderr = Rc::new(Stderr::new(stderr, prefix, self.log.clone())?);
        self.pool.add(facts.clone());
        let entry = Entry { facts: facts.clone(), stderr: stderr.clone(), replaces };
        self.entries.insert(facts.id, entry);
        let following = stderr.clone();
        tokio::task::spawn_local(async move { following.follow().await });
        let events = self.events.clone();
        let watched = facts.clone();
        tokio::task::spawn_local(async move {
            if let Ok(worker) = await_ready(watched.clone(), control, output).await {
                let _ = events.send(Event::Ready(worker));
            } else {
                watched.kill(Killed::DidNotStart);
            }
        });
        let (events, pool) = (self.events.clone(), self.pool.clone());
        tokio::task::spawn_local(async move {
            let status = await_end(&facts, &pool, pidfd, child).await;
            stderr.catch_up();
            let _ = events.send(Event::Ended(facts.id, status));
        });
        Ok(())
    }

    fn ready(&mut self, worker: Worker) {
        let id = worker.facts.id;
        if let Some(replaced) = self.entries.get(&id).and_then(|entry| entry.replaces)
            && let Some(old) = self.entries.get(&replaced)
        {
            self.pool.retire(&old.facts);
        }
        self.pool.end_crash_loop();
        self.pool.give(worker);
        if let Some(first) = self.first.take() {
            let _ = first.send(Ok(()));
        }
    }

    fn ended(&mut self, id: u64, status: ExitStatus) {
        self.pool.remove(id);
        let Some(entry) = self.entries.remove(&id) else { return };
        let facts = &entry.facts;
        let requests = facts.requests.load(Ordering::Relaxed);
        let expected = facts.state() == WorkerState::Ending
            || matches!(facts.killed(), Some(Killed::Shutdown | Killed::LeaseDropped));
        if expected || requests > 0 || facts.started.elapsed() >= EARLY {
            self.backoff.succeeded();
        }
        if expected || self.closing.is_some() {
            return;
        }
        let how = Exit::from(status);
        let why = match facts.killed() {
            Some(Killed::RequestTimeout) => "a request took longer than allowed",
            Some(Killed::WroteWhileIdle) => "it wrote while it had no request",
            Some(Killed::BrokeProtocol) => "it broke the rules of its control socket",
            Some(Killed::DidNotStart) => "it did not become ready",
            Some(Killed::DidNotEnd) => "it did not end when told to",
            _ => "unasked",
        };
        let text = format!("worker {} ended, {how}: {why}", facts.pid.as_raw_nonzero());
        if requests == 0 && facts.started.elapsed() < EARLY {
            self.start_failed(&text, &entry.stderr.last_lines());
        } else {
            self.say(&text);
        }
    }

    /// A start came to nothing: waits before the next, or gives up if it was the very first.
    fn start_failed(&mut self, text: &str, last_lines: &str) {
        let separator = if last_lines.is_empty() { "" } else { "; it wrote: " };
        let text = format!("{text}{separator}{last_lines}");
        self.say(&text);
        if let Some(first) = self.first.take() {
            let _ = first.send(Err(StartError(format!("app {}: {text}", self.spec.name))));
            self.close(Duration::ZERO);
            return;
        }
        let delay = self.backoff.failed();
        self.not_before = Some(Instant::now() + delay);
        if self.backoff.is_loop() {
            self.say(&format!("the next start is in {} ms", delay.as_millis()));
            if self.serving() == 0 {
                self.pool.begin_crash_loop(text);
            }
        }
    }

    /// Does what the time of day and the number of workers ask for.
    fn look_after(&mut self) {
        let now = Instant::now();
        for entry in self.entries.values() {
            if let Some((deadline, why)) = self.deadline(&entry.facts)
                && deadline <= now
            {
                entry.facts.kill(why);
            }
        }
        if self.closing.is_some() {
            return;
        }
        self.end_idle(now);
        self.replace_fat();
        if self.not_before.is_some_and(|not_before| not_before > now) {
            return;
        }
        self.not_before = None;
        let Workers { min, max } = self.spec.workers;
        while self.not_before.is_none() && self.closing.is_none() {
            let (live, starting) = (self.live(), self.starting());
            if live >= min && (live >= max || starting >= self.pool.waiting()) {
                break;
            }
            self.start_worker(None);
        }
    }

    /// When this worker is killed, if nothing happens before, and why.
    fn deadline(&self, facts: &Facts) -> Option<(Instant, Killed)> {
        let own = match facts.state() {
            WorkerState::Starting => Some((facts.since() + START_TIMEOUT, Killed::DidNotStart)),
            WorkerState::Busy => {
                Some((facts.since() + self.spec.request_timeout, Killed::RequestTimeout))
            }
            WorkerState::Ending => Some((facts.since() + END_TIMEOUT, Killed::DidNotEnd)),
            WorkerState::Idle => None,
        };
        let closing = self.closing.as_ref().map(|closing| (closing.until, Killed::Shutdown));
        own.into_iter().chain(closing).filter(|_| facts.killed().is_none()).min_by_key(|own| own.0)
    }

    /// The next time at which something may have to be done. A request that begins later than now
    /// cannot be due before this.
    fn next_check(&self) -> Instant {
        let now = Instant::now();
        let dynamic = self.spec.workers.min < self.spec.workers.max;
        let idle_end = self.pool.longest_idle().map(|(_, since)| since + self.spec.idle_timeout);
        let deadlines = self.entries.values().filter_map(|entry| self.deadline(&entry.facts));
        deadlines
            .map(|deadline| deadline.0)
            .chain(idle_end.filter(|_| dynamic && self.live() > self.spec.workers.min))
            .chain(dynamic.then(|| now + self.spec.idle_timeout))
            .chain(self.not_before)
            .chain(self.spec.max_memory.map(|_| now + MEMORY_INTERVAL))
            .chain([now + self.spec.request_timeout, now + END_TIMEOUT])
            .min()
            .map_or(now, |next| next.max(now))
    }

    fn end_idle(&self, now: Instant) {
        while self.live() > self.spec.workers.min
            && let Some((facts, since)) = self.pool.longest_idle()
            && since + self.spec.idle_timeout <= now
        {
            self.pool.retire(&facts);
        }
    }

    fn replace_fat(&mut self) {
        let Some(limit) = self.spec.max_memory else { return };
        let fat: Vec<Arc<Facts>> = self
            .entries
            .values()
            .map(|entry| entry.facts.clone())
            .filter(|facts| !facts.replacing.load(Ordering::Relaxed) && facts.rss() > limit)
            .collect();
        for facts in fat {
            if matches!(facts.state(), WorkerState::Idle | WorkerState::Busy)
                && !facts.replacing.swap(true, Ordering::Relaxed)
            {
                self.say(&format!("worker {} uses too much memory", facts.pid.as_raw_nonzero()));
                self.start_worker(Some(facts.id));
            }
        }
    }

    /// Workers that serve or are about to. One that is being replaced and its replacement count as
    /// one.
    fn live(&self) -> usize {
        let stays = |entry: &Entry| !entry.facts.retired.load(Ordering::Relaxed);
        let replaces_live = |entry: &Entry| {
            entry.replaces.is_some_and(|old| self.entries.get(&old).is_some_and(stays))
        };
        self.entries.values().filter(|entry| stays(entry) && !replaces_live(entry)).count()
    }

    fn starting(&self) -> usize {
        let starting = |entry: &&Entry| entry.facts.state() == WorkerState::Starting;
        self.entries.values().filter(starting).count()
    }

    fn serving(&self) -> usize {
        let serves =
            |entry: &&Entry| matches!(entry.facts.state(), WorkerState::Idle | WorkerState::Busy);
        self.entries.values().filter(serves).count()
    }

    fn say(&self, text: &str) {
        (self.log)(&format!("[{}] {text}", self.spec.name));
    }
}

/// Up to a tenth less, so that workers that started together do not end together.
fn with_jitter(max_requests: u64) -> u64 {
    (max_requests - fastrand::u64(0..=max_requests / 10)).max(1)
}

/// Waits until the worker says that it is ready.
async fn await_ready(facts: Arc<Facts>, control: OwnedFd, output: OwnedFd) -> io::Result<Worker> {
    let worker = Worker { facts, control: Link::new(control)?, output: Link::new(output)? };
    loop {
        std::future::poll_fn(|context| worker.control.poll_readable(context)).await?;
        let mut message = [0; REPLY];
        match worker.control.receive(&mut message[..])? {
            None => {}
            Some(REPLY) if Reply::parse(message) == Some(Reply::Ready) => return Ok(worker),
            Some(_) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Waits until the process has ended, and reaps it. Unless it ended well, and while the application
/// goes on, what it has started (its process group) is killed first.
async fn await_end(facts: &Facts, pool: &Pool, pidfd: OwnedFd, mut child: Child) -> ExitStatus {
    let readable = sys::register(pidfd, Interest::READABLE);
    loop {
        if let Ok(pidfd) = &readable {
            let _ = pidfd.readable().await;
        }
        match facts.reap(&mut child, pool.is_closed()) {
            Ok(Some(status)) => return status,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
