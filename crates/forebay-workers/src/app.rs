//! An application: its workers, as the gateway sees them.

mod kind;

use crate::checkout::checkout;
use crate::control::{self, Body};
use crate::error::Unavailable;
use crate::health::Health;
use crate::lease::Lease;
use crate::pool::Pool;
use crate::process::Place;
use crate::shared::AppShared;
use crate::spec::AppSpec;
use crate::stderr::Log;
use crate::supervisor::{Command, Handle};
use crate::thread::FirstStart;
use crate::worker::WorkerStatus;
use forebay_process::Identity;
use forebay_process::StartError;
use forebay_process::cgroup::LimitedCgroup;
use kind::WorkerKind;
use std::sync::Arc;
use std::time::Duration;

/// A running application. Clones are the same application; when the last is dropped without
/// [`shutdown`](App::shutdown), its workers are killed.
#[derive(Clone)]
pub struct App {
    shared: Arc<AppShared>,
}

impl App {
    /// Starts the workers and returns when the first one is ready; an error leaves nothing running.
    /// `log` gets each line that the workers write to standard error, and what the supervisor has
    /// to say; it may be called from several threads. Blocks: call it before requests are served.
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
        spec.check()?;
        let identity = Identity::find(&spec.name, spec.user.as_deref(), spec.group.as_deref())?;
        let log: Log = Arc::new(log);
        let pool = Arc::new(Pool::default());
        let (cgroup, note) =
            LimitedCgroup::prepare(&spec.name, spec.cgroup, identity.as_ref(), &*log);
        let place = Place { identity, cgroup };
        let (own_spec, own_pool) = (spec.clone(), pool.clone());
        let (supervisor, first) = Handle::start(&spec.name, log.clone(), move || {
            WorkerKind::new(own_spec, place, own_pool)
        })?;
        let shared = Arc::new(AppShared { spec, pool, sink: log, supervisor, note });
        Ok((App { shared }, first))
    }

    /// A worker for one request; waits for one in turn if all are busy. Must be called within a
    /// tokio runtime of the kind `current_thread` with I/O and time enabled, and the lease used
    /// there.
    pub async fn checkout(&self) -> Result<Lease, Unavailable> {
        checkout(&self.shared, std::thread::current().id(), |_| None).await
    }

    /// As [`checkout`](App::checkout), for this request: it may then be put behind another one, so
    /// that a worker has it when it is done with that. [`send`](Lease::send) the same.
    pub async fn checkout_for(&self, block: &[u8], body: Body<'_>) -> Result<Lease, Unavailable> {
        let thread = std::thread::current().id();
        checkout(&self.shared, thread, |mark| control::message(block, body, mark)).await
    }

    /// Every worker at this moment, by age.
    pub fn status(&self) -> Vec<WorkerStatus> {
        self.shared.pool.all().iter().map(|shared| shared.status()).collect()
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
        self.shared.supervisor.send(Command::Reloaded);
    }

    /// Replaces all workers, one after the other.
    pub fn restart(&self) {
        self.shared.supervisor.send(Command::Restart);
    }

    /// Ends all workers: idle ones at once, busy ones after their request or, after `grace`, by
    /// force. Requests that wait are refused. When this returns, no worker is left.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.pool.close();
        self.shared.supervisor.shutdown(grace).await;
    }

    /// As [`shutdown`](App::shutdown) without grace, for who has no event loop. Blocks.
    pub fn end(&self) {
        self.shared.pool.close();
        self.shared.supervisor.end();
    }
}
