//! Reopens access logs for a server that has given up root.
//!
//! The process stays root, and only opens and rotates logs, whose paths and rules are fixed at
//! start. A request is two bytes: an operation, and the index of a log. The process sends back a
//! descriptor that is open for appending, or the two files of a compression. An attacker who
//! controls the server can therefore obtain only these files. The process ends when the socket
//! closes.
//!
//! The log's directory may belong to the unprivileged user. The process therefore opens each
//! directory once, before the server gives up root. Later it follows no link, and refuses files
//! with a second hard link. If an answer takes longer than 10 s, the server stops using the
//! process. Otherwise the server would mistake a late answer for the answer to its next request.
//!
//! In nginx, the workers open logs by path, so they need access to the directory.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use forebay_conf::Rotation;
use forebay_process::{Connection, Keeps, RootCommand, RootProcess};
use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{fstat, stat};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::log_file::{self, Owner};
use crate::log_rotation::{Compression, RotatedLog};

/// First command-line argument of the process. The process runs the same program as the server.
pub const VERB: &str = "__open-log";
/// Maximum time that the server waits for an answer of the process.
// The disk may be slow.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server's handle to the process that opens and rotates logs.
#[derive(Debug)]
pub struct Opener {
    process: RootProcess,
    paths: Vec<PathBuf>,
}

/// The outcome of a request, and the descriptors of the answer.
type Answer = (io::Result<()>, Vec<File>);

/// Operations of the process.
const HELLO: u8 = b'h';
const OPEN: u8 = b'o';
const ROTATE: u8 = b'r';
const COMPRESS: u8 = b'c';
const COMPRESSED: u8 = b'd';
const NOT_COMPRESSED: u8 = b'n';

/// Assumed length in bytes of the server's next write.
// The server requests a rotation before a write, but does not send the length of this write.
const NEXT_WRITE: u64 = 5 << 20;

impl Opener {
    /// Starts the process for these logs (at most 256), with their rotations. Log files that it
    /// creates belong to `user` and `group`. Waits until the process has opened their directories.
    pub fn start(logs: &[(PathBuf, Option<Rotation>)], user: u32, group: u32) -> io::Result<Self> {
        let logs = &logs[..logs.len().min(256)];
        let mut arguments: Vec<_> = [user, group].map(|id| OsString::from(id.to_string())).into();
        for (path, rule) in logs {
            // A process that replaces this one must use the same directory, even if the user has
            // replaced it by a link meanwhile.
            let dir = log_file::open_dir(&log_file::resolve(path)?)?;
            arguments.extend([rule_text(*rule).into(), dir_text(&dir)?.into(), path.into()]);
        }
        let process = RootProcess::start(&RootCommand {
            verb: VERB,
            arguments,
            purpose: "opening and rotating access logs",
            connection: Connection::Stream,
            keeps: Keeps::Nothing,
            has_stderr: false,
        })?;
        let paths = logs.iter().map(|(path, _)| path.clone()).collect();
        let mut opener = Self { process, paths };
        for number in (0..=u8::MAX).take(logs.len()) {
            opener.ask_process(&[HELLO, number])?.0?;
        }
        Ok(opener)
    }

    /// Returns true if the process opens the log at `path`.
    pub fn is_for(&self, path: &Path) -> bool {
        self.paths.iter().any(|own| own == path)
    }

    /// Lets the process open the log at `path` again. Returns the opened file.
    pub fn open(&mut self, path: &Path) -> io::Result<File> {
        let mut files = self.ask(OPEN, path)?;
        files.pop().ok_or_else(|| io::Error::other("no log was sent"))
    }

    /// Lets the process rotate the log at `path` by its rule. Returns the current file.
    pub fn rotate(&mut self, path: &Path) -> io::Result<File> {
        let mut files = self.ask(ROTATE, path)?;
        files.pop().ok_or_else(|| io::Error::other("no log was sent"))
    }

    /// Lets the process open an old file that is to be compressed. Returns `None` if there is no
    /// such file.
    pub fn begin_compression(&mut self, path: &Path) -> io::Result<Option<Compression>> {
        let mut files = self.ask(COMPRESS, path)?;
        let (to, from) = (files.pop(), files.pop());
        Ok(from.zip(to).map(|(from, to)| Compression { from, to }))
    }

    /// Lets the process replace the old file by its compressed copy, if the copy is complete.
    pub fn end_compression(&mut self, path: &Path, is_complete: bool) -> io::Result<()> {
        self.ask(if is_complete { COMPRESSED } else { NOT_COMPRESSED }, path).map(drop)
    }

    /// Sends a request to the process, and returns its answer.
    fn ask_process(&mut self, request: &[u8]) -> io::Result<Answer> {
        let answer = ask_over(&*self.process.socket()?, request);
        if answer.is_err() {
            // After an error, stop using the process: the server would mistake a late answer for
            // the answer to the next request. Another process replaces it.
            self.process.close();
        }
        answer
    }

    /// Sends a request. Returns the descriptors of the answer.
    fn ask(&mut self, operation: u8, path: &Path) -> io::Result<Vec<File>> {
        let number = self.paths.iter().position(|own| own == path);
        let Some(number) = number.and_then(|number| u8::try_from(number).ok()) else {
            return Err(io::Error::other("the process that opens logs does not know this one"));
        };
        let (outcome, files) = self.ask_process(&[operation, number])?;
        outcome.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::STALE) => io::Error::other(
                "its path leads to another directory than at start; restart Forebay",
            ),
            Some(Errno::PERM | Errno::LOOP) => io::Error::other(
                "it is a link or no regular file, which root does not open; remove it",
            ),
            _ => error,
        })?;
        Ok(files)
    }
}

/// Asks the process that has this socket, and waits for its answer.
fn ask_over(socket: &OwnedFd, request: &[u8]) -> io::Result<Answer> {
    let mut socket = UnixStream::from(socket.try_clone()?);
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.write_all(request)?;
    receive(&socket)
}

/// Returns the identity of a directory as an argument of the process.
fn dir_text(dir: &OwnedFd) -> io::Result<String> {
    let found = fstat(dir)?;
    Ok(format!("{}:{}", found.st_dev, found.st_ino))
}

/// Returns a rule of rotation as an argument of the process.
fn rule_text(rule: Option<Rotation>) -> String {
    let Some(Rotation { size, age, keep, compress }) = rule else { return "-".to_owned() };
    let (size, age) = (size.unwrap_or(0), age.map_or(0, |age| age.as_secs()));
    format!("{size},{age},{keep},{}", u8::from(compress))
}

/// Parses the argument of [`rule_text`]. Returns `None` for other text.
fn parse_rule(text: &str) -> Option<Rotation> {
    let mut numbers = text.split(',').map(|number| number.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    let (size, age, keep, compress) = (next()?, next()?, next()?, next()?);
    let some = |number: u64| Some(number).filter(|number| *number > 0);
    Some(Rotation {
        size: some(size),
        age: some(age).map(Duration::from_secs),
        keep: usize::try_from(keep).ok()?.max(1),
        compress: compress == 1,
    })
}

/// Receives an answer: the errno (four bytes, 0 for success) and up to two descriptors.
fn receive(socket: &UnixStream) -> io::Result<Answer> {
    let mut answer = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
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
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors.map(File::from));
        }
    }
    Ok((outcome, files))
}

/// Runs the process that opens and rotates logs. The arguments after [`VERB`] are the user, the
/// group, and then for each log its rotation rule and its path.
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
    let mut logs = Vec::new();
    while let (Some(rule), Some(dir), Some(path)) =
        (arguments.next(), arguments.next(), arguments.next())
    {
        logs.push((rule.to_str().and_then(parse_rule), dir, PathBuf::from(path)));
    }
    let Ok(socket) = io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    let mut socket = UnixStream::from(socket);
    let find = |(rule, dir, path): &(Option<Rotation>, OsString, PathBuf)| {
        let log = Log::find(path, *rule, owner)?;
        let is_same = OsStr::new(&dir_text(&log.dir)?) == dir;
        if is_same { Ok(log) } else { Err(io::Error::from(Errno::STALE)) }
    };
    let mut logs: Vec<io::Result<Log>> = logs.iter().map(find).collect();
    let mut request = [0; 2];
    while socket.read_exact(&mut request).is_ok() {
        let [operation, number] = request;
        let Some(log) = logs.get_mut(usize::from(number)) else { break };
        let answer = match log {
            Ok(_) if operation == HELLO => Ok(Vec::new()),
            Ok(log) => log.check_dir().and_then(|()| log.answer(operation)),
            Err(error) => Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0))),
        };
        if send(&socket, answer).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// The log file, and the directory that its path led to at start.
///
/// The unprivileged user may own a parent directory, and could replace it by a link to `/etc`. The
/// process therefore keeps the directory open, and never follows the path again.
struct Log {
    path: PathBuf,
    dir: OwnedFd,
    owner: Owner,
    rotated: Option<RotatedLog>,
}

impl Log {
    fn find(path: &Path, rule: Option<Rotation>, owner: Owner) -> io::Result<Self> {
        let path = log_file::resolve(path)?;
        let dir = log_file::open_dir(&path)?;
        let name = path.file_name().ok_or(Errno::ISDIR)?;
        let rotated = match rule {
            Some(rule) => Some(RotatedLog::new(dir.try_clone()?, name, Some(owner), rule)),
            None => None,
        };
        Ok(Self { dir, owner, rotated, path })
    }

    /// Performs an operation. Returns the descriptors to send back.
    fn answer(&mut self, operation: u8) -> io::Result<Vec<File>> {
        let files = match (operation, &mut self.rotated) {
            (OPEN, _) => return Ok(vec![self.open()?]),
            // The rule limits how often a server can rotate, and thus delete, its logs.
            (ROTATE, Some(rotated)) => rotated.rotate(NEXT_WRITE).map(|file| vec![file]),
            (COMPRESS, Some(rotated)) => rotated.begin_compression().map(|begun| {
                begun.map_or_else(Vec::new, |Compression { from, to }| vec![from, to])
            }),
            (COMPRESSED | NOT_COMPRESSED, Some(rotated)) => {
                rotated.end_compression(operation == COMPRESSED).map(|()| Vec::new())
            }
            _ => return Err(Errno::INVAL.into()),
        };
        files.map_err(refusal)
    }

    /// Opens the log, or creates it for the user.
    fn open(&self) -> io::Result<File> {
        let name = self.path.file_name().ok_or(Errno::ISDIR)?;
        // The user may own the directory itself, and could link another user's file there.
        // Therefore `open_at` refuses symbolic links, and files with more than one hard link.
        log_file::open_at(&self.dir, name.as_ref(), Some(self.owner)).map_err(refusal)
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

/// Returns an error that has an errno, because the socket transports only this number. An error
/// without errno is a refusal, and becomes EPERM.
fn refusal(error: io::Error) -> io::Error {
    if error.raw_os_error().is_none() { Errno::PERM.into() } else { error }
}

fn send(socket: &UnixStream, opened: io::Result<Vec<File>>) -> io::Result<()> {
    let error = match &opened {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = opened.unwrap_or_default();
    let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
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
        let process = RootProcess::connected(socket.into());
        let mut opener = Opener { process, paths: vec![PathBuf::from("log")] };
        // Half an answer, and then none.
        theirs.write_all(&[0; 2]).unwrap();
        assert!(opener.open(Path::new("log")).is_err(), "no answer");
        theirs.read_exact(&mut [0; 2]).unwrap();
        let old = File::open("/dev/null").unwrap();
        assert!(send(&theirs, Ok(vec![old])).is_err(), "nobody takes the late answer");
        let error = opener.open(Path::new("log")).unwrap_err().to_string();
        assert!(error.contains("try again"), "{error}");
    }

    #[test]
    fn the_directory_is_that_of_the_start_whatever_its_path_leads_to() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        std::fs::create_dir(at("logs")).unwrap();
        std::fs::create_dir(at("vault")).unwrap();
        let own = std::fs::metadata(tmp.path()).unwrap();
        let log = Log::find(&at("logs/access.log"), None, (own.uid(), own.gid())).unwrap();
        log.check_dir().unwrap();
        std::fs::rename(at("logs"), at("moved")).unwrap();
        std::os::unix::fs::symlink(at("vault"), at("logs")).unwrap();
        let refused = log.check_dir().unwrap_err();
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::STALE));
        // Here the directory was replaced after the check. The first call creates the file, and the
        // second call opens it again.
        for _ in 0..2 {
            log.open().unwrap().write_all(b"x").unwrap();
        }
        assert_eq!(std::fs::read(at("moved/access.log")).unwrap(), b"xx");
        assert!(!at("vault/access.log").exists());
    }

    #[test]
    fn an_error_leaves_the_next_question_open() {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let process = RootProcess::connected(socket.into());
        let mut opener = Opener { process, paths: vec![PathBuf::from("log")] };
        send(&theirs, Err(Errno::NOSPC.into())).unwrap();
        send(&theirs, Ok(vec![File::open("/dev/null").unwrap()])).unwrap();
        assert_eq!(
            Errno::from_io_error(&opener.open(Path::new("log")).unwrap_err()),
            Some(Errno::NOSPC)
        );
        assert!(opener.open(Path::new("log")).is_ok());
    }
}
