//! The server fastcgi-mono-server4, which runs ASP.NET applications: <https://github.com/mono/xsp>.

use std::process::Command;

use super::{Peer, has, on_free_port_when, on_socket};
use crate::folder::Folder;
use crate::process::Process;
use crate::stream::{Address, TestStream};

/// Starts Mono's FastCGI server on a Unix socket, with the application in `site` and further
/// `options` such as "/multiplex=True". The server compiles the handlers in `site` at their first
/// request. If the server or the compiler is not installed, reports the test as skipped and returns
/// `None`.
pub fn mono_fastcgi(site: &Folder, options: &[&str]) -> Option<Peer> {
    is_installed().then(|| {
        on_socket(|folder, socket| {
            start(folder, site, &format!("unix:{}", socket.display()), options)
        })
    })
}

/// Works as [`mono_fastcgi`] does, on TCP.
pub fn mono_fastcgi_tcp(site: &Folder, options: &[&str]) -> Option<Peer> {
    is_installed().then(|| {
        let start = |folder: &Folder, port: u16| {
            start(folder, site, &format!("tcp:127.0.0.1:{port}"), options)
        };
        // The server writes no process ID, and prints nothing when it listens, so try to connect.
        on_free_port_when(start, |_, port| {
            let address = Address::Tcp((std::net::Ipv4Addr::LOCALHOST, port).into());
            TestStream::connect(&address, crate::DEADLINE).is_ok()
        })
    })
}

/// Returns true if Mono's server, compiler and runtime are installed. Otherwise, reports the
/// test as skipped.
pub fn has_mono() -> bool {
    is_installed() && has(&["mono-runtime"])
}

/// Compiles the C# file `source` in the folder to the file `program` in the same folder.
///
/// # Panics
/// Panics if the source does not compile.
pub fn compile_cs(folder: &Folder, source: &str, program: &str) {
    let mut command = Command::new("mcs");
    command.args(["-reference:System.Web", source, &format!("-out:{program}")]);
    let output = command.current_dir(folder.path()).output().expect("mcs is installed");
    assert!(output.status.success(), "{source}: {}", String::from_utf8_lossy(&output.stdout));
}

fn start(folder: &Folder, site: &Folder, socket: &str, options: &[&str]) -> Process {
    let mut command = Command::new("fastcgi-mono-server4");
    command.arg(format!("/applications=/:{}", site.path().display()));
    command.arg(format!("/socket={socket}")).args(options);
    // The server writes the compiled handlers to this directory.
    command.env("TMPDIR", folder.path()).env("HOME", folder.path());
    Process::start(command)
}

fn is_installed() -> bool {
    has(&["mono-fastcgi-server4", "mono-mcs"])
}
