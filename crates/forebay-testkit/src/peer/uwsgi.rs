//! uWSGI: <https://uwsgi-docs.readthedocs.io/>.

use std::process::Command;

use super::{Peer, has, on_free_port, on_socket};
use crate::folder::Folder;
use crate::process::Process;

/// Protocol of uWSGI's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UwsgiSocket {
    /// uwsgi.
    Uwsgi,
    /// SCGI.
    Scgi,
    /// FastCGI.
    Fastcgi,
}

/// Application for uWSGI, given as the text of its file.
#[derive(Clone, Copy, Debug)]
pub enum UwsgiApp<'a> {
    /// Text of a Python file that defines a WSGI `application`.
    Wsgi(&'a str),
    /// Text of a PSGI file.
    Psgi(&'a str),
}

/// Starts uWSGI with two processes on a Unix socket. If uWSGI or its plugin for the application's
/// language is not installed, reports the test as skipped and returns `None`.
pub fn uwsgi(speaks: UwsgiSocket, app: UwsgiApp<'_>) -> Option<Peer> {
    is_installed(app)
        .then(|| on_socket(|folder, socket| start(folder, speaks, &socket.to_string_lossy(), app)))
}

/// Works as [`uwsgi`] does, on TCP.
pub fn uwsgi_tcp(speaks: UwsgiSocket, app: UwsgiApp<'_>) -> Option<Peer> {
    is_installed(app).then(|| {
        on_free_port(|folder, port| start(folder, speaks, &format!("127.0.0.1:{port}"), app))
    })
}

fn start(folder: &Folder, speaks: UwsgiSocket, address: &str, app: UwsgiApp<'_>) -> Process {
    let (plugin, option, name, text) = match app {
        UwsgiApp::Wsgi(text) => ("python3", "--wsgi-file", "app.py", text),
        UwsgiApp::Psgi(text) => ("psgi", "--psgi", "app.psgi", text),
    };
    let option_of_socket = match speaks {
        UwsgiSocket::Uwsgi => "--uwsgi-socket",
        UwsgiSocket::Scgi => "--scgi-socket",
        UwsgiSocket::Fastcgi => "--fastcgi-socket",
    };
    let file = folder.write(name, text);
    let mut command = Command::new("uwsgi");
    command.arg("--plugin").arg(plugin).arg(option_of_socket).arg(address);
    command.arg(option).arg(file).arg("--pidfile2").arg(folder.path().join("pid"));
    command.args(["--processes", "2", "--need-app", "--die-on-term", "--disable-logging"]);
    command.args(["--buffer-size", "65535"]);
    // Without a UTF-8 locale, Python inside uWSGI fails for a path that is not ASCII.
    command.env("LC_ALL", "C.UTF-8");
    Process::start(command)
}

fn is_installed(app: UwsgiApp<'_>) -> bool {
    let plugin = match app {
        UwsgiApp::Wsgi(_) => "uwsgi-plugin-python3",
        UwsgiApp::Psgi(_) => "uwsgi-plugin-psgi",
    };
    has(&["uwsgi-core", plugin])
}
