//! Prepares the start of CGI scripts, as another user and within limits.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::fchown;
use std::process::Command;

use nix::unistd::Uid;

use crate::cgroup::{CgroupLimits, LimitedCgroup};
use crate::{Helper, Identity, Launch, ProcessLimits, StartError, found_descriptors};

/// The user and the limits of processes.
#[derive(Debug, Default)]
pub struct Launcher {
    identity: Option<Identity>,
    limits: ProcessLimits,
    cgroup: Option<LimitedCgroup>,
}

/// The settings of a [`Launcher`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaunchSpec {
    /// The user, by name.
    pub user: Option<String>,
    /// The group, by name.
    pub group: Option<String>,
    /// Limits of each process.
    pub limits: ProcessLimits,
    /// Limits of all processes of the application together, including its workers.
    pub cgroup: CgroupLimits,
}

impl Launcher {
    /// Creates a launcher, and looks up user and group. `name` is the application's name, for
    /// messages and the control group.
    pub fn new(name: &str, spec: &LaunchSpec) -> Result<Launcher, StartError> {
        let identity = Identity::find(name, spec.user.as_deref(), spec.group.as_deref())?;
        // If no control group can be made, the application's workers have already logged the
        // reason.
        let cgroup = LimitedCgroup::make(name, spec.cgroup, identity.as_ref()).ok().flatten();
        Ok(Launcher { identity, limits: spec.limits, cgroup })
    }

    /// Checks that user and group exist. Does not check if this process may become this user.
    pub fn check(name: &str, spec: &LaunchSpec) -> Result<(), StartError> {
        Identity::look_up(name, spec.user.as_deref(), spec.group.as_deref()).map(drop)
    }

    /// Returns the command of the process that becomes `program`.
    pub fn command(&self, program: &OsStr) -> Command {
        let launch = self.launch(program);
        if launch.is_needed() { launch.command() } else { Command::new(program) }
    }

    /// Returns the helper that has to start `program`, and the launch for it. Returns `None` if
    /// this process can start the program.
    pub fn helped(&self, program: &OsStr) -> Option<(&'static Helper, Launch)> {
        let helper = self.identity.as_ref()?.helper()?;
        let files = found_descriptors().filter(|_| !self.limits_files());
        Some((helper, Launch { files, ..self.launch(program) }))
    }

    fn launch(&self, program: &OsStr) -> Launch {
        let mut launch =
            Launch { limits: self.limits, argv: vec![program.to_owned()], ..Launch::default() };
        launch.as_user(self.identity.as_ref());
        launch.cgroup = self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
        launch
    }

    /// Returns true if Forebay starts the program directly, not through `forebay __launch`. After a
    /// direct start that fails, Forebay gets the kernel's error.
    pub fn is_direct(&self) -> bool {
        self.identity.is_none() && self.limits.is_empty() && self.cgroup.is_none()
    }

    /// Returns true if the process has its own soft limit on open files.
    pub fn limits_files(&self) -> bool {
        self.limits.open_files.is_some()
    }

    /// Makes the user the owner of a pipe, so that a script can open /dev/stdout and /dev/stderr.
    pub fn hand_over(&self, pipe: impl AsFd) -> io::Result<()> {
        match &self.identity {
            // The helper makes the user the owner of the pipes.
            Some(identity) if identity.helper().is_some() => Ok(()),
            Some(identity) => {
                fchown(pipe, identity.user.as_ref().map(|user| user.0), identity.group)
            }
            None => Ok(()),
        }
    }
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
