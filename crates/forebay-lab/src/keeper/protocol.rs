//! Messages between `forebay compare` and a keeper, one JSON object per line.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Message from `forebay compare` to the keeper. The end of the stream means [`Order::Stop`].
#[derive(Debug, Deserialize, Serialize)]
pub enum Order {
    /// Start the server; sent at most once.
    Start(Launch),
    /// End everything.
    Stop,
}

/// A server to start.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Launch {
    /// Program and arguments. A program name without a slash is looked up in `PATH`.
    pub argv: Vec<String>,
    /// Variables in addition to the environment of `forebay compare`.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// Cores to run on; empty for all cores of `forebay compare`.
    pub cpus: Vec<usize>,
    /// Time from SIGTERM to SIGKILL.
    pub grace: Duration,
}

/// Message from the keeper to `forebay compare`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum KeeperMessage {
    /// First message: the trial's directory and control group exist.
    Open { tmp: PathBuf, cgroup: Option<PathBuf> },
    /// The trial's directory could not be created.
    NotOpened { reason: String },
    /// The server's process exists, although its program may still turn out to be missing.
    Started { pid: i32 },
    /// The server could not be started.
    NotStarted { reason: String },
    /// The server's first process ended by itself.
    MainEnded { how: String, clean: bool },
    /// A signal ended another process of the server, which was an orphan by then.
    Died { pid: i32, signal: i32 },
    /// The last process of the server ended by itself.
    AllEnded,
    /// Last message: everything is gone except for the items in `left`.
    Stopped { left: Vec<String> },
}
