//! A file of users that is read again after it has changed.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_conf::{advice, files};

/// Maximum size of a file in bytes: some ten thousand users. While a thread reads the file, the
/// thread's requests wait, and so do other threads that need the file.
pub const LARGEST: u64 = 1024 * 1024;

/// Error of a user file.
#[derive(Debug)]
pub enum UsersError {
    /// Error of the system.
    Io(PathBuf, io::Error),
    /// A directory, a pipe or a device.
    NotRegular(PathBuf),
    /// Larger than `LARGEST`.
    TooLarge(PathBuf),
    /// A line, counted from 1, is not `name:hash` with a hash of a known kind.
    Line(PathBuf, usize),
    /// A line, counted from 1, is not `name:realm:hash` with a hash of a known length.
    DigestLine(PathBuf, usize),
}

impl UsersError {
    /// Returns advice for the administrator.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Io(_, error) => advice(error),
            Self::NotRegular(_) => "put a regular file there, as htpasswd or htdigest writes it",
            Self::TooLarge(_) => "it is not a user file, or has too many users",
            Self::Line(..) => {
                "write the line anew: htpasswd -B FILE USER (bcrypt); SHA-crypt ($5$, $6$) and apr1 \
                 are known, too"
            }
            Self::DigestLine(..) => "write the line anew: htdigest FILE REALM USER",
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
                write!(f, "the user file {} is not a regular file", file.display())
            }
            Self::TooLarge(file) => {
                write!(f, "the user file {} is larger than {LARGEST} bytes", file.display())
            }
            Self::Line(file, line) => {
                let file = file.display();
                write!(f, "{file}, line {line}: not a user with a password hash of a known kind")
            }
            Self::DigestLine(file, line) => {
                write!(f, "{}, line {line}: not a user with a realm and a hash", file.display())
            }
        }
    }
}

impl std::error::Error for UsersError {}

/// Metadata that changes with the file.
type Stamp = (u64, u64, u64, i64, i64);

/// Outcome of a look at the file.
pub enum Look {
    /// The file is unchanged.
    Same,
    /// The new text of the file.
    Changed(Vec<u8>),
    /// The file cannot be read.
    Failed(Arc<UsersError>),
}

/// A file of users.
#[derive(Default)]
pub struct UserFile {
    /// The path of the file.
    pub path: PathBuf,
    stamp: Option<Stamp>,
    looked: Option<u64>,
    /// Error of the last read.
    failure: Option<Arc<UsersError>>,
    /// The text that a load found through the process that is root, if this process may not read
    /// the file.
    of_root: Option<Vec<u8>>,
}

impl UserFile {
    /// Creates the state of the file at `path`, without reading it.
    pub fn new(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// Checks once a second if the file has changed, and reads it again if so.
    pub fn look(&mut self, second: u64) -> Look {
        // Another thread may have looked last, and its clock may be one second ahead of the clock
        // of this thread. So a look at the next second also counts as a look at this second.
        if self.looked.is_some_and(|looked| looked >= second && looked - second < 2) {
            return self.failure.clone().map_or(Look::Same, Look::Failed);
        }
        self.looked = Some(second);
        self.failure = None;
        let found = fs::metadata(&self.path).map(|found| stamp(&found));
        if found.as_ref().is_ok_and(|found| self.stamp == Some(*found)) {
            return Look::Same;
        }
        self.stamp = None;
        match (self.read(), &mut self.of_root) {
            (Ok(text), of_root) => {
                *of_root = None;
                Look::Changed(text)
            }
            (Err(UsersError::Io(_, error)), Some(text)) if is_denied(&error) => {
                // An empty text is the mark of one that was taken.
                let text = std::mem::take(text);
                if text.is_empty() { Look::Same } else { Look::Changed(text) }
            }
            (Err(error), _) => Look::Failed(self.failure.insert(Arc::new(error)).clone()),
        }
    }

    /// Takes the text that a load has read. It counts until the next load if this process may not
    /// read the file.
    pub fn take_text(&mut self, text: Vec<u8>) {
        self.of_root = Some(text);
        (self.stamp, self.looked) = (None, None);
    }

    /// Reads the file. Fails if the file is unreadable, too large, or not a regular file.
    pub fn read(&mut self) -> Result<Vec<u8>, UsersError> {
        let failed = |error| UsersError::Io(self.path.clone(), error);
        // If the file changes after this line, the next look reads it again.
        let found = fs::metadata(&self.path).map(|found| stamp(&found)).ok();
        if files::kind(&self.path).map_err(failed)? != files::Kind::File {
            return Err(UsersError::NotRegular(self.path.clone()));
        }
        let text = files::read(&self.path, LARGEST).map_err(failed)?;
        if text.len() as u64 > LARGEST {
            return Err(UsersError::TooLarge(self.path.clone()));
        }
        self.stamp = found;
        Ok(text)
    }
}

/// Returns the text of the file if a load found it through the process that is root, and this
/// process may not read it. Call this while the load is replayed.
pub fn text_of_root(path: &Path) -> Option<Vec<u8>> {
    let own = files::open_file(path).err()?;
    if is_denied(&own) { files::read(path, LARGEST).ok() } else { None }
}

fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Returns the lines with users, each with its number.
pub fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = text.split(|&b| b == b'\n').map(<[u8]>::trim_ascii).enumerate();
    let lines = lines.map(|(at, line)| (at + 1, line));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"))
}

fn stamp(found: &fs::Metadata) -> Stamp {
    (found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec())
}
