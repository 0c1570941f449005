//! Real servers (peers) for tests. Each runs in the foreground with its own configuration, under
//! root or an ordinary user, and ends with the test.
//!
//! `scripts/peers` lists all peers; a test that uses an unlisted one fails. If a peer is not
//! installed, its start function returns `None`, and the test ends without a failure. The skip is
//! printed, or appended to the file that `FOREBAY_SKIPPED` names. `scripts/test` installs all peers
//! and sets `FOREBAY_REQUIRE_PEERS=1`. With this variable, a missing peer makes the test fail.

mod apache;
mod caddy;
mod fcgiwrap;
mod go;
mod haproxy;
mod jetty;
mod list;
mod mono;
mod nginx;
mod php_fpm;
mod plack;
mod python;
mod rack;
mod redis;
mod tomcat;
mod uwsgi;

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::process::Signal;

use crate::folder::Folder;
use crate::port;
use crate::process::{self, Exit, Process};
use crate::stream::{Address, TestStream};

use list::{PeerEntry, Sign};

pub use apache::apache;
pub use caddy::caddy;
pub use fcgiwrap::fcgiwrap;
pub use go::{otlp_collector, routeguide};
pub use haproxy::haproxy;
pub use jetty::{jetty_http2, restart_jetty};
pub use mono::{compile_cs, has_mono, mono_fastcgi, mono_fastcgi_tcp};
pub use nginx::nginx;
pub use php_fpm::{has_php_cgi, has_php_fpm, php_fpm, php_fpm_with};
pub use plack::{perl_has, plack_fastcgi, plack_scgi, starlet, starman};
pub use python::{grpc, wsgiref};
pub use rack::rack_fastcgi;
pub use redis::Redis;
pub use tomcat::{restart_tomcat, tomcat, tomcat_http2};
pub use uwsgi::{UwsgiApp, UwsgiSocket, uwsgi, uwsgi_tcp};

/// Maximum number of starts of a server, if other processes take its port.
const ATTEMPTS: usize = 5;

/// Real server that runs during a test.
#[derive(Debug)]
pub struct Peer {
    // Declared before the folder and therefore dropped first: the server writes to its folder until
    // it ends.
    process: Process,
    address: Address,
    folder: Folder,
}

impl Peer {
    /// Returns the address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns the server's TCP port.
    ///
    /// # Panics
    /// Panics if the server listens on a Unix socket.
    pub fn port(&self) -> u16 {
        match &self.address {
            Address::Tcp(address) => address.port(),
            Address::Unix(path) => panic!("{} has no port", path.display()),
        }
    }

    /// Returns the path of the server's Unix socket.
    ///
    /// # Panics
    /// Panics if the server listens on TCP.
    pub fn socket(&self) -> &Path {
        match &self.address {
            Address::Unix(path) => path,
            Address::Tcp(address) => panic!("{address} has no path"),
        }
    }

    /// Returns the folder with the server's configuration, logs and temporary files.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Returns the server's process, to read its output or to send signals.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Ends the server with SIGTERM. Returns its exit status and output.
    pub fn stop(self) -> Exit {
        self.process.stop()
    }
}

/// Kills a server with SIGKILL. Returns its folder.
pub fn kill(peer: Peer) -> Folder {
    end(peer, Signal::KILL)
}

/// Ends a server with SIGTERM and waits until it has ended. Returns its folder.
pub fn stop(peer: Peer) -> Folder {
    end(peer, Signal::TERM)
}

fn end(mut peer: Peer, signal: Signal) -> Folder {
    peer.process.signal(signal);
    let Peer { process, folder, .. } = peer;
    process.wait();
    folder
}

/// Starts a program of the Java virtual machine and waits until its output contains `started`.
/// Fails if the program ends first. A start takes several seconds, and more on a busy machine, so
/// the time limit is six times [`DEADLINE`](crate::DEADLINE).
fn start_jvm(command: Command, started: &str) -> Result<Process, String> {
    let mut process = Process::start(command);
    let mut outcome = Ok(());
    for _ in 0..6 {
        outcome = process.wait_until("started", |process| process.output().contains(started));
        if outcome.is_ok() || process.has_ended() {
            break;
        }
    }
    outcome.map(|()| process)
}

/// Returns true if these Debian packages are installed. Otherwise, reports the test as skipped.
///
/// # Panics
/// Panics if `scripts/peers` lacks a package.
pub fn has(packages: &[&str]) -> bool {
    let entries: Vec<_> = packages.iter().map(|package| PeerEntry::of_package(package)).collect();
    let Some(missing) = entries.iter().find(|entry| !entry.is_installed()) else { return true };
    skip_without(missing);
    false
}

/// Returns the path of a program. If the program is missing, reports the test as skipped and
/// returns `None`.
///
/// # Panics
/// Panics if `scripts/peers` lacks the program.
pub fn installed(program: &str) -> Option<PathBuf> {
    let entry = PeerEntry::of_program(program);
    let found = process::find(program);
    if found.is_none() {
        skip_without(&entry);
    }
    found
}

/// Returns the path of a Go program in `scripts/peers`. If the program has not been built, reports
/// the test as skipped and returns `None`.
///
/// # Panics
/// Panics if `scripts/peers` lacks the program.
pub fn built_from_go(program: &str) -> Option<PathBuf> {
    has(&[program]).then(|| PeerEntry::of_package(program).go_program())
}

/// Returns the folder of a package of npm in `scripts/peers`. If the package is not installed,
/// reports the test as skipped and returns `None`.
///
/// # Panics
/// Panics if `scripts/peers` lacks the package.
pub fn npm_package(package: &str) -> Option<PathBuf> {
    let entry = PeerEntry::of_package(package);
    let is_installed = entry.is_installed() && has(&["nodejs"]);
    if !is_installed {
        skip_without(&entry);
    }
    is_installed.then(|| entry.npm_folder())
}

/// Returns the folder from which Python imports a package that pip has installed. If the package is
/// missing, reports the test as skipped and returns `None`.
///
/// # Panics
/// Panics if `scripts/peers` lacks the package.
pub fn pip_folder(package: &str) -> Option<PathBuf> {
    has(&[package]).then(PeerEntry::pip_folder)
}

/// Returns the folder with the source of a Python package, which has the package's tests. If the
/// source is missing, reports the test as skipped and returns `None`.
///
/// # Panics
/// Panics if `scripts/peers` has no source of the package.
pub fn python_source(package: &str) -> Option<PathBuf> {
    let entry = PeerEntry::of_package(package);
    let Sign::Source(version) = entry.sign else { panic!("{package} is no source") };
    has(&[package]).then(|| entry.source_folder(version))
}

/// Returns true if Perl can load `module`, which `package` contains. Otherwise, reports the test as
/// skipped.
///
/// # Panics
/// Panics if `scripts/peers` lacks the package.
pub fn has_perl(module: &str, package: &str) -> bool {
    let entry = PeerEntry::of_package(package);
    let loads = list::perl_loads(module);
    if !loads {
        skip_without(&entry);
    }
    loads
}

fn skip_without(entry: &PeerEntry) {
    let what = match entry.sign {
        Sign::Program(name) => format!("the program {name}"),
        Sign::Perl(module) => format!("Perl's module {module}"),
        Sign::Python(module) => format!("Python's module {module}"),
        Sign::File(path) => path.to_owned(),
        Sign::Npm(_) | Sign::Pip(_) | Sign::Source(_) => {
            return skip(&format!(
                "the package {} is not installed (scripts/install-peers does)",
                entry.package
            ));
        }
        Sign::Go(_) => {
            return skip(&format!(
                "the program {} has not been built (scripts/install-peers does)",
                entry.package
            ));
        }
    };
    skip(&format!("{what} is not installed (Debian package {})", entry.package));
}

/// Reports that the running test is skipped, with the reason. Tests that need a peer use [`has`] or
/// [`installed`] instead.
///
/// # Panics
/// Panics if `FOREBAY_REQUIRE_PEERS` is 1, which means that no test may be skipped.
pub fn skip(reason: &str) {
    let is_failure = env::var("FOREBAY_REQUIRE_PEERS").is_ok_and(|value| value == "1");
    let list = env::var_os("FOREBAY_SKIPPED").map(PathBuf::from);
    account_for_skip(reason, is_failure, list.as_deref());
}

fn account_for_skip(reason: &str, is_failure: bool, list: Option<&Path>) {
    let current = thread::current();
    let test = current.name().unwrap_or("a test");
    assert!(!is_failure, "{test} may not be skipped: {reason}");
    let line = format!("skipped: {test}: {reason}\n");
    let Some(list) = list else {
        // `eprintln!` would print to the test runner, which hides the output of passing tests.
        let _no_console = io::stderr().write_all(line.as_bytes());
        return;
    };
    // Write the line with a single write in append mode, because other tests write to the same file
    // at the same time.
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(list)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("FOREBAY_SKIPPED={}: {error}", list.display()));
}

/// Returns true if the test runs as root. Servers then run as the unprivileged user [`WORKER`].
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// User and group of servers that root starts. Debian provides this user for web servers.
const WORKER: &str = "www-data";

/// Starts a TCP server: calls `start` with a new folder and a free port. If another process takes
/// this port, tries again with another port. When the server listens, it must write its process ID
/// to the file `pid` in the folder.
fn on_free_port(start: impl Fn(&Folder, u16) -> Process) -> Peer {
    // Only the server itself can report that it listens, because another process could answer on
    // the port.
    on_free_port_when(start, |folder, _| {
        fs::read_to_string(folder.path().join("pid")).is_ok_and(|id| !id.is_empty())
    })
}

/// Works as [`on_free_port`] does. `listens` returns true when the server listens.
fn on_free_port_when(
    start: impl Fn(&Folder, u16) -> Process,
    listens: impl Fn(&Folder, u16) -> bool,
) -> Peer {
    on_a_free_port(|folder, port| {
        let mut process = start(folder, port);
        process.wait_until("listened", |_| listens(folder, port)).map(|()| process)
    })
}

/// Works as [`on_free_port`] does. `start` returns when the server listens, or returns an error.
fn on_a_free_port(start: impl Fn(&Folder, u16) -> Result<Process, String>) -> Peer {
    let mut failure = String::new();
    for _ in 0..ATTEMPTS {
        let folder = Folder::new();
        let port = port::free_port();
        match start(&folder, port) {
            Ok(process) => {
                let address = Address::Tcp((std::net::Ipv4Addr::LOCALHOST, port).into());
                return Peer { process, address, folder };
            }
            Err(error) if error.contains("in use") => failure = error,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no port stayed free in {ATTEMPTS} attempts: {failure}");
}

/// Restarts a server that was killed or stopped, in the same folder and on the same port.
///
/// # Panics
/// Panics if the server does not start, for example because another process has taken the port.
fn restart(
    folder: Folder,
    address: &Address,
    start: impl FnOnce(&Folder) -> Result<Process, String>,
) -> Peer {
    let process = start(&folder).unwrap_or_else(|error| panic!("{error}"));
    Peer { process, address: address.clone(), folder }
}

/// Starts a server that listens on a Unix socket in its folder. `start` receives the path.
fn on_socket(start: impl FnOnce(&Folder, &Path) -> Process) -> Peer {
    let folder = Folder::new();
    let socket = folder.path().join("socket");
    let mut process = start(&folder, &socket);
    let address = Address::Unix(socket);
    process
        .wait_until("listened", |_| TestStream::connect(&address, crate::DEADLINE).is_ok())
        .unwrap_or_else(|error| panic!("{error}"));
    Peer { process, address, folder }
}

/// Replaces `{port}` and `{tmp}` in a text by the port and by the path of the folder.
fn filled_in(text: &str, folder: &Folder, port: u16) -> String {
    let tmp = folder.path().to_str().expect("temporary folders have plain names");
    text.replace("{port}", &port.to_string()).replace("{tmp}", tmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_listed_by_the_name_of_its_test() {
        let folder = Folder::new();
        let list = folder.path().join("skipped");
        account_for_skip("nginx is not installed", false, Some(&list));
        let text = fs::read_to_string(&list).unwrap();
        assert!(text.contains("a_skip_is_listed_by_the_name_of_its_test: nginx is"), "{text}");
    }

    #[test]
    #[should_panic(expected = "may not be skipped: nginx is not installed")]
    fn a_skip_where_peers_are_required_is_a_failure() {
        account_for_skip("nginx is not installed", true, None);
    }

    #[test]
    fn programs_are_found_or_not() {
        assert!(process::find("sh").is_some());
        assert!(process::find("no-such-server").is_none());
    }
}
