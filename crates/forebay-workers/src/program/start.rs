//! Starts one process of a program: its private directory, its socket, its guardian.

use super::{Listening, Place, ProgramSpec};
use forebay_process::Identity;
use forebay_process::found_descriptors;
use forebay_process::{Launch, myself};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::fs::Permissions;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown, fchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// What of the gateway's environment programs inherit.
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
/// The most bytes of a Unix socket's path, without the zero byte at its end.
const LONGEST_PATH: usize = 107;

/// A process that has been started.
pub(super) struct Started {
    pub(super) guardian: Child,
    /// Readable when the guardian has ended.
    pub(super) pidfd: OwnedFd,
    /// Orders go in, reports come out. Non-blocking.
    pub(super) link: UnixStream,
    /// What the program writes. Non-blocking.
    pub(super) log: OwnedFd,
    pub(super) place: Place,
    /// Its private directory.
    pub(super) room: TempDir,
}

/// Starts a process. `cgroup` is entered if given.
pub(super) fn start(
    spec: &ProgramSpec,
    identity: Option<&Identity>,
    cgroup: Option<&Path>,
) -> io::Result<Started> {
    let room = make_room(identity)?;
    let (place, listener) = place(spec.listen, room.path())?;
    let host = spec.host.as_ref().map(|host| host.provide()).transpose()?;
    let words = Words { spec, room: room.path(), place: &place, host: host.as_deref() };
    for (name, text) in &spec.files {
        let file = room.path().join(name);
        std::fs::write(&file, words.fill_in(text))?;
        give(&file, identity)?;
    }
    let (link, its_link) = UnixStream::pair()?;
    link.set_nonblocking(true)?;
    let (log, its_log) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&log, true)?;
    if let Some(identity) = identity {
        // So that the program can open /dev/stderr, as many do.
        fchown(&its_log, identity.user.as_ref().map(|user| user.0), identity.group)?;
    }
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
    let mut guardian = Command::new(myself())
        .arg("__guardian")
        .arg(room.path())
        .args(launch.arguments())
        .stdin(Stdio::from(OwnedFd::from(its_link)))
        .stdout(listener.map_or_else(Stdio::null, Stdio::from))
        .stderr(Stdio::from(its_log))
        .env_clear()
        .envs(INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .envs(identity.into_iter().flat_map(|identity| identity.env.iter().cloned()))
        .envs(spec.env.iter().map(|(name, value)| (name, words.fill_in(value))))
        .current_dir(&spec.dir)
        .spawn()?;
    // The guardian takes some time to start the program, which then begins with this limit.
    forebay_process::give_back_descriptors(Pid::from_child(&guardian));
    let pidfd = match pidfd_open(Pid::from_child(&guardian), PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            guardian.kill()?;
            guardian.wait()?;
            return Err(error.into());
        }
    };
    Ok(Started { guardian, pidfd, link, log, place, room })
}

/// A directory that nobody else can enter, where sockets may be: its path has to be short.
fn make_room(identity: Option<&Identity>) -> io::Result<TempDir> {
    // That of a user cannot be entered by another one.
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

fn give(path: &Path, identity: Option<&Identity>) -> io::Result<()> {
    match identity {
        Some(identity) => chown(path, identity.user.as_ref().map(|user| user.0), identity.group),
        None => Ok(()),
    }
}

/// Where the process will listen, and the socket that it is to be given.
fn place(listen: Listening, room: &Path) -> io::Result<(Place, Option<OwnedFd>)> {
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let socket = room.join("socket");
    if socket.as_os_str().len() > LONGEST_PATH {
        return Err(io::Error::other(format!(
            "the path {} is too long for a socket; set TMPDIR to a shorter one",
            socket.display()
        )));
    }
    Ok(match listen {
        Listening::Socket => (Place::Unix(socket), None),
        Listening::Port => {
            // Free a moment ago. If somebody else takes it the program ends, and gets another.
            (Place::Tcp(TcpListener::bind(any_port)?.local_addr()?), None)
        }
        Listening::Inherit | Listening::Stdin => {
            let listener = UnixListener::bind(&socket)?;
            (Place::Unix(socket), Some(listener.into()))
        }
        Listening::InheritPort => {
            let listener = TcpListener::bind(any_port)?;
            (Place::Tcp(listener.local_addr()?), Some(listener.into()))
        }
    })
}

/// What stands for `{dir}` and the like.
struct Words<'a> {
    spec: &'a ProgramSpec,
    room: &'a Path,
    place: &'a Place,
    host: Option<&'a Path>,
}

impl Words<'_> {
    fn fill_in(&self, text: &str) -> String {
        let (socket, port) = match self.place {
            Place::Unix(path) => (path.to_string_lossy().into_owned(), String::new()),
            Place::Tcp(address) => (String::new(), address.port().to_string()),
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

    /// What the convention of Server::Starter calls it.
    fn name_of_place(&self) -> OsString {
        match self.place {
            Place::Unix(path) => path.into(),
            Place::Tcp(address) => address.to_string().into(),
        }
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
        let place = Place::Tcp(([127, 0, 0, 1], 81).into());
        let words = Words { spec: &spec, room: Path::new("/r"), place: &place, host: None };
        assert_eq!(words.fill_in("{dir}{room}:{port} {x} {"), "//r:81 {x} {");
        assert_eq!(words.name_of_place(), "127.0.0.1:81");
    }
}
