//! An application that Forebay starts and looks after.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

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
    /// From the request's head to the last byte of the reply. Default 60 s.
    pub request_timeout: Duration,
    /// Requests that may wait for a worker. Default 1024.
    pub queue: usize,
    /// How long one may wait. Default 10 s.
    pub queue_timeout: Duration,
    /// Variables added to the workers' environment.
    pub env: BTreeMap<String, String>,
    /// The user the workers run as. `None`: the one Forebay runs as.
    pub user: Option<String>,
    /// How long a worker above the minimum may be idle before it is stopped. Default 60 s.
    pub idle_timeout: Duration,
    /// Resident bytes above which a worker is replaced. `None`: no limit.
    pub max_memory: Option<u64>,
    /// Bytes of one reply, its head included. `u64::MAX`, the default: no limit.
    pub max_output: u64,
    /// The line of the file that the application begins on, from 1.
    pub line: usize,
}

/// What runs. Paths are absolute and exist at the time of loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppKind {
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
    },
    /// PHP scripts.
    Php {
        /// Where the scripts are.
        root: PathBuf,
    },
    /// A program that listens by itself.
    Command {
        /// Program and arguments, as typed: `{dir}`, `{socket}` and the like are still in them.
        run: Vec<String>,
        /// The protocol it speaks.
        speaks: Speaks,
    },
}

/// How a Perl CGI script is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PerlMode {
    /// Compiled once, run many times in one process. The default.
    #[default]
    Registry,
    /// As `Registry`, compiled before the workers are forked.
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
pub enum Speaks {
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
