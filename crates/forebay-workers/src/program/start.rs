//! Starts one process of a program: creates its private directory, and starts its guardian.

use super::room::{give, make_room};
use super::seat::Seat;
use super::{Listening, ProcessAddress, ProgramSpec};
use forebay_process::{
    Child, HelpedChild, HelpedLaunch, HelpedRoom, Helper, Identity, Launch, found_descriptors,
    myself,
};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::fchown;
use std::os::unix::net::UnixStream;
use std::path::{self, Path};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Variables of the gateway's environment that programs inherit.
const INHERITED: [&str; 13] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PERL5LIB",
    "PYTHONPATH",
    "NODE_PATH",
];
/// Maximum length of a Unix socket's path in bytes, without the NUL at its end.
const LONGEST_PATH: usize = 107;

pub(super) struct Started {
    pub(super) guardian: Child,
    /// Readable after the guardian has ended.
    pub(super) at_end: OwnedFd,
    /// Non-blocking socket for orders to the guardian and for its reports.
    pub(super) link: UnixStream,
    /// Output of the program. Non-blocking.
    pub(super) log: OwnedFd,
    /// Where Forebay connects.
    pub(super) place: ProcessAddress,
    /// The private directory of the process. `None` if the helper created the directory and will
    /// remove it.
    pub(super) room: Option<TempDir>,
}

/// Descriptors of a guardian.
struct Descriptors {
    link: UnixStream,
    /// The socket that the program inherits, if any.
    listener: Option<OwnedFd>,
    log: OwnedFd,
}

/// Starts a process, which inherits the socket of `seat`. If `cgroup` is given, the process is in
/// this control group.
pub(super) fn start(
    spec: &ProgramSpec,
    identity: Option<&Identity>,
    cgroup: Option<&Path>,
    seat: Option<&Seat>,
) -> io::Result<Started> {
    let told = |room: &Path| match seat {
        Some(seat) => Ok(seat.told.clone()),
        None => own_address(spec.listen, room),
    };
    let listener = seat.map(|seat| seat.listener().try_clone_to_owned()).transpose()?;
    let host =
        spec.host.as_ref().map(super::super::compiled_host::CompiledHost::provide).transpose()?;
    let host = host.as_deref();
    let (link, its_link) = UnixStream::pair()?;
    link.set_nonblocking(true)?;
    let (log, its_log) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&log, true)?;
    let (guardian, at_end, place, room) = match identity.and_then(Identity::helper) {
        None => {
            let room = make_room(identity)?;
            let place = told(room.path())?;
            let words = Words { spec, room: room.path(), place: &place, host };
            for (name, text) in &spec.files {
                let file = room.path().join(name);
                std::fs::write(&file, words.fill_in(text))?;
                give(&file, identity)?;
            }
            if let Some(identity) = identity {
                // Make the program's user the owner of the pipe. Otherwise the program could not
                // open /dev/stderr, as many programs do.
                fchown(&its_log, identity.user.as_ref().map(|user| user.0), identity.group)?;
            }
            let descriptors = Descriptors { link: its_link, listener, log: its_log };
            let launch = launch(&words, identity, cgroup);
            let (guardian, at_end) = start_here(&launch, &words, identity, descriptors)?;
            (guardian, at_end, place, Some(room))
        }
        Some(helper) => {
            let room = helper.new_room();
            let place = told(room.path())?;
            let words = Words { spec, room: room.path(), place: &place, host };
            let descriptors = Descriptors { link: its_link, listener, log: its_log };
            let launch = launch(&words, identity, cgroup);
            let child = start_by((helper, &room), &launch, &words, identity, &descriptors)?;
            let at_end = child.readable_at_end()?;
            (Child::Helped(child), at_end, place, None)
        }
    };
    let place = seat.map_or(place, |seat| seat.address.clone());
    Ok(Started { guardian, at_end, link, log, place, room })
}

/// Returns the description of the process, which the guardian starts.
fn launch(words: &Words<'_>, identity: Option<&Identity>, cgroup: Option<&Path>) -> Launch {
    let spec = words.spec;
    let mut launch = Launch {
        limits: spec.limits,
        files: found_descriptors(),
        cgroup: cgroup.map(Path::to_owned),
        stdin: spec.listen == Listening::Stdin,
        argv: spec.run.iter().map(|text| words.fill_in(text).into()).collect(),
        ..Launch::default()
    };
    launch.as_user(identity);
    if matches!(spec.listen, Listening::Inherit | Listening::InheritPort) {
        launch.inherit = Some(words.name_of_place());
    }
    launch
}

/// Returns the environment variables of the program. If two variables have the same name, the later
/// one replaces the earlier one.
fn environment(words: &Words<'_>, identity: Option<&Identity>) -> BTreeMap<OsString, OsString> {
    let inherited =
        INHERITED.iter().filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
    let of_user = identity.into_iter().flat_map(|identity| identity.env.iter());
    let of_user = of_user.map(|(name, value)| (name.into(), value.clone()));
    let own = words.spec.env.iter();
    let own = own.map(|(name, value)| (name.into(), words.fill_in(value).into()));
    inherited.chain(of_user).chain(own).collect()
}

fn start_here(
    launch: &Launch,
    words: &Words<'_>,
    identity: Option<&Identity>,
    descriptors: Descriptors,
) -> io::Result<(Child, OwnedFd)> {
    let Descriptors { link, listener, log } = descriptors;
    let mut guardian = Command::new(myself())
        .arg("__guardian")
        .arg(words.room)
        .args(launch.arguments())
        .stdin(Stdio::from(OwnedFd::from(link)))
        .stdout(listener.map_or_else(Stdio::null, Stdio::from))
        .stderr(Stdio::from(log))
        .env_clear()
        .envs(environment(words, identity))
        .current_dir(&words.spec.dir)
        .spawn()?;
    let pid = Pid::from_child(&guardian);
    // Forebay raised the limit on open files for itself. The guardian has inherited this limit,
    // and gets the original one back.
    forebay_process::give_back_descriptors(pid);
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok((Child::Own(pid), pidfd)),
        Err(error) => {
            guardian.kill()?;
            guardian.wait()?;
            Err(error.into())
        }
    }
}

/// Asks the helper (a root process) to start the program's guardian in the directory `room`.
fn start_by(
    (helper, room): (&Helper, &HelpedRoom),
    launch: &Launch,
    words: &Words<'_>,
    identity: Option<&Identity>,
    descriptors: &Descriptors,
) -> io::Result<HelpedChild> {
    let Descriptors { link, listener, log } = descriptors;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let stdout = listener.as_ref().map_or(null.as_fd(), AsFd::as_fd);
    let spec = words.spec;
    let request = HelpedLaunch {
        launch,
        dir: &path::absolute(&spec.dir)?,
        env: environment(words, identity).into_iter().collect(),
        descriptors: &[link.as_fd(), stdout, log.as_fd()],
    };
    let files = spec.files.iter().map(|(name, text)| (name.clone(), words.fill_in(text)));
    helper.launch_program(&request, room, files.collect())?.child()
}

/// The address of a process that opens its socket itself.
fn own_address(listen: Listening, room: &Path) -> io::Result<ProcessAddress> {
    if listen == Listening::Port {
        // The port was free a moment ago. If another process takes the port meanwhile, the program
        // ends, and the next start uses a new port.
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        return Ok(ProcessAddress::Tcp(TcpListener::bind(any_port)?.local_addr()?));
    }
    let socket = room.join("socket");
    if socket.as_os_str().len() > LONGEST_PATH {
        return Err(io::Error::other(format!(
            "the path {} is too long for a socket; set TMPDIR to a shorter one",
            socket.display()
        )));
    }
    Ok(ProcessAddress::Unix(socket))
}

/// The values of `{dir}` and the other placeholders.
struct Words<'a> {
    spec: &'a ProgramSpec,
    room: &'a Path,
    place: &'a ProcessAddress,
    host: Option<&'a Path>,
}

impl Words<'_> {
    fn fill_in(&self, text: &str) -> String {
        let (socket, port) = match self.place {
            ProcessAddress::Unix(path) => (path.to_string_lossy().into_owned(), String::new()),
            ProcessAddress::Tcp(address) => (String::new(), address.port().to_string()),
        };
        let text = match self.host {
            Some(host) => text.replace("{host}", &host.to_string_lossy()),
            None => text.to_owned(),
        };
        text.replace("{dir}", &self.spec.dir.to_string_lossy())
            .replace("{room}", &self.room.to_string_lossy())
            .replace("{socket}", &socket)
            .replace("{port}", &port)
    }

    /// Returns the address as text in the format of Server::Starter.
    fn name_of_place(&self) -> OsString {
        match self.place {
            ProcessAddress::Unix(path) => path.into(),
            ProcessAddress::Tcp(address) => address.to_string().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_room_is_private_and_goes_away() {
        let room = make_room(None).unwrap();
        let mode = std::fs::metadata(room.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let path = room.path().to_owned();
        drop(room);
        assert!(!path.exists());
    }

    #[test]
    fn words_are_filled_in_and_other_braces_stay() {
        let spec = ProgramSpec::new("a", Vec::new(), Listening::Port);
        let place = ProcessAddress::Tcp(([127, 0, 0, 1], 81).into());
        let words = Words { spec: &spec, room: Path::new("/r"), place: &place, host: None };
        assert_eq!(words.fill_in("{dir}{room}:{port} {x} {"), "//r:81 {x} {");
        assert_eq!(words.name_of_place(), "127.0.0.1:81");
    }
}
