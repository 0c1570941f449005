//! Gives up root's privileges.

use std::ffi::CString;
use std::fmt;

use forebay_process::MAY_BE_MEASURED;
use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setgroups, setuid};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Reason why privileges cannot be dropped.
#[derive(Debug)]
pub enum PrivilegeError {
    /// Only root can become another user.
    NotRoot,
    /// The user or group does not exist.
    Unknown(String),
    /// The system refused.
    System(Errno),
}

impl fmt::Display for PrivilegeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRoot => f.write_str(
                "cannot become another user: not started as root; start it as root, or take \
                 `user` and `group` out of [server]",
            ),
            Self::Unknown(who) => {
                write!(f, "there is no {who} on this machine; check [server] in the configuration")
            }
            Self::System(error) => write!(f, "cannot become another user: {}", error.desc()),
        }
    }
}

impl std::error::Error for PrivilegeError {}

/// Protects this process's memory, which contains keys and tokens, from other processes of the same
/// user.
///
/// Without the protection, a script of the same user could read `/proc/PID/mem` and
/// `/proc/PID/environ`. An exec and each change of the user end the protection. `forebay compare`
/// starts servers without the protection, because measuring tools of an unprivileged user need
/// access.
pub fn hide_memory() {
    if std::env::var_os(MAY_BE_MEASURED).is_none() {
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// Becomes `user` permanently. If `group` is given, the process has only this group, otherwise the
/// user's groups. See `Identity::assume`.
pub fn drop_privileges(user: Option<&str>, group: Option<&str>) -> Result<(), PrivilegeError> {
    Identity::find(user, group)?.map_or(Ok(()), |identity| identity.assume())
}

/// The user and group that the process becomes.
pub struct Identity {
    user: Option<User>,
    group: Option<Gid>,
}

impl Identity {
    /// Looks up `user` and `group`. Returns `None` if neither is given. Fails if a name is unknown,
    /// or if this process is not root.
    pub fn find(user: Option<&str>, group: Option<&str>) -> Result<Option<Self>, PrivilegeError> {
        if user.is_none() && group.is_none() {
            return Ok(None);
        }
        if !Uid::effective().is_root() {
            return Err(PrivilegeError::NotRoot);
        }
        let (user, group) = (user.map(find_user).transpose()?, group.map(find_group).transpose()?);
        Ok(Some(Self { user, group }))
    }

    /// Returns the ids of the user and its group, if there is a user.
    pub fn numbers(&self) -> Option<(u32, u32)> {
        let user = self.user.as_ref()?;
        Some((user.uid.as_raw(), self.group.unwrap_or(user.gid).as_raw()))
    }

    /// Becomes the user permanently, on all threads, and calls [`hide_memory`]. Call this after
    /// sockets and logs are opened, and before any code runs that should not have root's rights.
    pub fn assume(&self) -> Result<(), PrivilegeError> {
        let Self { user, group } = self;
        let assume = || {
            match (user, *group) {
                (Some(user), None) => {
                    let name = CString::new(user.name.as_str()).map_err(|_| Errno::EINVAL)?;
                    initgroups(&name, user.gid)?;
                }
                (_, Some(group)) => setgroups(&[group])?,
                (None, None) => {}
            }
            if let Some(group) = group.or(user.as_ref().map(|user| user.gid)) {
                setgid(group)?;
            }
            // `setuid` comes last, because it removes the right to make the other calls.
            user.as_ref().map_or(Ok(()), |user| setuid(user.uid))
        };
        let assumed = assume().map_err(PrivilegeError::System);
        hide_memory();
        assumed
    }
}

/// Fails if this machine does not know the user or the group.
pub fn look_up(user: Option<&str>, group: Option<&str>) -> Result<(), PrivilegeError> {
    user.map(find_user).transpose()?;
    group.map(find_group).transpose().map(drop)
}

/// Returns the ids of `user` and `group`. Without `group`, returns the user's own group. Without
/// both, returns no ids. Fails if a name is unknown.
pub fn ids(
    user: Option<&str>,
    group: Option<&str>,
) -> Result<(Option<u32>, Option<u32>), PrivilegeError> {
    let (user, group) = (user.map(find_user).transpose()?, group.map(find_group).transpose()?);
    let group = group.or(user.as_ref().map(|user| user.gid));
    Ok((user.map(|user| user.uid.as_raw()), group.map(Gid::as_raw)))
}

fn find_user(name: &str) -> Result<User, PrivilegeError> {
    let found = User::from_name(name).map_err(PrivilegeError::System)?;
    found.ok_or_else(|| PrivilegeError::Unknown(format!("user {name}")))
}

fn find_group(name: &str) -> Result<Gid, PrivilegeError> {
    let found = Group::from_name(name).map_err(PrivilegeError::System)?;
    found.map(|group| group.gid).ok_or_else(|| PrivilegeError::Unknown(format!("group {name}")))
}
