//! A child of the helper, waited for by a task.

use crate::sys;
use forebay_process::HelpedChild;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A child of the helper. Dropped before its end was waited for, its process group is killed.
#[derive(Debug)]
pub struct HelpedProcess {
    child: HelpedChild,
    at_end: AsyncFd<Arc<OwnedFd>>,
}

impl HelpedProcess {
    /// Registers the child with the runtime of the calling thread.
    ///
    /// # Errors
    /// No descriptor is left. The child is killed then.
    pub fn new(child: HelpedChild) -> io::Result<HelpedProcess> {
        let at_end = sys::register(child.readable_at_end()?, Interest::READABLE)?;
        Ok(HelpedProcess { child, at_end })
    }

    /// Waits for the end of the process, and has it reaped. Its own children go on.
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
