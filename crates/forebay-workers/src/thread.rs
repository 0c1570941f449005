//! The thread of a supervisor.

use forebay_process::StartError;
use std::future::Future;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

/// Sender of the result of a supervisor's first start. The supervisor drops this sender when the
/// minimum number of processes is ready, or when a start fails.
pub(crate) type First = mpsc::Sender<Result<(), StartError>>;

/// The first start of an application, in progress or finished.
pub struct FirstStart {
    app: String,
    outcome: mpsc::Receiver<Result<(), StartError>>,
}

impl FirstStart {
    /// Waits until a process is ready or the first start has failed, for at most `limit`. Returns
    /// `None` after that time. Blocks. Returns the outcome of the first start only once.
    pub fn wait(&self, limit: Duration) -> Option<Result<(), StartError>> {
        match self.outcome.recv_timeout(limit) {
            Ok(outcome) => Some(outcome),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Err(self.supervisor_ended())),
        }
    }

    /// Waits as [`FirstStart::wait`] does, but without a limit.
    pub fn wait_for_end(&self) -> Result<(), StartError> {
        self.outcome.recv().unwrap_or_else(|_| Err(self.supervisor_ended()))
    }

    /// Waits until all processes of the minimum number are ready, or until a start fails, for at
    /// most `limit`. Call this after the first process is ready. Blocks.
    pub fn wait_for_others(&self, limit: Duration) {
        // No further result arrives, because `wait` has received the only one. This call returns
        // when the supervisor drops the sender.
        let _ = self.outcome.recv_timeout(limit);
    }

    fn supervisor_ended(&self) -> StartError {
        StartError::new(&self.app, "the supervisor thread ended")
    }
}

/// Starts a thread for the application `name`, which runs the future of `supervise`. Returns the
/// sender of commands, the thread, and the first start of a process.
pub(crate) fn start<C, S, F>(
    name: &str,
    supervise: S,
) -> Result<(UnboundedSender<C>, JoinHandle<()>, FirstStart), StartError>
where
    C: Send + 'static,
    S: FnOnce(UnboundedReceiver<C>, First) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let fault = |what: String| StartError::new(name, what);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| fault(error.to_string()))?;
    let (commands, inbox) = unbounded_channel();
    let (first, outcome) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name(format!("app {name}"))
        .spawn(move || LocalSet::new().block_on(&runtime, supervise(inbox, first)))
        .map_err(|error| fault(format!("cannot start a thread: {error}")))?;
    Ok((commands, thread, FirstStart { app: name.to_owned(), outcome }))
}
