//! The configuration that runs, and its changes: by SIGHUP, and by the administrator.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use forebay_admin::{
    AdminChange, ChangeOrder, Changed, ConfigurationRow, Control, Purge, Refused, ReloadRow, Status,
};
use forebay_conf::files::{self, Recording};
use forebay_conf::{LeftOut, LeftOutRow, Listen, Plan, Setting, SocketAccess};
use forebay_gateway::expect::{self, Outcome};
use forebay_gateway::{Difference, Origins, Overrides, SiteTls, Starts};
use forebay_net::handover::launcher::RootAccess;
use forebay_net::log::ErrorLog;
use forebay_net::sys::trim_heap;
use forebay_server::{Reload, ReloadRequest, Reloads};
use tokio::sync::mpsc::{self, UnboundedSender};

use super::source::{self, SourceKind};
use super::{Failure, ServeArgs, finished, plan, wanted};

/// Status of the answer if a configuration has an error.
const HAS_ERROR: u16 = 422;
/// Status of the answer if a correct change cannot be applied now.
const CONFLICT: u16 = 409;
/// Status of the answer if another configuration runs than the client expects.
const OTHER_GENERATION: u16 = 412;
/// Status of the answer if this process no longer serves.
const STOPPING: u16 = 503;

/// State of a running server: its configuration, the origins that answer requests, and the threads
/// that stop the origins of earlier configurations.
pub(super) struct Live {
    args: ServeArgs,
    source_kind: SourceKind,
    errors: ErrorLog,
    /// Reads files as root, if this process has given up root.
    reader: Option<RootAccess>,
    origins: Mutex<Arc<Origins>>,
    retiring: Mutex<Vec<JoinHandle<()>>>,
    fixed: Fixed,
    /// Number of threads that handle requests. A reload does not change it.
    threads: usize,
    running: Mutex<Running>,
    last_reload: Mutex<Option<ReloadRow>>,
}

/// The configuration that runs.
#[derive(Clone)]
struct Running {
    /// Number of the configuration, from 1.
    generation: u64,
    /// The plan without the administrator's changes of backends and sites.
    base: Arc<Plan>,
    is_posted: bool,
    overrides: Overrides,
    /// Time at which `base` was read, in seconds since 1970.
    read: u64,
}

/// Settings of `[server]` that a reload cannot change.
#[derive(PartialEq)]
struct Fixed {
    threads: Option<usize>,
    affinity: bool,
    admin: Option<Listen>,
    admin_access: SocketAccess,
    admin_hosts: Vec<String>,
    admin_token: Option<String>,
    user: Option<String>,
    group: Option<String>,
}

impl Fixed {
    fn of(plan: &Plan) -> Self {
        let server = plan.server.clone();
        Self {
            threads: server.threads,
            affinity: server.affinity,
            admin: server.admin,
            admin_access: server.admin_access,
            admin_hosts: server.admin_hosts,
            admin_token: server.admin_token,
            user: server.user,
            group: server.group,
        }
    }
}

/// Returns the time in seconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// Returns the state of a server that serves `base`.
    pub(super) fn new(
        args: ServeArgs,
        threads: usize,
        base: Plan,
        origins: Arc<Origins>,
        (errors, reader): (ErrorLog, Option<RootAccess>),
    ) -> Self {
        let (fixed, base) = (Fixed::of(&base), Arc::new(base));
        let overrides = Overrides::default();
        let running = Running { generation: 1, base, is_posted: false, overrides, read: now() };
        let source_kind = SourceKind::of(args.source.as_deref());
        Self {
            args,
            source_kind,
            errors,
            reader,
            origins: Mutex::new(origins),
            retiring: Mutex::default(),
            fixed,
            threads,
            running: Mutex::new(running),
            last_reload: Mutex::default(),
        }
    }

    /// Returns the administrator's access to this server. Also returns the sources of reloads:
    /// SIGHUP, and the changes that the administrator requests.
    pub(super) fn control(self: &Arc<Self>) -> (LiveControl, Reloads) {
        let (sender, requests) = mpsc::unbounded_channel();
        let live = self.clone();
        let on_signal = move || {
            let prepared = live.prepare(&AdminChange::Reload);
            prepared.map(|(reload, _)| reload).map_err(|refused| refused.message)
        };
        let control = LiveControl { live: self.clone(), requests: sender };
        let live = self.clone();
        let signalled = Box::new(move |error: Option<&str>| live.note_reload(error));
        (control, Reloads { on_signal: Arc::new(on_signal), signalled, requests })
    }

    /// Takes note of the outcome of a reload, for the status.
    fn note_reload(&self, error: Option<&str>) {
        let error = error.map(|why| why.trim_end().to_owned());
        *lock(&self.last_reload) = Some(ReloadRow { time: now(), error });
    }

    fn origins(&self) -> Arc<Origins> {
        lock(&self.origins).clone()
    }

    /// The directories that the running configuration leaves out.
    pub(super) fn left_out(&self) -> LeftOut {
        lock(&self.running).base.left_out.clone()
    }

    fn running(&self) -> Running {
        lock(&self.running).clone()
    }

    /// Prepares the configuration that results from `change`, and starts its new applications. A new
    /// configuration must not fail the tests in its `expect` keys. Also returns a text that describes
    /// the change.
    fn prepare(self: &Arc<Self>, change: &AdminChange) -> Result<(Reload, String), Refused> {
        let is_new = matches!(change, AdminChange::Reload | AdminChange::Replace(_));
        if is_new {
            self.check_source(change)?;
            return files::replay(&self.files(), || self.prepare_from(change, is_new));
        }
        self.prepare_from(change, is_new)
    }

    /// Does the work of [`Self::prepare`]. `is_new` is true if the configuration is read again.
    fn prepare_from(
        self: &Arc<Self>,
        change: &AdminChange,
        is_new: bool,
    ) -> Result<(Reload, String), Refused> {
        let mut next = self.running();
        next.generation += 1;
        let mut plan = match change {
            AdminChange::Reload => self.read()?,
            AdminChange::Replace(text) => self.parse(text, &next.base)?,
            _ => (*next.base).clone(),
        };
        let text = next.overrides.add(change, &plan)?;
        if is_new {
            next.base = Arc::new(plan.clone());
            next.is_posted = matches!(change, AdminChange::Replace(_));
            next.read = now();
            run_tests(&plan, &self.errors).map_err(|why| Refused::new(HAS_ERROR, why))?;
            for why in next.overrides.apply_fitting(&mut plan) {
                self.errors.warn(&format!("the configuration undoes a change: {why}"));
            }
        } else {
            next.overrides.apply(&mut plan)?;
        }
        let notes = plan.share_connections(self.threads);
        let notes = notes.map_err(|why| Refused::new(HAS_ERROR, why))?;
        if is_new {
            notes.iter().for_each(|note| self.errors.warn(note));
        }
        Ok((self.build(plan, next, is_new)?, text))
    }

    /// Builds the origins of a plan.
    fn build(self: &Arc<Self>, plan: Plan, next: Running, is_new: bool) -> Result<Reload, Refused> {
        let refuse = |why: String| Refused::new(HAS_ERROR, why);
        if is_new && Fixed::of(&plan) != self.fixed {
            self.errors.warn(
                "`threads`, `affinity`, `admin`, `admin_mode`, `admin_group`, `admin_hosts`, \
                 `admin_token`, `user` and `group` change only with a restart",
            );
        }
        let (mut wanted, grace) = (wanted(&plan), plan.server.grace);
        // The listener of `admin` stays until a restart.
        wanted.settings.is_timed |= self.fixed.admin.is_some();
        let old = self.origins();
        let (tls, starts) = if is_new {
            let tls = SiteTls::load(&plan, Some(old.tls()));
            (Arc::new(tls.map_err(|error| refuse(error.to_string()))?), Starts::After(&old))
        } else {
            (old.tls().clone(), Starts::Changing(&old))
        };
        let new = Origins::new(plan, tls, &self.errors, starts);
        let new = Arc::new(new.map_err(|error| refuse(error.to_string()))?);
        let (tables, live) = (new.tables(), self.clone());
        let log = wanted.log.clone();
        let done = move || {
            // Change the log only after the last step that may fail.
            live.errors.configure(&log);
            live.replace(new, grace, is_new);
            *lock(&live.running) = next;
        };
        Ok(Reload { wanted, tables, done: Box::new(done) })
    }

    /// Checks that a reload can read the source that the command line names.
    fn check_source(&self, change: &AdminChange) -> Result<(), Refused> {
        match &self.args.source {
            Some(source) if matches!(change, AdminChange::Reload) => {
                source::check(source, Some(self.source_kind))
                    .map_err(|why| Refused::new(HAS_ERROR, why))
            }
            _ => Ok(()),
        }
    }

    /// Returns the files of the configuration on the disk, which only root may be able to read. The
    /// result is empty if this process can read them itself.
    fn files(&self) -> Recording {
        let Some(reader) = &self.reader else { return Recording::default() };
        let read = reader.read().and_then(|bytes| {
            Recording::decode(&bytes).ok_or_else(|| io::Error::other("its answer is incomplete"))
        });
        read.unwrap_or_else(|error| {
            self.errors.error(&format!(
                "cannot read the files of the configuration as root: {error}; they are read as the \
                 `user` of [server]"
            ));
            Recording::default()
        })
    }

    /// Reads the configuration again, from the source that the command line names.
    fn read(&self) -> Result<Plan, Refused> {
        let plan = plan(&self.args, |warning| self.errors.warn(warning));
        plan.map_err(|failure| Refused::new(HAS_ERROR, failure.message))
    }

    /// Reads a configuration from a text. Relative paths in the text start at the directory of the
    /// configuration file.
    fn parse(&self, text: &str, base: &Plan) -> Result<Plan, Refused> {
        let file = Path::new(base.file.name());
        let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
        let parse = || {
            let plan = forebay_conf::parse(text, "posted.toml", dir.unwrap_or(Path::new(".")));
            let plan = plan.map_err(Failure::configuration)?;
            finished(&self.args, plan, |warning| self.errors.warn(warning))
        };
        parse().map_err(|failure| Refused::new(HAS_ERROR, failure.message))
    }

    fn replace(&self, new: Arc<Origins>, grace: Duration, is_new: bool) {
        let old = std::mem::replace(&mut *lock(&self.origins), new.clone());
        new.succeed(&old);
        if is_new {
            new.reloaded();
        }
        let retiring = std::thread::spawn(move || {
            old.retire(&new, grace);
            // Two configurations were in memory at once, which with 10,000 sites are hundreds of
            // megabytes each. The allocator would keep the freed half.
            drop((old, new));
            trim_heap();
        });
        let mut others = lock(&self.retiring);
        others.retain(|thread| !thread.is_finished());
        others.push(retiring);
    }

    /// Stops the applications.
    pub(super) fn stop(&self, grace: Duration) {
        self.origins().stop(grace);
        let retiring = std::mem::take(&mut *lock(&self.retiring));
        for thread in retiring {
            let _ = thread.join();
        }
    }
}

/// Runs the tests of `expect`, as `forebay check` does. The error is its text. Tests that fail only for
/// single directories of `hosts_from` are logged: their owners could otherwise keep all others from a
/// new configuration.
pub(super) fn run_tests(plan: &Plan, errors: &ErrorLog) -> Result<(), String> {
    let tests = expect::expectations(plan);
    let findings = tests.iter().filter_map(|test| match &test.outcome {
        Outcome::Fails(why) => Some(test.finding(plan, why)),
        Outcome::Holds | Outcome::Undecided => None,
    });
    let findings: Vec<_> = findings.collect();
    if findings.is_empty() {
        return Ok(());
    }
    if plan.concern_directories(&findings) {
        errors.warn(&plan.warn(&findings).to_string());
        return Ok(());
    }
    Err(plan.refuse(&findings).to_string())
}

/// The administrator's access to a server.
pub(super) struct LiveControl {
    live: Arc<Live>,
    requests: UnboundedSender<ReloadRequest>,
}

impl Control for LiveControl {
    fn status(&self) -> Status {
        let running = self.live.running();
        let configuration = ConfigurationRow {
            generation: running.generation,
            file: running.base.file.name().to_owned(),
            is_posted: running.is_posted,
            changes: running.overrides.texts(),
            read: running.read,
            last_reload: lock(&self.live.last_reload).clone(),
        };
        let row = |row: LeftOutRow| (row.name, row.problem, row.help);
        let left_out = running.base.left_out.rows().map(row).collect();
        Status { configuration, left_out, ..self.live.origins().status() }
    }

    fn restart(&self, app: &str) -> bool {
        self.live.origins().restart(app)
    }

    fn purge(&self, purge: &Purge) -> Option<usize> {
        self.live.origins().purge(purge)
    }

    fn settings(&self) -> (u64, Vec<Setting>) {
        let running = self.live.running();
        (running.generation, running.base.file.settings())
    }

    fn difference(
        &self,
        next: Option<Vec<Setting>>,
    ) -> Result<(Vec<String>, Vec<String>), Refused> {
        let next = match next {
            Some(next) => next,
            None => {
                self.live.check_source(&AdminChange::Reload)?;
                let read = || self.live.read();
                files::replay(&self.live.files(), read)?.file.settings()
            }
        };
        let difference = Difference::of(&self.settings().1, &next);
        Ok((difference.lines, difference.restarted))
    }

    fn change(
        &self,
        ChangeOrder { by, generation, change }: ChangeOrder,
    ) -> Result<Changed, Refused> {
        let (sender, outcome) = std::sync::mpsc::channel();
        let refusal = Arc::new(Mutex::new(None));
        let text = Arc::new(Mutex::new(String::new()));
        let is_new = matches!(change, AdminChange::Reload | AdminChange::Replace(_));
        let (live, place, words) = (self.live.clone(), refusal.clone(), text.clone());
        let prepare = move || {
            let now = live.running().generation;
            let prepared = match generation {
                Some(wanted) if wanted != now => Err(Refused::new(
                    OTHER_GENERATION,
                    format!("configuration {now} runs; read it again, then decide"),
                )),
                _ => live.prepare(&change),
            };
            let prepared = prepared.map(|(reload, text)| {
                *lock(&words) = text;
                reload
            });
            prepared.map_err(|refused| {
                let message = refused.message.clone();
                *lock(&place) = Some(refused);
                message
            })
        };
        let stopping = || Refused::new(STOPPING, "this process no longer serves; ask again");
        let request = ReloadRequest { prepare: Box::new(prepare), outcome: sender };
        self.requests.send(request).map_err(|_| stopping())?;
        let outcome = match outcome.recv() {
            Ok(Ok(())) => {
                let text = lock(&text).clone();
                Ok(Changed { generation: self.live.running().generation, text })
            }
            Ok(Err(why)) => Err(lock(&refusal).take().unwrap_or(Refused::new(CONFLICT, why))),
            Err(_) => Err(stopping()),
        };
        if is_new {
            self.live.note_reload(outcome.as_ref().err().map(|refused| &*refused.message));
        }
        let errors = &self.live.errors;
        match &outcome {
            Ok(Changed { generation, text }) => {
                errors.info(&format!("{by} made configuration {generation}: {text}"));
            }
            Err(refused) => {
                let first = refused.message.lines().next().unwrap_or_default();
                errors.warn(&format!("{by} was refused a change: {first}"));
            }
        }
        outcome
    }
}
