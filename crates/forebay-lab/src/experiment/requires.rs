//! What a configuration needs on this machine: programs or Debian packages.

use std::path::Path;
use std::process::{Command, Stdio};

use forebay_process::search_path;

/// The names among `requires` that are neither a program nor an installed Debian package.
pub fn missing(requires: &[String]) -> Vec<String> {
    requires.iter().filter(|name| !is_program(name) && !is_package(name)).cloned().collect()
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
}
