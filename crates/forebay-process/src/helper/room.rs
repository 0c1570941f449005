//! Rooms: private directories that the helper makes for programs that listen by themselves.
//!
//! The program's user owns its room, because the program makes its socket there. The gateway's
//! group may enter the room, but cannot list or change it. The guardian gives the socket to that
//! group. Only root may change the directory that contains all rooms, so only the helper has made
//! the entries in it.

use super::message::RoomRequest;
use crate::Identity;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, access, chmod, chownat, fstat, mkdir,
    open, openat, statat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions, remove_dir_all};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// File name of the socket in a room.
const SOCKET: &str = "socket";
/// Mode of the directory of all rooms. Everyone may pass through it, because the owners of rooms
/// are different users.
const OF_ALL: u32 = 0o711;
/// Mode of a room. Owner and group may enter it. Only the owner may list and change it.
const OF_ROOM: u32 = 0o710;
/// Mode of a socket. Owner and group may connect to it.
const OF_SOCKET: u32 = 0o660;

/// The directory that contains all rooms, and the user group of the gateway. A room is the private
/// directory of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rooms {
    pub(super) path: PathBuf,
    pub(super) group: u32,
    /// True after the helper has made the directory.
    is_made: bool,
}

impl Rooms {
    /// Chooses the path of the directory, which the helper makes together with the first room.
    pub(super) fn new(group: u32) -> Rooms {
        let run = PathBuf::from("/run");
        let is_writable = access(&run, Access::WRITE_OK | Access::EXEC_OK).is_ok();
        let place = if is_writable { run } else { std::env::temp_dir() };
        Rooms { path: place.join(format!("forebay-{}", new_name())), group, is_made: false }
    }

    /// Encodes group and path as one argument of the helper: `GROUP:PATH`.
    pub(super) fn word(&self) -> OsString {
        let mut word = OsString::from(format!("{}:", self.group));
        word.push(&self.path);
        word
    }

    /// Parses an argument that [`word`](Rooms::word) has made. Returns `None` if the argument is
    /// invalid.
    pub(super) fn parse(word: &OsStr) -> Option<Rooms> {
        let word = word.as_bytes();
        let (group, path) = word.split_at(word.iter().position(|&byte| byte == b':')?);
        let group = str::from_utf8(group).ok()?.parse().ok()?;
        let path = PathBuf::from(OsString::from_vec(path[1..].to_vec()));
        path.is_absolute().then_some(Rooms { path, group, is_made: false })
    }

    /// Makes a room for a program of this user, with its files. The room belongs to root until it is
    /// complete, so the user cannot place a link in the room.
    pub(super) fn furnish(
        &mut self,
        request: &RoomRequest,
        owner: &Identity,
    ) -> io::Result<PathBuf> {
        self.make()?;
        let room = self.path.join(&request.name);
        // `mkdir` fails if the room exists. An existing room belongs to another program.
        mkdir(&room, Mode::RWXU)?;
        match self.fill(&room, request, owner) {
            Ok(()) => Ok(room),
            Err(error) => {
                let _ = remove_dir_all(&room);
                Err(error)
            }
        }
    }

    /// Returns true if the directory exists, and root has made it.
    fn is_of_root(&self) -> io::Result<bool> {
        let found = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_dir = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        Ok(is_dir && found.st_uid == 0)
    }

    /// Makes the directory of all rooms. An existing directory of another user is an error.
    fn make(&mut self) -> io::Result<()> {
        if !self.is_made {
            match mkdir(&self.path, Mode::RWXU) {
                // The helper before this one, which has ended, made it.
                Err(Errno::EXIST) if self.is_of_root()? => {}
                outcome => outcome?,
            }
            self.is_made = true;
            // Set the mode independently of the umask.
            chmod(&self.path, Mode::from_raw_mode(OF_ALL))?;
        }
        Ok(())
    }

    /// Writes the files, then gives the room to its owner.
    fn fill(&self, room: &Path, request: &RoomRequest, owner: &Identity) -> io::Result<()> {
        for (name, text) in &request.files {
            let path = room.join(name);
            let mut file = File::options().write(true).create_new(true).open(&path)?;
            file.write_all(text.as_bytes())?;
            // Everyone may read the file, because only the room's owner and the gateway can enter
            // the room.
            file.set_permissions(Permissions::from_mode(0o644))?;
        }
        let group = Gid::from_raw(self.group);
        let user = owner.user.as_ref().map(|(user, _)| Uid::from_raw(*user));
        chmod(room, Mode::from_raw_mode(OF_ROOM))?;
        Ok(chownat(CWD, room, user, Some(group), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Removes the directory, if no room is left.
    pub(super) fn remove(&self) {
        if self.is_made {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Returns a name that no other room has.
pub(super) fn new_name() -> String {
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// Lets the gateway's group connect to the socket that a program has made in its room. By default,
/// only the owner may connect to the socket of most programs.
///
/// Root runs this function in a directory of the program's user. So the function changes only a
/// socket of that user, and follows no link.
pub(crate) fn share_socket(room: &Path) -> io::Result<()> {
    let found = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let room = open(room, found | OFlags::DIRECTORY, Mode::empty())?;
    let socket = openat(&room, SOCKET, found, Mode::empty())?;
    let (owner, stat) = (fstat(&room)?, fstat(&socket)?);
    if !FileType::from_raw_mode(stat.st_mode).is_socket() || stat.st_uid != owner.st_uid {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let group = Gid::from_raw(owner.st_gid);
    chownat(&socket, "", None, Some(group), AtFlags::EMPTY_PATH)?;
    // The kernel cannot change the mode through an `O_PATH` descriptor, but it can through the
    // descriptor's name in /proc.
    let name = format!("/proc/self/fd/{}", socket.as_raw_fd());
    Ok(chmod(name, Mode::from_raw_mode(OF_SOCKET))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn identity() -> Identity {
        let user = rustix::process::getuid().as_raw();
        Identity { user: Some((user, String::new())), group: None, alone: false, env: Vec::new() }
    }

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_room_is_made_once_and_the_gateway_may_enter_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rooms");
        let group = rustix::process::getgid().as_raw();
        let mut rooms = Rooms { path: path.clone(), group, is_made: false };
        assert_eq!(Rooms::parse(&rooms.word()), Some(rooms.clone()));
        let files = vec![("a.conf".to_owned(), "text".to_owned())];
        let request = RoomRequest { name: new_name(), files };
        let room = rooms.furnish(&request, &identity()).unwrap();
        assert_eq!(mode(&path), 0o711);
        assert_eq!(mode(&room), 0o710);
        assert_eq!(std::fs::read_to_string(room.join("a.conf")).unwrap(), "text");
        assert!(rooms.furnish(&request, &identity()).is_err());
        assert!(room.exists(), "it is another program's");
        let mut others = Rooms { path, group, is_made: false };
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&others.path, Some(1), None).unwrap();
        }
        let request = RoomRequest { name: new_name(), ..request };
        assert!(others.furnish(&request, &identity()).is_err(), "its directory may be anybody's");
    }

    #[test]
    fn only_a_socket_is_handed_over() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join(SOCKET);
        assert!(share_socket(dir.path()).is_err());
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&file, &socket).unwrap();
        assert!(share_socket(dir.path()).is_err());
        std::fs::remove_file(&socket).unwrap();
        std::fs::hard_link(&file, &socket).unwrap();
        assert!(share_socket(dir.path()).is_err());
        assert_eq!(mode(&file), 0o600);
        std::fs::remove_file(&socket).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        share_socket(dir.path()).unwrap();
        assert_eq!(mode(&socket), 0o660);
    }
}
