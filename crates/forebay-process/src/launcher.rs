//! Prepares the start of CGI scripts, as another user and within limits, or tells why an application
//! could not be started.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::fs::fchown;
use std::process::Command;
use std::{fmt, io};

use crate::cgroup::{CgroupLimits, LimitedCgroup};
use crate::{Helper, Identity, Launch, ProcessLimits, found_descriptors};

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

/// The application could not be started. The message says what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartError {
    app: String,
    key: &'static [&'static str],
    what: String,
    help: String,
}

impl StartError {
    /// Creates an error about the application `app`.
    pub fn new(app: &str, what: impl Into<String>) -> StartError {
        StartError { app: app.to_owned(), key: &[], what: what.into(), help: String::new() }
    }

    /// Adds the faulty key, as a path in the application's table.
    pub fn at(self, key: &'static [&'static str]) -> StartError {
        StartError { key, ..self }
    }

    /// Adds the remedy.
    pub fn help(self, help: impl Into<String>) -> StartError {
        StartError { help: help.into(), ..self }
    }

    /// Returns the faulty key of the application's table, as a path. The path is empty if the whole
    /// table is at fault.
    pub fn key(&self) -> &'static [&'static str] {
        self.key
    }

    /// Returns the description of the problem, without the name of the application.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the remedy. The text is empty if the remedy is unknown.
    pub fn advice(&self) -> &str {
        &self.help
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "app {}: {}", self.app, self.what)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "; {}", self.help) }
    }
}

impl std::error::Error for StartError {}
