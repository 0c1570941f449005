//! The process of one CGI script: a child of this process, or of the helper for processes of other
//! users. If a [`ScriptChild`] is dropped early, its process ends, and so do all processes that the
//! script started.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use forebay_workers::{HelpedChild, HelpedProcess};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

use crate::scripts::reaper::ScriptReaper;

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

    /// Waits for the end of the process. Children of the process continue.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = match &mut self.0 {
            Some(ChildKind::Own { child, leader, reaper }) => {
                let status = child.wait().await?;
                reaper.forget(*leader);
                status
            }
            Some(ChildKind::Helped(child)) => child.wait().await?,
            None => return Ok(ExitStatus::from_raw(0)),
        };
        self.0 = None;
        Ok(status)
    }
}

impl Drop for ScriptChild {
    fn drop(&mut self) {
        // The helper kills the process group of its child when the socket is closed. So only kill
        // the group of an own child here.
        let Some(ChildKind::Own { mut child, leader, reaper }) = self.0.take() else { return };
        // The leader was not reaped, so its number still belongs to this group.
        let _ = kill_process_group(leader, Signal::KILL);
        tokio::task::spawn_local(async move {
            let _ = child.wait().await;
            reaper.forget(leader);
        });
    }
}
