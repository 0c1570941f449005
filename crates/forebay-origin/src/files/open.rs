//! Opens a file below a root, under the root's rule for symbolic links.
//!
//! The checks use descriptors: Forebay opens a link, and reads its owner and its target from that
//! descriptor. So a change of the link in the meantime has no effect. The path of the root itself
//! may contain links.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};

use forebay_conf::Symlinks;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;

/// Maximum number of links in one path, as in Linux.
const MOST_LINKS: usize = 40;
/// Maximum number of attempts to open a name that changes between link and file.
const MOST_CHANGES: usize = 8;
/// Flags for reading. NONBLOCK is set, because a FIFO without a writer must not block the thread.
const READ: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
/// Flags for a directory that the path passes through.
const PASS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens `path` below `root`. `path` is relative and has no dot segments. Returns `ELOOP` for a
/// forbidden link.
pub fn open(root: &Path, path: &[u8], symlinks: Symlinks) -> io::Result<File> {
    let relative = plain(path)?;
    if symlinks == Symlinks::Always {
        let mut options = OpenOptions::new();
        return options.read(true).custom_flags(READ.bits() as i32).open(root.join(relative));
    }
    let root = openat(CWD, root, PASS, Mode::empty())?;
    open_below(root.as_fd(), path, symlinks)
}

/// Opens `path` below an open directory.
pub fn open_at(directory: &File, path: &[u8], symlinks: Symlinks) -> io::Result<File> {
    let relative = plain(path)?;
    if symlinks == Symlinks::Always {
        return Ok(openat(directory, relative, READ, Mode::empty())?.into());
    }
    open_below(directory.as_fd(), path, symlinks)
}

/// Returns the path if it consists of plain names. Any other path could leave the root.
fn plain(path: &[u8]) -> io::Result<&Path> {
    let relative = Path::new(OsStr::from_bytes(path));
    if relative.components().all(|part| matches!(part, Component::Normal(_))) {
        Ok(relative)
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn open_below(root: BorrowedFd<'_>, path: &[u8], symlinks: Symlinks) -> io::Result<File> {
    let whole = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(root, whole, READ, Mode::empty(), resolve) {
        Ok(file) => Ok(file.into()),
        Err(Errno::LOOP) if symlinks == Symlinks::Owner => walk_below(root, path, symlinks),
        // openat2 is not available: the kernel is older than 5.6, or a system call filter refuses
        // the call.
        Err(Errno::NOSYS | Errno::PERM) => walk_below(root, path, symlinks),
        Err(error) => Err(error.into()),
    }
}

fn walk_below(root: BorrowedFd<'_>, path: &[u8], symlinks: Symlinks) -> io::Result<File> {
    let mut walk = Walk { symlinks, links_left: MOST_LINKS };
    Ok(walk.path(root, path, READ)?.into())
}

/// Opens a path, one component after the other.
struct Walk {
    symlinks: Symlinks,
    links_left: usize,
}

impl Walk {
    /// Opens `path` relative to `start` with these flags.
    fn path(&mut self, start: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let mut at = match path.first() {
            Some(b'/') => openat(CWD, "/", PASS, Mode::empty())?,
            _ => start.try_clone_to_owned()?,
        };
        let flags = if path.ends_with(b"/") { flags | OFlags::DIRECTORY } else { flags };
        let mut parts = path.split(|&b| b == b'/').filter(|part| !part.is_empty()).peekable();
        if parts.peek().is_none() {
            return Ok(openat(&at, ".", flags, Mode::empty())?);
        }
        while let Some(part) = parts.next() {
            let flags = if parts.peek().is_some() { PASS } else { flags };
            at = self.part(at.as_fd(), part, flags)?;
        }
        Ok(at)
    }

    /// Opens one name of a directory. If the name is a link, opens the target.
    fn part(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        for _ in 0..MOST_CHANGES {
            let error = match openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
                // With O_DIRECTORY, O_NOFOLLOW returns ENOTDIR for a link, else ELOOP.
                Err(error @ (Errno::LOOP | Errno::NOTDIR)) => error,
                opened => return Ok(opened?),
            };
            let link = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let link = openat(directory, name, link, Mode::empty())?;
            let found = fstat(&link)?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Symlink => return self.follow(directory, &link, found.st_uid, flags),
                FileType::Directory => {}
                _ if error == Errno::NOTDIR => return Err(error.into()),
                _ => {}
            }
        }
        Err(Errno::LOOP.into())
    }

    /// Opens the target of a link, if `symlinks` and the owner of the link permit this. Otherwise
    /// returns `ELOOP`.
    fn follow(
        &mut self,
        directory: BorrowedFd<'_>,
        link: &OwnedFd,
        owner: u32,
        flags: OFlags,
    ) -> io::Result<OwnedFd> {
        if self.symlinks == Symlinks::Never || self.links_left == 0 {
            return Err(Errno::LOOP.into());
        }
        self.links_left -= 1;
        let text = readlinkat(link, "", Vec::new())?;
        let opened = self.path(directory, text.as_bytes(), flags)?;
        if owner == 0 || owner == fstat(&opened)?.st_uid {
            Ok(opened)
        } else {
            Err(Errno::LOOP.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::{lchown, symlink};
    use std::sync::mpsc::{TryRecvError, channel};

    use super::*;

    /// Calls `open` with and without openat2.
    fn both(root: &Path, path: &str, symlinks: Symlinks) -> Result<String, Errno> {
        let text = |file: io::Result<File>| {
            let error = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::NOENT);
            let mut text = String::new();
            file.map_err(error)?.read_to_string(&mut text).map_err(error)?;
            Ok(text)
        };
        let at = openat(CWD, root, PASS, Mode::empty()).unwrap();
        let walked = text(walk_below(at.as_fd(), path.as_bytes(), symlinks));
        let opened = text(open(root, path.as_bytes(), symlinks));
        assert_eq!(opened, walked, "{path} with {symlinks:?}");
        opened
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        std::fs::create_dir_all(path.join("root/sub")).unwrap();
        std::fs::write(path.join("root/sub/a"), "a").unwrap();
        std::fs::write(path.join("secret"), "secret").unwrap();
        for (target, link) in [
            ("sub/a", "to-a"),
            ("sub", "to-sub"),
            ("../secret", "out"),
            ("to-out/../../secret", "around"),
            ("sub", "to-out"),
            ("loop", "loop"),
            ("sub/a/", "a-as-directory"),
            ("nothing", "dangling"),
            ("to-a", "to-to-a"),
        ] {
            symlink(target, path.join("root").join(link)).unwrap();
        }
        symlink(path.join("secret"), path.join("root/absolute")).unwrap();
        dir
    }

    #[test]
    fn openat2_and_the_walk_open_the_same() {
        let dir = tree();
        let root = &dir.path().join("root");
        for (path, never, owner) in [
            ("sub/a", Ok("a"), Ok("a")),
            ("sub/a/", Err(Errno::NOTDIR), Err(Errno::NOTDIR)),
            ("sub/a/b", Err(Errno::NOTDIR), Err(Errno::NOTDIR)),
            ("sub/none", Err(Errno::NOENT), Err(Errno::NOENT)),
            ("to-a", Err(Errno::LOOP), Ok("a")),
            ("to-to-a", Err(Errno::LOOP), Ok("a")),
            ("to-sub/a", Err(Errno::LOOP), Ok("a")),
            ("out", Err(Errno::LOOP), Ok("secret")),
            ("around", Err(Errno::LOOP), Ok("secret")),
            ("absolute", Err(Errno::LOOP), Ok("secret")),
            ("loop", Err(Errno::LOOP), Err(Errno::LOOP)),
            ("dangling", Err(Errno::LOOP), Err(Errno::NOENT)),
            ("a-as-directory", Err(Errno::LOOP), Err(Errno::NOTDIR)),
            ("", Err(Errno::ISDIR), Err(Errno::ISDIR)),
            ("sub/", Err(Errno::ISDIR), Err(Errno::ISDIR)),
            ("to-sub/", Err(Errno::LOOP), Err(Errno::ISDIR)),
        ] {
            assert_eq!(both(root, path, Symlinks::Never), never.map(str::to_owned), "{path}");
            assert_eq!(both(root, path, Symlinks::Owner), owner.map(str::to_owned), "{path}");
        }
        for path in ["../secret", "sub/../../secret", "/etc/passwd", "./sub/a"] {
            let opened = open(root, path.as_bytes(), Symlinks::Always);
            assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::NotFound, "{path}");
        }
    }

    #[test]
    fn the_owner_of_each_link_is_compared_with_that_of_what_it_leads_to() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tree();
        let root = &dir.path().join("root");
        let own = |path: &str, user: u32| lchown(root.join(path), Some(user), None).unwrap();
        own("to-a", 1001);
        assert_eq!(both(root, "to-a", Symlinks::Owner), Err(Errno::LOOP));
        assert_eq!(both(root, "to-to-a", Symlinks::Owner), Err(Errno::LOOP), "a link on the way");
        own("sub/a", 1001);
        assert_eq!(both(root, "to-a", Symlinks::Owner), Ok("a".into()));
        assert_eq!(both(root, "to-to-a", Symlinks::Owner), Ok("a".into()), "a link of root's");
        own("to-a", 1002);
        assert_eq!(both(root, "to-a", Symlinks::Owner), Err(Errno::LOOP));
        own("to-sub", 1001);
        assert_eq!(both(root, "to-sub/a", Symlinks::Owner), Err(Errno::LOOP), "a directory");
    }

    #[test]
    fn a_link_that_is_flipped_is_never_followed() {
        let dir = tree();
        let root = dir.path().join("root");
        std::fs::write(root.join("plain"), "inside").unwrap();
        symlink("../secret", root.join("link")).unwrap();
        // The sender is dropped after the last check, even if a check fails.
        let (are_going_on, until) = channel::<()>();
        std::thread::scope(|scope| {
            let names = [root.join("plain"), root.join("link")];
            scope.spawn(move || {
                while until.try_recv() == Err(TryRecvError::Empty) {
                    let flip = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(CWD, &names[0], CWD, &names[1], flip).unwrap();
                }
            });
            let at = openat(CWD, &root, PASS, Mode::empty()).unwrap();
            for _ in 0..5_000 {
                let walked = walk_below(at.as_fd(), b"plain", Symlinks::Never);
                for file in [walked, open(&root, b"plain", Symlinks::Never)] {
                    let mut text = String::new();
                    if let Ok(mut file) = file {
                        file.read_to_string(&mut text).unwrap();
                        assert_eq!(text, "inside");
                    }
                }
            }
            drop(are_going_on);
        });
    }
}
