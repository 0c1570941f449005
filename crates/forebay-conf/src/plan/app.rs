//! An application that Forebay starts and supervises.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::HostField;
use super::ajp::Secret;

/// An application that Forebay starts and supervises.
#[derive(Clone, Debug)]
// More than 20 fields: the resolved form has one for each key, or group of keys, of the table.
pub struct App {
    /// The program to run.
    pub kind: AppKind,
    /// The working directory, absolute: the application's own directory, or that of the file.
    pub dir: PathBuf,
    /// The number of processes.
    pub workers: Workers,
    /// Requests a worker serves before it is replaced. `None`: no limit.
    pub max_requests: Option<u64>,
    /// The age at which a worker is replaced. `None`: no limit.
    pub max_age: Option<Duration>,
    /// Files and directories whose change replaces the workers. Absolute; they may be missing.
    pub watch: Vec<PathBuf>,
    /// From the request's head to the last byte of the reply. For a command, the longest time
    /// without data during a request. Default 60 s.
    pub request_timeout: Duration,
    /// Requests that may wait for a worker. Default 1024.
    pub queue: usize,
    /// The longest time that a request may wait for a worker. Default 10 s.
    pub queue_timeout: Duration,
    /// Variables added to the workers' environment.
    pub env: BTreeMap<String, String>,
    /// Directories where Perl and Python look for modules first. Absolute; they existed at the
    /// time of loading, and their names have no colon.
    pub lib: Vec<PathBuf>,
    /// The user that the workers run as. `None`: Forebay's own.
    pub user: Option<String>,
    /// The group that they run as. `None`: the groups of `user`.
    pub group: Option<String>,
    /// Resource limits of each process.
    pub limits: ProcessLimits,
    /// Resource limits of all processes together.
    pub cgroup: CgroupLimits,
    /// The longest time from the start of a program until it listens. Default 30 s.
    pub start_timeout: Duration,
    /// From SIGTERM to SIGKILL, for a program. Default 10 s.
    pub stop_timeout: Duration,
    /// The idle time after which a worker above the minimum is stopped. Default 60 s.
    pub idle_timeout: Duration,
    /// Resident bytes above which a worker is replaced. `None`: no limit.
    pub max_memory: Option<u64>,
    /// CPU time, of user and system, after which a worker is replaced. `None`: no limit.
    pub max_cpu: Option<Duration>,
    /// The number of processes at once for CGI scripts that no worker can run. Default 64.
    pub max_processes: usize,
    /// Bytes of one reply, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
    /// The start of paths that becomes SCRIPT_NAME, without a final slash; empty: none. `None`: the
    /// part of the route's path before its `/*`.
    pub mount: Option<String>,
    /// The line of the file that the application begins on, from 1.
    pub line: usize,
}

/// The program to run. Paths are absolute and exist at the time of loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppKind {
    /// Unchanged CGI scripts in several languages.
    CgiBin {
        /// The directory of the scripts.
        dir: PathBuf,
        /// The way to run Perl scripts.
        perl_mode: PerlMode,
        /// The way to run Python scripts.
        python_mode: PythonMode,
        /// The interpreter of Python scripts. `None`: that of the virtual environment that all of
        /// them name, else `python3` from PATH.
        python: Option<PathBuf>,
    },
    /// Unchanged Perl CGI scripts.
    PerlCgi {
        /// The directory of the scripts.
        dir: PathBuf,
        /// The way to run each script.
        mode: PerlMode,
    },
    /// Unchanged Python CGI scripts.
    PythonCgi {
        /// The directory of the scripts.
        dir: PathBuf,
        /// The way to run each script.
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
        /// The directory of the module.
        dir: PathBuf,
        /// The interpreter. `None`: `python3` from PATH.
        python: Option<PathBuf>,
    },
    /// A Rack application.
    Rack {
        /// The `config.ru`.
        file: PathBuf,
        /// The interpreter. `None`: `ruby` from PATH.
        ruby: Option<PathBuf>,
        /// The number of requests at once in each process, at least 1. Default 1.
        threads: usize,
        /// The number of connections to each process, at least `threads`, the default.
        connections: usize,
    },
    /// An ASGI application.
    Asgi {
        /// `module:callable`.
        module: String,
        /// The directory of the module.
        dir: PathBuf,
        /// The interpreter. `None`: `python3` from PATH.
        python: Option<PathBuf>,
        /// The number of requests and WebSockets at once in each process, at least 1. Default 1000.
        connections: usize,
        /// The cookie (a token) that names a client's process.
        sticky: Option<String>,
        /// Bytes of one WebSocket message. Default 16 MiB.
        max_message: u64,
    },
    /// PHP scripts.
    Php {
        /// The directory of the scripts.
        root: PathBuf,
        /// Endings of the files that may be run; never empty. Default `.php`.
        scripts: Vec<String>,
        /// The start of paths that is removed before the script is looked up: whole segments,
        /// without a final slash.
        strip_prefix: Option<String>,
        /// Settings as in php.ini, `name=value`.
        ini: Vec<String>,
        /// A version such as `8.2`. `None`: the newest.
        version: Option<String>,
    },
    /// An ASP.NET application on Mono.
    Mono {
        /// The directory of the application.
        dir: PathBuf,
        /// The number of requests at once in each process, at least 1. Default 16.
        threads: usize,
        /// The path of the application. Begins with a slash and does not end in one, unless it is
        /// `/`. Default `/`.
        virtual_path: String,
    },
    /// A program that listens on a socket itself.
    Command {
        /// Program and arguments, as typed: they still contain `{dir}`, `{socket}` and the like.
        run: Vec<String>,
        /// The protocol of the program.
        speaks: AppProtocol,
        /// The process that opens the socket.
        listen: Listening,
        /// The secret that the program requires, if it speaks AJP.
        secret: Option<Secret>,
        /// The `Host` that the program gets, if it speaks HTTP.
        host: HostField,
        /// The prefix that is removed from paths, if the program speaks HTTP, or speaks FastCGI and
        /// has a `root`.
        strip_prefix: Option<String>,
        /// The cookie (a token) that names a client's process, if the program speaks HTTP.
        sticky: Option<String>,
        /// The number of connections at once to each process, at least 1. Default 100 for HTTP and
        /// AJP, else 1.
        connections: usize,
        /// The directory that SCRIPT_FILENAME begins with. `None`: the path is PATH_INFO.
        root: Option<PathBuf>,
        /// Endings of the files below `root` that may be run, if the program speaks FastCGI. Empty:
        /// any file.
        scripts: Vec<String>,
    },
}

/// The process that opens the socket of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// The program opens the Unix socket `{socket}`.
    Socket,
    /// The program opens the TCP port `{port}` of 127.0.0.1.
    Port,
    /// Forebay opens a Unix socket, which becomes descriptor 3.
    Inherit,
    /// Forebay opens a TCP port of 127.0.0.1, which becomes descriptor 3.
    InheritPort,
    /// Forebay opens a Unix socket, which becomes descriptor 0.
    Stdin,
}

/// Resource limits of each process. `None`: those of Forebay.
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

/// Resource limits of a control group. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// CPU time in percent of one core.
    pub cpu_percent: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
}

/// The way to run a Perl CGI script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerlMode {
    /// Compiled once, run many times in one process. The default.
    #[default]
    Registry,
    /// Like `Registry`, in the directory of the script.
    RegistryPrefork,
    /// Compiled for each request, in a persistent process.
    PerlRun,
    /// Compiled once; each request runs in a forked process of its own.
    Fork,
    /// A process for each request.
    Cgi,
}

/// The way to run a Python CGI script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PythonMode {
    /// A fresh module for each request, in a persistent process. The default.
    #[default]
    Fresh,
    /// Each request runs in a forked process of its own.
    Fork,
}

/// The protocol of a program.
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
    /// Returns true for each version of HTTP.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::H2c)
    }
}

/// The number of processes: `min <= max`, `max >= 1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// The number of processes that always run. Default 4.
    pub min: usize,
    /// The largest number of processes. Default 4.
    pub max: usize,
}

impl Default for Workers {
    fn default() -> Self {
        Self { min: 4, max: 4 }
    }
}
