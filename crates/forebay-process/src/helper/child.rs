//! A process that this process or the helper has started.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid,
};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::OnceLock;

/// First bytes of the helper's reports.
pub(super) const STARTED: u8 = b'S';
pub(super) const GROUP: u8 = b'G';
pub(super) const FAILED: u8 = b'F';
pub(super) const ENDED: u8 = b'E';
/// Orders to the helper.
pub(super) const KILL: u8 = b'K';
pub(super) const REAP: u8 = b'R';
pub(super) const TERM: u8 = b'T';
/// Maximum size of a report in bytes.
const REPORT: usize = 4096;
/// Time limit for the helper's answer to a request.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A process that leads its own process group. After the process is reaped, the kernel may give the
/// id to another process.
#[derive(Debug)]
pub enum Child {
    /// A child of this process.
    Own(Pid),
    /// A child of the helper.
    Helped(HelpedChild),
}

/// A request that the helper has not answered yet.
#[derive(Debug)]
pub struct Starting {
    status: OwnedFd,
}

/// A child of the helper. Dropping this value before the child is reaped kills the child's process
/// group.
#[derive(Debug)]
pub struct HelpedChild {
    pid: Pid,
    status: OwnedFd,
    ended: OnceLock<ExitStatus>,
}

impl Child {
    /// Returns the process id.
    pub fn pid(&self) -> Pid {
        match self {
            Child::Own(pid) => *pid,
            Child::Helped(child) => child.pid,
        }
    }

    /// Returns the exit status if the process has ended, otherwise `None`. The id is not reused
    /// before the process is reaped.
    pub fn ended(&self) -> io::Result<Option<ExitStatus>> {
        let pid = match self {
            Child::Own(pid) => *pid,
            Child::Helped(child) => return child.ended(),
        };
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(pid), look)?;
        Ok(ended.map(|status| match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ExitStatus::from_raw(code << 8),
            (None, signal) => ExitStatus::from_raw(signal.unwrap_or(0)),
        }))
    }

    /// Kills the process group of the process. Call this only before the process is reaped, because
    /// the id may be reused after that.
    pub fn kill_group(&self) {
        match self {
            Child::Own(pid) => drop(kill_process_group(*pid, Signal::KILL)),
            Child::Helped(child) => child.order(KILL),
        }
    }

    /// Asks the process group of the process to end, with SIGTERM. Call this only before the process
    /// is reaped.
    pub fn terminate_group(&self) {
        match self {
            Child::Own(pid) => drop(kill_process_group(*pid, Signal::TERM)),
            Child::Helped(child) => child.terminate_group(),
        }
    }

    /// Reaps the process if it has ended, and returns its exit status. Otherwise returns `None`.
    pub fn reap(&self) -> io::Result<Option<ExitStatus>> {
        match self {
            Child::Own(pid) => {
                let ended = waitpid(Some(*pid), WaitOptions::NOHANG)?;
                Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
            }
            Child::Helped(child) => {
                let ended = child.ended()?;
                if ended.is_some() {
                    child.order(REAP);
                }
                Ok(ended)
            }
        }
    }
}

impl From<Pid> for Child {
    fn from(pid: Pid) -> Child {
        Child::Own(pid)
    }
}

impl Starting {
    pub(super) fn new(status: OwnedFd) -> Starting {
        Starting { status }
    }

    /// Waits until the process has started. Blocks for about a millisecond, as any start does.
    ///
    /// # Errors
    /// Fails if the helper cannot start the process, refuses to start it, or has ended.
    pub fn child(self) -> io::Result<HelpedChild> {
        let bytes = self.report(STARTED)?;
        let number = bytes.try_into().map(i32::from_ne_bytes).ok().and_then(Pid::from_raw);
        let pid = number.ok_or_else(|| io::Error::other("a process without a number"))?;
        Ok(HelpedChild { pid, status: self.status, ended: OnceLock::new() })
    }

    /// Waits until the helper has made a control group, and returns the path of this group.
    pub(super) fn group(self) -> io::Result<PathBuf> {
        self.report(GROUP).map(|bytes| OsString::from_vec(bytes).into())
    }

    fn report(&self, wanted: u8) -> io::Result<Vec<u8>> {
        let mut readable = [PollFd::new(&self.status, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut readable, Some(&PATIENCE)))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the helper does not answer"));
        }
        let mut bytes = [0; REPORT];
        let (read, _) = retry_on_intr(|| recv(&self.status, &mut bytes[..], RecvFlags::empty()))?;
        match bytes[..read].split_first() {
            Some((&kind, rest)) if kind == wanted => Ok(rest.to_vec()),
            Some((&FAILED, rest)) => Err(failure(rest)),
            _ => Err(io::Error::other("the helper that starts it has ended; restart Forebay")),
        }
    }
}

/// Returns the error from a report of a failure. `bytes` contains an errno, or 0 and a message.
fn failure(bytes: &[u8]) -> io::Error {
    let (number, text) = bytes
        .split_first_chunk()
        .map_or((0, bytes), |(number, text)| (i32::from_ne_bytes(*number), text));
    match number {
        0 => io::Error::other(String::from_utf8_lossy(text).into_owned()),
        number => io::Error::from_raw_os_error(number),
    }
}

impl HelpedChild {
    /// Returns the process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the exit status if the helper has reported it, otherwise `None`. If the helper has
    /// ended without a report, returns the status of a process that SIGKILL has ended. The status
    /// socket becomes readable when the report arrives.
    pub fn ended(&self) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.ended.get() {
            return Ok(Some(*status));
        }
        let mut bytes = [0; REPORT];
        let status = match recv(&self.status, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((5, _)) if bytes[0] == ENDED => {
                i32::from_ne_bytes([bytes[1], bytes[2], bytes[3], bytes[4]])
            }
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            // The helper has ended, and its children with it.
            Ok(_) | Err(_) => Signal::KILL.as_raw(),
        };
        Ok(Some(*self.ended.get_or_init(|| ExitStatus::from_raw(status))))
    }

    /// Lets the helper send SIGTERM to the process group of the process.
    pub fn terminate_group(&self) {
        self.order(TERM);
    }

    /// Lets the helper reap the process. The rest of its process group continues.
    pub fn let_reap(&self) {
        self.order(REAP);
    }

    /// Returns a second descriptor of the status socket, which becomes readable when the process
    /// has ended.
    pub fn readable_at_end(&self) -> io::Result<OwnedFd> {
        self.status.try_clone()
    }

    fn order(&self, order: u8) {
        // Ignore a failure: if the helper has ended, its processes have ended, too.
        let _ = send(&self.status, &[order], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

impl AsFd for HelpedChild {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.status.as_fd()
    }
}

impl AsRawFd for HelpedChild {
    fn as_raw_fd(&self) -> RawFd {
        self.status.as_raw_fd()
    }
}
