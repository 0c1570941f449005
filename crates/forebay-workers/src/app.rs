//! The interface of an application and its workers to the gateway.

mod kind;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_process::cgroup::LimitedCgroup;
use forebay_process::{Identity, Severity, StartError};

use crate::checkout::checkout;
use crate::control::{self, Body};
use crate::error::Unavailable;
use crate::lease::Lease;
use crate::pool::Pool;
use crate::process::Confinement;
use crate::proofs::{Proof, ProofKey, Proofs};
use crate::shared::AppShared;
use crate::spec::AppSpec;
use crate::starts::FirstStart;
use crate::stderr::WorkerLog;
use crate::supervisor::{Command, Handle};
use crate::worker::{Health, WorkerStatus};
use kind::WorkerKind;

/// The variable of a request with Forebay's verdict about its script, in mode `prove`.
pub const PROOF: &str = "FOREBAY_PROOF";

/// Returns a log that passes the reports of mode `prove` to `proofs`, and all other lines on.
fn without_reports(log: WorkerLog, proofs: Arc<Proofs>, app: String) -> WorkerLog {
    Arc::new(move |level, line| {
        let heard = proofs.hear(line);
        // The rest of a report's line may be only the prefix of this worker's lines.
        if !heard.is_report || !heard.rest.trim_end().ends_with(']') {
            log(level, heard.rest);
        }
        if let Some(news) = heard.news {
            log(Severity::Info, &format!("[{app}] {news}"));
        }
    })
}

/// A running application. Clones refer to the same application. If the last clone is dropped
/// without [`shutdown`](App::shutdown), the workers are killed.
#[derive(Clone)]
pub struct App {
    shared: Arc<AppShared>,
}

impl App {
    /// Starts the workers and returns when the first one is ready. If the first worker fails,
    /// returns the error, and no worker is left.
    ///
    /// `log` receives each line of the workers' standard error, and the supervisor's messages.
    /// Several threads may call `log` at the same time. Blocks, so call this before the server
    /// accepts requests.
    pub fn start(
        spec: AppSpec,
        log: impl Fn(Severity, &str) + Send + Sync + 'static,
    ) -> Result<App, StartError> {
        let (app, first) = App::begin(spec, log)?;
        first.wait_for_end().inspect_err(|_| app.end())?;
        Ok(app)
    }

    /// Starts the workers as [`start`](App::start) does, but does not wait. If the first worker
    /// does not become ready, requests are refused, and the supervisor tries further starts.
    pub fn begin(
        spec: AppSpec,
        log: impl Fn(Severity, &str) + Send + Sync + 'static,
    ) -> Result<(App, FirstStart), StartError> {
        spec.check()?;
        let identity = Identity::find(&spec.name, spec.user.as_deref(), spec.group.as_deref())?;
        let log: WorkerLog = Arc::new(log);
        let pool = Arc::new(Pool::default());
        let (cgroup, note) =
            LimitedCgroup::prepare(&spec.name, spec.cgroup, identity.as_ref(), &|line| {
                log(Severity::Warn, line);
            });
        let proofs = Proofs::new(&spec);
        let proof = proofs.as_ref().map_or_else(ProofKey::default, |proofs| proofs.key.clone());
        let log = match proofs.clone() {
            Some(proofs) => without_reports(log, proofs, spec.name.clone()),
            None => log,
        };
        let place = Confinement { identity, cgroup, proof };
        let (own_spec, own_pool) = (spec.clone(), pool.clone());
        let (supervisor, first) = Handle::start(&spec.name, log.clone(), move || {
            WorkerKind::new(own_spec, place, own_pool)
        })?;
        if let Some(proofs) = &proofs {
            let _ = proofs.demoted.set(supervisor.commands());
        }
        let shared = Arc::new(AppShared { spec, pool, sink: log, supervisor, note, proofs });
        Ok((App { shared }, first))
    }

    /// Returns a worker for one request, and waits if all workers are busy. The error says why the
    /// request gets no worker, for example because the queue is full. Call this on a
    /// `current_thread` runtime of tokio with I/O and time enabled, and use the lease on that
    /// runtime.
    pub async fn checkout(&self) -> Result<Lease, Unavailable> {
        checkout(&self.shared, std::thread::current().id(), || 0, |_| None).await
    }

    /// Returns a worker for this request, as [`checkout`](App::checkout) does. The request may wait
    /// in the prefetch queue of a busy worker: a socket that holds the worker's next requests. In
    /// this case, too, the caller must then call the lease's [`send`](Lease::send) with the same
    /// arguments.
    pub async fn checkout_for(&self, block: &[u8], body: Body<'_>) -> Result<Lease, Unavailable> {
        self.checkout_in_turn(block, body, || 0).await
    }

    /// Returns a worker as [`checkout_for`](App::checkout_for) does. If the request has to wait, it
    /// takes turns with the requests of other clients. `client` is called only in this case.
    pub async fn checkout_in_turn(
        &self,
        block: &[u8],
        body: Body<'_>,
        client: impl Fn() -> u64,
    ) -> Result<Lease, Unavailable> {
        let thread = std::thread::current().id();
        checkout(&self.shared, thread, client, |mark| {
            control::message(block, body, mark).map(Arc::new)
        })
        .await
    }

    /// Returns the status of all workers, the oldest first.
    pub fn status(&self) -> Vec<WorkerStatus> {
        self.shared.pool.all().iter().map(|shared| shared.status()).collect()
    }

    /// Returns the value of the variable [`PROOF`], which a request for this script must have as its
    /// first one. `None`: it must not have it, because the script is not proved yet, or because the
    /// application is not in mode `prove`. `script` is `None` for a PSGI or WSGI application.
    pub fn proof_of(&self, script: Option<&Path>) -> Option<Arc<str>> {
        self.shared.proofs.as_ref()?.word(script)
    }

    /// Returns the state of each script, in mode `prove`.
    pub fn proofs(&self) -> Vec<Proof> {
        self.shared.proofs.as_ref().map(|proofs| proofs.list()).unwrap_or_default()
    }

    /// Returns true if `other` is the same application.
    pub fn is_same(&self, other: &App) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the state of the workers, and the number of waiting requests, of starts and of
    /// crashes.
    pub fn health(&self) -> Health {
        Health { note: self.shared.note.clone(), ..self.shared.pool.health() }
    }

    /// Replaces all workers if one of [`AppSpec::files`] has changed since the last check. Call
    /// this after a reload of the configuration.
    pub fn reloaded(&self) {
        self.shared.supervisor.send(Command::Reloaded);
    }

    /// Replaces all workers, one after the other.
    pub fn restart(&self) {
        self.shared.supervisor.send(Command::Restart);
    }

    /// Ends all workers: idle ones at once, busy ones after their request. After `grace`, kills the
    /// workers that still run. Refuses waiting requests. No worker is left when this returns.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.pool.close();
        self.shared.supervisor.shutdown(grace).await;
    }

    /// Ends all workers without a grace period, for callers without an event loop. Blocks until all
    /// workers have ended.
    pub fn end(&self) {
        self.shared.pool.close();
        self.shared.supervisor.end();
    }
}
