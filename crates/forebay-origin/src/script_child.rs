//! The process of one CGI script: a child of this process, or of the helper that starts what has
//! another user. Dropped before its end, it ends with all the processes that it started.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use forebay_workers::{HelpedChild, HelpedProcess};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use crate::script_reaper::ScriptReaper;

/// The process, until it was waited for.
pub struct ScriptChild(Option<Kind>);

enum Kind {
    Own { child: Child, leader: Pid, reaper: Arc<ScriptReaper> },
    Helped(HelpedProcess),
}

impl ScriptChild {
    /// A child of this process, which `reaper` ends if this process is killed.
    pub fn own(child: Child, reaper: Arc<ScriptReaper>) -> Self {
        let leader = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Self(leader.map(|leader| {
            reaper.watch(leader);
            Kind::Own { child, leader, reaper }
        }))
    }

    /// A child of the helper.
    pub fn helped(child: HelpedChild) -> io::Result<Self> {
        Ok(Self(Some(Kind::Helped(HelpedProcess::new(child)?))))
    }

    /// Waits for the end of the process. Its own children go on.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = match &mut self.0 {
            Some(Kind::Own { child, leader, reaper }) => {
                let status = child.wait().await?;
                reaper.forget(*leader);
                status
            }
            Some(Kind::Helped(child)) => child.wait().await?,
            None => return Ok(ExitStatus::from_raw(0)),
        };
        self.0 = None;
        Ok(status)
    }
}

impl Drop for ScriptChild {
    fn drop(&mut self) {
        // A helper kills the process group of a child whose socket is closed.
        let Some(Kind::Own { mut child, leader, reaper }) = self.0.take() else { return };
        // The leader has not been waited for, so its number still is this group's.
        let _ = kill_process_group(leader, Signal::KILL);
        tokio::task::spawn_local(async move {
            let _ = child.wait().await;
            reaper.forget(leader);
        });
    }
}
