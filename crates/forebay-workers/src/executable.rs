//! Searches for programs as the system does.

use forebay_process::{Person, Refusal, Right, beginning};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{self, Path, PathBuf};

/// The reason why a program cannot be run, and a remedy for the user.
#[derive(Debug)]
pub(crate) struct Absent {
    pub(crate) what: String,
    pub(crate) help: String,
    /// True if this process may not look, so that the program may be there for another user.
    pub(crate) is_hidden: bool,
}

/// Why `person` cannot run `program` in `dir`, although it exists: the program, the interpreter of
/// its first line, the directory, or a directory above one of them. `None` if nothing stops it, or if
/// this process cannot see.
pub(crate) fn refusal(
    person: &Person,
    program: &str,
    (env, dir): (&[(String, String)], &Path),
) -> Option<Refusal> {
    let refused = person.refusal(dir, Right::Run);
    if refused.is_some() {
        return refused;
    }
    let mut first = None;
    for place in places(program, env, dir).into_iter().filter(|place| is_program(place)) {
        let place = path::absolute(place).ok()?;
        let interpreter = || person.refusal(&interpreter_of(&place)?, Right::Run);
        match person.refusal(&place, Right::Run).or_else(interpreter) {
            // The system goes on to the next directory of PATH after a program that the user may
            // not run.
            Some(refused) => first = first.or(Some(refused)),
            None => return None,
        }
    }
    first
}

/// The interpreter in the first line of a script, if the line names one by its path.
fn interpreter_of(program: &Path) -> Option<PathBuf> {
    let start = beginning(program, 256).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let word = line.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    let path = Path::new(OsStr::from_bytes(word));
    path.is_absolute().then(|| path.to_owned())
}

/// False only if there is certainly no such directory.
pub(crate) fn may_be_directory(dir: &Path) -> bool {
    match dir.metadata() {
        Ok(found) => found.is_dir(),
        Err(error) => error.kind() == ErrorKind::PermissionDenied,
    }
}

/// Returns the path of `program` for a process that starts in `dir`. `env` contains the variables
/// that are added to the inherited environment. The error says why `program` cannot be run.
pub(crate) fn find(program: &str, env: &[(String, String)], dir: &Path) -> Result<PathBuf, Absent> {
    let places = places(program, env, dir);
    let files = || places.iter().filter(|file| file.is_file());
    if let Some(file) = files().find(|file| is_program(file)) {
        return Ok(file.clone());
    }
    let is_hidden = places.iter().any(|place| {
        place.metadata().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    });
    let (what, help) = match files().next() {
        Some(file) => (
            format!("{} may not be run: it has no run bit", file.display()),
            format!("chmod +x {}, or name another program", file.display()),
        ),
        None if program.contains('/') => (
            match places[0].metadata() {
                Err(error) if may_exist(&error) => {
                    format!("the program {} cannot be reached: {error}", places[0].display())
                }
                _ => format!("there is no program {}", places[0].display()),
            },
            "install it, say where it is, or check the permissions on the way".to_owned(),
        ),
        None => (
            format!("there is no program {program} in PATH"),
            format!("install {program}, or add its directory to PATH"),
        ),
    };
    Err(Absent { what, help, is_hidden })
}

/// The paths that the system tries for a program, in order.
fn places(program: &str, env: &[(String, String)], dir: &Path) -> Vec<PathBuf> {
    if program.contains('/') {
        return vec![dir.join(program)];
    }
    let own = env.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.into());
    let path = own.or_else(|| std::env::var_os("PATH")).unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|place| dir.join(place).join(program)).collect()
}

/// True for a file with a run bit.
fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Returns true if the file may exist although it could not be inspected.
fn may_exist(error: &std::io::Error) -> bool {
    !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_reached_is_not_said_to_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("loop");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        let error = find(&link.join("x").to_string_lossy(), &[], dir.path()).unwrap_err();
        assert!(error.what.contains("cannot be reached"), "{}", error.what);
        let error = find("./none", &[], dir.path()).unwrap_err();
        assert!(error.what.contains("there is no program"), "{}", error.what);
    }
    use std::fs::{self, Permissions};

    fn write(file: &Path, mode: u32) {
        fs::write(file, "").unwrap();
        fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_program_is_found_as_exec_finds_it() {
        let dir = tempfile::tempdir().unwrap();
        let (here, bin) = (dir.path(), dir.path().join("bin"));
        fs::create_dir(&bin).unwrap();
        write(&here.join("tool"), 0o644);
        write(&bin.join("tool"), 0o755);
        let path = |path: String| vec![("PATH".to_owned(), path)];
        let both = path(format!("{}:bin", here.display()));
        assert_eq!(find("tool", &both, here).unwrap(), bin.join("tool"), "the one that runs");
        assert_eq!(find("bin/tool", &[], here).unwrap(), bin.join("tool"));
        assert!(find("sh", &[], here).is_ok(), "by PATH of this process");
        let error = |program, env: &[_]| find(program, env, here).unwrap_err().what;
        assert!(error("tool", &path(here.display().to_string())).contains("no run bit"));
        assert!(error("./tool", &[]).contains("no run bit"));
        assert!(error("sh", &both).contains("no program sh in PATH"));
        assert!(error("bin", &both).contains("in PATH"), "a directory is none");
        assert!(error("./none", &[]).contains("none"));
    }
}
