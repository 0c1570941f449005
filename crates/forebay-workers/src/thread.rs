//! The thread of a supervisor.

use crate::error::StartError;
use std::future::Future;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::LocalSet;

/// Where a supervisor says that its first process is ready, or why there is none.
pub(crate) type First = mpsc::Sender<Result<(), StartError>>;

/// Runs what `supervise` makes of its inbox on a thread for the application `name`, and returns when
/// the first process is ready.
pub(crate) fn start<C, S, F>(
    name: &str,
    supervise: S,
) -> Result<(UnboundedSender<C>, JoinHandle<()>), StartError>
where
    C: Send + 'static,
    S: FnOnce(UnboundedReceiver<C>, First) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let fault = |what: String| StartError::new(name, what);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| fault(error.to_string()))?;
    let (commands, inbox) = unbounded_channel();
    let (first, first_ready) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name(format!("app {name}"))
        .spawn(move || LocalSet::new().block_on(&runtime, supervise(inbox, first)))
        .map_err(|error| fault(format!("cannot start a thread: {error}")))?;
    match first_ready.recv() {
        Ok(Ok(())) => Ok((commands, thread)),
        Ok(Err(error)) => {
            let _ = thread.join();
            Err(error)
        }
        Err(_) => Err(fault("the supervisor thread ended".into())),
    }
}
