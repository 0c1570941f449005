//! Assigns a worker to a request: at once, after a wait in the queue, or through a worker's
//! prefetch queue.

use crate::control::Mark;
use crate::error::Unavailable;
use crate::lease::Lease;
use crate::pool::{Given, Message, TICK, Taken, Turn};
use crate::shared::AppShared;
use crate::supervisor::Command;
use std::sync::Arc;
use std::thread::ThreadId;
use tokio::runtime::Handle;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, timeout_at};

/// Returns a worker for a request on `thread`, the current thread. `message` encodes the request
/// for a worker's prefetch queue, which holds requests until the worker has finished its current
/// request. `client` is called only if the request has to wait.
pub(crate) async fn checkout(
    shared: &Arc<AppShared>,
    thread: ThreadId,
    client: impl Fn() -> u64,
    message: impl Fn(Mark) -> Message,
) -> Result<Lease, Unavailable> {
    loop {
        let mark = Mark::new();
        let taken =
            shared.pool.take(thread, shared.spec.queue, mark, (&client, || message(mark)))?;
        let given = await_turn(shared, taken, mark).await?;
        if given.has_request {
            return Ok(Lease::of_begun(shared.clone(), given.worker, mark));
        }
        if let Some(worker) = shared.settled(given.worker) {
            return Ok(Lease::new(shared.clone(), worker, mark));
        }
    }
}

/// Returns the worker in `taken`, or waits until the pool assigns a worker to the request. Fails
/// after `queue_timeout`, or if the pool refuses the request.
async fn await_turn(
    shared: &Arc<AppShared>,
    taken: Taken,
    mark: Mark,
) -> Result<Given, Unavailable> {
    let (turn, begins_looks) = match taken {
        Taken::Worker(worker) => return Ok(Given { worker, has_request: false }),
        Taken::Wait { turn, begins_looks } => (turn, begins_looks),
    };
    let mut place = QueuePlace { turn: Some(turn), mark, shared };
    if begins_looks {
        tokio::spawn(look_after(Looks(shared.clone())));
    }
    let outcome = place.wait().await;
    if !matches!(outcome, Err(Unavailable::QueueTimeout)) {
        place.turn = None;
    }
    outcome
}

/// The position of a waiting request: in the pool's queue, or in a worker's prefetch queue.
struct QueuePlace<'a> {
    /// Receives the worker. `None` after the wait has ended.
    turn: Option<Turn>,
    mark: Mark,
    shared: &'a Arc<AppShared>,
}

impl QueuePlace<'_> {
    /// Waits until the pool delivers a worker, for at most `queue_timeout`, or `start_timeout` while
    /// no worker serves. Fails after that time, or if the pool refuses the request.
    async fn wait(&mut self) -> Result<Given, Unavailable> {
        let begun = Instant::now();
        let (mut limit, spec) = (self.shared.spec.queue_timeout, &self.shared.spec);
        loop {
            let Some(turn) = &mut self.turn else { return Err(Unavailable::ShuttingDown) };
            if let Ok(outcome) = timeout_at(begun + limit, turn).await {
                return outcome.unwrap_or(Err(Unavailable::ShuttingDown));
            }
            if limit >= spec.start_timeout || self.shared.pool.is_serving() {
                return Err(Unavailable::QueueTimeout);
            }
            limit = spec.start_timeout;
        }
    }
}

/// Looks after the requests that wait, for all threads, until none waits. Tells the supervisor about
/// them if it may start more workers.
async fn look_after(looks: Looks) {
    let (pool, workers) = (&looks.0.pool, looks.0.spec.workers);
    while pool.look_after() {
        let may_start = workers.min < workers.max && pool.all().len() < workers.max;
        if may_start && pool.missing() > 0 {
            looks.0.supervisor.send(Command::RequestWaits);
        }
        tokio::time::sleep(TICK).await;
    }
}

/// The task that looks after waiting requests. If its thread ends, another one takes over.
struct Looks(Arc<AppShared>);

impl Drop for Looks {
    fn drop(&mut self) {
        self.0.pool.end_looks();
    }
}

/// Ends the wait of a request that is not wanted any more. If a worker was assigned to the request
/// in the meantime, that worker goes to the next request. Exception: if that worker has read this
/// request, or is about to read it, this request still runs.
impl Drop for QueuePlace<'_> {
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
                    Lease::of_begun(shared, worker, mark).run_unheard().await;
                }
                Some(Given { worker, .. }) => shared.pool.give(worker),
                None => {}
            }
        });
    }
}
