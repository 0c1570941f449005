//! What `forebay compare` and a keeper say to each other, one JSON object per line.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// From `forebay compare` to the keeper. The end of the stream means [`Order::Stop`].
#[derive(Debug, Deserialize, Serialize)]
pub enum Order {
    /// Start the server; given once.
    Start(Launch),
    /// End everything.
    Stop,
}

/// A server to start.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Launch {
    /// Program and arguments; a program without a slash is looked for in `PATH`.
    pub argv: Vec<String>,
    /// Added to the environment of `forebay compare`.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// Cores to run on; empty: all that `forebay compare` was given.
    pub cpus: Vec<usize>,
    /// Time from SIGTERM to SIGKILL.
    pub grace: Duration,
}

/// From the keeper to `forebay compare`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Event {
    /// The first: the trial's directory and control group are there.
    Open { tmp: PathBuf, cgroup: Option<PathBuf> },
    /// The trial's directory could not be made.
    NotOpened { reason: String },
    /// The server's process is there (its program may yet turn out to be missing).
    Started { pid: i32 },
    /// The server could not be started.
    NotStarted { reason: String },
    /// The server's first process ended by itself.
    MainEnded { how: String, clean: bool },
    /// Another of its processes, orphaned by then, was ended by a signal.
    Died { pid: i32, signal: i32 },
    /// The last of its processes ended by itself.
    AllEnded,
    /// The last: all is gone, but for what `left` names.
    Stopped { left: Vec<String> },
}
