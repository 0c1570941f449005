//! Files that a configuration names: how they are opened, and how a reload gets those that only
//! root may read.
//!
//! Everything that Forebay reads before it gives up root is opened here: the configuration, what it
//! includes, values of `{file.PATH}`, certificates, keys, and pages. Such a file may lie in a directory
//! of somebody else, who could put a link to `/etc/shadow` there, and so read it through an error page.
//! Therefore root follows a symbolic link only if the link belongs to root or to the owner of the
//! configuration file, or if it belongs to the owner of the file to which it leads (as in Apache's
//! `SymLinksIfOwnerMatch`). In a directory of somebody else, root reads no file with several hard links,
//! unless the file belongs to the owner of the directory. A process that is not root opens a file as
//! usual, because the kernel checks its rights.
//!
//! A gateway that has given up root cannot read these files for a reload. A short-lived process, which
//! is root, then runs the same code under [`record`], and passes on what it found. The gateway runs the
//! code under [`replay`]. So it gets only files that the configuration on disk names, and an attacker
//! who controls the gateway gains nothing. Both see one state of the disk.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use glob::{MatchOptions, glob_with};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// The owner of the configuration file, whose links root follows.
static ADMINISTRATOR: AtomicU32 = AtomicU32::new(0);

/// The longest chain of symbolic links, as in Linux.
const MAX_LINKS: usize = 40;

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A pipe, a socket or a device.
    Other,
}

/// Reads a regular file, or a descriptor of this process such as the pipe of a shell's
/// `<(command)`. The result has at most `max` bytes and one more, which shows that the file is
/// larger.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    look(Question::Read(max), path, |path| {
        let file = open_file(path)?;
        match FileType::from_raw_mode(fstat(&file)?.st_mode) {
            FileType::RegularFile => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            _ if is_of_descriptor(path) => {}
            _ => return Err(io::Error::other("it is not a file")),
        }
        let mut bytes = Vec::new();
        file.take(max + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

/// Reads the configuration file. Its owner is an administrator: root follows this owner's links for
/// the rest of the load.
pub(crate) fn read_main(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    ADMINISTRATOR.store(0, Ordering::Relaxed);
    let bytes = read(path, max)?;
    if let Ok(found) = std::fs::metadata(path) {
        ADMINISTRATOR.store(found.uid(), Ordering::Relaxed);
    }
    Ok(bytes)
}

/// Returns what the path names, after its links.
pub fn kind(path: &Path) -> io::Result<Kind> {
    let kind = look(Question::Kind, path, |path| {
        let found = std::fs::metadata(path)?;
        Ok(vec![match () {
            () if found.is_file() => b'f',
            () if found.is_dir() => b'd',
            () => b'o',
        }])
    })?;
    Ok(match kind.first() {
        Some(b'f') => Kind::File,
        Some(b'd') => Kind::Directory,
        _ => Kind::Other,
    })
}

/// Returns the path without links and `..`.
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    let real =
        look(Question::Real, path, |path| Ok(path.canonicalize()?.into_os_string().into_vec()))?;
    Ok(OsString::from_vec(real).into())
}

/// Returns the id of the user that owns a file or directory. Of a link, the owner of the link itself.
pub(crate) fn owner(path: &Path) -> io::Result<u32> {
    let found = look(Question::Owner, path, |path| {
        Ok(std::fs::symlink_metadata(path)?.uid().to_ne_bytes().to_vec())
    })?;
    let id = found.try_into().map_err(|_| io::Error::other("no id of a user"))?;
    Ok(u32::from_ne_bytes(id))
}

/// Returns the files that a pattern matches, sorted, at most `max` and one more. Directories and
/// hidden files are left out.
pub(crate) fn matches(pattern: &str, max: usize) -> io::Result<Vec<PathBuf>> {
    let found = look(Question::Matches, Path::new(pattern), |_| {
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        let invalid =
            |error: glob::PatternError| io::Error::new(io::ErrorKind::InvalidInput, error.msg);
        let mut paths = Vec::new();
        for path in glob_with(pattern, options).map_err(invalid)? {
            let path = path.map_err(|error| {
                let (dir, why) = (error.path().display(), crate::error::reason(error.error()));
                io::Error::other(format!("cannot look into {dir}: {why}"))
            })?;
            paths.extend((!path.is_dir()).then_some(path));
            if paths.len() > max {
                break;
            }
        }
        paths.sort();
        let bytes: Vec<_> = paths.iter().map(|path| path.as_os_str().as_bytes()).collect();
        Ok(bytes.join(&0))
    })?;
    let paths = found.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    Ok(paths.map(|path| Path::new(OsStr::from_bytes(path)).to_owned()).collect())
}

/// Returns the names of the directories in a directory, sorted, at most `max`. Names that are not
/// UTF-8 are left out.
pub(crate) fn names(directory: &Path, max: usize) -> io::Result<Vec<String>> {
    let found = look(Question::Names(max as u64), directory, |directory| {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let is_directory = kind.is_dir() || kind.is_symlink() && entry.path().is_dir();
            names.extend(entry.file_name().into_string().ok().filter(|_| is_directory));
            if names.len() >= max {
                break;
            }
        }
        names.sort_unstable();
        Ok(names.join("\0").into_bytes())
    })?;
    let names = found.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

/// Opens a file for reading with the policy of this module. Does not wait for the writer of a pipe.
pub fn open_file(path: &Path) -> io::Result<File> {
    open_checked(path, ADMINISTRATOR.load(Ordering::Relaxed))
}

/// Runs `work`, and notes what it finds on the disk.
pub fn record<T>(work: impl FnOnce() -> T) -> (T, Recording) {
    let (outcome, source) = with(Source::Recording(HashMap::new()), work);
    let found = match source {
        Source::Recording(found) => found,
        Source::Disk | Source::Replay(_) => HashMap::new(),
    };
    (outcome, Recording(Arc::new(found)))
}

/// Runs `work`, which finds on the disk what the recording says. What the recording does not mention
/// is looked up with the rights of this process.
pub fn replay<T>(recording: &Recording, work: impl FnOnce() -> T) -> T {
    with(Source::Replay(recording.clone()), work).0
}

/// What a load of the configuration found on the disk.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<HashMap<Key, Answer>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Question {
    /// The content, up to a size.
    Read(u64),
    Kind,
    Real,
    Matches,
    /// The directories in a directory, up to a number.
    Names(u64),
    Owner,
}

impl Question {
    fn encode(self) -> [u8; 9] {
        let (letter, max) = match self {
            Self::Read(max) => (b'r', max),
            Self::Kind => (b'k', 0),
            Self::Real => (b'c', 0),
            Self::Matches => (b'm', 0),
            Self::Names(max) => (b'n', max),
            Self::Owner => (b'o', 0),
        };
        let mut bytes = [letter; 9];
        bytes[1..].copy_from_slice(&max.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (letter, max) = bytes.split_first()?;
        match letter {
            b'r' => Some(Self::Read(u64::from_ne_bytes(max.try_into().ok()?))),
            b'k' => Some(Self::Kind),
            b'c' => Some(Self::Real),
            b'm' => Some(Self::Matches),
            b'o' => Some(Self::Owner),
            b'n' => Some(Self::Names(u64::from_ne_bytes(max.try_into().ok()?))),
            _ => None,
        }
    }
}

type Key = (Question, PathBuf);
/// The bytes found, or the number and the text of an error. Errors without number have number 0.
type Answer = Result<Vec<u8>, (i32, String)>;

#[derive(Default)]
enum Source {
    #[default]
    Disk,
    Recording(HashMap<Key, Answer>),
    Replay(Recording),
}

thread_local! {
    /// Where this thread finds files. It belongs to a thread, because a load runs on one thread,
    /// while others may look at the disk for other purposes.
    static SOURCE: RefCell<Source> = RefCell::default();
}

fn with<T>(source: Source, work: impl FnOnce() -> T) -> (T, Source) {
    /// Restores the source of the thread, also if `work` panics.
    struct Restore(Rc<RefCell<Source>>, Option<Source>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let former = self.1.take().unwrap_or_default();
            *self.0.borrow_mut() = SOURCE.replace(former);
        }
    }
    let former = SOURCE.replace(source);
    let end = Rc::new(RefCell::new(Source::Disk));
    let restore = Restore(end.clone(), Some(former));
    let outcome = work();
    drop(restore);
    (outcome, end.take())
}

/// Answers a question from the source of this thread.
fn look(
    question: Question,
    path: &Path,
    on_disk: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
) -> io::Result<Vec<u8>> {
    let key = (question, path.to_owned());
    let known = SOURCE.with_borrow(|source| match source {
        Source::Disk => None,
        Source::Recording(found) => found.get(&key).cloned(),
        Source::Replay(recording) => recording.0.get(&key).cloned(),
    });
    let answer = match known {
        Some(answer) => answer,
        None => {
            let answer = on_disk(path)
                .map_err(|error| (error.raw_os_error().unwrap_or(0), error.to_string()));
            SOURCE.with_borrow_mut(|source| {
                if let Source::Recording(found) = source {
                    found.insert(key, answer.clone());
                }
            });
            answer
        }
    };
    answer.map_err(|(number, text)| match number {
        0 => io::Error::other(text),
        number => io::Error::from_raw_os_error(number),
    })
}

impl Recording {
    /// Returns the recording as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut part = |part: &[u8]| {
            bytes.extend_from_slice(&(part.len() as u64).to_ne_bytes());
            bytes.extend_from_slice(part);
        };
        for ((question, path), answer) in &*self.0 {
            part(&question.encode());
            part(path.as_os_str().as_bytes());
            match answer {
                Ok(found) => {
                    part(b"+");
                    part(found);
                }
                Err((number, text)) => {
                    part(&number.to_ne_bytes());
                    part(text.as_bytes());
                }
            }
        }
        bytes
    }

    /// Reads the bytes of [`Self::encode`], which must come from the same version of Forebay.
    /// Returns `None` if they are incomplete.
    pub fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut found = HashMap::new();
        while !bytes.is_empty() {
            let mut part = || {
                let (length, rest) = bytes.split_first_chunk()?;
                let length = usize::try_from(u64::from_ne_bytes(*length)).ok()?;
                let (part, rest) = rest.split_at_checked(length)?;
                bytes = rest;
                Some(part)
            };
            let question = Question::decode(part()?)?;
            let path = Path::new(OsStr::from_bytes(part()?)).to_owned();
            let (outcome, content) = (part()?, part()?);
            let answer = match outcome {
                b"+" => Ok(content.to_vec()),
                number => {
                    let number = i32::from_ne_bytes(number.try_into().ok()?);
                    Err((number, String::from_utf8_lossy(content).into_owned()))
                }
            };
            found.insert((question, path), answer);
        }
        Some(Self(Arc::new(found)))
    }
}

/// Returns true if the path names an open descriptor, such as the pipe of a shell's `<(command)`.
fn is_of_descriptor(path: &Path) -> bool {
    let places = ["/dev/fd/", "/dev/stdin", "/proc/self/fd/"];
    places.iter().any(|place| path.as_os_str().as_bytes().starts_with(place.as_bytes()))
}

/// Opens a file. If this process is root, follows only links that the policy allows (see
/// above).
fn open_checked(path: &Path, administrator: u32) -> io::Result<File> {
    if is_of_descriptor(path) {
        return File::open(path);
    }
    let path = std::path::absolute(path)?;
    // Opening a pipe without a writer would wait for one. A device may have no end.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = if geteuid().is_root() {
        Walk::new(administrator)?.open(&path, flags)?
    } else {
        open(&path, flags, Mode::empty())?
    };
    Ok(file.into())
}

/// A walk along a path, one component after another.
struct Walk {
    /// Users whose links are followed to any file.
    trusted: [u32; 2],
    /// The directories from `/` to the current one.
    dirs: Vec<OwnedFd>,
    links: usize,
    /// The links of other users on the way.
    others: Vec<(u32, PathBuf)>,
}

impl Walk {
    fn new(administrator: u32) -> io::Result<Self> {
        let root = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { trusted: [0, administrator], dirs: vec![root], links: 0, others: Vec::new() })
    }

    fn open(mut self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let mut left: VecDeque<OsString> = parts(path).collect();
        while let Some(name) = left.pop_front() {
            if name == "/" {
                self.dirs.truncate(1);
                continue;
            }
            if name == ".." {
                if self.dirs.len() > 1 {
                    self.dirs.pop();
                }
                continue;
            }
            let dir = self.dirs.last().expect("`..` never removes the first directory");
            let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let entry = openat(dir, &name, look, Mode::empty())?;
            let found = fstat(&entry)?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Symlink => {
                    self.links += 1;
                    if self.links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let target = readlinkat(&entry, "", Vec::new())?;
                    let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
                    if !self.trusts(found.st_uid) {
                        self.others.push((found.st_uid, PathBuf::from(&name)));
                    }
                    for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                        left.push_front(part);
                    }
                }
                FileType::Directory if !left.is_empty() => self.dirs.push(entry),
                _ if left.is_empty() => {
                    // The entry may have been replaced since it was looked at, so judge the file
                    // that is open now.
                    let file = openat(dir, &name, flags | OFlags::NOFOLLOW, Mode::empty())?;
                    self.judge(&fstat(dir)?, &fstat(&file)?)?;
                    return Ok(file);
                }
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Err(Errno::ISDIR.into())
    }

    fn trusts(&self, user: u32) -> bool {
        self.trusted.contains(&user)
    }

    fn judge(&self, dir: &Stat, file: &Stat) -> io::Result<()> {
        if let Some((user, link)) = self.others.iter().find(|(user, _)| *user != file.st_uid) {
            return Err(io::Error::other(format!(
                "\"{}\" on its path is a link of user {user}, but the file belongs to user {}; root \
                 follows links of other users only to their own files: replace the link by a copy, or \
                 give it to root (chown -h root)",
                link.display(),
                file.st_uid
            )));
        }
        if file.st_nlink > 1 && !self.trusts(dir.st_uid) && dir.st_uid != file.st_uid {
            return Err(io::Error::other(format!(
                "it has several hard links, and belongs to user {}, but its directory to user {}; root \
                 does not read such a file: replace it by a copy",
                file.st_uid, dir.st_uid
            )));
        }
        Ok(())
    }
}

/// Returns the components of a path. `.` is left out.
fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    parts.map(|part| part.as_os_str().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    /// Whose the parts of a path are, and whether root reads the file at its end.
    #[test]
    fn root_reads_through_nobodys_link_to_anothers_file() {
        if !geteuid().is_root() {
            return;
        }
        let tmp = tempfile::tempdir().unwrap();
        let at = |name: &str| tmp.path().join(name);
        std::fs::write(at("secret"), "root's").unwrap();
        std::fs::create_dir(at("vault")).unwrap();
        std::fs::write(at("vault/secret"), "root's").unwrap();
        for (dir, user) in [("root", 0), ("admin", 7), ("other", 9)] {
            std::fs::create_dir(at(dir)).unwrap();
            let own = |name: &str| at(&format!("{dir}/{name}"));
            std::fs::write(own("file"), "own").unwrap();
            std::fs::hard_link(at("secret"), own("hard")).unwrap();
            std::fs::hard_link(own("file"), own("hard_own")).unwrap();
            symlink(at("secret"), own("link")).unwrap();
            symlink("../secret", own("relative")).unwrap();
            symlink("link", own("twice")).unwrap();
            symlink(at("vault"), own("dir")).unwrap();
            symlink("file", own("link_own")).unwrap();
            symlink("loop", own("loop")).unwrap();
            std::fs::create_dir(own("sub")).unwrap();
            for name in ["file", "link", "relative", "twice", "dir", "link_own", "loop", "sub", "."]
            {
                lchown(own(name), Some(user), None).unwrap();
            }
            let is_trusted = user != 9;
            let reads = |name: &str| open_checked(&own(name), 7).is_ok();
            for name in ["link", "relative", "twice", "dir/secret", "hard"] {
                assert_eq!(reads(name), is_trusted, "{dir}/{name}");
            }
            for name in ["file", "link_own", "hard_own", "sub/../file", "sub/../../secret"] {
                assert!(reads(name), "{dir}/{name}");
            }
            for name in ["loop", "absent", "file/x"] {
                assert!(!reads(name), "{dir}/{name}");
            }
            // A link that root put into somebody's directory is root's decision.
            lchown(own("link"), Some(0), None).unwrap();
            assert!(reads("link"), "{dir}");
        }
    }

    #[test]
    fn a_replay_finds_what_was_recorded() {
        let tmp = tempfile::tempdir().unwrap();
        let (file, other) = (tmp.path().join("a.toml"), tmp.path().join("b.toml"));
        std::fs::write(&file, "text").unwrap();
        let pattern = format!("{}/*.toml", tmp.path().display());
        let look = || {
            let error = read(&other, 9).map_err(|error| error.raw_os_error());
            let real = canonicalize(&file).ok();
            (read(&file, 9).ok(), error, kind(tmp.path()).ok(), real, matches(&pattern, 9).ok())
        };
        let (first, recording) = record(look);
        let recording = Recording::decode(&recording.encode()).unwrap();
        std::fs::rename(&file, &other).unwrap();
        assert_eq!(replay(&recording, look), first);
        assert_ne!(look(), first, "a replay ends");
        let bytes = recording.encode();
        let whole = Recording::decode(&bytes).unwrap().0.len();
        for end in 0..bytes.len() {
            assert!(Recording::decode(&bytes[..end]).is_none_or(|part| part.0.len() < whole));
        }
    }
}
