//! An application: its workers, as the gateway sees them.

use crate::cgroup;
use crate::error::{StartError, Unavailable};
use crate::health::Health;
use crate::lease::Lease;
use crate::link::Noise;
use crate::pace::MOMENT;
use crate::pool::{Pool, Taken, Turn};
use crate::spec::AppSpec;
use crate::stderr::Log;
use crate::supervisor::{self, Command};
use crate::worker::{Killed, Worker, WorkerStatus};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A running application. Clones are the same application; when the last is dropped without
/// [`shutdown`](App::shutdown), its workers are killed.
#[derive(Clone)]
pub struct App {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    spec: AppSpec,
    pool: Arc<Pool>,
    log: Log,
    commands: mpsc::UnboundedSender<Command>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    /// What was asked for and cannot be done on this machine.
    note: Option<String>,
}

impl App {
    /// Starts the workers and returns when the first one is ready. `log` gets each line that the
    /// workers write to standard error, and what the supervisor has to say; it may be called from
    /// several threads. Blocks: call it before requests are served.
    pub fn start(
        spec: AppSpec,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<App, StartError> {
        let log: Log = Arc::new(log);
        let pool = Arc::new(Pool::default());
        let (cgroup, note) = cgroup::prepare(&spec.name, spec.cgroup, &log);
        let (commands, supervisor) =
            supervisor::start(spec.clone(), cgroup, pool.clone(), log.clone())?;
        let supervisor = Mutex::new(Some(supervisor));
        Ok(App { shared: Arc::new(Shared { spec, pool, log, commands, supervisor, note }) })
    }

    /// A worker for one request; waits for one in turn if all are busy. Must be called within a
    /// tokio runtime with I/O and time enabled, and the lease used there.
    pub async fn checkout(&self) -> Result<Lease, Unavailable> {
        let shared = &self.shared;
        loop {
            let thread = std::thread::current().id();
            let worker = match shared.pool.take(thread, shared.spec.queue)? {
                Taken::Worker(worker) => worker,
                Taken::Wait(turn) => shared.wait(shared.place(turn)).await?,
                Taken::WaitAMoment(turn) => {
                    shared.wait_a_moment(shared.place(turn), thread).await?
                }
            };
            if let Some(worker) = shared.settled(worker) {
                return Ok(Lease::new(shared.clone(), worker));
            }
        }
    }

    /// Every worker at this moment, by age.
    pub fn status(&self) -> Vec<WorkerStatus> {
        self.shared.pool.all().iter().map(|facts| facts.status()).collect()
    }

    /// Whether the other one is this very application.
    pub fn is_same(&self, other: &App) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// How it is.
    pub fn health(&self) -> Health {
        Health { note: self.shared.note.clone(), ..self.shared.pool.health() }
    }

    /// The configuration was read again: workers whose files have changed since they were last
    /// looked at are replaced.
    pub fn reloaded(&self) {
        let _ = self.shared.commands.send(Command::Reloaded);
    }

    /// Ends all workers: idle ones at once, busy ones after their request or, after `grace`, by
    /// force. Requests that wait are refused. When this returns, no worker is left.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.pool.close();
        let (done, all_ended) = oneshot::channel();
        if self.shared.commands.send(Command::Shutdown { grace, done }).is_ok() {
            let _ = all_ended.await;
        }
        let mut supervisor = self.shared.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(supervisor) = supervisor.take() {
            // It has nothing left to do but to return.
            let _ = supervisor.join();
        }
    }
}

impl Shared {
    fn place(&self, turn: Turn) -> Place<'_> {
        Place { turn, pool: &self.pool }
    }

    /// Waits for a worker that should be done soon; if it is not, for any.
    async fn wait_a_moment(
        &self,
        mut place: Place<'_>,
        thread: ThreadId,
    ) -> Result<Worker, Unavailable> {
        match tokio::time::timeout(MOMENT, &mut place.turn).await {
            Ok(outcome) => outcome.unwrap_or(Err(Unavailable::ShuttingDown)),
            Err(_) => match self.pool.take_idle(thread) {
                Some(worker) => Ok(worker),
                None => self.wait(place).await,
            },
        }
    }

    async fn wait(&self, mut place: Place<'_>) -> Result<Worker, Unavailable> {
        if self.spec.workers.min < self.spec.workers.max {
            let _ = self.commands.send(Command::RequestWaits);
        }
        match tokio::time::timeout(self.spec.queue_timeout, &mut place.turn).await {
            Ok(outcome) => outcome.unwrap_or(Err(Unavailable::ShuttingDown)),
            Err(_) => Err(Unavailable::QueueTimeout),
        }
    }

    /// The worker, fit for use by this thread; `None` if it is not fit for anything.
    fn settled(&self, worker: Worker) -> Option<Worker> {
        let facts = worker.facts.clone();
        match worker.settle() {
            Ok((worker, None)) => return Some(worker),
            Ok((_, Some(Noise::HungUp))) => {}
            Ok((_, Some(Noise::Bytes))) => {
                self.say(&format!(
                    "worker {} wrote while it had no request (a background process of a script \
                     that kept standard output?); it is replaced",
                    facts.pid.as_raw_nonzero()
                ));
                facts.kill(Killed::WroteWhileIdle);
            }
            Err(error) => {
                self.say(&format!(
                    "cannot wait for worker {}: {error}",
                    facts.pid.as_raw_nonzero()
                ));
                facts.kill(Killed::BrokeProtocol);
            }
        }
        None
    }

    /// Takes a worker back after a request.
    pub(crate) fn give_back(&self, worker: Worker) {
        let facts = &worker.facts;
        let used_up = facts.requests.load(Ordering::Relaxed) >= facts.limit;
        if used_up && !facts.replacing.swap(true, Ordering::Relaxed) {
            let _ = self.commands.send(Command::Replace(facts.id));
        }
        self.pool.learn(facts);
        self.pool.give(worker);
    }

    pub(crate) fn say(&self, text: &str) {
        (self.log)(&format!("[{}] {text}", self.spec.name));
    }
}

/// A place in the queue. A worker that arrives when nobody waits any more goes to the next.
struct Place<'a> {
    turn: Turn,
    pool: &'a Pool,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.turn.close();
        if let Ok(Ok(worker)) = self.turn.try_recv() {
            self.pool.give(worker);
        }
    }
}
