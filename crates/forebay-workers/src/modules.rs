//! Checks the Python interpreter and the application's module without running code of the
//! application.
//!
//! Root checks what others own, so the interpreter runs as the application's user, isolated, in `/`,
//! with a clean environment, and without `site`: a `sitecustomize.py` or a `.pth` file of a virtual
//! environment would otherwise run. An interpreter that other users than this one can change does
//! not run at all.

use crate::executable;
use crate::spec::{AppSpec, Kind};
use forebay_process::{Identity, Launch, StartError, changeable_by_others, search_path};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io::{self, Read, Seek};
use std::process::{Command, Stdio};

/// The exit code for a missing module.
const NO_MODULE: i32 = 4;
/// The exit code for an interpreter that is too old.
const TOO_OLD: i32 = 5;
/// Python's exit code for an unknown option.
const BAD_USAGE: i32 = 2;

/// Python code whose arguments are the path of the interpreter, the module, and the directories in
/// which the application's workers look for it. Only the first part of the module's name is looked
/// up, because a full search would run code of packages. The directories of packages are those that
/// `site` would add. The code of a `.pth` file there does not run. If it may find modules elsewhere, as
/// that of an editable installation does, no module is said to be missing.
const QUESTION: &str = "\
import sys
if sys.version_info < (3, 8):
    sys.stderr.write('this is Python %d.%d, and 3.8 or newer is needed' % sys.version_info[:2])
    sys.exit(5)
if sys.argv[2:]:
    import os, site
    from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
    all_packages = site.getsitepackages(list({sys.prefix, sys.exec_prefix}))
    own = os.path.dirname(os.path.dirname(sys.argv[1]))
    if os.path.exists(os.path.join(own, 'pyvenv.cfg')):
        # Debian's site takes only the running environment for a virtual one.
        version = 'python%d.%d' % sys.version_info[:2]
        all_packages.append(os.path.join(own, 'lib', version, 'site-packages'))
    found = sys.argv[3:] + sys.path + [site.getusersitepackages()]
    for packages in all_packages:
        found.append(packages)
        try:
            names = [name for name in os.listdir(packages) if name.endswith('.pth')]
            for name in names:
                with open(os.path.join(packages, name), errors='replace') as lines:
                    for line in lines:
                        if line.startswith(('import ', 'import\\t')):
                            if any(word in name + line for word in ('editable', 'sys.path', 'meta_path')):
                                sys.exit(0)
                            continue
                        if line.strip() and not line.startswith('#'):
                            found.append(os.path.join(packages, line.strip()))
        except OSError:
            pass
    name = sys.argv[2]
    if not (BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name)
            or PathFinder.find_spec(name, found)):
        sys.stderr.write('there is no module ' + name)
        sys.exit(4)
";

/// Time limit for the answer of the interpreter.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Maximum length of the interpreter's answer in bytes.
const LONGEST: u64 = 1024;

impl AppSpec {
    /// Checks that the interpreter is new enough and finds the module. Runs the interpreter for a
    /// moment as the application's user, or as `gateway` if the application has no user, but no code
    /// of the application. If this process cannot become that user, the check succeeds.
    pub fn probe_interpreter(&self, gateway: Option<&Identity>) -> Result<(), StartError> {
        let Some((code, answer)) = probe(self, gateway) else { return Ok(()) };
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

/// The error as an exit code and a sentence, unless there is none, the application is in Perl, or
/// this process may not run the interpreter as the application's user.
fn probe(spec: &AppSpec, gateway: Option<&Identity>) -> Option<(i32, String)> {
    let module = match &spec.kind {
        Kind::PythonCgi { .. } => None,
        Kind::Wsgi { module, .. } if module.starts_with('/') => None, // a file, which exists
        Kind::Wsgi { module, .. } => module.split(['.', ':']).next(),
        Kind::PerlCgi { .. } | Kind::Psgi { .. } | Kind::ModPerl { .. } => return None,
    };
    let dir = std::path::absolute(spec.kind.dir()).ok()?;
    let python = executable::find(&spec.kind.interpreter(), &spec.env, &dir).ok()?;
    if changeable_by_others(&python).is_some() {
        return None;
    }
    let identity = Identity::find(&spec.name, spec.user.as_deref(), spec.group.as_deref()).ok()?;
    let mut arguments: Vec<OsString> = vec!["-ISBc".into(), QUESTION.into(), python.clone().into()];
    if let Some(module) = module {
        arguments.extend([module.into(), dir.clone().into()]);
        let path = spec.env.iter().rfind(|(name, _)| name == "PYTHONPATH");
        let path = path.map(|(_, path)| path.into()).or_else(|| std::env::var_os("PYTHONPATH"));
        let own = path.iter().flat_map(std::env::split_paths).map(|part| dir.join(part).into());
        arguments.extend(own);
    }
    let mut launch = Launch::default();
    launch.as_user(identity.as_ref().or(gateway));
    launch.argv = std::iter::once(python.into_os_string()).chain(arguments).collect();
    let mut command = if launch.is_needed() {
        launch.command()
    } else {
        let mut command = Command::new(&launch.argv[0]);
        command.args(&launch.argv[1..]);
        command
    };
    command.env_clear().env("PATH", search_path()).current_dir("/");
    let (code, answer) = run(command).ok()?;
    match code {
        NO_MODULE | TOO_OLD => Some((code, answer)),
        // Python 2 knows neither -I nor the question.
        BAD_USAGE if answer.contains("-I") => {
            Some((TOO_OLD, "this is Python 2, and 3.8 or newer is needed".to_owned()))
        }
        _ => None,
    }
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
