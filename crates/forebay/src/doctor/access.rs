//! Rights of the user of `[server]` on files, by their modes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A user, with all its groups.
pub struct User {
    pub name: String,
    id: u32,
    groups: Vec<u32>,
}

impl User {
    /// Returns the user with this name. `passwd` and `group` are the texts of these files in /etc.
    /// Returns `None` if there is no such user, or if an ID in the user's line is not a number.
    pub fn find(name: &str, passwd: &str, group: &str) -> Option<Self> {
        let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let of_user = fields.into_iter().find(|fields| fields.first() == Some(&name))?;
        let id = of_user.get(2)?.parse().ok()?;
        let mut groups = vec![of_user.get(3)?.parse().ok()?];
        for line in group.lines() {
            let fields: Vec<_> = line.split(':').collect();
            let is_member = fields
                .get(3)
                .is_some_and(|members| members.split(',').any(|member| member == name));
            if let Some(id) = fields.get(2).and_then(|id| id.parse().ok()).filter(|_| is_member) {
                groups.push(id);
            }
        }
        Some(Self { name: name.to_owned(), id, groups })
    }

    /// Resolves symbolic links in `path`, and returns the first component that the user may not
    /// use. The user must be able to search each directory above `path`, and to read `path` itself.
    /// If `path` is a directory, the user must be able to search it, too. Returns `None` if all is
    /// permitted, or if the path cannot be resolved.
    pub fn stopped_at(&self, path: &Path) -> Option<PathBuf> {
        let real = fs::canonicalize(path).ok()?;
        let mut above: Vec<_> = real.ancestors().skip(1).collect();
        above.reverse();
        let barred = above.into_iter().find(|dir| !self.may(dir, 1));
        let own = if real.is_dir() { 5 } else { 4 };
        barred.or_else(|| Some(&*real).filter(|path| !self.may(path, own))).map(Path::to_path_buf)
    }

    /// Returns true if the mode of the file grants these rights: 4 to read, 1 to search. Also
    /// returns true for root, and if the mode is unknown.
    fn may(&self, path: &Path, rights: u32) -> bool {
        let Ok(metadata) = fs::metadata(path) else { return true };
        let shift = if metadata.uid() == self.id {
            6
        } else if self.groups.contains(&metadata.gid()) {
            3
        } else {
            0
        };
        self.id == 0 || metadata.mode() >> shift & rights == rights
    }
}
