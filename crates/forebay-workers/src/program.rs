//! Programs that listen by themselves. They are started, watched, replaced and stopped as workers
//! are, and get requests over their own sockets.
//!
//! A [`Program`] has one process or several, each with its own socket. The gateway takes a
//! [`Permit`] for one process for each request, and connects by itself: this module does not know
//! the protocol. `instance_pool` holds the permits and the waiting requests, `kind` the
//! supervisor's actions, `start` the start of a process, and `ready` the test for its readiness.

mod instance;
mod instance_pool;
mod kind;
mod ready;
mod reports;
mod start;

use crate::compiled_host::CompiledHost;
use crate::error::Unavailable;
use crate::executable;
use crate::health::Health;
use crate::spec::Workers;
use crate::stderr::WorkerLog;
use crate::supervisor::{Command, Handle};
use crate::thread::FirstStart;
use forebay_process::Identity;
use forebay_process::ProcessLimits;
use forebay_process::StartError;
use forebay_process::cgroup::{CgroupLimits, LimitedCgroup};
use instance_pool::{InstancePool, Taken};
use kind::InstanceKind;
use nix::unistd::Uid;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

pub use instance::Life;
pub use instance_pool::Permit;

/// One program and the rules for its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
// More than 20 fields: one for each key of the table of an application that concerns its processes.
pub struct ProgramSpec {
    /// The name in logs and in status.
    pub name: String,
    /// Program and arguments. Forebay fills in `{dir}`, `{socket}`, `{port}` and `{room}`, a
    /// private directory of the process.
    pub run: Vec<String>,
    /// Files for `{room}`, written before the start: names and texts, which are filled in, too.
    pub files: Vec<(String, String)>,
    /// One of our own hosts, compiled on this machine; its directory is `{host}` in `run` and
    /// `env`.
    pub host: Option<CompiledHost>,
    /// The directory in which the program starts.
    pub dir: PathBuf,
    /// Environment variables besides the inherited ones, filled in as `run` is.
    pub env: Vec<(String, String)>,
    /// The opener of the socket.
    pub listen: Listening,
    /// Number of processes.
    pub workers: Workers,
    /// Most simultaneous connections, and requests, of each process.
    pub connections: usize,
    /// A process is replaced after this many requests, up to a tenth earlier.
    pub max_requests: Option<u64>,
    /// A process of this age is replaced, up to a tenth earlier.
    pub max_age: Option<Duration>,
    /// A process is replaced if it uses more resident memory, including its descendants.
    pub max_memory: Option<u64>,
    /// A process is replaced after this CPU time, including its descendants, up to a tenth earlier.
    pub max_cpu: Option<Duration>,
    /// Processes above `workers.min` end when idle for this long.
    pub idle_timeout: Duration,
    /// Most requests that wait for a permit; further ones are refused.
    pub queue: usize,
    /// Longest time that a request waits for a permit.
    pub queue_timeout: Duration,
    /// Time limit for a process to listen.
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
    /// The program must not run as root: if Forebay is root, `user` is required.
    pub needs_user: bool,
    /// Limits of each process.
    pub limits: ProcessLimits,
    /// Limits of all processes together.
    pub cgroup: CgroupLimits,
}

/// The opener of a program's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listening {
    /// The program, the Unix socket `{socket}`.
    Socket,
    /// The program, the TCP port `{port}` of 127.0.0.1.
    Port,
    /// Forebay, a Unix socket that is passed on as descriptor 3.
    Inherit,
    /// Forebay, a TCP port of 127.0.0.1 that is passed on as descriptor 3.
    InheritPort,
    /// Forebay, a Unix socket that is passed on as descriptor 0.
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

/// A running program. Clones refer to the same program. If the last is dropped without
/// [`shutdown`](Program::shutdown), its processes are ended.
#[derive(Clone)]
pub struct Program {
    shared: Arc<Shared>,
}

struct Shared {
    spec: ProgramSpec,
    pool: Arc<InstancePool>,
    supervisor: Handle,
    /// A requested setting that this machine does not support.
    note: Option<String>,
}

impl Program {
    /// Starts the processes and returns when the first one listens, or at once if none is needed
    /// before the first request. After an error nothing runs. `log` receives their output and
    /// messages of the supervisor; several threads may call it. Blocks: call it before requests are
    /// served.
    ///
    /// Processes are started through the current executable: its `main` must pass `__guardian` to
    /// [`guard_program`](forebay_process::guard_program) and `__launch` to
    /// [`launch`](forebay_process::launch()).
    pub fn start(
        spec: ProgramSpec,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Program, StartError> {
        let (program, first) = Program::begin(spec, log)?;
        first.wait_for_end().inspect_err(|_| program.end())?;
        Ok(program)
    }

    /// Starts the processes as [`start`](Program::start), without waiting. If the first process
    /// does not listen, requests are refused and further starts follow, as after a later crash.
    pub fn begin(
        spec: ProgramSpec,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(Program, FirstStart), StartError> {
        spec.check(Uid::effective().is_root())?;
        let identity = Identity::find(&spec.name, spec.user.as_deref(), spec.group.as_deref())?;
        let log: WorkerLog = Arc::new(log);
        let pool = Arc::new(InstancePool::new(spec.connections));
        let (cgroup, note) =
            LimitedCgroup::prepare(&spec.name, spec.cgroup, identity.as_ref(), &*log);
        let (own_spec, own_pool) = (spec.clone(), pool.clone());
        let (supervisor, first) = Handle::start(&spec.name, log, move || {
            let rules = own_spec.rules();
            InstanceKind { spec: own_spec, rules, identity, cgroup, pool: own_pool }
        })?;
        pool.set_commands(supervisor.commands());
        let shared = Arc::new(Shared { spec, pool, supervisor, note });
        Ok((Program { shared }, first))
    }

    /// Returns a permit for one request, and waits if all are taken.
    pub async fn checkout(&self) -> Result<Permit, Unavailable> {
        self.checkout_at(None).await
    }

    /// Returns a permit as [`checkout`](Program::checkout), for the process with this
    /// [id](Permit::id) if that takes requests and has a free permit.
    pub async fn checkout_at(&self, wanted: Option<u64>) -> Result<Permit, Unavailable> {
        let shared = &self.shared;
        let mut receiver = match shared.pool.take(shared.spec.queue, wanted)? {
            Taken::Permit(permit) => return Ok(permit),
            Taken::Wait(receiver) => receiver,
        };
        if shared.spec.workers.min < shared.spec.workers.max {
            shared.supervisor.send(Command::RequestWaits);
        }
        match tokio::time::timeout(shared.spec.queue_timeout, &mut receiver).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(Unavailable::ShuttingDown),
            // A permit that is granted at this moment returns when the receiver is dropped.
            Err(_) => Err(Unavailable::QueueTimeout),
        }
    }

    /// Returns a receiver that changes whenever a process stops taking requests.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.pool.changes()
    }

    /// Returns true if the process with this [id](Permit::id) takes requests.
    pub fn serves(&self, id: u64) -> bool {
        self.shared.pool.serves(id)
    }

    /// Returns the [id](Permit::id) of the process with this [name](Permit::name), while it takes
    /// requests.
    pub fn named(&self, name: &[u8]) -> Option<u64> {
        self.shared.pool.named(name)
    }

    /// Returns true if `other` is the same program.
    pub fn is_same(&self, other: &Program) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the health of the program.
    pub fn health(&self) -> Health {
        Health { note: self.shared.note.clone(), ..self.shared.pool.health() }
    }

    /// Replaces processes whose files have changed since the last check. To be called after the
    /// configuration was read again.
    pub fn reloaded(&self) {
        self.shared.supervisor.send(Command::Reloaded);
    }

    /// Replaces all processes, one after the other.
    pub fn restart(&self) {
        self.shared.supervisor.send(Command::Restart);
    }

    /// Ends all processes: idle ones at once, the others after their requests or after `grace`.
    /// Refuses waiting requests. No process is left when this returns.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.pool.close();
        self.shared.supervisor.shutdown(grace).await;
    }

    /// Ends all processes without grace, for callers without an event loop. Blocks.
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
    /// Returns a program with the defaults: one process with 100 connections, no recycling, 1,024
    /// waiting requests for up to 10 s, 30 s to start, 10 s to stop, 60 s idle.
    pub fn new(name: impl Into<String>, run: Vec<String>, listen: Listening) -> ProgramSpec {
        ProgramSpec {
            name: name.into(),
            run,
            files: Vec::new(),
            host: None,
            dir: PathBuf::from("/"),
            env: Vec::new(),
            listen,
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

    /// Checks the directory, the program and the user. `as_root`: Forebay is root when it starts
    /// the program.
    pub fn check(&self, as_root: bool) -> Result<(), StartError> {
        let wrong = |what: String| StartError::new(&self.name, what);
        if !self.dir.is_dir() {
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
        // The values for a process are not known yet.
        if !program.contains('{')
            && let Err(absent) = executable::find(&program, &env, &self.dir)
        {
            return Err(wrong(absent.what).at(&["run", "0"]).help(absent.help));
        }
        Identity::look_up(&self.name, self.user.as_deref(), self.group.as_deref()).map(drop)
    }
}
