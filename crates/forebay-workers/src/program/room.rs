//! The directory of a program's socket.

use forebay_process::Identity;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Creates a directory for the socket of a process. Only the user of the process can enter this
/// directory. Chooses a short path, because the kernel limits the length of a socket's path.
pub(super) fn make_room(identity: Option<&Identity>) -> io::Result<TempDir> {
    // Processes of another user cannot enter XDG_RUNTIME_DIR.
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| identity.is_none()).map(PathBuf::from);
    let places = [Some(PathBuf::from("/run")), own, Some(std::env::temp_dir())];
    let mut last = None;
    for place in places.into_iter().flatten() {
        let mut builder = tempfile::Builder::new();
        builder.prefix("forebay-").permissions(Permissions::from_mode(0o700));
        match builder.tempdir_in(&place) {
            Ok(room) => {
                give(room.path(), identity)?;
                return Ok(room);
            }
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| io::ErrorKind::NotFound.into());
    Err(io::Error::new(error.kind(), format!("cannot make a directory for its socket: {error}")))
}

/// Gives a file or directory to the user of a process.
pub(super) fn give(path: &Path, identity: Option<&Identity>) -> io::Result<()> {
    match identity {
        Some(identity) => chown(path, identity.user.as_ref().map(|user| user.0), identity.group),
        None => Ok(()),
    }
}
