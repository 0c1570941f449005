//! A process that the helper has started, for use in an asynchronous task.

use crate::sys;
use forebay_process::HelpedChild;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process that the helper has started. The helper is the process that may start processes as
/// other users. If this value is dropped before [`wait`](HelpedProcess::wait) has returned, the
/// helper kills the process group.
#[derive(Debug)]
pub struct HelpedProcess {
    child: HelpedChild,
    at_end: AsyncFd<Arc<OwnedFd>>,
}

impl HelpedProcess {
    /// Registers the child with the runtime of the calling thread.
    ///
    /// # Errors
    /// Returns an error if no descriptor is free. The child is then killed.
    pub fn new(child: HelpedChild) -> io::Result<HelpedProcess> {
        let at_end = sys::register(child.readable_at_end()?, Interest::READABLE)?;
        Ok(HelpedProcess { child, at_end })
    }

    /// Asks the process group of the process to end, with SIGTERM.
    pub fn terminate_group(&self) {
        self.child.terminate_group();
    }

    /// Waits for the end of the process and lets the helper reap it. The children of this process
    /// keep running.
    pub async fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            let mut readable = self.at_end.readable().await?;
            match self.child.ended()? {
                Some(status) => {
                    self.child.let_reap();
                    return Ok(status);
                }
                None => readable.clear_ready(),
            }
        }
    }
}
