//! Directory of the entries: its checks, its lock and its files.
//!
//! Forebay opens the directory and its subdirectories once, without following symbolic links, and
//! names all files relative to these descriptors.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat, fchmod, flock, fstat, mkdirat,
    openat, renameat, statat, syncfs, unlinkat,
};
use rustix::io::Errno;

use super::super::resource_key::{ChangedKeys, Group, Key, KeyHash, MOST_REMOVED};
use super::index::EntryName;

/// Number of directories that the entries are divided among.
const PARTS: usize = 64;
/// File that marks the directory as Forebay's. A process that uses the directory locks this file.
const MARKER: &str = "forebay-cache";
/// Directory of files that are being written or deleted.
const TEMPORARY: &str = "tmp";
const PRIVATE: Mode = Mode::RWXU;

/// The directory of the store on disk. The lock prevents its use by other processes.
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
    parts: Vec<OwnedFd>,
    temporary: OwnedFd,
    /// Number for the next temporary file.
    next: AtomicU64,
    _lock: OwnedFd,
}

/// A directory that passed the checks. Another process may still use it.
#[derive(Debug)]
pub struct UnlockedDirectory {
    root: OwnedFd,
    marker: OwnedFd,
}

/// A file that is being written, and has no final name yet.
#[derive(Debug)]
pub struct TemporaryFile {
    /// The file.
    pub file: File,
    name: String,
}

impl UnlockedDirectory {
    /// Opens or creates the directory. Refuses a directory of another user, and a directory with
    /// files but without the file `forebay-cache`. The error says what to change.
    pub fn open(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        match mkdirat(CWD, path, PRIVATE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => {
                return Err(format!(
                    "cannot create the directory {shown}: {error}; create it with mode 0700 for \
                     the user that Forebay runs as"
                ));
            }
        }
        let failed = |error: Errno| match error {
            Errno::LOOP | Errno::NOTDIR => {
                format!("{shown} is not a directory, or a symbolic link: name a directory")
            }
            error => format!("cannot use the directory {shown}: {error}"),
        };
        let root = open_directory(CWD, path).map_err(failed)?;
        let found = fstat(&root).map_err(failed)?;
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return Err(format!(
                "the directory {shown} belongs to another user: change its owner to the user that \
                 Forebay runs as"
            ));
        }
        if !is_ours(&root).map_err(|error| format!("cannot read {shown}: {error}"))? {
            return Err(format!(
                "the directory {shown} contains files that are not of a cache: name an empty or a \
                 new directory"
            ));
        }
        if found.st_mode & 0o077 != 0 {
            fchmod(&root, PRIVATE).map_err(failed)?;
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let flags = flags | OFlags::NONBLOCK;
        let marker = openat(&root, MARKER, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        Ok(Self { root, marker })
    }

    /// Locks the directory. Returns `Err(self)` if another process, or a former configuration of
    /// this process, uses the directory. Returns `Ok(Err(error))` if the directory cannot be used.
    pub fn lock(self) -> Result<io::Result<Directory>, Self> {
        match flock(&self.marker, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => Err(self),
            Err(error) => Ok(Err(error.into())),
            Ok(()) => Ok(Directory::prepare(self)),
        }
    }
}

impl Directory {
    fn prepare(UnlockedDirectory { root, marker }: UnlockedDirectory) -> io::Result<Self> {
        let part = |number: usize| open_or_create(&root, &format!("{number:02x}"));
        let parts = (0..PARTS).map(part).collect::<io::Result<_>>()?;
        let temporary = open_or_create(&root, TEMPORARY)?;
        // A crash may have left files here. These files belong to no entry, so delete them.
        for name in names(&temporary)? {
            let _ = unlinkat(&temporary, &*name, AtFlags::empty());
        }
        Ok(Self { root, parts, temporary, next: AtomicU64::new(0), _lock: marker })
    }

    /// Opens the file of an entry for reading. With `is_writable`, also opens it for writing, so
    /// that a soft purge can mark it. Returns an error if it is not a regular file.
    pub fn open(&self, name: &EntryName, is_writable: bool) -> io::Result<(File, Stat)> {
        let access = if is_writable { OFlags::RDWR } else { OFlags::RDONLY };
        // NONBLOCK is set, because a FIFO must not block the thread.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(self.part(&name.key), file_name(name), flags, Mode::empty())?;
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok((file.into(), found))
    }

    /// Returns the length of the file of an entry; `None` if there is no regular file.
    pub fn length(&self, name: &EntryName) -> Option<u64> {
        let part = self.part(&name.key);
        let found = statat(part, file_name(name), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        is_file.then(|| u64::try_from(found.st_size).ok())?
    }

    /// Creates a temporary file for a new entry. [`Self::publish`] later gives the file the name of
    /// the entry.
    pub fn create(&self) -> io::Result<TemporaryFile> {
        let name = self.temporary_name();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = openat(&self.temporary, &*name, flags | OFlags::CLOEXEC, mode)?;
        Ok(TemporaryFile { file: file.into(), name })
    }

    /// Makes a complete file the file of an entry. Replaces an existing file.
    pub fn publish(&self, temporary: &TemporaryFile, name: &EntryName) -> io::Result<()> {
        let part = self.part(&name.key);
        Ok(renameat(&self.temporary, &*temporary.name, part, file_name(name))?)
    }

    /// Removes a file that was not completed.
    pub fn discard(&self, temporary: &TemporaryFile) {
        let _ = unlinkat(&self.temporary, &*temporary.name, AtFlags::empty());
    }

    /// Removes the file of an entry, so that no process finds it any more. If the file is only
    /// renamed, returns its new name for [`Self::delete_hidden`]. Returns `None` if it is deleted.
    pub fn hide(&self, name: &EntryName) -> Option<String> {
        let hidden = self.temporary_name();
        let part = self.part(&name.key);
        let is_hidden = renameat(part, file_name(name), &self.temporary, &*hidden).is_ok();
        if is_hidden {
            return Some(hidden);
        }
        self.remove(name);
        None
    }

    /// Deletes a file that was hidden.
    pub fn delete_hidden(&self, hidden: &str) {
        let _ = unlinkat(&self.temporary, hidden, AtFlags::empty());
    }

    /// Removes the file of an entry.
    pub fn remove(&self, name: &EntryName) {
        let _ = unlinkat(self.part(&name.key), file_name(name), AtFlags::empty());
    }

    /// Returns an iterator that reads one subdirectory at each step. Each item has the entries of
    /// the subdirectory, and the number of files that are no entries.
    pub fn entries(&self) -> impl Iterator<Item = io::Result<(Vec<EntryName>, usize)>> {
        self.parts.iter().map(|part| {
            let (mut found, mut foreign) = (Vec::new(), 0);
            for name in names(part)? {
                let parsed = parse_name(name.as_bytes());
                match parsed.filter(|name| std::ptr::eq(self.part(&name.key), part)) {
                    Some(name) => found.push(name),
                    None => foreign += 1,
                }
            }
            Ok((found, foreign))
        })
    }

    /// Searches the directory, and returns the entries of changed resources. Omits the members of
    /// [`Group::Own`]: each subdirectory may have some, so the search would read the whole
    /// directory.
    pub fn changed_entries(&self, changes: &ChangedKeys) -> Vec<EntryName> {
        let keys: HashSet<_> = changes.keys.iter().map(Key::hash).collect();
        let mut changed = Vec::new();
        for group in &changes.groups {
            let Group::Plain(half) = group else { continue };
            let names = names(&self.parts[part_of(half)]).unwrap_or_default();
            let parsed = names.iter().filter_map(|name| parse_name(name.as_bytes()));
            let members: Vec<_> =
                parsed.filter(|name| group.hashes().contains(&name.key)).collect();
            let resources: HashSet<_> = members.iter().map(|name| name.key).collect();
            let is_small = resources.len() <= MOST_REMOVED;
            changed.extend(members.iter().filter(|name| is_small || keys.contains(&name.key)));
        }
        changed
    }

    /// Waits until all changes of the directory have reached the disk.
    pub fn sync(&self) -> io::Result<()> {
        Ok(syncfs(&self.root)?)
    }

    fn part(&self, key: &KeyHash) -> &OwnedFd {
        &self.parts[part_of(key)]
    }

    fn temporary_name(&self) -> String {
        format!("{:x}", self.next.fetch_add(1, Ordering::Relaxed))
    }
}

/// Returns the number of the subdirectory for a key. A plain key and its aliases are in the same
/// subdirectory.
fn part_of(hash: &[u8]) -> usize {
    usize::from(hash[0]) % PARTS
}

/// Checks, without changes, that the directory can be used or created. An error says why not.
pub fn examine(path: &Path) -> Result<(), String> {
    let shown = path.display();
    match open_directory(CWD, path) {
        Ok(root) if is_ours(&root).unwrap_or(true) => Ok(()),
        Ok(_) => Err(format!("{shown} contains files that are not of a cache")),
        Err(Errno::NOENT) => {
            let parent = path.parent().map_or_else(PathBuf::new, Path::to_path_buf);
            let is_there = parent.is_dir();
            if is_there { Ok(()) } else { Err(format!("{} does not exist", parent.display())) }
        }
        // The user of `forebay check` may lack permissions that the server has.
        Err(Errno::ACCESS) => Ok(()),
        Err(_) => Err(format!("{shown} is not a directory, or a symbolic link")),
    }
}

/// Returns true if the directory has the marker, or is empty except for `lost+found`.
fn is_ours(root: &OwnedFd) -> io::Result<bool> {
    let names = names(root)?;
    let is_marker = |name: &std::ffi::CString| name.as_bytes() == MARKER.as_bytes();
    Ok(names.iter().all(|name| name.as_bytes() == b"lost+found") || names.iter().any(is_marker))
}

fn open_directory(
    at: impl std::os::fd::AsFd,
    path: impl rustix::path::Arg,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

fn open_or_create(root: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match mkdirat(root, name, PRIVATE) {
        Ok(()) | Err(Errno::EXIST) => Ok(open_directory(root, name)?),
        Err(error) => Err(error.into()),
    }
}

/// Returns the names in a directory.
fn names(directory: &OwnedFd) -> io::Result<Vec<std::ffi::CString>> {
    let is_real = |name: &CStr| name != c"." && name != c"..";
    let mut found = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if is_real(entry.file_name()) {
            found.push(entry.file_name().to_owned());
        }
    }
    Ok(found)
}

/// Returns the name of an entry's file: the hashes of key and variant in hexadecimal.
fn file_name(name: &EntryName) -> String {
    format!("{:032x}-{:016x}", u128::from_be_bytes(name.key), name.variant)
}

fn parse_name(text: &[u8]) -> Option<EntryName> {
    let text = str::from_utf8(text).ok()?;
    let (key, variant) = text.split_once('-')?;
    let key = u128::from_str_radix(key, 16).ok()?.to_be_bytes();
    let name = EntryName { key, variant: u64::from_str_radix(variant, 16).ok()? };
    // Refuse other spellings of the hashes, such as those with upper-case digits.
    (file_name(&name) == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_of_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        symlink(dir.path(), &path).unwrap();
        assert!(UnlockedDirectory::open(&path).unwrap_err().contains("symbolic link"));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("letters.txt"), "dear").unwrap();
        let refusal = UnlockedDirectory::open(&path).unwrap_err();
        assert!(refusal.contains("not of a cache"), "{refusal}");
        assert!(examine(&path).is_err());
        std::fs::remove_file(path.join("letters.txt")).unwrap();
        examine(&path).unwrap();
        UnlockedDirectory::open(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(examine(&dir.path().join("absent/cache")).is_err());
    }

    #[test]
    fn one_user_at_a_time_and_no_links_inside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let open = || UnlockedDirectory::open(&path).unwrap();
        let first = open().lock().unwrap().unwrap();
        let second = open().lock().unwrap_err();
        drop(first);
        drop(second.lock().unwrap().unwrap());
        std::fs::remove_dir(path.join("3f")).unwrap();
        symlink(dir.path(), path.join("3f")).unwrap();
        assert!(open().lock().unwrap().is_err(), "a link is not followed");
    }

    #[test]
    fn only_one_spelling_names_an_entry() {
        let name = EntryName { key: [0xab; 16], variant: 7 };
        let text = file_name(&name);
        assert_eq!(parse_name(text.as_bytes()), Some(name));
        for wrong in [text.to_uppercase(), text.replace("-0", "-"), format!("{text}x")] {
            assert_eq!(parse_name(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse_name(b"+abababababababababababababababa-0000000000000007"), None);
    }
}
