//! Opens the file of an access log.
//!
//! The callers are the server at start and on reload, the writer on SIGUSR1, and the process that
//! stays root to open logs (`log_opener`).
//!
//! The directory may belong to the server's unprivileged user or to another user. Therefore root
//! follows only symbolic links that root owns, and refuses files with a second hard link.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fcntl_setfl, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Number of paths that `resolve` examines, one after the other. So at most 7 symbolic links may
/// lead from one to the next.
const LINKS: usize = 8;

const NOT_REGULAR: &str = "neither a regular file nor a character device; remove it, name another \
                           file, or log to standard output with access = \"stdout\"";
const SECOND_NAME: &str = "it has a second name (a hard link), so it may be another file than the \
                           log; remove it, or name another file";

/// User id and group id.
pub type Owner = (u32, u32);

/// Opens the log for appending, or creates a log file for `owner`. Never blocks on a FIFO.
pub fn open(path: &Path, owner: Option<Owner>) -> io::Result<File> {
    if let Some(output) = standard_output(path) {
        return output.map(File::from);
    }
    if geteuid().is_root() {
        let path = resolve(path)?;
        let name = path.file_name().ok_or(Errno::ISDIR)?;
        return open_at(open_dir(&path)?, name.as_ref(), owner);
    }
    // Without root, no check of symbolic links is needed: the process can only open files that its
    // user may open.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(path);
    let file = file.map_err(explain)?;
    check_kind(&file.metadata()?)?;
    blocking(file)
}

/// Returns an error if `open` would refuse the kind of the existing file. Opens nothing.
pub fn check(path: &Path) -> io::Result<()> {
    if standard_output(path).is_some() {
        return Ok(());
    }
    let path = if geteuid().is_root() { &resolve(path)? } else { path };
    // If the file is inaccessible, the later attempt to open it reports this.
    std::fs::metadata(path).map_or(Ok(()), |found| check_kind(&found))
}

/// Returns the path of the file that the symbolic link at `path` leads to, also through further
/// links. Returns `path` itself if it is no link. Fails at a link that root does not own.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Ok(found) = std::fs::symlink_metadata(&path) else { return Ok(path) };
        if !found.is_symlink() {
            return Ok(path);
        }
        if found.uid() != 0 {
            return Err(io::Error::other(format!(
                "a symbolic link that belongs to user {}, which root does not follow; make it \
                 root's (chown -h root), or name what it leads to",
                found.uid()
            )));
        }
        let to = std::fs::read_link(&path)?;
        path.pop();
        path.push(to);
    }
    Err(Errno::LOOP.into())
}

/// Opens the directory of the log as an `O_PATH` descriptor. If this process is root, fails if a
/// part of the path is a link that root does not own.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    if !geteuid().is_root() {
        return Ok(rustix::fs::open(parent, flags | OFlags::DIRECTORY, Mode::empty())?);
    }
    let mut left = Vec::new();
    push_parts(&mut left, parent);
    let start = if parent.is_absolute() { "/" } else { "." };
    let mut dir = rustix::fs::open(start, flags | OFlags::DIRECTORY, Mode::empty())?;
    let mut links = 0;
    while let Some(part) = left.pop() {
        let next = openat(&dir, &part, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let found = rustix::fs::fstat(&next)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => dir = next,
            FileType::Symlink if links == LINKS => return Err(Errno::LOOP.into()),
            FileType::Symlink if found.st_uid != 0 => {
                let message = format!(
                    "the directory is reached through {}, a symbolic link that belongs to user {}; \
                     make it root's (chown -h root), or name what it leads to",
                    part.display(),
                    found.st_uid
                );
                return Err(io::Error::other(message));
            }
            FileType::Symlink => {
                links += 1;
                let to = readlinkat(&next, "", Vec::new())?;
                let to = Path::new(OsStr::from_bytes(to.as_bytes()));
                if to.is_absolute() {
                    dir = rustix::fs::open("/", flags | OFlags::DIRECTORY, Mode::empty())?;
                }
                push_parts(&mut left, to);
            }
            _ => return Err(Errno::NOTDIR.into()),
        }
    }
    Ok(dir)
}

/// Puts the parts of a path on a stack, the first one on top.
fn push_parts(stack: &mut Vec<PathBuf>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        _ => None,
    });
    stack.extend(parts);
}

/// Opens or creates the log `name` in the open directory `dir` for root. Follows no symbolic link.
pub fn open_at(dir: impl AsFd, name: &Path, owner: Option<Owner>) -> io::Result<File> {
    open_with_mode(dir, name, owner, 0o666)
}

/// Works as [`open_at`]. A new file has at most the permissions of `mode`.
pub fn open_with_mode(
    dir: impl AsFd,
    name: &Path,
    owner: Option<Owner>,
    mode: u32,
) -> io::Result<File> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let made = OFlags::CREATE | OFlags::EXCL;
    match openat(&dir, name, flags | made, Mode::from_raw_mode(mode & 0o666)) {
        Ok(file) => {
            if let Some((user, group)) = owner {
                fchown(&file, Some(user), Some(group))?;
            }
            Ok(file.into())
        }
        Err(Errno::EXIST) => {
            let file = openat(&dir, name, flags, Mode::empty());
            let file = File::from(file.map_err(|error| explain(error.into()))?);
            let found = file.metadata()?;
            check_kind(&found)?;
            let is_owners = owner.is_some_and(|(user, _)| user == found.uid());
            if found.is_file() && found.nlink() != 1 && !is_owners {
                return Err(io::Error::other(SECOND_NAME));
            }
            blocking(file)
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns a copy of the descriptor of standard output or error, if `path` names one of them.
fn standard_output(path: &Path) -> Option<io::Result<OwnedFd>> {
    // If the output is a pipe or a socket, the process cannot always open it by its name, so copy
    // the descriptor.
    match path.to_str()? {
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => {
            Some(io::stdout().as_fd().try_clone_to_owned())
        }
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => {
            Some(io::stderr().as_fd().try_clone_to_owned())
        }
        _ => None,
    }
}

fn check_kind(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    let is_fit = kind.is_file() || kind.is_char_device();
    if is_fit { Ok(()) } else { Err(io::Error::other(NOT_REGULAR)) }
}

/// Replaces ENXIO by a clear message. The kernel returns ENXIO for a socket, and for a FIFO without
/// a reader.
fn explain(error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => io::Error::other(NOT_REGULAR),
        _ => error,
    }
}

/// Clears O_NONBLOCK, which is needed only during the open. Later writes may block, for example to
/// a terminal.
fn blocking(file: File) -> io::Result<File> {
    fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn root_follows_only_its_own_links_to_the_directory_of_a_log() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir_all(at("real/logs")).unwrap();
        symlink("real", at("link")).unwrap();
        symlink(at("real"), at("absolute")).unwrap();
        symlink("loop", at("loop")).unwrap();
        for dir in ["real/logs", "link/logs", "absolute/logs", "real/../link/logs"] {
            assert!(open_dir(&at(dir).join("a.log")).is_ok(), "{dir}");
        }
        assert!(open_dir(&at("loop/logs/a.log")).is_err());
        assert!(open_dir(Path::new("a.log")).is_ok());
        if geteuid().is_root() {
            lchown(at("link"), Some(65534), None).unwrap();
            let refused = open_dir(&at("link/logs/a.log")).unwrap_err().to_string();
            assert!(refused.contains("belongs to user 65534"), "{refused}");
        }
    }
}
