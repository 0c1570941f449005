//! The helper itself. It has one thread, as a parent death signal is that of a thread.

use super::child::{ENDED, FAILED, GROUP, KILL, REAP, STARTED};
use super::message::{
    GroupRequest, LaunchRequest, MOST_BYTES, MOST_DESCRIPTORS, Request, RoomRequest, parse_user,
};
use super::room::Rooms;
use crate::cgroup::LimitedCgroup;
use crate::{Child, GroupReaper, Identity, Launch, myself};
use nix::sys::signal::{SigSet, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, fchown, fstatfs, memfd_create};
use rustix::io::{DupFlags, Errno, dup2, dup3, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg,
    send,
};
use rustix::process::{
    Gid, Pid, PidfdFlags, Resource, Rlimit, Uid, getrlimit, kill_process, pidfd_open, setrlimit,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, remove_dir_all};
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The first argument of the process.
pub const VERB: &str = "__helper";
/// More processes at once are a mistake, or an attack.
const MOST_CHILDREN: usize = 10_000;
const MOST_GROUPS: usize = 1000;
/// The file system of pipes that have no path (magic.h).
const PIPEFS: u64 = 0x5049_5045;
/// The number at which a program finds its fourth descriptor, and the step before it its
/// environment.
const FOURTH: i32 = 3;
const ENVIRONMENT: i32 = 4;

/// `forebay __helper ROOMS USER...`, with its socket as standard input.
pub fn help(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // A control group or a terminal signals all its processes: this one ends with its gateway.
    let mut signals = SigSet::empty();
    let others =
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];
    others.into_iter().for_each(|signal| signals.add(signal));
    let rooms = arguments.next().and_then(|word| Rooms::parse(&word));
    let users: Option<Vec<Identity>> = arguments.map(|word| parse_user(&word)).collect();
    let (Some(rooms), Some(users), Ok(())) = (rooms, users, signals.thread_block()) else {
        eprintln!("__helper is for Forebay itself");
        return ExitCode::FAILURE;
    };
    match Server::new(rooms, users).and_then(Server::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay: the helper that starts applications ends: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Server {
    socket: OwnedFd,
    rooms: Rooms,
    users: Vec<Identity>,
    /// By the names of applications.
    groups: BTreeMap<String, LimitedCgroup>,
    children: Vec<Started>,
    reaper: Option<GroupReaper>,
    /// The soft limit on open files that was found, for programs.
    files: Option<u64>,
    null: OwnedFd,
    /// Descriptors 3 and 4, which a program inherits for the moment of its start.
    fourth: OwnedFd,
    environment: OwnedFd,
}

/// A process that was started.
struct Started {
    child: Child,
    pidfd: OwnedFd,
    /// Reports go out, orders come in. `None`: the gateway has closed it.
    status: Option<OwnedFd>,
    /// Its end was reported.
    is_reported: bool,
    /// The rest of its process group goes on.
    may_be_reaped: bool,
    /// It is a guardian, and this its program's room.
    room: Option<PathBuf>,
}

impl Server {
    fn new(rooms: Rooms, users: Vec<Identity>) -> io::Result<Server> {
        let null = || File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
        let (fourth, environment) = (null()?, null()?);
        if (fourth.as_raw_fd(), environment.as_raw_fd()) != (FOURTH, ENVIRONMENT) {
            return Err(io::Error::other("a descriptor was left open"));
        }
        // Each process takes two descriptors of ours.
        let found = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: found.maximum, ..found });
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        // Nothing that is started gets it.
        rustix::stdio::dup2_stdin(null()?)?;
        Ok(Server {
            socket,
            rooms,
            users,
            groups: BTreeMap::new(),
            children: Vec::new(),
            reaper: GroupReaper::start().ok(),
            files: found.current,
            null: null()?,
            fourth,
            environment,
        })
    }

    /// Serves until the gateway has gone, then ends the processes that are left.
    fn run(mut self) -> io::Result<()> {
        let mut buffer = vec![0; MOST_BYTES + 1];
        let mut is_open = true;
        while is_open || !self.children.is_empty() {
            let (request, ready) = self.wait(is_open)?;
            for (started, (ended, ordered)) in self.children.iter_mut().zip(ready) {
                if ended {
                    started.report_end();
                }
                if ordered {
                    started.obey();
                }
            }
            if request && !self.take_request(&mut buffer)? {
                is_open = false;
                self.children.iter_mut().for_each(|started| started.abandon());
            }
            self.reap();
        }
        self.rooms.remove();
        Ok(())
    }

    /// Waits for the next event. Returns true if a request has come, and a pair for each child: true
    /// if it has ended, and true if there is an order for it.
    fn wait(&self, is_open: bool) -> io::Result<(bool, Vec<(bool, bool)>)> {
        let mut watched = vec![PollFd::new(&self.socket, PollFlags::IN)];
        if !is_open {
            watched.clear();
        }
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
        let ready =
            places.into_iter().map(|(end, order)| (is_ready(end), is_ready(order))).collect();
        Ok((is_open && is_ready(Some(0)), ready))
    }

    /// Reaps the processes that have ended and whose end is settled.
    fn reap(&mut self) {
        for started in self.children.extract_if(.., |started| started.is_done()) {
            if started.status.is_none() {
                // The rest of its group ends with it.
                started.child.kill_group();
            }
            let _ = started.child.reap();
            if let Some(room) = started.room {
                // A guardian that was killed has left it.
                let _ = remove_dir_all(room);
            } else if let Some(reaper) = &mut self.reaper {
                reaper.forget(started.child.pid());
            }
        }
    }

    /// False when the gateway has gone.
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
        // The shell would kill a guardian before that has ended its program.
        if let Some(reaper) = self.reaper.as_mut().filter(|_| room.is_none()) {
            reaper.watch(child);
        }
        report(&status, &with(STARTED, &child.as_raw_pid().to_ne_bytes()));
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
        let mut descriptors = Descriptors::new(descriptors, &identity)?;
        if descriptors.fourth.is_some() {
            return Err(refusal("a guardian with four descriptors"));
        }
        let (room, listener) = self.rooms.furnish(room, &identity)?;
        if let Some(listener) = listener {
            descriptors.stdout = listener;
        }
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

    /// Returns the launch of a request, which has been checked, and its identity.
    fn launch_of(
        &self,
        request: &LaunchRequest,
        may_listen: bool,
    ) -> io::Result<(Launch, Identity)> {
        if self.children.len() >= MOST_CHILDREN {
            return Err(refusal("too many processes"));
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
                let report = with(GROUP, group.path().as_os_str().as_encoded_bytes());
                // Another one of this name is the same directory, which must not be removed.
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

/// The descriptors of a process that is started.
struct Descriptors {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    fourth: Option<OwnedFd>,
}

impl Descriptors {
    /// Takes three or four, and makes pipes among them the user's, so that the program can open
    /// /dev/stdout and /dev/stderr. Only a pipe that has no path: it is nobody's file.
    fn new(descriptors: Vec<OwnedFd>, identity: &Identity) -> io::Result<Descriptors> {
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
    /// Reports the end of a process, which stays a zombie until the gateway has it reaped: until
    /// then its number cannot be another's.
    fn report_end(&mut self) {
        let Ok(Some(status)) = self.child.ended() else { return };
        self.is_reported = true;
        if let Some(socket) = &self.status {
            report(socket, &with(ENDED, &status.into_raw().to_ne_bytes()));
        }
    }

    /// Takes an order.
    fn obey(&mut self) {
        let Some(status) = &self.status else { return };
        let mut order = [0; 2];
        match recv(status, &mut order[..], RecvFlags::DONTWAIT) {
            Ok((1, _)) if order[0] == KILL => self.child.kill_group(),
            Ok((1, _)) if order[0] == REAP && self.is_reported => self.may_be_reaped = true,
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.abandon(),
        }
    }

    fn is_done(&self) -> bool {
        self.is_reported && (self.may_be_reaped || self.status.is_none())
    }

    /// Nobody wants it any more.
    fn abandon(&mut self) {
        self.status = None;
        if self.room.is_none() {
            self.child.kill_group();
        } else if !self.is_reported {
            // A guardian ends its program first.
            let _ = kill_process(self.child.pid(), rustix::process::Signal::TERM);
        }
    }
}

fn refusal(what: &'static str) -> io::Error {
    io::Error::other(format!("the helper refuses to start {what}"))
}

fn failed(error: &io::Error) -> Vec<u8> {
    let number = error.raw_os_error().unwrap_or(0);
    let mut bytes = with(FAILED, &number.to_ne_bytes());
    if number == 0 {
        bytes.extend_from_slice(error.to_string().as_bytes());
    }
    bytes
}

fn with(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut report = vec![kind];
    report.extend_from_slice(bytes);
    report
}

/// A gateway that does not listen must not hold the others up.
fn report(status: &OwnedFd, bytes: &[u8]) {
    let _ = send(status, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
