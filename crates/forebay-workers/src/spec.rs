//! What an application is and how its workers are kept.

use crate::executable;
use forebay_process::Identity;
use forebay_process::ProcessLimits;
use forebay_process::StartError;
use forebay_process::cgroup::CgroupLimits;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One application and the rules for its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppSpec {
    /// The name in logs and in status.
    pub name: String,
    /// What the workers run.
    pub kind: Kind,
    /// How many workers there are.
    pub workers: Workers,
    /// A worker is replaced after this many requests (each one up to a tenth earlier, so that they
    /// do not all go at once).
    pub max_requests: Option<u64>,
    /// A request that takes longer ends its worker, with the processes that the script started.
    pub request_timeout: Duration,
    /// How many requests may wait for a worker; one more is refused.
    pub queue: usize,
    /// How long a request waits for a worker.
    pub queue_timeout: Duration,
    /// Environment variables of the workers, besides PATH, TZ, PERL5LIB, PYTHONPATH and
    /// LD_LIBRARY_PATH, which they inherit.
    pub env: Vec<(String, String)>,
    /// A worker whose resident memory exceeds this many bytes is replaced after its request.
    pub max_memory: Option<u64>,
    /// A worker that has used so much CPU time is replaced (each one up to a tenth earlier).
    pub max_cpu: Option<Duration>,
    /// Workers above `workers.min` end when idle for this long.
    pub idle_timeout: Duration,
    /// A worker is replaced when it is so old (each one up to a tenth earlier).
    pub max_age: Option<Duration>,
    /// Files and directories whose change replaces the workers, one by one.
    pub watch: Vec<PathBuf>,
    /// Files whose change does so at [`App::reloaded`](crate::App::reloaded).
    pub files: Vec<PathBuf>,
    /// The user that workers run as, by name.
    pub user: Option<String>,
    /// The group that workers run as, by name.
    pub group: Option<String>,
    /// What each worker may use.
    pub limits: ProcessLimits,
    /// What all workers may use together.
    pub cgroup: CgroupLimits,
}

impl AppSpec {
    /// An application with the defaults: 4 workers, no recycling, 60 s per request, 1,000 waiting
    /// requests for up to 30 s, 60 s idle.
    pub fn new(name: impl Into<String>, kind: Kind) -> AppSpec {
        AppSpec {
            name: name.into(),
            kind,
            workers: Workers { min: 4, max: 4 },
            max_requests: None,
            request_timeout: Duration::from_secs(60),
            queue: 1000,
            queue_timeout: Duration::from_secs(30),
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
        }
    }

    /// What would fail whoever starts it: the directory, the interpreter, the user.
    pub fn check(&self) -> Result<(), StartError> {
        let wrong = |what: String| StartError::new(&self.name, what);
        let dir = self.kind.dir();
        if !dir.is_dir() {
            let error = wrong(format!("{} is no directory", dir.display())).at(&["dir"]);
            return Err(error.help("set `dir` to the one with the application"));
        }
        let Workers { min, max } = self.workers;
        if max == 0 || min > max {
            let error = wrong(format!("workers {min} to {max}")).at(&["workers"]);
            return Err(error.help("the maximum must be at least 1 and not below the minimum"));
        }
        let interpreter = self.kind.interpreter();
        if let Err(absent) = executable::find(&interpreter, &self.env, dir) {
            let key = self.kind.interpreter_key();
            return Err(wrong(absent.what).at(key).help(absent.help));
        }
        Identity::look_up(&self.name, self.user.as_deref(), self.group.as_deref()).map(drop)
    }
}

/// What the workers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// CGI scripts written in Perl, in warm interpreters.
    PerlCgi {
        /// Where the scripts are; the workers' directory.
        dir: PathBuf,
        /// How the scripts are run.
        mode: PerlMode,
    },
    /// A PSGI application, loaded once by each worker.
    Psgi {
        /// The workers' directory.
        dir: PathBuf,
        /// The file whose last expression is the application; an absolute path.
        file: PathBuf,
    },
    /// CGI scripts written in Python, in warm interpreters.
    PythonCgi {
        /// Where the scripts are; the workers' directory.
        dir: PathBuf,
        /// How the scripts are run.
        mode: PythonMode,
        /// The interpreter. `None`: `python3` from PATH.
        python: Option<PathBuf>,
    },
    /// A WSGI application.
    Wsgi {
        /// `module:callable`, both of which may have dots.
        module: String,
        /// What the module is looked up in before anything else; the workers' directory.
        dir: PathBuf,
        /// The interpreter. `None`: `python3` from PATH.
        python: Option<PathBuf>,
    },
}

impl Kind {
    /// The directory in which the workers start.
    pub(crate) fn dir(&self) -> &Path {
        match self {
            Kind::PerlCgi { dir, .. }
            | Kind::Psgi { dir, .. }
            | Kind::PythonCgi { dir, .. }
            | Kind::Wsgi { dir, .. } => dir,
        }
    }

    /// The key that says which interpreter it is.
    pub(crate) fn interpreter_key(&self) -> &'static [&'static str] {
        match self {
            Kind::PythonCgi { python: Some(_), .. } | Kind::Wsgi { python: Some(_), .. } => {
                &["python"]
            }
            _ => &["kind"],
        }
    }

    /// The program that runs the workers, as it is looked up in PATH.
    pub(crate) fn interpreter(&self) -> Cow<'_, str> {
        match self {
            Kind::PerlCgi { .. } | Kind::Psgi { .. } => "perl".into(),
            Kind::PythonCgi { python, .. } | Kind::Wsgi { python, .. } => {
                python.as_ref().map_or("python3".into(), |python| python.to_string_lossy())
            }
        }
    }
}

/// How Perl scripts are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerlMode {
    /// As `ModPerl::Registry`: compiled once, run in place, without a change of directory.
    Registry,
    /// As `ModPerl::RegistryPrefork`: the same, in the directory of the script.
    RegistryPrefork,
    /// As `ModPerl::PerlRunPrefork`: compiled for each request, in one process, and forgotten.
    PerlRun,
    /// Compiled once in a process that forks for each request.
    Fork,
    /// A new process for each request, whatever language the script is written in.
    Cgi,
}

/// How Python scripts are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonMode {
    /// Compiled once, run in a fresh module in a process that stays.
    Fresh,
    /// Compiled once, each request in a fork of the process.
    Fork,
}

/// How many workers there are: always `min`, more on demand up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    /// Kept running at all times.
    pub min: usize,
    /// Never more than this, except while one replaces another.
    pub max: usize,
}
