//! The thread that starts the processes of one application or program, watches them and replaces
//! them.
//!
//! One thread starts all processes, because the kernel kills a worker when the thread that started
//! it ends. This thread takes no part in requests. The gateway's threads take processes from a
//! pool, and send the supervisor a command only to start or end a process. [`ProcessKind`] holds
//! the differences between kinds of processes.

mod ends;
mod kind;
#[cfg(test)]
mod model;
mod renewal;

pub(crate) use kind::{End, Fault, New, ProcessKind, Rules, Snapshot, Stage, Started};

use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_process::StartError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::starts;
use crate::error::Exit;
use crate::file_watch::Changes;
use crate::spec::Workers;
use crate::starts::{First, FirstStart, Pause, Starts, a_little_less, end_of, shortened};
use crate::stderr::{Stderr, WorkerLog};

/// Interval of the checks of age, memory, CPU time and files.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A command from one of the gateway's threads to the supervisor.
#[derive(Debug)]
pub(crate) enum Command {
    /// A request waits, and more processes may be started.
    RequestWaits,
    /// This process has reached its limit of requests.
    Replace(u64),
    /// This process does not answer. `has_others` is true if the process has requests besides the
    /// one that timed out.
    Hung { id: u64, has_others: bool },
    /// This process has refused a connection.
    Refused(u64),
    /// This process takes no further request, because it is about to end.
    Leaves(u64),
    /// A retired process has finished its last request.
    Drained,
    /// The configuration was reloaded: replace the processes if their files have changed.
    Reloaded,
    /// Replace all processes, by request of an administrator.
    Restart,
    /// End all processes.
    Shutdown { grace: Duration, done: oneshot::Sender<()> },
    /// The application is not used any more.
    Abandoned,
}

/// A change in the life of a process.
#[derive(Debug)]
pub(crate) enum Event<R> {
    Ready(u64, R),
    /// The program has ended, and its guardian is about to end.
    ProgramEnded(u64, Exit),
    /// The process has ended and was reaped.
    Ended(u64, Exit),
}

/// Starts, replaces and ends the processes of one application.
struct Supervisor<K: ProcessKind> {
    kind: K,
    log: WorkerLog,
    starts: Starts,
    events: mpsc::UnboundedSender<Event<K::Ready>>,
    event_inbox: mpsc::UnboundedReceiver<Event<K::Ready>>,
    entries: HashMap<u64, ProcessEntry<K::Process>>,
    last_id: u64,
    /// State of the files that are watched, and of those that only a reload checks.
    changes: Changes,
    at_reload: Changes,
    looked: Instant,
    /// Processes with old files, to be replaced one by one.
    outdated: VecDeque<u64>,
    closing: Option<Closing>,
}

/// One process of the application, with the state of its replacement and of its end.
struct ProcessEntry<P> {
    process: P,
    stderr: Rc<Stderr>,
    /// The process that is retired when the new process is ready.
    replaces: Option<u64>,
    is_being_replaced: bool,
    started: Instant,
    /// The process is replaced after this many requests. `replace_at` and `max_cpu` are its limits
    /// of age and CPU time.
    limit: u64,
    replace_at: Option<Instant>,
    max_cpu: Option<Duration>,
    was_ready: bool,
    ending: Ending,
    /// The reason why the process is ended, if the process has failed.
    fault: Option<Fault>,
    /// State of the process at the last iteration of the supervisor's loop.
    seen: Snapshot,
}

/// Progress of the end of a process.
#[derive(Debug, Clone, Copy)]
enum Ending {
    No,
    /// The process gets no further request, but may finish its requests. If a time is set, the
    /// process has to finish before this time.
    Draining(Option<Instant>),
    /// The process was asked to end. If the process still runs at this time, it is killed.
    Stopping(Instant),
    /// The process was killed. If the process still runs at this time, it is killed again.
    Forced(Instant),
}

struct Closing {
    until: Instant,
    done: Vec<oneshot::Sender<()>>,
}

impl<K: ProcessKind> Supervisor<K> {
    fn new(kind: K, log: WorkerLog, first: First) -> Self {
        let (events, event_inbox) = mpsc::unbounded_channel();
        let rules = kind.rules();
        Supervisor {
            changes: Changes::of(&rules.watch),
            at_reload: Changes::of(&rules.watch_at_reload),
            starts: Starts::new(&rules.name, log.clone(), first),
            kind,
            log,
            events,
            event_inbox,
            entries: HashMap::new(),
            last_id: 0,
            looked: Instant::now(),
            outdated: VecDeque::new(),
            closing: None,
        }
    }

    /// Handles commands and events until the application is closed and all its processes have
    /// ended.
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        let rules = self.kind.rules();
        if rules.first_alone {
            self.start_process(None);
        } else {
            if rules.workers.min == 0 {
                self.starts.ready();
                self.starts.all_ready();
            }
            self.look_after();
        }
        while !(self.closing.is_some() && self.entries.is_empty()) {
            let wake = self.next_check();
            tokio::select! {
                Some(command) = inbox.recv() => self.obey(command),
                Some(event) = self.event_inbox.recv() => match event {
                    Event::Ready(id, ready) => self.ready(id, ready),
                    Event::ProgramEnded(id, exit) => self.program_ended(id, exit),
                    Event::Ended(id, exit) => self.ended(id, exit),
                },
                () = tokio::time::sleep_until(wake) => {}
            }
            self.look_after();
        }
        for done in self.closing.into_iter().flat_map(|closing| closing.done) {
            let _ = done.send(());
        }
    }

    /// Carries out a command of the gateway's threads.
    fn obey(&mut self, command: Command) {
        match command {
            Command::RequestWaits | Command::Drained => {}
            Command::Replace(id) => self.replace(id),
            Command::Hung { id, has_others } => self.end_hung(id, has_others),
            Command::Refused(id) => self.end_unreachable(id),
            Command::Leaves(id) => self.let_go(id),
            Command::Reloaded => self.look_after_reload(),
            Command::Restart => self.outdate("a restart was asked for"),
            Command::Abandoned => self.close(Duration::ZERO),
            Command::Shutdown { grace, done } => {
                self.close(grace);
                if let Some(closing) = &mut self.closing {
                    closing.done.push(done);
                }
            }
        }
    }

    fn close(&mut self, grace: Duration) {
        self.kind.close();
        let until = Instant::now() + grace;
        self.closing.get_or_insert(Closing { until, done: Vec::new() });
        let ids: Vec<u64> = self.entries.keys().copied().collect();
        for id in ids {
            self.retire(id);
        }
    }

    /// Starts a process, in place of the process `replaces` if given. A failed start pauses further
    /// starts.
    fn start_process(&mut self, replaces: Option<u64>) {
        self.last_id += 1;
        let id = self.last_id;
        let limit = self.kind.rules().max_requests.map_or(u64::MAX, a_little_less);
        let new = New { id, limit, events: self.events.clone() };
        let started = self.kind.start(new);
        match started.and_then(|started| self.adopt(id, limit, started, replaces)) {
            Ok(()) => {}
            Err(error) => {
                if let Some(old) = replaces.and_then(|old| self.entries.get_mut(&old)) {
                    old.is_being_replaced = false;
                }
                self.start_failed(&format!("cannot start {error}"), "");
            }
        }
    }

    /// Watches a process that has been started.
    fn adopt(
        &mut self,
        id: u64,
        limit: u64,
        started: Started<K>,
        replaces: Option<u64>,
    ) -> io::Result<()> {
        let Started { process, stderr, stderr_name, ready, reaped } = started;
        let rules = self.kind.rules();
        let prefix = format!("[{} {stderr_name}]", rules.name);
        let stderr = Rc::new(Stderr::new(stderr, prefix, self.log.clone())?);
        self.kind.add(&process);
        let following = stderr.clone();
        tokio::task::spawn_local(async move { following.follow().await });
        let events = self.events.clone();
        tokio::task::spawn_local(async move {
            if let Some(ready) = ready.await {
                let _ = events.send(Event::Ready(id, ready));
            }
        });
        let (events, stderr_tail) = (self.events.clone(), stderr.clone());
        tokio::task::spawn_local(async move {
            let exit = reaped.await;
            stderr_tail.catch_up();
            let _ = events.send(Event::Ended(id, exit));
        });
        let now = Instant::now();
        let entry = ProcessEntry {
            process,
            stderr,
            replaces,
            is_being_replaced: false,
            started: now,
            limit,
            replace_at: end_of(rules.max_age),
            max_cpu: shortened(rules.max_cpu),
            was_ready: false,
            ending: Ending::No,
            fault: None,
            seen: Snapshot::of_new(id, now),
        };
        self.entries.insert(id, entry);
        Ok(())
    }

    fn ready(&mut self, id: u64, ready: K::Ready) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !matches!(entry.ending, Ending::No) {
            return;
        }
        entry.was_ready = true;
        let replaces = entry.replaces;
        self.kind.serve(&entry.process, ready);
        if let Some(old) = replaces {
            self.retire(old);
        }
        self.starts.ready();
        let ready = self.entries.values().filter(|entry| entry.was_ready && entry.stays());
        if ready.count() >= self.kind.rules().workers.min {
            self.starts.all_ready();
        }
    }

    /// Takes all steps that are due now: ends, replaces and starts processes.
    fn look_after(&mut self) {
        let now = Instant::now();
        self.refresh();
        let ids: Vec<u64> = self.entries.keys().copied().collect();
        for id in ids {
            self.advance(id, now);
        }
        if self.closing.is_some() {
            return;
        }
        if self.entries.values().any(ProcessEntry::has_proved) {
            self.starts.proved();
        }
        self.end_idle(now);
        self.renew(now);
        match self.starts.resume(now) {
            Pause::Lasts => return,
            // With a minimum of 0 workers, only a waiting request can cause the next start, so let
            // requests wait.
            Pause::Over if self.kind.rules().workers.min == 0 => self.kind.let_wait(),
            Pause::Over | Pause::None => {}
        }
        self.start_missing();
    }

    fn refresh(&mut self) {
        for seen in self.kind.snapshots() {
            if let Some(entry) = self.entries.get_mut(&seen.id) {
                entry.seen = seen;
            }
        }
    }

    fn start_missing(&mut self) {
        let Workers { min, max } = self.kind.rules().workers;
        while !self.starts.are_paused() {
            let (live, starting) = (self.live(), self.starting());
            if live >= min && (live >= max || starting >= self.kind.missing()) {
                return;
            }
            self.start_process(None);
        }
    }

    /// Returns the next time at which a step may be due. A request that begins after this call
    /// needs no earlier check, because its time limit ends after the returned time.
    fn next_check(&self) -> Instant {
        let now = Instant::now();
        let rules = self.kind.rules();
        let is_open = self.closing.is_none();
        let is_dynamic = is_open && rules.workers.min < rules.workers.max;
        let looks = is_open && self.needs_looks();
        let idle = self.entries.values().filter(|entry| entry.is_idle());
        let idle_ends = idle.map(|entry| entry.seen.idle_since + rules.idle_timeout);
        let steps = self.entries.values().filter_map(|entry| self.next_step(entry));
        steps
            .map(|(at, _)| at)
            .chain(idle_ends.filter(|_| is_dynamic && self.live() > rules.workers.min))
            .chain(is_dynamic.then(|| now + rules.idle_timeout))
            .chain(self.starts.next().filter(|_| is_open))
            .chain(looks.then(|| self.looked + LOOK_INTERVAL))
            .chain(rules.request_timeout.map(|limit| now + limit))
            .chain([now + rules.stop_timeout])
            .min()
            .map_or(now, |next| next.max(now))
    }

    /// Returns the number of processes that serve or start. A process and its replacement count as
    /// one.
    fn live(&self) -> usize {
        let replaces_live = |entry: &ProcessEntry<K::Process>| {
            entry
                .replaces
                .is_some_and(|old| self.entries.get(&old).is_some_and(ProcessEntry::stays))
        };
        self.entries.values().filter(|entry| entry.stays() && !replaces_live(entry)).count()
    }

    fn starting(&self) -> usize {
        let starting = |entry: &&ProcessEntry<K::Process>| entry.seen.stage == Stage::Starting;
        self.entries.values().filter(starting).count()
    }

    fn serves(&self) -> bool {
        self.entries.values().any(|entry| entry.seen.stage == Stage::Serving)
    }
}

impl<P> ProcessEntry<P> {
    fn stays(&self) -> bool {
        matches!(self.ending, Ending::No)
            && matches!(self.seen.stage, Stage::Starting | Stage::Serving)
    }

    fn is_idle(&self) -> bool {
        self.stays() && self.seen.stage == Stage::Serving && self.seen.under_way == 0
    }
}

// The handle of a supervisor.

/// A supervisor's thread. Dropping the handle without [`shutdown`](Handle::shutdown) ends all
/// processes.
#[derive(Debug)]
pub(crate) struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    /// Starts the thread of the application `name`. On that thread, `make` creates the kind of
    /// process, and the supervisor starts the first processes.
    pub(crate) fn start<K: ProcessKind>(
        name: &str,
        log: WorkerLog,
        make: impl FnOnce() -> K + Send + 'static,
    ) -> Result<(Handle, FirstStart), StartError> {
        let (commands, thread, first) = starts::start_thread(name, move |inbox, first| {
            Supervisor::new(make(), log, first).run(inbox)
        })?;
        Ok((Handle { commands, thread: Mutex::new(Some(thread)) }, first))
    }

    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(crate) fn commands(&self) -> mpsc::UnboundedSender<Command> {
        self.commands.clone()
    }

    /// Ends all processes: idle ones at once, busy ones after their requests, but at the latest
    /// after `grace`. No process is left when this returns.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        let (done, all_ended) = oneshot::channel();
        if self.commands.send(Command::Shutdown { grace, done }).is_ok() {
            let _ = all_ended.await;
        }
        // The thread only has to return, so this does not block for long.
        self.join();
    }

    /// Ends all processes without a grace period, for callers without an event loop. Blocks.
    pub(crate) fn end(&self) {
        let (done, _) = oneshot::channel();
        self.send(Command::Shutdown { grace: Duration::ZERO, done });
        self.join();
    }

    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.send(Command::Abandoned);
    }
}

#[cfg(test)]
impl Handle {
    /// Returns the handle of a supervisor that the test itself simulates.
    pub(crate) fn without_thread() -> (Handle, mpsc::UnboundedReceiver<Command>) {
        let (commands, inbox) = mpsc::unbounded_channel();
        (Handle { commands, thread: Mutex::new(None) }, inbox)
    }
}
