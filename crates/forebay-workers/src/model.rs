//! Tests the pool, the prefetch queues and the leases under random schedules. Requests arrive, wait
//! and leave. Between any two steps, workers become ready, reply in pieces, clean up, are retired,
//! time out and die. The test simulates the workers over real sockets, with a paused clock.
//!
//! The test checks these rules:
//! - a request runs at most once, and never if its fault says that it may be repeated;
//! - a client gets only the bytes of its own reply, and all of them before its end;
//! - no request waits while a worker is idle, or behind one that takes long (except for
//!   `pace::MOMENT`), and each request ends;
//! - after all requests have ended, each living worker that is not retired is idle and listed once;
//! - no counter drops below zero (test builds check arithmetic).
//!
//! The test prints the seed of a failed run; `FOREBAY_SEED` repeats that run.

mod client;
mod host;

use crate::pace::MOMENT;
use crate::pool::Pool;
use crate::shared::AppShared;
use crate::spec::{AppSpec, Kind, PerlMode};
use crate::supervisor::{Command, Handle};
use crate::worker::Killed;
use client::{ClientPlan, client};
use host::{Host, KILLED};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

const SEEDS: u64 = 120;
const STEPS: usize = 250;
/// Largest number of rounds from the last disturbance until all requests have ended.
const LAST_ROUNDS: usize = 20_000;
/// Longest wait of a request while a worker is idle: `pace::MOMENT`, and the time of one or two
/// checks. The request may wait longer if as many requests as processors have begun recently.
const BESIDE_IDLE: Duration = Duration::from_millis(10);

#[test]
fn in_any_schedule_each_request_has_its_own_reply_and_no_worker_is_lost() {
    let other = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
    let given = std::env::var("FOREBAY_SEED").map(|seed| seed.parse().expect("a number"));
    let seeds = given.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed, other)) {
            eprintln!("FOREBAY_SEED={seed} repeats it");
            std::panic::resume_unwind(panic);
        }
    }
}

fn run(seed: u64, other: ThreadId) {
    fastrand::seed(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let mut world = World::new(other);
        for _ in 0..STEPS {
            world.disturb();
            world.let_run().await;
            world.check();
        }
        world.come_to_an_end().await;
    });
}

/// One attempt of a client to run its request.
#[derive(Default)]
struct Attempt {
    runs: u32,
    reply: Vec<u8>,
}

type Attempts = Rc<RefCell<Vec<Attempt>>>;

struct World {
    shared: Arc<AppShared>,
    commands: mpsc::UnboundedReceiver<Command>,
    hosts: Vec<Host>,
    last_id: u64,
    threads: [ThreadId; 2],
    attempts: Attempts,
    clients: Vec<JoinHandle<()>>,
    requests_wait: bool,
}

impl World {
    fn new(other: ThreadId) -> World {
        let kind = Kind::PerlCgi { dir: "/".into(), mode: PerlMode::Registry, preload: Vec::new() };
        let mut spec = AppSpec::new("a", kind);
        spec.workers.min = fastrand::usize(1..=3);
        spec.workers.max = spec.workers.min + fastrand::usize(0..=2);
        spec.queue = fastrand::usize(1..=20);
        spec.queue_timeout = Duration::from_millis(*one_of(&[3, 20, 30_000]));
        spec.start_timeout = spec.queue_timeout;
        spec.max_requests = fastrand::bool().then(|| fastrand::u64(1..=20));
        let (supervisor, commands) = Handle::without_thread();
        let shared = AppShared {
            spec,
            pool: Arc::new(Pool::default()),
            sink: Arc::new(|_: forebay_process::Severity, _: &str| {}),
            supervisor,
            note: None,
            proofs: None,
        };
        shared.pool.set_pace(fastrand::usize(1..=2), fastrand::u8(..4) > 0);
        if fastrand::bool() {
            shared.pool.set_near();
        }
        World {
            shared: Arc::new(shared),
            commands,
            hosts: Vec::new(),
            last_id: 0,
            threads: [std::thread::current().id(), other],
            attempts: Attempts::default(),
            clients: Vec::new(),
            requests_wait: false,
        }
    }

    /// Makes one random event happen.
    fn disturb(&mut self) {
        match fastrand::u32(..100) {
            0..25 => self.start_client(),
            25..75 => self.advance_some_host(),
            75..88 => self.supervise(),
            88..90 => self.with_some_host(|host| host.die(KILLED)),
            90..92 => self.with_some_host(|host| host.shared.kill(Killed::RequestTimeout)),
            92..94 => self.replace_some_host(),
            94..95 => self.shared.pool.set_pace(1, fastrand::bool()),
            95..96 => self.shared.pool.begin_crash_loop("why".into()),
            96..98 => self.shared.pool.end_crash_loop(),
            _ => self.with_some_host(|host| host.limit_pieces()),
        }
    }

    /// Lets clients run, and sometimes lets time pass.
    async fn let_run(&self) {
        for _ in 0..fastrand::u32(..4) {
            tokio::task::yield_now().await;
        }
        match fastrand::u32(..10) {
            0..6 => {}
            6..9 => sleep(Duration::from_micros(fastrand::u64(1..2500))).await,
            _ => {
                let time = Duration::from_millis(fastrand::u64(1..150));
                sleep(time).await;
                let contents = self.shared.pool.contents(MOMENT + BESIDE_IDLE);
                let is_behind = time > BESIDE_IDLE && !contents.delaying.is_empty();
                assert!(!is_behind, "a request waits behind a long one: {contents:?}");
            }
        }
    }

    fn start_client(&mut self) {
        let plan = ClientPlan::random(one_of(&self.threads));
        let (shared, attempts) = (self.shared.clone(), self.attempts.clone());
        self.clients.push(spawn_local(async move {
            match plan.leaves_after {
                // The client leaves at any point of its request.
                Some(after) => drop(timeout(after, client(shared, plan, attempts)).await),
                None => client(shared, plan, attempts).await,
            }
        }));
    }

    fn with_some_host(&mut self, act: impl FnOnce(&mut Host)) {
        if !self.hosts.is_empty() {
            let at = fastrand::usize(..self.hosts.len());
            act(&mut self.hosts[at]);
        }
    }

    fn advance_some_host(&mut self) {
        let attempts = self.attempts.clone();
        self.with_some_host(|host| host.advance(&attempts));
    }

    fn replace_some_host(&mut self) {
        let mut replaced = None;
        self.with_some_host(|host| replaced = Some(host.shared.id));
        replaced.into_iter().for_each(|id| self.replace(id));
    }

    fn replace(&mut self, id: u64) {
        if self.hosts.iter().any(|host| host.shared.id == id) {
            self.start_host(Some(id));
        }
    }

    fn supervise(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::RequestWaits => self.requests_wait = true,
                Command::Replace(id) => self.replace(id),
                other => panic!("no supervisor of workers gets {other:?} here"),
            }
        }
        let pool = self.shared.pool.clone();
        self.hosts.retain(|host| {
            if host.is_reaped {
                pool.remove(host.shared.id, false);
            }
            !host.is_reaped
        });
        if self.shared.pool.is_closed() {
            // The pool accepts no more requests, so starting workers are dropped.
            let starting = self.hosts.iter_mut().filter_map(|host| host.starting.take());
            return drop(starting.collect::<Vec<_>>());
        }
        let stays = |host: &&Host| !host.is_retired();
        let live = self.hosts.iter().filter(stays).count();
        let workers = self.shared.spec.workers;
        if live < workers.min || self.requests_wait && live < workers.max {
            self.requests_wait = false;
            self.start_host(None);
        }
        let starting = self.hosts.iter_mut().find(|host| host.starting.is_some());
        let Some(host) = starting.filter(|_| fastrand::bool()) else { return };
        let (worker, replaces) = host.starting.take().unwrap();
        if host.ends.is_none() {
            return;
        }
        if let Some(old) = self.hosts.iter().find(|host| Some(host.shared.id) == replaces) {
            pool.retire(&old.shared);
        }
        pool.end_crash_loop();
        pool.give(worker);
    }

    fn start_host(&mut self, replaces: Option<u64>) {
        self.last_id += 1;
        let limit = self.shared.spec.max_requests.unwrap_or(u64::MAX);
        let host = Host::start(self.last_id, limit, replaces);
        self.shared.pool.add(host.shared.clone());
        self.hosts.push(host);
    }

    fn check(&mut self) {
        let contents = self.shared.pool.contents(MOMENT + BESIDE_IDLE);
        let forgotten = contents.waiting.iter().any(|age| *age > BESIDE_IDLE);
        let may_wait = contents.idle.is_empty() || contents.is_full;
        assert!(may_wait || !forgotten, "an idle worker: {contents:?}");
        let clients = self.clients.iter().filter(|client| !client.is_finished()).count();
        assert!(contents.waiting.len() <= clients, "a request waits for nobody: {contents:?}");
        let mut known: Vec<u64> = contents.idle.clone();
        known.extend(contents.busy.iter().map(|busy| busy.0));
        known.sort_unstable();
        assert!(known.is_sorted_by(|a, b| a < b), "a worker is known twice: {contents:?}");
    }

    /// Runs the model without further disturbances until all requests have ended and all workers
    /// are idle.
    async fn come_to_an_end(mut self) {
        let ends_early = fastrand::bool();
        if ends_early {
            self.shared.pool.close();
        }
        for _ in 0..LAST_ROUNDS {
            for host in &mut self.hosts {
                host.longest_piece = usize::MAX;
                host.advance(&self.attempts);
            }
            self.supervise();
            sleep(Duration::from_millis(2)).await;
            self.check();
            let contents = self.shared.pool.contents(MOMENT);
            if self.clients.iter().all(JoinHandle::is_finished)
                && contents.busy.is_empty()
                && self.hosts.iter().all(|host| host.is_at_rest(ends_early))
                && self.hosts.iter().all(|host| host.starting.is_none())
            {
                break;
            }
        }
        for client in self.clients {
            assert!(client.is_finished(), "a request is forgotten: {:?}", self.shared.pool);
            client.await.unwrap();
        }
        let contents = self.shared.pool.contents(MOMENT);
        assert!(contents.busy.is_empty() && contents.waiting.is_empty(), "{contents:?}");
        let fit = self.hosts.iter().filter(|host| host.ends.is_some() && !host.is_retired());
        let fit = fit.filter(|host| host.starting.is_none());
        let mut fit: Vec<u64> = fit.map(|host| host.shared.id).collect();
        let mut idle = contents.idle;
        fit.sort_unstable();
        idle.sort_unstable();
        assert_eq!(idle, if ends_early { Vec::new() } else { fit }, "a worker is lost");
    }
}

fn one_of<T>(choices: &[T]) -> &T {
    &choices[fastrand::usize(..choices.len())]
}
