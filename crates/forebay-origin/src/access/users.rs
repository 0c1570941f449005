//! The users of a file as Apache's `htpasswd` writes it: `name:hash`, a line each.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::ErrorLog;
use rustix::fs::OFlags;

use super::hash::Hash;

/// Largest file, in bytes, some ten thousand users: each thread reads it for each route, and serves
/// nobody meanwhile.
const LARGEST: u64 = 1024 * 1024;

/// Why users cannot be read.
#[derive(Debug)]
pub enum UsersError {
    /// The system's word.
    Io(PathBuf, io::Error),
    /// It is a directory, a pipe or a device.
    NotRegular(PathBuf),
    /// It is larger than [`LARGEST`].
    TooLarge(PathBuf),
    /// A line, from 1, is not `name:hash` with a hash that is known here.
    Line(PathBuf, usize),
}

impl UsersError {
    /// What to do next.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Io(..) => "make it readable for the user that Forebay runs as",
            Self::NotRegular(_) => "put a regular file there, as htpasswd writes it",
            Self::TooLarge(_) => "it is no file of users, or too many of them",
            Self::Line(..) => {
                "write the line anew: htpasswd -B FILE USER (bcrypt); SHA-crypt ($5$, $6$) and apr1 \
                 are known, too"
            }
        }
    }
}

impl fmt::Display for UsersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(file, error) => {
                write!(f, "cannot read users from {}: {error}", file.display())
            }
            Self::NotRegular(file) => {
                write!(f, "the file of users {} is no regular file", file.display())
            }
            Self::TooLarge(file) => {
                write!(f, "the file of users {} is larger than {LARGEST} bytes", file.display())
            }
            Self::Line(file, line) => {
                let file = file.display();
                write!(f, "{file}, line {line}: not a user and a password's hash that is known")
            }
        }
    }
}

impl std::error::Error for UsersError {}

/// What tells that a file has changed.
type Stamp = (u64, u64, u64, i64, i64);

/// The users of a file, read again when it has changed.
#[derive(Default)]
pub struct Users {
    file: PathBuf,
    hashes: HashMap<Vec<u8>, Arc<Hash>>,
    /// The hash that takes longest: unknown users are compared with it.
    slowest: Option<Arc<Hash>>,
    stamp: Option<Stamp>,
    looked: Option<u64>,
    /// Why the file could not be read when it was looked at.
    failure: Option<Arc<UsersError>>,
    version: u64,
}

impl Users {
    /// The users of `file`, not yet read.
    pub fn new(file: PathBuf) -> Self {
        Self { file, ..Self::default() }
    }

    /// Reads the users of `file`; the lines that are none, whose users cannot log in. Where no line
    /// is one they are the error.
    pub fn check(file: &Path) -> Result<Vec<UsersError>, UsersError> {
        let mut users = Self::new(file.to_owned());
        let wrong = users.read()?;
        let mut wrong = wrong.into_iter().map(|line| UsersError::Line(file.to_owned(), line));
        match wrong.next() {
            Some(first) if users.hashes.is_empty() => Err(first),
            first => Ok(first.into_iter().chain(wrong).collect()),
        }
    }

    /// Looks whether the file has changed, once a second; whether it has. Without a file nobody is
    /// let in.
    pub fn look(&mut self, second: u64, errors: &ErrorLog) -> Result<bool, Arc<UsersError>> {
        if self.looked == Some(second) {
            return self.failure.clone().map_or(Ok(false), Err);
        }
        self.looked = Some(second);
        self.failure = None;
        let found = fs::metadata(&self.file).map(|found| stamp(&found));
        if found.as_ref().is_ok_and(|found| self.stamp == Some(*found)) {
            return Ok(false);
        }
        self.stamp = None;
        match self.read() {
            Ok(wrong) => {
                if let Some(line) = wrong.first().copied() {
                    errors.log(&UsersError::Line(self.file.clone(), line).to_string());
                }
                Ok(true)
            }
            Err(error) => {
                self.hashes.clear();
                self.slowest = None;
                self.version += 1;
                Err(self.failure.insert(Arc::new(error)).clone())
            }
        }
    }

    /// Counts how often the file was read.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The hash to compare a password of `user` with, and whether that is the user's.
    pub fn hash_of(&self, user: &[u8]) -> Option<(Arc<Hash>, bool)> {
        match self.hashes.get(user) {
            Some(hash) => Some((hash.clone(), true)),
            None => Some((self.slowest.clone()?, false)),
        }
    }

    /// Reads the file; the numbers of the lines that are wrong. Such lines name nobody.
    fn read(&mut self) -> Result<Vec<usize>, UsersError> {
        let failed = |error| UsersError::Io(self.file.clone(), error);
        let file = open(&self.file).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(UsersError::NotRegular(self.file.clone()));
        }
        let mut text = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > LARGEST {
            return Err(UsersError::TooLarge(self.file.clone()));
        }
        let mut wrong = Vec::new();
        self.hashes.clear();
        for (at, line) in text.split(|&b| b == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            match parse(line) {
                // The first line of a name counts, as with Apache.
                Some((user, hash)) => drop(self.hashes.entry(user).or_insert(Arc::new(hash))),
                None => wrong.push(at + 1),
            }
        }
        self.slowest = self.hashes.values().max_by_key(|hash| hash.cost()).cloned();
        self.stamp = Some(stamp(&found));
        self.version += 1;
        Ok(wrong)
    }
}

/// A FIFO without a writer is opened at once, where a plain open would wait for one on the event loop.
fn open(file: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(file)
}

fn parse(line: &[u8]) -> Option<(Vec<u8>, Hash)> {
    let (user, rest) = line.split_at(memchr::memchr(b':', line)?);
    let hash = rest[1..].split(|&b| b == b':').next()?;
    let hash = Hash::parse(str::from_utf8(hash).ok()?)?;
    (!user.is_empty()).then(|| (user.to_vec(), hash))
}

fn stamp(found: &fs::Metadata) -> Stamp {
    (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "me:$apr1$12345678$my0OIRja9KzJPSFy62uTY1\n";

    #[test]
    fn a_file_that_cannot_be_read_is_opened_once_a_second() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        let (errors, _kept) = ErrorLog::kept();
        let mut users = Users::new(file.clone());
        assert!(users.look(1, &errors).is_err());
        fs::write(&file, LINE).unwrap();
        assert!(users.look(1, &errors).is_err(), "the error of this second");
        assert!(users.hash_of(b"me").is_none());
        assert!(users.look(2, &errors).unwrap());
        assert!(users.hash_of(b"me").unwrap().1);
        fs::remove_file(&file).unwrap();
        assert!(!users.look(2, &errors).unwrap());
        assert!(users.look(3, &errors).is_err());
        assert!(users.hash_of(b"me").is_none());
    }

    #[test]
    fn a_file_of_more_than_a_mebibyte_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        let comment = "#".repeat(LARGEST as usize - LINE.len());
        fs::write(&file, format!("{LINE}{comment}")).unwrap();
        assert!(Users::check(&file).is_ok());
        fs::write(&file, format!("{LINE}{comment}#")).unwrap();
        assert!(matches!(Users::check(&file), Err(UsersError::TooLarge(_))));
    }

    #[test]
    fn an_odd_line_is_told_and_refuses_the_file_only_where_no_line_is_a_user() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users");
        fs::write(&file, format!("odd\n# users\n{LINE}old:crypted\n")).unwrap();
        let odd = Users::check(&file).unwrap();
        let lines = odd.iter().map(|error| match error {
            UsersError::Line(_, line) => *line,
            _ => 0,
        });
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines, [1, 4]);
        fs::write(&file, "# users\nold:crypted\n").unwrap();
        assert!(matches!(Users::check(&file), Err(UsersError::Line(_, 2))));
        fs::write(&file, "# nobody yet\n").unwrap();
        assert!(Users::check(&file).unwrap().is_empty());
    }
}
