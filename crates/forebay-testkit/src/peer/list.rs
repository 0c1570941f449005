//! List of peers, `scripts/peers`: packages that tests need, and how to recognize an installed one.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::process;

const LIST: &str = include_str!("../../../../scripts/peers");

/// Directory of Go programs, which `scripts/install-peers` builds.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin");

/// Python interpreter that finds the modules of Debian packages.
const PYTHON: &str = "/usr/bin/python3";

/// Line of `scripts/peers`, which describes one package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerEntry {
    /// Name of the package of Debian, npm or pip, or of the Go program.
    pub(super) package: &'static str,
    /// Sign that the package is installed.
    pub(super) sign: Sign,
}

/// Sign that a package is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Name of a program in the package.
    Program(&'static str),
    /// Perl module in the package.
    Perl(&'static str),
    /// Python module in the package.
    Python(&'static str),
    /// Path of a file in the package. `*` matches any text within a path component.
    File(&'static str),
    /// Go package from which the program is built.
    Go(&'static str),
    /// Version of a package of npm.
    Npm(&'static str),
    /// Version of a package that pip installs.
    Pip(&'static str),
    /// Version of a Python package whose source is unpacked.
    Source(&'static str),
}

impl PeerEntry {
    /// Returns the entry of a package.
    ///
    /// # Panics
    /// Panics if the list lacks the package.
    pub(super) fn of_package(package: &str) -> Self {
        Self::find(&format!("the package {package}"), |entry| entry.package == package)
    }

    /// Returns the entry of the package that contains the program `name`.
    ///
    /// # Panics
    /// Panics if the list lacks the program.
    pub(super) fn of_program(name: &str) -> Self {
        Self::find(
            &format!("the program {name}"),
            |entry| matches!(entry.sign, Sign::Program(program) if program == name),
        )
    }

    /// Returns true if the package is installed.
    pub(super) fn is_installed(self) -> bool {
        match self.sign {
            Sign::Program(name) => process::find(name).is_some(),
            Sign::Perl(module) => runs("perl", &[&format!("-M{module}"), "-e1"]),
            Sign::Python(module) => runs(PYTHON, &["-c", &format!("import {module}")]),
            Sign::File(pattern) => !matches(pattern).is_empty(),
            Sign::Go(_) => self.go_program().exists(),
            Sign::Npm(_) => self.npm_folder().join("package.json").exists(),
            Sign::Pip(_) => Self::pip_folder().join(self.package).exists(),
            Sign::Source(version) => self.source_folder(version).exists(),
        }
    }

    /// Returns the path that a Go program has after its build.
    pub(super) fn go_program(self) -> PathBuf {
        Path::new(TOOLS).join(self.package)
    }

    /// Returns the folder of a package of npm after its installation.
    pub(super) fn npm_folder(self) -> PathBuf {
        Path::new(TOOLS).join("../npm/node_modules").join(self.package)
    }

    /// Returns the folder of all packages that pip has installed.
    pub(super) fn pip_folder() -> PathBuf {
        Path::new(TOOLS).join("../pip")
    }

    /// Returns the folder with the unpacked source of this Python package, in version `version`.
    pub(super) fn source_folder(self, version: &str) -> PathBuf {
        Path::new(TOOLS).join(format!("../source/{}-{version}", self.package))
    }

    fn find(what: &str, is_it: impl Fn(&Self) -> bool) -> Self {
        let entry = entries().find(is_it);
        entry.unwrap_or_else(|| panic!("{what} is not in scripts/peers: add its line"))
    }
}

/// Returns true if Perl can load a module.
pub(super) fn perl_loads(module: &str) -> bool {
    runs("perl", &[&format!("-M{module}"), "-e1"])
}

/// Returns the files that match the pattern of a `File` entry, sorted by path.
pub(super) fn matches(pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = match part.split_once('*') {
            None => found.into_iter().map(|folder| folder.join(part)).collect(),
            Some((start, end)) => {
                found.iter().flat_map(|folder| children(folder, start, end)).collect()
            }
        };
    }
    found.retain(|path| path.exists());
    found.sort();
    found
}

fn entries() -> impl Iterator<Item = PeerEntry> {
    LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(parse)
}

fn parse(line: &'static str) -> PeerEntry {
    let mut words = line.split_whitespace();
    let mut word =
        || words.next().unwrap_or_else(|| panic!("scripts/peers: {line:?} lacks a word"));
    let (package, kind, what) = (word(), word(), word());
    let sign = match kind {
        "program" => Sign::Program(what),
        "perl" => Sign::Perl(what),
        "python" => Sign::Python(what),
        "file" => Sign::File(what),
        "go" | "newgo" => Sign::Go(what),
        "npm" => Sign::Npm(what),
        "pip" => Sign::Pip(what),
        "source" => Sign::Source(what),
        _ => panic!("scripts/peers: {line:?}: {kind} is no way to recognise a package"),
    };
    assert_eq!(words.next(), None, "scripts/peers: {line:?} has a word too many");
    PeerEntry { package, sign }
}

fn children(folder: &Path, start: &str, end: &str) -> Vec<PathBuf> {
    let is_it = |name: &OsStr| {
        name.to_str()
            .is_some_and(|name| name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| is_it(&entry.file_name())).map(|entry| entry.path()).collect()
}

fn runs(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn every_line_is_understood_and_names_a_package_of_its_own() {
        let packages: Vec<_> = entries().map(|entry| entry.package).collect();
        let mut unique = packages.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), packages.len());
        assert!(unique.contains(&"haproxy"), "{unique:?}");
        assert_eq!(PeerEntry::of_program("ab").package, "apache2-utils");
    }

    #[test]
    #[should_panic(expected = "the package no-such-server is not in scripts/peers")]
    fn a_peer_that_the_list_lacks_is_a_failure() {
        PeerEntry::of_package("no-such-server");
    }

    #[test]
    fn files_are_found_by_patterns() {
        let folder = Folder::new();
        let newest = folder.write("8.2/bin/server", "");
        let oldest = folder.write("7.4/bin/server", "");
        folder.write("9.0/bin/client", "");
        let find = |pattern: &str| matches(&format!("{}/{pattern}", folder.path().display()));
        assert_eq!(find("*/bin/server"), [oldest, newest.clone()]);
        assert_eq!(find("8*/bin/ser*"), [newest]);
        assert!(find("*/sbin/server").is_empty() && find("none").is_empty());
    }
}
