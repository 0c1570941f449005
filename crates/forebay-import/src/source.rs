//! Reads configuration files and what they include, within limits.

use std::fmt::{self, Display, Formatter};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::draft::SourceLine;

/// Maximum size of a file in bytes. Configurations of real sites have a few hundred kilobytes.
const LARGEST: u64 = 4 * 1024 * 1024;
/// Maximum size of all files together, in bytes.
const LARGEST_TOTAL: u64 = 32 * 1024 * 1024;
/// Maximum number of files that are read.
const MOST_FILES: usize = 2_000;
/// Maximum depth of includes within included files.
pub const DEEPEST_INCLUDE: usize = 20;
/// Maximum depth of blocks within blocks.
pub const DEEPEST_BLOCK: usize = 40;

/// A configuration that cannot be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    place: Option<SourceLine>,
    message: String,
    help: String,
}

impl ImportError {
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { place: None, message: message.into(), help: help.into() }
    }

    pub(crate) fn at(
        place: &SourceLine,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self { place: Some(place.clone()), ..Self::new(message, help) }
    }
}

impl Display for ImportError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        write!(f, "{}\n  help: {}", self.message, self.help)
    }
}

impl std::error::Error for ImportError {}

/// The text of a file.
pub struct Text {
    /// The name in messages.
    pub name: Rc<str>,
    pub text: String,
}

/// Reads files and counts them.
#[derive(Default)]
pub struct Reader {
    total: u64,
    count: usize,
    /// The files that are being read, the outermost first.
    open: Vec<PathBuf>,
}

impl Reader {
    /// Reads a file, which another file may include at `place`. Call [`Reader::close`] after the
    /// file's includes were read.
    pub fn open(&mut self, path: &Path, place: Option<&SourceLine>) -> Result<Text, ImportError> {
        let error = |message: String, help: &str| ImportError {
            place: place.cloned(),
            message,
            help: help.into(),
        };
        let name = path.display().to_string();
        if self.open.len() >= DEEPEST_INCLUDE {
            let message = format!("includes are more than {DEEPEST_INCLUDE} deep");
            return Err(error(message, "write the lines of a file in place of its include"));
        }
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if self.open.contains(&real) {
            return Err(error(format!("{name} includes itself"), "remove this include"));
        }
        self.count += 1;
        if self.count > MOST_FILES {
            let message = format!("the configuration has more than {MOST_FILES} files");
            return Err(error(message, "import the files of one site"));
        }
        let bytes = read(path).map_err(|why| error(format!("cannot read {name}: {why}"), HELP))?;
        self.total += bytes.len() as u64;
        if self.total > LARGEST_TOTAL {
            return Err(error("the files are larger than 32 MiB together".into(), HELP));
        }
        if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
            let line = bytes[..at].iter().filter(|&&byte| byte == b'\n').count() + 1;
            let place = SourceLine { file: name.as_str().into(), line };
            return Err(ImportError::at(&place, "a zero byte is no text", HELP));
        }
        self.open.push(real);
        // Replace bytes that are not UTF-8, because comments in old files are often in Latin-1.
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Text { name: name.into(), text })
    }

    /// Marks the file that was opened last as read.
    pub fn close(&mut self) {
        self.open.pop();
    }
}

const HELP: &str = "give the configuration file of the server, a text of at most 4 MiB";

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let metadata = std::fs::metadata(path).map_err(|error| reason(&error))?;
    if !metadata.is_file() {
        return Err("it is not a file".into());
    }
    let file = std::fs::File::open(path).map_err(|error| reason(&error))?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| reason(&error))?;
    if bytes.len() as u64 > LARGEST {
        return Err("it is larger than 4 MiB".into());
    }
    Ok(bytes)
}

/// Returns the reason of an error without the number that the system adds.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Returns the files that a pattern matches, in alphabetical order. Returns `None` if the pattern
/// has no wildcard and the file does not exist.
pub fn matching(pattern: &Path) -> Option<Vec<PathBuf>> {
    let text = pattern.to_str()?;
    if !text.contains(['*', '?', '[']) {
        return pattern.exists().then(|| vec![pattern.to_owned()]);
    }
    // nginx, Apache and Caddy skip hidden files, such as copies of editors, and so does Forebay.
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let Ok(paths) = glob::glob_with(text, options) else { return Some(Vec::new()) };
    let mut found: Vec<PathBuf> = paths.flatten().take(MOST_FILES).collect();
    found.sort();
    Some(found)
}
