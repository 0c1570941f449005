//! Uses the helper, if there is one, for the processes of other users. The helper permits only some
//! users, and makes the control groups.

use crate::cgroup::{CgroupLimits, LimitedCgroup};
use crate::{Helper, Identity, StartError};
use nix::unistd::Uid;

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
