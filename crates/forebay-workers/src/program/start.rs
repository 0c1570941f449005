//! Starts one process of a program: creates its private directory, and starts its guardian.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown, fchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{self, Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use forebay_process::{
    Child, HelpedChild, HelpedLaunch, HelpedRoom, Helper, Identity, Launch, found_descriptors,
    myself,
};
use rustix::fs::{Mode, OFlags, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tempfile::TempDir;

use super::{Listening, ProcessAddress, ProgramSpec};

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

// The directory of a program's socket.

/// Creates a directory for the socket of a process. Only the user of the process can enter this
/// directory. Chooses a short path, because the kernel limits the length of a socket's path.
fn make_room(identity: Option<&Identity>) -> io::Result<TempDir> {
    // Processes of another user cannot enter XDG_RUNTIME_DIR.
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| identity.is_none()).map(PathBuf::from);
    let places = [Some(PathBuf::from("/run")), own, Some(std::env::temp_dir())];
    let mut last = None;
    for place in places.into_iter().flatten() {
        let mut builder = tempfile::Builder::new();
        builder.prefix("forebay-").permissions(Permissions::from_mode(0o700));
        match builder.tempdir_in(&place) {
            Ok(room) => {
                give(room.path(), identity)?;
                return Ok(room);
            }
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| io::ErrorKind::NotFound.into());
    Err(io::Error::new(error.kind(), format!("cannot make a directory for its socket: {error}")))
}

/// Gives a file or directory to the user of a process.
pub(super) fn give(path: &Path, identity: Option<&Identity>) -> io::Result<()> {
    match identity {
        Some(identity) => chown(path, identity.user.as_ref().map(|user| user.0), identity.group),
        None => Ok(()),
    }
}

// Listening sockets that Forebay opens for programs (`listen = "inherit"`, `"inherit-port"` and
// `"stdin"`).
//
// Forebay keeps such a socket open itself. FastCGI programs often end after some number of
// requests. A client that connects just then waits in the socket's queue, and the next process gets
// the same socket, so no request is lost. After a crash, the socket is closed, because those who
// wait must not wait for a program that may never start again.
//
// A Unix socket has no name in the file system, so nothing is left of it however Forebay ends, and
// nobody else can connect. Forebay connects to the inode, through /proc.

/// A listening socket for one process after another.
#[derive(Debug)]
pub(super) struct Seat {
    /// Where Forebay connects.
    pub(super) address: ProcessAddress,
    /// The address that the program is told: that of `getsockname`.
    pub(super) told: ProcessAddress,
    listener: OwnedFd,
    /// The descriptor that `address` names. Whoever may still connect has to hold it, because
    /// another socket may get the number of a descriptor that is closed.
    pub(super) inode: Option<Arc<OwnedFd>>,
}

impl Seat {
    /// Opens a socket, unless the program opens its own.
    pub(super) fn open(listen: Listening) -> io::Result<Option<Seat>> {
        match listen {
            Listening::Socket | Listening::Port => Ok(None),
            Listening::Inherit | Listening::Stdin => Seat::unix().map(Some),
            Listening::InheritPort => {
                let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
                let address = ProcessAddress::Tcp(listener.local_addr()?);
                let told = address.clone();
                Ok(Some(Seat { address, told, listener: listener.into(), inode: None }))
            }
        }
    }

    fn unix() -> io::Result<Seat> {
        let room = make_room(None)?;
        let path = room.path().join("socket");
        let listener = UnixListener::bind(&path)?;
        let inode = open(&path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let address = PathBuf::from(format!("/proc/self/fd/{}", inode.as_raw_fd()));
        Ok(Seat {
            address: ProcessAddress::Unix(address),
            told: ProcessAddress::Unix(path),
            listener: listener.into(),
            inode: Some(Arc::new(inode)),
        })
    }

    fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_socket_without_a_name_is_reached_and_leaves_nothing() {
        let seat = Seat::open(Listening::Stdin).unwrap().unwrap();
        let (ProcessAddress::Unix(address), ProcessAddress::Unix(told)) =
            (&seat.address, &seat.told)
        else {
            panic!("{seat:?}")
        };
        assert!(!told.exists() && !told.parent().unwrap().exists());
        UnixStream::connect(address).unwrap();
        let listener = UnixListener::from(seat.listener().try_clone_to_owned().unwrap());
        listener.accept().unwrap();
    }
}
