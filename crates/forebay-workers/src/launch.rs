//! The last step before a program: this process becomes it, as another user and within limits.
//!
//! Between fork and exec only code that is `unsafe` could do this. So the process that is started
//! is Forebay itself (`forebay __launch OPTIONS -- PROGRAM ARGUMENTS`), which changes what the
//! program inherits and then becomes the program, under the same process id.

use crate::identity::Identity;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// How a shell says that a command was not found or could not be run.
const CANNOT_RUN: u8 = 127;
/// The first descriptor behind the standard ones, as systemd numbers what it passes on.
const FIRST_INHERITED: i32 = 3;

/// What a program is started with, beside its environment and its directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Launch {
    /// The kernel kills the program when this process, its parent, ends.
    pub(crate) parent: Option<i32>,
    pub(crate) limits: ProcessLimits,
    /// The soft limit on open files, which Forebay has raised for itself.
    pub(crate) files: Option<u64>,
    /// The control group to enter.
    pub(crate) cgroup: Option<PathBuf>,
    /// Descriptor 0 is a listening socket that becomes descriptor 3, by this name.
    pub(crate) inherit: Option<OsString>,
    /// Descriptor 0 is a listening socket, and stays.
    pub(crate) stdin: bool,
    pub(crate) user: Option<(u32, String)>,
    pub(crate) group: Option<u32>,
    pub(crate) alone: bool,
    pub(crate) argv: Vec<OsString>,
}

/// What each process may use at the most. `None`: what Forebay may.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Open files.
    pub open_files: Option<u64>,
    /// Address space, in bytes.
    pub memory: Option<u64>,
    /// CPU time, in seconds.
    pub cpu_time: Option<u64>,
    /// Processes and threads of the user. Does not bind root.
    pub processes: Option<u64>,
    /// The largest core dump, in bytes.
    pub core: Option<u64>,
}

const NAMES: [(&str, Resource); 5] = [
    ("open_files", Resource::Nofile),
    ("memory", Resource::As),
    ("cpu_time", Resource::Cpu),
    ("processes", Resource::Nproc),
    ("core", Resource::Core),
];

impl ProcessLimits {
    pub(crate) fn is_empty(&self) -> bool {
        *self == ProcessLimits::default()
    }

    fn values(&self) -> [Option<u64>; 5] {
        [self.open_files, self.memory, self.cpu_time, self.processes, self.core]
    }

    fn set(&mut self, name: &str, value: u64) -> bool {
        let place = match name {
            "open_files" => &mut self.open_files,
            "memory" => &mut self.memory,
            "cpu_time" => &mut self.cpu_time,
            "processes" => &mut self.processes,
            "core" => &mut self.core,
            _ => return false,
        };
        *place = Some(value);
        true
    }
}

impl Launch {
    /// Sets who the program runs as.
    pub(crate) fn as_user(&mut self, identity: Option<&Identity>) {
        if let Some(identity) = identity {
            self.user = identity.user.clone();
            self.group = identity.group;
            self.alone = identity.alone;
        }
    }

    /// Whether a process has to be started this way at all.
    pub(crate) fn is_needed(&self) -> bool {
        !self.limits.is_empty() || self.cgroup.is_some() || self.group.is_some()
    }

    /// The arguments that [`Launch::parse`] reads.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let mut out: Vec<OsString> = Vec::new();
        let mut pair = |name: &str, value: OsString| out.extend([name.into(), value]);
        if let Some(parent) = self.parent {
            pair("--parent", parent.to_string().into());
        }
        for ((name, _), value) in NAMES.iter().zip(self.limits.values()) {
            if let Some(value) = value {
                pair("--limit", format!("{name}={value}").into());
            }
        }
        if let Some(files) = self.files {
            pair("--files", files.to_string().into());
        }
        if let Some(cgroup) = &self.cgroup {
            pair("--cgroup", cgroup.into());
        }
        if let Some(name) = &self.inherit {
            pair("--inherit", name.clone());
        }
        if self.stdin {
            pair("--stdin", "listens".into());
        }
        if let Some((uid, name)) = &self.user {
            pair("--user", format!("{uid}:{name}").into());
        }
        if let Some(gid) = self.group {
            pair(if self.alone { "--only-group" } else { "--group" }, gid.to_string().into());
        }
        out.push("--".into());
        out.extend(self.argv.iter().cloned());
        out
    }

    /// Reads what [`Launch::arguments`] has written.
    pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Option<Launch> {
        let mut launch = Launch::default();
        let mut arguments = arguments;
        loop {
            let name = arguments.next()?;
            if name == "--" {
                launch.argv = arguments.collect();
                return (!launch.argv.is_empty()).then_some(launch);
            }
            let value = arguments.next()?;
            launch.take(name.to_str()?, &value)?;
        }
    }

    fn take(&mut self, name: &str, value: &OsStr) -> Option<()> {
        match name {
            "--cgroup" => self.cgroup = Some(value.into()),
            "--inherit" => self.inherit = Some(value.into()),
            "--stdin" => self.stdin = true,
            "--files" => self.files = Some(value.to_str()?.parse().ok()?),
            "--parent" => self.parent = Some(value.to_str()?.parse().ok()?),
            "--group" | "--only-group" => {
                self.group = Some(value.to_str()?.parse().ok()?);
                self.alone = name == "--only-group";
            }
            "--user" => {
                let (uid, name) = value.to_str()?.split_once(':')?;
                self.user = Some((uid.parse().ok()?, name.to_owned()));
            }
            "--limit" => {
                let (limit, most) = value.to_str()?.split_once('=')?;
                self.limits.set(limit, most.parse().ok()?).then_some(())?;
            }
            _ => return None,
        }
        Some(())
    }

    fn prepare(&self) -> Result<(), String> {
        if let Some(cgroup) = &self.cgroup {
            std::fs::write(cgroup.join("cgroup.procs"), "0")
                .map_err(|error| format!("cannot enter {}: {error}", cgroup.display()))?;
        }
        if let Some(files) = self.files {
            let maximum = getrlimit(Resource::Nofile).maximum;
            setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum })
                .map_err(|error| format!("cannot set the limit on open files: {error}"))?;
        }
        for ((name, resource), most) in NAMES.into_iter().zip(self.limits.values()) {
            let Some(most) = most else { continue };
            limit(resource, most).map_err(|error| format!("cannot limit {name}: {error}"))?;
        }
        let Launch { user, group, alone, .. } = self;
        let identity =
            Identity { user: user.clone(), group: *group, alone: *alone, env: Vec::new() };
        identity.assume().map_err(|error| format!("cannot become its user: {}", error.desc()))?;
        let Some(parent) = self.parent else { return Ok(()) };
        // After the change of user, which makes the kernel forget it.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| format!("cannot tie the program to Forebay: {error}"))?;
        match getppid().map(|pid| pid.as_raw_pid()) == Some(parent) {
            true => Ok(()),
            false => Err("Forebay ended before the program began".to_owned()),
        }
    }

    /// Becomes the program; returns why not.
    fn become_program(&self) -> String {
        let Some((program, arguments)) = self.argv.split_first() else {
            return "no program to run".to_owned();
        };
        let mut command = Command::new(program);
        command.args(arguments);
        if let Some(name) = &self.inherit {
            if let Err(error) = pass_on(&mut command, name) {
                return format!("cannot pass the socket on: {error}");
            }
        } else if !self.stdin && self.parent.is_some() {
            command.stdin(Stdio::null());
        }
        let error = command.exec();
        let hint = match error.kind() {
            std::io::ErrorKind::NotFound => " (is it installed, and in PATH?)",
            std::io::ErrorKind::PermissionDenied if has_no_run_bit(Path::new(program)) => {
                " (it has no run bit: chmod +x)"
            }
            std::io::ErrorKind::PermissionDenied => {
                " (this user may not run it or its interpreter, or not enter a directory above it)"
            }
            _ => "",
        };
        format!("cannot run {}: {error}{hint}", program.display())
    }
}

/// Whether nobody may run it.
fn has_no_run_bit(program: &Path) -> bool {
    std::fs::metadata(program).is_ok_and(|found| found.permissions().mode() & 0o111 == 0)
}

/// `forebay __launch`: returns only if the program cannot be run, having said why.
pub fn launch(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let why = match Launch::parse(arguments) {
        Some(launch) => match launch.prepare() {
            Ok(()) => launch.become_program(),
            Err(why) => why,
        },
        None => "__launch is for Forebay itself".to_owned(),
    };
    eprintln!("{why}");
    ExitCode::from(CANNOT_RUN)
}

/// The program that starts others this way: this one, even where its file has been replaced.
pub(crate) fn myself() -> &'static Path {
    Path::new("/proc/self/exe")
}

/// Lowers both limits; the lower of `most` and what is allowed holds.
fn limit(resource: Resource, most: u64) -> Result<(), rustix::io::Errno> {
    let allowed = getrlimit(resource).maximum;
    let most = Some(allowed.map_or(most, |allowed| allowed.min(most)));
    setrlimit(resource, Rlimit { current: most, maximum: most })
}

/// Makes descriptor 0 descriptor 3, and tells so by the conventions of systemd and Server::Starter.
fn pass_on(command: &mut Command, name: &OsStr) -> std::io::Result<()> {
    let stdin = std::io::stdin();
    let socket = fcntl_dupfd_cloexec(stdin.as_fd(), FIRST_INHERITED)?;
    if socket.as_raw_fd() != FIRST_INHERITED {
        return Err(std::io::Error::other("descriptor 3 is taken"));
    }
    fcntl_setfd(&socket, FdFlags::empty())?;
    // Stays open until this process is the program.
    let _ = socket.into_raw_fd();
    let mut starter = name.to_owned();
    starter.push("=3");
    command
        .stdin(Stdio::null())
        .env("LISTEN_FDS", "1")
        .env("LISTEN_PID", std::process::id().to_string())
        .env("LISTEN_FDNAMES", "forebay")
        .env("SERVER_STARTER_PORT", starter)
        .env("SERVER_STARTER_GENERATION", "1");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let launch = Launch {
            parent: Some(7),
            limits: ProcessLimits { open_files: Some(3), core: Some(0), ..Default::default() },
            files: Some(1024),
            cgroup: Some("/sys/fs/cgroup/x".into()),
            inherit: Some("/run/a=b".into()),
            stdin: true,
            user: Some((33, "www-data".into())),
            group: Some(33),
            alone: true,
            argv: vec!["sh".into(), "--".into(), "--user".into()],
        };
        assert_eq!(Launch::parse(launch.arguments().into_iter()), Some(launch));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in
            ["", "--", "--user x -- a", "--limit memory -- a", "--limit x=1 -- a", "-x y -- a"]
        {
            let arguments = text.split_whitespace().map(OsString::from);
            assert_eq!(Launch::parse(arguments), None, "{text}");
        }
    }
}
