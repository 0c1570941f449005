//! Running applications of all kinds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{AppStatus, FindingRow, ProofRow, WorkerRow};
use forebay_conf as conf;
use forebay_net::thread::Thread;
use forebay_server::exchange::Origin;
use forebay_upstream::proxy::{ScopeLine, Variables};
use forebay_upstream::script::scripts_of;
use forebay_workers::{
    App, AppSpec, FirstStart, Health, Launcher, Program, Proof, Severity, StartError, Verdict,
    WorkerState, WorkerStatus,
};
use tokio::sync::Semaphore;

use crate::apps::definition::{Definition, ScriptsSpec, env_of_requests, script_dir};
use crate::apps::program::{
    Connections, HttpRoute, PathMapping, ProgramApp, ProgramOptions, Protocol,
};
use crate::apps::scripts::ScriptApp;
use crate::apps::worker::{Target, WorkerApp};
use crate::scripts::cgi;
use crate::scripts::warm::Warm;

/// A running application.
#[derive(Clone)]
pub struct RunningApp {
    definition: Definition,
    processes: Processes,
}

#[derive(Clone)]
enum Processes {
    Workers(App),
    Scripts(Arc<ScriptProcesses>),
    Program(Program, Arc<Connections>),
}

/// Workers for scripts, and the settings to start scripts that no worker runs.
struct ScriptProcesses {
    warm: Warm,
    perl: Option<App>,
    python: Option<App>,
    others: cgi::Processes,
}

impl ScriptProcesses {
    /// Starts the workers of each language without waiting for them. The caller may await each
    /// returned [`FirstStart`].
    fn begin(
        spec: &ScriptsSpec,
        log: impl Fn(Severity, &str) + Send + Sync + 'static,
    ) -> Result<(Self, Vec<FirstStart>), StartError> {
        let log = Arc::new(log);
        let mut starts = Vec::new();
        let mut begin = |spec: &Option<AppSpec>| {
            let Some(spec) = spec else { return Ok(None) };
            let log = log.clone();
            let (app, first) = App::begin(spec.clone(), move |level, line| log(level, line))?;
            starts.push(first);
            Ok(Some(app))
        };
        let (perl, python) = (begin(&spec.perl)?, begin(&spec.python)?);
        let others = cgi::Processes {
            room: Arc::new(Semaphore::new(spec.max_processes)),
            reaper: Arc::default(),
            launcher: Arc::new(Launcher::new(&spec.name, &spec.launch)?),
            passed: &cgi::PASSED_BY_APPS,
        };
        Ok((Self { warm: spec.warm.clone(), perl, python, others }, starts))
    }

    fn workers(&self) -> impl Iterator<Item = &App> {
        self.perl.iter().chain(&self.python)
    }

    /// Returns the health of all workers.
    fn health(&self) -> Health {
        self.workers().map(App::health).fold(Health::default(), |mut all, of_one| {
            all.workers.extend(of_one.workers);
            all.waiting += of_one.waiting;
            all.starts += of_one.starts;
            all.crashes += of_one.crashes;
            all.crash_loop = all.crash_loop.or(of_one.crash_loop);
            all.note = all.note.or(of_one.note);
            all
        })
    }
}

impl RunningApp {
    /// Starts the application without waiting. An error is permanent, so a retry would not help.
    pub fn begin(
        definition: Definition,
        log: impl Fn(Severity, &str) + Send + Sync + 'static,
    ) -> Result<(Self, Vec<FirstStart>), StartError> {
        let (processes, first) = match &definition {
            Definition::Workers(spec) => {
                let (app, first) = App::begin(spec.clone(), log)?;
                (Processes::Workers(app), vec![first])
            }
            Definition::Scripts(spec) => {
                let (scripts, first) = ScriptProcesses::begin(spec, log)?;
                (Processes::Scripts(Arc::new(scripts)), first)
            }
            Definition::Program(spec) => {
                let connections = Arc::new(Connections::new(spec.connections));
                let (program, first) = Program::begin(spec.clone(), log)?;
                (Processes::Program(program, connections), vec![first])
            }
        };
        Ok((Self { definition, processes }, first))
    }

    /// Returns true if the application runs with this definition.
    pub fn is(&self, definition: &Definition) -> bool {
        self.definition == *definition
    }

    /// Returns true if both are the same running application.
    pub fn is_same(&self, other: &Self) -> bool {
        match (&self.processes, &other.processes) {
            (Processes::Workers(one), Processes::Workers(other)) => one.is_same(other),
            (Processes::Scripts(one), Processes::Scripts(other)) => Arc::ptr_eq(one, other),
            (Processes::Program(one, _), Processes::Program(other, _)) => one.is_same(other),
            _ => false,
        }
    }

    /// Creates the origin for the requests of `route`.
    pub fn origin(
        &self,
        name: &str,
        plan: &conf::App,
        route: &conf::Route,
        thread: Rc<Thread>,
    ) -> Box<dyn Origin> {
        match &self.processes {
            Processes::Workers(app) => {
                Box::new(WorkerApp::new(thread, app.clone(), Target::of(plan, route), plan))
            }
            Processes::Scripts(scripts) => {
                let ScriptProcesses { warm, perl, python, others } = &**scripts;
                let workers = (warm.clone(), perl.as_ref(), python.as_ref());
                let found = scripts_of(&script_dir(plan), route);
                Box::new(ScriptApp::new(thread, plan, found, workers, others.clone()))
            }
            Processes::Program(program, connections) => {
                let (program, connections) = (program.clone(), connections.clone());
                Box::new(ProgramApp::new(
                    thread,
                    name.into(),
                    program,
                    connections,
                    program_options(plan),
                ))
            }
        }
    }

    /// Notifies the application that the configuration was reloaded, and that the application keeps
    /// running.
    pub fn reloaded(&self) {
        match &self.processes {
            Processes::Workers(app) => app.reloaded(),
            Processes::Scripts(scripts) => scripts.workers().for_each(App::reloaded),
            Processes::Program(program, _) => program.reloaded(),
        }
    }

    /// Replaces the application's processes, one after another.
    pub fn restart(&self) {
        match &self.processes {
            Processes::Workers(app) => app.restart(),
            Processes::Scripts(scripts) => scripts.workers().for_each(App::restart),
            Processes::Program(program, _) => program.restart(),
        }
    }

    /// Ends the application. Active requests have the time `grace` to end.
    pub async fn shutdown(&self, grace: Duration) {
        match &self.processes {
            Processes::Workers(app) => app.shutdown(grace).await,
            Processes::Scripts(scripts) => {
                for app in scripts.workers() {
                    app.shutdown(grace).await;
                }
                scripts.others.reaper.close();
            }
            Processes::Program(program, _) => program.shutdown(grace).await,
        }
    }

    /// Ends the application at once. Blocks until all its processes are gone.
    pub fn end(&self) {
        match &self.processes {
            Processes::Workers(app) => app.end(),
            Processes::Scripts(scripts) => {
                scripts.workers().for_each(App::end);
                scripts.others.reaper.close();
            }
            Processes::Program(program, _) => program.end(),
        }
    }

    /// Returns the status of the application. `name` is the application's name.
    pub fn status(&self, name: &str) -> AppStatus {
        let health = match &self.processes {
            Processes::Workers(app) => app.health(),
            Processes::Scripts(scripts) => scripts.health(),
            Processes::Program(program, _) => program.health(),
        };
        let Health { workers, waiting, starts, crashes, crash_loop, note } = health;
        let proofs = match &self.processes {
            Processes::Workers(app) => app.proofs(),
            Processes::Scripts(scripts) => scripts.workers().flat_map(App::proofs).collect(),
            Processes::Program(..) => Vec::new(),
        };
        AppStatus {
            name: name.to_owned(),
            workers: workers.into_iter().map(worker_row).collect(),
            waiting,
            starts,
            crashes,
            crash_loop,
            note,
            proofs: proofs.into_iter().map(proof_row).collect(),
        }
    }
}

/// Returns a proof as the administrator sees it.
pub fn proof_row(proof: Proof) -> ProofRow {
    let (state, finding) = match proof.verdict {
        Verdict::Proving => ("proving", None),
        Verdict::Proved => ("proved", None),
        Verdict::Refused(finding) => ("refused", Some(finding)),
    };
    ProofRow {
        script: proof.script,
        state,
        requests: proof.requests,
        needed: proof.needed,
        inputs: proof.inputs,
        checks: proof.checks,
        harmless: proof.harmless,
        micros: proof.micros,
        finding: finding.map(|finding| FindingRow {
            variable: finding.variable,
            why: finding.why,
            place: finding.place,
            values: finding.values,
            cure: finding.cure,
        }),
    }
}

/// Returns true if the application is a program that has its own listener.
pub fn listens(plan: &conf::App) -> bool {
    use conf::AppKind::{Asgi, Command, Mono, Pagi, Php, Rack};
    let is_asynchronous = matches!(plan.kind, Asgi { .. } | Pagi { .. });
    is_asynchronous || matches!(plan.kind, Php { .. } | Mono { .. } | Rack { .. } | Command { .. })
}

/// Returns the options for passing requests to a program.
pub fn program_options(plan: &conf::App) -> ProgramOptions {
    let protocol = match &plan.kind {
        conf::AppKind::Php { root, scripts, strip_prefix, .. } => {
            let settings = fastcgi(plan, root, scripts);
            let settings = conf::Fastcgi { strip_prefix: strip_prefix.clone(), ..settings };
            Protocol::Fastcgi(PathMapping::Scripts, settings)
        }
        conf::AppKind::Rack { .. } => Protocol::Http(HttpRoute {
            variables: Some(Variables {
                point: plan.mount.clone(),
                instead: env_of_requests(plan),
            }),
            ..HttpRoute::default()
        }),
        conf::AppKind::Asgi { sticky, .. } | conf::AppKind::Pagi { sticky, .. } => {
            Protocol::Http(HttpRoute {
                sticky: sticky.clone(),
                scope_line: Some(ScopeLine { point: plan.mount.clone() }),
                ..HttpRoute::default()
            })
        }
        conf::AppKind::Mono { dir, .. } => {
            Protocol::Fastcgi(PathMapping::Below, fastcgi(plan, dir, &[]))
        }
        conf::AppKind::Command {
            speaks: conf::AppProtocol::Fastcgi,
            listen,
            root,
            scripts,
            strip_prefix,
            ..
        } => {
            let mapping = match root {
                Some(_) if scripts.is_empty() => PathMapping::Below,
                Some(_) => PathMapping::Scripts,
                None => PathMapping::Mount,
            };
            let settings = fastcgi(plan, root.as_ref().unwrap_or(&plan.dir), scripts);
            let opens_socket = matches!(listen, conf::Listening::Socket | conf::Listening::Port);
            let settings = conf::Fastcgi {
                strip_prefix: strip_prefix.clone(),
                // A program may end after any request. Over a kept connection, the next request
                // would be lost then, but a new connection waits for the next process.
                keep_conn: opens_socket,
                ..settings
            };
            Protocol::Fastcgi(mapping, settings)
        }
        conf::AppKind::Command { speaks: conf::AppProtocol::Scgi, root, .. } => {
            Protocol::AppServer(server(plan, conf::ServerProtocol::Scgi, root.clone()))
        }
        conf::AppKind::Command { speaks: conf::AppProtocol::Uwsgi, root, .. } => {
            let protocol = conf::ServerProtocol::Uwsgi { modifier1: 0, modifier2: 0 };
            Protocol::AppServer(server(plan, protocol, root.clone()))
        }
        conf::AppKind::Command { speaks: conf::AppProtocol::Ajp, secret, .. } => {
            Protocol::Ajp(conf::Ajp {
                upstream: Arc::new(conf::Upstream::new(Vec::new())),
                secret: secret.clone(),
                packet_size: forebay_wire::ajp13::LEAST_PACKET,
                ping: conf::Ping::Off,
                reply_timeout: Some(plan.request_timeout),
            })
        }
        conf::AppKind::Command { host, strip_prefix, sticky, speaks, .. } => {
            Protocol::Http(HttpRoute {
                host: *host,
                strip_prefix: strip_prefix.clone(),
                sticky: sticky.clone(),
                version: match speaks {
                    conf::AppProtocol::H2c => conf::HttpVersion::Http2,
                    _ => conf::HttpVersion::Http11,
                },
                variables: None,
                scope_line: None,
            })
        }
        // Applications of other kinds have no listener.
        _ => Protocol::Http(HttpRoute::default()),
    };
    ProgramOptions {
        protocol,
        silence: plan.request_timeout,
        is_mono_host: matches!(plan.kind, conf::AppKind::Mono { .. }),
        fair: plan.fair.clone(),
    }
}

/// The parameters that every request to a program has.
fn params(plan: &conf::App) -> BTreeMap<String, String> {
    let mut params = env_of_requests(plan);
    params.extend(plan.params.clone());
    params
}

/// Returns the settings of a `fastcgi` route that would be equivalent to the application.
fn fastcgi(plan: &conf::App, root: &Path, scripts: &[String]) -> conf::Fastcgi {
    conf::Fastcgi {
        upstream: Arc::new(conf::Upstream::new(Vec::new())),
        root: Some(root.to_owned()),
        strip_prefix: None,
        mount: plan.mount.clone(),
        index: "index.php".into(),
        scripts: scripts.to_vec(),
        params: params(plan),
        must_exist: true,
        keep_conn: true,
        multiplex: conf::Multiplex::Off,
        max_streams: 1,
        max_shared: usize::MAX,
        max_buffered: 0,
        max_output: plan.max_output,
        reply_timeout: None,
    }
}

/// Returns the settings of an `scgi` or `uwsgi` route that would be equivalent to the application.
fn server(
    plan: &conf::App,
    protocol: conf::ServerProtocol,
    root: Option<PathBuf>,
) -> conf::AppServer {
    conf::AppServer {
        protocol,
        upstream: Arc::new(conf::Upstream::new(Vec::new())),
        root,
        mount: plan.mount.clone(),
        params: params(plan),
        max_output: plan.max_output,
        reply_timeout: None,
    }
}

/// Converts the state of a worker for `/status`.
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
        cpu: worker.cpu,
        current_request: worker.current_request,
    }
}
