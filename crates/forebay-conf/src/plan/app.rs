//! An application that Forebay starts and supervises.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use forebay_conf_derive::{Choice, Table};
use schemars::{Schema, SchemaGenerator};

use super::secret::Secret;
use super::{HostField, Template};
use crate::key::{AboveZero, Bytes, Cx, Form, Node, Resolution, Whole};

/// An application that Forebay starts and supervises.
#[derive(Clone, Debug)]
// More than 20 fields: one for each key or group of keys of the table.
pub struct App {
    /// The program to run.
    pub kind: AppKind,
    /// The working directory; absolute. It is the application's own directory, or the directory of
    /// the configuration file.
    pub dir: PathBuf,
    /// The number of processes.
    pub workers: Workers,
    /// The number of requests after which a worker is replaced. `None`: no limit.
    pub max_requests: Option<u64>,
    /// The age at which a worker is replaced. `None`: no limit.
    pub max_age: Option<Duration>,
    /// Files and directories. If one changes, the workers are replaced. Paths are absolute, and the
    /// files may be missing.
    pub watch: Vec<PathBuf>,
    /// The longest time from the request's head to the last byte of the reply. For rack, asgi and a
    /// command, the longest time without data during a request. Default 60 s.
    pub request_timeout: Duration,
    /// The number of requests that may wait for a worker. Default 1024.
    pub queue: usize,
    /// Waiting requests with the same text are of one client. Clients take turns. Default
    /// `{client}`.
    pub fair: Template,
    /// The longest time that a request may wait for a worker. Default 10 s.
    pub queue_timeout: Duration,
    /// Variables added to the workers' environment.
    pub env: BTreeMap<String, String>,
    /// Parameters added to those of each request, over FastCGI, SCGI and uwsgi.
    pub params: BTreeMap<String, String>,
    /// Directories where Perl, Python and Ruby look for modules first. Paths are absolute and
    /// contain no colon. The directories existed when the configuration was loaded.
    pub lib: Vec<PathBuf>,
    /// The user that the workers run as. `None`: neither the
    /// application nor `[server]` names one, so it is the user of Forebay itself.
    pub user: Option<String>,
    /// The group that the workers run as. `None`: the groups of `user`.
    pub group: Option<String>,
    /// Resource limits of each process.
    pub limits: ProcessLimits,
    /// Resource limits of all processes together.
    pub cgroup: CgroupLimits,
    /// The longest time from the start of a program until it listens. Default 30 s.
    pub start_timeout: Duration,
    /// The time from SIGTERM to SIGKILL, for a program that listens on a socket. Default 10 s.
    pub stop_timeout: Duration,
    /// The idle time after which a worker is stopped, if more than the minimum run. Default 60 s.
    pub idle_timeout: Duration,
    /// Resident bytes above which a worker is replaced. `None`: no limit.
    pub max_memory: Option<u64>,
    /// CPU time (user and system) after which a worker is replaced. `None`: no limit.
    pub max_cpu: Option<Duration>,
    /// The largest number of processes at the same time for CGI scripts that no worker can run.
    /// Default 64.
    pub max_processes: usize,
    /// True if a PSGI or WSGI application has mode `prove`.
    pub proves: bool,
    /// In mode `prove`, the requests without a finding after which a script is kept. Default 50.
    pub prove_requests: u64,
    /// The largest size of one reply in bytes, including its head. `u64::MAX`, the default: no
    /// limit.
    pub max_output: u64,
    /// The prefix of paths that becomes SCRIPT_NAME, without a final slash. If empty, the whole
    /// path is PATH_INFO. `None`: the prefix is the part of the route's path before its `/*`.
    pub mount: Option<String>,
    /// The number of the application's first line in its file, from 1.
    pub line: usize,
}

/// The program to run. Paths are absolute and existed when the configuration was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppKind {
    /// Unchanged CGI scripts in several languages.
    CgiBin {
        /// The directory of the scripts.
        dir: PathBuf,
        /// The way to run Perl scripts.
        perl_mode: PerlMode,
        /// Absolute paths of Perl files, and names of Perl modules, that each worker loads first.
        preload: Vec<String>,
        /// The way to run Python scripts.
        python_mode: PythonMode,
        /// The interpreter of Python scripts. `None`: that of the virtual environment that the #!
        /// lines of all scripts name, else `python3` from PATH.
        python: Option<PathBuf>,
    },
    /// Unchanged Perl CGI scripts.
    PerlCgi {
        /// The directory of the scripts.
        dir: PathBuf,
        /// The way to run each script.
        mode: PerlMode,
        /// Absolute paths of Perl files, and names of Perl modules, that each worker loads first.
        preload: Vec<String>,
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
    /// Handlers for mod_perl 2.
    ModPerl {
        /// The directory that handlers see as the DocumentRoot.
        root: PathBuf,
        /// Absolute paths of Perl files, and names of Perl modules, that each worker loads first.
        preload: Vec<String>,
        /// Switches of perl, such as `-T`.
        switches: Vec<String>,
        /// Names of variables that the workers get from Forebay's environment.
        pass_env: Vec<String>,
        /// Directives of mod_perl with their arguments, such as `PerlSetVar`, a name and values.
        directives: Vec<Vec<String>>,
    },
    /// A WSGI application.
    Wsgi {
        /// `module:callable`, or `/path/of/file:callable`.
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
        /// The number of requests that each process serves at the same time, at least 1. Default 1.
        threads: usize,
        /// The largest number of connections to each process; at least `threads`, which is the
        /// default.
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
        /// The largest number of requests and WebSockets at the same time in each process, at least
        /// 1. Default 1000.
        connections: usize,
        /// The name of the cookie that binds a client to one process; a token of RFC 9110. `None`:
        /// no such cookie.
        sticky: Option<String>,
        /// The largest WebSocket message in bytes. Default 16 MiB.
        max_message: u64,
    },
    /// A PAGI application.
    Pagi {
        /// The file whose last expression is the application.
        file: PathBuf,
        /// The largest number of requests and WebSockets at the same time in each process, at least
        /// 1. Default 1000.
        connections: usize,
        /// The name of the cookie that binds a client to one process. `None`: no such cookie.
        sticky: Option<String>,
        /// The largest WebSocket message in bytes. Default 16 MiB.
        max_message: u64,
    },
    /// PHP scripts.
    Php {
        /// The directory of the scripts.
        root: PathBuf,
        /// Endings of the files that may be run; never empty. Default `.php`.
        scripts: Vec<String>,
        /// The prefix that is removed from a path before the script is looked up: whole segments,
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
        /// The number of requests that each process serves at the same time, at least 1. Default
        /// 16.
        threads: usize,
        /// The path of the application. It begins with a slash, and does not end in a slash unless
        /// it is `/`. Default `/`.
        virtual_path: String,
    },
    /// A program that listens on a socket itself.
    Command {
        /// Program and arguments as typed, with placeholders such as `{dir}` and `{socket}`.
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
        /// The name of the cookie that binds a client to one process, if the program speaks HTTP.
        sticky: Option<String>,
        /// The largest number of open connections to each process, at least 1. Default 100 for HTTP
        /// and AJP, else 1.
        connections: usize,
        /// Targets that a new process must answer before it gets requests, if it speaks HTTP.
        warm_up: Vec<String>,
        /// The directory that SCRIPT_FILENAME begins with. `None`: there is no script, and the
        /// whole path is PATH_INFO.
        root: Option<PathBuf>,
        /// Endings of the files below `root` that may be run, if the program speaks FastCGI. If
        /// empty, any file may be run.
        scripts: Vec<String>,
    },
}

/// The process that opens the socket of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
pub enum Listening {
    /// The program opens the Unix socket {socket}.
    Socket,
    /// The program opens the TCP port {port} of 127.0.0.1.
    Port,
    /// Forebay opens a Unix socket and passes it on as descriptor 3, announced in LISTEN_FDS
    /// (systemd) and SERVER_STARTER_PORT (Server::Starter).
    Inherit,
    /// Like inherit, but with a TCP port of 127.0.0.1.
    InheritPort,
    /// Forebay opens a Unix socket and passes it on as descriptor 0, as FastCGI specifies.
    Stdin,
}

/// Resource limits of each process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Table)]
pub struct ProcessLimits {
    /// The largest number of open files.
    #[key(as = Whole<16, { i64::MAX as u64 }>)]
    pub open_files: Option<u64>,
    /// The largest address space. The kernel gives no further memory to a process that has reached
    /// the limit.
    #[key(as = Bytes<{ 16 * 1024 * 1024 }>)]
    pub memory: Option<u64>,
    /// The CPU time after which the kernel kills a process.
    #[key(as = Seconds)]
    pub cpu_time: Option<u64>,
    /// The largest number of processes and threads of the worker's user, including those of other
    /// programs. Has no effect for root.
    #[key(as = Whole<1, { i64::MAX as u64 }>)]
    pub processes: Option<u64>,
    /// The largest size of a core dump. 0: no core dump.
    #[key(as = Bytes)]
    pub core: Option<u64>,
}

/// A duration in whole seconds, at least one.
struct Seconds;

impl Form<u64> for Seconds {
    fn schema(generator: &mut SchemaGenerator) -> Schema {
        AboveZero::schema(generator)
    }

    fn read(node: &Node<'_>, cx: &Cx<'_>) -> Resolution<u64> {
        AboveZero::read(node, cx).map(|time| time.as_secs().max(1))
    }
}

/// Resource limits of a control group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Table)]
#[table(name = "Cgroup")]
pub struct CgroupLimits {
    /// memory.max: the memory of the group. If the group uses more, the kernel kills processes of
    /// the group.
    #[key(as = Bytes<{ 1024 * 1024 }>)]
    pub memory: Option<u64>,
    /// cpu.max: the CPU time in percent of one core; 150 is one and a half cores.
    #[key(as = Whole<1, 1_000_000>)]
    pub cpu_percent: Option<u64>,
    /// pids.max: the largest number of processes and threads.
    #[key(as = Whole<1, 4_000_000>)]
    pub processes: Option<u64>,
}

/// The way to run a Perl CGI script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerlMode {
    /// A script is compiled once and runs many times in one process. The default.
    #[default]
    Registry,
    /// Like `Registry`, but with the script's directory as working directory.
    RegistryPrefork,
    /// A script is compiled for each request, in a persistent process.
    PerlRun,
    /// A script is compiled once. Each request runs in a separate forked process.
    Fork,
    /// Forebay starts a process for each request.
    Cgi,
    /// Like `Fork`, until a script has proved that it may be kept; then like `RegistryPrefork`.
    Prove,
}

/// The way to run a Python CGI script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PythonMode {
    /// Each request runs a script as a new module, in a persistent process. The default.
    #[default]
    Fresh,
    /// Each request runs in a separate forked process.
    Fork,
    /// Like `Fork`, until a script has proved that it may be kept; then like `Fresh`.
    Prove,
}

/// The protocol of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Choice)]
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
    /// Returns true if the protocol is a version of HTTP.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Http | Self::H2c)
    }
}

/// The number of processes. `min <= max` and `max >= 1` always hold.
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
