//! Detects changes of files.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Maximum number of files and directories that a check reads.
const MOST: usize = 20_000;
/// Maximum depth of the directories that a check reads.
const DEEPEST: usize = 32;

/// Files and directories, and a hash of their state.
#[derive(Debug)]
pub(crate) struct Changes {
    paths: Vec<PathBuf>,
    /// Hash at the last reported change.
    known: u64,
    /// Hash at the last check, whether or not the check reported a change.
    last: u64,
    /// File that was written last, at the last check.
    newest: Option<PathBuf>,
}

/// State of files at one time.
struct Scan {
    /// Hash of names, sizes, modification times and inode numbers.
    hasher: DefaultHasher,
    /// Number of files and directories that may still be read.
    left: usize,
    newest: Option<(SystemTime, PathBuf)>,
}

impl Changes {
    /// Records the present state of these paths. Later checks compare with this state.
    pub(crate) fn of(paths: &[PathBuf]) -> Changes {
        let mut changes = Changes { paths: paths.to_vec(), known: 0, last: 0, newest: None };
        changes.known = changes.scan();
        changes.last = changes.known;
        changes
    }

    /// Returns true if the files have changed since the last call.
    pub(crate) fn look_once(&mut self) -> bool {
        let state = self.scan();
        std::mem::replace(&mut self.known, state) != state
    }

    /// Returns a sentence for the log after a change. The sentence names the file that was written
    /// last. Usually, this file has changed. After the removal of a file, or a move that keeps the
    /// file's time, the sentence names another file.
    pub(crate) fn in_words(&self) -> String {
        match &self.newest {
            Some(newest) => format!("files have changed, the newest is {}", newest.display()),
            None => "files have changed".to_owned(),
        }
    }

    /// Returns a hash of the present state.
    fn scan(&mut self) -> u64 {
        let mut scan = Scan { hasher: DefaultHasher::new(), left: MOST, newest: None };
        for path in &self.paths {
            scan.add(path, 0);
        }
        self.newest = scan.newest.map(|(_, path)| path);
        scan.hasher.finish()
    }

    /// Returns true once for each change. Reports a change only after two consecutive checks have
    /// found the same state, because an editor or a copy may still be writing. Returns false if
    /// there are no paths.
    pub(crate) fn look(&mut self) -> bool {
        if self.paths.is_empty() {
            return false;
        }
        let state = self.scan();
        let is_settled = state == self.last;
        self.last = state;
        let has_changed = is_settled && state != self.known;
        if has_changed {
            self.known = state;
        }
        has_changed
    }
}

impl Scan {
    fn add(&mut self, path: &Path, depth: usize) {
        if self.left == 0 || depth > DEEPEST {
            return;
        }
        self.left -= 1;
        path.hash(&mut self.hasher);
        // Follow a symbolic link only at the top level, because links in directories may form a
        // cycle.
        let found = if depth == 0 { fs::metadata(path) } else { fs::symlink_metadata(path) };
        let Ok(found) = found else { return };
        if !found.is_dir() {
            return self.add_file(path, &found);
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let is_code = |entry: &fs::DirEntry| {
            let name = entry.file_name();
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            !is_by_the_way(&name) && !is_data(&name, is_dir, depth)
        };
        let mut names: Vec<PathBuf> = entries.filter(is_code).map(|entry| entry.path()).collect();
        names.sort();
        for name in names {
            self.add(&name, depth + 1);
        }
    }

    fn add_file(&mut self, path: &Path, found: &Metadata) {
        (found.mtime(), found.mtime_nsec(), found.size(), found.ino()).hash(&mut self.hasher);
        let Ok(modified) = found.modified() else { return };
        if self.newest.as_ref().is_none_or(|(newest, _)| modified > *newest) {
            self.newest = Some((modified, path.to_owned()));
        }
    }
}

/// Returns true if a directory entry does not belong to the application. Such entries are compiled
/// Python files, version control data, and temporary files of editors (vim, Emacs, nano,
/// JetBrains).
fn is_by_the_way(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let is_swap = name.starts_with(b".")
        && matches!(name, [.., b'.', b's', b'w', last] if last.is_ascii_lowercase());
    matches!(name, b"__pycache__" | b".git" | b".hg" | b".svn" | b"4913")
        || is_swap
        || name.starts_with(b".#")
        || name.starts_with(b"#") && name.ends_with(b"#")
        || name.ends_with(b"~")
        || name.ends_with(b"___jb_tmp___")
        || name.ends_with(b"___jb_old___")
}

/// Returns true if a directory entry has data that applications write while they run: logs,
/// temporary files, process ids, sockets and databases. If such data were watched, each request
/// that writes data would replace all processes.
///
/// `depth` is the depth of the entry's directory. A directory with a name such as `log` has data
/// only at depth 0. At greater depths, the directory may be a part of the code (`lib/log`).
fn is_data(name: &OsStr, is_dir: bool, depth: usize) -> bool {
    const DIRECTORIES: [&[u8]; 4] = [b"log", b"logs", b"tmp", b"node_modules"];
    const ENDINGS: [&[u8]; 9] = [
        b".log",
        b".pid",
        b".sock",
        b".db",
        b".sqlite",
        b".sqlite3",
        b"-journal",
        b"-wal",
        b"-shm",
    ];
    let name = name.as_encoded_bytes();
    if is_dir {
        return depth == 0 && DIRECTORIES.contains(&name);
    }
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_once_and_when_it_has_settled() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lib/a.pm");
        fs::create_dir(dir.path().join("lib")).unwrap();
        fs::write(&file, "1").unwrap();
        let mut changes = Changes::of(&[dir.path().join("lib"), dir.path().join("absent")]);
        assert!(!changes.look());
        fs::write(&file, "22").unwrap();
        assert!(!changes.look(), "it may go on");
        assert!(changes.look());
        assert!(!changes.look());
        fs::write(dir.path().join("absent"), "").unwrap();
        assert!(!changes.look());
        assert!(changes.look(), "what was not there is");
        fs::remove_file(&file).unwrap();
        assert!(!changes.look());
        assert!(changes.look());
    }

    #[test]
    fn files_of_python_git_and_editors_are_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        };
        write("a.py");
        let mut changes = Changes::of(&[dir.path().to_owned()]);
        for name in [
            "__pycache__/a.cpython-311.pyc",
            "lib/__pycache__/b.pyc",
            ".git/index",
            ".a.py.swp",
            ".a.py.swx",
            "4913",
            "a.py~",
            ".#a.py",
            "#a.py#",
            "a.py___jb_tmp___",
        ] {
            // A new directory is a change of its own.
            let parent = Path::new(name).parent().unwrap();
            if parent == Path::new("lib/__pycache__") {
                fs::create_dir(dir.path().join("lib")).unwrap();
                changes.look_once();
            }
            write(name);
            assert!(!changes.look_once(), "{name}");
        }
        for name in ["b.py", ".htaccess", "lib/swp", "a.swp"] {
            write(name);
            assert!(changes.look_once(), "{name}");
        }
    }

    #[test]
    fn data_that_an_application_writes_is_no_change() {
        let dir = tempfile::tempdir().unwrap();
        for inner in ["log", "tmp/cache", "app"] {
            fs::create_dir_all(dir.path().join(inner)).unwrap();
        }
        let mut changes = Changes::of(&[dir.path().to_owned()]);
        for name in
            ["log/a.txt", "tmp/cache/b", "serve.log", "db.sqlite3", "db.sqlite3-wal", "x.pid"]
        {
            fs::write(dir.path().join(name), "x").unwrap();
            assert!(!changes.look_once(), "{name}");
        }
        // A file with the name of such a directory is code, and so is a deeper directory.
        fs::write(dir.path().join("app/tmp"), "").unwrap();
        assert!(changes.look_once());
        assert!(changes.in_words().ends_with("app/tmp"), "{}", changes.in_words());
        fs::create_dir(dir.path().join("app/log")).unwrap();
        fs::write(dir.path().join("app/log/a.rb"), "").unwrap();
        assert!(changes.look_once());
    }

    #[test]
    fn named_files_are_watched_whatever_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a~");
        let mut changes = Changes::of(std::slice::from_ref(&file));
        fs::write(&file, "").unwrap();
        assert!(changes.look_once());
    }

    #[test]
    fn a_circle_of_links_ends() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("self")).unwrap();
        let mut changes = Changes::of(&[dir.path().to_owned()]);
        assert!(!changes.look());
    }
}
