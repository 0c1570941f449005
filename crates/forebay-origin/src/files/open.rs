//! Opening a file below a root, under its rule for symbolic links.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use forebay_conf::Symlinks;
use rustix::fs::OFlags;

/// Opens `path`, which is relative and free of dot segments, below `root`.
pub fn open(root: &Path, path: &[u8], symlinks: Symlinks) -> io::Result<File> {
    let relative = Path::new(OsStr::from_bytes(path));
    // Paths are clean by now; whatever is not a plain name would be a way out.
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let full = root.join(relative);
    if symlinks != Symlinks::Always {
        check_links(root, relative, symlinks)?;
    }
    let mut options = OpenOptions::new();
    // A FIFO without a writer must not hold up the thread.
    options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
    options.open(full)
}

fn check_links(root: &Path, relative: &Path, symlinks: Symlinks) -> io::Result<()> {
    let mut path = PathBuf::from(root);
    for part in relative.components() {
        path.push(part);
        let metadata = path.symlink_metadata()?;
        if !metadata.is_symlink() {
            continue;
        }
        let same_owner = || Ok::<_, io::Error>(metadata.uid() == path.metadata()?.uid());
        if symlinks == Symlinks::Never || !same_owner()? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    Ok(())
}
