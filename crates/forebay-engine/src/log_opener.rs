//! Opens the access log anew for a server that is no longer root, as nginx's master process does
//! for its workers.
//!
//! Before root is given up, a process of the same program is started that stays root. Of everything
//! that root may do it does one thing: for each byte on a socket it opens the file whose path it
//! was started with, for appending, and sends the descriptor. It finds the directory once, before
//! the server gives up root, and goes through no link later. A server that somebody has taken over
//! gets no more than that. The process ends when the socket closes, and by no signal before.
//!
//! It opens nothing that has a second name, as the directory, or one above it, may be the user's.
//! At the start a link of root's in place of the log is followed (logs on another disk); one of
//! anybody else's is refused, and so is a path that leads to another directory later. After an
//! answer that took longer than 10 s it is used no more: the late one would be taken for the next.
//! nginx gives the user the file and has workers open it by its path, which needs a directory that
//! they can enter.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{fstat, stat};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::log_file::{self, Owner};

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
    /// Starts it for the log at `path`, which will belong to this user and group, and waits until
    /// it has opened the directory.
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
        let opener = Self { process, socket: Some(socket), path: path.to_owned() };
        if let Some(socket) = &opener.socket {
            receive(socket)?.0?;
        }
        Ok(opener)
    }

    /// Whether it opens this file.
    pub fn is_for(&self, path: &Path) -> bool {
        self.path == path
    }

    /// The log, opened anew.
    pub fn open(&mut self) -> io::Result<File> {
        let Some(mut socket) = self.socket.as_ref() else {
            return Err(io::Error::other("what opens it did not answer before; restart Forebay"));
        };
        let answer = socket.write_all(b"o").and_then(|()| receive(socket));
        if answer.is_err() {
            // An answer that comes late would be taken for that to the next question. To drop the
            // socket is not enough: a program that is just being started holds a copy of it.
            let _ = socket.shutdown(Shutdown::Both);
            self.socket = None;
        }
        let (outcome, file) = answer?;
        outcome.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::STALE) => {
                io::Error::other("its directory is another than at the start; restart Forebay")
            }
            Some(Errno::PERM | Errno::LOOP) => io::Error::other(
                "a link, or no regular file, lies in its place, which root does not open; remove it",
            ),
            _ => error,
        })?;
        file.ok_or_else(|| io::Error::other("no log was sent"))
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        if self.socket.take().is_some() {
            let _ = self.process.wait();
        }
    }
}

/// The errno in four bytes, 0 for success, and the descriptor.
fn receive(socket: &UnixStream) -> io::Result<(io::Result<()>, Option<File>)> {
    let mut answer = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut pieces = [IoSliceMut::new(&mut answer)];
    let received = recvmsg(socket, &mut pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes != answer.len() {
        return Err(io::Error::other("the process that opens the log has ended"));
    }
    let outcome = match i32::from_ne_bytes(answer) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    };
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((outcome, descriptor.map(File::from)))
}

/// The process itself, with what follows [`VERB`]: user, group and path.
pub fn open_log(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // A control group or a terminal signals all its processes: this one ends with its server.
    let mut signals = SigSet::empty();
    let others = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1];
    others.into_iter().for_each(|signal| signals.add(signal));
    if signals.thread_block().is_err() {
        return ExitCode::FAILURE;
    }
    let mut number = || arguments.next()?.to_str()?.parse::<u32>().ok();
    let (Some(user), Some(group)) = (number(), number()) else { return ExitCode::FAILURE };
    let owner = (user, group);
    let Some(path) = arguments.next().map(PathBuf::from) else { return ExitCode::FAILURE };
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let mut socket = UnixStream::from(socket);
    let log = match Log::find(&path, owner) {
        Ok(log) => log,
        Err(error) => {
            let _ = send(&socket, Err(error));
            return ExitCode::FAILURE;
        }
    };
    if send(&socket, Ok(None)).is_err() {
        return ExitCode::FAILURE;
    }
    let mut request = [0];
    while matches!(socket.read(&mut request), Ok(1)) {
        if send(&socket, log.check_dir().and_then(|()| log.open()).map(Some)).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// The log, in the directory that its path led to at the start. Directories above may be the
/// user's, who could put a link in their place: to follow it would open, or make, any file of the
/// system.
struct Log {
    path: PathBuf,
    dir: OwnedFd,
    owner: Owner,
}

impl Log {
    fn find(path: &Path, owner: Owner) -> io::Result<Self> {
        let path = log_file::resolve(path)?;
        let dir = log_file::open_dir(&path)?;
        Ok(Self { path, dir, owner })
    }

    /// Opens the log, or makes one for the user. The directory itself may be the user's, too: a
    /// link in place of the log, and a second name of another file, are refused.
    fn open(&self) -> io::Result<File> {
        let name = self.path.file_name().ok_or(Errno::ISDIR)?;
        log_file::open_at(&self.dir, name.as_ref(), Some(self.owner)).map_err(|error| {
            // A refusal goes over the socket as a number.
            let is_refused = error.raw_os_error().is_none();
            if is_refused { Errno::PERM.into() } else { error }
        })
    }

    /// Where the path leads elsewhere by now, lines would go on in a directory that nobody looks
    /// at. What is opened does not depend on it.
    fn check_dir(&self) -> io::Result<()> {
        let parent = self.path.parent().ok_or(Errno::ISDIR)?;
        let (now, then) = (stat(parent)?, fstat(&self.dir)?);
        let is_same = (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino);
        if is_same { Ok(()) } else { Err(Errno::STALE.into()) }
    }
}

fn send(socket: &UnixStream, opened: io::Result<Option<File>>) -> io::Result<()> {
    let error = match &opened {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = opened.as_ref().ok().and_then(|file| Some([file.as_ref()?.as_fd()]));
    if let Some(descriptors) = &descriptors {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let answer = error.to_ne_bytes();
    sendmsg(socket, &[IoSlice::new(&answer)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn an_answer_that_comes_late_is_not_that_to_the_next_question() {
        let (socket, mut theirs) = UnixStream::pair().unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let process = Command::new("true").spawn().unwrap();
        let mut opener = Opener { process, socket: Some(socket), path: PathBuf::new() };
        assert!(opener.open().is_err(), "no answer");
        assert_eq!(theirs.read(&mut [0]).unwrap(), 1);
        let old = File::open("/dev/null").unwrap();
        assert!(send(&theirs, Ok(Some(old))).is_err(), "nobody takes the late answer");
        let error = opener.open().unwrap_err().to_string();
        assert!(error.contains("restart Forebay"), "{error}");
        opener.process.wait().unwrap();
    }

    #[test]
    fn the_directory_is_that_of_the_start_whatever_its_path_leads_to() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        std::fs::create_dir(at("logs")).unwrap();
        std::fs::create_dir(at("vault")).unwrap();
        let own = std::fs::metadata(tmp.path()).unwrap();
        let log = Log::find(&at("logs/access.log"), (own.uid(), own.gid())).unwrap();
        log.check_dir().unwrap();
        std::fs::rename(at("logs"), at("moved")).unwrap();
        std::os::unix::fs::symlink(at("vault"), at("logs")).unwrap();
        let refused = log.check_dir().unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::STALE));
        // Swapped behind that check: made, then opened again.
        for _ in 0..2 {
            log.open().unwrap().write_all(b"x").unwrap();
        }
        assert_eq!(std::fs::read(at("moved/access.log")).unwrap(), b"xx");
        assert!(!at("vault/access.log").exists());
    }

    #[test]
    fn an_error_leaves_the_next_question_open() {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let process = Command::new("true").spawn().unwrap();
        let mut opener = Opener { process, socket: Some(socket), path: PathBuf::new() };
        send(&theirs, Err(Errno::NOSPC.into())).unwrap();
        send(&theirs, Ok(Some(File::open("/dev/null").unwrap()))).unwrap();
        assert_eq!(Errno::from_io_error(&opener.open().unwrap_err()), Some(Errno::NOSPC));
        assert!(opener.open().is_ok());
    }
}
