//! Applications that run, whatever their kind.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_conf as conf;
use forebay_engine::{AppStatus, ErrorLog, Origin, Thread, WorkerRow};
use forebay_workers::{
    App, AppSpec, CgroupLimits, Health, Listening, Php, ProcessLimits, Program, ProgramSpec,
    StartError, WorkerState, WorkerStatus, Workers, php,
};

use crate::app::{Target, WorkerApp};
use crate::program::{Connections, How, Naming, ProgramApp, Speaks};

/// What an application is. Where it is the same after a reload, the application runs on.
#[derive(Clone, PartialEq, Eq)]
pub enum Definition {
    /// Workers that run a language host.
    Workers(AppSpec),
    /// A program that listens by itself.
    Program(ProgramSpec),
}

/// An application that runs.
#[derive(Clone)]
pub struct Running {
    definition: Definition,
    processes: Processes,
}

#[derive(Clone)]
enum Processes {
    Workers(App),
    Program(Program, Arc<Connections>),
}

impl Running {
    /// Starts the application; blocks until it takes requests.
    pub fn start(definition: Definition, errors: &ErrorLog) -> Result<Self, StartError> {
        let errors = errors.clone();
        let log = move |line: &str| errors.say(line);
        let processes = match &definition {
            Definition::Workers(spec) => Processes::Workers(App::start(spec.clone(), log)?),
            Definition::Program(spec) => {
                let connections = Arc::new(Connections::new(spec.connections));
                Processes::Program(Program::start(spec.clone(), log)?, connections)
            }
        };
        Ok(Self { definition, processes })
    }

    /// Whether it runs by this definition.
    pub fn is(&self, definition: &Definition) -> bool {
        self.definition == *definition
    }

    /// Whether the other one is this very application.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.processes, &other.processes) {
            (Processes::Workers(one), Processes::Workers(other)) => one.is_same(other),
            (Processes::Program(one, _), Processes::Program(other, _)) => one.is_same(other),
            _ => false,
        }
    }

    /// What passes the requests of a route on. `target` is what workers are asked for.
    pub fn origin(
        &self,
        name: &str,
        plan: &conf::App,
        target: Target,
        thread: Rc<Thread>,
    ) -> Box<dyn Origin> {
        match &self.processes {
            Processes::Workers(app) => {
                Box::new(WorkerApp::new(thread, app.clone(), target, plan.max_output))
            }
            Processes::Program(program, connections) => {
                let (program, connections) = (program.clone(), connections.clone());
                Box::new(ProgramApp::new(thread, name.into(), program, connections, how(plan)))
            }
        }
    }

    /// The configuration was read again, and it runs on.
    pub fn reloaded(&self) {
        if let Processes::Workers(app) = &self.processes {
            app.reloaded();
        }
    }

    /// Ends it, giving requests under way `grace` to end.
    pub async fn shutdown(&self, grace: Duration) {
        match &self.processes {
            Processes::Workers(app) => app.shutdown(grace).await,
            Processes::Program(program, _) => program.shutdown(grace).await,
        }
    }

    /// How it is.
    pub fn status(&self, name: &str) -> AppStatus {
        let health = match &self.processes {
            Processes::Workers(app) => app.health(),
            Processes::Program(program, _) => program.health(),
        };
        let Health { workers, waiting, starts, crashes, crash_loop, note } = health;
        AppStatus {
            name: name.to_owned(),
            workers: workers.into_iter().map(worker_row).collect(),
            waiting,
            starts,
            crashes,
            crash_loop,
            note,
        }
    }
}

/// Whether it is a program that listens by itself.
pub fn listens(plan: &conf::App) -> bool {
    matches!(plan.kind, conf::AppKind::Php { .. } | conf::AppKind::Command { .. })
}

/// How requests are passed on to a program of this plan.
pub fn how(plan: &conf::App) -> How {
    let speaks = match &plan.kind {
        conf::AppKind::Php { root } => Speaks::Fastcgi(Naming::Scripts(root.clone())),
        conf::AppKind::Command { speaks: conf::Speaks::Fastcgi, root, .. } => {
            Speaks::Fastcgi(root.clone().map_or(Naming::Mount, Naming::Below))
        }
        conf::AppKind::Command { speaks: conf::Speaks::Scgi, root, .. } => {
            Speaks::AppServer(server(plan, conf::ServerProtocol::Scgi, root.clone()))
        }
        conf::AppKind::Command { speaks: conf::Speaks::Uwsgi, root, .. } => {
            let protocol = conf::ServerProtocol::Uwsgi { modifier1: 0, modifier2: 0 };
            Speaks::AppServer(server(plan, protocol, root.clone()))
        }
        conf::AppKind::Command { host, .. } => Speaks::Http(*host),
        // No other kind listens.
        _ => Speaks::Http(conf::HostField::Client),
    };
    How {
        speaks,
        dir: plan.dir.clone(),
        silence: plan.request_timeout,
        max_output: plan.max_output,
    }
}

/// What a route to an SCGI or uwsgi application would say.
fn server(
    plan: &conf::App,
    protocol: conf::ServerProtocol,
    root: Option<PathBuf>,
) -> conf::AppServer {
    conf::AppServer {
        protocol,
        to: Vec::new(),
        root,
        mount: String::new(),
        params: Default::default(),
        max_output: plan.max_output,
        max_connections: None,
    }
}

/// The program of an application that listens by itself; none for other kinds.
pub fn program(name: &str, plan: &conf::App) -> Result<Option<ProgramSpec>, StartError> {
    let children = Workers { min: plan.workers.min, max: plan.workers.max };
    let mut spec = match &plan.kind {
        conf::AppKind::Command { run, listen, connections, .. } => {
            let mut spec = ProgramSpec::new(name, run.clone(), listening(*listen));
            spec.workers = children;
            spec.max_requests = plan.max_requests;
            spec.connections = *connections;
            spec
        }
        conf::AppKind::Php { .. } => {
            let max_requests = plan.max_requests;
            let (request_timeout, idle_timeout) = (plan.request_timeout, plan.idle_timeout);
            php(name, Php { children, max_requests, request_timeout, idle_timeout })?
        }
        _ => return Ok(None),
    };
    let env = plan.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    spec.env.extend(env);
    Ok(Some(ProgramSpec {
        dir: plan.dir.clone(),
        max_age: plan.max_age,
        max_memory: plan.max_memory,
        idle_timeout: plan.idle_timeout,
        queue: plan.queue,
        queue_timeout: plan.queue_timeout,
        start_timeout: plan.start_timeout,
        stop_timeout: plan.stop_timeout,
        drain_timeout: plan.request_timeout,
        watch: plan.watch.clone(),
        user: plan.user.clone(),
        group: plan.group.clone(),
        limits: limits(plan.limits),
        cgroup: cgroup(plan.cgroup),
        ..spec
    }))
}

/// What every kind of worker is told alike. `spec` says what the kind is.
pub fn workers(spec: AppSpec, plan: &conf::App) -> AppSpec {
    let files = match &plan.kind {
        conf::AppKind::Psgi { file } => vec![file.clone()],
        conf::AppKind::Wsgi { module, dir, .. } => module_files(module, dir),
        _ => Vec::new(),
    };
    AppSpec {
        max_age: plan.max_age,
        watch: plan.watch.clone(),
        files,
        user: plan.user.clone(),
        group: plan.group.clone(),
        limits: limits(plan.limits),
        cgroup: cgroup(plan.cgroup),
        ..spec
    }
}

/// Where Python looks for the module of `module:callable` first.
fn module_files(module: &str, dir: &Path) -> Vec<PathBuf> {
    let name = module.split(':').next().unwrap_or_default().replace('.', "/");
    vec![dir.join(format!("{name}.py")), dir.join(name).join("__init__.py")]
}

/// What each process may use.
fn limits(plan: conf::ProcessLimits) -> ProcessLimits {
    let conf::ProcessLimits { open_files, memory, cpu_time, processes, core } = plan;
    ProcessLimits { open_files, memory, cpu_time, processes, core }
}

fn cgroup(plan: conf::CgroupLimits) -> CgroupLimits {
    let conf::CgroupLimits { memory, cpu_percent, processes } = plan;
    CgroupLimits { memory, cpu_percent, processes }
}

fn listening(plan: conf::Listening) -> Listening {
    match plan {
        conf::Listening::Socket => Listening::Socket,
        conf::Listening::Port => Listening::Port,
        conf::Listening::Inherit => Listening::Inherit,
        conf::Listening::InheritPort => Listening::InheritPort,
        conf::Listening::Stdin => Listening::Stdin,
    }
}

fn worker_row(worker: WorkerStatus) -> WorkerRow {
    WorkerRow {
        pid: worker.pid,
        state: match worker.state {
            WorkerState::Starting => "starting",
            WorkerState::Idle => "idle",
            WorkerState::Busy => "busy",
            WorkerState::Ending => "ending",
        },
        requests: worker.requests,
        age: worker.age,
        rss: worker.rss,
        current_request: worker.current_request,
    }
}
