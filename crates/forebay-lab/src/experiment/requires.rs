//! What a configuration needs on this machine: programs or Debian packages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directories of servers that an ordinary user's `PATH` leaves out on Debian.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The names among `requires` that are neither a program nor an installed Debian package.
pub fn missing(requires: &[String]) -> Vec<String> {
    requires.iter().filter(|name| !is_program(name) && !is_package(name)).cloned().collect()
}

/// `PATH` with the system directories added, as every server gets it.
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

fn is_program(name: &str) -> bool {
    if name.contains('/') {
        return is_runnable(Path::new(name));
    }
    std::env::split_paths(&search_path()).any(|directory| is_runnable(&directory.join(name)))
}

fn is_runnable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

fn is_package(name: &str) -> bool {
    if name.starts_with('-') {
        return false;
    }
    Command::new("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status}\n", name])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| {
            output.stdout.split(|&byte| byte == b'\n').any(|line| line == b"installed")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_and_a_path_are_found_and_an_invention_is_named() {
        let asked = ["sh", "/bin/sh", "no-such-program-or-package"].map(str::to_owned);
        assert_eq!(missing(&asked), ["no-such-program-or-package"]);
    }

    #[test]
    fn the_search_path_reaches_servers() {
        let path = search_path();
        assert!(std::env::split_paths(&path).any(|directory| directory == Path::new("/usr/sbin")));
    }
}
