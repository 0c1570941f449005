//! Experiment file: the parsed TOML (`file`), and the validated plan with all defaults (`plan`).

mod client;
mod file;
mod parse;
mod plan;
mod problem;
mod tables;

pub use client::{Better, Client, Find, Printed};
pub use plan::{
    Amount, Cell, Check, Configuration, Load, MaxFailed, Plan, Service, ServiceValues, Template,
    Values,
};
pub use problem::Problem;

use std::path::Path;
use std::process::{Command, Stdio};

use forebay_process::search_path;

/// Serialization of durations as a number of seconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(de::Error::custom)
    }

    /// Serialization of optional durations.
    pub mod option {
        use super::{Deserialize, Deserializer, Duration, Serializer, de};

        pub fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
            match time {
                Some(time) => super::serialize(time, to),
                None => to.serialize_none(),
            }
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Option<Duration>, D::Error> {
            let seconds = Option::<f64>::deserialize(from)?;
            seconds.map(Duration::try_from_secs_f64).transpose().map_err(de::Error::custom)
        }
    }
}

// Requirements of a configuration: programs, Debian packages and Perl modules.

/// Prefix that marks a requirement as a Perl module.
const PERL: &str = "perl:";

/// Returns the names in `requires` that are neither a program nor an installed Debian package. A
/// name `perl:Module` is missing if Perl cannot load the module.
pub fn missing(requires: &[String]) -> Vec<String> {
    let is_there = |name: &&String| match name.strip_prefix(PERL) {
        Some(module) => is_perl_module(module),
        None => is_program(name) || is_package(name),
    };
    requires.iter().filter(|name| !is_there(name)).cloned().collect()
}

/// Describes missing requirements in one sentence, with the command that installs packages.
pub fn in_words(missing: &[String]) -> String {
    let packages: Vec<&str> =
        missing.iter().map(String::as_str).filter(|name| !name.starts_with(PERL)).collect();
    let install = match &packages[..] {
        [] => String::new(),
        packages => format!(" (apt-get install {})", packages.join(" ")),
    };
    format!("not installed: {}{install}", missing.join(" "))
}

fn is_program(name: &str) -> bool {
    if name.contains('/') {
        return is_runnable(Path::new(name));
    }
    std::env::split_paths(&search_path()).any(|directory| is_runnable(&directory.join(name)))
}

/// Returns true if Perl can load a module. The module name is passed as an argument, so that it
/// cannot inject Perl code.
fn is_perl_module(module: &str) -> bool {
    Command::new("perl")
        .args(["-e", "eval { require((shift =~ s{::}{/}gr) . '.pm') } or exit 1", module])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn is_runnable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
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
    fn a_module_of_perl_is_found_and_no_package_is_proposed_for_one() {
        let asked = ["perl:File::Spec", "perl:No::Such"].map(str::to_owned);
        assert_eq!(missing(&asked), ["perl:No::Such"]);
        assert_eq!(in_words(&missing(&asked)), "not installed: perl:No::Such");
        let both = ["nginx", "perl:No::Such"].map(str::to_owned);
        assert_eq!(in_words(&both), "not installed: nginx perl:No::Such (apt-get install nginx)");
    }
}
