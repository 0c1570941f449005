//! The last step before a program: this process becomes the program, as another user and within
//! limits.
//!
//! Only `unsafe` code could change user and limits between fork and exec. So Forebay starts itself
//! (`forebay __launch OPTIONS -- PROGRAM ARGUMENTS`), changes what the program inherits, and then
//! becomes the program under the same process id.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, prlimit, set_parent_process_death_signal,
    setrlimit,
};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::Identity;
use crate::cgroup::Cgroup;

/// An environment variable that `forebay compare` sets for the servers that it starts. The tools of
/// `forebay compare` (`perf`) may then read the memory and descriptors of these servers as the same
/// user.
pub const MAY_BE_MEASURED: &str = "FOREBAY_MAY_BE_MEASURED";
/// The file from which `__launch` reads the program's environment.
const ENVIRONMENT: &str = "/proc/self/fd/4";
/// Exit code if the program cannot be run, as a shell returns it for an unknown command.
const CANNOT_RUN: u8 = 127;
/// The first descriptor after the standard ones, as in systemd's socket activation.
const FIRST_INHERITED: i32 = 3;

/// The properties of a program, except the variables of its environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Launch {
    /// Process id of the parent. If present, the kernel kills the program when the parent ends.
    pub parent: Option<i32>,
    pub limits: ProcessLimits,
    /// The program's soft limit on open files. Forebay has raised its own limit.
    pub files: Option<u64>,
    /// The control group to enter.
    pub cgroup: Option<PathBuf>,
    /// True if the program may run outside of the control group when it cannot enter that group.
    pub cgroup_is_optional: bool,
    /// Cores to run on. Empty if the program may keep its present cores.
    pub cpus: Vec<usize>,
    /// If present, descriptor 0 is a listening socket that becomes descriptor 3.
    /// `SERVER_STARTER_PORT` then contains this name.
    pub inherit: Option<OsString>,
    /// True if descriptor 0 is a listening socket and stays descriptor 0.
    pub stdin: bool,
    /// The id and the name of the user to become. The name is for the lookup of the user's groups.
    pub user: Option<(u32, String)>,
    /// The group to become.
    pub group: Option<u32>,
    /// True if the user's other groups do not apply.
    pub alone: bool,
    /// The directory to enter as that user.
    pub dir: Option<PathBuf>,
    /// True if descriptor 4 has the program's environment, which takes effect only after the change
    /// of user.
    pub takes_environment: bool,
    /// The program and its arguments.
    pub argv: Vec<OsString>,
}

/// Limits of each process. `None` keeps Forebay's limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Open files.
    pub open_files: Option<u64>,
    /// Address space, in bytes.
    pub memory: Option<u64>,
    /// CPU time, in seconds.
    pub cpu_time: Option<u64>,
    /// Processes and threads of the user. The limit does not apply to root.
    pub processes: Option<u64>,
    /// Maximum size of a core dump in bytes.
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
    pub fn is_empty(&self) -> bool {
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
    /// Sets the user of the program.
    pub fn as_user(&mut self, identity: Option<&Identity>) {
        if let Some(identity) = identity {
            self.user = identity.user.clone();
            self.group = identity.group;
            self.alone = identity.alone;
        }
    }

    /// Returns true if the program gets limits, a control group or another user. Forebay then
    /// starts the program through `forebay __launch`, which applies these settings.
    pub fn is_needed(&self) -> bool {
        !self.limits.is_empty() || self.cgroup.is_some() || self.group.is_some()
    }

    /// Returns the command of the process that becomes the program.
    pub fn command(&self) -> Command {
        let mut command = Command::new(myself());
        command.arg("__launch").args(self.arguments());
        command
    }

    /// Returns the arguments that [`Launch::parse`] reads.
    pub fn arguments(&self) -> Vec<OsString> {
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
            let name = if self.cgroup_is_optional { "--try-cgroup" } else { "--cgroup" };
            pair(name, cgroup.into());
        }
        for cpu in &self.cpus {
            pair("--cpu", cpu.to_string().into());
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
        if let Some(dir) = &self.dir {
            pair("--dir", dir.into());
        }
        if self.takes_environment {
            pair("--environment", ENVIRONMENT.into());
        }
        out.push("--".into());
        out.extend(self.argv.iter().cloned());
        out
    }

    /// Parses the arguments of [`Launch::arguments`]. Returns `None` if they are invalid.
    pub fn parse(arguments: impl Iterator<Item = OsString>) -> Option<Launch> {
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

    /// Applies one option of the command line. Returns `None` if the option is unknown or its value
    /// is wrong.
    fn take(&mut self, name: &str, value: &OsStr) -> Option<()> {
        match name {
            "--cgroup" | "--try-cgroup" => {
                self.cgroup = Some(value.into());
                self.cgroup_is_optional = name == "--try-cgroup";
            }
            "--cpu" => self.cpus.push(value.to_str()?.parse().ok()?),
            "--inherit" => self.inherit = Some(value.into()),
            "--stdin" => self.stdin = true,
            "--dir" => self.dir = Some(value.into()),
            "--environment" => self.takes_environment = true,
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
        if self.takes_environment {
            // Unblock signals, because the helper that started this process blocks some.
            let unblocked = nix::sys::signal::SigSet::all().thread_unblock();
            unblocked.map_err(|error| format!("cannot unblock signals: {}", error.desc()))?;
        }
        if let Some(cgroup) = &self.cgroup {
            Cgroup::existing(cgroup.clone())
                .enter()
                .or_else(|error| if self.cgroup_is_optional { Ok(()) } else { Err(error) })
                .map_err(|error| format!("cannot enter {}: {error}", cgroup.display()))?;
        }
        if !self.cpus.is_empty() {
            sched_setaffinity(None, &cpu_set(&self.cpus))
                .map_err(|error| format!("cannot run on cores {:?}: {error}", self.cpus))?;
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
        // Set the parent-death signal after the change of user, because this change resets the
        // signal.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| format!("cannot tie the program to Forebay: {error}"))?;
        if getppid().map(rustix::process::Pid::as_raw_pid) != Some(parent) {
            return Err("Forebay ended before the program began".to_owned());
        }
        Ok(())
    }

    /// Becomes the program. Returns only after a failure, with the error.
    fn become_program(&self, environment: Option<Vec<(OsString, OsString)>>) -> String {
        let Some((program, arguments)) = self.argv.split_first() else {
            return "no program to run".to_owned();
        };
        let mut command = Command::new(program);
        command.args(arguments);
        if self.takes_environment {
            match environment {
                Some(variables) => command.env_clear().envs(variables),
                None => return "cannot read the environment".to_owned(),
            };
        }
        if let Some(dir) = &self.dir {
            // Enter the directory here, so that a failure to enter the directory has its own
            // message.
            if let Err(error) = std::env::set_current_dir(dir) {
                return format!("cannot enter {}: {error}", dir.display());
            }
        }
        if let Some(name) = &self.inherit {
            if let Err(error) = inherit_socket(&mut command, name) {
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

fn read_environment() -> Option<Vec<(OsString, OsString)>> {
    let bytes = std::fs::read(ENVIRONMENT).ok()?;
    bytes
        .split_inclusive(|&byte| byte == 0)
        .map(|text| variable(text.strip_suffix(&[0])?))
        .collect()
}

/// Parses a variable of an environment, such as `PATH=/bin`. Returns `None` without an equals sign
/// or with an empty name.
pub(crate) fn variable(text: &[u8]) -> Option<(OsString, OsString)> {
    // Accept a name that begins with an equals sign, as `std::env::vars_os` does.
    let end = 1 + text.get(1..)?.iter().position(|&byte| byte == b'=')?;
    let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    Some((part(&text[..end]), part(&text[end + 1..])))
}

/// Returns true if no user may execute the file.
fn has_no_run_bit(program: &Path) -> bool {
    std::fs::metadata(program).is_ok_and(|found| found.permissions().mode() & 0o111 == 0)
}

/// Runs `forebay __launch`. Returns only if the program cannot be run, after printing the reason.
pub fn launch(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let why = match Launch::parse(arguments) {
        Some(launch) => {
            // Read the file with the environment before the change of user, because the new user
            // may not open this file.
            let environment = launch.takes_environment.then(read_environment).flatten();
            match launch.prepare() {
                Ok(()) => launch.become_program(environment),
                Err(why) => why,
            }
        }
        None => "__launch is for Forebay itself".to_owned(),
    };
    eprintln!("{why}");
    ExitCode::from(CANNOT_RUN)
}

/// Returns the set of the given cores. Leaves out cores with numbers that are too large for the
/// kernel's interface.
pub fn cpu_set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    set
}

/// Returns a path to the program that this process runs. The path is valid even if the program's
/// file has been replaced.
pub fn myself() -> &'static Path {
    Path::new("/proc/self/exe")
}

/// Lowers the soft and the hard limit to `most`, or to the present maximum if that is lower.
fn limit(resource: Resource, most: u64) -> Result<(), rustix::io::Errno> {
    let allowed = getrlimit(resource).maximum;
    let most = Some(allowed.map_or(most, |allowed| allowed.min(most)));
    setrlimit(resource, Rlimit { current: most, maximum: most })
}

/// Moves the listening socket from descriptor 0 to 3. Announces the socket with the environment
/// variables of systemd and Server::Starter. Fails if descriptor 3 is in use.
fn inherit_socket(command: &mut Command, name: &OsStr) -> std::io::Result<()> {
    let stdin = std::io::stdin();
    let socket = fcntl_dupfd_cloexec(stdin.as_fd(), FIRST_INHERITED)?;
    if socket.as_raw_fd() != FIRST_INHERITED {
        return Err(std::io::Error::other("descriptor 3 is taken"));
    }
    fcntl_setfd(&socket, FdFlags::empty())?;
    // The descriptor must not be closed here, because the program inherits it.
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

/// Directories of servers that an ordinary user's `PATH` leaves out on Debian.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Returns `PATH` with the system directories added, for the environment of servers.
pub fn search_path() -> OsString {
    let given = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut directories: Vec<PathBuf> = std::env::split_paths(&given).collect();
    for extra in SYSTEM_DIRECTORIES.map(PathBuf::from) {
        if !directories.contains(&extra) {
            directories.push(extra);
        }
    }
    std::env::join_paths(directories).unwrap_or(given)
}

// Gives child processes the limit on open descriptors that Forebay found at its start, not the
// gateway's higher limit. Programs that use `select`, or that close all possible descriptors,
// become slow or fail under a high limit.

static FOUND: OnceLock<Rlimit> = OnceLock::new();

/// Records this process's limit on open descriptors. Call this before Forebay raises the limit.
/// Later calls do nothing.
pub fn record_descriptors() {
    let _ = FOUND.set(getrlimit(Resource::Nofile));
}

/// Returns the recorded soft limit on open descriptors if Forebay has raised the limit. Returns
/// `None` if Forebay has not raised the limit, or if the recorded soft limit is infinite.
pub fn found_descriptors() -> Option<u64> {
    let found = FOUND.get()?;
    found.current.filter(|_| getrlimit(Resource::Nofile) != *found)
}

/// Returns the recorded soft limit on open descriptors, or the current soft limit if none is
/// recorded. `None` means that the limit is infinite.
pub fn started_descriptors() -> Option<u64> {
    FOUND.get().copied().unwrap_or_else(|| getrlimit(Resource::Nofile)).current
}

/// Sets the limit on open descriptors of `process` to the recorded limit. Call this immediately
/// after the start of the process. Before this call, the process may see the gateway's higher
/// limit. A change of the limit before the start would require a `fork`, which is slow for large
/// processes.
pub fn give_back_descriptors(process: Pid) {
    let Some(found) = FOUND.get() else { return };
    if getrlimit(Resource::Nofile) != *found {
        // A process that has already ended needs no limit.
        let _ = prlimit(Some(process), Resource::Nofile, *found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read_back() {
        let launch = Launch {
            parent: Some(7),
            limits: ProcessLimits { open_files: Some(3), core: Some(0), ..Default::default() },
            files: Some(1024),
            cgroup: Some("/sys/fs/cgroup/x".into()),
            cgroup_is_optional: true,
            cpus: vec![0, 3],
            inherit: Some("/run/a=b".into()),
            stdin: true,
            user: Some((33, "www-data".into())),
            group: Some(33),
            alone: true,
            dir: Some("/run/a b".into()),
            takes_environment: true,
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

    #[test]
    fn the_search_path_reaches_servers() {
        let path = search_path();
        assert!(std::env::split_paths(&path).any(|directory| directory == Path::new("/usr/sbin")));
    }
}
