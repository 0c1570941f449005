//! The supervisor's operations on workers. A worker reports on its control socket that it is ready.
//! The pool lends the worker's sockets to requests. The worker ends when its sockets are closed.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_process::descendants::Usage;
use forebay_process::{Child, GroupReaper, Person};
use tokio::io::Interest;

use crate::control::Reply;
use crate::error::{Exit, refused_start};
use crate::link::{Link, Output};
use crate::pool::Pool;
use crate::process::{self, Confinement, Process};
use crate::spec::{AppSpec, Kind};
use crate::supervisor::{End, Fault, New, ProcessKind, Rules, Snapshot, Stage, Started};
use crate::sys;
use crate::worker::{Heard, Killed, Worker, WorkerShared, WorkerState};

/// A worker that still runs this long after it was asked to end is killed.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// A worker that closes its control socket before it is ready is killed after this time.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// The workers of one application.
pub(super) struct WorkerKind {
    spec: AppSpec,
    rules: Rules,
    place: Confinement,
    pool: Arc<Pool>,
    /// A shell that kills the workers when the gateway has ended. `None` without a shell.
    group_reaper: Option<GroupReaper>,
}

impl WorkerKind {
    pub(super) fn new(spec: AppSpec, place: Confinement, pool: Arc<Pool>) -> WorkerKind {
        let rules = Rules {
            name: spec.name.clone(),
            workers: spec.workers,
            first_alone: true,
            max_requests: spec.max_requests,
            max_age: spec.max_age,
            max_memory: spec.max_memory,
            max_cpu: spec.max_cpu,
            idle_timeout: spec.idle_timeout,
            start_timeout: spec.start_timeout,
            stop_timeout: END_TIMEOUT,
            stop_outlasts_grace: false,
            drain_timeout: None,
            request_timeout: Some(spec.request_timeout),
            watch: spec.watch.clone(),
            watch_at_reload: spec.files.clone(),
        };
        WorkerKind { spec, rules, place, pool, group_reaper: GroupReaper::start().ok() }
    }

    /// Returns true if a CGI script has ended the process of its worker with exit code 0. The
    /// script called `exit`, or replaced the process with another program (`exec`). In plain CGI,
    /// every script ends its process, so this is no error.
    fn is_end_of_script(&self, worker: &WorkerShared, reaped: Exit) -> bool {
        matches!(self.spec.kind, Kind::PerlCgi { .. } | Kind::PythonCgi { .. })
            && worker.state() == WorkerState::Busy
            && worker.killed().is_none()
            && reaped == Exit::Code(0)
    }
}

impl ProcessKind for WorkerKind {
    type Process = Arc<WorkerShared>;
    type Ready = Worker;
    const NOUN: (&'static str, &'static str) = ("worker", "workers");

    fn rules(&self) -> &Rules {
        &self.rules
    }

    fn start(&mut self, new: New<Worker>) -> io::Result<Started<WorkerKind>> {
        let person = self.place.identity.as_ref().map_or_else(Person::current, Person::of);
        if let Some(refused) = self.spec.refusal(&person) {
            return Err(refused_start(&refused));
        }
        let program = self.spec.kind.interpreter();
        let process = process::start(&self.spec, &self.place).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::NotFound => {
                    format!(" (install {program}, or add its directory to PATH)")
                }
                _ => String::new(),
            };
            io::Error::new(error.kind(), format!("{program}: {error}{hint}"))
        })?;
        let Process { child, at_end, control, output, prefetch, stderr } = process;
        let pid = child.pid();
        // The helper starts processes as other users, and only the helper's own reaper may kill
        // them. So this reaper gets only children of the gateway.
        if let (Some(reaper), Child::Own(pid)) = (&self.group_reaper, &child) {
            reaper.watch(*pid);
        }
        let worker = Arc::new(WorkerShared::new(new.id, child, prefetch, new.limit));
        let (starting, ending, pool) = (worker.clone(), worker.clone(), self.pool.clone());
        let ready = async move {
            let ready = await_ready(starting.clone(), control, output).await.ok();
            let has_time = ready.is_none();
            if has_time && tokio::time::timeout(LAST_MOMENT, starting.exited()).await.is_err() {
                starting.kill(Killed::DidNotStart);
            }
            ready
        };
        Ok(Started {
            process: worker,
            stderr,
            stderr_name: pid.as_raw_nonzero().get() as u32,
            ready: Box::pin(ready),
            reaped: Box::pin(async move { await_end(&ending, &pool, at_end).await }),
        })
    }

    fn add(&self, worker: &Arc<WorkerShared>) {
        self.pool.add(worker.clone());
    }

    fn pid(&self, worker: &Arc<WorkerShared>) -> u32 {
        worker.pid.as_raw_nonzero().get() as u32
    }

    fn usage(&self, worker: &Arc<WorkerShared>) -> Usage {
        worker.usage()
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        self.pool.all().iter().map(|worker| snapshot(worker)).collect()
    }

    fn missing(&self) -> usize {
        self.pool.missing()
    }

    fn serve(&self, _: &Arc<WorkerShared>, worker: Worker) {
        self.pool.end_crash_loop();
        self.pool.give(worker);
    }

    fn retire(&self, worker: &Arc<WorkerShared>) {
        self.pool.retire(worker);
    }

    /// Closes the sockets of an idle worker. Returns false for a starting or busy worker, because
    /// its sockets are not in the pool.
    fn request_stop(&self, worker: &Arc<WorkerShared>) -> bool {
        self.pool.retire(worker)
    }

    fn force(&self, worker: &Arc<WorkerShared>, fault: Option<Fault>) {
        worker.kill(match fault {
            Some(Fault::NotReady) => Killed::DidNotStart,
            Some(Fault::RequestTimeout) => Killed::RequestTimeout,
            _ => Killed::Shutdown,
        });
    }

    fn force_again(&self, worker: &Arc<WorkerShared>) {
        worker.kill(Killed::Shutdown);
    }

    /// Does nothing, because a worker has no guardian that could report the end of a program.
    fn program_ended(&mut self, _: &mut Arc<WorkerShared>, _: Exit, _: bool) {}

    fn may_end(&self, worker: &Arc<WorkerShared>, reaped: Exit) -> bool {
        worker.state() == WorkerState::Ending
            || matches!(worker.killed(), Some(Killed::Shutdown | Killed::LeaseDropped))
            || self.is_end_of_script(worker, reaped)
    }

    fn describe_end(&self, worker: &Arc<WorkerShared>, reaped: Exit, _: Option<Fault>) -> End {
        let why = match worker.killed() {
            Some(Killed::RequestTimeout) => "a request took longer than allowed",
            Some(Killed::WroteWhileIdle) => "it wrote while it had no request",
            Some(Killed::BrokeProtocol) => "it broke the rules of its sockets",
            Some(Killed::DidNotStart) => "it did not become ready",
            _ if worker.state() == WorkerState::Starting => "it did not become ready",
            _ => "unasked",
        };
        let text = format!("worker {} ended, {reaped}: {why}", self.pid(worker));
        End { text, was_killed: reaped.was_killed() }
    }

    fn remove(&mut self, worker: Arc<WorkerShared>, _: Exit, crashed: bool) {
        self.pool.remove(worker.id, crashed);
        if let Some(reaper) = &self.group_reaper {
            reaper.forget(worker.pid);
        }
    }

    fn begin_crash_loop(&self, why: String) {
        self.pool.begin_crash_loop(why);
    }

    fn let_wait(&self) {
        self.pool.let_wait();
    }

    fn close(&self) {
        self.pool.close();
    }
}

fn snapshot(worker: &WorkerShared) -> Snapshot {
    let (state, is_retired) = (worker.state(), worker.retired.load(Ordering::Relaxed));
    let is_timed = state == WorkerState::Busy && !worker.tunnels.load(Ordering::Relaxed);
    Snapshot {
        id: worker.id,
        stage: match state {
            WorkerState::Ending => Stage::Ending,
            _ if is_retired => Stage::Retired,
            WorkerState::Starting => Stage::Starting,
            WorkerState::Idle | WorkerState::Busy => Stage::Serving,
        },
        requests: worker.requests.load(Ordering::Relaxed),
        under_way: match state {
            WorkerState::Starting => 0,
            // If a retired worker is still idle, the pool has already assigned the worker to a
            // request, which is about to begin. The pool ends all other idle workers when it
            // retires them.
            WorkerState::Idle => usize::from(is_retired),
            WorkerState::Busy | WorkerState::Ending => 1,
        },
        idle_since: worker.since(),
        busy_since: is_timed.then(|| worker.since()),
    }
}

// Waits for two events in the life of a worker: the worker becomes ready, and its process ends.

/// Waits until the worker reports that it is ready.
async fn await_ready(
    shared: Arc<WorkerShared>,
    control: OwnedFd,
    output: OwnedFd,
) -> io::Result<Worker> {
    let mut worker = Worker::new(shared, Link::new(control)?, Output::new(output)?);
    match worker.heard().await? {
        Heard::Said(Reply::Ready) => Ok(worker),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Waits until the process has ended, and reaps it. If the process failed or the application is
/// shutting down, first kills the rest of its process group.
pub(crate) async fn await_end(shared: &WorkerShared, pool: &Pool, at_end: OwnedFd) -> Exit {
    let readable = sys::register(at_end, Interest::READABLE);
    loop {
        if let Ok(at_end) = &readable {
            let _ = at_end.readable().await;
        }
        match shared.reap(pool.is_closed()) {
            Ok(Some(status)) => return status.into(),
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
