//! Temporary folder that servers under test can read, even if they run as another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Temporary folder that all users can read. Dropping it removes the folder and its content.
#[derive(Debug)]
pub struct Folder {
    dir: TempDir,
}

impl Folder {
    /// Creates an empty folder. Its name is short, because the system limits the length of socket
    /// paths.
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("fb-").expect("the temporary directory can be written");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
        Self { dir }
    }

    /// Writes a file and the folders above it. Returns the file's path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        let parent = path.parent().expect("a file stands in a folder");
        fs::create_dir_all(parent).expect("the temporary directory can be written");
        fs::write(&path, content).expect("the temporary directory can be written");
        path
    }

    /// Writes a file that can be executed. Returns its path.
    pub fn script(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.write(name, content);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_goes_with_its_files() {
        let folder = Folder::new();
        let path = folder.script("a/b.sh", "#!/bin/sh\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        drop(folder);
        assert!(!path.exists());
    }
}
