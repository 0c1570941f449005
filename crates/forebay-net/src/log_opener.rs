//! Reopens access logs for a server that has given up root.
//!
//! The process stays root, and only opens logs, whose paths are fixed at start. Each byte on its
//! socket is the index of a log file: the process opens the file for appending, and sends back the
//! descriptor. An attacker who controls the server can therefore obtain only these files. The
//! process ends when the socket closes.
//!
//! The log's directory may belong to the unprivileged user. The process therefore opens each
//! directory once, before the server gives up root. Later it follows no link, and refuses files
//! with a second hard link. If an answer takes longer than 10 s, the server stops using the
//! process, because it would take a late answer for the next one.
//!
//! In nginx, the workers open logs by path, so they need access to the directory.

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

/// First command-line argument of the process. The process runs the same program as the server.
pub const VERB: &str = "__open-log";
/// Maximum time that the server waits for an answer of the process.
// The disk may be slow.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server's handle to the process.
#[derive(Debug)]
pub struct Opener {
    process: Child,
    socket: Option<UnixStream>,
    paths: Vec<PathBuf>,
}

impl Opener {
    /// Starts the process for the logs at `paths` (at most 256). Log files that it creates belong
    /// to `user` and `group`. Waits until the process has opened their directories.
    pub fn start(paths: &[&Path], user: u32, group: u32) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let process = Command::new("/proc/self/exe")
            .arg(VERB)
            .args([user.to_string(), group.to_string()])
            .args(paths)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let paths = paths.iter().take(256).map(|path| path.to_path_buf()).collect();
        let opener = Self { process, socket: Some(socket), paths };
        if let Some(socket) = &opener.socket {
            receive(socket)?.0?;
        }
        Ok(opener)
    }

    /// Returns true if the process opens the log at `path`.
    pub fn is_for(&self, path: &Path) -> bool {
        self.paths.iter().any(|own| own == path)
    }

    /// Lets the process open the log at `path` again. Returns the opened file.
    pub fn open(&mut self, path: &Path) -> io::Result<File> {
        let number = self.paths.iter().position(|own| own == path);
        let Some(number) = number.and_then(|number| u8::try_from(number).ok()) else {
            return Err(io::Error::other("the process that opens logs does not know this one"));
        };
        let Some(mut socket) = self.socket.as_ref() else {
            return Err(io::Error::other(
                "the process that opens the log did not answer in time; restart Forebay",
            ));
        };
        let answer = socket.write_all(&[number]).and_then(|()| receive(socket));
        if answer.is_err() {
            // Otherwise, a late answer would be taken for the answer to the next request. Dropping
            // the socket is not enough, because a program that starts at this moment holds a copy
            // of it.
            let _ = socket.shutdown(Shutdown::Both);
            self.socket = None;
        }
        let (outcome, file) = answer?;
        outcome.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::STALE) => io::Error::other(
                "its path leads to another directory than at start; restart Forebay",
            ),
            Some(Errno::PERM | Errno::LOOP) => io::Error::other(
                "it is a link or no regular file, which root does not open; remove it",
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

/// Receives an answer: the errno (four bytes, 0 for success) and the descriptor of a log, if any.
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

/// Runs the process. The arguments after [`VERB`] are user, group and paths.
pub fn open_log(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    // A control group or a terminal signals all its processes. Block the signals, because this
    // process must outlive its server.
    let mut signals = SigSet::empty();
    let others =
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];
    others.into_iter().for_each(|signal| signals.add(signal));
    if signals.thread_block().is_err() {
        return ExitCode::FAILURE;
    }
    let mut number = || arguments.next()?.to_str()?.parse::<u32>().ok();
    let (Some(user), Some(group)) = (number(), number()) else { return ExitCode::FAILURE };
    let owner = (user, group);
    let paths: Vec<_> = arguments.map(PathBuf::from).collect();
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let mut socket = UnixStream::from(socket);
    let found: io::Result<Vec<_>> = paths.iter().map(|path| Log::find(path, owner)).collect();
    let logs = match found {
        Ok(logs) => logs,
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
        let Some(log) = logs.get(usize::from(request[0])) else { break };
        if send(&socket, log.check_dir().and_then(|()| log.open()).map(Some)).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// The log file, and the directory that its path led to at start.
///
/// The unprivileged user may own a parent directory and replace it by a link. Because the directory
/// is fixed, the process never opens or creates other files of the system.
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

    /// Opens the log, or creates it for the user.
    fn open(&self) -> io::Result<File> {
        let name = self.path.file_name().ok_or(Errno::ISDIR)?;
        // The user may own the directory itself. Therefore `open_at` refuses links and second hard
        // links.
        log_file::open_at(&self.dir, name.as_ref(), Some(self.owner)).map_err(|error| {
            // The socket transports only error numbers, so send a refusal as EPERM.
            let is_refused = error.raw_os_error().is_none();
            if is_refused { Errno::PERM.into() } else { error }
        })
    }

    /// Returns an error if the path now leads to another directory.
    fn check_dir(&self) -> io::Result<()> {
        // Without this check, lines could go to a directory that the administrator no longer reads.
        // Security does not depend on the check, because `open` uses the directory opened at start.
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
        let mut opener =
            Opener { process, socket: Some(socket), paths: vec![PathBuf::from("log")] };
        assert!(opener.open(Path::new("log")).is_err(), "no answer");
        assert_eq!(theirs.read(&mut [0]).unwrap(), 1);
        let old = File::open("/dev/null").unwrap();
        assert!(send(&theirs, Ok(Some(old))).is_err(), "nobody takes the late answer");
        let error = opener.open(Path::new("log")).unwrap_err().to_string();
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
        // The directory was replaced after the check. Create the file, then open it again.
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
        let mut opener =
            Opener { process, socket: Some(socket), paths: vec![PathBuf::from("log")] };
        send(&theirs, Err(Errno::NOSPC.into())).unwrap();
        send(&theirs, Ok(Some(File::open("/dev/null").unwrap()))).unwrap();
        assert_eq!(
            Errno::from_io_error(&opener.open(Path::new("log")).unwrap_err()),
            Some(Errno::NOSPC)
        );
        assert!(opener.open(Path::new("log")).is_ok());
    }
}
