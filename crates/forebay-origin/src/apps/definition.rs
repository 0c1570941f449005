//! Converts an application's plan into the specification for its supervisor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_conf::{self as conf, AppKind};
use forebay_workers::{
    AppSpec, Asgi, CgroupLimits, Kind, LaunchSpec, Listening, Mono, Pagi, PerlMode, Php,
    ProcessLimits, ProgramSpec, PythonMode, Rack, StartError, Workers,
};

use crate::scripts::interpreter::survey;
use crate::scripts::warm::{Unmarked, Warm};

/// Specification of an application. If it is unchanged after a reload, the application keeps
/// running.
#[derive(Clone, PartialEq, Eq)]
pub enum Definition {
    /// Workers that run a language host.
    Workers(AppSpec),
    /// CGI scripts: workers, and processes for scripts that workers cannot run.
    Scripts(Box<ScriptsSpec>),
    /// A program that has its own listener.
    Program(ProgramSpec),
}

/// Workers of an application of CGI scripts, and settings of the processes for scripts that no
/// worker runs.
#[derive(Clone, PartialEq, Eq)]
pub struct ScriptsSpec {
    /// Name of the application.
    pub name: String,
    /// Workers for Perl.
    pub perl: Option<AppSpec>,
    /// Workers for Python.
    pub python: Option<AppSpec>,
    /// Scripts that the workers run.
    pub warm: Warm,
    /// Maximum number of simultaneous processes for other scripts.
    pub max_processes: usize,
    /// User and limits of these processes.
    pub launch: LaunchSpec,
}

/// Returns the specification of an application.
pub fn definition(name: &str, plan: &conf::App) -> Result<Definition, StartError> {
    let worker = |kind, files| Ok(Definition::Workers(workers(name, plan, kind, files)));
    match &plan.kind {
        AppKind::CgiBin { .. } | AppKind::PerlCgi { .. } | AppKind::PythonCgi { .. } => {
            Ok(Definition::Scripts(Box::new(scripts(name, plan))))
        }
        AppKind::Psgi { file } => {
            let kind = Kind::Psgi { dir: plan.dir.clone(), file: file.clone() };
            worker(kind, vec![file.clone()])
        }
        AppKind::ModPerl { preload, switches, directives, .. } => {
            let kind = Kind::ModPerl {
                dir: plan.dir.clone(),
                preload: preload.clone(),
                switches: switches.clone(),
                directives: directives.clone(),
            };
            let files = preload.iter().filter(|item| item.starts_with('/')).map(PathBuf::from);
            worker(kind, files.collect())
        }
        AppKind::Wsgi { module, dir, python } => {
            let files = module_files(module, dir);
            let (module, dir, python) = (module.clone(), dir.clone(), python.clone());
            worker(Kind::Wsgi { module, dir, python }, files)
        }
        AppKind::Rack { file, ruby, threads, connections } => {
            let rack = Rack {
                file: file.clone(),
                ruby: ruby.clone(),
                threads: *threads,
                connections: *connections,
            };
            let mut spec = forebay_workers::rack(name, &rack);
            spec.workers = processes(plan);
            spec.max_requests = plan.max_requests;
            Ok(Definition::Program(program(spec, plan)))
        }
        AppKind::Asgi { module, dir, python, connections, max_message, .. } => {
            let asgi = Asgi {
                module: module.clone(),
                python: python.clone(),
                connections: *connections,
                max_message: *max_message,
                stop_timeout: plan.stop_timeout,
            };
            let mut spec = forebay_workers::asgi(name, &asgi);
            spec.workers = processes(plan);
            spec.max_requests = plan.max_requests;
            spec.watch_at_reload = module_files(module, dir);
            Ok(Definition::Program(program(spec, plan)))
        }
        AppKind::Pagi { file, connections, max_message, .. } => {
            let pagi = Pagi {
                file: file.clone(),
                connections: *connections,
                max_message: *max_message,
                stop_timeout: plan.stop_timeout,
            };
            let mut spec = forebay_workers::pagi(name, &pagi);
            spec.workers = processes(plan);
            spec.max_requests = plan.max_requests;
            spec.watch_at_reload = vec![file.clone()];
            Ok(Definition::Program(program(spec, plan)))
        }
        AppKind::Command { run, listen, connections, warm_up, .. } => {
            let mut spec = ProgramSpec::new(name, run.clone(), listening(*listen));
            spec.warm_up.clone_from(warm_up);
            spec.workers = processes(plan);
            spec.max_requests = plan.max_requests;
            spec.connections = *connections;
            Ok(Definition::Program(program(spec, plan)))
        }
        AppKind::Php { scripts, ini, version, .. } => {
            let max_requests = plan.max_requests;
            let (request_timeout, idle_timeout) = (plan.request_timeout, plan.idle_timeout);
            let (children, scripts) = (processes(plan), scripts.clone());
            let (ini, version) = (ini.clone(), version.clone());
            let php = Php {
                children,
                max_requests,
                request_timeout,
                idle_timeout,
                scripts,
                ini,
                version,
            };
            let spec = forebay_workers::php(name, php)?;
            Ok(Definition::Program(program(spec, plan)))
        }
        AppKind::Mono { threads, virtual_path, .. } => {
            let mono = Mono { threads: *threads, virtual_path: virtual_path.clone() };
            let mut spec = forebay_workers::mono(name, &mono);
            spec.workers = processes(plan);
            spec.max_requests = plan.max_requests;
            Ok(Definition::Program(program(spec, plan)))
        }
    }
}

/// Returns a specification with the interpreter and the module of an ASGI application. The caller
/// checks both before the start of the application. Returns `None` for other kinds of applications.
pub fn asgi_interpreter(name: &str, plan: &conf::App) -> Option<AppSpec> {
    let AppKind::Asgi { module, dir, python, .. } = &plan.kind else { return None };
    let (module, dir, python) = (module.clone(), dir.clone(), python.clone());
    Some(workers(name, plan, Kind::Wsgi { module, dir, python }, Vec::new()))
}

/// Returns the specification of CGI scripts. If the directory has Perl and Python scripts, each
/// language gets its own workers. If a script in a further language is added, it runs as a process
/// until the next reload.
fn scripts(name: &str, plan: &conf::App) -> ScriptsSpec {
    let found = survey(&script_dir(plan));
    let python_kind = |dir: &Path, mode: conf::PythonMode, python: &Option<PathBuf>| {
        let python = python.clone().or_else(|| found.environment.clone());
        Kind::PythonCgi { dir: dir.to_owned(), mode: python_mode(mode), python }
    };
    let perl_kind = |dir: &Path, mode, preload: &[String]| Kind::PerlCgi {
        dir: dir.to_owned(),
        mode: perl_mode(mode),
        preload: preload.to_owned(),
    };
    let (perl, python, is_named, unmarked) = match &plan.kind {
        AppKind::PerlCgi { dir, mode, preload } => {
            (Some(perl_kind(dir, *mode, preload)), None, false, Unmarked::Perl)
        }
        AppKind::PythonCgi { dir, mode, python } => {
            let kind = python_kind(dir, *mode, python);
            (None, Some(kind), python.is_some(), Unmarked::Python)
        }
        AppKind::CgiBin { dir, perl_mode, preload, python_mode, python } => {
            let perl = found.perl.then(|| perl_kind(dir, *perl_mode, preload));
            let kind = found.python.then(|| python_kind(dir, *python_mode, python));
            (perl, kind, python.is_some(), Unmarked::Nothing)
        }
        // Applications of other kinds have no scripts.
        _ => (None, None, false, Unmarked::Nothing),
    };
    let warm = Warm {
        perl: perl.is_some(),
        python: python.is_some(),
        environment: found.environment,
        is_named,
        unmarked,
    };
    let spec = |kind| workers(name, plan, kind, Vec::new());
    ScriptsSpec {
        name: name.to_owned(),
        perl: perl.map(spec),
        python: python.map(spec),
        warm,
        max_processes: plan.max_processes,
        launch: LaunchSpec {
            user: plan.user.clone(),
            group: plan.group.clone(),
            limits: limits(plan.limits),
            cgroup: cgroup(plan.cgroup),
        },
    }
}

/// Adds the common settings of all programs to `spec`.
fn program(mut spec: ProgramSpec, plan: &conf::App) -> ProgramSpec {
    spec.env.extend(env(plan));
    ProgramSpec {
        dir: plan.dir.clone(),
        max_age: plan.max_age,
        max_memory: plan.max_memory,
        max_cpu: plan.max_cpu,
        idle_timeout: plan.idle_timeout,
        queue: plan.queue,
        queue_timeout: plan.queue_timeout,
        start_timeout: plan.start_timeout,
        stop_timeout: plan.stop_timeout,
        drain_timeout: plan.request_timeout,
        watch: spec.watch.iter().map(|own| plan.dir.join(own)).chain(plan.watch.clone()).collect(),
        user: plan.user.clone(),
        group: plan.group.clone(),
        limits: limits(plan.limits),
        cgroup: cgroup(plan.cgroup),
        ..spec
    }
}

/// Returns the specification of workers with the common settings. A reload checks `files` for
/// changes.
fn workers(name: &str, plan: &conf::App, kind: Kind, files: Vec<PathBuf>) -> AppSpec {
    AppSpec {
        workers: processes(plan),
        max_requests: plan.max_requests,
        request_timeout: plan.request_timeout,
        queue: plan.queue,
        queue_timeout: plan.queue_timeout,
        start_timeout: plan.start_timeout,
        env: env(plan).into_iter().collect(),
        max_memory: plan.max_memory,
        max_cpu: plan.max_cpu,
        idle_timeout: plan.idle_timeout,
        max_age: plan.max_age,
        watch: plan.watch.clone(),
        files,
        user: plan.user.clone(),
        group: plan.group.clone(),
        limits: limits(plan.limits),
        cgroup: cgroup(plan.cgroup),
        proves: plan.proves,
        prove_requests: plan.prove_requests,
        ..AppSpec::new(name, kind)
    }
}

fn processes(plan: &conf::App) -> Workers {
    Workers { min: plan.workers.min, max: plan.workers.max }
}

/// Returns the variables of an application's processes. In variables such as PERL5LIB, the
/// application's library directories come before the existing ones.
pub fn env(plan: &conf::App) -> BTreeMap<String, String> {
    let mut env = plan.env.clone();
    if let AppKind::ModPerl { pass_env, .. } = &plan.kind {
        let unset = pass_env.iter().filter(|name| !plan.env.contains_key(*name));
        env.extend(unset.filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))));
    }
    if plan.lib.is_empty() {
        return env;
    }
    let own = plan.lib.iter().map(|dir| dir.to_string_lossy()).collect::<Vec<_>>().join(":");
    for name in ["PERL5LIB", "PYTHONPATH", "RUBYLIB"] {
        let others = env.get(name).cloned().or_else(|| std::env::var(name).ok());
        let others = others.filter(|others| !others.is_empty());
        let all = others.map_or_else(|| own.clone(), |others| format!("{own}:{others}"));
        env.insert(name.to_owned(), all);
    }
    env
}

/// Returns the variables that replace those of a request, such as DOCUMENT_ROOT and REMOTE_USER.
pub fn env_of_requests(plan: &conf::App) -> BTreeMap<String, String> {
    const BEGIN: [&str; 7] =
        ["CONTENT_", "HTTP_", "REMOTE_", "REQUEST_", "SCRIPT_", "SERVER_", "DOCUMENT_"];
    const NAMES: [&str; 6] =
        ["AUTH_TYPE", "GATEWAY_INTERFACE", "HTTPS", "PATH_INFO", "PATH_TRANSLATED", "QUERY_STRING"];
    // HTTP_PROXY is not a variable of a request: it configures requests that the application sends.
    let is_of_request = |name: &str| {
        name != "HTTP_PROXY"
            && (NAMES.contains(&name) || BEGIN.iter().any(|begin| name.starts_with(begin)))
    };
    let all = plan.env.iter().filter(|(name, _)| is_of_request(name));
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the two files in `dir` that can contain the module of `module:callable`.
pub fn module_files(module: &str, dir: &Path) -> Vec<PathBuf> {
    if let Some((file, _)) = module.rsplit_once(':').filter(|_| module.starts_with('/')) {
        return vec![file.into()];
    }
    let name = module.split(':').next().unwrap_or_default().replace('.', "/");
    vec![dir.join(format!("{name}.py")), dir.join(name).join("__init__.py")]
}

fn python_mode(mode: conf::PythonMode) -> PythonMode {
    match mode {
        conf::PythonMode::Fresh => PythonMode::Fresh,
        conf::PythonMode::Fork => PythonMode::Fork,
        conf::PythonMode::Prove => PythonMode::Prove,
    }
}

/// Returns the resource limits of each process.
pub fn limits(plan: conf::ProcessLimits) -> ProcessLimits {
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

fn perl_mode(mode: conf::PerlMode) -> PerlMode {
    match mode {
        conf::PerlMode::Registry => PerlMode::Registry,
        conf::PerlMode::RegistryPrefork => PerlMode::RegistryPrefork,
        conf::PerlMode::PerlRun => PerlMode::PerlRun,
        conf::PerlMode::Fork => PerlMode::Fork,
        conf::PerlMode::Cgi => PerlMode::Cgi,
        conf::PerlMode::Prove => PerlMode::Prove,
    }
}

/// Returns the directory of an application's scripts.
pub fn script_dir(plan: &conf::App) -> PathBuf {
    match &plan.kind {
        AppKind::CgiBin { dir, .. }
        | AppKind::PerlCgi { dir, .. }
        | AppKind::PythonCgi { dir, .. } => dir.clone(),
        _ => plan.dir.clone(),
    }
}
