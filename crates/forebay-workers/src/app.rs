//! An application: its workers, as the gateway sees them.

use crate::control;
use crate::error::Unavailable;
use crate::health::Health;
use crate::lease::{Body, Lease};
use crate::link::Noise;
use crate::pace::MOMENT;
use crate::pool::{Given, Hurried, Message, Pool, Taken, Turn};
use crate::spec::AppSpec;
use crate::stderr::Log;
use crate::supervisor::{self, Command};
use crate::thread::FirstStart;
use crate::trailer::Mark;
use crate::worker::{Killed, Worker, WorkerStatus};
use forebay_process::StartError;
use forebay_process::cgroup::LimitedCgroup;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// How often a request that waits for a worker which should be done soon looks after itself; so
/// long it lies in a slot at the most, unless the worker reads it.
const LOOK: Duration = Duration::from_millis(1);

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
    /// Starts the workers and returns when the first one is ready; an error leaves nothing running.
    /// `log` gets each line that the workers write to standard error, and what the supervisor has to
    /// say; it may be called from several threads. Blocks: call it before requests are served.
    pub fn start(
        spec: AppSpec,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<App, StartError> {
        let (app, first) = App::begin(spec, log)?;
        first.wait_for_end().inspect_err(|_| app.end())?;
        Ok(app)
    }

    /// As [`start`](App::start), without waiting. Where the first worker does not become ready,
    /// requests are refused and further starts follow, as they do where workers end later.
    pub fn begin(
        spec: AppSpec,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(App, FirstStart), StartError> {
        let log: Log = Arc::new(log);
        let pool = Arc::new(Pool::default());
        let (cgroup, note) = LimitedCgroup::prepare(&spec.name, spec.cgroup, &*log);
        let (commands, supervisor, first) =
            supervisor::start(spec.clone(), cgroup, pool.clone(), log.clone())?;
        let supervisor = Mutex::new(Some(supervisor));
        let shared = Arc::new(Shared { spec, pool, log, commands, supervisor, note });
        Ok((App { shared }, first))
    }

    /// A worker for one request; waits for one in turn if all are busy. Must be called within a
    /// tokio runtime of the kind `current_thread` with I/O and time enabled, and the lease used
    /// there.
    pub async fn checkout(&self) -> Result<Lease, Unavailable> {
        self.shared.lease(|_| None).await
    }

    /// As [`checkout`](App::checkout), for this request: it may then be put behind another one, so
    /// that a worker has it when it is done with that. [`send`](Lease::send) the same.
    pub async fn checkout_for(&self, block: &[u8], body: Body<'_>) -> Result<Lease, Unavailable> {
        self.shared.lease(|mark| control::message(block, body, mark)).await
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
        // It has nothing left to do but to return.
        self.join();
    }

    /// As [`shutdown`](App::shutdown) without grace, for who has no event loop. Blocks.
    pub fn end(&self) {
        self.shared.pool.close();
        let (done, _) = oneshot::channel();
        let _ = self.shared.commands.send(Command::Shutdown { grace: Duration::ZERO, done });
        self.join();
    }

    fn join(&self) {
        let mut supervisor = self.shared.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(supervisor) = supervisor.take() {
            let _ = supervisor.join();
        }
    }
}

impl Shared {
    /// A worker; `message` makes what may be put into one's slot.
    async fn lease(
        self: &Arc<Self>,
        message: impl Fn(Mark) -> Message,
    ) -> Result<Lease, Unavailable> {
        loop {
            let (thread, mark) = (std::thread::current().id(), Mark::new());
            let taken = self.pool.take(thread, self.spec.queue, mark, || message(mark))?;
            let given = self.await_turn(taken, mark, thread).await?;
            if given.has_request {
                return Ok(Lease::of_begun(self.clone(), given.worker, mark));
            }
            if let Some(worker) = self.settled(given.worker) {
                return Ok(Lease::new(self.clone(), worker, mark));
            }
        }
    }

    async fn await_turn(
        self: &Arc<Self>,
        taken: Taken,
        mark: Mark,
        thread: ThreadId,
    ) -> Result<Given, Unavailable> {
        let (turn, soon) = match taken {
            Taken::Worker(worker) => return Ok(Given { worker, has_request: false }),
            Taken::Wait { turn, soon } => (turn, soon),
        };
        let mut place = Place { turn: Some(turn), mark, shared: self };
        if !soon {
            place.say_that_it_waits();
        }
        let outcome = place.wait(thread).await;
        if !matches!(outcome, Err(Unavailable::QueueTimeout)) {
            place.turn = None;
        }
        outcome
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
        self.pool.rescue(&facts);
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

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn say(&self, text: &str) {
        (self.log)(&format!("[{}] {text}", self.spec.name));
    }
}

/// A place in the queue, or in the slot of a worker.
struct Place<'a> {
    /// `None` once it has come.
    turn: Option<Turn>,
    mark: Mark,
    shared: &'a Arc<Shared>,
}

impl Place<'_> {
    async fn wait(&mut self, thread: ThreadId) -> Result<Given, Unavailable> {
        let begun = Instant::now();
        let limit = begun + self.shared.spec.queue_timeout;
        let mut look = begun + LOOK;
        loop {
            let Some(turn) = &mut self.turn else { return Err(Unavailable::ShuttingDown) };
            if let Ok(outcome) = timeout_at(look.min(limit), turn).await {
                return outcome.unwrap_or(Err(Unavailable::ShuttingDown));
            }
            if look >= limit {
                return Err(Unavailable::QueueTimeout);
            }
            let long = begun.elapsed() >= MOMENT;
            look = match self.shared.pool.hurry(self.mark, thread, long) {
                Hurried::Worker(worker) => return Ok(Given { worker, has_request: false }),
                Hurried::Held => Instant::now() + LOOK,
                Hurried::Waits => {
                    self.say_that_it_waits();
                    limit
                }
            };
        }
    }

    fn say_that_it_waits(&self) {
        if self.shared.spec.workers.min < self.shared.spec.workers.max {
            let _ = self.shared.commands.send(Command::RequestWaits);
        }
    }
}

/// Nobody waits any more. A worker that was given meanwhile goes to the next; a request that a
/// worker has read, or is about to, is run all the same.
impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(mut turn) = self.turn.take() else { return };
        let held = !self.shared.pool.forget(self.mark);
        let given = match turn.try_recv() {
            Ok(Ok(Given { worker, has_request: false })) => return self.shared.pool.give(worker),
            Ok(Ok(given)) => Some(given),
            Err(TryRecvError::Empty) if held => None,
            _ => return,
        };
        let (shared, mark) = (self.shared.clone(), self.mark);
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let given = match given {
                Some(given) => Some(given),
                None => turn.await.ok().and_then(Result::ok),
            };
            match given {
                Some(Given { worker, has_request: true }) => {
                    Lease::of_begun(shared, worker, mark).abandon().await;
                }
                Some(Given { worker, .. }) => shared.pool.give(worker),
                None => {}
            }
        });
    }
}
