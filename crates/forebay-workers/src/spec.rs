//! The description of an application and the rules for its workers.

use crate::executable;
use forebay_process::cgroup::CgroupLimits;
use forebay_process::{Identity, Person, ProcessLimits, Refusal, StartError};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One application and the rules for its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppSpec {
    /// The name in logs and in status.
    pub name: String,
    /// The program of the workers.
    pub kind: Kind,
    /// Number of workers.
    pub workers: Workers,
    /// A worker is replaced after this many requests. The limit of each worker is up to a tenth
    /// lower, so that not all workers end together.
    pub max_requests: Option<u64>,
    /// If a request takes longer, its worker and the processes that the script started are killed.
    pub request_timeout: Duration,
    /// Maximum number of requests that wait for a worker. Further requests are refused.
    pub queue: usize,
    /// Maximum time that a request waits for a worker, unless the first one still starts.
    pub queue_timeout: Duration,
    /// A worker that is not ready after this time is killed. Requests wait as long while no worker
    /// serves.
    pub start_timeout: Duration,
    /// Environment variables of the workers, besides the inherited ones: PATH, TZ, PERL5LIB,
    /// PYTHONPATH and LD_LIBRARY_PATH.
    pub env: Vec<(String, String)>,
    /// A worker whose resident memory exceeds this many bytes is replaced after its request.
    pub max_memory: Option<u64>,
    /// A worker that has used this much CPU time is replaced (up to a tenth earlier).
    pub max_cpu: Option<Duration>,
    /// A worker that is idle for this long ends, unless only `workers.min` workers are left.
    pub idle_timeout: Duration,
    /// A worker of this age is replaced (up to a tenth earlier).
    pub max_age: Option<Duration>,
    /// Files and directories whose change replaces the workers, one by one.
    pub watch: Vec<PathBuf>,
    /// Files whose change replaces the workers, but only after a reload:
    /// [`App::reloaded`](crate::App::reloaded) checks them.
    pub files: Vec<PathBuf>,
    /// The user that workers run as, by name.
    pub user: Option<String>,
    /// The group that workers run as, by name.
    pub group: Option<String>,
    /// Limits of each worker.
    pub limits: ProcessLimits,
    /// Limits of all workers together.
    pub cgroup: CgroupLimits,
    /// True if a PSGI or WSGI application is in mode `prove`.
    pub proves: bool,
    /// In mode `prove`, a script is kept after this many requests without a finding.
    pub prove_requests: u64,
    /// In mode `prove`, findings contain values, which may be secrets of visitors.
    pub shows_values: bool,
}

impl AppSpec {
    /// Returns the specification of an application with the defaults: 4 workers without a limit of
    /// age or of requests, and 60 s per request. Up to 1,000 requests wait for up to 30 s. The idle
    /// timeout is 60 s.
    pub fn new(name: impl Into<String>, kind: Kind) -> AppSpec {
        AppSpec {
            name: name.into(),
            kind,
            workers: Workers { min: 4, max: 4 },
            max_requests: None,
            request_timeout: Duration::from_secs(60),
            queue: 1000,
            queue_timeout: Duration::from_secs(30),
            start_timeout: Duration::from_secs(30),
            env: Vec::new(),
            max_memory: None,
            max_cpu: None,
            idle_timeout: Duration::from_secs(60),
            max_age: None,
            watch: Vec::new(),
            files: Vec::new(),
            user: None,
            group: None,
            limits: ProcessLimits::default(),
            cgroup: CgroupLimits::default(),
            proves: false,
            prove_requests: 50,
            shows_values: false,
        }
    }

    /// Checks the directory, the number of workers, the interpreter and the user.
    pub fn check(&self) -> Result<(), StartError> {
        let wrong = |what: String| StartError::new(&self.name, what);
        let dir = self.kind.dir();
        if !executable::may_be_directory(dir) {
            let error = wrong(format!("{} is no directory", dir.display())).at(&["dir"]);
            return Err(error.help("set `dir` to the one with the application"));
        }
        let Workers { min, max } = self.workers;
        if max == 0 || min > max {
            let error = wrong(format!("workers {min} to {max}")).at(&["workers"]);
            return Err(error.help("the maximum must be at least 1 and not below the minimum"));
        }
        let interpreter = self.kind.interpreter();
        if let Err(absent) = executable::find(&interpreter, &self.env, dir)
            && !absent.is_hidden
        {
            let key = self.kind.interpreter_key();
            return Err(wrong(absent.what).at(key).help(absent.help));
        }
        Identity::look_up(&self.name, self.user.as_deref(), self.group.as_deref()).map(drop)
    }

    /// Why `person`, who runs the workers, could not start them, although all that
    /// [`check`](AppSpec::check) asks for exists.
    pub fn refusal(&self, person: &Person) -> Option<StartError> {
        let interpreter = self.kind.interpreter();
        let place = (&*self.env, self.kind.dir());
        let Refusal { message, help, .. } = executable::refusal(person, &interpreter, place)?;
        Some(StartError::new(&self.name, message).at(self.kind.interpreter_key()).help(help))
    }
}

/// The program of the workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// CGI scripts written in Perl. The interpreters stay loaded between requests.
    PerlCgi {
        /// Directory of the scripts. The workers start in it.
        dir: PathBuf,
        /// Mode of execution.
        mode: PerlMode,
        /// Absolute paths of files, and names of modules, that a worker loads when it starts. In
        /// the modes with one process per request, this list must be empty.
        preload: Vec<String>,
    },
    /// A PSGI application, loaded once by each worker.
    Psgi {
        /// Directory in which the workers start.
        dir: PathBuf,
        /// The file whose last expression is the application; an absolute path.
        file: PathBuf,
    },
    /// Handlers for mod_perl 2.
    ModPerl {
        /// Directory in which the workers start.
        dir: PathBuf,
        /// Absolute paths of files, and names of modules, that a worker loads when it starts.
        preload: Vec<String>,
        /// Switches of perl.
        switches: Vec<String>,
        /// Directives of mod_perl with their arguments.
        directives: Vec<Vec<String>>,
    },
    /// CGI scripts written in Python. The interpreters stay loaded between requests.
    PythonCgi {
        /// Directory of the scripts. The workers start in it.
        dir: PathBuf,
        /// Mode of execution.
        mode: PythonMode,
        /// Path of the interpreter; `None` for `python3` from PATH.
        python: Option<PathBuf>,
    },
    /// A WSGI application.
    Wsgi {
        /// `module:callable`; both parts may contain dots.
        module: String,
        /// Directory in which the workers start. Python looks for the module there first.
        dir: PathBuf,
        /// Path of the interpreter; `None` for `python3` from PATH.
        python: Option<PathBuf>,
    },
}

impl Kind {
    /// Returns the directory in which the workers start.
    pub(crate) fn dir(&self) -> &Path {
        match self {
            Kind::PerlCgi { dir, .. }
            | Kind::Psgi { dir, .. }
            | Kind::ModPerl { dir, .. }
            | Kind::PythonCgi { dir, .. }
            | Kind::Wsgi { dir, .. } => dir,
        }
    }

    /// Returns the configuration key that selects the interpreter.
    pub(crate) fn interpreter_key(&self) -> &'static [&'static str] {
        match self {
            Kind::PythonCgi { python: Some(_), .. } | Kind::Wsgi { python: Some(_), .. } => {
                &["python"]
            }
            _ => &["kind"],
        }
    }

    /// Returns the interpreter of the workers: a path, or a name to look up in PATH.
    pub(crate) fn interpreter(&self) -> Cow<'_, str> {
        match self {
            Kind::PerlCgi { .. } | Kind::Psgi { .. } | Kind::ModPerl { .. } => "perl".into(),
            Kind::PythonCgi { python, .. } | Kind::Wsgi { python, .. } => {
                python.as_ref().map_or("python3".into(), |python| python.to_string_lossy())
            }
        }
    }
}

/// Mode of execution of Perl scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerlMode {
    /// As `ModPerl::Registry`: the worker compiles each script once, and runs it without a change
    /// of directory.
    Registry,
    /// As `ModPerl::RegistryPrefork`: the worker compiles each script once, and runs it in the
    /// script's directory.
    RegistryPrefork,
    /// As `ModPerl::PerlRunPrefork`: the worker compiles the script for each request, and forgets
    /// it afterwards.
    PerlRun,
    /// A process compiles each script once, and forks for each request.
    Fork,
    /// Each request starts a new process, for scripts in any language.
    Cgi,
    /// As `Fork`, until the script has left nothing of one request to the next; then as
    /// `RegistryPrefork`.
    Prove,
}

/// Mode of execution of Python scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonMode {
    /// The worker compiles each script once, and runs it in a fresh module for each request.
    Fresh,
    /// The worker compiles each script once, and forks for each request.
    Fork,
    /// As `Fork`, until the script has left nothing of one request to the next; then as `Fresh`.
    Prove,
}

/// The number of workers: always `min`, and up to `max` on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    /// Number of workers that run at all times.
    pub min: usize,
    /// Maximum number of workers. During a replacement, there may be one more.
    pub max: usize,
}
