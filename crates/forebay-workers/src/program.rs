//! Programs that listen by themselves. The supervisor starts, watches, replaces and stops them as
//! it does workers. They get requests over their own sockets.
//!
//! A [`Program`] has one process or several, each with its own socket. The gateway takes a
//! [`Permit`], the right to send one request to a process, and then connects to the process itself.

mod instance;
mod instance_pool;
mod kind;
mod ready;
mod start;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_process::cgroup::{CgroupLimits, LimitedCgroup};
use forebay_process::{Identity, Person, ProcessLimits, Refusal, Severity, StartError};
use nix::unistd::Uid;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::compiled_host::CompiledHost;
use crate::error::Unavailable;
use crate::executable;
use crate::spec::Workers;
use crate::starts::FirstStart;
use crate::stderr::WorkerLog;
use crate::supervisor::{Command, Handle};
use crate::worker::Health;
use instance_pool::{InstancePool, Taken};
use kind::InstanceKind;

pub use instance::Life;
pub use instance_pool::Permit;

/// One program and the rules for its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
// More than 20 fields: one for each key of the table of an application that concerns its processes.
pub struct ProgramSpec {
    /// The name in logs and in status.
    pub name: String,
    /// Program and arguments. Forebay replaces the placeholders `{dir}`, `{socket}`, `{port}` and
    /// `{room}`. `{room}` is a private directory of each process.
    pub run: Vec<String>,
    /// Names and texts of files that Forebay writes to `{room}` before each start. Forebay also
    /// replaces the placeholders in the texts.
    pub files: Vec<(String, String)>,
    /// A language host that Forebay compiles on this machine. The placeholder `{host}` in `run` and
    /// `env` is its directory.
    pub host: Option<CompiledHost>,
    /// The directory in which the program starts.
    pub dir: PathBuf,
    /// Environment variables besides the inherited ones. Forebay replaces the same placeholders as
    /// in `run`.
    pub env: Vec<(String, String)>,
    /// The process that opens the socket, and the kind of socket.
    pub listen: Listening,
    /// Targets of HTTP requests that a new process must answer before it gets others.
    pub warm_up: Vec<String>,
    /// Number of processes.
    pub workers: Workers,
    /// Maximum number of concurrent requests of each process. Each request has its own connection.
    pub connections: usize,
    /// A process is replaced after this many requests, up to a tenth earlier.
    pub max_requests: Option<u64>,
    /// A process of this age is replaced, up to a tenth earlier.
    pub max_age: Option<Duration>,
    /// A process is replaced if it and its descendants use more resident memory than this, in
    /// bytes.
    pub max_memory: Option<u64>,
    /// A process is replaced after it and its descendants have used this CPU time, up to a tenth
    /// earlier.
    pub max_cpu: Option<Duration>,
    /// A process that is idle for this long ends, unless only `workers.min` processes are left.
    pub idle_timeout: Duration,
    /// Maximum number of requests that wait for a permit. Further requests are refused.
    pub queue: usize,
    /// Maximum time that a request waits for a permit, unless the first process still starts.
    pub queue_timeout: Duration,
    /// Maximum time from the start of a process until it listens, and of the wait of a request
    /// while no process serves.
    pub start_timeout: Duration,
    /// Time from SIGTERM to SIGKILL.
    pub stop_timeout: Duration,
    /// Time limit for the remaining requests of a process that is replaced.
    pub drain_timeout: Duration,
    /// Files and directories whose change replaces the processes.
    pub watch: Vec<PathBuf>,
    /// Files whose change replaces the processes after a reload.
    pub watch_at_reload: Vec<PathBuf>,
    /// The user that processes run as.
    pub user: Option<String>,
    /// The group that processes run as.
    pub group: Option<String>,
    /// True if the program must not run as root. Then `user` is required if Forebay runs as root.
    pub needs_user: bool,
    /// Limits of each process.
    pub limits: ProcessLimits,
    /// Limits of all processes together.
    pub cgroup: CgroupLimits,
}

/// The process that opens a program's socket, and the kind of socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listening {
    /// The program opens the Unix socket `{socket}`.
    Socket,
    /// The program opens the TCP port `{port}` of 127.0.0.1.
    Port,
    /// Forebay opens a Unix socket, and the program inherits it as descriptor 3. With this value and
    /// the next two, a process that ends by itself leaves its socket to the next one.
    Inherit,
    /// Forebay opens a TCP port of 127.0.0.1, and the program inherits it as descriptor 3.
    InheritPort,
    /// Forebay opens a Unix socket, and the program inherits it as descriptor 0.
    Stdin,
}

/// The address of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// A port of this machine.
    Tcp(SocketAddr),
}

/// A running program. Clones refer to the same program. If the last clone is dropped without
/// [`shutdown`](Program::shutdown), the processes are ended.
#[derive(Clone)]
pub struct Program {
    shared: Arc<Shared>,
}

struct Shared {
    spec: ProgramSpec,
    pool: Arc<InstancePool>,
    supervisor: Handle,
    /// A message about a configured setting that this machine does not support.
    note: Option<String>,
}

impl Program {
    /// Starts the processes and returns when the first one listens. Returns at once if
    /// `workers.min` is 0. If the first process fails, returns the error, and no process is left.
    ///
    /// `log` receives the output of the processes and the supervisor's messages. Several threads
    /// may call `log` at the same time. Blocks, so call this before the server accepts requests.
    ///
    /// This function runs the current executable to start processes. If the first argument is
    /// `__guardian`, `main` must call [`guard_program`](forebay_process::guard_program). If the
    /// first argument is `__launch`, `main` must call [`launch`](forebay_process::launch()).
    pub fn start(
        spec: ProgramSpec,
        log: impl Fn(Severity, &str) + Send + Sync + 'static,
    ) -> Result<Program, StartError> {
        let (program, first) = Program::begin(spec, log)?;
        first.wait_for_end().inspect_err(|_| program.end())?;
        Ok(program)
    }

    /// Starts the processes as [`start`](Program::start) does, but does not wait. If the first
    /// process does not listen, requests are refused, and the supervisor tries further starts.
    pub fn begin(
        spec: ProgramSpec,
        log: impl Fn(Severity, &str) + Send + Sync + 'static,
    ) -> Result<(Program, FirstStart), StartError> {
        spec.check(Uid::effective().is_root())?;
        let identity = Identity::find(&spec.name, spec.user.as_deref(), spec.group.as_deref())?;
        let log: WorkerLog = Arc::new(log);
        let pool = Arc::new(InstancePool::new(spec.connections));
        let (cgroup, note) =
            LimitedCgroup::prepare(&spec.name, spec.cgroup, identity.as_ref(), &|line| {
                log(Severity::Warn, line);
            });
        let (own_spec, own_pool) = (spec.clone(), pool.clone());
        let (supervisor, first) = Handle::start(&spec.name, log, move || {
            let rules = own_spec.rules();
            InstanceKind {
                spec: own_spec,
                rules,
                identity,
                cgroup,
                pool: own_pool,
                seats: Vec::new(),
            }
        })?;
        pool.set_commands(supervisor.commands());
        let shared = Arc::new(Shared { spec, pool, supervisor, note });
        Ok((Program { shared }, first))
    }

    /// Returns a permit for one request, and waits if all permits are taken. The error says why the
    /// request gets no permit, for example because the queue is full.
    pub async fn checkout(&self) -> Result<Permit, Unavailable> {
        self.checkout_at(None, || 0).await
    }

    /// Returns a permit as [`checkout`](Program::checkout) does. Prefers the process with the
    /// [id](Permit::id) `wanted`, if that process takes requests and has a free permit. If the
    /// request has to wait, it takes turns with the requests of other clients. `client` is called
    /// only in this case.
    pub async fn checkout_at(
        &self,
        wanted: Option<u64>,
        client: impl FnOnce() -> u64,
    ) -> Result<Permit, Unavailable> {
        let shared = &self.shared;
        let mut receiver = match shared.pool.take(shared.spec.queue, wanted, client)? {
            Taken::Permit(permit) => return Ok(permit),
            Taken::Wait(receiver) => receiver,
        };
        if shared.spec.workers.min < shared.spec.workers.max {
            shared.supervisor.send(Command::RequestWaits);
        }
        let begun = Instant::now();
        let mut outcome = timeout_at(begun + shared.spec.queue_timeout, &mut receiver).await;
        if outcome.is_err() && !shared.pool.is_serving() {
            // The first process starts still.
            outcome = timeout_at(begun + shared.spec.start_timeout, &mut receiver).await;
        }
        match outcome {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Unavailable::ShuttingDown),
            // The pool may send a permit to `receiver` at this moment. Dropping `receiver` then
            // drops the permit, and the pool gives it to another request.
            Err(_) => Err(Unavailable::QueueTimeout),
        }
    }

    /// Returns a receiver whose value changes each time that a process stops taking requests or is
    /// removed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.pool.changes()
    }

    /// Returns true if the process with this [id](Permit::id) takes requests.
    pub fn serves(&self, id: u64) -> bool {
        self.shared.pool.serves(id)
    }

    /// Returns the [id](Permit::id) of the process with this [name](Permit::name). Returns `None`
    /// if no such process takes requests.
    pub fn named(&self, name: &[u8]) -> Option<u64> {
        self.shared.pool.named(name)
    }

    /// Returns true if `other` is the same program.
    pub fn is_same(&self, other: &Program) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the state of the processes, and the number of waiting requests, of starts and of
    /// crashes.
    pub fn health(&self) -> Health {
        Health { note: self.shared.note.clone(), ..self.shared.pool.health() }
    }

    /// Replaces all processes if one of [`ProgramSpec::watch_at_reload`] has changed since the last
    /// check. Call this after a reload of the configuration.
    pub fn reloaded(&self) {
        self.shared.supervisor.send(Command::Reloaded);
    }

    /// Replaces all processes, one after the other.
    pub fn restart(&self) {
        self.shared.supervisor.send(Command::Restart);
    }

    /// Ends all processes: idle ones at once, the others after their requests, but at the latest
    /// after `grace`. Refuses waiting requests. No process is left when this returns.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.pool.close();
        self.shared.supervisor.shutdown(grace).await;
    }

    /// Ends all processes without a grace period, for callers without an event loop. Blocks until
    /// all processes have ended.
    pub fn end(&self) {
        self.shared.pool.close();
        self.shared.supervisor.end();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.pool.close();
    }
}

impl ProgramSpec {
    /// Returns the specification of a program with the defaults: one process with 100 connections,
    /// without a limit of age or of requests. Up to 1,024 requests wait for up to 10 s. The process
    /// has 30 s to start and 10 s to stop. The idle timeout is 60 s.
    pub fn new(name: impl Into<String>, run: Vec<String>, listen: Listening) -> ProgramSpec {
        ProgramSpec {
            name: name.into(),
            run,
            files: Vec::new(),
            host: None,
            dir: PathBuf::from("/"),
            env: Vec::new(),
            listen,
            warm_up: Vec::new(),
            workers: Workers { min: 1, max: 1 },
            connections: 100,
            max_requests: None,
            max_age: None,
            max_memory: None,
            max_cpu: None,
            idle_timeout: Duration::from_secs(60),
            queue: 1024,
            queue_timeout: Duration::from_secs(10),
            start_timeout: Duration::from_secs(30),
            stop_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(60),
            watch: Vec::new(),
            watch_at_reload: Vec::new(),
            user: None,
            group: None,
            needs_user: false,
            limits: ProcessLimits::default(),
            cgroup: CgroupLimits::default(),
        }
    }

    /// Checks the directory, the program and the user. `as_root` is true if Forebay is root when it
    /// starts the program.
    pub fn check(&self, as_root: bool) -> Result<(), StartError> {
        let wrong = |what: String| StartError::new(&self.name, what);
        if !executable::may_be_directory(&self.dir) {
            let error = wrong(format!("{} is no directory", self.dir.display())).at(&["dir"]);
            return Err(error.help("set `dir` to one"));
        }
        let Some(program) = self.run.first().filter(|program| !program.is_empty()) else {
            return Err(wrong("no program to run".to_owned()).at(&["run"]));
        };
        if self.workers.max == 0 || self.workers.min > self.workers.max || self.connections == 0 {
            return Err(wrong("there must be a process and a connection at least".to_owned()));
        }
        if self.needs_user && as_root && self.user.as_deref().is_none_or(|user| user == "root") {
            let error = wrong("PHP scripts should not run as root".to_owned()).at(&["user"]);
            let help = "say who they run as, such as user = \"www-data\", here or in [server]";
            return Err(error.help(help));
        }
        let in_dir = |text: &str| text.replace("{dir}", &self.dir.to_string_lossy());
        let program = in_dir(program);
        let env: Vec<_> = self.env.iter().map(|(n, value)| (n.clone(), in_dir(value))).collect();
        if let Some(host) = &self.host {
            host.check(&self.name, &env, &self.dir)?;
        }
        // The path of the program may contain placeholders, whose values are unknown until a
        // process starts.
        if !program.contains('{')
            && let Err(absent) = executable::find(&program, &env, &self.dir)
            && !absent.is_hidden
        {
            return Err(wrong(absent.what).at(&["run", "0"]).help(absent.help));
        }
        Identity::look_up(&self.name, self.user.as_deref(), self.group.as_deref()).map(drop)
    }

    /// Why `person`, who runs the program, could not start it, although all that
    /// [`check`](ProgramSpec::check) asks for exists.
    pub fn refusal(&self, person: &Person) -> Option<StartError> {
        let in_dir = |text: &str| text.replace("{dir}", &self.dir.to_string_lossy());
        let program = in_dir(self.run.first()?);
        let env: Vec<_> = self.env.iter().map(|(n, value)| (n.clone(), in_dir(value))).collect();
        let Refusal { message, help, .. } =
            executable::refusal(person, &program, (&env, &self.dir))?;
        Some(StartError::new(&self.name, message).at(&["run", "0"]).help(help))
    }
}
