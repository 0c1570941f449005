//! Detects changes of files.

use std::collections::hash_map::DefaultHasher;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
}

impl Changes {
    /// Records the present state of these paths. Later checks compare with this state.
    pub(crate) fn of(paths: &[PathBuf]) -> Changes {
        let state = state(paths);
        Changes { paths: paths.to_vec(), known: state, last: state }
    }

    /// Returns true if the files have changed since the last call.
    pub(crate) fn look_once(&mut self) -> bool {
        let state = state(&self.paths);
        std::mem::replace(&mut self.known, state) != state
    }

    /// Returns true once for each change, when two consecutive checks have found the same state.
    /// Until then, an editor or a copy may still be writing.
    pub(crate) fn look(&mut self) -> bool {
        if self.paths.is_empty() {
            return false;
        }
        let state = state(&self.paths);
        let is_settled = state == self.last;
        self.last = state;
        let has_changed = is_settled && state != self.known;
        if has_changed {
            self.known = state;
        }
        has_changed
    }
}

/// Returns a hash of names, sizes, modification times and inode numbers.
fn state(paths: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut left = MOST;
    for path in paths {
        add(path, 0, &mut left, &mut hasher);
    }
    hasher.finish()
}

fn add(path: &Path, depth: usize, left: &mut usize, hasher: &mut DefaultHasher) {
    if *left == 0 || depth > DEEPEST {
        return;
    }
    *left -= 1;
    path.hash(hasher);
    // Follow a symbolic link only at the top level, because links in directories may form a cycle.
    let found = if depth == 0 { fs::metadata(path) } else { fs::symlink_metadata(path) };
    let Ok(found) = found else { return };
    if !found.is_dir() {
        return add_file(&found, hasher);
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> =
        entries.filter(|entry| !is_by_the_way(&entry.file_name())).map(|e| e.path()).collect();
    names.sort();
    for name in names {
        add(&name, depth + 1, left, hasher);
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

fn add_file(found: &Metadata, hasher: &mut DefaultHasher) {
    (found.mtime(), found.mtime_nsec(), found.size(), found.ino()).hash(hasher);
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
