//! The process of one CGI script: a child of this process, or of the helper for processes of other
//! users. If a [`ScriptChild`] is dropped early, its process and all processes that the script
//! started get SIGTERM, and a second later SIGKILL.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use forebay_workers::{HelpedChild, HelpedProcess};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use crate::scripts::reaper::ScriptReaper;

/// Time from SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(1);

/// The process of a script. The content is `None` after `wait` has returned.
pub struct ScriptChild(Option<ChildKind>);

enum ChildKind {
    Own { child: Child, leader: Pid, reaper: Arc<ScriptReaper> },
    Helped(HelpedProcess),
}

impl ScriptChild {
    /// Creates the handle of a child of this process. `reaper` ends the child if this process is
    /// killed.
    pub fn own(child: Child, reaper: Arc<ScriptReaper>) -> Self {
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Self(leader.map(|leader| {
            reaper.watch(leader);
            ChildKind::Own { child, leader, reaper }
        }))
    }

    /// Creates the handle of a process that the helper for other users has started.
    pub fn helped(child: HelpedChild) -> io::Result<Self> {
        Ok(Self(Some(ChildKind::Helped(HelpedProcess::new(child)?))))
    }

    /// Takes the process out, so that dropping `self` does not end it.
    pub fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Returns true if [`Self::wait`] has not returned yet.
    pub fn is_running(&self) -> bool {
        self.0.is_some()
    }

    /// Waits for the end of the process. Children of the process continue.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let Some(child) = &mut self.0 else { return Ok(ExitStatus::from_raw(0)) };
        let status = child.wait().await?;
        if let Some(ChildKind::Own { leader, reaper, .. }) = self.0.take() {
            reaper.forget(leader);
        }
        Ok(status)
    }
}

impl Drop for ScriptChild {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        child.signal(Signal::TERM);
        tokio::task::spawn_local(async move {
            if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
                child.signal(Signal::KILL);
                if let ChildKind::Own { .. } = child {
                    let _ = child.wait().await;
                }
            }
            if let ChildKind::Own { leader, reaper, .. } = child {
                reaper.forget(leader);
            }
        });
    }
}

impl ChildKind {
    /// Sends a signal to the process group. Call this only before the leader is reaped, so that its
    /// number still belongs to this group.
    fn signal(&self, signal: Signal) {
        match self {
            Self::Own { leader, .. } => drop(kill_process_group(*leader, signal)),
            // The helper kills the process group when the socket is closed.
            Self::Helped(child) if signal == Signal::TERM => child.terminate_group(),
            Self::Helped(_) => {}
        }
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Own { child, .. } => child.wait().await,
            Self::Helped(child) => child.wait().await,
        }
    }
}
