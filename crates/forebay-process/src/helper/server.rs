//! The helper process. It has only one thread: a child gets the parent death signal when the thread
//! that started the child ends, not when the process ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, remove_dir_all};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{DupFlags, Errno, dup2, dup3, retry_on_intr};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};

use super::child::{Descriptors, GROUP, STARTED, Started, failed, message_of, refusal, report};
use super::message::{
    GroupRequest, LaunchRequest, MOST_BYTES, MOST_DESCRIPTORS, Request, RoomRequest, parse_user,
};
use super::owners::{Owners, find};
use super::room::Rooms;
use crate::cgroup::LimitedCgroup;
use crate::{Child, Identity, Launch, PolledGroupReaper, myself};

/// The first argument of the process.
pub const VERB: &str = "__helper";
/// Maximum numbers of processes and control groups at the same time. Only an error or an attack
/// exceeds these numbers.
const MOST_CHILDREN: usize = 10_000;
const MOST_GROUPS: usize = 1000;
/// The descriptor numbers of a program's fourth descriptor, and of the environment for `__launch`.
const FOURTH: i32 = 3;
const ENVIRONMENT: i32 = 4;

/// Runs `forebay __helper ROOMS USER...`, with its socket as standard input.
pub fn help(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // Block signals that are sent to a whole control group or terminal, because this process must
    // end only after its gateway.
    let mut signals = SigSet::empty();
    let others =
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];
    others.into_iter().for_each(|signal| signals.add(signal));
    let rooms = arguments.next().and_then(|word| Rooms::parse(&word));
    let mut owners = Vec::new();
    let others = arguments.filter(|word| match Owners::parse(word) {
        Some(found) => {
            owners.push(found);
            false
        }
        None => true,
    });
    let users: Option<Vec<Identity>> = others.map(|word| parse_user(&word)).collect();
    let (Some(rooms), Some(users), Ok(())) = (rooms, users, signals.thread_block()) else {
        eprintln!("__helper is for Forebay itself");
        return ExitCode::FAILURE;
    };
    match HelperServer::new(rooms, users, owners).and_then(HelperServer::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: the helper that starts applications ends: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The helper: a root process that starts processes as other users for the gateway.
struct HelperServer {
    socket: OwnedFd,
    rooms: Rooms,
    users: Vec<Identity>,
    /// Patterns of directories whose owners are accepted, too.
    owners: Vec<Owners>,
    /// Control groups by the name of the application.
    groups: BTreeMap<String, LimitedCgroup>,
    children: Vec<Started>,
    reaper: Option<PolledGroupReaper>,
    /// Soft limit on open files that the helper had at its start. Programs get this limit.
    files: Option<u64>,
    null: OwnedFd,
    /// Descriptors 3 and 4, which are usually /dev/null. During the start of a program, these
    /// descriptors are the program's fourth descriptor and environment.
    fourth: OwnedFd,
    environment: OwnedFd,
}

/// Events that have occurred.
struct ReadyEvents {
    /// True if the gateway has sent a request, or has ended.
    has_request: bool,
    /// Events of each child, in the order of `children`.
    children: Vec<ReadyChild>,
    /// True if the reaper's process has ended.
    has_lost_reaper: bool,
}

/// Events of a child.
struct ReadyChild {
    /// True if the process has ended.
    has_ended: bool,
    /// True if the gateway has sent an order for the process.
    has_order: bool,
}

impl HelperServer {
    fn new(rooms: Rooms, users: Vec<Identity>, owners: Vec<Owners>) -> io::Result<HelperServer> {
        let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
        let (fourth, environment) = (null()?, null()?);
        if (fourth.as_raw_fd(), environment.as_raw_fd()) != (FOURTH, ENVIRONMENT) {
            return Err(io::Error::other("a descriptor was left open"));
        }
        // Raise the limit, because each process takes two descriptors of the helper.
        let found = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: found.maximum, ..found });
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        // Replace standard input, so that no child inherits the socket.
        rustix::stdio::dup2_stdin(null()?)?;
        Ok(HelperServer {
            socket,
            rooms,
            users,
            owners,
            groups: BTreeMap::new(),
            children: Vec::new(),
            reaper: PolledGroupReaper::start().ok(),
            files: found.current,
            null: null()?,
            fourth,
            environment,
        })
    }

    /// Serves until the gateway has ended, then ends the remaining processes.
    fn run(mut self) -> io::Result<()> {
        let mut buffer = vec![0; MOST_BYTES + 1];
        let mut is_open = true;
        while is_open || !self.children.is_empty() {
            let ReadyEvents { has_request, children, has_lost_reaper } = self.wait(is_open)?;
            if has_lost_reaper
                && !self.reaper.as_mut().is_some_and(PolledGroupReaper::replace_ended)
            {
                self.reaper = None;
            }
            for (started, ready) in self.children.iter_mut().zip(children) {
                if ready.has_ended {
                    started.report_end();
                }
                if ready.has_order {
                    started.obey();
                }
            }
            if has_request && !self.take_request(&mut buffer)? {
                is_open = false;
                self.children.iter_mut().for_each(super::child::Started::abandon);
            }
            self.reap();
        }
        self.rooms.remove();
        Ok(())
    }

    fn wait(&self, is_open: bool) -> io::Result<ReadyEvents> {
        let mut watched = vec![PollFd::new(&self.socket, PollFlags::IN)];
        if !is_open {
            watched.clear();
        }
        let reaper = self.reaper.as_ref().map(|reaper| {
            watched.push(PollFd::from_borrowed_fd(reaper.end(), PollFlags::IN));
            watched.len() - 1
        });
        let mut places = Vec::new();
        for started in &self.children {
            let mut place = (None, None);
            if !started.is_reported {
                place.0 = Some(watched.len());
                watched.push(PollFd::new(&started.pidfd, PollFlags::IN));
            }
            if let Some(status) = &started.status {
                place.1 = Some(watched.len());
                watched.push(PollFd::new(status, PollFlags::IN));
            }
            places.push(place);
        }
        retry_on_intr(|| poll(&mut watched, None))?;
        let is_ready =
            |place: Option<usize>| place.is_some_and(|at| !watched[at].revents().is_empty());
        let child =
            |(end, order)| ReadyChild { has_ended: is_ready(end), has_order: is_ready(order) };
        let children = places.into_iter().map(child).collect();
        Ok(ReadyEvents {
            has_request: is_open && is_ready(Some(0)),
            children,
            has_lost_reaper: is_ready(reaper),
        })
    }

    /// Reaps the processes that have ended and that the gateway no longer needs.
    fn reap(&mut self) {
        for started in self.children.extract_if(.., |started| started.is_done()) {
            if started.status.is_none() {
                // The gateway has closed the socket, so the rest of the process group must end,
                // too.
                started.child.kill_group();
            }
            let _ = started.child.reap();
            if let Some(room) = started.room {
                // Remove the room here, because a guardian that was killed has not removed it.
                let _ = remove_dir_all(room);
            } else if let Some(reaper) = &mut self.reaper {
                reaper.forget(started.child.pid());
            }
        }
    }

    /// Handles a request. Returns false after the gateway has ended.
    fn take_request(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(buffer)];
        let received = recvmsg(&self.socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let received = match received {
            Ok(received) => received,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(true),
            Err(Errno::CONNRESET) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                descriptors.extend(passed);
            }
        }
        if received.bytes == 0 {
            return Ok(false);
        }
        let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        if descriptors.is_empty() {
            return Ok(true);
        }
        let status = descriptors.remove(0);
        let request = (!is_cut).then(|| Request::parse(&buffer[..received.bytes])).flatten();
        match request {
            Some(Request::Launch(request)) => {
                self.answer_launch(None, &request, status, descriptors);
            }
            Some(Request::Program(room, request)) => {
                self.answer_launch(Some(&room), &request, status, descriptors);
            }
            Some(Request::Group(request)) => report(&status, &self.make_group(&request)),
            None => report(&status, &failed(&refusal("no request that it knows"))),
        }
        Ok(true)
    }

    fn answer_launch(
        &mut self,
        room: Option<&RoomRequest>,
        request: &LaunchRequest,
        status: OwnedFd,
        descriptors: Vec<OwnedFd>,
    ) {
        let started = match room {
            None => self.start(request, descriptors),
            Some(room) => self.start_guardian(room, request, descriptors),
        };
        let mut started = match started {
            Ok(started) => started,
            Err(error) => return report(&status, &failed(&error)),
        };
        let child = started.child.pid();
        // Do not let the reaper watch a guardian. When this helper ends, the reaper would kill the
        // guardian before the guardian has ended its program.
        if let Some(reaper) = self.reaper.as_mut().filter(|_| room.is_none()) {
            reaper.watch(child);
        }
        report(&status, &message_of(STARTED, &child.as_raw_pid().to_ne_bytes()));
        started.status = Some(status);
        self.children.push(started);
    }

    fn start(&mut self, request: &LaunchRequest, descriptors: Vec<OwnedFd>) -> io::Result<Started> {
        let (launch, identity) = self.launch_of(request, false)?;
        let descriptors = Descriptors::new(descriptors, &identity)?;
        self.spawn(launch.command(), request, descriptors)
    }

    /// Starts the guardian of a program that listens by itself, in a new room.
    fn start_guardian(
        &mut self,
        room: &RoomRequest,
        request: &LaunchRequest,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<Started> {
        let (launch, identity) = self.launch_of(request, true)?;
        let descriptors = Descriptors::new(descriptors, &identity)?;
        if descriptors.fourth.is_some() {
            return Err(refusal("a guardian with four descriptors"));
        }
        let room = self.rooms.furnish(room, &identity)?;
        let mut command = Command::new(myself());
        command.arg("__guardian").arg(&room).args(launch.arguments());
        match self.spawn(command, request, descriptors) {
            Ok(started) => Ok(Started { room: Some(room), ..started }),
            Err(error) => {
                let _ = remove_dir_all(room);
                Err(error)
            }
        }
    }

    /// Checks a request. Returns the program to launch, and its user. Fails if the request is not
    /// permitted, or if too many processes run.
    fn launch_of(
        &mut self,
        request: &LaunchRequest,
        may_listen: bool,
    ) -> io::Result<(Launch, Identity)> {
        if self.children.len() >= MOST_CHILDREN {
            return Err(refusal("too many processes"));
        }
        if let Some(user) = request.user()
            && !self.users.iter().any(|known| known.user.as_ref() == Some(&user))
        {
            self.users.extend(find(&self.owners, &user));
        }
        let is_group = |path: &Path| self.groups.values().any(|group| group.path() == path);
        let checked = request.launch(&self.users, is_group, may_listen);
        let (mut launch, identity) = checked.map_err(refusal)?;
        if launch.limits.open_files.is_none() {
            launch.files = launch.files.or(self.files);
        }
        Ok((launch, identity.clone()))
    }

    /// Starts a process that finds the environment of the request as descriptor 4.
    fn spawn(
        &mut self,
        mut command: Command,
        request: &LaunchRequest,
        descriptors: Descriptors,
    ) -> io::Result<Started> {
        let mut environment = File::from(memfd_create("environment", MemfdFlags::CLOEXEC)?);
        environment.write_all(&request.environment())?;
        dup2(&environment, &mut self.environment)?;
        let Descriptors { stdin, stdout, stderr, fourth } = descriptors;
        let outcome = fourth.map_or(Ok(()), |fourth| dup2(fourth, &mut self.fourth));
        command.env_clear().current_dir("/").process_group(0);
        command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
        let started = outcome.map_err(io::Error::from).and_then(|()| command.spawn());
        dup3(&self.null, &mut self.fourth, DupFlags::CLOEXEC)?;
        dup3(&self.null, &mut self.environment, DupFlags::CLOEXEC)?;
        let mut child = started?;
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Started {
                child: Child::Own(pid),
                pidfd,
                status: None,
                is_reported: false,
                may_be_reaped: false,
                room: None,
            }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error.into())
            }
        }
    }

    fn make_group(&mut self, request: &GroupRequest) -> Vec<u8> {
        if self.groups.len() >= MOST_GROUPS {
            return failed(&refusal("too many control groups"));
        }
        match LimitedCgroup::make_here(&request.app, request.limits) {
            Ok(Some(group)) => {
                let report = message_of(GROUP, group.path().as_os_str().as_encoded_bytes());
                // `before` has the same directory as the new group. Do not drop `before`, because
                // the drop would remove the directory.
                if let Some(before) = self.groups.insert(request.app.clone(), group) {
                    std::mem::forget(before);
                }
                report
            }
            Ok(None) => failed(&refusal("a control group without limits")),
            Err(why) => failed(&io::Error::other(why)),
        }
    }
}
