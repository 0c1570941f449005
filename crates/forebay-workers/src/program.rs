//! Programs that listen by themselves: started, watched, replaced and stopped as workers are, and
//! asked over the sockets that they listen on.
//!
//! A [`Program`] has one process or several, each with a socket of its own. The gateway takes a
//! [`Permit`] at one for the time of a request, and connects by itself: this module knows nothing
//! of what is spoken. `instance_pool` has the permits and who waits for one, `kind` what the
//! supervisor does with such processes, `start` how one is started and `ready` when it counts as
//! started.

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
use crate::stderr::Log;
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
pub struct ProgramSpec {
    /// The name in logs and in status.
    pub name: String,
    /// Program and arguments. `{dir}`, `{socket}`, `{port}` and `{room}`, a private directory of
    /// the process, are filled in.
    pub run: Vec<String>,
    /// Files that are written into `{room}` first: names and texts, which are filled in, too.
    pub files: Vec<(String, String)>,
    /// A host of ours that it runs, compiled here; its directory is `{host}` in `run` and `env`.
    pub host: Option<CompiledHost>,
    /// Where the program starts.
    pub dir: PathBuf,
    /// Environment variables, filled in as `run` is, besides some that are inherited.
    pub env: Vec<(String, String)>,
    /// Who opens the socket.
    pub listen: Listening,
    /// How many processes there are.
    pub workers: Workers,
    /// Connections, and requests, that each process has at once.
    pub connections: usize,
    /// A process is replaced after this many requests, a tenth less at random.
    pub max_requests: Option<u64>,
    /// A process is replaced when it is so old, a tenth less at random.
    pub max_age: Option<Duration>,
    /// A process that uses more resident memory, with all that it has started, is replaced.
    pub max_memory: Option<u64>,
    /// A process that has used so much CPU time, with all that it has started, is replaced, a tenth
    /// less at random.
    pub max_cpu: Option<Duration>,
    /// Processes above `workers.min` end when idle for this long.
    pub idle_timeout: Duration,
    /// How many requests may wait for a permit; one more is refused.
    pub queue: usize,
    /// How long a request waits for a permit.
    pub queue_timeout: Duration,
    /// How long a process may take to listen.
    pub start_timeout: Duration,
    /// From SIGTERM to SIGKILL.
    pub stop_timeout: Duration,
    /// How long a process that is replaced may go on with the requests that it has.
    pub drain_timeout: Duration,
    /// Files and directories whose change replaces the processes.
    pub watch: Vec<PathBuf>,
    /// The user that processes run as.
    pub user: Option<String>,
    /// The group that processes run as.
    pub group: Option<String>,
    /// The program must not run as root: where Forebay is root there has to be a `user`.
    pub needs_user: bool,
    /// What each process may use.
    pub limits: ProcessLimits,
    /// What all processes may use together.
    pub cgroup: CgroupLimits,
}

/// Who opens a program's socket.
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

/// Where a process listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A Unix socket.
    Unix(PathBuf),
    /// A port of this machine.
    Tcp(SocketAddr),
}

/// A running program. Clones are the same; when the last is dropped without
/// [`shutdown`](Program::shutdown), its processes are ended.
#[derive(Clone)]
pub struct Program {
    shared: Arc<Shared>,
}

struct Shared {
    spec: ProgramSpec,
    pool: Arc<InstancePool>,
    supervisor: Handle,
    /// What was asked for and cannot be done on this machine.
    note: Option<String>,
}

impl Program {
    /// Starts the processes and returns when the first one listens; at once, where none has to run
    /// before a request asks for it; an error leaves nothing running. `log` gets what they write
    /// and what the supervisor has to say; it may be called from several threads. Blocks: call it
    /// before requests are served.
    ///
    /// Processes are started through this very program: its `main` must lead `__guardian` to
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

    /// As [`start`](Program::start), without waiting. Where the first process does not listen,
    /// requests are refused and further starts follow, as they do where processes end later.
    pub fn begin(
        spec: ProgramSpec,
        log: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(Program, FirstStart), StartError> {
        spec.check(Uid::effective().is_root())?;
        let identity = Identity::find(&spec.name, spec.user.as_deref(), spec.group.as_deref())?;
        let log: Log = Arc::new(log);
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

    /// A permit for one request; waits for one in turn if all are taken.
    pub async fn checkout(&self) -> Result<Permit, Unavailable> {
        self.checkout_at(None).await
    }

    /// As [`checkout`](Program::checkout), at the process with this [id](Permit::id) if that takes
    /// requests and has a permit left.
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
            // A permit that is given in this very moment goes back when the receiver is dropped.
            Err(_) => Err(Unavailable::QueueTimeout),
        }
    }

    /// Changes whenever a process stops taking requests.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.pool.changes()
    }

    /// Whether the process with this [id](Permit::id) takes requests.
    pub fn serves(&self, id: u64) -> bool {
        self.shared.pool.serves(id)
    }

    /// The [id](Permit::id) of the process with this [name](Permit::name), while it takes requests.
    pub fn named(&self, name: &[u8]) -> Option<u64> {
        self.shared.pool.named(name)
    }

    /// Whether the other one is this very program.
    pub fn is_same(&self, other: &Program) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// How it is.
    pub fn health(&self) -> Health {
        Health { note: self.shared.note.clone(), ..self.shared.pool.health() }
    }

    /// Replaces all processes, one after the other.
    pub fn restart(&self) {
        self.shared.supervisor.send(Command::Restart);
    }

    /// Ends all processes: at once those without a request, the others after their requests or
    /// after `grace`. Requests that wait are refused. When this returns, no process is left.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.pool.close();
        self.shared.supervisor.shutdown(grace).await;
    }

    /// As [`shutdown`](Program::shutdown) without grace, for who has no event loop. Blocks.
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
    /// A program with the defaults: one process with 100 connections, no recycling, 1,024 waiting
    /// requests for up to 10 s, 30 s to start, 10 s to stop, 60 s idle.
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
            user: None,
            group: None,
            needs_user: false,
            limits: ProcessLimits::default(),
            cgroup: CgroupLimits::default(),
        }
    }

    /// What would fail: the directory, the program, the user. `as_root`: Forebay is root when it
    /// starts the program.
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
        // What a process is given of its own is not known yet.
        if !program.contains('{')
            && let Err(absent) = executable::find(&program, &env, &self.dir)
        {
            return Err(wrong(absent.what).at(&["run", "0"]).help(absent.help));
        }
        Identity::look_up(&self.name, self.user.as_deref(), self.group.as_deref()).map(drop)
    }
}
