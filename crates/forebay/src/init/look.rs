//! Looks at the files of a directory, with limits, because they can be of any size and type.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_process::beginning;

/// Largest part of a file that is read.
const LIMIT: u64 = 256 * 1024;
/// Maximum number of names that are read from a directory.
const NAMES: usize = 10_000;

/// Directory of an application.
pub struct Look<'a> {
    dir: &'a Path,
}

impl<'a> Look<'a> {
    pub fn at(dir: &'a Path) -> Self {
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn is_file(&self, name: &str) -> bool {
        self.path(name).is_file()
    }

    pub fn is_dir(&self, name: &str) -> bool {
        self.path(name).is_dir()
    }

    /// Returns the beginning of a file. Returns an empty text if the file cannot be read.
    pub fn text(&self, name: &str) -> String {
        let bytes = beginning(&self.path(name), LIMIT).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns true if a regular file begins with these bytes.
    pub fn starts_with(&self, name: &str, start: &[u8]) -> bool {
        beginning(&self.path(name), start.len() as u64).is_ok_and(|bytes| bytes == start)
    }

    /// Returns the sorted names in the subdirectory `name`, or in the application's directory if
    /// `name` is empty. Leaves out names that are not UTF-8. If the directory cannot be read, the
    /// result is empty.
    pub fn names(&self, name: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(name)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.take(NAMES).filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns the first of these names that is a directory. Returns `None` if none is a directory.
    pub fn first_dir<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.is_dir(name))
    }

    /// Returns the first of these names that is a file. Returns `None` if none is a file.
    pub fn first_file<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.is_file(name))
    }
}

/// Kind of an application, with the values that its configuration needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundApp {
    /// A PSGI application in this file.
    Psgi {
        file: String,
    },
    Wsgi {
        module: String,
        interpreter: Option<String>,
        is_django: bool,
    },
    Asgi {
        module: String,
        interpreter: Option<String>,
    },
    Rack {
        is_rails: bool,
    },
    /// PHP below `root`. If `entry` is true, `index.php` answers all paths without a file.
    Php {
        root: &'static str,
        entry: bool,
        is_wordpress: bool,
    },
    Mono,
    /// A program in Go: its package, relative to the directory.
    Go {
        package: String,
        reads_port: bool,
    },
    Node {
        start: String,
        is_installed: bool,
    },
    /// A web application for a servlet container.
    Servlet {
        tomcat: Option<&'static str>,
    },
    /// A directory of CGI scripts.
    CgiBin {
        scripts: Vec<String>,
    },
    /// CGI scripts with the suffix `.cgi` among other files.
    CgiFiles,
    /// Files only. If `entry` is true, the index answers all other paths (single-page application).
    Files {
        root: &'static str,
        listing: bool,
        entry: bool,
    },
}

/// An application that was found. `mark` and `why` explain its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detected {
    pub app: FoundApp,
    /// File or directory that identifies the application.
    pub mark: String,
    pub why: String,
}

/// Name of the file that `forebay init site` writes.
pub const SITE_FILE: &str = "site.toml";
