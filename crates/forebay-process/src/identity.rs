//! The user and group of a process.

use std::ffi::{CString, OsString};

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setgroups, setuid};

use crate::cgroup::{CgroupLimits, LimitedCgroup};
use crate::{Helper, StartError};

/// A user and a group, with their ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The id and the name of the user. The name is for the lookup of the user's groups.
    pub user: Option<(u32, String)>,
    /// The primary group. The user's other groups apply, too, unless `alone` is true.
    pub group: Option<u32>,
    /// True if the user's other groups do not apply.
    pub alone: bool,
    /// HOME, USER and similar variables, as a login would set them.
    pub env: Vec<(&'static str, OsString)>,
}

impl Identity {
    /// Looks up the names. Returns `None` if neither name is given, and fails if a name is unknown.
    /// Does not check if this process may start processes of this identity; see [`Identity::find`].
    /// `app` is for messages.
    pub fn look_up(
        app: &str,
        user: Option<&str>,
        group: Option<&str>,
    ) -> Result<Option<Identity>, StartError> {
        if user.is_none() && group.is_none() {
            return Ok(None);
        }
        let found = match user {
            Some(name) => {
                let user = User::from_name(name).ok().flatten();
                let error = || unknown(app, "user", name).at(&["user"]);
                Some(user.ok_or_else(error)?)
            }
            None => None,
        };
        let only = match group {
            Some(name) => {
                let group = Group::from_name(name).ok().flatten();
                let error = || unknown(app, "group", name).at(&["group"]);
                Some(group.ok_or_else(error)?.gid.as_raw())
            }
            None => None,
        };
        let env = found.as_ref().map_or_else(Vec::new, |user| {
            vec![
                ("HOME", user.dir.clone().into_os_string()),
                ("SHELL", user.shell.clone().into_os_string()),
                ("USER", user.name.clone().into()),
                ("LOGNAME", user.name.clone().into()),
            ]
        });
        let group = only.or(found.as_ref().map(|user| user.gid.as_raw()));
        let user = found.map(|user| (user.uid.as_raw(), user.name));
        Ok(Some(Identity { user, group, alone: only.is_some(), env }))
    }

    /// Permanently changes user and group of this process. Call this before a second thread exists.
    pub fn assume(&self) -> Result<(), Errno> {
        if let Some(group) = self.group.map(Gid::from_raw) {
            match &self.user {
                Some((_, name)) if !self.alone => {
                    let name = CString::new(name.as_str()).map_err(|_| Errno::EINVAL)?;
                    initgroups(&name, group)?;
                }
                _ => setgroups(&[group])?,
            }
            setgid(group)?;
        }
        // Set the user last, because a user other than root may not set groups.
        match &self.user {
            Some((uid, _)) => setuid(Uid::from_raw(*uid)),
            None => Ok(()),
        }
    }
}

fn unknown(app: &str, what: &str, name: &str) -> StartError {
    let error = StartError::new(app, format!("there is no {what} {name} on this machine"));
    error.help(format!("add the {what}, or name another one"))
}

// Uses the helper, if there is one, for the processes of other users. The helper permits only some
// users, and makes the control groups.

impl Identity {
    /// Looks up the names. Returns `None` if neither name is given. Fails if a name is unknown, or
    /// if neither this process nor its helper can start processes of this user and group. `app` is
    /// for messages.
    pub fn find(
        app: &str,
        user: Option<&str>,
        group: Option<&str>,
    ) -> Result<Option<Identity>, StartError> {
        if (user.is_some() || group.is_some()) && !Uid::effective().is_root() {
            if let Some(helper) = Helper::get() {
                return helper.find(app, user, group);
            }
            let error = StartError::new(app, "only root can start processes as another user");
            return Err(error.help(format!(
                "start Forebay as root, or take `user` and `group` out of [app.{app}]"
            )));
        }
        Identity::look_up(app, user, group)
    }

    /// Returns the helper that starts the processes of this identity. Returns `None` if this
    /// process starts them.
    pub fn helper(&self) -> Option<&'static Helper> {
        Helper::get()
    }
}

impl LimitedCgroup {
    /// Returns a control group for `app` with these limits, or the reason why it cannot be made.
    /// Returns `None` without limits.
    ///
    /// If a helper starts the processes of `identity`, the helper makes the group, too, because
    /// this process has no right to do so.
    pub fn make(
        app: &str,
        limits: CgroupLimits,
        identity: Option<&Identity>,
    ) -> Result<Option<LimitedCgroup>, String> {
        match identity.and_then(Identity::helper) {
            Some(helper) if limits != CgroupLimits::default() => {
                let path = helper.make_group(app, limits)?;
                Ok(Some(LimitedCgroup::made_at(path)))
            }
            _ => LimitedCgroup::make_here(app, limits),
        }
    }

    /// Makes a control group as [`make`](LimitedCgroup::make) does. Returns the group, or `None`
    /// without limits. If the group cannot be made, logs the reason, and returns `None` and the
    /// reason.
    pub fn prepare(
        app: &str,
        limits: CgroupLimits,
        identity: Option<&Identity>,
        log: &dyn Fn(&str),
    ) -> (Option<LimitedCgroup>, Option<String>) {
        match LimitedCgroup::make(app, limits, identity) {
            Ok(group) => (group, None),
            Err(why) => {
                let note =
                    format!("no control group, so the limits of `cgroup` do not hold: {why}");
                log(&format!("[{app}] {note}"));
                (None, Some(note))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_looked_up_where_nobody_is_named() {
        assert_eq!(Identity::find("a", None, None).unwrap(), None);
    }

    #[test]
    fn an_unknown_user_is_an_error_for_root_and_any_user_is_for_others() {
        let error = Identity::find("a", Some("no-such-user"), None).unwrap_err().to_string();
        let expected =
            if Uid::effective().is_root() { "there is no user" } else { "only root can" };
        assert!(error.contains(expected), "{error}");
    }
}
