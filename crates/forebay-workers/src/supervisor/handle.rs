//! The handle of a supervisor.

use super::{Command, ProcessKind, Supervisor};
use crate::stderr::WorkerLog;
use crate::thread::{self, FirstStart};
use forebay_process::StartError;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A supervisor's thread. Dropping the handle without [`shutdown`](Handle::shutdown) ends all
/// processes.
#[derive(Debug)]
pub(crate) struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Handle {
    /// Starts the thread of the application `name`. On that thread, `make` creates the kind of
    /// process, and the supervisor starts the first processes.
    pub(crate) fn start<K: ProcessKind>(
        name: &str,
        log: WorkerLog,
        make: impl FnOnce() -> K + Send + 'static,
    ) -> Result<(Handle, FirstStart), StartError> {
        let (commands, thread, first) = thread::start(name, move |inbox, first| {
            Supervisor::new(make(), log, first).run(inbox)
        })?;
        Ok((Handle { commands, thread: Mutex::new(Some(thread)) }, first))
    }

    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    pub(crate) fn commands(&self) -> mpsc::UnboundedSender<Command> {
        self.commands.clone()
    }

    /// Ends all processes: idle ones at once, busy ones after their requests, but at the latest
    /// after `grace`. No process is left when this returns.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        let (done, all_ended) = oneshot::channel();
        if self.commands.send(Command::Shutdown { grace, done }).is_ok() {
            let _ = all_ended.await;
        }
        // The thread only has to return, so this does not block for long.
        self.join();
    }

    /// Ends all processes without a grace period, for callers without an event loop. Blocks.
    pub(crate) fn end(&self) {
        let (done, _) = oneshot::channel();
        self.send(Command::Shutdown { grace: Duration::ZERO, done });
        self.join();
    }

    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.send(Command::Abandoned);
    }
}

#[cfg(test)]
impl Handle {
    /// Returns the handle of a supervisor that the test itself simulates.
    pub(crate) fn without_thread() -> (Handle, mpsc::UnboundedReceiver<Command>) {
        let (commands, inbox) = mpsc::unbounded_channel();
        (Handle { commands, thread: Mutex::new(None) }, inbox)
    }
}
