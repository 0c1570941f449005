//! Starts the process of one worker.
//!
//! A worker has three sockets (`hosts/README.md` has what goes over them): the script's descriptor
//! 1; the prefetch queue; and the control socket, which carries what the prefetch queue has no room
//! for, reports that the worker is ready, and closes when either side has gone. Behind the output
//! of a request the worker writes an end marker with 16 random bytes that came with the request:
//! output, end and wake-up are one, and the next output can follow at once. The prefetch queue is a
//! fourth descriptor, for which there is a call of our own (`sys/spawn.rs`).

use crate::executable;
use crate::host::Host;
use crate::prefetch::PrefetchQueue;
use crate::spec::AppSpec;
use crate::sys::spawn::spawn;
use forebay_process::Identity;
use forebay_process::Launch;
use forebay_process::cgroup::LimitedCgroup;
use forebay_process::give_back_descriptors;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::fchown;
use std::path::{self, PathBuf};
use std::process::Command;

/// What of the gateway's environment the workers inherit.
const INHERITED: [&str; 5] = ["PATH", "TZ", "PERL5LIB", "PYTHONPATH", "LD_LIBRARY_PATH"];

/// A process that has been started, with this side's ends of what connects it.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// Readable when the process has ended.
    pub(crate) pidfd: OwnedFd,
    pub(crate) control: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) prefetch: PrefetchQueue,
    /// Non-blocking.
    pub(crate) stderr: OwnedFd,
}

/// Who workers run as, and where.
pub(crate) struct Place {
    pub(crate) identity: Option<Identity>,
    pub(crate) cgroup: Option<LimitedCgroup>,
}

/// Starts a worker in a process group of its own. Call it on a thread that outlives the workers:
/// they are killed when it ends.
pub(crate) fn start(spec: &AppSpec, place: &Place) -> io::Result<Process> {
    let Host { command, first_message } = Host::of(spec);
    let command = launched(command, spec, place);
    let (control, its_control) = stream_pair()?;
    let (output, its_output) = stream_pair()?;
    let (prefetch, its_prefetch) = PrefetchQueue::pair()?;
    let (stderr, its_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    if let Some(identity) = &place.identity {
        // So that a script can open /dev/stderr.
        fchown(&its_stderr, identity.user.as_ref().map(|user| user.0), identity.group)?;
    }
    // Fits the socket's buffer, so that it does not wait for the process.
    rustix::net::send(&control, &first_message, rustix::net::SendFlags::NOSIGNAL)?;
    rustix::io::ioctl_fionbio(&control, true)?;
    let program = program(&command, spec)?;
    let pid = spawn(&program, &command, [its_control, its_output, its_stderr, its_prefetch])?;
    if spec.limits.open_files.is_none() {
        give_back_descriptors(pid);
    }
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            kill_process(pid, Signal::KILL)?;
            waitpid(Some(pid), WaitOptions::empty())?;
            return Err(error.into());
        }
    };
    Ok(Process { pid, pidfd, control, output, prefetch, stderr })
}

/// Where the program of a worker is.
fn program(command: &Command, spec: &AppSpec) -> io::Result<PathBuf> {
    let name = command.get_program().to_string_lossy();
    let found = executable::find(&name, &spec.env, spec.kind.dir());
    path::absolute(found.map_err(|absent| io::Error::new(io::ErrorKind::NotFound, absent.what))?)
}

/// The same command with the environment and in the directory of workers, as another user and
/// within limits where that is asked for.
pub(crate) fn launched(command: Command, spec: &AppSpec, place: &Place) -> Command {
    let mut command = with_launcher(command, spec, place);
    command
        .env_clear()
        .envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(spec.kind.dir());
    command
}

fn with_launcher(command: Command, spec: &AppSpec, place: &Place) -> Command {
    let argv = std::iter::once(command.get_program()).chain(command.get_args());
    let argv = argv.map(OsStr::to_owned).collect();
    let mut launch = Launch { limits: spec.limits, argv, ..Launch::default() };
    launch.as_user(place.identity.as_ref());
    launch.cgroup = place.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
    if !launch.is_needed() {
        return command;
    }
    launch.command()
}

fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}
