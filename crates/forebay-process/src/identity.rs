//! The user and group of a process, and the error of an application that could not be started.

use std::ffi::{CString, OsString};
use std::fmt;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setgroups, setuid};

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
