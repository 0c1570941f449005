//! A process that the helper has started: its descriptors, and the reports about it.

use super::child::{ENDED, FAILED, KILL, REAP, TERM};
use crate::{Child, Identity};
use rustix::fs::{fchown, fstatfs};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Gid, Signal, Uid, kill_process};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

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
            report(socket, &with(ENDED, &status.into_raw().to_ne_bytes()));
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
    let mut bytes = with(FAILED, &number.to_ne_bytes());
    if number == 0 {
        bytes.extend_from_slice(error.to_string().as_bytes());
    }
    bytes
}

pub(super) fn with(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut report = vec![kind];
    report.extend_from_slice(bytes);
    report
}

/// Sends a report. Does not wait, because a gateway that does not read must not delay other
/// processes.
pub(super) fn report(status: &OwnedFd, bytes: &[u8]) {
    let _ = send(status, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
