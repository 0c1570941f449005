//! Answers whether a user may use a path, without becoming that user.
//!
//! Root has to judge for others: `check` runs as root, and `serve` as another user. The answer comes
//! from owners, modes and access lists of each component, as the kernel's own walk would find them:
//! a link is followed from the directory that has it, and each directory on the way must be
//! searchable. Where this process cannot look, it does not know, and nothing is reported.

use crate::Identity;
use nix::unistd::{Gid, Uid, User, getgrouplist, getgroups};
use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// A user with all its groups, whose rights are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// Name for messages.
    pub name: String,
    uid: u32,
    groups: Vec<u32>,
}

/// What a user wants to do with a path. For a directory, reading it includes entering it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// To read a file, or to list and enter a directory.
    Read,
    /// To write to a file, to connect to a socket, or to make files in a directory.
    Write,
    /// To run a file, or to enter a directory.
    Run,
}

/// What walks along several paths have found. Paths of many sites share the directories above them,
/// and would otherwise cost thirty system calls each.
#[derive(Debug, Default)]
pub struct Seen {
    found: RefCell<HashMap<PathBuf, Metadata>>,
    /// The directories that the user may enter.
    entered: RefCell<HashSet<PathBuf>>,
}

impl Seen {
    fn symlink_metadata(&self, path: &Path) -> io::Result<Metadata> {
        if let Some(found) = self.found.borrow().get(path) {
            return Ok(found.clone());
        }
        let found = fs::symlink_metadata(path)?;
        self.found.borrow_mut().insert(path.to_owned(), found.clone());
        Ok(found)
    }
}

/// The most symbolic links of one path, as in the kernel.
const MAX_LINKS: usize = 40;

impl Person {
    pub fn new(name: impl Into<String>, uid: u32, groups: Vec<u32>) -> Person {
        Person { name: name.into(), uid, groups }
    }

    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The primary group, if it is known.
    pub fn gid(&self) -> Option<u32> {
        self.groups.first().copied()
    }

    /// The user of this process.
    pub fn current() -> Person {
        let uid = Uid::effective();
        let name =
            User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
        let others = getgroups().unwrap_or_default();
        let groups = std::iter::once(Gid::effective()).chain(others).map(Gid::as_raw).collect();
        Person { name, uid: uid.as_raw(), groups }
    }

    /// The user that a process of `identity` has, which this process would start.
    pub fn of(identity: &Identity) -> Person {
        let own = Person::current();
        let (uid, name) = identity.user.clone().unwrap_or((own.uid, own.name));
        let primary = identity.group;
        let others = match CString::new(name.as_str()) {
            Ok(login) if !identity.alone => {
                let of = Gid::from_raw(primary.unwrap_or_default());
                getgrouplist(&login, of).unwrap_or_default()
            }
            _ => Vec::new(),
        };
        let groups = primary.into_iter().chain(others.into_iter().map(Gid::as_raw)).collect();
        Person { name, uid, groups }
    }

    /// The user that these keys of a configuration name, as [`Identity::look_up`] finds it.
    pub fn named(user: Option<&str>, group: Option<&str>) -> Option<Person> {
        match Identity::look_up("", user, group).ok()? {
            Some(identity) => Some(Person::of(&identity)),
            None => Some(Person::current()),
        }
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Both have the same user, so each may do everything that the other may.
    pub fn is_same_user(&self, other: &Person) -> bool {
        self.uid == other.uid
    }

    /// The component of `path` that keeps this user from it: a directory above it, or the path
    /// itself. `None` if nothing does, if the path does not exist, or if this process cannot see.
    pub fn obstacle(&self, path: &Path, right: Right) -> Option<PathBuf> {
        self.obstacle_after(&Seen::default(), path, right)
    }

    fn obstacle_after(&self, seen: &Seen, path: &Path, right: Right) -> Option<PathBuf> {
        let mut obstacle = None;
        let end = walk(seen, path, &mut |dir, found| {
            // Only a directory has something below it, and to pass through it is to search it.
            if !found.is_dir() || seen.entered.borrow().contains(dir) {
                return true;
            }
            let enters = self.may_use(dir, found, 1);
            if enters {
                seen.entered.borrow_mut().insert(dir.to_owned());
            } else {
                obstacle = Some(dir.to_owned());
            }
            enters
        });
        if obstacle.is_some() {
            return obstacle;
        }
        let end = end?;
        let found = seen.symlink_metadata(&end).ok()?;
        let bits = match right {
            Right::Read if found.is_dir() => 5,
            Right::Read => 4,
            Right::Write if found.is_dir() => 3,
            Right::Write => 2,
            Right::Run => 1,
        };
        let mount = || statvfs(&end).map_or(StatVfsMountFlags::empty(), |found| found.f_flag);
        let is_barred = !self.may_use(&end, &found, bits)
            || right == Right::Write
                && (found.is_dir() || found.is_file())
                && mount().contains(StatVfsMountFlags::RDONLY)
            || right == Right::Run
                && found.is_file()
                && mount().contains(StatVfsMountFlags::NOEXEC);
        is_barred.then_some(end)
    }

    /// Says what keeps this user from `path` and how to permit it, if something does.
    pub fn refusal(&self, path: &Path, right: Right) -> Option<Refusal> {
        self.refusal_after(&Seen::default(), path, right)
    }

    /// As [`Self::refusal`], for one of many paths. `seen` must be of this user alone.
    pub fn refusal_after(&self, seen: &Seen, path: &Path, right: Right) -> Option<Refusal> {
        let at = self.obstacle_after(seen, path, right)?;
        let verb = match right {
            Right::Read => "read",
            Right::Write => "write to",
            Right::Run if path.is_dir() => "enter",
            Right::Run => "run",
        };
        let is_path = fs::canonicalize(path).is_ok_and(|real| real == at);
        let (name, path) = (&self.name, path.display());
        let is_directory = at.is_dir();
        let message = if is_path {
            format!("{name} may not {verb} {path}")
        } else {
            format!("{name} may not {verb} {path}: it may not enter {}", at.display())
        };
        let letters = match (is_path, right) {
            (true, Right::Read) if is_directory => "rx",
            (true, Right::Read) => "r",
            (true, Right::Write) if is_directory => "wx",
            (true, Right::Write) => "w",
            _ => "x",
        };
        let at = at.display();
        let command = match right {
            Right::Write if is_path => format!("chown {name} {at}"),
            _ => format!("chmod o+{letters} {at}"),
        };
        let help = format!(
            "permit it to {name} alone with: setfacl -m u:{name}:{letters} {at}; or with: {command}"
        );
        Some(Refusal { message, help, command })
    }

    fn may_use(&self, path: &Path, found: &Metadata, bits: u32) -> bool {
        if self.uid == 0 {
            // Root needs a run bit of somebody to run a file, and nothing else.
            return bits != 1 || found.is_dir() || found.mode() & 0o111 != 0;
        }
        let mut list = [0; 4096];
        match getxattr(path, "system.posix_acl_access", &mut list) {
            Ok(length) => self.may_by_list(&list[..length], found, bits),
            Err(_) => {
                let shift = if found.uid() == self.uid {
                    6
                } else if self.groups.contains(&found.gid()) {
                    3
                } else {
                    0
                };
                found.mode() >> shift & bits == bits
            }
        }
    }

    /// Evaluates an access list, as acl(5) describes it. The first four bytes are its version.
    fn may_by_list(&self, list: &[u8], found: &Metadata, bits: u32) -> bool {
        const OWNER: u16 = 1;
        const USER: u16 = 2;
        const OWN_GROUP: u16 = 4;
        const GROUP: u16 = 8;
        const MASK: u16 = 16;
        const OTHERS: u16 = 32;
        let entries: Vec<(u16, u32, u32)> = list
            .get(4..)
            .unwrap_or_default()
            .chunks_exact(8)
            .map(|entry| {
                let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
                let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
                (half(0), u32::from(half(2)), id)
            })
            .collect();
        let of_tag = |tag| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
        let grants = |rights: u32| rights & bits == bits;
        if found.uid() == self.uid {
            return of_tag(OWNER).is_none_or(grants);
        }
        let mask = of_tag(MASK).unwrap_or(7);
        let own = entries.iter().find(|entry| entry.0 == USER && entry.2 == self.uid);
        if let Some((_, rights, _)) = own {
            return grants(rights & mask);
        }
        let is_member = |&&(tag, _, id): &&(u16, u32, u32)| match tag {
            OWN_GROUP => self.groups.contains(&found.gid()),
            GROUP => self.groups.contains(&id),
            _ => false,
        };
        let mut of_groups = entries.iter().filter(is_member).peekable();
        if of_groups.peek().is_some() {
            return of_groups.any(|(_, rights, _)| grants(rights & mask));
        }
        of_tag(OTHERS).is_none_or(grants)
    }
}

/// What a user may not do, and how to permit it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub message: String,
    pub help: String,
    /// A command that permits it.
    pub command: String,
}

/// The first component of `path`, a link or a link's target among them, that somebody other than
/// root and the user of this process could change or replace. `None` if there is none. An error of
/// the system counts: what cannot be examined cannot be trusted.
pub fn changeable_by_others(path: &Path) -> Option<PathBuf> {
    let (uid, gid) = (Uid::effective().as_raw(), Gid::effective().as_raw());
    let is_own = |found: &Metadata| {
        let mode = found.mode();
        // In a directory with the sticky bit, users cannot replace what belongs to others. A user's
        // own group is usually the user alone.
        let is_open = mode & 0o002 != 0 || mode & 0o020 != 0 && found.gid() != gid;
        (found.uid() == 0 || found.uid() == uid)
            && (found.is_symlink() || !is_open || found.is_dir() && mode & 0o1000 != 0)
    };
    let mut other = None;
    let end = walk(&Seen::default(), path, &mut |part, found| {
        if !is_own(found) {
            other = Some(part.to_owned());
        }
        other.is_none()
    });
    let Some(end) = end else { return other.or_else(|| Some(path.to_owned())) };
    match fs::symlink_metadata(&end) {
        Ok(found) if is_own(&found) => None,
        _ => Some(end),
    }
}

/// Visits each directory and link that the kernel passes on its way to `path`, the root first.
/// Returns what the path leads to, which may not exist. Returns `None` if `visit` returned false,
/// or if the way cannot be followed.
fn walk(
    seen: &Seen,
    path: &Path,
    visit: &mut dyn FnMut(&Path, &Metadata) -> bool,
) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    let words = |path: &Path| -> Vec<OsString> {
        let parts = path.components().filter(|part| !matches!(part, Component::CurDir));
        let mut words: Vec<_> = parts.map(|part| part.as_os_str().to_owned()).collect();
        words.reverse();
        words
    };
    let (mut rest, mut at, mut links) = (words(&path), PathBuf::from("/"), 0);
    while let Some(word) = rest.pop() {
        if word == "/" {
            at = PathBuf::from("/");
            continue;
        }
        if !visit(&at, &seen.symlink_metadata(&at).ok()?) {
            return None;
        }
        if word == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&word);
        match seen.symlink_metadata(&next) {
            Ok(found) if found.is_symlink() => {
                links += 1;
                if links > MAX_LINKS || !visit(&next, &found) {
                    return None;
                }
                rest.extend(words(&fs::read_link(&next).ok()?));
            }
            Ok(_) => at = next,
            Err(_) => return None,
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A user that is neither root nor the owner of the test's files.
    fn stranger() -> Person {
        Person { name: "stranger".into(), uid: 4_000_000, groups: vec![4_000_001] }
    }

    #[test]
    fn each_component_of_a_path_can_stop_a_user() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (inner, file, link) = (dir.join("inner"), dir.join("inner/file"), dir.join("link"));
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "").unwrap();
        symlink("inner/../inner/file", &link).unwrap();
        let (r, w, x) = (Right::Read, Right::Write, Right::Run);
        for (of_dir, of_inner, of_file, right, stopped) in [
            (0o711, 0o711, 0o644, r, None),
            (0o711, 0o711, 0o640, r, Some(&file)),
            (0o711, 0o710, 0o644, r, Some(&inner)),
            (0o700, 0o711, 0o644, r, Some(&dir)),
            (0o711, 0o711, 0o644, w, Some(&file)),
            (0o711, 0o711, 0o666, w, None),
            (0o711, 0o711, 0o644, x, Some(&file)),
            (0o711, 0o711, 0o755, x, None),
        ] {
            mode(&dir, of_dir);
            mode(&inner, of_inner);
            mode(&file, of_file);
            for path in [&file, &link] {
                let case = format!("{of_dir:o} {of_inner:o} {of_file:o} {right:?}");
                assert_eq!(stranger().obstacle(path, right).as_ref(), stopped, "{case}");
            }
        }
        mode(&dir, 0o700);
        mode(&file, 0o600);
        let member =
            Person { uid: 1, groups: vec![fs::metadata(&file).unwrap().gid()], ..stranger() };
        assert_eq!(member.obstacle(&file, r), Some(dir.clone()));
        mode(&dir, 0o710);
        mode(&inner, 0o710);
        mode(&file, 0o640);
        assert_eq!(member.obstacle(&file, r), None);
        assert_eq!(Person::current().obstacle(&file, r), None);
        assert_eq!(stranger().obstacle(&dir.join("none"), r), Some(dir.clone()));
        let refusal = stranger().refusal(&link, r).unwrap();
        assert!(
            refusal.message.contains(&format!("may not enter {}", dir.display())),
            "{refusal:?}"
        );
        assert!(refusal.help.contains("chmod o+x"), "{refusal:?}");
    }

    #[test]
    fn an_access_list_grants_what_the_mode_does_not_show() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = file.as_file().metadata().unwrap();
        let list = |entries: &[(u16, u16, u32)]| {
            let mut bytes = 2u32.to_le_bytes().to_vec();
            for (tag, rights, id) in entries {
                bytes.extend(tag.to_le_bytes());
                bytes.extend(rights.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
            bytes
        };
        let (user, group) = (4_000_000, 4_000_001);
        for (entries, may) in [
            (vec![(1, 6, 0), (2, 4, user), (4, 0, 0), (16, 4, 0), (32, 0, 0)], true),
            (vec![(1, 6, 0), (2, 4, user), (4, 0, 0), (16, 0, 0), (32, 0, 0)], false),
            (vec![(1, 6, 0), (2, 0, user), (4, 0, 0), (16, 7, 0), (32, 4, 0)], false),
            (vec![(1, 6, 0), (4, 0, 0), (8, 4, group), (16, 7, 0), (32, 0, 0)], true),
            (vec![(1, 6, 0), (4, 0, 0), (8, 0, group), (16, 7, 0), (32, 4, 0)], false),
            (vec![(1, 6, 0), (4, 0, 0), (16, 7, 0), (32, 4, 0)], true),
            (vec![(1, 6, 0), (4, 7, 0), (16, 7, 0), (32, 0, 0)], false),
        ] {
            assert_eq!(stranger().may_by_list(&list(&entries), &found, 4), may, "{entries:?}");
        }
        stranger().may_by_list(&[], &found, 4);
    }

    #[test]
    fn what_others_can_change_is_found_on_the_whole_way() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (inner, file, link) = (dir.join("inner"), dir.join("inner/file"), dir.join("link"));
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "").unwrap();
        symlink("inner/file", &link).unwrap();
        mode(&inner, 0o755);
        mode(&file, 0o644);
        for path in [&file, &link] {
            assert_eq!(changeable_by_others(path), None);
            for (part, open, closed) in [(&file, 0o666, 0o644), (&inner, 0o777, 0o755)] {
                mode(part, open);
                assert_eq!(changeable_by_others(path).as_ref(), Some(part));
                mode(part, closed);
            }
            mode(&inner, 0o1777);
            assert_eq!(changeable_by_others(path), None);
            mode(&inner, 0o755);
        }
        assert!(changeable_by_others(&dir.join("none")).is_some());
    }
}
