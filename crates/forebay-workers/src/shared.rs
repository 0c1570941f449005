//! The parts of an application that the gateway's threads share.

use crate::link::Noise;
use crate::pool::Pool;
use crate::proofs::Proofs;
use crate::spec::AppSpec;
use crate::stderr::WorkerLog;
use crate::supervisor::{Command, Handle};
use crate::worker::{Killed, Worker};
use forebay_process::Severity;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The data that all handles and leases of an application share.
pub(crate) struct AppShared {
    pub(crate) spec: AppSpec,
    pub(crate) pool: Arc<Pool>,
    pub(crate) sink: WorkerLog,
    pub(crate) supervisor: Handle,
    /// A message about a configured setting that this machine does not support.
    pub(crate) note: Option<String>,
    /// In mode `prove`, the verdicts about scripts.
    pub(crate) proofs: Option<Arc<Proofs>>,
}

impl AppShared {
    /// Prepares a worker for this thread. Returns `None` if the worker cannot be used, because it
    /// has sent something without a request.
    pub(crate) fn settled(&self, worker: Worker) -> Option<Worker> {
        let shared = worker.shared.clone();
        match worker.settle() {
            Ok((worker, None)) => return Some(worker),
            Ok((_, Some(Noise::HungUp))) => {}
            Ok((_, Some(Noise::Bytes))) => {
                self.log(&format!(
                    "worker {} wrote while it had no request (a background process of a script \
                     that kept standard output?); it is replaced",
                    shared.pid.as_raw_nonzero()
                ));
                shared.kill(Killed::WroteWhileIdle);
            }
            Err(error) => {
                self.log(&format!(
                    "cannot wait for worker {}: {error}",
                    shared.pid.as_raw_nonzero()
                ));
                shared.kill(Killed::BrokeProtocol);
            }
        }
        self.pool.rescue(&shared);
        None
    }

    /// Returns a worker to the pool after a request. If the worker has reached its limit of
    /// requests, the supervisor replaces it.
    pub(crate) fn give_back(&self, worker: Worker) {
        let shared = &worker.shared;
        let used_up = shared.requests.load(Ordering::Relaxed) >= shared.limit;
        if used_up && !shared.reported.swap(true, Ordering::Relaxed) {
            self.supervisor.send(Command::Replace(shared.id));
        }
        self.pool.learn(shared);
        self.pool.give(worker);
    }

    /// Counts and logs the failure of a worker that has reported that it cannot serve requests.
    pub(crate) fn count_unfit(&self, worker: &Worker) {
        self.pool.count_crash();
        let pid = worker.shared.pid.as_raw_nonzero();
        self.log(&format!("worker {pid} cannot do its work any more; it is replaced"));
    }

    pub(crate) fn log(&self, text: &str) {
        (self.sink)(Severity::Warn, &format!("[{}] {text}", self.spec.name));
    }
}
