//! Starts processes that are not workers as another user and within limits: CGI scripts.

use crate::cgroup::{CgroupLimits, LimitedCgroup};
use crate::{Helper, Identity, Launch, ProcessLimits, StartError, found_descriptors};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::fchown;
use std::process::Command;

/// Who processes run as, and what they may use.
#[derive(Debug, Default)]
pub struct Launcher {
    identity: Option<Identity>,
    limits: ProcessLimits,
    cgroup: Option<LimitedCgroup>,
}

/// What a [`Launcher`] is made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LaunchSpec {
    /// The user, by name.
    pub user: Option<String>,
    /// The group, by name.
    pub group: Option<String>,
    /// What each process may use.
    pub limits: ProcessLimits,
    /// What all of them may use together, with the workers of the application of this name.
    pub cgroup: CgroupLimits,
}

impl Launcher {
    /// Looks user and group up. `name` is the application's, for messages and the control group.
    pub fn new(name: &str, spec: &LaunchSpec) -> Result<Launcher, StartError> {
        let identity = Identity::find(name, spec.user.as_deref(), spec.group.as_deref())?;
        // Where there cannot be one, the application's workers have logged why.
        let cgroup = LimitedCgroup::make(name, spec.cgroup, identity.as_ref()).ok().flatten();
        Ok(Launcher { identity, limits: spec.limits, cgroup })
    }

    /// Whether user and group exist, whoever asks.
    pub fn check(name: &str, spec: &LaunchSpec) -> Result<(), StartError> {
        Identity::look_up(name, spec.user.as_deref(), spec.group.as_deref()).map(drop)
    }

    /// The command that becomes `program`.
    pub fn command(&self, program: &OsStr) -> Command {
        let launch = self.launch(program);
        if launch.is_needed() { launch.command() } else { Command::new(program) }
    }

    /// The helper that has to start `program`, and its launch; `None` if this process can start it.
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

    /// Whether a process is started without a step in between, so that the kernel's refusal is seen.
    pub fn is_direct(&self) -> bool {
        self.identity.is_none() && self.limits.is_empty() && self.cgroup.is_none()
    }

    /// Whether the soft limit on open files is the process's own.
    pub fn limits_files(&self) -> bool {
        self.limits.open_files.is_some()
    }

    /// Makes a pipe the user's, so that a script can open /dev/stdout and /dev/stderr.
    pub fn hand_over(&self, pipe: impl AsFd) -> io::Result<()> {
        match &self.identity {
            // The helper does it.
            Some(identity) if identity.helper().is_some() => Ok(()),
            Some(identity) => {
                fchown(pipe, identity.user.as_ref().map(|user| user.0), identity.group)
            }
            None => Ok(()),
        }
    }
}
