//! What the gateway's threads share of one application.

use crate::link::Noise;
use crate::pool::Pool;
use crate::spec::AppSpec;
use crate::stderr::Log;
use crate::supervisor::Command;
use crate::worker::{Killed, Worker};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// An application, shared by its handles and leases.
pub(crate) struct Shared {
    pub(crate) spec: AppSpec,
    pub(crate) pool: Arc<Pool>,
    pub(crate) log: Log,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) supervisor: Mutex<Option<JoinHandle<()>>>,
    /// What was asked for and cannot be done on this machine.
    pub(crate) note: Option<String>,
}

impl Shared {
    /// The worker, fit for use by this thread; `None` if it is not fit for anything.
    pub(crate) fn settled(&self, worker: Worker) -> Option<Worker> {
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

    pub(crate) fn say(&self, text: &str) {
        (self.log)(&format!("[{}] {text}", self.spec.name));
    }
}
