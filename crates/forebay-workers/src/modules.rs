//! Checks the Python interpreter and the application's module without running code of the
//! application.

use crate::process::{Confinement, launched};
use crate::spec::{AppSpec, Kind};
use forebay_process::{Identity, StartError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io::{self, Read, Seek};
use std::path::Path;
use std::process::{Command, Stdio};

/// The exit code for a missing module.
const NO_MODULE: i32 = 4;
/// The exit code for an interpreter that is too old.
const TOO_OLD: i32 = 5;

/// Python code that searches for the module as `hosts/wsgi.py` does, regardless of PYTHONSAFEPATH.
/// Only the first part of the module's name is looked up, because a full search would run code of
/// packages.
const QUESTION: &str = "\
import os, sys
if sys.version_info < (3, 8):
    sys.stderr.write('this is Python %d.%d, and 3.8 or newer is needed' % sys.version_info[:2])
    sys.exit(5)
if sys.argv[1:]:
    from importlib.util import find_spec
    sys.path.insert(0, os.getcwd())
    if find_spec(sys.argv[1]) is None:
        sys.stderr.write('there is no module ' + sys.argv[1])
        sys.exit(4)
";

/// Time limit for the answer of the interpreter.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Maximum length of the interpreter's answer in bytes.
const LONGEST: u64 = 1024;

impl AppSpec {
    /// Checks that the interpreter is new enough and finds the module. Runs the interpreter for a
    /// moment as the application's user, but no code of the application. If this process cannot
    /// become that user, the check succeeds.
    pub fn probe_interpreter(&self) -> Result<(), StartError> {
        let Some((code, answer)) = probe(self) else { return Ok(()) };
        let error = StartError::new(&self.name, answer);
        Err(match code {
            NO_MODULE => error.at(&["module"]).help(format!(
                "it is looked for in {}, and where {} has its packages",
                self.kind.dir().display(),
                self.kind.interpreter()
            )),
            _ => error.at(self.kind.interpreter_key()).help("name another one: python = \"PATH\""),
        })
    }
}

/// Returns an error as an exit code and a sentence. Returns `None` if there is no error, if the
/// application is in Perl, or if this process cannot run the interpreter. For example, perhaps only
/// the root helper can become the workers' user.
fn probe(spec: &AppSpec) -> Option<(i32, String)> {
    let (python, module) = match &spec.kind {
        Kind::PythonCgi { python, .. } => (python, None),
        // The configuration has found a file.
        Kind::Wsgi { python, module, .. } if module.starts_with('/') => (python, None),
        Kind::Wsgi { python, module, .. } => (python, module.split(['.', ':']).next()),
        Kind::PerlCgi { .. } | Kind::Psgi { .. } => return None,
    };
    let mut command = Command::new(python.as_deref().unwrap_or(Path::new("python3")));
    command.args(["-c", QUESTION]).args(module);
    let (user, group) = (spec.user.as_deref(), spec.group.as_deref());
    let identity = Identity::find(&spec.name, user, group).ok()?;
    let command = launched(command, spec, &Confinement { identity, cgroup: None });
    run(command).ok().filter(|(code, _)| [NO_MODULE, TOO_OLD].contains(code))
}

/// Runs the command, with a time limit if the kernel has pidfds. Returns its exit code and the
/// beginning of its standard error.
fn run(mut command: Command) -> io::Result<(i32, String)> {
    let mut answer = tempfile::tempfile()?;
    let stderr = Stdio::from(answer.try_clone()?);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn()?;
    if let Ok(pidfd) = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut ended, Some(&PATIENCE))) != Ok(1) {
            let _ = child.kill();
        }
    }
    let code = child.wait()?.code().unwrap_or(-1);
    let mut text = String::new();
    answer.rewind()?;
    answer.take(LONGEST).read_to_string(&mut text)?;
    Ok((code, text))
}
