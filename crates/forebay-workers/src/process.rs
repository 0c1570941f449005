//! Starts the process of one worker.
//!
//! A worker has three sockets (`hosts/PROTOCOL.md` describes the protocol). The output socket is
//! descriptor 1, the script's standard output. The host for WSGI gets a pipe instead of this
//! socket. The prefetch queue is descriptor 3, which `sys/spawn.rs` passes on. The control socket
//! is descriptor 0. It carries requests that do not fit into the prefetch queue, and reports of the
//! worker, for example that it is ready. The control socket closes when either side ends.
//!
//! After the output of a request, the worker writes an end marker, which contains 16 random bytes
//! from the request. Output and end marker use the same socket, so the output of the next request
//! can follow at once.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::path::{self, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use forebay_process::cgroup::LimitedCgroup;
use forebay_process::{
    Child, HelpedChild, HelpedLaunch, Helper, Identity, Launch, found_descriptors,
    give_back_descriptors,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::host::Host;
use crate::prefetch::PrefetchQueue;
use crate::proofs::ProofKey;
use crate::spec::{AppSpec, Kind};
use crate::sys::spawn::{DESCRIPTORS, spawn};
use crate::{executable, sys};

/// Size of a pipe for output in bytes. Most sockets hold 208 KiB.
const PIPE_SIZE: usize = 256 * 1024;
/// Variables of the gateway's environment that workers inherit.
const INHERITED: [&str; 5] = ["PATH", "TZ", "PERL5LIB", "PYTHONPATH", "LD_LIBRARY_PATH"];

/// A started worker process, with the gateway's ends of its sockets.
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Readable after the process has ended.
    pub(crate) at_end: OwnedFd,
    pub(crate) control: OwnedFd,
    pub(crate) output: OwnedFd,
    pub(crate) prefetch: PrefetchQueue,
    /// The reading end of the worker's standard error, in non-blocking mode.
    pub(crate) stderr: OwnedFd,
}

/// The user and the cgroup of workers, and the key of their reports.
pub(crate) struct Confinement {
    pub(crate) identity: Option<Identity>,
    pub(crate) cgroup: Option<LimitedCgroup>,
    /// Empty unless the application is in mode `prove`.
    pub(crate) proof: ProofKey,
}

/// Starts a worker in its own process group. Call this on a thread that outlives the workers,
/// because the kernel kills the workers when that thread ends.
pub(crate) fn start(spec: &AppSpec, place: &Confinement) -> io::Result<Process> {
    let helper = place.identity.as_ref().and_then(Identity::helper);
    let parent = helper.map_or_else(std::process::id, Helper::pid);
    let Host { command, first_message } = Host::of(spec, parent, &place.proof);
    let (control, its_control) = stream_pair()?;
    let (output, its_output) = output_pair(&spec.kind)?;
    let (prefetch, its_prefetch) = PrefetchQueue::pair()?;
    let (stderr, its_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    if let Some(identity) = place.identity.as_ref().filter(|identity| identity.helper().is_none()) {
        // Make the worker's user the owner of the pipe. Otherwise a script could not open
        // /dev/stderr. If a helper starts the worker, the helper changes the owner.
        fchown(&its_stderr, identity.user.as_ref().map(|user| user.0), identity.group)?;
    }
    // The message fits the socket's buffer, so this call does not wait for the process.
    rustix::net::send(&control, &first_message, rustix::net::SendFlags::NOSIGNAL)?;
    rustix::io::ioctl_fionbio(&control, true)?;
    let descriptors = [its_control, its_output, its_stderr, its_prefetch];
    let (child, at_end) = match helper {
        Some(helper) => start_by(helper, &command, spec, place, &descriptors)?,
        None => start_here(&launched(command, spec, place), spec, descriptors)?,
    };
    Ok(Process { child, at_end, control, output, prefetch, stderr })
}

/// Starts the worker as a child of this process, without the helper.
fn start_here(
    command: &Command,
    spec: &AppSpec,
    descriptors: [OwnedFd; DESCRIPTORS],
) -> io::Result<(Child, OwnedFd)> {
    let pid = spawn(&program(command, spec)?, command, descriptors)?;
    if spec.limits.open_files.is_none() {
        give_back_descriptors(pid);
    }
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok((Child::Own(pid), pidfd)),
        Err(error) => {
            kill_process(pid, Signal::KILL)?;
            waitpid(Some(pid), WaitOptions::empty())?;
            Err(error.into())
        }
    }
}

fn start_by(
    helper: &Helper,
    command: &Command,
    spec: &AppSpec,
    place: &Confinement,
    descriptors: &[OwnedFd; DESCRIPTORS],
) -> io::Result<(Child, OwnedFd)> {
    // Look for the program here, so that a missing program gives the same error with and without a
    // helper.
    // What this process cannot see, the user of the worker may.
    match program(command, spec) {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
        _ => {}
    }
    let mut launch = launch_of(command, spec, place);
    launch.files = found_descriptors().filter(|_| spec.limits.open_files.is_none());
    let variables = environment(spec);
    let request = HelpedLaunch {
        launch: &launch,
        dir: &path::absolute(spec.kind.dir())?,
        env: variables.collect(),
        descriptors: &descriptors.each_ref().map(AsFd::as_fd),
    };
    let child = helper.launch(&request)?.child()?;
    let at_end = child.readable_at_end()?;
    Ok((Child::Helped(child), at_end))
}

/// Returns the path of a worker's program.
fn program(command: &Command, spec: &AppSpec) -> io::Result<PathBuf> {
    let name = command.get_program().to_string_lossy();
    let found = executable::find(&name, &spec.env, spec.kind.dir());
    path::absolute(found.map_err(|absent| {
        let hidden = absent.is_hidden.then_some(io::ErrorKind::PermissionDenied);
        io::Error::new(hidden.unwrap_or(io::ErrorKind::NotFound), absent.what)
    })?)
}

/// Returns the command with the environment and directory of workers, and with the user and limits
/// of the application.
fn launched(command: Command, spec: &AppSpec, place: &Confinement) -> Command {
    let launch = launch_of(&command, spec, place);
    let mut command = if launch.is_needed() { launch.command() } else { command };
    command.env_clear().envs(environment(spec)).current_dir(spec.kind.dir());
    command
}

fn environment(spec: &AppSpec) -> impl Iterator<Item = (OsString, OsString)> {
    let inherited =
        INHERITED.iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
    // If two variables have the same name, the later one replaces the earlier one.
    let all: BTreeMap<OsString, OsString> =
        inherited.chain(spec.env.iter().map(|(name, value)| (name.into(), value.into()))).collect();
    all.into_iter()
}

fn launch_of(command: &Command, spec: &AppSpec, place: &Confinement) -> Launch {
    let argv = std::iter::once(command.get_program()).chain(command.get_args());
    let argv = argv.map(OsStr::to_owned).collect();
    let mut launch = Launch { limits: spec.limits, argv, ..Launch::default() };
    launch.as_user(place.identity.as_ref());
    launch.cgroup = place.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
    launch
}

/// Returns the gateway's end and the worker's end of the output. A WSGI application has no access
/// to the worker's end, and the host for WSGI only writes to this end. So a pipe is sufficient for
/// WSGI.
fn output_pair(kind: &Kind) -> io::Result<(OwnedFd, OwnedFd)> {
    // A reply of 4 kB takes 1.2 us through a pipe and 2.1 us through a socket.
    match kind {
        Kind::Wsgi { .. } => large_pipe().or_else(|_| stream_pair()),
        Kind::PerlCgi { .. }
        | Kind::Psgi { .. }
        | Kind::ModPerl { .. }
        | Kind::PythonCgi { .. } => stream_pair(),
    }
}

/// Returns both ends of a pipe that holds as much as a socket. Fails if the user's pipes have too
/// much memory (`/proc/sys/fs/pipe-user-pages-soft`).
fn large_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setpipe_size(&theirs, PIPE_SIZE)?;
    Ok((ours, theirs))
}

fn stream_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

// A process that the helper has started, for use in an asynchronous task.

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
