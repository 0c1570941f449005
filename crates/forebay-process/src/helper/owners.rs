//! Owners of directories, whom the helper accepts although they were not known when it started.
//!
//! With `user = "{owner}"`, sites of new users come while Forebay serves. The helper knows the patterns
//! of their directories from its start, and looks at the disk itself. So an attacker who controls the
//! gateway gains the rights of those who have such a directory, and nobody else's.

use super::is_for_helper;
use crate::Identity;
use std::ffi::{OsStr, OsString};
use std::fs::{read_dir, symlink_metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directories that a pattern `before/*/behind` matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owners {
    pub before: PathBuf,
    pub behind: PathBuf,
}

/// The first byte of an argument of the helper that is a pattern. No user's word begins with it.
const MARK: u8 = b'*';

impl Owners {
    /// Encodes the pattern as an argument of the helper.
    pub(super) fn word(&self) -> OsString {
        let (before, behind) = (self.before.as_os_str(), self.behind.as_os_str());
        OsString::from_vec([&[MARK], before.as_bytes(), b"*", behind.as_bytes()].concat())
    }

    /// Parses an argument. `None`: it is no pattern.
    pub(super) fn parse(word: &OsStr) -> Option<Self> {
        let pattern = word.as_bytes().strip_prefix(&[MARK])?;
        let at = pattern.iter().position(|byte| *byte == b'*')?;
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        Some(Self { before: path(&pattern[..at]), behind: path(&pattern[at + 1..]) })
    }

    /// Returns true if one of the directories belongs to a user: its parts from `*` on belong to this
    /// user or to root, and at least one to the user. Links count by their own owner.
    pub(super) fn include(&self, user: u32) -> bool {
        let entries = read_dir(&self.before).into_iter().flatten();
        entries.filter_map(Result::ok).any(|entry| {
            let mut path = entry.path();
            let owner = |path: &Path| symlink_metadata(path).map(|found| found.uid());
            let mut owners = vec![owner(&path)];
            for part in &self.behind {
                path.push(part);
                owners.push(owner(&path));
            }
            let is_users =
                |owner: &std::io::Result<u32>| owner.as_ref().is_ok_and(|id| *id == user);
            path.is_dir()
                && owners.iter().any(is_users)
                && owners.iter().all(|owner| is_users(owner) || matches!(owner, Ok(0)))
        })
    }
}

/// Returns the identity of a user whom the patterns include. Its groups are those of the system, so the
/// gateway can choose none.
pub(super) fn find(all: &[Owners], (user, name): &(u32, String)) -> Option<Identity> {
    let identity = Identity::look_up("owner", Some(name), None).ok().flatten()?;
    let is_user = identity.user.as_ref().is_some_and(|(id, _)| id == user);
    let is_permitted =
        is_user && is_for_helper(&identity) && all.iter().any(|of| of.include(*user));
    is_permitted.then_some(Identity { env: Vec::new(), ..identity })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, lchown, symlink};

    #[test]
    fn only_the_owner_of_a_whole_path_is_included() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let owners = Owners { before: root.path().into(), behind: "htdocs".into() };
        assert_eq!(Owners::parse(&owners.word()), Some(owners.clone()));
        let site = root.path().join("a.example");
        std::fs::create_dir_all(site.join("htdocs")).unwrap();
        assert!(!owners.include(5), "root's");
        chown(&site, Some(5), None).unwrap();
        assert!(owners.include(5) && !owners.include(34) && !owners.include(0));
        chown(site.join("htdocs"), Some(34), None).unwrap();
        assert!(!owners.include(5) && !owners.include(34), "of two users");
        std::fs::remove_dir(site.join("htdocs")).unwrap();
        assert!(!owners.include(5), "incomplete");
        let other = root.path().join("b.example");
        std::fs::create_dir_all(other.join("htdocs")).unwrap();
        chown(other.join("htdocs"), Some(34), None).unwrap();
        symlink(other.join("htdocs"), site.join("htdocs")).unwrap();
        // The link is root's, as an administrator would make it.
        assert!(owners.include(5));
        lchown(site.join("htdocs"), Some(34), None).unwrap();
        assert!(!owners.include(5), "a link of another user");
        let all = [owners];
        assert!(find(&all, &(34, "backup".to_owned())).is_some());
        for (id, name) in [(34, "games"), (0, "root"), (5, "games"), (34, "nobody-here")] {
            assert!(find(&all, &(id, name.to_owned())).is_none(), "{id} {name}");
        }
    }
}
