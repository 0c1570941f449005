//! A small process that stays root and starts applications under their own users, for a gateway
//! that has dropped root (as in OpenSSH's privilege separation).
//!
//! The gateway runs as the `user` of `[server]`, so that scripts that run as other users cannot
//! signal it. The gateway therefore cannot start processes as those users. Before the gateway drops
//! root, it starts the helper (`forebay __helper`) with the users of the configuration. These users
//! never include root. The only others are owners of directories that it finds itself
//! (`helper/owners.rs`).
//!
//! The helper checks each message, so that an attacker who controls the gateway gains only the
//! rights of these users. Environment and directory apply only after the change of user:
//! `LD_PRELOAD` would otherwise run code as root.
//!
//! For a program that listens by itself, the helper starts a guardian, and makes the program's
//! private directory (`helper/room.rs`). The guardian stays root, so that the program's user cannot
//! kill it.
//!
//! Each request to the helper contains a socket, over which the helper reports the start and the
//! end of the process. Over this socket, the gateway also sends orders: to kill the process group,
//! or to reap the process. If the gateway closes the socket, the helper kills the group. When the
//! helper ends, its processes end as well, except guardians, which depend only on the gateway.

mod child;
mod message;
mod owners;
mod room;
mod server;

pub use child::{Child, HelpedChild, Starting};
pub use owners::Owners;
pub(crate) use room::share_socket;
pub use server::{VERB as HELPER, help};

use crate::cgroup::CgroupLimits;
use crate::{Connection, Identity, Keeps, Launch, RootCommand, RootProcess, StartError};
use message::{GroupRequest, LaunchRequest, MOST_BYTES, RoomRequest};
use nix::unistd::Uid;
use room::Rooms;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

static HELPER_OF_THIS_PROCESS: OnceLock<Helper> = OnceLock::new();

/// The gateway's connection to the helper: a root process that starts processes as other users.
/// Contains the users that the helper accepts.
#[derive(Debug)]
pub struct Helper {
    process: RootProcess,
    users: Vec<Identity>,
    owners: Vec<Owners>,
    rooms: Rooms,
}

/// A program for the helper to start.
#[derive(Debug)]
pub struct HelpedLaunch<'a> {
    /// Limits, control group, user and arguments.
    pub launch: &'a Launch,
    /// Directory of the program.
    pub dir: &'a Path,
    /// All variables of the program's environment.
    pub env: Vec<(OsString, OsString)>,
    /// Three or four descriptors, which the program gets from 0 on. A guardian gets three.
    pub descriptors: &'a [BorrowedFd<'a>],
}

/// A private directory for a program that listens by itself.
#[derive(Debug)]
pub struct HelpedRoom {
    name: String,
    path: PathBuf,
}

impl Helper {
    /// Starts the helper of this process for these users and owners of directories. `group` is the group that the gateway has
    /// after it drops root. This group may connect to the programs of these users. Call this as
    /// root, once.
    ///
    /// # Errors
    /// Fails if the process cannot be started, or if one of the users is root.
    pub fn start(users: Vec<Identity>, owners: Vec<Owners>, group: u32) -> io::Result<()> {
        if !users.iter().all(is_for_helper) {
            return Err(io::Error::other("the helper starts no process as root"));
        }
        let rooms = Rooms::new(group);
        let words = users.iter().map(|user| OsString::from(message::user_word(user)));
        let words = words.chain(owners.iter().map(Owners::word));
        let process = RootProcess::start(&RootCommand {
            verb: server::VERB,
            arguments: std::iter::once(rooms.word()).chain(words).collect(),
            purpose: "applications and scripts with their own `user`, which end with it",
            // A message contains the environment of a request.
            connection: Connection::Messages(MOST_BYTES),
            keeps: Keeps::Nothing,
            has_stderr: true,
        })?;
        let helper = Helper { process, users, owners, rooms };
        HELPER_OF_THIS_PROCESS.set(helper).map_err(|_| io::Error::other("there is a helper"))
    }

    /// Returns the helper of this process. Returns `None` if there is no helper, or if this process
    /// is root and does not need one.
    pub fn get() -> Option<&'static Helper> {
        HELPER_OF_THIS_PROCESS.get().filter(|_| !Uid::effective().is_root())
    }

    /// Returns the helper's process id. The helper is the parent of all processes that it starts.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the identity of `app`. Returns `None` if the application has neither user nor group
    /// of its own. Fails if a name is unknown, or if the helper may not start processes of this
    /// user and group.
    pub(crate) fn find(
        &self,
        app: &str,
        user: Option<&str>,
        group: Option<&str>,
    ) -> Result<Option<Identity>, StartError> {
        let found = Identity::look_up(app, user, group)?;
        let Some(identity) = found else { return Ok(None) };
        // The helper looks at the directories of an owner whom it does not know yet.
        let may_be_owner = !self.owners.is_empty() && !identity.alone && is_for_helper(&identity);
        if may_be_owner || self.users.iter().any(|known| is_same(known, &identity)) {
            return Ok(Some(identity));
        }
        let error = match &identity.user {
            None => StartError::new(app, "a `group` alone needs a Forebay that runs as root")
                .help("give `user` as well, or take `group` out")
                .at(&["group"]),
            Some((0, _)) => StartError::new(
                app,
                "no process is started as root for a gateway \
                                                  that has given root up",
            )
            .at(&["user"]),
            Some((_, name)) => StartError::new(
                app,
                format!("no application was to run as {name} when Forebay started"),
            )
            .help("restart Forebay: those that may be started are fixed before it gives root up")
            .at(&["user"]),
        };
        Err(error)
    }

    /// Sends a request to start a program.
    ///
    /// # Errors
    /// Fails if the helper has ended, or if the request is too large.
    pub fn launch(&self, launch: &HelpedLaunch<'_>) -> io::Result<Starting> {
        self.send(&launch.request().encode()?, launch.descriptors)
    }

    /// Chooses the name and the path of a new room, the private directory of a program. The room
    /// does not exist yet: the helper makes the room when it starts the program.
    pub fn new_room(&self) -> HelpedRoom {
        let name = room::new_name();
        let path = self.rooms.path.join(&name);
        HelpedRoom { name, path }
    }

    /// Sends a request to start a program that listens by itself. The started child is the
    /// program's guardian. The helper writes `files` into the room. The guardian passes its
    /// descriptor 1, the listening socket if any, to the program.
    ///
    /// # Errors
    /// Fails if the helper has ended, or if the request is too large.
    pub fn launch_program(
        &self,
        launch: &HelpedLaunch<'_>,
        room: &HelpedRoom,
        files: Vec<(String, String)>,
    ) -> io::Result<Starting> {
        let room = RoomRequest { name: room.name.clone(), files };
        self.send(&room.encode(&launch.request())?, launch.descriptors)
    }

    /// Asks the helper to make a control group, and returns its path.
    pub(crate) fn make_group(&self, app: &str, limits: CgroupLimits) -> Result<PathBuf, String> {
        let request = GroupRequest { app: app.to_owned(), limits };
        let answer = request.encode().and_then(|bytes| self.send(&bytes, &[]));
        answer.and_then(Starting::group).map_err(|error| error.to_string())
    }

    /// Sends a message and descriptors to the helper. The first descriptor is a new socket, on
    /// which the helper answers.
    fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<Starting> {
        let flags = SocketFlags::CLOEXEC;
        let (status, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let mut passed = vec![theirs.as_fd()];
        passed.extend(descriptors);
        let mut space =
            [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(message::MOST_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&passed));
        let gone = || io::Error::other("the helper that starts it has ended; try again");
        let socket = self.process.socket()?;
        sendmsg(&*socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).map_err(
            |error| match error {
                rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => gone(),
                error => error.into(),
            },
        )?;
        Ok(Starting::new(status))
    }
}

impl HelpedLaunch<'_> {
    fn request(&self) -> LaunchRequest {
        let options = self.launch.arguments();
        LaunchRequest { dir: self.dir.to_path_buf(), env: self.env.clone(), options }
    }
}

impl HelpedRoom {
    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns true if processes of both identities have the same rights.
fn is_same(one: &Identity, other: &Identity) -> bool {
    (&one.user, one.group, one.alone) == (&other.user, other.group, other.alone)
}

/// Returns true if `identity` has a user other than root.
fn is_for_helper(identity: &Identity) -> bool {
    identity.user.as_ref().is_some_and(|(user, _)| *user != 0)
}
