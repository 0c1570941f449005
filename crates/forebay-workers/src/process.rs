//! Starts the process of one worker.

use crate::perl;
use crate::spec::{AppSpec, Kind};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

/// What of the gateway's environment the workers inherit.
const INHERITED: [&str; 4] = ["PATH", "TZ", "PERL5LIB", "LD_LIBRARY_PATH"];

/// A process that has been started, with this side's ends of what connects it.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) pid: Pid,
    /// Readable when the process has ended.
    pub(crate) pidfd: OwnedFd,
    pub(crate) control: OwnedFd,
    pub(crate) output: OwnedFd,
    /// Non-blocking.
    pub(crate) stderr: OwnedFd,
}

/// Starts a worker in a process group of its own. Call it on a thread that outlives the workers:
/// they are killed when it ends.
pub(crate) fn start(spec: &AppSpec) -> io::Result<Process> {
    let Kind::PerlCgi { dir, mode } = &spec.kind;
    let (mut command, first_message) = perl::command(&spec.name, *mode);
    let (control, its_control) = stream_pair()?;
    let (output, its_output) = stream_pair()?;
    let (stderr, its_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    // Fits the socket's buffer, so that it does not wait for the process.
    rustix::net::send(&control, &first_message, rustix::net::SendFlags::NOSIGNAL)?;
    rustix::io::ioctl_fionbio(&control, true)?;
    let mut child = command
        .stdin(Stdio::from(its_control))
        .stdout(Stdio::from(its_output))
        .stderr(Stdio::from(its_stderr))
        .env_clear()
        .envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(dir)
        .process_group(0)
        .spawn()?;
    let pid = Pid::from_child(&child);
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            child.kill()?;
            child.wait()?;
            return Err(error.into());
        }
    };
    Ok(Process { child, pid, pidfd, control, output, stderr })
}

fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
