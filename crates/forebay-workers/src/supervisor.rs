//! The thread that starts the workers of one application, watches them and replaces them.
//!
//! One thread starts them all, because the kernel kills a worker when the thread that started it
//! ends. It takes no part in a request: the gateway's threads pass workers among themselves
//! through the [`Pool`] and tell the supervisor only what needs a process started or ended.

mod ends;
mod renewal;

use crate::changes::Changes;
use crate::pool::Pool;
use crate::process::{self, Place, Process};
use crate::spec::{AppSpec, Workers};
use crate::starts::{Pause, Starts, a_little_less, end_of};
use crate::stderr::{Log, Stderr};
use crate::thread::{self, First, FirstStart};
use crate::watch::{await_end, await_ready};
use crate::worker::{Killed, Worker, WorkerShared, WorkerState};
use ends::{END_TIMEOUT, has_proved};
use forebay_process::GroupReaper;
use forebay_process::Identity;
use forebay_process::StartError;
use forebay_process::cgroup::LimitedCgroup;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long a worker that closes its control socket before it is ready has to end by itself.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// How often age, memory and files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the gateway's threads tell the supervisor.
pub(crate) enum Command {
    /// A request waits and there may be more workers.
    RequestWaits,
    /// This worker has run as many requests as it may.
    Replace(u64),
    /// Replace the workers if their files have changed.
    Reloaded,
    /// Somebody wants other workers.
    Restart,
    /// End everything.
    Shutdown { grace: Duration, done: oneshot::Sender<()> },
}

/// Starts the thread, which starts the first worker.
pub(crate) fn start(
    spec: AppSpec,
    cgroup: Option<LimitedCgroup>,
    pool: Arc<Pool>,
    log: Log,
) -> Result<(mpsc::UnboundedSender<Command>, JoinHandle<()>, FirstStart), StartError> {
    spec.check()?;
    let identity = Identity::find(&spec.name, spec.user.as_deref(), spec.group.as_deref())?;
    let place = Place { identity, cgroup };
    let name = spec.name.clone();
    thread::start(&name, move |inbox, first| {
        Supervisor::new(spec, place, pool, log, first).run(inbox)
    })
}

struct Supervisor {
    spec: Rc<AppSpec>,
    place: Place,
    pool: Arc<Pool>,
    log: Log,
    starts: Starts,
    events: mpsc::UnboundedSender<Event>,
    event_inbox: mpsc::UnboundedReceiver<Event>,
    entries: HashMap<u64, Entry>,
    last_id: u64,
    /// Of the files that are watched, and of those that a reload looks at.
    changes: Changes,
    at_reload: Changes,
    looked: Instant,
    /// Workers that run by old files, to be replaced one after the other.
    outdated: VecDeque<u64>,
    closing: Option<Closing>,
    /// `None` where there is no shell.
    group_reaper: Option<GroupReaper>,
}

struct Entry {
    shared: Arc<WorkerShared>,
    stderr: Rc<Stderr>,
    /// The worker that ends when this one is ready.
    replaces: Option<u64>,
    /// When it is replaced for its age.
    replace_at: Option<Instant>,
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
    fn new(spec: AppSpec, place: Place, pool: Arc<Pool>, log: Log, first: First) -> Supervisor {
        let (events, event_inbox) = mpsc::unbounded_channel();
        Supervisor {
            changes: Changes::of(&spec.watch),
            at_reload: Changes::of(&spec.files),
            looked: Instant::now(),
            outdated: VecDeque::new(),
            starts: Starts::new(&spec.name, log.clone(), first),
            spec: Rc::new(spec),
            place,
            pool,
            log,
            events,
            event_inbox,
            entries: HashMap::new(),
            last_id: 0,
            closing: None,
            group_reaper: GroupReaper::start().ok(),
        }
    }

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        let mut orphaned = false;
        self.start_worker(None);
        loop {
            if self.closing.is_some() && self.entries.is_empty() {
                break;
            }
            let wake = self.next_check();
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
            Command::Reloaded => self.look_after_reload(),
            Command::Restart => self.outdate("a restart was asked for"),
            Command::Replace(id) => {
                if self.closing.is_none() {
                    self.replace(id);
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
            if entry.shared.state() == WorkerState::Starting {
                entry.shared.kill(Killed::Shutdown);
            }
        }
    }

    fn start_worker(&mut self, replaces: Option<u64>) {
        let started = process::start(&self.spec, &self.place)
            .and_then(|process| self.adopt(process, replaces));
        if let Err(error) = started {
            let program = self.spec.kind.interpreter();
            let hint = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!(" (install {program}, or add its directory to PATH)")
                }
                _ => String::new(),
            };
            self.start_failed(&format!("cannot start {program}: {error}{hint}"), "");
        }
    }

    /// Starts the worker that takes the place of `id`, unless starts fail at present.
    fn replace(&mut self, id: u64) {
        let Some(entry) = self.entries.get(&id) else { return };
        if self.starts.are_paused() {
            entry.shared.replacing.store(false, Ordering::Relaxed);
        } else {
            self.start_worker(Some(id));
        }
    }

    /// Watches a process that has been started.
    fn adopt(&mut self, process: Process, replaces: Option<u64>) -> io::Result<()> {
        let Process { child, pid, pidfd, control, output, prefetch, stderr } = process;
        if let Some(reaper) = &mut self.group_reaper {
            reaper.watch(pid);
        }
        self.last_id += 1;
        let limit = self.spec.max_requests.map_or(u64::MAX, a_little_less);
        let shared = Arc::new(WorkerShared::new(self.last_id, pid, prefetch, limit));
        let prefix = format!("[{} {}]", self.spec.name, pid.as_raw_nonzero());
        let stderr = Rc::new(Stderr::new(stderr, prefix, self.log.clone())?);
        self.pool.add(shared.clone());
        let replace_at = end_of(self.spec.max_age);
        let entry = Entry { shared: shared.clone(), stderr: stderr.clone(), replaces, replace_at };
        self.entries.insert(shared.id, entry);
        let following = stderr.clone();
        tokio::task::spawn_local(async move { following.follow().await });
        let events = self.events.clone();
        let watched = shared.clone();
        tokio::task::spawn_local(async move {
            if let Ok(worker) = await_ready(watched.clone(), control, output).await {
                let _ = events.send(Event::Ready(worker));
            } else if tokio::time::timeout(LAST_MOMENT, watched.exited()).await.is_err() {
                watched.kill(Killed::DidNotStart);
            }
        });
        let (events, pool) = (self.events.clone(), self.pool.clone());
        tokio::task::spawn_local(async move {
            let status = await_end(&shared, &pool, pidfd, child).await;
            stderr.catch_up();
            let _ = events.send(Event::Ended(shared.id, status));
        });
        Ok(())
    }

    fn ready(&mut self, worker: Worker) {
        let id = worker.shared.id;
        if let Some(replaced) = self.entries.get(&id).and_then(|entry| entry.replaces)
            && let Some(old) = self.entries.get(&replaced)
        {
            self.pool.retire(&old.shared);
        }
        self.pool.end_crash_loop();
        self.pool.give(worker);
        self.starts.ready();
    }

    /// Does what the time of day and the number of workers ask for.
    fn look_after(&mut self) {
        let now = Instant::now();
        for entry in self.entries.values() {
            if let Some((deadline, why)) = self.deadline(&entry.shared)
                && deadline <= now
            {
                entry.shared.kill(why);
            }
        }
        if self.closing.is_some() {
            return;
        }
        if self.entries.values().any(|entry| has_proved(&entry.shared)) {
            self.starts.proved();
        }
        self.end_idle(now);
        self.renew(now);
        match self.starts.resume(now) {
            Pause::Lasts => return,
            // Only a request that waits can bring the next start about.
            Pause::Over if self.spec.workers.min == 0 => self.pool.let_wait(),
            Pause::Over | Pause::None => {}
        }
        let Workers { min, max } = self.spec.workers;
        while !self.starts.are_paused() && self.closing.is_none() {
            let (live, starting) = (self.live(), self.starting());
            if live >= min && (live >= max || starting >= self.pool.missing()) {
                break;
            }
            self.start_worker(None);
        }
    }

    /// The next time at which something may have to be done. A request that begins later than now
    /// cannot be due before this.
    fn next_check(&self) -> Instant {
        let now = Instant::now();
        let dynamic = self.spec.workers.min < self.spec.workers.max;
        let idle_end = self.pool.longest_idle().map(|(_, since)| since + self.spec.idle_timeout);
        let deadlines = self.entries.values().filter_map(|entry| self.deadline(&entry.shared));
        deadlines
            .map(|deadline| deadline.0)
            .chain(idle_end.filter(|_| dynamic && self.live() > self.spec.workers.min))
            .chain(dynamic.then(|| now + self.spec.idle_timeout))
            .chain(self.starts.next().filter(|_| self.closing.is_none()))
            .chain(self.needs_looks().then(|| self.looked + LOOK_INTERVAL))
            .chain([now + self.spec.request_timeout, now + END_TIMEOUT])
            .min()
            .map_or(now, |next| next.max(now))
    }

    fn end_idle(&self, now: Instant) {
        while self.live() > self.spec.workers.min
            && let Some((shared, since)) = self.pool.longest_idle()
            && since + self.spec.idle_timeout <= now
        {
            self.pool.retire(&shared);
        }
    }

    /// Workers that serve or are about to. One that is being replaced and its replacement count as
    /// one.
    fn live(&self) -> usize {
        let stays = |entry: &Entry| !entry.shared.retired.load(Ordering::Relaxed);
        let replaces_live = |entry: &Entry| {
            entry.replaces.is_some_and(|old| self.entries.get(&old).is_some_and(stays))
        };
        self.entries.values().filter(|entry| stays(entry) && !replaces_live(entry)).count()
    }

    fn starting(&self) -> usize {
        let starting = |entry: &&Entry| entry.shared.state() == WorkerState::Starting;
        self.entries.values().filter(starting).count()
    }

    fn serving(&self) -> usize {
        let serves =
            |entry: &&Entry| matches!(entry.shared.state(), WorkerState::Idle | WorkerState::Busy);
        self.entries.values().filter(serves).count()
    }
}
