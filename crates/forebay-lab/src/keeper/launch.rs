//! The last step before a server: tie this process to the keeper, then become the server.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::watch::Cgroup;

/// How a shell says that a command was not found or could not be run.
const CANNOT_RUN: u8 = 127;

/// What the keeper asks of the launcher.
pub struct Launcher {
    /// The keeper's process id.
    pub keeper: i32,
    /// The trial's control group.
    pub cgroup: Option<PathBuf>,
    /// Cores to run on; empty: no change.
    pub cpus: Vec<usize>,
    /// The server's program and arguments.
    pub argv: Vec<OsString>,
}

/// Becomes the server; returns only if that failed, with the reason on standard error.
pub fn launch(launcher: &Launcher) -> ExitCode {
    let reason = match prepare(launcher) {
        Ok(()) => become_server(&launcher.argv),
        Err(reason) => reason,
    };
    eprintln!("{reason}");
    ExitCode::from(CANNOT_RUN)
}

fn prepare(launcher: &Launcher) -> Result<(), String> {
    // The kernel ends this process with the keeper's main thread, even if the keeper is killed.
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot tie the server to its keeper: {error}"))?;
    if getppid().map(|pid| pid.as_raw_pid()) != Some(launcher.keeper) {
        return Err("the keeper ended before the server began".to_owned());
    }
    if let Some(path) = &launcher.cgroup {
        // Not being allowed in is not an error: CPU time is then counted from /proc.
        let _ = Cgroup::existing(path.clone()).enter();
    }
    if !launcher.cpus.is_empty() {
        sched_setaffinity(None, &cpu_set(&launcher.cpus))
            .map_err(|error| format!("cannot run on cores {:?}: {error}", launcher.cpus))?;
    }
    Ok(())
}

fn become_server(argv: &[OsString]) -> String {
    let Some((program, arguments)) = argv.split_first() else {
        return "no program to run".to_owned();
    };
    let error = Command::new(program).args(arguments).exec();
    let hint = match error.kind() {
        std::io::ErrorKind::NotFound => " (is it installed, and in PATH?)",
        std::io::ErrorKind::PermissionDenied => " (may this user run it? chmod +x, if it may not)",
        _ => "",
    };
    format!("cannot run {}: {error}{hint}", program.display())
}

/// The set of the given cores; those beyond what the kernel interface holds are left out.
pub fn cpu_set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
    set
}
