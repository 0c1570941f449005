//! The thread that starts the processes of one program, watches them and replaces them.

mod ends;
mod renewal;
mod reports;

use super::instance::{End, Instance};
use super::instance_pool::{InstancePool, Snapshot, Stage};
use super::start::{self, Started};
use super::{Listening, ProgramSpec, ready};
use crate::changes::Changes;
use crate::error::Exit;
use crate::starts::{Pause, Starts, a_little_less, end_of};
use crate::stderr::{Log, Stderr};
use crate::thread::{self, First, FirstStart};
use forebay_process::Identity;
use forebay_process::StartError;
use forebay_process::cgroup::LimitedCgroup;
use reports::{await_end, report};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// A process that ends sooner than this, without a request, counts as a failed start.
const EARLY: Duration = Duration::from_secs(1);
/// How often age, memory and files are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the gateway's threads tell the supervisor.
#[derive(Debug)]
pub(super) enum Command {
    /// A request waits.
    RequestWaits,
    /// This process has had as many requests as it may.
    Replace(u64),
    /// This process answers nothing; whether it has more than the one request that told so.
    Hung { id: u64, has_others: bool },
    /// This process does not listen any more.
    Refused(u64),
    /// This process takes no further request, as it is about to end.
    Leaves(u64),
    /// A process that gets no further request has had its last one.
    Drained,
    /// Somebody wants other processes.
    Restart,
    /// End everything.
    Shutdown { grace: Duration, done: oneshot::Sender<()> },
    /// Nobody uses it any more.
    Abandoned,
}

/// What the supervisor is to look after.
pub(super) struct Supervised {
    pub(super) spec: ProgramSpec,
    pub(super) identity: Option<Identity>,
    pub(super) cgroup: Option<LimitedCgroup>,
}

/// Starts the thread, which starts the first process, if there has to be one.
pub(super) fn start(
    what: Supervised,
    pool: Arc<InstancePool>,
    log: Log,
) -> Result<(mpsc::UnboundedSender<Command>, JoinHandle<()>, FirstStart), StartError> {
    let name = what.spec.name.clone();
    thread::start(&name, move |inbox, first| Supervisor::new(what, pool, log, first).run(inbox))
}

struct Supervisor {
    spec: Rc<ProgramSpec>,
    identity: Option<Identity>,
    cgroup: Option<LimitedCgroup>,
    pool: Arc<InstancePool>,
    log: Log,
    starts: Starts,
    events: mpsc::UnboundedSender<Event>,
    event_inbox: mpsc::UnboundedReceiver<Event>,
    entries: HashMap<u64, Entry>,
    last_id: u64,
    changes: Changes,
    looked: Instant,
    /// Processes that run by old files, to be replaced one after the other.
    outdated: VecDeque<u64>,
    closing: Option<Closing>,
}

/// One process.
struct Entry {
    instance: Arc<Instance>,
    stderr: Rc<Stderr>,
    link: Rc<UnixStream>,
    /// The process that ends when this one is ready.
    replaces: Option<u64>,
    /// A replacement has been started.
    is_being_replaced: bool,
    was_ready: bool,
    ending: Ending,
    /// Why it is ended, where that is its own fault.
    fault: Option<&'static str>,
    exit: Option<Exit>,
    _room: TempDir,
}

/// How far its end is.
#[derive(Clone, Copy)]
enum Ending {
    No,
    /// It gets no request any more, and may finish those it has until then.
    Draining(Instant),
    /// It has been asked to end, and is forced to then.
    Asked(Instant),
    /// It has been forced to end, and its guardian is killed then.
    Forced(Instant),
}

struct Closing {
    until: Instant,
    done: Vec<oneshot::Sender<()>>,
}

enum Event {
    Ready(u64),
    Started(u64, u32),
    ProgramEnded(u64, Exit),
    /// The guardian has ended like this, and with it everything.
    Ended(u64, Exit),
}

impl Supervisor {
    fn new(
        Supervised { spec, identity, cgroup }: Supervised,
        pool: Arc<InstancePool>,
        log: Log,
        first: First,
    ) -> Supervisor {
        let (events, event_inbox) = mpsc::unbounded_channel();
        Supervisor {
            changes: Changes::of(&spec.watch),
            starts: Starts::new(&spec.name, log.clone(), first),
            spec: Rc::new(spec),
            identity,
            cgroup,
            pool,
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

    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        if self.spec.workers.min == 0 {
            self.starts.ready();
        }
        self.look_after();
        while !(self.closing.is_some() && self.entries.is_empty()) {
            let wake = self.next_check();
            tokio::select! {
                command = inbox.recv() => match command {
                    Some(command) => self.obey(command),
                    None => self.close(Duration::ZERO),
                },
                event = self.event_inbox.recv() => match event {
                    Some(event) => self.handle(event),
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
            Command::RequestWaits | Command::Drained => {}
            Command::Replace(id) => self.replace(id),
            Command::Hung { id, has_others } => self.end_hung(id, has_others),
            Command::Refused(id) => self.end_unreachable(id),
            Command::Restart => self.outdate("a restart was asked for"),
            Command::Leaves(id) => self.let_go(id),
            Command::Abandoned => self.close(Duration::ZERO),
            Command::Shutdown { grace, done } => {
                self.close(grace);
                if let Some(closing) = &mut self.closing {
                    closing.done.push(done);
                }
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ready(id) => self.ready(id),
            Event::Ended(id, guardian) => self.ended(id, guardian),
            Event::Started(id, pid) => {
                if let Some(entry) = self.entries.get(&id) {
                    entry.instance.life.set_pid(pid);
                }
            }
            Event::ProgramEnded(id, exit) => {
                // No request may be sent to a socket that nobody listens on.
                self.pool.retire(id);
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.exit = Some(exit);
                    let was_asked = matches!(entry.ending, Ending::Asked(_) | Ending::Forced(_));
                    entry.instance.life.ended(End::of(exit, was_asked));
                    if matches!(entry.ending, Ending::No) {
                        entry.ending = Ending::Asked(Instant::now() + self.spec.stop_timeout);
                        entry.fault.get_or_insert("unasked");
                    }
                }
            }
        }
    }

    fn close(&mut self, grace: Duration) {
        self.pool.close();
        let until = Instant::now() + grace;
        self.closing.get_or_insert(Closing { until, done: Vec::new() });
        let ids: Vec<u64> = self.entries.keys().copied().collect();
        for id in ids {
            self.retire(id, until);
        }
    }

    fn start_process(&mut self, replaces: Option<u64>) {
        let cgroup = self.cgroup.as_ref().map(LimitedCgroup::path);
        let started = start::start(&self.spec, self.identity.as_ref(), cgroup);
        match started.and_then(|started| self.adopt(started, replaces)) {
            Ok(()) => {}
            Err(error) => {
                self.start_failed(&format!("cannot start {}: {error}", self.spec.run[0]), "");
            }
        }
    }

    /// Watches a process that has been started.
    fn adopt(&mut self, started: Started, replaces: Option<u64>) -> std::io::Result<()> {
        let Started { guardian, pidfd, link, log, place, room } = started;
        self.last_id += 1;
        let id = self.last_id;
        let limit = self.spec.max_requests.map_or(u64::MAX, a_little_less);
        let replace_at = end_of(self.spec.max_age);
        let guardian_pid = guardian.id();
        let instance = Arc::new(Instance::new(id, place, guardian_pid, limit, replace_at));
        let prefix = format!("[{} {guardian_pid}]", self.spec.name);
        let stderr = Rc::new(Stderr::new(log, prefix, self.log.clone())?);
        let link = Rc::new(UnixStream::from_std(link)?);
        self.pool.add(instance.clone());
        let reports = tokio::task::spawn_local(report(id, link.clone(), self.events.clone()));
        let following = stderr.clone();
        tokio::task::spawn_local(async move { following.follow().await });
        let (events, place, listen) =
            (self.events.clone(), instance.place.clone(), self.spec.listen);
        tokio::task::spawn_local(async move {
            match listen {
                Listening::Socket | Listening::Port => ready::listens(&place).await,
                _ => ready::takes_connections(&place).await,
            }
            let _ = events.send(Event::Ready(id));
        });
        let (events, last_words) = (self.events.clone(), stderr.clone());
        tokio::task::spawn_local(async move {
            let guardian = await_end(pidfd, guardian, reports).await;
            last_words.catch_up();
            let _ = events.send(Event::Ended(id, guardian));
        });
        let entry = Entry {
            instance,
            stderr,
            link,
            replaces,
            is_being_replaced: false,
            was_ready: false,
            ending: Ending::No,
            fault: None,
            exit: None,
            _room: room,
        };
        self.entries.insert(id, entry);
        Ok(())
    }

    fn ready(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if !matches!(entry.ending, Ending::No) {
            return;
        }
        entry.was_ready = true;
        let replaces = entry.replaces;
        self.pool.serve(id);
        if let Some(old) = replaces {
            self.retire(old, Instant::now() + self.spec.drain_timeout);
        }
        self.starts.ready();
    }

    /// Does what the time of day and the number of processes ask for.
    fn look_after(&mut self) {
        let now = Instant::now();
        let snapshots = self.pool.snapshot();
        for snapshot in &snapshots {
            self.advance(snapshot, now);
        }
        if self.closing.is_some() {
            return;
        }
        if snapshots.iter().any(|l| has_proved(&l.instance, l.stage != Stage::Starting)) {
            self.starts.proved();
        }
        self.end_idle(&snapshots, now);
        if now >= self.looked + LOOK_INTERVAL {
            self.looked = now;
            self.look_closely(&snapshots, now);
        }
        self.replace_outdated();
        match self.starts.resume(now) {
            Pause::Lasts => return,
            // Only a request that waits can bring the next start about.
            Pause::Over if self.spec.workers.min == 0 => self.pool.let_wait(),
            Pause::Over | Pause::None => {}
        }
        self.start_what_is_missing();
    }

    fn start_what_is_missing(&mut self) {
        let (min, max) = (self.spec.workers.min, self.spec.workers.max);
        while !self.starts.are_paused() && self.closing.is_none() {
            let live = self.live();
            let starting = self.starting();
            let is_enough = starting * self.spec.connections >= self.pool.waiting();
            if live >= min && (live >= max || is_enough) {
                break;
            }
            self.start_process(None);
        }
    }

    /// The next time at which something may have to be done.
    fn next_check(&self) -> Instant {
        let now = Instant::now();
        let ends = self.entries.values().filter_map(|entry| match entry.ending {
            Ending::No => None,
            Ending::Draining(at) | Ending::Asked(at) | Ending::Forced(at) => Some(at),
        });
        let starting =
            self.entries.values().map(|entry| entry.instance.started + self.spec.start_timeout);
        ends.chain(starting.filter(|&at| at > now))
            .chain(self.starts.next().filter(|_| self.closing.is_none()))
            .chain(self.closing.as_ref().map(|closing| closing.until).filter(|&at| at > now))
            .chain([now + LOOK_INTERVAL])
            .min()
            .map_or(now, |next| next.max(now))
    }

    /// Processes that serve or are about to. One that is being replaced and its replacement count
    /// as one.
    fn live(&self) -> usize {
        let stays = |entry: &Entry| matches!(entry.ending, Ending::No);
        let replaces_live = |entry: &Entry| {
            entry.replaces.is_some_and(|old| self.entries.get(&old).is_some_and(stays))
        };
        self.entries.values().filter(|entry| stays(entry) && !replaces_live(entry)).count()
    }

    fn starting(&self) -> usize {
        let snapshots = self.pool.snapshot();
        snapshots.iter().filter(|snapshot| snapshot.stage == Stage::Starting).count()
    }

    fn snapshot_of(&self, id: u64) -> Option<Snapshot> {
        self.pool.snapshot().into_iter().find(|snapshot| snapshot.instance.id == id)
    }
}

/// A byte always fits: the guardian reads them at once. Not by the runtime, which knows of a socket
/// that it can be written to only once it has looked.
fn order(link: &UnixStream, order: u8) {
    use rustix::net::{SendFlags, send};
    let _ = send(link, &[order], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// The process's start was a success: it has had a request, or has lasted.
fn has_proved(instance: &Instance, has_started: bool) -> bool {
    has_started && (instance.has_served() || instance.started.elapsed() >= EARLY)
}
