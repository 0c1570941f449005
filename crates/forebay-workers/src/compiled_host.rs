//! Compiles the host for ASP.NET, `hosts/mono.cs`, on this machine when an application first needs
//! it.
//!
//! A user with write access to the directory of the assembly can run code as the application's
//! user. So Forebay uses the assembly only if no user except root and Forebay's own can change the
//! assembly or a directory above it.

use crate::executable;
use forebay_process::{StartError, changeable_by_others, search_path};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use sha2::{Digest, Sha256};
use std::fs::{self, Permissions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SOURCES: [(&str, &str); 4] = [
    ("mono.cs", include_str!("../../../hosts/mono.cs")),
    ("connection.cs", include_str!("../../../hosts/mono/connection.cs")),
    ("request.cs", include_str!("../../../hosts/mono/request.cs")),
    ("variables.cs", include_str!("../../../hosts/mono/variables.cs")),
];
pub(crate) const ASSEMBLY: &str = "forebay-mono.exe";
/// The Debian package that contains everything an application may use.
const PACKAGE: &str = "mono-devel";

/// Time limit for the compiler.
const PATIENCE: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// An error message shows at most this many bytes of the compiler's output.
const LONGEST: u64 = 2048;

/// The compiled host. All applications on Mono share one assembly on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledHost;

impl CompiledHost {
    /// Checks that mono and its compiler exist. The compiler also compiles the pages of
    /// applications.
    pub(crate) fn check(
        &self,
        app: &str,
        env: &[(String, String)],
        dir: &Path,
    ) -> Result<(), StartError> {
        for program in ["mono", "mcs"] {
            if let Err(absent) = executable::find(program, env, dir) {
                let error = StartError::new(app, absent.what).at(&["kind"]);
                return Err(error.help(format!("on Debian: apt-get install {PACKAGE}")));
            }
        }
        Ok(())
    }

    /// Compiles the assembly if necessary, and returns its directory. Blocks.
    pub(crate) fn provide(&self) -> io::Result<PathBuf> {
        let name = format!("mono-{}", digest());
        let mut last = None;
        for place in places() {
            match provide_in(&place, &name) {
                Ok(dir) => return Ok(dir),
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }
}

fn digest() -> String {
    let mut digest = Sha256::new();
    for (name, text) in SOURCES {
        digest.update(name);
        digest.update(text);
    }
    digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns possible directories for the assembly, the best first: the cache directories of the
/// service manager, the system and the user, and a temporary directory. Leaves out directories that
/// are not known or not absolute.
fn places() -> Vec<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = geteuid();
    let of_system = user.is_root().then(|| PathBuf::from("/var/cache/forebay"));
    let of_user = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    let temporary = std::env::temp_dir().join(format!("forebay-cache-{}", user.as_raw()));
    let all = [var("CACHE_DIRECTORY"), of_system, of_user.map(|dir| dir.join("forebay"))];
    all.into_iter().flatten().chain([temporary]).filter(|place| place.is_absolute()).collect()
}

fn provide_in(place: &Path, name: &str) -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(place)?;
    let place = place.canonicalize()?;
    refuse_foreign(&place)?;
    let dir = place.join(name);
    let assembly = dir.join(ASSEMBLY);
    if !assembly.exists() {
        compile(&place, &dir)?;
    }
    refuse_foreign(&assembly)?;
    Ok(dir)
}

/// Refuses a path that a user other than root and this process's user can change.
fn refuse_foreign(path: &Path) -> io::Result<()> {
    let Some(part) = changeable_by_others(path) else { return Ok(()) };
    let what = format!(
        "the host for ASP.NET is not kept in {}: others can change {}",
        path.display(),
        part.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

/// Compiles the host into `dir`, a new directory in `place`.
fn compile(place: &Path, dir: &Path) -> io::Result<()> {
    let room = tempfile::Builder::new().prefix(".mono-").tempdir_in(place)?;
    for (name, text) in SOURCES {
        fs::write(room.path().join(name), text)?;
    }
    let mut command = Command::new("mcs");
    let output = format!("-out:{ASSEMBLY}");
    command.args(["-unsafe", "-optimize+", "-r:System.Web", "-r:Mono.Posix", &output]);
    command.args(SOURCES.map(|(name, _)| name)).current_dir(room.path());
    // Variables such as MONO_PATH would load libraries of others into the compiler.
    command.env_clear().env("PATH", search_path()).env("HOME", "/nonexistent");
    run(command)?;
    for (name, _) in SOURCES {
        fs::remove_file(room.path().join(name))?;
    }
    // The application's user has to read the assembly.
    fs::set_permissions(room.path().join(ASSEMBLY), Permissions::from_mode(0o644))?;
    fs::set_permissions(room.path(), Permissions::from_mode(0o755))?;
    match fs::rename(room.path(), dir) {
        // Another process has compiled the same sources at the same time, so use its result.
        Err(_) if dir.join(ASSEMBLY).exists() => Ok(()),
        outcome => outcome,
    }
}

/// Runs the compiler, and kills it after `PATIENCE`. If the compiler fails, returns its output as
/// the error.
fn run(mut command: Command) -> io::Result<()> {
    let mut said = tempfile::tempfile()?;
    let (stdout, stderr) = (Stdio::from(said.try_clone()?), Stdio::from(said.try_clone()?));
    let mut child = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn()?;
    if let Ok(pidfd) = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        let mut ended = [PollFd::new(&pidfd, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut ended, Some(&PATIENCE))) != Ok(1) {
            child.kill()?;
        }
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(());
    }
    let mut text = Vec::new();
    said.rewind()?;
    said.take(LONGEST).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    Err(io::Error::other(format!(
        "mcs does not compile the host for ASP.NET ({status}); on Debian it needs {PACKAGE}: {}",
        text.trim()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_of_others_is_not_compiled_into() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let error = provide_in(&open, "mono-0").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
    }
}
