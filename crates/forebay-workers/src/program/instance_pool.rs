//! The processes of one program, their permits, and the requests that wait for a permit.
//!
//! A request takes a permit of the process with the fewest requests, or waits. Each process has its
//! own socket, so that a process can finish its requests after its replacement has started. A
//! process with an inherited socket is ready when it has accepted a first, empty connection, but
//! at the latest after one second.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::ProcessAddress;
use super::instance::{Instance, Life};
use crate::error::Unavailable;
use crate::supervisor::{Command, Snapshot, Stage};
use crate::waiters::{Waiter, Waiters};
use crate::worker::{Health, WorkerState};

/// If the first request has waited this long, it gets the next free permit. Otherwise a permit goes
/// to a request of the thread that frees the permit. Waking another thread takes more CPU time than
/// the gateway needs for a small request.
const LONG: Duration = Duration::from_millis(2);
/// Number of requests at the front of the queue that are searched for a request of the thread that
/// frees a permit.
const NEARBY: usize = 16;

/// The pool of one program. The gateway's threads and the supervisor share it.
#[derive(Debug)]
pub(super) struct InstancePool {
    /// Number of permits of each process.
    permits: usize,
    inner: Mutex<Inner>,
    changes: watch::Sender<u64>,
    commands: OnceLock<mpsc::UnboundedSender<Command>>,
}

/// The state of [`InstancePool`] that its lock protects.
#[derive(Debug, Default)]
struct Inner {
    entries: Vec<PoolEntry>,
    waiters: Waiters<WaitingRequest>,
    /// Index at which the search for the least busy process begins.
    turn: usize,
    starts: u64,
    crashes: u64,
}

#[derive(Debug)]
struct PoolEntry {
    instance: Arc<Instance>,
    stage: Stage,
    under_way: usize,
    /// End of the last request, or the time when the process began to serve.
    idle_since: Instant,
}

/// A request that waits for a permit.
#[derive(Debug)]
struct WaitingRequest {
    sender: oneshot::Sender<Result<Permit, Unavailable>>,
    thread: ThreadId,
    client: u64,
    since: Instant,
}

/// The immediate answer to a request for a permit.
pub(super) enum Taken {
    Permit(Permit),
    Wait(oneshot::Receiver<Result<Permit, Unavailable>>),
}

/// The right to send one request to a process. When the permit is dropped, the next waiting request
/// gets a permit.
#[derive(Debug)]
pub struct Permit {
    pool: Arc<InstancePool>,
    instance: Arc<Instance>,
    began: Instant,
}

impl InstancePool {
    pub(super) fn new(permits: usize) -> InstancePool {
        InstancePool {
            permits,
            inner: Mutex::default(),
            changes: watch::Sender::new(0),
            commands: OnceLock::new(),
        }
    }

    /// Sets the channel for commands to the supervisor.
    pub(super) fn set_commands(&self, commands: mpsc::UnboundedSender<Command>) {
        let _ = self.commands.set(commands);
    }

    /// Returns a permit of the process `wanted`, or else of the process with the fewest requests.
    /// If no permit is free, returns a place in the queue, which holds at most `limit` requests.
    /// Fails if no permit is free and the queue is full. During a crash loop, fails if no permit is
    /// free. Always fails after the pool has been closed.
    pub(super) fn take(
        self: &Arc<Self>,
        limit: usize,
        wanted: Option<u64>,
        client: impl FnOnce() -> u64,
    ) -> Result<Taken, Unavailable> {
        let mut inner = self.lock();
        if inner.waiters.is_closed() {
            return Err(Unavailable::ShuttingDown);
        }
        if let Some(permit) = self.permit(&mut inner, wanted) {
            return Ok(Taken::Permit(permit));
        }
        if let Some(why) = inner.waiters.refusal() {
            return Err(why);
        }
        let client = client();
        if !inner.waiters.has_room(limit, client) {
            return Err(Unavailable::QueueFull);
        }
        let (sender, receiver) = oneshot::channel();
        let (thread, since) = (thread::current().id(), Instant::now());
        inner.waiters.push(WaitingRequest { sender, thread, client, since });
        Ok(Taken::Wait(receiver))
    }

    /// Takes a permit of the process `wanted` if that process has a free permit, or else of the
    /// least busy process. Returns `None` if no process has a free permit.
    fn permit(self: &Arc<Self>, inner: &mut Inner, wanted: Option<u64>) -> Option<Permit> {
        let count = inner.entries.len();
        let turn = inner.turn;
        let free =
            |entry: &PoolEntry| entry.stage == Stage::Serving && entry.under_way < self.permits;
        let at = |id| inner.entries.iter().position(|entry| entry.instance.id == id && free(entry));
        let best = match wanted.and_then(at) {
            Some(wanted) => wanted,
            None => {
                let best = (0..count)
                    .map(|at| (at + turn) % count)
                    .filter(|&at| free(&inner.entries[at]))
                    .min_by_key(|&at| inner.entries[at].under_way)?;
                inner.turn = best + 1;
                best
            }
        };
        let entry = &mut inner.entries[best];
        entry.under_way += 1;
        let instance = entry.instance.clone();
        Some(Permit { pool: self.clone(), instance, began: Instant::now() })
    }

    /// Gives free permits to waiting requests.
    fn grant_waiting(self: &Arc<Self>) {
        loop {
            let mut inner = self.lock();
            if inner.waiters.first_open().is_none() || inner.waiters.is_closed() {
                return;
            }
            let Some(permit) = self.permit(&mut inner, None) else { return };
            let next = inner.next_waiting();
            drop(inner);
            // If the request no longer waits, the permit is dropped, and returns to the pool.
            if let Some(next) = next {
                let _ = next.sender.send(Ok(permit));
            }
        }
    }

    pub(super) fn add(&self, instance: Arc<Instance>) {
        let mut inner = self.lock();
        inner.starts += 1;
        let now = Instant::now();
        inner.entries.push(PoolEntry {
            instance,
            stage: Stage::Starting,
            under_way: 0,
            idle_since: now,
        });
    }

    /// Gives requests to the process `id`, which listens now, unless the process is retired or has
    /// ended. Also ends a crash loop.
    pub(super) fn serve(self: &Arc<Self>, id: u64) {
        {
            let mut inner = self.lock();
            inner.waiters.end_crash_loop();
            let Some(entry) = inner.entry(id).filter(|entry| entry.stage == Stage::Starting) else {
                return;
            };
            entry.stage = Stage::Serving;
            entry.idle_since = Instant::now();
        }
        self.grant_waiting();
    }

    /// Returns true if a process takes requests now.
    pub(super) fn is_serving(&self) -> bool {
        self.lock().entries.iter().any(|entry| entry.stage == Stage::Serving)
    }

    /// Stops giving requests to a process.
    pub(super) fn retire(&self, id: u64) {
        if let Some(entry) = self.lock().entry(id) {
            entry.stage = Stage::Retired;
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// Removes a process that has ended. Counts a crash if `crashed` is true.
    pub(super) fn remove(&self, id: u64, crashed: bool) {
        let mut inner = self.lock();
        inner.entries.retain(|entry| entry.instance.id != id);
        inner.crashes += u64::from(crashed);
        drop(inner);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Refuses all waiting requests. From now on, also refuses each new request that finds no free
    /// permit.
    pub(super) fn begin_crash_loop(&self, last_lines: String) {
        self.lock().waiters.begin_crash_loop(last_lines);
    }

    /// Lets new requests wait for the next attempt to start a process.
    /// [`begin_crash_loop`](InstancePool::begin_crash_loop) refused such requests.
    pub(super) fn let_wait(&self) {
        self.lock().waiters.let_wait();
    }

    /// Refuses all requests from now on.
    pub(super) fn close(&self) {
        self.lock().waiters.close();
    }

    pub(super) fn waiting(&self) -> usize {
        self.lock().waiters.count()
    }

    pub(super) fn snapshots(&self) -> Vec<Snapshot> {
        let snapshot = |entry: &PoolEntry| Snapshot {
            id: entry.instance.id,
            stage: entry.stage,
            requests: entry.instance.requests.load(Ordering::Relaxed),
            under_way: entry.under_way,
            idle_since: entry.idle_since,
            busy_since: None,
        };
        self.lock().entries.iter().map(snapshot).collect()
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn serves(&self, id: u64) -> bool {
        self.lock().entry(id).is_some_and(|entry| entry.stage == Stage::Serving)
    }

    /// Returns the id of the process with this [name](Permit::name). Returns `None` if no such
    /// process takes requests.
    pub(super) fn named(&self, name: &[u8]) -> Option<u64> {
        let inner = self.lock();
        let mut serving = inner.entries.iter().filter(|entry| entry.stage == Stage::Serving);
        let entry = serving.find(|entry| entry.instance.name.as_bytes() == name)?;
        Some(entry.instance.id)
    }

    pub(super) fn health(&self) -> Health {
        let of = |entry: &PoolEntry| (entry.instance.clone(), entry.stage, entry.under_way);
        let entries: Vec<_> = self.lock().entries.iter().map(of).collect();
        // Do not hold the lock here, because reading the memory use of all processes takes time.
        let workers = entries.iter().map(|(instance, stage, under_way)| {
            let state = match (stage, under_way) {
                (Stage::Starting, _) => WorkerState::Starting,
                (Stage::Serving, 0) => WorkerState::Idle,
                (Stage::Serving, _) => WorkerState::Busy,
                (Stage::Retired | Stage::Ending, _) => WorkerState::Ending,
            };
            instance.status(state, *under_way)
        });
        let workers = workers.collect();
        let waiting = self.waiting();
        let inner = self.lock();
        Health {
            workers,
            waiting,
            starts: inner.starts,
            crashes: inner.crashes,
            crash_loop: inner.waiters.crash_loop(),
            note: None,
        }
    }

    fn send(&self, command: Command) {
        if let Some(commands) = self.commands.get() {
            let _ = commands.send(command);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter for WaitingRequest {
    fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    fn client(&self) -> u64 {
        self.client
    }

    fn refuse(self, why: Unavailable) {
        let _ = self.sender.send(Err(why));
    }
}

impl Inner {
    /// Removes and returns the request that gets the next permit. If the first request has waited
    /// for [`LONG`], returns the first request. Otherwise prefers a request of the calling thread
    /// among the first [`NEARBY`] requests. Returns `None` if no request waits.
    fn next_waiting(&mut self) -> Option<WaitingRequest> {
        let requests = self.waiters.requests();
        let here = thread::current().id();
        let is_near = |request: &WaitingRequest| request.thread == here && request.is_open();
        let near = requests.iter().take(NEARBY.min(self.waiters.peers())).position(is_near);
        let waits_long = requests.front()?.since.elapsed() >= LONG;
        self.waiters.remove(near.filter(|_| !waits_long).unwrap_or(0))
    }

    fn entry(&mut self, id: u64) -> Option<&mut PoolEntry> {
        self.entries.iter_mut().find(|entry| entry.instance.id == id)
    }
}

impl Permit {
    /// Returns the number of the process in its program. This number is not the process id, and is
    /// never reused.
    pub fn id(&self) -> u64 {
        self.instance.id
    }

    /// Returns the name of the process for clients: 16 random hexadecimal digits.
    pub fn name(&self) -> &str {
        &self.instance.name
    }

    /// Returns the address of the process.
    pub fn place(&self) -> &ProcessAddress {
        &self.instance.place
    }

    /// Counts the request. The status then shows its method and target.
    pub fn begin(&self, method: &[u8], target: &[u8]) {
        self.instance.begin_request(method, target);
    }

    /// Replaces the process, because it refused a connection. Does nothing if the process has
    /// already ended.
    pub fn was_refused(&self) {
        self.pool.retire(self.instance.id);
        self.pool.send(Command::Refused(self.instance.id));
    }

    /// Replaces the process, because it announced that it takes no further request.
    pub fn leaves(&self) {
        self.pool.retire(self.instance.id);
        self.pool.send(Command::Leaves(self.instance.id));
    }

    /// Returns the record of the process's signs of life and of its end.
    pub fn life(&self) -> Arc<Life> {
        self.instance.life.clone()
    }

    /// Reports that the request got no answer within `limit`. If the process gave no sign of life
    /// on any connection in this time, the process counts as hung, and is replaced. Time before the
    /// start of this request does not count as silence.
    pub fn was_silent(&self, limit: Duration) {
        let then = Instant::now().checked_sub(limit);
        let since = then.map_or(self.began, |then| then.max(self.began));
        if self.instance.life.last() >= since {
            return;
        }
        let id = self.instance.id;
        // Retire the process at once, because the next request may come before the supervisor acts.
        // The number of its requests cannot grow afterwards, so read this number after `retire`.
        self.pool.retire(id);
        let has_others = self.pool.lock().entry(id).is_some_and(|entry| entry.under_way > 1);
        self.pool.send(Command::Hung { id, has_others });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut inner = self.pool.lock();
        let now = Instant::now();
        let waits = !inner.waiters.requests().is_empty();
        let Some(entry) = inner.entry(self.instance.id) else { return };
        entry.under_way -= 1;
        entry.idle_since = now;
        let is_drained = entry.stage == Stage::Retired && entry.under_way == 0;
        let is_used_up = entry.stage == Stage::Serving
            && entry.instance.requests.load(Ordering::Relaxed) >= entry.instance.limit;
        drop(inner);
        if is_drained {
            self.pool.send(Command::Drained);
        } else if is_used_up {
            self.pool.send(Command::Replace(self.instance.id));
        }
        if waits {
            self.pool.grant_waiting();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_taken_for_hung_gets_no_further_request() {
        let pool = Arc::new(InstancePool::new(1));
        let place = ProcessAddress::Unix("/nowhere".into());
        pool.add(Arc::new(Instance::new(1, (place, None), 0, u64::MAX)));
        pool.serve(1);
        let Ok(Taken::Permit(permit)) = pool.take(1, None, || 0) else {
            panic!("the permit is free")
        };
        permit.was_silent(Duration::ZERO);
        drop(permit);
        assert!(matches!(pool.take(1, None, || 0), Ok(Taken::Wait(_))));
    }

    /// Requests arrive and leave, instances start, are retired and end, in random order. No
    /// instance has more requests than permits, no request waits while a permit is free, and all
    /// requests end. The test prints the seed of a failed run; `FOREBAY_SEED` repeats that run.
    #[test]
    fn in_any_schedule_no_permit_is_lost_or_left_unused() {
        let given = std::env::var("FOREBAY_SEED").map(|seed| seed.parse().expect("a number"));
        for seed in given.map_or(0..300, |seed: u64| seed..seed + 1) {
            if let Err(panic) = std::panic::catch_unwind(|| run_schedule(seed)) {
                eprintln!("FOREBAY_SEED={seed} repeats it");
                std::panic::resume_unwind(panic);
            }
        }
    }

    fn run_schedule(seed: u64) {
        fastrand::seed(seed);
        let pool = Arc::new(InstancePool::new(fastrand::usize(1..=3)));
        let (mut held, mut turns, mut last_id) = (Vec::new(), Vec::new(), 0);
        for _ in 0..200 {
            let some_id = fastrand::u64(0..=last_id);
            match fastrand::u32(..12) {
                0..5 => {
                    match pool.take(4, fastrand::bool().then_some(some_id), || fastrand::u64(..3)) {
                        Ok(Taken::Permit(permit)) => held.push(permit),
                        Ok(Taken::Wait(turn)) => turns.push(turn),
                        Err(why) => assert_ne!(why, Unavailable::ShuttingDown),
                    }
                }
                5..8 if !held.is_empty() => drop(held.swap_remove(fastrand::usize(..held.len()))),
                8 if !turns.is_empty() => drop(turns.swap_remove(fastrand::usize(..turns.len()))),
                9 => {
                    last_id += 1;
                    let place = ProcessAddress::Unix("/nowhere".into());
                    pool.add(Arc::new(Instance::new(last_id, (place, None), 0, u64::MAX)));
                    pool.serve(fastrand::u64(1..=last_id));
                }
                10 => pool.retire(some_id),
                11 if fastrand::bool() => pool.remove(some_id, fastrand::bool()),
                11 => pool.begin_crash_loop("why".into()),
                _ => pool.let_wait(),
            }
            turns.retain_mut(|turn| match turn.try_recv() {
                Ok(Ok(permit)) => {
                    held.push(permit);
                    false
                }
                Ok(Err(_)) => false,
                Err(error) => {
                    assert_eq!(error, oneshot::error::TryRecvError::Empty, "it is forgotten");
                    true
                }
            });
            let inner = pool.lock();
            for entry in &inner.entries {
                let id = entry.instance.id;
                let known = held.iter().filter(|permit| permit.id() == id).count();
                assert_eq!(entry.under_way, known, "permits of instance {id}");
                assert!(known <= pool.permits);
                let is_free = entry.stage == Stage::Serving && known < pool.permits;
                assert!(!is_free || inner.waiters.count() == 0, "instance {id} is free");
            }
            assert_eq!(inner.waiters.count(), turns.len());
        }
        pool.close();
        assert!(turns.iter_mut().all(|turn| matches!(turn.try_recv(), Ok(Err(_)))));
    }
}
