//! Messages between `forebay compare` and a keeper: one JSON object per line.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Message from `forebay compare` to the keeper. The end of the keeper's standard input means
/// [`Order::Stop`].
#[derive(Debug, Deserialize, Serialize)]
pub enum Order {
    /// Orders the start of the server; sent at most once.
    Start(Launch),
    /// Orders the end of the server and of the keeper.
    Stop,
}

/// Command of a server, and the environment to run it in.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Launch {
    /// Program and arguments. A program name without a slash is looked up in `PATH`.
    pub argv: Vec<String>,
    /// Variables in addition to the environment of `forebay compare`.
    pub env: Vec<(String, String)>,
    /// Working directory of the server.
    pub cwd: PathBuf,
    /// Cores on which the server runs; empty for all cores of `forebay compare`.
    pub cpus: Vec<usize>,
    /// Time that the server has to end after SIGTERM, before SIGKILL.
    pub grace: Duration,
}

/// Message from the keeper to `forebay compare`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum KeeperMessage {
    /// First message: the temporary directory of the server exists, and its control group, if any.
    Open { tmp: PathBuf, cgroup: Option<PathBuf> },
    /// The keeper cannot supervise processes, or cannot create the server's temporary directory.
    NotOpened { reason: String },
    /// The server's process exists. Its program may still turn out to be missing.
    Started { pid: i32 },
    /// The server could not be started.
    NotStarted { reason: String },
    /// The first process of the server ended by itself.
    MainEnded { how: String, clean: bool },
    /// A signal ended another process of the server, after its parent had ended.
    Died { pid: i32, signal: i32 },
    /// The last process of the server ended by itself.
    AllEnded,
    /// Last message: all processes and files are gone, except for the items in `left`.
    Stopped { left: Vec<String> },
}
