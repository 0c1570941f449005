//! Opens the access log anew for a server that is no longer root, as nginx's master process does for
//! its workers.
//!
//! Before root is given up, a process of the same program is started that stays root. Of everything
//! that root may do it does one thing: asked over a socket, it opens the file whose path it was
//! started with, for appending, and sends the descriptor. A server that somebody has taken over gets
//! no more than that. The process ends when the socket closes.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The first argument of the process.
pub const VERB: &str = "__open-log";
/// How long the server waits for a file: its disk may be slow.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process, as the server sees it.
#[derive(Debug)]
pub struct Opener {
    process: Child,
    socket: Option<UnixStream>,
    path: PathBuf,
}

impl Opener {
    /// Starts it for the log at `path`, which will belong to this user and group.
    pub fn start(path: &Path, user: u32, group: u32) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let process = Command::new("/proc/self/exe")
            .arg(VERB)
            .args([user.to_string(), group.to_string()])
            .arg(path)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self { process, socket: Some(socket), path: path.to_owned() })
    }

    /// Whether it opens this file.
    pub fn is_for(&self, path: &Path) -> bool {
        self.path == path
    }

    /// The log, opened anew.
    pub fn open(&self) -> io::Result<File> {
        let mut socket = self.socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        socket.write_all(b"o")?;
        receive(socket)
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        drop(self.socket.take());
        let _ = self.process.wait();
    }
}

/// The errno in four bytes, 0 with a descriptor.
fn receive(socket: &UnixStream) -> io::Result<File> {
    let mut answer = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut answer)];
    let received = recvmsg(socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != answer.len() {
        return Err(io::Error::other("the process that opens the log has ended"));
    }
    match i32::from_ne_bytes(answer) {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.map(File::from).ok_or_else(|| io::Error::other("no log was sent"))
}

/// The process itself, with what follows [`VERB`]: user, group and path.
pub fn open_log(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut number = || arguments.next()?.to_str()?.parse::<u32>().ok();
    let (Some(user), Some(group)) = (number(), number()) else { return ExitCode::FAILURE };
    let Some(path) = arguments.next().map(PathBuf::from) else { return ExitCode::FAILURE };
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let mut socket = UnixStream::from(socket);
    let mut asked = [0];
    while matches!(socket.read(&mut asked), Ok(1)) {
        if send(&socket, open(&path, user, group)).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// Opens the log, or makes one for the user. The directory may be the user's, who could have put a
/// link there: to follow it would give away any file of the system.
fn open(path: &Path, user: u32, group: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let made = options.clone().create_new(true).open(path);
    match made {
        Ok(file) => {
            fchown(&file, Some(user), Some(group))?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = options.open(path)?;
            let metadata = file.metadata()?;
            let is_plain = metadata.is_file() && metadata.nlink() == 1;
            if is_plain { Ok(file) } else { Err(Errno::PERM.into()) }
        }
        Err(error) => Err(error),
    }
}

fn send(socket: &UnixStream, opened: io::Result<File>) -> io::Result<()> {
    let error = match &opened {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = opened.as_ref().ok().map(|file| [file.as_fd()]);
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let answer = error.to_ne_bytes();
    sendmsg(socket, &[IoSlice::new(&answer)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}
