//! A process that this process or the helper has started.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{fchown, fstatfs};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{
    Gid, Pid, Signal, Uid, WaitId, WaitIdOptions, WaitOptions, kill_process, kill_process_group,
    waitid, waitpid,
};

use crate::Identity;

/// First bytes of the helper's reports.
pub(super) const STARTED: u8 = b'S';
pub(super) const GROUP: u8 = b'G';
pub(super) const FAILED: u8 = b'F';
const ENDED: u8 = b'E';
/// Orders to the helper.
pub(super) const KILL: u8 = b'K';
const REAP: u8 = b'R';
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

// A process that the helper has started: its descriptors, and the reports about it.

/// The file system of pipes that have no path (magic.h).
const PIPEFS: u64 = 0x5049_5045;

/// A process that the helper has started.
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    /// Socket for reports to the gateway and for orders of the gateway. `None` after the gateway
    /// has closed this socket.
    pub(super) status: Option<OwnedFd>,
    /// True after the helper has reported the end of the process.
    pub(super) is_reported: bool,
    /// True after the gateway's order to reap the process. The rest of its process group then
    /// continues.
    pub(super) may_be_reaped: bool,
    /// The room of the program, if the process is a guardian.
    pub(super) room: Option<PathBuf>,
}

/// The descriptors for a process that the helper starts.
pub(super) struct Descriptors {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) fourth: Option<OwnedFd>,
}

impl Descriptors {
    /// Takes three or four descriptors, and fails for any other number. Makes the user the owner of
    /// pipes for output, so that the program can open /dev/stdout and /dev/stderr. Does not change
    /// a pipe with a path (FIFO), because the path may be another user's file.
    pub(super) fn new(descriptors: Vec<OwnedFd>, identity: &Identity) -> io::Result<Descriptors> {
        let mut descriptors = descriptors.into_iter();
        let (Some(stdin), Some(stdout), Some(stderr), fourth, None) = (
            descriptors.next(),
            descriptors.next(),
            descriptors.next(),
            descriptors.next(),
            descriptors.next(),
        ) else {
            return Err(refusal("not three or four descriptors"));
        };
        for pipe in [&stdout, &stderr] {
            if fstatfs(pipe)?.f_type as u64 == PIPEFS {
                let user = identity.user.as_ref().map(|(user, _)| Uid::from_raw(*user));
                fchown(pipe, user, identity.group.map(Gid::from_raw))?;
            }
        }
        Ok(Descriptors { stdin, stdout, stderr, fourth })
    }
}

impl Started {
    /// Reports the end of a process to the gateway. Does nothing if the process still runs. The
    /// process stays a zombie until the gateway sends the order to reap. No other process can get
    /// the id of a zombie.
    pub(super) fn report_end(&mut self) {
        let Ok(Some(status)) = self.child.ended() else { return };
        self.is_reported = true;
        if let Some(socket) = &self.status {
            report(socket, &message_of(ENDED, &status.into_raw().to_ne_bytes()));
        }
    }

    /// Reads an order of the gateway and carries it out.
    pub(super) fn obey(&mut self) {
        let Some(status) = &self.status else { return };
        let mut order = [0; 2];
        match recv(status, &mut order[..], RecvFlags::DONTWAIT) {
            Ok((1, _)) if order[0] == KILL => self.child.kill_group(),
            Ok((1, _)) if order[0] == TERM => self.child.terminate_group(),
            Ok((1, _)) if order[0] == REAP && self.is_reported => self.may_be_reaped = true,
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.abandon(),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_reported && (self.may_be_reaped || self.status.is_none())
    }

    /// Ends a process that the gateway no longer needs.
    pub(super) fn abandon(&mut self) {
        self.status = None;
        if self.room.is_none() {
            self.child.kill_group();
        } else if !self.is_reported {
            // SIGTERM lets a guardian end its program first.
            let _ = kill_process(self.child.pid(), Signal::TERM);
        }
    }
}

pub(super) fn refusal(what: &'static str) -> io::Error {
    io::Error::other(format!("the helper refuses to start {what}"))
}

pub(super) fn failed(error: &io::Error) -> Vec<u8> {
    let number = error.raw_os_error().unwrap_or(0);
    let mut bytes = message_of(FAILED, &number.to_ne_bytes());
    if number == 0 {
        bytes.extend_from_slice(error.to_string().as_bytes());
    }
    bytes
}

pub(super) fn message_of(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut report = vec![kind];
    report.extend_from_slice(bytes);
    report
}

/// Sends a report. Does not wait, because a gateway that does not read must not delay other
/// processes.
pub(super) fn report(status: &OwnedFd, bytes: &[u8]) {
    let _ = send(status, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
