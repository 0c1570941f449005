//! An application that Forebay starts and looks after.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::HostField;
use super::ajp::Secret;

/// An application that Forebay starts and looks after.
#[derive(Clone, Debug)]
pub struct App {
    /// What runs.
    pub kind: AppKind,
    /// Working directory, absolute: the application's own directory, or that of the file.
    pub dir: PathBuf,
    /// How many processes.
    pub workers: Workers,
    /// Requests a worker serves before it is replaced. `None`: no limit.
    pub max_requests: Option<u64>,
    /// How old a worker gets before it is replaced. `None`: no limit.
    pub max_age: Option<Duration>,
    /// Files and directories whose change replaces the workers; absolute, perhaps not there.
    pub watch: Vec<PathBuf>,
    /// From the request's head to the last byte of the reply; for a command, the longest silence
    /// within a request. Default 60 s.
    pub request_timeout: Duration,
    /// Requests that may wait for a worker. Default 1024.
    pub queue: usize,
    /// How long one may wait. Default 10 s.
    pub queue_timeout: Duration,
    /// Variables added to the workers' environment.
    pub env: BTreeMap<String, String>,
    /// Where modules of Perl and Python are looked for first. Absolute; directories at the time of
    /// loading, without colons in their names.
    pub lib: Vec<PathBuf>,
    /// The user the workers run as. `None`: the one Forebay runs as.
    pub user: Option<String>,
    /// The group they run as. `None`: the groups of `user`.
    pub group: Option<String>,
    /// What each process may use at the most.
    pub limits: ProcessLimits,
    /// What all processes may use together.
    pub cgroup: CgroupLimits,
    /// How long a program may take to listen. Default 30 s.
    pub start_timeout: Duration,
    /// From SIGTERM to SIGKILL, for a program. Default 10 s.
    pub stop_timeout: Duration,
    /// How long a worker above the minimum may be idle before it is stopped. Default 60 s.
    pub idle_timeout: Duration,
    /// Resident bytes above which a worker is replaced. `None`: no limit.
    pub max_memory: Option<u64>,
    /// CPU time, of user and system, after which a worker is replaced. `None`: no limit.
    pub max_cpu: Option<Duration>,
    /// Processes at once for CGI scripts that no worker runs. Default 64.
    pub max_processes: usize,
    /// Bytes of one reply, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
    /// The line of the file that the application begins on, from 1.
    pub line: usize,
}

/// What runs. Paths are absolute and exist at the time of loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppKind {
    /// Unchanged CGI scripts in several languages.
    CgiBin {
        /// Where the scripts are.
        dir: PathBuf,
        /// How those in Perl are run.
        perl_mode: PerlMode,
        /// How those in Python are run.
        python_mode: PythonMode,
        /// The interpreter of those in Python. `None`: of the virtual environment that they all
        /// name, or `python3` from PATH.
        python: Option<PathBuf>,
    },
    /// Unchanged Perl CGI scripts.
    PerlCgi {
        /// Where the scripts are.
        dir: PathBuf,
        /// How each is run.
        mode: PerlMode,
    },
    /// Unchanged Python CGI scripts.
    PythonCgi {
        /// Where the scripts are.
        dir: PathBuf,
        /// How each is run.
        mode: PythonMode,
        /// The interpreter. `None`: `python3` from PATH.
        python: Option<PathBuf>,
    },
    /// A PSGI application.
    Psgi {
        /// The file whose last value is the application.
        file: PathBuf,
    },
    /// A WSGI application.
    Wsgi {
        /// `module:callable`.
        module: String,
        /// What the module is looked up in.
        dir: PathBuf,
        /// The interpreter. `None`: `python3` from PATH.
        python: Option<PathBuf>,
    },
    /// PHP scripts.
    Php {
        /// Where the scripts are.
        root: PathBuf,
        /// Ends of the names of files that may be run; never empty. Default `.php`.
        scripts: Vec<String>,
        /// Settings as in php.ini, `name=value`.
        ini: Vec<String>,
        /// `8.2`. `None`: the newest.
        version: Option<String>,
    },
    /// An ASP.NET application on Mono.
    Mono {
        /// Where it is.
        dir: PathBuf,
        /// Requests that each process runs at once, at least 1. Default 16.
        threads: usize,
        /// Its own path: a slash, and none at the end unless that is all. Default `/`.
        virtual_path: String,
    },
    /// A program that listens by itself.
    Command {
        /// Program and arguments, as typed: `{dir}`, `{socket}` and the like are still in them.
        run: Vec<String>,
        /// The protocol it speaks.
        speaks: AppProtocol,
        /// Who opens its socket.
        listen: Listening,
        /// What it asks of whoever passes requests on, where it speaks AJP.
        secret: Option<Secret>,
        /// The `Host` that it is told, where it speaks HTTP.
        host: HostField,
        /// The beginning of paths that it is not told, where it speaks HTTP.
        strip_prefix: Option<String>,
        /// The cookie, a token, that names a client's process, where it speaks HTTP.
        sticky: Option<String>,
        /// Connections to each process at once, at least 1. Default 100 for HTTP and AJP, else 1.
        connections: usize,
        /// What SCRIPT_FILENAME begins with. `None`: the path is PATH_INFO.
        root: Option<PathBuf>,
        /// Ends of the names of files below `root` that may be run, where it speaks FastCGI. Empty:
        /// any file.
        scripts: Vec<String>,
    },
}

/// Who opens the socket of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// The program, the Unix socket `{socket}`.
    Socket,
    /// The program, the TCP port `{port}` of 127.0.0.1.
    Port,
    /// Forebay, a Unix socket that becomes descriptor 3.
    Inherit,
    /// Forebay, a TCP port of 127.0.0.1 that becomes descriptor 3.
    InheritPort,
    /// Forebay, a Unix socket that becomes descriptor 0.
    Stdin,
}

/// What each process may use at the most. `None`: what Forebay may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Open files.
    pub open_files: Option<u64>,
    /// Address space, in bytes.
    pub memory: Option<u64>,
    /// CPU time, in seconds.
    pub cpu_time: Option<u64>,
    /// Processes and threads of the user.
    pub processes: Option<u64>,
    /// The largest core dump, in bytes.
    pub core: Option<u64>,
}

/// What a control group may use at the most. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// CPU time in percent of one core.
    pub cpu_percent: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// How a Perl CGI script is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerlMode {
    /// Compiled once, run many times in one process. The default.
    #[default]
    Registry,
    /// As `Registry`, in the directory of the script.
    RegistryPrefork,
    /// Compiled for each request in a process that stays.
    PerlRun,
    /// Compiled once, each request in a fork of its own.
    Fork,
    /// A process for each request.
    Cgi,
}

/// How a Python CGI script is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PythonMode {
    /// A fresh module for each request in a process that stays. The default.
    #[default]
    Fresh,
    /// Each request in a fork of its own.
    Fork,
}

/// The protocol a program speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppProtocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 without TLS.
    H2c,
    /// FastCGI.
    Fastcgi,
    /// SCGI.
    Scgi,
    /// uwsgi.
    Uwsgi,
    /// AJP 1.3.
    Ajp,
}

impl AppProtocol {
    /// Whether it is HTTP, of whatever version.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::H2c)
    }
}

/// How many processes: `min <= max`, `max >= 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Kept running. Default 4.
    pub min: usize,
    /// Never more than this. Default 4.
    pub max: usize,
}

impl Default for Workers {
    fn default() -> Self {
        Self { min: 4, max: 4 }
    }
}
